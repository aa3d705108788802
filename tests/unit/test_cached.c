// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * binpool_alloc_cached and binpool_free_cached: what they do counts as it does elsewhere, and
 * what they do not do changes nothing.
 */
#include "unit.h"

#include "pool.h"

static struct binpool *pool_of(struct binpool_options o, uint64_t cache_bytes)
{
	struct binpool *pool;

	o.provider = BINPOOL_PROVIDER_THP;
	o.cache_bytes = cache_bytes;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

static struct binpool *cached_pool(uint64_t cache_bytes)
{
	return pool_of((struct binpool_options)BINPOOL_OPTIONS_INIT, cache_bytes);
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

/* What the cache misses has the capacity of its class; what no class is cached for is refused. */
static void missed(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;
	void *p[3];

	(void)state;
	o.max_bytes = 40 * MIB;
	for (int i = 0; i < 4; i++) {
		o.classes = i % 2 ? BINPOOL_CLASSES_HYSOP : BINPOOL_CLASSES_TIGHT;
		o.granule = i / 2 ? 4 * KIB : 0;
		pool = pool_of(o, BINPOOL_CACHE_AUTO);
		for (uint64_t size = 1; size; size *= 2) {
			for (uint64_t asked = size - 1; asked <= size + 1; asked++) {
				struct binpool_buf buf = {.size = sizeof(buf)};

				if (asked > o.max_bytes) {
					assert_null(binpool_alloc(pool, asked));
					assert_true(errno == EFBIG || errno == E2BIG);
					continue;
				}
				for (int j = 0; j < 3 && asked < o.max_bytes / 4; j++) {
					p[j] = binpool_alloc(pool, asked);
					assert_ok(binpool_buf_info(pool, p[j], &buf));
					if (asked)
						assert_int_equal(buf.capacity,
								 class_capacity(pool, asked));
				}
				for (int j = 0; j < 3 && asked < o.max_bytes / 4; j++)
					assert_ok(binpool_free(pool, p[j]));
			}
		}
		check_pool(pool);
		assert_ok(binpool_destroy(pool));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cached_only),
		cmocka_unit_test(missed),
	};

	return cmocka_run_group_tests_name("cached", tests, NULL, NULL);
}
