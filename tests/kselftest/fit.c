// SPDX-License-Identifier: GPL-2.0
/*
 * Which held memory a request gets, and how much a search takes meanwhile. Each test has
 * a row of single blocks side by side, and chooses what of it is held: the rest is in use.
 */
#include <sys/prctl.h>

#include "empty.h"

#define ROW 64

#define BACKGROUND "cleaned_background_bytes"

/* Frames side by side, each a block of its own; -1: it was given back. */
struct row {
	__u64 first; /* physical address */
	int fds[ROW];
};

static __u64 block_place(int fd)
{
	const volatile char *p = block_map(fd, page_bytes());
	__u64 place = 0;

	if (p == MAP_FAILED)
		return 0;
	if (!*p)
		place = physical((const void *)(uintptr_t)p);
	munmap((void *)(uintptr_t)p, page_bytes());
	return place;
}

/* Nothing is held then, and nothing is in use but rows. */
static bool row_take(struct row *row, int dev, __u64 frame)
{
	const long long others = attr_read("active_bytes");
	int fd = block_alloc_flags(dev, ROW * frame, BINPOOL_ALLOC_CONTIG);

	if (fd < 0)
		return false;
	row->first = block_place(fd);
	close(fd);
	memset(row->fds, -1, sizeof(row->fds));
	for (int i = 0; i < ROW; i++) {
		__u64 at;

		fd = block_alloc(dev, frame);
		at = fd < 0 ? 0 : (block_place(fd) - row->first) / frame;
		if (fd < 0 || at >= ROW || row->fds[at] >= 0)
			return false;
		row->fds[at] = fd;
	}
	return attr_read("managed_bytes") == others + ROW * (long long)frame;
}

static void row_give(struct row *row, int from, int nr)
{
	for (int i = from; i < from + nr; i++) {
		if (row->fds[i] >= 0)
			close(row->fds[i]);
		row->fds[i] = -1;
	}
}

/*
 * Where in the row one run of @frames is that ALLOC gives, which goes back at once; or
 * -errno. Elsewhere: ROW or more.
 */
static long run_at(const struct row *row, int dev, __u64 frame, __u64 frames, __u64 align)
{
	struct binpool_alloc a = alloc_request(frames * frame, BINPOOL_ALLOC_CONTIG);
	__u64 place;
	int err;

	a.align = align * frame;
	err = device_alloc(dev, &a);
	if (err)
		return err;
	place = block_place(a.fd);
	close(a.fd);
	return place < row->first ? ROW : (long)((place - row->first) / frame);
}

/* The shortest that serves, of which the end is taken. */
TEST_F_TIMEOUT(empty, shortest_run_that_serves, 60)
{
	struct row row;

	RELOAD("clean_threads=0");
	ASSERT_TRUE(row_take(&row, self->dev, self->frame));
	row_give(&row, 0, 16);
	row_give(&row, 18, 4);
	row_give(&row, 24, 8);
	ASSERT_EQ(18, run_at(&row, self->dev, self->frame, 4, 0));
	ASSERT_EQ(19, run_at(&row, self->dev, self->frame, 3, 0));
	ASSERT_EQ(27, run_at(&row, self->dev, self->frame, 5, 0));
	ASSERT_EQ(24, run_at(&row, self->dev, self->frame, 8, 0));
	ASSERT_EQ(7, run_at(&row, self->dev, self->frame, 9, 0));
	row_give(&row, 0, ROW);
}

/* Of a run its beginning goes back first: its end was used last, and is given out first. */
TEST_F_TIMEOUT(empty, a_run_loses_its_beginning, 60)
{
	struct row row;

	RELOAD("clean_threads=0");
	ASSERT_TRUE(row_take(&row, self->dev, self->frame));
	row_give(&row, 0, 16);
	ASSERT_EQ(0, device_trim(self->dev, 8 * self->frame, NULL));
	ASSERT_EQ(8, run_at(&row, self->dev, self->frame, 8, 0));
	row_give(&row, 0, ROW);
}

/* Of runs that are alike the one goes back first that came first. */
TEST_F_TIMEOUT(empty, the_oldest_run_goes_first, 60)
{
	struct row row;

	RELOAD("clean_threads=0");
	for (int order = 0; order < 2; order++) {
		ASSERT_TRUE(row_take(&row, self->dev, self->frame));
		row_give(&row, order ? 16 : 0, 8);
		row_give(&row, order ? 0 : 16, 8);
		ASSERT_EQ(0, device_trim(self->dev, 8 * self->frame, NULL));
		ASSERT_EQ(order ? 0 : 16, run_at(&row, self->dev, self->frame, 8, 0));
		row_give(&row, 0, ROW);
		ASSERT_EQ(0, attr_write("free_held", 1));
	}
}

/* One that is just as long serves an aligned request, if it happens to be aligned. */
TEST_F_TIMEOUT(empty, aligned_run_that_just_serves, 60)
{
	struct row row;
	int at;

	RELOAD("clean_threads=0");
	ASSERT_TRUE(row_take(&row, self->dev, self->frame));
	at = (int)(-(row.first / self->frame) % 8);
	row_give(&row, at, 8);
	row_give(&row, at + 10, 40);
	ASSERT_EQ(at, run_at(&row, self->dev, self->frame, 8, 8));
	row_give(&row, 0, ROW);
}

/* Clean before dirty, though it is longer. */
TEST_F_TIMEOUT(empty, clean_run_before_a_shorter_one, 60)
{
	bool rested = false;

	for (int tries = 0; tries < 20 && !rested; tries++) {
		long long background;
		struct row row;
		long place;

		ASSERT_TRUE(row_take(&row, self->dev, self->frame));
		row_give(&row, 0, 16);
		ASSERT_TRUE(cleaning_ends());
		ASSERT_EQ(0, number_write(DROP_CACHES, 2));
		background = attr_read(BACKGROUND);
		row_give(&row, 20, 8);
		place = run_at(&row, self->dev, self->frame, 8, 0);
		rested = attr_read(BACKGROUND) == background;
		if (rested)
			ASSERT_EQ(8, place);
		row_give(&row, 0, ROW);
		ASSERT_EQ(0, attr_write("free_held", 1));
	}
	ASSERT_TRUE(rested);
}

/*
 * Of stretches of clean and dirty runs it is the shortest that serves, too; where none
 * does, the longest is told, as the size class that fits into it, and can be had. More
 * than there can be at all is above the limit.
 */
TEST_F_TIMEOUT(empty, stretches_of_clean_and_dirty_runs, 120)
{
	const __u64 frame = self->frame;
	bool rested = false;
	struct row row;

	ASSERT_EQ(0, number_write(DROP_CACHES, 4));
	for (int tries = 0; tries < 20 && !rested; tries++) {
		struct binpool_alloc more = alloc_request(36 * frame, BINPOOL_ALLOC_CONTIG);
		struct binpool_alloc most = alloc_request(44 * frame, BINPOOL_ALLOC_CONTIG);
		long shortest, told;
		long long background;
		int errs[2];

		ASSERT_TRUE(row_take(&row, self->dev, frame));
		/* Nothing more comes, and nothing goes back. */
		ASSERT_EQ(0, attr_write("max_bytes", ROW * frame));
		ASSERT_EQ(0, attr_write("reserve_bytes", ROW * frame));
		/* 8 frames, and 33, in turns of four. */
		for (int i = 0; i < 33; i += 8) {
			if (!i)
				row_give(&row, 0, 4);
			row_give(&row, 16 + i, i < 32 ? 4 : 1);
		}
		ASSERT_TRUE(cleaning_ends());
		/* Threads rest for a while after the system wanted memory. */
		ASSERT_EQ(0, number_write(DROP_CACHES, 2));
		background = attr_read(BACKGROUND);
		row_give(&row, 4, 4);
		for (int i = 4; i < 32; i += 8)
			row_give(&row, 16 + i, 4);
		shortest = run_at(&row, self->dev, frame, 6, 0);
		errs[0] = device_alloc(self->dev, &most);
		errs[1] = device_alloc(self->dev, &more);
		told = run_at(&row, self->dev, frame, more.run_max_bytes / frame, 0);
		rested = attr_read(BACKGROUND) == background;
		if (rested) {
			ASSERT_EQ(0, shortest);
			ASSERT_EQ(-ENOSPC, errs[0]);
			ASSERT_EQ(-ENOMEM, errs[1]);
			ASSERT_EQ(32 * frame, more.run_max_bytes);
			ASSERT_EQ(16, told);
		}
		ASSERT_EQ(ROW * (long long)frame, attr_read("managed_bytes"));
		ASSERT_EQ(0, attr_write("reserve_bytes", 0));
		row_give(&row, 0, ROW);
		ASSERT_EQ(0, attr_write("free_held", 1));
		ASSERT_EQ(0, attr_write("max_bytes", (__u64)self->max_bytes));
	}
	ASSERT_TRUE(rested);
}

static int row_cmp(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	return x->first < y->first ? -1 : x->first > y->first;
}

/* However many runs are held: the longest is told though it is the last one. */
TEST_F_TIMEOUT(empty, longest_of_many_runs, 120)
{
	const __u64 all = 3 * ROW * self->frame;
	struct binpool_alloc a = alloc_request(9 * self->frame, BINPOOL_ALLOC_CONTIG);
	struct row rows[3];

	RELOAD("clean_threads=0");
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		ASSERT_TRUE(row_take(&rows[i], self->dev, self->frame));
	}
	ASSERT_EQ(0, number_write(PARAM("contig_ms"), 0));
	qsort(rows, ARRAY_SIZE(rows), sizeof(rows[0]), row_cmp);
	/* Nothing more comes, and nothing goes back. */
	ASSERT_EQ(0, attr_write("max_bytes", all));
	ASSERT_EQ(0, attr_write("reserve_bytes", all));
	for (size_t i = 0; i < ARRAY_SIZE(rows) - 1; i++) {
		for (int j = 0; j < ROW; j += 2)
			row_give(&rows[i], j, 1);
	}
	row_give(&rows[ARRAY_SIZE(rows) - 1], ROW / 2, 8);
	ASSERT_EQ(-ENOMEM, device_alloc(self->dev, &a));
	ASSERT_EQ(8 * self->frame, a.run_max_bytes);
	ASSERT_EQ((long long)all, attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_write("reserve_bytes", 0));
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		row_give(&rows[i], 0, ROW);
}

/* Begins where hardly any memory does: at a multiple of @align. */
static int far_alloc(int dev, __u64 bytes, __u64 align)
{
	struct binpool_alloc a = alloc_request(bytes, BINPOOL_ALLOC_CONTIG);
	int err;

	a.align = align;
	err = device_alloc(dev, &a);
	return err ? err : a.fd;
}

/*
 * Takes runs of @bytes, of which there are few, until the next one is a search in vain;
 * @left is what max_bytes leaves then. How many there were, or -errno.
 */
static int far_take(int dev, __u64 bytes, __u64 align, __u64 left, int *fds, int most)
{
	int nr = 0;

	for (;;) {
		int fd;

		if (attr_write("max_bytes", (__u64)attr_read("active_bytes") + left) ||
		    attr_write("free_held", 1))
			return -EIO;
		fd = far_alloc(dev, bytes, align);
		if (fd == -ENOMEM)
			return attr_write("free_held", 1) ? -EIO : nr;
		if (fd < 0 || nr == most)
			return fd < 0 ? fd : -E2BIG;
		fds[nr++] = fd;
	}
}

/* A search takes more than is wanted, but half of what the limit leaves is for others. */
TEST_F_TIMEOUT(empty, a_search_leaves_half_to_others, 60)
{
	const __u64 left = 64 * self->frame, len = 8 * self->frame;
	long long freed, taken;
	int fds[8], nr;

	ASSERT_EQ(0, number_write(PARAM("contig_ms"), 0));
	nr = far_take(self->dev, len, GIB, left, fds, ARRAY_SIZE(fds));
	ASSERT_LE(0, nr);
	freed = attr_read("freed_bytes");
	taken = attr_read("managed_bytes");
	ASSERT_EQ(-ENOMEM, far_alloc(self->dev, len, GIB));
	/* What it took went back, or is held for who asks again. */
	taken = attr_read("managed_bytes") - taken + attr_read("freed_bytes") - freed;
	ASSERT_LT((long long)len, taken);
	ASSERT_GE((long long)(len + (left - len) / 2), taken);
	while (nr)
		close(fds[--nr]);
}

/* And where that is much it takes several times what surely has an aligned run, were it free. */
TEST_F_TIMEOUT(empty, a_search_takes_more_than_it_wants, 120)
{
	const __u64 len = 8 * self->frame, align = 512 * MIB, want = align - self->frame + len;
	const __u64 left = 4 * want + 16 * self->frame;
	long long freed, taken;
	int fds[16], nr;

	if (meminfo_bytes("MemAvailable") < 3 * want + GIB)
		SKIP(return, "a machine too small for it");
	ASSERT_EQ(0, text_write(DROP_CACHES, "1"));
	ASSERT_EQ(0, number_write(PARAM("contig_ms"), 0));
	nr = far_take(self->dev, len, align, left, fds, ARRAY_SIZE(fds));
	ASSERT_LE(0, nr);
	freed = attr_read("freed_bytes");
	taken = attr_read("managed_bytes");
	ASSERT_EQ(-ENOMEM, far_alloc(self->dev, len, align));
	taken = attr_read("managed_bytes") - taken + attr_read("freed_bytes") - freed;
	ASSERT_LT((long long)(2 * want), taken);
	while (nr)
		close(fds[--nr]);
}

/* Who was refused while a search had taken what he needs has it when that ends. */
TEST_F_TIMEOUT(empty, what_a_search_took_is_waited_for, 120)
{
	const __u64 left = 64 * self->frame, len = 8 * self->frame;
	__u64 end, longest = 0;
	int fds[8], nr;
	pid_t pid;

	ASSERT_EQ(0, number_write(PARAM("contig_ms"), 0));
	nr = far_take(self->dev, len, GIB, left, fds, ARRAY_SIZE(fds));
	ASSERT_LE(0, nr);
	/* Nobody finds what another left. */
	ASSERT_EQ(0, attr_write("holding", 0));
	ASSERT_EQ(0, number_write(PARAM("limbo_wait_ms"), 20000));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		cpu_set_t all;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		memset(&all, 0xff, sizeof(all));
		sched_setaffinity(0, sizeof(all), &all);
	}
	while (!pid) {
		far_alloc(self->dev, len, GIB);
		sleep_ms(5);
	}
	for (end = now_ms() + 2000; now_ms() < end;) {
		__u64 start = now_ms();
		int fd = block_alloc(self->dev, left);

		ASSERT_LE(0, fd);
		close(fd);
		longest = now_ms() - start > longest ? now_ms() - start : longest;
	}
	kill(pid, SIGKILL);
	ASSERT_EQ(128 + SIGKILL, child_status(pid));
	ASSERT_GE(15000 * slowness(), longest);
	while (nr)
		close(fds[--nr]);
}

/* Where no memory is moved for a run, held memory makes room if there are free frames. */
TEST_F_TIMEOUT(empty, room_is_made_where_nothing_is_moved, 60)
{
	const long long len = 8 * (long long)self->frame;
	long long freed;
	struct row row;
	int fd;

	ASSERT_TRUE(row_take(&row, self->dev, self->frame));
	ASSERT_EQ(0, number_write(PARAM("contig_ms"), 0));
	ASSERT_EQ(0, attr_write("max_bytes", ROW * self->frame));
	for (int i = 0; i < 32; i += 2)
		row_give(&row, i, 1);
	freed = attr_read("freed_bytes");
	/* Whether they are side by side is a matter of luck. */
	fd = block_alloc_flags(self->dev, (__u64)len, BINPOOL_ALLOC_CONTIG);
	ASSERT_TRUE(fd >= 0 || fd == -ENOMEM);
	ASSERT_LE(len, attr_read("freed_bytes") - freed);
	if (fd >= 0)
		close(fd);
	row_give(&row, 0, ROW);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
