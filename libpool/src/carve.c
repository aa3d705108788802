// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Carving buffers out of extents' free runs and joining them again. Owns the
 * runs and the frames' indexes, with the lock of the extent's arena.
 *
 * A request takes the lowest free run that fits, of the oldest extent that has one:
 * so large runs stay whole at the upper end, which is also what an extent that grows
 * continues. An index says of each frame how large a run that begins there may be. It is
 * never too small; where it is too large, because a run was made smaller, the search
 * that finds nothing there corrects it.
 */
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "pool.h"

#define RUNS_PER_CHUNK 128
/* How many runs of a frame are looked at for the lowest, if not more before one fits. */
#define WALK_SHORT 4u
/* So many frames of an index are looked at at once. */
#define BLOCK_FRAMES 64u

struct run_chunk {
	struct run_chunk *next;
	struct run runs[RUNS_PER_CHUNK];
};

/* Has what another arena has too much of: extents go from one to another with their runs. */
static bool take_spares(struct binpool *pool, struct arena *arena)
{
	for (uint32_t i = 0; i < pool->arenas_used; i++) {
		struct arena *other = pool->arenas[i];

		if (other == arena || other->spares < 2 * RUNS_PER_CHUNK)
			continue;
		for (size_t n = 0; n < RUNS_PER_CHUNK; n++) {
			struct run *run = other->spare;

			other->spare = run->next;
			other->spares--;
			run_delete(arena, run);
		}
		return true;
	}
	return false;
}

int runs_prepare_more(struct binpool *pool, struct arena *arena)
{
	struct run_chunk *chunk;

	assert_locked(pool);
	if (take_spares(pool, arena))
		return 0;
	chunk = aligned_alloc(_Alignof(struct run_chunk), sizeof(*chunk));
	if (!chunk)
		return -ENOMEM;
	memset(chunk, 0, sizeof(*chunk));
	chunk->next = pool->chunks;
	pool->chunks = chunk;
	for (size_t i = 0; i < RUNS_PER_CHUNK; i++) {
		chunk->runs[i].pool = pool;
		run_delete(arena, &chunk->runs[i]);
	}
	return 0;
}

/* It is free, of no slab, and its pool is known; what else it says is of the past. */
struct run *run_new(struct arena *arena)
{
	struct run *run = arena->spare;

	arena->spare = run->next;
	arena->spares--;
	return run;
}

void run_delete(struct arena *arena, struct run *run)
{
	/* Who still has it from a look without the lock sees that it is no buffer. */
	run_set_state(run, RUN_FREE);
	run->next = arena->spare;
	arena->spare = run;
	arena->spares++;
}

void runs_fini(struct binpool *pool)
{
	struct run_chunk *next;

	for (struct run_chunk *chunk = pool->chunks; chunk; chunk = next) {
		next = chunk->next;
		free(chunk);
	}
}

/* What an index tells runs of @bytes, 16 or more, from others by; 0 is none. */
static inline int16_t class_of(uint64_t bytes)
{
	uint32_t l = 63 ^ (uint32_t)__builtin_clzll(bytes);

	return (int16_t)((l << INDEX_BITS) + (uint32_t)(bytes >> (l - INDEX_BITS)) + 1);
}

int16_t run_class(uint64_t bytes)
{
	return class_of(bytes);
}

static uint64_t frame_of(const struct run *run)
{
	return (uint64_t)(run->base - run->extent->base) >> MAP_FRAME_SHIFT;
}

/* Makes an extent's index, empty; of an allocator's there is none. -ENOMEM. */
int runs_index(struct extent *e)
{
	struct frame_index *index = &e->free;
	uint64_t frames = (e->room + ((uint64_t)1 << MAP_FRAME_SHIFT) - 1) >> MAP_FRAME_SHIFT;
	uint64_t bytes = round_up(frames, BLOCK_FRAMES) * sizeof(*index->most);

	index->most = aligned_alloc(BLOCK_FRAMES * sizeof(*index->most), bytes);
	index->first = calloc(frames, sizeof(struct run *));
	if (!index->most || !index->first) {
		runs_unindex(e);
		return -ENOMEM;
	}
	memset(index->most, 0, bytes);
	index->frames = frames;
	return 0;
}

void runs_unindex(struct extent *e)
{
	free(e->free.most);
	free(e->free.first);
	e->free = (struct frame_index){0};
}

/* A free run has become so large. */
static inline void index_raise(struct run *run)
{
	struct frame_index *index = &run->extent->free;
	int16_t *most, class;

	if (!index->frames)
		return;
	class = class_of(run->bytes);
	most = &index->most[frame_of(run)];
	if (*most < class)
		*most = class;
	if (index->most_of_all < class)
		index->most_of_all = class;
}

static inline void index_add(struct run *run)
{
	struct frame_index *index = &run->extent->free;
	struct run **first;

	run_set_state(run, RUN_FREE);
	if (!index->frames)
		return;
	first = &index->first[frame_of(run)];
	run->list_prev = NULL;
	run->list_next = *first;
	if (run->list_next)
		run->list_next->list_prev = run;
	*first = run;
	index_raise(run);
}

static inline void index_remove(struct run *run)
{
	struct frame_index *index = &run->extent->free;
	uint64_t frame;

	if (!index->frames)
		return;
	if (run->list_next)
		run->list_next->list_prev = run->list_prev;
	if (run->list_prev) {
		run->list_prev->list_next = run->list_next;
		return;
	}
	frame = frame_of(run);
	index->first[frame] = run->list_next;
	if (!run->list_next)
		index->most[frame] = 0;
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

/* Which of a block's frames may have a run of @class or above: a bit for each. */
#ifdef __SSE2__
static inline uint64_t block_mask(const int16_t *most, int16_t class)
{
	const __m128i below = _mm_set1_epi16((int16_t)(class - 1)), *at = (const __m128i *)most;
	uint64_t mask = 0;

#pragma GCC unroll 4
	for (uint32_t i = 0; i < BLOCK_FRAMES; i += 16, at += 2) {
		__m128i above = _mm_packs_epi16(_mm_cmpgt_epi16(at[0], below),
						_mm_cmpgt_epi16(at[1], below));

		mask |= (uint64_t)(uint32_t)_mm_movemask_epi8(above) << i;
	}
	return mask;
}
#else
static inline uint64_t block_mask(const int16_t *most, int16_t class)
{
	uint64_t mask = 0;

	for (uint32_t i = 0; i < BLOCK_FRAMES; i++)
		mask |= (uint64_t)(most[i] >= class) << i;
	return mask;
}
#endif

/* The lowest run of the frame that fits; else corrects what the index says of it. */
static struct run *frame_find(struct frame_index *index, uint64_t frame, uint64_t bytes,
			      uint64_t align)
{
	struct run *lowest = NULL;
	uint64_t largest = 0;
	uint32_t seen = 0;

	for (struct run *run = index->first[frame]; run && (!lowest || seen < WALK_SHORT);
	     run = run->list_next, seen++) {
		if (run_fits(run, bytes, align)) {
			if (!lowest || run->base < lowest->base)
				lowest = run;
		} else {
			largest = u64_max(largest, run->bytes);
		}
	}
	if (lowest)
		return lowest;
	index->most[frame] = largest ? class_of(largest) : 0;
	return NULL;
}

/* As extent_find(), where the index says of @class, that of @bytes, that there may be one. */
static struct run *index_find(struct frame_index *index, int16_t class, uint64_t bytes,
			      uint64_t align)
{
	bool misfits = false;

	for (uint64_t block = 0; block < index->frames; block += BLOCK_FRAMES) {
		uint64_t mask = block_mask(index->most + block, class);

		for (; mask; mask &= mask - 1) {
			uint64_t frame = block + (uint32_t)__builtin_ctzll(mask);
			struct run *run = frame_find(index, frame, bytes, align);

			if (run)
				return run;
			misfits = misfits || index->most[frame] >= class;
		}
	}
	if (!misfits)
		index->most_of_all = (int16_t)(class - 1);
	return NULL;
}

/* The free run of an extent that the request is best carved from, or NULL. */
struct run *extent_find(struct extent *e, uint64_t bytes, uint64_t align)
{
	int16_t class = class_of(bytes);

	return e->free.most_of_all < class ? NULL : index_find(&e->free, class, bytes, align);
}

/*
 * The free run that @bytes at a multiple of @align are best carved from, or NULL: of
 * @arena, whose lock is enough then, or NULL: of any.
 */
struct run *run_find(const struct binpool *pool, const struct arena *arena, uint64_t bytes,
		     uint64_t align)
{
	struct extent *e = arena ? arena->extents : pool->extents;
	int16_t class = class_of(bytes);

	for (; e; e = arena ? e->arena_next : e->next) {
		struct run *run = NULL;

		if (e->free.most_of_all >= class)
			run = index_find(&e->free, class, bytes, align);
		if (run)
			return run;
	}
	return NULL;
}

/* Puts @run between @lower and what is above it, NULL: below all of its extent. */
static void link_above(struct run *run, struct run *lower)
{
	struct extent *e = run->extent;

	run->prev = lower;
	run->next = lower ? lower->next : e->first;
	*(lower ? &lower->next : &e->first) = run;
	*(run->next ? &run->next->prev : &e->last) = run;
}

static void unlink_run(struct run *run)
{
	LIST_UNLINK(run->extent->first, run->extent->last, run);
}

/* Makes all of an extent one free run. runs_prepare() came before. Locked. */
void runs_start(struct binpool *pool, struct extent *e)
{
	struct run *run = run_new(e->arena);

	assert_locked(pool);
	run->extent = e;
	run->base = e->base;
	run->bytes = e->bytes;
	run->clean = pool->provider.ops->zeroed;
	link_above(run, NULL);
	index_add(run);
}

/* Adds @bytes above an extent that has them by now. runs_prepare() came before. Locked. */
void runs_extend(struct binpool *pool, struct extent *e, uint64_t bytes)
{
	struct run *run = e->last;

	assert_locked(pool);
	if (run_is_free(run)) {
		run->bytes += bytes;
		run->clean = run->clean && pool->provider.ops->zeroed;
		index_raise(run);
	} else {
		run = run_new(e->arena);
		run->extent = e;
		run->base = e->base + e->bytes;
		run->bytes = bytes;
		run->clean = pool->provider.ops->zeroed;
		link_above(run, e->last);
		index_add(run);
	}
	e->bytes += bytes;
}

/*
 * Takes @bytes at the end of an extent, which are free and not all of it, out of it. What it
 * returns is for run_delete(), after which runs_extend() can bring them back at once.
 * runs_prepare() came before. Locked.
 */
struct run *runs_cut(struct binpool *pool, struct extent *e, uint64_t bytes)
{
	struct run *run = e->last;

	assert_locked(pool);
	assert(run_is_free(run) && run->bytes >= bytes && e->bytes > bytes);
	e->bytes -= bytes;
	run->bytes -= bytes;
	if (run->bytes)
		return run_new(e->arena);
	index_remove(run);
	unlink_run(run);
	return run;
}

/*
 * Makes a buffer out of a free run that fits: in no list, not in the lookup
 * table. runs_prepare() came before, so it cannot fail. The arena's lock is enough.
 */
struct run *carve_from(struct binpool *pool, struct run *run, uint64_t bytes, uint64_t align)
{
	uint64_t pad = padding(run, align);
	struct extent *e = run->extent;
	struct run *buffer, *rest;
	uint64_t left = run->bytes - pad - bytes, frame;

	assert_arena(pool, e->arena);
	if (!pad && !left) {
		index_remove(run);
		buffer = run;
	} else {
		buffer = run_new(e->arena);
		buffer->extent = e;
		buffer->base = run->base + pad;
		buffer->bytes = bytes;
		buffer->clean = run->clean;
	}
	if (pad) {
		run->bytes = pad;
		link_above(buffer, run);
		if (left) {
			rest = run_new(e->arena);
			rest->extent = e;
			rest->base = buffer->base + bytes;
			rest->bytes = left;
			rest->clean = run->clean;
			link_above(rest, buffer);
			index_add(rest);
		}
	} else if (left) {
		link_above(buffer, run->prev);
		frame = frame_of(run);
		if ((uint64_t)(run->base + bytes - e->base) >> MAP_FRAME_SHIFT == frame) {
			run->base += bytes;
			run->bytes = left;
			if (!run->list_prev && !run->list_next && e->free.frames)
				e->free.most[frame] = class_of(left);
		} else {
			index_remove(run);
			run->base += bytes;
			run->bytes = left;
			index_add(run);
		}
	}
	run_set_ptr(buffer, buffer->base);
	if (!e->buffers++)
		extent_set_empty(pool, e, false);
	return buffer;
}

struct run *carve(struct binpool *pool, const struct arena *arena, uint64_t bytes, uint64_t align)
{
	struct run *run = run_find(pool, arena, bytes, align);

	return run ? carve_from(pool, run, bytes, align) : NULL;
}

/*
 * The end of a buffer, which is in no list any more: a free run, joined with
 * its free neighbours, or a free slot of its slab. The arena's lock is enough for one that is
 * not in a slab.
 */
void dissolve(struct binpool *pool, struct run *run)
{
	struct run *upper = run->next, *lower = run->prev;
	struct arena *arena = run->extent->arena;

	assert_arena(pool, arena);
	if (run->slab) {
		slab_give(pool, run);
		return;
	}
	if (!--run->extent->buffers)
		extent_set_empty(pool, run->extent, true);
	if (!upper || (!upper->next && run_is_free(upper)))
		run->extent->since = stamp_of(pool);
	if (upper && run_is_free(upper)) {
		run->bytes += upper->bytes;
		run->clean = run->clean && upper->clean;
		index_remove(upper);
		unlink_run(upper);
		run_delete(arena, upper);
	}
	if (lower && run_is_free(lower)) {
		lower->bytes += run->bytes;
		lower->clean = run->clean && lower->clean;
		unlink_run(run);
		run_delete(arena, run);
		index_raise(lower);
	} else {
		index_add(run);
	}
}
