// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Arenas: threads that are in each other's way take memory from places of their own, and no
 * memory is out of reach for it.
 */
#include "unit.h"

#include <time.h>
#include <unistd.h>

#include "cache.h"

/* A second thread, which does one thing after another for the first. */
struct other {
	struct binpool *pool;
	pthread_t thread;
	pthread_barrier_t turn;
	void (*what)(struct other *o);
	void *p[64];
	size_t n, bytes;
	int err;
};

static void *other_thread(void *arg)
{
	struct other *o = arg;

	for (;;) {
		pthread_barrier_wait(&o->turn);
		if (!o->what)
			return NULL;
		o->what(o);
		pthread_barrier_wait(&o->turn);
	}
}

static void other_does(struct other *o, void (*what)(struct other *o))
{
	o->what = what;
	pthread_barrier_wait(&o->turn);
	if (what)
		pthread_barrier_wait(&o->turn);
	else
		pthread_join(o->thread, NULL);
}

static void allocate_n(struct other *o)
{
	o->err = 0;
	for (size_t i = 0; i < o->n; i++) {
		o->p[i] = binpool_alloc(o->pool, o->bytes);
		if (!o->p[i])
			o->err = errno;
	}
}

static void free_n(struct other *o)
{
	o->err = 0;
	for (size_t i = 0; i < o->n; i++)
		o->err |= binpool_free(o->pool, o->p[i]);
}

/* It would like an arena of its own, and has it after the next miss. */
static void be_crowded(struct other *o)
{
	void *p = binpool_alloc(o->pool, 12345);

	cache_of(o->pool)->crowded = true;
	binpool_free(o->pool, binpool_alloc(o->pool, MIB + 4096 * o->n));
	o->err = binpool_free(o->pool, p);
}

/* A pool with a thread in each of two arenas; this one in the first. */
static struct binpool *two_arenas(struct other *o, uint64_t max_bytes)
{
	struct binpool_options opts = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	opts.provider = BINPOOL_PROVIDER_THP;
	opts.max_bytes = max_bytes;
	assert_ok(binpool_create(&pool, &opts));
	pool->arenas_max = 2;
	assert_ok(binpool_free(pool, binpool_alloc(pool, 4096)));
	*o = (struct other){.pool = pool};
	pthread_barrier_init(&o->turn, NULL, 2);
	assert_int_equal(pthread_create(&o->thread, NULL, other_thread, o), 0);
	assert_int_equal(pool->arenas_used, 1);
	other_does(o, be_crowded);
	assert_ok(o->err);
	assert_int_equal(pool->arenas_used, 2);
	assert_int_equal(pool->arenas[0]->threads, 1);
	assert_int_equal(pool->arenas[1]->threads, 1);
	check_pool(pool);
	return pool;
}

static struct arena *arena_of(const void *p)
{
	return map_find(p)->extent->arena;
}

/* Each has its own, until there is nobody to share with. */
static void own_memory(void **state)
{
	struct other o;
	struct binpool *pool = two_arenas(&o, 0);
	uint64_t reserved;
	void *p[64];

	(void)state;
	o.n = 64;
	o.bytes = 256 * KIB;
	other_does(&o, allocate_n);
	assert_int_equal(o.err, 0);
	for (size_t i = 0; i < 64; i++) {
		p[i] = binpool_alloc(pool, 256 * KIB);
		assert_non_null(p[i]);
		assert_ptr_equal(arena_of(p[i]), pool->arenas[0]);
		assert_ptr_equal(arena_of(o.p[i]), pool->arenas[1]);
	}
	check_pool(pool);
	assert_int_equal(stats_of(pool).active_blocks, 128);
	assert_int_equal(stats_of(pool).active_bytes, 128 * 256 * KIB);

	/* Each frees what is the other's. */
	assert_ok(binpool_free_bulk(pool, 32, o.p));
	for (size_t i = 0; i < 64; i++) {
		void *swap = i < 32 ? p[i] : o.p[i];

		o.p[i] = swap;
	}
	other_does(&o, free_n);
	assert_ok(o.err);
	assert_ok(binpool_free_bulk(pool, 32, p + 32));
	check_pool(pool);
	assert_int_equal(stats_of(pool).active_blocks, 0);

	/* A thread that ends leaves its memory to the others. */
	o.n = 1;
	o.bytes = 64 * KIB;
	other_does(&o, allocate_n);
	other_does(&o, NULL);
	reserved = stats_of(pool).reserved_bytes;
	for (size_t i = 0; i < 64; i++) {
		p[i] = binpool_alloc(pool, 400 * KIB);
		assert_non_null(p[i]);
	}
	assert_int_equal(stats_of(pool).reserved_bytes, reserved);
	assert_ptr_equal(arena_of(o.p[0]), pool->arenas[0]);
	check_pool(pool);
	assert_ok(binpool_free_bulk(pool, 64, p));
	assert_ok(binpool_free(pool, o.p[0]));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_destroy(pool));
}

/* A pool at its limit serves whom it can, from anywhere. */
static void at_the_limit(void **state)
{
	struct other o;
	struct binpool *pool = two_arenas(&o, 64 * MIB);
	void *p[64];
	size_t n = 0;

	(void)state;
	while (n < 64 && (p[n] = binpool_alloc(pool, MIB)))
		n++;
	/* But for a first page with small buffers. */
	assert_true(n >= 63);
	assert_int_equal(stats_of(pool).reserved_bytes, 64 * MIB);
	o.n = 1;
	o.bytes = MIB;
	other_does(&o, allocate_n);
	assert_int_equal(o.err, ENOSPC);
	assert_ok(binpool_free_bulk(pool, 32, p));
	o.n = 32;
	other_does(&o, allocate_n);
	assert_int_equal(o.err, 0);
	assert_int_equal(stats_of(pool).active_blocks, n);
	check_pool(pool);

	/* And gets what another thread holds, which is at work. */
	other_does(&o, free_n);
	o.n = 1;
	o.bytes = 16 * MIB;
	other_does(&o, allocate_n);
	assert_int_equal(o.err, 0);
	other_does(&o, free_n);
	assert_ok(binpool_free_bulk(pool, n - 32, p + 32));
	check_pool(pool);
	other_does(&o, NULL);
	assert_ok(binpool_destroy(pool));
}

/* What was reserved ahead is there for all: nobody grows while half of it is free. */
static void reserved(void **state)
{
	struct other o;
	struct binpool *pool = two_arenas(&o, 0);
	uint64_t had;
	void *p;

	(void)state;
	assert_ok(binpool_reserve(pool, 256 * MIB));
	had = stats_of(pool).reserved_bytes;
	/* It is this thread's, as long as there is a buffer of it in there. */
	p = binpool_alloc(pool, 8 * MIB);
	assert_ptr_equal(arena_of(p), pool->arenas[0]);
	o.n = 60;
	o.bytes = MIB;
	other_does(&o, allocate_n);
	assert_int_equal(o.err, 0);
	assert_int_equal(stats_of(pool).reserved_bytes, had);
	assert_ptr_equal(arena_of(o.p[59]), pool->arenas[0]);
	other_does(&o, free_n);
	assert_ok(binpool_free(pool, p));
	check_pool(pool);
	other_does(&o, NULL);
	assert_ok(binpool_destroy(pool));
}

static void free_later(struct other *o)
{
	usleep(20000);
	free_n(o);
}

/* Whoever waits for the last buffer to be freed is told, whichever arena it is in. */
static void destroy_waits(void **state)
{
	struct other o;
	struct binpool *pool = two_arenas(&o, 0);

	(void)state;
	o.n = 3;
	o.bytes = 100 * KIB;
	other_does(&o, allocate_n);
	o.what = free_later;
	pthread_barrier_wait(&o.turn);
	assert_int_equal(binpool_destroy_wait(pool, 20000), 0);
	pthread_barrier_wait(&o.turn);
	assert_ok(o.err);
	other_does(&o, NULL);
}

struct crowd {
	struct binpool *pool;
	bool stop;
	int errors;
};

static void *misses(void *arg)
{
	struct crowd *c = arg;

	/* Larger by a page each time: nothing that the cache has. */
	for (uint64_t i = 0; !__atomic_load_n(&c->stop, __ATOMIC_RELAXED); i++) {
		void *p = binpool_alloc(c->pool, 64 * KIB + i % 512 * 4096);

		if (!p || binpool_free(c->pool, p))
			__atomic_add_fetch(&c->errors, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* A thread that finds the lock taken again and again gets an arena, if it is not the only one. */
static void found_by_waiting(void **state)
{
	struct binpool *pool = thp_pool(0);
	struct crowd c = {.pool = pool};
	const struct timespec moment = {.tv_nsec = 100000};
	pthread_t t[2];
	uint32_t arenas = 1;

	(void)state;
	pool->arenas_max = 2;
	/* Alone: as if those that lock the pool had been in its way. */
	assert_ok(binpool_free(pool, binpool_alloc(pool, MIB)));
	for (uint64_t i = 1; i < 4; i++) {
		cache_of(pool)->entered = 255;
		cache_of(pool)->waited = 256;
		assert_ok(binpool_free(pool, binpool_alloc(pool, i * 64 * KIB)));
	}
	assert_int_equal(pool->arenas_used, 1);

	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&t[i], NULL, misses, &c), 0);
	for (int i = 0; i < 200000 && arenas == 1; i++) {
		pthread_mutex_lock(&pool->arena.lock);
		nanosleep(&moment, NULL);
		arenas = pool->arenas_used;
		pthread_mutex_unlock(&pool->arena.lock);
	}
	__atomic_store_n(&c.stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(arenas, 2);
	assert_int_equal(c.errors, 0);
	check_pool(pool);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(own_memory),	    cmocka_unit_test(at_the_limit),
		cmocka_unit_test(reserved),	    cmocka_unit_test(destroy_waits),
		cmocka_unit_test(found_by_waiting),
	};

	return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
