// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pools of handles, and pools as allocators of other pools. Owns nothing.
 */
#include <string.h>

#include "pool.h"

static int handle_enter(const struct binpool *pool)
{
	int err = pool_enter(pool);

	if (!err && !pool->handles)
		return explain(-EINVAL, "pool %s: its buffers are pointers, not handles",
			       pool->name);
	return err;
}

EXPORT int binpool_handle_alloc(struct binpool *pool, uint64_t size, struct binpool_buf *out)
{
	struct binpool_buf buf;
	int err = handle_enter(pool);

	if (!err)
		err = struct_check(out, sizeof(out->size), "out");
	if (!err)
		err = allocate(pool, size, 1, 0, &buf);
	if (!err)
		struct_fill(out, &buf, sizeof(buf));
	return err;
}

EXPORT int binpool_handle_free(struct binpool *pool, const struct binpool_buf *buf)
{
	struct binpool_buf b;
	int err = handle_enter(pool);
	size_t bytes;

	if (err)
		return err == -EOWNERDEAD ? 0 : err;
	err = struct_in(&b, sizeof(b), buf, "buf");
	if (err)
		return err;
	if (b.parent || !buf_key(pool, &b))
		return explain(-EINVAL, "pool %s: free of %s", pool->name,
			       b.parent ? "a part of a buffer: binpool_buffer_put is for these"
					: "no handle");
	bytes = (size_t)b.bytes;
	return release_at(pool, buf_key(pool, &b), bytes ? &bytes : NULL);
}

/* ---- A pool as the allocator of another ------------------------------------ */

static int pool_alloc(void *ctx, uint64_t bytes, void **ptr)
{
	*ptr = binpool_alloc(ctx, (size_t)bytes);
	return *ptr ? 0 : -errno;
}

static void pool_free(void *ctx, void *ptr, uint64_t bytes)
{
	binpool_free_sized(ctx, ptr, (size_t)bytes);
}

static int pool_alloc_handle(void *ctx, uint64_t bytes, uint64_t *handle)
{
	struct binpool_buf buf = {.size = sizeof(buf)};
	int err = binpool_handle_alloc(ctx, bytes, &buf);

	*handle = buf.handle;
	return err;
}

static void pool_free_handle(void *ctx, uint64_t handle, uint64_t bytes)
{
	struct binpool_buf buf = {.size = sizeof(buf), .handle = handle, .bytes = bytes};

	binpool_handle_free(ctx, &buf);
}

/* What the inner pool's own allocator makes of it: handles are the same all the way. */
static int pool_sub(void *ctx, uint64_t handle, uint64_t offset, uint64_t bytes, uint64_t *part)
{
	struct binpool *pool = ctx;

	return pool->provider.allocator.sub(pool->provider.allocator.ctx, handle, offset, bytes,
					    part);
}

static void pool_sub_free(void *ctx, uint64_t part)
{
	struct binpool *pool = ctx;

	pool->provider.allocator.sub_free(pool->provider.allocator.ctx, part);
}

static void pool_release(void *ctx)
{
	struct binpool *pool = ctx;

	pool_lock(pool);
	pool->feeds--;
	pool_unlock(pool);
}

EXPORT int binpool_pool_allocator(struct binpool *pool, struct binpool_allocator_ops *ops)
{
	struct binpool_allocator_ops made = {.ctx = pool, .release = pool_release};
	int err = pool_enter(pool);

	if (!err)
		err = struct_check(ops, sizeof(*ops), "ops");
	if (err)
		return err;
	if (pool->handles) {
		made.alloc_handle = pool_alloc_handle;
		made.free_handle = pool_free_handle;
		if (pool->provider.allocator.sub)
			made.sub = pool_sub;
		if (pool->provider.allocator.sub_free)
			made.sub_free = pool_sub_free;
	} else {
		made.alloc = pool_alloc;
		made.free = pool_free;
	}
	pool_lock(pool);
	pool->feeds++;
	pool_unlock(pool);
	struct_fill(ops, &made, sizeof(made));
	return 0;
}
