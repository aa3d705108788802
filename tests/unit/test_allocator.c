// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Allocators of the user's that give what is no memory: it goes back to them, and nothing
 * else changes.
 */
#include "unit.h"

/* Where the next allocation is, and what was given and taken back. */
struct odd {
	uintptr_t at;
	uint64_t bytes;
	void *back;
	uint64_t allocs, frees;
};

static int odd_alloc(void *ctx, uint64_t bytes, void **ptr)
{
	struct odd *o = ctx;

	o->bytes = bytes;
	o->allocs++;
	*ptr = (void *)o->at;
	return 0;
}

static void odd_free(void *ctx, void *ptr, uint64_t bytes)
{
	struct odd *o = ctx;

	if (bytes == o->bytes)
		o->back = ptr;
	o->frees++;
}

static int odd_alloc_handle(void *ctx, uint64_t bytes, uint64_t *handle)
{
	void *ptr;
	int err = odd_alloc(ctx, bytes, &ptr);

	*handle = (uintptr_t)ptr;
	return err;
}

static void odd_free_handle(void *ctx, uint64_t handle, uint64_t bytes)
{
	odd_free(ctx, (void *)(uintptr_t)handle, bytes);
}

static struct binpool *odd_pool(struct odd *o, uint32_t kind)
{
	const struct binpool_allocator_ops ops = {
		.size = sizeof(ops),
		.ctx = o,
		.alloc = odd_alloc,
		.free = odd_free,
		.alloc_handle = odd_alloc_handle,
		.free_handle = odd_free_handle,
	};
	struct binpool_options opts = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	opts.kind = kind;
	opts.provider = BINPOOL_PROVIDER_ALLOCATOR;
	opts.allocator = &ops;
	assert_ok(binpool_create(&pool, &opts));
	return pool;
}

/* Addresses that begin again at 0 before the end, or at it. */
static void beyond_the_end(void **state)
{
	const uintptr_t bad[] = {UINTPTR_MAX, UINTPTR_MAX - 1000, UINTPTR_MAX - 4095};
	struct odd o = {0};
	struct binpool *pool = odd_pool(&o, BINPOOL_KIND_HOST);
	struct binpool_stats s;
	void *p;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		o.at = bad[i];
		o.back = NULL;
		assert_null(binpool_alloc(pool, 4096));
		assert_int_equal(errno, EFAULT);
		assert_error_names("beyond the last address");
		assert_ptr_equal(o.back, (void *)bad[i]);
		assert_int_equal(o.frees, o.allocs);
		s = stats_of(pool);
		assert_int_equal(s.refused, i + 1);
		assert_int_equal(s.reserved_bytes, 0);
		assert_int_equal(s.active_blocks, 0);
		check_pool(pool);
	}
	/* Just below is good, whatever the machine has there. */
	o.at = UINTPTR_MAX - 4096;
	p = binpool_alloc(pool, 4096);
	assert_ptr_equal(p, (void *)o.at);
	check_pool(pool);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
	assert_int_equal(o.frees, o.allocs);
}

/* A handle is a number, and none is too large. */
static void large_handles(void **state)
{
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct odd o = {.at = UINTPTR_MAX};
	struct binpool *pool = odd_pool(&o, BINPOOL_KIND_HANDLE);

	(void)state;
	assert_ok(binpool_handle_alloc(pool, 4096, &buf));
	assert_int_equal(buf.handle, UINT64_MAX);
	assert_ok(binpool_handle_free(pool, &buf));
	assert_ok(binpool_destroy(pool));
	assert_int_equal(o.frees, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(beyond_the_end),
		cmocka_unit_test(large_handles),
	};

	return cmocka_run_group_tests_name("allocator", tests, NULL, NULL);
}
