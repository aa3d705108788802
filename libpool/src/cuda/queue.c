// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers that a CUDA stream is at work on. Owns the events that the library
 * records, by context, in use and unused ones; events_lock, which is held over no call of
 * the driver.
 *
 * An event must not be touched when its context is gone, nor is its address enough to
 * know a context by: another may be at it. So its id is compared first.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "../versioned.h"
#include "cuda.h"

/* A context with events of ours. Never freed: fences point to it. */
struct context {
	struct context *next;
	struct owner owner;
	struct event *unused;
};

struct event {
	struct event *next;
	struct context *context;
	CUevent event;
};

static pthread_mutex_t events_lock = PTHREAD_MUTEX_INITIALIZER;
static struct context *contexts;

/* ---- Events -------------------------------------------------------------- */

/* NULL: no memory. */
static struct context *context_of(const struct cuda *cuda, CUcontext ctx)
{
	unsigned long long id = 0;
	struct context *c;

	if (cuda->CtxGetId && cuda->CtxGetId(ctx, &id))
		id = 0;
	pthread_mutex_lock(&events_lock);
	for (c = contexts; c && (c->owner.ctx != ctx || c->owner.id != id); c = c->next)
		;
	if (!c) {
		c = calloc(1, sizeof(*c));
		if (c) {
			c->owner = (struct owner){.ctx = ctx, .id = id};
			c->next = contexts;
			contexts = c;
		}
	}
	pthread_mutex_unlock(&events_lock);
	return c;
}

static int event_create(const struct cuda *cuda, struct context *c, struct event **out)
{
	struct event *e = calloc(1, sizeof(*e));
	CUcontext current;
	CUresult err;

	if (!e) {
		binpool_set_last_error("CUDA: no memory for an event");
		return -ENOMEM;
	}
	e->context = c;
	err = cuda->CtxPushCurrent(c->owner.ctx);
	if (!err) {
		err = cuda->EventCreate(&e->event, CU_EVENT_DISABLE_TIMING);
		cuda->CtxPopCurrent(&current);
	}
	if (err) {
		free(e);
		return cuda_explain(cuda, "cuEventCreate", err);
	}
	*out = e;
	return 0;
}

/* An event of the stream's context that nobody uses. */
static int event_get(const struct cuda *cuda, CUstream stream, struct event **out)
{
	struct context *c;
	CUcontext ctx;
	CUresult err = cuda->StreamGetCtx(stream, &ctx);

	if (err)
		return cuda_explain(cuda, "cuStreamGetCtx", err);
	c = context_of(cuda, ctx);
	if (!c) {
		binpool_set_last_error("CUDA: no memory for a context's description");
		return -ENOMEM;
	}
	pthread_mutex_lock(&events_lock);
	*out = c->unused;
	if (*out)
		c->unused = (*out)->next;
	pthread_mutex_unlock(&events_lock);
	return *out ? 0 : event_create(cuda, c, out);
}

static void event_put(struct event *e)
{
	pthread_mutex_lock(&events_lock);
	e->next = e->context->unused;
	e->context->unused = e;
	pthread_mutex_unlock(&events_lock);
}

/* ---- Fences ---------------------------------------------------------------- */

static int query(const struct cuda *cuda, CUevent event)
{
	CUresult err = cuda->EventQuery(event);

	if (err == CUDA_ERROR_NOT_READY)
		return 0;
	return err ? cuda_explain(cuda, "cuEventQuery", err) : 1;
}

/* An event of the caller's. */
static int caller_done(void *ctx)
{
	const struct cuda *cuda = cuda_get();
	int mode, done;

	/* What it was at work on has ended with it. */
	if (cuda_gone())
		return 1;
	mode = cuda_enter(cuda);
	done = query(cuda, ctx);
	cuda_leave(cuda, mode);
	return done;
}

static int own_done(void *ctx)
{
	const struct cuda *cuda = cuda_get();
	struct event *e = ctx;
	int mode, done;

	if (cuda_gone())
		return 1;
	mode = cuda_enter(cuda);
	if (owner_alive(cuda, &e->context->owner)) {
		done = query(cuda, e->event);
	} else {
		binpool_set_last_error("CUDA: a stream's context was destroyed");
		done = -ENODEV;
	}
	cuda_leave(cuda, mode);
	return done;
}

static void own_release(void *ctx)
{
	event_put(ctx);
}

EXPORT int binpool_cuda_fence(struct CUevent_st *event, struct binpool_fence *out)
{
	const struct binpool_fence fence = {
		.kind = BINPOOL_FENCE_CALLBACK,
		.ctx = event,
		.done = caller_done,
	};
	int err;

	if (!event) {
		binpool_set_last_error("binpool_cuda_fence: event is NULL");
		return -EINVAL;
	}
	err = struct_check(out, sizeof(*out), "out");
	if (err)
		return err;
	if (!cuda_get())
		return -ENODEV;
	struct_fill(out, &fence, sizeof(fence));
	return 0;
}

/* Records an event on the stream. */
static int record(const struct cuda *cuda, CUstream stream, struct event **out)
{
	CUresult err;
	int capturing, ret;

	err = cuda->StreamIsCapturing(stream, &capturing);
	if (err)
		return cuda_explain(cuda, "cuStreamIsCapturing", err);
	if (capturing) {
		binpool_set_last_error("CUDA: the stream is being captured: what uses the buffer "
				       "is not known before the graph runs");
		return -EBUSY;
	}
	ret = event_get(cuda, stream, out);
	if (ret)
		return ret;
	err = cuda->EventRecord((*out)->event, stream);
	if (!err)
		return 0;
	event_put(*out);
	return cuda_explain(cuda, "cuEventRecord", err);
}

EXPORT int binpool_free_on_cuda_stream(struct binpool *pool, void *ptr, struct CUstream_st *stream)
{
	struct binpool_fence fence = {
		.size = sizeof(fence),
		.kind = BINPOOL_FENCE_CALLBACK,
		.done = own_done,
		.release = own_release,
	};
	struct binpool_buf buf = {.size = sizeof(buf)};
	const struct cuda *cuda;
	struct event *e = NULL;
	int mode, ret;

	if (!pool) {
		binpool_set_last_error("binpool_free_on_cuda_stream: pool is NULL");
		return -EINVAL;
	}
	if (!ptr)
		return 0;
	/* Neither a stray pointer nor a forked child is to disturb the stream. */
	ret = binpool_buf_info(pool, ptr, &buf);
	if (ret)
		return ret == -EOWNERDEAD ? 0 : ret;
	cuda = cuda_get();
	if (!cuda)
		return -ENODEV;
	mode = cuda_enter(cuda);
	ret = record(cuda, stream, &e);
	cuda_leave(cuda, mode);
	if (ret)
		return ret;
	fence.ctx = e;
	ret = binpool_free_after(pool, ptr, &fence, 1);
	if (ret)
		event_put(e);
	return ret;
}
