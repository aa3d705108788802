// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Two pools of libbinpool, over anonymous huge pages.
 */
#include <stdio.h>

#include <binpool.h>

#include "peer.h"

static struct binpool *pools[POOLS];

static int begin(const struct bench *bench)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;

	o.provider = BINPOOL_PROVIDER_THP;
	o.cache_bytes = bench->cache_bytes;
	for (int i = 0; i < POOLS; i++) {
		if (binpool_create(&pools[i], &o)) {
			fprintf(stderr, "hotpath: %s\n", binpool_last_error());
			return -1;
		}
	}
	return 0;
}

static void end(void)
{
	for (int i = 0; i < POOLS; i++)
		binpool_destroy(pools[i]);
}

static void *pool_alloc(int pool, size_t bytes)
{
	return binpool_alloc(pools[pool], bytes);
}

static void pool_free(int pool, void *ptr)
{
	binpool_free(pools[pool], ptr);
}

static size_t usable(int pool, void *ptr)
{
	struct binpool_buf buf = {.size = sizeof(buf)};

	return binpool_buf_info(pools[pool], ptr, &buf) ? 0 : buf.capacity;
}

static uint64_t reserved_max(void)
{
	struct binpool_stats st = {.size = sizeof(st)};

	return binpool_get_stats(pools[0], &st) ? 0 : st.reserved_max_bytes;
}

const struct peer peer_binpool = {
	.begin = begin,
	.end = end,
	.alloc = pool_alloc,
	.free = pool_free,
	.usable = usable,
	.reserved_max = reserved_max,
};
