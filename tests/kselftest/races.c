// SPDX-License-Identifier: GPL-2.0
/*
 * Races for budgets: what all racers have together never exceeds a limit, whatever
 * is written to it meanwhile, and losers get the errno of the limit they met. What
 * they have is counted here, apart from the module: in memory that all of them see,
 * up after ALLOC and down before close, so that it is never more than the truth.
 */
#include <sys/prctl.h>

#include "users.h"

#define USERS  3
#define RACERS 9

struct tally {
	__u64 all; /* frames in blocks */
	__u64 of_user[USERS];
	__u64 of_opener; /* of the one that all share */
	__u64 worst, worst_of_user, worst_of_opener;
	int won, over_module, over_user, over_opener, other_errors;
	bool meet_all;
};

struct limits {
	__u64 all, user, opener; /* in frames, the most that ever was allowed */
};

static const uid_t uids[USERS] = {ALICE, BOB, NOBODY};

static void raise_to(__u64 *worst, __u64 value)
{
	__u64 old = __atomic_load_n(worst, __ATOMIC_RELAXED);

	while (old < value && !__atomic_compare_exchange_n(worst, &old, value, false,
							   __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

static void count(struct tally *t, unsigned int user, bool shared, __u64 frames)
{
	raise_to(&t->worst, __atomic_add_fetch(&t->all, frames, __ATOMIC_SEQ_CST));
	raise_to(&t->worst_of_user,
		 __atomic_add_fetch(&t->of_user[user], frames, __ATOMIC_SEQ_CST));
	if (shared)
		raise_to(&t->worst_of_opener,
			 __atomic_add_fetch(&t->of_opener, frames, __ATOMIC_SEQ_CST));
}

static void uncount(struct tally *t, unsigned int user, bool shared, __u64 frames)
{
	__atomic_sub_fetch(&t->all, frames, __ATOMIC_SEQ_CST);
	__atomic_sub_fetch(&t->of_user[user], frames, __ATOMIC_SEQ_CST);
	if (shared)
		__atomic_sub_fetch(&t->of_opener, frames, __ATOMIC_SEQ_CST);
}

static void refused(struct tally *t, const struct binpool_alloc *a, int err)
{
	int *what = &t->other_errors;

	if (err == -ENOSPC && a->exceeded == BINPOOL_EXCEEDED_MODULE)
		what = &t->over_module;
	else if (err == -EDQUOT && a->exceeded == BINPOOL_EXCEEDED_USER)
		what = &t->over_user;
	else if (err == -EDQUOT && a->exceeded == BINPOOL_EXCEEDED_OPENER)
		what = &t->over_opener;
	__atomic_add_fetch(what, 1, __ATOMIC_RELAXED);
}

static int seen(const int *count)
{
	return __atomic_load_n(count, __ATOMIC_RELAXED);
}

/* A while, and if each limit is to be met until it was: who has a CPU for long may be alone. */
static bool goes_on(const struct tally *t, int rounds)
{
	return rounds < 200 ||
	       (t->meet_all && rounds < 20000 &&
		!(seen(&t->over_module) && seen(&t->over_user) && seen(&t->over_opener)));
}

/* Takes and gives blocks of 1 to 4 frames, and keeps up to four. */
static void race(struct tally *t, int dev, unsigned int user, bool shared, unsigned int seed)
{
	struct block {
		int fd;
		__u64 frames;
	} keep[4] = {{-1, 0}, {-1, 0}, {-1, 0}, {-1, 0}};
	struct binpool_info info;

	device_info(dev, &info);
	for (int r = 0; goes_on(t, r); r++) {
		struct block *slot = &keep[rand_r(&seed) % 4];
		__u64 frames = 1 + (__u64)rand_r(&seed) % 4;
		struct binpool_alloc a = alloc_request(
			frames * info.frame_bytes, rand_r(&seed) % 2 ? BINPOOL_ALLOC_NOWAIT : 0);
		int err;

		if (slot->fd >= 0) {
			uncount(t, user, shared, slot->frames);
			close(slot->fd);
			slot->fd = -1;
		}
		err = device_alloc(dev, &a);
		if (err) {
			refused(t, &a, err);
			continue;
		}
		*slot = (struct block){a.fd, frames};
		count(t, user, shared, frames);
		__atomic_add_fetch(&t->won, 1, __ATOMIC_RELAXED);
	}
	for (int i = 0; i < 4; i++)
		if (keep[i].fd >= 0)
			uncount(t, user, shared, keep[i].frames);
}

static struct tally *tally_new(void)
{
	return mmap(NULL, sizeof(struct tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		    -1, 0);
}

/*
 * Nine processes of three users, a third of them through one shared opener. @knobs, if
 * given, is called over and over meanwhile. Returns how many racers ended badly.
 */
static int race_all(struct tally *t, int shared_dev, void (*knobs)(void *), void *arg)
{
	pid_t pids[RACERS];
	int running = RACERS, bad = 0;

	for (unsigned int i = 0; i < RACERS; i++) {
		pids[i] = fork();
		if (pids[i])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* The shared opener is the first user's. */
		if (i % USERS == 0 && i)
			race(t, shared_dev, 0, true, i);
		else
			race(t, open_as(uids[i % USERS]), i % USERS, false, i);
		_exit(0);
	}
	while (running) {
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG);

		if (pid > 0) {
			running--;
			bad += status != 0;
		} else if (pid < 0) {
			return -1;
		} else if (knobs) {
			knobs(arg);
		} else {
			sleep_ms(5);
		}
	}
	return bad;
}

static void print_tally(const struct tally *t)
{
	printf("# %d blocks; refused: %d by the module, %d by a user's budget, %d by the opener's; "
	       "most at once %llu, of a user %llu, of the opener %llu frames\n",
	       t->won, t->over_module, t->over_user, t->over_opener, (unsigned long long)t->worst,
	       (unsigned long long)t->worst_of_user, (unsigned long long)t->worst_of_opener);
}

/* Limits that stay: none is ever exceeded, and each is met. */
TEST_F_TIMEOUT(budget, race, 200)
{
	const struct limits max = {20, 9, 5};
	struct tally *t = tally_new();
	int shared = open_as(ALICE);

	ASSERT_EQ(0, attr_write("holding", 0));
	ASSERT_EQ(0, attr_write("max_bytes", max.all * self->frame));
	ASSERT_EQ(0, attr_write("user_max_bytes", max.user * self->frame));
	ASSERT_EQ(0, device_limit(shared, max.opener * self->frame, NULL));
	t->meet_all = true;
	ASSERT_EQ(0, race_all(t, shared, NULL, NULL));
	print_tally(t);
	EXPECT_EQ(0, t->other_errors);
	EXPECT_GE(max.all, t->worst);
	EXPECT_GE(max.user, t->worst_of_user);
	EXPECT_GE(max.opener, t->worst_of_opener);
	EXPECT_LT(0, t->worst_of_opener);
	/* Or it was no race for it. */
	EXPECT_LT(0, t->over_module);
	EXPECT_LT(0, t->over_user);
	EXPECT_LT(0, t->over_opener);
	EXPECT_EQ(0, attr_read("active_bytes"));
	EXPECT_EQ(0, attr_read("managed_bytes"));
	EXPECT_EQ(0, user_bytes(shared));
	close(shared);
	munmap(t, sizeof(*t));
}

struct knobs {
	__u64 frame;
	struct limits low, high;
	int shared;
	unsigned int seed, bad;
};

static __u64 between(unsigned int *seed, __u64 low, __u64 high)
{
	return low + (__u64)rand_r(seed) % (high - low + 1);
}

static void turn_knobs(void *arg)
{
	struct knobs *k = arg;
	__u64 all = between(&k->seed, k->low.all, k->high.all);
	__u64 user = between(&k->seed, k->low.user, k->high.user);
	__u64 opener = between(&k->seed, k->low.opener, k->high.opener);

	k->bad += attr_write("max_bytes", all * k->frame) != 0;
	k->bad += attr_write("user_max_bytes", user * k->frame) != 0;
	k->bad += device_limit(k->shared, opener * k->frame, NULL) != 0;
	k->bad += attr_write("holding", (__u64)rand_r(&k->seed) % 2) != 0;
}

/* Limits that change all the time: never more than the most they ever were. */
TEST_F_TIMEOUT(budget, race_with_the_knobs, 200)
{
	struct tally *t = tally_new();
	struct knobs k = {
		.frame = self->frame,
		.low = {8, 4, 1},
		.high = {20, 10, 6},
		.shared = open_as(ALICE),
	};
	int fd;

	turn_knobs(&k);
	ASSERT_EQ(0, race_all(t, k.shared, turn_knobs, &k));
	print_tally(t);
	EXPECT_EQ(0, k.bad);
	EXPECT_EQ(0, t->other_errors);
	EXPECT_GE(k.high.all, t->worst);
	EXPECT_GE(k.high.user, t->worst_of_user);
	EXPECT_GE(k.high.opener, t->worst_of_opener);
	EXPECT_LT(0, t->won);
	EXPECT_LT(0, t->over_module + t->over_user + t->over_opener);
	EXPECT_EQ(0, attr_read("active_bytes"));
	EXPECT_EQ(attr_read("held_bytes"), attr_read("managed_bytes"));
	EXPECT_EQ(0, user_bytes(k.shared));

	/* What is left of all that is exact. */
	EXPECT_EQ(0, attr_write("max_bytes", 20 * self->frame));
	EXPECT_EQ(0, attr_write("user_max_bytes", 4 * self->frame));
	EXPECT_EQ(0, device_limit(k.shared, 0, NULL));
	fd = block_alloc(k.shared, 4 * self->frame);
	EXPECT_LE(0, fd);
	EXPECT_EQ(-EDQUOT, block_alloc(k.shared, 1));
	close(fd);
	close(k.shared);
	munmap(t, sizeof(*t));
}

/*
 * LIMIT with a struct on a private page of a file, so that writing the answer takes a
 * page fault: a long time for others to come between.
 */
static int slow_limit(int dev, int file, void *page, __u64 max_bytes)
{
	const struct binpool_limit l = {.size = sizeof(l), .max_bytes = max_bytes};

	if (pwrite(file, &l, sizeof(l), 0) != sizeof(l) ||
	    madvise(page, page_bytes(), MADV_DONTNEED))
		return -EIO;
	return request(dev, BINPOOL_IOC_LIMIT, page);
}

/* Many lower the opener's limit at once; it ends at the lowest, and is never raised. */
TEST_F_TIMEOUT(budget, race_of_limits, 120)
{
	struct binpool_info info;
	int status = 0;

	for (__u64 i = 0; i < 8; i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (pid)
			continue;
		int file = memfd_create("limit", 0);
		void *page;

		if (ftruncate(file, (off_t)page_bytes()))
			_exit(3);
		page = mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
		if (page == MAP_FAILED)
			_exit(3);
		become(ALICE);
		for (__u64 n = 2000; n; n--) {
			int ret = slow_limit(self->dev, file, page, (10 * n + i + 1) * self->frame);

			if (ret && ret != -EPERM)
				_exit(1);
			if (device_info(self->dev, &info) ||
			    info.opener_max_bytes > (10 * n + i + 1) * self->frame)
				_exit(2);
		}
		_exit(0);
	}
	for (int i = 0; i < 8; i++) {
		int one;

		ASSERT_LT(0, wait(&one));
		status |= one;
	}
	ASSERT_EQ(0, status);
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(11 * self->frame, info.opener_max_bytes);
}

/* Records come and go with openers, at once on all CPUs: none is lost, none is kept. */
TEST_F(budget, race_of_openers)
{
	int status = 0;

	ASSERT_EQ(0, attr_write("user_max_bytes", 64 * self->frame));
	for (int i = 0; i < 4; i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (pid)
			continue;
		for (int r = 0; r < 300; r++) {
			int dev = open_as(ALICE), fd = -1;

			if (r % 8 == 0)
				fd = block_alloc(dev, self->frame);
			if (dev < 0 || (r % 8 == 0 && fd < 0))
				_exit(1);
			close(dev);
			if (fd >= 0)
				close(fd);
		}
		_exit(0);
	}
	for (int i = 0; i < 4; i++) {
		int one;

		ASSERT_LT(0, wait(&one));
		status |= one;
	}
	ASSERT_EQ(0, status);
	status = open_as(ALICE);
	ASSERT_EQ(0, user_bytes(status));
	close(status);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
