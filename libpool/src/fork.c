// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * fork. Owns the list of all pools; pools_lock.
 *
 * A child's copy of a pool would hand out memory that the parent hands out too
 * (it is shared, not copied), so a child only gets to free and destroy it. All
 * locks are taken around fork, so that what the child sees is whole. The turn
 * is not: a provider call may be long, and a child never takes it.
 */
#include "cache.h"

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct binpool *pools;
static bool watching;

static void before_fork(void)
{
	pthread_mutex_lock(&pools_lock);
	caches_before_fork();
	for (struct binpool *pool = pools; pool; pool = pool->pools_next)
		if (!pool->dead)
			pool_lock(pool);
	pagemap_before_fork();
	threads_before_fork();
}

static void in_parent(void)
{
	threads_after_fork(false);
	pagemap_after_fork();
	for (struct binpool *pool = pools; pool; pool = pool->pools_next)
		if (!pool->dead)
			pool_unlock(pool);
	caches_after_fork(false);
	pthread_mutex_unlock(&pools_lock);
}

static void in_child(void)
{
	threads_after_fork(true);
	pagemap_after_fork();
	for (struct binpool *pool = pools; pool; pool = pool->pools_next) {
		if (pool->dead)
			continue;
		pool_unlock(pool);
		pool->dead = true;
	}
	caches_after_fork(true);
	pthread_mutex_unlock(&pools_lock);
}

/* -ENOMEM. */
int fork_watch(struct binpool *pool)
{
	int err = 0;

	pthread_mutex_lock(&pools_lock);
	if (!watching)
		err = -pthread_atfork(before_fork, in_parent, in_child);
	if (!err) {
		watching = true;
		LIST_PUSH(pools, pool, pools_prev, pools_next);
	}
	pthread_mutex_unlock(&pools_lock);
	return err ? explain(err, "no memory for a fork handler") : 0;
}

void pools_each(void (*fn)(struct binpool *pool, void *arg), void *arg)
{
	pthread_mutex_lock(&pools_lock);
	for (struct binpool *pool = pools; pool; pool = pool->pools_next)
		fn(pool, arg);
	pthread_mutex_unlock(&pools_lock);
}

void fork_unwatch(struct binpool *pool)
{
	pthread_mutex_lock(&pools_lock);
	LIST_REMOVE(pools, pool, pools_prev, pools_next);
	pthread_mutex_unlock(&pools_lock);
}
