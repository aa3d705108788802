// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Arenas: several threads that miss in their caches at once need not wait for each other.
 * Owns pool->arenas, each one's list of extents, and which thread takes from which.
 *
 * A pool has one arena until a thread finds its lock taken again and again. Then that thread
 * moves to an arena with fewer threads, or to a new one. An arena gets memory of its own:
 * extents that nobody uses, else what the pool grows by; what is free in another arena is
 * for its own threads, unless they are idle or the pool is not to grow. So memory is traded for
 * time only where threads were in each other's way.
 *
 * With an arena's lock alone a buffer of pages is cut out of one of its free runs, or becomes
 * one again, if no member of the pool changes by it but atomic ones: what is counted,
 * the thread's magazine of that class keeps until it is settled. All else is done with the pool
 * locked. That takes this lock too, so who holds it may read any member, and use his own cache.
 */
#include <sched.h>
#include <stdlib.h>

#include "cache.h"

/* A thread is crowded that found its arena's lock taken so often, of so many times. */
#define CROWDED_COUNT 16u
#define CROWDED_OF    256u

void arenas_init(struct binpool *pool)
{
	cpu_set_t cpus;

	pool->arenas[0] = &pool->arena;
	pool->arenas_used = 1;
	pool->arenas_max = ARENAS_MAX;
	/* It fails where there are more CPUs than a cpu_set_t has bits. */
	if (!sched_getaffinity(0, sizeof(cpus), &cpus))
		pool->arenas_max = (uint32_t)u64_min((uint64_t)CPU_COUNT(&cpus), ARENAS_MAX);
}

/* The pool is not locked, and nobody else's. */
void arenas_fini(struct binpool *pool)
{
	for (uint32_t i = 1; i < pool->arenas_used; i++)
		free(pool->arenas[i]);
	pool->arenas_used = 0;
}

void arenas_lock_rest(struct binpool *pool)
{
	for (uint32_t i = 1; i < pool->arenas_used; i++)
		lock_take(&pool->arenas[i]->lock);
	__atomic_store_n(&pool->lock_holder, thread_self(), __ATOMIC_RELAXED);
}

void arenas_unlock_rest(struct binpool *pool)
{
	__atomic_store_n(&pool->lock_holder, NULL, __ATOMIC_RELAXED);
	for (uint32_t i = pool->arenas_used; --i;)
		lock_give(&pool->arenas[i]->lock);
}

/* Adds an extent behind the older ones. Locked. */
void arena_add(struct arena *arena, struct extent *e)
{
	struct extent **at = &arena->extents;

	while (*at)
		at = &(*at)->arena_next;
	e->arena_next = NULL;
	*at = e;
	__atomic_store_n(&e->arena, arena, __ATOMIC_RELAXED);
}

/* Locked. */
void arena_remove(struct extent *e)
{
	struct extent **at = &e->arena->extents;

	while (*at != e)
		at = &(*at)->arena_next;
	*at = e->arena_next;
}

static void arena_move(struct extent *e, struct arena *to)
{
	if (!e->buffers)
		LIST_REMOVE(e->arena->empty, e, empty_prev, empty_next);
	arena_remove(e);
	arena_add(to, e);
	if (!e->buffers)
		LIST_PUSH(to->empty, e, empty_prev, empty_next);
}

/*
 * Gives @arena an extent that no other arena's threads use, and that has a free run for the
 * request; false: there is none. Locked.
 */
bool arena_feed(struct binpool *pool, struct arena *arena, uint64_t bytes, uint64_t align)
{
	assert_locked(pool);
	for (struct extent *e = pool->extents; e && pool->arenas_used > 1; e = e->next) {
		if (e->arena == arena || (e->buffers && e->arena->threads) ||
		    !extent_find(e, bytes, align))
			continue;
		arena_move(e, arena);
		return true;
	}
	return false;
}

/* The arena with the fewest threads. Locked. */
static struct arena *least_crowded(const struct binpool *pool)
{
	struct arena *best = pool->arenas[0];

	for (uint32_t i = 1; i < pool->arenas_used; i++)
		if (pool->arenas[i]->threads < best->threads)
			best = pool->arenas[i];
	return best;
}

/* One arena more, NULL: there are enough, or there is no memory. Locked, and so is it. */
static struct arena *arena_new(struct binpool *pool)
{
	struct arena *arena;

	if (pool->arenas_used == pool->arenas_max)
		return NULL;
	arena = aligned_alloc(_Alignof(struct arena), sizeof(*arena));
	if (!arena)
		return NULL;
	*arena = (struct arena){0};
	lock_take(&arena->lock);
	pool->arenas[pool->arenas_used++] = arena;
	return arena;
}

/* A thread with a new cache. Locked. */
void arena_join(struct cache *c)
{
	assert_locked(c->pool);
	c->arena = least_crowded(c->pool);
	c->arena->threads++;
}

static void move(struct cache *c, struct arena *to)
{
	assert_locked(c->pool);
	if (!c->idle) {
		c->arena->threads--;
		to->threads++;
	}
	c->arena = to;
}

/* A thread is idle from now on, or no longer: idle ones have no part in an arena. Locked. */
void cache_set_idle(struct cache *c, bool idle)
{
	if (c->idle == idle)
		return;
	assert_locked(c->pool);
	c->idle = idle;
	c->pool->caches_awake += !idle;
	c->pool->caches_awake -= idle;
	c->arena->threads += !idle;
	c->arena->threads -= idle;
}

/* A thread whose arena has no memory, and got some of another, goes there. Locked. */
void arena_follow(struct cache *c, const struct run *run)
{
	if (!c->arena->extents && !run->extent->is_void)
		move(c, run->extent->arena);
}

/* Finds a crowded thread an arena with fewer threads, if there is one. Locked. */
void arena_change(struct cache *c)
{
	struct arena *to = least_crowded(c->pool), *more;

	assert_locked(c->pool);
	c->crowded = false;
	/* Who is alone there waited for those that locked the pool. */
	if (c->arena->threads == 1)
		return;
	more = to->threads ? arena_new(c->pool) : NULL;
	if (more)
		to = more;
	if (to->threads + 1 >= c->arena->threads)
		return;
	move(c, to);
}

/* ---- With the lock of one arena --------------------------------------------- */

static void enter(struct arena *arena)
{
	lock_take(&arena->lock);
	__atomic_store_n(&arena->holder, thread_self(), __ATOMIC_RELAXED);
}

static void leave(struct arena *arena)
{
	__atomic_store_n(&arena->holder, NULL, __ATOMIC_RELAXED);
	lock_give(&arena->lock);
}

/* Enters the thread's own, and looks how often others are there. */
static inline struct arena *enter_own(struct cache *c)
{
	struct arena *arena = c->arena;

	if (!lock_try(&arena->lock)) {
		lock_take(&arena->lock);
		c->waited++;
	}
	__atomic_store_n(&arena->holder, thread_self(), __ATOMIC_RELAXED);
	if (++c->entered % CROWDED_OF == 0) {
		c->crowded = c->waited >= CROWDED_COUNT;
		c->waited = 0;
	}
	return arena;
}

/* While threads are kept out of their caches, nothing is done behind a back. */
static bool kept_out(const struct cache *c)
{
	return __atomic_load_n(&c->revoked, __ATOMIC_RELAXED) & CACHE_REVOKED;
}

/*
 * A buffer of the class at @place for @bytes: what others freed and is in the depot, or a run of
 * the thread's arena; NULL: it is not so simple.
 */
char *arena_alloc(struct cache *c, uint32_t place, uint64_t bytes)
{
	struct magazine *m = magazine_of(c, place);
	struct binpool *pool = c->pool;
	struct arena *arena;
	struct run *run = NULL;
	char *ptr = NULL;

	if (c->crowded)
		return NULL;
	arena = enter_own(c);
	if (!m->capacity && bins_at(pool, pool->cache_bin + (uint32_t)(m - c->magazines)))
		magazine_start(c, m);
	if (!m->capacity || m->in_pool->head || kept_out(c))
		goto out;
	if (__atomic_load_n(&m->in_pool->parcels_n, __ATOMIC_RELAXED)) {
		/* Who was idle is not any more when he has locked the pool. */
		if (c->idle)
			goto out;
		cache_missed(c, m->bin);
		if (cache_take_parcel(c, m)) {
			ptr = magazine_pop(c, place, bytes);
			goto out;
		}
	}
	if (runs_ready(arena) && !slab_serves(pool, m->capacity))
		run = run_find(pool, arena, m->capacity, m->align);
	if (run) {
		/* Letting the lock go waits for what is written there. */
		__builtin_prefetch(map_entry(run->base), 1);
		run = carve_from(pool, run, m->capacity, m->align);
		ptr = run->base;
		map_set(ptr, run);
		run->asked = bytes;
		run->bin = m->bin;
		run->place = place;
		run->clean = false;
		run_set_state(run, RUN_ACTIVE);
		m->carved++;
		owner_add(&c->asked, bytes);
		cache_missed(c, m->bin);
	}
out:
	leave(arena);
	return ptr;
}

/* Whether @run can be made a free run by who has this arena's lock. */
static bool dissolves(const struct run *run, const struct arena *arena)
{
	return __atomic_load_n(&run->extent->arena, __ATOMIC_RELAXED) == arena && !run->slab;
}

/* As magazine_leave() with held_dissolve(), where that can be done here. Its owner's; entered. */
bool arena_evict(struct cache *c, struct magazine *m, uint32_t n)
{
	struct run *runs[MAGAZINE_MAX];

	for (uint32_t i = 0; i < n; i++) {
		runs[i] = m->items[i].run;
		if (!dissolves(runs[i], c->arena))
			return false;
	}
	magazine_drop(c, m, n);
	m->evicted += n;
	for (uint32_t i = 0; i < n; i++) {
		map_set(runs[i]->ptr, NULL);
		dissolve(c->pool, runs[i]);
	}
	return true;
}

static inline bool is_active(const struct run *run, const char *ptr, const size_t *size)
{
	return run_ptr(run) == ptr && run_state(run) == RUN_ACTIVE &&
	       (!size || *size == run->asked);
}

/* Frees the buffer at @ptr, which seems to be @run. False: it is not so simple. */
bool arena_free(struct cache *c, struct run *run, const char *ptr, const size_t *size)
{
	struct binpool *pool = c->pool;
	struct arena *arena = enter_own(c), *of;
	enum cache_room room = ROOM_LOCKED;
	struct magazine *m;
	bool done = false;

	/* Another thread may have freed it meanwhile; what describes it stays. */
	if (!is_active(run, ptr, size) || !is_cached(pool, run->bin) || kept_out(c))
		goto out;
	m = magazine_at(c, run->bin);
	room = cache_make_room(c, m, true);
	if (room == ROOM_MADE && magazine_push(c, run->place, run, run->ptr)) {
		magazine_look(m, stamp_of(pool));
		done = true;
	}
	if (room != ROOM_NONE)
		goto out;
	of = __atomic_load_n(&run->extent->arena, __ATOMIC_RELAXED);
	if (of != arena) {
		leave(arena);
		arena = of;
		enter(arena);
		if (!is_active(run, ptr, size) || kept_out(c))
			goto out;
	}
	if (dissolves(run, arena)) {
		/* What is free at the end of its extent is given back by its age. */
		if (!run->next || !run->next->next)
			stamp_now(pool);
		m->dissolved++;
		owner_add(&c->asked, -run->asked);
		map_set(run->ptr, NULL);
		dissolve(pool, run);
		done = true;
	}
out:
	leave(arena);
	return done;
}
