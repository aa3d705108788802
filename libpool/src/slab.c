// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Slabs: buffers smaller than a page. Owns the slabs of each bin; locked.
 *
 * A slab whose last buffer goes is dissolved at once: what is to be had again
 * soon is held as a buffer. Its description stays, for the next slab of the bin,
 * so that a stray pointer may be looked up at any time.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "pool.h"

/* Makes sure that slab_take() only needs a free run. -ENOMEM. */
int slab_prepare(struct binpool *pool, uint32_t bin, uint64_t capacity)
{
	struct bin *b = bins_at(pool, bin);
	uint64_t slots = SLAB_BYTES / capacity;
	struct slab *slab;

	assert_locked(pool);
	if (b->slabs || b->spare)
		return 0;
	slab = calloc(1, sizeof(*slab));
	if (!slab)
		return -ENOMEM;
	slab->room = (uint32_t)slots;
	slab->slot = bookkeeping_map(slots * sizeof(*slab->slot));
	if (!slab->slot) {
		free(slab);
		return -ENOMEM;
	}
	slab->stride = (uint32_t)capacity;
	slab->reciprocal = ((1u << 16) + slab->stride / SLAB_STRIDE_UNIT - 1) /
			   (slab->stride / SLAB_STRIDE_UNIT);
	LIST_PUSH(b->spare, slab, prev, next);
	return 0;
}

/* Lets all pages of a slab say @to: its home, or NULL. */
static void map_home(const struct run *home, struct run *to)
{
	for (uint64_t at = 0; at < home->bytes; at += MAP_PAGE_BYTES)
		map_set(home->base + at, to);
}

static void set_slots(struct slab *slab, uint32_t n)
{
	__atomic_store_n(&slab->slots, n, __ATOMIC_RELAXED);
}

/* A slab over a free run; NULL: there is none. */
static struct slab *slab_new(struct binpool *pool, const struct arena *arena, uint32_t bin,
			     uint64_t capacity)
{
	struct bin *b = bins_at(pool, bin);
	struct slab *slab = b->spare;
	struct run *home;

	home = carve(pool, arena, SLAB_BYTES, MAP_PAGE_BYTES);
	if (!home)
		home = carve(pool, arena, MAP_PAGE_BYTES, MAP_PAGE_BYTES);
	if (!home)
		return NULL;
	LIST_REMOVE(b->spare, slab, prev, next);
	run_set_state(home, RUN_SLAB);
	home->bin = bin;
	slab->home = home;
	__atomic_store_n(&slab->base, home->base, __ATOMIC_RELAXED);
	set_slots(slab, (uint32_t)(home->bytes / capacity));
	run_set_slab(home, slab);
	slab->used = 0;
	slab->fresh = 0;
	slab->clean = home->clean;
	slab->free = NULL;
	map_home(home, home);
	LIST_PUSH(b->slabs, slab, prev, next);
	return slab;
}

/*
 * A buffer of the class that is neither active nor held; NULL: there is no free run for more,
 * in @arena if that is not NULL. slab_prepare() came before.
 */
struct run *slab_take(struct binpool *pool, const struct arena *arena, uint32_t bin,
		      uint64_t capacity)
{
	struct bin *b = bins_at(pool, bin);
	struct slab *slab = b->slabs;
	struct run *slot;

	assert_locked(pool);
	if (!slab)
		slab = slab_new(pool, arena, bin, capacity);
	if (!slab)
		return NULL;
	slot = slab->free;
	if (slot) {
		slab->free = slot->next;
		slot->clean = false;
	} else {
		slot = &slab->slot[slab->fresh];
		slot->base = slab->base + (uint64_t)slab->fresh * capacity;
		run_set_ptr(slot, slot->base);
		run_set_pool(slot, pool);
		slot->clean = slab->clean;
		slot->bytes = capacity;
		slot->extent = slab->home->extent;
		slot->slab = slab;
		slab->fresh++;
	}
	slot->next = NULL;
	slab->used++;
	if (!slab->free && slab->fresh == slab->slots)
		LIST_REMOVE(b->slabs, slab, prev, next);
	return slot;
}

/* The end of a buffer, which is in no list any more. */
void slab_give(struct binpool *pool, struct run *slot)
{
	struct slab *slab = slot->slab;
	struct run *home = slab->home;
	struct bin *b = bins_at(pool, home->bin);

	assert_locked(pool);
	if (!slab->free && slab->fresh == slab->slots)
		LIST_PUSH(b->slabs, slab, prev, next);
	run_set_state(slot, RUN_FREE);
	slot->next = slab->free;
	slab->free = slot;
	if (--slab->used)
		return;
	LIST_REMOVE(b->slabs, slab, prev, next);
	map_home(home, NULL);
	run_set_slab(home, NULL);
	home->clean = false;
	set_slots(slab, 0);
	LIST_PUSH(b->spare, slab, prev, next);
	dissolve(pool, home);
}

static void list_free(struct slab *slab)
{
	struct slab *next;

	for (; slab; slab = next) {
		next = slab->next;
		bookkeeping_unmap(slab->slot, slab->room * sizeof(*slab->slot));
		free(slab);
	}
}

/* Lets go of what the descriptions of slabs without memory take. */
void slabs_trim(struct bin *b)
{
	for (struct slab *slab = b->spare; slab; slab = slab->next)
		madvise(slab->slot, slab->room * sizeof(*slab->slot), MADV_DONTNEED);
}

/* When no slab has memory any more. */
void slabs_fini(struct bin *b)
{
	list_free(b->slabs);
	list_free(b->spare);
}
