// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * binpool_alloc_cached and binpool_free_cached: what they do counts as it does elsewhere, and
 * what they do not do changes nothing.
 */
#include "unit.h"

static struct binpool *cached_pool(uint64_t cache_bytes)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.provider = BINPOOL_PROVIDER_THP;
	o.cache_bytes = cache_bytes;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

/* What is not in the thread's own cache is left to the others, and nothing changes. */
static void cached_only(void **state)
{
	struct binpool *pool = cached_pool(BINPOOL_CACHE_AUTO), *none = cached_pool(0);
	struct binpool_stats before, after;
	char *p, *q;

	(void)state;
	errno = 0;
	assert_null(binpool_alloc_cached(pool, 5000));
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(stats_of(pool).refused, 0);
	p = binpool_alloc(pool, 5000);
	assert_ok(binpool_free(pool, p));
	assert_null(binpool_alloc_cached(pool, MIB));
	assert_null(binpool_alloc_cached(pool, SIZE_MAX));
	assert_null(binpool_alloc_cached(pool, 0));
	assert_null(binpool_alloc_cached(NULL, 5000));
	for (uint64_t i = 1; i <= 100; i++) {
		q = binpool_alloc_cached(pool, 4900 + i % 10);
		assert_ptr_equal(p, q);
		assert_int_equal(stats_of(pool).reuses, i);
		before = stats_of(pool);
		assert_int_equal(before.active_bytes, 4900 + i % 10);
		assert_int_equal(binpool_free_cached(pool, q + 64), -EAGAIN);
		assert_int_equal(binpool_free_cached(none, q), -EAGAIN);
		assert_int_equal(binpool_free_cached(NULL, q), -EAGAIN);
		assert_int_equal(binpool_free_cached(pool, NULL), -EAGAIN);
		assert_int_equal(binpool_free_cached(pool, &before), -EAGAIN);
		after = stats_of(pool);
		assert_memory_equal(&before, &after, sizeof(before));
		assert_ok(binpool_free_cached(pool, q));
		assert_int_equal(binpool_free_cached(pool, q), -EAGAIN);
		assert_int_equal(stats_of(pool).held_blocks, 1);
		check_pool(pool);
	}
	/* Without caches there is never anything in them. */
	q = binpool_alloc(none, 5000);
	assert_int_equal(binpool_free_cached(none, q), -EAGAIN);
	assert_ok(binpool_free(none, q));
	assert_null(binpool_alloc_cached(none, 5000));
	assert_ok(binpool_destroy(pool));
	assert_ok(binpool_destroy(none));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cached_only),
	};

	return cmocka_run_group_tests_name("cached", tests, NULL, NULL);
}
