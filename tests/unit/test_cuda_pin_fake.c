// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pools registered with CUDA, on a driver that fails as it is told. What a real one does is
 * test_cuda_pin's.
 */
#include "unit.h"

#include <dlfcn.h>
#include <unistd.h>

#include <binpool_cuda.h>

#include "fake_cuda.h"
#include "faulty.h"

#define PORTABLE_AND_MAPPED 3u
#define MAPPED_AT	    0x100000000000ULL

static struct fake_cuda *cuda;
static unsigned long (*registrations)(void);
static int (*host_register)(void *ptr, size_t bytes, unsigned int flags);
static int (*host_unregister)(void *ptr);

/* Contexts of a test; none is made twice. */
static struct CUctx_st ctx[2];
static unsigned long long ids = 100;

static int find_fake(void **state)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	struct fake_cuda *(*get)(void);

	(void)state;
	if (!library)
		return -1;
	*(void **)&get = dlsym(library, "fake_cuda");
	*(void **)&registrations = dlsym(library, "fake_cuda_registrations");
	*(void **)&host_register = dlsym(library, "cuMemHostRegister_v2");
	*(void **)&host_unregister = dlsym(library, "cuMemHostUnregister");
	if (!get || !registrations || !host_register || !host_unregister)
		return -1;
	cuda = get();
	return 0;
}

static int setup(void **state)
{
	(void)state;
	ctx[0].id = ++ids;
	ctx[1].id = ++ids;
	cuda->current = &ctx[0];
	cuda->register_fail_at = cuda->register_calls = cuda->largest = 0;
	cuda->unregister_error = cuda->id_error = 0;
	cuda->unranged = false;
	return 0;
}

/* Nothing is left over, and no call was a wrong one. */
static int teardown(void **state)
{
	(void)state;
	assert_int_equal(registrations(), 0);
	assert_int_equal(cuda->wrong, 0);
	assert_int_equal(cuda->mode, 0);
	return 0;
}

static struct binpool_ptr_info info_of(const void *ptr)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};

	assert_ok(binpool_query(ptr, &info));
	return info;
}

/* A pool of @n extents with a buffer each. */
static struct binpool *pool_of(int n, char **p)
{
	struct binpool *pool = thp_pool(256 * MIB);
	struct faulty_registrar keeps_apart = {.attached = 0};
	uint64_t id;

	/* What is registered does not grow in place. */
	assert_ok(faulty_registrar_add(pool, &keeps_apart, &id));
	for (int i = 0; i < n; i++) {
		p[i] = binpool_alloc(pool, 4 * MIB);
		assert_non_null(p[i]);
	}
	assert_ok(binpool_remove_registrar(pool, id));
	assert_int_equal(stats_of(pool).extents, n);
	return pool;
}

static void free_all(struct binpool *pool, int n, char **p)
{
	for (int i = 0; i < n; i++)
		assert_ok(binpool_free(pool, p[i]));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* ---- What works ------------------------------------------------------------- */

/* Extents, not buffers: those there are, and those that come. */
static void follows_extents(void **state)
{
	struct binpool *pool;
	unsigned long long device;
	uint64_t id, bytes;
	char *p[3];

	(void)state;
	pool = pool_of(2, p);
	assert_int_equal(stats_of(pool).registered_bytes, 0);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	assert_int_equal(registrations(), 2);
	assert_int_equal(cuda->register_flags, PORTABLE_AND_MAPPED);
	assert_string_equal(info_of(p[1] + 5).registrars, "cuda");
	/* From no context at all, too. */
	cuda->current = NULL;
	p[2] = binpool_alloc(pool, 16 * MIB);
	assert_non_null(p[2]);
	assert_int_equal(registrations(), 3);
	assert_int_equal(stats_of(pool).registered_bytes, stats_of(pool).reserved_bytes);
	assert_int_equal(stats_of(pool).registrations, 3);
	for (int i = 0; i < 3; i++) {
		struct binpool_ptr_info info = info_of(p[i]);

		assert_ok(binpool_cuda_device_ptr(pool, p[i] + 5, &device, &bytes));
		assert_int_equal(device, (uintptr_t)p[i] + 5 + MAPPED_AT);
		assert_int_equal(bytes,
				 (uintptr_t)info.extent + info.extent_bytes - (uintptr_t)p[i] - 5);
	}
	assert_ok(binpool_cuda_device_ptr(pool, p[0], &device, NULL));
	assert_int_equal(stats_of(pool).registrations_lost, 0);
	assert_int_equal(binpool_cuda_device_ptr(pool, &device, &device, NULL), -ENOENT);
	assert_ok(binpool_free(pool, p[2]));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(registrations(), 2);
	assert_ok(binpool_remove_registrar(pool, id));
	assert_int_equal(registrations(), 0);
	assert_int_equal(stats_of(pool).registered_bytes, 0);
	assert_string_equal(info_of(p[1]).registrars, "");
	assert_int_equal(binpool_cuda_device_ptr(pool, p[0], &device, NULL), -ENOENT);
	assert_error_names("not attached");
	free_all(pool, 2, p);
}

/* All contexts know of it, and each device may have it at other addresses. */
static void several_devices(void **state)
{
	struct binpool *pool;
	unsigned long long device;
	uint64_t id;
	char *p[1];

	(void)state;
	ctx[1].device = 1;
	pool = pool_of(1, p);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	assert_ok(binpool_cuda_device_ptr(pool, p[0], &device, NULL));
	assert_int_equal(device, (uintptr_t)p[0] + MAPPED_AT);
	cuda->current = &ctx[1];
	assert_ok(binpool_cuda_device_ptr(pool, p[0], &device, NULL));
	assert_int_equal(device, (uintptr_t)p[0] + 2 * MAPPED_AT);
	assert_int_equal(cuda->register_flags & 1, 1);
	assert_int_equal(registrations(), 1);
	/* Without one of the thread's own: the one that registered it. */
	cuda->current = NULL;
	assert_ok(binpool_cuda_device_ptr(pool, p[0], &device, NULL));
	assert_int_equal(device, (uintptr_t)p[0] + MAPPED_AT);
	free_all(pool, 1, p);
	ctx[1].device = 0;
}

static void bad_arguments(void **state)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops)};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool = thp_pool(64 * MIB), *handles;
	unsigned long long device;
	uint64_t id = 77;

	(void)state;
	assert_int_equal(binpool_cuda_attach(NULL, 0, &id), -EINVAL);
	assert_int_equal(binpool_cuda_attach(pool, 0, NULL), -EINVAL);
	assert_int_equal(binpool_cuda_attach(pool, 1u << 31, &id), -EINVAL);
	cuda->current = NULL;
	assert_int_equal(binpool_cuda_attach(pool, 0, &id), -ENODEV);
	assert_error_names("no context is current");
	cuda->current = &ctx[0];
	assert_int_equal(id, 77);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	assert_int_equal(binpool_cuda_attach(pool, 0, &id), -EBUSY);
	assert_error_names("attached already");
	assert_int_equal(binpool_cuda_device_ptr(NULL, pool, &device, NULL), -EINVAL);
	assert_int_equal(binpool_cuda_device_ptr(pool, NULL, &device, NULL), -EINVAL);
	assert_int_equal(binpool_cuda_device_ptr(pool, pool, NULL, NULL), -EINVAL);
	assert_int_equal(binpool_wait_registered(NULL, NULL, 0), -EINVAL);
	assert_int_equal(binpool_wait_registered(pool, &id, 0), -ENOENT);
	assert_ok(binpool_wait_registered(pool, NULL, 0));
	assert_ok(binpool_destroy(pool));
	assert_ok(binpool_cuda_device_allocator(&ops));
	o.kind = BINPOOL_KIND_HANDLE;
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	assert_ok(binpool_create(&handles, &o));
	assert_int_equal(binpool_cuda_attach(handles, 0, &id), -EINVAL);
	assert_ok(binpool_destroy(handles));
}

/* ---- Refusals ----------------------------------------------------------------- */

/* Half-way: what was registered before is not any more. */
static void refused_half_way(void **state)
{
	struct binpool *pool;
	unsigned long long device;
	uint64_t id;
	char *p[3];

	(void)state;
	pool = pool_of(3, p);
	for (int fail = 1; fail <= 3; fail++) {
		cuda->register_calls = 0;
		cuda->register_fail_at = (unsigned long)fail;
		cuda->register_error = 2;
		assert_int_equal(binpool_cuda_attach(pool, 0, &id), -ENOMEM);
		assert_error_names("cuMemHostRegister");
		assert_int_equal(registrations(), 0);
		assert_int_equal(stats_of(pool).registrations, 0);
	}
	/* Asked to, the pool goes on without it. */
	cuda->register_calls = 0;
	cuda->register_fail_at = 2;
	assert_ok(binpool_cuda_attach(pool, BINPOOL_REGISTRAR_OPTIONAL, &id));
	assert_int_equal(registrations(), 2);
	assert_int_equal(stats_of(pool).registrations_refused, 1);
	assert_int_equal(stats_of(pool).registered_bytes, 8 * MIB);
	assert_string_equal(info_of(p[1]).registrars, "");
	/* And it is tried again by who needs it. */
	cuda->register_fail_at = cuda->register_calls + 1;
	assert_int_equal(binpool_cuda_device_ptr(pool, p[1], &device, NULL), -ENOMEM);
	assert_error_names("cuMemHostRegister");
	assert_ok(binpool_cuda_device_ptr(pool, p[1], &device, NULL));
	assert_int_equal(stats_of(pool).registered_bytes, 12 * MIB);
	assert_string_equal(info_of(p[1]).registrars, "cuda");
	/* An extent more: the request fails, or goes on. */
	cuda->register_fail_at = cuda->register_calls + 1;
	assert_ok(binpool_free(pool, binpool_alloc(pool, 8 * MIB)));
	assert_int_equal(stats_of(pool).registrations_refused, 3);
	assert_ok(binpool_remove_registrar(pool, id));
	assert_ok(binpool_free_held(pool));
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	cuda->register_fail_at = cuda->register_calls + 1;
	assert_null(binpool_alloc(pool, 8 * MIB));
	assert_int_equal(errno, ENOMEM);
	assert_error_names("cuMemHostRegister");
	free_all(pool, 3, p);
}

/* Where the driver does not take so much at once: a GiB at a time, all or nothing. */
static void in_pieces(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct faulty_provider provider = {.in_place = false};
	const uint64_t bytes = 2 * GIB + 512 * MIB;
	unsigned long long device;
	struct binpool *pool;
	uint64_t id, left;
	char *p;

	(void)state;
	pool = faulty_pool(&o, &provider);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	cuda->largest = 2 * GIB;
	for (unsigned long fail = 2; fail <= 4; fail++) {
		cuda->register_calls = 0;
		cuda->register_fail_at = fail;
		cuda->register_error = 999;
		assert_null(binpool_alloc(pool, bytes));
		assert_int_equal(errno, EIO);
		assert_int_equal(cuda->register_calls, fail);
		assert_int_equal(registrations(), 0);
	}
	cuda->register_fail_at = 0;
	p = binpool_alloc(pool, bytes);
	assert_non_null(p);
	assert_int_equal(registrations(), 3);
	assert_ok(binpool_cuda_device_ptr(pool, p + 100, &device, &left));
	assert_int_equal(left, GIB - 100);
	assert_ok(binpool_cuda_device_ptr(pool, p + GIB, &device, &left));
	assert_int_equal(left, GIB);
	assert_ok(binpool_cuda_device_ptr(pool, p + bytes - 1, &device, &left));
	assert_int_equal(device, (uintptr_t)p + bytes - 1 + MAPPED_AT);
	assert_int_equal(left, 1);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(registrations(), 0);
	/* Not where pieces would not do either. */
	cuda->register_calls = 0;
	cuda->register_fail_at = 1;
	cuda->register_error = 801;
	assert_null(binpool_alloc(pool, bytes));
	assert_int_equal(errno, EOPNOTSUPP);
	assert_int_equal(cuda->register_calls, 1);
	assert_ok(binpool_destroy(pool));
}

/* Pieces that cannot be undone, neither half-way nor later: their memory is kept. */
static void not_undone(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct faulty_provider provider = {.in_place = false};
	const uint64_t bytes = 3 * GIB;
	struct binpool *pool;
	uint64_t id;

	(void)state;
	pool = faulty_pool(&o, &provider);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	cuda->largest = 2 * GIB;
	/* All at once is refused, two pieces are there, the third is refused, one goes. */
	cuda->register_calls = 0;
	cuda->register_fail_at = 4;
	cuda->register_error = 2;
	cuda->unregister_error = 999;
	cuda->unregister_spares = 1;
	assert_null(binpool_alloc(pool, bytes));
	assert_int_equal(errno, ENOMEM);
	assert_error_names("cuMemHostRegister");
	assert_int_equal(registrations(), 1);
	assert_int_equal(stats_of(pool).stuck_bytes, bytes);
	assert_int_equal(provider.extents, 1);
	check_pool(pool);
	/* And one that was registered, and is given back. */
	assert_ok(binpool_free(pool, binpool_alloc(pool, bytes)));
	assert_int_equal(registrations(), 4);
	/* The first can go now. */
	cuda->unregister_spares = 2;
	assert_ok(binpool_free_held(pool));
	assert_int_equal(registrations(), 2);
	assert_int_equal(stats_of(pool).stuck_bytes, bytes);
	assert_int_equal(provider.extents, 1);
	/* An error that does not say that their context is gone is none that says so. */
	cuda->id_error = 719;
	assert_int_equal(binpool_destroy(pool), -EBUSY);
	assert_error_names("let go");
	cuda->id_error = 0;
	/* With their context they are gone, whatever the driver says. */
	ctx[0].id = ++ids;
	assert_ok(binpool_destroy(pool));
	assert_int_equal(provider.extents, 0);
}

/* ---- Somebody else's -------------------------------------------------------------- */

/* As a program that registers a pool's memory itself. */
static void register_foreign(void *ptr, uint64_t bytes)
{
	cuda->mode = 2;
	assert_int_equal(host_register(ptr, bytes, 0), 0);
	cuda->mode = 0;
}

static void unregister_foreign(void *ptr)
{
	cuda->mode = 2;
	assert_int_equal(host_unregister(ptr), 0);
	cuda->mode = 0;
}

/* Taken as it is, and left as it was. */
static void foreign(void **state)
{
	struct binpool_ptr_info info;
	struct binpool *pool;
	unsigned long long device;
	uint64_t id;
	char *p[2];

	(void)state;
	pool = pool_of(2, p);
	info = info_of(p[0]);
	for (int unranged = 0; unranged < 2; unranged++) {
		cuda->unranged = unranged;
		register_foreign(info.extent, info.extent_bytes);
		assert_ok(binpool_cuda_attach(pool, 0, &id));
		assert_int_equal(registrations(), 2);
		assert_string_equal(info_of(p[0]).registrars, "cuda");
		assert_ok(binpool_cuda_device_ptr(pool, p[0], &device, NULL));
		assert_ok(binpool_remove_registrar(pool, id));
		assert_int_equal(registrations(), 1);
		/* Once it is undone by whoever it is, the pool's own takes its place. */
		assert_ok(binpool_cuda_attach(pool, 0, &id));
		unregister_foreign(info.extent);
		assert_string_equal(info_of(p[0]).registrars, "");
		assert_ok(binpool_wait_registered(pool, p[0], 0));
		assert_string_equal(info_of(p[0]).registrars, "cuda");
		assert_int_equal(registrations(), 2);
		assert_int_equal(stats_of(pool).registrations_lost, unranged + 1);
		assert_ok(binpool_remove_registrar(pool, id));
		assert_int_equal(registrations(), 0);
	}
	free_all(pool, 2, p);
}

/* A part of it: that would leave buffers that are half one's and half the other's. */
static void foreign_in_part(void **state)
{
	const uint64_t at[] = {0, MIB, 3 * MIB};
	struct binpool *pool;
	char *base;
	uint64_t id;
	char *p[1];

	(void)state;
	pool = pool_of(1, p);
	base = info_of(p[0]).extent;
	for (int unranged = 0; unranged < 2; unranged++)
		for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
			cuda->unranged = unranged;
			register_foreign(base + at[i], MIB);
			assert_int_equal(binpool_cuda_attach(pool, 0, &id), -EBUSY);
			assert_error_names("somebody else");
			assert_int_equal(registrations(), 1);
			unregister_foreign(base + at[i]);
		}
	/* All of it, but in two. */
	cuda->unranged = false;
	register_foreign(base, 2 * MIB);
	register_foreign(base + 2 * MIB, 2 * MIB);
	assert_int_equal(binpool_cuda_attach(pool, 0, &id), -EBUSY);
	unregister_foreign(base);
	unregister_foreign(base + 2 * MIB);
	free_all(pool, 1, p);
}

/* Of pools over one another the outer finds its memory registered. */
static void pool_over_pool(void **state)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops)};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *inner = thp_pool(64 * MIB), *outer;
	uint64_t inner_id, outer_id;
	void *p;

	(void)state;
	assert_ok(binpool_cuda_attach(inner, 0, &inner_id));
	assert_ok(binpool_pool_allocator(inner, &ops));
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	assert_ok(binpool_create(&outer, &o));
	assert_ok(binpool_cuda_attach(outer, 0, &outer_id));
	p = binpool_alloc(outer, MIB);
	assert_non_null(p);
	assert_int_equal(registrations(), 1);
	assert_ok(binpool_free(outer, p));
	assert_ok(binpool_free_held(outer));
	assert_int_equal(registrations(), 1);
	assert_ok(binpool_destroy(outer));
	assert_ok(binpool_destroy(inner));
}

/* ---- Contexts that go -------------------------------------------------------------- */

/* No error where buffers are freed and the pool ends; nothing is called in what is gone. */
static void context_goes_first(void **state)
{
	struct binpool *pool;
	unsigned long unregistered = cuda->unregistered;
	uint64_t id;
	char *p[3];

	(void)state;
	pool = pool_of(3, p);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	ctx[0].id = 0;
	cuda->current = NULL;
	assert_string_equal(info_of(p[0]).registrars, "");
	assert_int_equal(stats_of(pool).registrations_lost, 1);
	assert_int_equal(stats_of(pool).registered_bytes, 8 * MIB);
	free_all(pool, 3, p);
	assert_int_equal(cuda->unregistered, unregistered);
}

/* Registered again where it is needed next, in the context that there is by then. */
static void registered_again(void **state)
{
	struct binpool *pool;
	unsigned long long device;
	uint64_t id;
	char *p[4];

	(void)state;
	pool = pool_of(3, p);
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	/* Another at the same address is another. */
	ctx[0].id = ++ids;
	assert_int_equal(registrations(), 0);
	assert_ok(binpool_cuda_device_ptr(pool, p[1], &device, NULL));
	assert_int_equal(registrations(), 1);
	assert_int_equal(stats_of(pool).registrations_lost, 1);
	assert_ok(binpool_wait_registered(pool, NULL, 0));
	assert_int_equal(registrations(), 3);
	assert_int_equal(stats_of(pool).registrations_lost, 3);
	assert_int_equal(stats_of(pool).registered_bytes, 12 * MIB);

	/* By the pool, when it grows. */
	ctx[0].id = 0;
	cuda->current = &ctx[1];
	p[3] = binpool_alloc(pool, 4 * MIB);
	assert_non_null(p[3]);
	assert_int_equal(registrations(), 4);
	assert_int_equal(stats_of(pool).registrations_lost, 6);

	/* Without a context: what is there is used as it is, more of it is not to be had. */
	ctx[1].id = 0;
	cuda->current = NULL;
	assert_null(binpool_alloc(pool, 8 * MIB));
	assert_int_equal(errno, ENODEV);
	assert_error_names("destroyed");
	assert_int_equal(binpool_cuda_device_ptr(pool, p[0], &device, NULL), -ENODEV);
	assert_int_equal(binpool_wait_registered(pool, p[0], 0), -ENODEV);
	assert_int_equal(stats_of(pool).registrations_lost, 10);
	assert_int_equal(stats_of(pool).registered_bytes, 0);
	assert_ok(binpool_free(pool, p[3]));
	p[3] = binpool_alloc(pool, 4 * MIB);
	assert_non_null(p[3]);

	ctx[0].id = ++ids;
	cuda->current = &ctx[0];
	assert_ok(binpool_wait_registered(pool, NULL, 0));
	assert_int_equal(registrations(), 4);
	free_all(pool, 4, p);
}

/* ---- The end of the process ----------------------------------------------------------- */

static struct binpool *late_pool;
static char *late_buffer;

/* When the driver's own exit handlers have run. */
static void destroy_late(void)
{
	unsigned long calls = cuda->register_calls, unregistered = cuda->unregistered;
	unsigned long long device;

	if (binpool_cuda_device_ptr(late_pool, late_buffer, &device, NULL) != -ENODEV ||
	    binpool_alloc(late_pool, 8 * MIB) || errno != ENODEV)
		_exit(3);
	if (binpool_free(late_pool, late_buffer) || binpool_destroy(late_pool))
		_exit(4);
	if (cuda->register_calls != calls || cuda->unregistered != unregistered)
		_exit(5);
	printf("destroyed\n");
	fflush(stdout);
}

static int ends_late(void)
{
	uint64_t id;

	if (atexit(destroy_late) || find_fake(NULL))
		return 1;
	setup(NULL);
	late_pool = thp_pool(64 * MIB);
	if (binpool_cuda_attach(late_pool, 0, &id))
		return 2;
	late_buffer = binpool_alloc(late_pool, MIB);
	return late_buffer && registrations() == 1 ? 0 : 2;
}

static void driver_gone_first(void **state)
{
	char said[4096];
	int status = run_self("--ends-late", said, sizeof(said));

	(void)state;
	assert_string_equal(said, "destroyed\n");
	assert_int_equal(status, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(follows_extents),	TEST(several_devices),
		TEST(bad_arguments),	TEST(refused_half_way),
		TEST(in_pieces),	TEST(not_undone),
		TEST(foreign),		TEST(foreign_in_part),
		TEST(pool_over_pool),	TEST(context_goes_first),
		TEST(registered_again), TEST(driver_gone_first),
	};

	if (argc > 1 && !strcmp(argv[1], "--ends-late"))
		return ends_late();
	return cmocka_run_group_tests_name("cuda_pin_fake", tests, find_fake, NULL);
}
