// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * ready KIND BYTES HOW: a process wants much pinned memory, and to copy from its first part soon.
 * HOW is "foreground", or, of pools, "background": registered while it is used already. The memory
 * comes in PARTS pieces. "background-synchronize" and "background-synchronous" wait for their
 * copies in the driver, by cuStreamSynchronize and cuMemcpyHtoD, instead of asking now and then.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <binpool_cuda.h>

#include "bench.h"

#define PARTS 16

/* After that long nothing is copied any more until all is registered. */
#define COPY_MS 5000.0

static CUstream stream;
static CUevent event;

/* As who has other things to do meanwhile. */
static void copy_and_look(CUdeviceptr to, const void *from, size_t bytes)
{
	int err;

	CU(MemcpyHtoDAsync_v2(to, from, bytes, stream));
	CU(EventRecord(event, stream));
	while ((err = cu.EventQuery(event)) == CUDA_ERROR_NOT_READY)
		usleep(100);
	cuda_check("EventQuery", err);
}

static void copy_and_synchronize(CUdeviceptr to, const void *from, size_t bytes)
{
	CU(MemcpyHtoDAsync_v2(to, from, bytes, stream));
	CU(StreamSynchronize(stream));
}

static void copy_synchronously(CUdeviceptr to, const void *from, size_t bytes)
{
	CU(MemcpyHtoD_v2(to, from, bytes));
}

int ready_main(char **args)
{
	double start, ready, first, usable, copied_until = 0;
	void (*copy)(CUdeviceptr to, const void *from, size_t size) = copy_and_look;
	size_t bytes, copied = 0;
	CUdeviceptr there;
	char *p[PARTS];
	struct memory m;
	uint64_t id;
	bool background;
	int err;

	if (!args[0] || !args[1] || !args[2])
		end(1, "ready KIND BYTES HOW");
	bytes = bytes_of(args[1]) / PARTS;
	background = strcmp(args[2], "foreground") != 0;
	if (!strcmp(args[2], "background-synchronize"))
		copy = copy_and_synchronize;
	else if (!strcmp(args[2], "background-synchronous"))
		copy = copy_synchronously;
	cuda_open();
	CU(MemAlloc_v2(&there, bytes));
	CU(StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CU(EventCreate(&event, CU_EVENT_DISABLE_TIMING));

	start = now_ms();
	if (background) {
		memory_open_bare(&m, args[0]);
		POOL(binpool_register_in_background(m.pool, BINPOOL_UNLIMITED));
		POOL(binpool_cuda_attach(m.pool, 0, &id));
	} else {
		memory_open(&m, args[0]);
	}
	p[0] = memory_get(&m, bytes);
	if (background)
		POOL(binpool_wait_registered(m.pool, p[0], UINT32_MAX));
	CU(MemcpyHtoD_v2(there, p[0], bytes));
	first = now_ms();
	for (int i = 1; i < PARTS; i++)
		p[i] = memory_get(&m, bytes);
	usable = now_ms();
	while (background && (err = binpool_wait_registered(m.pool, NULL, 0))) {
		if (err != -EAGAIN)
			POOL(err);
		if (now_ms() - usable > COPY_MS) {
			POOL(binpool_wait_registered(m.pool, NULL, UINT32_MAX));
			continue;
		}
		copy(there, p[0], bytes);
		copied += bytes;
		copied_until = now_ms();
	}
	ready = now_ms();
	printf("first_copy_ms %.3f\nusable_ms %.3f\nready_ms %.3f\n", first - start, usable - start,
	       ready - start);
	if (copied)
		printf("meanwhile_GBps %.3f\n", (double)copied / (copied_until - usable) / 1e6);

	for (int i = 0; i < PARTS; i++)
		if (!cuda_is_pinned(p[i]) || !cuda_is_pinned(p[i] + bytes - 1))
			end(1, "the driver does not know part %d as pinned", i);
	pattern_fill(p[0], bytes, 1);
	CU(MemcpyHtoD_v2(there, p[0], bytes));
	CU(MemcpyDtoH_v2(p[PARTS - 1], there, bytes));
	if (pattern_check(p[PARTS - 1], bytes, 1) != bytes)
		end(1, "data is wrong after a copy to the device and back");
	return 0;
}
