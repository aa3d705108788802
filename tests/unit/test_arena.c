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
	struct binpool *pool = thp_pool(max_bytes);

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

static struct arena *arena_at(const void *p)
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
		assert_ptr_equal(arena_at(p[i]), pool->arenas[0]);
		assert_ptr_equal(arena_at(o.p[i]), pool->arenas[1]);
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
	assert_ptr_equal(arena_at(o.p[0]), pool->arenas[0]);
	check_pool(pool);
	assert_ok(binpool_free_bulk(pool, 64, p));
	assert_ok(binpool_free(pool, o.p[0]));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_destroy(pool));
}

/*
 * The only buffer of an extent comes and goes in the thread's arena, whatever others do: this
 * one has its own locked meanwhile.
 */
static void not_waited_for(void **state)
{
	struct other o;
	struct binpool *pool = two_arenas(&o, 0);
	struct arena *theirs = pool->arenas[1];

	(void)state;
	pool->cache_bytes = 4096;
	assert_ok(binpool_free_held(pool));
	o.n = 1;
	o.bytes = 256 * KIB;
	other_does(&o, allocate_n);
	other_does(&o, free_n);
	assert_non_null(theirs->empty);
	check_pool(pool);

	alarm(60);
	lock_take(&pool->arena.lock);
	for (int i = 0; i < 3; i++) {
		other_does(&o, allocate_n);
		assert_int_equal(o.err, 0);
		assert_ptr_equal(arena_at(o.p[0]), theirs);
		assert_null(theirs->empty);
		other_does(&o, free_n);
		assert_ok(o.err);
		assert_non_null(theirs->empty);
	}
	lock_give(&pool->arena.lock);
	alarm(0);
	check_pool(pool);
	assert_int_equal(stats_of(pool).active_blocks, 0);

	/* It may still be given back, or be another's. */
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	other_does(&o, NULL);
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

/* Nobody grows while half of the pool is free; nor at all if it was reserved, and a buffer fits. */
static void free_elsewhere(void **state)
{
	(void)state;
	for (int ahead = 0; ahead < 2; ahead++) {
		struct other o;
		struct binpool *pool = two_arenas(&o, 0);
		void *p, *small;
		uint64_t had;

		/* However long this takes nobody is idle. */
		pool->idle_looked = UINT64_MAX / 2;
		assert_ok(binpool_reserve(pool, 256 * MIB));
		assert_true(pool->reserved_ahead);
		pool->reserved_ahead = ahead;
		/* Each keeps its memory as long as there is a buffer of it in there. */
		o.n = 1;
		o.bytes = 64 * KIB;
		other_does(&o, allocate_n);
		small = o.p[0];
		assert_ptr_equal(arena_at(small), pool->arenas[1]);
		had = stats_of(pool).reserved_bytes;
		p = binpool_alloc(pool, 8 * MIB);
		assert_ptr_equal(arena_at(p), pool->arenas[0]);
		o.n = ahead ? 4 : 2;
		o.bytes = 58 * MIB;
		other_does(&o, allocate_n);
		assert_int_equal(o.err, 0);
		assert_int_equal(stats_of(pool).reserved_bytes, had);
		other_does(&o, free_n);
		assert_ok(binpool_free(pool, p));
		assert_ok(binpool_free(pool, small));
		check_pool(pool);
		other_does(&o, NULL);
		assert_ok(binpool_destroy(pool));
	}
}

/* A pool that cannot grow gets no arena more, and none without memory keeps its threads. */
static void no_memory_for_another(void **state)
{
	struct other o;
	struct binpool *pool = two_arenas(&o, 64 * MIB);
	void *p[60];

	(void)state;
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_reserve(pool, 64 * MIB));
	for (int i = 0; i < 60; i++)
		p[i] = binpool_alloc(pool, MIB);
	o.n = 1;
	o.bytes = MIB;
	other_does(&o, allocate_n);
	assert_int_equal(o.err, 0);
	assert_int_equal(pool->arenas[0]->threads, 2);
	assert_int_equal(pool->arenas[1]->threads, 0);
	o.n = 0;
	other_does(&o, be_crowded);
	assert_ok(o.err);
	assert_int_equal(pool->arenas[0]->threads, 2);
	check_pool(pool);
	assert_ok(binpool_free(pool, o.p[0]));
	assert_ok(binpool_free_bulk(pool, 60, p));
	other_does(&o, NULL);
	assert_ok(binpool_destroy(pool));
}

static void leave_one(struct other *o)
{
	allocate_n(o);
	for (size_t i = 1; i < o->n; i++)
		o->err |= binpool_free(o->pool, o->p[i]);
}

/* What is free at the ends of extents of other arenas makes room below the limit. */
static void ends_of_others(void **state)
{
	struct other o;
	struct binpool *pool = two_arenas(&o, 64 * MIB);
	void *p[30], *large;

	(void)state;
	o.n = 30;
	o.bytes = MIB;
	for (int i = 0; i < 30; i++)
		p[i] = binpool_alloc(pool, MIB);
	other_does(&o, leave_one);
	assert_int_equal(o.err, 0);
	assert_ok(binpool_free_bulk(pool, 29, p + 1));
	large = binpool_alloc(pool, 40 * MIB);
	assert_non_null(large);
	check_pool(pool);
	assert_ok(binpool_free(pool, large));
	assert_ok(binpool_free(pool, p[0]));
	assert_ok(binpool_free(pool, o.p[0]));
	other_does(&o, NULL);
	assert_ok(binpool_destroy(pool));
}

/* Threads that sleep with a little of much in use leave the rest to others. */
static void sleepers(void **state)
{
	struct other o[4];
	struct binpool *pool = two_arenas(&o[0], 0);
	const uint64_t all = 64 * 256 * KIB;

	(void)state;
	pool->arenas_max = 4;
	for (int i = 1; i < 4; i++) {
		o[i] = (struct other){.pool = pool};
		pthread_barrier_init(&o[i].turn, NULL, 2);
		assert_int_equal(pthread_create(&o[i].thread, NULL, other_thread, &o[i]), 0);
		other_does(&o[i], be_crowded);
	}
	assert_int_equal(pool->arenas_used, 4);
	for (int i = 0; i < 4; i++) {
		o[i].n = 64;
		o[i].bytes = 256 * KIB;
		/* The others did nothing for a moment. */
		usleep(50000);
		other_does(&o[i], be_crowded);
		usleep(50000);
		other_does(&o[i], leave_one);
		assert_int_equal(o[i].err, 0);
	}
	assert_true(stats_of(pool).reserved_max_bytes < 2 * all);
	check_pool(pool);
	for (int i = 0; i < 4; i++) {
		assert_ok(binpool_free(pool, o[i].p[0]));
		other_does(&o[i], NULL);
	}
	assert_ok(binpool_destroy(pool));
}

static uint64_t spares(const struct binpool *pool)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < pool->arenas_used; i++)
		n += pool->arenas[i]->spares;
	return n;
}

#define PAGES 20000
static void *pages[PAGES];

static void *allocate_pages_and_end(void *pool)
{
	for (int i = 0; i < PAGES; i++)
		pages[i] = binpool_alloc(pool, 4096);
	return NULL;
}

/* Extents that go from arena to arena take no bookkeeping along for good. */
static void bookkeeping(void **state)
{
	struct other o;
	struct binpool *pool = two_arenas(&o, 0);
	uint64_t after_two = 0;
	void *p[64];

	(void)state;
	other_does(&o, NULL);
	for (int round = 0; round < 8; round++) {
		assert_int_equal(pthread_create(&o.thread, NULL, allocate_pages_and_end, pool), 0);
		pthread_join(o.thread, NULL);
		for (int i = 0; i < 64; i++)
			p[i] = binpool_alloc(pool, 256 * KIB);
		assert_ok(binpool_free_bulk(pool, PAGES, pages));
		assert_ok(binpool_free_bulk(pool, 64, p));
		if (round == 1)
			after_two = spares(pool);
	}
	assert_true(spares(pool) < 2 * after_two);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* A provider that has no more, and what another thread does while it is asked. */
static struct provider_ops no_more;
static struct other *meanwhile;

static int nothing_got(struct provider *p, struct extent *e, uint64_t align)
{
	struct other *o = meanwhile;

	(void)p;
	(void)e;
	(void)align;
	meanwhile = NULL;
	if (o)
		other_does(o, allocate_n);
	return explain(-ENOMEM, "no more");
}

static int nothing_more(struct provider *p, struct extent *e, struct extent *piece)
{
	(void)piece;
	return nothing_got(p, e, 1);
}

/* What a request was prepared with may be used up by others while it asks for memory. */
static void used_up_meanwhile(void **state)
{
	struct other o;
	struct binpool *pool = two_arenas(&o, 0);
	const struct provider_ops *real = pool->provider.ops;
	void *p, *large[4];
	size_t n = 0;

	(void)state;
	/* Of the first arena's memory nothing is left. */
	assert_ok(binpool_free_held(pool));
	do {
		assert_true(n < PAGES);
		pages[n] = binpool_alloc(pool, 4096);
		assert_non_null(pages[n++]);
	} while (run_find(pool, pool->arenas[0], 4096, 4096));
	o.n = 4;
	o.bytes = 64 * KIB;
	other_does(&o, allocate_n);
	memcpy(large, o.p, sizeof(large));
	no_more = *real;
	no_more.get = nothing_got;
	no_more.extend = nothing_more;
	pool->provider.ops = &no_more;
	/* A whole slab of the same class. */
	o.n = 32;
	o.bytes = 2000;
	meanwhile = &o;
	p = binpool_alloc(pool, 2000);
	pool->provider.ops = real;
	assert_non_null(p);
	assert_null(meanwhile);
	assert_int_equal(o.err, 0);
	assert_ptr_equal(arena_at(p), pool->arenas[1]);
	check_pool(pool);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free_bulk(pool, 32, o.p));
	assert_ok(binpool_free_bulk(pool, 4, large));
	assert_ok(binpool_free_bulk(pool, n, pages));
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
		lock_take(&pool->arena.lock);
		nanosleep(&moment, NULL);
		arenas = pool->arenas_used;
		lock_give(&pool->arena.lock);
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
		cmocka_unit_test(own_memory),	     cmocka_unit_test(at_the_limit),
		cmocka_unit_test(free_elsewhere),    cmocka_unit_test(ends_of_others),
		cmocka_unit_test(sleepers),	     cmocka_unit_test(bookkeeping),
		cmocka_unit_test(destroy_waits),     cmocka_unit_test(found_by_waiting),
		cmocka_unit_test(used_up_meanwhile), cmocka_unit_test(no_memory_for_another),
		cmocka_unit_test(not_waited_for),
	};

	return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
