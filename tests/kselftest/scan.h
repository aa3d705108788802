/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The fixture `scan`, for tests of one run of memory where memory is scattered: strangers'
 * pages fill the machine, and a scan has all the time that it may want. Everything of the
 * kernel and the module that a test turns is back at its place when it ends.
 */
#ifndef BINPOOL_TEST_SCAN_H
#define BINPOOL_TEST_SCAN_H

#include "binpool_test.h"
#include "crowd.h"

/* Whether the page allocator may move locked memory; what each zone keeps from others' requests. */
#define COMPACT_LOCKED "/proc/sys/vm/compact_unevictable_allowed"
#define ZONES_KEEP     "/proc/sys/vm/lowmem_reserve_ratio"

/* A frame's migration is waited for; under emulation, with others at work, that is long. */
#define SLACK_MS 20000

FIXTURE(scan)
{
	int dev;
	int log;
	int fds;
	__u64 frame;
	long long max_bytes;
	long long kills;
	bool scans;
	char compact_locked[16], zones_keep[64]; /* as they were */
	struct crowd crowd;
};

/* As much time and memory as a scan may want. 0 or -errno. */
static int be_generous(void)
{
	return param_write("contig_ms", 60000)
		       ?: param_write("contig_duty", 100)
		       ?: param_write("floor_bytes", 64 * MIB)
		       ?: attr_write("max_bytes", meminfo_bytes("MemTotal"));
}

FIXTURE_SETUP(scan)
{
	struct binpool_info info;

	knobs_restore();
	self->log = log_open();
	self->fds = count_fds();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->frame = info.frame_bytes;
	self->max_bytes = attr_read("max_bytes");
	self->kills = oom_kills();
	self->scans = scans_here();
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, be_generous());
	ASSERT_LT(0, text_read(COMPACT_LOCKED, self->compact_locked, sizeof(self->compact_locked)));
	ASSERT_LT(0, text_read(ZONES_KEEP, self->zones_keep, sizeof(self->zones_keep)));
	ASSERT_EQ(0, crowd_come(&self->crowd, UINT64_MAX));
}

FIXTURE_TEARDOWN(scan)
{
	text_write(COMPACT_LOCKED, self->compact_locked);
	text_write(ZONES_KEEP, self->zones_keep);
	if (_metadata->exit_code != KSFT_FAIL) {
		EXPECT_TRUE(crowd_is_well(&self->crowd));
		crowd_leave(&self->crowd);
		EXPECT_EQ(self->fds + 1, count_fds());
		EXPECT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
		EXPECT_EQ(self->kills, oom_kills());
		EXPECT_EQ(0, log_count_bad(self->log));
	}
	knobs_restore();
	attr_write("free_held", 1);
	close(self->dev);
}

#endif /* BINPOOL_TEST_SCAN_H */
