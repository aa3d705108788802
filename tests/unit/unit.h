/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the unit tests share: random numbers that can be had again, a counting
 * allocator that fails on demand, and checks of a pool's counters.
 */
#ifndef UNIT_H
#define UNIT_H

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <binpool.h>
#include <linux/binpool_bins.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* Random numbers; the seed is BINPOOL_TEST_SEED or always the same, and printed. */
struct rng {
	uint64_t state;
};

struct rng rng_make(void);
uint64_t rng_next(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t bound);
/* A size whose logarithm is evenly spread up to 2^@bits. */
uint64_t rng_size(struct rng *r, uint32_t bits);

/* A tenth of the rounds where everything is slow: sanitizers, emulation. */
uint64_t rounds(uint64_t n);

/* An allocator that counts, hands out addresses without memory, and fails on demand. */
struct counter {
	pthread_mutex_t lock;
	uint64_t bytes, max_bytes; /* now, and bound */
	uint64_t allocs, frees;
	uint64_t next; /* address */
	int fail_with; /* once, or while fail_always */
	bool fail_always;
	bool real; /* malloc */
};

#define COUNTER_INIT                                                                               \
	{                                                                                          \
		.lock = PTHREAD_MUTEX_INITIALIZER, .max_bytes = UINT64_MAX, .next = 1 << 20        \
	}

int counter_alloc(void *ctx, uint64_t bytes, void **ptr);
void counter_free(void *ctx, void *ptr, uint64_t bytes);
struct binpool *counter_pool(struct counter *c, uint32_t classes, uint64_t max_bytes);

/* A pool of thp memory. */
struct binpool *thp_pool(uint64_t max_bytes);
/* A pool of extents of whatever BINPOOL_TEST_PROVIDER says; thp if it says nothing. */
struct binpool *real_pool(uint64_t max_bytes);

struct binpool_stats stats_of(struct binpool *pool);
/* Every identity of the counters, and the pool's structures. */
void check_pool(struct binpool *pool);
/* Fails the test with the library's sentence if @err is an error. */
void assert_ok(int err);
/* Fails unless the last error has @word in it. */
void assert_error_names(const char *word);
/* What a child wrote into a pipe, until it ended: its status. */
int child_said(pid_t pid, const int pipe[2], char *said, size_t len);
/* Runs this program again with that argument: its status, and all that it prints. */
int run_self(const char *argument, char *said, size_t len);

#endif /* UNIT_H */
