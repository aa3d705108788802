// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A pool over an allocator of one's own: here malloc, with a bound. The pool
 * adds bins, limits and counters.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <binpool.h>

struct arena {
	uint64_t left; /* bytes */
	unsigned int calls;
};

static int arena_alloc(void *ctx, uint64_t bytes, void **ptr)
{
	struct arena *arena = ctx;

	arena->calls++;
	if (bytes > arena->left) {
		/* The pool gives back what it holds, and asks again. */
		binpool_set_last_error("the arena is used up");
		return -ENOMEM;
	}
	*ptr = malloc(bytes);
	if (!*ptr)
		return -ENOMEM;
	arena->left -= bytes;
	return 0;
}

static void arena_free(void *ctx, void *ptr, uint64_t bytes)
{
	struct arena *arena = ctx;

	arena->left += bytes;
	free(ptr);
}

int main(void)
{
	struct arena arena = {.left = 1 << 20};
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops),
		.ctx = &arena,
		.alloc = arena_alloc,
		.free = arena_free,
	};
	struct binpool_options options = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;
	void *p, *q;

	options.name = "arena";
	options.provider = BINPOOL_PROVIDER_ALLOCATOR;
	options.allocator = &ops;
	if (binpool_create(&pool, &options)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	for (int i = 0; i < 1000; i++)
		binpool_free(pool, binpool_alloc(pool, 600000));
	printf("1000 buffers, %u calls of the allocator\n", arena.calls);

	/* The held buffer goes to make room for one of another size. */
	p = binpool_alloc(pool, 800000);
	q = binpool_alloc(pool, 800000);
	printf("%s\n", binpool_last_error());
	if (!p || q || binpool_free(pool, p) || binpool_destroy(pool))
		return 1;
	return arena.left != 1 << 20;
}
