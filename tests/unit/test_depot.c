// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The depot: what one thread frees is what another gets, and until then it is in nobody's way.
 */
#include "unit.h"

#include <semaphore.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cache.h"

/* The library's malloc, by the linker: fails when told to. */
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
static bool malloc_fails;

void *__wrap_malloc(size_t size)
{
	return malloc_fails ? NULL : __real_malloc(size);
}

/* A thread that frees what it is told to. */
struct freer {
	struct binpool *pool;
	pthread_t thread;
	sem_t go, done;
	void **ptrs;
	size_t n;
	int err;
};

static void *freer_run(void *arg)
{
	struct freer *f = arg;

	for (;;) {
		sem_wait(&f->go);
		if (!f->n)
			return NULL;
		f->err = binpool_free_bulk(f->pool, f->n, f->ptrs);
		sem_post(&f->done);
	}
}

static void freer_start(struct freer *f, struct binpool *pool)
{
	*f = (struct freer){.pool = pool};
	sem_init(&f->go, 0, 0);
	sem_init(&f->done, 0, 0);
	assert_int_equal(pthread_create(&f->thread, NULL, freer_run, f), 0);
}

static void freer_free(struct freer *f, size_t n, void **ptrs)
{
	f->n = n;
	f->ptrs = ptrs;
	sem_post(&f->go);
	sem_wait(&f->done);
	assert_ok(f->err);
}

static void freer_end(struct freer *f)
{
	f->n = 0;
	sem_post(&f->go);
	pthread_join(f->thread, NULL);
	sem_destroy(&f->go);
	sem_destroy(&f->done);
}

#define N 256u

static struct binpool *pool_with(uint64_t max_bytes, uint64_t cache_bytes)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.provider = BINPOOL_PROVIDER_THP;
	o.max_bytes = max_bytes;
	o.cache_bytes = cache_bytes;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

static void get(struct binpool *pool, size_t n, void **p, size_t size)
{
	for (size_t i = 0; i < n; i++) {
		p[i] = binpool_alloc(pool, size);
		assert_non_null(p[i]);
	}
}

/* The freer has a cache, so what this thread has none of comes from the depot. */
static uint64_t fill(struct binpool *pool, struct freer *f, size_t size, void **p)
{
	get(pool, N, p, size);
	freer_free(f, N, p);
	check_pool(pool);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_true(depot_bytes(&pool->depot) >= N / 4 * size);
	return depot_bytes(&pool->depot) / size;
}

static bool is_one_of(const void *p, void **all)
{
	for (size_t i = 0; i < N; i++)
		if (all[i] == p)
			return true;
	return false;
}

struct asker {
	struct binpool *pool;
	uint64_t before, after, binned;
};

static void *asks_for_another_class(void *arg)
{
	struct asker *a = arg;
	void *other = binpool_alloc(a->pool, 16 * KIB), *p;

	a->before = depot_bytes(&a->pool->depot);
	p = binpool_alloc(a->pool, 64 * KIB);
	a->after = depot_bytes(&a->pool->depot);
	a->binned = a->pool->binned_bytes;
	return binpool_free(a->pool, p) || binpool_free(a->pool, other) ? "a free failed" : NULL;
}

/* Who has had no buffer of the class yet takes a parcel as well, not all of them. */
static void first_of_a_class(void **state)
{
	struct asker a = {.pool = pool_with(0, 64 * MIB)};
	void *p[N], *wrong;
	struct freer f;
	pthread_t t;

	(void)state;
	freer_start(&f, a.pool);
	fill(a.pool, &f, 64 * KIB, p);
	assert_int_equal(pthread_create(&t, NULL, asks_for_another_class, &a), 0);
	assert_int_equal(pthread_join(t, &wrong), 0);
	assert_null(wrong);
	assert_in_range(a.before - a.after, 64 * KIB, PARCEL_MAX * 64 * KIB);
	assert_true(a.after > 0);
	assert_int_equal(a.binned, 0);
	freer_end(&f);
	check_pool(a.pool);
	assert_ok(binpool_destroy(a.pool));
}

/* Of pages, and smaller: all that is in it is had again, each once. */
static void passes(void **state)
{
	const size_t sizes[] = {64, 1024, 4096, 64 * KIB};

	(void)state;
	for (size_t k = 0; k < ARRAY_SIZE(sizes); k++) {
		struct binpool *pool = pool_with(0, 64 * MIB);
		struct binpool_stats before, after;
		void *p[N], *q[N];
		struct freer f;
		size_t n;

		freer_start(&f, pool);
		n = fill(pool, &f, sizes[k], p);
		before = stats_of(pool);
		assert_int_equal(before.returns, N);
		assert_int_equal(binpool_free(pool, p[0]), -EINVAL);
		get(pool, n, q, sizes[k]);
		after = stats_of(pool);
		assert_int_equal(after.allocs, before.allocs);
		assert_int_equal(after.reuses, before.reuses + n);
		assert_int_equal(after.active_bytes, n * sizes[k]);
		assert_int_equal(after.held_blocks, N - n);
		assert_int_equal(depot_bytes(&pool->depot), 0);
		for (size_t i = 0; i < n; i++) {
			assert_true(is_one_of(q[i], p));
			memset(q[i], 1, sizes[k]);
			for (size_t j = 0; j < i; j++)
				assert_ptr_not_equal(q[i], q[j]);
		}
		check_pool(pool);
		/* And the other way. */
		assert_ok(binpool_free_bulk(pool, n, q));
		freer_end(&f);
		check_pool(pool);
		assert_ok(binpool_destroy(pool));
	}
}

/* Who only takes has no more of what may be held than he needs: it would be missed elsewhere. */
static void takes_little(void **state)
{
	struct binpool *pool = pool_with(0, 64 * MIB);
	void *p[N];
	struct freer f;

	(void)state;
	freer_start(&f, pool);
	for (int i = 0; i < 20; i++) {
		fill(pool, &f, 64 * KIB, p);
		assert_true(cache_of(pool)->granted <= PARCEL_MAX * 64 * KIB);
	}
	assert_true(stats_of(pool).allocs <= 2 * N);
	freer_end(&f);
	assert_ok(binpool_destroy(pool));
}

/* Where a request goes that cannot be served without the pool's lock. */
static void other_ways(void **state)
{
	struct binpool *pool = pool_with(0, 64 * MIB);
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool_alloc_opts opts = {.size = sizeof(opts)};
	uint64_t before;
	void *p[N], *q;
	struct freer f;

	(void)state;
	freer_start(&f, pool);
	fill(pool, &f, 64 * KIB, p);
	before = stats_of(pool).allocs;
	q = binpool_alloc_aligned(pool, 64 * KIB, 64 * KIB);
	assert_non_null(q);
	assert_int_equal((uintptr_t)q % (64 * KIB), 0);
	opts.bytes = 64 * KIB;
	assert_ok(binpool_alloc_ex(pool, &opts, &buf));
	assert_true(is_one_of(q, p) && is_one_of(buf.ptr, p));
	assert_int_equal(stats_of(pool).allocs, before);
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_free(pool, buf.ptr));
	check_pool(pool);
	freer_end(&f);
	assert_ok(binpool_destroy(pool));
}

/* Whatever goes round between the two, no more is held than may be. */
static void bounded(void **state)
{
	const uint64_t budgets[] = {MIB, 8 * MIB};
	struct rng r = rng_make();

	(void)state;
	for (size_t k = 0; k < ARRAY_SIZE(budgets); k++) {
		struct binpool *pool = pool_with(0, budgets[k]);
		void *p[N];
		struct freer f;

		freer_start(&f, pool);
		for (uint64_t i = 0; i < rounds(2000); i++) {
			size_t n = 1 + rng_below(&r, N);
			size_t size = 1 + rng_size(&r, 17);

			get(pool, n, p, size);
			if (rng_below(&r, 4))
				freer_free(&f, n, p);
			else
				assert_ok(binpool_free_bulk(pool, n, p));
			assert_true(stats_of(pool).held_bytes <= budgets[k]);
			/* The threads' own shares are theirs. */
			assert_true(depot_bytes(&pool->depot) <= budgets[k] / 4);
			if (i % 50 == 0)
				check_pool(pool);
		}
		freer_end(&f);
		check_pool(pool);
		assert_ok(binpool_destroy(pool));
	}
}

/* At the limit what is in it makes room, also when no thread has a cache any more. */
static void gives_way(void **state)
{
	(void)state;
	for (int ended = 0; ended < 2; ended++) {
		struct binpool *pool = pool_with(32 * MIB, 32 * MIB);
		void *p[N], *large;
		struct freer f;

		freer_start(&f, pool);
		fill(pool, &f, 64 * KIB, p);
		if (ended)
			freer_end(&f);
		large = binpool_alloc(pool, 31 * MIB);
		assert_non_null(large);
		assert_int_equal(depot_bytes(&pool->depot), 0);
		check_pool(pool);
		assert_ok(binpool_free(pool, large));
		if (!ended)
			freer_end(&f);
		assert_ok(binpool_destroy(pool));
	}
}

static void free_held(struct binpool *pool)
{
	assert_ok(binpool_free_held(pool));
}

static void stop_holding(struct binpool *pool)
{
	assert_ok(binpool_stop_holding(pool));
}

static void trim_all(struct binpool *pool)
{
	assert_true(binpool_trim(pool, 0, 0) > 0);
}

static void trim_old(struct binpool *pool)
{
	const struct timespec moment = {.tv_nsec = 100000000};

	/* What came a moment ago stays. */
	assert_int_equal(binpool_trim(pool, 0, 60000), 0);
	assert_int_equal(stats_of(pool).held_blocks, N);
	assert_true(depot_bytes(&pool->depot) > 0);
	nanosleep(&moment, NULL);
	assert_true(binpool_trim(pool, 0, 20) >= 0);
	assert_int_equal(depot_bytes(&pool->depot), 0);
	/* What a thread has itself is first seen to be unused. */
	nanosleep(&moment, NULL);
	assert_true(binpool_trim(pool, 0, 20) > 0);
}

/* Whatever takes back what is held takes what is in it, with its threads and without. */
static void taken_back(void **state)
{
	void (*const ways[])(struct binpool * pool) = {free_held, stop_holding, trim_all, trim_old};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
		struct binpool *pool = pool_with(0, 64 * MIB);
		void *p[N];
		struct freer f;

		freer_start(&f, pool);
		fill(pool, &f, 64 * KIB, p);
		ways[i](pool);
		assert_int_equal(stats_of(pool).held_blocks, 0);
		assert_int_equal(stats_of(pool).reserved_bytes, 0);
		check_pool(pool);
		assert_ok(binpool_resume_holding(pool));
		fill(pool, &f, 64 * KIB, p);
		freer_end(&f);
		assert_ok(binpool_destroy(pool));
	}
}

static void *fill_and_end(void *arg)
{
	void *p[N];
	struct freer f;

	freer_start(&f, arg);
	fill(arg, &f, 64 * KIB, p);
	freer_end(&f);
	return NULL;
}

/* Threads that used it end; what they left is found by the next, or goes. */
static void threads_end(void **state)
{
	struct binpool *pool = pool_with(0, 64 * MIB);
	void *p[N];
	pthread_t t;

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_create(&t, NULL, fill_and_end, pool), 0);
		pthread_join(t, NULL);
		assert_null(pool->caches);
		assert_int_equal(stats_of(pool).held_blocks, N);
		assert_true(depot_bytes(&pool->depot) > 0);
		check_pool(pool);
		assert_ok(binpool_free_held(pool));
		assert_int_equal(stats_of(pool).reserved_bytes, 0);
	}
	pthread_create(&t, NULL, fill_and_end, pool);
	pthread_join(t, NULL);
	get(pool, N, p, 64 * KIB);
	assert_int_equal(stats_of(pool).held_blocks, 0);
	assert_int_equal(stats_of(pool).allocs, 3 * N);
	check_pool(pool);
	assert_ok(binpool_free_bulk(pool, N, p));
	assert_ok(binpool_destroy(pool));
}

/* Where there is no memory for a parcel, buffers go back to where they came from. */
static void no_memory(void **state)
{
	struct binpool *pool = pool_with(0, 64 * MIB);
	void *p[N];
	struct freer f;

	(void)state;
	freer_start(&f, pool);
	get(pool, N, p, 64 * KIB);
	malloc_fails = true;
	freer_free(&f, N, p);
	malloc_fails = false;
	assert_int_equal(depot_bytes(&pool->depot), 0);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_true(stats_of(pool).frees_held > 0);
	check_pool(pool);
	fill(pool, &f, 64 * KIB, p);
	freer_end(&f);
	assert_ok(binpool_destroy(pool));
}

/* A child has nothing to do with what its parent left there. */
static void forks(void **state)
{
	struct binpool *pool = pool_with(0, 64 * MIB);
	void *p[N];
	struct freer f;
	int status;
	pid_t pid;

	(void)state;
	freer_start(&f, pool);
	fill(pool, &f, 64 * KIB, p);
	pid = fork();
	if (!pid)
		_exit(binpool_alloc(pool, 64 * KIB) || errno != EOWNERDEAD ||
		      binpool_destroy(pool));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	fill(pool, &f, 64 * KIB, p);
	freer_end(&f);
	assert_ok(binpool_destroy(pool));
}

/* ---- All at once ------------------------------------------------------------ */

#define RING 64u

struct pair {
	struct binpool *pool;
	pthread_t threads[2];
	void *ring[RING];
	uint64_t head, tail, n;
	uint64_t wrong; /* bytes or results */
};

static void wait_for(const uint64_t *index, uint64_t at)
{
	while (__atomic_load_n(index, __ATOMIC_ACQUIRE) < at)
		sched_yield();
}

/* As if it had waited for other threads: it gets an arena of its own, if there is one. */
static void alone_soon(struct binpool *pool, uint64_t i)
{
	if (i == 1000 && cache_of(pool))
		cache_of(pool)->crowded = true;
}

static void *pair_alloc(void *arg)
{
	struct pair *pair = arg;

	for (uint64_t i = 0; i < pair->n; i++) {
		uint64_t *p = binpool_alloc(pair->pool, i % 512 < 256 ? 16 * KIB : 1000);

		alone_soon(pair->pool, i);
		wait_for(&pair->tail, i < RING ? 0 : i - RING + 1);
		if (p)
			*p = i;
		pair->ring[i % RING] = p;
		__atomic_store_n(&pair->head, i + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void *pair_free(void *arg)
{
	struct pair *pair = arg;

	for (uint64_t i = 0; i < pair->n; i++) {
		uint64_t *p;

		wait_for(&pair->head, i + 1);
		p = pair->ring[i % RING];
		alone_soon(pair->pool, i);
		pair->wrong += !p || *p != i || binpool_free(pair->pool, p);
		__atomic_store_n(&pair->tail, i + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* Nobody gets what another has, while all is taken back again and again; in two pools. */
static void at_once(void **state)
{
	const struct timespec moment = {.tv_nsec = 200000};
	struct pair pairs[4] = {0};
	struct binpool *pools[2];
	bool at_work = true;

	(void)state;
	for (int i = 0; i < 2; i++)
		pools[i] = pool_with(64 * MIB, 2 * MIB);
	for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
		pairs[i].pool = pools[i % 2];
		pairs[i].n = rounds(100000);
		pthread_create(&pairs[i].threads[0], NULL, pair_alloc, &pairs[i]);
		pthread_create(&pairs[i].threads[1], NULL, pair_free, &pairs[i]);
	}
	for (uint32_t k = 0; at_work; k++) {
		at_work = false;
		for (size_t i = 0; i < ARRAY_SIZE(pairs); i++)
			at_work = at_work ||
				  __atomic_load_n(&pairs[i].tail, __ATOMIC_RELAXED) < pairs[i].n;
		assert_true(stats_of(pools[k % 2]).held_bytes < GIB);
		switch (k % 8) {
		case 0:
			assert_ok(binpool_free_held(pools[0]));
			break;
		case 3:
			assert_true(binpool_trim(pools[1], 0, 0) >= 0);
			break;
		case 5:
			assert_true(binpool_trim(pools[0], 0, 4) >= 0);
			break;
		}
		nanosleep(&moment, NULL);
	}
	for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
		pthread_join(pairs[i].threads[0], NULL);
		pthread_join(pairs[i].threads[1], NULL);
		assert_int_equal(pairs[i].wrong, 0);
	}
	for (int i = 0; i < 2; i++) {
		struct binpool_stats s = stats_of(pools[i]);

		assert_int_equal(s.active_blocks, 0);
		assert_int_equal(s.allocs + s.reuses, 2 * rounds(100000));
		check_pool(pools[i]);
		assert_ok(binpool_destroy(pools[i]));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(passes),	cmocka_unit_test(first_of_a_class),
		cmocka_unit_test(takes_little), cmocka_unit_test(other_ways),
		cmocka_unit_test(bounded),	cmocka_unit_test(gives_way),
		cmocka_unit_test(taken_back),	cmocka_unit_test(threads_end),
		cmocka_unit_test(no_memory),	cmocka_unit_test(forks),
		cmocka_unit_test(at_once),
	};

	return cmocka_run_group_tests_name("depot", tests, NULL, NULL);
}
