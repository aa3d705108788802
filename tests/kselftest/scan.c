// SPDX-License-Identifier: GPL-2.0
/*
 * One run of memory where memory is scattered: by pages that can be moved, and by such
 * that cannot. What is had is contiguous and clean, what is not is told; strangers'
 * bytes stay what they are, nobody is killed, and it takes no longer than allowed.
 *
 * On a kernel where the module does not scan (6.2 to 6.11, and 6.1 unless told to) a
 * request may fail where it else must not; everything else holds there, too.
 */
#include <sys/prctl.h>

#include "module.h"
#include "scan.h"
#include "tracefs.h"

static void check_run(struct __test_metadata *_metadata, FIXTURE_DATA(scan) * self, __u64 len,
		      __u64 align)
{
	struct binpool_alloc a = alloc_request(len, BINPOOL_ALLOC_CONTIG);
	long long ns = attr_read("scan_ns"), windows = attr_read("scan_windows");
	__u64 start = now_ms();
	int err;

	a.align = align;
	err = device_alloc(self->dev, &a);
	/* A page in the way may have been in somebody's hands only for a moment. */
	for (int i = 0; err == -ENOMEM && self->scans && i < 5; i++) {
		sleep_ms(10500);
		a = alloc_request(len, BINPOOL_ALLOC_CONTIG);
		a.align = align;
		err = device_alloc(self->dev, &a);
	}
	TH_LOG("%llu MiB: %d after %llu ms, a run of %llu MiB, scans of %lld ms in %lld windows",
	       (unsigned long long)(len / MIB), err, (unsigned long long)(now_ms() - start),
	       (unsigned long long)(a.run_max_bytes / MIB), (attr_read("scan_ns") - ns) / 1000000,
	       attr_read("scan_windows") - windows);
	if (!self->scans) {
		ASSERT_TRUE(!err || err == -ENOMEM);
		ASSERT_EQ(windows, attr_read("scan_windows"));
	} else {
		ASSERT_EQ(0, err);
	}
	if (err)
		return;
	ASSERT_EQ(1, a.runs);
	ASSERT_EQ(len, a.run_max_bytes);
	ASSERT_TRUE(one_clean_run(a.fd, len, align ? align : self->frame));
	close(a.fd);
}

/* Memory in use by what can be moved is no obstacle. */
TEST_F_TIMEOUT(scan, among_movable_pages, 300)
{
	long long ns = attr_read("scan_ns"), windows = attr_read("scan_windows");

	check_run(_metadata, self, 16 * MIB, 0);
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_TRUE(crowd_is_well(&self->crowd));
	check_run(_metadata, self, 256 * MIB, 0);
	ASSERT_EQ(0, attr_write("free_held", 1));
	check_run(_metadata, self, 128 * MIB, 128 * MIB);
	if (self->scans) {
		ASSERT_LT(ns, attr_read("scan_ns"));
		ASSERT_LT(windows, attr_read("scan_windows"));
	}
}

/* Bytes that the events of @name in the trace speak of; -1: they cannot be read. */
static long long traced_bytes(const char *name)
{
	FILE *f = fopen(TRACEFS "trace", "re");
	long long sum = 0;
	char line[512];

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		const char *event = strstr(line, name),
			   *bytes = event ? strstr(event, " bytes=") : NULL;

		if (bytes)
			sum += strtoll(bytes + 7, NULL, 10);
	}
	fclose(f);
	return sum;
}

/* Frames of a certain place are traced as they come, like all others. */
TEST_F_TIMEOUT(scan, traced_as_fresh, 300)
{
	struct binpool_alloc a = alloc_request(256 * MIB, BINPOOL_ALLOC_CONTIG);
	long long windows = attr_read("scan_windows"), managed;

	if (!tracefs_mount())
		SKIP(return, "the kernel has no tracefs");
	ASSERT_EQ(0, text_write(TRACEFS "events/binpool/fresh/enable", "1"));
	ASSERT_EQ(0, text_write(TRACEFS "events/binpool/free/enable", "1"));
	ASSERT_EQ(0, trace_clear());
	managed = attr_read("managed_bytes");
	device_alloc(self->dev, &a);
	managed = attr_read("managed_bytes") - managed;
	text_write(TRACEFS "events/binpool/fresh/enable", "0");
	text_write(TRACEFS "events/binpool/free/enable", "0");
	close(a.fd);
	if (self->scans)
		ASSERT_LT(windows, attr_read("scan_windows"));
	ASSERT_EQ(managed, traced_bytes(": fresh:") - traced_bytes(": free:"));
}

/* What another owner leaves in such memory, nobody sees; nor what strangers left. */
TEST_F_TIMEOUT(scan, clean_again, 300)
{
	struct binpool_alloc a = alloc_request(16 * MIB, BINPOOL_ALLOC_CONTIG);
	void *p;

	if (device_alloc(self->dev, &a))
		SKIP(return, "no run of 16 MiB without a scan");
	p = block_map(a.fd, a.capacity);
	ASSERT_NE(MAP_FAILED, p);
	fill(p, a.capacity, 1, 0);
	munmap(p, a.capacity);
	close(a.fd);
	a = alloc_request(16 * MIB, BINPOOL_ALLOC_CONTIG);
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_TRUE(one_clean_run(a.fd, a.capacity, self->frame));
	close(a.fd);
}

/*
 * A page in each 32 MiB that cannot be moved and does not look like it: a run of 128 MiB
 * is nowhere. That is found out once, for a while; the longest run is told, and had.
 */
TEST_F_TIMEOUT(scan, among_held_pages, 400)
{
	const struct binpool_alloc want = alloc_request(128 * MIB, BINPOOL_ALLOC_CONTIG);
	struct binpool_alloc a = want;
	long long windows, before;
	int err = -ENOMEM;
	__u64 start;

	ASSERT_LT(8, crowd_hold(&self->crowd, 32 * MIB));
	windows = attr_read("scan_windows");
	start = now_ms();
	ASSERT_EQ(-ENOMEM, device_alloc(self->dev, &a));
	ASSERT_GE(2 * 60000 + SLACK_MS, now_ms() - start);
	TH_LOG("refused after %llu ms, %lld windows; the longest run: %llu MiB",
	       (unsigned long long)(now_ms() - start), attr_read("scan_windows") - windows,
	       (unsigned long long)(a.run_max_bytes / MIB));
	if (self->scans) {
		ASSERT_LT(windows, attr_read("scan_windows"));
		ASSERT_LE(self->frame, a.run_max_bytes);
	}

	/* Again at once: all that failed is known. */
	before = attr_read("scan_windows");
	a = want;
	ASSERT_EQ(-ENOMEM, device_alloc(self->dev, &a));
	ASSERT_GE(2, attr_read("scan_windows") - before);

	if (a.run_max_bytes) {
		struct binpool_alloc told = alloc_request(a.run_max_bytes, BINPOOL_ALLOC_CONTIG);

		ASSERT_EQ(0, device_alloc(self->dev, &told));
		ASSERT_EQ(a.run_max_bytes, told.capacity);
		ASSERT_EQ(1, told.runs);
		ASSERT_TRUE(one_clean_run(told.fd, told.capacity, self->frame));
		close(told.fd);
	}
	ASSERT_EQ(0, attr_write("free_held", 1));
	if (!self->scans)
		return;

	/*
	 * What failed is tried again after ten seconds, and works once the pages are let go; if
	 * something else is in the way, a little later.
	 */
	crowd_let_go(&self->crowd);
	for (int i = 0; err && i < 10; i++) {
		sleep_ms(10500);
		a = alloc_request(256 * MIB, BINPOOL_ALLOC_CONTIG);
		err = device_alloc(self->dev, &a);
		TH_LOG("%d, a run of %llu MiB", err, (unsigned long long)(a.run_max_bytes / MIB));
	}
	ASSERT_EQ(0, err);
	ASSERT_TRUE(one_clean_run(a.fd, a.capacity, self->frame));
	close(a.fd);
}

/* A few blocks, again and again, until somebody ends it. Each is clean, each is had. */
static void traffic(__u64 frame)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	unsigned int round = 0;

	for (;; round++) {
		int fds[4];

		for (int i = 0; i < 4; i++) {
			__u64 len = frame * (1 + (round + (unsigned int)i) % 3);
			__u64 *p;

			fds[i] = block_alloc(dev, len);
			if (fds[i] < 0)
				_exit(2);
			p = block_map(fds[i], len);
			if (p == MAP_FAILED || p[0] || p[len / 8 - 1])
				_exit(3);
			p[0] = p[len / 8 - 1] = round + 1;
			munmap(p, len);
		}
		for (int i = 0; i < 4; i++)
			close(fds[i]);
		sleep_ms(5);
	}
}

/* Neither is harmed by the other; a busy machine may take too long for a run. */
TEST_F_TIMEOUT(scan, beside_traffic, 300)
{
	unsigned int had = 0;
	pid_t pids[2];

	ASSERT_EQ(0, param_write("contig_ms", 10000));
	for (int i = 0; i < 2; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			traffic(self->frame);
		}
		ASSERT_LT(0, pids[i]);
	}
	for (int i = 0; i < 6; i++) {
		struct binpool_alloc a = alloc_request(64 * MIB, BINPOOL_ALLOC_CONTIG);
		int err = device_alloc(self->dev, &a);

		ASSERT_TRUE(!err || err == -ENOMEM);
		if (!err) {
			ASSERT_TRUE(one_clean_run(a.fd, a.capacity, self->frame));
			close(a.fd);
			had++;
		}
		ASSERT_EQ(0, attr_write("free_held", 1));
	}
	TH_LOG("%u of 6 were had", had);
	for (int i = 0; i < 2; i++) {
		ASSERT_EQ(0, kill(pids[i], SIGKILL));
		ASSERT_EQ(128 + SIGKILL, child_status(pids[i]));
	}
}

/* The lowest physical address of a block's. */
static __u64 lowest_address(int fd, __u64 len, __u64 frame)
{
	char *p = block_map(fd, len);
	__u64 lowest = ~0ULL;

	for (__u64 o = 0; p != MAP_FAILED && o < len; o += frame) {
		p[o] = 1;
		lowest = physical(p + o) < lowest ? physical(p + o) : lowest;
	}
	munmap(p, len);
	return lowest;
}

/*
 * The reserve is filled from such memory, and no further than it says; though the page
 * allocator has no more, and of the lowest memory, where a scan begins, nothing is to spare.
 */
TEST_F_TIMEOUT(scan, reserve, 200)
{
	const __u64 len = 192 * MIB, isa_bytes = 16 * MIB;
	int fd;

	if (!getenv("BINPOOL_KO"))
		SKIP(return, "BINPOOL_KO does not name the module's file");
	if (self->scans) {
		ASSERT_EQ(0, text_write(COMPACT_LOCKED, "0"));
		ASSERT_EQ(0, mlock(self->crowd.anon, self->crowd.len));
		ASSERT_EQ(0, mlock(self->crowd.shared, self->crowd.len));
	}
	ASSERT_EQ(0, text_write(ZONES_KEEP, "1"));
	close(self->dev);
	ASSERT_EQ(0, module_unload());
	ASSERT_EQ(0, module_load(""));
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	knobs_restore();
	ASSERT_EQ(0, be_generous());

	ASSERT_EQ(0, attr_write("reserve_bytes", len));
	EXPECT_TRUE(attr_becomes("reserve_filled_bytes", len, 150000));
	EXPECT_EQ((long long)len, attr_read("managed_bytes"));
	fd = block_alloc(self->dev, len);
	EXPECT_LE(isa_bytes, lowest_address(fd, len, self->frame));
	close(fd);
	ASSERT_EQ(0, attr_write("reserve_bytes", 0));
}

/* Blocks side by side; every second one is closed, so that what is held is in pieces. */
static void hold_pieces(struct __test_metadata *_metadata, FIXTURE_DATA(scan) * self, int *fds,
			size_t nr)
{
	for (size_t i = 0; i < nr; i++) {
		fds[i] = block_alloc(self->dev, self->frame);
		ASSERT_LE(0, fds[i]);
	}
	for (size_t i = 0; i < nr; i += 2)
		close(fds[i]);
	ASSERT_EQ((long long)(nr / 2 * self->frame), attr_read("held_bytes"));
}

/* Ends hold_pieces(). */
static void close_pieces(const int *fds, size_t nr)
{
	for (size_t i = 1; i < nr; i += 2)
		close(fds[i]);
	attr_write("free_held", 1);
}

/*
 * What is held goes back only for a request that is met by it, and max_bytes is named
 * as the obstacle only where it is one.
 */
TEST_F_TIMEOUT(scan, held_memory_and_the_limit, 300)
{
	const long long pieces = 8 * (long long)self->frame;
	struct binpool_alloc a;
	long long single;
	int fds[16], fd;
	char name[96];

	/* Hardly a frame is free, though much memory is. */
	a = alloc_request((__u64)self->max_bytes / 2, BINPOOL_ALLOC_NOWAIT);
	ASSERT_EQ(-ENOMEM, device_alloc(self->dev, &a));
	crowd_leave(&self->crowd);
	/* More than the floor leaves, whatever goes. */
	hold_pieces(_metadata, self, fds, 16);
	snprintf(name, sizeof(name), "node0/bins/%llu/held_bytes", (unsigned long long)self->frame);
	/* Two may have come side by side, and are one. */
	ASSERT_EQ(pieces, attr_read("held_bytes"));
	single = attr_read(name);
	ASSERT_LE(pieces / 2, single);
	ASSERT_EQ(0, param_write("floor_bytes", meminfo_bytes("MemAvailable") - 64 * self->frame));
	a = alloc_request(128 * self->frame, BINPOOL_ALLOC_CONTIG);
	ASSERT_EQ(-ENOMEM, device_alloc(self->dev, &a));
	/* Some may have been joined to the longest run there was. */
	ASSERT_LE(single / 2, attr_read(name));
	ASSERT_EQ(0, param_write("floor_bytes", 64 * MIB));
	close_pieces(fds, 16);

	/* What was taken in vain goes before what is held. */
	ASSERT_EQ(0, attr_write("max_bytes", 24 * self->frame));
	hold_pieces(_metadata, self, fds, 16);
	a = alloc_request(8 * self->frame, BINPOOL_ALLOC_CONTIG);
	a.align = 64 * self->frame;
	if (self->scans) {
		ASSERT_EQ(0, device_alloc(self->dev, &a));
		ASSERT_EQ(pieces, attr_read("held_bytes"));
		close(a.fd);
	}
	close_pieces(fds, 16);

	/* The limit leaves room only where held memory is: it gives way. */
	hold_pieces(_metadata, self, fds, 16);
	a = alloc_request(16 * self->frame, BINPOOL_ALLOC_CONTIG);
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(1, a.runs);
	ASSERT_EQ((long long)(24 * self->frame), attr_read("managed_bytes"));

	/* And now nothing is left to give. */
	fd = a.fd;
	a = alloc_request(2 * self->frame, BINPOOL_ALLOC_CONTIG);
	ASSERT_EQ(-ENOSPC, device_alloc(self->dev, &a));
	close(fd);
	close_pieces(fds, 16);

	/* Nothing of all that still counts as coming. */
	ASSERT_EQ(0, attr_write("max_bytes", (__u64)self->max_bytes));
	ASSERT_EQ(0, param_write("floor_bytes", meminfo_bytes("MemAvailable") - 64 * self->frame));
	fd = block_alloc(self->dev, 56 * self->frame);
	ASSERT_LE(0, fd);
	close(fd);
	ASSERT_EQ(0, param_write("floor_bytes", 64 * MIB));
	ASSERT_EQ(0, crowd_come(&self->crowd, 64 * MIB));
}

/*
 * Late growth, of any shape: what is given is exactly that much, what is not costs no
 * more than time, and what was told as a run can be had as one.
 */
TEST_F_TIMEOUT(scan, late_growth, 400)
{
	const __u64 step = 32 * MIB;
	__u64 got = 0, start = now_ms();
	int fds[64], nr = 0;

	while (nr < 64) {
		struct binpool_alloc a = alloc_request(step, 0);
		int err = device_alloc(self->dev, &a);

		if (err) {
			ASSERT_TRUE(err == -ENOMEM || err == -ENOSPC);
			break;
		}
		ASSERT_EQ(step, a.capacity);
		fds[nr++] = a.fd;
		got += a.capacity;
		ASSERT_EQ((long long)got, attr_read("active_bytes"));
		ASSERT_GE(200000, now_ms() - start);
	}
	TH_LOG("%llu MiB in %llu ms", (unsigned long long)(got / MIB),
	       (unsigned long long)(now_ms() - start));
	ASSERT_TRUE(crowd_is_well(&self->crowd));
	while (nr)
		close(fds[--nr]);
	ASSERT_EQ((long long)got, attr_read("held_bytes"));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
