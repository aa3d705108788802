// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * OpenCL staging on a real runtime (PoCL's CPU device is enough).
 */
#include "unit.h"

#include "opencl.h"

#define DEVICE_BYTES ((size_t)3 << 20)

static cl_device_id device;

struct side {
	cl_context context;
	cl_command_queue queue;
	cl_mem mem;
};

/* A device, or the tests are skipped: no runtime is installed. */
static int find_device(void **state)
{
	(void)state;
	/* In GiB: so that PoCL's device has a limit that can be passed. */
	setenv("POCL_MEMORY_LIMIT", "1", 0);
	device = find_cl_device();
	return 0;
}

static void side_open(struct side *s)
{
	cl_int err;

	if (!device)
		skip();
	s->context = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
	assert_int_equal(err, CL_SUCCESS);
	s->queue = clCreateCommandQueue(s->context, device, 0, &err);
	assert_int_equal(err, CL_SUCCESS);
	s->mem = clCreateBuffer(s->context, CL_MEM_READ_WRITE, DEVICE_BYTES, NULL, &err);
	assert_int_equal(err, CL_SUCCESS);
}

static void side_close(struct side *s)
{
	assert_int_equal(clReleaseMemObject(s->mem), CL_SUCCESS);
	assert_int_equal(clReleaseCommandQueue(s->queue), CL_SUCCESS);
	assert_int_equal(clReleaseContext(s->context), CL_SUCCESS);
}

/* @bytes through the device and back, by two pool buffers. */
static void copy(struct binpool *pool, struct side *s, size_t bytes, unsigned char seed)
{
	unsigned char *out = binpool_alloc(pool, bytes), *in = binpool_alloc(pool, bytes);

	assert_true(out && in);
	for (size_t i = 0; i < bytes; i++)
		out[i] = (unsigned char)(i * 7 + seed);
	memset(in, 0, bytes);
	assert_int_equal(
		clEnqueueWriteBuffer(s->queue, s->mem, CL_FALSE, 0, bytes, out, 0, NULL, NULL),
		CL_SUCCESS);
	assert_int_equal(
		clEnqueueReadBuffer(s->queue, s->mem, CL_FALSE, 0, bytes, in, 0, NULL, NULL),
		CL_SUCCESS);
	assert_int_equal(clFinish(s->queue), CL_SUCCESS);
	assert_memory_equal(in, out, bytes);
	assert_ok(binpool_free(pool, out));
	assert_ok(binpool_free(pool, in));
}

static cl_uint references(cl_context context)
{
	cl_uint n = 0;

	assert_int_equal(clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, sizeof(n), &n, NULL),
			 CL_SUCCESS);
	return n;
}

static void staging(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	struct side s = {0};
	cl_uint refs;
	uint64_t id;

	(void)state;
	side_open(&s);
	refs = references(s.context);
	assert_ok(binpool_reserve(pool, 4 * MIB));
	assert_ok(binpool_cl_attach(pool, s.context, s.queue, &id));
	assert_int_equal(stats_of(pool).registrations, 1);
	assert_true(references(s.context) > refs);
	for (size_t bytes = 1; bytes <= DEVICE_BYTES; bytes *= 3)
		copy(pool, &s, bytes, (unsigned char)bytes);
	copy(pool, &s, DEVICE_BYTES, 9);
	/* Extents that came later are known too. */
	assert_true(stats_of(pool).extents > 1);
	assert_int_equal(stats_of(pool).registrations, stats_of(pool).extents);
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).registrations, 0);
	copy(pool, &s, 1000, 1);
	/* Detached, the pool goes on. */
	assert_ok(binpool_remove_registrar(pool, id));
	assert_int_equal(stats_of(pool).registrations, 0);
	assert_int_equal(references(s.context), refs);
	copy(pool, &s, 5000, 2);
	check_pool(pool);
	side_close(&s);
	assert_ok(binpool_destroy(pool));
}

static void two_contexts(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	struct side a = {0}, b = {0};
	uint64_t ia, ib;

	(void)state;
	side_open(&a);
	side_open(&b);
	assert_ok(binpool_cl_attach(pool, a.context, a.queue, &ia));
	copy(pool, &a, 100000, 1);
	assert_ok(binpool_cl_attach(pool, b.context, b.queue, &ib));
	assert_int_equal(stats_of(pool).registrations, 2 * stats_of(pool).extents);
	for (int i = 0; i < 20; i++) {
		copy(pool, &a, 300000, (unsigned char)i);
		copy(pool, &b, 300000, (unsigned char)(i + 1));
	}
	assert_ok(binpool_remove_registrar(pool, ia));
	copy(pool, &b, DEVICE_BYTES, 3);
	side_close(&a);
	/* The pool ends before the context, which it holds a reference to. */
	assert_ok(binpool_destroy(pool));
	side_close(&b);
}

static void not_in_background(void **state)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};
	struct binpool *pool = thp_pool(64 * MIB);
	struct side s = {0};
	uint64_t id;
	void *p;

	(void)state;
	side_open(&s);
	/* Mapping may write what it takes the memory to hold: never under a user's hands. */
	assert_ok(binpool_register_in_background(pool, 0));
	assert_ok(binpool_cl_attach(pool, s.context, s.queue, &id));
	p = binpool_alloc(pool, MIB);
	assert_ok(binpool_wait_registered(pool, p, 0));
	assert_ok(binpool_query(p, &info));
	assert_string_equal(info.registrars, "opencl");
	copy(pool, &s, MIB, 3);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
	side_close(&s);
}

/* Detaching waits for what the queue still does with the memory. */
static void detach_waits(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	struct side s = {0};
	unsigned char *out, *in;
	uint64_t id;

	(void)state;
	side_open(&s);
	assert_ok(binpool_cl_attach(pool, s.context, s.queue, &id));
	out = binpool_alloc(pool, DEVICE_BYTES);
	in = binpool_alloc(pool, DEVICE_BYTES);
	assert_true(out && in);
	memset(out, 0x3c, DEVICE_BYTES);
	memset(in, 0, DEVICE_BYTES);
	for (int i = 0; i < 50; i++) {
		assert_int_equal(clEnqueueWriteBuffer(s.queue, s.mem, CL_FALSE, 0, DEVICE_BYTES,
						      out, 0, NULL, NULL),
				 CL_SUCCESS);
		assert_int_equal(clEnqueueReadBuffer(s.queue, s.mem, CL_FALSE, 0, DEVICE_BYTES, in,
						     0, NULL, NULL),
				 CL_SUCCESS);
	}
	assert_ok(binpool_remove_registrar(pool, id));
	assert_memory_equal(in, out, DEVICE_BYTES);
	assert_ok(binpool_free(pool, out));
	assert_ok(binpool_free(pool, in));
	assert_ok(binpool_destroy(pool));
	side_close(&s);
}

static void bad_arguments(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	struct side s = {0};
	uint64_t id;

	(void)state;
	side_open(&s);
	assert_int_equal(binpool_cl_attach(NULL, s.context, s.queue, &id), -EINVAL);
	assert_int_equal(binpool_cl_attach(pool, NULL, s.queue, &id), -EINVAL);
	assert_int_equal(binpool_cl_attach(pool, s.context, NULL, &id), -EINVAL);
	assert_int_equal(binpool_cl_attach(pool, s.context, s.queue, NULL), -EINVAL);
	side_close(&s);
	assert_ok(binpool_destroy(pool));
}

/* An extent larger than the device takes is refused with the device's limit. */
static void too_large(void **state)
{
	struct binpool *pool = real_pool(BINPOOL_UNLIMITED);
	struct side s = {0};
	cl_ulong most = 0;
	uint64_t id;
	void *p;

	(void)state;
	side_open(&s);
	assert_int_equal(
		clGetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(most), &most, NULL),
		CL_SUCCESS);
	assert_ok(binpool_cl_attach(pool, s.context, s.queue, &id));
	printf("# CL_DEVICE_MAX_MEM_ALLOC_SIZE %llu\n", (unsigned long long)most);
	if (most > 2 * GIB) {
		side_close(&s);
		assert_ok(binpool_destroy(pool));
		printf("# the device takes more than a test should ask for\n");
		skip();
	}
	p = binpool_alloc(pool, most + MIB);
	assert_null(p);
	assert_int_equal(errno, EFBIG);
	assert_error_names("CL_DEVICE_MAX_MEM_ALLOC_SIZE");
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	side_close(&s);
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(staging),	cmocka_unit_test(two_contexts),
		cmocka_unit_test(detach_waits), cmocka_unit_test(not_in_background),
		cmocka_unit_test(too_large),	cmocka_unit_test(bad_arguments),
	};

	return cmocka_run_group_tests_name("opencl", tests, find_device, NULL);
}
