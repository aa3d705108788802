// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * reuse HOW ROUNDS: a buffer is taken, written, copied to the device and given up while the copy
 * may still be to come, again and again; then each copy is looked at. HOW:
 *
 *	stream	binpool_free_on_cuda_stream, which is to keep the buffer until then
 *	now	binpool_free, which does not: data has to be wrong, or the others prove nothing
 *	ring	by hand: pinned once, an event for each buffer, taken in turn
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <binpool_cuda.h>

#include "bench.h"

#define BYTES	(64 * KIB)
#define SLOTS	1024 /* copies between two looks */
#define BUFFERS 256  /* that there may be at once */
#define LOAD	(64 * MIB)
#define SEEN	(BUFFERS * 16)
#define WAIT_MS 20000

static struct binpool *pool;
static CUstream stream;

/* By hand. */
static struct {
	char *ptr;
	CUevent event;
} ring[BUFFERS];

/* ---- Whether buffers come again ------------------------------------------------------------ */

static const void *seen[SEEN];
static size_t distinct;

static void note_address(const void *ptr)
{
	size_t i = (uintptr_t)ptr / BYTES % SEEN;

	while (seen[i] && seen[i] != ptr)
		i = (i + 1) % SEEN;
	distinct += !seen[i];
	if (distinct == SEEN)
		end(1, "more than %d different buffers", SEEN - 1);
	seen[i] = ptr;
}

/* ---- Ways to take and to give up ------------------------------------------------------------ */

static void pool_open(void)
{
	struct binpool_options options = BINPOOL_OPTIONS_INIT;
	uint64_t id;

	options.provider = BINPOOL_PROVIDER_THP;
	options.max_bytes = BUFFERS * BYTES;
	POOL(binpool_create(&pool, &options));
	POOL(binpool_cuda_attach(pool, 0, &id));
}

static void *pool_take(size_t i)
{
	const struct binpool_alloc_opts want = {
		.size = sizeof(want),
		.bytes = BYTES,
		.flags = BINPOOL_BUF_WAIT,
		.wait_ms = WAIT_MS,
	};
	struct binpool_buf buf = {.size = sizeof(buf)};
	void *ptr = binpool_alloc_cached(pool, BYTES);

	(void)i;
	if (ptr)
		return ptr;
	POOL(binpool_alloc_ex(pool, &want, &buf));
	return buf.ptr;
}

static void pool_give_on_stream(void *ptr, size_t i)
{
	(void)i;
	POOL(binpool_free_on_cuda_stream(pool, ptr, stream));
}

static void pool_give_now(void *ptr, size_t i)
{
	(void)i;
	POOL(binpool_free(pool, ptr));
}

static void ring_open(void)
{
	void *all;

	CU(MemHostAlloc(&all, BUFFERS * BYTES, CU_MEMHOSTREGISTER_PORTABLE));
	for (size_t i = 0; i < BUFFERS; i++) {
		ring[i].ptr = (char *)all + i * BYTES;
		CU(EventCreate(&ring[i].event, CU_EVENT_DISABLE_TIMING));
	}
}

static void *ring_take(size_t i)
{
	CU(EventSynchronize(ring[i % BUFFERS].event));
	return ring[i % BUFFERS].ptr;
}

static void ring_give(void *ptr, size_t i)
{
	(void)ptr;
	CU(EventRecord(ring[i % BUFFERS].event, stream));
}

static const struct way {
	const char *name;
	void (*open)(void);
	void *(*take)(size_t i);
	void (*give)(void *ptr, size_t i);
} ways[] = {
	{"stream", pool_open, pool_take, pool_give_on_stream},
	{"now", pool_open, pool_take, pool_give_now},
	{"ring", ring_open, ring_take, ring_give},
};

/* ---- The loop -------------------------------------------------------------------------------- */

int reuse_main(char **args)
{
	const struct way *way = NULL;
	size_t rounds, wrong = 0;
	CUdeviceptr there, behind;
	void *load, *back;
	double took = 0;

	if (!args[0] || !args[1])
		end(1, "reuse HOW ROUNDS");
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (!strcmp(args[0], ways[i].name))
			way = &ways[i];
	if (!way)
		end(1, "no such way: %s", args[0]);
	rounds = (bytes_of(args[1]) + SLOTS - 1) / SLOTS * SLOTS;
	cuda_open();
	way->open();
	CU(StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CU(MemAlloc_v2(&there, SLOTS * BYTES));
	CU(MemAlloc_v2(&behind, LOAD));
	CU(MemHostAlloc(&load, LOAD, 0));
	CU(MemHostAlloc(&back, SLOTS * BYTES, 0));
	for (size_t first = 0; first < rounds; first += SLOTS) {
		double start = now_ms();

		for (size_t i = 0; i < SLOTS; i++) {
			void *ptr = way->take(first + i);

			/* Before them, so that they come late. */
			if (i % BUFFERS == 0)
				CU(MemcpyHtoDAsync_v2(behind, load, LOAD, stream));
			note_address(ptr);
			pattern_fill(ptr, BYTES, first + i);
			CU(MemcpyHtoDAsync_v2(there + i * BYTES, ptr, BYTES, stream));
			way->give(ptr, first + i);
		}
		CU(StreamSynchronize(stream));
		took += now_ms() - start;
		CU(MemcpyDtoH_v2(back, there, SLOTS * BYTES));
		for (size_t i = 0; i < SLOTS; i++)
			wrong += pattern_check((char *)back + i * BYTES, BYTES, first + i) != BYTES;
	}
	printf("rounds_n %zu\nreused_n %zu\nwrong_n %zu\neach_us %.3f\n", rounds, rounds - distinct,
	       wrong, took * 1e3 / (double)rounds);
	return 0;
}
