/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * io_uring for binpool pools: libbinpool-uring. Same conventions as binpool.h.
 * The ring belongs to the caller; the functions that take it are called by the
 * thread that owns the ring, one at a time.
 */
#ifndef BINPOOL_URING_H
#define BINPOOL_URING_H

#include <liburing.h>
#include <binpool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A ring's table of registered buffers, kept in step with a pool's extents. */
struct binpool_uring;

/*
 * Gives @ring a sparse table of @slots fixed buffers (1 to 16384) for the
 * extents of @pool; extents above 1 GiB take one slot per GiB. If the kernel
 * cannot register this memory (a block of the module before Linux 6.12, a low
 * RLIMIT_MEMLOCK) *out works all the same and every lookup answers -1: plain
 * reads into the same memory are then the way; binpool_uring_reason() says why.
 * The pool's next ring with as many slots shares the pages that this one has registered, which
 * are charged to RLIMIT_MEMLOCK once, where the kernel can (Linux 6.12).
 * Errors: -EBUSY the ring has a table already; -EEXIST the ring, which has
 * IORING_SETUP_SINGLE_ISSUER, is another thread's; -ENOMEM.
 */
int binpool_uring_attach(struct binpool *pool, struct io_uring *ring, uint32_t slots,
			 struct binpool_uring **out);

/*
 * Applies the extents' changes since the last call to the ring's table.
 * Returns the number of registered slots. Call it when no fixed request is in
 * flight on memory the pool may have given back. Errors: -EEXIST the ring, which has
 * IORING_SETUP_SINGLE_ISSUER, is another thread's; nothing is changed then.
 */
int binpool_uring_sync(struct binpool_uring *u);

/*
 * Slot that holds [@ptr, @ptr + @len), for io_uring_prep_read_fixed; -1 if no
 * single slot does: read without FIXED then.
 */
int binpool_uring_find(struct binpool_uring *u, const void *ptr, size_t len);

/* Why memory is not registered; "" if it is. Never NULL. */
const char *binpool_uring_reason(const struct binpool_uring *u);

/*
 * Unregisters the table and ends @u. The ring stays the caller's. Errors: -EEXIST the ring, which
 * has IORING_SETUP_SINGLE_ISSUER, is another thread's; nothing is changed then.
 * In a child of fork it frees the child's copy of @u only: the table is the parent's.
 */
int binpool_uring_detach(struct binpool_uring *u);

#ifdef __cplusplus
}
#endif

#endif /* BINPOOL_URING_H */
