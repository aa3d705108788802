// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers that commands of an OpenCL queue are at work on. Owns nothing: an event
 * is all that a fence needs, and the runtime's own reference keeps it.
 */
#include <errno.h>

#include "../versioned.h"
#include "opencl.h"

static int event_done(void *ctx)
{
	cl_int status, err;

	/* What it was at work on has ended with it. */
	if (cl_gone())
		return 1;
	err = clGetEventInfo(ctx, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL);
	if (err)
		return cl_explain("clGetEventInfo", 0, err);
	/* A command that failed has ended, too. */
	return status < 0 ? cl_explain("a command before the fence", 0, status)
			  : status == CL_COMPLETE;
}

static void event_release(void *ctx)
{
	if (!cl_gone())
		clReleaseEvent(ctx);
}

static struct binpool_fence event_fence(cl_event event)
{
	return (struct binpool_fence){
		.size = sizeof(struct binpool_fence),
		.kind = BINPOOL_FENCE_CALLBACK,
		.ctx = event,
		.done = event_done,
		.release = event_release,
	};
}

EXPORT int binpool_cl_fence(cl_event event, struct binpool_fence *out)
{
	const struct binpool_fence fence = event_fence(event);
	cl_int err;
	int ret;

	if (!event) {
		binpool_set_last_error("binpool_cl_fence: event is NULL");
		return -EINVAL;
	}
	ret = struct_check(out, sizeof(*out), "out");
	if (ret)
		return ret;
	cl_watch_exit();
	err = clRetainEvent(event);
	if (err)
		return cl_explain("clRetainEvent", 0, err);
	struct_fill(out, &fence, sizeof(fence));
	return 0;
}

EXPORT int binpool_free_on_cl_queue(struct binpool *pool, void *ptr, cl_command_queue queue)
{
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool_fence fence;
	cl_event event;
	cl_int err;
	int ret;

	if (!pool || !queue) {
		binpool_set_last_error("binpool_free_on_cl_queue: pool or queue is NULL");
		return -EINVAL;
	}
	if (!ptr)
		return 0;
	/* Neither a stray pointer nor a forked child is to disturb the queue. */
	ret = binpool_buf_info(pool, ptr, &buf);
	if (ret)
		return ret == -EOWNERDEAD ? 0 : ret;
	cl_watch_exit();
	err = clEnqueueMarkerWithWaitList(queue, 0, NULL, &event);
	if (err)
		return cl_explain("clEnqueueMarkerWithWaitList", 0, err);
	/* Nobody else may ever flush it, and asking for an event does not. */
	err = clFlush(queue);
	if (err) {
		clReleaseEvent(event);
		return cl_explain("clFlush", 0, err);
	}
	fence = event_fence(event);
	ret = binpool_free_after(pool, ptr, &fence, 1);
	if (ret)
		clReleaseEvent(event);
	return ret;
}
