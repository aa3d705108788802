// SPDX-License-Identifier: GPL-2.0
/*
 * memlock=Y: blocks are charged to the account that RLIMIT_MEMLOCK bounds for a user's
 * registered buffers, exactly, and only for who has no CAP_IPC_LOCK. ALLOC tells how
 * much is charged there (memlock_bytes), so nothing here is guessed.
 */
#include <liburing.h>
#include <sys/resource.h>

#include "users.h"

static int set_memlock(const char *value)
{
	return text_write(PARAMETERS "memlock", value);
}

/* The soft limit of this process; what a user without capabilities is held to. */
static int set_limit(__u64 bytes)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit))
		return -errno;
	limit.rlim_cur = bytes;
	if (limit.rlim_max < bytes)
		limit.rlim_max = bytes;
	return setrlimit(RLIMIT_MEMLOCK, &limit) ? -errno : 0;
}

/* What is charged to @dev's opener now, by everybody: asked for with a refused request. */
static __u64 charged(int dev)
{
	struct binpool_alloc a = alloc_request(1, 0);
	int ret = device_alloc(dev, &a);

	if (ret)
		return ~0ULL;
	close(a.fd);
	return a.memlock_bytes;
}

TEST_F(budget, off_by_default)
{
	struct binpool_alloc a = alloc_request(4 * self->frame, 0);
	int dev = open_as(ALICE);

	ASSERT_STREQ("N\n", self->memlock);
	ASSERT_EQ(0, set_limit(page_bytes()));
	ASSERT_EQ(0, alloc_as(ALICE, dev, &a));
	ASSERT_EQ(0, a.memlock_bytes);
	close(a.fd);
	close(dev);
}

/* Up to the limit and not a page more; what ends is given back to the page. */
TEST_F(budget, memlock_limit)
{
	struct binpool_alloc a = alloc_request(4 * self->frame, 0), b;
	int dev = open_as(ALICE), fds;
	struct counters was;

	ASSERT_EQ(0, set_memlock("Y"));
	ASSERT_EQ(0, set_limit(4 * self->frame));
	for (int i = 0; i < 3; i++) {
		ASSERT_EQ(0, alloc_as(ALICE, dev, &a));
		ASSERT_EQ(4 * self->frame, a.memlock_bytes);
		fds = count_fds();
		was = counters_read();
		b = alloc_request(1, 0);
		ASSERT_EQ(-EDQUOT, alloc_as(ALICE, dev, &b));
		ASSERT_EQ(BINPOOL_EXCEEDED_MEMLOCK, b.exceeded);
		ASSERT_EQ(4 * self->frame, b.memlock_bytes);
		ASSERT_EQ(4 * self->frame, b.user_bytes);
		ASSERT_EQ(4 * self->frame, b.opener_bytes);
		ASSERT_STREQ("nothing", counters_moved(&was));
		ASSERT_EQ(fds, count_fds());
		close(a.fd);
		ASSERT_EQ(0, charged(dev));
	}
	/* A page less does not do. */
	ASSERT_EQ(0, set_limit(4 * self->frame - page_bytes()));
	ASSERT_EQ(-EDQUOT, alloc_as(ALICE, dev, &a));
	ASSERT_EQ(BINPOOL_EXCEEDED_MEMLOCK, a.exceeded);
	ASSERT_EQ(0, a.user_bytes);
	ASSERT_EQ(0, a.memlock_bytes);
	a = alloc_request(3 * self->frame, 0);
	ASSERT_EQ(0, alloc_as(ALICE, dev, &a));
	close(a.fd);
	ASSERT_EQ(0, set_limit(0));
	ASSERT_EQ(-EDQUOT, alloc_as(ALICE, dev, &a));
	close(dev);
}

/* The account is the user id's, whatever opener and process. */
TEST_F(budget, memlock_is_of_the_user)
{
	struct binpool_alloc a = alloc_request(3 * self->frame, 0), b = a, c = a;
	int dev[2] = {open_as(ALICE), open_as(ALICE)}, bob = open_as(BOB);

	ASSERT_EQ(0, set_memlock("Y"));
	ASSERT_EQ(0, set_limit(4 * self->frame));
	ASSERT_EQ(0, alloc_as(ALICE, dev[0], &a));
	ASSERT_EQ(-EDQUOT, alloc_as(ALICE, dev[1], &b));
	ASSERT_EQ(3 * self->frame, b.memlock_bytes);
	ASSERT_EQ(0, alloc_as(BOB, bob, &c));
	ASSERT_EQ(3 * self->frame, c.memlock_bytes);
	close(c.fd);
	/* Through an opener of hers, Bob takes from her account. */
	c = alloc_request(self->frame, 0);
	ASSERT_EQ(0, alloc_as(BOB, dev[0], &c));
	ASSERT_EQ(4 * self->frame, c.memlock_bytes);
	close(c.fd);
	close(a.fd);
	ASSERT_EQ(0, charged(dev[1]));
	close(dev[0]);
	close(dev[1]);
	close(bob);
}

/* CAP_IPC_LOCK is neither bounded nor charged. */
TEST_F(budget, capability_skips_memlock)
{
	struct binpool_alloc a = alloc_request(4 * self->frame, 0);
	int dev = open_as(ALICE);

	ASSERT_EQ(0, set_memlock("Y"));
	ASSERT_EQ(0, set_limit(0));
	ASSERT_EQ(0, device_alloc(dev, &a));
	ASSERT_EQ(0, a.memlock_bytes);
	close(a.fd);
	ASSERT_EQ(0, charged(dev));
	close(dev);
}

/* What was charged is given back, and nothing else, whatever has changed meanwhile. */
TEST_F(budget, memlock_gives_back_what_it_took)
{
	struct binpool_alloc a = alloc_request(2 * self->frame, 0), b = a, c = a;
	int dev = open_as(ALICE);

	ASSERT_EQ(0, set_limit(8 * self->frame));
	ASSERT_EQ(0, alloc_as(ALICE, dev, &a)); /* memlock=N: not charged */
	ASSERT_EQ(0, set_memlock("Y"));
	ASSERT_EQ(0, alloc_as(ALICE, dev, &b)); /* charged */
	ASSERT_EQ(0, device_alloc(dev, &c));	/* with the capability: not charged */
	ASSERT_EQ(2 * self->frame, c.memlock_bytes);
	/* Without the parameter, with the capability and below the limit. */
	ASSERT_EQ(0, set_memlock("N"));
	ASSERT_EQ(0, set_limit(0));
	close(a.fd);
	ASSERT_EQ(2 * self->frame, charged(dev));
	close(b.fd);
	ASSERT_EQ(0, charged(dev));
	ASSERT_EQ(0, set_memlock("Y"));
	become(ALICE);
	close(c.fd);
	become(0);
	ASSERT_EQ(0, charged(dev));
	/* So that what fits exactly fits again. */
	ASSERT_EQ(0, set_limit(2 * self->frame));
	ASSERT_EQ(0, alloc_as(ALICE, dev, &a));
	b = alloc_request(1, 0);
	ASSERT_EQ(-EDQUOT, alloc_as(ALICE, dev, &b));
	close(a.fd);
	close(dev);
}

/* Requests that fail afterwards leave nothing there. */
TEST_F(budget, memlock_after_failures)
{
	struct binpool_alloc a = alloc_request(8 * self->frame, 0);
	int dev = open_as(ALICE);

	ASSERT_EQ(0, set_memlock("Y"));
	ASSERT_EQ(0, set_limit(64 * self->frame));
	ASSERT_EQ(0, attr_write("max_bytes", 4 * self->frame));
	ASSERT_EQ(-ENOSPC, alloc_as(ALICE, dev, &a));
	ASSERT_EQ(0, a.memlock_bytes);
	/* And those that the user's budget refuses have not been there. */
	ASSERT_EQ(0, attr_write("user_max_bytes", 4 * self->frame));
	ASSERT_EQ(-EDQUOT, alloc_as(ALICE, dev, &a));
	ASSERT_EQ(BINPOOL_EXCEEDED_USER, a.exceeded);
	ASSERT_EQ(0, a.memlock_bytes);
	close(dev);
}

/* In limbo it is still charged, and waited for; the opener may be gone. */
TEST_F(budget, memlock_in_limbo)
{
	struct binpool_alloc a = alloc_request(4 * self->frame, BINPOOL_ALLOC_NOWAIT);
	int dev = open_as(ALICE), ends[2];
	__u64 start;

	ASSERT_EQ(0, set_memlock("Y"));
	ASSERT_EQ(0, set_limit(4 * self->frame));
	ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
	become(ALICE);
	EXPECT_EQ(0, strand(dev, 2 * self->frame, 1, ends[1]));
	become(0);
	close(dev);
	dev = open_as(ALICE);
	/* One of the two frames came back. */
	ASSERT_EQ(self->frame, charged(dev));
	ASSERT_EQ(-EDQUOT, alloc_as(ALICE, dev, &a));
	ASSERT_EQ(BINPOOL_EXCEEDED_MEMLOCK, a.exceeded);
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "500"));
	a.flags = 0;
	start = now_ms();
	ASSERT_EQ(-EDQUOT, alloc_as(ALICE, dev, &a));
	ASSERT_LE(400, now_ms() - start);
	close_pipe(ends);
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	ASSERT_EQ(0, charged(dev));
	ASSERT_EQ(0, alloc_as(ALICE, dev, &a));
	close(a.fd);
	close(dev);
}

/*
 * Registered with io_uring a block counts a second time, as documented; what the
 * kernel refuses to register does not.
 */
TEST_F(budget, memlock_counts_twice_with_io_uring)
{
	struct binpool_alloc a = alloc_request(2 * self->frame, 0);
	int dev = open_as(ALICE), ret[2];
	struct binpool_info info;
	struct iovec whole = {.iov_len = 2 * self->frame};
	struct io_uring ring;
	bool fixed;

	ASSERT_EQ(0, device_info(dev, &info));
	fixed = info.features & BINPOOL_FEATURE_URING_FIXED;
	ASSERT_EQ(0, set_memlock("Y"));
	/* A ring takes some itself. */
	ASSERT_EQ(0, set_limit(3 * self->frame));
	ASSERT_EQ(0, alloc_as(ALICE, dev, &a));
	whole.iov_base = block_map(a.fd, whole.iov_len);
	ASSERT_NE(MAP_FAILED, whole.iov_base);
	become(ALICE);
	ret[0] = io_uring_queue_init(1, &ring, 0);
	ret[1] = io_uring_register_buffers(&ring, &whole, 1);
	become(0);
	ASSERT_EQ(0, ret[0]);
	ASSERT_EQ(fixed ? -ENOMEM : -EOPNOTSUPP, ret[1]);
	ASSERT_EQ(0, set_limit(5 * self->frame));
	become(ALICE);
	ret[1] = io_uring_register_buffers(&ring, &whole, 1);
	become(0);
	ASSERT_EQ(fixed ? 0 : -EOPNOTSUPP, ret[1]);
	if (fixed) {
		ASSERT_LE(4 * self->frame, charged(dev));
	} else {
		ASSERT_GT(3 * self->frame, charged(dev));
	}
	io_uring_queue_exit(&ring);
	munmap(whole.iov_base, whole.iov_len);
	close(a.fd);
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	ASSERT_EQ(0, charged(dev));
	close(dev);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
