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

/*
 * Loading succeeds without the folders of the nodes, and says so. When kmemleak itself
 * has no memory it says so, too, and looks at more than it would.
 */
#ifndef LOG_EXPECTED_TOO
#define LOG_EXPECTED_TOO
#endif
#define LOG_EXPECTED                                                                               \
	"loading out-of-tree module", "module verification failed", "are missing", "is above",     \
		"Cannot allocate a scan area" LOG_EXPECTED_TOO

/* The dma-buf core warns of every exporter that has no memory for a mapping of its own. */
#define REPORT_EXPECTED " dma_buf_vmap+"

#include "binpool_test.h"

#define DEBUGFS "/sys/kernel/debug/"

/* No call makes as many. */
#define MOST 20000

/* Few: a kernel that checks itself fills each page that goes, and looks at each that comes. */
#define FRAMES 3

/* More than a guest's kernel has. */
#define WORKERS 64

/* Values of the faults' fixture that a call works on. */
struct subject {
	int dev;
	int nth; /* /proc/thread-self/fail-nth */
	__u64 frame;
	struct binpool_alloc request; /* of ALLOC */
	int fd;			      /* of a block, or -1 */
	int other;		      /* of a dma-buf over it, or -1 */
	int device;		      /* of the importer's */
	char *p;		      /* its mapping, or NULL */
	const char *path;	      /* of a file to read or write */
	const char *text;	      /* what to write */
	__u64 told;		      /* an address that PHYS gave, or 0 */
	int ret;		      /* of the last call */
	const char *wrong;	      /* what is not as it must be after it, or NULL */
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

/*
 * The kernel's own workers, of which one fills the reserve. Each has a count of its
 * own, so all are armed, and one that finds work uses its count up.
 */
struct workers {
	int nth[WORKERS];
	unsigned int nr;
};

/* Lets the @n-th that could fail in each worker do so. */
static inline void workers_arm(struct workers *w, unsigned int n)
{
	DIR *dir = opendir("/proc");
	char path[300], text[64];

	if (!dir)
		abort();
	w->nr = 0;
	for (struct dirent *e = readdir(dir); e && w->nr < WORKERS; e = readdir(dir)) {
		snprintf(path, sizeof(path), "/proc/%s/comm", e->d_name);
		if (e->d_name[0] < '1' || e->d_name[0] > '9' ||
		    text_read(path, text, sizeof(text)) < 0 || strncmp(text, "kworker/u", 9))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/fail-nth", e->d_name);
		w->nth[w->nr] = open(path, O_RDWR | O_CLOEXEC);
		snprintf(text, sizeof(text), "%u", n);
		/* Idle ones may end at any time. */
		if (w->nth[w->nr] >= 0 && pwrite(w->nth[w->nr], text, strlen(text), 0) > 0)
			w->nr++;
		else if (w->nth[w->nr] >= 0)
			close(w->nth[w->nr]);
	}
	closedir(dir);
	if (!w->nr)
		abort();
}

/* Disarms them; whether one has failed. */
static inline bool workers_disarm(struct workers *w)
{
	bool failed = false;

	for (unsigned int i = 0; i < w->nr; i++) {
		char text[16] = "";

		if (pread(w->nth[i], text, sizeof(text) - 1, 0) > 0)
			failed |= !strtoul(text, NULL, 10);
		pwrite(w->nth[i], "0", 1, 0);
		close(w->nth[i]);
	}
	w->nr = 0;
	return failed;
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
	EXPECT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
	EXPECT_EQ(0, log_count_bad(self->log));
}

#endif /* BINPOOL_TEST_FAULTS_H */
