// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers with an alignment, with zeroed bytes, and what is known of one; and
 * what a size costs before it is asked for.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <binpool.h>

int main(void)
{
	struct binpool_alloc_opts want = {.size = sizeof(want)};
	struct binpool_buf buf = {.size = sizeof(buf)};
	const size_t size = 100000;
	struct binpool *pool;
	int64_t bin;
	char *p;

	if (binpool_create(&pool, NULL)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	bin = binpool_pool_bin_number(pool, size);
	printf("%zu bytes are in bin %" PRId64 ", whose buffers have %" PRId64 "\n", size, bin,
	       binpool_pool_alloc_size(pool, (uint32_t)bin));

	/* At a multiple of 2 MiB, say for a device that maps by huge pages. */
	p = binpool_alloc_aligned(pool, size, (size_t)2 << 20);
	if (!p || (uintptr_t)p % ((uintptr_t)2 << 20))
		return 1;
	/* With the size that it was asked for, which is checked. */
	if (binpool_free_sized(pool, p, size - 1) != -EINVAL || binpool_free_sized(pool, p, size))
		return 1;

	/* Zeroed, from the beginning of a page: memory that is clean already costs nothing. */
	want.bytes = size;
	want.alignment = (uint64_t)sysconf(_SC_PAGESIZE);
	want.flags = BINPOOL_BUF_ZEROED;
	if (binpool_alloc_ex(pool, &want, &buf)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	if ((uintptr_t)buf.ptr % want.alignment)
		return 1;
	for (size_t i = 0; i < size; i++)
		if (((char *)buf.ptr)[i])
			return 1;
	printf("asked for %" PRIu64 ", got %" PRIu64 " on node %" PRId32 ", all zero\n", buf.bytes,
	       buf.capacity, buf.node);

	/* The same can be asked of any live buffer. */
	p = buf.ptr;
	if (binpool_buf_info(pool, p, &buf) || buf.bytes != size)
		return 1;
	return binpool_free(pool, p) || binpool_destroy(pool);
}
