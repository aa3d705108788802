// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * OpenCL for `binpool selftest`. Owns a context, a queue and a device's memory.
 */
#include <stdlib.h>

#include <binpool_cl.h>

#include "cli.h"
#include "opencl.h"
#include "selftest.h"

struct own {
	cl_context context;
	cl_command_queue queue;
	cl_mem there, pinned;
};

static int open_opencl(struct consumer *c, const char *which, uint64_t bytes)
{
	cl_context_properties properties[3] = {CL_CONTEXT_PLATFORM};
	struct own *own = calloc(1, sizeof(*own));
	cl_platform_id platform;
	cl_device_type type = 0;
	cl_device_id id;
	cl_int status;
	int ret;

	c->name = "OpenCL";
	c->other_name = "ALLOC_HOST_PTR";
	c->own = own;
	if (!own) {
		cli_error("no memory for a device's record");
		return CLI_FAILED;
	}
	ret = cl_find_device(which, &platform, &id, c->device, sizeof(c->device));
	if (ret)
		return ret;
	printf("OpenCL, device: %s\n", c->device);
	clGetDeviceInfo(id, CL_DEVICE_TYPE, sizeof(type), &type, NULL);
	c->is_cpu = !!(type & CL_DEVICE_TYPE_CPU);
	properties[1] = (cl_context_properties)platform;
	own->context = clCreateContext(properties, 1, &id, NULL, NULL, &status);
	if (status != CL_SUCCESS)
		return cl_failed("making a context", status);
	own->queue = clCreateCommandQueue(own->context, id, 0, &status);
	if (status != CL_SUCCESS)
		return cl_failed("making a queue", status);
	own->there = clCreateBuffer(own->context, CL_MEM_READ_WRITE, bytes, NULL, &status);
	if (status != CL_SUCCESS)
		return cl_failed("getting device memory", status);
	own->pinned = clCreateBuffer(own->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes,
				     NULL, &status);
	if (status == CL_SUCCESS)
		c->other = clEnqueueMapBuffer(own->queue, own->pinned, CL_TRUE,
					      CL_MAP_READ | CL_MAP_WRITE, 0, bytes, 0, NULL, NULL,
					      &status);
	return status == CL_SUCCESS ? CLI_OK
				    : cl_failed("CL_MEM_ALLOC_HOST_PTR, to compare with", status);
}

static void close_opencl(struct consumer *c)
{
	struct own *own = c->own;

	if (!own)
		return;
	if (c->other)
		clEnqueueUnmapMemObject(own->queue, own->pinned, c->other, 0, NULL, NULL);
	if (own->queue)
		clFinish(own->queue);
	if (own->pinned)
		clReleaseMemObject(own->pinned);
	if (own->there)
		clReleaseMemObject(own->there);
	if (own->queue)
		clReleaseCommandQueue(own->queue);
	if (own->context)
		clReleaseContext(own->context);
	free(own);
}

static int attach_opencl(struct consumer *c, struct binpool *pool, uint64_t *id)
{
	const struct own *own = c->own;

	return binpool_cl_attach(pool, own->context, own->queue, id);
}

/* It tells nothing of memory. */
static int look_opencl(struct consumer *c, struct binpool *pool, const unsigned char *buffer,
		       uint64_t bytes)
{
	(void)c;
	(void)pool;
	(void)buffer;
	(void)bytes;
	return CLI_OK;
}

static const char *write_opencl(struct consumer *c, const unsigned char *from, uint64_t bytes)
{
	const struct own *own = c->own;
	cl_int status = clEnqueueWriteBuffer(own->queue, own->there, CL_TRUE, 0, bytes, from, 0,
					     NULL, NULL);

	return status == CL_SUCCESS ? NULL : cl_problem(status);
}

static const char *read_opencl(struct consumer *c, unsigned char *to, uint64_t bytes)
{
	const struct own *own = c->own;
	cl_int status =
		clEnqueueReadBuffer(own->queue, own->there, CL_TRUE, 0, bytes, to, 0, NULL, NULL);

	return status == CL_SUCCESS ? NULL : cl_problem(status);
}

const struct consumer_ops consumer_opencl = {
	.open = open_opencl,
	.close = close_opencl,
	.attach = attach_opencl,
	.look = look_opencl,
	.write = write_opencl,
	.read = read_opencl,
};
