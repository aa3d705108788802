/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What /proc/zoneinfo says of the system's memory.
 */
#ifndef BINPOOL_TEST_ZONEINFO_H
#define BINPOOL_TEST_ZONEINFO_H

#include "device.h"

/*
 * Memory that is free, but in the lists of single CPUs, where MemFree and MemAvailable leave
 * it out: the more, the faster it comes and goes.
 */
static inline __u64 cpus_free_bytes(void)
{
	FILE *f = fopen("/proc/zoneinfo", "re");
	unsigned long long count;
	__u64 pages = 0;
	char line[256];

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, " count: %llu", &count) == 1)
			pages += count;
	}
	if (f)
		fclose(f);
	return pages * page_bytes();
}

#endif /* BINPOOL_TEST_ZONEINFO_H */
