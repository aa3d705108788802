// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Answers about a pool. Reads under the pool's lock; owns nothing.
 */
#include "cache.h"

/* Looks at the pages of extents that are new. No lock is held. */
void stats_measure(struct binpool *pool)
{
	if (pool->exact)
		return;
	/* How far registering has come is asked while it goes on. */
	if (!background_of(&pool->background))
		turn_take(pool);
	else if (!turn_try(pool))
		return;
	extents_measure(pool);
	turn_give(pool);
	extents_settle(pool);
}

uint64_t not_negative(uint64_t n)
{
	return n > INT64_MAX ? 0 : n;
}

/* Locked. */
void stats_collect(const struct binpool *pool, struct binpool_stats *out)
{
	uint64_t page = UINT64_MAX, runs = 0;
	bool known = pool->extents;

	assert_locked(pool);
	*out = pool->stats;
	out->size = sizeof(*out);
	/* Of a buffer that went from one thread to another only the end may have been seen. */
	out->active_blocks = not_negative(out->active_blocks);
	out->active_bytes = not_negative(out->active_bytes);
	out->held_blocks = not_negative(out->held_blocks);
	out->held_bytes = not_negative(out->held_bytes);
	out->managed_bytes = not_negative(pool->active_capacity + pool->stats.held_bytes);
	out->max_bytes = pool->max_bytes;
	out->pending_blocks = pool->fences.count;
	out->pending_bytes = pool->fences.bytes;
	out->provider = pool->provider.ops->id;
	for (const struct extent *e = pool->extents; e && !pool->exact; e = e->next) {
		page = u64_min(page, e->page_bytes);
		runs += e->runs;
		known = known && e->runs;
	}
	/* One that could not be looked at makes it 0, as for all that is known. */
	out->page_bytes = page == UINT64_MAX ? 0 : page;
	out->runs = known ? runs : 0;
}

EXPORT int binpool_get_stats(struct binpool *pool, struct binpool_stats *out)
{
	struct binpool_stats stats;
	int err = pool_enter(pool);

	if (!err)
		err = struct_check(out, sizeof(out->size), "out");
	if (err)
		return err;
	stats_measure(pool);
	pool_lock(pool);
	caches_settle(pool);
	stats_collect(pool, &stats);
	pool_unlock(pool);
	struct_fill(out, &stats, sizeof(stats));
	return 0;
}

/* ---- Statistics of the caller's own ----------------------------------------- */

/* What these functions look at has been there from the first version on. */
static int stats_ours(const struct binpool_stats *s)
{
	return struct_check(s, offsetof(struct binpool_stats, extents), "stats");
}

static uint64_t less(uint64_t from, uint64_t by)
{
	return from - u64_min(from, by);
}

/* A buffer comes into use. */
static void in_use(struct binpool_stats *s, uint64_t size)
{
	s->active_blocks++;
	s->active_bytes += size;
}

EXPORT int binpool_stats_push_alloc(struct binpool_stats *stats, uint64_t size, uint64_t ns)
{
	int err = stats_ours(stats);

	if (err)
		return err;
	in_use(stats, size);
	stats->managed_bytes += size;
	stats->reserved_bytes += size;
	stats->reserved_max_bytes = u64_max(stats->reserved_max_bytes, stats->reserved_bytes);
	stats->allocs++;
	stats->alloc_ns += ns;
	return 0;
}

EXPORT int binpool_stats_push_free(struct binpool_stats *stats, uint64_t size, uint64_t ns)
{
	int err = stats_ours(stats);

	if (err)
		return err;
	if (stats->held_blocks) {
		stats->held_blocks--;
		stats->held_bytes = less(stats->held_bytes, size);
		stats->frees_held++;
	} else if (stats->active_blocks) {
		stats->active_blocks--;
		stats->active_bytes = less(stats->active_bytes, size);
		stats->frees_active++;
	} else {
		return explain(-EINVAL, "stats: a free where nothing is left");
	}
	stats->managed_bytes = less(stats->managed_bytes, size);
	stats->reserved_bytes = less(stats->reserved_bytes, size);
	stats->free_ns += ns;
	return 0;
}

EXPORT int binpool_stats_push_return(struct binpool_stats *stats, uint64_t size)
{
	int err = stats_ours(stats);

	if (err)
		return err;
	if (!stats->active_blocks)
		return explain(-EINVAL, "stats: a return where nothing is in use");
	stats->active_blocks--;
	stats->active_bytes = less(stats->active_bytes, size);
	stats->held_blocks++;
	stats->held_bytes += size;
	stats->returns++;
	return 0;
}

EXPORT int binpool_stats_push_reuse(struct binpool_stats *stats, uint64_t size)
{
	int err = stats_ours(stats);

	if (err)
		return err;
	if (!stats->held_blocks)
		return explain(-EINVAL, "stats: a reuse where nothing is held");
	stats->held_blocks--;
	stats->held_bytes = less(stats->held_bytes, size);
	in_use(stats, size);
	stats->reuses++;
	return 0;
}

static int64_t mean(uint64_t sum, uint64_t n)
{
	return n ? (int64_t)(sum / n) : 0;
}

EXPORT int64_t binpool_stats_mean_alloc_ns(const struct binpool_stats *stats)
{
	int err = stats_ours(stats);

	return err ? err : mean(stats->alloc_ns, stats->allocs);
}

EXPORT int64_t binpool_stats_mean_free_ns(const struct binpool_stats *stats)
{
	int err = stats_ours(stats);

	return err ? err : mean(stats->free_ns, stats->frees_active + stats->frees_held);
}

EXPORT double binpool_stats_reuse_factor(const struct binpool_stats *stats)
{
	int err = stats_ours(stats);
	uint64_t n;

	if (err)
		return err;
	n = stats->reuses + stats->allocs;
	return n ? (double)stats->reuses / (double)n : 0;
}

EXPORT int64_t binpool_held_blocks(struct binpool *pool)
{
	uint64_t n;
	int err = pool_enter(pool);

	if (err)
		return err;
	pool_lock(pool);
	caches_settle(pool);
	n = pool->stats.held_blocks;
	pool_unlock(pool);
	return (int64_t)n;
}

EXPORT int binpool_may_alloc(struct binpool *pool, uint64_t size)
{
	uint64_t capacity = 0;
	int yes, err = pool_enter(pool);

	if (err)
		return err;
	if (size || pool->exact)
		capacity = class_capacity(pool, size);
	pool_lock(pool);
	yes = (capacity || !size) && capacity <= pool->max_bytes &&
	      pool->stats.reserved_bytes <= pool->max_bytes - capacity;
	pool_unlock(pool);
	return yes;
}

EXPORT int64_t binpool_max_bytes(struct binpool *pool)
{
	int err = pool_enter(pool);

	if (err)
		return err;
	return pool->max_bytes > INT64_MAX ? INT64_MAX : (int64_t)pool->max_bytes;
}

EXPORT const char *binpool_provider_reason(const struct binpool *pool)
{
	return pool ? pool->provider.reason : "";
}
