// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks pinned for long by a driver of ours (tests/modules/pinner.c), as those of GPUs
 * do it: what it is given, that it stays that memory whatever the process does, and
 * that nobody else has it before the pin is gone.
 */
#include <pthread.h>
#include <sys/prctl.h>

#include "binpool_test.h"
#include "module.h"
#include "pinner.h"
#include "share.h"

#define FRAMES	  4
#define SCATTERED 6 /* frames of a block that has a run for each */

/* Limbo is looked at once a second at least; the rest is for machines that are slow. */
#define LIMBO_MS 3000

static const __u32 ways_to_pin[] = {0, PINNER_FAST};

FIXTURE(longterm)
{
	int dev;
	int log;
	int fds;
	__u64 frame;
	struct binpool_info info;
	long long dropped;
};

FIXTURE_SETUP(longterm)
{
	int ret;

	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &self->info));
	self->frame = self->info.frame_bytes;
	self->fds = count_fds();
	self->dropped = attr_read("pinned_dropped_bytes");
	if (!getenv("BINPOOL_KO"))
		SKIP(return, "BINPOOL_KO does not name the module's file");
	/* A test that failed ended with its devices open, and left it there. */
	syscall(SYS_delete_module, "pinner", O_NONBLOCK);
	ret = module_load_beside(PINNER_KO);
	ASSERT_EQ(0, ret)
	{
		TH_LOG("pinner.ko beside the module: %s", strerror(-ret));
	}
}

FIXTURE_TEARDOWN(longterm)
{
	struct binpool_info info;

	if (_metadata->exit_code == KSFT_FAIL) {
		syscall(SYS_delete_module, "pinner", O_NONBLOCK);
		return;
	}
	EXPECT_EQ(self->fds, count_fds());
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, LIMBO_MS));
	EXPECT_TRUE(attr_becomes("active_bytes", self->info.active_bytes, SOON_MS));
	EXPECT_EQ(attr_read("managed_bytes"), attr_read("held_bytes"));
	EXPECT_EQ(self->dropped, attr_read("pinned_dropped_bytes"));
	EXPECT_EQ(0, device_info(self->dev, &info));
	EXPECT_EQ(0, info.opener_bytes);
	/* No session is left, not even a killed process's. */
	EXPECT_EQ(0, syscall(SYS_delete_module, "pinner", O_NONBLOCK));
	close(self->dev);
	EXPECT_EQ(0, log_count_bad(self->log));
}

enum shape { CONTIG, ORDINARY, SCATTER, SHAPES };

static int block_of(int dev, enum shape shape, __u64 frame, __u64 *len)
{
	struct binpool_alloc a = alloc_request(FRAMES * frame, BINPOOL_ALLOC_CONTIG);
	int ret;

	*len = (shape == SCATTER ? SCATTERED : FRAMES) * frame;
	if (shape == SCATTER)
		return block_scattered(dev, frame, SCATTERED);
	if (shape == ORDINARY)
		return block_alloc(dev, *len);
	ret = device_alloc(dev, &a);
	return ret ? ret : a.fd;
}

/* A contiguous block is one entry, and others have no more than the runs they are told with. */
TEST_F_TIMEOUT(longterm, whole_block, 60)
{
	for (enum shape shape = 0; shape < SHAPES; shape++) {
		__u64 len;
		int fd = block_of(self->dev, shape, self->frame, &len), s = pinner_open();
		struct binpool_query q;
		char *p;

		ASSERT_LE(0, fd);
		ASSERT_EQ(0, block_query(fd, &q));
		p = block_map(fd, len);
		for (size_t i = 0; i < ARRAY_SIZE(ways_to_pin); i++) {
			struct pinner_pin told;

			ASSERT_EQ(0, pin(s, p, len, ways_to_pin[i], 0, &told));
			ASSERT_TRUE(told_right(s, &told, p, len / page_bytes()));
			ASSERT_GE(q.runs, told.runs);
			ASSERT_EQ(told.runs, told.dma_entries);
			ASSERT_EQ(len / self->frame, told.frames);
			ASSERT_LE(q.run_max_bytes, told.run_max * page_bytes());
			if (shape == CONTIG) {
				ASSERT_EQ(1, told.dma_entries);
			}
			if (shape == SCATTER) {
				ASSERT_EQ(SCATTERED, told.dma_entries);
			}
			ASSERT_EQ(0, unpin(s));
		}
		munmap(p, len);
		close(s);
		close(fd);
	}
}

/* What a device takes at most bounds the entries, and nothing else does. */
TEST_F_TIMEOUT(longterm, entries, 60)
{
	const __u64 page = page_bytes();
	const struct {
		__u64 max_seg, longest; /* in pages */
	} cases[] = {
		{page, 1},
		{page + 904, 1},
		{16 * page, 16},
		{self->frame - 1, self->frame / page - 1},
		{self->frame, self->frame / page},
		{2 * self->frame + 1, 2 * self->frame / page},
		{UINT32_MAX, UINT32_MAX / page},
	};

	for (enum shape shape = 0; shape < SHAPES; shape++) {
		__u64 len;
		int fd = block_of(self->dev, shape, self->frame, &len), s = pinner_open();
		char *p = block_map(fd, len);

		ASSERT_NE(MAP_FAILED, (void *)p);
		for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
			struct pinner_pin told;

			ASSERT_EQ(0, pin(s, p, len, 0, (__u32)cases[i].max_seg, &told));
			ASSERT_TRUE(told_right(s, &told, p, cases[i].longest))
			{
				TH_LOG("entries of at most %llu bytes: %u", cases[i].max_seg,
				       told.dma_entries);
			}
			ASSERT_EQ(0, unpin(s));
		}
		munmap(p, len);
		close(s);
		close(fd);
	}
}

/* From any byte to any byte: these and no others are the device's. */
TEST_F_TIMEOUT(longterm, odd_parts, 60)
{
	const __u64 len = 4 * self->frame, frame = self->frame, page = page_bytes();
	const struct {
		__u64 at, bytes;
	} parts[] = {
		{1, 1},
		{page - 1, 2},
		{frame - 1, 2},
		{3 * page + 7, frame + 11},
		{frame / 2 + page / 2 + 1, 2 * frame},
		{len - 1, 1},
		{1, len - 2},
	};
	int fd = block_alloc(self->dev, len), s = pinner_open();
	char *p = block_map(fd, len), *buf = malloc(len);

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		char *part = p + parts[i].at;
		struct pinner_pin told;

		memset(p, 0x5a, len);
		memset(buf, (int)i, parts[i].bytes);
		ASSERT_EQ(0, pin(s, part, parts[i].bytes, ways_to_pin[i % 2], 0, &told));
		ASSERT_TRUE(told_right(s, &told, part, len / page));
		ASSERT_EQ(0, device_copy(s, i % 2 ? PINNER_BY_DMA : PINNER_BY_PAGES, buf,
					 parts[i].bytes, 0, true));
		ASSERT_EQ(0, memcmp(part, buf, parts[i].bytes));
		ASSERT_EQ(0x5a, part[-1]);
		if (parts[i].at + parts[i].bytes < len) {
			ASSERT_EQ(0x5a, part[parts[i].bytes]);
		}
		ASSERT_EQ(-ERANGE, device_copy(s, PINNER_BY_PAGES, buf, parts[i].bytes, 1, false));
		ASSERT_EQ(0, unpin(s));
	}
	free(buf);
	munmap(p, len);
	close(s);
	close(fd);
}

/* What the driver, the device and the process write, the others read. */
TEST_F(longterm, same_memory)
{
	__u64 len;
	int fd = block_of(self->dev, SCATTER, self->frame, &len), s = pinner_open();
	char *p = block_map(fd, len);

	ASSERT_EQ(0, pin(s, p, len, 0, 0, NULL));
	fill(p, len, 1, 0);
	ASSERT_TRUE(device_filled(s, PINNER_BY_PAGES, len, 1));
	ASSERT_TRUE(device_filled(s, PINNER_BY_DMA, len, 1));
	ASSERT_TRUE(device_fill(s, PINNER_BY_PAGES, len, 2));
	ASSERT_TRUE(filled(p, len, 2, 0));
	ASSERT_TRUE(device_filled(s, PINNER_BY_DMA, len, 2));
	ASSERT_TRUE(device_fill(s, PINNER_BY_DMA, len, 3));
	ASSERT_TRUE(filled(p, len, 3, 0));
	ASSERT_EQ(0, unpin(s));
	ASSERT_TRUE(filled(p, len, 3, 0));
	munmap(p, len);
	close(s);
	close(fd);
}

/* Whatever becomes of the mapping, and whoever writes: it is the same memory. */
TEST_F_TIMEOUT(longterm, stays_in_place, 60)
{
	const __u64 len = 4 * self->frame, page = page_bytes();
	int fd = block_alloc(self->dev, len), s = pinner_open();
	char *p = block_map(fd, len), *room, *q;
	struct pinner_pin told;
	pid_t pid;

	fill(p, len, 1, 0);
	ASSERT_EQ(0, pin(s, p, len, 0, 0, &told));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		fill(p, len, 2, 0);
		_exit(device_filled(s, PINNER_BY_DMA, len, 2) ? 0 : 1);
	}
	ASSERT_EQ(0, child_status(pid));
	ASSERT_TRUE(filled(p, len, 2, 0));
	ASSERT_TRUE(device_filled(s, PINNER_BY_PAGES, len, 2));
	ASSERT_TRUE(told_right(s, &told, p, len / page));

	/* Gone from the page tables, and there again. */
	ASSERT_EQ(0, madvise(p, len, MADV_DONTNEED));
	ASSERT_TRUE(device_fill(s, PINNER_BY_DMA, len, 3));
	ASSERT_TRUE(filled(p, len, 3, 0));
	ASSERT_TRUE(told_right(s, &told, p, len / page));

	/* Elsewhere, where it is not a huge page any more. */
	room = mmap(NULL, len + 2 * self->frame, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	q = mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, room + page);
	ASSERT_EQ((void *)(room + page), q);
	ASSERT_TRUE(filled(q, len, 3, 0));
	fill(q, len, 4, 0);
	ASSERT_TRUE(device_filled(s, PINNER_BY_DMA, len, 4));
	ASSERT_TRUE(told_right(s, &told, q, len / page));

	/* In pieces. */
	ASSERT_EQ(0, mprotect(q + page, page, PROT_READ));
	ASSERT_EQ(0, munmap(q + 3 * page, page));
	ASSERT_EQ(0, mprotect(q + page, page, PROT_READ | PROT_WRITE));
	ASSERT_TRUE(device_fill(s, PINNER_BY_DMA, len, 5));
	ASSERT_TRUE(filled(q, 3 * page, 5, 0));
	ASSERT_TRUE(filled(q + 4 * page, len - 4 * page, 5, 4 * page));

	/* Nowhere, and mapped again. */
	munmap(room, len + 2 * self->frame);
	ASSERT_TRUE(device_fill(s, PINNER_BY_PAGES, len, 6));
	p = block_map(fd, len);
	ASSERT_TRUE(filled(p, len, 6, 0));
	ASSERT_TRUE(told_right(s, &told, p, len / page));
	munmap(p, len);
	ASSERT_EQ(0, attr_read("limbo_bytes"));
	ASSERT_EQ(0, unpin(s));
	close(s);
	close(fd);
}

/*
 * The block is closed first: what is pinned of it, and that only, waits in limbo. It is
 * nobody's, its bytes stay, and soon after it is unpinned it is free and clean.
 */
TEST_F_TIMEOUT(longterm, after_the_block, 60)
{
	const __u64 len = FRAMES * self->frame, page = page_bytes();
	const struct {
		__u64 at, bytes, limbo; /* frames */
	} parts[] = {
		{0, len, FRAMES},
		{self->frame - page, 2 * page, 2},
		{3 * self->frame + page, 8, 1},
	};
	char *p;
	int fd;

	for (size_t i = 0; i < 2 * ARRAY_SIZE(parts); i++) {
		const __u64 at = parts[i / 2].at, bytes = parts[i / 2].bytes;
		const long long limbo = (long long)(parts[i / 2].limbo * self->frame);
		struct binpool_info info;
		int s = pinner_open(), others[2 * FRAMES];
		long long managed;

		fd = block_alloc(self->dev, len);
		p = block_map(fd, len);
		ASSERT_EQ(0, pin(s, p + at, bytes, ways_to_pin[i % 2], 0, NULL));
		ASSERT_TRUE(device_fill(s, PINNER_BY_PAGES, bytes, 1));
		managed = attr_read("managed_bytes");
		if (i % 2)
			close(fd);
		munmap(p, len);
		if (!(i % 2))
			close(fd);
		ASSERT_EQ(limbo, attr_read("limbo_bytes"));
		ASSERT_EQ((long long)self->info.active_bytes, attr_read("active_bytes"));
		ASSERT_EQ(managed, attr_read("managed_bytes"));
		ASSERT_EQ(0, device_info(self->dev, &info));
		ASSERT_EQ(limbo, (long long)info.opener_bytes);

		for (size_t j = 0; j < ARRAY_SIZE(others); j++) {
			others[j] = block_alloc(self->dev, self->frame);
			p = block_map(others[j], self->frame);
			ASSERT_NE(MAP_FAILED, (void *)p);
			ASSERT_EQ(self->frame, first_nonzero(p, self->frame));
			memset(p, 0xff, self->frame);
			munmap(p, self->frame);
		}
		ASSERT_EQ(0, attr_write("free_held", 1));
		ASSERT_EQ(limbo, attr_read("limbo_bytes"));
		ASSERT_TRUE(device_filled(s, PINNER_BY_DMA, bytes, 1));
		ASSERT_TRUE(device_fill(s, PINNER_BY_DMA, bytes, 2));
		for (size_t j = 0; j < ARRAY_SIZE(others); j++)
			close(others[j]);
		ASSERT_EQ(limbo, attr_read("limbo_bytes"));

		/* Let go of, or closed. */
		if (i % 2) {
			ASSERT_EQ(0, unpin(s));
		}
		close(s);
		ASSERT_TRUE(attr_becomes("limbo_bytes", 0, LIMBO_MS));
		ASSERT_EQ(0, device_info(self->dev, &info));
		ASSERT_EQ(0, info.opener_bytes);
		ASSERT_TRUE(pool_empties());
	}
	fd = block_alloc(self->dev, len);
	p = block_map(fd, len);
	ASSERT_EQ(len, first_nonzero(p, len));
	munmap(p, len);
	close(fd);
}

/* Processes that are killed with what they pinned: all of it comes back. */
TEST_F_TIMEOUT(longterm, pinned_and_killed, 60)
{
	const __u64 len = FRAMES * self->frame;

	ASSERT_TRUE(pool_empties());
	for (int i = 0; i < 8; i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			int s = i & 1 ? pinner_open() : -1, fd = block_alloc(self->dev, len);
			char *p = block_map(fd, len);

			if (!(i & 1))
				s = pinner_open();
			if (first_nonzero(p, len) != len)
				_exit(1);
			if (pin(s, p, len, 0, 0, NULL) || !device_fill(s, PINNER_BY_DMA, len, 1))
				_exit(2);
			if (i & 2)
				munmap(p, len);
			if (i & 4)
				close(fd);
			kill(getpid(), SIGKILL);
		}
		ASSERT_EQ(128 + SIGKILL, child_status(pid));
		ASSERT_TRUE(attr_becomes("active_bytes", self->info.active_bytes, SOON_MS));
		ASSERT_TRUE(attr_becomes("limbo_bytes", 0, LIMBO_MS));
		/* What is just being cleaned is not there for the next one. */
		ASSERT_TRUE(cleaning_ends());
		ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	}
}

/* A device that writes gets no mapping that may not be written, however it came about. */
TEST_F(longterm, read_only)
{
	const __u64 len = 2 * self->frame;
	int fd = block_alloc(self->dev, len), s = pinner_open();
	int buf = block_export(fd, BINPOOL_EXPORT_READ_ONLY);
	char *p = block_map(fd, len), byte = 0;

	fill(p, len, 1, 0);
	for (size_t i = 0; i < 2 * ARRAY_SIZE(ways_to_pin); i++) {
		const int file = buf < 0 || i % 2 ? fd : buf;
		const __u32 way = ways_to_pin[i / 2];
		char *q = mmap(NULL, len, PROT_READ, MAP_SHARED, file, 0);
		struct pinner_pin told;

		ASSERT_NE(MAP_FAILED, (void *)q);
		ASSERT_EQ(-EFAULT, pin(s, q, len, way, 0, NULL));
		ASSERT_EQ(-ENOENT, unpin(s));
		/* One that reads does, and it is the block's memory. */
		ASSERT_EQ(0, pin(s, q, len, way | PINNER_READ, 0, &told));
		ASSERT_TRUE(told_right(s, &told, p, len / page_bytes()));
		ASSERT_TRUE(device_filled(s, PINNER_BY_DMA, len, 1));
		ASSERT_EQ(-EACCES, device_copy(s, PINNER_BY_PAGES, &byte, 1, 0, true));
		ASSERT_EQ(0, unpin(s));
		munmap(q, len);
	}
	munmap(p, len);
	close(s);
	close(buf);
	close(fd);
}

/* A page fault of a frame brings all of its pages, one of a small page only that. */
TEST_F(longterm, huge_pages_fault_less)
{
	const __u64 len = FRAMES * self->frame, page = page_bytes();
	int fd = block_alloc(self->dev, len), s = pinner_open();
	struct binpool_query huge, small;
	char *p = block_map(fd, len), *room;

	ASSERT_EQ(0, pin(s, p, len, 0, 0, NULL));
	ASSERT_EQ(0, unpin(s));
	ASSERT_EQ(0, block_query(fd, &huge));
	munmap(p, len);
	if (access("/sys/kernel/mm/transparent_hugepage", F_OK)) {
		close(s);
		close(fd);
		SKIP(return, "this kernel maps no file by huge pages");
	}
	ASSERT_EQ(FRAMES, huge.huge_faults);
	ASSERT_EQ(0, huge.small_faults);

	/* Where addresses don't fit. */
	room = mmap(NULL, len + 2 * self->frame, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	p = (char *)((uintptr_t)(room + self->frame) / self->frame * self->frame) + page;
	ASSERT_EQ((void *)p, mmap(p, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0));
	ASSERT_EQ(0, pin(s, p, len, 0, 0, NULL));
	ASSERT_EQ(0, block_query(fd, &small));
	ASSERT_EQ(FRAMES, small.huge_faults);
	ASSERT_LT(FRAMES, small.small_faults);
	ASSERT_EQ(0, unpin(s));
	munmap(room, len + 2 * self->frame);
	close(s);
	close(fd);
}

/* The driver itself: what is wrong is refused, and then nothing is pinned. */
TEST_F(longterm, bad_requests)
{
	const __u64 len = 4 * self->frame, page = page_bytes();
	int fd = block_alloc(self->dev, len), s = pinner_open();
	/* Behind the block there is nothing. */
	char *room = mmap(NULL, len + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *p = mmap(room, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	char byte = 0;
	const struct {
		const void *address;
		__u64 bytes;
		__u32 flags, max_seg;
		int error;
	} cases[] = {
		{p, 0, 0, 0, -EINVAL},
		{p, len, 4, 0, -EINVAL},
		{p, len, 0, 1, -EINVAL},
		{p, len, 0, (__u32)page - 1, -EINVAL},
		{p, ~0ULL, 0, 0, -EINVAL},
		{p, 1ULL << 62, 0, 0, -EINVAL},
		{NULL, page, 0, 0, -EFAULT},
		{(void *)~0UL, 1, 0, 0, -EFAULT},
		{(void *)~0UL, 2, 0, 0, -EFAULT},
		{(void *)(~0UL << 47), page, 0, 0, -EFAULT},
		{p + len, page, 0, 0, -EFAULT},
		{p + page, len, 0, 0, -EFAULT},
	};
	struct pinner_entry e = {.index = 1};
	struct pinner_pin *at_end;

	ASSERT_NE(MAP_FAILED, (void *)p);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(ways_to_pin); j++) {
			const void *address = cases[i].address;

			ASSERT_EQ(cases[i].error,
				  pin(s, address, cases[i].bytes, cases[i].flags | ways_to_pin[j],
				      cases[i].max_seg, NULL))
			{
				TH_LOG("case %zu", i);
			}
			ASSERT_EQ(-ENOENT, unpin(s));
		}
	}
	/* The answer has no place to go: nobody knows that it is pinned, and it is not. */
	at_end = (void *)(p + len - sizeof(*at_end));
	*at_end = (struct pinner_pin){.address = (uintptr_t)p, .bytes = page};
	ASSERT_EQ(0, mprotect(p + len - page, page, PROT_READ));
	ASSERT_EQ(-EFAULT, request(s, PINNER_PIN, at_end));
	ASSERT_EQ(-EFAULT, request(s, PINNER_PIN, (char *)at_end + 8));
	ASSERT_EQ(-EFAULT, request(s, PINNER_PIN, NULL));
	ASSERT_EQ(-ENOENT, unpin(s));
	ASSERT_EQ(-ENOENT, request(s, PINNER_ENTRY, &e));
	ASSERT_EQ(-ENOENT, device_copy(s, PINNER_BY_PAGES, &byte, 1, 0, false));
	ASSERT_EQ(-ENOTTY, request(s, _IO(0xBD, 9), NULL));

	ASSERT_EQ(0, pin(s, p, page, 0, 0, NULL));
	ASSERT_EQ(-EBUSY, pin(s, p, page, 0, 0, NULL));
	ASSERT_EQ(-ERANGE, request(s, PINNER_ENTRY, &e));
	ASSERT_EQ(-EFAULT, request(s, PINNER_ENTRY, NULL));
	ASSERT_EQ(-EINVAL, device_copy(s, PINNER_BY_DMA + 1, &byte, 1, 0, false));
	for (enum pinner_way way = PINNER_BY_PAGES; way <= PINNER_BY_DMA; way++) {
		ASSERT_EQ(-ERANGE, device_copy(s, way, &byte, 1, page, false));
		ASSERT_EQ(-ERANGE, device_copy(s, way, &byte, 2, page - 1, false));
		ASSERT_EQ(-ERANGE, device_copy(s, way, &byte, ~0ULL, 1, false));
		ASSERT_EQ(-ERANGE, device_copy(s, way, &byte, 1, ~0ULL, false));
		ASSERT_EQ(-EFAULT, device_copy(s, way, NULL, 1, 0, false));
		ASSERT_EQ(-EFAULT, device_copy(s, way, NULL, 1, 0, true));
		ASSERT_EQ(0, device_copy(s, way, NULL, 0, page, false));
	}
	munmap(room, len + page);
	close(fd);
	ASSERT_EQ((long long)self->frame, attr_read("limbo_bytes"));
	close(s);
}

static void *unmap_often(void *arg)
{
	char **range = arg;

	for (;;) {
		madvise(range[0], (size_t)(range[1] - range[0]), MADV_DONTNEED);
		sched_yield();
	}
	return NULL;
}

/* Pinned, used and let go of by several at once, while it is unmapped under them; and killed. */
TEST_F_TIMEOUT(longterm, many_at_once, 60)
{
	const __u64 len = 2 * self->frame;
	int shared = block_alloc(self->dev, len);

	for (unsigned int round = 0; round < 4; round++) {
		pid_t pids[4];

		for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
			char *p, *range[2];
			pthread_t thread;
			int own;

			pids[i] = fork();
			ASSERT_LE(0, pids[i]);
			if (pids[i])
				continue;
			own = i < 2 ? shared : block_alloc(self->dev, len);
			p = block_map(own, len);
			range[0] = p;
			range[1] = p + len;
			if (pthread_create(&thread, NULL, unmap_often, range))
				_exit(1);
			for (__u64 n = 0;; n++) {
				__u64 at = n * page_bytes() % len, bytes = len - at;
				int s = pinner_open();

				if (s < 0 || pin(s, p + at, bytes, ways_to_pin[n % 2], 0, NULL) ||
				    device_copy(s, PINNER_BY_DMA, &n, sizeof(n), bytes - 8, true))
					_exit(2);
				/* Nobody else writes to a block of one's own. */
				if (i >= 2 && memcmp(p + len - 8, &n, 8))
					_exit(3);
				close(s);
			}
		}
		sleep_ms(100 + 13 * round);
		for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
			kill(pids[i], SIGKILL);
			ASSERT_EQ(128 + SIGKILL, child_status(pids[i]));
		}
	}
	close(shared);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
