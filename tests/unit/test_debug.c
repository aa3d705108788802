// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * BINPOOL_POOL_DEBUG: what is free is filled, when it is really free, and whoever
 * writes to it is found.
 */
#include "unit.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define POISON ((char)0xdb)

static struct binpool *debug_pool(struct counter *c)
{
	const struct binpool_allocator_ops ops = {
		.size = sizeof(ops), .ctx = c, .alloc = counter_alloc, .free = counter_free};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.flags = BINPOOL_POOL_DEBUG;
	o.provider = c ? BINPOOL_PROVIDER_ALLOCATOR : BINPOOL_PROVIDER_THP;
	o.allocator = c ? &ops : NULL;
	o.max_bytes = 64 * MIB;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

static bool all_are(const char *p, size_t n, char value)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != value)
			return false;
	return true;
}

/* The copy that is in flight sees what was written for it, and then nobody does. */
static void after_its_fence(void **state)
{
	struct binpool *pool = debug_pool(NULL);
	struct binpool_buf buf = {.size = sizeof(buf)};
	uint64_t counter = 0;
	struct binpool_fence f = {
		.size = sizeof(f), .kind = BINPOOL_FENCE_COUNTER, .counter = &counter, .target = 1};
	char *p = binpool_alloc(pool, MIB), *q = binpool_alloc(pool, 100);

	(void)state;
	memset(p, 1, MIB);
	memset(q, 2, 100);
	buf.ptr = q;
	assert_ok(binpool_buffer_get(pool, &buf));
	assert_ok(binpool_free_after(pool, p, &f, 1));
	assert_ok(binpool_free(pool, q));
	binpool_poll(pool);
	assert_true(all_are(p, MIB, 1) && all_are(q, 100, 2));
	counter = 1;
	assert_int_equal(binpool_poll(pool), 0);
	assert_true(all_are(p, MIB, POISON) && all_are(q, 100, 2));
	assert_ok(binpool_buffer_put(pool, &buf));
	assert_true(all_are(q, 100, POISON));
	/* Nobody wrote to it. */
	assert_ptr_equal(binpool_alloc(pool, MIB), p);
	assert_ok(binpool_free(pool, p));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* What a child does that frees a buffer, writes to it, and gets it again. */
static int write_after_free(struct binpool *pool, size_t size, size_t at)
{
	char *p = binpool_alloc(pool, size);

	if (!p || binpool_free(pool, p))
		return 1;
	if (at < size)
		p[at] ^= 1;
	return binpool_alloc(pool, size) == p ? 0 : 2;
}

static int child(size_t size, size_t at, bool allocator)
{
	static struct counter c = COUNTER_INIT;
	const struct rlimit no_core = {0};
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (!pid) {
		setrlimit(RLIMIT_CORE, &no_core);
		/* cmocka has a handler of its own. */
		signal(SIGABRT, SIG_DFL);
		c.real = true;
		if (!freopen("/dev/null", "w", stderr))
			_exit(3);
		_exit(write_after_free(debug_pool(allocator ? &c : NULL), size, at));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void found(void **state)
{
	const size_t sizes[] = {64, 4096, 3 * MIB};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (int allocator = 0; allocator < 2; allocator++) {
			assert_int_equal(child(sizes[i], SIZE_MAX, allocator), 0);
			assert_int_equal(child(sizes[i], 0, allocator), SIGABRT);
			assert_int_equal(child(sizes[i], sizes[i] - 1, allocator), SIGABRT);
		}
	}
}

enum { THREADS = 4, ROUNDS = 2000 };

struct race {
	struct binpool *pool;
	pthread_barrier_t start, end;
	void *ptr;
	uint64_t freed;
};

static void *free_at_once(void *arg)
{
	struct race *r = arg;

	for (int i = 0; i < ROUNDS; i++) {
		if (pthread_barrier_wait(&r->start) == PTHREAD_BARRIER_SERIAL_THREAD)
			r->ptr = binpool_alloc(r->pool, 1000);
		pthread_barrier_wait(&r->end);
		if (!binpool_free(r->pool, r->ptr))
			__atomic_add_fetch(&r->freed, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* One of those who free a buffer in the same instant does. */
static void same_instant(void **state)
{
	struct race r = {.pool = debug_pool(NULL)};
	pthread_t threads[THREADS];

	(void)state;
	pthread_barrier_init(&r.start, NULL, THREADS);
	pthread_barrier_init(&r.end, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, free_at_once, &r), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(r.freed, ROUNDS);
	check_pool(r.pool);
	assert_ok(binpool_destroy(r.pool));
	pthread_barrier_destroy(&r.start);
	pthread_barrier_destroy(&r.end);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_its_fence),
		cmocka_unit_test(found),
		cmocka_unit_test(same_instant),
	};

	return cmocka_run_group_tests_name("debug", tests, NULL, NULL);
}
