// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Processes that end with a pool that OpenCL knows, on a real runtime (PoCL's CPU device is
 * enough).
 */
#include <sys/wait.h>

#include "opencl.h"

#include "exit_orders.h"

#define PART "../../lib/libbinpool-opencl.so.0"

static bool zerocopy;
static bool telling; /* of the pool's own references */

/* In the place of the runtime's, for the library as well. */
cl_int CL_API_CALL clReleaseContext(cl_context context)
{
	cl_int (*real)(cl_context) = NULL;

	*(void **)&real = dlsym(RTLD_NEXT, "clReleaseContext");
	if (telling)
		printf("released\n");
	return real(context);
}

static int driver_begin(bool fenced)
{
	int (*attach)(struct binpool * pool, cl_context context, cl_command_queue queue,
		      uint32_t flags, uint64_t * id);
	int (*free_on_queue)(struct binpool * pool, void *ptr, cl_command_queue queue);
	cl_platform_id platform;
	cl_command_queue queue;
	cl_context context;
	cl_device_id device;
	uint64_t id;

	if (clGetPlatformIDs(1, &platform, NULL) ||
	    clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL))
		return 77;
	context = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
	queue = clCreateCommandQueue(context, device, 0, NULL);
	*(void **)&attach = dlsym(lib.part, "binpool_cl_attach_ex");
	*(void **)&free_on_queue = dlsym(lib.part, "binpool_free_on_cl_queue");
	if (attach(end_pool, context, queue, zerocopy ? BINPOOL_CL_ZEROCOPY : 0, &id))
		return 31;
	if (fenced) {
		if (free_on_queue(end_pool, end_buffer, queue))
			return 33;
		end_buffer = NULL;
	}
	/* The pool has references of its own. */
	if (clReleaseCommandQueue(queue) || clReleaseContext(context))
		return 34;
	telling = true;
	return 0;
}

static void runtime_ends(void **state)
{
	static const struct order orders[] = {
		{"now", "released\n"},	   {"handler-after fenced", "released\n"},
		{"handler-before", NULL},  {"handler-before fenced", NULL},
		{"destructor", NULL},	   {"destructor fenced closed", NULL},
		{"destructor zero", NULL}, {"closed handler-before zero", NULL},
		{"left closed", NULL},
	};

	(void)state;
	try_orders(orders, sizeof(orders) / sizeof(orders[0]), false);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(runtime_ends),
	};

	if (argc > 1) {
		zerocopy = strstr(argv[1], "zero");
		return run_order(argv[1], PART);
	}
	return cmocka_run_group_tests_name("opencl_exit", tests, NULL, NULL);
}
