// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Extents: how a pool gets memory, has it registered, and gives it back. Owns
 * pool->extents, stuck, voids, give_back and pending, and the arenas' lists of empty extents, which
 * change with the arena's lock. The lists of extents and of stuck ones change in turn and locked,
 * so they may be walked either way; the rest needs the pool locked. Provider and registrars are
 * called in turn.
 *
 * reserved + pending never exceeds max_bytes: what is about to be got is
 * pending first, what is about to go stays pending until it is gone. What the kernel does not
 * let go is reserved again, of no more use but to be given back; an extent's end is used again.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pool.h"

/* Addresses for buffers of size 0 come in stretches of this. */
#define VOID_BYTES ((uint64_t)1 << 20)

static void extent_delete(struct extent *e)
{
	runs_unindex(e);
	free(e);
}

static void count_reserved(struct binpool *pool, uint64_t bytes)
{
	pool->pending -= bytes;
	pool->stats.reserved_bytes += bytes;
	pool->stats.reserved_max_bytes =
		u64_max(pool->stats.reserved_max_bytes, pool->stats.reserved_bytes);
}

/* What was pending is not any more, nor reserved. No lock is held. */
void pending_end(struct binpool *pool, uint64_t bytes)
{
	pool_lock(pool);
	pool->pending -= bytes;
	pool_unlock(pool);
}

/* Gives an extent back to the provider; false: it stays. In turn; keeps the last error. */
static bool put(struct binpool *pool, struct extent *e)
{
	char cause[1024];
	uint64_t start;
	int err;

	assert_turn(pool);
	snprintf(cause, sizeof(cause), "%s", binpool_last_error());
	start = now_ns();
	err = pool->provider.ops->put(&pool->provider, e);
	if (err)
		pool_trace(pool, "extent %p: %s", (void *)e->base, binpool_last_error());
	binpool_set_last_error(cause);
	pool_lock(pool);
	pool->stats.extent_frees += !err;
	pool->stats.extent_free_ns += now_ns() - start;
	pool_unlock(pool);
	return !err;
}

/* What nobody lets go of is counted, and told of once. In turn. */
static void count_stuck(struct binpool *pool, const struct extent *e)
{
	bool first;

	pool_lock(pool);
	first = !pool->stuck_told;
	pool->stuck_told = true;
	pool_unlock(pool);
	if (first && e->attachments)
		fprintf(stderr, "binpool: it is kept, and tried again: %s\n", binpool_last_error());
}

/*
 * Detaches an extent, which is not linked and whose bytes are pending, and gives it back. They
 * are not pending any more then. False: it is stuck. In turn; keeps the last error.
 */
bool extent_unget(struct binpool *pool, struct extent *e)
{
	char cause[1024];

	pool_trace(pool, "extent %p: %llu bytes go back", (void *)e->base,
		   (unsigned long long)e->bytes);
	snprintf(cause, sizeof(cause), "%s", binpool_last_error());
	if (!registrars_detach(pool, e))
		count_stuck(pool, e);
	binpool_set_last_error(cause);
	/* Pages that a driver may still use are nobody else's. */
	if (!e->attachments && put(pool, e)) {
		pending_end(pool, e->bytes);
		extent_delete(e);
		return true;
	}
	pool_lock(pool);
	count_reserved(pool, e->bytes);
	pool->stats.stuck_bytes += e->bytes;
	pool->stats.extents++;
	e->next = pool->stuck;
	pool->stuck = e;
	pool_unlock(pool);
	return false;
}

/*
 * Tries to give back what is stuck, with @registered also what registrars did not let go of, for
 * which they may wait; how much went. In turn.
 */
uint64_t extents_retry(struct binpool *pool, bool registered)
{
	struct extent **at = &pool->stuck, *e;
	uint64_t given = 0;

	while ((e = *at)) {
		if ((e->attachments && !(registered && registrars_detach(pool, e))) ||
		    !put(pool, e)) {
			at = &e->next;
			continue;
		}
		pool_lock(pool);
		*at = e->next;
		pool->stats.reserved_bytes -= e->bytes;
		pool->stats.stuck_bytes -= e->bytes;
		pool->stats.extents--;
		pool_unlock(pool);
		given += e->bytes;
		extent_delete(e);
	}
	return given;
}

/* Whether extents grow in place: not once they are registered, as they are then. In turn. */
bool extents_extensible(const struct binpool *pool)
{
	return pool->provider.ops->extend && !pool->registrars;
}

/* Memory in small pages is counted, and told of once. In turn. */
static void count_small(struct binpool *pool, const struct extent *e)
{
	char amount[HUMAN_LEN];
	bool first;

	if (!e->small)
		return;
	pool_lock(pool);
	first = !pool->stats.fallbacks++;
	pool_unlock(pool);
	if (first)
		fprintf(stderr,
			"%s%s: %s came in small pages, which are slower to register and to "
			"use: see binpool_get_stats(3), fallbacks\n",
			pool_prefix(pool), pool->name, human(e->bytes, amount));
}

/*
 * Whether giving held memory back may cure the provider's error; so it does where there was no
 * descriptor for more memory.
 */
static bool is_shortage(const struct binpool *pool, int err)
{
	return err == -ENOMEM ||
	       (!pool->exact && (err == -ENOSPC || err == -EDQUOT || no_descriptor(-err)));
}

/*
 * Gets an extent of @bytes, which are pending, and has it registered, in turn. It is not linked
 * yet. *shortage tells whether an error is the provider's lack of memory,
 * which giving held memory back may cure. -ERRNO, explained: the bytes are not pending any more.
 */
int extent_get(struct binpool *pool, uint64_t bytes, uint64_t align, struct extent **out,
	       bool *shortage)
{
	struct extent *e = calloc(1, sizeof(*e));
	uint64_t start, ns;
	int err;

	assert_turn(pool);
	*shortage = false;
	if (!e) {
		pending_end(pool, bytes);
		return explain(-ENOMEM, "no memory for an extent's description");
	}
	e->bytes = bytes;
	e->room = bytes;
	if (extents_extensible(pool))
		e->room = u64_max(bytes, u64_min(pool->max_bytes & ~(pool->provider.unit - 1),
						 EXTENT_BYTES_MAX));
	e->fd = -1;
	e->node = -1;

	start = now_ns();
	err = pool->provider.ops->get(&pool->provider, e, align);
	ns = now_ns() - start;
	if (err) {
		*shortage = is_shortage(pool, err);
		pending_end(pool, bytes);
		free(e);
		return err;
	}
	pool_lock(pool);
	pool->stats.extent_allocs++;
	pool->stats.extent_alloc_ns += ns;
	pool_unlock(pool);
	count_small(pool, e);

	if (!pool->exact && (map_prepare(e->base, e->bytes) || runs_index(e)))
		err = explain(-ENOMEM, "no memory for bookkeeping of %p", (void *)e->base);
	if (!err)
		err = registrars_attach(pool, e);
	if (err) {
		extent_unget(pool, e);
		return err;
	}
	pool_trace(pool, "extent %p: %llu bytes from %s", (void *)e->base,
		   (unsigned long long)e->bytes, binpool_provider_name(pool->provider.ops->id));
	*out = e;
	return 0;
}

/*
 * Adds @more bytes to an extent in place, in turn: all is there, but for the runs'
 * sake, see extent_link_more(). As extent_get().
 */
int extent_extend(struct binpool *pool, struct extent *e, uint64_t more, struct extent *piece,
		  bool *shortage)
{
	uint64_t start, ns;
	int err;

	assert_turn(pool);
	assert(!e->attachments && more <= e->room - e->bytes);
	*shortage = false;
	*piece = (struct extent){.base = e->base + e->bytes, .bytes = more, .node = -1};
	if (map_prepare(piece->base, more)) {
		pending_end(pool, more);
		return explain(-ENOMEM, "no memory for bookkeeping of %p", (void *)piece->base);
	}
	start = now_ns();
	err = pool->provider.ops->extend(&pool->provider, e, piece);
	ns = now_ns() - start;
	if (err) {
		*shortage = is_shortage(pool, err);
		pending_end(pool, more);
		return err;
	}
	pool_lock(pool);
	pool->stats.extent_extends++;
	pool->stats.extent_alloc_ns += ns;
	pool_unlock(pool);
	count_small(pool, piece);
	return 0;
}

/* Adds what extent_get() got to the arena that it names; its bytes were pending. Locked. */
void extent_link(struct binpool *pool, struct extent *e)
{
	assert_locked(pool);
	count_reserved(pool, e->bytes);
	pool->stats.registered_bytes += e->registered ? e->bytes : 0;
	pool->stats.extents++;
	LIST_APPEND(pool->extents, pool->extents_last, e);
	arena_add(e->arena, e);
	pool->stamp = coarse_ns();
	extent_set_empty(pool, e, true);
	runs_start(pool, e);
}

/* As that, what extent_extend() got. */
void extent_link_more(struct binpool *pool, struct extent *e, const struct extent *piece)
{
	assert_locked(pool);
	count_reserved(pool, piece->bytes);
	e->locked_bytes += piece->locked_bytes;
	if (e->node != piece->node)
		__atomic_store_n(&e->node, -1, __ATOMIC_RELAXED);
	e->page_bytes = 0;
	e->since = pool->stamp = coarse_ns();
	runs_extend(pool, e, piece->bytes);
}

/* Keeps count of the extents without buffers. The arena's lock is enough. */
void extent_set_empty(struct binpool *pool, struct extent *e, bool empty)
{
	if (e->is_void)
		return;
	assert_arena(pool, e->arena);
	if (empty) {
		e->since = stamp_of(pool);
		LIST_PUSH(e->arena->empty, e, empty_prev, empty_next);
	} else {
		LIST_REMOVE(e->arena->empty, e, empty_prev, empty_next);
	}
}

/* The extent without buffers after @e, of all arenas; NULL: the first, there is none. Locked. */
struct extent *empty_after(const struct binpool *pool, const struct extent *e)
{
	uint32_t i = 0;

	assert_locked(pool);
	if (e && e->empty_next)
		return e->empty_next;
	while (e && pool->arenas[i++] != e->arena)
		;
	while (i < pool->arenas_used && !pool->arenas[i]->empty)
		i++;
	return i < pool->arenas_used ? pool->arenas[i]->empty : NULL;
}

/*
 * Takes an extent out of the pool that is without buffers since @before or longer; its
 * bytes are pending then. Locked, in turn.
 */
static struct extent *unlink_empty(struct binpool *pool, uint64_t before)
{
	struct extent *e = empty_after(pool, NULL);

	assert_locked(pool);
	if (!e)
		pool->give_back = false;
	while (e && e->since > before)
		e = empty_after(pool, e);
	if (!e)
		return NULL;
	assert(!e->buffers && run_is_free(e->first) && !e->first->next);
	extent_set_empty(pool, e, false);
	run_delete(e->arena, e->first);
	arena_remove(e);
	e->first = e->last = NULL;
	LIST_UNLINK(pool->extents, pool->extents_last, e);
	pool->stats.extents--;
	pool->stats.registered_bytes -= e->registered ? e->bytes : 0;
	pool->stats.reserved_bytes -= e->bytes;
	pool->pending += e->bytes;
	return e;
}

/*
 * Gives extents without buffers back to the provider, those that have none since
 * @before, until at most @keep bytes are reserved. How much that was. In turn.
 */
uint64_t extents_give_back_some(struct binpool *pool, uint64_t keep, uint64_t before)
{
	uint64_t given = extents_retry(pool, true);

	for (;;) {
		struct extent *e = NULL;
		uint64_t bytes, start;

		pool_lock(pool);
		if (pool->stats.reserved_bytes > keep || !keep)
			e = unlink_empty(pool, before);
		pool_unlock(pool);
		if (!e)
			return given;

		bytes = e->bytes;
		start = now_ns();
		if (extent_unget(pool, e))
			given += bytes;
		pool_lock(pool);
		pool->stats.free_ns += now_ns() - start;
		pool_unlock(pool);
	}
}

void extents_give_back(struct binpool *pool)
{
	extents_give_back_some(pool, 0, UINT64_MAX);
}

/*
 * Takes what is free at the end of an extent out of it, as unlink_empty(), as far as
 * more than @keep bytes are reserved. 0: nothing is, or not since @before. *cut: runs_cut()'s.
 */
static uint64_t cut_tail(struct binpool *pool, struct extent *e, uint64_t keep, uint64_t before,
			 struct run **cut)
{
	const uint64_t unit = pool->provider.unit;
	uint64_t bytes, more;

	assert_locked(pool);
	if (!e->buffers || e->attachments || !run_is_free(e->last) || e->since > before ||
	    pool->stats.reserved_bytes <= keep)
		return 0;
	more = round_up(pool->stats.reserved_bytes - keep, unit);
	bytes = e->last->bytes & ~(unit - 1);
	if (more)
		bytes = u64_min(bytes, more);
	if (!bytes || runs_prepare(pool))
		return 0;
	*cut = runs_cut(pool, e, bytes);
	e->locked_bytes = u64_min(e->locked_bytes, e->bytes);
	/* The small pages may have been there. */
	e->page_bytes = 0;
	pool->stats.reserved_bytes -= bytes;
	pool->pending += bytes;
	return bytes;
}

/*
 * Gives back what is free since @before at the ends of extents, where that can be done in
 * place, until at most @keep bytes are reserved. How much that was. In turn.
 */
uint64_t extents_shrink(struct binpool *pool, uint64_t keep, uint64_t before)
{
	uint64_t given = 0;

	assert_turn(pool);
	if (!pool->provider.ops->shrink)
		return 0;
	for (struct extent *e = pool->extents; e; e = e->next) {
		uint64_t bytes, start, locked = e->locked_bytes;
		struct run *cut;
		int err;

		pool_lock(pool);
		bytes = cut_tail(pool, e, keep, before, &cut);
		pool_unlock(pool);
		if (!bytes)
			continue;
		start = now_ns();
		err = pool->provider.ops->shrink(&pool->provider, e, bytes);
		pool_lock(pool);
		run_delete(e->arena, cut);
		if (err) {
			count_reserved(pool, bytes);
			runs_extend(pool, e, bytes);
			e->last->clean = false;
			e->locked_bytes = locked;
		} else {
			given += bytes;
			pool->pending -= bytes;
			pool->stats.extent_shrinks++;
		}
		pool->stats.extent_free_ns += now_ns() - start;
		pool_unlock(pool);
	}
	return given;
}

/*
 * Does what pool->give_back asks for, or leaves it to the pool's own thread, or to the
 * one that has the turn: that one comes here after it let the turn go. No lock is held.
 */
void extents_settle(struct binpool *pool)
{
	bool wanted;

	for (;;) {
		pool_lock(pool);
		wanted = pool->give_back;
		pool_unlock(pool);
		if (!wanted || reaper_takes(pool) || !turn_try(pool))
			return;
		extents_give_back(pool);
		turn_give(pool);
	}
}

/*
 * More addresses for buffers of size 0, without memory behind them: a stray
 * access faults. Locked. -ENOMEM.
 */
int void_grow(struct binpool *pool, uint64_t align)
{
	struct extent *e = calloc(1, sizeof(*e));

	assert_locked(pool);
	if (!e)
		return -ENOMEM;
	e->is_void = true;
	e->arena = &pool->arena;
	e->bytes = u64_max(VOID_BYTES, page_size());
	e->room = e->bytes;
	e->fd = -1;
	e->node = -1;
	if (!runs_index(e))
		e->base = address_reserve(e->bytes, u64_max(align, page_size()));
	if (!e->base) {
		extent_delete(e);
		return -ENOMEM;
	}
	e->next = pool->voids;
	pool->voids = e;
	runs_start(pool, e);
	return 0;
}

/* A buffer of size 0; NULL: it takes more addresses. Locked; runs_prepare() came before. */
struct run *void_take(struct binpool *pool, uint64_t bytes, uint64_t align)
{
	struct run *run = NULL;

	for (struct extent *e = pool->voids; e && !run; e = e->next)
		run = extent_find(e, bytes, align);
	return run ? carve_from(pool, run, bytes, align) : NULL;
}

void voids_fini(struct binpool *pool)
{
	struct extent *next;

	for (struct extent *e = pool->voids; e; e = next) {
		next = e->next;
		munmap(e->base, e->bytes);
		extent_delete(e);
	}
	pool->voids = NULL;
}

/* Takes what is about to go out of the page map, unless another pool has its pages by now. */
static void forget_runs(const struct extent *e)
{
	for (struct run *run = e->first; run; run = run->next) {
		uint64_t bytes = run->slab ? run->bytes : u64_min(run->bytes, MAP_PAGE_BYTES);

		for (uint64_t at = 0; at < bytes; at += MAP_PAGE_BYTES) {
			struct run **entry = map_entry(run->base + at);

			if (entry && *entry == run)
				map_set(run->base + at, NULL);
		}
	}
}

/* In a forked child: lets go of what was inherited, telling nobody. */
void extents_forget(struct binpool *pool)
{
	struct extent *next;

	for (struct extent *e = pool->stuck; e; e = next) {
		next = e->next;
		registrars_forget(e);
		if (pool->provider.ops->forget)
			pool->provider.ops->forget(&pool->provider, e);
		extent_delete(e);
	}
	for (struct extent *e = pool->extents; e; e = next) {
		next = e->next;
		registrars_forget(e);
		if (!pool->exact)
			forget_runs(e);
		if (pool->provider.ops->forget)
			pool->provider.ops->forget(&pool->provider, e);
		extent_delete(e);
	}
	pool->extents = NULL;
}
