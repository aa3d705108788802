// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * io_uring and fork: a child ends what it inherited, and the parent's ring keeps its table.
 */
#include "unit.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
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

/* A pool of one extent, and a ring that has it in its table. */
struct attached {
	struct binpool *pool;
	struct binpool_uring *u;
	struct io_uring ring;
	char *p;
};

static void attach_one(struct attached *a)
{
	a->pool = thp_pool(64 * MIB);
	a->p = binpool_alloc(a->pool, 4 * MIB);
	assert_non_null(a->p);
	assert_int_equal(io_uring_queue_init(8, &a->ring, 0), 0);
	assert_ok(binpool_uring_attach(a->pool, &a->ring, 4, &a->u));
}

static void end_one(struct attached *a)
{
	assert_ok(binpool_free(a->pool, a->p));
	assert_ok(binpool_uring_detach(a->u));
	io_uring_queue_exit(&a->ring);
	assert_ok(binpool_destroy(a->pool));
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
	struct attached a;

	(void)state;
	attach_one(&a);
	read_fixed(&a.ring, a.u, a.p);
	in_child(detaches, a.pool, a.u);
	read_fixed(&a.ring, a.u, a.p);
	in_child(destroys, a.pool, a.u);
	read_fixed(&a.ring, a.u, a.p);
	assert_int_equal(stats_of(a.pool).registrations, 1);
	end_one(&a);
}

/* A ring of the child's own; the limit is below what one extent needs. */
static int attaches_as_nobody(struct binpool *inherited, struct binpool_uring *u)
{
	struct rlimit limit = {3 * MIB, 3 * MIB};
	struct binpool *pool = thp_pool(64 * MIB);
	struct io_uring ring;

	(void)inherited;
	if (setrlimit(RLIMIT_MEMLOCK, &limit) || (!getuid() && setuid(65534)))
		return 1;
	if (io_uring_queue_init(8, &ring, 0) || !binpool_alloc(pool, 4 * MIB) ||
	    binpool_uring_attach(pool, &ring, 4, &u))
		return 2;
	return strstr(binpool_uring_reason(u), "this process have 0") ? 0 : 3;
}

/* What the parent's rings have is not the child's. */
static void nothing_charged(void **state)
{
	struct attached a;

	(void)state;
	attach_one(&a);
	assert_true(binpool_uring_find(a.u, a.p, 4096) >= 0);
	in_child(attaches_as_nobody, a.pool, a.u);
	end_one(&a);
}

struct busy {
	struct binpool *pool;
	struct io_uring ring;
	atomic_bool stop;
	int err;
};

static void *attach_and_detach(void *arg)
{
	struct binpool_uring *u;
	struct busy *b = arg;

	while (!b->stop && !b->err) {
		b->err = binpool_uring_attach(b->pool, &b->ring, 4, &u);
		if (!b->err)
			b->err = binpool_uring_detach(u);
	}
	return NULL;
}

static int attaches(struct binpool *inherited, struct binpool_uring *u)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct io_uring ring;

	(void)inherited;
	/* Only a child that hangs takes so long. */
	alarm(20);
	if (io_uring_queue_init(8, &ring, 0))
		return 1;
	return binpool_uring_attach(pool, &ring, 4, &u) ? 2 : 0;
}

/* A fork while another thread makes its ring's table like the first one's. */
static void busy_parent(void **state)
{
	struct busy b = {.stop = false};
	struct attached a;
	pthread_t thread;

	(void)state;
	attach_one(&a);
	b.pool = a.pool;
	assert_int_equal(io_uring_queue_init(8, &b.ring, 0), 0);
	assert_int_equal(pthread_create(&thread, NULL, attach_and_detach, &b), 0);
	for (int i = 0; i < 100; i++)
		in_child(attaches, b.pool, a.u);
	b.stop = true;
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_ok(b.err);
	io_uring_queue_exit(&b.ring);
	end_one(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(child_ends),
		cmocka_unit_test(nothing_charged),
		cmocka_unit_test(busy_parent),
	};

	return cmocka_run_group_tests_name("uring_fork", tests, NULL, NULL);
}
