// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A consumer that links libbinpool-uring.
 */
#include <binpool_uring.h>
#include <stdio.h>

int main(void)
{
	struct binpool_uring *table;
	struct io_uring ring;
	struct binpool *pool;

	if (binpool_create(&pool, NULL))
		return 1;
	if (io_uring_queue_init(2, &ring, 0)) {
		puts("no io_uring here");
		return binpool_destroy(pool);
	}
	if (binpool_uring_attach(pool, &ring, 2, &table) || binpool_uring_detach(table))
		return 1;
	io_uring_queue_exit(&ring);
	puts("attached");
	return binpool_destroy(pool);
}
