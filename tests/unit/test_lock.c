// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The library's own locks: one at a time, nobody is left asleep, and errno stays.
 */
#include "unit.h"

#include <time.h>
#include <unistd.h>

#include "pool.h"

#define THREADS 4

static struct lock lock;
static uint64_t counted, turns;

static void nap(long ns)
{
	const struct timespec t = {.tv_nsec = ns};

	nanosleep(&t, NULL);
}

static void *count(void *arg)
{
	(void)arg;
	for (uint64_t i = 0; i < turns; i++) {
		lock_take(&lock);
		counted++;
		/* Longer than anybody spins. */
		if (i % 256 == 0)
			nap(100000);
		lock_give(&lock);
	}
	return NULL;
}

/* Several threads count at once, @n times each. */
static void all_count(void *(*with)(void *), uint64_t n)
{
	pthread_t t[THREADS];

	turns = n;
	counted = 0;
	alarm(60);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, with, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	alarm(0);
	assert_int_equal(counted, THREADS * turns);
}

static void one_at_a_time(void **state)
{
	(void)state;
	all_count(count, rounds(20000));
	assert_int_equal(lock.state, LOCK_FREE);
}

static void *once(void *arg)
{
	int *kept = arg;

	errno = ENOTTY;
	lock_take(&lock);
	lock_give(&lock);
	*kept = errno;
	return NULL;
}

/* Of several who sleep each is woken, by the one before. */
static void none_left_asleep(void **state)
{
	int kept[THREADS];
	pthread_t t[THREADS];

	(void)state;
	alarm(60);
	lock_take(&lock);
	assert_false(lock_try(&lock));
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, once, &kept[i]), 0);
	while (__atomic_load_n(&lock.state, __ATOMIC_RELAXED) != LOCK_SLEPT)
		nap(1000000);
	nap(50000000);
	lock_give(&lock);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(t[i], NULL);
		assert_int_equal(kept[i], ENOTTY);
	}
	alarm(0);
	assert_int_equal(lock.state, LOCK_FREE);
}

static void waits_until(void **state)
{
	const uint64_t ms = 1000000;
	uint64_t start = now_ns();
	uint32_t word = 1;

	(void)state;
	errno = ENOTTY;
	alarm(60);
	assert_true(futex_wait(&word, 0, UINT64_MAX));
	while (futex_wait(&word, 1, start + 20 * ms))
		;
	assert_true(now_ns() >= start + 20 * ms);
	assert_false(futex_wait(&word, 1, start));
	alarm(0);
	assert_int_equal(errno, ENOTTY);
}

static void *destroy(void *arg)
{
	assert_ok(binpool_destroy_wait(arg, UINT32_MAX));
	return NULL;
}

/* Who waits for the end of all buffers is told of it at once. */
static void told(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	void *p = binpool_alloc(pool, MIB);
	uint32_t idlers = 0;
	pthread_t t;

	(void)state;
	assert_non_null(p);
	alarm(60);
	assert_int_equal(pthread_create(&t, NULL, destroy, pool), 0);
	while (!idlers) {
		nap(1000000);
		pool_lock(pool);
		idlers = pool->idlers;
		pool_unlock(pool);
	}
	nap(20000000);
	assert_ok(binpool_free(pool, p));
	pthread_join(t, NULL);
	alarm(0);
}

/* Nor does anybody fall asleep who was about to when it was told. */
static void not_slept_through(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	uint32_t seen;

	(void)state;
	alarm(60);
	pool_lock(pool);
	seen = pool->idle;
	pool_wake(pool);
	pool_unlock(pool);
	assert_true(futex_wait(&pool->idle, seen, UINT64_MAX));
	alarm(0);
	assert_ok(binpool_destroy(pool));
}

static struct queue_lock queue;
static uint32_t order[THREADS], served;

static void *queues(void *arg)
{
	errno = ENOTTY;
	queue_take(&queue);
	order[served++] = *(uint32_t *)arg;
	queue_give(&queue);
	return (void *)(intptr_t)errno;
}

/* Who has waited longest gets the lock, also before the one that just had it. */
static void in_their_order(void **state)
{
	uint32_t number[THREADS];
	pthread_t t[THREADS];
	void *kept;

	(void)state;
	served = 0;
	/* Numbers start again at 0. */
	queue = (struct queue_lock){.next = UINT32_MAX, .serving = UINT32_MAX};
	alarm(60);
	assert_true(queue_try(&queue));
	assert_false(queue_try(&queue));
	for (uint32_t i = 0; i < THREADS; i++) {
		number[i] = i;
		assert_int_equal(pthread_create(&t[i], NULL, queues, &number[i]), 0);
		while (__atomic_load_n(&queue.next, __ATOMIC_SEQ_CST) != i + 1)
			nap(100000);
	}
	queue_give(&queue);
	queue_take(&queue);
	assert_int_equal(served, THREADS);
	queue_give(&queue);
	for (uint32_t i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(t[i], &kept), 0);
		assert_int_equal((intptr_t)kept, ENOTTY);
		assert_int_equal(order[i], i);
	}
	assert_true(queue_try(&queue));
	queue_give(&queue);
	alarm(0);
}

static void *queue_count(void *arg)
{
	(void)arg;
	for (uint64_t i = 0; i < turns; i++) {
		if (i % 3 || !queue_try(&queue))
			queue_take(&queue);
		counted++;
		queue_give(&queue);
	}
	return NULL;
}

static void one_at_a_time_in_a_queue(void **state)
{
	(void)state;
	all_count(queue_count, rounds(5000));
	assert_int_equal(queue.next, queue.serving);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_at_a_time),
		cmocka_unit_test(none_left_asleep),
		cmocka_unit_test(waits_until),
		cmocka_unit_test(told),
		cmocka_unit_test(not_slept_through),
		cmocka_unit_test(in_their_order),
		cmocka_unit_test(one_at_a_time_in_a_queue),
	};

	return cmocka_run_group_tests_name("lock", tests, NULL, NULL);
}
