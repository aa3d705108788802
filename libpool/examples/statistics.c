// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What a pool did: counters for the program, a table for people, lines of
 * key=value for whoever collects them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <binpool.h>

/* The report in @format; the caller frees it. */
static char *report(struct binpool *pool, uint32_t format)
{
	int len = binpool_report(pool, format, NULL, 0);
	char *text = len < 0 ? NULL : malloc((size_t)len + 1);

	/* Other threads may change what it says, and its length, between the two calls. */
	if (text)
		binpool_report(pool, format, text, (size_t)len + 1);
	return text;
}

/* A cache of something else keeps its statistics by the same rules. */
static int own(void)
{
	struct binpool_stats mine = {.size = sizeof(mine)};

	binpool_stats_push_alloc(&mine, 100, 5000);
	binpool_stats_push_return(&mine, 100);
	binpool_stats_push_reuse(&mine, 100);
	binpool_stats_push_free(&mine, 100, 700);
	return binpool_stats_reuse_factor(&mine) != 0.5 || mine.active_blocks;
}

int main(void)
{
	struct binpool_stats stats = {.size = sizeof(stats)};
	struct binpool *pool;
	char *table, *keys;
	void *p[8];
	int ok;

	if (binpool_create(&pool, NULL)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	for (int round = 0; round < 1000; round++) {
		for (size_t i = 0; i < 8; i++) {
			p[i] = binpool_alloc(pool, (i + 1) << 12);
			if (!p[i]) {
				fprintf(stderr, "%s\n", binpool_last_error());
				return 1;
			}
		}
		for (size_t i = 0; i < 8; i++)
			binpool_free(pool, p[i]);
	}

	if (binpool_get_stats(pool, &stats))
		return 1;
	printf("%" PRIu64 " requests, %" PRIu64 " of them served with a held buffer\n",
	       stats.allocs + stats.reuses, stats.reuses);
	printf("memory from %s, %" PRIu64 " bytes, got in %" PRIu64 " calls\n",
	       binpool_provider_name(stats.provider), stats.reserved_bytes, stats.extent_allocs);

	printf("reuse factor %.3f; new memory takes %" PRId64 " ns, giving it back %" PRId64
	       " ns\n",
	       binpool_stats_reuse_factor(&stats), binpool_stats_mean_alloc_ns(&stats),
	       binpool_stats_mean_free_ns(&stats));

	table = report(pool, BINPOOL_REPORT_TABLE);
	keys = report(pool, BINPOOL_REPORT_KEYS);
	ok = table && keys && strstr(keys, "\nactive_blocks=0\n") && stats.reuses == 8 * 999;
	fflush(stdout);
	if (binpool_print_report(pool, BINPOOL_REPORT_TABLE, 1))
		return 1;
	free(table);
	free(keys);
	return binpool_destroy(pool) || !ok || own();
}
