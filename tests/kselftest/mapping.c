// SPDX-License-Identifier: GPL-2.0
/*
 * Mappings of a block: which are granted, what they show at which offset, what
 * may be done to parts of them, and that they are huge where they can be.
 */
#include <linux/mempolicy.h>

#include "binpool_test.h"

#define FRAMES 8 /* of the block that most tests here use */

FIXTURE(block)
{
	int dev;
	int fd;
	int log;
	__u64 frame;
	__u64 len;
	char *p; /* all of it, mapped */
};

FIXTURE_SETUP(block)
{
	struct binpool_info info;

	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->frame = info.frame_bytes;
	self->len = FRAMES * self->frame;
	self->fd = block_alloc(self->dev, self->len);
	ASSERT_LE(0, self->fd);
	self->p = block_map(self->fd, self->len);
	ASSERT_NE(MAP_FAILED, (void *)self->p);
}

/* Whatever was done to the mapping: no reference to a page is left or lost. */
FIXTURE_TEARDOWN(block)
{
	if (_metadata->exit_code == KSFT_FAIL)
		return;
	munmap(self->p, self->len);
	close(self->fd);
	EXPECT_EQ(0, attr_read("limbo_bytes"));
	EXPECT_EQ(0, attr_read("active_bytes"));
	close(self->dev);
	EXPECT_EQ(0, log_count_bad(self->log));
}

/* 0 or the errno of mapping @len bytes. */
static int map_errno(int fd, __u64 len, int prot, int flags, off_t offset)
{
	void *p = mmap(NULL, len, prot, flags, fd, offset);

	if (p == MAP_FAILED)
		return errno;
	munmap(p, len);
	return 0;
}

/* Runs @touch in a child; the signal it died of, 0 if it lived. */
static int touch_signal(volatile char *p, bool write_it)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		if (write_it)
			*p = 1;
		else
			(void)*p;
		_exit(0);
	}
	status = child_status(pid);
	return status < 128 ? -status : status - 128;
}

TEST_F(block, kinds)
{
	const int rw = PROT_READ | PROT_WRITE;

	ASSERT_EQ(0, map_errno(self->fd, self->len, rw, MAP_SHARED, 0));
	ASSERT_EQ(0, map_errno(self->fd, self->len, PROT_READ, MAP_SHARED, 0));
	ASSERT_EQ(0, map_errno(self->fd, self->len, rw, MAP_SHARED_VALIDATE, 0));
	ASSERT_EQ(0, map_errno(self->fd, self->len, PROT_NONE, MAP_SHARED, 0));
	ASSERT_EQ(EINVAL, map_errno(self->fd, self->len, rw, MAP_PRIVATE, 0));
	ASSERT_EQ(EINVAL, map_errno(self->fd, self->len, PROT_READ, MAP_PRIVATE, 0));
	ASSERT_EQ(EPERM, map_errno(self->fd, self->len, rw | PROT_EXEC, MAP_SHARED, 0));
	ASSERT_EQ(EPERM, map_errno(self->fd, self->len, PROT_READ | PROT_EXEC, MAP_SHARED, 0));
	ASSERT_EQ(EOPNOTSUPP,
		  map_errno(self->fd, self->len, rw, MAP_SHARED_VALIDATE | MAP_SYNC, 0));
	/* The device itself is for requests only. */
	ASSERT_EQ(ENODEV, map_errno(self->dev, self->frame, rw, MAP_SHARED, 0));
}

TEST_F(block, never_executable)
{
	ASSERT_EQ(-1, mprotect(self->p, self->len, PROT_READ | PROT_EXEC));
	ASSERT_EQ(EACCES, errno);
	ASSERT_EQ(-1, mprotect(self->p, page_bytes(), PROT_READ | PROT_WRITE | PROT_EXEC));
	ASSERT_EQ(EACCES, errno);
}

TEST_F(block, bounds)
{
	const int rw = PROT_READ | PROT_WRITE;
	const off_t end = (off_t)self->len, page = (off_t)page_bytes();

	ASSERT_EQ(EINVAL, map_errno(self->fd, self->len + 1, rw, MAP_SHARED, 0));
	ASSERT_EQ(EINVAL, map_errno(self->fd, self->len + self->frame, rw, MAP_SHARED, 0));
	ASSERT_EQ(EINVAL, map_errno(self->fd, self->len, rw, MAP_SHARED, page));
	ASSERT_EQ(EINVAL, map_errno(self->fd, page_bytes(), rw, MAP_SHARED, end));
	ASSERT_EQ(EINVAL, map_errno(self->fd, page_bytes(), rw, MAP_SHARED, end + page));
	ASSERT_EQ(EINVAL, map_errno(self->fd, self->frame, rw, MAP_SHARED, end - page));
	ASSERT_EQ(EINVAL, map_errno(self->fd, self->frame, rw, MAP_SHARED, (off_t)1 << 40));
	ASSERT_EQ(EINVAL, map_errno(self->fd, self->frame, rw, MAP_SHARED, (off_t)1 << 62));
	ASSERT_NE(0, map_errno(self->fd, self->frame, rw, MAP_SHARED, INT64_MAX - page + 1));
	ASSERT_EQ(EINVAL, map_errno(self->fd, self->frame, rw, MAP_SHARED, 1));
	ASSERT_EQ(0, map_errno(self->fd, page_bytes(), rw, MAP_SHARED, end - page));
	ASSERT_EQ(0, map_errno(self->fd, self->frame, rw, MAP_SHARED, end - (off_t)self->frame));
}

/* Each frame, and pages within, mapped by itself shows its own bytes. */
TEST_F(block, offsets)
{
	const size_t page = page_bytes();

	fill(self->p, self->len, 1, 0);
	for (__u64 o = 0; o < self->len; o += self->frame) {
		char *one = mmap(NULL, self->frame, PROT_READ, MAP_SHARED, self->fd, (off_t)o);

		ASSERT_NE(MAP_FAILED, (void *)one);
		ASSERT_TRUE(filled(one, self->frame, 1, o));
		munmap(one, self->frame);
	}
	for (__u64 o = 0; o < self->len; o += 37 * page) {
		char *one = mmap(NULL, page, PROT_READ, MAP_SHARED, self->fd, (off_t)o);

		ASSERT_NE(MAP_FAILED, (void *)one);
		ASSERT_TRUE(filled(one, page, 1, o));
		munmap(one, page);
	}
	for (__u64 o = page; o < self->len - 2 * self->frame; o += self->frame + 5 * page) {
		char *one = mmap(NULL, 2 * self->frame, PROT_READ, MAP_SHARED, self->fd, (off_t)o);

		ASSERT_NE(MAP_FAILED, (void *)one);
		ASSERT_TRUE(filled(one, 2 * self->frame, 1, o));
		munmap(one, 2 * self->frame);
	}
}

/* Two mappings show one memory. */
TEST_F(block, shared_between_mappings)
{
	char *other = block_map(self->fd, self->len);

	ASSERT_NE(MAP_FAILED, (void *)other);
	stamp(self->p, self->len, 2);
	ASSERT_TRUE(stamped(other, self->len, 2));
	stamp(other, self->len, 3);
	ASSERT_TRUE(stamped(self->p, self->len, 3));
	munmap(other, self->len);
}

TEST_F(block, mremap)
{
	char *room = mmap(NULL, 2 * self->len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *target =
		(char *)(((uintptr_t)room + self->frame - 1) & ~(uintptr_t)(self->frame - 1));
	char *moved;

	stamp(self->p, self->len, 4);
	ASSERT_EQ(MAP_FAILED, mremap(self->p, self->len, 2 * self->len, 0));
	ASSERT_EQ(MAP_FAILED, mremap(self->p, self->len, self->len + page_bytes(), MREMAP_MAYMOVE));
	ASSERT_EQ(MAP_FAILED, mremap(self->p, self->frame, 2 * self->frame, MREMAP_MAYMOVE));
	ASSERT_TRUE(stamped(self->p, self->len, 4));

	moved = mremap(self->p, self->len, self->len, MREMAP_MAYMOVE | MREMAP_FIXED, target);
	ASSERT_EQ((void *)target, (void *)moved);
	ASSERT_TRUE(stamped(moved, self->len, 4));
	ASSERT_EQ((long long)self->len, smaps_bytes(moved, "FilePmdMapped"));

	ASSERT_EQ((void *)moved, mremap(moved, self->len, self->frame, 0));
	ASSERT_TRUE(stamped(moved, self->frame, 4));
	munmap(room, 2 * self->len);
	self->p = block_map(self->fd, self->len);
	ASSERT_NE(MAP_FAILED, (void *)self->p);
	ASSERT_TRUE(stamped(self->p, self->len, 4));
}

/* A page goes out of the middle of a frame; its neighbours stay. */
TEST_F(block, partial_munmap)
{
	const size_t page = page_bytes();
	char *hole = self->p + self->frame + 5 * page;

	stamp(self->p, self->len, 5);
	ASSERT_EQ(0, munmap(hole, page));
	ASSERT_EQ(SIGSEGV, touch_signal(hole, false));
	ASSERT_TRUE(stamped(self->p, self->frame + 5 * page, 5));
	for (__u64 o = self->frame + 6 * page; o < self->len; o += page) {
		ASSERT_EQ(word_at(5, o), *(__u64 *)(self->p + o));
	}
	/* The other frames have lost nothing of their size. */
	ASSERT_EQ((long long)self->frame, smaps_bytes(self->p, "FilePmdMapped"));
	ASSERT_EQ((long long)(self->len - 2 * self->frame),
		  smaps_bytes(self->p + 2 * self->frame, "FilePmdMapped"));
	/* It can be filled again with the very page. */
	ASSERT_EQ((void *)hole, mmap(hole, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
				     self->fd, hole - self->p));
	ASSERT_TRUE(stamped(self->p, self->len, 5));
}

TEST_F(block, read_only)
{
	const size_t page = page_bytes();

	stamp(self->p, self->len, 6);
	ASSERT_EQ(0, mprotect(self->p, self->len, PROT_READ));
	ASSERT_EQ(SIGSEGV, touch_signal(self->p, true));
	ASSERT_EQ(SIGSEGV, touch_signal(self->p + self->len - 1, true));
	ASSERT_EQ(0, touch_signal(self->p, false));
	ASSERT_TRUE(stamped(self->p, self->len, 6));
	ASSERT_EQ(0, mprotect(self->p, self->len, PROT_READ | PROT_WRITE));
	stamp(self->p, self->len, 7);
	/* One page of a frame. */
	ASSERT_EQ(0, mprotect(self->p + 3 * page, page, PROT_READ));
	ASSERT_EQ(SIGSEGV, touch_signal(self->p + 3 * page, true));
	ASSERT_EQ(0, touch_signal(self->p + 2 * page, true));
	ASSERT_EQ(0, touch_signal(self->p + 4 * page, true));
	ASSERT_EQ(0, mprotect(self->p, self->len, PROT_NONE));
	ASSERT_EQ(SIGSEGV, touch_signal(self->p, false));
	ASSERT_EQ(0, mprotect(self->p, self->len, PROT_READ | PROT_WRITE));
	/* All as it was but for the two bytes that the children could write. */
	self->p[2 * page] = (char)word_at(7, 2 * page);
	self->p[4 * page] = (char)word_at(7, 4 * page);
	ASSERT_TRUE(stamped(self->p, self->len, 7));
}

/*
 * Page by page out of the address space, 100 000 times; no page is freed under
 * the block, none stays mapped, and the data is what it was.
 */
TEST_F_TIMEOUT(block, unmap_page_by_page, 240)
{
	const size_t page = page_bytes(), pages = self->frame / page;
	const size_t rounds = 100000 / pages + 1;
	__u64 pfn;

	stamp(self->p, self->len, 8);
	pfn = pfn_of(self->p);
	ASSERT_NE(0, pfn);
	for (size_t r = 0; r < rounds; r++) {
		char *one = mmap(NULL, self->frame, PROT_READ, MAP_SHARED, self->fd, 0);

		ASSERT_NE(MAP_FAILED, (void *)one);
		for (size_t i = 0; i < pages; i++) {
			/* Mapped again, small, since its frame lost a page. */
			if (r % 8 == 0) {
				ASSERT_EQ(word_at(8, i * page), *(__u64 *)(one + i * page));
			}
			ASSERT_EQ(0, munmap(one + i * page, page));
		}
	}
	ASSERT_TRUE(stamped(self->p, self->len, 8));
	munmap(self->p, self->len);
	for (size_t i = 0; i < pages; i++) {
		ASSERT_EQ(0, map_count(pfn + i));
	}
	self->p = block_map(self->fd, self->len);
	ASSERT_TRUE(stamped(self->p, self->len, 8));
}

/* Every frame of a block is mapped whole, whatever the block's size. */
TEST_F(pool, huge)
{
	const __u64 frames[] = {1, 2, 3, 16, 17, 33, 64};

	for (size_t i = 0; i < ARRAY_SIZE(frames); i++) {
		struct binpool_alloc a = alloc_request(frames[i] * self->frame, 0);
		struct binpool_query q;
		char *p;

		ASSERT_EQ(0, device_alloc(self->dev, &a));
		p = block_map(a.fd, a.capacity);
		ASSERT_NE(MAP_FAILED, (void *)p);
		ASSERT_EQ(0, (uintptr_t)p % self->frame);
		/* One byte of each frame, read or written. */
		for (__u64 o = 0; o < a.capacity; o += self->frame) {
			if (o / self->frame % 2)
				p[o] = 1;
			else
				ASSERT_EQ(0, p[o]);
		}
		ASSERT_EQ((long long)a.capacity, smaps_bytes(p, "FilePmdMapped"));
		ASSERT_EQ((long long)a.capacity, smaps_bytes(p, "Rss"));
		ASSERT_EQ(0, block_query(a.fd, &q));
		ASSERT_EQ(a.capacity / self->frame, q.huge_faults);
		ASSERT_EQ(0, q.small_faults);
		munmap(p, a.capacity);
		close(a.fd);
	}
}

/* The counts of faults agree with what smaps says, also where huge is off. */
TEST_F(block, small_faults_are_told)
{
	struct binpool_query q;
	long long huge;

	/* On 6.1 the advice does not reach such mappings; later kernels obey it. */
	ASSERT_EQ(0, madvise(self->p, self->len, MADV_NOHUGEPAGE));
	for (__u64 o = 0; o < self->len; o += page_bytes())
		self->p[o] = 1;
	huge = smaps_bytes(self->p, "FilePmdMapped");
	ASSERT_EQ(0, block_query(self->fd, &q));
	TH_LOG("%llu huge and %llu small faults", (unsigned long long)q.huge_faults,
	       (unsigned long long)q.small_faults);
	if (huge) {
		ASSERT_EQ((long long)self->len, huge);
		ASSERT_EQ(FRAMES, q.huge_faults);
		ASSERT_EQ(0, q.small_faults);
	} else {
		ASSERT_EQ(0, q.huge_faults);
		ASSERT_LE(FRAMES, q.small_faults);
	}
}

/* At an address that no huge page can have: small pages, right data. */
TEST_F(block, misaligned_address)
{
	const size_t page = page_bytes();
	char *room = mmap(NULL, self->len + 2 * self->frame, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uintptr_t start = ((uintptr_t)room + self->frame - 1) & ~(uintptr_t)(self->frame - 1);
	char *odd = (char *)start + page, *p;
	struct binpool_query q;

	ASSERT_NE(MAP_FAILED, (void *)room);
	p = mmap(odd, self->len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, self->fd, 0);
	ASSERT_EQ((void *)odd, (void *)p);
	stamp(p, self->len, 9);
	ASSERT_EQ(0, smaps_bytes(p, "FilePmdMapped"));
	ASSERT_EQ((long long)self->len, smaps_bytes(p, "Rss"));
	ASSERT_EQ(0, block_query(self->fd, &q));
	ASSERT_EQ(0, q.huge_faults);
	ASSERT_LT(0, q.small_faults);
	ASSERT_TRUE(stamped(self->p, self->len, 9));
	munmap(room, self->len + 2 * self->frame);
}

/* Neither in core dumps nor growing. */
TEST_F(block, vma_flags)
{
	ASSERT_TRUE(smaps_flag(self->p, "sh"));
	ASSERT_TRUE(smaps_flag(self->p, "dd"));
	ASSERT_TRUE(smaps_flag(self->p, "de"));
	ASSERT_FALSE(smaps_flag(self->p, "ex"));
	ASSERT_EQ(-1, madvise(self->p, self->len, MADV_DODUMP));
}

/* Sizes around page and frame: told what is usable, and never a neighbour's. */
TEST_F(pool, odd_sizes)
{
	const __u64 sizes[] = {1, page_bytes() - 1, page_bytes() + 1, self->frame - 1,
			       self->frame + 1};
	struct binpool_alloc a[ARRAY_SIZE(sizes)];
	char *p[ARRAY_SIZE(sizes)];

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		a[i] = alloc_request(sizes[i], 0);
		ASSERT_EQ(0, device_alloc(self->dev, &a[i]));
		p[i] = block_map(a[i].fd, a[i].capacity);
		ASSERT_NE(MAP_FAILED, (void *)p[i]);
		ASSERT_EQ(a[i].capacity, first_nonzero(p[i], a[i].capacity));
		fill(p[i], a[i].capacity, 100 + i, 0);
		ASSERT_EQ(EINVAL, map_errno(a[i].fd, a[i].capacity + 1, PROT_READ, MAP_SHARED, 0));
		/* The size asked for, rounded to pages by mmap. */
		ASSERT_EQ(0, map_errno(a[i].fd, sizes[i], PROT_READ, MAP_SHARED, 0));
	}
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		ASSERT_TRUE(filled(p[i], a[i].capacity, 100 + i, 0));
		munmap(p[i], a[i].capacity);
		close(a[i].fd);
	}
}

/* Advice, migration and compaction on parts of frames: the data stays. */
TEST_F_TIMEOUT(block, advice_on_parts, 120)
{
	static const struct {
		int advice;
		const char *name;
	} advices[] = {
		{MADV_NORMAL, "NORMAL"},
		{MADV_RANDOM, "RANDOM"},
		{MADV_SEQUENTIAL, "SEQUENTIAL"},
		{MADV_WILLNEED, "WILLNEED"},
		{MADV_DONTNEED, "DONTNEED"},
		{MADV_FREE, "FREE"},
		{MADV_REMOVE, "REMOVE"},
		{MADV_MERGEABLE, "MERGEABLE"},
		{MADV_UNMERGEABLE, "UNMERGEABLE"},
		{MADV_NOHUGEPAGE, "NOHUGEPAGE"},
		{MADV_HUGEPAGE, "HUGEPAGE"},
		{MADV_COLD, "COLD"},
		{MADV_PAGEOUT, "PAGEOUT"},
		{MADV_POPULATE_READ, "POPULATE_READ"},
		{MADV_POPULATE_WRITE, "POPULATE_WRITE"},
		{24, "DONTNEED_LOCKED"},
		{25, "COLLAPSE"},
	};
	const size_t page = page_bytes();
	const size_t parts[][2] = {
		{0, page},
		{7 * page, 3 * page},
		{self->frame / 2, self->frame},
		{0, self->len},
	};

	stamp(self->p, self->len, 10);
	for (size_t i = 0; i < ARRAY_SIZE(advices); i++) {
		for (size_t k = 0; k < ARRAY_SIZE(parts); k++) {
			madvise(self->p + parts[k][0], parts[k][1], advices[i].advice);
			ASSERT_TRUE(stamped(self->p, self->len, 10))
			{
				TH_LOG("after %s", advices[i].name);
			}
		}
		ASSERT_EQ(0, log_count_bad(self->log))
		{
			TH_LOG("after %s", advices[i].name);
		}
	}
}

TEST_F(block, migration_on_parts)
{
	unsigned long mask = 1;
	void *pages[2] = {self->p, self->p + page_bytes()};
	int nodes[2] = {0, 0}, status[2];

	stamp(self->p, self->len, 11);
	syscall(SYS_move_pages, 0, 2UL, pages, nodes, status, 0);
	ASSERT_EQ(0, syscall(SYS_move_pages, 0, 2UL, pages, NULL, status, 0));
	ASSERT_LE(0, status[0]);
	syscall(SYS_mbind, self->p, page_bytes(), MPOL_BIND, &mask, 8UL,
		(unsigned long)(MPOL_MF_MOVE | MPOL_MF_STRICT));
	syscall(SYS_mbind, self->p, self->len, MPOL_BIND, &mask, 8UL,
		(unsigned long)MPOL_MF_MOVE_ALL);
	ASSERT_EQ(0, text_write("/proc/sys/vm/compact_memory", "1"));
	ASSERT_TRUE(stamped(self->p, self->len, 11));
}

TEST_F(block, mlock)
{
	ASSERT_EQ(0, mlock(self->p, self->len));
	stamp(self->p, self->len, 12);
	ASSERT_EQ(0, munlock(self->p, self->len));
	ASSERT_TRUE(stamped(self->p, self->len, 12));
}

/* MAP_POPULATE maps all at once, huge. */
TEST_F(block, populate)
{
	char *p = mmap(NULL, self->len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, self->fd,
		       0);

	ASSERT_NE(MAP_FAILED, (void *)p);
	ASSERT_EQ((long long)self->len, smaps_bytes(p, "FilePmdMapped"));
	munmap(p, self->len);
}

#define KPF_SLAB (1ULL << 7)

/* Marks frames whose first page is a slab's now. How many. */
static unsigned int frames_of_slabs(bool *marks, __u64 frames, __u64 frame)
{
	int flags = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
	unsigned int count = 0;

	for (__u64 i = 0; i < frames; i++) {
		__u64 now = 0;

		marks[i] = pread(flags, &now, sizeof(now), (off_t)(i * frame / page_bytes() * 8)) ==
				   sizeof(now) &&
			   now & KPF_SLAB;
		count += marks[i];
	}
	close(flags);
	return count;
}

/* Has the kernel fill memory with small objects, and free them: names that are not there. */
static void remember_names(struct __test_metadata *_metadata, bool *slab, __u64 frames, __u64 frame)
{
	const char *dir = getenv("BINPOOL_TEST_DIR");

	for (int i = 0; i < 150000; i++) {
		char path[128];

		snprintf(path, sizeof(path), "%s/no-file-of-this-name-%d", dir ?: "/var/tmp", i);
		ASSERT_NE(0, access(path, F_OK));
	}
	ASSERT_LT(8, frames_of_slabs(slab, frames, frame));
	ASSERT_EQ(0, text_write(DROP_CACHES, "2"));
}

/*
 * Still huge where the kernel had small objects before: what is left of them in a frame's
 * first page can cost the huge mapping, since 6.12.
 */
TEST_F_TIMEOUT(pool, huge_on_pages_with_a_past, 300)
{
	const __u64 frames = 2 * meminfo_bytes("MemTotal") / self->frame, len = 64 * self->frame;
	bool *slab = calloc(frames, sizeof(*slab));
	unsigned int again = 0;
	int fds[24], nr = 0;

	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_write("max_bytes", meminfo_bytes("MemTotal")));
	/* Objects that stay may by chance lie in each of those frames. */
	for (int pass = 0; !again && pass < 4; pass++) {
		while (nr)
			close(fds[--nr]);
		ASSERT_EQ(0, attr_write("free_held", 1));
		remember_names(_metadata, slab, frames, self->frame);
		while (!again && nr < (int)ARRAY_SIZE(fds)) {
			char *p;

			fds[nr] = block_alloc(self->dev, len);
			ASSERT_LE(0, fds[nr]);
			p = block_map(fds[nr++], len);
			ASSERT_NE(MAP_FAILED, (void *)p);
			for (__u64 o = 0; o < len; o += self->frame) {
				p[o] = 1;
				again += slab[physical(p + o) / self->frame % frames];
			}
			ASSERT_EQ((long long)len, smaps_bytes(p, "FilePmdMapped"));
			munmap(p, len);
		}
		TH_LOG("%u after %d blocks", again, nr);
	}
	/* Else this tested nothing. */
	ASSERT_LT(0, again);
	while (nr)
		close(fds[--nr]);
	free(slab);
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_write("max_bytes", self->info.max_bytes));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
