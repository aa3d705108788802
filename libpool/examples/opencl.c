// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * OpenCL staging: the context knows the pool's memory as pinned, and buffers are
 * the host side of copies to and from a device.
 *
 *	cc opencl.c $(pkg-config --cflags --libs binpool-opencl) -lOpenCL
 */
#include <stdio.h>
#include <string.h>

#include <binpool_cl.h>

#define BYTES ((size_t)4 << 20)
/* For those who run examples as tests. */
#define EXIT_SKIPPED 77

int main(void)
{
	cl_platform_id platform;
	cl_command_queue queue;
	cl_context context;
	cl_device_id device;
	cl_event copied;
	cl_mem memory;
	cl_int err;
	struct binpool_fence fence = {.size = sizeof(fence)};
	struct binpool *pool;
	uint64_t id;
	char *in, *out;
	int same;

	if (clGetPlatformIDs(1, &platform, NULL) ||
	    clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) {
		printf("there is no OpenCL device\n");
		return EXIT_SKIPPED;
	}
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
	if (err)
		return 1;
	queue = clCreateCommandQueue(context, device, 0, &err);
	if (err)
		return 1;
	memory = clCreateBuffer(context, CL_MEM_READ_WRITE, BYTES, NULL, &err);
	if (err)
		return 1;

	if (binpool_create(&pool, NULL) || binpool_cl_attach(pool, context, queue, &id)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	in = binpool_alloc(pool, BYTES);
	out = binpool_alloc(pool, BYTES);
	if (!in || !out) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	memset(out, 42, BYTES);
	memset(in, 0, BYTES);
	if (clEnqueueWriteBuffer(queue, memory, CL_FALSE, 0, BYTES, out, 0, NULL, NULL) ||
	    clEnqueueReadBuffer(queue, memory, CL_FALSE, 0, BYTES, in, 0, NULL, NULL))
		return 1;
	/* Nobody gets this one before the queue is through with it. */
	if (binpool_free_on_cl_queue(pool, out, queue)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	clFinish(queue);
	same = in[0] == 42 && !memcmp(in, in + 1, BYTES - 1);
	printf("%zu bytes to the device and back: %s\n", BYTES, same ? "equal" : "different");

	/* The same with an event of one's own: what comes after it does not matter. */
	if (clEnqueueWriteBuffer(queue, memory, CL_FALSE, 0, BYTES, in, 0, NULL, &copied) ||
	    binpool_cl_fence(copied, &fence) || binpool_free_after(pool, in, &fence, 1)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	clReleaseEvent(copied);
	clFlush(queue);

	/* The pool may go on without the context. */
	binpool_remove_registrar(pool, id);
	clReleaseMemObject(memory);
	clReleaseCommandQueue(queue);
	clReleaseContext(context);
	return binpool_destroy_wait(pool, 60000) || !same;
}
