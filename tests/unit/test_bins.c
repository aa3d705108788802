// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Size classes: golden values of the originals, and properties.
 */
#include "unit.h"

/* Every row of a golden file; returns how many there were. */
static uint64_t check_golden(const char *path)
{
	unsigned long long size, capacity;
	unsigned int m, bin;
	uint64_t rows = 0;
	char line[256];
	FILE *f = fopen(path, "r");

	if (!f)
		fail_msg("%s: %s", path, strerror(errno));
	assert_non_null(fgets(line, sizeof(line), f));
	while (fgets(line, sizeof(line), f)) {
		assert_int_equal(sscanf(line, "%u,%llu,%u,%llu", &m, &size, &bin, &capacity), 4);
		if (binpool_bin_number(m, size) != bin)
			fail_msg("%s: m %u, size %llu: bin %u, not %u", path, m, size,
				 binpool_bin_number(m, size), bin);
		if (binpool_alloc_size(m, bin) != capacity)
			fail_msg("%s: m %u, bin %u: %llu, not %llu", path, m, bin,
				 (unsigned long long)binpool_alloc_size(m, bin), capacity);
		rows++;
	}
	fclose(f);
	return rows;
}

static void golden_bins(void **state)
{
	(void)state;
	assert_int_equal(check_golden("tests/data/bins.csv"), 3600);
}

static void golden_edges(void **state)
{
	(void)state;
	assert_int_equal(check_golden("tests/data/bins_edges64.csv"), 468);
}

/* The originals' classes: covers the size, monotone, idempotent. */
static void check_hysop(uint32_t m, uint64_t size)
{
	uint32_t bin = binpool_bin_number(m, size);
	uint64_t capacity = binpool_alloc_size(m, bin);

	assert_true(bin < binpool_bin_count(m));
	assert_true(capacity >= size && capacity);
	assert_int_equal(binpool_bin_number(m, capacity), bin);
	if (capacity < UINT64_MAX)
		assert_true(binpool_bin_number(m, capacity + 1) > bin);
	assert_true(!size || capacity - size <= size >> m);
}

/* Tight classes: the same, waste below 2^-m, none at a power of two. */
static void check_tight(uint32_t m, uint64_t size)
{
	uint64_t capacity = binpool_tight_capacity(m, size, 1);

	if (!capacity) {
		assert_true(size > UINT64_MAX - (UINT64_MAX >> (m + 1)) - 1);
		return;
	}
	assert_true(capacity >= size);
	assert_int_equal(binpool_tight_capacity(m, capacity, 1), capacity);
	if (size > 1)
		assert_true(capacity - size <= (size - 1) >> m);
	if (size > 1 && !(size & (size - 1)))
		assert_int_equal(capacity, size);
	for (uint64_t granule = 64; granule <= 4096; granule *= 64) {
		uint64_t rounded = binpool_tight_capacity(m, size, granule);

		if (!rounded)
			continue;
		assert_true(rounded >= capacity && rounded - capacity < granule);
		assert_int_equal(rounded % granule, 0);
		assert_int_equal(binpool_tight_capacity(m, rounded, granule), rounded);
	}
}

static const uint32_t all_m[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 16};

static void properties_random(void **state)
{
	struct rng r = rng_make();

	(void)state;
	for (uint64_t i = 0; i < rounds(1000000); i++) {
		uint64_t size = rng_size(&r, 64);

		for (size_t j = 0; j < sizeof(all_m) / sizeof(all_m[0]); j++) {
			check_hysop(all_m[j], size);
			check_tight(all_m[j], size);
		}
	}
}

static void properties_edges(void **state)
{
	(void)state;
	for (size_t j = 0; j < sizeof(all_m) / sizeof(all_m[0]); j++) {
		for (uint32_t bit = 0; bit < 64; bit++) {
			for (int d = -2; d <= 2; d++) {
				check_hysop(all_m[j], ((uint64_t)1 << bit) + (uint64_t)d);
				check_tight(all_m[j], ((uint64_t)1 << bit) + (uint64_t)d);
			}
		}
		check_hysop(all_m[j], UINT64_MAX);
		assert_int_equal(binpool_tight_capacity(all_m[j], UINT64_MAX, 1), 0);
		assert_int_equal(binpool_alloc_size(all_m[j], binpool_bin_count(all_m[j])), 0);
	}
}

static void monotone(void **state)
{
	(void)state;
	for (size_t j = 0; j < sizeof(all_m) / sizeof(all_m[0]); j++) {
		uint32_t m = all_m[j], last = 0;
		uint64_t last_tight = 0;

		for (uint64_t size = 0; size < rounds(300000); size++) {
			assert_true(binpool_bin_number(m, size) >= last);
			last = binpool_bin_number(m, size);
			assert_true(binpool_tight_capacity(m, size, 64) >= last_tight);
			last_tight = binpool_tight_capacity(m, size, 64);
		}
	}
}

/* A pool's own classes agree with each other, with every granule. */
static void check_pool_classes(uint32_t m, uint32_t classes, uint64_t granule, struct rng *r)
{
	struct counter c = COUNTER_INIT;
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops), .ctx = &c, .alloc = counter_alloc, .free = counter_free};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;
	int64_t last;

	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	o.mantissa_bits = m;
	o.classes = classes;
	o.granule = granule;
	assert_ok(binpool_create(&pool, &o));
	for (uint64_t i = 0; i < rounds(20000); i++) {
		uint64_t size = rng_size(r, 62);
		int64_t bin = binpool_pool_bin_number(pool, size);
		int64_t capacity;

		assert_ok((int)(bin < 0 ? bin : 0));
		capacity = binpool_pool_alloc_size(pool, (uint32_t)bin);
		assert_true(capacity > 0 && (uint64_t)capacity >= size);
		assert_int_equal((uint64_t)capacity % granule, 0);
		/* The buffer's own capacity is served by the same bin. */
		if (classes == BINPOOL_CLASSES_TIGHT || granule == 1)
			assert_int_equal(binpool_pool_bin_number(pool, (uint64_t)capacity), bin);
	}
	last = binpool_pool_bin_number(pool, UINT64_MAX);
	if (classes == BINPOOL_CLASSES_TIGHT || granule > 1)
		assert_int_equal(last, -E2BIG);
	else
		assert_int_equal(last, binpool_bin_number(m, UINT64_MAX));
	assert_int_equal(binpool_pool_alloc_size(pool, binpool_bin_count(m)), -EINVAL);
	assert_int_equal(binpool_pool_alloc_size(pool, UINT32_MAX), -EINVAL);
	assert_int_equal(binpool_pool_alloc_size(pool, binpool_bin_count(m) - 1), -E2BIG);
	assert_ok(binpool_destroy(pool));
}

static void pool_classes(void **state)
{
	static const uint64_t granules[] = {1, 64, 4096};
	struct rng r = rng_make();

	(void)state;
	for (size_t j = 0; j < sizeof(all_m) / sizeof(all_m[0]); j++) {
		for (size_t g = 0; g < sizeof(granules) / sizeof(granules[0]); g++) {
			check_pool_classes(all_m[j], BINPOOL_CLASSES_TIGHT, granules[g], &r);
			check_pool_classes(all_m[j], BINPOOL_CLASSES_HYSOP, granules[g], &r);
		}
	}
}

/* What users of such pools saw wasted: at most 2^-m, nothing at powers of two. */
static void reported_sizes(void **state)
{
	static const uint64_t sizes[] = {135790592 /* 129.5 MiB */, 21904333210 /* 20.4 GiB */,
					 4 * GIB + 4096, 5 * GIB};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t capacity = binpool_tight_capacity(4, sizes[i], 64);

		assert_true(capacity >= sizes[i]);
		assert_true((double)capacity <= 1.0625 * (double)sizes[i]);
	}
	for (uint64_t size = 64; size <= 64 * GIB; size *= 2)
		assert_int_equal(binpool_tight_capacity(4, size, 64), size);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_bins),	    cmocka_unit_test(golden_edges),
		cmocka_unit_test(properties_edges), cmocka_unit_test(properties_random),
		cmocka_unit_test(monotone),	    cmocka_unit_test(pool_classes),
		cmocka_unit_test(reported_sizes),
	};

	return cmocka_run_group_tests_name("bins", tests, NULL, NULL);
}
