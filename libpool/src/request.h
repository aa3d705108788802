/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A request on its way through alloc.c and grow.c.
 */
#ifndef BINPOOL_REQUEST_H
#define BINPOOL_REQUEST_H

#include "pool.h"

struct request {
	uint64_t bytes;
	uint64_t capacity; /* of the buffer that serves it */
	uint64_t align;
	uint64_t run_bytes; /* of the free run that is needed, if only for a slab */
	uint64_t run_align;
	uint32_t bin;
	struct arena *arena; /* for its memory; NULL: any, if it is not to grow */
	bool is_void;	     /* addresses are all it needs */
	bool in_slab;
	bool reserve_only; /* a free run is wanted, no buffer */
};

/* alloc.c; locked. */
int request_prepare(struct binpool *pool, const struct request *req);
struct run *request_take(struct binpool *pool, const struct request *req, bool *reused);

/* grow.c; locked before and after. */
int request_miss(struct binpool *pool, const struct request *req, struct run **out, bool *reused);

#endif /* BINPOOL_REQUEST_H */
