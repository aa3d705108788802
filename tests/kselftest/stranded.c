// SPDX-License-Identifier: GPL-2.0
/*
 * Budgets and memory that is returned while it stays pinned: who leaves pages in pipes
 * goes on paying for them, and nobody waits for what cannot help him.
 */
#include <pthread.h>

#include "users.h"

#define NOWAIT BINPOOL_ALLOC_NOWAIT

/* How many milliseconds an ALLOC took that ended with *@ret; what it got is closed. */
static __u64 timed_alloc(int dev, __u64 bytes, __u32 flags, int *ret)
{
	struct binpool_alloc a = alloc_request(bytes, flags);
	__u64 start = now_ms();

	*ret = device_alloc(dev, &a);
	if (!*ret)
		close(a.fd);
	return now_ms() - start;
}

#define ASSERT_REFUSED(err, dev, bytes, flags, from_ms, to_ms)                                     \
	do {                                                                                       \
		int result;                                                                        \
		__u64 took = timed_alloc(dev, bytes, flags, &result);                              \
		ASSERT_EQ(-(err), result);                                                         \
		ASSERT_LE(from_ms, took);                                                          \
		ASSERT_GE(to_ms, took);                                                            \
	} while (0)

/*
 * A thousand pages of closed blocks in pipes. The budget is used up by them, and what
 * the module has never exceeds its limit; with the pipes closed all is as before.
 */
TEST_F_TIMEOUT(budget, thousand_pages_in_pipes, 120)
{
	enum { PIPES = 4, PAGES = 250, FRAMES = 250 };
	int alice = open_as(ALICE), bob = open_as(BOB), ends[PIPES][2], fd;
	const long long dropped = attr_read("pinned_dropped_bytes");
	const __u64 max = (FRAMES + 32) * self->frame;
	struct binpool_alloc a;

	ASSERT_EQ(0, attr_write("max_bytes", max));
	ASSERT_EQ(0, attr_write("user_max_bytes", FRAMES * self->frame));
	for (int i = 0; i < PIPES; i++) {
		ASSERT_EQ(0, pipe2(ends[i], O_CLOEXEC));
		ASSERT_LE(PAGES * (int)page_bytes(),
			  fcntl(ends[i][1], F_SETPIPE_SZ, 256 * page_bytes()));
	}
	/* Four pages of each frame: 1000 in all. */
	for (int i = 0; i < FRAMES; i++) {
		struct binpool_info info;

		ASSERT_EQ(0, strand(alice, self->frame, 4, ends[i % PIPES][1]))
		{
			TH_LOG("block %d", i);
		}
		ASSERT_EQ(0, device_info(alice, &info));
		ASSERT_GE(max, info.active_bytes + info.held_bytes + info.limbo_bytes);
		ASSERT_EQ((__u64)(i + 1) * self->frame, info.user_bytes);
	}
	ASSERT_EQ((long long)(FRAMES * self->frame), attr_read("limbo_bytes"));

	/* Not one frame more: at once, or after the wait. */
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "20000"));
	ASSERT_REFUSED(EDQUOT, alice, self->frame, NOWAIT, 0, 10000);
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "500"));
	ASSERT_REFUSED(EDQUOT, alice, self->frame, 0, 400, 10000);
	a = alloc_request(self->frame, NOWAIT);
	ASSERT_EQ(-EDQUOT, device_alloc(alice, &a));
	ASSERT_EQ(BINPOOL_EXCEEDED_USER, a.exceeded);
	ASSERT_EQ(FRAMES * self->frame, a.user_bytes);
	ASSERT_GE(max, a.managed_bytes);
	/* Others are not touched. */
	fd = block_alloc(bob, 16 * self->frame);
	ASSERT_LE(0, fd);
	close(fd);

	for (int i = 0; i < PIPES; i++)
		close_pipe(ends[i]);
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	ASSERT_EQ(0, user_bytes(alice));
	a = alloc_request(FRAMES * self->frame / 2, NOWAIT);
	ASSERT_EQ(0, device_alloc(alice, &a));
	close(a.fd);
	ASSERT_EQ(dropped, attr_read("pinned_dropped_bytes"));
	close(alice);
	close(bob);
}

/* The record is there until the last frame is, whoever has gone meanwhile. */
TEST_F(budget, record_outlives_the_opener)
{
	int ends[2], dev = open_as(ALICE);

	ASSERT_EQ(0, attr_write("user_max_bytes", 4 * self->frame));
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "20000"));
	ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
	ASSERT_EQ(0, strand(dev, self->frame, 1, ends[1]));
	close(dev);

	dev = open_as(ALICE);
	ASSERT_EQ(self->frame, user_bytes(dev));
	ASSERT_REFUSED(EDQUOT, dev, 4 * self->frame, NOWAIT, 0, 10000);
	ASSERT_REFUSED(0, dev, 2 * self->frame, NOWAIT, 0, 10000);
	close_pipe(ends);
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	ASSERT_EQ(0, user_bytes(dev));
	ASSERT_REFUSED(0, dev, 4 * self->frame, NOWAIT, 0, 10000);
	close(dev);
}

static void *close_later(void *arg)
{
	sleep_ms(300);
	close_pipe(arg);
	return NULL;
}

/* What only limbo stands in the way of is served when it comes back. */
TEST_F(budget, alloc_waits_for_limbo)
{
	int alice = open_as(ALICE), ends[2], ret;

	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "20000"));
	for (int i = 0; i < 2; i++) {
		pthread_t thread;
		__u64 start, took;

		/* The user's budget, then the opener's. */
		ASSERT_EQ(0, attr_write("user_max_bytes", i ? 0 : 4 * self->frame));
		ASSERT_EQ(0, device_limit(alice, i ? 4 * self->frame : 0, NULL));
		ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
		ASSERT_EQ(0, strand(alice, self->frame, 1, ends[1]));
		start = now_ms();
		ASSERT_EQ(0, pthread_create(&thread, NULL, close_later, ends));
		took = timed_alloc(alice, 4 * self->frame, 0, &ret);
		ASSERT_LE(300, now_ms() - start);
		pthread_join(thread, NULL);
		ASSERT_EQ(0, ret);
		ASSERT_GE(10000, took);
	}
	close(alice);
}

/* What ends a wait for limbo, other than limbo: which of them, and of what. */
struct relief {
	enum { USER_RAISED, OPENER_RAISED, MODULE_RAISED, BLOCK_CLOSED, RELIEFS } what;
	__u64 frame;
	int dev;
	int block;
	int ret;
};

static void *relieve_later(void *arg)
{
	struct relief *r = arg;

	sleep_ms(300);
	switch (r->what) {
	case USER_RAISED:
		r->ret = attr_write("user_max_bytes", 8 * r->frame);
		break;
	case OPENER_RAISED:
		r->ret = device_limit(r->dev, 8 * r->frame, NULL);
		break;
	case MODULE_RAISED:
		r->ret = attr_write("max_bytes", 8 * r->frame);
		break;
	default:
		r->ret = close(r->block);
	}
	return NULL;
}

/* Who waits for limbo is served as well when there is room without it, and at once. */
TEST_F_TIMEOUT(budget, room_without_limbo, 60)
{
	struct relief r = {.frame = self->frame};
	int ends[2], ret;

	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "20000"));
	r.dev = open_as(ALICE);
	for (unsigned int what = 0; what < RELIEFS; what++) {
		__u64 len = 4 * self->frame, start, took;
		pthread_t thread;

		r.what = what;
		ASSERT_EQ(0, attr_write("max_bytes",
					what == MODULE_RAISED ? len : (__u64)self->max_bytes));
		ASSERT_EQ(0, attr_write("user_max_bytes", what == USER_RAISED ? len : 0));
		ASSERT_EQ(0, device_limit(r.dev,
					  what == OPENER_RAISED || what == BLOCK_CLOSED ? len : 0,
					  NULL));
		ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
		ASSERT_EQ(0, strand(r.dev, self->frame, 1, ends[1]));
		if (what == BLOCK_CLOSED) {
			r.block = block_alloc(r.dev, self->frame);
			ASSERT_LE(0, r.block);
			len -= self->frame;
		}
		start = now_ms();
		ASSERT_EQ(0, pthread_create(&thread, NULL, relieve_later, &r));
		took = timed_alloc(r.dev, len, 0, &ret);
		ASSERT_LE(300, now_ms() - start);
		pthread_join(thread, NULL);
		ASSERT_EQ(0, r.ret);
		ASSERT_EQ((long long)self->frame, attr_read("limbo_bytes"));
		ASSERT_EQ(0, ret)
		{
			TH_LOG("%u: %s", what, strerror(-ret));
		}
		ASSERT_GE(10000, took);
		close_pipe(ends);
		ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	}
	close(r.dev);
}

/* Nobody waits for limbo that is another's, or that would not be enough. */
TEST_F(budget, limbo_that_does_not_help)
{
	int alice = open_as(ALICE), bob = open_as(BOB), other = open_as(ALICE), ends[2], fd;

	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "20000"));
	ASSERT_EQ(0, attr_write("user_max_bytes", 4 * self->frame));
	ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
	ASSERT_EQ(0, strand(alice, self->frame, 1, ends[1]));

	/* Bob has nothing there. */
	fd = block_alloc(bob, 4 * self->frame);
	ASSERT_LE(0, fd);
	ASSERT_REFUSED(EDQUOT, bob, self->frame, 0, 0, 10000);
	close(fd);
	/* More than the budget, whatever comes back. */
	ASSERT_REFUSED(EDQUOT, alice, 5 * self->frame, 0, 0, 10000);
	/* And more than it without what is in blocks. */
	fd = block_alloc(alice, 2 * self->frame);
	ASSERT_LE(0, fd);
	ASSERT_REFUSED(EDQUOT, alice, 3 * self->frame, 0, 0, 10000);
	close(fd);
	/* The limbo of another opener of hers does not help this one. */
	ASSERT_EQ(0, device_limit(other, 2 * self->frame, NULL));
	fd = block_alloc(other, self->frame);
	ASSERT_LE(0, fd);
	ASSERT_REFUSED(EDQUOT, other, 2 * self->frame, 0, 0, 10000);
	close(fd);
	/* More than the module may have: no wait either. */
	ASSERT_EQ(0, attr_write("user_max_bytes", 0));
	ASSERT_EQ(0, attr_write("max_bytes", 8 * self->frame));
	ASSERT_REFUSED(ENOSPC, alice, 9 * self->frame, 0, 0, 10000);
	close_pipe(ends);
	close(alice);
	close(bob);
	close(other);
}

/* Killed while it waits: gone at once, and nothing stays charged. */
TEST_F(budget, wait_is_killable)
{
	int alice = open_as(ALICE), ends[2];
	__u64 start;
	pid_t pid;

	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "20000"));
	ASSERT_EQ(0, attr_write("user_max_bytes", 4 * self->frame));
	ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
	ASSERT_EQ(0, strand(alice, self->frame, 1, ends[1]));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		_exit(block_alloc(alice, 4 * self->frame) < 0 ? 1 : 0);
	sleep_ms(300);
	ASSERT_EQ(0, waitpid(pid, NULL, WNOHANG));
	start = now_ms();
	kill(pid, SIGKILL);
	ASSERT_EQ(128 + SIGKILL, child_status(pid));
	ASSERT_GE(10000, now_ms() - start);
	ASSERT_EQ(self->frame, user_bytes(alice));
	close_pipe(ends);
	close(alice);
}

/* Given up by the administrator's wish: then its charge is, too. */
TEST_F(budget, given_up)
{
	int alice = open_as(ALICE), ends[2];
	char was[32];

	ASSERT_LT(0, text_read(PARAMETERS "limbo_max_ms", was, sizeof(was)));
	ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
	ASSERT_EQ(0, strand(alice, self->frame, 1, ends[1]));
	ASSERT_EQ(self->frame, user_bytes(alice));
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_max_ms", "100"));
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	EXPECT_EQ(0, user_bytes(alice));
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_max_ms", was));
	close_pipe(ends);
	close(alice);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
