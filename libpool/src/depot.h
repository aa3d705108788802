/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The depot of a pool; depot.c says what it is for. Part of pool.h.
 */
#ifndef BINPOOL_DEPOT_H
#define BINPOOL_DEPOT_H

#include <stdint.h>

#include "lock.h"

struct bin;
struct binpool;
struct cache;
struct magazine;
struct parcel;

/* Half of a magazine. */
#define PARCEL_MAX 32u

struct depot {
	struct lock lock;
	uint64_t bytes;		/* capacity of what is in it; read atomically */
	struct parcel *parcels; /* of all bins, the most recent first */
	struct parcel *spare;	/* empty ones */
} __attribute__((aligned(64)));

void depot_fini(struct binpool *pool);
/* Locked. */
void depot_empty(struct binpool *pool);
bool depot_empty_bin(struct binpool *pool, struct bin *bin);
void depot_take_old(struct binpool *pool, uint64_t before);
/* check.c's: what is broken, or NULL; adds to @buffers how many are in it. */
const char *depot_check(const struct binpool *pool, uint64_t *buffers);
/* With the pool locked, or an arena; of the thread's own cache. */
bool depot_give(struct cache *c, struct magazine *m, uint32_t n);
bool depot_take(struct cache *c, struct magazine *m, uint64_t most);

static inline uint64_t depot_bytes(const struct depot *depot)
{
	return __atomic_load_n(&depot->bytes, __ATOMIC_RELAXED);
}

#endif /* BINPOOL_DEPOT_H */
