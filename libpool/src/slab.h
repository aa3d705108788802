/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Slabs of small buffers. Part of pool.h.
 */
#ifndef BINPOOL_SLAB_H
#define BINPOOL_SLAB_H

#include "pool.h"

struct arena;
struct bin;

/*
 * A run cut into buffers of one class, smaller than a page. Locked, but for what
 * slab_slot() looks at, which stays as long as a buffer of it is active.
 */
struct slab {
	struct slab *prev, *next; /* of the bin's slabs with a free slot; or its spare ones */
	struct run *home;
	char *base;
	uint32_t stride, slots; /* bytes of a slot; their number, 0 without memory */
	uint32_t reciprocal;	/* of the stride, for slab_slot() */
	uint32_t used;		/* slots that are active or held */
	uint32_t fresh;		/* slots from here on were never used */
	bool clean;		/* and are zero */
	struct run *free;	/* the other free slots, through next */
	struct run *slot;	/* touched as far as fresh */
	uint32_t room;		/* slots that there are addresses for */
};

#define SLAB_BYTES	 ((uint64_t)64 << 10)
#define SLAB_STRIDE_UNIT 64u /* a stride is a multiple of the smallest granule */

/* The buffer of the slab that begins at @ptr; NULL: none does. */
static inline struct run *slab_slot(struct slab *slab, const char *ptr)
{
	uint64_t at = (uint64_t)(ptr - __atomic_load_n(&slab->base, __ATOMIC_RELAXED));
	uint64_t i = at / SLAB_STRIDE_UNIT * slab->reciprocal >> 16;

	return i < __atomic_load_n(&slab->slots, __ATOMIC_RELAXED) && i * slab->stride == at
		       ? &slab->slot[i]
		       : NULL;
}

/* slab.c; all locked. */
int slab_prepare(struct binpool *pool, uint32_t bin, uint64_t capacity);
struct run *slab_take(struct binpool *pool, const struct arena *arena, uint32_t bin,
		      uint64_t capacity);
void slab_give(struct binpool *pool, struct run *slot);
void slabs_trim(struct bin *bin);
void slabs_fini(struct bin *bin);

#endif /* BINPOOL_SLAB_H */
