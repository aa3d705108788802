/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Buffers that wait until nothing is at work on them (fence.c), and requests that
 * wait for room (wait.c). Part of pool.h.
 */
#ifndef BINPOOL_SRC_FENCE_H
#define BINPOOL_SRC_FENCE_H

#include <stdbool.h>
#include <stdint.h>

#include <binpool.h>

struct pending;

/* Buffers that wait for fences, the one to be asked next first. Locked. */
struct fences {
	struct pending *first, *last;
	uint64_t count;
	uint64_t bytes;	 /* capacity */
	uint64_t asking; /* threads that ask one of them just now */
};

/* What share.c has of the buffer goes to who waits for its fences. Locked. */
void pending_share(struct pending *p, uint32_t slot);

/* So many buffers' fences are asked in one call, if nothing hangs on it. */
#define FENCES_PER_CALL 64u

/* Asks the fences of up to @most buffers; how many were freed. No lock is held. */
uint64_t fences_poll(struct binpool *pool, uint64_t most);
const char *fences_check(const struct binpool *pool, uint64_t resting);
void fences_fini(struct binpool *pool);

/* ---- Waiting: wait.c ----------------------------------------------------- */

/* Whether an error is one that time may cure. */
bool wait_helps(int err);
/* As allocate(), which was refused, again and again as long as the options say. */
int allocate_waiting(struct binpool *pool, const struct binpool_alloc_opts *o,
		     struct binpool_buf *buf);

#endif /* BINPOOL_SRC_FENCE_H */
