// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * BINPOOL_POOL_DEBUG: free buffers are filled with a byte that nobody may change. Owns
 * nothing; locked, for as long as filling takes, which is what makes such a pool slow.
 *
 * A buffer is filled when nobody has it any more: after its fences and its references.
 */
#include <stdlib.h>
#include <string.h>

#include "pool.h"

#define POISON 0xdb

static bool debugged(const struct binpool *pool, const struct run *run)
{
	/* A handle is no memory, and size 0 has none. */
	return pool->flags & BINPOOL_POOL_DEBUG && !pool->handles && !run->extent->is_void;
}

void debug_poison(const struct binpool *pool, const struct run *run)
{
	assert_locked(pool);
	if (debugged(pool, run))
		memset(run->base, POISON, run->bytes);
}

void debug_check(const struct binpool *pool, const struct run *run)
{
	const unsigned char *bytes = (const unsigned char *)run->base;
	uint64_t i = 0;

	assert_locked(pool);
	if (!debugged(pool, run))
		return;
	while (i < run->bytes && bytes[i] == POISON)
		i++;
	if (i == run->bytes)
		return;
	fprintf(stderr,
		"%s%s: the buffer at %p, of %llu bytes, was written to while it was free, at "
		"offset %llu: by who freed it, or by a copy or a device that was not through with it "
		"(binpool_free_after)\n",
		pool_prefix(pool), pool->name, (void *)run->ptr, (unsigned long long)run->bytes,
		(unsigned long long)i);
	abort();
}
