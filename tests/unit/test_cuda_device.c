// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pools of CUDA device memory. Where there is a GPU: on it. Where there is none: that
 * what is missing is said. Needs no package of CUDA's; on a machine with a GPU run this
 * program by itself.
 */
#include "unit.h"

#include <dlfcn.h>
#include <unistd.h>

#include <binpool_cuda.h>

/* What of the driver the tests themselves call. */
static struct {
	int (*init)(unsigned int flags);
	int (*device_get)(int *device, int ordinal);
	int (*ctx_create)(void **ctx, unsigned int flags, int device);
	int (*ctx_destroy)(void *ctx);
	int (*ctx_set_current)(void *ctx);
	int (*mem_info)(size_t *unused, size_t *total);
	int (*memset_d8)(unsigned long long ptr, unsigned char byte, size_t n);
	int (*memcpy_d_to_h)(void *to, unsigned long long from, size_t n);
} cu;

static bool gpu;

static bool find_driver(void)
{
	const struct {
		const char *name;
		void **entry;
	} entries[] = {
		{"cuInit", (void **)&cu.init},
		{"cuDeviceGet", (void **)&cu.device_get},
		{"cuCtxCreate_v2", (void **)&cu.ctx_create},
		{"cuCtxDestroy_v2", (void **)&cu.ctx_destroy},
		{"cuCtxSetCurrent", (void **)&cu.ctx_set_current},
		{"cuMemGetInfo_v2", (void **)&cu.mem_info},
		{"cuMemsetD8_v2", (void **)&cu.memset_d8},
		{"cuMemcpyDtoH_v2", (void **)&cu.memcpy_d_to_h},
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int device;

	if (!library)
		return false;
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
		*entries[i].entry = dlsym(library, entries[i].name);
		if (!*entries[i].entry)
			return false;
	}
	return !cu.init(0) && !cu.device_get(&device, 0);
}

static int look_for_gpu(void **state)
{
	(void)state;
	gpu = find_driver();
	printf(gpu ? "# a GPU: all is tested\n" : "# no GPU: its absence is tested\n");
	return 0;
}

static void *context_open(void)
{
	void *ctx = NULL;
	int device;

	if (!gpu)
		skip();
	assert_int_equal(cu.device_get(&device, 0), 0);
	assert_int_equal(cu.ctx_create(&ctx, 0, device), 0);
	return ctx;
}

static struct binpool *make_pool(uint64_t max_bytes)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops)};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	assert_ok(binpool_cuda_device_allocator(&ops));
	o.name = "gpu";
	o.kind = BINPOOL_KIND_HANDLE;
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	o.max_bytes = max_bytes;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

/* No driver, no device or no context: an errno and what is missing. */
static void what_is_missing(void **state)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops)};

	(void)state;
	assert_int_equal(binpool_cuda_device_allocator(NULL), -EINVAL);
	ops.size = 8;
	assert_int_equal(binpool_cuda_device_allocator(&ops), -EINVAL);
	ops.size = sizeof(ops);
	assert_int_equal(binpool_cuda_device_allocator(&ops), -ENODEV);
	if (gpu)
		assert_error_names("no context is current");
	else
		assert_error_names("CUDA");
	if (!dlopen("libcuda.so.1", RTLD_NOW))
		assert_error_names("no CUDA driver here");
	assert_null(ops.alloc_handle);
}

static void holds(const struct binpool_buf *buf, unsigned char byte)
{
	unsigned char *host = malloc(buf->bytes);

	assert_int_equal(cu.memcpy_d_to_h(host, buf->handle, buf->bytes), 0);
	for (uint64_t i = 0; i < buf->bytes; i++)
		if (host[i] != byte)
			fail_msg("byte %llu is %d, not %d", (unsigned long long)i, host[i], byte);
	free(host);
}

/* Memory that the device uses; a freed one comes back; parts are addresses in it. */
static void device_memory(void **state)
{
	struct binpool_buf a = {.size = sizeof(a)}, b = {.size = sizeof(b)},
			   part = {.size = sizeof(part)};
	void *ctx = context_open();
	struct binpool *pool;
	uint64_t handle;

	(void)state;
	pool = make_pool(0);
	assert_ok(binpool_handle_alloc(pool, 5000000, &a));
	assert_ok(binpool_handle_alloc(pool, 5000000, &b));
	assert_int_equal(cu.memset_d8(a.handle, 1, a.capacity), 0);
	assert_int_equal(cu.memset_d8(b.handle, 2, b.capacity), 0);
	holds(&a, 1);
	holds(&b, 2);
	handle = a.handle;
	assert_ok(binpool_handle_free(pool, &a));
	assert_ok(binpool_handle_alloc(pool, 4990000, &a));
	assert_int_equal(a.handle, handle);
	assert_int_equal(stats_of(pool).reuses, 1);

	assert_ok(binpool_buffer_sub(pool, &b, 1000, 500, &part));
	assert_int_equal(part.handle, b.handle + 1000);
	assert_ok(binpool_handle_free(pool, &b));
	assert_int_equal(cu.memset_d8(part.handle, 3, part.bytes), 0);
	holds(&part, 3);
	assert_ok(binpool_buffer_put(pool, &part));
	assert_ok(binpool_handle_free(pool, &a));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(cu.ctx_destroy(ctx), 0);
}

/* When the device has no more, what is held goes back to it first. */
static void held_goes_first(void **state)
{
	struct binpool_buf buf[64] = {{0}}, more = {.size = sizeof(more)};
	void *ctx = context_open();
	size_t unused = 0, total = 0;
	struct binpool *pool;
	uint64_t piece;
	int n = 0, err;

	(void)state;
	pool = make_pool(0);
	assert_int_equal(cu.mem_info(&unused, &total), 0);
	piece = unused / 16;
	do {
		buf[n].size = sizeof(buf[n]);
		err = binpool_handle_alloc(pool, piece, &buf[n]);
		n += !err;
	} while (!err && n < 64);
	assert_int_equal(err, -ENOMEM);
	assert_error_names("cuMemAlloc");
	assert_true(n >= 8);
	for (int i = 0; i < n; i++)
		assert_ok(binpool_handle_free(pool, &buf[i]));
	assert_int_equal(binpool_held_blocks(pool), n);
	/* Another class: no held one serves it. */
	assert_ok(binpool_handle_alloc(pool, 3 * piece, &more));
	assert_true(stats_of(pool).frees_held > 0);
	assert_ok(binpool_handle_free(pool, &more));
	assert_true(binpool_trim(pool, 0, 0) > 0);
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(cu.ctx_destroy(ctx), 0);
}

/* From a thread to which no context is current. */
static void *uses_pool(void *arg)
{
	struct binpool_buf buf = {.size = sizeof(buf)};

	if (binpool_handle_alloc(arg, 3000000, &buf) || binpool_handle_free(arg, &buf) ||
	    binpool_trim(arg, 0, 0) <= 0)
		return (void *)binpool_last_error();
	return NULL;
}

static void any_thread(void **state)
{
	void *ctx = context_open(), *wrong;
	struct binpool *pool;
	pthread_t thread;

	(void)state;
	pool = make_pool(0);
	assert_int_equal(pthread_create(&thread, NULL, uses_pool, pool), 0);
	assert_int_equal(pthread_join(thread, &wrong), 0);
	assert_null(wrong);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(cu.ctx_destroy(ctx), 0);
}

/* With its context the memory is gone: no error where it is freed, one where more is wanted. */
static void context_gone(void **state)
{
	struct binpool_buf buf = {.size = sizeof(buf)}, more = {.size = sizeof(more)};
	void *ctx = context_open();
	struct binpool *pool;

	(void)state;
	pool = make_pool(0);
	assert_ok(binpool_handle_alloc(pool, 3000000, &buf));
	assert_int_equal(cu.ctx_destroy(ctx), 0);
	assert_int_equal(binpool_handle_alloc(pool, 9000000, &more), -ENODEV);
	assert_error_names("destroyed");
	assert_ok(binpool_handle_free(pool, &buf));
	assert_ok(binpool_destroy(pool));
}

static struct binpool *late_pool;
static struct binpool_buf late_buf = {.size = sizeof(late_buf)};

static void destroy_late(void)
{
	if (binpool_handle_free(late_pool, &late_buf) || binpool_destroy(late_pool))
		_exit(2);
	printf("destroyed\n");
	fflush(stdout);
}

/* Its exit handler runs when the driver's have: it was there first. */
static int ends_late(void)
{
	void *ctx;
	int device;

	if (atexit(destroy_late) || !find_driver() || cu.device_get(&device, 0) ||
	    cu.ctx_create(&ctx, 0, device))
		return 1;
	late_pool = make_pool(0);
	return binpool_handle_alloc(late_pool, 5000, &late_buf) ? 1 : 0;
}

/* The pool is destroyed when the driver is gone: no crash and no word. */
static void driver_gone_first(void **state)
{
	char said[4096];
	int status;

	(void)state;
	if (!gpu)
		skip();
	status = run_self("--ends-late", said, sizeof(said));
	assert_string_equal(said, "destroyed\n");
	assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_missing), cmocka_unit_test(device_memory),
		cmocka_unit_test(held_goes_first), cmocka_unit_test(any_thread),
		cmocka_unit_test(context_gone),	   cmocka_unit_test(driver_gone_first),
	};

	if (argc > 1 && !strcmp(argv[1], "--ends-late"))
		return ends_late();
	return cmocka_run_group_tests_name("cuda_device", tests, look_for_gpu, NULL);
}
