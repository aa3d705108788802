// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * alloc KIND BYTES: what the first pinned memory of a process costs, and every further one.
 * The driver and its context are there before; what that took is told.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <binpool.h>

#include "bench.h"

/* Pairs are counted until they took so long. */
#define AGAIN_MS       50.0
#define AGAIN_LEAST_MS 2000.0 /* not of those who took longer for the first */
#define AGAIN_MOST     1000000

/* A byte in each page: memory that only seems to be there has to come now. */
static void write_pages(char *at, size_t bytes)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);

	for (size_t i = 0; i < bytes; i += page)
		*(volatile char *)(at + i) = 1;
}

/* Microseconds of taking and giving back, again and again. */
static double again_us(struct memory *m, size_t bytes)
{
	double start, took;

	for (size_t n = 1;; n *= 2) {
		start = now_ms();
		for (size_t i = 0; i < n; i++)
			memory_put(m, memory_get(m, bytes), bytes);
		took = now_ms() - start;
		if (took >= AGAIN_MS || n >= AGAIN_MOST)
			return took * 1e3 / (double)n;
	}
}

/* What of the first came from where. */
static void tell_parts(const struct memory *m)
{
	struct binpool_stats st = {.size = sizeof(st)};

	if (!m->pool)
		return;
	POOL(binpool_get_stats(m->pool, &st));
	printf("provider_ms %.4f\nregistering_ms %.4f\n", (double)st.extent_alloc_ns / 1e6,
	       (double)st.registration_ns / 1e6);
}

int alloc_main(char **args)
{
	struct memory m;
	double start, first;
	size_t bytes;
	char *ptr;

	if (!args[0] || !args[1])
		end(1, "alloc KIND BYTES");
	bytes = bytes_of(args[1]);
	start = now_ms();
	cuda_open();
	printf("context_ms %.3f\n", now_ms() - start);

	start = now_ms();
	memory_open(&m, args[0]);
	printf("open_ms %.4f\n", now_ms() - start);
	ptr = memory_get(&m, bytes);
	printf("first_ms %.4f\n", now_ms() - start);
	write_pages(ptr, bytes);
	printf("first_written_ms %.4f\n", now_ms() - start);
	if (memory_is_pinned(&m) && (!cuda_is_pinned(ptr) || !cuda_is_pinned(ptr + bytes - 1)))
		end(1, "%s: the driver does not know the memory as pinned", args[0]);
	first = now_ms() - start;
	tell_parts(&m);
	start = now_ms();
	memory_put(&m, ptr, bytes);
	printf("free_ms %.4f\n", now_ms() - start);
	/* Who has no pool takes as long each time. */
	if (m.pool || first < AGAIN_LEAST_MS)
		printf("again_us %.4f\n", again_us(&m, bytes));
	/* What is left goes with the process, which nobody waits for here. */
	return 0;
}
