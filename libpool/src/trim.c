// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Giving back what was not used for a while. Takes the turn and the pool's lock; owns
 * pool->stamp.
 *
 * Buffers in bins know since when they are held, magazines since when they are as
 * they are (cache.h), extents since when they are empty, or their end is free. What
 * goes back is whole extents and, where the provider can, ends of extents; so what is
 * held before a buffer in use stays held.
 */
#include <stdlib.h>
#include <time.h>

#include "cache.h"

uint64_t coarse_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Takes out of a cache what was not used since @before; what was is looked at anew. Locked. */
static void cache_take(struct cache *c, uint64_t before, uint64_t now)
{
	for (struct magazine *m = c->in_use; m; m = m->next) {
		uint32_t old = magazine_fill(m->since_count), n = magazine_fill(m->count);

		if (m->count >> MAGAZINE_BITS != m->since_count >> MAGAZINE_BITS)
			old = 0;
		old = old < n ? old : n;
		c->pool->stamp = now;
		if (before == UINT64_MAX) {
			magazine_leave(c, m, n, bins_hold);
		} else if (old && m->since <= before) {
			c->pool->stamp = m->since;
			magazine_leave(c, m, old, bins_hold);
		}
		if (!old || m->since <= before)
			magazine_look(m, now);
	}
	cache_set_credit(c, cache_bytes(c));
}

/* The same of all threads' caches and the depot, into the bins; @before UINT64_MAX: everything.
 * Locked. */
static void caches_take(struct binpool *pool, uint64_t before, uint64_t now)
{
	assert_locked(pool);
	caches_stop(pool);
	for (struct cache *c = pool->caches; c; c = c->next)
		cache_take(c, before, now);
	depot_take_old(pool, before);
	pool->stamp = now;
	caches_go(pool);
}

/* When a buffer was last held that is not in use, if all are; else UINT64_MAX. Locked. */
static uint64_t run_since(const struct run *run)
{
	uint64_t since = 0, one;

	switch (run_state(run)) {
	case RUN_FREE:
		return 0;
	case RUN_HELD:
		return run->since;
	case RUN_SLAB:
		for (uint32_t i = 0; i < run->slab->fresh; i++) {
			one = run_since(&run->slab->slot[i]);
			since = u64_max(since, one);
		}
		return since;
	default:
		return UINT64_MAX;
	}
}

/* The same of all that is in an extent. Locked. */
static uint64_t extent_since(const struct extent *e)
{
	uint64_t since = e->buffers ? 0 : e->since;

	for (const struct run *run = e->first; run && since != UINT64_MAX; run = run->next)
		since = u64_max(since, run_since(run));
	return since;
}

struct candidate {
	struct extent *e;
	uint64_t since;
};

static int longest_first(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	return x->since < y->since ? -1 : x->since > y->since;
}

/* Dissolves a held buffer, or all in a slab. It may be joined with its neighbours then. Locked. */
static void run_dissolve(struct binpool *pool, struct run *run)
{
	struct slab *slab = run_state(run) == RUN_SLAB ? run->slab : NULL;

	if (!slab)
		held_release_one(pool, run);
	for (uint32_t i = 0; slab && i < slab->fresh && slab->used; i++)
		if (run_state(&slab->slot[i]) == RUN_HELD)
			held_release_one(pool, &slab->slot[i]);
}

/*
 * Dissolves what is held at the end of an extent since @before, until @enough bytes are
 * free there. How many are. Locked.
 */
static uint64_t tail_dissolve(struct binpool *pool, struct extent *e, uint64_t before,
			      uint64_t enough)
{
	for (;;) {
		uint64_t free = run_state(e->last) == RUN_FREE ? e->last->bytes : 0;
		struct run *run = free ? e->last->prev : e->last;
		uint64_t since = run ? run_since(run) : UINT64_MAX;

		if (free >= enough || since == UINT64_MAX || since > before)
			return free;
		pool->stamp = u64_max(since, free ? e->since : 0);
		run_dissolve(pool, run);
	}
}

/*
 * Empties extents, those not used for longest first, and then ends of extents, until the
 * rest has at most @bytes. Locked. -ENOMEM.
 */
static int empty_extents(struct binpool *pool, uint64_t bytes, uint64_t before)
{
	uint64_t left = pool->stats.reserved_bytes;
	struct candidate *candidates;
	size_t n = 0;

	assert_locked(pool);
	if (!pool->extents || left <= bytes)
		return 0;
	candidates = calloc(pool->stats.extents, sizeof(*candidates));
	if (!candidates)
		return explain(-ENOMEM, "pool %s: the system has no memory for a list of extents",
			       pool->name);
	for (struct extent *e = pool->extents; e; e = e->next) {
		uint64_t since = extent_since(e);

		if (since != UINT64_MAX && since <= before)
			candidates[n++] = (struct candidate){e, since};
	}
	qsort(candidates, n, sizeof(*candidates), longest_first);
	for (size_t i = 0; i < n && left > bytes; i++) {
		left -= candidates[i].e->bytes;
		tail_dissolve(pool, candidates[i].e, before, UINT64_MAX);
	}
	for (struct extent *e = pool->extents; e && pool->provider.ops->shrink; e = e->next)
		if (left > bytes && e->buffers && !e->attachments)
			left -= u64_min(left, tail_dissolve(pool, e, before, left - bytes));
	free(candidates);
	return 0;
}

/* What empty extents hold beyond the largest. Locked. */
static uint64_t idle_bytes(const struct binpool *pool)
{
	uint64_t all = 0, most = 0;

	assert_locked(pool);
	for (const struct extent *e = empty_after(pool, NULL); e; e = empty_after(pool, e)) {
		all += e->bytes;
		most = u64_max(most, e->bytes);
	}
	return all - most;
}

/* As binpool_trim(); with @idle to what is reserved without idle_bytes(), instead. */
static int64_t trim(struct binpool *pool, uint64_t bytes, uint64_t age_ms, bool idle)
{
	const uint64_t ns_per_ms = 1000000;
	uint64_t now, age, before, freed;
	int err;

	if (__builtin_mul_overflow(age_ms, ns_per_ms, &age))
		age = UINT64_MAX;
	turn_take(pool);
	pool_lock(pool);
	/* In turn: what comes or goes after it was counted would be somebody else's. */
	if (idle)
		bytes = pool->stats.reserved_bytes - idle_bytes(pool);
	now = coarse_ns();
	before = age ? now - u64_min(age, now) : UINT64_MAX;
	caches_take(pool, before, now);
	err = empty_extents(pool, bytes, before);
	pool->stamp = now;
	bins_trim(pool);
	pool_unlock(pool);
	freed = extents_give_back_some(pool, bytes, before);
	freed += extents_shrink(pool, bytes, before);
	turn_give(pool);
	extents_settle(pool);
	if (err)
		return err;
	pool_trace(pool, "trim to %llu bytes, what is %llu ms old: %llu bytes given back",
		   (unsigned long long)bytes, (unsigned long long)age_ms,
		   (unsigned long long)freed);
	return (int64_t)freed;
}

EXPORT int64_t binpool_trim(struct binpool *pool, uint64_t bytes, uint64_t age_ms)
{
	int err = pool_enter(pool);

	if (err)
		return err;
	fences_poll(pool, UINT64_MAX);
	return trim(pool, bytes, age_ms, false);
}

/* Empty extents as old as that go, but one, which is for the next requests. */
void trim_idle(struct binpool *pool, uint64_t age_ms)
{
	bool some;

	pool_lock(pool);
	some = idle_bytes(pool) || pool->stuck;
	pool_unlock(pool);
	if (some)
		trim(pool, 0, age_ms, true);
}
