// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks in the hands of a driver of ours (tests/modules/importer.c), which tells what
 * a driver is given and reads and writes there.
 */
#include <linux/dma-buf.h>

#include "../modules/importer.h"
#include "binpool_test.h"
#include "module.h"
#include "share.h"

#define BOTH_WAYS   0 /* enum dma_data_direction */
#define TO_DEVICE   1
#define FROM_DEVICE 2

#define LONGEST_ENTRY 0xffffffffU
#define SCATTERED     12 /* frames of a block that has a run for each */

FIXTURE(import)
{
	int dev;
	int log;
	int fds;
	bool loaded;
	__u64 frame;
	struct binpool_info info;
	struct counters before;
};

FIXTURE_SETUP(import)
{
	int ret;

	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &self->info));
	self->frame = self->info.frame_bytes;
	self->fds = count_fds();
	self->before = counters_read();
	if (!(self->info.features & BINPOOL_FEATURE_DMABUF))
		SKIP(return, "this kernel has no dma-bufs");
	if (!getenv("BINPOOL_KO"))
		SKIP(return, "BINPOOL_KO does not name the module's file");
	/* A test that failed ended with its devices open, and left it there. */
	syscall(SYS_delete_module, "importer", O_NONBLOCK);
	ret = module_load_beside(IMPORTER_KO);
	ASSERT_EQ(0, ret)
	{
		TH_LOG("importer.ko beside the module: %s", strerror(-ret));
	}
	self->loaded = true;
}

FIXTURE_TEARDOWN(import)
{
	if (_metadata->exit_code == KSFT_FAIL) {
		syscall(SYS_delete_module, "importer", O_NONBLOCK);
		return;
	}
	EXPECT_EQ(self->fds, count_fds());
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	EXPECT_TRUE(attr_becomes("active_bytes", (__u64)self->before.v[1], SOON_MS));
	if (self->loaded) {
		EXPECT_EQ(0, syscall(SYS_delete_module, "importer", O_NONBLOCK));
	}
	close(self->dev);
	EXPECT_EQ(0, log_count_bad(self->log));
}

#define ASSERT_ACTIVE(bytes)                                                                       \
	ASSERT_EQ(self->before.v[1] + (long long)(bytes), attr_read("active_bytes"))

/* A device of the importer's, attached to @buf. */
static int device_attach(int buf, __u32 max_seg, __u32 dma_bits)
{
	struct importer_attach a = {.fd = buf, .max_seg = max_seg, .dma_bits = dma_bits};
	int s = open("/dev/" IMPORTER_NAME, O_RDWR | O_CLOEXEC), ret;

	if (s < 0)
		return -errno;
	ret = request(s, IMPORTER_ATTACH, &a);
	if (ret)
		close(s);
	return ret ? ret : s;
}

/* How many entries the device has got, or -errno. */
static int device_map(int s, __u32 slot, __u32 dir)
{
	struct importer_map m = {.slot = slot, .dir = dir};
	int ret = request(s, IMPORTER_MAP, &m);

	return ret ? ret : (int)m.dma_entries;
}

static int device_unmap(int s, __u32 slot)
{
	return request(s, IMPORTER_UNMAP, (void *)(uintptr_t)slot);
}

static int device_copy(int s, enum importer_way way, __u32 slot, void *buf, __u64 len, __u64 offset,
		       bool write)
{
	struct importer_copy c = {
		.offset = offset,
		.bytes = len,
		.buf = (uintptr_t)buf,
		.way = way,
		.slot = slot,
		.write = write,
	};

	return request(s, IMPORTER_COPY, &c);
}

/* Writes a pattern there, or says whether it is there. */
static bool device_fill(int s, enum importer_way way, __u32 slot, __u64 len, __u64 seed)
{
	void *buf = malloc(len);
	bool done;

	fill(buf, len, seed, 0);
	done = !device_copy(s, way, slot, buf, len, 0, true);
	free(buf);
	return done;
}

static bool device_filled(int s, enum importer_way way, __u32 slot, __u64 len, __u64 seed)
{
	void *buf = malloc(len);
	bool same = !device_copy(s, way, slot, buf, len, 0, false) && filled(buf, len, seed, 0);

	free(buf);
	return same;
}

static int sync_access(int fd, __u64 flags)
{
	struct dma_buf_sync sync = {.flags = flags};

	return request(fd, DMA_BUF_IOCTL_SYNC, &sync);
}

/*
 * Whether the entries of a mapping are the block's memory, in order, none longer
 * than @longest, none that goes beyond a run, and no more of them than that needs.
 */
static bool entries_right(int s, int nr, const char *map, __u64 len, __u64 frame, __u64 longest)
{
	__u64 at = 0, needed = 0, end;

	for (__u64 run = 0; run < len; run = end) {
		end = run + frame;
		while (end < len && physical(map + end) == physical(map + run) + end - run)
			end += frame;
		needed += (end - run + longest - 1) / longest;
	}
	for (int i = 0; i < nr; i++) {
		struct importer_entry e = {.index = (__u32)i};

		if (request(s, IMPORTER_ENTRY, &e) || !e.bytes || e.bytes > longest ||
		    at + e.bytes > len)
			return false;
		for (__u64 o = 0; o < e.bytes; o += page_bytes()) {
			if (physical(map + at + o) != e.address + o)
				return false;
		}
		at += e.bytes;
	}
	return at == len && (__u64)nr == needed;
}

/* Entries are runs where the device takes them so long, and else as long as it takes. */
TEST_F_TIMEOUT(import, entries, 120)
{
	const struct {
		__u32 max_seg;
		__u64 longest;
	} cases[] = {
		{LONGEST_ENTRY, LONGEST_ENTRY - (self->frame - 1)},
		{0, 64 * KIB},
		{(__u32)page_bytes(), page_bytes()},
		{(__u32)page_bytes() + 904, page_bytes()},
		{(__u32)self->frame - 1, self->frame - page_bytes()},
		{(__u32)self->frame, self->frame},
		{(__u32)(3 * self->frame / 2), self->frame},
		{(__u32)(2 * self->frame + 1), 2 * self->frame},
	};
	const __u64 len = SCATTERED * self->frame;

	for (int scattered = 0; scattered < 2; scattered++) {
		int fd = scattered ? block_scattered(self->dev, self->frame, SCATTERED)
				   : block_alloc(self->dev, len);
		int buf = block_export(fd, 0);
		char *p = block_map(fd, len);
		struct binpool_query q;

		ASSERT_LE(0, buf);
		fill(p, len, 1, 0);
		ASSERT_EQ(0, block_query(fd, &q));
		if (scattered) {
			ASSERT_EQ(SCATTERED, q.runs);
		}
		for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
			int s = device_attach(buf, cases[i].max_seg, 64), nr;

			ASSERT_LE(0, s);
			nr = device_map(s, 0, BOTH_WAYS);
			ASSERT_LT(0, nr);
			if (cases[i].max_seg == LONGEST_ENTRY) {
				ASSERT_EQ((int)q.runs, nr);
			}
			ASSERT_TRUE(entries_right(s, nr, p, len, self->frame, cases[i].longest))
			{
				TH_LOG("entries of at most %u bytes, %u runs: %d", cases[i].max_seg,
				       q.runs, nr);
			}
			close(s);
		}
		munmap(p, len);
		close(buf);
		close(fd);
	}
}

/* How many mappings of the module's the kernel has in its own address space. */
static int kernel_mappings(void)
{
	FILE *f = fopen("/proc/vmallocinfo", "re");
	char line[512];
	int count = 0;

	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f))
		count += strstr(line, "[binpool]") && strstr(line, " vmap");
	fclose(f);
	return count;
}

/* What the device, the driver and the process write, the others read. */
TEST_F_TIMEOUT(import, same_bytes, 120)
{
	const __u64 len = SCATTERED * self->frame;
	const int mappings = kernel_mappings();

	ASSERT_LE(0, mappings);
	for (int scattered = 0; scattered < 2; scattered++) {
		int fd = scattered ? block_scattered(self->dev, self->frame, SCATTERED)
				   : block_alloc(self->dev, len);
		int buf = block_export(fd, 0), s = device_attach(buf, LONGEST_ENTRY, 64);
		char *p = block_map(buf, len);

		ASSERT_LE(0, s);
		ASSERT_LT(0, device_map(s, 0, BOTH_WAYS));
		ASSERT_EQ(0, request(s, IMPORTER_VMAP, NULL));
		ASSERT_EQ(mappings + 1, kernel_mappings());
		fill(p, len, 1, 0);
		ASSERT_TRUE(device_filled(s, IMPORTER_BY_DMA, 0, len, 1));
		ASSERT_TRUE(device_filled(s, IMPORTER_BY_VMAP, 0, len, 1));
		ASSERT_TRUE(device_fill(s, IMPORTER_BY_DMA, 0, len, 2));
		ASSERT_TRUE(filled(p, len, 2, 0));
		ASSERT_TRUE(device_filled(s, IMPORTER_BY_VMAP, 0, len, 2));
		ASSERT_TRUE(device_fill(s, IMPORTER_BY_VMAP, 0, len, 3));
		ASSERT_TRUE(filled(p, len, 3, 0));
		ASSERT_TRUE(device_filled(s, IMPORTER_BY_DMA, 0, len, 3));
		ASSERT_EQ(0, request(s, IMPORTER_VUNMAP, NULL));
		ASSERT_EQ(mappings, kernel_mappings());
		close(s);
		munmap(p, len);
		close(buf);
		close(fd);
	}
}

/* An importer alone keeps the block, until it lets go. */
TEST_F(import, importer_is_the_last)
{
	const __u64 len = 4 * self->frame;
	int fd = block_alloc(self->dev, len), buf = block_export(fd, 0);
	int s = device_attach(buf, 0, 64), other;
	char *p = block_map(fd, len);

	ASSERT_LE(0, s);
	fill(p, len, 1, 0);
	munmap(p, len);
	close(buf);
	close(fd);
	ASSERT_ACTIVE(len);
	/* Nobody else is given the frames. */
	other = block_alloc(self->dev, len);
	p = block_map(other, len);
	memset(p, 0xff, len);
	munmap(p, len);
	close(other);
	ASSERT_LT(0, device_map(s, 0, TO_DEVICE));
	ASSERT_TRUE(device_filled(s, IMPORTER_BY_DMA, 0, len, 1));
	ASSERT_EQ(0, device_unmap(s, 0));
	ASSERT_ACTIVE(len);
	ASSERT_EQ(0, request(s, IMPORTER_DETACH, NULL));
	ASSERT_ACTIVE(0);
	close(s);
}

/* Three devices, each with two mappings, let go in every order. */
TEST_F_TIMEOUT(import, any_order, 120)
{
	const __u64 len = 2 * self->frame;

	for (__u32 order = 0; order < 6; order++) {
		int fd = block_alloc(self->dev, len), buf = block_export(fd, 0), s[3];
		const __u32 first = order % 3, second = (first + 1 + order / 3) % 3;
		const __u32 last = 3 - first - second;
		char *p = block_map(buf, len);

		fill(p, len, 1, 0);
		for (int i = 0; i < 3; i++) {
			s[i] = device_attach(buf, i ? 0 : LONGEST_ENTRY, 64);
			ASSERT_LE(0, s[i]);
			ASSERT_LT(0, device_map(s[i], 0, TO_DEVICE));
			ASSERT_LT(0, device_map(s[i], 1, i ? FROM_DEVICE : BOTH_WAYS));
		}
		close(fd);
		close(buf);
		ASSERT_EQ(0, device_unmap(s[first], order % 2));
		ASSERT_TRUE(device_fill(s[last], IMPORTER_BY_DMA, 1, len, 2));
		ASSERT_TRUE(device_filled(s[first], IMPORTER_BY_DMA, !(order % 2), len, 2));
		ASSERT_EQ(0, device_unmap(s[first], !(order % 2)));
		ASSERT_EQ(0, request(s[first], IMPORTER_DETACH, NULL));
		ASSERT_TRUE(filled(p, len, 2, 0));
		close(s[second]);
		munmap(p, len);
		ASSERT_ACTIVE(len);
		ASSERT_TRUE(device_filled(s[last], IMPORTER_BY_DMA, 0, len, 2));
		close(s[last]);
		ASSERT_ACTIVE(0);
		close(s[first]);
	}
	/* A kernel that checks mappings shows its next complaint, too; see log_report_is_others().
	 */
	text_write("/sys/kernel/debug/dma-api/num_errors", "1");
}

/* A block of one frame above what 32 bits address, or -1. */
static int block_high(int dev, __u64 frame)
{
	int fds[64], high = -1;
	size_t n = 0;

	pool_empties();
	while (n < ARRAY_SIZE(fds) && high < 0) {
		char *p;

		fds[n] = block_alloc(dev, frame);
		p = block_map(fds[n], frame);
		*p = 1;
		if (physical(p) >= 1ULL << 32)
			high = fds[n];
		munmap(p, frame);
		n += high < 0;
	}
	while (n)
		close(fds[--n]);
	return high;
}

/* In use of the memory through which such devices are served; -errno where unknown. */
static long long bounce_slots(void)
{
	char text[32];
	int n = text_read("/sys/kernel/debug/swiotlb/io_tlb_used", text, sizeof(text));

	return n < 0 ? n : atoll(text);
}

/*
 * A device that cannot reach the block works on a copy: what it sees and what the
 * process sees is equal only after the brackets around the process's accesses.
 */
TEST_F(import, brackets_sync)
{
	const __u64 start = DMA_BUF_SYNC_START, end = DMA_BUF_SYNC_END, len = self->frame;
	long long slots = bounce_slots();
	int fd = block_high(self->dev, self->frame), buf, s;
	char *p;

	if (fd < 0)
		SKIP(return, "no memory above 4 GiB");
	buf = block_export(fd, 0);
	p = block_map(buf, len);
	fill(p, len, 1, 0);
	s = device_attach(buf, 0, 32);
	ASSERT_LE(0, s);
	ASSERT_LT(0, device_map(s, 0, BOTH_WAYS));
	ASSERT_TRUE(device_filled(s, IMPORTER_BY_DMA, 0, len, 1));

	/* The process writes. */
	ASSERT_EQ(0, sync_access(buf, start | DMA_BUF_SYNC_RW));
	fill(p, len, 2, 0);
	ASSERT_TRUE(device_filled(s, IMPORTER_BY_DMA, 0, len, 1));
	ASSERT_EQ(0, sync_access(buf, end | DMA_BUF_SYNC_RW));
	ASSERT_TRUE(device_filled(s, IMPORTER_BY_DMA, 0, len, 2));

	/* The device writes. */
	ASSERT_TRUE(device_fill(s, IMPORTER_BY_DMA, 0, len, 3));
	ASSERT_TRUE(filled(p, len, 2, 0));
	ASSERT_EQ(0, sync_access(buf, start | DMA_BUF_SYNC_READ));
	ASSERT_TRUE(filled(p, len, 3, 0));
	/* A process that only reads undoes nothing that the device does meanwhile. */
	ASSERT_TRUE(device_fill(s, IMPORTER_BY_DMA, 0, len, 4));
	ASSERT_EQ(0, sync_access(buf, end | DMA_BUF_SYNC_READ));
	ASSERT_EQ(0, sync_access(buf, start | DMA_BUF_SYNC_READ));
	ASSERT_TRUE(filled(p, len, 4, 0));
	/* What it wrote last is there when it lets go, without brackets. */
	ASSERT_TRUE(device_fill(s, IMPORTER_BY_DMA, 0, len, 8));
	ASSERT_EQ(0, device_unmap(s, 0));
	ASSERT_TRUE(filled(p, len, 8, 0));

	/* One way each, at once; each is synced for what it was mapped for. */
	fill(p, len, 5, 0);
	ASSERT_LT(0, device_map(s, 0, TO_DEVICE));
	ASSERT_LT(0, device_map(s, 1, FROM_DEVICE));
	ASSERT_TRUE(device_filled(s, IMPORTER_BY_DMA, 0, len, 5));
	fill(p, len, 6, 0);
	ASSERT_EQ(0, sync_access(buf, end | DMA_BUF_SYNC_WRITE));
	ASSERT_TRUE(device_filled(s, IMPORTER_BY_DMA, 0, len, 6));
	ASSERT_TRUE(device_fill(s, IMPORTER_BY_DMA, 1, len, 7));
	ASSERT_EQ(0, sync_access(buf, start | DMA_BUF_SYNC_READ));
	ASSERT_TRUE(filled(p, len, 7, 0));
	close(s);
	ASSERT_EQ(slots, bounce_slots());
	munmap(p, len);
	close(buf);
	close(fd);
}

/* A block that the device cannot have as a whole: nothing of it stays mapped. */
TEST_F(import, map_fails)
{
	const __u64 len = 512 * MIB;
	long long slots = bounce_slots();
	int fd = block_alloc(self->dev, len), buf = block_export(fd, 0), s, other;

	ASSERT_LE(0, buf);
	s = device_attach(buf, 0, 32);
	ASSERT_LE(0, s);
	for (int i = 0; i < 3; i++) {
		int ret = device_map(s, 0, BOTH_WAYS);

		if (ret > 0) {
			close(s);
			close(buf);
			close(fd);
			SKIP(return, "all of a large block is below 4 GiB");
		}
		ASSERT_TRUE(ret == -ENOMEM || ret == -EIO);
		ASSERT_EQ(slots, bounce_slots());
	}
	other = device_attach(buf, 0, 64);
	ASSERT_LT(0, device_map(other, 0, BOTH_WAYS));
	ASSERT_EQ(0, sync_access(buf, DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW));
	close(other);
	close(s);
	close(buf);
	close(fd);
}

/* Attaching, mapping and syncing of many at once, and their deaths at any point. */
TEST_F_TIMEOUT(import, many_at_once, 120)
{
	const __u64 len = 2 * self->frame;
	int fd = block_alloc(self->dev, len), buf = block_export(fd, 0);
	unsigned int seed = 1;

	for (int round = 0; round < 8; round++) {
		pid_t pids[4];

		for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
			pids[i] = fork();
			ASSERT_LE(0, pids[i]);
			if (pids[i])
				continue;
			while (i) {
				int s = device_attach(buf, i == 1 ? LONGEST_ENTRY : 0, 64);

				if (s < 0 || device_map(s, 0, BOTH_WAYS) <= 0 ||
				    device_map(s, 1, TO_DEVICE) <= 0 ||
				    request(s, IMPORTER_VMAP, NULL) || device_unmap(s, 0))
					_exit(1);
				close(s);
			}
			for (;;) {
				sync_access(buf, DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW);
				sync_access(buf, DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW);
			}
		}
		sleep_ms(100 + (unsigned int)rand_r(&seed) % 50);
		for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
			kill(pids[i], SIGKILL);
			ASSERT_EQ(128 + SIGKILL, child_status(pids[i]));
		}
	}
	close(buf);
	close(fd);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
