// SPDX-License-Identifier: GPL-2.0
/*
 * Physical contiguity, as promised by CONTIG and as told by ALLOC and QUERY,
 * compared with the page frame numbers of /proc. Meant to run first after boot:
 * then memory has runs of a quarter of a gigabyte at least.
 */
#include "binpool_test.h"
#include "module.h"

/* Runs of page frames in a mapped block, and the length of the longest. */
static unsigned int count_runs(const char *p, __u64 len, __u64 frame, __u64 *longest)
{
	const size_t page = page_bytes();
	__u64 run = 0, before = 0;
	unsigned int runs = 0;

	*longest = 0;
	for (__u64 o = 0; o < len; o += frame) {
		__u64 pfn = pfn_of(p + o);

		if (!pfn || pfn * page % frame)
			return 0; /* not mapped, or no frame */
		if (!runs || pfn != before + frame / page) {
			runs++;
			run = 0;
		}
		run += frame;
		before = pfn;
		if (run > *longest)
			*longest = run;
	}
	return runs;
}

/* A byte of each page is touched, so that every page has a number. */
static bool pages_follow(const char *p, __u64 len)
{
	const size_t page = page_bytes();
	__u64 first = pfn_of(p);

	for (__u64 o = 0; o < len; o += page) {
		if (pfn_of(p + o) != first + o / page)
			return false;
	}
	return first != 0;
}

static void touch(volatile char *p, __u64 len, __u64 step)
{
	for (__u64 o = 0; o < len; o += step)
		p[o] = 1;
}

TEST_F_TIMEOUT(pool, one_run, 180)
{
	const long long spare = attr_read("max_bytes");

	for (__u64 len = self->frame; len <= 256 * MIB; len *= 2) {
		struct binpool_alloc a = alloc_request(len, BINPOOL_ALLOC_CONTIG);
		struct binpool_query q;
		__u64 longest;
		char *p;

		if ((long long)len > spare / 2)
			break; /* a machine too small for it */
		ASSERT_EQ(0, device_alloc(self->dev, &a))
		{
			TH_LOG("%llu MiB; the largest run is %llu MiB",
			       (unsigned long long)(len / MIB),
			       (unsigned long long)(a.run_max_bytes / MIB));
		}
		ASSERT_EQ(len, a.capacity);
		ASSERT_EQ(1, a.runs);
		ASSERT_EQ(len, a.run_max_bytes);
		ASSERT_EQ(0, block_query(a.fd, &q));
		ASSERT_EQ(1, q.runs);
		ASSERT_EQ(len, q.run_max_bytes);
		ASSERT_LE(0, q.node);
		p = block_map(a.fd, len);
		ASSERT_NE(MAP_FAILED, (void *)p);
		touch(p, len, self->frame);
		ASSERT_EQ(1, count_runs(p, len, self->frame, &longest));
		ASSERT_EQ(len, longest);
		munmap(p, len);
		close(a.fd);
		/* The next one is not to be helped by what this one left. */
		ASSERT_EQ(0, attr_write("free_held", 1));
	}
}

/* Page by page, for sizes that are no power of two, too. */
TEST_F(pool, every_page_follows)
{
	const __u64 frames[] = {1, 3, 7, 13};

	for (size_t i = 0; i < ARRAY_SIZE(frames); i++) {
		struct binpool_alloc a =
			alloc_request(frames[i] * self->frame, BINPOOL_ALLOC_CONTIG);
		char *p;

		ASSERT_EQ(0, device_alloc(self->dev, &a));
		p = block_map(a.fd, a.capacity);
		touch(p, a.capacity, page_bytes());
		ASSERT_TRUE(pages_follow(p, a.capacity));
		munmap(p, a.capacity);
		close(a.fd);
	}
}

/* Without CONTIG the answer tells the truth about the runs. */
TEST_F_TIMEOUT(pool, runs_are_told, 120)
{
	int holes[32];

	/* Held memory in pieces makes blocks of several runs likely. */
	for (int i = 0; i < 32; i++)
		holes[i] = block_alloc(self->dev, (1 + (__u64)i % 3) * self->frame);
	for (int i = 0; i < 32; i += 2)
		close(holes[i]);
	for (__u64 n = 1; n <= 64; n *= 2) {
		struct binpool_alloc a = alloc_request(n * self->frame, 0);
		struct binpool_query q;
		__u64 longest;
		char *p;

		ASSERT_EQ(0, device_alloc(self->dev, &a));
		p = block_map(a.fd, a.capacity);
		ASSERT_NE(MAP_FAILED, (void *)p);
		touch(p, a.capacity, self->frame);
		ASSERT_EQ(a.runs, count_runs(p, a.capacity, self->frame, &longest));
		ASSERT_EQ(a.run_max_bytes, longest);
		ASSERT_EQ(0, block_query(a.fd, &q));
		ASSERT_EQ(a.runs, q.runs);
		ASSERT_EQ(longest, q.run_max_bytes);
		munmap(p, a.capacity);
		close(a.fd);
	}
	for (int i = 1; i < 32; i += 2)
		close(holes[i]);
	ASSERT_EQ(0, attr_write("free_held", 1));
}

/*
 * There is a place for a run, but the system may not give as much: what was had on the
 * way is told as the longest, and is there.
 */
TEST_F_TIMEOUT(pool, too_long_for_the_floor, 240)
{
	const __u64 room = 16 * self->frame;
	struct binpool_alloc a = alloc_request(8 * room, BINPOOL_ALLOC_CONTIG);
	int holes[128];
	__u64 floor;

	/* What comes first is in pieces, and not where the place is. */
	for (size_t i = 0; i < ARRAY_SIZE(holes); i++)
		holes[i] = block_alloc(self->dev, self->frame);
	for (size_t i = 0; i < ARRAY_SIZE(holes); i += 2)
		close(holes[i]);
	ASSERT_EQ(0, attr_write("free_held", 1));
	floor = meminfo_bytes("MemAvailable") - room;
	ASSERT_LT(room, floor);
	ASSERT_EQ(0, number_write(PARAM("floor_bytes"), floor));
	ASSERT_EQ(-ENOMEM, device_alloc(self->dev, &a));
	ASSERT_LT(0, a.run_max_bytes);
	ASSERT_GT(8 * room, a.run_max_bytes);
	/* That much is held now. */
	ASSERT_LE(a.run_max_bytes, attr_read("held_bytes"));
	a = alloc_request(a.run_max_bytes, BINPOOL_ALLOC_CONTIG);
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(1, a.runs);
	close(a.fd);
	for (size_t i = 1; i < ARRAY_SIZE(holes); i += 2)
		close(holes[i]);
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, number_write(PARAM("floor_bytes"), 0));
}

/*
 * A run longer than there is any: ENOMEM within a bounded time, no memory kept,
 * and the length of the longest is told. Memory moves, so only half of it is
 * expected to be had afterwards.
 */
TEST_F_TIMEOUT(pool, too_long, 240)
{
	const __u64 machine = meminfo_bytes("MemTotal") & ~(self->frame - 1);
	struct binpool_alloc a = alloc_request(machine / 2, BINPOOL_ALLOC_CONTIG);
	__u64 start = now_ms();

	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_write("max_bytes", machine));
	ASSERT_EQ(0,
		  number_write(PARAM("floor_bytes"), meminfo_bytes("MemAvailable") - machine / 4));
	ASSERT_EQ(-ENOMEM, device_alloc(self->dev, &a));
	ASSERT_GE(120000, now_ms() - start);
	ASSERT_EQ(-1, a.fd);
	ASSERT_EQ(0, attr_read("active_bytes"));
	TH_LOG("the largest run of %llu MiB is %llu MiB", (unsigned long long)(machine / MIB),
	       (unsigned long long)(a.run_max_bytes / MIB));
	ASSERT_LT(0, a.run_max_bytes);
	ASSERT_GT(machine / 2, a.run_max_bytes);
	a = alloc_request(a.run_max_bytes / 2, BINPOOL_ALLOC_CONTIG);
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(1, a.runs);
	close(a.fd);
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_write("max_bytes", self->info.max_bytes));
	ASSERT_EQ(0, number_write(PARAM("floor_bytes"), 0));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
