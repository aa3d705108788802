// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What a request gets that the pool has not got ready: memory from the provider, else
 * what is held, by whomever. Takes pool->turn; owns nothing.
 */
#include <stdio.h>

#include "cache.h"
#include "request.h"

/* What provider memory comes in for this pool. */
static uint64_t quantum(const struct binpool *pool)
{
	return u64_max(pool->provider.unit, pool->granule);
}

static uint64_t provider_round(const struct binpool *pool, uint64_t bytes)
{
	const struct provider *p = &pool->provider;

	bytes = round_up(bytes, quantum(pool));
	return bytes && p->ops->round ? round_up(p->ops->round(p, bytes), quantum(pool)) : bytes;
}

/*
 * Of the extents that can grow in place the one that needs the least of it for a
 * request, *more; NULL: none can. Locked and in turn.
 */
static struct extent *extent_to_extend(const struct binpool *pool, const struct request *req,
				       uint64_t *more)
{
	struct extent *best = NULL;

	/* Where alignment would cost memory, a new extent is better. */
	*more = round_up(req->run_bytes, quantum(pool)) + 1;
	if (!extents_extensible(pool))
		return NULL;
	for (struct extent *e = req->arena->extents; e; e = e->arena_next) {
		bool joins = run_state(e->last) == RUN_FREE;
		uint64_t at = (uint64_t)(uintptr_t)e->base + e->bytes;
		uint64_t end, needs;

		if (joins)
			at -= e->last->bytes;
		if (__builtin_add_overflow(round_up(at, req->run_align), req->run_bytes, &end))
			continue;
		needs = end - (uint64_t)(uintptr_t)e->base - e->bytes;
		needs = round_up(needs, pool->provider.unit);
		if (e->attachments || !needs || needs > e->room - e->bytes)
			continue;
		if (needs < *more) {
			best = e;
			*more = needs;
		}
	}
	return best;
}

/* What max_bytes leaves. Locked. */
static uint64_t limit_left(const struct binpool *pool)
{
	return pool->max_bytes - pool->stats.reserved_bytes - pool->pending;
}

/*
 * How much to get for a request: the pool grows by an eighth, so that few
 * extents serve a large pool and a small one wastes little; in place, where more costs
 * no extent, by less. 0: the limit does not leave what the request needs. *least: what
 * would do. *extend: what is to grow in place; NULL: an extent is to be had. Locked, in
 * turn.
 */
static uint64_t growth(const struct binpool *pool, const struct request *req, uint64_t *least,
		       struct extent **extend)
{
	uint64_t reserved = pool->stats.reserved_bytes;
	uint64_t left = limit_left(pool);
	uint64_t most = EXTENT_BYTES_MAX;
	uint64_t want;

	assert_locked(pool);
	*extend = NULL;
	if (pool->exact) {
		*least = req->run_bytes;
		return *least <= left ? *least : 0;
	}
	*extend = extent_to_extend(pool, req, least);
	if (*extend)
		most = (*extend)->room - (*extend)->bytes;
	else
		*least = round_up(req->run_bytes, quantum(pool));
	if (!*least || *least > left)
		return 0;
	want = extents_extensible(pool) ? reserved / 32 : pow2_ceil(reserved / 8);
	want = u64_max(u64_min(u64_max(want, EXTENT_BYTES_MIN), most), *least);
	want = provider_round(pool, want);
	if (!want || want > left)
		want = u64_max(left & ~(quantum(pool) - 1), *least);
	/* A granule may be more than what was cut, or there are addresses for. */
	if (*extend)
		want = u64_min(want, most);
	return want;
}

/*
 * Lets @extend grow by @want bytes, or gets an extent of so many. The buffer is carved
 * from a new one; *out is NULL if it is still to be taken. Locked and in turn; the lock
 * is let go meanwhile.
 */
static int grow(struct binpool *pool, const struct request *req, uint64_t want,
		struct extent *extend, struct run **out, bool *shortage)
{
	struct extent *e = extend, piece;
	struct run *run = NULL;
	int err;

	assert_locked(pool);
	*out = NULL;
	*shortage = false;
	/* One is kept for what is to be linked, which may not be let go of. */
	if (extend) {
		err = request_prepare(pool, req);
		if (err)
			return err;
		run = run_new(e->arena);
	}
	pool->pending += want;
	pool_unlock(pool);
	err = extend ? extent_extend(pool, e, want, &piece, shortage)
		     : extent_get(pool, want, req->run_align, &e, shortage);
	pool_lock(pool);
	if (extend) {
		run_delete(e->arena, run);
		if (!err)
			extent_link_more(pool, e, &piece);
		return err;
	}
	if (!err && request_prepare(pool, req)) {
		pool_unlock(pool);
		extent_unget(pool, e);
		pool_lock(pool);
		err = -ENOMEM;
	}
	if (err)
		return err;
	e->arena = req->arena;
	extent_link(pool, e);
	if (req->reserve_only)
		*out = e->first;
	else if (req->in_slab)
		*out = slab_take(pool, req->arena, req->bin, req->capacity);
	else
		*out = carve_from(pool, e->first, req->run_bytes, pool->exact ? 1 : req->run_align);
	return 0;
}

/* While threads use their caches, what is in use may seem to be less than nothing. Locked. */
static bool in_use_beyond(const struct binpool *pool, uint64_t bytes)
{
	return pool->active_capacity <= INT64_MAX && pool->active_capacity > bytes;
}

/* The request and what is in the way. Locked. */
static int explain_limit(const struct binpool *pool, const struct request *req)
{
	char asked[HUMAN_LEN], limit[HUMAN_LEN], active[HUMAN_LEN], reserved[HUMAN_LEN],
		left[HUMAN_LEN];
	uint64_t used = pool->active_capacity;

	if (in_use_beyond(pool, pool->max_bytes - req->run_bytes))
		return explain(-ENOSPC,
			       "pool %s: asked for %s, max_bytes is %s (%s): %s are in use, which "
			       "leaves %s",
			       pool->name, human(req->run_bytes, asked),
			       human(pool->max_bytes, limit), pool->max_from, human(used, active),
			       human(pool->max_bytes - u64_min(used, pool->max_bytes), left));
	return explain(
		-ENOSPC,
		"pool %s: asked for %s, max_bytes is %s (%s): %s are in use, in %s reserved, and no "
		"stretch of the rest is large enough",
		pool->name, human(req->bytes, asked), human(pool->max_bytes, limit), pool->max_from,
		human(used, active), human(pool->stats.reserved_bytes, reserved));
}

/* Whether giving the empty extents back lets the pool grow by @least. Locked. */
static bool empty_ones_help(const struct binpool *pool, uint64_t least)
{
	uint64_t left = limit_left(pool);

	for (struct extent *e = empty_after(pool, NULL); e; e = empty_after(pool, e))
		left += e->bytes;
	return least <= left;
}

/* Everything that threads hold goes into the bins, and all that is there to where it came from. */
static void release_held(struct binpool *pool)
{
	struct run *run;

	caches_revoke(pool);
	while ((run = bins_largest(pool)))
		held_release_one(pool, run);
}

/*
 * Whether a pool with caches should take back what they hold before it grows: that is kept
 * for speed, and growing is slower than to lose it. Locked.
 */
static bool held_may_do(const struct binpool *pool, const struct request *req,
			const struct extent *extend)
{
	uint64_t unused = not_negative(pool->stats.reserved_bytes - pool->active_capacity);

	return pool->cache_bins && pool->cache_bytes == BINPOOL_CACHE_AUTO &&
	       pool->stats.held_blocks && (extend || unused >= req->run_bytes);
}

/*
 * A pool grows for one arena, unless so much of it is free in another, in one stretch; or
 * unless its memory was reserved ahead.
 */
#define OTHERS_PART 2u

/* From whatever arena has @least bytes free in one stretch; NULL: none. Locked and in turn. */
static struct run *take_from_others(struct binpool *pool, const struct request *req, uint64_t least,
				    bool *reused)
{
	struct request any = *req;

	any.arena = NULL;
	if (pool->arenas_used == 1 || !run_find(pool, NULL, least, req->run_align))
		return NULL;
	return request_take(pool, &any, reused);
}

/* What a request needs that the pool has not got ready. Locked and in turn. */
static int obtain(struct binpool *pool, const struct request *req, struct run **out, bool *reused)
{
	bool starved = false, released = false, revoked = false, shrunk = false, shortage;
	struct extent *extend;
	char cause[1024] = "";
	int err, starved_err = 0;
	uint64_t want, least, others;

	assert_locked(pool);
	if (pool->stuck) {
		pool_unlock(pool);
		extents_retry(pool, false);
		pool_lock(pool);
	}
	for (;;) {
		bool grown = false, lost = false;

		err = request_prepare(pool, req);
		if (err)
			return err;
		caches_settle(pool);
		*out = request_take(pool, req, reused);
		if (*out)
			return 0;
		if (req->is_void) {
			if (void_grow(pool, req->align))
				return explain(-ENOMEM, "pool %s: no addresses left", pool->name);
			continue;
		}
		if (pool->arenas_used > 1)
			caches_look(pool);
		if (arena_feed(pool, req->arena, req->run_bytes, req->run_align))
			continue;
		if (in_use_beyond(pool, pool->max_bytes - req->run_bytes)) {
			/* What other threads do meanwhile may have been seen in part. */
			caches_revoke(pool);
			if (in_use_beyond(pool, pool->max_bytes - req->run_bytes))
				return explain_limit(pool, req);
		}

		want = growth(pool, req, &least, &extend);
		others = u64_max(want, pool->stats.reserved_bytes / OTHERS_PART);
		if (pool->reserved_ahead)
			others = req->run_bytes;
		*out = take_from_others(pool, req, others, reused);
		if (*out)
			return 0;
		if (want && !released && held_may_do(pool, req, extend)) {
			released = true;
			release_held(pool);
			continue;
		}
		while (want && !starved) {
			err = grow(pool, req, want, extend, out, &shortage);
			grown = !err;
			if (grown)
				break;
			/* Less may be had, or be what a registrar's device takes. */
			if (want > least && (shortage || err == -EFBIG)) {
				/* What could not be undone is kept, and counts. */
				if (least > limit_left(pool))
					return err;
				want = least;
				/* What was tried may have cost the extent its addresses. */
				lost = extend && want > extend->room - extend->bytes;
				if (lost)
					break;
				continue;
			}
			if (!shortage)
				return err;
			starved = true;
			starved_err = err;
			snprintf(cause, sizeof(cause), "%s", binpool_last_error());
		}
		if (grown && *out)
			return 0;
		if (grown || lost)
			continue;
		/* The lock may have been let go. */
		err = request_prepare(pool, req);
		if (err)
			return err;
		*out = take_from_others(pool, req, req->run_bytes, reused);
		if (*out)
			return 0;
		if (empty_after(pool, NULL) &&
		    (pool->exact || starved || empty_ones_help(pool, least))) {
			pool_unlock(pool);
			extents_give_back(pool);
			pool_lock(pool);
			starved = false;
		} else if (pool->stats.held_blocks && (!revoked || !pool->binned_bytes)) {
			revoked = true;
			caches_revoke(pool);
		} else if (pool->stats.held_blocks) {
			held_release_one(pool, bins_largest(pool));
		} else if (!shrunk && pool->arenas_used > 1) {
			/* What is free at the ends of others' extents, for this one to grow. */
			shrunk = true;
			pool_unlock(pool);
			extents_shrink(pool, 0, UINT64_MAX);
			pool_lock(pool);
			starved = false;
		} else if (starved) {
			pool->starved = true;
			return explain(starved_err, "%s", cause);
		} else {
			return explain_limit(pool, req);
		}
	}
}

/* Whether the provider had no more. No lock is held. */
static bool was_starved(struct binpool *pool)
{
	bool yes;

	pool_lock(pool);
	yes = pool->starved;
	pool->starved = false;
	pool_unlock(pool);
	return yes;
}

/*
 * As obtain(), getting the turn first. All fences are asked before what is held goes,
 * and before the request is refused. Locked before and after.
 */
int request_miss(struct binpool *pool, const struct request *req, struct run **out, bool *reused)
{
	uint64_t left = limit_left(pool);
	uint64_t ask = req->run_bytes <= left ? FENCES_PER_CALL : UINT64_MAX;
	int err;

	do {
		pool_unlock(pool);
		fences_poll(pool, ask);
		turn_take(pool);
		pool_lock(pool);
		err = obtain(pool, req, out, reused);
		turn_give(pool);
		if (!wait_helps(err))
			return err;
		pool_unlock(pool);
		ask = fences_poll(pool, UINT64_MAX);
		if (!ask && was_starved(pool))
			ask_others();
		pool_lock(pool);
	} while (ask);
	return err;
}
