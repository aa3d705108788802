// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers that are handles: here rows of a table, elsewhere memory of a device. A second
 * pool takes its buffers from the first.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <binpool.h>

#define ROWS 8

/* Bytes of each row that is taken. A row's handle is its number from 1 on. */
static uint64_t rows[ROWS];

static int row_alloc(void *ctx, uint64_t bytes, uint64_t *handle)
{
	(void)ctx;
	for (uint64_t i = 0; i < ROWS; i++) {
		if (rows[i])
			continue;
		rows[i] = bytes;
		*handle = i + 1;
		return 0;
	}
	/* The pool gives back what it holds, and asks again. */
	return -ENOMEM;
}

static void row_free(void *ctx, uint64_t handle, uint64_t bytes)
{
	(void)ctx;
	(void)bytes;
	rows[handle - 1] = 0;
}

static int say_why(void)
{
	fprintf(stderr, "%s\n", binpool_last_error());
	return 1;
}

static int make(struct binpool **pool, const struct binpool_allocator_ops *ops)
{
	struct binpool_options options = BINPOOL_OPTIONS_INIT;

	options.kind = BINPOOL_KIND_HANDLE;
	options.provider = BINPOOL_PROVIDER_ALLOCATOR;
	options.allocator = ops;
	return binpool_create(pool, &options);
}

int main(void)
{
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops), .alloc_handle = row_alloc, .free_handle = row_free};
	struct binpool_buf buf = {.size = sizeof(buf)}, again = {.size = sizeof(again)};
	struct binpool *pool, *part_of;

	if (make(&pool, &ops) || binpool_handle_alloc(pool, 1000, &buf))
		return say_why();
	printf("row %" PRIu64 " has %" PRIu64 " bytes\n", buf.handle, buf.capacity);
	/* A freed row is held, and comes back for what is of its class. */
	if (binpool_handle_free(pool, &buf) || binpool_handle_alloc(pool, 999, &again) ||
	    again.handle != buf.handle || binpool_handle_free(pool, &again))
		return say_why();

	/* A pool of a part of the program, with a limit of its own, is fed by this one. */
	if (binpool_pool_allocator(pool, &ops) || make(&part_of, &ops) ||
	    binpool_handle_alloc(part_of, 1000, &buf))
		return say_why();
	printf("row %" PRIu64 " by way of another pool\n", buf.handle);
	if (binpool_destroy(pool) != -EBUSY)
		return 1;
	if (binpool_handle_free(part_of, &buf) || binpool_destroy(part_of) || binpool_destroy(pool))
		return say_why();
	return 0;
}
