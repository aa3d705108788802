// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A pool, two buffers, and where the memory comes from.
 *
 *	cc first.c $(pkg-config --cflags --libs binpool)
 */
#include <stdio.h>
#include <string.h>

#include <binpool.h>

#define BYTES ((size_t)1 << 20)

int main(void)
{
	struct binpool *pool;
	char *in, *out;
	int same;

	if (binpool_create(&pool, NULL)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	printf("%s\n", binpool_provider_reason(pool));

	in = binpool_alloc(pool, BYTES);
	out = binpool_alloc(pool, BYTES);
	if (!in || !out) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	memset(in, 42, BYTES);
	memcpy(out, in, BYTES);
	same = !memcmp(in, out, BYTES);
	printf("copied %zu bytes: %s\n", BYTES, same ? "equal" : "different");

	/* A buffer that is freed is held, and is the next one of its size. */
	binpool_free(pool, in);
	if (binpool_alloc(pool, BYTES) != in)
		return 1;
	binpool_free(pool, in);
	binpool_free(pool, out);
	return binpool_destroy(pool) || !same;
}
