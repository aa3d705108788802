// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * io_uring: a file is read into buffers that the ring knows as fixed ones. Where
 * the kernel does not register the memory, plain reads do the same.
 *
 *	cc uring.c $(pkg-config --cflags --libs binpool-uring) -luring
 *	./a.out FILE
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <binpool_uring.h>

#define BYTES ((size_t)1 << 20)
#define SLOTS 16
/* For those who run examples as tests. */
#define EXIT_SKIPPED 77

int main(int argc, char **argv)
{
	const char *path = argc > 1 ? argv[1] : "/proc/self/exe";
	unsigned long long total = 0, fixed = 0, reads = 0;
	struct binpool_uring *table;
	struct io_uring ring;
	struct binpool *pool;
	int fd, err, got;
	char *buffer;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		perror(path);
		return 1;
	}
	err = io_uring_queue_init(8, &ring, 0);
	if (err) {
		printf("there is no io_uring: %s\n", strerror(-err));
		return EXIT_SKIPPED;
	}
	if (binpool_create(&pool, NULL) || binpool_uring_attach(pool, &ring, SLOTS, &table)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	buffer = binpool_alloc(pool, BYTES);
	if (!buffer) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	/* The pool may have grown: the ring's thread has it put into the table. */
	printf("%d slots registered\n", binpool_uring_sync(table));
	if (*binpool_uring_reason(table))
		printf("not all of it: %s\n", binpool_uring_reason(table));

	do {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
		int slot = binpool_uring_find(table, buffer, BYTES);
		struct io_uring_cqe *cqe;

		if (slot >= 0)
			io_uring_prep_read_fixed(sqe, fd, buffer, BYTES, total, slot);
		else
			io_uring_prep_read(sqe, fd, buffer, BYTES, total);
		if (io_uring_submit(&ring) != 1 || io_uring_wait_cqe(&ring, &cqe))
			return 1;
		got = cqe->res;
		io_uring_cqe_seen(&ring, cqe);
		if (got < 0) {
			fprintf(stderr, "%s: %s\n", path, strerror(-got));
			return 1;
		}
		total += (unsigned long long)got;
		reads++;
		fixed += slot >= 0;
	} while (got);
	printf("%llu bytes in %llu reads, %llu of them into a fixed buffer\n", total, reads, fixed);

	binpool_free(pool, buffer);
	binpool_uring_detach(table);
	io_uring_queue_exit(&ring);
	close(fd);
	return binpool_destroy(pool) || !total;
}
