// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Requests that wait until there is room. Owns pool->waiters; the pool's lock.
 *
 * Meanwhile threads have no caches: what they free is seen at once. What others
 * give back, and fences, say nothing: the request is made again after naps that grow.
 */
#include "cache.h"

/* A thread that waits until there is room. */
struct waiter {
	struct binpool *pool;
	uint64_t end;	/* ns; UINT64_MAX: never */
	uint64_t frees; /* as far as it has seen */
	uint64_t nap;	/* ns */
};

#define NAP_MIN_NS 200000u
#define NAP_MAX_NS 10000000u

/* So far; only grows. Locked. */
static uint64_t frees_so_far(const struct binpool *pool)
{
	return pool->stats.returns + pool->stats.frees_active;
}

bool wait_helps(int err)
{
	return err == -ENOMEM || err == -ENOSPC || err == -EDQUOT;
}

/* Afterwards frees are seen as they happen; waiter_end() has to follow. */
static void waiter_begin(struct waiter *w, struct binpool *pool, uint32_t ms)
{
	const uint64_t ns_per_ms = 1000000;

	*w = (struct waiter){.pool = pool, .end = UINT64_MAX, .nap = NAP_MIN_NS};
	if (ms != UINT32_MAX)
		w->end = now_ns() + ms * ns_per_ms;
	pool_lock(pool);
	pool->waiters++;
	caches_off(pool, true);
	w->frees = frees_so_far(pool);
	pool_unlock(pool);
}

/* Until something may have changed since it last looked; false: time is up. */
static bool waiter_wait(struct waiter *w)
{
	struct binpool *pool = w->pool;
	uint64_t now = now_ns(), end = u64_min(w->end, now + w->nap);

	if (now >= w->end)
		return false;
	w->nap = u64_min(2 * w->nap, NAP_MAX_NS);
	pool_lock(pool);
	while (frees_so_far(pool) == w->frees && pool_wait(pool, end))
		;
	w->frees = frees_so_far(pool);
	pool_unlock(pool);
	return true;
}

static void waiter_end(struct waiter *w)
{
	pool_lock(w->pool);
	caches_off(w->pool, false);
	w->pool->waiters--;
	pool_unlock(w->pool);
}

int allocate_waiting(struct binpool *pool, const struct binpool_alloc_opts *o,
		     struct binpool_buf *buf)
{
	struct waiter w;
	int err;

	waiter_begin(&w, pool, o->wait_ms);
	do {
		err = allocate(pool, o->bytes, o->alignment, o->flags, buf);
	} while (wait_helps(err) && waiter_wait(&w));
	waiter_end(&w);
	return wait_helps(err) ? explain(-ETIMEDOUT, "waited %u ms in vain: %s", o->wait_ms,
					 binpool_last_error())
			       : err;
}
