// SPDX-License-Identifier: GPL-2.0
/*
 * What happens to memory between two blocks: it is held and used again, split
 * and joined, clean before anybody sees it, and goes back when told to.
 */
#include <sched.h>

#include "binpool_test.h"

/*
 * Nothing held, so that what a test counts is its own; and always on one CPU,
 * since fresh memory of the own node comes before what another node holds.
 */
#define START_EMPTY()                                                                              \
	do {                                                                                       \
		cpu_set_t cpu0;                                                                    \
                                                                                                   \
		CPU_ZERO(&cpu0);                                                                   \
		CPU_SET(0, &cpu0);                                                                 \
		ASSERT_EQ(0, sched_setaffinity(0, sizeof(cpu0), &cpu0));                           \
		ASSERT_EQ(0, attr_write("free_held", 1));                                          \
		ASSERT_EQ(0, attr_read("held_bytes"));                                             \
		ASSERT_EQ(0, attr_read("managed_bytes"));                                          \
	} while (0)

/* How far a counter has moved since the test began. */
#define MOVED(name, since) (attr_read(name) - (since))

static int block_alloc_flags(int dev, __u64 bytes, __u32 flags)
{
	struct binpool_alloc a = alloc_request(bytes, flags);
	int ret = device_alloc(dev, &a);

	return ret ? ret : a.fd;
}

TEST_F(pool, reuse)
{
	const __u64 len = 8 * self->frame;
	int other = open(DEVICE, O_RDWR | O_CLOEXEC), fd;
	long long allocs, reuses, returns;
	char *p;

	START_EMPTY();
	allocs = attr_read("allocs");
	reuses = attr_read("reuses");
	returns = attr_read("returns");

	fd = block_alloc(self->dev, len);
	ASSERT_LE(0, fd);
	ASSERT_EQ(1, MOVED("allocs", allocs));
	ASSERT_EQ(0, MOVED("reuses", reuses));
	p = block_map(fd, len);
	ASSERT_EQ(len, first_nonzero(p, len));
	memset(p, 0xff, len);
	munmap(p, len);
	close(fd);
	ASSERT_EQ(1, MOVED("returns", returns));
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_read("active_bytes"));

	/* Another opener gets the same memory, and sees nothing of it. */
	fd = block_alloc(other, len);
	ASSERT_LE(0, fd);
	ASSERT_EQ(1, MOVED("allocs", allocs));
	ASSERT_EQ(1, MOVED("reuses", reuses));
	ASSERT_EQ(0, attr_read("held_bytes"));
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	ASSERT_EQ((long long)len, attr_read("active_bytes"));
	p = block_map(fd, len);
	ASSERT_EQ(len, first_nonzero(p, len));
	munmap(p, len);
	close(fd);
	ASSERT_EQ(2, MOVED("returns", returns));
	close(other);
}

/* Also after its process was killed: the memory outlives it. */
TEST_F(pool, reuse_after_kill)
{
	const __u64 len = 8 * self->frame;
	pid_t pid;
	char *p;
	int fd;

	START_EMPTY();
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		p = block_map(block_alloc(self->dev, len), len);
		memset(p, 0xff, len);
		kill(getpid(), SIGKILL);
	}
	ASSERT_EQ(128 + SIGKILL, child_status(pid));
	ASSERT_TRUE(attr_becomes("held_bytes", len, SOON_MS));
	fd = block_alloc(self->dev, len);
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	p = block_map(fd, len);
	ASSERT_EQ(len, first_nonzero(p, len));
	munmap(p, len);
	close(fd);
}

/*
 * Openers by turns, sizes at random, every block full of its opener's mark: who
 * finds one of another has found a leak.
 */
TEST_F_TIMEOUT(pool, canary, 120)
{
	int openers[4], fds[6] = {-1, -1, -1, -1, -1, -1};
	unsigned int seed = 7;

	START_EMPTY();
	for (size_t i = 0; i < ARRAY_SIZE(openers); i++)
		openers[i] = open(DEVICE, O_RDWR | O_CLOEXEC);
	for (int r = 0; r < 120; r++) {
		size_t slot = (size_t)rand_r(&seed) % ARRAY_SIZE(fds);
		size_t who = (size_t)rand_r(&seed) % ARRAY_SIZE(openers);
		__u64 len = (1 + (__u64)rand_r(&seed) % 12) * self->frame;
		struct binpool_alloc a =
			alloc_request(len, rand_r(&seed) % 4 ? 0 : BINPOOL_ALLOC_CONTIG);
		char *p;

		if (fds[slot] >= 0)
			close(fds[slot]);
		if (device_alloc(openers[who], &a)) {
			/* Where nothing is moved to make one, there may be no such run. */
			ASSERT_TRUE(a.flags & BINPOOL_ALLOC_CONTIG);
			a = alloc_request(len, 0);
			ASSERT_EQ(0, device_alloc(openers[who], &a));
		}
		fds[slot] = a.fd;
		p = block_map(a.fd, a.capacity);
		ASSERT_NE(MAP_FAILED, (void *)p);
		ASSERT_EQ(a.capacity, first_nonzero(p, a.capacity))
		{
			TH_LOG("round %d, offset %llu: another opener's byte", r,
			       (unsigned long long)first_nonzero(p, a.capacity));
		}
		memset(p, (int)(0x80 + who), a.capacity);
		munmap(p, a.capacity);
	}
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(openers); i++)
		close(openers[i]);
	ASSERT_EQ(0, attr_read("active_bytes"));
}

/* The control to the above: a mark in a block is seen through another mapping. */
TEST_F(pool, canary_would_be_seen)
{
	int fd = block_alloc(self->dev, self->frame);
	char *p = block_map(fd, self->frame), *other = block_map(fd, self->frame);

	p[self->frame - 8] = 1;
	ASSERT_EQ(self->frame - 8, first_nonzero(other, self->frame));
	munmap(p, self->frame);
	munmap(other, self->frame);
	close(fd);
}

/*
 * Fresh from the system: clean, also where the kernel does not clean pages by
 * itself (init_on_alloc=0), after other programs' data was in that memory.
 */
TEST_F_TIMEOUT(pool, fresh_is_clean, 120)
{
	const __u64 dirt = meminfo_bytes("MemFree") / 4 & ~(self->frame - 1);
	const __u64 len = dirt / 2 & ~(self->frame - 1);
	struct binpool_alloc a = alloc_request(len, 0);
	int fds[8];
	char *p;

	START_EMPTY();
	p = mmap(NULL, dirt, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		 -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)p);
	madvise(p, dirt, MADV_HUGEPAGE);
	for (__u64 o = 0; o < dirt; o += 8)
		*(__u64 *)(p + o) = ~0ULL;
	munmap(p, dirt);

	/* A run is looked for among frames that nobody has cleaned. */
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		struct binpool_alloc run = alloc_request(16 * self->frame, BINPOOL_ALLOC_CONTIG);
		int err = device_alloc(self->dev, &run);

		/* The longest there is will do. */
		if (err == -ENOMEM) {
			run = alloc_request(run.run_max_bytes, BINPOOL_ALLOC_CONTIG);
			err = device_alloc(self->dev, &run);
		}
		ASSERT_EQ(0, err);
		p = block_map(run.fd, run.capacity);
		ASSERT_NE(MAP_FAILED, (void *)p);
		ASSERT_EQ(run.capacity, first_nonzero(p, run.capacity));
		munmap(p, run.capacity);
		fds[i] = run.fd;
	}
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		close(fds[i]);
	START_EMPTY();

	ASSERT_EQ(0, device_alloc(self->dev, &a));
	p = block_map(a.fd, a.capacity);
	ASSERT_NE(MAP_FAILED, (void *)p);
	ASSERT_EQ(a.capacity, first_nonzero(p, a.capacity));
	munmap(p, a.capacity);
	close(a.fd);
	START_EMPTY();
}

TEST_F(pool, split)
{
	const __u64 half = 16 * self->frame;
	int one, two;

	START_EMPTY();
	close(block_alloc_flags(self->dev, 2 * half, BINPOOL_ALLOC_CONTIG));
	ASSERT_EQ((long long)(2 * half), attr_read("held_bytes"));
	one = block_alloc(self->dev, half);
	ASSERT_EQ((long long)half, attr_read("held_bytes"));
	two = block_alloc(self->dev, half);
	ASSERT_LE(0, two);
	ASSERT_EQ((long long)(2 * half), attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_read("held_bytes"));
	close(one);
	close(two);
}

/* Neighbours that came back apart serve as one, in one run. */
TEST_F(pool, join)
{
	const __u64 len = 32 * self->frame;
	struct binpool_alloc a = alloc_request(len, BINPOOL_ALLOC_CONTIG);
	int parts[32];

	START_EMPTY();
	close(block_alloc_flags(self->dev, len, BINPOOL_ALLOC_CONTIG));
	for (int i = 0; i < 32; i++) {
		parts[i] = block_alloc(self->dev, self->frame);
		ASSERT_LE(0, parts[i]);
	}
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	for (int i = 0; i < 32; i += 2)
		close(parts[i]);
	for (int i = 1; i < 32; i += 2)
		close(parts[i]);
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(1, a.runs);
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	close(a.fd);
}

/* Clean and dirty neighbours, too. */
TEST_F(pool, join_clean_and_dirty)
{
	const __u64 len = 8 * self->frame;
	struct binpool_alloc a = alloc_request(len, BINPOOL_ALLOC_CONTIG);
	int parts[8];
	char *p;

	START_EMPTY();
	close(block_alloc_flags(self->dev, len, BINPOOL_ALLOC_CONTIG));
	for (int i = 0; i < 8; i++) {
		parts[i] = block_alloc(self->dev, self->frame);
		p = block_map(parts[i], self->frame);
		ASSERT_NE(MAP_FAILED, (void *)p);
		if (i % 2)
			memset(p, 0xff, self->frame);
		munmap(p, self->frame);
	}
	for (int i = 0; i < 8; i++)
		close(parts[i]);
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	p = block_map(a.fd, len);
	ASSERT_EQ(len, first_nonzero(p, len));
	munmap(p, len);
	close(a.fd);
}

/* Held memory in other shapes serves a request that needs no single run. */
TEST_F(pool, gather)
{
	int parts[16];

	START_EMPTY();
	for (int i = 0; i < 16; i++)
		parts[i] = block_alloc(self->dev, self->frame);
	/* Every second one comes back: no two of them are neighbours for sure. */
	for (int i = 0; i < 16; i += 2)
		close(parts[i]);
	parts[0] = block_alloc(self->dev, 8 * self->frame);
	ASSERT_LE(0, parts[0]);
	ASSERT_EQ((long long)(16 * self->frame), attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_read("held_bytes"));
	close(parts[0]);
	for (int i = 1; i < 16; i += 2)
		close(parts[i]);
}

/* Held memory of too small an amount is completed, not left aside. */
TEST_F(pool, held_and_fresh)
{
	struct counters was;
	int fd;

	START_EMPTY();
	close(block_alloc(self->dev, 8 * self->frame));
	was = counters_read();
	fd = block_alloc(self->dev, 16 * self->frame);
	ASSERT_LE(0, fd);
	ASSERT_EQ(was.v[8] + 1, attr_read("allocs"));
	close(fd);
	ASSERT_EQ(0, attr_write("free_held", 1));
}

TEST_F(pool, trim)
{
	const __u64 frame = self->frame;
	__u64 freed, free_before;

	START_EMPTY();
	free_before = meminfo_bytes("MemFree");
	close(block_alloc(self->dev, 64 * frame));
	ASSERT_EQ(0, device_trim(self->dev, ~0ULL, &freed));
	ASSERT_EQ(0, freed);
	ASSERT_EQ(0, device_trim(self->dev, 64 * frame, &freed));
	ASSERT_EQ(0, freed);
	ASSERT_EQ(0, device_trim(self->dev, 40 * frame, &freed));
	ASSERT_EQ(24 * frame, freed);
	ASSERT_EQ((long long)(40 * frame), attr_read("held_bytes"));
	ASSERT_EQ((long long)(40 * frame), attr_read("managed_bytes"));
	/* At most: what is no whole frame may not stay. */
	ASSERT_EQ(0, device_trim(self->dev, 10 * frame + 1, &freed));
	ASSERT_EQ(30 * frame, freed);
	ASSERT_EQ(0, device_trim(self->dev, 10 * frame - 1, &freed));
	ASSERT_EQ(frame, freed);
	ASSERT_EQ(0, device_trim(self->dev, 0, &freed));
	ASSERT_EQ(9 * frame, freed);
	ASSERT_EQ(0, attr_read("managed_bytes"));
	ASSERT_EQ((self->before.v[6] + 64 * (long long)frame) <= attr_read("freed_bytes"), 1);
	/* The system has it: all but what else went on meanwhile. */
	ASSERT_LE(free_before, meminfo_bytes("MemFree") + 32 * frame);
}

TEST_F(pool, trim_leaves_active)
{
	int fd;
	__u64 freed;

	START_EMPTY();
	fd = block_alloc(self->dev, 4 * self->frame);
	close(block_alloc(self->dev, 4 * self->frame));
	ASSERT_EQ(0, device_trim(self->dev, 0, &freed));
	ASSERT_EQ(4 * self->frame, freed);
	ASSERT_EQ((long long)(4 * self->frame), attr_read("active_bytes"));
	close(fd);
}

TEST_F(pool, free_held)
{
	int fd;

	START_EMPTY();
	fd = block_alloc(self->dev, 4 * self->frame);
	close(block_alloc(self->dev, 8 * self->frame));
	ASSERT_EQ((long long)(8 * self->frame), attr_read("held_bytes"));
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_read("held_bytes"));
	ASSERT_EQ((long long)(4 * self->frame), attr_read("managed_bytes"));
	close(fd);
}

/* Without holding, what comes back goes to the system; blocks stay as good. */
TEST_F(pool, stop_holding)
{
	int fd;

	START_EMPTY();
	close(block_alloc(self->dev, 4 * self->frame));
	fd = block_alloc(self->dev, 2 * self->frame);
	ASSERT_EQ((long long)(2 * self->frame), attr_read("held_bytes"));
	ASSERT_EQ(0, attr_write("holding", 0));
	ASSERT_EQ(0, attr_read("holding"));
	ASSERT_EQ(0, attr_read("held_bytes"));
	ASSERT_EQ((long long)(2 * self->frame), attr_read("managed_bytes"));
	close(fd);
	ASSERT_EQ(0, attr_read("held_bytes"));
	ASSERT_EQ(0, attr_read("managed_bytes"));
	fd = block_alloc(self->dev, 2 * self->frame);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, attr_write("holding", 1));
	ASSERT_EQ(1, attr_read("holding"));
	close(fd);
	ASSERT_EQ((long long)(2 * self->frame), attr_read("held_bytes"));
}

/* Each success is either counted as fresh or as a reuse; each end is counted. */
TEST_F(pool, counters_add_up)
{
	struct counters was = counters_read();
	int done = 0;

	for (int r = 0; r < 50; r++) {
		int fd = block_alloc(self->dev, (1 + (__u64)r % 7) * self->frame);

		ASSERT_LE(0, fd);
		done++;
		close(fd);
	}
	ASSERT_EQ(done, attr_read("allocs") - was.v[8] + attr_read("reuses") - was.v[9]);
	ASSERT_EQ(done, attr_read("returns") - was.v[10]);
	ASSERT_EQ(attr_read("managed_bytes"),
		  attr_read("active_bytes") + attr_read("held_bytes") + attr_read("limbo_bytes"));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
