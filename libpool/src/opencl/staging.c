// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * OpenCL, staging: each extent is the host memory of one cl_mem, mapped once
 * and kept mapped. Owns a struct staging per attached context; its members are
 * fixed, and the pool calls the callbacks one at a time.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "opencl.h"

struct staging {
	cl_context context;
	cl_command_queue queue;
	cl_ulong max_bytes; /* of one cl_mem on the queue's device */
};

static int attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	const struct staging *s = ctx;
	size_t bytes = (size_t)extent->bytes;
	char text[256];
	void *mapped;
	cl_mem mem;
	cl_int err;

	if (bytes > s->max_bytes) {
		snprintf(text, sizeof(text),
			 "OpenCL: an extent of %zu bytes is above CL_DEVICE_MAX_MEM_ALLOC_SIZE = "
			 "%llu of the device",
			 bytes, (unsigned long long)s->max_bytes);
		binpool_set_last_error(text);
		return -EFBIG;
	}
	mem = clCreateBuffer(s->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes,
			     extent->ptr, &err);
	if (!mem)
		return cl_explain("clCreateBuffer(USE_HOST_PTR)", bytes, err);
	mapped = clEnqueueMapBuffer(s->queue, mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, bytes, 0,
				    NULL, NULL, &err);
	if (!mapped) {
		clReleaseMemObject(mem);
		return cl_explain("clEnqueueMapBuffer", bytes, err);
	}
	*cookie = mem;
	return 0;
}

/*
 * Waits for all of the queue: what it still does with the extent as a host
 * pointer has no other event that we know.
 */
static void detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	const struct staging *s = ctx;
	cl_mem mem = cookie;

	if (cl_gone())
		return;
	clEnqueueUnmapMemObject(s->queue, mem, extent->ptr, 0, NULL, NULL);
	clFinish(s->queue);
	clReleaseMemObject(mem);
}

static void release(void *ctx)
{
	struct staging *s = ctx;

	if (!cl_gone()) {
		clReleaseCommandQueue(s->queue);
		clReleaseContext(s->context);
	}
	free(s);
}

static int find_limit(struct staging *s)
{
	cl_device_id device;
	cl_int err;

	err = clGetCommandQueueInfo(s->queue, CL_QUEUE_DEVICE, sizeof(device), &device, NULL);
	if (err)
		return cl_explain("clGetCommandQueueInfo", 0, err);
	err = clGetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(s->max_bytes),
			      &s->max_bytes, NULL);
	return err ? cl_explain("clGetDeviceInfo", 0, err) : 0;
}

EXPORT int binpool_cl_attach(struct binpool *pool, cl_context context, cl_command_queue queue,
			     uint64_t *id)
{
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.name = "opencl",
		.attach = attach,
		.detach = detach,
		.release = release,
		/* Mapping may write what the host has written meanwhile. */
		.flags = BINPOOL_REGISTRAR_BEFORE_USE,
	};
	struct staging *s;
	int err;

	if (!pool || !context || !queue || !id) {
		binpool_set_last_error("binpool_cl_attach: an argument is NULL");
		return -EINVAL;
	}
	s = calloc(1, sizeof(*s));
	if (!s) {
		binpool_set_last_error("OpenCL: no memory for a registrar's description");
		return -ENOMEM;
	}
	s->context = context;
	s->queue = queue;
	err = find_limit(s);
	if (err) {
		free(s);
		return err;
	}
	cl_watch_exit();
	clRetainContext(context);
	clRetainCommandQueue(queue);
	ops.ctx = s;
	err = binpool_add_registrar(pool, &ops, id);
	if (err)
		release(s);
	return err;
}
