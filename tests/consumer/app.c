// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A consumer in C: takes, fills and returns a buffer, asks what there is to ask.
 */
#include <binpool.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	struct binpool_stats stats = {.size = sizeof(stats)};
	struct binpool *pool;
	char *p;

	if (binpool_create(&pool, NULL)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	p = binpool_alloc(pool, 5000);
	if (!p)
		return 1;
	memset(p, 1, 5000);
	if (binpool_get_stats(pool, &stats) || stats.active_blocks != 1)
		return 1;
	printf("%s\n", binpool_provider_name(stats.provider));
	return binpool_free(pool, p) || binpool_destroy(pool);
}
