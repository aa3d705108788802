// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * DPDK's rte_mempool: a pool of fixed size for each power of two from 4 KiB to 16 MiB,
 * with per-thread caches. A shared object of its own, since it brings much with it.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>

#include <rte_eal.h>
#include <rte_lcore.h>
#include <rte_mempool.h>

#include "peer.h"

#define CLASSES	  13
#define CLASS_MIN 12

/* Buffers that a thread keeps by itself; up to half as many more are left in between. */
#define CACHE 32

static struct rte_mempool *pools[CLASSES];
static uint64_t reserved;

static unsigned int class_of(size_t bytes)
{
	unsigned int order = bytes > 1 ? 64 - (unsigned int)__builtin_clzll(bytes - 1) : 0;

	return order > CLASS_MIN ? order - CLASS_MIN : 0;
}

static int begin(const struct bench *bench)
{
	/* Without huge pages: they need not be touched here, and none are set aside. */
	char *argv[] = {"hotpath", "--no-huge", "--no-shconf", "--no-pci", "--no-telemetry",
			"-m",	   "10240",	"-l",	       "0",	   "--log-level=error"};
	const unsigned int n = bench->live + 2 * CACHE;
	cpu_set_t cpus;

	/* It binds this thread, and so all others, to one CPU. */
	sched_getaffinity(0, sizeof(cpus), &cpus);
	if (rte_eal_init(sizeof(argv) / sizeof(argv[0]), argv) < 0) {
		fprintf(stderr, "hotpath: DPDK does not start\n");
		return -1;
	}
	sched_setaffinity(0, sizeof(cpus), &cpus);
	for (unsigned int i = 0; i < CLASSES; i++) {
		unsigned int bytes = 1u << (CLASS_MIN + i), many = i > 4 ? n : 8 * n;
		char name[32];

		snprintf(name, sizeof(name), "bench%u", bytes);
		pools[i] = rte_mempool_create(name, many, bytes, CACHE, 0, NULL, NULL, NULL, NULL,
					      SOCKET_ID_ANY, 0);
		if (!pools[i]) {
			fprintf(stderr, "hotpath: no mempool of %u times %u bytes\n", many, bytes);
			return -1;
		}
		reserved += (uint64_t)many * bytes;
	}
	return 0;
}

static void end(void)
{
	rte_eal_cleanup();
}

static int thread_begin(void)
{
	return rte_thread_register();
}

static void thread_end(void)
{
	rte_thread_unregister();
}

static void *pool_alloc(int pool, size_t bytes)
{
	void *ptr;

	(void)pool;
	return rte_mempool_get(pools[class_of(bytes)], &ptr) ? NULL : ptr;
}

static void pool_free(int pool, void *ptr)
{
	(void)pool;
	rte_mempool_put(rte_mempool_from_obj(ptr), ptr);
}

static size_t usable(int pool, void *ptr)
{
	(void)pool;
	return rte_mempool_from_obj(ptr)->elt_size;
}

static uint64_t reserved_max(void)
{
	return reserved;
}

const struct peer peer_dpdk = {
	.begin = begin,
	.end = end,
	.thread_begin = thread_begin,
	.thread_end = thread_end,
	.alloc = pool_alloc,
	.free = pool_free,
	.usable = usable,
	.reserved_max = reserved_max,
};
