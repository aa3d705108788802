// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What threads' caches and the bins behind them may hold, together at most the pool's
 * budget. Owns pool->cache_credit, caches_awake and largest, which threads that hold their arena's
 * lock alone change at the same time; and of caches only the calling thread's own, or
 * those that are revoked.
 *
 * What is cached is in the way of large buffers, and they would cost memory. So a pool whose
 * cache_bytes is left to it keeps little as a matter of course, and up to its whole
 * budget only of classes that the thread missed a moment ago: a buffer that goes round
 * is kept however large it is, one of many sizes is not.
 */
#include <stdlib.h>

#include "cache.h"

/* So often a thread that finds no room looks at what of its cache is not used. */
#define MISSES_PER_DECAY 256u
/* A thread is idle that did nothing for so long; how often threads are looked at. */
#define IDLE_NS 20000000u
/* Of a share that is not asked for by name one buffer takes at most this part. */
#define SHARE_PER_BUFFER 8u
/*
 * What a pool keeps as a matter of course, at least: enough for two threads that hand buffers of
 * some 64 KiB over to each other to do so by dozens.
 */
#define ORDINARY_BYTES_MIN ((uint64_t)8 << 20)
/* The first buffers of a class that a thread keeps. */
#define MAGAZINE_MIN 4u

/* What they hold of whatever classes. */
static uint64_t ordinary_budget(const struct binpool *pool)
{
	if (pool->cache_bytes != BINPOOL_CACHE_AUTO)
		return pool->cache_bytes;
	return u64_max(pool->stats.reserved_bytes / 32, ORDINARY_BYTES_MIN);
}

/* What all caches and bins together may hold. */
static uint64_t budget(const struct binpool *pool)
{
	if (pool->cache_bytes != BINPOOL_CACHE_AUTO)
		return pool->cache_bytes;
	return u64_max(2 * __atomic_load_n(&pool->largest, __ATOMIC_RELAXED),
		       pool->stats.reserved_bytes / 8) +
	       ordinary_budget(pool);
}

/* The part of it for what one thread has too much of and another may want. */
static uint64_t bins_share(const struct binpool *pool)
{
	return pool->caches && pool->caches->next ? budget(pool) / 4 : 0;
}

/* And what of it is so now. */
static uint64_t shared_bytes(const struct binpool *pool)
{
	return pool->binned_bytes + depot_bytes(&pool->depot);
}

/* Whether one more buffer may be held in its bin. */
bool bins_have_room(struct binpool *pool, uint64_t capacity)
{
	assert_locked(pool);
	return !pool->cache_bins ||
	       pool->cache_credit + pool->binned_bytes + capacity <= budget(pool);
}

/* A thread's part of @bytes. */
static uint64_t share_of(const struct binpool *pool, uint64_t bytes)
{
	if (!pool->caches->next)
		return bytes;
	return (bytes - bytes / 4) / pool->caches_awake;
}

static void set_bound(struct cache *c, uint64_t credit)
{
	c->left += (int64_t)(credit - c->credit);
	c->credit = credit;
}

void cache_set_credit(struct cache *c, uint64_t credit)
{
	__atomic_add_fetch(&c->pool->cache_credit, credit - c->granted, __ATOMIC_RELAXED);
	c->granted = credit;
	set_bound(c, credit);
}

static bool missed_lately(const struct cache *c, uint32_t bin)
{
	bool yes = false;

	for (uint32_t i = 0; i < RECENT_MAX; i++)
		yes |= c->recent[i] == bin;
	return yes;
}

/* Whether it is time to find_idle(). */
static bool look_for_idle(const struct binpool *pool)
{
	return pool->caches->next && stamp_of(pool) >= pool->idle_looked + IDLE_NS;
}

/* Finds the threads that did nothing since the last time, and takes what they keep. */
static void find_idle(struct binpool *pool, const struct cache *own)
{
	bool any = false;

	pool->idle_looked = stamp_of(pool);
	for (struct cache *c = pool->caches; c; c = c->next) {
		uint64_t activity = (uint64_t)c->misses + c->entered;

		for (struct magazine *m = c->in_use; m; m = m->next)
			activity += __atomic_load_n(&m->count, __ATOMIC_RELAXED);
		if (c != own && !c->idle && activity == c->activity) {
			cache_set_idle(c, true);
			any = true;
		}
		c->activity = activity;
	}
	if (any)
		caches_revoke_idle(pool);
}

/* The @n oldest buffers of a magazine are given up. False: not @alone. */
static bool evict(struct cache *c, struct magazine *m, uint32_t n, bool alone)
{
	if (alone)
		return arena_evict(c, m, n);
	magazine_leave(c, m, n, held_dissolve);
	return true;
}

void caches_look(struct binpool *pool)
{
	assert_locked(pool);
	stamp_now(pool);
	if (pool->caches && look_for_idle(pool))
		find_idle(pool, NULL);
}

/*
 * Gives back what was not used since the last time, and what credit is left then.
 * False: not @alone.
 */
static bool cache_decay(struct cache *c, bool alone)
{
	struct binpool *pool = c->pool;

	stamp_now(pool);
	if (alone && (look_for_idle(pool) || shared_bytes(pool) > bins_share(pool) / 2))
		return false;
	for (struct magazine *m = c->in_use; m; m = m->next) {
		uint32_t n = magazine_fill(m->count);

		if (n && m->count >> MAGAZINE_BITS == m->decayed >> MAGAZINE_BITS &&
		    !evict(c, m, (n + 1) / 2, alone))
			return false;
		m->decayed = m->count;
	}
	cache_set_credit(c, cache_bytes(c));
	if (!alone) {
		if (look_for_idle(pool))
			find_idle(pool, c);
		/* What others did not take so far goes. */
		if (shared_bytes(pool) > bins_share(pool) / 2)
			depot_empty(pool);
		while (pool->binned_bytes > bins_share(pool) / 2)
			held_release_one(pool, bins_largest(pool));
		caches_settle(pool);
	}
	__atomic_store_n(&pool->largest,
			 __atomic_exchange_n(&pool->largest_next, 0, __ATOMIC_RELAXED),
			 __ATOMIC_RELAXED);
	return true;
}

/* Bytes of the classes missed lately that are in the thread's cache. */
static uint64_t lately_bytes(const struct cache *c)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < RECENT_MAX; i++) {
		uint32_t index = c->recent[i] - c->pool->cache_bin;
		const struct magazine *m = c->magazines;
		bool again = false;

		/* Most of them have nothing. */
		if (index >= c->pool->cache_bins || !magazine_fill(m[index].count))
			continue;
		for (uint32_t before = 0; before < i; before++)
			again = again || c->recent[before] == c->recent[i];
		if (!again)
			bytes += magazine_fill(m[index].count) * m[index].capacity;
	}
	return bytes;
}

/* It may be that another thread's more is forgotten for less: a moment later it is there again. */
static void raise(uint64_t *value, uint64_t n)
{
	if (__atomic_load_n(value, __ATOMIC_RELAXED) < n)
		__atomic_store_n(value, n, __ATOMIC_RELAXED);
}

/* What the thread's cache may hold with one more buffer of the class; 0: not with it. */
static uint64_t bound(struct cache *c, const struct magazine *m)
{
	struct binpool *pool = c->pool;
	uint64_t capacity = m->capacity, share;

	raise(&pool->largest, capacity);
	raise(&pool->largest_next, capacity);
	if (missed_lately(c, m->bin))
		return share_of(pool, budget(pool));
	share = share_of(pool, ordinary_budget(pool));
	/* Few of these would take all of it, and give it up again to smaller ones. */
	if (pool->cache_bytes == BINPOOL_CACHE_AUTO && capacity > share / SHARE_PER_BUFFER)
		return 0;
	/* What goes round besides is not in the way. */
	if (cache_bytes(c) + capacity > share)
		share = u64_min(share + lately_bytes(c), share_of(pool, budget(pool)));
	return share;
}

/* As cache_credit(), as far as nobody else has to give something up. */
static bool cache_credit_alone(struct cache *c, uint64_t capacity)
{
	struct binpool *pool = c->pool;
	uint64_t credit = u64_max(cache_bytes(c) + capacity, share_of(pool, ordinary_budget(pool)));
	uint64_t more = credit - c->granted, all;

	if (credit > c->granted) {
		all = __atomic_add_fetch(&pool->cache_credit, more, __ATOMIC_RELAXED);
		if (all + pool->binned_bytes > budget(pool)) {
			__atomic_sub_fetch(&pool->cache_credit, more, __ATOMIC_RELAXED);
			return false;
		}
		c->granted = credit;
	}
	set_bound(c, credit);
	return true;
}

/* Makes c->credit what is needed for @capacity more, which is within its bound. */
static void cache_credit(struct cache *c, uint64_t capacity)
{
	struct binpool *pool = c->pool;
	uint64_t all = budget(pool), need = cache_bytes(c) + capacity;
	uint64_t used = pool->cache_credit - c->granted + pool->binned_bytes;

	if (used + need > all) {
		/* Others have more than their share. */
		caches_revoke(pool);
		while (pool->binned_bytes > all - capacity)
			held_release_one(pool, bins_largest(pool));
		used = pool->binned_bytes;
		need = cache_bytes(c) + capacity;
	}
	cache_set_credit(c,
			 u64_min(u64_max(need, share_of(pool, ordinary_budget(pool))), all - used));
}

/*
 * The older half of a magazine leaves, to where other threads find it if there is room.
 * False: not @alone.
 */
static bool overflow(struct cache *c, struct magazine *m, bool alone)
{
	uint32_t n = (magazine_fill(m->count) + 1) / 2;

	if (shared_bytes(c->pool) + n * m->capacity <= bins_share(c->pool) && depot_give(c, m, n))
		return true;
	return evict(c, m, n, alone);
}

static bool magazine_grow(struct magazine *m, uint32_t room)
{
	struct cached *items = realloc(m->items, room * sizeof(*items));

	if (!items)
		return false;
	m->items = items;
	m->room = room;
	return true;
}

/* Lowers top to the largest class that has a buffer, but not below @index. Whether it is above. */
static bool top_above(struct cache *c, uint32_t index)
{
	const struct magazine *m = &c->magazines[c->top], *least = &c->magazines[index];

	while (m > least && !magazine_fill(m->count))
		m--;
	if (m < &c->magazines[c->top])
		cache_set_top(c, (uint32_t)(m - c->magazines));
	return m > least;
}

/*
 * Room for one more buffer of the class in the thread's own cache, at the cost of
 * larger ones if need be. @alone: only its arena is locked.
 */
enum cache_room cache_make_room(struct cache *c, struct magazine *m, bool alone)
{
	struct binpool *pool = c->pool;
	uint64_t most, capacity = m->capacity;
	uint32_t index;

	if (alone)
		assert_arena(pool, c->arena);
	else
		assert_locked(pool);
	if (c->revoked & CACHE_REVOKED)
		return ROOM_NONE;
	if (c->idle) {
		if (alone)
			return ROOM_LOCKED;
		cache_set_idle(c, false);
	}
	if ((c->misses + 1) % MISSES_PER_DECAY == 0 && !cache_decay(c, alone))
		return ROOM_LOCKED;
	c->misses++;
	most = bound(c, m);
	if (most < capacity)
		return ROOM_NONE;
	stamp_now(pool);
	index = (uint32_t)(m - c->magazines);
	if (magazine_fill(m->count) == m->room) {
		if (m->room < MAGAZINE_MAX) {
			if (!magazine_grow(m, m->room ? 2 * m->room : MAGAZINE_MIN))
				return ROOM_NONE;
		} else if (!overflow(c, m, alone)) {
			return ROOM_LOCKED;
		}
	}
	while (cache_bytes(c) + capacity > most) {
		if (top_above(c, index)) {
			if (!evict(c, &c->magazines[c->top], 1, alone))
				return ROOM_LOCKED;
		} else if (magazine_fill(m->count) > 1) {
			if (!overflow(c, m, alone))
				return ROOM_LOCKED;
		} else {
			return ROOM_NONE;
		}
	}
	if (!alone)
		cache_credit(c, capacity);
	else if (!cache_credit_alone(c, capacity))
		return ROOM_LOCKED;
	if (c->top < index)
		cache_set_top(c, index);
	return ROOM_MADE;
}

/* Whether one more buffer of the class would cost others of it that the cache has. */
static bool full(struct cache *c, const struct magazine *m)
{
	return !top_above(c, (uint32_t)(m - c->magazines)) && magazine_fill(m->count) &&
	       cache_bytes(c) + m->capacity > bound(c, m);
}

/* Moves buffers from the bin into the thread's own cache, for the next requests. */
void cache_refill(struct cache *c, struct magazine *m)
{
	struct binpool *pool = c->pool;
	struct bin *b = m->in_pool;

	assert_locked(pool);
	/* What is moved back for want of room would be moved again. */
	while (b->head && magazine_fill(m->count) < MAGAZINE_MAX / 2 && !full(c, m) &&
	       cache_make_room(c, m, false) == ROOM_MADE) {
		struct run *run = b->head;

		if (!run)
			break;
		bins_unhold(pool, run);
		magazine_settle(pool, m);
		m->items[magazine_fill(m->count)] = (struct cached){run->ptr, run};
		run_set_state(run, RUN_CACHED);
		m->count++;
		m->settled = m->count;
		c->left -= (int64_t)m->capacity;
		b->cached++;
		pool->stats.held_blocks++;
		pool->stats.held_bytes += m->capacity;
	}
}

/*
 * Fills the thread's magazine of a class that it just missed from the depot. False: it has
 * nothing of it, or only the whole pool's lock will do. Needs the lock of the thread's arena only.
 */
bool cache_take_parcel(struct cache *c, struct magazine *m)
{
	uint32_t index = (uint32_t)(m - c->magazines);

	assert_arena(c->pool, c->arena);
	if (c->idle || magazine_fill(m->count) ||
	    (m->room < PARCEL_MAX && !magazine_grow(m, PARCEL_MAX)) ||
	    !depot_take(c, m, bound(c, m)))
		return false;
	if (c->top < index)
		cache_set_top(c, index);
	return true;
}
