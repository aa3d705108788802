// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A pool's life, and what every call begins with. Owns what is fixed at create.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache.h"

#define DEFAULT_NAME "binpool"

__thread struct callback *thread_callbacks;

void callback_enter(struct callback *c, const struct binpool *pool)
{
	*c = (struct callback){.pool = pool, .outer = thread_callbacks, .cache = cache_of(pool)};
	thread_callbacks = c;
	/* Or a call that finds something there would be none. */
	if (c->cache)
		thread_caches->cache[pool->number] = &cache_none;
}

void callback_leave(struct callback *c)
{
	thread_callbacks = c->outer;
	/* A child that returns from a callback in which the parent forked has none. */
	if (c->cache && !c->pool->dead) {
		/* The table may have moved, as more pools were used. */
		c->cache->thread = thread_caches;
		thread_caches->cache[c->pool->number] = c->cache;
	}
}

int callback_errno(int err)
{
	const int errno_max = 4095;

	return err < 0 && err >= -errno_max ? err : -EIO;
}

bool callback_of(const struct binpool *pool)
{
	for (struct callback *c = thread_callbacks; c; c = c->outer)
		if (c->pool == pool)
			return true;
	return false;
}

static int refuse_callback(const struct binpool *pool)
{
	return explain(-EDEADLK, "pool %s is used by a callback of its own", pool->name);
}

int pool_enter(const struct binpool *pool)
{
	if (!pool)
		return explain(-EINVAL, "pool is NULL");
	if (pool->dead)
		return explain(-EOWNERDEAD, "pool %s is the parent process's: make one here",
			       pool->name);
	if (callback_of(pool))
		return refuse_callback(pool);
	return 0;
}

int pool_enter_host(const struct binpool *pool)
{
	int err = pool_enter(pool);

	if (!err && pool->handles)
		return explain(-EINVAL, "pool %s: its buffers are handles, not pointers",
			       pool->name);
	return err;
}

void turn_take(struct binpool *pool)
{
	queue_take(&pool->turn);
	__atomic_store_n(&pool->turn_holder, thread_self(), __ATOMIC_RELAXED);
}

bool turn_try(struct binpool *pool)
{
	if (!queue_try(&pool->turn))
		return false;
	__atomic_store_n(&pool->turn_holder, thread_self(), __ATOMIC_RELAXED);
	return true;
}

void turn_give(struct binpool *pool)
{
	__atomic_store_n(&pool->turn_holder, NULL, __ATOMIC_RELAXED);
	queue_give(&pool->turn);
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const char *pool_prefix(const struct binpool *pool)
{
	return strcmp(pool->name, DEFAULT_NAME) ? "binpool: " : "";
}

void pool_trace(const struct binpool *pool, const char *fmt, ...)
{
	char line[1200];
	va_list args;

	if (!(pool->flags & BINPOOL_POOL_VERBOSE))
		return;
	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	fprintf(stderr, "%s%s: %s\n", pool_prefix(pool), pool->name, line);
}

static char *copy_name(const char *name)
{
	char *copy = strdup(name ? name : DEFAULT_NAME);

	/* Reports are lines of key=value. */
	for (char *c = copy; c && *c; c++)
		if ((unsigned char)*c < ' ')
			*c = '?';
	return copy;
}

static void pool_delete(struct binpool *pool)
{
	caches_fini(pool);
	fences_fini(pool);
	shares_fini(pool);
	if (pool->provider.ops && pool->provider.ops->close)
		pool->provider.ops->close(&pool->provider);
	if (pool->dead)
		extents_forget(pool);
	/* Extents refer to them. */
	registrars_fini(pool);
	notes_fini(pool);
	voids_fini(pool);
	bins_fini(pool);
	runs_fini(pool);
	depot_fini(pool);
	arenas_fini(pool);
	free(pool->lookup);
	free(pool->name);
	free(pool);
}

static int pool_init(struct binpool *pool, const struct binpool_options *o)
{
	struct provider *p = &pool->provider;
	int err;

	pool->name = copy_name(o->name);
	if (!pool->name)
		return explain(-ENOMEM, "no memory for a pool");
	arenas_init(pool);
	pool->mantissa_bits = o->mantissa_bits;
	pool->classes = o->classes;
	pool->flags = o->flags;
	pool->granule = o->granule;
	pool->exact = o->provider == BINPOOL_PROVIDER_ALLOCATOR;
	pool->handles = o->kind == BINPOOL_KIND_HANDLE;
	pool->stats.holding = 1;

	p->pool = pool;
	p->fd = -1;
	p->node = o->node;
	p->strict_node = o->flags & BINPOOL_POOL_STRICT_NODE;
	p->strict = o->flags & BINPOOL_POOL_STRICT;
	p->max_from = "what the provider allows";
	if (pool->exact) {
		err = struct_in(&p->allocator, sizeof(p->allocator), o->allocator,
				"options.allocator");
		if (err)
			return err;
	}
	err = provider_choose(p, o->provider, o->max_bytes);
	if (err)
		return err;
	pool->max_bytes = o->max_bytes ? o->max_bytes : p->max_bytes;
	pool->max_from = o->max_bytes ? "option max_bytes or BINPOOL_OPTS" : p->max_from;
	if (pool->max_bytes < p->unit) {
		char limit[HUMAN_LEN], unit[HUMAN_LEN];

		return explain(-EINVAL,
			       "max_bytes is %s, but provider %s gives memory in units "
			       "of %s",
			       human(pool->max_bytes, limit), binpool_provider_name(p->ops->id),
			       human(p->unit, unit));
	}
	pool->extent_idle_ms = o->extent_idle_ms ? o->extent_idle_ms : EXTENT_IDLE_MS;
	err = caches_init(pool, o);
	if (!err)
		err = leaks_watch(pool);
	if (!err)
		err = fork_watch(pool);
	if (err)
		return err;
	err = reaper_start(pool);
	if (err)
		fork_unwatch(pool);
	return err;
}

EXPORT int binpool_create(struct binpool **out, const struct binpool_options *opts)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;
	int err = 0;

	if (!out)
		return explain(-EINVAL, "pool is NULL");
	*out = NULL;
	if (opts)
		err = struct_in(&o, sizeof(o), opts, "options");
	threads_reap(false);
	if (!err)
		err = options_complete(&o);
	if (err)
		return err;
	pool = aligned_alloc(_Alignof(struct binpool), sizeof(*pool));
	if (!pool)
		return explain(-ENOMEM, "no memory for a pool");
	memset(pool, 0, sizeof(*pool));
	err = pool_init(pool, &o);
	if (err) {
		pool_delete(pool);
		return err;
	}
	pool->provider.in_use = true;
	pool_trace(pool, "created over %s", binpool_provider_name(pool->provider.ops->id));
	*out = pool;
	return 0;
}

void pool_unpin(struct binpool *pool, uint64_t *pins)
{
	pool_lock(pool);
	--*pins;
	wake_idle(pool);
	pool_unlock(pool);
}

bool pool_wait(struct binpool *pool, uint64_t end)
{
	uint32_t seen = pool->idle;
	bool in_time;

	assert_locked(pool);
	pool->idlers++;
	pool_unlock(pool);
	in_time = futex_wait(&pool->idle, seen, end);
	pool_lock(pool);
	pool->idlers--;
	return in_time;
}

void pool_wake(struct binpool *pool)
{
	assert_locked(pool);
	/* Who has just let the lock go to sleep looks at it without. */
	__atomic_store_n(&pool->idle, pool->idle + 1, __ATOMIC_RELAXED);
	if (pool->idlers)
		futex_wake_all(&pool->idle);
}

/* Waits until all buffers are free, fences included, or until @end. Locked. */
static void wait_idle(struct binpool *pool, uint64_t end)
{
	const uint64_t nap_max = 2000000;
	uint64_t nap = 100000, now;

	while (pool->stats.active_blocks || pool->leaving) {
		if (pool->fences.count) {
			pool_unlock(pool);
			fences_poll(pool, UINT64_MAX);
			pool_lock(pool);
			if (!pool->stats.active_blocks)
				continue;
		}
		now = now_ns();
		if (now >= end)
			return;
		pool_wait(pool, pool->fences.count ? u64_min(end, now + nap) : end);
		nap = u64_min(2 * nap, nap_max);
	}
}

EXPORT int binpool_destroy_wait(struct binpool *pool, uint32_t ms)
{
	uint64_t active, pending, feeds;
	uint64_t stuck, registered;
	int err = pool_enter(pool);

	/* A child may be in the callback that forked it, which returns to the pool. */
	if (err == -EOWNERDEAD && callback_of(pool))
		err = refuse_callback(pool);
	if (err && err != -EOWNERDEAD)
		return err;
	if (!err) {
		pool_lock(pool);
		caches_off(pool, true);
		wait_idle(pool, now_ns() + (uint64_t)ms * 1000000u);
		active = pool->stats.active_blocks;
		pending = pool->fences.count;
		feeds = pool->feeds;
		/* A thread that freed the last buffer is about to leave its call. */
		while (!active && !feeds && pool->leaving)
			pool_wait(pool, UINT64_MAX);
		caches_off(pool, false);
		pool_unlock(pool);
		if (active) {
			leaks_tell(pool, NULL);
			return explain(-EBUSY,
				       "pool %s: %llu buffer%s in use, %llu of them only waiting "
				       "for fences",
				       pool->name, (unsigned long long)active, plural(active),
				       (unsigned long long)pending);
		}
		if (feeds)
			return explain(-EBUSY, "pool %s: %llu other pools take from it", pool->name,
				       (unsigned long long)feeds);
	}
	if (!pool->dead) {
		err = binpool_free_held(pool);
		if (err)
			return err;
		/* The pool's own thread may be trying those again, which have attachments. */
		turn_take(pool);
		pool_lock(pool);
		stuck = pool->stats.stuck_bytes;
		registered = 0;
		for (const struct extent *e = pool->stuck; e; e = e->next)
			registered += e->attachments ? e->bytes : 0;
		pool_unlock(pool);
		turn_give(pool);
		extents_settle(pool);
		if (registered)
			return explain(-EBUSY,
				       "pool %s: registrars do not let go of %llu bytes of its "
				       "memory: it is to be destroyed again later",
				       pool->name, (unsigned long long)registered);
		if (stuck)
			return explain(-ENOMEM,
				       "pool %s: the kernel has no room to unmap its memory (see "
				       "vm.max_map_count): it is to be destroyed again later",
				       pool->name);
	}
	background_stop(pool);
	reaper_stop(pool);
	fork_unwatch(pool);
	if (!pool->dead) {
		/* Nobody finds it any more, but somebody may have. */
		pool_lock(pool);
		while (pool->leaving || pool->finders)
			pool_wait(pool, UINT64_MAX);
		pool_unlock(pool);
	}
	caches_fini(pool);
	pool_delete(pool);
	threads_reap(true);
	return 0;
}

EXPORT int binpool_destroy(struct binpool *pool)
{
	return binpool_destroy_wait(pool, 0);
}
