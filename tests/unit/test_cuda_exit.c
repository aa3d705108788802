// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Processes that end with a pool that CUDA knows, on a driver without a device that says when
 * it is called too late; or on a real one, if BINPOOL_TEST_REAL is set.
 */
#include <sys/wait.h>

#include "exit_orders.h"

#define PART "../../lib/libbinpool-cuda.so.0"

static bool between; /* the library's handler and the driver's */

static int driver_begin(bool fenced)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*attach)(struct binpool * pool, uint32_t flags, uint64_t * id);
	int (*free_on_stream)(struct binpool * pool, void *ptr, void *stream);
	int (*init)(unsigned int flags), (*retain)(void **ctx, int device), (*use)(void *ctx);
	uint64_t id;
	void *ctx;

	if (!driver)
		return 30;
	*(void **)&init = dlsym(driver, "cuInit");
	*(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
	*(void **)&use = dlsym(driver, "cuCtxSetCurrent");
	*(void **)&attach = dlsym(lib.part, "binpool_cuda_attach");
	*(void **)&free_on_stream = dlsym(lib.part, "binpool_free_on_cuda_stream");
	/* The library is the first to call the driver, so the driver's handler may be younger. */
	if (attach(end_pool, 0, &id) != -ENODEV)
		return 31;
	if (between && atexit(end))
		return 24;
	if (init(0) || retain(&ctx, 0) || use(ctx) || attach(end_pool, 0, &id))
		return 32;
	if (fenced) {
		if (free_on_stream(end_pool, end_buffer, NULL))
			return 33;
		end_buffer = NULL;
	}
	return 0;
}

/* tests/cuda says so, where there is another driver than that. */
static bool is_real(void)
{
	return getenv("BINPOOL_TEST_REAL");
}

/* What is undone while the driver is there is unregistered, and later nothing is. */
static void driver_ends(void **state)
{
	static const struct order orders[] = {
		{"now", "unregistered\n"},
		{"handler-after", "unregistered\n"},
		{"handler-after fenced", "unregistered\n"},
		{"handler-before", NULL},
		{"handler-before fenced", NULL},
		{"handler-before background", NULL},
		{"destructor", NULL},
		{"destructor fenced closed", NULL},
		{"closed handler-before", NULL},
		{"closed handler-after", "unregistered\n"},
		{"left", NULL},
		{"left closed background", NULL},
	};

	(void)state;
	setenv("SOFT_CUDA_TELLS", "1", 1);
	unsetenv("SOFT_CUDA_ENDS_EARLY");
	try_orders(orders, sizeof(orders) / sizeof(orders[0]), is_real());
}

/* A driver that ends before the library hears of it has an error for everything, which is none. */
static void driver_ends_early(void **state)
{
	static const struct order orders[] = {
		{"handler-before", NULL},
		{"destructor closed", NULL},
		{"left", NULL},
		{"handler-between", "called after its end\n"},
		{"handler-between fenced closed", "called after its end\n"},
	};
	/* A thread of the pool's may call it between its end and the library's. */
	static const struct order thread = {"handler-before fenced background",
					    "called after its end\n"};

	(void)state;
	setenv("SOFT_CUDA_TELLS", "1", 1);
	setenv("SOFT_CUDA_ENDS_EARLY", "1", 1);
	try_orders(orders, sizeof(orders) / sizeof(orders[0]), is_real());
	try_order(&thread, is_real(), true);
}

/* The programs that are run find it. */
static int find_driver(void **state)
{
	char path[4200];

	(void)state;
	path_from_here("../soft_cuda", path);
	return is_real() ? 0 : setenv("LD_LIBRARY_PATH", path, 1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(driver_ends),
		cmocka_unit_test(driver_ends_early),
	};

	if (argc > 1) {
		between = strstr(argv[1], "between");
		return run_order(argv[1], PART);
	}
	return cmocka_run_group_tests_name("cuda_exit", tests, find_driver, NULL);
}
