// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * fork: a child gets no memory from a pool it inherited, disturbs nothing, and
 * can have pools of its own.
 */
#include "unit.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs @f in a child; fails the test unless it returns 0. */
static void in_child(int (*f)(struct binpool *pool, void *p), struct binpool *pool, void *p)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		int step = f(pool, p);

		if (step)
			fprintf(stderr, "# child failed at step %d: %s\n", step,
				binpool_last_error());
		_exit(step);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail_msg("the child ended with status 0x%x", status);
}

static int inherited(struct binpool *pool, void *p)
{
	struct binpool_stats s = {.size = sizeof(s)};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *own;
	void *q;

	errno = 0;
	if (binpool_alloc(pool, 100) || errno != EOWNERDEAD)
		return 1;
	if (binpool_alloc_bulk(pool, 100, 1, &q) != -EOWNERDEAD)
		return 2;
	if (binpool_free(pool, p) || binpool_free_sized(pool, p, 3) || binpool_free(pool, &s))
		return 3;
	if (binpool_get_stats(pool, &s) != -EOWNERDEAD || binpool_free_held(pool) != -EOWNERDEAD ||
	    binpool_report(pool, 0, NULL, 0) != -EOWNERDEAD ||
	    binpool_remove_registrar(pool, 1) != -EOWNERDEAD)
		return 4;
	if (!strstr(binpool_last_error(), "parent"))
		return 5;
	o.provider = BINPOOL_PROVIDER_THP;
	if (binpool_create(&own, &o))
		return 6;
	q = binpool_alloc(own, 5 * MIB);
	if (!q)
		return 7;
	memset(q, 1, 5 * MIB);
	/* The old one goes, the new one stays. */
	if (binpool_destroy(pool))
		return 8;
	if (((char *)q)[5 * MIB - 1] != 1 || binpool_free(own, q) || binpool_destroy(own))
		return 9;
	return 0;
}

static int counted;

static int count_attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	(void)ctx;
	(void)extent;
	(void)cookie;
	counted++;
	return 0;
}

static void count_detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	(void)ctx;
	(void)extent;
	(void)cookie;
	counted--;
}

static void count_release(void *ctx)
{
	(void)ctx;
	counted += 100;
}

static void child_of_thp(void **state)
{
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.attach = count_attach,
		.detach = count_detach,
		.release = count_release,
	};
	struct binpool *pool = thp_pool(64 * MIB);
	uint64_t id;
	char *p = binpool_alloc(pool, 1000), *q = binpool_alloc(pool, MIB);

	(void)state;
	assert_ok(binpool_add_registrar(pool, &ops, &id));
	memset(p, 7, 1000);
	assert_ok(binpool_free(pool, q));
	in_child(inherited, pool, p);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(p[i], 7);
	assert_int_equal(counted, 1);
	check_pool(pool);
	assert_ptr_equal(binpool_alloc(pool, MIB), q);
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
	assert_int_equal(counted, 100);
}

static void child_of_allocator(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	void *p = binpool_alloc(pool, 1000);

	(void)state;
	in_child(inherited, pool, p);
	assert_int_equal(c.frees, 0);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

static int not_there(struct binpool *pool, void *p)
{
	unsigned char vec;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

	(void)pool;
	return !(mincore((void *)((uintptr_t)p & ~(page - 1)), 1, &vec) && errno == ENOMEM);
}

/* The parent's physical pages stay its own, so that a device's address stays right. */
static void thp_is_not_copied(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	void *p = binpool_alloc(pool, 1000);

	(void)state;
	in_child(not_there, pool, p);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

static int grandchild(struct binpool *pool, void *p)
{
	int status;
	pid_t pid;

	errno = 0;
	if (binpool_alloc(pool, 1) || errno != EOWNERDEAD)
		return 1;
	pid = fork();
	if (!pid)
		_exit(inherited(pool, p));
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		return 2;
	return binpool_destroy(pool) ? 3 : 0;
}

static int forked_in_callback;

static int done_forks(void *ctx)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	/* The child goes back to the pool from here. */
	if (!pid)
		forked_in_callback = binpool_destroy(ctx);
	else if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		forked_in_callback = 1;
	return 1;
}

/* A child that was forked in a callback destroys the pool when that is over, not in it. */
static void in_a_callback(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct binpool_fence f = {
		.size = sizeof(f), .kind = BINPOOL_FENCE_CALLBACK, .ctx = pool, .done = done_forks};
	pid_t parent = getpid();

	(void)state;
	assert_ok(binpool_free_after(pool, binpool_alloc(pool, 1000), &f, 1));
	binpool_poll(pool);
	if (getpid() != parent)
		_exit(forked_in_callback != -EDEADLK || binpool_destroy(pool));
	assert_int_equal(forked_in_callback, 0);
	assert_ok(binpool_destroy(pool));
}

static void nested(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	void *p = binpool_alloc(pool, 1000);

	(void)state;
	in_child(grandchild, pool, p);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

struct busy {
	struct binpool *pool;
	int stop, errors;
};

static void *be_busy(void *arg)
{
	struct busy *b = arg;
	struct rng r = {(uintptr_t)&r};
	uint64_t i = 0;

	while (!__atomic_load_n(&b->stop, __ATOMIC_RELAXED)) {
		void *p = binpool_alloc(b->pool, rng_size(&r, 20));

		if (!p || binpool_free(b->pool, p) || (!(++i % 16) && binpool_free_held(b->pool)))
			__atomic_add_fetch(&b->errors, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Forks while other threads are in the pool, and in its provider. */
static void while_threads_run(void **state)
{
	struct busy b = {.pool = thp_pool(64 * MIB)};
	void *p = binpool_alloc(b.pool, 1000);
	pthread_t threads[3];

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, be_busy, &b), 0);
	for (int i = 0; i < 8; i++) {
		usleep(3000);
		in_child(inherited, b.pool, p);
	}
	__atomic_store_n(&b.stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(b.errors, 0);
	check_pool(b.pool);
	assert_ok(binpool_free(b.pool, p));
	assert_ok(binpool_destroy(b.pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(child_of_thp),
		cmocka_unit_test(child_of_allocator),
		cmocka_unit_test(thp_is_not_copied),
		cmocka_unit_test(in_a_callback),
		cmocka_unit_test(nested),
		cmocka_unit_test(while_threads_run),
	};

	return cmocka_run_group_tests_name("fork", tests, NULL, NULL);
}
