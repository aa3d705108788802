/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Who must know about memory, as drivers that pin it: a part of binpool.h, which includes this.
 */
#ifndef BINPOOL_REGISTER_H
#define BINPOOL_REGISTER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct binpool;

/* An extent as a registrar sees it. */
struct binpool_extent {
	size_t size;
	void *ptr;
	uint64_t bytes;
	int32_t fd;   /* file behind it, -1: none; owned by the pool */
	int32_t node; /* -1: unknown or several */
};

/*
 * Somebody who must know about extents. Called without a lock held, never
 * twice at once for one pool. attach is called for each extent there is when
 * the registrar is added and for each one got later, before any buffer of it
 * is handed out; what it stores in *cookie is handed to detach, which is
 * called before the extent's memory goes. An error of attach refuses the
 * extent: those attached before are detached in reverse order and the
 * allocation fails with it. release, if there is one, is called once, after the
 * last detach, when the registrar is removed or the pool destroyed; not if
 * binpool_add_registrar failed.
 */
struct binpool_registrar_ops {
	size_t size;
	const char *name; /* copied */
	void *ctx;
	int (*attach)(void *ctx, const struct binpool_extent *extent, void **cookie);
	void (*detach)(void *ctx, const struct binpool_extent *extent, void *cookie);
	void (*release)(void *ctx);
	uint32_t flags;	   /* BINPOOL_REGISTRAR_* */
	uint32_t reserved; /* 0 */
	/*
	 * Whether the extent is attached still: 0, or a negative errno if what attach did has
	 * come to nothing, as when a device was reset. It is detached then, counted in
	 * registrations_lost, and attached again by whoever looked, binpool_query excepted:
	 * binpool_wait_registered, and the pool when it gets its next extent. May be NULL.
	 */
	int (*check)(void *ctx, const struct binpool_extent *extent, void *cookie);
	/*
	 * In the place of detach, if it is not NULL, for who may fail with it: 0, or a negative
	 * errno, explained. The memory then stays where it is, and is no more than counted, in
	 * stuck_bytes; whoever gives memory back, and binpool_destroy, try again, as do those who
	 * remove the registrar. So it is called, too, where attach failed and left something in
	 * *cookie. @ctx is needed until it succeeded, also after binpool_add_registrar failed.
	 */
	int (*try_detach)(void *ctx, const struct binpool_extent *extent, void *cookie);
};

/* An extent that it refuses is used all the same, and counted in registrations_refused. */
#define BINPOOL_REGISTRAR_OPTIONAL (1u << 0)
/* attach reads or writes the memory: before any buffer of it is handed out, never in background. */
#define BINPOOL_REGISTRAR_BEFORE_USE (1u << 1)

/* Adds a registrar and attaches all extents; *id names it. Errors: attach's; -EINVAL handles. */
int binpool_add_registrar(struct binpool *pool, const struct binpool_registrar_ops *ops,
			  uint64_t *id);

/*
 * Detaches all extents and forgets it. Errors: -ENOENT; try_detach's: what could be detached is,
 * and the registrar stays.
 */
int binpool_remove_registrar(struct binpool *pool, uint64_t id);

/*
 * Has all registrars know of the extent that @ptr is in, or with NULL of all extents: 0. What an
 * optional registrar refused, or what was lost, is tried again. Where that is done in the
 * background it is waited for, up to @ms milliseconds (UINT32_MAX: as long as it takes), and
 * that extent is the next; with 0 this is a question.
 * Errors: attach's; -ENOENT no extent of this pool is there; -EAGAIN not yet, and @ms is 0;
 * -ETIMEDOUT not within @ms.
 */
int binpool_wait_registered(struct binpool *pool, const void *ptr, uint32_t ms);

/*
 * From now on extents are handed out at once and registered by a thread of the pool's, one after
 * the other, the oldest first; so are those that there are, for registrars that come. A process
 * can begin to work while its memory is being registered. At most @bytes_per_second, on
 * average over an extent or more; 0: none until this is called again, BINPOOL_UNLIMITED: as
 * fast as it goes. An extent at a time is the provider's or a registrar's, so that
 * others who need one wait no longer than that. Registrars with BINPOOL_REGISTRAR_BEFORE_USE are
 * not affected. What is refused is used all the same, counted, and tried again when
 * binpool_wait_registered or this is called. Errors: -EAGAIN, -ENOMEM no thread.
 */
int binpool_register_in_background(struct binpool *pool, uint64_t bytes_per_second);

#ifdef __cplusplus
}
#endif

#endif /* BINPOOL_REGISTER_H */
