// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Size classes, against a slow model of what they are: of every m, the boundaries are
 * (2^m + f) * 2^k, and a tight class has room for what is below its own and no more.
 */
#include "fuzz_lib.h"

#include <binpool.h>
#include <linux/binpool_bins.h>

#include "pool.h"

typedef unsigned __int128 u128;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	return 0;
}

/* The smallest (2^m + f) << k that is at least @size, in units of @granule; 128 bits. */
static u128 boundary(uint32_t m, uint64_t size, uint64_t granule)
{
	uint64_t one = (uint64_t)1 << m;
	uint32_t k = 0;
	u128 at;

	/* Below 2^m every number is one, but the smallest is 2. */
	if (size <= one) {
		at = size < 2 ? 2 : size;
	} else {
		while ((u128)(2 * one) << k < size)
			k++;
		at = ((u128)size + (((u128)1 << k) - 1)) >> k << k;
	}
	return (at + granule - 1) / granule * granule;
}

static int no_memory(void *ctx, uint64_t bytes, void **ptr)
{
	(void)ctx;
	(void)bytes;
	(void)ptr;
	return -ENOMEM;
}

static void none_to_free(void *ctx, void *ptr, uint64_t bytes)
{
	(void)ctx;
	(void)ptr;
	(void)bytes;
	abort();
}

static struct binpool *pool_with(uint32_t m, uint32_t classes, uint64_t granule)
{
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops), .alloc = no_memory, .free = none_to_free};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	o.mantissa_bits = m;
	o.classes = classes;
	o.granule = granule;
	MUST(!binpool_create(&pool, &o));
	return pool;
}

static void check_size(struct binpool *pool, uint32_t m, uint32_t classes, uint64_t granule,
		       uint64_t size)
{
	int64_t bin = binpool_pool_bin_number(pool, size), capacity, below;
	u128 want = boundary(m, size, granule);

	if (bin < 0) {
		MUST(bin == -E2BIG && (want > INT64_MAX || classes == BINPOOL_CLASSES_HYSOP));
		return;
	}
	capacity = binpool_pool_alloc_size(pool, (uint32_t)bin);
	if (capacity < 0) {
		MUST(capacity == -E2BIG && want > INT64_MAX / 2);
		return;
	}
	MUST((uint64_t)capacity >= size);
	/* A buffer of a class is of that class; HySoP's is not once it is rounded. */
	if (classes == BINPOOL_CLASSES_TIGHT || granule == 1)
		MUST(binpool_pool_bin_number(pool, (uint64_t)capacity) == bin);
	if (classes == BINPOOL_CLASSES_TIGHT)
		MUST((u128)capacity == want);
	if (size > 1) {
		below = binpool_pool_bin_number(pool, size - 1);
		MUST(below >= 0 && below <= bin);
	}
	/* The class below has no room for it. */
	if (bin && classes == BINPOOL_CLASSES_TIGHT) {
		below = binpool_pool_alloc_size(pool, (uint32_t)bin - 1);
		MUST(below < 0 || (uint64_t)below < size || below == capacity);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	uint32_t m = input_u8(&in) % (BINPOOL_MANTISSA_BITS_MAX + 1);
	uint32_t classes = input_u8(&in) % 2;
	uint64_t granule = (uint64_t)1 << input_u8(&in) % 31;
	struct binpool *pool = pool_with(m, classes, granule);

	while (in.left) {
		uint64_t s = input_size(&in);
		uint32_t bin = binpool_bin_number(m, s);
		uint64_t top = binpool_alloc_size(m, bin);

		/* The bare arithmetic: its own class's last number. */
		MUST(top >= s);
		MUST(binpool_bin_number(m, top) == bin);
		MUST(!s || top - s <= s >> m);
		/* Below 2^m some classes have no number of their own. */
		if (top >> m && top != UINT64_MAX)
			MUST(binpool_bin_number(m, top + 1) == bin + 1);
		check_size(pool, m, classes, granule, s);
	}
	MUST(!binpool_destroy(pool));
	return 0;
}
