// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * OpenCL, memory of a device: an allocator of handles that are cl_mem. Owns a struct
 * device per allocator, whose members are fixed; the pool calls alloc and free one at a
 * time, and OpenCL takes the others from any thread.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../versioned.h"
#include "opencl.h"

struct device {
	cl_context context;
	cl_command_queue queue; /* ours, so that nobody's work is waited for */
	cl_mem_flags flags;
	uint64_t part_align; /* of a part's offset */
};

static uint64_t to_handle(cl_mem mem)
{
	return (uintptr_t)mem;
}

static cl_mem to_mem(uint64_t handle)
{
	return (cl_mem)(uintptr_t)handle;
}

/*
 * Runtimes put memory behind a buffer when it is first used. This uses it, so that a
 * shortage is seen by whoever allocates.
 */
static cl_int make_resident(const struct device *d, cl_mem mem)
{
	cl_int status = CL_SUCCESS;
	cl_event done;
	cl_int err;

	err = clEnqueueMigrateMemObjects(d->queue, 1, &mem, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED,
					 0, NULL, &done);
	if (err)
		return err;
	err = clWaitForEvents(1, &done);
	if (err == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST &&
	    !clGetEventInfo(done, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status,
			    NULL) &&
	    status < 0)
		err = status;
	clReleaseEvent(done);
	return err;
}

static int device_alloc(void *ctx, uint64_t bytes, uint64_t *handle)
{
	const struct device *d = ctx;
	cl_int err;
	cl_mem mem;

	if (cl_gone()) {
		binpool_set_last_error("OpenCL: the process is ending");
		return -ENODEV;
	}
	mem = clCreateBuffer(d->context, d->flags, (size_t)bytes, NULL, &err);
	if (!mem)
		return cl_explain("clCreateBuffer", (size_t)bytes, err);
	err = make_resident(d, mem);
	if (err) {
		clReleaseMemObject(mem);
		return cl_explain("clEnqueueMigrateMemObjects", (size_t)bytes, err);
	}
	*handle = to_handle(mem);
	return 0;
}

static void device_free(void *ctx, uint64_t handle, uint64_t bytes)
{
	(void)ctx;
	(void)bytes;
	if (!cl_gone())
		clReleaseMemObject(to_mem(handle));
}

static int device_sub(void *ctx, uint64_t handle, uint64_t offset, uint64_t bytes, uint64_t *part)
{
	cl_buffer_region region = {.origin = (size_t)offset, .size = (size_t)bytes};
	const struct device *d = ctx;
	cl_int err;
	cl_mem mem;

	/* Not every runtime looks. */
	if (offset % d->part_align)
		return cl_explain("clCreateSubBuffer", (size_t)bytes,
				  CL_MISALIGNED_SUB_BUFFER_OFFSET);
	/* 0: as the buffer itself. */
	mem = clCreateSubBuffer(to_mem(handle), 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &err);
	if (!mem)
		return cl_explain("clCreateSubBuffer", (size_t)bytes, err);
	*part = to_handle(mem);
	return 0;
}

static void device_sub_free(void *ctx, uint64_t part)
{
	device_free(ctx, part, 0);
}

static void device_release(void *ctx)
{
	struct device *d = ctx;

	if (!cl_gone()) {
		clReleaseCommandQueue(d->queue);
		clReleaseContext(d->context);
	}
	free(d);
}

EXPORT int binpool_cl_device_allocator(cl_context context, cl_device_id device, cl_mem_flags flags,
				       struct binpool_allocator_ops *ops)
{
	const cl_mem_flags host = CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR;
	struct binpool_allocator_ops made = {
		.alloc_handle = device_alloc,
		.free_handle = device_free,
		.sub = device_sub,
		.sub_free = device_sub_free,
		.release = device_release,
	};
	cl_uint align_bits = 0;
	struct device *d;
	cl_int err;
	int ret;

	if (!context || !device) {
		binpool_set_last_error("binpool_cl_device_allocator: an argument is NULL");
		return -EINVAL;
	}
	ret = struct_check(ops, sizeof(*ops), "ops");
	if (ret)
		return ret;
	if (flags & host) {
		binpool_set_last_error("binpool_cl_device_allocator: flags with a host pointer");
		return -EINVAL;
	}
	d = calloc(1, sizeof(*d));
	if (!d) {
		binpool_set_last_error("OpenCL: no memory for an allocator's description");
		return -ENOMEM;
	}
	d->queue = clCreateCommandQueue(context, device, 0, &err);
	if (!d->queue) {
		free(d);
		return cl_explain("clCreateCommandQueue", 0, err);
	}
	clGetDeviceInfo(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof(align_bits), &align_bits,
			NULL);
	d->part_align = align_bits >= 8 ? align_bits / 8 : 1;
	cl_watch_exit();
	clRetainContext(context);
	d->context = context;
	d->flags = flags;
	made.ctx = d;
	struct_fill(ops, &made, sizeof(made));
	return 0;
}
