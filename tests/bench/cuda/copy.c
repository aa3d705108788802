// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * copy ROUNDS BYTES KIND...: rates of copies to the device and back, by one stream and by several,
 * of memory of each kind by turns. Data is looked at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define REPEAT	4 /* copies of a turn */
#define STREAMS 4
#define KINDS	8

static CUstream streams[STREAMS];
static CUdeviceptr device;
static size_t all_bytes;

struct candidate {
	const char *name;
	struct memory memory;
	char *ptr;
};

/* GB/s of a turn: the memory, cut into as many parts as there are streams, each on its own. */
static double turn(const struct candidate *c, bool back, size_t parts)
{
	const size_t bytes = all_bytes / parts;
	double start = now_ms();

	for (int r = 0; r < REPEAT; r++)
		for (size_t i = 0; i < parts; i++) {
			char *host = c->ptr + i * bytes;

			if (back)
				CU(MemcpyDtoHAsync_v2(host, device + i * bytes, bytes, streams[i]));
			else
				CU(MemcpyHtoDAsync_v2(device + i * bytes, host, bytes, streams[i]));
		}
	for (size_t i = 0; i < parts; i++)
		CU(StreamSynchronize(streams[i]));
	return (double)all_bytes * REPEAT / (now_ms() - start) / 1e6;
}

static void look(const struct candidate *c, uint64_t seed)
{
	double start;

	pattern_fill(c->ptr, all_bytes, seed);
	start = now_ms();
	CU(MemcpyHtoD_v2(device, c->ptr, all_bytes));
	printf("first_h2d_ms.%s %.3f\n", c->name, now_ms() - start);
	memset(c->ptr, 0, all_bytes);
	CU(MemcpyDtoH_v2(c->ptr, device, all_bytes));
	if (pattern_check(c->ptr, all_bytes, seed) != all_bytes)
		end(1, "%s: data is wrong after a copy to the device and back", c->name);
}

int copy_main(char **args)
{
	struct candidate candidates[KINDS];
	size_t n = 0;
	int rounds;

	if (!args[0] || !args[1] || !args[2])
		end(1, "copy ROUNDS BYTES KIND...");
	rounds = atoi(*args++);
	all_bytes = bytes_of(*args++);
	cuda_open();
	CU(MemAlloc_v2(&device, all_bytes));
	for (int i = 0; i < STREAMS; i++)
		CU(StreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
	for (; args[n]; n++) {
		if (n == KINDS)
			end(1, "more than %d kinds", KINDS);
		candidates[n].name = args[n];
		memory_open(&candidates[n].memory, args[n]);
		candidates[n].ptr = memory_get(&candidates[n].memory, all_bytes);
		look(&candidates[n], n);
	}
	for (int r = 0; r < rounds; r++)
		for (int back = 0; back < 2; back++)
			for (size_t parts = 1; parts <= STREAMS; parts += STREAMS - 1)
				for (size_t i = 0; i < n; i++) {
					printf("%s_%zu_GBps.%s %.3f\n", back ? "d2h" : "h2d", parts,
					       args[i], turn(&candidates[i], back, parts));
					fflush(stdout);
				}
	return 0;
}
