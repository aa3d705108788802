// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Returns: into the bin, or when the pool is not holding, back into the extent.
 * Locks the pool, and where it gives extents back pool->turn; owns nothing.
 */
#include "cache.h"

/* The active buffer at @ptr, or NULL, explained. Locked. */
struct run *buffer_find(struct binpool *pool, const void *ptr, const size_t *size)
{
	struct run *run = lookup_find(pool, ptr);

	if (!run) {
		explain(0, "pool %s: free of %p, where no buffer of this pool starts", pool->name,
			ptr);
		return NULL;
	}
	if (!run_in_use(run)) {
		explain(0, "pool %s: free of %p, which is free already%s", pool->name, ptr,
			run_state(run) == RUN_PENDING ? " and waits for its fences" : "");
		return NULL;
	}
	if (size && *size != run->asked) {
		explain(0, "pool %s: free of %p with size %zu, but %llu were asked for", pool->name,
			ptr, *size, (unsigned long long)run->asked);
		return NULL;
	}
	return run;
}

static void deactivate(struct binpool *pool, struct run *run)
{
	assert_locked(pool);
	pool->stats.active_blocks--;
	pool->stats.active_bytes -= run->asked;
	if (run->extent->is_void)
		return;
	pool->active_capacity -= run->bytes;
	bins_at(pool, run->bin)->active--;
}

/* The pool may be destroyed as soon as the lock is let go. Locked. */
void wake_idle(struct binpool *pool)
{
	if (pool->waiters || (!pool->leaving && !pool->stats.active_blocks))
		pool_wake(pool);
}

/*
 * Puts a buffer that its user no longer has where the next may take it, if
 * anywhere; false: there is no room for it. Locked.
 */
static bool hold(struct binpool *pool, struct cache *c, struct run *run)
{
	if (!pool->stats.holding || run->extent->is_void)
		return false;
	if (pool->cache_bins) {
		struct magazine *m;

		if (!c || !is_cached(pool, run->bin))
			return false;
		m = magazine_at(c, run->bin);
		if (cache_make_room(c, m, false) != ROOM_MADE ||
		    !magazine_push(c, run->place, run, run->ptr))
			return false;
		magazine_look(m, pool->stamp);
		return true;
	}
	deactivate(pool, run);
	bins_hold(pool, run);
	pool->stats.returns++;
	return true;
}

/* The end of an active buffer. Locked. */
static void active_dissolve(struct binpool *pool, struct run *run)
{
	uint64_t start = pool->exact ? now_ns() : 0;

	deactivate(pool, run);
	lookup_remove(pool, run);
	if (!run->extent->is_void && !pool->stats.holding)
		pool->give_back = true;
	dissolve(pool, run);
	pool->stats.frees_active++;
	if (pool->exact)
		pool->stats.free_ns += now_ns() - start;
}

/* Takes back a buffer that nobody has, for whichever thread wants it next. Locked. */
void buffer_return(struct binpool *pool, struct run *run)
{
	assert_locked(pool);
	debug_poison(pool, run);
	pool->stamp = coarse_ns();
	if (pool->stats.holding && !run->extent->is_void && bins_have_room(pool, run->bytes)) {
		deactivate(pool, run);
		bins_hold(pool, run);
		pool->stats.returns++;
	} else {
		active_dissolve(pool, run);
	}
	wake_idle(pool);
}

/*
 * The end of an active buffer's use: it is held, or dissolved. @c: the thread's
 * cache, if it has one. Locked; lets the lock go.
 */
void release_run(struct binpool *pool, struct cache *c, struct run *run)
{
	bool settle, linger, held;
	const char *ptr = run->ptr;
	uint32_t bin = run->bin;
	uint64_t left;

	assert_locked(pool);
	debug_poison(pool, run);
	pool->stamp = coarse_ns();
	held = hold(pool, c, run);
	if (!held)
		active_dissolve(pool, run);
	left = held ? bins_at(pool, bin)->held : 0;
	settle = pool->give_back;
	/* Who has more to do here is counted, so that destroy_wait waits for him. */
	linger = settle || pool->flags & BINPOOL_POOL_VERBOSE;
	pool->leaving += linger;
	/* The pool may be destroyed as soon as the lock is let go. */
	wake_idle(pool);
	pool_unlock(pool);
	if (!linger)
		return;

	pool_trace(pool, "free %p: bin %u: %s, %llu held there", (const void *)ptr, bin,
		   held ? "held" : "dissolved", (unsigned long long)left);
	if (settle)
		extents_settle(pool);
	pool_unpin(pool, &pool->leaving);
}

/* Frees the buffer at @ptr, a handle's number in a pool of handles. No lock is held. */
int release_at(struct binpool *pool, const char *ptr, const size_t *size)
{
	struct cache *c;
	struct run *run;
	int err = pool_enter(pool);

	/* A child's copy of a buffer is nobody's: it goes with the child. */
	if (err == -EOWNERDEAD)
		return 0;
	if (err || !ptr)
		return err;

	c = cache_get(pool);
	pool_lock(pool);
	run = buffer_find(pool, ptr, size);
	if (run)
		err = note_release(pool, run);
	if (!run || err) {
		pool_unlock(pool);
		if (err <= 0)
			pool_trace(pool, "%s", binpool_last_error());
		return err > 0 ? 0 : -EINVAL;
	}
	release_run(pool, c, run);
	return 0;
}

/* The user's own buffer at @ptr, of which nothing more is known; NULL: it is not so simple. */
static FAST struct run *run_of(const struct binpool *pool, const void *ptr, const size_t *size)
{
	struct run *run = map_page(ptr);

	if (__builtin_expect(!run, 0))
		return NULL;
	if (run_live(run) != ptr) {
		struct slab *slab = run_slab(run);

		run = slab ? slab_slot(slab, ptr) : NULL;
		if (!run || run_live(run) != ptr)
			return NULL;
	}
	if (__builtin_expect(run_pool(run) != pool || (size && *size != run->asked), 0))
		return NULL;
	return run;
}

/* Into the thread's cache, if there is something to put there. */
static FAST bool push_fast(const struct binpool *pool, struct run *run, char *ptr)
{
	return __builtin_expect(run != NULL, 1) && cache_push(cache_fast(pool), run, ptr);
}

/* The same where that is not so fast. */
static bool push_slowly(const struct binpool *pool, struct cache *c, struct run *run, char *ptr)
{
	return cache_is_slow(c, pool) && cache_push_slowly(c, run, ptr);
}

/* @run: the buffer, if run_of() says so. */
static __attribute__((noinline)) int release_slowly(struct binpool *pool, struct run *run,
						    void *ptr, const size_t *size)
{
	struct cache *c = run ? cache_of(pool) : NULL;
	int err;

	/* The thread has a cache, so it is in no callback of the pool and the pool is not dead. */
	if (c && (push_slowly(pool, c, run, ptr) || arena_free(c, run, ptr, size)))
		return 0;
	err = pool_enter_host(pool);
	return err && err != -EOWNERDEAD ? err : release_at(pool, ptr, size);
}

static FAST int release(struct binpool *pool, void *ptr, const size_t *size)
{
	struct run *run = run_of(pool, ptr, size);

	return __builtin_expect(push_fast(pool, run, ptr), 1)
		       ? 0
		       : release_slowly(pool, run, ptr, size);
}

/* The end of a held buffer that is in no list. Locked. */
void held_dissolve(struct binpool *pool, struct run *run)
{
	lookup_remove(pool, run);
	dissolve(pool, run);
	pool->stats.frees_held++;
}

/* The end of a held buffer. Locked. */
void held_release_one(struct binpool *pool, struct run *run)
{
	assert_locked(pool);
	pool_trace(pool, "held %p of bin %u is given up", (void *)run->ptr, run->bin);
	bins_unhold(pool, run);
	held_dissolve(pool, run);
}

EXPORT int binpool_free(struct binpool *pool, void *ptr)
{
	return release(pool, ptr, NULL);
}

EXPORT int binpool_free_cached(struct binpool *pool, void *ptr)
{
	struct run *run = run_of(pool, ptr, NULL);
	struct cache *c;

	if (push_fast(pool, run, ptr))
		return 0;
	c = run ? cache_of(pool) : NULL;
	return c && push_slowly(pool, c, run, ptr) ? 0 : -EAGAIN;
}

EXPORT int binpool_free_sized(struct binpool *pool, void *ptr, size_t size)
{
	return release(pool, ptr, &size);
}

EXPORT int binpool_free_bulk(struct binpool *pool, size_t n, void *const *ptrs)
{
	int err, first = 0;

	if (!pool)
		return explain(-EINVAL, "pool is NULL");
	if (!ptrs && n)
		return explain(-EINVAL, "ptrs is NULL");
	for (size_t i = 0; i < n; i++) {
		err = release(pool, ptrs[i], NULL);
		if (err && !first)
			first = err;
	}
	return first;
}

/* Gives back what is held, after setting whether the pool holds from now on. */
static int free_held(struct binpool *pool, bool stop)
{
	struct run *run;
	int err = pool_enter(pool);

	if (err)
		return err;
	fences_poll(pool, UINT64_MAX);
	turn_take(pool);
	pool_lock(pool);
	if (stop && pool->stats.holding) {
		pool->stats.holding = 0;
		caches_off(pool, true);
	} else {
		caches_revoke(pool);
	}
	while ((run = bins_largest(pool)))
		held_release_one(pool, run);
	bins_trim(pool);
	pool_unlock(pool);
	extents_give_back(pool);
	extents_shrink(pool, 0, UINT64_MAX);
	turn_give(pool);
	extents_settle(pool);
	pool_trace(pool, stop ? "stop_holding" : "free_held");
	return 0;
}

EXPORT int binpool_free_held(struct binpool *pool)
{
	return free_held(pool, false);
}

EXPORT int binpool_stop_holding(struct binpool *pool)
{
	return free_held(pool, true);
}

EXPORT int binpool_resume_holding(struct binpool *pool)
{
	int err = pool_enter(pool);

	if (err)
		return err;
	pool_lock(pool);
	if (!pool->stats.holding)
		caches_off(pool, false);
	pool->stats.holding = 1;
	pool_unlock(pool);
	pool_trace(pool, "resume_holding");
	return 0;
}
