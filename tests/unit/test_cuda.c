// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers that a CUDA stream is at work on, on a real driver and device. Where there
 * is none: the sentence that says so. Needs nothing of CUDA to be built.
 */
#include <unistd.h>

#include <binpool_cuda.h>

#include "cuda_driver.h"

static CUstream stream;

static int find_stream(void **state)
{
	return find_device(state) || (context && cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

/* ---- A pool that CUDA knows as pinned --------------------------------------- */

static int pin(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	(void)ctx;
	(void)cookie;
	return cu.MemHostRegister_v2(extent->ptr, extent->bytes, CU_MEMHOSTREGISTER_PORTABLE) ? -EIO
											      : 0;
}

static void unpin(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	(void)ctx;
	(void)cookie;
	cu.MemHostUnregister(extent->ptr);
}

static struct binpool *pinned_pool(uint64_t max_bytes)
{
	const struct binpool_registrar_ops ops = {
		.size = sizeof(ops), .name = "cuda", .attach = pin, .detach = unpin};
	struct binpool *pool = thp_pool(max_bytes);
	uint64_t id;

	assert_ok(binpool_add_registrar(pool, &ops, &id));
	return pool;
}

/* What a stream waits for until the test lets it go on. */
static void gate(void *arg)
{
	while (!__atomic_load_n((int *)arg, __ATOMIC_ACQUIRE))
		usleep(100);
}

static void gate_open(int *open)
{
	__atomic_store_n(open, 1, __ATOMIC_RELEASE);
}

/* ---- Tests -------------------------------------------------------------------- */

static void without_driver(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct binpool_fence f = {.size = sizeof(f)};
	void *p = binpool_alloc(pool, MIB);

	(void)state;
	if (context)
		skip();
	for (int i = 0; i < 2; i++) {
		assert_int_equal(binpool_free_on_cuda_stream(pool, p, NULL), -ENODEV);
		assert_error_names(driver ? "cuInit" : "no CUDA driver here");
	}
	assert_int_equal(binpool_cuda_fence((struct CUevent_st *)&f, &f), -ENODEV);
	assert_int_equal(binpool_free_on_cuda_stream(NULL, p, NULL), -EINVAL);
	assert_int_equal(stats_of(pool).pending_blocks, 0);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

/* On a stream of one's own, the default one, and the thread's. */
static void held_up_on(CUstream on)
{
	struct binpool *pool = pinned_pool(64 * MIB);
	CUdeviceptr mem;
	char *p = binpool_alloc(pool, MIB), *q;
	int open = 0;

	assert_int_equal(cu.MemAlloc_v2(&mem, MIB), 0);
	memset(p, 1, MIB);
	assert_int_equal(cu.LaunchHostFunc(on, gate, &open), 0);
	assert_int_equal(cu.MemcpyHtoDAsync_v2(mem, p, MIB, on), 0);
	assert_ok(binpool_free_on_cuda_stream(pool, p, on));
	assert_int_equal(binpool_free_on_cuda_stream(pool, p, on), -EINVAL);
	assert_int_equal(binpool_free(pool, p), -EINVAL);
	assert_int_equal(binpool_poll(pool), 1);
	q = binpool_alloc(pool, MIB);
	assert_ptr_not_equal(p, q);
	assert_int_equal(binpool_destroy(pool), -EBUSY);
	gate_open(&open);
	assert_int_equal(cu.StreamSynchronize(on), 0);
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(stats_of(pool).fence_errors, 0);
	assert_int_equal(cu.MemcpyDtoH_v2(q, mem, MIB), 0);
	for (size_t i = 0; i < MIB; i++)
		assert_int_equal(q[i], 1);
	assert_ok(binpool_free_on_cuda_stream(pool, q, on));
	assert_ok(binpool_destroy_wait(pool, 60000));
	assert_int_equal(cu.MemFree_v2(mem), 0);
}

static void held_up(void **state)
{
	(void)state;
	need_device();
	held_up_on(stream);
	held_up_on(NULL);
	held_up_on(CU_STREAM_PER_THREAD);
}

/* Where no context is current. */
static void *free_elsewhere(void *arg)
{
	CUstream of_device = NULL;
	void **what = arg;

	/* Nothing says which context's it is. */
	if (binpool_free_on_cuda_stream(what[0], what[1], NULL) != -ENODEV)
		return "freed without a context";
	if (binpool_free_on_cuda_streams(what[0], what[1], &of_device, &device, 1))
		return strdup(binpool_last_error());
	return NULL;
}

/* One stream at a time is held up: the driver may have one thread for both. */
static void held_up_by_one_of(void **state)
{
	CUstream both[2] = {NULL, stream};
	const int devices[2] = {device, device};
	struct binpool *pool;
	pthread_t thread;
	void *p, *problem, *what[2];

	(void)state;
	need_device();
	pool = thp_pool(64 * MIB);
	for (int i = 0; i < 3; i++) {
		CUstream held_up = both[i % 2];
		int open = 0;

		p = binpool_alloc(pool, MIB);
		assert_int_equal(cu.LaunchHostFunc(held_up, gate, &open), 0);
		if (i < 2) {
			assert_ok(binpool_free_on_cuda_streams(pool, p, both, devices, 2));
		} else {
			what[0] = pool;
			what[1] = p;
			assert_int_equal(pthread_create(&thread, NULL, free_elsewhere, what), 0);
			pthread_join(thread, &problem);
			if (problem)
				fail_msg("%s", (char *)problem);
		}
		assert_int_equal(binpool_poll(pool), 1);
		gate_open(&open);
		assert_int_equal(cu.StreamSynchronize(both[0]), 0);
		assert_int_equal(cu.StreamSynchronize(both[1]), 0);
		assert_int_equal(binpool_poll(pool), 0);
	}
	assert_int_equal(stats_of(pool).fence_errors, 0);
	assert_ok(binpool_destroy(pool));
}

/* Few buffers, used again and again; each copy has to find what was written for it. */
static void running(void **state)
{
	enum { COPIES = 400 };
	const size_t bytes = MIB, load = 512 * MIB;
	struct binpool_alloc_opts want = {
		.size = sizeof(want),
		.bytes = bytes,
		.flags = BINPOOL_BUF_WAIT,
		.wait_ms = 60000,
	};
	struct binpool *pool;
	CUdeviceptr mem, from, to;
	char *back;

	(void)state;
	need_device();
	pool = pinned_pool(16 * MIB);
	assert_int_equal(cu.MemAlloc_v2(&mem, COPIES * bytes), 0);
	assert_int_equal(cu.MemAlloc_v2(&from, load), 0);
	assert_int_equal(cu.MemAlloc_v2(&to, load), 0);
	for (size_t i = 0; i < COPIES; i++) {
		struct binpool_buf buf = {.size = sizeof(buf)};

		assert_ok(binpool_alloc_ex(pool, &want, &buf));
		memset(buf.ptr, (int)i, bytes);
		assert_int_equal(cu.MemcpyDtoDAsync_v2(to, from, load, stream), 0);
		assert_int_equal(cu.MemcpyHtoDAsync_v2(mem + i * bytes, buf.ptr, bytes, stream), 0);
		assert_ok(binpool_free_on_cuda_stream(pool, buf.ptr, stream));
	}
	while (binpool_poll(pool))
		;
	assert_int_equal(stats_of(pool).active_blocks + stats_of(pool).fence_errors, 0);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
	back = malloc(COPIES * bytes);
	assert_non_null(back);
	assert_int_equal(cu.MemcpyDtoH_v2(back, mem, COPIES * bytes), 0);
	for (size_t i = 0; i < COPIES * bytes; i++)
		if (back[i] != (char)(i / bytes))
			fail_msg("copy %zu had what is not its own", i / bytes);
	free(back);
	assert_int_equal(cu.MemFree_v2(mem) | cu.MemFree_v2(from) | cu.MemFree_v2(to), 0);
}

/* Another thread's work while this one captures, in the strictest mode. */
static void *free_meanwhile(void *arg)
{
	struct binpool *pool = arg;
	CUstream other;
	int err = -1;

	if (cu.CtxSetCurrent(context) || cu.StreamCreate(&other, CU_STREAM_NON_BLOCKING))
		return "no stream";
	/* The first makes an event, the second uses it again. */
	for (int i = 0; i < 2; i++) {
		err = binpool_free_on_cuda_stream(pool, binpool_alloc(pool, MIB), other);
		if (err)
			return strdup(binpool_last_error());
		while (binpool_poll(pool))
			usleep(100);
	}
	return NULL;
}

static void captured(void **state)
{
	struct binpool *pool;
	pthread_t thread;
	CUgraph graph;
	CUstream mine;
	void *p, *problem;

	(void)state;
	need_device();
	/* Not pinned: registering is not allowed while a thread captures. */
	pool = thp_pool(64 * MIB);
	p = binpool_alloc(pool, MIB);
	assert_int_equal(cu.StreamCreate(&mine, CU_STREAM_NON_BLOCKING), 0);
	assert_int_equal(cu.StreamBeginCapture_v2(mine, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	assert_int_equal(binpool_free_on_cuda_stream(pool, p, mine), -EBUSY);
	assert_error_names("captured");
	assert_int_equal(pthread_create(&thread, NULL, free_meanwhile, pool), 0);
	pthread_join(thread, &problem);
	if (problem)
		fail_msg("%s", (char *)problem);
	/* Neither of them did the capture any harm. */
	assert_int_equal(cu.StreamEndCapture(mine, &graph), 0);
	assert_int_equal(cu.GraphDestroy(graph), 0);
	assert_int_equal(cu.StreamDestroy_v2(mine), 0);
	assert_int_equal(stats_of(pool).fence_errors, 0);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

static void callers_events(void **state)
{
	struct binpool_fence f[2] = {{.size = sizeof(f[0])}, {.size = sizeof(f[0])}};
	struct binpool *pool;
	CUevent event[2];
	CUstream on[2] = {stream};

	(void)state;
	need_device();
	pool = thp_pool(64 * MIB);
	assert_int_equal(cu.StreamCreate(&on[1], CU_STREAM_NON_BLOCKING), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(cu.EventCreate(&event[i], 0), 0);
	/* One stream at a time is held up: the driver may have one thread for both. */
	for (int held_up = 0; held_up < 2; held_up++) {
		int open = 0;

		assert_int_equal(cu.LaunchHostFunc(on[held_up], gate, &open), 0);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(cu.EventRecord(event[i], on[i]), 0);
			assert_ok(binpool_cuda_fence(event[i], &f[i]));
		}
		assert_int_equal(cu.StreamSynchronize(on[!held_up]), 0);
		assert_ok(binpool_free_after(pool, binpool_alloc(pool, MIB), f, 2));
		assert_int_equal(binpool_poll(pool), 1);
		gate_open(&open);
		assert_int_equal(cu.StreamSynchronize(on[held_up]), 0);
		assert_int_equal(binpool_poll(pool), 0);
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(cu.EventDestroy_v2(event[i]), 0);
	assert_int_equal(cu.StreamDestroy_v2(on[1]), 0);
	assert_ok(binpool_destroy(pool));
}

/* The last test: a context that goes takes its events along; the next has its own. */
static void context_goes(void **state)
{
	struct binpool *pool;

	(void)state;
	need_device();
	pool = thp_pool(64 * MIB);
	assert_ok(binpool_free_on_cuda_stream(pool, binpool_alloc(pool, MIB), stream));
	assert_int_equal(cu.DevicePrimaryCtxReset_v2(device), 0);
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(stats_of(pool).fence_errors, 1);
	assert_int_equal(cu.DevicePrimaryCtxRelease_v2(device), 0);
	assert_int_equal(cu.DevicePrimaryCtxRetain(&context, device), 0);
	assert_int_equal(cu.CtxSetCurrent(context), 0);
	assert_int_equal(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
	assert_ok(binpool_free_on_cuda_stream(pool, binpool_alloc(pool, MIB), stream));
	assert_int_equal(cu.StreamSynchronize(stream), 0);
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(stats_of(pool).fence_errors, 1);
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_driver), cmocka_unit_test(held_up),
		cmocka_unit_test(running),	  cmocka_unit_test(captured),
		cmocka_unit_test(callers_events), cmocka_unit_test(held_up_by_one_of),
		cmocka_unit_test(context_goes),
	};

	return cmocka_run_group_tests_name("cuda", tests, find_stream, NULL);
}
