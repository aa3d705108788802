// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A program that begins to work while its memory is being registered: buffers are there at
 * once, and a thread of the pool's has the driver know them, one after the other.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <binpool.h>

#define BUFFERS 4
#define BYTES	((size_t)16 << 20)

/* What stands for a driver here takes its time. */
static int attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	const struct timespec t = {.tv_nsec = 10000000};

	(void)ctx;
	(void)extent;
	(void)cookie;
	return nanosleep(&t, NULL);
}

static void detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	(void)ctx;
	(void)extent;
	(void)cookie;
}

static int failed(void)
{
	fprintf(stderr, "%s\n", binpool_last_error());
	return 1;
}

int main(void)
{
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops), .name = "driver", .attach = attach, .detach = detach};
	struct binpool_stats stats = {.size = sizeof(stats)};
	struct binpool *pool;
	char *buffer[BUFFERS];
	uint64_t id;

	/* 8 GiB a second at most, so that other processes get a word in with the driver. */
	if (binpool_create(&pool, NULL) ||
	    binpool_register_in_background(pool, (uint64_t)8 << 30) ||
	    binpool_add_registrar(pool, &ops, &id))
		return failed();
	for (int i = 0; i < BUFFERS; i++) {
		buffer[i] = binpool_alloc(pool, BYTES);
		if (!buffer[i])
			return failed();
		memset(buffer[i], i, BYTES);
	}
	/* The first one is wanted now: it is the next to be registered. */
	if (binpool_wait_registered(pool, buffer[0], UINT32_MAX) || binpool_get_stats(pool, &stats))
		return failed();
	printf("%" PRIu64 " of %" PRIu64 " bytes are registered\n", stats.registered_bytes,
	       stats.reserved_bytes);
	if (binpool_wait_registered(pool, NULL, UINT32_MAX))
		return failed();
	for (int i = 0; i < BUFFERS; i++)
		if (binpool_wait_registered(pool, buffer[i], 0) || binpool_free(pool, buffer[i]))
			return failed();
	return binpool_destroy(pool);
}
