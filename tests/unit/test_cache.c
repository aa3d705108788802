// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Threads' caches: nothing is lost in them, whatever becomes of the thread, and
 * nothing in them is out of reach of another who needs it.
 */
#include "unit.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache.h"

static struct binpool *cache_pool(uint64_t max_bytes, uint64_t cache_bytes)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.provider = BINPOOL_PROVIDER_THP;
	o.max_bytes = max_bytes;
	o.cache_bytes = cache_bytes;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

/* Every step of a buffer that goes round is counted, and misuse is still seen. */
static void counted(void **state)
{
	struct binpool *pool = cache_pool(0, BINPOOL_CACHE_AUTO), *other = cache_pool(0, 0);
	struct binpool_stats s;
	char *p = binpool_alloc(pool, 5000), *q;

	(void)state;
	for (uint64_t i = 1; i <= 1000; i++) {
		assert_ok(binpool_free(pool, p));
		s = stats_of(pool);
		assert_int_equal(s.held_blocks, 1);
		assert_int_equal(s.active_bytes, 0);
		assert_int_equal(s.returns, i);
		assert_int_equal(binpool_free(pool, p), -EINVAL);
		q = binpool_alloc(pool, 4900 + i % 10);
		assert_ptr_equal(p, q);
		s = stats_of(pool);
		assert_int_equal(s.reuses, i);
		assert_int_equal(s.active_bytes, 4900 + i % 10);
		assert_int_equal(binpool_free(pool, p + 64), -EINVAL);
		assert_int_equal(binpool_free(other, p), -EINVAL);
		assert_int_equal(binpool_free_sized(pool, p, 4999), -EINVAL);
		check_pool(pool);
	}
	assert_ok(binpool_free_sized(pool, p, 4900));
	assert_ok(binpool_destroy(pool));
	assert_ok(binpool_destroy(other));
}

/* What is held stays within the budget, whatever the sizes. */
static void bounded(void **state)
{
	const uint64_t budget = 8 * MIB;
	struct binpool *pool = cache_pool(0, budget);
	struct rng r = rng_make();
	void *live[64] = {0};

	(void)state;
	for (uint64_t i = 0; i < rounds(100000); i++) {
		uint64_t at = rng_below(&r, 64);

		assert_ok(binpool_free(pool, live[at]));
		live[at] = binpool_alloc(pool, rng_size(&r, 23));
		assert_non_null(live[at]);
		if (i % 100 == 0) {
			assert_true(stats_of(pool).held_bytes <= budget);
			check_pool(pool);
		}
	}
	check_pool(pool);
	/* Small ones stay when there is not room for all. */
	assert_true(stats_of(pool).reuses > rounds(100000) / 4);
	assert_ok(binpool_free_bulk(pool, 64, live));
	assert_ok(binpool_destroy(pool));
}

/* Also of one class alone, more than a magazine has room for, and above all classes. */
static void bounded_in_one_class(void **state)
{
	static const uint64_t sizes[] = {64, 1000, 5000, 64 * KIB, MIB, 1200 * MIB};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct binpool *pool = cache_pool(0, 2 * MIB);
		size_t n = sizes[i] > MIB ? 1 : (size_t)u64_min(16 * MIB / sizes[i], 20000);
		void **p = calloc(n, sizeof(*p));

		assert_ok(binpool_alloc_bulk(pool, sizes[i], n, p));
		assert_ok(binpool_free_bulk(pool, n, p));
		assert_true(stats_of(pool).held_bytes <= 2 * MIB);
		check_pool(pool);
		assert_ok(binpool_destroy(pool));
		free(p);
	}
}

static void stop_and_resume(void **state)
{
	struct binpool *pool = cache_pool(0, BINPOOL_CACHE_AUTO);
	void *p = binpool_alloc(pool, MIB);

	(void)state;
	assert_ok(binpool_free(pool, p));
	assert_int_equal(binpool_held_blocks(pool), 1);
	assert_ok(binpool_stop_holding(pool));
	assert_int_equal(binpool_held_blocks(pool), 0);
	for (int i = 0; i < 10; i++)
		assert_ok(binpool_free(pool, binpool_alloc(pool, MIB)));
	assert_int_equal(binpool_held_blocks(pool), 0);
	assert_int_equal(stats_of(pool).reuses, 0);
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_stop_holding(pool));
	assert_ok(binpool_resume_holding(pool));
	for (int i = 0; i < 10; i++)
		assert_ok(binpool_free(pool, binpool_alloc(pool, MIB)));
	assert_int_equal(stats_of(pool).reuses, 9);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* A thread with something in its cache, which does as it is told. */
struct sleeper {
	pthread_t thread;
	struct binpool *pool;
	pthread_barrier_t turn;
	size_t n, bytes;
	int errors;
};

static void fill_cache(struct sleeper *s)
{
	void **p = calloc(s->n, sizeof(*p));

	s->errors += binpool_alloc_bulk(s->pool, s->bytes, s->n, p) != 0;
	s->errors += binpool_free_bulk(s->pool, s->n, p) != 0;
	free(p);
}

static void *sleeper_run(void *arg)
{
	struct sleeper *s = arg;

	fill_cache(s);
	pthread_barrier_wait(&s->turn);
	/* Here another thread does what it likes. */
	pthread_barrier_wait(&s->turn);
	fill_cache(s);
	return NULL;
}

static void sleeper_start(struct sleeper *s)
{
	pthread_barrier_init(&s->turn, NULL, 2);
	assert_int_equal(pthread_create(&s->thread, NULL, sleeper_run, s), 0);
	pthread_barrier_wait(&s->turn);
}

static void sleeper_end(struct sleeper *s)
{
	pthread_barrier_wait(&s->turn);
	pthread_join(s->thread, NULL);
	pthread_barrier_destroy(&s->turn);
	assert_int_equal(s->errors, 0);
}

/* The cache of a thread that sleeps is emptied for one that needs the memory. */
static void sleeping_thread(void **state)
{
	struct binpool *pool = cache_pool(64 * MIB, 64 * MIB);
	struct sleeper s = {.pool = pool, .n = 60, .bytes = MIB};
	void *p[60], *large;

	(void)state;
	sleeper_start(&s);
	assert_int_equal(binpool_held_blocks(pool), 60);
	assert_ok(binpool_alloc_bulk(pool, MIB, 60, p));
	check_pool(pool);
	assert_ok(binpool_free_bulk(pool, 60, p));
	/* Also in one piece. */
	large = binpool_alloc(pool, 60 * MIB);
	assert_non_null(large);
	check_pool(pool);
	assert_ok(binpool_free(pool, large));
	sleeper_end(&s);
	assert_true(stats_of(pool).reserved_max_bytes <= 64 * MIB);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* free_held, stop_holding and destroy reach it too. */
static void sleeping_thread_is_emptied(void **state)
{
	struct binpool *pool = cache_pool(0, 64 * MIB);
	struct sleeper s = {.pool = pool, .n = 20, .bytes = 100000};

	(void)state;
	sleeper_start(&s);
	assert_int_equal(binpool_held_blocks(pool), 20);
	assert_ok(binpool_free_held(pool));
	assert_int_equal(binpool_held_blocks(pool), 0);
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	sleeper_end(&s);
	assert_int_equal(binpool_held_blocks(pool), 20);
	sleeper_start(&s);
	assert_ok(binpool_stop_holding(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	sleeper_end(&s);
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_resume_holding(pool));
	sleeper_start(&s);
	s.n = 0; /* the pool is gone when it goes on */
	assert_ok(binpool_destroy(pool));
	s.pool = cache_pool(0, 64 * MIB);
	sleeper_end(&s);
	assert_ok(binpool_destroy(s.pool));
}

/* What a thread had in its cache when it ended is the next one's. */
static void thread_exit(void **state)
{
	struct binpool *pool = cache_pool(64 * MIB, 32 * MIB);
	struct binpool_stats before, after;

	(void)state;
	for (int i = 0; i < 50; i++) {
		struct sleeper s = {.pool = pool, .n = 20, .bytes = MIB};

		before = stats_of(pool);
		sleeper_start(&s);
		sleeper_end(&s);
		after = stats_of(pool);
		assert_int_equal(after.held_blocks, 20);
		assert_int_equal(after.extent_allocs,
				 i ? before.extent_allocs : after.extent_allocs);
		check_pool(pool);
	}
	assert_ok(binpool_destroy(pool));
}

static pthread_key_t late_key;
static struct binpool *late_pool;

/* Runs at a thread's end, as often as it asks to: so also when its caches are gone. */
static void late_free(void *ptr)
{
	static __thread int calls;

	if (++calls < 3)
		pthread_setspecific(late_key, ptr);
	else
		binpool_free(late_pool, ptr);
	binpool_free(late_pool, binpool_alloc(late_pool, 8192));
}

static void *late_thread(void *arg)
{
	(void)arg;
	pthread_setspecific(late_key, binpool_alloc(late_pool, 8192));
	return NULL;
}

static void calls_at_thread_end(void **state)
{
	pthread_t t;

	(void)state;
	late_pool = cache_pool(0, BINPOOL_CACHE_AUTO);
	pthread_key_create(&late_key, late_free);
	for (int i = 0; i < 20; i++) {
		pthread_create(&t, NULL, late_thread, NULL);
		pthread_join(t, NULL);
	}
	pthread_key_delete(late_key);
	assert_int_equal(stats_of(late_pool).active_blocks, 0);
	check_pool(late_pool);
	assert_ok(binpool_destroy(late_pool));
}

static void *come_and_go(void *arg)
{
	int *errors = arg;

	for (int i = 0; i < 50; i++) {
		struct binpool_options o = BINPOOL_OPTIONS_INIT;
		struct binpool *pools[12];

		o.provider = BINPOOL_PROVIDER_THP;
		for (size_t k = 0; k < ARRAY_SIZE(pools); k++) {
			*errors += binpool_create(&pools[k], &o) != 0;
			binpool_free(pools[k], binpool_alloc(pools[k], 64));
		}
		for (size_t k = 0; k < ARRAY_SIZE(pools); k++)
			*errors += binpool_destroy(pools[k]) != 0;
	}
	return NULL;
}

/* Pools' numbers are used again; threads' tables grow meanwhile. */
static void pools_come_and_go(void **state)
{
	pthread_t t[4];
	int errors[4] = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(t); i++)
		pthread_create(&t[i], NULL, come_and_go, &errors[i]);
	for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
		pthread_join(t[i], NULL);
		assert_int_equal(errors[i], 0);
	}
}

static int attach_and_call(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	struct binpool *pool = ctx;
	void *p = binpool_alloc(pool, 64);

	(void)extent;
	*cookie = NULL;
	if (p) {
		binpool_free(pool, p);
		return -EEXIST;
	}
	return errno == EDEADLK ? 0 : -errno;
}

static void detach_nothing(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	(void)ctx;
	(void)extent;
	(void)cookie;
}

/* A callback may not use its own pool, whether or not its thread has something cached. */
static void callbacks(void **state)
{
	struct binpool *pool = cache_pool(0, BINPOOL_CACHE_AUTO);
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.ctx = pool,
		.attach = attach_and_call,
		.detach = detach_nothing,
	};
	uint64_t id;

	(void)state;
	assert_ok(binpool_free(pool, binpool_alloc(pool, 64)));
	assert_ok(binpool_add_registrar(pool, &ops, &id));
	assert_ok(binpool_free(pool, binpool_alloc(pool, 64)));
	assert_int_equal(stats_of(pool).reuses, 1);
	assert_ok(binpool_destroy(pool));
}

struct churn {
	struct binpool *pool;
	uint64_t seed, n;
	int errors;
	pthread_t thread;
};

static void *churn_run(void *arg)
{
	struct churn *c = arg;
	struct rng r = {c->seed};
	uint64_t *live[16] = {0};

	for (uint64_t i = 0; i < c->n; i++) {
		uint64_t at = rng_below(&r, 16), bytes = 8 + rng_size(&r, 18);

		if (live[at]) {
			c->errors += *live[at] != (uint64_t)(uintptr_t)live[at] + c->seed;
			c->errors += binpool_free(c->pool, live[at]) != 0;
		}
		live[at] = binpool_alloc(c->pool, bytes);
		if (live[at])
			*live[at] = (uint64_t)(uintptr_t)live[at] + c->seed;
	}
	for (size_t i = 0; i < 16; i++)
		c->errors += binpool_free(c->pool, live[i]) != 0;
	return NULL;
}

static void churn_start(struct churn *c, size_t n, struct binpool *pool, uint64_t per_thread)
{
	for (size_t i = 0; i < n; i++) {
		c[i] = (struct churn){.pool = pool, .seed = i + 1, .n = per_thread};
		assert_int_equal(pthread_create(&c[i].thread, NULL, churn_run, &c[i]), 0);
	}
}

static void churn_end(struct churn *c, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		pthread_join(c[i].thread, NULL);
		assert_int_equal(c[i].errors, 0);
	}
}

/* So many threads that each one's share of the budget is small, near the limit. */
static void many_threads(void **state)
{
	struct binpool *pool = cache_pool(128 * MIB, 16 * MIB);
	struct churn c[64];

	(void)state;
	churn_start(c, ARRAY_SIZE(c), pool, rounds(20000));
	churn_end(c, ARRAY_SIZE(c));
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_true(stats_of(pool).held_bytes <= 16 * MIB);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/*
 * Forks while other threads are at it: the child has no cache of theirs, nor of its own.
 * Not under AddressSanitizer: its malloc may never return in the child of a process with
 * threads.
 */
#ifndef __SANITIZE_ADDRESS__
static void forks(void **state)
{
	struct binpool *pool = cache_pool(128 * MIB, 16 * MIB);
	void *p = binpool_alloc(pool, MIB);
	struct churn c[4];

	(void)state;
	assert_ok(binpool_free(pool, binpool_alloc(pool, 2 * MIB)));
	churn_start(c, ARRAY_SIZE(c), pool, rounds(200000));
	for (int i = 0; i < 8; i++) {
		pid_t pid = fork();
		int status;

		assert_true(pid >= 0);
		if (!pid) {
			struct binpool *own;

			alarm(20);
			if (binpool_alloc(pool, 2 * MIB) || errno != EOWNERDEAD)
				_exit(1);
			if (binpool_free(pool, p) || binpool_destroy(pool))
				_exit(2);
			own = cache_pool(0, BINPOOL_CACHE_AUTO);
			for (int k = 0; k < 100; k++)
				if (binpool_free(own, binpool_alloc(own, MIB)))
					_exit(3);
			if (stats_of(own).reuses != 99 || binpool_destroy(own))
				_exit(4);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	churn_end(c, ARRAY_SIZE(c));
	assert_ok(binpool_free(pool, p));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}
#endif

/*
 * The litmus test of revocation: an owner never works in a cache that a thief
 * has. Without the thief's barrier it does, which shows that this would be seen.
 */
struct litmus {
	struct cache cache;
	uint32_t stolen __attribute__((aligned(64)));
	uint32_t end;
	uint64_t violations, entered;
	bool fast; /* by the limit, else by revoked */
};

static void *litmus_owner(void *arg)
{
	struct litmus *l = arg;

	while (!__atomic_load_n(&l->end, __ATOMIC_RELAXED)) {
		if (l->fast ? cache_enter_fast(&l->cache, 0) : cache_enter(&l->cache)) {
			owner_add(&l->entered, 1);
			for (int i = 0; i < 3; i++)
				l->violations += __atomic_load_n(&l->stolen, __ATOMIC_RELAXED);
		}
		cache_leave(&l->cache);
	}
	return NULL;
}

static void litmus_run(struct litmus *l, bool fast, bool barrier, uint64_t thefts)
{
	pthread_t t;

	memset(l, 0, sizeof(*l));
	l->fast = fast;
	cache_limit(&l->cache);
	pthread_create(&t, NULL, litmus_owner, l);
	while (!__atomic_load_n(&l->entered, __ATOMIC_RELAXED))
		sched_yield();
	/* On a busy machine the owner may hardly run. */
	for (uint64_t i = 0; i < thefts || __atomic_load_n(&l->entered, __ATOMIC_RELAXED) <= 1000;
	     i++) {
		__atomic_store_n(&l->cache.limit, 0, __ATOMIC_SEQ_CST);
		__atomic_store_n(&l->cache.revoked, CACHE_REVOKED, __ATOMIC_SEQ_CST);
		if (barrier)
			syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
		while (__atomic_load_n(&l->cache.busy, __ATOMIC_SEQ_CST))
			;
		__atomic_store_n(&l->stolen, 1, __ATOMIC_RELAXED);
		for (volatile int k = 0; k < 50; k++)
			;
		__atomic_store_n(&l->stolen, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&l->cache.revoked, 0, __ATOMIC_RELEASE);
		cache_limit(&l->cache);
		for (volatile int k = 0; k < 200; k++)
			;
	}
	__atomic_store_n(&l->end, 1, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
}

static void litmus(void **state)
{
	static struct litmus l;

	(void)state;
	/* Registered by the first pool with caches. */
	assert_ok(binpool_destroy(cache_pool(0, BINPOOL_CACHE_AUTO)));
	for (int fast = 0; fast < 2; fast++) {
		litmus_run(&l, fast, true, rounds(200000));
		assert_true(l.entered > 1000);
		assert_int_equal(l.violations, 0);
	}
}

/* ThreadSanitizer's owner has a barrier of its own. */
#ifndef __SANITIZE_THREAD__
static void litmus_control(void **state)
{
	static struct litmus l;

	(void)state;
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		return;
	for (int fast = 0; fast < 2; fast++) {
		l.violations = 0;
		for (int i = 0; i < 1000 && !l.violations; i++)
			litmus_run(&l, fast, false, 100000);
		assert_true(l.violations);
	}
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counted),
		cmocka_unit_test(bounded),
		cmocka_unit_test(bounded_in_one_class),
		cmocka_unit_test(stop_and_resume),
		cmocka_unit_test(sleeping_thread),
		cmocka_unit_test(sleeping_thread_is_emptied),
		cmocka_unit_test(thread_exit),
		cmocka_unit_test(calls_at_thread_end),
		cmocka_unit_test(pools_come_and_go),
		cmocka_unit_test(callbacks),
		cmocka_unit_test(many_threads),
#ifndef __SANITIZE_ADDRESS__
		cmocka_unit_test(forks),
#endif
		cmocka_unit_test(litmus),
#ifndef __SANITIZE_THREAD__
		cmocka_unit_test(litmus_control),
#endif
	};

	return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
