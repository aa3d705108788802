// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pointers that are no buffer's start, freed while other threads carve and dissolve what is
 * there: an error each, whatever comes and goes, and nothing else.
 */
#include "unit.h"

#define BYTES (4 * MIB)
/* Memory is carved from below. */
#define USED (512 * KIB)

struct crowd {
	struct binpool *pool;
	uintptr_t base;
	bool stop;
};

/* Slabs of many classes and pages come and go, since nothing is kept for long. */
static void *uses(void *arg)
{
	struct crowd *c = arg;
	uint64_t n = rounds(500000);
	struct rng r = {(uintptr_t)&n};
	void *p[64] = {0};

	for (uint64_t i = 0; i < n; i++) {
		uint64_t at = rng_below(&r, 64);

		if (p[at] && binpool_free(c->pool, p[at]))
			return "a free failed";
		p[at] = rng_below(&r, 2) ? binpool_alloc(c->pool, 1 + rng_size(&r, 14)) : NULL;
	}
	return binpool_free_bulk(c->pool, 64, p) ? "a free failed" : NULL;
}

static void *strays(void *arg)
{
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct crowd *c = arg;
	struct rng r = {7};

	while (!__atomic_load_n(&c->stop, __ATOMIC_RELAXED)) {
		/* No buffer begins at an odd address. */
		void *p = (void *)(c->base + (rng_below(&r, USED) | 1));

		if (binpool_free(c->pool, p) != -EINVAL)
			return "a stray pointer was freed";
		if (binpool_free_cached(c->pool, p) != -EAGAIN)
			return "a stray pointer was cached";
		if (binpool_free_sized(c->pool, p, 100) != -EINVAL)
			return "a stray pointer was freed by its size";
		if (binpool_buf_info(c->pool, p, &buf) != -EINVAL)
			return "a stray pointer is a buffer";
	}
	return NULL;
}

static void while_others_run(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	pthread_t thread[3];
	struct crowd c = {0};
	void *wrong;

	(void)state;
	o.provider = BINPOOL_PROVIDER_THP;
	o.max_bytes = BYTES;
	o.cache_bytes = 64 * KIB;
	assert_ok(binpool_create(&c.pool, &o));
	/* All of it at once, from its first byte on. */
	c.base = (uintptr_t)binpool_alloc(c.pool, BYTES);
	assert_int_not_equal(c.base, 0);
	assert_ok(binpool_free(c.pool, (void *)c.base));
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, i ? uses : strays, &c), 0);
	for (int i = 3; i--;) {
		if (!i)
			__atomic_store_n(&c.stop, true, __ATOMIC_RELAXED);
		assert_int_equal(pthread_join(thread[i], &wrong), 0);
		if (wrong)
			fail_msg("%s", (char *)wrong);
	}
	check_pool(c.pool);
	assert_int_equal(stats_of(c.pool).active_blocks, 0);
	assert_ok(binpool_destroy(c.pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(while_others_run),
	};

	return cmocka_run_group_tests_name("stray", tests, NULL, NULL);
}
