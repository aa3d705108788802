/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What only fault injection reaches: every allocation that a call makes, and every
 * copy from and to the program, fails once. The first one, the second, and so on,
 * until the call comes to its end before the one that was to fail. Each failure has
 * an errno that is documented, changes nothing, and leaves a module that works.
 *
 * For kernels with fail-nth: tests/run 6.12-debug/faults. The module's file, for
 * loading, is $BINPOOL_KO. Leaks are looked for when all is over, by tests/guest.
 * Fixture `faults`; no state besides.
 */
#ifndef BINPOOL_TEST_FAULTS_H
#define BINPOOL_TEST_FAULTS_H

/* Loading succeeds without the folders of the nodes, and says so. */
#define LOG_EXPECTED                                                                               \
	"loading out-of-tree module", "module verification failed", "are missing", "is above"

#include "binpool_test.h"

#define DEBUGFS "/sys/kernel/debug/"

/* No call makes as many. */
#define MOST 20000

/* Few: a kernel that checks itself fills each page that goes, and looks at each that comes. */
#define FRAMES 3

/* Values of the faults' fixture that a call works on. */
struct subject {
	int dev;
	int nth; /* /proc/thread-self/fail-nth */
	__u64 frame;
	struct binpool_alloc request; /* of ALLOC */
	int fd;			      /* of a block, or -1 */
	int other;		      /* of a dma-buf over it, or -1 */
	char *p;		      /* its mapping, or NULL */
	const char *path;	      /* of a file to read or write */
	const char *text;	      /* what to write */
};

/* Arms: the @n-th that could fail from here on does, in this thread. */
static inline void arm(const struct subject *s, unsigned int n)
{
	char text[16];
	ssize_t len = snprintf(text, sizeof(text), "%u", n);

	if (pwrite(s->nth, text, (size_t)len, 0) != len)
		abort();
}

/* Disarms; how many more it would have taken, 0 if one has failed. */
static inline unsigned int disarm(const struct subject *s)
{
	char text[16] = "";
	/* What was about to fail next may be this one. */
	bool failed = pread(s->nth, text, sizeof(text) - 1, 0) < 0;

	while (pwrite(s->nth, "0", 1, 0) != 1)
		;
	return failed ? 1 : (unsigned int)strtoul(text, NULL, 10);
}

/* Whether ALLOC, mapping, zeroes and the end work as ever. */
static inline bool works(const struct subject *s)
{
	int fd = block_alloc(s->dev, s->frame);
	char *p = fd < 0 ? MAP_FAILED : block_map(fd, s->frame);
	bool ok = p != MAP_FAILED;

	if (ok) {
		ok = !*(volatile char *)p && !*(volatile char *)(p + s->frame - 1);
		memset(p, 1, page_bytes());
		munmap(p, s->frame);
	}
	if (fd >= 0)
		close(fd);
	return ok;
}

FIXTURE(faults)
{
	struct subject s;
	int log;
};

FIXTURE_SETUP(faults)
{
	static const char *const settings[][2] = {
		/* Allocations that may wait, in every cache, of any order, and no reports. */
		{DEBUGFS "failslab/ignore-gfp-wait", "N"},
		{DEBUGFS "failslab/cache-filter", "N"},
		{DEBUGFS "failslab/verbose", "0"},
		{DEBUGFS "fail_page_alloc/ignore-gfp-wait", "N"},
		{DEBUGFS "fail_page_alloc/ignore-gfp-highmem", "N"},
		{DEBUGFS "fail_page_alloc/min-order", "0"},
		{DEBUGFS "fail_page_alloc/verbose", "0"},
		{DEBUGFS "fail_usercopy/verbose", "0"},
	};
	struct binpool_info info;

	knobs_restore();
	self->s.nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	if (self->s.nth < 0)
		SKIP(return, "this kernel injects no faults (tests/run 6.12-debug/faults has one)");
	for (size_t i = 0; i < ARRAY_SIZE(settings); i++) {
		ASSERT_EQ(0, text_write(settings[i][0], settings[i][1]))
		{
			TH_LOG("%s", settings[i][0]);
		}
	}
	self->log = log_open();
	self->s.fd = self->s.other = -1;
	self->s.dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->s.dev);
	ASSERT_EQ(0, device_info(self->s.dev, &info));
	self->s.frame = info.frame_bytes;
	/* Page faults of our own must not use up what is to fail. */
	ASSERT_EQ(0, mlockall(MCL_CURRENT));
}

FIXTURE_TEARDOWN(faults)
{
	knobs_restore();
	if (_metadata->exit_code == KSFT_FAIL)
		return;
	close(self->s.dev);
	close(self->s.nth);
	EXPECT_TRUE(attr_becomes("active_bytes", 0, 1000));
	EXPECT_EQ(0, log_count_bad(self->log));
}

#endif /* BINPOOL_TEST_FAULTS_H */
