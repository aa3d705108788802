// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers by the address that the user has: the page map, and for those that have
 * no place there (of an allocator, or of size 0) a hash table
 * with chains through the runs. Owns pool->lookup, lookup_size, lookup_count;
 * the pool's lock.
 */
#include <stdlib.h>

#include "pool.h"

#define LOOKUP_SIZE_MIN 256u

static uint64_t slot_of(const struct binpool *pool, const void *ptr)
{
	/* Fibonacci hashing: the high bits of the product depend on all bits of the address. */
	return ((uint64_t)(uintptr_t)ptr * 0x9e3779b97f4a7c15ull) >>
	       (64 - binpool_log2(pool->lookup_size));
}

/* Makes room for one more. -ENOMEM. A table that cannot grow only gets slower. */
int lookup_prepare(struct binpool *pool)
{
	uint64_t old_size = pool->lookup_size;
	struct run **old = pool->lookup, **table;
	struct run *run, *next;

	assert_locked(pool);
	if (pool->lookup_count < old_size)
		return 0;
	pool->lookup_size = old_size ? 2 * old_size : LOOKUP_SIZE_MIN;
	table = calloc(pool->lookup_size, sizeof(*table));
	if (!table) {
		pool->lookup_size = old_size;
		return old_size ? 0 : -ENOMEM;
	}
	pool->lookup = table;
	for (uint64_t i = 0; i < old_size; i++) {
		for (run = old[i]; run; run = next) {
			uint64_t slot = slot_of(pool, run->ptr);

			next = run->hash_next;
			run->hash_next = table[slot];
			table[slot] = run;
		}
	}
	free(old);
	return 0;
}

static bool hashed(const struct run *run)
{
	return run->pool->exact || run->extent->is_void;
}

void lookup_add(struct binpool *pool, struct run *run)
{
	uint64_t slot;

	assert_locked(pool);
	if (!hashed(run)) {
		if (!run->slab)
			map_set(run->ptr, run);
		return;
	}
	slot = slot_of(pool, run->ptr);
	run->hash_next = pool->lookup[slot];
	pool->lookup[slot] = run;
	pool->lookup_count++;
}

void lookup_remove(struct binpool *pool, struct run *run)
{
	struct run **at;

	assert_locked(pool);
	if (!hashed(run)) {
		if (!run->slab)
			map_set(run->ptr, NULL);
		return;
	}
	at = &pool->lookup[slot_of(pool, run->ptr)];
	while (*at != run)
		at = &(*at)->hash_next;
	*at = run->hash_next;
	pool->lookup_count--;
}

struct run *lookup_find(const struct binpool *pool, const void *ptr)
{
	struct run *run = map_find(ptr);

	if (run && run_pool(run) == pool && run_ptr(run) == ptr)
		return run;
	if (!pool->lookup_size)
		return NULL;
	for (run = pool->lookup[slot_of(pool, ptr)]; run; run = run->hash_next)
		if (run->ptr == ptr)
			return run;
	return NULL;
}
