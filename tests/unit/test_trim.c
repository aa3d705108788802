// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory that was not used for a while goes back: by age, by amount, while threads use
 * the pool, and until the kernel has it.
 */
#include "unit.h"

#include <time.h>

#include "pool.h"

static void pause_ms(uint32_t ms)
{
	const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};

	nanosleep(&t, NULL);
}

/*
 * The coarse clock, which ages are told by: the system's, or where it stands still what the
 * test makes of it, in ms.
 */
static uint64_t stands_at;

int __real_clock_gettime(clockid_t clock, struct timespec *t);

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
	uint64_t ms = __atomic_load_n(&stands_at, __ATOMIC_RELAXED);

	if (clock != CLOCK_MONOTONIC_COARSE || !ms)
		return __real_clock_gettime(clock, t);
	*t = (struct timespec){.tv_sec = (time_t)(ms / 1000),
			       .tv_nsec = (long)(ms % 1000 * 1000000)};
	return 0;
}

static int clock_goes(void **state)
{
	(void)state;
	stands_at = 0;
	return 0;
}

/* All that is held goes, whether in caches, bins or slabs; nothing in use does. */
static void everything(void **state)
{
	struct counter c = COUNTER_INIT;

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct binpool *pool =
			i ? real_pool(64 * MIB) : counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
		struct binpool_stats s;
		struct rng r = rng_make();
		void *p[100], *kept = binpool_alloc(pool, 100);
		int64_t freed;

		memset(p, 0, sizeof(p));
		for (int j = 0; j < 100; j++)
			assert_non_null(p[j] = binpool_alloc(pool, 1 + rng_size(&r, 19)));
		assert_ok(binpool_free_bulk(pool, 100, p));
		s = stats_of(pool);
		freed = binpool_trim(pool, 0, 0);
		assert_ok((int)freed);
		check_pool(pool);
		assert_int_equal(stats_of(pool).reserved_bytes, s.reserved_bytes - (uint64_t)freed);
		assert_int_equal(stats_of(pool).active_blocks, 1);
		assert_int_equal(stats_of(pool).extents, 1);
		assert_ok(binpool_free(pool, kept));
		assert_true(binpool_trim(pool, 0, 0) > 0);
		assert_int_equal(stats_of(pool).reserved_bytes, 0);
		assert_int_equal(binpool_trim(pool, 0, 0), 0);
		check_pool(pool);
		assert_ok(binpool_destroy(pool));
	}
	assert_int_equal(c.bytes, 0);
}

/* No more than asked for, and what was not used for longest. */
static void by_amount(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	void *p[8];

	(void)state;
	stands_at = 1000;
	for (int i = 0; i < 8; i++)
		p[i] = binpool_alloc(pool, MIB + (uint64_t)i * 128 * KIB);
	for (int i = 0; i < 8; i++, stands_at++)
		assert_ok(binpool_free(pool, p[i]));
	/* The first is 1 MiB, the second a little more. */
	assert_int_equal(binpool_trim(pool, UINT64_MAX, 0), 0);
	assert_int_equal(binpool_trim(pool, c.bytes - 1, 0), MIB);
	assert_int_equal(binpool_trim(pool, c.bytes - MIB, 0), MIB + 128 * KIB);
	assert_int_equal(stats_of(pool).held_blocks, 6);
	assert_int_equal(stats_of(pool).reserved_bytes, c.bytes);
	assert_ptr_equal(binpool_alloc(pool, MIB + 256 * KIB), p[2]);
	assert_true(binpool_trim(pool, 0, 0) > 5 * (int64_t)MIB);
	assert_int_equal(c.bytes, MIB + 256 * KIB);
	assert_ok(binpool_free(pool, p[2]));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* What was used lately stays, to the millisecond: in bins, in caches, as empty extents. */
static void by_age(void **state)
{
	struct counter c = COUNTER_INIT;

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct binpool *pool;
		void *new, *old;
		uint64_t rest;

		stands_at = 1000000;
		pool = i ? real_pool(0) : counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
		new = binpool_alloc(pool, 40 * MIB);
		old = binpool_alloc(pool, 32 * MIB);
		assert_true(old && new);
		assert_ok(binpool_free(pool, old));
		/* A cache is looked at when something is freed, or by a trim: then, too. */
		assert_int_equal(binpool_trim(pool, 0, 1), 0);
		stands_at += 59;
		assert_ok(binpool_free(pool, new));
		assert_int_equal(binpool_trim(pool, 0, 60), 0);
		stands_at += 1;
		assert_int_equal(binpool_trim(pool, 0, 3600000), 0);
		assert_int_equal(binpool_trim(pool, 0, UINT64_MAX), 0);
		rest = stats_of(pool).reserved_bytes - 32 * MIB;
		assert_int_equal(binpool_trim(pool, 0, 60), 32 * MIB);
		check_pool(pool);
		stands_at += 58;
		assert_int_equal(binpool_trim(pool, 0, 60), 0);
		stands_at += 1;
		assert_int_equal(binpool_trim(pool, 0, 60), rest);
		assert_int_equal(stats_of(pool).reserved_bytes, 0);
		check_pool(pool);
		assert_ok(binpool_destroy(pool));
	}
}

/* The same of what no buffer has had yet: an extent, and what is free behind a buffer. */
static void unused_by_age(void **state)
{
	const uint64_t age = 60;
	struct binpool *pool;
	uint64_t reserved;
	void *p;

	(void)state;
	for (int used = 0; used < 2; used++) {
		stands_at = 1000000;
		pool = thp_pool(64 * MIB);
		p = used ? binpool_alloc(pool, MIB) : NULL;
		assert_ok(binpool_reserve(pool, 16 * MIB));
		reserved = stats_of(pool).reserved_bytes;
		stands_at += age - 1;
		assert_int_equal(binpool_trim(pool, 0, age), 0);
		stands_at += 1;
		assert_true(binpool_trim(pool, 0, age) >= 16 * (int64_t)MIB);
		assert_true(stats_of(pool).reserved_bytes <= reserved - 16 * MIB);
		check_pool(pool);
		assert_ok(binpool_free(pool, p));
		assert_ok(binpool_destroy(pool));
	}
}

/* What goes round in a cache is not old, though the pool's lock is never taken for it. */
static void busy_cache(void **state)
{
	struct binpool *pool = real_pool(0);
	uint64_t allocs;
	void *p;

	(void)state;
	stands_at = 1000;
	p = binpool_alloc(pool, MIB);
	assert_ok(binpool_free(pool, p));
	for (int round = 0; round < 4; round++) {
		assert_ok(binpool_free(pool, binpool_alloc(pool, MIB)));
		stands_at += 20;
		/* What else the extent has may go. */
		assert_true(binpool_trim(pool, 0, 10) >= 0);
		assert_int_equal(binpool_held_blocks(pool), 1);
	}
	allocs = stats_of(pool).allocs;
	assert_ok(binpool_free(pool, binpool_alloc(pool, MIB)));
	assert_int_equal(stats_of(pool).allocs, allocs);
	/* Left alone it is: looked at by the trims before. */
	binpool_trim(pool, 0, 10);
	stands_at += 9;
	assert_int_equal(binpool_trim(pool, 0, 10), 0);
	stands_at += 1;
	assert_true(binpool_trim(pool, 0, 10) > 0);
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_destroy(pool));
}

/*
 * Buffers that no thread keeps: too large, and of more classes than are remembered. They are
 * below one that stays, so what becomes free is not at the end of its extent.
 */
#define LARGE 6

struct large {
	struct binpool *pool;
	void *at[LARGE], *above;
};

static void large_alloc(struct large *l, int i)
{
	l->at[i] = binpool_alloc(l->pool, 2 * MIB + (uint64_t)i * 256 * KIB);
	assert_non_null(l->at[i]);
}

static void large_init(struct large *l, struct binpool *pool)
{
	l->pool = pool;
	for (int i = 0; i < LARGE; i++)
		large_alloc(l, i);
	l->above = binpool_alloc(pool, 4 * MIB);
	assert_non_null(l->above);
}

static void large_free(struct large *l)
{
	for (int i = 0; i < LARGE; i++)
		assert_ok(binpool_free(l->pool, l->at[i]));
	assert_ok(binpool_free(l->pool, l->above));
}

/* Ages are as true where a buffer is freed without the pool's lock: in a cache, and at an end. */
static void by_age_without_the_lock(void **state)
{
	const uint64_t age = 60;
	struct large l;
	void *small;

	(void)state;
	stands_at = 1000000;
	large_init(&l, thp_pool(0));
	small = binpool_alloc(l.pool, 64 * KIB);
	assert_non_null(small);
	stands_at += age - 1;
	assert_ok(binpool_free(l.pool, small));
	stands_at += 1;
	binpool_trim(l.pool, 0, age);
	assert_int_equal(binpool_held_blocks(l.pool), 1);
	assert_true(binpool_trim(l.pool, 0, 0) >= 0);
	assert_int_equal(binpool_held_blocks(l.pool), 0);

	/* Others are asked for, so that this one will not be kept. */
	for (int i = 0; i < LARGE; i++) {
		assert_ok(binpool_free(l.pool, l.at[i]));
		large_alloc(&l, i);
	}
	stands_at += age - 1;
	assert_ok(binpool_free(l.pool, l.above));
	assert_int_equal(binpool_held_blocks(l.pool), 0);
	stands_at += age - 1;
	assert_int_equal(binpool_trim(l.pool, 0, age), 0);
	stands_at += 1;
	assert_true(binpool_trim(l.pool, 0, age) >= 4 * (int64_t)MIB);
	l.above = NULL;
	large_free(&l);
	check_pool(l.pool);
	assert_ok(binpool_destroy(l.pool));
}

static void *ends_after_use(void *pool)
{
	void *p = binpool_alloc(pool, 64 * KIB), *q = binpool_alloc(pool, 64 * KIB);
	int err = binpool_free(pool, p) | binpool_free(pool, q);

	stands_at += 59;
	return err | binpool_free(pool, binpool_alloc(pool, 64 * KIB)) ? "a free failed" : NULL;
}

/* What a thread used until it ended is not old. */
static void by_age_of_a_thread(void **state)
{
	struct binpool *pool;
	pthread_t t;
	void *wrong;

	(void)state;
	stands_at = 1000000;
	pool = thp_pool(0);
	assert_int_equal(pthread_create(&t, NULL, ends_after_use, pool), 0);
	assert_int_equal(pthread_join(t, &wrong), 0);
	assert_null(wrong);
	stands_at += 1;
	binpool_trim(pool, 0, 60);
	assert_int_equal(binpool_held_blocks(pool), 2);
	stands_at += 59;
	binpool_trim(pool, 0, 60);
	assert_int_equal(binpool_held_blocks(pool), 0);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* A thread that keeps one buffer of 1 MiB until it is told to end. */
struct idler {
	struct binpool *pool;
	pthread_barrier_t turn;
	pthread_t thread;
};

static void *keeps_and_waits(void *arg)
{
	struct idler *idler = arg;
	int err = binpool_free(idler->pool, binpool_alloc(idler->pool, MIB));

	pthread_barrier_wait(&idler->turn);
	pthread_barrier_wait(&idler->turn);
	return err ? "a free failed" : NULL;
}

static void idler_start(struct idler *idler, struct binpool *pool)
{
	idler->pool = pool;
	pthread_barrier_init(&idler->turn, NULL, 2);
	assert_int_equal(pthread_create(&idler->thread, NULL, keeps_and_waits, idler), 0);
	pthread_barrier_wait(&idler->turn);
}

static void idler_end(struct idler *idler)
{
	void *wrong;

	pthread_barrier_wait(&idler->turn);
	assert_int_equal(pthread_join(idler->thread, &wrong), 0);
	assert_null(wrong);
	pthread_barrier_destroy(&idler->turn);
}

/* And a thread that does nothing is found by one that never locks the pool. */
static void idle_without_the_lock(void **state)
{
	struct idler idler;
	struct large l;

	(void)state;
	stands_at = 1000000;
	large_init(&l, thp_pool(0));
	idler_start(&idler, l.pool);
	assert_int_equal(l.pool->caches_awake, 2);
	for (int i = 0; i < 4 * 256; i++) {
		assert_ok(binpool_free(l.pool, l.at[i % LARGE]));
		large_alloc(&l, i % LARGE);
		stands_at += i % 256 == 255 ? 30 : 0;
	}
	assert_int_equal(l.pool->caches_awake, 1);
	idler_end(&idler);
	large_free(&l);
	check_pool(l.pool);
	assert_ok(binpool_destroy(l.pool));
}

#define SMALL 9 /* buffers of 1 MiB */
#define BIG   3 /* and of 32 MiB */

/* What goes to make room for buffers from the bins was used until then. */
static void by_age_of_a_refill(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	void *small[SMALL], *big[BIG], *last;
	struct binpool *pool;
	struct idler idler;
	uint64_t given_up;

	(void)state;
	stands_at = 1000000;
	o.provider = BINPOOL_PROVIDER_THP;
	o.cache_bytes = 16 * MIB;
	assert_ok(binpool_create(&pool, &o));
	idler_start(&idler, pool);
	for (int i = 0; i < SMALL - 1; i++)
		assert_non_null(small[i] = binpool_alloc(pool, MIB));
	for (int i = 0; i < BIG; i++)
		assert_non_null(big[i] = binpool_alloc(pool, 32 * MIB));
	last = binpool_alloc(pool, 4 * MIB);
	assert_non_null(last);
	for (int i = 0; i < SMALL - 1; i++)
		assert_ok(binpool_free(pool, small[i]));
	binpool_trim(pool, UINT64_MAX, 0);
	assert_ok(binpool_free(pool, last));
	stands_at += 59;
	assert_ptr_equal(binpool_alloc(pool, 4 * MIB), last);
	assert_ok(binpool_free(pool, last));
	assert_ok(binpool_free(pool, big[BIG - 2]));
	given_up = stats_of(pool).frees_held;
	assert_non_null(small[SMALL - 1] = binpool_alloc(pool, MIB));
	assert_true(stats_of(pool).frees_held > given_up);
	stands_at += 1;
	assert_int_equal(binpool_trim(pool, 0, 60), 0);

	idler_end(&idler);
	assert_ok(binpool_free(pool, small[SMALL - 1]));
	assert_ok(binpool_free(pool, big[0]));
	assert_ok(binpool_free(pool, big[BIG - 1]));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* Bytes that the kernel has free, and those that it keeps for each processor. */
static uint64_t kernel_free(void)
{
	FILE *f = fopen("/proc/zoneinfo", "re");
	unsigned long long pages, sum = 0;
	char line[256];

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, " nr_free_pages %llu", &pages) == 1 ||
		    sscanf(line, " count: %llu", &pages) == 1)
			sum += pages;
	fclose(f);
	return sum * page_size();
}

/* The kernel has the memory again. */
static void kernel_has_it(void **state)
{
	const uint64_t bytes = 64 * MIB;
	struct binpool *pool = thp_pool(0);
	uint64_t with, without;
	bool seen = false;
	void *p;

	(void)state;
	/* Others use memory too: it has to show once. */
	for (int i = 0; i < 50 && !seen; i++) {
		p = binpool_alloc(pool, bytes);
		assert_non_null(p);
		assert_ok(binpool_free(pool, p));
		with = kernel_free();
		assert_in_range(binpool_trim(pool, 0, 0), bytes, 2 * bytes);
		without = kernel_free();
		seen = without > with && without - with > bytes / 2;
	}
	assert_true(seen);
	assert_ok(binpool_destroy(pool));
}

/* One thread allocates, another frees, a third gives back what is held, a fourth trims. */
struct belt {
	struct binpool *pool;
	void *slot[64];
	bool stop;
	uint64_t n;
};

static void *allocates(void *arg)
{
	struct belt *b = arg;
	struct rng r = {1};
	void *wrong = NULL;

	for (uint64_t i = 0; i < b->n && !wrong; i++) {
		uint64_t size = 1 + rng_size(&r, 21);
		char *p = binpool_alloc(b->pool, size);

		if (!p) {
			wrong = "no buffer";
			break;
		}
		p[0] = p[size - 1] = (char)size;
		while (__atomic_load_n(&b->slot[i % 64], __ATOMIC_ACQUIRE))
			pause_ms(0);
		__atomic_store_n(&b->slot[i % 64], p, __ATOMIC_RELEASE);
	}
	return wrong;
}

static void *frees(void *arg)
{
	struct belt *b = arg;

	for (uint64_t i = 0; i < b->n; i++) {
		void *p;

		while (!(p = __atomic_load_n(&b->slot[i % 64], __ATOMIC_ACQUIRE)))
			pause_ms(0);
		if (binpool_free(b->pool, p))
			return "a free failed";
		__atomic_store_n(&b->slot[i % 64], NULL, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void *gives_back(void *arg)
{
	struct belt *b = arg;

	while (!__atomic_load_n(&b->stop, __ATOMIC_RELAXED)) {
		if (binpool_free_held(b->pool))
			return "free_held failed";
		pause_ms(1);
	}
	return NULL;
}

static void *trims(void *arg)
{
	struct belt *b = arg;
	uint64_t i = 0;

	while (!__atomic_load_n(&b->stop, __ATOMIC_RELAXED)) {
		if (binpool_trim(b->pool, i % 3 * 4 * MIB, i % 4) < 0)
			return "trim failed";
		i++;
		pause_ms(1);
	}
	return NULL;
}

static void while_others_run(void **state)
{
	void *(*const work[])(void *) = {allocates, frees, gives_back, trims};
	struct counter c = COUNTER_INIT;

	(void)state;
	c.real = true;
	for (int i = 0; i < 2; i++) {
		struct belt b = {.n = rounds(5000)};
		pthread_t thread[4];
		void *wrong[4];

		b.pool = i ? real_pool(0) : counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
		for (int j = 0; j < 4; j++)
			assert_int_equal(pthread_create(&thread[j], NULL, work[j], &b), 0);
		for (int j = 0; j < 4; j++) {
			if (j == 2)
				__atomic_store_n(&b.stop, true, __ATOMIC_RELAXED);
			assert_int_equal(pthread_join(thread[j], &wrong[j]), 0);
		}
		for (int j = 0; j < 4; j++)
			if (wrong[j])
				fail_msg("%s", (char *)wrong[j]);
		check_pool(b.pool);
		assert_int_equal(stats_of(b.pool).active_blocks, 0);
		assert_true(binpool_trim(b.pool, 0, 0) >= 0);
		assert_int_equal(stats_of(b.pool).reserved_bytes, 0);
		assert_ok(binpool_destroy(b.pool));
	}
	assert_int_equal(c.bytes, 0);
}

static void bad_arguments(void **state)
{
	(void)state;
	assert_int_equal(binpool_trim(NULL, 0, 0), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything),
		cmocka_unit_test_teardown(by_amount, clock_goes),
		cmocka_unit_test_teardown(by_age, clock_goes),
		cmocka_unit_test_teardown(unused_by_age, clock_goes),
		cmocka_unit_test_teardown(busy_cache, clock_goes),
		cmocka_unit_test_teardown(by_age_without_the_lock, clock_goes),
		cmocka_unit_test_teardown(by_age_of_a_thread, clock_goes),
		cmocka_unit_test_teardown(idle_without_the_lock, clock_goes),
		cmocka_unit_test_teardown(by_age_of_a_refill, clock_goes),
		cmocka_unit_test(kernel_has_it),
		cmocka_unit_test(while_others_run),
		cmocka_unit_test(bad_arguments),
	};

	return cmocka_run_group_tests_name("trim", tests, NULL, NULL);
}
