// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pools of OpenCL device memory on a real runtime (PoCL's CPU device is enough), and
 * pools that outlive the runtime at the end of a process.
 */
#include "unit.h"

#include <unistd.h>

#include "opencl.h"

static cl_device_id device;

struct side {
	cl_context context;
	cl_command_queue queue;
};

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
}

static void side_close(struct side *s)
{
	clReleaseCommandQueue(s->queue);
	clReleaseContext(s->context);
}

static int make_pool(cl_context context, uint64_t max_bytes, struct binpool **pool)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops)};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	int err = binpool_cl_device_allocator(context, device, 0, &ops);

	o.name = "device";
	o.kind = BINPOOL_KIND_HANDLE;
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	o.max_bytes = max_bytes;
	return err ? err : binpool_create(pool, &o);
}

static cl_mem mem_of(const struct binpool_buf *buf)
{
	return (cl_mem)(uintptr_t)buf->handle;
}

static void fill(const struct side *s, const struct binpool_buf *buf, unsigned char byte)
{
	assert_int_equal(
		clEnqueueFillBuffer(s->queue, mem_of(buf), &byte, 1, 0, buf->bytes, 0, NULL, NULL),
		CL_SUCCESS);
	assert_int_equal(clFinish(s->queue), CL_SUCCESS);
}

static void holds(const struct side *s, const struct binpool_buf *buf, unsigned char byte)
{
	unsigned char *host = malloc(buf->bytes);

	assert_int_equal(clEnqueueReadBuffer(s->queue, mem_of(buf), CL_TRUE, 0, buf->bytes, host, 0,
					     NULL, NULL),
			 CL_SUCCESS);
	for (uint64_t i = 0; i < buf->bytes; i++)
		assert_int_equal(host[i], byte);
	free(host);
}

/* Buffers that a device uses; a freed one comes back as the same cl_mem. */
static void device_memory(void **state)
{
	struct binpool_buf a = {.size = sizeof(a)}, b = {.size = sizeof(b)};
	struct binpool *pool;
	struct side s = {0};
	size_t size = 0;
	uint64_t handle;

	(void)state;
	side_open(&s);
	assert_ok(make_pool(s.context, 0, &pool));
	assert_ok(binpool_handle_alloc(pool, 300000, &a));
	assert_ok(binpool_handle_alloc(pool, 300000, &b));
	assert_int_equal(clGetMemObjectInfo(mem_of(&a), CL_MEM_SIZE, sizeof(size), &size, NULL),
			 CL_SUCCESS);
	assert_int_equal(size, a.capacity);
	fill(&s, &a, 1);
	fill(&s, &b, 2);
	holds(&s, &a, 1);
	holds(&s, &b, 2);
	handle = a.handle;
	assert_ok(binpool_handle_free(pool, &a));
	assert_ok(binpool_handle_alloc(pool, 299000, &a));
	assert_int_equal(a.handle, handle);
	assert_int_equal(stats_of(pool).reuses, 1);
	fill(&s, &a, 3);
	holds(&s, &a, 3);
	holds(&s, &b, 2);
	assert_ok(binpool_handle_free(pool, &a));
	assert_ok(binpool_handle_free(pool, &b));
	/* The context is the pool's as well. */
	side_close(&s);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* Parts are sub-buffers, at offsets that the device allows. */
static void parts(void **state)
{
	struct binpool_buf buf = {.size = sizeof(buf)}, part = {.size = sizeof(part)};
	struct binpool *pool;
	struct side s = {0};
	cl_uint bits = 0;

	(void)state;
	side_open(&s);
	assert_int_equal(
		clGetDeviceInfo(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof(bits), &bits, NULL),
		CL_SUCCESS);
	assert_ok(make_pool(s.context, 0, &pool));
	assert_ok(binpool_handle_alloc(pool, 100000, &buf));
	fill(&s, &buf, 7);
	assert_ok(binpool_buffer_sub(pool, &buf, bits / 8, 1000, &part));
	fill(&s, &part, 8);
	holds(&s, &part, 8);
	assert_int_equal(binpool_buffer_sub(pool, &buf, 1, 1000, &part), -EINVAL);
	assert_error_names("CL_MISALIGNED_SUB_BUFFER_OFFSET");
	assert_ok(binpool_handle_free(pool, &buf));
	holds(&s, &part, 8);
	assert_int_equal(stats_of(pool).active_blocks, 1);
	assert_ok(binpool_buffer_put(pool, &part));
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_ok(binpool_destroy(pool));
	side_close(&s);
}

static void too_large(void **state)
{
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool *pool;
	struct side s = {0};
	cl_ulong most = 0, all = 0;
	int err;

	(void)state;
	side_open(&s);
	assert_int_equal(
		clGetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(most), &most, NULL),
		CL_SUCCESS);
	assert_int_equal(
		clGetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(all), &all, NULL),
		CL_SUCCESS);
	assert_ok(make_pool(s.context, 0, &pool));
	/* Some runtimes give more than they say, and none gives more than there is. */
	err = binpool_handle_alloc(pool, 2 * (most > all ? most : all), &buf);
	if (err == -ENOMEM)
		assert_error_names("CL_MEM_OBJECT_ALLOCATION_FAILURE");
	else
		assert_error_names("CL_INVALID_BUFFER_SIZE");
	assert_true(err == -ENOMEM || err == -EFBIG);
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_destroy(pool));
	side_close(&s);
}

static void bad_arguments(void **state)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops)};
	union {
		struct binpool_allocator_ops ops;
		unsigned char bytes[8192];
	} wild;
	struct side s = {0};

	(void)state;
	side_open(&s);
	assert_int_equal(binpool_cl_device_allocator(NULL, device, 0, &ops), -EINVAL);
	assert_int_equal(binpool_cl_device_allocator(s.context, NULL, 0, &ops), -EINVAL);
	assert_int_equal(binpool_cl_device_allocator(s.context, device, 0, NULL), -EINVAL);
	assert_int_equal(binpool_cl_device_allocator(s.context, device, CL_MEM_USE_HOST_PTR, &ops),
			 -EINVAL);
	ops.size = 8;
	assert_int_equal(binpool_cl_device_allocator(s.context, device, 0, &ops), -EINVAL);
	/* What was never set; there would be room here. */
	memset(&wild, 0, sizeof(wild));
	wild.ops.size = 4097;
	assert_int_equal(binpool_cl_device_allocator(s.context, device, 0, &wild.ops), -E2BIG);
	assert_null(wild.ops.release);
	ops.size = sizeof(ops);
	assert_ok(binpool_cl_device_allocator(s.context, device, 0, &ops));
	/* Not used after all. */
	ops.release(ops.ctx);
	side_close(&s);
}

/* ---- The end of a process ---------------------------------------------------- */

static bool late; /* OpenCL may be gone */

cl_int __real_clReleaseMemObject(cl_mem mem);
cl_int __wrap_clReleaseMemObject(cl_mem mem);
cl_int __real_clReleaseContext(cl_context context);
cl_int __wrap_clReleaseContext(cl_context context);

cl_int __wrap_clReleaseMemObject(cl_mem mem)
{
	if (late)
		printf("clReleaseMemObject is called\n");
	return __real_clReleaseMemObject(mem);
}

cl_int __wrap_clReleaseContext(cl_context context)
{
	if (late)
		printf("clReleaseContext is called\n");
	return __real_clReleaseContext(context);
}

static struct binpool *late_pools[2];
static struct binpool_buf late_buf = {.size = sizeof(late_buf)};
static void *late_ptr;

static void destroy_late(void)
{
	late = true;
	if (late_ptr && binpool_free(late_pools[0], late_ptr))
		_exit(2);
	if (binpool_handle_free(late_pools[1], &late_buf) || binpool_destroy(late_pools[0]) ||
	    binpool_destroy(late_pools[1]))
		_exit(3);
	printf("destroyed\n");
	fflush(stdout);
}

/* Its exit handler runs when OpenCL's have: it was there first. */
static int ends_late(void)
{
	struct side s;
	uint64_t id;

	if (atexit(destroy_late))
		return 1;
	setenv("POCL_MEMORY_LIMIT", "1", 0);
	device = find_cl_device();
	if (!device)
		return 1;
	s.context = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
	s.queue = clCreateCommandQueue(s.context, device, 0, NULL);
	late_pools[0] = thp_pool(64 * MIB);
	if (binpool_cl_attach(late_pools[0], s.context, s.queue, &id) ||
	    make_pool(s.context, 0, &late_pools[1]) ||
	    binpool_handle_alloc(late_pools[1], 5000, &late_buf))
		return 1;
	late_ptr = binpool_alloc(late_pools[0], 5000);
	return 0;
}

/* The pools are destroyed when the runtime is gone: no crash and no word. */
static void runtime_gone_first(void **state)
{
	char said[4096];
	int status;

	(void)state;
	if (!device)
		skip();
	status = run_self("--ends-late", said, sizeof(said));
	assert_string_equal(said, "destroyed\n");
	assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(device_memory),      cmocka_unit_test(parts),
		cmocka_unit_test(too_large),	      cmocka_unit_test(bad_arguments),
		cmocka_unit_test(runtime_gone_first),
	};

	if (argc > 1 && !strcmp(argv[1], "--ends-late"))
		return ends_late();
	return cmocka_run_group_tests_name("opencl_device", tests, find_device, NULL);
}
