/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Arenas of a pool; arena.c says what they are for. Part of pool.h.
 */
#ifndef BINPOOL_ARENA_H
#define BINPOOL_ARENA_H

#include "pool.h"

/* No pool has more; nor more than there are CPUs. */
#define ARENAS_MAX 64u

/* Extents that some of the threads take from first. */
struct arena {
	struct lock lock;
	const void *holder;	/* for assertions, if only this one is held; see thread_self() */
	struct extent *extents; /* the oldest first, linked by arena_next */
	struct extent *empty;	/* those without buffers, linked by empty_next */
	struct run *spare;	/* unused struct runs, through next */
	uint64_t spares;	/* how many */
	uint32_t threads;	/* whose arena it is, without idle ones; locked */
} __attribute__((aligned(64)));

void arenas_init(struct binpool *pool);
void arenas_fini(struct binpool *pool);
/* What the pool's lock is beside the first arena's: taken after that, and let go before. */
void arenas_lock_rest(struct binpool *pool);
void arenas_unlock_rest(struct binpool *pool);
void arena_add(struct arena *arena, struct extent *e);
void arena_remove(struct extent *e);
bool arena_feed(struct binpool *pool, struct arena *arena, uint64_t bytes, uint64_t align);

#endif /* BINPOOL_ARENA_H */
