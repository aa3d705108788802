// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Many threads on one pool: buffers pass from one to another, others free what
 * is held, add and remove registrars, read statistics. No buffer is ever
 * anybody else's.
 */
#include "unit.h"

#include <sched.h>
#include <unistd.h>

#include "cache.h"

#define THREADS 6
#define SHARED	64

/* A place where a thread leaves a buffer for another; filled with its tag. */
struct place {
	uint64_t *ptr;
	uint64_t words, tag;
};

struct job {
	struct binpool *pool;
	struct place place[SHARED];
	pthread_mutex_t lock[SHARED];
	uint64_t n;
	int errors, done;
	uint64_t failed_allocs;
};

struct worker {
	struct job *job;
	uint64_t seed;
	pthread_t thread;
};

static void fill(struct place *p)
{
	for (uint64_t i = 0; i < p->words; i++)
		p->ptr[i] = p->tag + i;
}

static bool intact(const struct place *p)
{
	for (uint64_t i = 0; i < p->words; i++)
		if (p->ptr[i] != p->tag + i)
			return false;
	return true;
}

static void *exchange(void *arg)
{
	struct worker *w = arg;
	struct job *j = w->job;
	struct rng r = {w->seed};

	for (uint64_t i = 0; i < j->n; i++) {
		struct place mine = {.tag = rng_next(&r)}, old;
		uint64_t at = rng_below(&r, SHARED), bytes = rng_size(&r, 17);

		/* As if it had waited for other threads. */
		if (j->pool->arenas_max > 1 && !rng_below(&r, 256) && cache_of(j->pool))
			cache_of(j->pool)->crowded = true;
		mine.ptr = binpool_alloc(j->pool, bytes);
		mine.words = mine.ptr ? bytes / sizeof(uint64_t) : 0;
		if (!mine.ptr)
			__atomic_add_fetch(&j->failed_allocs, 1, __ATOMIC_RELAXED);
		fill(&mine);
		pthread_mutex_lock(&j->lock[at]);
		old = j->place[at];
		j->place[at] = mine;
		pthread_mutex_unlock(&j->lock[at]);
		if (!intact(&old) || binpool_free(j->pool, old.ptr))
			__atomic_add_fetch(&j->errors, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static int count_attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	(void)extent;
	(void)cookie;
	__atomic_add_fetch((int *)ctx, 1, __ATOMIC_RELAXED);
	return 0;
}

static void count_detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	(void)extent;
	(void)cookie;
	__atomic_sub_fetch((int *)ctx, 1, __ATOMIC_RELAXED);
}

/* What else goes on: held memory is freed, holding stops, registrars come and go. */
static void *disturb(void *arg)
{
	struct worker *w = arg;
	struct job *j = w->job;
	struct rng r = {w->seed};

	while (!__atomic_load_n(&j->done, __ATOMIC_RELAXED)) {
		struct binpool_stats s = {.size = sizeof(s)};
		int attached = 0, err = 0;
		struct binpool_registrar_ops ops = {
			.size = sizeof(ops),
			.ctx = &attached,
			.attach = count_attach,
			.detach = count_detach,
		};
		uint64_t id;

		switch (rng_below(&r, 5)) {
		case 0:
			err = binpool_free_held(j->pool);
			break;
		case 1:
			err = binpool_stop_holding(j->pool);
			usleep(100);
			err |= binpool_resume_holding(j->pool);
			break;
		case 2:
			err = binpool_add_registrar(j->pool, &ops, &id);
			err |= binpool_remove_registrar(j->pool, id);
			err |= attached;
			break;
		case 3:
			err = binpool_report(j->pool, BINPOOL_REPORT_KEYS, NULL, 0) <= 0;
			break;
		default:
			err = binpool_get_stats(j->pool, &s);
			err |= s.active_blocks != s.allocs + s.reuses - s.returns - s.frees_active;
			err |= s.held_blocks != s.returns - s.reuses - s.frees_held;
			err |= s.managed_bytes > s.reserved_bytes;
			err |= s.reserved_bytes > s.max_bytes;
		}
		if (err)
			__atomic_add_fetch(&j->errors, 1, __ATOMIC_RELAXED);
		usleep(200);
	}
	return NULL;
}

static void run(struct binpool *pool, bool may_fail)
{
	struct rng r = rng_make();
	struct worker workers[THREADS + 1];
	struct job *j = calloc(1, sizeof(*j));

	j->pool = pool;
	j->n = rounds(20000);
	for (int i = 0; i < SHARED; i++)
		pthread_mutex_init(&j->lock[i], NULL);
	for (int i = 0; i <= THREADS; i++) {
		workers[i] = (struct worker){.job = j, .seed = rng_next(&r)};
		assert_int_equal(pthread_create(&workers[i].thread, NULL,
						i < THREADS ? exchange : disturb, &workers[i]),
				 0);
	}
	for (int i = 0; i <= THREADS; i++) {
		if (i == THREADS)
			__atomic_store_n(&j->done, 1, __ATOMIC_RELAXED);
		pthread_join(workers[i].thread, NULL);
	}
	assert_int_equal(j->errors, 0);
	assert_true(may_fail || !j->failed_allocs);
	check_pool(pool);
	for (int i = 0; i < SHARED; i++) {
		assert_true(intact(&j->place[i]));
		assert_ok(binpool_free(pool, j->place[i].ptr));
	}
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_int_equal(stats_of(pool).registrations, 0);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
	free(j);
}

static struct binpool *with_arenas(struct binpool *pool, uint32_t n)
{
	pool->arenas_max = n;
	return pool;
}

static void extents(void **state)
{
	(void)state;
	run(with_arenas(real_pool(0), 1), false);
}

static void arenas(void **state)
{
	(void)state;
	run(with_arenas(real_pool(0), 4), false);
}

static void arenas_at_the_limit(void **state)
{
	(void)state;
	run(with_arenas(real_pool(4 * MIB), 4), true);
}

/* The limit is hit all the time, but never passed. */
static void extents_at_the_limit(void **state)
{
	(void)state;
	run(with_arenas(real_pool(4 * MIB), 1), true);
}

static void allocator(void **state)
{
	struct counter c = COUNTER_INIT;

	(void)state;
	c.real = true;
	run(counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0), false);
	assert_int_equal(c.bytes, 0);
}

static void allocator_short_of_memory(void **state)
{
	struct counter c = COUNTER_INIT;

	(void)state;
	c.real = true;
	c.max_bytes = 512 * KIB;
	run(counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0), true);
	assert_int_equal(c.bytes, 0);
}

static void *free_later(void *arg)
{
	struct place *p = arg;

	usleep(50000);
	return (void *)(intptr_t)binpool_free((struct binpool *)p->words, p->ptr);
}

/* destroy_wait returns as soon as the last buffer is freed, by whomever. */
static void destroy_waits(void **state)
{
	(void)state;
	for (int holding = 0; holding < 2; holding++) {
		struct binpool *pool = real_pool(0);
		struct place p = {.ptr = binpool_alloc(pool, 1000), .words = (uintptr_t)pool};
		pthread_t thread;
		void *err;

		if (!holding)
			assert_ok(binpool_stop_holding(pool));
		assert_int_equal(binpool_destroy_wait(pool, 1), -EBUSY);
		assert_int_equal(pthread_create(&thread, NULL, free_later, &p), 0);
		assert_ok(binpool_destroy_wait(pool, 20000));
		pthread_join(thread, &err);
		assert_int_equal((intptr_t)err, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arenas),	 cmocka_unit_test(arenas_at_the_limit),
		cmocka_unit_test(extents),	 cmocka_unit_test(extents_at_the_limit),
		cmocka_unit_test(allocator),	 cmocka_unit_test(allocator_short_of_memory),
		cmocka_unit_test(destroy_waits),
	};

	return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
