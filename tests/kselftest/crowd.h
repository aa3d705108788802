/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Strangers' memory: a crowd of pages, anonymous and of a file, that fills the machine
 * and then leaves every second place, so that hardly a frame is free as a whole. Its
 * bytes are known, and can be checked after the module has moved them.
 */
#ifndef BINPOOL_TEST_CROWD_H
#define BINPOOL_TEST_CROWD_H

#include <sys/uio.h>
#include <sys/utsname.h>

#include "device.h"

#define PARAMETERS "/sys/module/binpool/parameters/"

/* What is left free when the crowd is there, so that nobody has to be killed. */
#define CROWD_LEAVES (64 * MIB)

/* A mapping is filled by that much between two looks at what is free. */
#define CROWD_STEP (16 * MIB)

/* Pages side by side of one mapping. */
#define CROWD_PAGES 16

struct crowd {
	char *anon;
	char *shared;
	__u64 len;  /* of each */
	int file;   /* of `shared` */
	int *pipes; /* ends of those that hold pages */
	unsigned int nr_pipes;
};

static inline int param_write(const char *name, __u64 value)
{
	char path[128], text[32];

	snprintf(path, sizeof(path), PARAMETERS "%s", name);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	return text_write(path, text);
}

static inline long long param_read(const char *name)
{
	char path[128], text[32];
	int n;

	snprintf(path, sizeof(path), PARAMETERS "%s", name);
	n = text_read(path, text, sizeof(text));
	return n < 0 ? n : text[0] == 'Y' ? 1 : text[0] == 'N' ? 0 : strtoll(text, NULL, 10);
}

/* Whether the module scans on this kernel: from Linux 6.12, or if told to on 6.1. */
static inline bool scans_here(void)
{
	unsigned int major, minor;
	struct utsname u;

	if (uname(&u) || sscanf(u.release, "%u.%u", &major, &minor) != 2)
		return false;
	return major > 6 || (major == 6 && minor >= 12) ||
	       (major == 6 && minor == 1 && param_read("contig_scan_61") == 1);
}

/* A number of /proc/vmstat; -1 if there is none of that name. */
static inline long long vmstat_read(const char *name)
{
	FILE *f = fopen("/proc/vmstat", "re");
	long long value = -1, one;
	char word[64];

	while (f && fscanf(f, "%63s %lld", word, &one) == 2) {
		if (!strcmp(word, name))
			value = one;
	}
	if (f)
		fclose(f);
	return value;
}

/* Killed processes since boot, by the OOM killer. */
static inline long long oom_kills(void)
{
	return vmstat_read("oom_kill");
}

static inline char *crowd_map(int fd, __u64 len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_NORESERVE, fd, 0);

	if (p != MAP_FAILED)
		madvise(p, len, MADV_NOHUGEPAGE);
	return p;
}

static inline void crowd_stamp(char *p, __u64 len, __u64 seed, __u64 offset)
{
	for (__u64 o = offset; o < offset + len; o += page_bytes()) {
		*(__u64 *)at(p, o) = word_at(seed, o);
		*(__u64 *)at(p, o + page_bytes() - 8) = word_at(seed, o);
	}
}

static inline bool crowd_stamped(const char *p, __u64 len, __u64 seed)
{
	for (__u64 o = 0; o < len; o += page_bytes()) {
		if (*(__u64 *)at(p, o) != word_at(seed, o) ||
		    *(__u64 *)at(p, o + page_bytes() - 8) != word_at(seed, o))
			return false;
	}
	return true;
}

/* Fills what is free, or @most bytes of it, piece by piece from two sides; one goes. 0 or -errno.
 */
static inline int crowd_come(struct crowd *c, __u64 most)
{
	const __u64 len = meminfo_bytes("MemTotal"), piece = CROWD_PAGES * page_bytes();
	char *gap;

	memset(c, 0, sizeof(*c));
	c->file = memfd_create("crowd", MFD_CLOEXEC);
	if (c->file < 0 || ftruncate(c->file, (off_t)len))
		return -errno;
	c->shared = crowd_map(c->file, len);
	c->anon = crowd_map(-1, len);
	gap = crowd_map(-1, 2 * len);
	if (c->shared == MAP_FAILED || c->anon == MAP_FAILED || gap == MAP_FAILED)
		return -errno;
	while (c->len < most / 4 && meminfo_bytes("MemFree") > CROWD_LEAVES + 4 * CROWD_STEP) {
		for (__u64 end = c->len + CROWD_STEP; c->len < end; c->len += piece) {
			if (madvise(c->anon + c->len, piece, MADV_POPULATE_WRITE) ||
			    madvise(gap + 2 * c->len, piece, MADV_POPULATE_WRITE) ||
			    madvise(c->shared + c->len, piece, MADV_POPULATE_WRITE) ||
			    madvise(gap + 2 * c->len + piece, piece, MADV_POPULATE_WRITE))
				return -errno;
			crowd_stamp(c->anon, piece, 1, c->len);
			crowd_stamp(c->shared, piece, 2, c->len);
		}
	}
	munmap(gap, 2 * len);
	munmap(c->anon + c->len, len - c->len);
	munmap(c->shared + c->len, len - c->len);
	return 0;
}

/* Whether every page of the crowd is as it was. */
static inline bool crowd_is_well(const struct crowd *c)
{
	return crowd_stamped(c->anon, c->len, 1) && crowd_stamped(c->shared, c->len, 2);
}

/*
 * Puts one anonymous page of each @chunk of physical memory into a pipe, which takes a
 * reference that nothing shows: the page looks movable, and is not. How many, or -errno.
 */
static inline int crowd_hold(struct crowd *c, __u64 chunk)
{
	const __u64 machine = 2 * meminfo_bytes("MemTotal"); /* with the hole below 4 GiB */
	const size_t page = page_bytes(), chunks = machine / chunk + 1;
	bool *held = calloc(chunks, sizeof(*held));
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	int result = 0;

	c->pipes = calloc(2 * chunks, sizeof(*c->pipes));
	if (!held || !c->pipes || pagemap < 0)
		result = -ENOMEM;
	for (__u64 o = 0; result >= 0 && o < c->len; o += page) {
		struct iovec iov = {c->anon + o, page};
		__u64 entry, nr;
		int *ends = &c->pipes[2 * c->nr_pipes];

		if (pread(pagemap, &entry, 8, (off_t)((uintptr_t)iov.iov_base / page * 8)) != 8) {
			result = -EIO;
			break;
		}
		nr = (entry & (((__u64)1 << 55) - 1)) * page / chunk;
		if (nr >= chunks || held[nr])
			continue;
		if (pipe2(ends, O_CLOEXEC)) {
			result = -errno;
			break;
		}
		c->nr_pipes++;
		if (vmsplice(ends[1], &iov, 1, 0) != (ssize_t)page) {
			result = -errno;
			break;
		}
		held[nr] = true;
		result++;
	}
	if (pagemap >= 0)
		close(pagemap);
	free(held);
	return result;
}

static inline void crowd_let_go(struct crowd *c)
{
	for (unsigned int i = 0; i < 2 * c->nr_pipes; i++)
		close(c->pipes[i]);
	c->nr_pipes = 0;
	free(c->pipes);
	c->pipes = NULL;
}

static inline void crowd_leave(struct crowd *c)
{
	crowd_let_go(c);
	munmap(c->anon, c->len);
	munmap(c->shared, c->len);
	close(c->file);
}

/* Whether each page follows the one before, and all of it is zero; read, not written. */
static inline bool one_clean_run(int fd, __u64 len, __u64 align)
{
	const size_t page = page_bytes();
	const char *p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	__u64 first = 0;
	bool good = p != MAP_FAILED && first_nonzero(p, len) == len;

	for (__u64 o = 0; good && o < len; o += page) {
		__u64 entry, pfn;

		good = pread(pagemap, &entry, 8, (off_t)((uintptr_t)(p + o) / page * 8)) == 8 &&
		       entry >> 63;
		pfn = entry & (((__u64)1 << 55) - 1);
		if (!o)
			first = pfn;
		good = good && pfn && pfn == first + o / page;
	}
	close(pagemap);
	munmap((void *)(uintptr_t)p, len);
	return good && first * page % align == 0;
}

#endif /* BINPOOL_TEST_CROWD_H */
