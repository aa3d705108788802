// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Threads' caches of pools: made, emptied, revoked. Owns pool->caches, cache_off, and
 * with threads_lock the tables in which threads find
 * their caches and the numbers of pools. The fast path is in cache.h.
 */
#include <linux/membarrier.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cache.h"

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#else /* before glibc 2.32: nobody knows */
#define __libc_single_threaded false
#endif

/* Buffers above this are never cached: an extent of their own serves them. */
#define CACHED_BYTES_MAX EXTENT_BYTES_MAX

struct cache cache_none __attribute__((aligned(64)));
static struct thread_caches no_caches = {
	.size = FAST_NUMBERS,
	.cache = {[0 ... FAST_NUMBERS - 1] = &cache_none},
};
__thread struct thread_caches *thread_caches = &no_caches;
static bool fenced; /* membarrier() cannot be had */

static pthread_mutex_t threads_lock = PTHREAD_MUTEX_INITIALIZER;
static struct binpool **numbered;
static uint32_t numbers;
static bool membarrier_asked; /* whether it can be had */
/* Set when a thread's caches are gone: what it calls later goes without. */
static __thread bool thread_ended;

/* Whether owners of caches need barriers of their own. */
bool caches_fenced(void)
{
	return __atomic_load_n(&fenced, __ATOMIC_RELAXED);
}

static uint32_t revoked(bool yes)
{
	return (yes ? CACHE_REVOKED : 0) | (caches_fenced() ? CACHE_FENCED : 0);
}

static int membarrier(int command)
{
	return (int)syscall(SYS_membarrier, command, 0, 0);
}

/* A barrier of all threads of the process; the first may have to register it. */
static bool barrier(void)
{
	return !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) ||
	       (!membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
		!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED));
}

/* Takes a magazine into use, as magazine_at(). */
void magazine_start(struct cache *c, struct magazine *m)
{
	struct binpool *pool = c->pool;

	m->bin = pool->cache_bin + (uint32_t)(m - c->magazines);
	m->capacity = class_bin_capacity(pool, m->bin);
	m->align = class_align(pool, m->capacity);
	m->in_pool = bins_at(pool, m->bin);
	m->next = c->in_use;
	c->in_use = m;
}

/* ---- Moving buffers between a cache and the pool; all locked ------------- */

/* Brings the pool's counters up to what the magazine's owner did. */
void magazine_settle(struct binpool *pool, struct magazine *m)
{
	uint64_t count = __atomic_load_n(&m->count, __ATOMIC_RELAXED);
	uint64_t taken = (count >> MAGAZINE_BITS) - (m->settled >> MAGAZINE_BITS);
	uint64_t more = (uint64_t)magazine_fill(count) - magazine_fill(m->settled);
	uint64_t returned = more + m->given + m->evicted;
	uint64_t fewer = returned + m->dissolved - m->carved;
	struct bin *bin;

	if (count == m->settled && !m->evicted && !m->carved && !m->dissolved && !m->given)
		return;
	bin = m->in_pool;
	pool->stats.allocs += m->carved;
	pool->stats.frees_active += m->dissolved;
	pool->stats.frees_held += m->evicted;
	pool->stats.reuses += taken;
	pool->stats.returns += taken + returned;
	pool->stats.active_blocks -= fewer;
	pool->stats.held_blocks += more + m->given;
	pool->stats.held_bytes += (more + m->given) * m->capacity;
	pool->active_capacity -= fewer * m->capacity;
	bin->active -= fewer;
	bin->cached += more + m->given;
	m->settled = count;
	m->evicted = m->carved = m->dissolved = m->given = 0;
}

void caches_settle(struct binpool *pool)
{
	assert_locked(pool);
	for (struct cache *c = pool->caches; c; c = c->next) {
		uint64_t asked = __atomic_load_n(&c->asked, __ATOMIC_RELAXED);

		for (struct magazine *m = c->in_use; m; m = m->next)
			magazine_settle(pool, m);
		pool->stats.active_bytes += asked - c->settled_asked;
		c->settled_asked = asked;
	}
}

/* Takes the @n oldest buffers out of a magazine, uncounted. As magazine_at(). */
void magazine_drop(struct cache *c, struct magazine *m, uint32_t n)
{
	m->count -= n;
	c->left += (int64_t)(n * m->capacity);
	memmove(m->items, m->items + n, magazine_fill(m->count) * sizeof(*m->items));
	m->since_count -= n < magazine_fill(m->since_count) ? n : magazine_fill(m->since_count);
}

/* Takes the @n oldest buffers out of a magazine; they are held, and in no list. */
static void magazine_cut(struct cache *c, struct magazine *m, uint32_t n)
{
	struct binpool *pool = c->pool;

	magazine_settle(pool, m);
	if (!n)
		return;
	magazine_drop(c, m, n);
	m->settled = m->count;
	m->in_pool->cached -= n;
	pool->stats.held_blocks -= n;
	pool->stats.held_bytes -= n * m->capacity;
}

/* The @n oldest buffers of a magazine leave: bins_hold() or held_dissolve() is done to each. */
void magazine_leave(struct cache *c, struct magazine *m, uint32_t n,
		    void (*to)(struct binpool *pool, struct run *run))
{
	struct run *runs[MAGAZINE_MAX];

	for (uint32_t i = 0; i < n; i++)
		runs[i] = m->items[i].run;
	magazine_cut(c, m, n);
	for (uint32_t i = 0; i < n; i++)
		to(c->pool, runs[i]);
}

/* All of it goes into the bins. When it was last used nobody knows: as if that were now. */
static void cache_empty(struct cache *c)
{
	stamp_now(c->pool);
	for (struct magazine *m = c->in_use; m; m = m->next)
		magazine_leave(c, m, magazine_fill(m->count), bins_hold);
	cache_set_top(c, 0);
	cache_set_credit(c, 0);
}

/* The owner sees it at the next barrier. Returns what revoked was. */
static uint32_t cache_close(struct cache *c)
{
	__atomic_store_n(&c->limit, 0, __ATOMIC_SEQ_CST);
	return __atomic_exchange_n(&c->revoked, revoked(true), __ATOMIC_SEQ_CST);
}

/*
 * membarrier() was taken away from the process. Owners have barriers of their own from
 * now on; what they stored before without one is seen a moment later, as no processor
 * keeps a store to itself for long.
 */
static void fence_owners(struct binpool *pool)
{
	const struct timespec moment = {.tv_nsec = 1000000};

	__atomic_store_n(&fenced, true, __ATOMIC_RELAXED);
	for (struct cache *c = pool->caches; c; c = c->next)
		cache_close(c);
	nanosleep(&moment, NULL);
}

/* An owner is inside for some instructions; but he may wait for the CPU that we have. */
static void wait_until_left(const struct cache *c)
{
	const struct timespec moment = {.tv_nsec = 50000};

	for (int i = 0; __atomic_load_n(&c->busy, __ATOMIC_SEQ_CST); i++) {
		if (i < 100)
			sched_yield();
		else
			nanosleep(&moment, NULL);
	}
}

/* Keeps threads out of their caches: idle ones', or all. Locked. */
static void stop(struct binpool *pool, bool idle_only)
{
	bool unfenced = false, any = false;

	for (struct cache *c = pool->caches; c; c = c->next) {
		if (idle_only && !c->idle)
			continue;
		unfenced = !(cache_close(c) & CACHE_FENCED) || unfenced;
		any = true;
	}
	if (!any)
		return;
	if (unfenced && !barrier())
		fence_owners(pool);
	for (struct cache *c = pool->caches; c; c = c->next)
		if (!idle_only || c->idle)
			wait_until_left(c);
	caches_settle(pool);
}

void caches_stop(struct binpool *pool)
{
	stop(pool, false);
}

/* Lets threads use their caches, unless something is to be cached no more. Locked. */
void caches_go(struct binpool *pool)
{
	for (struct cache *c = pool->caches; c && !pool->cache_off; c = c->next) {
		__atomic_store_n(&c->revoked, revoked(false), __ATOMIC_RELEASE);
		cache_limit(c);
	}
}

/*
 * Takes everything from all threads' caches and the depot, into the bins. They stay revoked, and
 * so out of use, if something is to be cached no more.
 */
void caches_revoke(struct binpool *pool)
{
	assert_locked(pool);
	stop(pool, false);
	for (struct cache *c = pool->caches; c; c = c->next)
		cache_empty(c);
	depot_empty(pool);
	caches_go(pool);
}

/* The same of threads that do nothing, which have no share in the budget until they do. */
void caches_revoke_idle(struct binpool *pool)
{
	assert_locked(pool);
	stop(pool, true);
	for (struct cache *c = pool->caches; c; c = c->next)
		if (c->idle)
			cache_empty(c);
	caches_go(pool);
}

/* One reason more, or one less, for caching nothing. */
void caches_off(struct binpool *pool, bool off)
{
	assert_locked(pool);
	pool->cache_off += off ? 1 : -1u;
	if (off) {
		caches_revoke(pool);
	} else {
		caches_go(pool);
	}
}

/* ---- For the cache's own thread, without the lock -------------------------- */

/* cache_enter(), and the magazine is one that is in use. */
static bool enter_at(struct cache *c, uint32_t place)
{
	return cache_enter(c) && place / sizeof(struct magazine) <= c->top;
}

/*
 * Lets the next cache_pop() of the magazine find a buffer at a multiple of @align, unless the
 * cache is emptied meanwhile. False: it has none.
 */
bool cache_raise(struct cache *c, uint32_t place, uint64_t align)
{
	struct magazine *m = magazine_of(c, place);
	bool found = false;

	if (enter_at(c, place)) {
		uint32_t n = magazine_fill(__atomic_load_n(&m->count, __ATOMIC_RELAXED));

		for (uint32_t i = n; i-- && !found;) {
			struct cached item = m->items[i];

			found = !((uintptr_t)item.ptr & (align - 1));
			if (!found)
				continue;
			memmove(m->items + i, m->items + i + 1, (n - 1 - i) * sizeof(item));
			m->items[n - 1] = item;
		}
	}
	cache_leave(c);
	return found;
}

/* As cache_pop() and cache_push(), also without membarrier() and for pools of any number. */
char *cache_pop_slowly(struct cache *c, uint32_t place, uint64_t asked)
{
	char *ptr = enter_at(c, place) ? magazine_pop(c, place, asked) : NULL;

	cache_leave(c);
	return ptr;
}

bool cache_push_slowly(struct cache *c, struct run *run, char *ptr)
{
	bool pushed = enter_at(c, run->place) && magazine_push(c, run->place, run, ptr);

	cache_leave(c);
	return pushed;
}

/* ---- Life of a cache ------------------------------------------------------ */

static size_t cache_size(const struct binpool *pool)
{
	return sizeof(struct cache) + pool->cache_bins * sizeof(struct magazine);
}

static void cache_free(struct cache *c)
{
	for (struct magazine *m = c->in_use; m; m = m->next)
		free(m->items);
	bookkeeping_unmap(c, cache_size(c->pool));
}

/* Unlinks a cache and frees it; its buffers go into the bins. Locked, threads_lock. */
static void cache_delete(struct cache *c)
{
	struct binpool *pool = c->pool;

	caches_settle(pool);
	cache_empty(c);
	cache_set_idle(c, true);
	LIST_REMOVE(pool->caches, c, prev, next);
	c->thread->cache[pool->number] = &cache_none;
	cache_free(c);
}

/* At the end of a thread, which may be this one. No lock is held. */
void caches_end(struct thread *thread)
{
	struct thread_caches *t;

	pthread_mutex_lock(&threads_lock);
	t = thread->caches;
	if (t && t == thread_caches) {
		thread_caches = &no_caches;
		thread_ended = true;
	}
	for (uint32_t i = 0; t && i < t->size; i++) {
		struct cache *c = t->cache[i];
		struct binpool *pool;

		if (c == &cache_none)
			continue;
		pool = c->pool;
		pool_lock(pool);
		cache_delete(c);
		pool_unlock(pool);
	}
	free(t);
	pthread_mutex_unlock(&threads_lock);
}

/*
 * Makes the thread's table large enough. It is not the thread's own memory: a thread
 * may end without a word, and its caches are emptied later. threads_lock.
 */
static int table_grow(uint32_t number)
{
	struct thread_caches *old = thread_caches, *t;
	struct thread *self = thread_get();
	uint32_t size = FAST_NUMBERS;

	if (old != &no_caches && number < old->size)
		return 0;
	while (size <= number)
		size *= 2;
	t = calloc(1, sizeof(*t) + size * sizeof(struct cache *));
	if (!t || !self) {
		free(t);
		return -ENOMEM;
	}
	t->size = size;
	for (uint32_t i = 0; i < size; i++) {
		t->cache[i] = i < old->size ? old->cache[i] : &cache_none;
		if (t->cache[i] != &cache_none)
			t->cache[i]->thread = t;
	}
	thread_caches = self->caches = t;
	if (old != &no_caches)
		free(old);
	return 0;
}

/* The thread's cache of @pool, made if there is none; NULL: it goes without. No lock is held. */
struct cache *cache_get(struct binpool *pool)
{
	struct cache *c = cache_of(pool);

	if (c || !pool->cache_bins || thread_ended)
		return c;
	c = bookkeeping_map(cache_size(pool));
	if (!c)
		return NULL;
	c->pool = pool;
	threads_reap(false);
	pthread_mutex_lock(&threads_lock);
	if (table_grow(pool->number)) {
		pthread_mutex_unlock(&threads_lock);
		cache_free(c);
		return NULL;
	}
	pool_lock(pool);
	c->revoked = revoked(pool->cache_off);
	cache_limit(c);
	LIST_PUSH(pool->caches, c, prev, next);
	pool->caches_awake++;
	arena_join(c);
	pool_unlock(pool);
	c->thread = thread_caches;
	thread_caches->cache[pool->number] = c;
	pthread_mutex_unlock(&threads_lock);
	return c;
}

/* ---- Life of a pool -------------------------------------------------------- */

/* Gives the pool a number; 0 is no pool's. threads_lock. */
static int number_take(struct binpool *pool)
{
	struct binpool **more;
	uint32_t i = 1;

	while (i < numbers && numbered[i])
		i++;
	if (i >= numbers) {
		more = realloc(numbered, (numbers + 8) * sizeof(struct binpool *));
		if (!more)
			return -ENOMEM;
		memset(more + numbers, 0, 8 * sizeof(struct binpool *));
		numbered = more;
		numbers += 8;
	}
	numbered[i] = pool;
	pool->number = i;
	pool->fast_number = i < FAST_NUMBERS ? i : 0;
	return 0;
}

/*
 * Asks whether membarrier() can be had. A process with threads waits for milliseconds when
 * it registers for that: it does so with its first barrier().
 */
static void ask_membarrier(void)
{
	int known = membarrier(MEMBARRIER_CMD_QUERY);

	if (__libc_single_threaded)
		fenced = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0;
	else
		fenced = known < 0 || !(known & MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

/* What is needed before the first cache. threads_lock. */
static void threads_init(void)
{
	if (!membarrier_asked)
		ask_membarrier();
	membarrier_asked = true;
}

/* For cache_place(): sizes from @least to @most have a place. */
static void levels_init(struct binpool *pool, uint64_t least, uint64_t most)
{
	uint32_t m = pool->mantissa_bits;

	for (uint32_t l = 0; l < 64; l++) {
		struct cache_level *level = &pool->cache_levels[l];

		/* Beyond all, whatever is added. */
		*level = (struct cache_level){63, 1u << 24};
		if (l + 1 < binpool_log2(least) || l > binpool_log2(most))
			continue;
		level->shift = LEVEL_SHIFT + l - m;
		level->base = (l << m) - (1u << m) - pool->cache_bin;
	}
}

int caches_init(struct binpool *pool, const struct binpool_options *o)
{
	/* HySoP's classes of single bytes are not what cache_place() says. */
	uint64_t least = pool->classes == BINPOOL_CLASSES_TIGHT
				 ? pool->granule
				 : u64_max(pool->granule, (uint64_t)2 << pool->mantissa_bits);
	uint64_t most = u64_min(pool->max_bytes, CACHED_BYTES_MAX);
	int err;

	pool->cache_bytes = o->cache_bytes;
	if (!o->cache_bytes || pool->exact ||
	    pool->flags & (BINPOOL_POOL_VERBOSE | BINPOOL_POOL_DEBUG))
		return 0;
	pthread_mutex_lock(&threads_lock);
	threads_init();
	err = number_take(pool);
	pthread_mutex_unlock(&threads_lock);
	if (err)
		return explain(err, "no memory for a pool");
	pool->cache_mask = pool->granule - 1;
	pool->cache_tight = pool->classes == BINPOOL_CLASSES_TIGHT;
	pool->cache_bin = class_bin(pool, class_capacity(pool, least));
	if (pool->max_bytes > least)
		pool->cache_bins =
			class_bin(pool, class_capacity(pool, most)) + 1 - pool->cache_bin;
	levels_init(pool, least, most);
	return 0;
}

/* No thread uses the pool any more; in a forked child none but this one is there. */
void caches_fini(struct binpool *pool)
{
	if (!pool->number)
		return;
	pthread_mutex_lock(&threads_lock);
	if (!pool->dead) {
		pool_lock(pool);
		while (pool->caches)
			cache_delete(pool->caches);
		pool_unlock(pool);
	}
	/* What a child inherited: no thread has it in its table. */
	for (struct cache *next, *c = pool->caches; c; c = next) {
		next = c->next;
		cache_free(c);
	}
	numbered[pool->number] = NULL;
	pool->number = pool->fast_number = 0;
	pthread_mutex_unlock(&threads_lock);
}

void caches_before_fork(void)
{
	pthread_mutex_lock(&threads_lock);
}

/* A child's inherited pools are dead: no thread has a cache of them. */
void caches_after_fork(bool child)
{
	if (child) {
		for (uint32_t i = 0; thread_caches != &no_caches && i < thread_caches->size; i++)
			thread_caches->cache[i] = &cache_none;
		ask_membarrier();
	}
	pthread_mutex_unlock(&threads_lock);
}
