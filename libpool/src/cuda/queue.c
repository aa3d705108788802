// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers that CUDA streams are at work on. Owns the events that the library
 * records, by context: unused ones, and those of a buffer in a list; events_lock, which is held
 * over no call of the driver.
 *
 * An event must not be touched when its context is gone, nor is its address enough to
 * know a context by: another may be at it. So its id is compared first.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
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
static struct context *context_of(struct owner owner)
{
	struct context *c;

	pthread_mutex_lock(&events_lock);
	for (c = contexts; c && (c->owner.ctx != owner.ctx || c->owner.id != owner.id); c = c->next)
		;
	if (!c) {
		c = calloc(1, sizeof(*c));
		if (c) {
			c->owner = owner;
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
	struct owner owner;
	struct context *c;
	CUcontext ctx;
	CUresult err = cuda->StreamGetCtx(stream, &ctx);
	int ret;

	if (err)
		return cuda_explain(cuda, "cuStreamGetCtx", err);
	ret = owner_of(cuda, ctx, &owner);
	if (ret)
		return ret;
	c = context_of(owner);
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

/* Events of ours, a list of them: an error of one ends the wait for that one only. */
static int own_done(void *ctx)
{
	const struct cuda *cuda = cuda_get();
	int mode, done = 1, err = 0;

	if (cuda_gone())
		return 1;
	mode = cuda_enter(cuda);
	for (const struct event *e = ctx; e && done; e = e->next) {
		done = owner_alive(cuda, &e->context->owner)
			       ? query(cuda, e->event)
			       : cuda_refuse(-ENODEV, "CUDA: a stream's context was destroyed");
		if (done < 0)
			err = done;
	}
	cuda_leave(cuda, mode);
	return done && err ? err : done;
}

static void own_release(void *ctx)
{
	struct event *e = ctx, *next;

	for (; e; e = next) {
		next = e->next;
		event_put(e);
	}
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

/* ---- Freeing --------------------------------------------------------------- */

/* Records an event on the stream, and puts it before @events. */
static int record(const struct cuda *cuda, CUstream stream, struct event **events)
{
	struct event *e;
	CUresult err;
	int capturing, ret;

	err = cuda->StreamIsCapturing(stream, &capturing);
	if (err)
		return cuda_explain(cuda, "cuStreamIsCapturing", err);
	if (capturing)
		return cuda_refuse(-EBUSY, "CUDA: the stream is being captured: what uses the "
					   "buffer is not known before the graph runs");
	ret = event_get(cuda, stream, &e);
	if (ret)
		return ret;
	err = cuda->EventRecord(e->event, stream);
	if (err) {
		event_put(e);
		return cuda_explain(cuda, "cuEventRecord", err);
	}
	e->next = *events;
	*events = e;
	return 0;
}

/* Default streams have one handle in all contexts: NULL, CU_STREAM_LEGACY and _PER_THREAD. */
static bool is_default(CUstream stream)
{
	return (uintptr_t)stream <= 2;
}

static bool device_is_current(const struct cuda *cuda, int device)
{
	CUcontext ctx;
	int current;

	return !cuda->CtxGetCurrent(&ctx) && ctx && !cuda->CtxGetDevice(&current) &&
	       current == device;
}

/*
 * As record(), in the device's primary context, which a default stream is then of; others want any
 * context. Whether there is one is asked first, as retaining would make it.
 */
static int record_on_device(const struct cuda *cuda, CUstream stream, int device,
			    struct event **events)
{
	unsigned int flags;
	int active, ret;
	CUcontext ctx;
	CUresult err;

	err = cuda->DevicePrimaryCtxGetState(device, &flags, &active);
	if (err)
		return cuda_explain(cuda, "cuDevicePrimaryCtxGetState", err);
	if (!active)
		return is_default(stream) ? 0 : record(cuda, stream, events);
	err = cuda->DevicePrimaryCtxRetain(&ctx, device);
	if (err)
		return cuda_explain(cuda, "cuDevicePrimaryCtxRetain", err);
	err = cuda->CtxPushCurrent(ctx);
	if (err) {
		ret = cuda_explain(cuda, "cuCtxPushCurrent", err);
	} else {
		ret = record(cuda, stream, events);
		cuda->CtxPopCurrent(&ctx);
	}
	cuda->DevicePrimaryCtxRelease(device);
	return ret;
}

static int record_all(const struct cuda *cuda, CUstream const *streams, const int *devices,
		      size_t n, struct event **events)
{
	int ret = 0;

	for (size_t i = 0; i < n && !ret; i++) {
		int device = devices ? devices[i] : -1;

		if (device < -1)
			ret = cuda_refuse(-EINVAL, "CUDA: no device has a number below 0; -1 is "
						   "the current context's");
		else if (device >= 0 && !device_is_current(cuda, device))
			ret = record_on_device(cuda, streams[i], device, events);
		else
			ret = record(cuda, streams[i], events);
	}
	return ret;
}

EXPORT int binpool_free_on_cuda_streams(struct binpool *pool, void *ptr,
					struct CUstream_st *const *streams, const int *devices,
					size_t n)
{
	struct binpool_fence fence = {
		.size = sizeof(fence),
		.kind = BINPOOL_FENCE_CALLBACK,
		.done = own_done,
		.release = own_release,
	};
	struct binpool_buf buf = {.size = sizeof(buf)};
	const struct cuda *cuda;
	struct event *events = NULL;
	int mode, ret;

	if (!pool || (n && !streams))
		return cuda_refuse(-EINVAL,
				   "binpool_free_on_cuda_streams: pool or streams is NULL");
	if (!ptr)
		return 0;
	/* Neither a stray pointer nor a forked child is to disturb the streams. */
	ret = binpool_buf_info(pool, ptr, &buf);
	if (ret)
		return ret == -EOWNERDEAD ? 0 : ret;
	if (n) {
		cuda = cuda_get();
		if (!cuda)
			return -ENODEV;
		mode = cuda_enter(cuda);
		ret = record_all(cuda, streams, devices, n, &events);
		cuda_leave(cuda, mode);
	}
	if (!ret) {
		fence.ctx = events;
		ret = binpool_free_after(pool, ptr, &fence, events != NULL);
	}
	if (ret)
		own_release(events);
	return ret;
}

EXPORT int binpool_free_on_cuda_stream(struct binpool *pool, void *ptr, struct CUstream_st *stream)
{
	return binpool_free_on_cuda_streams(pool, ptr, &stream, NULL, 1);
}
