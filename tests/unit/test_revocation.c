// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Caches between their owner and who takes from them, also where the kernel refuses
 * membarrier(); and those of more pools than the fast path knows.
 */
#include "unit.h"

#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache.h"

struct pusher {
	struct binpool *pool;
	void *place;
	int stop, errors;
};

static void note_error(struct pusher *s, bool error)
{
	if (error)
		__atomic_add_fetch(&s->errors, 1, __ATOMIC_RELAXED);
}

/* Frees what the other allocates. */
static void *take_and_free(void *arg)
{
	struct pusher *s = arg;

	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
		void *p = __atomic_exchange_n(&s->place, NULL, __ATOMIC_ACQ_REL);

		note_error(s, p && binpool_free(s->pool, p));
	}
	return NULL;
}

static void *allocate_and_give(void *arg)
{
	struct pusher *s = arg;

	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
		void *p = binpool_alloc(s->pool, 100000);

		note_error(s, !p);
		p = __atomic_exchange_n(&s->place, p, __ATOMIC_ACQ_REL);
		note_error(s, p && binpool_free(s->pool, p));
	}
	return NULL;
}

/* Counters that are read meanwhile are never below zero, and nothing is refused for it. */
static void never_negative(void **state)
{
	struct pusher s = {.pool = thp_pool(32 * MIB)};
	pthread_t t[2];
	void *p[40];

	(void)state;
	pthread_create(&t[0], NULL, take_and_free, &s);
	pthread_create(&t[1], NULL, allocate_and_give, &s);
	for (uint64_t i = 0; i < rounds(20000); i++) {
		struct binpool_stats st = stats_of(s.pool);

		assert_true(st.active_blocks < 100 && st.held_blocks < 1000);
		assert_true(st.active_bytes < GIB && st.held_bytes < GIB && st.managed_bytes < GIB);
		if (i % 50)
			continue;
		/* So much that the limit is looked at. */
		for (size_t k = 0; k < ARRAY_SIZE(p); k++) {
			p[k] = binpool_alloc(s.pool, 600 * KIB);
			assert_non_null(p[k]);
		}
		assert_ok(binpool_free_bulk(s.pool, ARRAY_SIZE(p), p));
	}
	__atomic_store_n(&s.stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(s.errors, 0);
	assert_ok(binpool_free(s.pool, s.place));
	check_pool(s.pool);
	assert_ok(binpool_destroy(s.pool));
}

/* A child's status must be 0. */
static void reap(pid_t pid)
{
	int status;

	assert_true(pid >= 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* A buffer goes round without the lock, by all ways: what another has locked is not waited for. */
static int goes_round_cached(struct binpool *pool)
{
	void *p = binpool_alloc(pool, 5000), *q;
	int errors = binpool_free(pool, p) != 0;

	for (int i = 0; i < 3; i++) {
		q = binpool_alloc_cached(pool, 5000);
		errors += q != p || binpool_free_cached(pool, q);
		errors += binpool_free_cached(pool, q) != -EAGAIN;
	}
	pool_lock(pool);
	q = binpool_alloc(pool, 5000);
	errors += q != p || binpool_free_sized(pool, q, 5000);
	pool_unlock(pool);
	return errors;
}

/* Of as many pools as one likes. */
static void many_pools(void **state)
{
	struct binpool *pools[3 * FAST_NUMBERS];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(pools); i++) {
		pools[i] = thp_pool(64 * MIB);
		assert_int_equal(goes_round_cached(pools[i]), 0);
	}
	for (size_t i = 0; i < ARRAY_SIZE(pools); i++) {
		assert_int_equal(goes_round_cached(pools[i]), 0);
		check_pool(pools[i]);
		assert_ok(binpool_destroy(pools[i]));
	}
}

static void refuse_membarrier(void)
{
	struct sock_filter lines[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {ARRAY_SIZE(lines), lines};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter))
		_exit(10);
}

static bool reports(struct binpool *pool, uint32_t format, const char *words)
{
	char text[8192];

	return binpool_report(pool, format, text, sizeof(text)) > 0 && strstr(text, words);
}

/* Everything still works, and caches are still used and still revoked. */
static int without_membarrier(bool late)
{
	struct pusher s = {0};
	struct binpool_stats st = {.size = sizeof(st)};
	pthread_t t[2];

	if (!late)
		refuse_membarrier();
	s.pool = thp_pool(64 * MIB);
	pthread_create(&t[0], NULL, take_and_free, &s);
	pthread_create(&t[1], NULL, allocate_and_give, &s);
	if (late) {
		usleep(10000);
		refuse_membarrier();
	}
	for (int i = 0; i < 2000; i++)
		note_error(&s, binpool_free_held(s.pool) != 0);
	__atomic_store_n(&s.stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	s.errors += goes_round_cached(s.pool);
	if (s.errors || binpool_free(s.pool, s.place) || binpool_get_stats(s.pool, &st))
		return 1;
	if (!st.reuses || st.active_blocks)
		return 2;
	/* Whoever takes something out of a cache finds out. */
	if (binpool_free_held(s.pool))
		return 5;
	if (!reports(s.pool, BINPOOL_REPORT_KEYS, "\nrevocation=fenced\n") ||
	    !reports(s.pool, BINPOOL_REPORT_TABLE, "refuses membarrier()"))
		return 4;
	check_pool(s.pool);
	return binpool_destroy(s.pool) ? 3 : 0;
}

static void membarrier_refused(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = thp_pool(64 * MIB), *exact = counter_pool(&c, 0, 0);

	(void)state;
	assert_true(reports(pool, BINPOOL_REPORT_KEYS, "\nrevocation=membarrier\n"));
	assert_false(reports(pool, BINPOOL_REPORT_TABLE, "membarrier"));
	assert_true(reports(exact, BINPOOL_REPORT_KEYS, "\nrevocation=none\n"));
	assert_ok(binpool_destroy(pool));
	assert_ok(binpool_destroy(exact));
	for (int late = 0; late < 2; late++) {
		pid_t pid = fork();

		if (!pid)
			_exit(without_membarrier(late));
		reap(pid);
	}
}

static bool has_membarrier(void)
{
	return !syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

/* A process with one thread, which costs it nothing; ThreadSanitizer has another of its own. */
static int registers_alone(void)
{
	struct binpool *pool = thp_pool(64 * MIB);

	return has_membarrier() != (bool)__libc_single_threaded || binpool_destroy(pool);
}

static void *wait_for_lock(void *lock)
{
	pthread_mutex_lock(lock);
	return NULL;
}

/*
 * A process with threads would wait for milliseconds: that is left to who first takes
 * something out of a cache. Of all tests the first, as nobody can take it back.
 */
static void registers_when_needed(void **state)
{
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	pid_t pid = fork();
	struct binpool *pool;
	pthread_t t;

	(void)state;
	if (!pid)
		_exit(registers_alone());
	reap(pid);
	assert_false(has_membarrier());
	pthread_mutex_lock(&lock);
	assert_int_equal(pthread_create(&t, NULL, wait_for_lock, &lock), 0);
	pool = thp_pool(64 * MIB);
	assert_int_equal(goes_round_cached(pool), 0);
	assert_false(has_membarrier());
	assert_ok(binpool_free_held(pool));
	assert_true(has_membarrier());
	assert_true(reports(pool, BINPOOL_REPORT_KEYS, "\nrevocation=membarrier\n"));
	pthread_mutex_unlock(&lock);
	assert_int_equal(pthread_join(t, NULL), 0);
	assert_ok(binpool_destroy(pool));
}

/* As long as somebody is at work on the caches nothing gets in or out, whichever way. */
static void kept_out(void **state)
{
	/* Both sides of what the fast path knows. */
	static struct binpool *pool[40];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(pool); i++) {
		void *p, *q;

		pool[i] = thp_pool(64 * MIB);
		p = binpool_alloc(pool[i], 3000);
		q = binpool_alloc(pool[i], 3000);
		assert_ok(binpool_free(pool[i], p));
		pool_lock(pool[i]);
		caches_stop(pool[i]);
		assert_null(binpool_alloc_cached(pool[i], 3000));
		assert_int_equal(binpool_free_cached(pool[i], q), -EAGAIN);
		caches_go(pool[i]);
		assert_ok(binpool_free_cached(pool[i], q));
		assert_ptr_equal(binpool_alloc_cached(pool[i], 3000), q);
		pool_unlock(pool[i]);
		assert_ok(binpool_free(pool[i], q));
		check_pool(pool[i]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(pool); i++)
		assert_ok(binpool_destroy(pool[i]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(registers_when_needed),
		cmocka_unit_test(never_negative),
		cmocka_unit_test(kept_out),
		cmocka_unit_test(many_pools),
		cmocka_unit_test(membarrier_refused),
	};

	return cmocka_run_group_tests_name("revocation", tests, NULL, NULL);
}
