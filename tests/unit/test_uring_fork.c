// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * io_uring and fork: a child ends what it inherited, and the parent's ring keeps its table.
 */
#include "unit.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <binpool_uring.h>

/* Runs @f in a child; fails the test unless it returns 0. */
static void in_child(int (*f)(struct binpool *pool, struct binpool_uring *u), struct binpool *pool,
		     struct binpool_uring *u)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (!pid)
		_exit(f(pool, u));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (status)
		fail_msg("the child ended with status 0x%x", (unsigned int)status);
}

/* A fixed read of a page. */
static void read_fixed(struct io_uring *ring, struct binpool_uring *u, char *p)
{
	int fd = memfd_create("page", MFD_CLOEXEC), slot = binpool_uring_find(u, p, 4096);
	struct io_uring_cqe *cqe;

	assert_true(slot >= 0);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "page", 4, 4092), 4);
	memset(p, 0, 4096);
	io_uring_prep_read_fixed(io_uring_get_sqe(ring), fd, p, 4096, 0, slot);
	assert_int_equal(io_uring_submit(ring), 1);
	assert_int_equal(io_uring_wait_cqe(ring, &cqe), 0);
	assert_int_equal(cqe->res, 4096);
	io_uring_cqe_seen(ring, cqe);
	assert_memory_equal(p + 4092, "page", 4);
	close(fd);
}

static int detaches(struct binpool *pool, struct binpool_uring *u)
{
	if (binpool_uring_detach(u))
		return 1;
	return binpool_destroy(pool) ? 2 : 0;
}

static int destroys(struct binpool *pool, struct binpool_uring *u)
{
	if (binpool_destroy(pool))
		return 1;
	return binpool_uring_detach(u) ? 2 : 0;
}

/* The table is the parent's, whichever of the two a child ends first. */
static void child_ends(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct binpool_uring *u;
	struct io_uring ring;
	char *p = binpool_alloc(pool, 4 * MIB);

	(void)state;
	assert_non_null(p);
	assert_int_equal(io_uring_queue_init(8, &ring, 0), 0);
	assert_ok(binpool_uring_attach(pool, &ring, 4, &u));
	read_fixed(&ring, u, p);
	in_child(detaches, pool, u);
	read_fixed(&ring, u, p);
	in_child(destroys, pool, u);
	read_fixed(&ring, u, p);
	assert_int_equal(stats_of(pool).registrations, 1);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_uring_detach(u));
	io_uring_queue_exit(&ring);
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(child_ends),
	};

	return cmocka_run_group_tests_name("uring_fork", tests, NULL, NULL);
}
