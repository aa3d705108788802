/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Runs, what an extent consists of, and how free ones are found. Part of pool.h; the functions
 * are carve.c's.
 */
#ifndef BINPOOL_RUN_H
#define BINPOOL_RUN_H

#include "pool.h"

enum run_state {
	RUN_FREE,    /* in the free index */
	RUN_ACTIVE,  /* a user's buffer; with no address live, RUN_CACHED */
	RUN_NOTED,   /* the same, of which note.c knows more */
	RUN_PENDING, /* was freed, and waits for fences; nobody's, but not free */
	RUN_HELD,    /* a buffer in its bin */
	RUN_CACHED,  /* a buffer in a thread's cache, held as well */
	RUN_SLAB,    /* full of small buffers, which are runs of their own */
};

/*
 * A stretch of an extent: free, or one buffer. The runs of an extent cover it
 * without a gap. They live outside pool memory. Locked, but for live and asked,
 * which are the user's while a buffer is active: he may free it without the lock.
 * Users of two buffers write to no cache line together.
 */
struct run {
	char *live;	/* ptr as long as it is a user's, and note.c knows no more; else NULL */
	uint64_t asked; /* active buffers */
	struct binpool *pool;
	uint32_t bin;	/* buffers */
	uint32_t place; /* of its bin, in caches; see cache_place() */
	uint8_t state;	/* enum run_state, as far as live does not tell it */
	bool clean;	/* all bytes are zero */
	char *ptr;	/* buffers: what the user has; above base if alignment asked for it */
	char *base;
	uint64_t bytes;
	struct slab *slab; /* of RUN_SLAB, and of what is in it */
	struct extent *extent;
	struct run *list_prev, *list_next; /* in its frame's list if free, or in a bin */
	struct run *prev, *next;	   /* neighbours in the extent, if not in a slab */
	struct run *hash_next;		   /* buffers: pool->lookup */
	uint64_t since;			   /* held in a bin; see pool->stamp */
} __attribute__((aligned(64)));

/*
 * Who looks a pointer up, whatever it points to, has no lock: what he sees of a run or a slab
 * may change meanwhile, so it is read once, and written whole.
 */
static inline char *run_ptr(const struct run *run)
{
	return __atomic_load_n(&run->ptr, __ATOMIC_RELAXED);
}

static inline void run_set_ptr(struct run *run, char *ptr)
{
	__atomic_store_n(&run->ptr, ptr, __ATOMIC_RELAXED);
}

/* What ptr is, or NULL: whoever has the pointer may free it without the lock meanwhile. */
static inline char *run_live(const struct run *run)
{
	return __atomic_load_n(&run->live, __ATOMIC_RELAXED);
}

static inline void run_set_live(struct run *run, char *ptr)
{
	__atomic_store_n(&run->live, ptr, __ATOMIC_RELAXED);
}

/*
 * A neighbour may be asked about while its user allocates or frees it without the
 * lock: it is never free then.
 */
static inline enum run_state run_state(const struct run *run)
{
	uint8_t state = __atomic_load_n(&run->state, __ATOMIC_RELAXED);

	return state == RUN_ACTIVE && run_live(run) != run_ptr(run) ? RUN_CACHED
								    : (enum run_state)state;
}

static inline bool run_is_free(const struct run *run)
{
	return __atomic_load_n(&run->state, __ATOMIC_RELAXED) == RUN_FREE;
}

/* Its ptr is known. */
static inline void run_set_state(struct run *run, enum run_state state)
{
	run_set_live(run, state == RUN_ACTIVE ? run_ptr(run) : NULL);
	__atomic_store_n(&run->state, (uint8_t)(state == RUN_CACHED ? RUN_ACTIVE : state),
			 __ATOMIC_RELAXED);
}

static inline struct binpool *run_pool(const struct run *run)
{
	return __atomic_load_n(&run->pool, __ATOMIC_RELAXED);
}

static inline void run_set_pool(struct run *run, struct binpool *pool)
{
	__atomic_store_n(&run->pool, pool, __ATOMIC_RELAXED);
}

static inline struct slab *run_slab(const struct run *run)
{
	return __atomic_load_n(&run->slab, __ATOMIC_RELAXED);
}

static inline void run_set_slab(struct run *run, struct slab *slab)
{
	__atomic_store_n(&run->slab, slab, __ATOMIC_RELAXED);
}

/* Whether it is a user's buffer. */
static inline bool run_in_use(const struct run *run)
{
	return run_state(run) == RUN_ACTIVE || run_state(run) == RUN_NOTED;
}

/*
 * Free runs of an extent, by the frame that they begin in: a list for each, and how
 * large a run of it may be, so that the lowest that fits is found without looking at
 * many. Locked, but for what is fixed.
 */
#define INDEX_BITS 4 /* sizes are told apart as with so many mantissa bits */

struct frame_index {
	uint64_t frames;    /* fixed; 0: free runs are not indexed */
	int16_t *most;	    /* of each frame: no run is above; 0: there is none */
	struct run **first; /* of each frame, linked by list_next */
	int16_t most_of_all;
};

#endif /* BINPOOL_RUN_H */
