/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Buffers that something is still at work on when they are freed: a part of binpool.h,
 * which includes this.
 */
#ifndef BINPOOL_FENCE_H
#define BINPOOL_FENCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct binpool;

/* kind */
#define BINPOOL_FENCE_EVENTFD  1
#define BINPOOL_FENCE_COUNTER  2
#define BINPOOL_FENCE_CALLBACK 3

/*
 * What says that nobody but the host touches a buffer any more. Copied, so it need
 * not outlive the call.
 *  EVENTFD: over when @fd polls readable, hung up or in error. An eventfd, which is
 *	never read, or any other descriptor: a pidfd is over when the process is, a pipe when
 *	its other end is closed. Duplicated: the caller may close his own.
 *  COUNTER: over when (int64_t)(*@counter - @target) >= 0; read with acquire. It has
 *	to stay where it is until then.
 *  CALLBACK: @done answers 1 if it is over, 0 if not yet, or a negative errno if
 *	there is no more to wait for, as the device is gone: that counts as over, and
 *	in fence_errors. @release, if there is one, is called once, when the pool has no
 *	more use for the fence. Both are called without a lock held, from any thread that
 *	uses the pool, and may not use that pool (-EDEADLK). Not after fork in the child.
 */
struct binpool_fence {
	size_t size;
	uint32_t kind; /* BINPOOL_FENCE_* */
	int32_t fd;
	const uint64_t *counter;
	uint64_t target;
	void *ctx;
	int (*done)(void *ctx);
	void (*release)(void *ctx);
};

/*
 * As binpool_free, for a buffer that something is still at work on (in a pool of handles
 * @ptr is the handle): it rests until
 * all @n fences are over, and is handed out to nobody before. (struct
 * binpool_fence::size, the same in all of them, is how far apart they are.) Until then
 * it is in use as far as counters, limits and binpool_destroy are concerned, but nobody's
 * to free: pending. Fences are asked when a request finds nothing free, when
 * memory is to be given back, and in binpool_poll; a few at a time, in turn, so that one
 * which is never over keeps none of the others.
 * Errors: -EINVAL as binpool_free's, or a fence that makes no sense; -EBADF, -EMFILE of
 * an EVENTFD; -ENOMEM. The buffer is still the caller's then, and no release was called.
 */
int binpool_free_after(struct binpool *pool, void *ptr, const struct binpool_fence *fences,
		       size_t n);

/*
 * Asks some of the fences, and frees the buffers for which all are over. Returns the
 * number of buffers that still wait.
 */
int64_t binpool_poll(struct binpool *pool);

#ifdef __cplusplus
}
#endif

#endif /* BINPOOL_FENCE_H */
