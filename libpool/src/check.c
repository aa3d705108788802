// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Are a pool's structures what they should be? For tests and debuggers: it
 * walks everything. Locked; owns nothing.
 */
#include "cache.h"

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			return #condition;                                                         \
	} while (0)

struct sums {
	uint64_t active, held, cached, free_runs, indexed, extents, empty, hashed;
	uint64_t asked, active_capacity, held_bytes, reserved, noted;
	uint64_t pending, registered, stuck;
};

static const char *check_buffer(const struct binpool *pool, const struct run *run, struct sums *sum)
{
	const struct extent *e = run->extent;

	CHECK(lookup_find(pool, run->ptr) == run);
	sum->hashed += map_find(run->ptr) != run;
	CHECK(run->ptr >= run->base && run->ptr + run->asked <= run->base + run->bytes);
	if (run_in_use(run) || run_state(run) == RUN_PENDING) {
		CHECK((run_state(run) == RUN_NOTED) == (note_find(pool, run) != NULL));
		sum->noted += run_state(run) == RUN_NOTED;
		sum->active++;
		sum->pending += run_state(run) == RUN_PENDING;
		sum->asked += run->asked;
		sum->active_capacity += e->is_void ? 0 : run->bytes;
	} else {
		CHECK((run_state(run) == RUN_HELD || run_state(run) == RUN_CACHED) && !e->is_void);
		sum->held++;
		sum->cached += run_state(run) == RUN_CACHED;
		sum->held_bytes += run->bytes;
	}
	CHECK(e->is_void || class_bin_capacity(pool, run->bin) == run->bytes);
	return NULL;
}

static const char *check_slab(const struct binpool *pool, const struct run *home, struct sums *sum)
{
	struct slab *slab = home->slab;
	const struct bin *b = &pool->levels[home->bin >> pool->mantissa_bits]
				       ->bins[home->bin & ((1u << pool->mantissa_bits) - 1)];
	const char *broken = NULL;
	uint32_t used = 0, unused = 0;
	bool listed = false;

	CHECK(slab && slab->home == home && slab->used);
	CHECK((uint64_t)slab->slots * slab->stride <= home->bytes);
	for (uint32_t i = 0; i < slab->fresh && !broken; i++) {
		const struct run *slot = &slab->slot[i];

		CHECK(slot->extent == home->extent && slot->slab == slab);
		CHECK(slot->ptr == home->base + (uint64_t)i * slab->stride);
		if (run_state(slot) == RUN_FREE)
			continue;
		used++;
		CHECK(slot->bin == home->bin);
		broken = check_buffer(pool, slot, sum);
	}
	if (broken)
		return broken;
	CHECK(used == slab->used);
	for (const struct run *slot = slab->free; slot; slot = slot->next, unused++)
		CHECK(run_state(slot) == RUN_FREE);
	CHECK(used + unused == slab->fresh);
	for (const struct slab *other = b->slabs; other; other = other->next)
		listed = listed || other == slab;
	CHECK(listed == (used < slab->slots));
	return NULL;
}

static const char *check_run(const struct binpool *pool, const struct run *run, struct sums *sum)
{
	CHECK(!run->next || run->next->prev == run);
	if (run_state(run) == RUN_SLAB)
		return check_slab(pool, run, sum);
	CHECK(!run->slab);
	if (run_state(run) == RUN_FREE) {
		sum->free_runs += run->extent->free.frames != 0;
		CHECK(!run->next || run_state(run->next) != RUN_FREE);
		return NULL;
	}
	return check_buffer(pool, run, sum);
}

/* What an index says of a frame may be more than there is, never less. */
static const char *check_index(const struct extent *e, uint64_t *n)
{
	for (uint64_t frame = 0; frame < e->free.frames; frame++) {
		int16_t most = e->free.most[frame];

		CHECK(most || !e->free.first[frame]);
		CHECK(most <= e->free.most_of_all);
		for (const struct run *run = e->free.first[frame]; run; run = run->list_next) {
			CHECK(run_state(run) == RUN_FREE);
			CHECK(!run->list_next || run->list_next->list_prev == run);
			CHECK((uint64_t)(run->base - e->base) >> MAP_FRAME_SHIFT == frame);
			CHECK(run_class(run->bytes) <= most);
			++*n;
		}
	}
	return NULL;
}

static const char *check_extent(const struct binpool *pool, const struct extent *e,
				struct sums *sum)
{
	const char *at = e->base;
	const char *broken;
	uint64_t buffers = 0;

	for (const struct run *run = e->first; run; run = run->next) {
		CHECK(run->extent == e && run->base == at && run->bytes);
		CHECK(run->next || e->last == run);
		broken = check_run(pool, run, sum);
		if (broken)
			return broken;
		at += run->bytes;
		buffers += run_state(run) != RUN_FREE;
	}
	CHECK(at == e->base + e->bytes && e->bytes <= e->room);
	CHECK(buffers == e->buffers);
	return check_index(e, &sum->indexed);
}

static const char *check_bins(const struct binpool *pool)
{
	uint64_t active = 0, held = 0, cached = 0, binned = 0;

	for (size_t l = 0; l < ARRAY_SIZE(pool->levels); l++) {
		uint64_t of_level = 0;

		for (size_t i = 0; pool->levels[l] && i < (size_t)1 << pool->mantissa_bits; i++) {
			const struct bin *b = &pool->levels[l]->bins[i];
			uint64_t n = 0;

			for (const struct run *run = b->head; run; run = run->list_next) {
				CHECK(run_state(run) == RUN_HELD);
				CHECK(run->bin == (l << pool->mantissa_bits) + i);
				binned += run->bytes;
				n++;
			}
			CHECK(n == b->held);
			CHECK((pool->levels[l]->holding[i / 64] >> i % 64 & 1) == (n != 0));
			cached += b->cached;
			of_level += n;
			active += b->active;
		}
		CHECK(!pool->levels[l] || pool->levels[l]->held == of_level);
		CHECK((pool->levels_held >> l & 1) == (of_level != 0));
		held += of_level;
	}
	CHECK(held + cached == pool->stats.held_blocks);
	CHECK(binned == pool->binned_bytes);
	CHECK(active <= pool->stats.active_blocks);
	return NULL;
}

/* No thread may be inside a call. */
static const char *check_caches(const struct binpool *pool, uint64_t in_runs)
{
	uint64_t buffers = 0, credit = 0, awake = 0;
	const char *broken = depot_check(pool, &buffers);

	if (broken)
		return broken;
	credit = depot_bytes(&pool->depot);
	for (const struct cache *c = pool->caches; c; c = c->next) {
		uint64_t bytes = 0;

		CHECK(c->pool == pool && !c->busy);
		CHECK(!(c->revoked & CACHE_REVOKED) == !pool->cache_off);
		for (const struct magazine *m = c->in_use; m; m = m->next) {
			uint32_t n = magazine_fill(m->count);

			CHECK(n <= m->room && m->room <= MAGAZINE_MAX);
			CHECK(!n || m - c->magazines <= c->top);
			CHECK(m->count == m->settled);
			for (uint32_t i = 0; i < n; i++) {
				const struct run *run = m->items[i].run;

				CHECK(run_state(run) == RUN_CACHED && run->bin == m->bin);
				CHECK(run->ptr == m->items[i].ptr && run->bytes == m->capacity);
			}
			buffers += n;
			bytes += n * m->capacity;
		}
		CHECK(bytes == cache_bytes(c) && bytes <= c->credit);
		CHECK(c->limit == (c->revoked ? 0 : (c->top + 1) * sizeof(struct magazine)));
		CHECK(c->credit <= c->granted && (!c->idle || !c->granted));
		awake += !c->idle;
		credit += c->granted;
	}
	CHECK(buffers == in_runs);
	CHECK(credit == pool->cache_credit && awake == pool->caches_awake);
	return NULL;
}

static const char *check_arenas(const struct binpool *pool)
{
	uint64_t extents = 0, threads = 0;

	for (uint32_t i = 0; i < pool->arenas_used; i++) {
		const struct arena *arena = pool->arenas[i];
		uint64_t spares = 0;

		for (const struct run *run = arena->spare; run; run = run->next, spares++)
			CHECK(run_state(run) == RUN_FREE);
		CHECK(spares == arena->spares);
		for (const struct extent *e = arena->extents; e; e = e->arena_next, extents++)
			CHECK(e->arena == arena);
		for (const struct extent *e = arena->empty; e; e = e->empty_next)
			CHECK(e->arena == arena && !e->buffers);
		threads += arena->threads;
	}
	for (const struct extent *e = pool->stuck; e; e = e->next)
		extents++;
	CHECK(extents == pool->stats.extents);
	CHECK(threads == pool->caches_awake);
	return NULL;
}

const char *pool_check(struct binpool *pool)
{
	const struct binpool_stats *st = &pool->stats;
	struct sums sum = {0};
	const char *broken = NULL;

	assert_locked(pool);
	caches_settle(pool);
	for (struct extent *e = pool->extents; e && !broken; e = e->next) {
		sum.extents++;
		sum.reserved += e->bytes;
		sum.empty += !e->buffers;
		sum.registered += e->registered ? e->bytes : 0;
		broken = check_extent(pool, e, &sum);
	}
	for (const struct extent *e = pool->stuck; e; e = e->next) {
		CHECK(!e->first && !e->buffers && !e->registered);
		sum.extents++;
		sum.reserved += e->bytes;
		sum.stuck += e->bytes;
	}
	for (struct extent *e = empty_after(pool, NULL); e && !broken; e = empty_after(pool, e))
		sum.empty--;
	for (struct extent *e = pool->voids; e && !broken; e = e->next)
		broken = check_extent(pool, e, &sum);
	if (!broken)
		broken = check_bins(pool);
	if (!broken)
		broken = check_caches(pool, sum.cached);
	if (broken)
		return broken;
	CHECK(sum.free_runs == sum.indexed);
	broken = check_arenas(pool);
	if (broken)
		return broken;
	CHECK(!sum.empty);
	CHECK(sum.active == st->active_blocks);
	CHECK(sum.held == st->held_blocks);
	CHECK(sum.asked == st->active_bytes);
	CHECK(sum.active_capacity == pool->active_capacity);
	broken = fences_check(pool, sum.pending);
	if (broken)
		return broken;
	CHECK(sum.held_bytes == st->held_bytes);
	CHECK(sum.reserved == st->reserved_bytes);
	CHECK(sum.registered == st->registered_bytes);
	CHECK(sum.stuck == st->stuck_bytes);
	CHECK(sum.extents == st->extents);
	CHECK(pool->lookup_count == sum.hashed);
	CHECK(pool->notes_count == sum.noted);
	CHECK(st->active_blocks == st->allocs + st->reuses - st->returns - st->frees_active);
	CHECK(st->held_blocks == st->returns - st->reuses - st->frees_held);
	CHECK(st->reserved_bytes <= pool->max_bytes - pool->pending);
	return NULL;
}
