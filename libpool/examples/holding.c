// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory that is got ahead, kept, and given back.
 */
#include <inttypes.h>
#include <stdio.h>

#include <binpool.h>

#define MIB ((size_t)1 << 20)

static uint64_t reserved(struct binpool *pool)
{
	struct binpool_stats stats = {.size = sizeof(stats)};

	binpool_get_stats(pool, &stats);
	return stats.reserved_bytes;
}

int main(void)
{
	struct binpool *pool;
	void *p;

	if (binpool_create(&pool, NULL)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	/* Now, so that no request waits for the provider and the registrars. */
	if (binpool_reserve(pool, 16 * MIB)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	printf("reserved %" PRIu64 " bytes\n", reserved(pool));

	/* Freed buffers are held... */
	p = binpool_alloc(pool, 3 * MIB);
	if (!p || binpool_free(pool, p) || binpool_held_blocks(pool) != 1)
		return 1;
	/* ...until the program is done with this phase and gives all back. */
	if (binpool_free_held(pool) || binpool_held_blocks(pool) || reserved(pool))
		return 1;
	printf("gave all of it back\n");

	/* A program that shuts down does not want to hold anything any more. */
	binpool_stop_holding(pool);
	p = binpool_alloc(pool, 3 * MIB);
	if (!p || binpool_free(pool, p) || binpool_held_blocks(pool) || reserved(pool))
		return 1;
	/* It changed its mind. */
	binpool_resume_holding(pool);
	p = binpool_alloc(pool, 3 * MIB);
	if (!p || binpool_free(pool, p) || binpool_held_blocks(pool) != 1)
		return 1;
	return binpool_destroy(pool);
}
