// SPDX-License-Identifier: GPL-2.0
/*
 * Who keeps a block alive: descriptors and mappings, of any process, and nothing
 * else; and that it comes back at once whoever lets go of it, and how.
 */
#include <sys/resource.h>
#include <sys/socket.h>

#include "binpool_test.h"
#include "share.h"

#define FRAMES 4

/* Expects that this many bytes more than at the test's start are in blocks. */
#define ASSERT_ACTIVE(bytes)                                                                       \
	ASSERT_EQ(self->before.v[1] + (long long)(bytes), attr_read("active_bytes"))

TEST_F(pool, close_before_munmap)
{
	const __u64 len = FRAMES * self->frame;
	int fd = block_alloc(self->dev, len);
	char *p = block_map(fd, len);

	ASSERT_NE(MAP_FAILED, (void *)p);
	stamp(p, len, 1);
	close(fd);
	ASSERT_ACTIVE(len);
	ASSERT_TRUE(stamped(p, len, 1));
	munmap(p, len);
	ASSERT_ACTIVE(0);
}

TEST_F(pool, munmap_before_close)
{
	const __u64 len = FRAMES * self->frame;
	int fd = block_alloc(self->dev, len);
	char *p = block_map(fd, len);

	ASSERT_NE(MAP_FAILED, (void *)p);
	stamp(p, len, 2);
	munmap(p, len);
	ASSERT_ACTIVE(len);
	p = block_map(fd, len);
	ASSERT_TRUE(stamped(p, len, 2));
	munmap(p, len);
	close(fd);
	ASSERT_ACTIVE(0);
}

TEST_F(pool, never_mapped)
{
	close(block_alloc(self->dev, FRAMES * self->frame));
	ASSERT_ACTIVE(0);
}

TEST_F(pool, part_stays_mapped)
{
	const __u64 len = FRAMES * self->frame;
	int fd = block_alloc(self->dev, len);
	char *p = block_map(fd, len);
	char *last = p + len - page_bytes();

	stamp(p, len, 3);
	close(fd);
	munmap(p, len - page_bytes());
	/* One page is left: the block is there, whole. */
	ASSERT_ACTIVE(len);
	ASSERT_EQ(word_at(3, len - 8), *(__u64 *)(last + page_bytes() - 8));
	munmap(last, page_bytes());
	ASSERT_ACTIVE(0);
}

TEST_F(pool, dup_and_close)
{
	int fd = block_alloc(self->dev, self->frame);
	int other = dup(fd);
	struct binpool_query q;

	ASSERT_LE(0, other);
	close(fd);
	ASSERT_ACTIVE(self->frame);
	ASSERT_EQ(0, block_query(other, &q));
	close(other);
	ASSERT_ACTIVE(0);
}

/* The opener's descriptor is not what keeps its blocks. */
TEST_F(pool, device_closed_first)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	int fd = block_alloc(dev, self->frame);
	struct binpool_query q;
	char *p;

	close(dev);
	ASSERT_ACTIVE(self->frame);
	ASSERT_EQ(0, block_query(fd, &q));
	ASSERT_EQ(getuid(), q.owner_uid);
	p = block_map(fd, self->frame);
	stamp(p, self->frame, 4);
	close(fd);
	munmap(p, self->frame);
	ASSERT_ACTIVE(0);
}

/* A child sees the same bytes, and its end disturbs nothing. */
TEST_F(pool, fork)
{
	const __u64 len = FRAMES * self->frame;
	int fd = block_alloc(self->dev, len);
	char *p = block_map(fd, len);
	pid_t pid;

	stamp(p, len, 5);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		if (!stamped(p, len, 5))
			_exit(1);
		stamp(p, len, 6);
		_exit(0);
	}
	ASSERT_EQ(0, child_status(pid));
	ASSERT_TRUE(stamped(p, len, 6));
	ASSERT_ACTIVE(len);
	munmap(p, len);
	close(fd);
	ASSERT_ACTIVE(0);
}

/* The child keeps what its parent let go. */
TEST_F(pool, child_outlives)
{
	const __u64 len = FRAMES * self->frame;
	int fd = block_alloc(self->dev, len), go[2];
	char *p = block_map(fd, len), byte = 0;
	pid_t pid;

	stamp(p, len, 7);
	ASSERT_EQ(0, pipe(go));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		close(fd);
		if (read(go[0], &byte, 1) != 1)
			_exit(1);
		_exit(stamped(p, len, 7) ? 0 : 2);
	}
	munmap(p, len);
	close(fd);
	ASSERT_ACTIVE(len);
	ASSERT_EQ(1, write(go[1], &byte, 1));
	ASSERT_EQ(0, child_status(pid));
	ASSERT_ACTIVE(0);
	close(go[0]);
	close(go[1]);
}

/* Sent over a socket: between processes, and alive while in flight. */
TEST_F(pool, scm_rights)
{
	const __u64 len = FRAMES * self->frame;
	int fd = block_alloc(self->dev, len), pair[2], got;
	char *p = block_map(fd, len);
	pid_t pid;

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	stamp(p, len, 8);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		char *q;

		munmap(p, len);
		close(fd);
		got = fd_receive(pair[1]);
		q = got < 0 ? MAP_FAILED : block_map(got, len);
		if (q == MAP_FAILED || !stamped(q, len, 8))
			_exit(1);
		stamp(q, len, 9);
		_exit(0);
	}
	ASSERT_EQ(0, fd_send(pair[0], fd));
	ASSERT_EQ(0, child_status(pid));
	ASSERT_TRUE(stamped(p, len, 9));

	munmap(p, len);
	ASSERT_EQ(0, fd_send(pair[0], fd));
	close(fd);
	ASSERT_ACTIVE(len);
	got = fd_receive(pair[1]);
	ASSERT_LE(0, got);
	p = block_map(got, len);
	ASSERT_TRUE(stamped(p, len, 9));
	munmap(p, len);
	close(got);
	ASSERT_ACTIVE(0);

	/* Never received: gone with the socket. */
	fd = block_alloc(self->dev, len);
	ASSERT_EQ(0, fd_send(pair[0], fd));
	close(fd);
	ASSERT_ACTIVE(len);
	close(pair[0]);
	close(pair[1]);
	ASSERT_TRUE(attr_becomes("active_bytes", (__u64)self->before.v[1], SOON_MS));
}

/* A process that ends without closing or unmapping anything. */
TEST_F(pool, exit_with_neither)
{
	for (int i = 0; i < 20; i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			const __u64 len = FRAMES * self->frame;
			char *p = block_map(block_alloc(self->dev, len), len);

			block_alloc(self->dev, len);
			stamp(p, len, 1);
			_exit(0);
		}
		ASSERT_EQ(0, child_status(pid));
		ASSERT_ACTIVE(0);
	}
}

/* Killed at any point of asking, mapping and touching. */
TEST_F_TIMEOUT(pool, sigkill, 120)
{
	unsigned int seed = 1;

	for (int i = 0; i < 60; i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			for (;;) {
				const __u64 len = FRAMES * self->frame;
				int fd = block_alloc(self->dev, len);
				char *p = block_map(fd, len);

				stamp(p, len, 1);
				munmap(p, len);
				close(fd);
			}
		}
		sleep_ms((unsigned int)rand_r(&seed) % 30);
		kill(pid, SIGKILL);
		ASSERT_EQ(128 + SIGKILL, child_status(pid));
		ASSERT_TRUE(attr_becomes("active_bytes", (__u64)self->before.v[1], SOON_MS));
	}
}

/* A block is no ordinary file. */
TEST_F(pool, file_calls)
{
	int fd = block_alloc(self->dev, self->frame);
	char path[64], buf[16] = {};
	struct stat st;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ASSERT_EQ(-1, open(path, O_RDWR));
	ASSERT_EQ(ENXIO, errno);
	ASSERT_EQ(-1, open(path, O_RDONLY));
	ASSERT_EQ(ENXIO, errno);
	ASSERT_EQ(-1, truncate(path, 0));
	ASSERT_EQ(EINVAL, errno);
	ASSERT_EQ(-1, ftruncate(fd, 0));
	ASSERT_EQ(EINVAL, errno);
	ASSERT_EQ(-1, ftruncate(fd, (off_t)GIB));
	ASSERT_EQ(EINVAL, errno);
	ASSERT_EQ(-1, fallocate(fd, 0, 0, (off_t)self->frame));
	ASSERT_EQ(ENODEV, errno);
	ASSERT_EQ(-1, read(fd, buf, sizeof(buf)));
	ASSERT_EQ(EINVAL, errno);
	ASSERT_EQ(-1, write(fd, buf, sizeof(buf)));
	ASSERT_EQ(EINVAL, errno);
	ASSERT_EQ(-1, lseek(fd, 0, SEEK_SET));
	ASSERT_EQ(ESPIPE, errno);
	ASSERT_EQ(-1, fsync(fd));
	ASSERT_EQ(EINVAL, errno);
	ASSERT_EQ(0, fstat(fd, &st));
	ASSERT_EQ(0600, st.st_mode);
	ASSERT_EQ(FD_CLOEXEC, fcntl(fd, F_GETFD) & FD_CLOEXEC);
	ASSERT_EQ(O_RDWR, fcntl(fd, F_GETFL) & O_ACCMODE);
	close(fd);
}

/* Nor does exec hand it on. */
TEST_F(pool, exec_closes)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		char script[64];

		snprintf(script, sizeof(script), "test ! -e /proc/self/fd/%d",
			 block_alloc(self->dev, self->frame));
		execl("/bin/sh", "sh", "-c", script, NULL);
		_exit(127);
	}
	ASSERT_EQ(0, child_status(pid));
	ASSERT_ACTIVE(0);
}

/* Many processes at once; nothing is lost between them. */
TEST_F_TIMEOUT(pool, many_at_once, 120)
{
	pid_t pids[8];

	for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
		pids[i] = fork();
		ASSERT_LE(0, pids[i]);
		if (pids[i])
			continue;
		for (int r = 0; r < 100; r++) {
			const __u64 len = (1 + (i + (size_t)r) % FRAMES) * self->frame;
			int fd = block_alloc(self->dev, len);
			char *p = fd < 0 ? MAP_FAILED : block_map(fd, len);

			if (p == MAP_FAILED)
				_exit(1);
			for (__u64 o = 0; o < len; o += self->frame) {
				if (*(volatile __u64 *)(p + o))
					_exit(2);
				*(volatile __u64 *)(p + o) = i + 1;
			}
			for (__u64 o = 0; o < len; o += self->frame) {
				if (*(volatile __u64 *)(p + o) != i + 1)
					_exit(3);
			}
			if (r % 2)
				close(fd);
			munmap(p, len);
			if (!(r % 2))
				close(fd);
		}
		_exit(0);
	}
	for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
		ASSERT_EQ(0, child_status(pids[i]));
	}
	ASSERT_ACTIVE(0);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
