// SPDX-License-Identifier: GPL-2.0
/*
 * Budgets of users and of openers: who is charged, what is refused and with which
 * answer, who may set what. More of it: races.c, stranded.c, memlock.c.
 */
#include <sys/resource.h>

#include "module.h"
#include "users.h"

TEST_F(budget, answer_of_edquot)
{
	struct binpool_alloc a = alloc_request(8 * self->frame - 1, 0);
	int dev = open_as(ALICE), fd, fds;
	struct counters was;

	ASSERT_LE(0, dev);
	ASSERT_EQ(0, attr_write("user_max_bytes", 4 * self->frame));
	fd = block_alloc(dev, self->frame);
	ASSERT_LE(0, fd);
	was = counters_read();
	fds = count_fds();
	memset(&a.fd, 0xa5, sizeof(a.fd));
	a.capacity = a.run_max_bytes = a.max_bytes = a.managed_bytes = ~0ULL;
	a.user_bytes = a.user_max_bytes = a.opener_bytes = a.opener_max_bytes = ~0ULL;
	a.exceeded = ~0U;
	ASSERT_EQ(-EDQUOT, device_alloc(dev, &a));
	ASSERT_EQ(-1, a.fd);
	ASSERT_EQ(BINPOOL_EXCEEDED_USER, a.exceeded);
	ASSERT_EQ(4 * self->frame, a.user_max_bytes);
	ASSERT_EQ(self->frame, a.user_bytes);
	ASSERT_EQ(0, a.opener_max_bytes);
	ASSERT_EQ(self->frame, a.opener_bytes);
	ASSERT_EQ((__u64)self->max_bytes, a.max_bytes);
	ASSERT_EQ(self->frame, a.managed_bytes);
	ASSERT_EQ(0, a.capacity);
	ASSERT_EQ(0, a.runs);
	ASSERT_STREQ("nothing", counters_moved(&was));
	ASSERT_EQ(fds, count_fds());
	ASSERT_EQ(self->frame, user_bytes(dev));
	/* The input members are as they were. */
	ASSERT_EQ(8 * self->frame - 1, a.bytes);
	ASSERT_EQ(BINPOOL_NODE_ANY, a.node);

	/* What would fit into the budget alone, but not beside the block. */
	a = alloc_request(4 * self->frame, 0);
	ASSERT_EQ(-EDQUOT, device_alloc(dev, &a));
	ASSERT_STREQ("nothing", counters_moved(&was));
	/* What fits to the last frame. */
	a = alloc_request(3 * self->frame, 0);
	ASSERT_EQ(0, device_alloc(dev, &a));
	ASSERT_EQ(BINPOOL_EXCEEDED_NONE, a.exceeded);
	ASSERT_EQ(4 * self->frame, a.user_bytes);
	close(a.fd);
	close(fd);
	ASSERT_EQ(0, user_bytes(dev));
	close(dev);
}

/* What is charged is the capacity, not what was asked for. */
TEST_F(budget, capacity_is_charged)
{
	/* Just above 32 frames the next class is 34. */
	struct binpool_alloc a = alloc_request(32 * self->frame + 1, 0);
	int dev = open_as(ALICE);
	__u64 capacity;

	ASSERT_EQ(0, device_alloc(dev, &a));
	capacity = a.capacity;
	ASSERT_LT(33 * self->frame, capacity);
	ASSERT_EQ(capacity, a.user_bytes);
	close(a.fd);
	ASSERT_EQ(0, attr_write("user_max_bytes", capacity - self->frame));
	a = alloc_request(32 * self->frame + 1, 0);
	ASSERT_EQ(-EDQUOT, device_alloc(dev, &a));
	ASSERT_EQ(0, attr_write("user_max_bytes", capacity));
	ASSERT_EQ(0, device_alloc(dev, &a));
	close(a.fd);
	close(dev);
}

/* Each user has a budget; the module's limit is another matter. */
TEST_F(budget, two_users)
{
	int alice = open_as(ALICE), bob = open_as(BOB), a[2], b;
	struct binpool_alloc over = alloc_request(2 * self->frame, 0);

	ASSERT_EQ(0, attr_write("user_max_bytes", 4 * self->frame));
	ASSERT_EQ(0, attr_write("max_bytes", 7 * self->frame));
	a[0] = block_alloc(alice, 4 * self->frame);
	ASSERT_LE(0, a[0]);
	ASSERT_EQ(-EDQUOT, block_alloc(alice, 1));
	b = block_alloc(bob, 2 * self->frame);
	ASSERT_LE(0, b);
	ASSERT_EQ(4 * self->frame, user_bytes(alice));
	ASSERT_EQ(2 * self->frame, user_bytes(bob));
	ASSERT_EQ(0, user_bytes(self->dev));

	/* Bob's budget has room, the module has not. */
	ASSERT_EQ(-ENOSPC, device_alloc(bob, &over));
	ASSERT_EQ(BINPOOL_EXCEEDED_MODULE, over.exceeded);
	ASSERT_EQ(2 * self->frame, user_bytes(bob));
	/* Both are exceeded: the user's budget is asked first. */
	over = alloc_request(16 * self->frame, 0);
	ASSERT_EQ(-EDQUOT, device_alloc(bob, &over));
	ASSERT_EQ(BINPOOL_EXCEEDED_USER, over.exceeded);

	close(a[0]);
	a[1] = block_alloc(alice, 3 * self->frame);
	ASSERT_LE(0, a[1]);
	close(a[1]);
	close(b);
	close(alice);
	close(bob);
}

/* All his openers are one user. */
TEST_F(budget, several_openers)
{
	int dev[3], fd[3];

	ASSERT_EQ(0, attr_write("user_max_bytes", 3 * self->frame));
	for (int i = 0; i < 3; i++) {
		dev[i] = open_as(ALICE);
		fd[i] = block_alloc(dev[i], self->frame);
		ASSERT_LE(0, fd[i]);
	}
	for (int i = 0; i < 3; i++) {
		struct binpool_info info;

		ASSERT_EQ(-EDQUOT, block_alloc(dev[i], self->frame));
		ASSERT_EQ(0, device_info(dev[i], &info));
		ASSERT_EQ(self->frame, info.opener_bytes);
		ASSERT_EQ(3 * self->frame, info.user_bytes);
		ASSERT_EQ(3 * self->frame, info.user_max_bytes);
	}
	for (int i = 0; i < 3; i++) {
		close(dev[i]);
		close(fd[i]);
	}
}

/* Ids of a user namespace, and of those inside it, are the outermost one's owner. */
TEST_F(budget, subordinate_ids_are_one_user)
{
	int dev[] = {
		open_as(ALICE),
		open_in_namespace(ALICE, 0, false, NULL),
		open_in_namespace(ALICE, 5, false, NULL),
		open_in_namespace(ALICE, 0, true, NULL),
		open_in_namespace(ALICE, 7, true, NULL),
	};
	int bobs = open_in_namespace(BOB, 0, false, NULL);
	int roots = open_in_namespace(0, 5, true, NULL);
	/* A subordinate id itself, in no namespace, is one like all others. */
	int id = open_as(SUBORDINATE + 5);
	int fd[ARRAY_SIZE(dev)], other;

	ASSERT_EQ(0, attr_write("user_max_bytes", ARRAY_SIZE(dev) * self->frame));
	for (size_t i = 0; i < ARRAY_SIZE(dev); i++) {
		struct binpool_query q;

		ASSERT_LE(0, dev[i])
		{
			TH_LOG("opener %zu", i);
		}
		fd[i] = block_alloc(dev[i], self->frame);
		ASSERT_LE(0, fd[i]);
		ASSERT_EQ((i + 1) * self->frame, user_bytes(dev[0]));
		/* QUERY names who it was, not who pays. */
		ASSERT_EQ(0, block_query(fd[i], &q));
		ASSERT_EQ(i == 0   ? ALICE
			  : i == 2 ? SUBORDINATE + 5
			  : i == 4 ? SUBORDINATE + 7
				   : SUBORDINATE,
			  q.owner_uid);
	}
	for (size_t i = 0; i < ARRAY_SIZE(dev); i++)
		ASSERT_EQ(-EDQUOT, block_alloc(dev[i], self->frame));

	ASSERT_LE(0, bobs);
	ASSERT_LE(0, roots);
	ASSERT_LE(0, id);
	other = block_alloc(bobs, self->frame);
	ASSERT_LE(0, other);
	ASSERT_EQ(self->frame, user_bytes(bobs));
	close(other);
	other = block_alloc(id, self->frame);
	ASSERT_LE(0, other);
	close(other);
	other = block_alloc(roots, self->frame);
	ASSERT_LE(0, other);
	ASSERT_EQ(self->frame, user_bytes(self->dev));
	close(other);
	for (size_t i = 0; i < ARRAY_SIZE(dev); i++) {
		close(fd[i]);
		close(dev[i]);
	}
	close(bobs);
	close(roots);
	close(id);
}

/* Who opened the device pays, whatever becomes of him and whoever uses it. */
TEST_F(budget, user_is_fixed_at_open)
{
	int dev = open_as(ALICE), fd[2];
	struct binpool_alloc a = alloc_request(self->frame, 0);
	struct binpool_query q;

	ASSERT_EQ(0, attr_write("user_max_bytes", 2 * self->frame));
	fd[0] = block_alloc(dev, self->frame); /* as root */
	ASSERT_LE(0, fd[0]);
	ASSERT_EQ(0, alloc_as(BOB, dev, &a));
	fd[1] = a.fd;
	ASSERT_EQ(0, block_query(fd[1], &q));
	ASSERT_EQ(ALICE, q.owner_uid);
	ASSERT_EQ(2 * self->frame, user_bytes(dev));
	ASSERT_EQ(0, user_bytes(self->dev));
	ASSERT_EQ(-EDQUOT, block_alloc(dev, self->frame));
	close(fd[0]);
	close(fd[1]);
	close(dev);
}

/* 0, as it is when nobody has written it: only max_bytes bounds a user. */
TEST_F(budget, none_by_default)
{
	struct binpool_alloc a = alloc_request(8 * self->frame, 0);
	struct binpool_info info;

	ASSERT_EQ(0, self->user_max_bytes);
	ASSERT_EQ(0, attr_write("max_bytes", 4 * self->frame));
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(4 * self->frame, info.user_max_bytes);
	ASSERT_EQ(-ENOSPC, device_alloc(self->dev, &a));
	ASSERT_EQ(BINPOOL_EXCEEDED_MODULE, a.exceeded);
	ASSERT_EQ(4 * self->frame, a.user_max_bytes);
	/* The budget that there was goes away again. */
	ASSERT_EQ(0, attr_write("user_max_bytes", self->frame));
	ASSERT_EQ(-EDQUOT, block_alloc(self->dev, 2 * self->frame));
	ASSERT_EQ(0, attr_write("user_max_bytes", 0));
	a = alloc_request(4 * self->frame, 0);
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	close(a.fd);
}

TEST_F(budget, values_of_user_max_bytes)
{
	const __u64 machine = meminfo_bytes("MemTotal");
	const __u64 values[] = {1, self->frame - 1, machine + 1, ~0ULL};

	ASSERT_EQ(0, attr_write("user_max_bytes", 5 * self->frame - 1));
	ASSERT_EQ((long long)(4 * self->frame), attr_read("user_max_bytes"));
	for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
		ASSERT_EQ(-EINVAL, attr_write("user_max_bytes", values[i]));
		ASSERT_EQ((long long)(4 * self->frame), attr_read("user_max_bytes"));
	}
	ASSERT_EQ(0, attr_write("user_max_bytes", machine));
	become(ALICE);
	EXPECT_EQ(-EACCES, attr_write("user_max_bytes", 0));
	become(0);
}

/* Below what he has: that goes on, and new requests are refused until he has less. */
TEST_F(budget, lowered_below_use)
{
	const __u64 len = 8 * self->frame;
	int dev = open_as(ALICE), fd[2];
	char *p;

	fd[0] = block_alloc(dev, len);
	fd[1] = block_alloc(dev, self->frame);
	ASSERT_LE(0, fd[1]);
	p = block_map(fd[0], len);
	stamp(p, len, 1);
	ASSERT_EQ(0, attr_write("user_max_bytes", 4 * self->frame));
	ASSERT_EQ(-EDQUOT, block_alloc(dev, 1));
	ASSERT_TRUE(stamped(p, len, 1));
	close(fd[1]);
	ASSERT_EQ(-EDQUOT, block_alloc(dev, 1));
	munmap(p, len);
	close(fd[0]);
	fd[0] = block_alloc(dev, 4 * self->frame);
	ASSERT_LE(0, fd[0]);
	close(fd[0]);
	close(dev);
}

/* The opener's own limit. */
TEST_F(budget, opener_limit)
{
	int other = open(DEVICE, O_RDWR | O_CLOEXEC), fd;
	struct binpool_alloc a = alloc_request(3 * self->frame, 0);
	struct binpool_limit l;
	struct binpool_info info;
	struct counters was;

	/* Rounded down to frames; the answer says what was, and what is used. */
	fd = block_alloc(self->dev, 2 * self->frame);
	ASSERT_EQ(0, device_limit(self->dev, 5 * self->frame - 1, &l));
	ASSERT_EQ(0, l.previous_bytes);
	ASSERT_EQ(2 * self->frame, l.opener_bytes);
	ASSERT_EQ(5 * self->frame - 1, l.max_bytes);
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(4 * self->frame, info.opener_max_bytes);

	was = counters_read();
	ASSERT_EQ(-EDQUOT, device_alloc(self->dev, &a));
	ASSERT_EQ(BINPOOL_EXCEEDED_OPENER, a.exceeded);
	ASSERT_EQ(4 * self->frame, a.opener_max_bytes);
	ASSERT_EQ(2 * self->frame, a.opener_bytes);
	ASSERT_EQ(2 * self->frame, a.user_bytes);
	ASSERT_STREQ("nothing", counters_moved(&was));
	/* It is asked before the others. */
	ASSERT_EQ(0, attr_write("user_max_bytes", self->frame));
	ASSERT_EQ(-EDQUOT, device_alloc(self->dev, &a));
	ASSERT_EQ(BINPOOL_EXCEEDED_OPENER, a.exceeded);
	ASSERT_EQ(0, attr_write("user_max_bytes", 0));
	/* And bounds nobody else. */
	ASSERT_EQ(0, device_alloc(other, &a));
	close(a.fd);
	close(other);

	/* To the last frame. */
	a = alloc_request(2 * self->frame, 0);
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(-EDQUOT, block_alloc(self->dev, 1));
	close(a.fd);
	/* Below what is used: that stays, as with the other limits. */
	ASSERT_EQ(0, device_limit(self->dev, self->frame, &l));
	ASSERT_EQ(4 * self->frame, l.previous_bytes);
	ASSERT_EQ(-EDQUOT, block_alloc(self->dev, 1));
	close(fd);
	fd = block_alloc(self->dev, 1);
	ASSERT_LE(0, fd);
	close(fd);
	/* Raised and taken away by who may. */
	ASSERT_EQ(0, device_limit(self->dev, 16 * self->frame, &l));
	ASSERT_EQ(self->frame, l.previous_bytes);
	ASSERT_EQ(0, device_limit(self->dev, 0, &l));
	ASSERT_EQ(16 * self->frame, l.previous_bytes);
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(0, info.opener_max_bytes);
}

TEST_F(budget, values_of_limit)
{
	const __u64 small[] = {1, page_bytes(), self->frame - 1};
	const __u64 large[] = {1ULL << 63, ~0ULL};
	struct binpool_info info;

	for (size_t i = 0; i < ARRAY_SIZE(small); i++) {
		ASSERT_EQ(-EINVAL, device_limit(self->dev, small[i], NULL));
	}
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(0, info.opener_max_bytes);
	for (size_t i = 0; i < ARRAY_SIZE(large); i++) {
		ASSERT_EQ(0, device_limit(self->dev, large[i], NULL));
		ASSERT_EQ(0, device_info(self->dev, &info));
		ASSERT_EQ(large[i] & ~(self->frame - 1), info.opener_max_bytes);
		close(block_alloc(self->dev, 1));
	}
}

static int raise_in_namespace(int dev)
{
	/* Its own is not bound yet: lowering is free, the way back is not. */
	return device_limit(dev, 1 << 30, NULL) == 0 && device_limit(dev, 1 << 29, NULL) == 0 &&
	       device_limit(dev, 1 << 30, NULL) == -EPERM && device_limit(dev, 0, NULL) == -EPERM;
}

/* Lowering is anybody's; raising and removing is for CAP_SYS_RESOURCE, of the real root. */
TEST_F(budget, limit_needs_a_capability)
{
	int dev = open_as(ALICE);
	struct binpool_info info;

	ASSERT_EQ(0, limit_as(ALICE, dev, 8 * self->frame));
	ASSERT_EQ(0, limit_as(ALICE, dev, 8 * self->frame));
	ASSERT_EQ(-EPERM, limit_as(ALICE, dev, 9 * self->frame));
	ASSERT_EQ(-EPERM, limit_as(ALICE, dev, ~0ULL));
	ASSERT_EQ(-EPERM, limit_as(ALICE, dev, 0));
	ASSERT_EQ(0, device_info(dev, &info));
	ASSERT_EQ(8 * self->frame, info.opener_max_bytes);
	/* Nor may anybody else. */
	ASSERT_EQ(0, limit_as(BOB, dev, 4 * self->frame));
	ASSERT_EQ(-EPERM, limit_as(BOB, dev, 5 * self->frame));
	ASSERT_EQ(0, device_limit(dev, 6 * self->frame, NULL));
	ASSERT_EQ(0, device_info(dev, &info));
	ASSERT_EQ(6 * self->frame, info.opener_max_bytes);
	/* Root of a namespace has all capabilities there, and none here. */
	ASSERT_EQ(1, open_in_namespace(ALICE, 0, false, raise_in_namespace));
	close(dev);
}

/* A launcher bounds its child, and then lets it go. */
TEST_F(budget, limit_goes_with_the_descriptor)
{
	struct binpool_info info;
	pid_t pid;
	int fd;

	ASSERT_EQ(0, device_limit(self->dev, 4 * self->frame, NULL));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		int dev = dup(self->dev);

		if (setresuid(ALICE, ALICE, ALICE))
			_exit(1);
		if (block_alloc(dev, 5 * self->frame) != -EDQUOT)
			_exit(2);
		if (block_alloc(dev, 2 * self->frame) < 0)
			_exit(3);
		if (block_alloc(self->dev, 3 * self->frame) != -EDQUOT)
			_exit(4);
		if (device_limit(dev, 0, NULL) != -EPERM)
			_exit(5);
		if (device_limit(dev, 5 * self->frame, NULL) != -EPERM)
			_exit(6);
		/* Bounds a grandchild further. */
		_exit(device_limit(dev, 3 * self->frame, NULL) ? 7 : 0);
	}
	ASSERT_EQ(0, child_status(pid));
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(3 * self->frame, info.opener_max_bytes);
	ASSERT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
	fd = block_alloc(self->dev, 3 * self->frame);
	ASSERT_LE(0, fd);
	ASSERT_EQ(-EDQUOT, block_alloc(self->dev, 1));
	close(fd);
}

/* What cannot be answered has not been done. */
TEST_F(budget, limit_without_an_answer)
{
	struct binpool_limit *l = mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct binpool_info info;

	l->size = sizeof(*l);
	l->max_bytes = self->frame;
	ASSERT_EQ(0, mprotect(l, page_bytes(), PROT_READ));
	ASSERT_EQ(-EFAULT, request(self->dev, BINPOOL_IOC_LIMIT, l));
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(0, info.opener_max_bytes);
	munmap(l, page_bytes());
}

/* A request that fails after it was charged gives the charge back. */
TEST_F_TIMEOUT(budget, failures_give_back, 120)
{
	struct binpool_alloc a = alloc_request(64 * self->frame, 0);
	struct rlimit files, few;
	int dev = open_as(ALICE);

	/* No memory: hardly any is above the floor. */
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, number_write(PARAM("floor_bytes"),
				  meminfo_bytes("MemAvailable") - 16 * self->frame));
	ASSERT_EQ(-ENOMEM, device_alloc(dev, &a));
	ASSERT_EQ(0, a.user_bytes);
	ASSERT_EQ(BINPOOL_EXCEEDED_NONE, a.exceeded);
	/* No room in the module. */
	ASSERT_EQ(0, attr_write("max_bytes", 4 * self->frame));
	a = alloc_request(8 * self->frame, 0);
	ASSERT_EQ(-ENOSPC, device_alloc(dev, &a));
	ASSERT_EQ(0, a.user_bytes);
	ASSERT_EQ(0, a.opener_bytes);
	/* No descriptor. */
	ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &files));
	few = files;
	few.rlim_cur = (rlim_t)count_fds();
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &few));
	ASSERT_EQ(-EMFILE, block_alloc(dev, self->frame));
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &files));
	ASSERT_EQ(0, user_bytes(dev));
	close(dev);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
