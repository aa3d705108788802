// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * OpenCL, zero-copy: kernels work on the pool's own memory. An extent's cl_mem is the parent, each
 * buffer that somebody asked for is a part of it, made once and kept while that stretch of
 * memory is the same buffer's or one's like it. Owns parents and parts; the lock of all sides.
 *
 * A part is the host's, and mapped, or the device's; while it goes from one to the other it is
 * nobody's, and others are refused. So runtimes that would let both write are not asked to. As
 * long, whoever moves it uses it, its parent and side without the lock: they stay.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "opencl.h"

enum place { HOST, DEVICE, MOVING };

struct part {
	struct part *next;
	cl_mem mem;
	char *ptr;
	size_t bytes;
	enum place place; /* locked */
};

/* An extent. */
struct parent {
	struct parent *next;
	cl_mem mem;
	char *ptr;
	uint64_t bytes;
	struct part *parts; /* locked */
};

/* ---- Parts ---------------------------------------------------------------------- */

/* The host has it from now on; what is in it is undefined, or with CL_MAP_READ the device's. */
static int map(cl_command_queue queue, const struct part *part, cl_map_flags flags, cl_event *done)
{
	cl_int err;
	void *at = clEnqueueMapBuffer(queue, part->mem, done ? CL_FALSE : CL_TRUE, flags, 0,
				      part->bytes, 0, NULL, done, &err);

	if (!at)
		return cl_explain("clEnqueueMapBuffer", part->bytes, err);
	if (at != part->ptr)
		return cl_refuse(-EIO, "OpenCL: clEnqueueMapBuffer: another address than that of "
				       "CL_MEM_USE_HOST_PTR");
	return 0;
}

static int unmap(cl_command_queue queue, const struct part *part, cl_event *done)
{
	cl_event own;
	cl_int err = clEnqueueUnmapMemObject(queue, part->mem, part->ptr, 0, NULL, &own);

	if (err)
		return cl_explain("clEnqueueUnmapMemObject", part->bytes, err);
	err = done ? clFlush(queue) : clWaitForEvents(1, &own);
	if (!err && done)
		*done = own;
	else
		clReleaseEvent(own);
	return err ? cl_explain(done ? "clFlush" : "clWaitForEvents", part->bytes, err) : 0;
}

/* Nobody can find it any more. */
static void part_end(const struct side *s, struct part *part)
{
	if (part->mem && !cl_gone()) {
		if (part->place == HOST)
			unmap(s->queue, part, NULL);
		clReleaseMemObject(part->mem);
	}
	free(part);
}

static int part_make(const struct side *s, const struct parent *parent, struct part *part)
{
	cl_buffer_region region = {.origin = (size_t)(part->ptr - parent->ptr),
				   .size = part->bytes};
	cl_int err;
	int ret;

	part->mem = clCreateSubBuffer(parent->mem, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &err);
	if (!part->mem)
		return cl_explain("clCreateSubBuffer", part->bytes, err);
	ret = map(s->queue, part, CL_MAP_WRITE_INVALIDATE_REGION, NULL);
	if (ret) {
		clReleaseMemObject(part->mem);
		part->mem = NULL;
	}
	return ret;
}

/* ---- The registrar ---------------------------------------------------------------- */

int zerocopy_attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	struct parent *parent = calloc(1, sizeof(*parent));
	struct side *s = ctx;
	int err;

	if (!parent)
		return cl_refuse(-ENOMEM, "OpenCL: no memory for an extent's description");
	parent->ptr = extent->ptr;
	parent->bytes = extent->bytes;
	err = side_wrap(s, extent, &parent->mem);
	if (err) {
		free(parent);
		return err;
	}
	sides_lock();
	parent->next = s->parents;
	s->parents = parent;
	sides_unlock();
	*cookie = parent;
	return 0;
}

/* Whether a thread is at work on a part of it. Locked. */
static bool is_moving(const struct parent *parent)
{
	const struct part *part = parent->parts;

	while (part && part->place != MOVING)
		part = part->next;
	return part;
}

/* Waits for all of the queue, and for threads that are at work on a part. */
void zerocopy_detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	struct parent *parent = cookie, **at;
	struct side *s = ctx;
	struct part *part;

	(void)extent;
	sides_lock();
	for (at = &s->parents; *at != parent; at = &(*at)->next)
		;
	/* Nobody finds it now, so no more begin. */
	*at = parent->next;
	while (is_moving(parent))
		sides_wait();
	sides_unlock();
	while ((part = parent->parts)) {
		parent->parts = part->next;
		part_end(s, part);
	}
	if (!cl_gone()) {
		clFinish(s->queue);
		clReleaseMemObject(parent->mem);
	}
	free(parent);
}

/* ---- Buffers ------------------------------------------------------------------------ */

/* Of the buffer, of this pool, that begins at @ptr; that it may be a part. */
static int describe(struct binpool *pool, void *ptr, struct binpool_buf *buf)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int ret;

	if (!pool || !ptr)
		return cl_refuse(-EINVAL, "OpenCL: pool or buffer is NULL");
	ret = binpool_buf_info(pool, ptr, buf);
	if (ret)
		return ret;
	if (cl_gone())
		return cl_refuse(-ENODEV, "OpenCL: the process is ending");
	if ((uintptr_t)ptr % page || buf->capacity < page)
		return cl_refuse(-EOPNOTSUPP, "OpenCL: BINPOOL_CL_ZEROCOPY is for buffers of a "
					      "page or more that begin at one");
	return 0;
}

/* Locked. */
static struct parent *parent_of(const struct side *s, const char *ptr)
{
	struct parent *parent = s->parents;

	while (parent && (ptr < parent->ptr || (uint64_t)(ptr - parent->ptr) >= parent->bytes))
		parent = parent->next;
	return parent;
}

/* Locked. */
static struct part *part_at(const struct parent *parent, const struct binpool_buf *buf)
{
	struct part *part = parent->parts;

	while (part && (part->ptr != (char *)buf->ptr || part->bytes != buf->capacity))
		part = part->next;
	return part;
}

static int refuse_moving(const struct part *part)
{
	return cl_refuse(-EBUSY, part->place == DEVICE
					 ? "OpenCL: the device has this memory: a buffer there was "
					   "acquired and never released"
					 : "OpenCL: another thread is at work on this buffer");
}

/*
 * Takes parts that share bytes with the buffer, whose buffers are gone, out of the parent. -EBUSY:
 * one is not the host's. Locked.
 */
static int take_overlapping(struct parent *parent, const struct binpool_buf *buf,
			    struct part **gone)
{
	const char *start = buf->ptr, *end = start + buf->capacity;
	struct part **at, *part;

	for (part = parent->parts; part; part = part->next)
		if (part->ptr < end && start < part->ptr + part->bytes && part->place != HOST)
			return refuse_moving(part);
	for (at = &parent->parts; (part = *at);) {
		if (part->ptr >= end || start >= part->ptr + part->bytes) {
			at = &part->next;
			continue;
		}
		*at = part->next;
		part->next = *gone;
		*gone = part;
	}
	return 0;
}

/* The part of the buffer, which is there, or is being made now. Locked. *s: its side. */
static int part_find(struct binpool *pool, const struct binpool_buf *buf, struct side **s,
		     struct parent **parent, struct part **part)
{
	*s = side_zerocopy(pool);
	*parent = *s ? parent_of(*s, buf->ptr) : NULL;
	*part = *parent ? part_at(*parent, buf) : NULL;
	if (!*s)
		return cl_refuse(-ENOENT, "OpenCL: this pool is not attached with "
					  "BINPOOL_CL_ZEROCOPY");
	if (!*parent)
		return cl_refuse(-ENOENT, "OpenCL: the extent was refused, and is in no cl_mem");
	return 0;
}

/* Out of the list, as it could not be made. */
static void part_forget(struct parent *parent, struct part *part)
{
	struct part **at;

	sides_lock();
	for (at = &parent->parts; *at != part; at = &(*at)->next)
		;
	*at = part->next;
	sides_wake();
	sides_unlock();
	free(part);
}

static void part_settle(struct part *part, enum place place)
{
	sides_lock();
	part->place = place;
	sides_wake();
	sides_unlock();
}

EXPORT int binpool_cl_mem(struct binpool *pool, void *ptr, cl_context context, cl_mem *mem)
{
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct part *part, *made, *gone = NULL, *next;
	struct parent *parent;
	struct side *s;
	int ret;

	if (!mem || !context)
		return cl_refuse(-EINVAL, "binpool_cl_mem: context or mem is NULL");
	*mem = NULL;
	ret = describe(pool, ptr, &buf);
	if (ret)
		return ret;
	made = calloc(1, sizeof(*made));
	if (!made)
		return cl_refuse(-ENOMEM, "OpenCL: no memory for a sub-buffer's description");
	*made = (struct part){.ptr = buf.ptr, .bytes = buf.capacity, .place = MOVING};
	sides_lock();
	ret = part_find(pool, &buf, &s, &parent, &part);
	if (!ret && s->context != context)
		ret = cl_refuse(-EBUSY, "OpenCL: the pool is attached to another context");
	else if (!ret && part && part->place != HOST)
		ret = refuse_moving(part);
	else if (!ret && !part && s->align && (size_t)(made->ptr - parent->ptr) % s->align)
		ret = cl_refuse(-EOPNOTSUPP, "OpenCL: the buffer's place is no multiple of "
					     "CL_DEVICE_MEM_BASE_ADDR_ALIGN");
	else if (!ret && !part)
		ret = take_overlapping(parent, &buf, &gone);
	if (!ret && !part) {
		made->next = parent->parts;
		parent->parts = made;
	} else if (!ret) {
		*mem = part->mem;
	}
	sides_unlock();
	if (ret || part) {
		free(made);
		return ret;
	}
	for (; gone; gone = next) {
		next = gone->next;
		part_end(s, gone);
	}
	ret = part_make(s, parent, made);
	*mem = made->mem;
	if (ret)
		part_forget(parent, made);
	else
		part_settle(made, HOST);
	return ret;
}

/* Begins to move the buffer's part, which has to be at @from. */
static int move_begin(struct binpool *pool, void *ptr, enum place from, struct part **part)
{
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct parent *parent;
	struct side *s;
	int ret = describe(pool, ptr, &buf);

	if (ret)
		return ret;
	sides_lock();
	ret = part_find(pool, &buf, &s, &parent, part);
	if (!ret && !*part)
		ret = cl_refuse(-ENOENT, "OpenCL: binpool_cl_mem was not called for this buffer");
	else if (!ret && from == DEVICE && (*part)->place == HOST)
		ret = cl_refuse(-EINVAL, "OpenCL: the host has this buffer: it is not acquired");
	else if (!ret && (*part)->place != from)
		ret = refuse_moving(*part);
	if (!ret)
		(*part)->place = MOVING;
	sides_unlock();
	return ret;
}

EXPORT int binpool_cl_acquire(struct binpool *pool, void *ptr, cl_command_queue queue,
			      cl_event *done)
{
	struct part *part;
	int ret;

	if (!queue)
		return cl_refuse(-EINVAL, "binpool_cl_acquire: queue is NULL");
	ret = move_begin(pool, ptr, HOST, &part);
	if (ret)
		return ret;
	ret = unmap(queue, part, done);
	part_settle(part, ret ? HOST : DEVICE);
	return ret;
}

EXPORT int binpool_cl_release(struct binpool *pool, void *ptr, cl_command_queue queue,
			      cl_event *done)
{
	struct part *part;
	int ret;

	if (!queue)
		return cl_refuse(-EINVAL, "binpool_cl_release: queue is NULL");
	ret = move_begin(pool, ptr, DEVICE, &part);
	if (ret)
		return ret;
	ret = map(queue, part, CL_MAP_READ | CL_MAP_WRITE, done);
	if (!ret && done)
		clFlush(queue);
	part_settle(part, ret ? DEVICE : HOST);
	return ret;
}
