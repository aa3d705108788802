// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The malloc that this process has; LD_PRELOAD decides which.
 */
#include <malloc.h>
#include <stdlib.h>

#include "peer.h"

static int begin(const struct bench *bench)
{
	(void)bench;
	return 0;
}

static void end(void)
{
}

static void *malloc_alloc(int pool, size_t bytes)
{
	(void)pool;
	return malloc(bytes);
}

static void malloc_free(int pool, void *ptr)
{
	(void)pool;
	free(ptr);
}

static size_t usable(int pool, void *ptr)
{
	(void)pool;
	return malloc_usable_size(ptr);
}

const struct peer peer_malloc = {
	.begin = begin,
	.end = end,
	.alloc = malloc_alloc,
	.free = malloc_free,
	.usable = usable,
};
