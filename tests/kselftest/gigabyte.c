// SPDX-License-Identifier: GPL-2.0
/*
 * Runs of 16 MiB, 256 MiB and a gigabyte: in fresh memory, in memory that strangers have
 * scattered, and where pages that cannot be moved leave none so long. Wants a machine of
 * 3 GiB, which is filled up.
 */
#include "binpool_test.h"
#include "crowd.h"

FIXTURE(gigabyte)
{
	int dev;
	int log;
	bool scans;
	long long kills;
};

FIXTURE_SETUP(gigabyte)
{
	if (meminfo_bytes("MemTotal") < 5 * GIB / 2)
		SKIP(return, "3 GiB of memory are wanted");
	knobs_restore();
	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	self->scans = scans_here();
	self->kills = oom_kills();
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_write("max_bytes", meminfo_bytes("MemTotal")));
	ASSERT_EQ(0, param_write("floor_bytes", 64 * MIB));
	ASSERT_EQ(0, param_write("contig_ms", 60000));
	ASSERT_EQ(0, param_write("contig_duty", 100));
}

FIXTURE_TEARDOWN(gigabyte)
{
	knobs_restore();
	attr_write("free_held", 1);
	close(self->dev);
	if (_metadata->exit_code == KSFT_FAIL)
		return;
	EXPECT_TRUE(attr_becomes("managed_bytes", 0, SOON_MS));
	EXPECT_EQ(self->kills, oom_kills());
	EXPECT_EQ(0, log_count_bad(self->log));
}

/* 0, or what ALLOC said. What is had is one clean run. */
static int try_run(struct __test_metadata *_metadata, int dev, __u64 len, __u64 *longest)
{
	struct binpool_alloc a = alloc_request(len, BINPOOL_ALLOC_CONTIG);
	long long ns = attr_read("scan_ns"), lost = attr_read("pressure_freed_bytes");
	__u64 start = now_ms();
	int err = device_alloc(dev, &a);

	TH_LOG("%llu MiB: %d after %llu ms, %lld of them scans; a run of %llu MiB; %lld MiB lost",
	       (unsigned long long)(len / MIB), err, (unsigned long long)(now_ms() - start),
	       (attr_read("scan_ns") - ns) / 1000000, (unsigned long long)(a.run_max_bytes / MIB),
	       (attr_read("pressure_freed_bytes") - lost) / (long long)MIB);
	*longest = a.run_max_bytes;
	if (err)
		return err;
	ASSERT_EQ(1, a.runs)
	{
		err = -EBADMSG;
	}
	ASSERT_EQ(len, a.run_max_bytes)
	{
		err = -EBADMSG;
	}
	ASSERT_TRUE(one_clean_run(a.fd, len, page_bytes()))
	{
		err = -EBADMSG;
	}
	close(a.fd);
	ASSERT_EQ(0, attr_write("free_held", 1))
	{
		err = -EBADMSG;
	}
	return err;
}

static const __u64 sizes[] = {16 * MIB, 256 * MIB, GIB};

TEST_F_TIMEOUT(gigabyte, fresh, 300)
{
	__u64 longest;

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		int err = try_run(_metadata, self->dev, sizes[i], &longest);

		/* Without a scan a gigabyte is a matter of luck. */
		ASSERT_TRUE(!err || (err == -ENOMEM && sizes[i] == GIB && !self->scans));
	}
}

TEST_F_TIMEOUT(gigabyte, among_strangers, 400)
{
	struct crowd crowd;
	__u64 longest;

	ASSERT_EQ(0, crowd_come(&crowd, UINT64_MAX));
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		int err = try_run(_metadata, self->dev, sizes[i], &longest);

		/*
		 * A frame that the run before could not have is left alone for ten seconds.
		 * And a few of the kernel's own pages for this crowd may lie so that there is
		 * no window: for another one they lie elsewhere.
		 */
		for (int again = 0; err == -ENOMEM && self->scans && again < 4; again++) {
			crowd_leave(&crowd);
			sleep_ms(10500);
			ASSERT_EQ(0, crowd_come(&crowd, UINT64_MAX));
			err = try_run(_metadata, self->dev, sizes[i], &longest);
		}
		ASSERT_TRUE(!err || (err == -ENOMEM && !self->scans));
	}
	ASSERT_TRUE(crowd_is_well(&crowd));
	crowd_leave(&crowd);
}

/* A page in each 128 MiB that cannot be moved: what there is is told, and kept for who asks. */
TEST_F_TIMEOUT(gigabyte, among_held_pages, 400)
{
	__u64 longest, again;
	struct crowd crowd;
	long long windows;

	ASSERT_EQ(0, crowd_come(&crowd, UINT64_MAX));
	ASSERT_LE(8, crowd_hold(&crowd, 128 * MIB));
	/* What one window got is in the way of the next one. */
	ASSERT_EQ(0, attr_write("max_bytes", GIB + GIB / 16));
	/* It would look for all of its time, and what it keeps must not count as idle after it. */
	ASSERT_EQ(0, param_write("contig_ms", 15000));
	ASSERT_EQ(0, param_write("keep_ms", 3600 * 1000));
	ASSERT_EQ(-ENOMEM, try_run(_metadata, self->dev, GIB, &longest));
	ASSERT_LT(0, longest);
	windows = attr_read("scan_windows");
	ASSERT_EQ(0, try_run(_metadata, self->dev, longest, &again));
	ASSERT_EQ(longest, again);
	ASSERT_EQ(windows, attr_read("scan_windows"));
	ASSERT_TRUE(crowd_is_well(&crowd));
	crowd_leave(&crowd);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
