// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool over a counting allocator: a recorded trace of an original, the
 * counters' identities, order of reclaim, misuse.
 */
#include "unit.h"

#define HANDLES 1024

static void check_step(struct binpool *pool, const char *line, const char *expected)
{
	struct binpool_stats s = stats_of(pool);
	char have[128];

	snprintf(have, sizeof(have), "%llu,%llu,%llu,%llu", (unsigned long long)s.active_blocks,
		 (unsigned long long)s.held_blocks, (unsigned long long)s.active_bytes,
		 (unsigned long long)s.managed_bytes);
	if (strcmp(have, expected))
		fail_msg("after '%s' the counters are %s", line, have);
	assert_int_equal(s.managed_bytes, s.reserved_bytes);
	check_pool(pool);
}

/* Every step of the recording, every counter. */
static void trace_replay(void **state)
{
	struct binpool *pool = NULL;
	struct counter c = COUNTER_INIT;
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops), .ctx = &c, .alloc = counter_alloc, .free = counter_free};
	void *handle[HANDLES];
	uint64_t steps = 0;
	char line[256];
	FILE *f = fopen("tests/data/pool_trace.csv", "r");

	(void)state;
	assert_non_null(f);
	assert_non_null(fgets(line, sizeof(line), f));
	while (fgets(line, sizeof(line), f)) {
		struct binpool_options o = BINPOOL_OPTIONS_INIT;
		char copy[256], *rest = copy, *m, *op, *h, *size;

		line[strcspn(line, "\r\n")] = '\0';
		strcpy(copy, line);
		m = strsep(&rest, ",");
		strsep(&rest, ",");
		op = strsep(&rest, ",");
		h = strsep(&rest, ",");
		size = strsep(&rest, ",");
		if (!strcmp(op, "create")) {
			if (pool)
				assert_ok(binpool_destroy(pool));
			assert_int_equal(c.bytes, 0);
			o.provider = BINPOOL_PROVIDER_ALLOCATOR;
			o.allocator = &ops;
			o.classes = BINPOOL_CLASSES_HYSOP;
			o.granule = 1;
			o.mantissa_bits = (uint32_t)atoi(m);
			assert_ok(binpool_create(&pool, &o));
		} else if (!strcmp(op, "alloc")) {
			handle[atoi(h)] = binpool_alloc(pool, strtoull(size, NULL, 10));
			assert_non_null(handle[atoi(h)]);
		} else if (!strcmp(op, "free")) {
			assert_ok(binpool_free_sized(pool, handle[atoi(h)],
						     strtoull(size, NULL, 10)));
		} else if (!strcmp(op, "free_held")) {
			assert_ok(binpool_free_held(pool));
		} else if (!strcmp(op, "stop_holding")) {
			assert_ok(binpool_stop_holding(pool));
		} else {
			fail_msg("unknown operation in '%s'", line);
		}
		check_step(pool, line, rest);
		assert_int_equal(stats_of(pool).reserved_bytes, c.bytes);
		steps++;
	}
	fclose(f);
	assert_int_equal(steps, 350);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(c.bytes, 0);
	assert_int_equal(c.allocs, c.frees);
}

/* All operations at random, identities and structures after each one. */
static void random_operations(struct binpool *pool, uint64_t n, uint32_t bits, struct rng *r)
{
	struct {
		void *ptr;
		uint64_t size;
	} live[64] = {0};

	for (uint64_t i = 0; i < n; i++) {
		uint64_t j = rng_below(r, 64);

		if (live[j].ptr) {
			if (rng_below(r, 2))
				assert_ok(binpool_free(pool, live[j].ptr));
			else
				assert_ok(binpool_free_sized(pool, live[j].ptr, live[j].size));
			live[j].ptr = NULL;
		} else {
			live[j].size = rng_below(r, 20) ? rng_size(r, bits) : 0;
			if (rng_below(r, 8))
				live[j].ptr = binpool_alloc(pool, live[j].size);
			else
				live[j].ptr = binpool_alloc_aligned(pool, live[j].size,
								    (size_t)1 << rng_below(r, 16));
			if (!live[j].ptr)
				assert_true(errno == ENOSPC || errno == ENOMEM || errno == EFBIG);
		}
		switch (rng_below(r, 200)) {
		case 0:
			assert_ok(binpool_free_held(pool));
			break;
		case 1:
			assert_ok(binpool_stop_holding(pool));
			break;
		case 2:
		case 3:
			assert_ok(binpool_resume_holding(pool));
			break;
		}
		check_pool(pool);
	}
	for (size_t j = 0; j < 64; j++)
		assert_ok(binpool_free(pool, live[j].ptr));
	check_pool(pool);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_int_equal(stats_of(pool).active_bytes, 0);
}

static void identities_allocator(void **state)
{
	struct rng r = rng_make();

	(void)state;
	for (uint32_t classes = 0; classes < 2; classes++) {
		struct counter c = COUNTER_INIT;
		struct binpool *pool = counter_pool(&c, classes, 20 * MIB);

		c.max_bytes = 18 * MIB;
		random_operations(pool, rounds(20000), 22, &r);
		assert_ok(binpool_destroy(pool));
		assert_int_equal(c.bytes, 0);
	}
}

static void identities_extents(void **state)
{
	struct binpool *pool = real_pool(32 * MIB);
	struct rng r = rng_make();

	(void)state;
	random_operations(pool, rounds(20000), 22, &r);
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_destroy(pool));
}

static void reuse_is_latest_first(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	void *p[3];

	(void)state;
	for (int i = 0; i < 3; i++)
		p[i] = binpool_alloc(pool, 1000);
	assert_ok(binpool_free(pool, p[1]));
	assert_ok(binpool_free(pool, p[0]));
	assert_ok(binpool_free(pool, p[2]));
	assert_ptr_equal(binpool_alloc(pool, 1000), p[2]);
	assert_ptr_equal(binpool_alloc(pool, 1001), p[0]);
	assert_ptr_equal(binpool_alloc(pool, 1000), p[1]);
	assert_int_equal(c.allocs, 3);
	assert_int_equal(stats_of(pool).reuses, 3);
	for (int i = 0; i < 3; i++)
		assert_ok(binpool_free(pool, p[i]));
	assert_ok(binpool_destroy(pool));
}

/* The limit refuses no reuse, and what is held goes before it refuses anything. */
static void limit_order(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 64 * MIB);
	void *a, *b, *d, *e;

	(void)state;
	a = binpool_alloc(pool, 32 * MIB);
	b = binpool_alloc(pool, 16 * MIB);
	d = binpool_alloc(pool, 16 * MIB);
	assert_true(a && b && d);
	assert_int_equal(binpool_may_alloc(pool, 1), 0);
	assert_ok(binpool_free(pool, a));
	assert_ok(binpool_free(pool, d));

	/* All is reserved, but a buffer of that class is held. */
	assert_ptr_equal(binpool_alloc(pool, 32 * MIB), a);
	assert_ok(binpool_free(pool, a));

	/* 16 in use, 32 and 16 held: another class; the largest goes, and only that. */
	e = binpool_alloc(pool, 20 * MIB);
	assert_non_null(e);
	assert_int_equal(stats_of(pool).frees_held, 1);
	assert_int_equal(stats_of(pool).held_bytes, 16 * MIB);

	/* 36 in use: 30 can't be had, which must not cost what is held. */
	assert_null(binpool_alloc(pool, 30 * MIB));
	assert_int_equal(errno, ENOSPC);
	assert_error_names("max_bytes");
	assert_error_names("64 MiB");
	assert_int_equal(stats_of(pool).held_bytes, 16 * MIB);
	assert_int_equal(stats_of(pool).refused, 1);

	assert_null(binpool_alloc(pool, 65 * MIB));
	assert_int_equal(errno, EFBIG);
	assert_null(binpool_alloc(pool, SIZE_MAX));
	assert_int_equal(errno, E2BIG);
	assert_error_names("asked for 18446744073709551615 bytes");
	check_pool(pool);
	assert_ok(binpool_free(pool, b));
	assert_ok(binpool_free(pool, e));
	assert_ok(binpool_destroy(pool));
}

/* Out of memory: held buffers go one at a time, largest first, with a try after each. */
static void shortage_order(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	void *p[4];

	(void)state;
	for (uint64_t i = 0; i < 4; i++)
		p[i] = binpool_alloc(pool, MIB << i);
	for (int i = 0; i < 4; i++)
		assert_ok(binpool_free(pool, p[i]));
	c.max_bytes = 15 * MIB;
	p[0] = binpool_alloc(pool, 10 * MIB);
	assert_non_null(p[0]);
	assert_int_equal(stats_of(pool).frees_held, 2); /* 8 and 4 */
	assert_int_equal(stats_of(pool).held_bytes, 3 * MIB);

	c.fail_with = -ENOMEM;
	c.fail_always = true;
	assert_null(binpool_alloc(pool, 5 * MIB));
	assert_int_equal(errno, ENOMEM);
	assert_int_equal(stats_of(pool).held_blocks, 0);
	c.fail_always = false;
	c.fail_with = 0;
	check_pool(pool);
	assert_ok(binpool_free(pool, p[0]));
	assert_ok(binpool_destroy(pool));
}

/* Any other error passes straight through; nothing changes. */
static void other_errors(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	struct binpool_stats before, after;
	static const int errors[] = {-EIO, -ENODEV, -ENOSPC};

	(void)state;
	assert_ok(binpool_free(pool, binpool_alloc(pool, 4 * MIB)));
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		before = stats_of(pool);
		c.fail_with = errors[i];
		assert_null(binpool_alloc(pool, 3 * MIB));
		assert_int_equal(errno, -errors[i]);
		after = stats_of(pool);
		assert_int_equal(after.refused, before.refused + 1);
		after.refused = before.refused;
		assert_memory_equal(&before, &after, sizeof(before));
	}
	/* What is no errno becomes one. */
	c.fail_with = 5;
	assert_null(binpool_alloc(pool, 3 * MIB));
	assert_int_equal(errno, EIO);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

static void misuse_on(struct binpool *pool)
{
	struct binpool_stats before, after;
	char foreign[64];
	char *p = binpool_alloc(pool, 1000), *q = binpool_alloc(pool, 2000);

	assert_ok(binpool_free(pool, q));
	before = stats_of(pool);
	assert_int_equal(binpool_free(pool, foreign), -EINVAL);
	assert_error_names("no buffer of this pool");
	assert_int_equal(binpool_free(pool, p + 1), -EINVAL);
	assert_int_equal(binpool_free(pool, p + 64), -EINVAL);
	assert_int_equal(binpool_free(pool, q), -EINVAL);
	assert_error_names("free already");
	assert_int_equal(binpool_free_sized(pool, p, 999), -EINVAL);
	assert_error_names("1000");
	assert_int_equal(binpool_free_sized(pool, p, 0), -EINVAL);
	assert_int_equal(binpool_free_sized(pool, q, 2000), -EINVAL);
	assert_int_equal(binpool_free(pool, (void *)UINTPTR_MAX), -EINVAL);
	after = stats_of(pool);
	assert_memory_equal(&before, &after, sizeof(before));
	assert_ok(binpool_free(pool, NULL));
	assert_ok(binpool_free_sized(pool, NULL, 3));
	assert_int_equal(binpool_destroy(pool), -EBUSY);
	check_pool(pool);
	assert_ok(binpool_free_sized(pool, p, 1000));
	assert_int_equal(binpool_free(pool, p), -EINVAL);
	check_pool(pool);
}

static void misuse(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *a = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0), *b = real_pool(16 * MIB);
	void *p;

	(void)state;
	misuse_on(a);
	misuse_on(b);
	/* Another pool's. */
	p = binpool_alloc(a, 10);
	assert_int_equal(binpool_free(b, p), -EINVAL);
	assert_ok(binpool_free(a, p));
	/* Without holding. */
	assert_ok(binpool_stop_holding(a));
	p = binpool_alloc(a, 10);
	assert_ok(binpool_free(a, p));
	assert_int_equal(binpool_free(a, p), -EINVAL);
	assert_ok(binpool_destroy(a));
	assert_ok(binpool_destroy(b));
}

static void alignment_over_allocator(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct rng r = rng_make();

	(void)state;
	c.next = 4096 + 24; /* addresses that are aligned to nothing much */
	for (int i = 0; i < 2000; i++) {
		uint64_t align = (uint64_t)1 << rng_below(&r, 21), size = 1 + rng_size(&r, 16);
		char *p = binpool_alloc_aligned(pool, size, align);

		assert_non_null(p);
		assert_int_equal((uintptr_t)p & (align - 1), 0);
		assert_ok(binpool_buf_info(pool, p, &buf));
		assert_true(buf.capacity >= size);
		assert_int_equal(buf.bytes, size);
		check_pool(pool);
		assert_ok(binpool_free_sized(pool, p, size));
	}
	assert_null(binpool_alloc_aligned(pool, 10, 0));
	assert_int_equal(errno, EINVAL);
	assert_null(binpool_alloc_aligned(pool, 10, 3));
	assert_int_equal(errno, EINVAL);
	assert_null(binpool_alloc_aligned(pool, 10, 2 * GIB));
	assert_int_equal(errno, EINVAL);
	assert_null(binpool_alloc_aligned(pool, SIZE_MAX - 10, 4096));
	assert_int_equal(errno, E2BIG);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(c.bytes, 0);
}

static void size_zero(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pools[] = {counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0), real_pool(16 * MIB)};
	struct binpool_buf buf = {.size = sizeof(buf)};

	(void)state;
	for (int i = 0; i < 2; i++) {
		char *a = binpool_alloc(pools[i], 0), *b = binpool_alloc(pools[i], 0);
		char *far = binpool_alloc_aligned(pools[i], 0, GIB);

		assert_true(a && b && far && a != b);
		assert_int_equal((uintptr_t)far % GIB, 0);
		assert_int_equal(stats_of(pools[i]).reserved_bytes, 0);
		assert_int_equal(stats_of(pools[i]).active_blocks, 3);
		assert_ok(binpool_buf_info(pools[i], a, &buf));
		assert_int_equal(buf.capacity, 0);
		check_pool(pools[i]);
		assert_int_equal(binpool_free_sized(pools[i], a, 1), -EINVAL);
		assert_ok(binpool_free_sized(pools[i], a, 0));
		assert_int_equal(binpool_free(pools[i], a), -EINVAL);
		assert_ok(binpool_free(pools[i], b));
		assert_ok(binpool_free(pools[i], far));
		check_pool(pools[i]);
		assert_ok(binpool_destroy(pools[i]));
	}
	assert_int_equal(c.allocs, 0);
}

/* Also where the smallest class is of whole pages, and the pool has some. */
static void size_zero_of_pages(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool *pool;
	void *page, *none;

	(void)state;
	o.provider = BINPOOL_PROVIDER_THP;
	o.granule = 4096;
	assert_ok(binpool_create(&pool, &o));
	page = binpool_alloc(pool, 1);
	none = binpool_alloc(pool, 0);
	assert_ok(binpool_buf_info(pool, none, &buf));
	assert_int_equal(buf.capacity, 0);
	assert_ok(binpool_free(pool, none));
	assert_ok(binpool_free(pool, page));
	assert_ok(binpool_destroy(pool));
}

static void bulk_is_all_or_none(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 10 * MIB);
	void *p[16];

	(void)state;
	assert_int_equal(binpool_alloc_bulk(pool, MIB, 11, p), -ENOSPC);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_ok(binpool_alloc_bulk(pool, MIB, 10, p));
	assert_int_equal(stats_of(pool).active_blocks, 10);
	p[10] = p[3];
	assert_int_equal(binpool_free_bulk(pool, 11, p), -EINVAL);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_int_equal(binpool_alloc_bulk(pool, MIB, 1, NULL), -EINVAL);
	assert_int_equal(binpool_free_bulk(pool, 1, NULL), -EINVAL);
	assert_ok(binpool_alloc_bulk(pool, MIB, 0, NULL));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

static void stop_and_resume(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	void *p = binpool_alloc(pool, 100), *q = binpool_alloc(pool, 100);

	(void)state;
	assert_ok(binpool_free(pool, p));
	assert_int_equal(binpool_held_blocks(pool), 1);
	assert_ok(binpool_stop_holding(pool));
	assert_int_equal(binpool_held_blocks(pool), 0);
	assert_int_equal(c.frees, 1);
	assert_ok(binpool_free(pool, q));
	assert_int_equal(c.frees, 2);
	assert_int_equal(stats_of(pool).frees_active, 1);
	assert_int_equal(stats_of(pool).holding, 0);
	assert_ok(binpool_resume_holding(pool));
	assert_ok(binpool_free(pool, binpool_alloc(pool, 100)));
	assert_int_equal(binpool_held_blocks(pool), 1);
	assert_ok(binpool_reserve(pool, 5000));
	assert_int_equal(binpool_held_blocks(pool), 2);
	assert_ok(binpool_free_held(pool));
	assert_int_equal(binpool_held_blocks(pool), 0);
	assert_int_equal(stats_of(pool).holding, 1);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* A pool is an allocator for another one. */
static int inner_alloc(void *ctx, uint64_t bytes, void **ptr)
{
	*ptr = binpool_alloc(ctx, bytes);
	return *ptr ? 0 : -errno;
}

static void inner_free(void *ctx, void *ptr, uint64_t bytes)
{
	if (binpool_free_sized(ctx, ptr, bytes))
		abort();
}

static void pool_over_pool(void **state)
{
	struct binpool *inner = real_pool(16 * MIB), *outer;
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops), .ctx = inner, .alloc = inner_alloc, .free = inner_free};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct rng r = rng_make();

	(void)state;
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	o.max_bytes = 64 * MIB;
	assert_ok(binpool_create(&outer, &o));
	random_operations(outer, rounds(5000), 20, &r);
	check_pool(inner);
	if (stats_of(inner).active_blocks)
		assert_int_equal(binpool_destroy(inner), -EBUSY);
	assert_ok(binpool_destroy(outer));
	assert_int_equal(stats_of(inner).active_blocks, 0);
	assert_ok(binpool_destroy(inner));
}

static void reports(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	void *p = binpool_alloc(pool, MIB);
	char buf[4096], small[10];
	int len;

	(void)state;
	len = binpool_report(pool, BINPOOL_REPORT_KEYS, NULL, 0);
	assert_true(len > 0 && len < (int)sizeof(buf));
	assert_int_equal(binpool_report(pool, BINPOOL_REPORT_KEYS, buf, sizeof(buf)), len);
	assert_int_equal(strlen(buf), len);
	assert_non_null(strstr(buf, "\nactive_bytes=1048576\n"));
	assert_non_null(strstr(buf, "\nprovider=allocator\n"));
	assert_non_null(strstr(buf, ".active_blocks=1\n"));
	assert_int_equal(binpool_report(pool, BINPOOL_REPORT_KEYS, small, sizeof(small)), len);
	assert_memory_equal(small, buf, sizeof(small) - 1);
	assert_int_equal(small[sizeof(small) - 1], 0);
	assert_true(binpool_report(pool, BINPOOL_REPORT_TABLE, buf, sizeof(buf)) > 0);
	assert_non_null(strstr(buf, "1 MiB"));
	assert_non_null(strstr(buf, "#"));
	assert_int_equal(binpool_report(pool, 7, buf, sizeof(buf)), -EINVAL);
	assert_int_equal(binpool_report(pool, 0, NULL, 3), -EINVAL);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(trace_replay),
		cmocka_unit_test(identities_allocator),
		cmocka_unit_test(identities_extents),
		cmocka_unit_test(reuse_is_latest_first),
		cmocka_unit_test(limit_order),
		cmocka_unit_test(shortage_order),
		cmocka_unit_test(other_errors),
		cmocka_unit_test(misuse),
		cmocka_unit_test(alignment_over_allocator),
		cmocka_unit_test(size_zero),
		cmocka_unit_test(size_zero_of_pages),
		cmocka_unit_test(bulk_is_all_or_none),
		cmocka_unit_test(stop_and_resume),
		cmocka_unit_test(pool_over_pool),
		cmocka_unit_test(reports),
	};

	return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
