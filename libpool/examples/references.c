// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A buffer that several have: references, parts, tags; who still has one; what memory an
 * address is in; and giving back what nobody used for a while.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <binpool.h>

#define BATCH_BYTES 1000000
#define IMAGE_BYTES 50000

static int say_why(void)
{
	fprintf(stderr, "%s\n", binpool_last_error());
	return 1;
}

/* Whoever has an address can ask what it belongs to. */
static int tell(const void *ptr)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};

	if (binpool_query(ptr, &info))
		return say_why();
	printf("a byte at %" PRId64 " of a buffer of %" PRIu64 " bytes (%s) with %" PRIu64
	       " references, in pages of %" PRIu64 " bytes\n",
	       info.offset, info.bytes, info.tag, info.references, info.page_bytes);
	return 0;
}

int main(void)
{
	struct binpool_alloc_opts opts = {
		.size = sizeof(opts), .bytes = BATCH_BYTES, .tag = "batch"};
	struct binpool_buf batch = {.size = sizeof(batch)}, image = {.size = sizeof(image)};
	char leaks[2000];
	struct binpool *pool;

	if (binpool_create(&pool, NULL) || binpool_alloc_ex(pool, &opts, &batch))
		return say_why();

	/* One user gets a part, another the whole; the loader itself is done with it. */
	if (binpool_buffer_sub(pool, &batch, 3 * IMAGE_BYTES, IMAGE_BYTES, &image) ||
	    binpool_buffer_get(pool, &batch) || binpool_free(pool, batch.ptr))
		return say_why();
	memset(image.ptr, 1, image.bytes);
	if (tell((char *)image.ptr + 7))
		return 1;

	/* Who forgot to give his up? */
	if (binpool_leaks(pool, BINPOOL_REPORT_TABLE, leaks, sizeof(leaks)) > 0)
		printf("%s", leaks);

	/* The last to give up his reference frees the buffer. */
	if (binpool_buffer_put(pool, &batch) || binpool_buffer_put(pool, &image))
		return say_why();

	/* What was not used for a minute; and all of it. */
	printf("unused for a minute: %" PRId64 " bytes\n", binpool_trim(pool, 0, 60000));
	if (binpool_trim(pool, 0, 0) <= 0)
		return 1;
	return binpool_destroy(pool);
}
