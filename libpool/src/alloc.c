// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Requests: a held buffer of the right bin, else one carved from a free run, else
 * what grow.c finds. Locks the pool; owns nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "request.h"

static int request_init(struct request *req, const struct binpool *pool, uint64_t bytes,
			uint64_t align)
{
	char asked[HUMAN_LEN], limit[HUMAN_LEN];
	uint64_t most = pool->max_bytes;
	uint64_t need = bytes;

	if (!is_pow2(align) || align > ALIGNMENT_MAX)
		return explain(-EINVAL, "pool %s: alignment %llu is no power of two up to 1 GiB",
			       pool->name, (unsigned long long)align);
	if (pool->handles && align != 1)
		return explain(-EINVAL, "pool %s: handles have no alignment", pool->name);
	*req = (struct request){.bytes = bytes, .align = align};
	if (!bytes && !(pool->exact && pool->classes == BINPOOL_CLASSES_HYSOP)) {
		req->is_void = true;
		req->capacity = GRANULE_DEFAULT;
		req->align = u64_max(align, GRANULE_DEFAULT);
		req->run_bytes = req->capacity;
		req->run_align = req->align;
		return 0;
	}
	/* An allocator knows of no alignment: room to find the place inside. */
	if (pool->exact && __builtin_add_overflow(bytes, align - 1, &need))
		need = UINT64_MAX;
	/*
	 * In a slab only a multiple of the alignment is at one. Tight classes of a multiple are
	 * multiples, HySoP's may not be.
	 */
	if (!pool->exact && slab_serves(pool, need))
		need = round_up(need, u64_min(align, MAP_PAGE_BYTES));
	req->capacity = need == UINT64_MAX && need != bytes ? 0 : class_capacity(pool, need);
	while (!pool->exact && req->capacity && slab_serves(pool, req->capacity) &&
	       req->capacity & (u64_min(align, MAP_PAGE_BYTES) - 1))
		req->capacity = class_capacity(pool, req->capacity + 1);
	if (!req->capacity)
		return explain(-E2BIG, "pool %s: asked for %llu bytes, no size class is that large",
			       pool->name, (unsigned long long)bytes);
	if (!pool->exact) {
		/* Users read into whole pages directly. */
		req->align = u64_max(align, class_align(pool, req->capacity));
		if (most != UINT64_MAX)
			most &= ~(pool->provider.unit - 1);
	}
	if (req->capacity > most)
		return explain(-EFBIG,
			       "pool %s: asked for %s, which never fits: max_bytes is %s (%s)",
			       pool->name, human(bytes, asked), human(pool->max_bytes, limit),
			       pool->max_from);
	req->bin = class_bin(pool, req->capacity);
	req->in_slab = slab_serves(pool, req->capacity);
	req->run_bytes = req->in_slab ? MAP_PAGE_BYTES : req->capacity;
	req->run_align = req->in_slab ? req->run_bytes : req->align;
	return 0;
}

/* Everything that a success needs memory for, so that it cannot fail half way. Locked. */
int request_prepare(struct binpool *pool, const struct request *req)
{
	assert_locked(pool);
	if (runs_prepare(pool) || lookup_prepare(pool) ||
	    (!req->is_void && bins_prepare(pool, req->bin)) ||
	    (req->in_slab && slab_prepare(pool, req->bin, req->capacity)))
		return explain(-ENOMEM, "pool %s: the system has no memory for bookkeeping",
			       pool->name);
	return 0;
}

/* Hands @run out. @reused: it comes from its bin. Returns whether its bytes are zero. Locked. */
static bool activate(struct binpool *pool, struct run *run, const struct request *req, bool reused)
{
	bool clean = run->clean;
	char *ptr = run->base;

	assert_locked(pool);
	if (pool->exact && !req->is_void)
		ptr += -(uint64_t)(uintptr_t)ptr & (req->align - 1);
	if (reused) {
		debug_check(pool, run);
		pool->stats.reuses++;
		if (run->ptr != ptr)
			lookup_remove(pool, run);
	} else {
		pool->stats.allocs++;
	}
	if (!reused || run->ptr != ptr) {
		run_set_ptr(run, ptr);
		lookup_add(pool, run);
	}
	run_set_state(run, RUN_ACTIVE);
	run->asked = req->bytes;
	run_set_bin(pool, run, req->bin);
	run->clean = false;
	pool->stats.active_blocks++;
	pool->stats.active_bytes += req->bytes;
	if (!req->is_void) {
		pool->active_capacity += run->bytes;
		bins_at(pool, run->bin)->active++;
	}
	return clean;
}

/* From what the pool has: the bin, else a free run. Locked; prepare() came before. */
struct run *request_take(struct binpool *pool, const struct request *req, bool *reused)
{
	struct run *run;

	assert_locked(pool);
	*reused = false;
	if (!req->is_void && !req->reserve_only) {
		run = bins_take(pool, req->bin, req->align);
		if (run) {
			*reused = true;
			return run;
		}
	}
	if (pool->exact && !req->is_void)
		return NULL;
	if (req->reserve_only)
		return run_find(pool, req->arena, req->run_bytes, req->run_align);
	if (req->in_slab)
		return slab_take(pool, req->arena, req->bin, req->capacity);
	if (req->is_void)
		return void_take(pool, req->run_bytes, req->run_align);
	return carve(pool, req->arena, req->run_bytes, req->run_align);
}

/* From the thread's own cache, without the lock. False: from elsewhere. */
static bool take_cached(struct cache *c, const struct request *req, uint64_t align,
			struct binpool_buf *buf)
{
	struct binpool *pool = c->pool;
	uint32_t place = place_of(pool, req->bin);
	char *ptr;

	if (req->is_void || !is_cached(pool, req->bin) ||
	    (align > class_align(pool, req->capacity) && !cache_raise(c, place, align)))
		return false;
	ptr = cache_pop_slowly(c, place, req->bytes);
	if (!ptr)
		return false;
	buf_describe(pool, map_find(ptr), false, buf);
	return true;
}

/* A buffer, described in @buf. No lock is held. */
int allocate(struct binpool *pool, uint64_t bytes, uint64_t align, uint32_t flags,
	     struct binpool_buf *buf)
{
	bool reused = false, clean = false, settle;
	struct run *run = NULL;
	struct request req;
	struct cache *c;
	uint64_t start, left = 0;
	int err = pool_enter(pool);

	if (err)
		return err;
	err = request_init(&req, pool, bytes, align);
	c = cache_get(pool);
	if (!err && c && take_cached(c, &req, align, buf)) {
		if (flags & BINPOOL_BUF_ZEROED) {
			memset(buf->ptr, 0, bytes);
			buf->flags |= BINPOOL_BUF_ZEROED;
		}
		return 0;
	}
	pool_lock(pool);
	if (c) {
		cache_set_idle(c, false);
		if (c->crowded)
			arena_change(c);
	}
	req.arena = arena_of(pool, c);
	if (!err)
		err = request_prepare(pool, &req);
	if (!err && !req.is_void) {
		run = bins_take(pool, req.bin, req.align);
		reused = run;
		if (c && is_cached(pool, req.bin)) {
			struct magazine *m = magazine_at(c, req.bin);

			cache_missed(c, req.bin);
			if (run)
				cache_refill(c, m);
		}
	}
	if (!err && !run) {
		run = request_take(pool, &req, &reused);
		if (!run) {
			start = now_ns();
			err = request_miss(pool, &req, &run, &reused);
			if (!err && !reused)
				pool->stats.alloc_ns += now_ns() - start;
		}
	}
	if (err) {
		pool->stats.refused++;
	} else {
		clean = activate(pool, run, &req, reused);
		if (c)
			arena_follow(c, run);
		buf_describe(pool, run, clean, buf);
		left = req.is_void ? 0 : bins_at(pool, req.bin)->held;
	}
	settle = pool->give_back;
	pool_unlock(pool);
	if (settle)
		extents_settle(pool);

	if (err) {
		pool_trace(pool, "alloc %llu: %s", (unsigned long long)bytes, binpool_last_error());
		return err;
	}
	if (flags & BINPOOL_BUF_ZEROED && !clean && bytes) {
		memset(buf->ptr, 0, bytes);
		buf->flags |= BINPOOL_BUF_ZEROED;
	}
	pool_trace(pool, "alloc %llu: %p, %llu bytes, bin %u: %s, %llu held there",
		   (unsigned long long)bytes, (void *)buf_key(pool, buf),
		   (unsigned long long)buf->capacity, req.bin, reused ? "reused" : "new",
		   (unsigned long long)left);
	return 0;
}

/* From the thread's cache, or NULL. */
static FAST void *allocate_cached(struct binpool *pool, size_t size)
{
	if (__builtin_expect(!pool || !size, 0))
		return NULL;
	return cache_pop(cache_fast(pool), cache_place(pool, size), size);
}

/* The same where getting it is not so fast. */
static void *allocate_cached_slowly(struct binpool *pool, size_t size)
{
	struct cache *c = pool && size ? cache_of(pool) : NULL;

	return c && cache_is_slow(c, pool) ? cache_pop_slowly(c, cache_place(pool, size), size)
					   : NULL;
}

/* From the pool, with whatever that takes. NULL with errno. */
static __attribute__((noinline)) void *allocate_at(struct binpool *pool, size_t size,
						   size_t alignment)
{
	struct binpool_buf buf;
	int err = pool_enter_host(pool);

	if (!err)
		err = allocate(pool, size, alignment, 0, &buf);
	if (!err)
		return buf.ptr;
	errno = -err;
	return NULL;
}

/* Without the pool's lock, as most misses are. NULL: it is not so simple. */
static void *allocate_alone(const struct binpool *pool, struct cache *c, size_t size)
{
	uint32_t place = cache_place(pool, size);
	void *ptr = NULL;

	if (cache_is_slow(c, pool))
		ptr = cache_pop_slowly(c, place, size);
	if (!ptr && place < pool->cache_bins * sizeof(struct magazine))
		ptr = arena_alloc(c, place, size);
	return ptr;
}

static __attribute__((noinline)) void *allocate_slowly(struct binpool *pool, size_t size)
{
	struct cache *c = pool && size ? cache_of(pool) : NULL;
	void *ptr = NULL;

	/* The thread has a cache, so it is in no callback of the pool and the pool is not dead. */
	if (c)
		ptr = allocate_alone(pool, c, size);
	return ptr ? ptr : allocate_at(pool, size, 1);
}

EXPORT void *binpool_alloc(struct binpool *pool, size_t size)
{
	void *ptr = allocate_cached(pool, size);

	return __builtin_expect(!ptr, 0) ? allocate_slowly(pool, size) : ptr;
}

EXPORT void *binpool_alloc_cached(struct binpool *pool, size_t size)
{
	void *ptr = allocate_cached(pool, size);

	if (__builtin_expect(!ptr, 0))
		ptr = allocate_cached_slowly(pool, size);
	if (!ptr)
		errno = EAGAIN;
	return ptr;
}

EXPORT void *binpool_alloc_aligned(struct binpool *pool, size_t size, size_t alignment)
{
	return allocate_at(pool, size, alignment);
}

EXPORT int binpool_alloc_bulk(struct binpool *pool, size_t size, size_t n, void **ptrs)
{
	struct binpool_buf buf;
	int err = pool_enter_host(pool);

	if (err)
		return err;
	if (!ptrs && n)
		return explain(-EINVAL, "ptrs is NULL");
	for (size_t i = 0; i < n; i++) {
		ptrs[i] = allocate_cached(pool, size);
		if (ptrs[i])
			continue;
		err = allocate(pool, size, 1, 0, &buf);
		if (err) {
			while (i--)
				binpool_free(pool, ptrs[i]);
			return err;
		}
		ptrs[i] = buf.ptr;
	}
	return 0;
}

EXPORT int binpool_reserve(struct binpool *pool, uint64_t bytes)
{
	const struct cache *c;
	struct run *run = NULL;
	struct request req;
	bool reused;
	int err = pool_enter(pool);

	if (err || !bytes)
		return err;
	/* Over an allocator what is reserved is a held buffer. */
	if (pool->exact) {
		struct binpool_buf buf;

		err = allocate(pool, bytes, 1, 0, &buf);
		return err ? err : release_at(pool, buf_key(pool, &buf), NULL);
	}
	err = request_init(&req, pool, bytes, 1);
	if (!err) {
		req.run_bytes = round_up(bytes, pool->granule);
		req.run_align = req.align;
		req.in_slab = false;
		req.reserve_only = true;
	}
	c = cache_of(pool);
	pool_lock(pool);
	req.arena = arena_of(pool, c);
	if (!err && !run_find(pool, NULL, req.run_bytes, req.run_align))
		err = request_miss(pool, &req, &run, &reused);
	if (err)
		pool->stats.refused++;
	else
		pool->reserved_ahead = true;
	pool_unlock(pool);
	extents_settle(pool);
	return err;
}
