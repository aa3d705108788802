/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Buffers that other processes may know of (share.c). Part of pool.h.
 */
#ifndef BINPOOL_SRC_SHARE_H
#define BINPOOL_SRC_SHARE_H

#include <stdint.h>

struct binpool;
struct generations;

/* The generations of buffers that were exported. Locked. */
struct shares {
	struct generations *files;
	uint32_t *unused; /* slots */
	uint32_t unused_n, slots;
};

/* The buffer of a slot, none if 0, is free from now on: whoever imported it sees that. Locked. */
void share_end(struct binpool *pool, uint32_t slot);
void shares_fini(struct binpool *pool);

#endif /* BINPOOL_SRC_SHARE_H */
