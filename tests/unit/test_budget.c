// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What caches keep: a buffer that goes round, however large; of many sizes little; and
 * for a thread at work, not for one that sleeps.
 */
#include "unit.h"

#include <semaphore.h>
#include <time.h>
#include <unistd.h>

#include "cache.h"

static struct binpool *pool_with(uint64_t cache_bytes, uint32_t mantissa_bits)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.provider = BINPOOL_PROVIDER_THP;
	o.cache_bytes = cache_bytes;
	o.mantissa_bits = mantissa_bits;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

/* Two large ones at a time, as in double buffering, are kept, among small ones too. */
static void goes_round(void **state)
{
	struct binpool *pool = pool_with(BINPOOL_CACHE_AUTO, 4);
	void *p[2], *small[4];

	(void)state;
	for (int i = 0; i < 100; i++) {
		p[0] = binpool_alloc(pool, 24 * MIB);
		p[1] = binpool_alloc(pool, 24 * MIB);
		assert_ok(binpool_alloc_bulk(pool, 100 * KIB, 4, small));
		assert_ok(binpool_free(pool, p[0]));
		assert_ok(binpool_free(pool, p[1]));
		assert_ok(binpool_free_bulk(pool, 4, small));
	}
	assert_true(stats_of(pool).reuses >= 590);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/*
 * What a thread missed lately may fill more than is kept as a matter of course: it gives nothing
 * up for a buffer of another class, and that one is kept beside it.
 */
static void beside_what_goes_round(void **state)
{
	struct binpool *pool = pool_with(BINPOOL_CACHE_AUTO, 4);
	void *p[3], *other = binpool_alloc(pool, 64 * KIB);
	struct binpool_stats s;

	(void)state;
	/* The last misses are of other classes than its own. */
	for (uint64_t i = 1; i < RECENT_MAX; i++)
		assert_ok(binpool_free(pool, binpool_alloc(pool, i * KIB)));
	assert_ok(binpool_alloc_bulk(pool, 4 * MIB, 3, p));
	assert_ok(binpool_free_bulk(pool, 3, p));
	s = stats_of(pool);
	assert_ok(binpool_free(pool, other));
	assert_int_equal(stats_of(pool).held_blocks, s.held_blocks + 1);
	s = stats_of(pool);
	assert_ptr_equal(binpool_alloc(pool, 64 * KIB), other);
	assert_ok(binpool_alloc_bulk(pool, 4 * MIB, 3, p));
	assert_int_equal(stats_of(pool).reuses, s.reuses + 4);
	assert_ok(binpool_free_bulk(pool, 3, p));
	assert_ok(binpool_free(pool, other));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* Many sizes, 64 at a time: the pool needs little more than they do. */
static void high_water(void **state)
{
	struct binpool *pool = pool_with(BINPOOL_CACHE_AUTO, 4);
	uint64_t live = 0, peak = 0, bytes[64] = {0};
	struct rng r = {1};
	void *p[64] = {0};
	struct binpool_stats s;

	(void)state;
	for (uint64_t i = 0; i < rounds(100000); i++) {
		uint64_t at = rng_below(&r, 64);

		assert_ok(binpool_free(pool, p[at]));
		live -= bytes[at];
		bytes[at] = 4096 + rng_size(&r, 24);
		p[at] = binpool_alloc(pool, bytes[at]);
		assert_non_null(p[at]);
		live += bytes[at];
		peak = u64_max(peak, live);
	}
	s = stats_of(pool);
	assert_true((double)s.reserved_max_bytes <= 1.45 * (double)peak);
	/* Little is kept of each, and all the same a third goes without the lock. */
	assert_true(s.held_bytes <= s.reserved_bytes / 16);
	assert_true(s.reuses > s.allocs / 3);
	check_pool(pool);
	assert_ok(binpool_free_bulk(pool, 64, p));
	assert_ok(binpool_destroy(pool));
}

struct sleeper {
	struct binpool *pool;
	pthread_barrier_t turn;
};

static void round_trip(struct binpool *pool, size_t n, size_t bytes)
{
	void *p[256];

	assert_ok(binpool_alloc_bulk(pool, bytes, n, p));
	assert_ok(binpool_free_bulk(pool, n, p));
}

static void *sleep_with_a_cache(void *arg)
{
	struct sleeper *s = arg;

	round_trip(s->pool, 4, MIB);
	pthread_barrier_wait(&s->turn);
	pthread_barrier_wait(&s->turn);
	round_trip(s->pool, 4, MIB);
	return NULL;
}

static void *newcomer(void *arg)
{
	for (int i = 0; i < 40; i++) {
		round_trip(arg, 3, MIB);
		if (stats_of(arg).held_bytes > 8 * MIB)
			return arg;
	}
	return NULL;
}

/* One thread may keep all of what may be kept, but no more is when another comes. */
static void kept_in_all(void **state)
{
	struct binpool *pool = pool_with(8 * MIB, 4);
	void *more = NULL;
	pthread_t t;

	(void)state;
	for (int i = 0; i < 4; i++)
		round_trip(pool, 8, MIB);
	assert_int_equal(stats_of(pool).held_bytes, 8 * MIB);
	assert_int_equal(pthread_create(&t, NULL, newcomer, pool), 0);
	pthread_join(t, &more);
	assert_null(more);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* Threads that do nothing get no part of the budget, and have it when they go on. */
static void idle_threads(void **state)
{
	struct binpool *pool = pool_with(32 * MIB, 4);
	struct sleeper s = {.pool = pool};
	pthread_t t[7];

	(void)state;
	pthread_barrier_init(&s.turn, NULL, 8);
	for (int i = 0; i < 7; i++)
		assert_int_equal(pthread_create(&t[i], NULL, sleep_with_a_cache, &s), 0);
	pthread_barrier_wait(&s.turn);
	/* To be idle is to have done nothing for a moment. */
	for (int i = 0; i < 60; i++) {
		round_trip(pool, 40, MIB);
		usleep(2000);
	}
	/* All but a quarter, which is the bins'. */
	assert_int_equal(cache_of(pool)->credit, 24 * MIB);
	check_pool(pool);
	pthread_barrier_wait(&s.turn);
	for (int i = 0; i < 7; i++)
		pthread_join(t[i], NULL);
	assert_true(stats_of(pool).held_bytes <= 32 * MIB);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
	pthread_barrier_destroy(&s.turn);
}

/* The finest classes: the largest held buffer is found, wherever its bin is. */
static void finest_classes(void **state)
{
	struct binpool *pool = pool_with(0, 16);
	void *p[64];

	(void)state;
	for (size_t i = 0; i < 64; i++)
		assert_non_null(p[i] = binpool_alloc(pool, MIB + i * 16000));
	for (size_t i = 0; i < 64; i++) {
		assert_ok(binpool_free(pool, p[i * 37 % 64]));
		check_pool(pool);
	}
	pool_lock(pool);
	for (size_t i = 64; i--;) {
		struct run *run = bins_largest(pool);

		assert_ptr_equal(run->ptr, p[i]);
		held_release_one(pool, run);
	}
	assert_null(bins_largest(pool));
	pool_unlock(pool);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* The class that the fast path sees for a size is the one that its buffer has. */
static void check_place(struct binpool *pool, uint64_t size)
{
	uint64_t capacity = class_capacity(pool, size);
	uint32_t index = cache_place(pool, size) / (uint32_t)sizeof(struct magazine);
	uint32_t right = capacity ? class_bin(pool, capacity) - pool->cache_bin : UINT32_MAX;

	if (right < pool->cache_bins)
		assert_int_equal(index, right);
	else
		assert_true(index >= pool->cache_bins);
}

static void fast_path_classes(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct rng r = rng_make();
	struct binpool *pool;

	(void)state;
	o.provider = BINPOOL_PROVIDER_THP;
	for (uint32_t i = 0; i < 2 * 17 * 3; i++) {
		o.classes = i % 2 ? BINPOOL_CLASSES_HYSOP : BINPOOL_CLASSES_TIGHT;
		o.mantissa_bits = i / 2 % 17;
		o.granule = (uint64_t)64 << i / 34 * 3;
		assert_ok(binpool_create(&pool, &o));
		for (uint64_t size = 1; size < 9000; size++)
			check_place(pool, size);
		for (uint64_t k = 0; k < rounds(5000); k++)
			check_place(pool, 1 + rng_size(&r, 63));
		for (uint32_t bit = 1; bit < 64; bit++)
			for (uint64_t d = 0; d < 3; d++)
				check_place(pool, ((uint64_t)1 << bit) + d - 1);
		check_place(pool, UINT64_MAX);
		/* Size 0 has addresses only, and those are not cached. */
		assert_ok(binpool_free(pool, binpool_alloc(pool, 1)));
		assert_ok(binpool_free(pool, binpool_alloc(pool, 0)));
		assert_int_equal(stats_of(pool).reuses, 0);
		assert_ok(binpool_destroy(pool));
	}
}

struct unlocked {
	struct binpool *pool;
	pthread_barrier_t turn;
	sem_t done;
	int errors;
};

static void aligned_round_trip(struct unlocked *u, size_t align)
{
	void *p[8];

	for (size_t i = 0; i < 8; i++) {
		p[i] = binpool_alloc_aligned(u->pool, 100000, align);
		u->errors += !p[i] || (uintptr_t)p[i] & (align - 1);
	}
	u->errors += binpool_free_bulk(u->pool, 8, p) != 0;
}

/* Another has the lock the second time. */
static void *use_cached(void *arg)
{
	struct unlocked *u = arg;
	void *p[8];

	for (int locked = 0; locked < 2; locked++) {
		if (locked)
			pthread_barrier_wait(&u->turn);
		u->errors += binpool_alloc_bulk(u->pool, 5000, 8, p) != 0;
		u->errors += binpool_free_bulk(u->pool, 8, p) != 0;
		aligned_round_trip(u, 64 * KIB);
		for (int i = 0; i < 8; i++) {
			struct binpool_alloc_opts opts = {.size = sizeof(opts), .bytes = 5000};
			struct binpool_buf buf = {.size = sizeof(buf)};

			u->errors += binpool_alloc_ex(u->pool, &opts, &buf) != 0;
			u->errors += buf.bytes != 5000 || buf.capacity < 5000;
			p[i] = buf.ptr;
		}
		u->errors += binpool_free_bulk(u->pool, 8, p) != 0;
		if (!locked)
			pthread_barrier_wait(&u->turn);
	}
	sem_post(&u->done);
	return NULL;
}

/* Buffers from the thread's own cache cost no lock, by whichever function. */
static void without_the_lock(void **state)
{
	struct unlocked u = {.pool = pool_with(BINPOOL_CACHE_AUTO, 4)};
	struct timespec end;
	pthread_t t;
	bool in_time;

	(void)state;
	pthread_barrier_init(&u.turn, NULL, 2);
	sem_init(&u.done, 0, 0);
	assert_int_equal(pthread_create(&t, NULL, use_cached, &u), 0);
	pthread_barrier_wait(&u.turn);
	pool_lock(u.pool);
	pthread_barrier_wait(&u.turn);
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 20;
	in_time = !sem_timedwait(&u.done, &end);
	pool_unlock(u.pool);
	pthread_join(t, NULL);
	assert_true(in_time);
	assert_int_equal(u.errors, 0);
	check_pool(u.pool);
	assert_ok(binpool_destroy(u.pool));
	sem_destroy(&u.done);
	pthread_barrier_destroy(&u.turn);
}

/* Takes one, gives it back, and then waits for the end. */
struct awake {
	struct binpool *pool;
	pthread_barrier_t *at;
};

static void *be_awake(void *arg)
{
	struct awake *a = arg;
	void *p = binpool_alloc(a->pool, 128 * KIB);
	int err = p ? binpool_free(a->pool, p) : -1;

	pthread_barrier_wait(a->at);
	pthread_barrier_wait(a->at);
	return err ? a : NULL;
}

/* A thread takes no more from the bins than its share: the rest stays there. */
static void refills_to_its_share(void **state)
{
	struct binpool *pool = pool_with(8 * MIB, 4);
	pthread_t threads[8];
	pthread_barrier_t at;
	struct awake awake = {pool, &at};
	struct binpool_stats before, after;
	void *p[16], *wrong, *q;
	char text[64];

	(void)state;
	pthread_barrier_init(&at, NULL, 9);
	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, be_awake, &awake);
	pthread_barrier_wait(&at);
	assert_ok(binpool_alloc_bulk(pool, 128 * KIB, 16, p));
	for (int i = 0; i < 16; i++) {
		assert_ok(binpool_free(pool, p[i]));
		/* All caches are emptied into the bins. */
		assert_true(binpool_leaks(pool, BINPOOL_REPORT_KEYS, text, sizeof(text)) > 0);
	}
	before = stats_of(pool);
	assert_true(before.held_blocks > 12);
	q = binpool_alloc(pool, 128 * KIB);
	after = stats_of(pool);
	assert_int_equal(after.held_blocks, before.held_blocks - 1);
	assert_int_equal(after.frees_held, before.frees_held);
	assert_ok(binpool_free(pool, q));
	check_pool(pool);
	pthread_barrier_wait(&at);
	for (int i = 0; i < 8; i++) {
		pthread_join(threads[i], &wrong);
		assert_null(wrong);
	}
	pthread_barrier_destroy(&at);
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(goes_round),		cmocka_unit_test(beside_what_goes_round),
		cmocka_unit_test(high_water),		cmocka_unit_test(kept_in_all),
		cmocka_unit_test(idle_threads),		cmocka_unit_test(finest_classes),
		cmocka_unit_test(fast_path_classes),	cmocka_unit_test(without_the_lock),
		cmocka_unit_test(refills_to_its_share),
	};

	return cmocka_run_group_tests_name("budget", tests, NULL, NULL);
}
