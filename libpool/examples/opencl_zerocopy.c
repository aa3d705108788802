// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * An OpenCL kernel that works on a pool's own memory.
 *
 *	cc opencl_zerocopy.c $(pkg-config --cflags --libs binpool-opencl) -lOpenCL
 */
#include <stdio.h>
#include <unistd.h>

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
	const char *source = "__kernel void twice(__global int *x)"
			     "{ x[get_global_id(0)] *= 2; }";
	size_t items = 100000;
	cl_platform_id platform;
	cl_command_queue queue;
	struct binpool *pool;
	cl_program program;
	cl_context context;
	cl_device_id device;
	cl_kernel kernel;
	uint64_t id;
	cl_mem mem;
	int *x;

	if (clGetPlatformIDs(1, &platform, NULL) ||
	    clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) {
		printf("no OpenCL device here\n");
		return EXIT_SKIPPED;
	}
	context = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
	queue = clCreateCommandQueue(context, device, 0, NULL);
	program = clCreateProgramWithSource(context, 1, &source, NULL, NULL);
	clBuildProgram(program, 1, &device, NULL, NULL, NULL);
	kernel = clCreateKernel(program, "twice", NULL);

	if (binpool_create(&pool, NULL) ||
	    binpool_cl_attach_ex(pool, context, queue, BINPOOL_CL_ZEROCOPY, &id))
		return say_why();
	x = binpool_alloc_aligned(pool, items * sizeof(*x), (size_t)sysconf(_SC_PAGESIZE));
	if (!x || binpool_cl_mem(pool, x, context, &mem))
		return say_why();
	/* The host's, from here ... */
	for (size_t i = 0; i < items; i++)
		x[i] = (int)i;
	/* ... to here. */
	if (binpool_cl_acquire(pool, x, queue, NULL))
		return say_why();
	if (clSetKernelArg(kernel, 0, sizeof(mem), &mem) ||
	    clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL))
		return 1;
	if (binpool_cl_release(pool, x, queue, NULL))
		return say_why();
	printf("x[%zu] is %d\n", items - 1, x[items - 1]);
	if (x[items - 1] != 2 * (int)(items - 1))
		return 1;

	if (binpool_free(pool, x) || binpool_destroy(pool))
		return say_why();
	clReleaseKernel(kernel);
	clReleaseProgram(program);
	clReleaseCommandQueue(queue);
	clReleaseContext(context);
	return 0;
}
