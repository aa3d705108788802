/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Who must know about extents (registrar.c), and the thread that tells them (background.c).
 * Part of pool.h.
 */
#ifndef BINPOOL_REGISTRAR_PRIVATE_H
#define BINPOOL_REGISTRAR_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>

#include <binpool.h>

struct extent;

struct registrar {
	struct registrar *prev, *next;
	struct binpool_registrar_ops ops;
	char *name;
	uint64_t id;
	uint64_t attached; /* extents with an attachment of it */
	bool over;	   /* in no list any more, and goes with the last of them */
};

/* registrar.c; in turn. */
int registrars_attach(struct binpool *pool, struct extent *e);
/* False: not all could be, see try_detach; explained. */
bool registrars_detach(struct binpool *pool, struct extent *e);
/* In a forked child: nobody is told. */
void registrars_forget(struct extent *e);
/*
 * Attaches whatever registrar has not got the extent, or not any more. The first error,
 * explained; those after it are tried all the same. The extent is linked.
 */
int registrars_complete(struct binpool *pool, struct extent *e);
/* Detaches what is lost of a linked extent, so that nobody relies on it. */
void registrars_drop_lost(struct binpool *pool, struct extent *e);
/* The extent that @ptr is in, or NULL. */
struct extent *registrars_extent_at(struct binpool *pool, const void *ptr);
void registrars_fini(struct binpool *pool);

/* background.c */
/* NULL: extents are registered by whoever gets them. */
static inline struct background *background_of(struct background *const *background)
{
	return __atomic_load_n(background, __ATOMIC_ACQUIRE);
}
/* There is something to register. No lock is held but the turn. */
void background_kick(struct background *b);
/* Ends the thread; in a forked child there is none: forgets it. No lock is held. */
void background_stop(struct binpool *pool);

#endif /* BINPOOL_REGISTRAR_PRIVATE_H */
