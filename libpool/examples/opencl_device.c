// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A pool of OpenCL device memory.
 *
 *	cc opencl_device.c $(pkg-config --cflags --libs binpool-opencl) -lOpenCL
 */
#include <stdio.h>

#include <binpool_cl.h>

/* For those who run examples as tests. */
#define EXIT_SKIPPED 77

static int say_why(void)
{
	fprintf(stderr, "%s\n", binpool_last_error());
	return 1;
}

int main(void)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops)};
	struct binpool_options options = BINPOOL_OPTIONS_INIT;
	struct binpool_buf buf = {.size = sizeof(buf)};
	const unsigned char seven = 7;
	unsigned char byte = 0;
	cl_platform_id platform;
	cl_command_queue queue;
	struct binpool *pool;
	cl_context context;
	cl_device_id device;
	cl_mem mem;

	if (clGetPlatformIDs(1, &platform, NULL) ||
	    clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) {
		printf("no OpenCL device here\n");
		return EXIT_SKIPPED;
	}
	context = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
	queue = clCreateCommandQueue(context, device, 0, NULL);

	options.name = "device memory";
	options.kind = BINPOOL_KIND_HANDLE;
	options.provider = BINPOOL_PROVIDER_ALLOCATOR;
	options.allocator = &ops;
	if (binpool_cl_device_allocator(context, device, 0, &ops))
		return say_why();
	if (binpool_create(&pool, &options)) {
		ops.release(ops.ctx);
		return say_why();
	}

	if (binpool_handle_alloc(pool, 100000, &buf))
		return say_why();
	mem = (cl_mem)(uintptr_t)buf.handle;
	if (clEnqueueFillBuffer(queue, mem, &seven, 1, 0, 100000, 0, NULL, NULL) ||
	    clEnqueueReadBuffer(queue, mem, CL_TRUE, 99999, 1, &byte, 0, NULL, NULL))
		return 1;
	printf("the device wrote %d\n", byte);

	/* Freed at once, handed out again when the queue is past it. */
	if (binpool_free_on_cl_queue(pool, (void *)(uintptr_t)buf.handle, queue) ||
	    binpool_destroy_wait(pool, 10000))
		return say_why();
	clReleaseCommandQueue(queue);
	clReleaseContext(context);
	return byte != seven;
}
