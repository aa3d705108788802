// SPDX-License-Identifier: GPL-2.0
/*
 * How long memory is moved for one run: not without leave, no longer than a request and all
 * of them together may, one at a time, and not for who is killed. See scan.c.
 */
#include <pthread.h>

#include "scan.h"

/* Without time for it, or patience, nothing is moved. */
TEST_F_TIMEOUT(scan, none_if_not_wanted, 120)
{
	long long ns = attr_read("scan_ns"), refused = attr_read("scan_refused");
	const long long on_61 = param_read("contig_scan_61");
	const long long compacted = vmstat_read("compact_stall");
	struct binpool_alloc a;

	ASSERT_LE(0, compacted);
	ASSERT_EQ(0, param_write("contig_ms", 0));
	a = alloc_request(320 * MIB, BINPOOL_ALLOC_CONTIG);
	if (!device_alloc(self->dev, &a))
		close(a.fd);
	ASSERT_EQ(0, param_write("contig_ms", 60000));
	a = alloc_request(320 * MIB, BINPOOL_ALLOC_CONTIG | BINPOOL_ALLOC_NOWAIT);
	if (!device_alloc(self->dev, &a))
		close(a.fd);
	/* Nor does the page allocator for it. */
	ASSERT_EQ(compacted, vmstat_read("compact_stall"));
	/* On Linux 6.1 it is asked for, or not done. */
	ASSERT_EQ(0, param_write("contig_scan_61", 0));
	if (!scans_here()) {
		a = alloc_request(320 * MIB, BINPOOL_ALLOC_CONTIG);
		if (!device_alloc(self->dev, &a))
			close(a.fd);
	}
	ASSERT_EQ(0, param_write("contig_scan_61", (__u64)on_61));
	ASSERT_EQ(ns, attr_read("scan_ns"));
	ASSERT_EQ(refused, attr_read("scan_refused"));
}

static void *ask_for_a_run(void *arg)
{
	struct binpool_alloc *a = arg;
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	int err = device_alloc(dev, a);

	close(dev);
	return (void *)(intptr_t)err;
}

/* A frame comes back with a page of it in a pipe. 0 or -errno. */
static int strand_frame(int dev, __u64 frame, int end)
{
	struct iovec page = {.iov_len = 1};
	int fd = block_alloc(dev, frame), ret;

	if (fd < 0)
		return fd;
	page.iov_base = block_map(fd, frame);
	ret = vmsplice(end, &page, 1, 0) == 1 ? 0 : -errno;
	munmap(page.iov_base, frame);
	close(fd);
	return ret;
}

/* What waits for something else and looks again has no more time for that. */
TEST_F_TIMEOUT(scan, its_time_is_for_all_rounds, 120)
{
	const long long budget_ns = 20 * 1000000;
	bool used_up = false;

	if (!self->scans)
		SKIP(return, "nothing is moved on this kernel");
	ASSERT_EQ(0, param_write("contig_ms", 20));
	ASSERT_EQ(0, param_write("limbo_wait_ms", 60000));
	/* What could not be had lately is passed over: there may be no place for a run at first. */
	for (int tries = 0; tries < 20 && !used_up; tries++) {
		struct binpool_alloc a = alloc_request(256 * MIB, BINPOOL_ALLOC_CONTIG);
		const long long ns = attr_read("scan_ns");
		const __u64 end = now_ms() + 60000;
		long long first = ns;
		pthread_t thread;
		int ends[2];

		ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
		ASSERT_EQ(0, strand_frame(self->dev, self->frame, ends[1]));
		ASSERT_EQ((long long)self->frame, attr_read("limbo_bytes"));
		ASSERT_EQ(0, pthread_create(&thread, NULL, ask_for_a_run, &a));
		while (first == ns && now_ms() < end) {
			sleep_ms(5);
			first = attr_read("scan_ns");
		}
		/* Another round, with nothing in limbo. */
		close(ends[0]);
		close(ends[1]);
		ASSERT_EQ(0, pthread_join(thread, NULL));
		close(a.fd);
		used_up = first - ns >= budget_ns;
		if (used_up) {
			ASSERT_EQ(first, attr_read("scan_ns"));
		} else {
			sleep_ms(1000);
		}
	}
	ASSERT_TRUE(used_up);
}

/*
 * Its own time, with a little for the way there and one frame more: far less than is
 * needed. What was got in it is not lost: one of the next requests has the run.
 */
TEST_F_TIMEOUT(scan, within_its_time, 200)
{
	const int ms = 20;
	struct binpool_alloc a;
	__u64 end = now_ms() + 30000;
	unsigned int refused = 0;
	long long longest = 0;
	int err;

	ASSERT_EQ(0, param_write("contig_ms", ms));
	do {
		long long ns = attr_read("scan_ns");
		__u64 start = now_ms();

		a = alloc_request(256 * MIB, BINPOOL_ALLOC_CONTIG);
		err = device_alloc(self->dev, &a);
		ASSERT_GE((__u64)(2 * ms + SLACK_MS), now_ms() - start);
		ns = (attr_read("scan_ns") - ns) / 1000000;
		ASSERT_GE(ms + SLACK_MS / 4, ns);
		if (err) {
			ASSERT_EQ(-ENOMEM, err);
			ASSERT_GT((__u64)(256 * MIB), a.run_max_bytes);
			refused++;
			if (ns > longest)
				longest = ns;
		}
	} while (err && self->scans && now_ms() < end);
	TH_LOG("%u times refused, %s", refused, err ? "and given up" : "then had");
	if (!self->scans)
		return;
	ASSERT_LT(0, refused);
	/* One may find no place to begin with, but not all of them. */
	ASSERT_LE(ms / 2, longest);
	/* Whether there is a place at all is for the strangers' pages to say. */
	if (err)
		return;
	ASSERT_TRUE(one_clean_run(a.fd, a.capacity, self->frame));
	close(a.fd);
}

/* All requests together, at most contig_duty of a minute beside what the first may. */
TEST_F_TIMEOUT(scan, within_its_share, 200)
{
	long long ns = attr_read("scan_ns");
	struct binpool_alloc a;
	__u64 start = now_ms();

	ASSERT_EQ(0, param_write("contig_ms", 1000));
	ASSERT_EQ(0, param_write("contig_duty", 1));
	for (int i = 0; i < 12; i++) {
		int err;

		a = alloc_request(320 * MIB, BINPOOL_ALLOC_CONTIG);
		err = device_alloc(self->dev, &a);
		if (!err)
			close(a.fd);
		ASSERT_TRUE(!err || err == -ENOMEM);
		/* The next one begins anew. */
		ASSERT_EQ(0, attr_write("free_held", 1));
	}
	ns = (attr_read("scan_ns") - ns) / 1000000;
	TH_LOG("%lld ms of scans in %llu ms", ns, (unsigned long long)(now_ms() - start));
	/* One that may be had at once, 10 ms of each second, a frame's time too much now and then.
	 */
	ASSERT_GE(1000 + (long long)(now_ms() - start) / 100 + 4000, ns);
}

/* Each so small that what the other got leaves room, and a place, for it. */
TEST_F_TIMEOUT(scan, two_at_once, 300)
{
	struct binpool_alloc a[2];
	pthread_t threads[2];
	__u64 start = now_ms();

	for (int i = 0; i < 2; i++) {
		a[i] = alloc_request(64 * MIB, BINPOOL_ALLOC_CONTIG);
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, ask_for_a_run, &a[i]));
	}
	for (int i = 0; i < 2; i++) {
		void *err;

		ASSERT_EQ(0, pthread_join(threads[i], &err));
		if (self->scans)
			ASSERT_EQ(NULL, err);
		if (err)
			continue;
		ASSERT_EQ(1, a[i].runs);
		ASSERT_TRUE(one_clean_run(a[i].fd, a[i].capacity, self->frame));
		close(a[i].fd);
	}
	/* Who waits for the turn is told when it is free, and does not wait contig_ms for it. */
	ASSERT_GE(45000 * slowness(), now_ms() - start);
}

/* Who is killed in the middle of it ends soon and leaves nothing behind. */
TEST_F_TIMEOUT(scan, killed, 300)
{
	__u64 before = meminfo_bytes("MemFree"), worst = 0;

	for (unsigned int ms = 50; ms <= 3200; ms *= 2) {
		pid_t pid = fork();
		__u64 start;

		ASSERT_LE(0, pid);
		if (!pid) {
			struct binpool_alloc a = alloc_request(320 * MIB, BINPOOL_ALLOC_CONTIG);

			device_alloc(self->dev, &a);
			_exit(0);
		}
		sleep_ms(ms);
		start = now_ms();
		kill(pid, SIGKILL);
		child_status(pid);
		start = now_ms() - start;
		worst = start > worst ? start : worst;
		ASSERT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
	}
	TH_LOG("the slowest end took %llu ms", (unsigned long long)worst);
	ASSERT_GE(10000, worst);
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_TRUE(attr_becomes("managed_bytes", 0, SOON_MS));
	ASSERT_LE(before, meminfo_bytes("MemFree") + 64 * MIB);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
