// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pools registered with CUDA, on a real driver and device. Where there is none: the
 * sentence that says so. Needs nothing of CUDA to be built.
 */
#include "unit.h"

#include <time.h>
#include <unistd.h>

#include <binpool_cuda.h>

#include "cuda_driver.h"

static struct binpool_ptr_info info_of(const void *ptr)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};

	assert_ok(binpool_query(ptr, &info));
	return info;
}

/* There and back, every byte. */
static void copies(char *from, char *to, size_t bytes)
{
	CUdeviceptr there;

	assert_int_equal(cu.MemAlloc_v2(&there, bytes), 0);
	for (size_t i = 0; i < bytes; i++)
		from[i] = (char)(i * 31 + (i >> 12));
	memset(to, 0, bytes);
	assert_int_equal(cu.MemcpyHtoD_v2(there, from, bytes), 0);
	assert_int_equal(cu.MemcpyDtoH_v2(to, there, bytes), 0);
	assert_memory_equal(from, to, bytes);
	assert_int_equal(cu.MemFree_v2(there), 0);
}

/* ---- Tests -------------------------------------------------------------------- */

static void without_driver(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	unsigned long long there;
	uint64_t id = 77;
	char *p = binpool_alloc(pool, MIB);

	(void)state;
	if (context)
		skip();
	for (int i = 0; i < 2; i++) {
		assert_int_equal(binpool_cuda_attach(pool, 0, &id), -ENODEV);
		assert_error_names(driver ? "cuInit" : "no CUDA driver here");
	}
	assert_int_equal(binpool_cuda_attach(NULL, 0, &id), -EINVAL);
	assert_int_equal(binpool_cuda_device_ptr(pool, p, &there, NULL), -ENOENT);
	assert_int_equal(id, 77);
	/* The pool is as good as it was. */
	assert_int_equal(stats_of(pool).registrations, 0);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

/* What the driver itself says of it, before, meanwhile and after. */
static void pinned(void **state)
{
	struct binpool *pool;
	unsigned long long there;
	uint64_t id, left;
	size_t range = 0;
	char *p, *q;

	(void)state;
	need_device();
	pool = thp_pool(256 * MIB);
	p = binpool_alloc(pool, 3 * MIB);
	assert_false(is_pinned(p));
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	q = binpool_alloc(pool, 64 * MIB);
	for (size_t i = 0; i < 4; i++) {
		assert_true(is_pinned(p + i * MIB / 2 + 17));
		assert_true(is_pinned(q + i * 16 * MIB + 17));
	}
	assert_string_equal(info_of(p).registrars, "cuda");
	assert_ok(binpool_cuda_device_ptr(pool, q + 5, &there, &left));
	printf("# device pointer %s the host's; %llu bytes left\n",
	       there == (uintptr_t)q + 5 ? "is" : "is not", (unsigned long long)left);
	assert_true(left >= 64 * MIB - 5);
	printf("# the driver %s ranges of registered memory\n",
	       cu.PointerGetAttribute(&range, CU_POINTER_RANGE_BYTES, (uintptr_t)q) || !range
		       ? "does not tell"
		       : "tells");
	copies(p, q, 3 * MIB);
	copies(q, p, 3 * MIB);
	assert_int_equal(stats_of(pool).registered_bytes, stats_of(pool).reserved_bytes);
	assert_ok(binpool_remove_registrar(pool, id));
	assert_false(is_pinned(p));
	assert_false(is_pinned(q));
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free(pool, q));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* One copy of more than a GiB; registration is once, whole, and its time is told. */
static void large(void **state)
{
	const size_t bytes = GIB + 64 * MIB;
	struct binpool_stats stats;
	struct binpool *pool;
	uint64_t id, left;
	unsigned long long there;
	CUdeviceptr memory;
	char *p;

	(void)state;
	need_device();
	pool = thp_pool(2 * GIB);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	p = binpool_alloc(pool, bytes);
	assert_non_null(p);
	stats = stats_of(pool);
	printf("# %llu bytes registered in %.1f ms\n", (unsigned long long)stats.registered_bytes,
	       (double)stats.registration_ns / 1e6);
	assert_int_equal(stats.registration_allocs, 1);
	assert_ok(binpool_cuda_device_ptr(pool, p, &there, &left));
	assert_true(left >= bytes);
	memset(p, 7, bytes);
	assert_int_equal(cu.MemAlloc_v2(&memory, bytes), 0);
	assert_int_equal(cu.MemcpyHtoD_v2(memory, p, bytes), 0);
	memset(p, 0, bytes);
	assert_int_equal(cu.MemcpyDtoH_v2(p, memory, bytes), 0);
	for (size_t i = 0; i < bytes; i += 4097)
		assert_int_equal(p[i], 7);
	assert_int_equal(p[bytes - 1], 7);
	assert_int_equal(cu.MemFree_v2(memory), 0);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

/* Somebody else's registration is used, and survives; in part it is in the way. */
static void foreign(void **state)
{
	struct binpool_ptr_info info;
	struct binpool *pool;
	uint64_t id;
	char *p, *base;

	(void)state;
	need_device();
	pool = thp_pool(64 * MIB);
	p = binpool_alloc(pool, MIB);
	info = info_of(p);
	base = info.extent;
	assert_int_equal(cu.MemHostRegister_v2(base, info.extent_bytes, 1), 0);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	assert_string_equal(info_of(p).registrars, "cuda");
	assert_ok(binpool_remove_registrar(pool, id));
	assert_true(is_pinned(p));
	assert_int_equal(cu.MemHostUnregister(base), 0);

	assert_int_equal(cu.MemHostRegister_v2(base + MIB, MIB, 1), 0);
	assert_int_equal(binpool_cuda_attach(pool, 0, &id), -EBUSY);
	assert_error_names("somebody else");
	assert_false(is_pinned(base));
	assert_true(is_pinned(base + MIB));
	assert_int_equal(cu.MemHostUnregister(base + MIB), 0);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	/* Our own is undone by somebody: found, and made again. */
	assert_int_equal(cu.MemHostUnregister(base), 0);
	assert_ok(binpool_wait_registered(pool, p, 0));
	assert_true(is_pinned(p));
	assert_int_equal(stats_of(pool).registrations_lost, 1);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

/* Another context of the device knows it, too: PORTABLE. */
static void other_context(void **state)
{
	struct binpool *pool;
	unsigned long long there;
	CUcontext other;
	uint64_t id;
	char *p, *q;

	(void)state;
	need_device();
	pool = thp_pool(64 * MIB);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	assert_int_equal(cu.CtxCreate_v2(&other, 0, device), 0);
	/* The new one is current now. */
	p = binpool_alloc(pool, 8 * MIB);
	q = binpool_alloc(pool, 8 * MIB);
	assert_true(is_pinned(p));
	assert_ok(binpool_cuda_device_ptr(pool, p, &there, NULL));
	copies(p, q, 8 * MIB);
	assert_int_equal(cu.CtxDestroy_v2(other), 0);
	assert_int_equal(cu.CtxSetCurrent(context), 0);
	assert_true(is_pinned(p));
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free(pool, q));
	assert_int_equal(stats_of(pool).registrations_lost, 0);
	assert_ok(binpool_destroy(pool));
}

/* Another device, too, with what was registered before it was used and after. */
static void other_device(void **state)
{
	struct binpool *pool;
	unsigned long long there;
	CUcontext other;
	int count = 0, second;
	uint64_t id;
	char *p, *q;

	(void)state;
	need_device();
	if (cu.DeviceGetCount(&count) || count < 2) {
		printf("# there is one CUDA device\n");
		skip();
	}
	pool = thp_pool(256 * MIB);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	p = binpool_alloc(pool, 8 * MIB);
	assert_int_equal(cu.DeviceGet(&second, 1), 0);
	assert_int_equal(cu.DevicePrimaryCtxRetain(&other, second), 0);
	assert_int_equal(cu.CtxSetCurrent(other), 0);
	q = binpool_alloc(pool, 64 * MIB);
	assert_true(is_pinned(p));
	assert_true(is_pinned(q + 64 * MIB - 1));
	assert_ok(binpool_cuda_device_ptr(pool, p, &there, NULL));
	assert_ok(binpool_cuda_device_ptr(pool, q, &there, NULL));
	copies(p, q, 8 * MIB);
	copies(q, p, 8 * MIB);
	/* The second device's context goes, and the pool is the first's still. */
	assert_int_equal(cu.DevicePrimaryCtxReset_v2(second), 0);
	assert_int_equal(cu.DevicePrimaryCtxRelease_v2(second), 0);
	assert_int_equal(cu.CtxSetCurrent(context), 0);
	assert_ok(binpool_wait_registered(pool, NULL, 0));
	assert_int_equal(stats_of(pool).registrations_lost, 0);
	copies(p, q, 8 * MIB);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_destroy(pool));
}

/* Another thread's, which is none of the capture's business. */
static void *grow_meanwhile(void *arg)
{
	struct binpool *pool = arg;
	unsigned long long there;
	uint64_t id;
	void *p;
	int err;

	if (cu.CtxSetCurrent(context))
		return "no context";
	err = binpool_cuda_attach(pool, 0, &id);
	p = err ? NULL : binpool_alloc(pool, 16 * MIB);
	if (p)
		err = binpool_cuda_device_ptr(pool, p, &there, NULL);
	if (!p || err || binpool_free(pool, p) || binpool_free_held(pool) ||
	    binpool_remove_registrar(pool, id))
		return strdup(binpool_last_error());
	return NULL;
}

static void captured(void **state)
{
	struct binpool *pool;
	pthread_t thread;
	CUgraph graph;
	CUstream stream;
	void *problem;

	(void)state;
	need_device();
	pool = thp_pool(64 * MIB);
	assert_int_equal(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
	assert_int_equal(cu.StreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	assert_int_equal(pthread_create(&thread, NULL, grow_meanwhile, pool), 0);
	pthread_join(thread, &problem);
	if (problem)
		fail_msg("%s", (char *)problem);
	/* Nor this thread's own calls. */
	problem = grow_meanwhile(pool);
	if (problem)
		fail_msg("in the thread that captures: %s", (char *)problem);
	assert_int_equal(cu.StreamEndCapture(stream, &graph), 0);
	assert_int_equal(cu.GraphDestroy(graph), 0);
	assert_int_equal(cu.StreamDestroy_v2(stream), 0);
	assert_ok(binpool_destroy(pool));
}

/* While the first buffers are copied the rest is registered; a thread without a context does it. */
static void in_background(void **state)
{
	enum { N = 4 };
	struct binpool *pool;
	unsigned long long there;
	char *p[N];
	uint64_t id, start, ready[N];
	struct timespec t;

	(void)state;
	need_device();
	pool = thp_pool(2 * GIB);
	assert_ok(binpool_register_in_background(pool, 0));
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	for (int i = 0; i < N; i++) {
		p[i] = binpool_alloc(pool, 256 * MIB);
		assert_non_null(p[i]);
		assert_false(is_pinned(p[i]));
	}
	assert_int_equal(binpool_cuda_device_ptr(pool, p[2], &there, NULL), -EAGAIN);
	clock_gettime(CLOCK_MONOTONIC, &t);
	start = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	for (int i = 0; i < N; i++) {
		assert_ok(binpool_wait_registered(pool, p[i], UINT32_MAX));
		assert_true(is_pinned(p[i]));
		clock_gettime(CLOCK_MONOTONIC, &t);
		ready[i] = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000 - start;
	}
	printf("# 256 MiB each, ready after %.1f, %.1f, %.1f, %.1f ms\n", (double)ready[0] / 1e3,
	       (double)ready[1] / 1e3, (double)ready[2] / 1e3, (double)ready[3] / 1e3);
	assert_ok(binpool_cuda_device_ptr(pool, p[2], &there, NULL));
	copies(p[0], p[3], 8 * MIB);
	for (int i = 0; i < N; i++)
		assert_ok(binpool_free(pool, p[i]));
	assert_ok(binpool_destroy(pool));
}

/* A context of one's own is destroyed before the pool: no error, and the next one takes over. */
static void context_destroyed(void **state)
{
	struct binpool *pool;
	unsigned long long there;
	CUcontext own;
	uint64_t id;
	char *p, *q;

	(void)state;
	need_device();
	pool = thp_pool(256 * MIB);
	assert_int_equal(cu.CtxCreate_v2(&own, 0, device), 0);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	p = binpool_alloc(pool, 8 * MIB);
	q = binpool_alloc(pool, 8 * MIB);
	assert_int_equal(cu.CtxDestroy_v2(own), 0);
	assert_int_equal(cu.CtxSetCurrent(context), 0);
	printf("# registrations %s with their context\n", is_pinned(p) ? "do not go" : "go");
	assert_string_equal(info_of(p).registrars, "");
	assert_ok(binpool_cuda_device_ptr(pool, p, &there, NULL));
	assert_true(is_pinned(p));
	assert_ok(binpool_wait_registered(pool, NULL, 0));
	assert_true(is_pinned(q));
	assert_true(stats_of(pool).registrations_lost > 0);
	copies(p, q, 8 * MIB);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_destroy(pool));
}

/* The last test: the runtime's own context is reset, as cudaDeviceReset does. */
static void context_reset(void **state)
{
	struct binpool *pool;
	uint64_t id;
	char *p, *q;

	(void)state;
	need_device();
	pool = thp_pool(256 * MIB);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	p = binpool_alloc(pool, 8 * MIB);
	assert_int_equal(cu.DevicePrimaryCtxReset_v2(device), 0);
	assert_ok(binpool_free(pool, p));
	/* Memory that there is needs no driver; more of it needs a context. */
	p = binpool_alloc(pool, 8 * MIB);
	assert_non_null(p);
	assert_null(binpool_alloc(pool, 64 * MIB));
	assert_int_equal(errno, ENODEV);
	assert_int_equal(cu.DevicePrimaryCtxRelease_v2(device), 0);
	assert_int_equal(cu.DevicePrimaryCtxRetain(&context, device), 0);
	assert_int_equal(cu.CtxSetCurrent(context), 0);
	q = binpool_alloc(pool, 64 * MIB);
	assert_non_null(q);
	assert_true(is_pinned(q));
	assert_true(is_pinned(p));
	copies(p, q, 8 * MIB);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_destroy(pool));
}

/* ---- The end of the process ------------------------------------------------------ */

static struct binpool *late_pool;
static void *late_buffer;

static void destroy_late(void)
{
	if (binpool_free(late_pool, late_buffer) || binpool_destroy(late_pool))
		_exit(2);
	printf("destroyed\n");
	fflush(stdout);
}

/* Its exit handler runs when the driver's have: it was there first. */
static int ends_late(void)
{
	uint64_t id;

	if (atexit(destroy_late) || find_device(NULL) || !context)
		return 1;
	late_pool = thp_pool(64 * MIB);
	if (binpool_cuda_attach(late_pool, 0, &id))
		return 1;
	late_buffer = binpool_alloc(late_pool, MIB);
	return !late_buffer;
}

static void driver_gone_first(void **state)
{
	char said[4096];
	int status;

	(void)state;
	need_device();
	status = run_self("--ends-late", said, sizeof(said));
	assert_string_equal(said, "destroyed\n");
	assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_driver),
		cmocka_unit_test(pinned),
		cmocka_unit_test(large),
		cmocka_unit_test(foreign),
		cmocka_unit_test(other_context),
		cmocka_unit_test(other_device),
		cmocka_unit_test(captured),
		cmocka_unit_test(in_background),
		cmocka_unit_test(context_destroyed),
		cmocka_unit_test(driver_gone_first),
		cmocka_unit_test(context_reset),
	};

	if (argc > 1 && !strcmp(argv[1], "--ends-late"))
		return ends_late();
	return cmocka_run_group_tests_name("cuda_pin", tests, find_device, NULL);
}
