// SPDX-License-Identifier: GPL-2.0
/*
 * Limbo: a frame that comes back while somebody still pins it is neither handed
 * out nor given to the system before the pin is gone, and then it is as good as
 * any. Pins here are pages in a pipe (plain references) and io_uring's buffers.
 */
#include <liburing.h>
#include <pthread.h>
#include <sys/uio.h>

#include "binpool_test.h"

#define PARAMETERS "/sys/module/binpool/parameters/"
#define PIPE_PAGES 8

FIXTURE(limbo)
{
	int dev;
	int log;
	int ends[2]; /* a pipe with pages of a block that is closed */
	__u64 frame;
	__u64 pin_at; /* where in the block */
};

/* A block of four frames comes back with pages of its second one in a pipe. */
FIXTURE_SETUP(limbo)
{
	struct binpool_info info;
	struct iovec part;
	char *p;
	int fd;

	knobs_restore();
	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->frame = info.frame_bytes;
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_TRUE(attr_becomes("managed_bytes", 0, SOON_MS));

	fd = block_alloc(self->dev, 4 * self->frame);
	ASSERT_LE(0, fd);
	p = block_map(fd, 4 * self->frame);
	ASSERT_NE(MAP_FAILED, (void *)p);
	self->pin_at = self->frame + 5 * page_bytes();
	fill(p, 4 * self->frame, 1, 0);
	part = (struct iovec){p + self->pin_at, PIPE_PAGES * page_bytes()};
	ASSERT_EQ(0, pipe2(self->ends, O_CLOEXEC));
	ASSERT_EQ((ssize_t)part.iov_len, vmsplice(self->ends[1], &part, 1, 0));
	munmap(p, 4 * self->frame);
	close(fd);
}

FIXTURE_TEARDOWN(limbo)
{
	knobs_restore();
	close(self->ends[0]);
	close(self->ends[1]);
	if (_metadata->exit_code == KSFT_FAIL)
		return;
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	EXPECT_EQ(0, attr_read("active_bytes"));
	EXPECT_EQ(attr_read("managed_bytes"), attr_read("held_bytes"));
	close(self->dev);
	EXPECT_EQ(0, log_count_bad(self->log));
}

/* Reads the pipe dry; whether its bytes are those of the block that was. */
static bool drain(int fd, __u64 offset)
{
	const size_t len = PIPE_PAGES * page_bytes();
	char *got = malloc(len);
	bool same = read(fd, got, len) == (ssize_t)len && filled(got, len, 1, offset);

	free(got);
	return same;
}

TEST_F(limbo, one_frame)
{
	struct binpool_info info;

	ASSERT_EQ((long long)self->frame, attr_read("limbo_bytes"));
	ASSERT_EQ((long long)(3 * self->frame), attr_read("held_bytes"));
	ASSERT_EQ((long long)(4 * self->frame), attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_read("active_bytes"));
	/* It stays on its opener's account. */
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(self->frame, info.opener_bytes);
	ASSERT_EQ(self->frame, info.limbo_bytes);

	/* And leaves it when the pin does, not before. */
	sleep_ms(300);
	ASSERT_EQ((long long)self->frame, attr_read("limbo_bytes"));
	ASSERT_TRUE(drain(self->ends[0], self->pin_at));
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	ASSERT_TRUE(attr_becomes("held_bytes", 4 * self->frame, SOON_MS));
	/* Nothing is paid for that is held. */
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(0, info.opener_bytes);
}

/* Nobody gets it, and nobody writes to it, whatever is asked for. */
TEST_F(limbo, not_handed_out)
{
	int fds[16];

	for (int i = 0; i < 16; i++) {
		char *p;

		fds[i] = block_alloc(self->dev, self->frame);
		ASSERT_LE(0, fds[i]);
		p = block_map(fds[i], self->frame);
		memset(p, 0xff, self->frame);
		munmap(p, self->frame);
	}
	ASSERT_EQ((long long)self->frame, attr_read("limbo_bytes"));
	ASSERT_TRUE(drain(self->ends[0], self->pin_at));
	for (int i = 0; i < 16; i++)
		close(fds[i]);
}

/* Nor does it go to the system when held memory does. */
TEST_F(limbo, not_given_back)
{
	const __u64 len = 256 * MIB;
	char *p;

	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, device_trim(self->dev, 0, NULL));
	ASSERT_EQ((long long)self->frame, attr_read("limbo_bytes"));
	ASSERT_EQ((long long)self->frame, attr_read("managed_bytes"));
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(p, 0xff, len);
	ASSERT_TRUE(drain(self->ends[0], self->pin_at));
	munmap(p, len);
}

/* Clean when it is seen again. */
TEST_F(limbo, clean_afterwards)
{
	int fd;
	char *p;

	ASSERT_TRUE(drain(self->ends[0], self->pin_at));
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	fd = block_alloc(self->dev, 4 * self->frame);
	ASSERT_LE(0, fd);
	ASSERT_EQ((long long)(4 * self->frame), attr_read("managed_bytes"));
	p = block_map(fd, 4 * self->frame);
	ASSERT_EQ(4 * self->frame, first_nonzero(p, 4 * self->frame));
	munmap(p, 4 * self->frame);
	close(fd);
}

static void *drain_later(void *arg)
{
	int *ends = arg;
	char buf[256];
	ssize_t n;

	sleep_ms(300);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	do
		n = read(ends[0], buf, sizeof(buf));
	while (n > 0);
	return NULL;
}

/* A request that only limbo stands in the way of waits for it. */
TEST_F(limbo, alloc_waits)
{
	__u64 start;
	pthread_t thread;
	int fd;

	ASSERT_EQ(0, attr_write("max_bytes", 4 * self->frame));
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "20000"));
	start = now_ms();
	ASSERT_EQ(0, pthread_create(&thread, NULL, drain_later, self->ends));
	fd = block_alloc(self->dev, 4 * self->frame);
	ASSERT_LE(0, fd);
	ASSERT_LE(250, now_ms() - start);
	/* It is told when the frame is back, and does not find it when its time is over. */
	ASSERT_GE(10000, now_ms() - start);
	pthread_join(thread, NULL);
	close(fd);
}

/* With NOWAIT it does not, and without it not for ever. */
TEST_F(limbo, alloc_does_not_wait_for_ever)
{
	struct binpool_alloc a = alloc_request(4 * self->frame, BINPOOL_ALLOC_NOWAIT);
	__u64 start, took;

	ASSERT_EQ(0, attr_write("max_bytes", 4 * self->frame));
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "30000"));
	start = now_ms();
	ASSERT_EQ(-ENOSPC, device_alloc(self->dev, &a));
	ASSERT_EQ(4 * self->frame, a.managed_bytes);
	/* What needs no limbo is served meanwhile at once. */
	close(block_alloc(self->dev, 3 * self->frame));
	ASSERT_GE(15000, now_ms() - start);
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "500"));
	start = now_ms();
	ASSERT_EQ(-ENOSPC, block_alloc(self->dev, 4 * self->frame));
	took = now_ms() - start;
	ASSERT_LE(400, took);
	ASSERT_GE(15000, took);
}

/* What has left limbo is waited for no more. */
TEST_F(limbo, no_wait_after_limbo)
{
	__u64 start;
	int fd;

	ASSERT_TRUE(drain(self->ends[0], self->pin_at));
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	ASSERT_EQ(0, attr_write("max_bytes", 4 * self->frame));
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "20000"));
	fd = block_alloc(self->dev, 4 * self->frame);
	ASSERT_LE(0, fd);
	start = now_ms();
	ASSERT_EQ(-ENOSPC, block_alloc(self->dev, self->frame));
	ASSERT_GE(10000, now_ms() - start);
	close(fd);
}

/* However long a frame was pinned, it is seen soon after the pin is gone. */
TEST_F(limbo, seen_after_a_long_pin)
{
	/* The pauses would be of 4 s by now, were they not bounded by one. */
	sleep_ms(4800);
	ASSERT_TRUE(drain(self->ends[0], self->pin_at));
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, 3000));
}

/* Killed while it waits: gone at once. */
TEST_F(limbo, wait_is_killable)
{
	__u64 start;
	pid_t pid;

	ASSERT_EQ(0, attr_write("max_bytes", 4 * self->frame));
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "20000"));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		_exit(block_alloc(self->dev, 4 * self->frame) < 0 ? 1 : 0);
	sleep_ms(300);
	start = now_ms();
	ASSERT_EQ(0, waitpid(pid, NULL, WNOHANG));
	kill(pid, SIGKILL);
	ASSERT_EQ(128 + SIGKILL, child_status(pid));
	ASSERT_GE(10000, now_ms() - start);
}

/* The administrator may have it given up: the pinner keeps it, we count it. */
TEST_F(limbo, given_up)
{
	long long dropped = attr_read("pinned_dropped_bytes");

	/* Not before its time, however often it is looked at. */
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_max_ms", "3600000"));
	sleep_ms(600);
	ASSERT_EQ((long long)self->frame, attr_read("limbo_bytes"));
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_max_ms", "100"));
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	ASSERT_EQ(dropped + (long long)self->frame, attr_read("pinned_dropped_bytes"));
	ASSERT_EQ((long long)(3 * self->frame), attr_read("managed_bytes"));
	ASSERT_TRUE(drain(self->ends[0], self->pin_at));
}

/* Without holding it goes to the system when its pin is gone. */
TEST_F(limbo, no_holding)
{
	ASSERT_EQ(0, attr_write("holding", 0));
	ASSERT_EQ((long long)self->frame, attr_read("managed_bytes"));
	ASSERT_TRUE(drain(self->ends[0], self->pin_at));
	ASSERT_TRUE(attr_becomes("managed_bytes", 0, SOON_MS));
	ASSERT_EQ(0, attr_write("holding", 1));
}

/*
 * Registered with io_uring, mapping and descriptor gone: all of it waits. A kernel
 * that refuses to register mappings of files has taken no page of it.
 */
TEST_F(limbo, uring)
{
	const __u64 len = 16 * self->frame;
	int fd = block_alloc(self->dev, len);
	char *p = block_map(fd, len);
	struct iovec half = {p, len / 2};
	struct binpool_info info;
	struct io_uring ring;
	bool fixed;

	ASSERT_EQ(0, device_info(self->dev, &info));
	fixed = info.features & BINPOOL_FEATURE_URING_FIXED;
	ASSERT_TRUE(drain(self->ends[0], self->pin_at));
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	ASSERT_EQ(0, io_uring_queue_init(8, &ring, 0));
	ASSERT_EQ(fixed ? 0 : -EOPNOTSUPP, io_uring_register_buffers(&ring, &half, 1));
	munmap(p, len);
	close(fd);
	ASSERT_EQ(fixed ? (long long)(len / 2) : 0, attr_read("limbo_bytes"));
	ASSERT_EQ(fixed ? 0 : -ENXIO, io_uring_unregister_buffers(&ring));
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	io_uring_queue_exit(&ring);
}

/* Holds pages of @whole as long as the process lives: registers it or, without @fixed, by a pipe.
 */
static int pin_for_life(struct iovec *whole, bool fixed)
{
	struct iovec part = {whole->iov_base, 16 * page_bytes()};
	struct io_uring ring;
	int ends[2];

	if (fixed)
		return io_uring_queue_init(8, &ring, 0)
			       ?: io_uring_register_buffers(&ring, whole, 1);
	return pipe(ends) || vmsplice(ends[1], &part, 1, 0) != (ssize_t)part.iov_len ? -errno : 0;
}

/*
 * Processes killed with registered buffers, or where the kernel registers none with
 * pages in pipes: the block's file may be released long before those are let go. All
 * of it is back in the end, and none was lost.
 */
TEST_F_TIMEOUT(limbo, pinned_and_killed, 120)
{
	const __u64 len = 16 * self->frame;
	struct binpool_info info;
	long long dropped = attr_read("pinned_dropped_bytes"), managed = 0;

	ASSERT_TRUE(drain(self->ends[0], self->pin_at));
	ASSERT_EQ(0, device_info(self->dev, &info));
	for (int i = 0; i < 20; i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			int fd = block_alloc(self->dev, len);
			struct iovec whole = {block_map(fd, len), len};

			if (first_nonzero(whole.iov_base, len) != len)
				_exit(1);
			memset(whole.iov_base, 0xff, len);
			if (pin_for_life(&whole, info.features & BINPOOL_FEATURE_URING_FIXED))
				_exit(2);
			if (i % 2)
				close(fd);
			kill(getpid(), SIGKILL);
		}
		ASSERT_EQ(128 + SIGKILL, child_status(pid));
		/* The first ten one right after the other, then each when the last one's is back.
		 */
		if (i == 9) {
			ASSERT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
			ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
			managed = attr_read("managed_bytes");
		}
		if (i >= 9)
			ASSERT_TRUE(attr_becomes("held_bytes", (__u64)managed, SOON_MS));
	}
	ASSERT_EQ(managed, attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_read("active_bytes"));
	ASSERT_EQ(dropped, attr_read("pinned_dropped_bytes"));
}

/*
 * Blocks closed one soon after the other, each pinned until just after: those whose
 * pins are gone leave meanwhile, however soon the next one comes.
 */
TEST_F(limbo, not_starved)
{
	char byte;
	int fds[200], ends[2];

	ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
	ASSERT_LE((int)(ARRAY_SIZE(fds) * page_bytes()),
		  fcntl(ends[1], F_SETPIPE_SZ, 256 * page_bytes()));
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		struct iovec part = {.iov_len = 1};

		fds[i] = block_alloc(self->dev, self->frame);
		ASSERT_LE(0, fds[i]);
		part.iov_base = block_map(fds[i], self->frame);
		ASSERT_NE(MAP_FAILED, part.iov_base);
		ASSERT_EQ(1, vmsplice(ends[1], &part, 1, 0));
		munmap(part.iov_base, self->frame);
	}
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		close(fds[i]);
		ASSERT_EQ(1, read(ends[0], &byte, 1));
		sleep_ms(1);
	}
	ASSERT_GT((long long)(self->frame * ARRAY_SIZE(fds) / 2), attr_read("limbo_bytes"));
	close(ends[0]);
	close(ends[1]);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
