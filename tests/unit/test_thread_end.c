// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Threads that first use the library when no destructor will run any more: what they had of
 * it is found and freed, by whoever uses it next.
 */
#include "unit.h"

#include <malloc.h>
#include <unistd.h>

#include "pool.h"

#define THREADS 1000

static pthread_key_t key;
static struct binpool *pool;
static void (*use)(void);

static void use_at_last(void *arg)
{
	static __thread int calls;

	if (++calls < sysconf(_SC_THREAD_DESTRUCTOR_ITERATIONS))
		pthread_setspecific(key, arg);
	else
		use();
}

static void *last_thread(void *arg)
{
	pthread_setspecific(key, arg);
	return NULL;
}

static void allocates(void)
{
	binpool_free(pool, binpool_alloc(pool, 100));
}

static void fails(void)
{
	binpool_free(pool, &pool);
}

static size_t malloced(void)
{
	return mallinfo2().uordblks;
}

/* @n threads one after another; how much more memory is in use then. */
static int64_t run(void (*what)(void), int n)
{
	size_t before = malloced();

	use = what;
	for (int i = 0; i < n; i++) {
		pthread_t t;

		assert_int_equal(pthread_create(&t, NULL, last_thread, &key), 0);
		assert_int_equal(pthread_join(t, NULL), 0);
	}
	return (int64_t)(malloced() - before);
}

static int begin(void **state)
{
	(void)state;
	pool = thp_pool(16 * MIB);
	/* The library has its own then, whose turn in each round is over before this one's. */
	fails();
	return pthread_key_create(&key, use_at_last);
}

static int end(void **state)
{
	(void)state;
	return pthread_key_delete(key);
}

static void nothing_is_left(void **state)
{
	void (*const what[])(void) = {allocates, fails};
	int64_t few, many;

	(void)state;
	for (int i = 0; i < 2; i++) {
		/* What libc needs for a thread, it keeps. */
		few = run(what[i], THREADS / 50);
		many = run(what[i], THREADS);
		print_message("# %d threads left %lld bytes, %d more %lld\n", THREADS / 50,
			      (long long)few, THREADS, (long long)many);
		/* So few are not worth looking for. */
		assert_true(many < THREADS * 64);
		check_pool(pool);
	}
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nothing_is_left, begin, end),
	};

	return cmocka_run_group_tests_name("thread_end", tests, NULL, NULL);
}
