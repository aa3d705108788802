/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a program has that uses the driver tests/modules/pinner.c. No state.
 */
#ifndef BINPOOL_TEST_PINNER_CALLS_H
#define BINPOOL_TEST_PINNER_CALLS_H

#include "../modules/pinner.h"
#include "device.h"

static inline int pinner_open(void)
{
	return open("/dev/" PINNER_NAME, O_RDWR | O_CLOEXEC);
}

static inline int pin(int s, const void *p, __u64 bytes, __u32 flags, __u32 max_seg,
		      struct pinner_pin *answer)
{
	struct pinner_pin local;

	if (!answer)
		answer = &local;
	*answer = (struct pinner_pin){
		.address = (uintptr_t)p,
		.bytes = bytes,
		.flags = flags,
		.max_seg = max_seg,
	};
	return request(s, PINNER_PIN, answer);
}

static inline int unpin(int s)
{
	return request(s, PINNER_UNPIN, NULL);
}

static inline int device_copy(int s, enum pinner_way way, void *buf, __u64 len, __u64 offset,
			      bool write)
{
	struct pinner_copy c = {
		.offset = offset,
		.bytes = len,
		.buf = (uintptr_t)buf,
		.way = way,
		.write = write,
	};

	return request(s, PINNER_COPY, &c);
}

/* Writes a pattern there, or says whether it is there. */
static inline bool device_fill(int s, enum pinner_way way, __u64 len, __u64 seed)
{
	void *buf = malloc(len);
	bool done;

	fill(buf, len, seed, 0);
	done = !device_copy(s, way, buf, len, 0, true);
	free(buf);
	return done;
}

static inline bool device_filled(int s, enum pinner_way way, __u64 len, __u64 seed)
{
	void *buf = malloc(len);
	bool same = !device_copy(s, way, buf, len, 0, false) && filled(buf, len, seed, 0);

	free(buf);
	return same;
}

/* The page frame numbers of @nr mapped pages from @p on; NULL if one is not there. */
static inline __u64 *pfns_of(const void *p, __u64 nr)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	const off_t from = (off_t)((uintptr_t)p / page_bytes() * 8);
	__u64 *pfns = malloc(nr * 8);
	bool all = pread(fd, pfns, nr * 8, from) == (ssize_t)(nr * 8);

	for (__u64 i = 0; all && i < nr; i++) {
		all = pfns[i] >> 63;
		pfns[i] &= ((__u64)1 << 55) - 1;
	}
	close(fd);
	if (all)
		return pfns;
	free(pfns);
	return NULL;
}

/* Reads each page, so that it is mapped. */
static inline void look(const volatile char *p, __u64 bytes)
{
	for (__u64 o = 0; o < bytes; o += page_bytes())
		(void)p[o];
	(void)p[bytes - 1];
}

/*
 * Whether what the driver was told is true of the mapped bytes: its entries are their
 * memory, in order, none longer than @longest pages, and no more of them than runs and
 * @longest need.
 */
static inline bool told_right(int s, const struct pinner_pin *told, const char *p, __u64 longest)
{
	const __u64 page = page_bytes(), offset = (uintptr_t)p % page;
	const __u64 nr = (offset + told->bytes + page - 1) / page;
	__u64 *pfns, needed = 0, runs = 0, run_max = 0, end, done = 0;
	bool right;

	look(p, told->bytes);
	pfns = pfns_of(p - offset, nr);
	if (!pfns)
		return false;
	for (__u64 run = 0; run < nr; run = end) {
		end = run + 1;
		while (end < nr && pfns[end] == pfns[run] + end - run)
			end++;
		runs++;
		needed += (end - run + longest - 1) / longest;
		run_max = end - run > run_max ? end - run : run_max;
	}
	right = told->pages == nr && told->runs == runs && told->run_max == run_max &&
		told->dma_bytes == told->bytes && told->cpu_entries == needed &&
		told->dma_entries == needed;
	for (__u32 i = 0; right && i < told->dma_entries; i++) {
		struct pinner_entry e = {.index = i};

		right = !request(s, PINNER_ENTRY, &e) && e.bytes &&
			(e.address % page + e.bytes + page - 1) / page <= longest;
		for (__u64 o = 0; right && o < e.bytes; o += page - (e.address + o) % page) {
			const __u64 at = offset + done + o;

			right = at < nr * page &&
				pfns[at / page] * page + at % page == e.address + o;
		}
		done += e.bytes;
	}
	free(pfns);
	return right && done == told->bytes;
}

#endif /* BINPOOL_TEST_PINNER_CALLS_H */
