/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A provider and a registrar that fail on demand: at the n-th call, above a size, or
 * always, as when a driver is gone. For unit tests and fuzz targets. What is in use
 * belongs to the pool that it was given to; its callbacks come one at a time.
 */
#ifndef FAULTY_H
#define FAULTY_H

#include <stdbool.h>
#include <stdint.h>

#include <binpool.h>

struct faults {
	uint64_t calls;	  /* so far */
	uint64_t fail_at; /* this call fails, from 1 on; 0: none does */
	int fail_with;	  /* with this -errno */
	uint64_t largest; /* more bytes are refused; 0: no bound */
	bool gone;	  /* every call fails */
	uint64_t failed;  /* calls that did */
};

/*
 * Gives addresses with zero pages that cost nothing before they are touched, in the place
 * of a pool's own provider; a refusal is a shortage if its errno is ENOMEM. What it gives
 * back must be what it gave.
 */
struct faulty_provider {
	struct faults faults;
	bool in_place; /* extents may grow and shrink where they are; before the pool is made */
	bool loses;    /* where one could not grow, the addresses for it are gone */
	uint64_t extents, bytes, bytes_max; /* now, and at most so far */
};

/* A THP pool with @opts' other members; before it has an extent. NULL: options are refused. */
struct binpool *faulty_pool(const struct binpool_options *opts, struct faulty_provider *p);

/* Knows what is attached, and that a detach is of that. */
struct faulty_registrar {
	struct faults faults;
	uint64_t attached, released;
};

int faulty_registrar_add(struct binpool *pool, struct faulty_registrar *r, uint64_t *id);

#endif /* FAULTY_H */
