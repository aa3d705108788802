// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Many buffers at once: all of a batch, or none.
 */
#include <errno.h>
#include <stdio.h>

#include <binpool.h>

#define BATCH 64
#define BYTES ((size_t)64 << 10)

int main(void)
{
	struct binpool_options options = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;
	void *one[BATCH], *two[BATCH];
	int err;

	/* Enough for one batch of buffers, not for two. */
	options.max_bytes = 6u << 20;
	if (binpool_create(&pool, &options)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	err = binpool_alloc_bulk(pool, BYTES, BATCH, one);
	if (err) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	/* A batch that does not fit leaves nothing behind. */
	err = binpool_alloc_bulk(pool, BYTES, BATCH, two);
	printf("error %d: %s\n", -err, binpool_last_error());
	if (err != -ENOSPC)
		return 1;
	if (binpool_free_bulk(pool, BATCH, one) || binpool_alloc_bulk(pool, BYTES, BATCH, two))
		return 1;
	printf("%d buffers of %zu bytes\n", BATCH, BYTES);
	return binpool_free_bulk(pool, BATCH, two) || binpool_destroy(pool);
}
