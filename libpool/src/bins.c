// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Size classes of a pool, and the bins with its held buffers. Owns
 * pool->levels and levels_held; the pool's lock. The class functions are pure.
 *
 * Sizes whose capacity is the same after rounding to the granule share one
 * bin: the highest of those with that capacity.
 */
#include <stdlib.h>

#include "pool.h"

/* Capacity that a request of @size gets; 0 on overflow. */
uint64_t class_capacity(const struct binpool *pool, uint64_t size)
{
	uint32_t m = pool->mantissa_bits;

	if (pool->classes == BINPOOL_CLASSES_HYSOP)
		return round_up(binpool_alloc_size(m, binpool_bin_number(m, size)), pool->granule);
	return binpool_tight_capacity(m, size, pool->granule);
}

/* Capacity of buffers of bin @bin; 0 if there is none or on overflow. */
uint64_t class_bin_capacity(const struct binpool *pool, uint32_t bin)
{
	uint32_t m = pool->mantissa_bits;

	if (pool->classes == BINPOOL_CLASSES_HYSOP)
		return round_up(binpool_alloc_size(m, bin), pool->granule);
	return round_up(binpool_tight_alloc_size(m, bin), pool->granule);
}

/* The bin of buffers of @capacity, which class_capacity gave. */
uint32_t class_bin(const struct binpool *pool, uint64_t capacity)
{
	uint32_t m = pool->mantissa_bits;
	uint32_t bin;

	if (pool->classes == BINPOOL_CLASSES_TIGHT)
		return binpool_tight_bin_number(m, capacity);
	/* Rounding may have gone past the class's boundary, into the next bin. */
	bin = binpool_bin_number(m, capacity);
	return binpool_alloc_size(m, bin) > capacity ? bin - 1 : bin;
}

/* What every buffer of a class is a multiple of: whole pages start at a page. */
uint64_t class_align(const struct binpool *pool, uint64_t capacity)
{
	return u64_max(u64_min(capacity & -capacity, page_size()), pool->granule);
}

/* Makes sure that bins_at(@bin) is there. -ENOMEM. Locked, as all that follows. */
int bins_prepare(struct binpool *pool, uint32_t bin)
{
	struct bin_level **level = &pool->levels[bin >> pool->mantissa_bits];
	size_t bins = (size_t)1 << pool->mantissa_bits;

	assert_locked(pool);
	if (*level)
		return 0;
	*level = calloc(1, sizeof(**level) + bins * sizeof(struct bin) +
				   (bins + 63) / 64 * sizeof(uint64_t));
	if (!*level)
		return -ENOMEM;
	(*level)->holding = (uint64_t *)&(*level)->bins[bins];
	return 0;
}

/* Says of a bin whether it holds something. */
static void set_holding(struct binpool *pool, uint32_t bin, bool yes)
{
	struct bin_level *level = pool->levels[bin >> pool->mantissa_bits];
	uint32_t i = bin & ((1u << pool->mantissa_bits) - 1);

	if (yes)
		level->holding[i / 64] |= (uint64_t)1 << i % 64;
	else
		level->holding[i / 64] &= ~((uint64_t)1 << i % 64);
}

void bins_hold(struct binpool *pool, struct run *run)
{
	uint32_t l = run->bin >> pool->mantissa_bits;
	struct bin *bin = bins_at(pool, run->bin);

	assert_locked(pool);
	run_set_state(run, RUN_HELD);
	run->since = pool->stamp;
	run->list_prev = NULL;
	run->list_next = bin->head;
	if (bin->head)
		bin->head->list_prev = run;
	bin->head = run;
	if (!bin->held++)
		set_holding(pool, run->bin, true);
	pool->levels[l]->held++;
	pool->levels_held |= (uint64_t)1 << l;
	pool->stats.held_blocks++;
	pool->stats.held_bytes += run->bytes;
	pool->binned_bytes += run->bytes;
}

void bins_unhold(struct binpool *pool, struct run *run)
{
	uint32_t l = run->bin >> pool->mantissa_bits;
	struct bin *bin = bins_at(pool, run->bin);

	assert_locked(pool);
	if (run->list_prev)
		run->list_prev->list_next = run->list_next;
	else
		bin->head = run->list_next;
	if (run->list_next)
		run->list_next->list_prev = run->list_prev;
	if (!--bin->held)
		set_holding(pool, run->bin, false);
	if (!--pool->levels[l]->held)
		pool->levels_held &= ~((uint64_t)1 << l);
	pool->stats.held_blocks--;
	pool->stats.held_bytes -= run->bytes;
	pool->binned_bytes -= run->bytes;
}

/* The most recently returned buffer of @bin that serves @align, taken out; or NULL. */
struct run *bins_take(struct binpool *pool, uint32_t bin, uint64_t align)
{
	struct bin *b = bins_at(pool, bin);
	struct run *run;

	assert_locked(pool);
	if (!b)
		return NULL;
	do {
		for (run = b->head; run; run = run->list_next) {
			/* Over an allocator it is larger if it is aligned: its place is inside. */
			if (!pool->exact && (uintptr_t)run->base & (align - 1))
				continue;
			bins_unhold(pool, run);
			return run;
		}
	} while (depot_empty_bin(pool, b));
	return NULL;
}

/* A held buffer of the largest bin that has any; or NULL. */
struct run *bins_largest(struct binpool *pool)
{
	struct bin_level *level;
	size_t word;

	assert_locked(pool);
	if (!pool->levels_held)
		return NULL;
	level = pool->levels[binpool_log2(pool->levels_held)];
	for (word = (((size_t)1 << pool->mantissa_bits) - 1) / 64; word && !level->holding[word];
	     word--)
		;
	return level->bins[word * 64 + binpool_log2(level->holding[word])].head;
}

/* Lets go of memory that only bookkeeping of the past needs. */
void bins_trim(struct binpool *pool)
{
	assert_locked(pool);
	for (size_t l = 0; l < ARRAY_SIZE(pool->levels); l++) {
		for (size_t i = 0; pool->levels[l] && i < (size_t)1 << pool->mantissa_bits; i++)
			slabs_trim(&pool->levels[l]->bins[i]);
	}
}

void bins_fini(struct binpool *pool)
{
	for (size_t l = 0; l < ARRAY_SIZE(pool->levels); l++) {
		for (size_t i = 0; pool->levels[l] && i < (size_t)1 << pool->mantissa_bits; i++)
			slabs_fini(&pool->levels[l]->bins[i]);
		free(pool->levels[l]);
	}
}

EXPORT int64_t binpool_pool_bin_number(const struct binpool *pool, uint64_t size)
{
	uint64_t capacity;

	if (!pool)
		return explain(-EINVAL, "pool is NULL");
	capacity = class_capacity(pool, size);
	if (!capacity)
		return explain(-E2BIG, "%llu bytes: no size class is that large",
			       (unsigned long long)size);
	return class_bin(pool, capacity);
}

EXPORT int64_t binpool_pool_alloc_size(const struct binpool *pool, uint32_t bin)
{
	uint64_t capacity;

	if (!pool)
		return explain(-EINVAL, "pool is NULL");
	if (bin >= binpool_bin_count(pool->mantissa_bits))
		return explain(-EINVAL, "bin %u: bins are 0 to %u", bin,
			       binpool_bin_count(pool->mantissa_bits) - 1);
	capacity = class_bin_capacity(pool, bin);
	if (!capacity || capacity > INT64_MAX)
		return explain(-E2BIG, "bin %u: its capacity does not fit 63 bits", bin);
	return (int64_t)capacity;
}
