/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What every program that tests the device shares: requests, sysfs values, what
 * /proc says of an address, data patterns, the kernel log. No state.
 */
#ifndef BINPOOL_TEST_DEVICE_H
#define BINPOOL_TEST_DEVICE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <linux/binpool.h>
#include <linux/binpool_bins.h>

#define DEVICE "/dev/" BINPOOL_DEVICE_NAME
#define SYSFS  "/sys/class/misc/" BINPOOL_DEVICE_NAME "/"
#define KIB    ((__u64)1 << 10)
#define MIB    ((__u64)1 << 20)
#define GIB    ((__u64)1 << 30)

static inline size_t page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static inline void *at(const void *base, __u64 offset)
{
	return (char *)(uintptr_t)base + offset;
}

static inline __u64 now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (__u64)ts.tv_sec * 1000 + (__u64)ts.tv_nsec / 1000000;
}

static inline void sleep_ms(unsigned int ms)
{
	struct timespec ts = {ms / 1000, (long)(ms % 1000) * 1000000};

	nanosleep(&ts, NULL);
}

/*
 * How many times as long as on an ordinary kernel things may take here; for limits
 * that keep a test from waiting for ever, or tell soon from late.
 */
static inline unsigned int slowness(void)
{
	const char *text = getenv("BINPOOL_TEST_SLOWNESS");
	unsigned int times = text ? (unsigned int)strtoul(text, NULL, 10) : 1;

	return times ? times : 1;
}

/* 1: the page cache, 2: what the kernel keeps for itself, 3: both; 4: say nothing of it from now
 * on. */
#define DROP_CACHES "/proc/sys/vm/drop_caches"

/* Files of one value. All return -errno on failure. */

static inline int text_read(const char *path, char *buf, size_t len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, buf, len - 1);
	if (n < 0)
		n = -errno;
	else
		buf[n] = '\0';
	close(fd);
	return (int)n;
}

static inline int text_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = write(fd, text, strlen(text));
	n = n < 0 ? -errno : 0;
	close(fd);
	return (int)n;
}

static inline long long attr_read(const char *name)
{
	char path[256], buf[64], *end;
	long long value;
	int n;

	snprintf(path, sizeof(path), SYSFS "%s", name);
	n = text_read(path, buf, sizeof(buf));
	if (n < 0)
		return n;
	errno = 0;
	value = strtoll(buf, &end, 10);
	if (errno || end == buf || (*end != '\n' && *end != '\0'))
		return -EBADMSG;
	return value;
}

static inline int attr_write(const char *name, __u64 value)
{
	char path[256], text[32];

	snprintf(path, sizeof(path), SYSFS "%s", name);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	return text_write(path, text);
}

/* Waits until an attribute has a value, at most @ms; false if it never had. */
static inline bool attr_becomes(const char *name, __u64 value, unsigned int ms)
{
	__u64 end = now_ms() + (__u64)ms * slowness();

	do {
		if (attr_read(name) == (long long)value)
			return true;
		sleep_ms(5);
	} while (now_ms() < end);
	return false;
}

/* Until everything that is held is clean, frames come and go while they are counted. */
static inline bool cleaning_ends(void)
{
	__u64 end = now_ms() + 20000 * (__u64)slowness();

	while (attr_read("held_bytes") != attr_read("held_clean_bytes") && now_ms() < end)
		sleep_ms(10);
	return attr_read("held_bytes") == attr_read("held_clean_bytes");
}

/* The counters that must not move when a request is refused. */
static const char *const counter_names[] = {
	"max_bytes",	  "active_bytes",     "held_bytes",  "limbo_bytes",
	"managed_bytes",  "retired_bytes",    "freed_bytes", "pinned_dropped_bytes",
	"allocs",	  "reuses",	      "returns",     "holding",
	"user_max_bytes", "quarantine_bytes",
};

#define LIMBO_BYTES 3

#define COUNTERS ((unsigned int)(sizeof(counter_names) / sizeof(counter_names[0])))

struct counters {
	long long v[COUNTERS];
};

static inline struct counters counters_read(void)
{
	struct counters c;

	for (unsigned int i = 0; i < COUNTERS; i++)
		c.v[i] = attr_read(counter_names[i]);
	return c;
}

/* The name of the first counter that differs, or "nothing". */
static inline const char *counters_moved(const struct counters *before)
{
	struct counters after = counters_read();

	for (unsigned int i = 0; i < COUNTERS; i++) {
		if (before->v[i] != after.v[i] || after.v[i] < 0)
			return counter_names[i];
	}
	return "nothing";
}

static inline int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = -1; /* the directory itself is one of them */

	if (!dir)
		return -1;
	for (struct dirent *e = readdir(dir); e; e = readdir(dir))
		count += e->d_name[0] != '.';
	closedir(dir);
	return count;
}

/*
 * The number that the next descriptor gets; @fd is any. One that a failed call took and
 * forgot is in nobody's list, but not free either.
 */
static inline int fd_next(int fd)
{
	int next = dup(fd);

	close(next);
	return next;
}

/* Requests: 0 or -errno. */

static inline int request(int fd, unsigned long nr, void *arg)
{
	return ioctl(fd, nr, arg) < 0 ? -errno : 0;
}

static inline int device_info(int dev, struct binpool_info *info)
{
	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	return request(dev, BINPOOL_IOC_INFO, info);
}

static inline struct binpool_alloc alloc_request(__u64 bytes, __u32 flags)
{
	return (struct binpool_alloc){
		.size = sizeof(struct binpool_alloc),
		.flags = flags,
		.bytes = bytes,
		.node = BINPOOL_NODE_ANY,
	};
}

static inline int device_alloc(int dev, struct binpool_alloc *a)
{
	return request(dev, BINPOOL_IOC_ALLOC, a);
}

/* The block's descriptor, or -errno. */
static inline int block_alloc(int dev, __u64 bytes)
{
	struct binpool_alloc a = alloc_request(bytes, 0);
	int ret = device_alloc(dev, &a);

	return ret ? ret : a.fd;
}

static inline int device_trim(int dev, __u64 held_bytes, __u64 *freed)
{
	struct binpool_trim t = {
		.size = sizeof(t),
		.held_bytes = held_bytes,
		.node = BINPOOL_NODE_ANY,
	};
	int ret = request(dev, BINPOOL_IOC_TRIM, &t);

	if (freed)
		*freed = t.freed_bytes;
	return ret;
}

/* Bounds the opener; 0 takes the bound away. */
static inline int device_limit(int dev, __u64 max_bytes, struct binpool_limit *answer)
{
	struct binpool_limit l = {.size = sizeof(l), .max_bytes = max_bytes};
	int ret = request(dev, BINPOOL_IOC_LIMIT, &l);

	if (answer)
		*answer = l;
	return ret;
}

static inline int block_query(int fd, struct binpool_query *q)
{
	memset(q, 0, sizeof(*q));
	q->size = sizeof(*q);
	return request(fd, BINPOOL_IOC_QUERY, q);
}

static inline void *block_map(int fd, __u64 len)
{
	return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

/* What /proc knows of an address. */

/* A field of smaps, in bytes, of the mapping that holds @addr. -errno if none. */
static inline long long smaps_bytes(const void *addr, const char *field)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	size_t want = strlen(field);
	long long result = -ENOENT;
	bool inside = false;
	char line[512];

	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f)) {
		unsigned long long from, to;

		if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
			inside = (uintptr_t)addr >= from && (uintptr_t)addr < to;
		else if (inside && !strncmp(line, field, want) && line[want] == ':') {
			result = strtoll(line + want + 1, NULL, 10) * (long long)KIB;
			break;
		}
	}
	fclose(f);
	return result;
}

/* Whether the mapping that holds @addr has a flag ("dd") in VmFlags. */
static inline bool smaps_flag(const void *addr, const char *flag)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	bool inside = false, found = false;
	char line[512], word[8];

	if (!f)
		return false;
	snprintf(word, sizeof(word), " %s", flag);
	while (fgets(line, sizeof(line), f)) {
		unsigned long long from, to;

		if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
			inside = (uintptr_t)addr >= from && (uintptr_t)addr < to;
		else if (inside && !strncmp(line, "VmFlags:", 8)) {
			found = strstr(line, word) != NULL;
			break;
		}
	}
	fclose(f);
	return found;
}

/* Page frame number of a mapped address of this process; 0 if there is none. */
static inline __u64 pfn_of(const void *addr)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	__u64 entry = 0;

	if (fd < 0)
		return 0;
	if (pread(fd, &entry, sizeof(entry), (off_t)((uintptr_t)addr / page_bytes() * 8)) != 8)
		entry = 0;
	close(fd);
	return entry >> 63 ? entry & (((__u64)1 << 55) - 1) : 0;
}

/* Physical address of a mapped page. */
static inline __u64 physical(const void *p)
{
	return pfn_of(p) * page_bytes();
}

/* How often a page frame is mapped, by all processes; ~0 on failure. */
static inline __u64 map_count(__u64 pfn)
{
	int fd = open("/proc/kpagecount", O_RDONLY | O_CLOEXEC);
	__u64 count = ~0ULL;

	if (fd < 0)
		return count;
	if (pread(fd, &count, sizeof(count), (off_t)(pfn * 8)) != 8)
		count = ~0ULL;
	close(fd);
	return count;
}

/* A line of /proc/meminfo in bytes; 0 if there is none. */
static inline __u64 meminfo_bytes(const char *field)
{
	FILE *f = fopen("/proc/meminfo", "re");
	size_t want = strlen(field);
	__u64 result = 0;
	char line[256];

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f)) {
		if (!strncmp(line, field, want) && line[want] == ':')
			result = strtoull(line + want + 1, NULL, 10) * KIB;
	}
	fclose(f);
	return result;
}

/* Data. A word's value names its place, so no page can stand for another. */

static inline __u64 word_at(__u64 seed, __u64 offset)
{
	return (seed + 1) * 0x9e3779b97f4a7c15ULL ^ offset * 0xd1342543de82ef95ULL;
}

/* Every word. @offset: of @p in its block or file. */
static inline void fill(void *p, __u64 len, __u64 seed, __u64 offset)
{
	__u64 *w = p;

	for (__u64 i = 0; i < len / 8; i++)
		w[i] = word_at(seed, offset + i * 8);
}

static inline bool filled(const void *p, __u64 len, __u64 seed, __u64 offset)
{
	const __u64 *w = p;

	for (__u64 i = 0; i < len / 8; i++) {
		if (w[i] != word_at(seed, offset + i * 8))
			return false;
	}
	return true;
}

/* Only the first and the last word of each page: for large blocks. */
static inline void stamp(void *p, __u64 len, __u64 seed)
{
	size_t page = page_bytes();

	for (__u64 o = 0; o < len; o += page) {
		*(__u64 *)at(p, o) = word_at(seed, o);
		*(__u64 *)at(p, o + page - 8) = word_at(seed, o + page - 8);
	}
}

static inline bool stamped(const void *p, __u64 len, __u64 seed)
{
	size_t page = page_bytes();

	for (__u64 o = 0; o < len; o += page) {
		if (*(__u64 *)at(p, o) != word_at(seed, o) ||
		    *(__u64 *)at(p, o + page - 8) != word_at(seed, o + page - 8))
			return false;
	}
	return true;
}

/* The offset of the first byte that is not zero, or @len. */
static inline __u64 first_nonzero(const void *p, __u64 len)
{
	const __u64 *w = p;

	for (__u64 i = 0; i < len / 8; i++) {
		if (w[i])
			return i * 8;
	}
	return len;
}

/* Processes. */

/* Waits for a child; its exit status, or 128 + the signal that ended it. */
static inline int child_status(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The kernel log: a descriptor is a place in it. */

static inline int log_open(void)
{
	int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	if (fd >= 0)
		lseek(fd, 0, SEEK_END);
	return fd;
}

/* Whether a line of the log since @log was opened has @text. */
static inline bool log_has(int log, const char *text)
{
	char record[8192];
	bool found = false;

	for (;;) {
		ssize_t n = read(log, record, sizeof(record) - 1);

		if (n < 0 && errno == EPIPE)
			continue;
		if (n <= 0)
			return found;
		record[n] = '\0';
		found = found || strstr(record, text);
	}
}

/* A program that provokes complaints names parts of them before it includes this. */
#ifndef LOG_EXPECTED
#define LOG_EXPECTED "loading out-of-tree module", "module verification failed"
#endif

static inline bool log_line_is_bad(const char *line, unsigned int level)
{
	static const char *const bad[] = {
		"WARNING:",
		"BUG",
		"Oops",
		"Bad page",
		"Bad rss",
		"Bad swap",
		"general protect",
		"KASAN",
		"UBSAN",
		"refcount_t",
		"blocked for",
		"page dumped",
		"lockdep",
		"circular lock",
		"rcu_preempt det",
		"soft lockup",
		"hard LOCKUP",
		"Call Trace",
		"kernel NULL",
		"Out of memory",
		"kmemleak",
		"cannot create duplicate",
	};

	static const char *const expected[] = {LOG_EXPECTED};

	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
		if (strstr(line, expected[i]))
			return false;
	}
	if (level <= 4 && strstr(line, "binpool:"))
		return true;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (strstr(line, bad[i]))
			return true;
	}
	return level <= 2;
}

/*
 * Kernels' own complaints, which are no fault of anybody's. 6.12 and later re-arm the
 * timer of a scheduler's deadline server while it is queued, under emulation on a busy
 * machine. And with CONFIG_DMA_API_DEBUG a kernel believes that one device has a
 * buffer at a time, but dma-bufs are there for several. REPORT_EXPECTED is a
 * program's own.
 */
static inline bool log_report_is_others(const char *warning)
{
#ifdef REPORT_EXPECTED
	if (strstr(warning, REPORT_EXPECTED))
		return true;
#endif
	return strstr(warning, "kernel/time/hrtimer.c") || strstr(warning, " add_dma_entry+");
}

/* Prints what is bad in the log since the place of @fd; how many lines it is. */
static inline int log_count_bad(int fd)
{
	bool others_report = false;
	char record[8192];
	int bad = 0;

	for (;;) {
		ssize_t n = read(fd, record, sizeof(record) - 1);
		unsigned int priority;
		char *text;

		if (n < 0 && errno == EPIPE)
			continue; /* records were overwritten: go on with the oldest */
		if (n <= 0)
			break;
		record[n] = '\0';
		text = strchr(record, ';');
		if (!text || sscanf(record, "%u,", &priority) != 1 || priority >> 3)
			continue; /* not the kernel's */
		text[strcspn(text, "\n")] = '\0';
		if (strstr(text, "WARNING: ") && log_report_is_others(text))
			others_report = true;
		if (others_report) {
			others_report = !strstr(text, "---[ end trace");
			continue;
		}
		if (log_line_is_bad(text + 1, priority & 7)) {
			fprintf(stderr, "# kernel log: %s\n", text + 1);
			bad++;
		}
	}
	return bad;
}

#endif /* BINPOOL_TEST_DEVICE_H */
