// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Carving buffers out of extents' free runs and joining them again. Owns the
 * runs and the free indexes; pool->lock.
 *
 * A free index keeps the free runs in lists by size, classed as bins are, and
 * bitmaps of the lists that are not empty. A request takes the smallest run it
 * sees that fits: it looks at a few of its own class, then at the classes
 * above, where all fit unless alignment is in the way. Only before it gives up
 * does it look at all.
 */
#include <stdlib.h>

#include "pool.h"

#define RUNS_PER_CHUNK 128
/* How many runs of a list are looked at, as long as there are others. */
#define WALK_SHORT 16u

struct run_chunk {
	struct run_chunk *next;
	struct run runs[RUNS_PER_CHUNK];
};

/* Makes sure that run_new succeeds three times: a carving needs two, a new extent one. */
int runs_prepare(struct binpool *pool)
{
	struct run_chunk *chunk;

	assert_locked(pool);
	if (pool->spare && pool->spare->next && pool->spare->next->next)
		return 0;
	chunk = aligned_alloc(_Alignof(struct run_chunk), sizeof(*chunk));
	if (!chunk)
		return -ENOMEM;
	chunk->next = pool->chunks;
	pool->chunks = chunk;
	for (size_t i = 0; i < RUNS_PER_CHUNK; i++)
		run_delete(pool, &chunk->runs[i]);
	return 0;
}

struct run *run_new(struct binpool *pool)
{
	struct run *run = pool->spare;

	pool->spare = run->next;
	*run = (struct run){.pool = pool};
	return run;
}

void run_delete(struct binpool *pool, struct run *run)
{
	run->next = pool->spare;
	pool->spare = run;
}

void runs_fini(struct binpool *pool)
{
	struct run_chunk *next;

	for (struct run_chunk *chunk = pool->chunks; chunk; chunk = next) {
		next = chunk->next;
		free(chunk);
	}
}

void index_add(struct free_index *index, struct run *run)
{
	uint32_t list = binpool_bin_number(INDEX_BITS, run->bytes);
	uint32_t level = list >> INDEX_BITS;

	run_set_state(run, RUN_FREE);
	run->list_prev = NULL;
	run->list_next = index->head[list];
	if (run->list_next)
		run->list_next->list_prev = run;
	index->head[list] = run;
	index->lists[level] |= (uint16_t)(1u << (list & ((1u << INDEX_BITS) - 1)));
	index->levels |= (uint64_t)1 << level;
}

void index_remove(struct free_index *index, struct run *run)
{
	uint32_t list = binpool_bin_number(INDEX_BITS, run->bytes);
	uint32_t level = list >> INDEX_BITS;

	if (run->list_next)
		run->list_next->list_prev = run->list_prev;
	if (run->list_prev) {
		run->list_prev->list_next = run->list_next;
		return;
	}
	index->head[list] = run->list_next;
	if (run->list_next)
		return;
	index->lists[level] &= (uint16_t) ~(1u << (list & ((1u << INDEX_BITS) - 1)));
	if (!index->lists[level])
		index->levels &= ~((uint64_t)1 << level);
}

/* The first list from @list on that is not empty; INDEX_LISTS if none is. */
static uint32_t index_next(const struct free_index *index, uint32_t list)
{
	uint32_t level = list >> INDEX_BITS;
	uint32_t low = list & ((1u << INDEX_BITS) - 1);
	uint64_t levels;
	uint32_t lists;

	if (level > 63)
		return INDEX_LISTS;
	lists = index->lists[level] & ~((1u << low) - 1);
	if (!lists) {
		levels = level == 63 ? 0 : index->levels & (~(uint64_t)0 << (level + 1));
		if (!levels)
			return INDEX_LISTS;
		level = (uint32_t)__builtin_ctzll(levels);
		lists = index->lists[level];
	}
	return level << INDEX_BITS | (uint32_t)__builtin_ctz(lists);
}

static uint64_t padding(const struct run *run, uint64_t align)
{
	return -(uint64_t)(uintptr_t)run->base & (align - 1);
}

bool run_fits(const struct run *run, uint64_t bytes, uint64_t align)
{
	uint64_t pad = padding(run, align);

	return run->bytes >= pad && run->bytes - pad >= bytes;
}

static struct run *index_search(struct free_index *index, uint64_t bytes, uint64_t align,
				uint32_t walk)
{
	struct run *best = NULL;
	uint32_t list = index_next(index, binpool_bin_number(INDEX_BITS, bytes));

	while (!best && list < INDEX_LISTS) {
		uint32_t seen = 0;

		for (struct run *run = index->head[list]; run && seen < walk;
		     run = run->list_next, seen++)
			if (run_fits(run, bytes, align) && (!best || run->bytes < best->bytes))
				best = run;
		list = index_next(index, list + 1);
	}
	return best;
}

/* The free run that @bytes at a multiple of @align are best carved from, or NULL. */
struct run *index_find(struct free_index *index, uint64_t bytes, uint64_t align)
{
	struct run *run = index_search(index, bytes, align, WALK_SHORT);

	return run ? run : index_search(index, bytes, align, UINT32_MAX);
}

static void link_after(struct run *run, struct run *new)
{
	new->prev = run;
	new->next = run->next;
	if (run->next)
		run->next->prev = new;
	run->next = new;
}

/* Cuts @run, which is in no list, at @bytes; returns the upper part, in no list. */
static struct run *split(struct binpool *pool, struct run *run, uint64_t bytes)
{
	struct run *upper = run_new(pool);

	upper->extent = run->extent;
	upper->base = run->base + bytes;
	upper->bytes = run->bytes - bytes;
	upper->clean = run->clean;
	run->bytes = bytes;
	link_after(run, upper);
	return upper;
}

/*
 * Makes a buffer out of a free run that fits: in no list, not in the lookup
 * table. runs_prepare() came before, so it cannot fail.
 */
struct run *carve_from(struct binpool *pool, struct run *run, uint64_t bytes, uint64_t align)
{
	struct free_index *index = run->extent->is_void ? &pool->void_free : &pool->free;
	uint64_t pad = padding(run, align);
	struct run *rest;

	assert_locked(pool);
	index_remove(index, run);
	if (pad) {
		rest = run;
		run = split(pool, run, pad);
		index_add(index, rest);
	}
	if (run->bytes > bytes) {
		rest = split(pool, run, bytes);
		index_add(index, rest);
	}
	run->ptr = run->base;
	if (!run->extent->buffers++)
		extent_set_empty(pool, run->extent, false);
	return run;
}

struct run *carve(struct binpool *pool, struct free_index *index, uint64_t bytes, uint64_t align)
{
	struct run *run = index_find(index, bytes, align);

	return run ? carve_from(pool, run, bytes, align) : NULL;
}

/* Joins @run with the run above it, which goes. Neither is in a list. */
static void join(struct binpool *pool, struct run *run)
{
	struct run *upper = run->next;

	run->bytes += upper->bytes;
	run->clean = run->clean && upper->clean;
	run->next = upper->next;
	if (run->next)
		run->next->prev = run;
	run_delete(pool, upper);
}

/*
 * The end of a buffer, which is in no list any more: a free run, joined with
 * its free neighbours, or a free slot of its slab.
 */
void dissolve(struct binpool *pool, struct run *run)
{
	struct free_index *index = run->extent->is_void ? &pool->void_free : &pool->free;

	assert_locked(pool);
	if (run->slab) {
		slab_give(pool, run);
		return;
	}
	if (!--run->extent->buffers)
		extent_set_empty(pool, run->extent, true);
	if (run->next && run_state(run->next) == RUN_FREE) {
		index_remove(index, run->next);
		join(pool, run);
	}
	if (run->prev && run_state(run->prev) == RUN_FREE) {
		run = run->prev;
		index_remove(index, run);
		join(pool, run);
	}
	index_add(index, run);
}
