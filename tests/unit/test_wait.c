// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Waiting: for room, for fences at the end of a pool; and many threads whose
 * buffers a device is still at work on when they free them.
 */
#include "unit.h"

#include <unistd.h>

#define FENCE(...) ((struct binpool_fence){.size = sizeof(struct binpool_fence), __VA_ARGS__})

static int alloc_wait(struct binpool *pool, uint64_t bytes, uint32_t ms, void **out)
{
	struct binpool_alloc_opts o = {
		.size = sizeof(o), .bytes = bytes, .flags = BINPOOL_BUF_WAIT, .wait_ms = ms};
	struct binpool_buf buf = {.size = sizeof(buf)};
	int err = binpool_alloc_ex(pool, &o, &buf);

	*out = err ? NULL : buf.ptr;
	return err;
}

/* A thread that waits for room, and what it got. */
struct waiting {
	struct binpool *pool;
	uint64_t bytes;
	void *ptr;
	int err;
	pthread_t thread;
};

static void *wait_for_room(void *arg)
{
	struct waiting *w = arg;

	w->err = alloc_wait(w->pool, w->bytes, UINT32_MAX, &w->ptr);
	return NULL;
}

static void waiting_start(struct waiting *w, struct binpool *pool, uint64_t bytes)
{
	struct binpool_stats s;

	*w = (struct waiting){.pool = pool, .bytes = bytes};
	assert_int_equal(pthread_create(&w->thread, NULL, wait_for_room, w), 0);
	/* It was refused at least once. */
	do {
		s = stats_of(pool);
		usleep(1000);
	} while (s.refused < 2);
}

static void waiting_join(struct waiting *w, void *expected)
{
	pthread_join(w->thread, NULL);
	assert_ok(w->err);
	assert_ptr_equal(w->ptr, expected);
	assert_ok(binpool_free(w->pool, w->ptr));
	check_pool(w->pool);
	assert_ok(binpool_destroy(w->pool));
}

static void time_is_up(void **state)
{
	struct binpool *pool = thp_pool(8 * MIB);
	void *p = binpool_alloc(pool, 8 * MIB), *q;
	uint64_t counter = 0;
	struct binpool_fence f =
		FENCE(.kind = BINPOOL_FENCE_COUNTER, .counter = &counter, .target = 1);

	(void)state;
	assert_int_equal(alloc_wait(pool, 8 * MIB, 0, &q), -ETIMEDOUT);
	assert_int_equal(alloc_wait(pool, 8 * MIB, 20, &q), -ETIMEDOUT);
	assert_error_names("max_bytes");
	/* What can never be is not waited for. */
	assert_int_equal(alloc_wait(pool, 9 * MIB, UINT32_MAX, &q), -EFBIG);
	assert_ok(binpool_free_after(pool, p, &f, 1));
	assert_int_equal(alloc_wait(pool, 8 * MIB, 20, &q), -ETIMEDOUT);
	counter = 1;
	assert_ok(alloc_wait(pool, 8 * MIB, 0, &q));
	assert_ptr_equal(p, q);
	assert_ok(binpool_free(pool, q));
	/* Threads have caches again. */
	q = binpool_alloc(pool, 4096);
	assert_ok(binpool_free(pool, q));
	assert_int_equal(stats_of(pool).held_blocks, 1);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* Another thread's free ends the wait, though it would go to that thread's cache. */
static void for_a_free(void **state)
{
	struct binpool *pool = thp_pool(8 * MIB);
	void *p = binpool_alloc(pool, 8 * MIB);
	struct waiting w;

	(void)state;
	waiting_start(&w, pool, 8 * MIB);
	assert_ok(binpool_free(pool, p));
	waiting_join(&w, p);
}

static void for_a_fence(void **state)
{
	struct binpool *pool = thp_pool(8 * MIB);
	void *p = binpool_alloc(pool, 8 * MIB);
	uint64_t counter = 0;
	struct binpool_fence f =
		FENCE(.kind = BINPOOL_FENCE_COUNTER, .counter = &counter, .target = 1);
	struct waiting w;

	(void)state;
	assert_ok(binpool_free_after(pool, p, &f, 1));
	waiting_start(&w, pool, 8 * MIB);
	__atomic_store_n(&counter, 1, __ATOMIC_RELEASE);
	waiting_join(&w, p);
}

/* What an allocator lacks may come back from elsewhere. */
static void for_the_provider(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	struct waiting w;

	(void)state;
	c.max_bytes = 0;
	waiting_start(&w, pool, MIB);
	pthread_mutex_lock(&c.lock);
	c.max_bytes = MIB;
	pthread_mutex_unlock(&c.lock);
	waiting_join(&w, (void *)(uintptr_t)(1 << 20));
}

static void *signal_later(void *arg)
{
	usleep(20000);
	__atomic_store_n((uint64_t *)arg, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void destroy_waits(void **state)
{
	struct binpool *pool = thp_pool(8 * MIB);
	uint64_t counter = 0;
	struct binpool_fence f =
		FENCE(.kind = BINPOOL_FENCE_COUNTER, .counter = &counter, .target = 1);
	pthread_t thread;

	(void)state;
	assert_ok(binpool_free_after(pool, binpool_alloc(pool, MIB), &f, 1));
	assert_int_equal(binpool_destroy(pool), -EBUSY);
	assert_int_equal(binpool_destroy_wait(pool, 5), -EBUSY);
	assert_int_equal(pthread_create(&thread, NULL, signal_later, &counter), 0);
	assert_ok(binpool_destroy_wait(pool, 60000));
	assert_int_equal(counter, 1);
	pthread_join(thread, NULL);
}

/*
 * A device with a queue: it comes to each buffer some time after its user freed
 * it, and looks whether what the user wrote is still there.
 */
enum { QUEUE = 64, WORKERS = 3 };

struct device {
	struct binpool *pool;
	uint64_t rounds, workers, next;
	pthread_mutex_t lock;
	pthread_cond_t change;
	struct {
		uint64_t *ptr, words, mark;
	} queue[QUEUE];
	uint64_t submitted, finished; /* finished: what the fences look at */
	uint64_t wrong, errors;
};

static void *run_device(void *arg)
{
	struct device *d = arg;

	pthread_mutex_lock(&d->lock);
	while (d->workers || d->finished != d->submitted) {
		uint64_t at = d->finished % QUEUE;

		/* It lags behind by half a queue, as long as there is somebody to fill it. */
		if (d->workers && d->submitted - d->finished < QUEUE / 2) {
			pthread_cond_wait(&d->change, &d->lock);
			continue;
		}
		pthread_mutex_unlock(&d->lock);
		for (uint64_t i = 0; i < d->queue[at].words; i++)
			d->wrong += d->queue[at].ptr[i] != d->queue[at].mark;
		pthread_mutex_lock(&d->lock);
		__atomic_store_n(&d->finished, d->finished + 1, __ATOMIC_RELEASE);
		pthread_cond_broadcast(&d->change);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

/* Returns the ticket: @d->finished reaches it when the device is through. */
static uint64_t submit(struct device *d, uint64_t *ptr, uint64_t words, uint64_t mark)
{
	uint64_t ticket;

	pthread_mutex_lock(&d->lock);
	while (d->submitted - d->finished == QUEUE)
		pthread_cond_wait(&d->change, &d->lock);
	d->queue[d->submitted % QUEUE].ptr = ptr;
	d->queue[d->submitted % QUEUE].words = words;
	d->queue[d->submitted % QUEUE].mark = mark;
	ticket = ++d->submitted;
	pthread_cond_broadcast(&d->change);
	pthread_mutex_unlock(&d->lock);
	return ticket;
}

static void *run_worker(void *arg)
{
	struct device *d = arg;
	uint64_t self = __atomic_add_fetch(&d->next, 1, __ATOMIC_RELAXED);
	struct rng r = {self};

	for (uint64_t i = 0; i < d->rounds; i++) {
		uint64_t words = 8 + rng_below(&r, 8192), mark = self << 32 | i;
		struct binpool_fence f =
			FENCE(.kind = BINPOOL_FENCE_COUNTER, .counter = &d->finished);
		void *ptr;
		uint64_t *p;

		/* The pool is too small for all that is in flight. */
		if (alloc_wait(d->pool, words * sizeof(*p), UINT32_MAX, &ptr)) {
			__atomic_add_fetch(&d->errors, 1, __ATOMIC_RELAXED);
			break;
		}
		p = ptr;
		for (uint64_t j = 0; j < words; j++)
			p[j] = mark;
		f.target = submit(d, p, words, mark);
		if (binpool_free_after(d->pool, p, &f, 1))
			__atomic_add_fetch(&d->errors, 1, __ATOMIC_RELAXED);
		if (i % 16 == 0)
			binpool_poll(d->pool);
	}
	pthread_mutex_lock(&d->lock);
	d->workers--;
	pthread_cond_broadcast(&d->change);
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

static void a_device(void **state)
{
	struct device d = {
		.pool = thp_pool(4 * MIB),
		.rounds = rounds(4000),
		.workers = WORKERS,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.change = PTHREAD_COND_INITIALIZER,
	};
	pthread_t threads[WORKERS + 1];

	(void)state;
	for (int i = 0; i <= WORKERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, i ? run_worker : run_device, &d),
				 0);
	for (int i = 0; i <= WORKERS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(d.errors, 0);
	assert_int_equal(d.wrong, 0);
	assert_int_equal(d.finished, WORKERS * d.rounds);
	check_pool(d.pool);
	assert_ok(binpool_destroy(d.pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(time_is_up),	 cmocka_unit_test(for_a_free),
		cmocka_unit_test(for_a_fence),	 cmocka_unit_test(for_the_provider),
		cmocka_unit_test(destroy_waits), cmocka_unit_test(a_device),
	};

	return cmocka_run_group_tests_name("wait", tests, NULL, NULL);
}
