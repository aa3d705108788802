// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers as their users describe them: struct binpool_buf in and out; tags,
 * references, sub-buffers. Takes the pool's lock; owns nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "cache.h"

void buf_describe(const struct binpool *pool, const struct run *run, bool clean,
		  struct binpool_buf *buf)
{
	const struct extent *e = run->extent;
	uint64_t inside = (uint64_t)(run->ptr - run->base);

	*buf = (struct binpool_buf){
		.ptr = run->ptr,
		.bytes = run->asked,
		.capacity = e->is_void ? 0 : run->bytes - inside,
		.node = __atomic_load_n(&e->node, __ATOMIC_RELAXED),
		.extent_fd = -1,
		.flags = clean ? BINPOOL_BUF_ZEROED : 0,
	};
	if (e->is_void)
		return;
	if (pool->handles) {
		buf->handle = (uintptr_t)run->ptr;
		buf->ptr = NULL;
		return;
	}
	buf->extent_offset = (uint64_t)(run->ptr - e->base);
	if (pool->provider.ops->file_at)
		buf->extent_fd = pool->provider.ops->file_at(e, buf->extent_offset, buf->capacity,
							     &buf->extent_offset);
	else
		buf->extent_fd = e->fd;
	if (buf->extent_fd < 0)
		buf->extent_offset = 0;
}

/* Tags a buffer that was just handed out; it is freed if that fails. */
static int tag_buffer(struct binpool *pool, const struct binpool_buf *buf, const char *tag)
{
	struct note *note;
	struct run *run;

	pool_lock(pool);
	run = lookup_find(pool, buf_key(pool, buf));
	note = note_get(pool, run);
	if (note) {
		memcpy(note->tag, tag, strlen(tag) + 1);
		/* Reports are lines. */
		for (char *c = note->tag; *c; c++)
			if ((unsigned char)*c < ' ')
				*c = '?';
	}
	pool_unlock(pool);
	if (note)
		return 0;
	release_at(pool, buf_key(pool, buf), NULL);
	return explain(-ENOMEM, "pool %s: the system has no memory for a tag", pool->name);
}

EXPORT int binpool_alloc_ex(struct binpool *pool, const struct binpool_alloc_opts *opts,
			    struct binpool_buf *out)
{
	struct binpool_alloc_opts o;
	struct binpool_buf buf;
	int err = pool_enter(pool);

	if (!err)
		err = struct_in(&o, sizeof(o), opts, "opts");
	if (!err)
		err = struct_check(out, sizeof(out->size), "out");
	if (err)
		return err;
	if (o.flags & ~(BINPOOL_BUF_ZEROED | BINPOOL_BUF_WAIT))
		return explain(-EINVAL, "opts.flags is 0x%x: ZEROED (0x%x), WAIT (0x%x) or both",
			       o.flags, BINPOOL_BUF_ZEROED, BINPOOL_BUF_WAIT);
	if (o.wait_ms && !(o.flags & BINPOOL_BUF_WAIT))
		return explain(-EINVAL, "opts.wait_ms is %u without the flag WAIT", o.wait_ms);
	if (o.tag && strlen(o.tag) >= BINPOOL_TAG_LEN)
		return explain(-EINVAL, "opts: the tag has %zu characters, at most %d",
			       strlen(o.tag), BINPOOL_TAG_LEN - 1);
	if (pool->handles && o.flags & BINPOOL_BUF_ZEROED)
		return explain(-EOPNOTSUPP, "pool %s: what a handle stands for cannot be zeroed",
			       pool->name);
	if (!o.alignment)
		o.alignment = 1;
	err = allocate(pool, o.bytes, o.alignment, o.flags, &buf);
	if (wait_helps(err) && o.flags & BINPOOL_BUF_WAIT)
		err = allocate_waiting(pool, &o, &buf);
	if (!err && o.tag && *o.tag)
		err = tag_buffer(pool, &buf, o.tag);
	if (!err)
		struct_fill(out, &buf, sizeof(buf));
	return err;
}

EXPORT int binpool_buf_info(struct binpool *pool, const void *ptr, struct binpool_buf *out)
{
	struct binpool_buf buf;
	struct run *run;
	int err = pool_enter(pool);

	if (!err)
		err = struct_check(out, sizeof(out->size), "out");
	if (err)
		return err;
	pool_lock(pool);
	run = lookup_find(pool, ptr);
	if (run && run_in_use(run))
		buf_describe(pool, run, false, &buf);
	else
		err = -EINVAL;
	pool_unlock(pool);
	if (err)
		return explain(err, "pool %s: no live buffer starts at %p", pool->name, ptr);
	struct_fill(out, &buf, sizeof(buf));
	return 0;
}

/* ---- References ----------------------------------------------------------- */

/*
 * The live buffer that @buf is, or is part of: *sub is that part then, else NULL.
 * NULL, explained: there is no such buffer. Locked.
 */
static struct run *resolve(const struct binpool *pool, const struct binpool_buf *buf,
			   struct sub **sub)
{
	const char *ptr = buf_key(pool, buf);
	const char *start = buf->parent ? (char *)(uintptr_t)buf->parent : ptr;
	struct run *run = lookup_find(pool, start);
	struct note *note;

	*sub = NULL;
	if (!run || !run_in_use(run)) {
		explain(0, "pool %s: no live buffer starts at %p", pool->name, (const void *)start);
		return NULL;
	}
	if (!buf->parent)
		return run;
	note = note_find(pool, run);
	for (*sub = note ? note->subs : NULL; *sub; *sub = (*sub)->next)
		if ((pool->handles ? (*sub)->handle == buf->handle
				   : (*sub)->offset == (uint64_t)(ptr - start)) &&
		    (*sub)->bytes == buf->bytes)
			return run;
	explain(0, "pool %s: the buffer at %p has no sub-buffer of %llu bytes at %p", pool->name,
		(const void *)start, (unsigned long long)buf->bytes, (const void *)ptr);
	return NULL;
}

/* What the user hands in. */
static int buf_in(struct binpool_buf *buf, const struct binpool *pool,
		  const struct binpool_buf *from)
{
	int err = pool_enter(pool);

	return err ? err : struct_in(buf, sizeof(*buf), from, "buf");
}

EXPORT int binpool_buffer_get(struct binpool *pool, const struct binpool_buf *buf)
{
	struct binpool_buf b;
	struct note *note;
	struct run *run;
	struct sub *sub;
	int err = buf_in(&b, pool, buf);

	if (err)
		return err;
	pool_lock(pool);
	run = resolve(pool, &b, &sub);
	note = run ? note_get(pool, run) : NULL;
	if (!run)
		err = -EINVAL;
	else if (!note)
		err = explain(-ENOMEM, "pool %s: the system has no memory for a reference",
			      pool->name);
	else if (sub)
		sub->refs++;
	else
		note->refs++;
	pool_unlock(pool);
	return err;
}

/*
 * Takes one reference away. 0: it was the last, and the buffer is to be freed; 1: others
 * keep it; -EINVAL, explained: all that are left are parts'. Locked.
 */
static int drop(struct binpool *pool, struct run *run)
{
	struct note *note = note_find(pool, run);

	if (!note)
		return 0;
	if (note->refs > note->parts)
		note->refs--;
	else if (!note->freed)
		note->freed = true;
	else
		return explain(-EINVAL,
			       "pool %s: put of %p, which is free already: %llu parts keep it",
			       pool->name, (void *)run->ptr, (unsigned long long)note->parts);
	return note_tidy(pool, note) ? 0 : 1;
}

/* The same of a part's reference, which is there. */
static int drop_part(struct binpool *pool, struct run *run)
{
	struct note *note = note_find(pool, run);

	note->parts--;
	note->refs--;
	return note_tidy(pool, note) ? 0 : 1;
}

/* The end of a part, which no list has any more. The lock is let go meanwhile. */
static void part_free(struct binpool *pool, struct sub *sub)
{
	struct callback c;

	assert_locked(pool);
	if (pool->handles && pool->provider.allocator.sub_free) {
		pool_unlock(pool);
		callback_enter(&c, pool);
		pool->provider.allocator.sub_free(pool->provider.allocator.ctx, sub->handle);
		callback_leave(&c);
		pool_lock(pool);
	}
	free(sub);
}

/* Takes one reference to a part away. False: there are more. Locked. */
static bool part_drop(struct binpool *pool, struct run *run, struct sub *sub)
{
	struct note *note = note_find(pool, run);
	struct sub **at = &note->subs;

	if (--sub->refs)
		return false;
	while (*at != sub)
		at = &(*at)->next;
	*at = sub->next;
	/* Its reference to the buffer keeps that one until it is gone. */
	part_free(pool, sub);
	return true;
}

EXPORT int binpool_buffer_put(struct binpool *pool, const struct binpool_buf *buf)
{
	struct binpool_buf b;
	struct cache *c;
	struct run *run;
	struct sub *sub;
	int err = buf_in(&b, pool, buf);

	/* As binpool_free in a forked child. */
	if (err)
		return err == -EOWNERDEAD ? 0 : err;
	c = cache_get(pool);
	pool_lock(pool);
	run = resolve(pool, &b, &sub);
	if (!run)
		err = -EINVAL;
	else if (!sub)
		err = drop(pool, run);
	else
		err = part_drop(pool, run, sub) ? drop_part(pool, run) : 1;
	if (!err)
		release_run(pool, c, run);
	else
		pool_unlock(pool);
	return err < 0 ? err : 0;
}

/*
 * What the allocator makes of a part of a handle. The lock is let go meanwhile; the
 * caller has a reference to the buffer.
 */
static int part_handle(struct binpool *pool, const struct run *run, struct sub *sub)
{
	const struct binpool_allocator_ops *ops = &pool->provider.allocator;
	struct callback c;
	int err;

	assert_locked(pool);
	if (!ops->sub)
		return explain(-EOPNOTSUPP, "pool %s: its allocator makes no parts of handles",
			       pool->name);
	pool_unlock(pool);
	binpool_set_last_error("");
	callback_enter(&c, pool);
	err = ops->sub(ops->ctx, (uintptr_t)run->ptr, sub->offset, sub->bytes, &sub->handle);
	callback_leave(&c);
	if (err) {
		err = callback_errno(err);
		explain(err, "pool %s: its allocator refused a part of %llu bytes at %llu: %s",
			pool->name, (unsigned long long)sub->bytes, (unsigned long long)sub->offset,
			*binpool_last_error() ? binpool_last_error() : strerror(-err));
	}
	pool_lock(pool);
	return err;
}

/*
 * A part of @run, which has a reference for it. Locked; the lock is let go meanwhile.
 * NULL, *err explained.
 */
static struct sub *part_new(struct binpool *pool, struct run *run, uint64_t offset, uint64_t bytes,
			    int *err)
{
	struct sub *sub = calloc(1, sizeof(*sub));
	struct note *note;

	if (!sub) {
		*err = explain(-ENOMEM, "pool %s: the system has no memory for a sub-buffer",
			       pool->name);
		return NULL;
	}
	sub->offset = offset;
	sub->bytes = bytes;
	sub->refs = 1;
	*err = pool->handles ? part_handle(pool, run, sub) : 0;
	if (*err) {
		free(sub);
		return NULL;
	}
	note = note_find(pool, run);
	sub->next = note->subs;
	note->subs = sub;
	return sub;
}

static void part_describe(struct binpool *pool, const struct run *run, const struct sub *sub,
			  struct binpool_buf *out)
{
	buf_describe(pool, run, false, out);
	out->parent = (uintptr_t)run->ptr;
	out->bytes = sub->bytes;
	out->capacity = sub->bytes;
	out->handle = sub->handle;
	if (!pool->handles)
		out->ptr = run->ptr + sub->offset;
	if (out->extent_fd >= 0)
		out->extent_offset += sub->offset;
}

EXPORT int binpool_buffer_sub(struct binpool *pool, const struct binpool_buf *parent,
			      uint64_t offset, uint64_t bytes, struct binpool_buf *out)
{
	struct binpool_buf b, made;
	struct note *note = NULL;
	uint64_t room, inside;
	struct cache *c;
	struct run *run;
	struct sub *sub;
	int err = buf_in(&b, pool, parent);

	if (!err)
		err = struct_check(out, sizeof(out->size), "out");
	if (err)
		return err;
	c = cache_get(pool);
	pool_lock(pool);
	run = resolve(pool, &b, &sub);
	if (!run) {
		pool_unlock(pool);
		return -EINVAL;
	}
	room = sub ? sub->bytes : run->asked;
	inside = sub ? sub->offset : 0;
	if (!bytes || offset > room || bytes > room - offset)
		err = explain(-EINVAL,
			      "pool %s: a sub-buffer of %llu bytes at %llu of a buffer of %llu",
			      pool->name, (unsigned long long)bytes, (unsigned long long)offset,
			      (unsigned long long)room);
	else
		note = note_get(pool, run);
	if (!note) {
		pool_unlock(pool);
		return err ? err
			   : explain(-ENOMEM, "pool %s: the system has no memory for a sub-buffer",
				     pool->name);
	}
	note->refs++;
	note->parts++;
	sub = part_new(pool, run, inside + offset, bytes, &err);
	if (!sub) {
		/* Meanwhile the others' may have gone. */
		if (!drop_part(pool, run))
			release_run(pool, c, run);
		else
			pool_unlock(pool);
		return err;
	}
	part_describe(pool, run, sub, &made);
	pool_unlock(pool);
	struct_fill(out, &made, sizeof(made));
	return 0;
}
