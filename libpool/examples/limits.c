// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A limit, what the errors mean, and what to do about them.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <binpool.h>

#define MIB ((size_t)1 << 20)

int main(void)
{
	struct binpool_options options = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;
	void *large, *small;
	int err;

	options.name = "limited";
	options.max_bytes = 16 * MIB;
	err = binpool_create(&pool, &options);
	if (err) {
		fprintf(stderr, "error %d: %s\n", -err, binpool_last_error());
		return 1;
	}
	printf("at most %" PRId64 " bytes\n", binpool_max_bytes(pool));

	/* More than the limit can never be had: EFBIG. */
	large = binpool_alloc(pool, 32 * MIB);
	if (large || errno != EFBIG)
		return 1;
	printf("never: %s\n", binpool_last_error());

	/* More than is left, because others have it: ENOSPC. It may work later. */
	large = binpool_alloc(pool, 12 * MIB);
	small = binpool_alloc(pool, 8 * MIB);
	if (!large || small || errno != ENOSPC)
		return 1;
	printf("not now: %s\n", binpool_last_error());

	/* It can be asked before: this is about the limit only. */
	if (binpool_may_alloc(pool, 8 * MIB))
		return 1;

	/* Once somebody frees his, what is held makes room by itself. */
	binpool_free(pool, large);
	small = binpool_alloc(pool, 8 * MIB);
	if (!small)
		return 1;

	/* Freeing what is no live buffer is refused, and nothing changes. */
	err = binpool_free(pool, (char *)small + 1);
	printf("error %d: %s\n", -err, binpool_last_error());
	if (err != -EINVAL || binpool_destroy(pool) != -EBUSY)
		return 1;
	return binpool_free(pool, small) || binpool_destroy(pool);
}
