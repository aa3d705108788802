// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks as dma-bufs: what the descriptor keeps, how it is mapped, and what it
 * refuses. Drivers that import them are in dmabuf_import.c.
 */
#include <liburing.h>
#include <linux/dma-buf.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include "binpool_test.h"
#include "share.h"

#define FRAMES 4

/* A block and a dma-buf of it. */
FIXTURE(dmabuf)
{
	int dev;
	int log;
	int fds;
	int fd;
	int buf;
	__u64 frame;
	__u64 len;
	struct binpool_info info;
	struct counters before;
};

FIXTURE_SETUP(dmabuf)
{
	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &self->info));
	self->frame = self->info.frame_bytes;
	self->len = FRAMES * self->frame;
	self->fds = count_fds();
	self->before = counters_read();
	if (!(self->info.features & BINPOOL_FEATURE_DMABUF))
		SKIP(return, "this kernel has no dma-bufs");
	self->fd = block_alloc(self->dev, self->len);
	ASSERT_LE(0, self->fd);
	self->buf = block_export(self->fd, 0);
	ASSERT_LE(0, self->buf);
}

static void drop(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Expects that this many bytes more than at the test's start are in blocks. */
#define ASSERT_ACTIVE(bytes)                                                                       \
	ASSERT_EQ(self->before.v[1] + (long long)(bytes), attr_read("active_bytes"))

FIXTURE_TEARDOWN(dmabuf)
{
	if (_metadata->exit_code == KSFT_FAIL)
		return;
	drop(&self->fd);
	drop(&self->buf);
	EXPECT_EQ(self->fds, count_fds());
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	EXPECT_TRUE(attr_becomes("active_bytes", (__u64)self->before.v[1], SOON_MS));
	close(self->dev);
	EXPECT_EQ(0, log_count_bad(self->log));
}

/* The block's mapping at a multiple of a frame, where it can be huge. */
static void *map_aligned(int fd, __u64 len, __u64 frame, int prot)
{
	char *room = mmap(NULL, len + frame, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *start = (char *)(((uintptr_t)room + frame - 1) & ~(uintptr_t)(frame - 1));
	void *p;

	if (room == MAP_FAILED)
		return room;
	p = mmap(start, len, prot, MAP_SHARED | MAP_FIXED, fd, 0);
	munmap(room, (size_t)(start - room));
	munmap(start + len, (size_t)(room + frame - start));
	return p;
}

static int sync_access(int fd, __u64 flags)
{
	struct dma_buf_sync sync = {.flags = flags};

	return request(fd, DMA_BUF_IOCTL_SYNC, &sync);
}

/* The feature bit says whether the ioctl works. */
TEST_F(pool, feature)
{
	int fd = block_alloc(self->dev, self->frame);
	int buf = block_export(fd, 0);

	if (self->info.features & BINPOOL_FEATURE_DMABUF) {
		ASSERT_LE(0, buf);
		close(buf);
	} else {
		ASSERT_EQ(-EOPNOTSUPP, buf);
	}
	close(fd);
}

/* Descriptor and mapping of the block gone: all is there until the dma-buf goes. */
TEST_F(dmabuf, outlives_block)
{
	const __u64 len = self->len;
	char *p = block_map(self->fd, len);
	int other;

	stamp(p, len, 1);
	munmap(p, len);
	drop(&self->fd);
	ASSERT_ACTIVE(len);
	/* Nobody else is given the frames meanwhile. */
	other = block_alloc(self->dev, len);
	p = block_map(other, len);
	memset(p, 0xff, len);
	munmap(p, len);
	close(other);
	p = block_map(self->buf, len);
	ASSERT_NE(MAP_FAILED, (void *)p);
	ASSERT_TRUE(stamped(p, len, 1));
	munmap(p, len);
	ASSERT_ACTIVE(len);
	drop(&self->buf);
	ASSERT_ACTIVE(0);
}

/* A mapping made through the dma-buf keeps the block like any other. */
TEST_F(dmabuf, mapping_outlives_dmabuf)
{
	const __u64 len = self->len, page = page_bytes();
	char *p = block_map(self->buf, len);

	ASSERT_NE(MAP_FAILED, (void *)p);
	stamp(p, len, 2);
	drop(&self->buf);
	drop(&self->fd);
	ASSERT_ACTIVE(len);
	ASSERT_TRUE(stamped(p, len, 2));
	munmap(p, len - page);
	ASSERT_ACTIVE(len);
	munmap(p + len - page, page);
	ASSERT_ACTIVE(0);
}

/* Both mappings are of the same memory, at every offset. */
TEST_F(dmabuf, same_bytes)
{
	const __u64 len = self->len, page = page_bytes();
	char *p = block_map(self->fd, len), *q = block_map(self->buf, len), *part;

	ASSERT_NE(MAP_FAILED, (void *)q);
	fill(p, len, 3, 0);
	ASSERT_TRUE(filled(q, len, 3, 0));
	fill(q, len, 4, 0);
	ASSERT_TRUE(filled(p, len, 4, 0));
	part = mmap(NULL, 3 * page, PROT_READ, MAP_SHARED, self->buf, (off_t)(self->frame - page));
	ASSERT_NE(MAP_FAILED, (void *)part);
	ASSERT_TRUE(filled(part, 3 * page, 4, self->frame - page));
	munmap(part, 3 * page);
	munmap(p, len);
	munmap(q, len);
}

/* A child has the same mapping. */
TEST_F(dmabuf, fork)
{
	const __u64 len = self->len;
	char *p = block_map(self->buf, len);
	pid_t pid;

	stamp(p, len, 1);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		if (!stamped(p, len, 1))
			_exit(1);
		stamp(p, len, 2);
		_exit(0);
	}
	ASSERT_EQ(0, child_status(pid));
	ASSERT_TRUE(stamped(p, len, 2));
	munmap(p, len);
}

/* Huge if the caller aligns, and the block counts the faults as its own. */
TEST_F(dmabuf, huge)
{
	const __u64 len = self->len;
	struct binpool_query q;
	char *p;

	if (access("/sys/kernel/mm/transparent_hugepage", F_OK))
		SKIP(return, "this kernel maps no file huge");
	p = map_aligned(self->buf, len, self->frame, PROT_READ | PROT_WRITE);
	ASSERT_NE(MAP_FAILED, (void *)p);
	stamp(p, len, 5);
	ASSERT_EQ((long long)len, smaps_bytes(p, "FilePmdMapped"));
	ASSERT_TRUE(smaps_flag(p, "dd"));
	ASSERT_TRUE(smaps_flag(p, "de"));
	ASSERT_EQ(0, block_query(self->fd, &q));
	ASSERT_EQ(FRAMES, q.huge_faults);
	ASSERT_EQ(0, q.small_faults);
	munmap(p, len);
}

/* The dma-buf is as long as the block's capacity, which may be more than asked for. */
TEST_F(dmabuf, length)
{
	struct binpool_alloc a = alloc_request(self->frame + 1, 0);
	int buf;

	ASSERT_EQ(0, device_alloc(self->dev, &a));
	buf = block_export(a.fd, 0);
	ASSERT_LE(0, buf);
	ASSERT_EQ((off_t)a.capacity, lseek(buf, 0, SEEK_END));
	close(buf);
	close(a.fd);
}

TEST_F(dmabuf, mmap_bounds)
{
	const __u64 len = self->len, page = page_bytes();
	const struct {
		__u64 len, offset;
	} bad[] = {
		{len + page, 0},	{len, page},	    {page, len},	{page, len + page},
		{2 * page, len - page}, {page, 1ULL << 62}, {len, ~0ULL << 32},
	};
	void *p;

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		ASSERT_EQ(MAP_FAILED, mmap(NULL, bad[i].len, PROT_READ, MAP_SHARED, self->buf,
					   (off_t)bad[i].offset))
		{
			TH_LOG("case %zu", i);
		}
	}
	/* And the last page is there. */
	p = mmap(NULL, page, PROT_READ, MAP_SHARED, self->buf, (off_t)(len - page));
	ASSERT_NE(MAP_FAILED, p);
	ASSERT_EQ(page, first_nonzero(p, page));
	munmap(p, page);
}

static int mmap_errno(size_t len, int prot, int flags, int fd)
{
	void *p = mmap(NULL, len, prot, flags, fd, 0);

	if (p == MAP_FAILED)
		return errno;
	munmap(p, len);
	return 0;
}

/* What a block refuses, its dma-buf refuses. */
TEST_F(dmabuf, no_private_no_exec)
{
	const size_t len = self->len;
	void *p;

	ASSERT_EQ(EINVAL, mmap_errno(len, PROT_READ | PROT_WRITE, MAP_PRIVATE, self->buf));
	ASSERT_EQ(EINVAL, mmap_errno(len, PROT_READ, MAP_PRIVATE, self->buf));
	ASSERT_EQ(EPERM, mmap_errno(len, PROT_READ | PROT_EXEC, MAP_SHARED, self->buf));
	ASSERT_EQ(EPERM, mmap_errno(len, PROT_EXEC, MAP_SHARED, self->buf));
	p = block_map(self->buf, len);
	ASSERT_NE(MAP_FAILED, p);
	ASSERT_EQ(-1, mprotect(p, len, PROT_READ | PROT_EXEC));
	ASSERT_EQ(EACCES, errno);
	ASSERT_EQ(-1, mprotect(p, len, PROT_READ | PROT_WRITE | PROT_EXEC));
	ASSERT_EQ(EACCES, errno);
	ASSERT_EQ(MAP_FAILED, mremap(p, len, 2 * len, MREMAP_MAYMOVE));
	munmap(p, len);
}

/* A descriptor for readers: it cannot be mapped for writing, now or later. */
TEST_F(dmabuf, read_only)
{
	const size_t len = self->len;
	int buf = block_export(self->fd, BINPOOL_EXPORT_READ_ONLY), zeros;
	char path[64], *p, *q;

	ASSERT_LE(0, buf);
	ASSERT_EQ(O_RDONLY, fcntl(buf, F_GETFL) & O_ACCMODE);
	ASSERT_EQ(EACCES, mmap_errno(len, PROT_READ | PROT_WRITE, MAP_SHARED, buf));
	ASSERT_EQ(EACCES, mmap_errno(len, PROT_WRITE, MAP_SHARED, buf));
	p = block_map(self->fd, len);
	stamp(p, len, 6);
	q = mmap(NULL, len, PROT_READ, MAP_SHARED, buf, 0);
	ASSERT_NE(MAP_FAILED, (void *)q);
	ASSERT_TRUE(stamped(q, len, 6));
	ASSERT_EQ(-1, mprotect(q, len, PROT_READ | PROT_WRITE));
	ASSERT_EQ(EACCES, errno);
	/* The kernel does not write there on the process's behalf either. */
	zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	ASSERT_EQ(-1, read(zeros, q, 8));
	ASSERT_EQ(EFAULT, errno);
	close(zeros);
	/* Nor is there another way to open it. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", buf);
	ASSERT_EQ(-1, open(path, O_RDWR));
	ASSERT_TRUE(stamped(p, len, 6));
	munmap(p, len);
	munmap(q, len);
	close(buf);
}

TEST_F(dmabuf, descriptor)
{
	char path[64], text[256];

	ASSERT_EQ(FD_CLOEXEC, fcntl(self->buf, F_GETFD) & FD_CLOEXEC);
	ASSERT_EQ(O_RDWR, fcntl(self->buf, F_GETFL) & O_ACCMODE);
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", self->buf);
	ASSERT_LT(0, text_read(path, text, sizeof(text)));
	ASSERT_NE(NULL, strstr(text, "exp_name:\tbinpool\n"));
}

/* The brackets around the CPU's accesses, without a device that wants any. */
TEST_F(dmabuf, sync)
{
	const __u64 ways[] = {DMA_BUF_SYNC_READ, DMA_BUF_SYNC_WRITE, DMA_BUF_SYNC_RW};
	char *p = block_map(self->buf, self->len);

	for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
		ASSERT_EQ(0, sync_access(self->buf, DMA_BUF_SYNC_START | ways[i]));
		stamp(p, self->len, i);
		ASSERT_EQ(0, sync_access(self->buf, DMA_BUF_SYNC_END | ways[i]));
		ASSERT_TRUE(stamped(p, self->len, i));
	}
	ASSERT_EQ(-EINVAL, sync_access(self->buf, 0));
	ASSERT_EQ(-EINVAL, sync_access(self->buf, 1 << 10));
	munmap(p, self->len);
}

/* Each export is one of its own, and each keeps the block. */
TEST_F(dmabuf, export_often)
{
	const __u64 len = self->len;
	char *p = block_map(self->fd, len);
	int bufs[64];

	stamp(p, len, 7);
	munmap(p, len);
	for (size_t i = 0; i < ARRAY_SIZE(bufs); i++) {
		bufs[i] = block_export(self->fd, i % 2 ? BINPOOL_EXPORT_READ_ONLY : 0);
		ASSERT_LE(0, bufs[i]);
	}
	drop(&self->fd);
	drop(&self->buf);
	for (size_t i = 0; i < ARRAY_SIZE(bufs); i++) {
		ASSERT_ACTIVE(len);
		p = mmap(NULL, len, PROT_READ, MAP_SHARED, bufs[i], 0);
		ASSERT_NE(MAP_FAILED, (void *)p);
		ASSERT_TRUE(stamped(p, len, 7));
		munmap(p, len);
		close(bufs[i]);
	}
	ASSERT_ACTIVE(0);
}

/* No descriptor left: nothing was made. */
TEST_F(dmabuf, no_descriptor_left)
{
	struct binpool_export_dmabuf e = {.size = sizeof(e), .fd = 77};
	struct counters before = counters_read();
	struct rlimit old, none;

	ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &old));
	none = old;
	none.rlim_cur = 0;
	for (int i = 0; i < 100; i++) {
		int ret;

		setrlimit(RLIMIT_NOFILE, &none);
		ret = request(self->fd, BINPOOL_IOC_EXPORT_DMABUF, &e);
		setrlimit(RLIMIT_NOFILE, &old);
		ASSERT_EQ(-EMFILE, ret);
	}
	ASSERT_EQ(77, e.fd);
	ASSERT_STREQ("nothing", counters_moved(&before));
	drop(&self->buf);
	drop(&self->fd);
	ASSERT_ACTIVE(0);
}

/* The ioctl belongs to blocks; on what else there is it means nothing. */
TEST_F(dmabuf, foreign_files)
{
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), ends[2];

	ASSERT_EQ(0, pipe(ends));
	ASSERT_EQ(-ENOTTY, block_export(self->dev, 0));
	ASSERT_EQ(-ENOTTY, block_export(self->buf, 0));
	ASSERT_EQ(-ENOTTY, block_export(file, 0));
	ASSERT_EQ(-ENOTTY, block_export(null, 0));
	ASSERT_EQ(-ENOTTY, block_export(ends[0], 0));
	ASSERT_EQ(-EBADF, block_export(-1, 0));
	close(ends[0]);
	close(ends[1]);
	close(file);
	close(null);
}

/* Passed to another process, also while nobody has it open. */
TEST_F(dmabuf, scm_rights)
{
	const __u64 len = self->len;
	char *p = block_map(self->fd, len);
	int pair[2];
	pid_t pid;

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	stamp(p, len, 8);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		int got;
		char *q;

		munmap(p, len);
		close(self->fd);
		close(self->buf);
		got = fd_receive(pair[1]);
		q = got < 0 ? MAP_FAILED : block_map(got, len);
		if (q == MAP_FAILED || !stamped(q, len, 8))
			_exit(1);
		stamp(q, len, 9);
		_exit(0);
	}
	ASSERT_EQ(0, fd_send(pair[0], self->buf));
	ASSERT_EQ(0, child_status(pid));
	ASSERT_TRUE(stamped(p, len, 9));

	munmap(p, len);
	ASSERT_EQ(0, fd_send(pair[0], self->buf));
	drop(&self->buf);
	drop(&self->fd);
	ASSERT_ACTIVE(len);
	self->buf = fd_receive(pair[1]);
	p = block_map(self->buf, len);
	ASSERT_TRUE(stamped(p, len, 9));
	munmap(p, len);
	/* Never received: gone with the socket. */
	ASSERT_EQ(0, fd_send(pair[0], self->buf));
	drop(&self->buf);
	ASSERT_ACTIVE(len);
	close(pair[0]);
	close(pair[1]);
	ASSERT_TRUE(attr_becomes("active_bytes", (__u64)self->before.v[1], SOON_MS));
}

/* Pages pinned through the dma-buf's mapping: limbo, as with the block's own. */
TEST_F(dmabuf, pinned)
{
	const size_t part_len = 8 * page_bytes();
	char *p = block_map(self->buf, self->len), *got = malloc(part_len);
	struct iovec part = {p + self->frame, part_len};
	int ends[2];

	fill(p, self->len, 10, 0);
	ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
	ASSERT_EQ((ssize_t)part_len, vmsplice(ends[1], &part, 1, 0));
	munmap(p, self->len);
	drop(&self->fd);
	drop(&self->buf);
	ASSERT_EQ((long long)self->frame, attr_read("limbo_bytes"));
	ASSERT_EQ((ssize_t)part_len, read(ends[0], got, part_len));
	ASSERT_TRUE(filled(got, part_len, 10, self->frame));
	close(ends[0]);
	close(ends[1]);
	free(got);
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
}

/* Registered with io_uring through the dma-buf's mapping, if the kernel can, and read into. */
TEST_F(dmabuf, uring)
{
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	struct iovec whole;
	bool fixed = self->info.features & BINPOOL_FEATURE_URING_FIXED;
	char *p;

	p = map_aligned(self->buf, self->len, self->frame, PROT_READ | PROT_WRITE);
	whole = (struct iovec){p, self->len};
	ASSERT_EQ(0, io_uring_queue_init(8, &ring, 0));
	ASSERT_EQ(fixed ? 0 : -EOPNOTSUPP, io_uring_register_buffers(&ring, &whole, 1));
	if (fixed)
		io_uring_prep_read_fixed(io_uring_get_sqe(&ring), file, p + self->frame, 4, 0, 0);
	else
		io_uring_prep_read(io_uring_get_sqe(&ring), file, p + self->frame, 4, 0);
	ASSERT_EQ(1, io_uring_submit_and_wait(&ring, 1));
	ASSERT_EQ(0, io_uring_wait_cqe(&ring, &cqe));
	ASSERT_EQ(4, cqe->res);
	io_uring_cqe_seen(&ring, cqe);
	ASSERT_EQ(0, memcmp(p + self->frame, "\177ELF", 4));
	munmap(p, self->len);
	drop(&self->fd);
	drop(&self->buf);
	ASSERT_EQ(fixed ? (long long)self->len : 0, attr_read("limbo_bytes"));
	io_uring_queue_exit(&ring);
	close(file);
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
}

/* Killed at any point between the block and the mapping of its dma-buf. */
TEST_F_TIMEOUT(dmabuf, sigkill, 120)
{
	unsigned int seed = 1;

	for (int i = 0; i < 40; i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			for (;;) {
				int fd = block_alloc(self->dev, self->len);
				int buf = block_export(fd, 0);
				char *p = block_map(buf, self->len);

				close(fd);
				stamp(p, self->len, 1);
				sync_access(buf, DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW);
				close(buf);
				munmap(p, self->len);
			}
		}
		sleep_ms((unsigned int)rand_r(&seed) % 30);
		kill(pid, SIGKILL);
		ASSERT_EQ(128 + SIGKILL, child_status(pid));
		ASSERT_TRUE(attr_becomes("active_bytes", (__u64)self->before.v[1] + self->len,
					 SOON_MS));
	}
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
