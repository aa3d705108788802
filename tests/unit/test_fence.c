// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers that are freed while something is still at work on them.
 */
#include "unit.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"

#define FENCE(...) ((struct binpool_fence){.size = sizeof(struct binpool_fence), __VA_ARGS__})

static struct binpool_fence at_one(const uint64_t *counter)
{
	return FENCE(.kind = BINPOOL_FENCE_COUNTER, .counter = counter, .target = 1);
}

/* A callback fence that counts what is done with it. */
struct watched {
	int answer;
	uint64_t asked, released;
	struct binpool *pool; /* that it tries to use */
	int err;	      /* what came of that */
};

static int watched_done(void *ctx)
{
	struct watched *w = ctx;

	w->asked++;
	if (w->pool) {
		errno = 0;
		w->err = binpool_alloc(w->pool, 100) ? 0 : -errno;
	}
	return w->answer;
}

static void watched_release(void *ctx)
{
	struct watched *w = ctx;

	w->released++;
}

static struct binpool_fence watch(struct watched *w)
{
	return FENCE(.kind = BINPOOL_FENCE_CALLBACK, .ctx = w, .done = watched_done,
		     .release = watched_release);
}

/* @n buffers that wait for @w each. */
static void free_all_after(struct binpool *pool, struct watched *w, size_t n, size_t size)
{
	for (size_t i = 0; i < n; i++) {
		struct binpool_fence f = watch(&w[i]);
		void *p = binpool_alloc(pool, size);

		assert_non_null(p);
		assert_ok(binpool_free_after(pool, p, &f, 1));
	}
}

/* Freed, but nobody's: neither to be freed again nor to be handed out. */
static void counter_waits(struct binpool *pool, size_t size)
{
	uint64_t counter = UINT64_MAX - 1;
	struct binpool_fence f = at_one(&counter);
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool_stats s;
	void *p = binpool_alloc(pool, size), *q;

	assert_non_null(p);
	assert_ok(binpool_buf_info(pool, p, &buf));
	assert_ok(binpool_free_after(pool, p, &f, 1));
	assert_int_equal(binpool_free_after(pool, p, &f, 1), -EINVAL);
	assert_error_names("waits for its fences");
	assert_int_equal(binpool_free(pool, p), -EINVAL);
	assert_int_equal(binpool_free_sized(pool, p, size), -EINVAL);
	assert_int_equal(binpool_buf_info(pool, p, &buf), -EINVAL);
	s = stats_of(pool);
	assert_int_equal(s.pending_blocks, 1);
	assert_int_equal(s.pending_bytes, buf.capacity);
	assert_int_equal(s.active_blocks, 1);
	check_pool(pool);
	/* It passes 0 on its way: the difference is what counts. */
	for (; counter != 1; counter++) {
		assert_int_equal(binpool_poll(pool), 1);
		q = binpool_alloc(pool, size);
		assert_non_null(q);
		assert_ptr_not_equal(p, q);
		assert_ok(binpool_free(pool, q));
		assert_int_equal(binpool_destroy(pool), -EBUSY);
		assert_error_names("1 of them only waiting");
	}
	assert_int_equal(binpool_poll(pool), 0);
	s = stats_of(pool);
	assert_int_equal(s.pending_blocks + s.pending_bytes + s.active_blocks, 0);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

static void counters(void **state)
{
	const size_t sizes[] = {0, 100, 4096, 3 * MIB, 20 * MIB};
	struct counter c = COUNTER_INIT;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		counter_waits(thp_pool(64 * MIB), sizes[i]);
		counter_waits(counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0), sizes[i]);
	}
	assert_int_equal(c.bytes, 0);
}

/* An eventfd is asked and never read; closing one's own does not matter. */
static void descriptors(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	void *p = binpool_alloc(pool, MIB), *q = binpool_alloc(pool, MIB);
	int fd = eventfd(0, EFD_CLOEXEC), ends[2];
	struct binpool_fence f = FENCE(.kind = BINPOOL_FENCE_EVENTFD);
	int kept = dup(fd);
	uint64_t n;

	(void)state;
	f.fd = fd;
	assert_ok(binpool_free_after(pool, p, &f, 1));
	close(fd);
	assert_int_equal(pipe(ends), 0);
	f.fd = ends[0];
	assert_ok(binpool_free_after(pool, q, &f, 1));
	close(ends[0]);
	assert_int_equal(binpool_poll(pool), 2);
	assert_int_equal(eventfd_write(kept, 3), 0);
	assert_int_equal(binpool_poll(pool), 1);
	assert_int_equal(eventfd_read(kept, &n), 0);
	assert_int_equal(n, 3);
	close(kept);
	assert_int_equal(binpool_poll(pool), 1);
	close(ends[1]);
	assert_int_equal(binpool_poll(pool), 0);
	/* None of them was left open. */
	fd = dup(0);
	assert_true(fd <= kept);
	close(fd);
	assert_ok(binpool_destroy(pool));
}

static void callbacks(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct watched w = {.pool = pool};

	(void)state;
	free_all_after(pool, &w, 1, MIB);
	assert_int_equal(w.asked, 0);
	assert_int_equal(binpool_poll(pool), 1);
	assert_int_equal(w.asked, 1);
	assert_int_equal(w.err, -EDEADLK);
	w.answer = 1;
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(w.asked, 2);
	assert_int_equal(w.released, 1);
	/* A device that is gone does nothing to the buffer any more. */
	w = (struct watched){.answer = -EIO};
	free_all_after(pool, &w, 1, MIB);
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(w.released, 1);
	assert_int_equal(stats_of(pool).fence_errors, 1);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* All of them have to be over; each is released as it is. */
static void several(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct watched a = {0}, b = {0};
	uint64_t counter = 0;
	struct binpool_fence f[] = {at_one(&counter), watch(&a), watch(&b)};
	void *p = binpool_alloc(pool, MIB);

	(void)state;
	assert_ok(binpool_free_after(pool, p, f, ARRAY_SIZE(f)));
	b.answer = 1;
	assert_int_equal(binpool_poll(pool), 1);
	assert_int_equal(a.released, 0);
	assert_int_equal(b.released, 1);
	counter = 1;
	assert_int_equal(binpool_poll(pool), 1);
	a.answer = 1;
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(b.asked, 1);
	assert_int_equal(a.released + b.released, 2);
	/* None at all is a plain free. */
	p = binpool_alloc(pool, MIB);
	assert_ok(binpool_free_after(pool, p, NULL, 0));
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_ok(binpool_destroy(pool));
}

/* A buffer rests until its fences are over and its references are gone, in any order. */
static void references(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct binpool_buf buf = {.size = sizeof(buf)};

	(void)state;
	for (int fence_first = 0; fence_first < 2; fence_first++) {
		uint64_t counter = 0;
		struct binpool_fence f = at_one(&counter);
		void *p = binpool_alloc(pool, MIB);

		buf = (struct binpool_buf){.size = sizeof(buf), .ptr = p};
		assert_ok(binpool_buffer_get(pool, &buf));
		assert_ok(binpool_free_after(pool, p, &f, 1));
		assert_int_equal(binpool_free_after(pool, p, &f, 1), -EINVAL);
		assert_int_equal(binpool_free(pool, p), -EINVAL);
		check_pool(pool);
		if (fence_first) {
			counter = 1;
			assert_int_equal(binpool_poll(pool), 0);
			assert_int_equal(stats_of(pool).active_blocks, 1);
			assert_ok(binpool_buffer_put(pool, &buf));
		} else {
			assert_ok(binpool_buffer_put(pool, &buf));
			assert_int_equal(binpool_buffer_put(pool, &buf), -EINVAL);
			assert_int_equal(binpool_buffer_get(pool, &buf), -EINVAL);
			assert_int_equal(stats_of(pool).active_blocks, 1);
			check_pool(pool);
			counter = 1;
			assert_int_equal(binpool_poll(pool), 0);
		}
		assert_int_equal(stats_of(pool).active_blocks, 0);
		check_pool(pool);
	}
	assert_ok(binpool_destroy(pool));
}

/* In turn and so many a call; none that is never over holds the others up. */
static void round_robin(void **state)
{
	enum { N = 200, PER_CALL = 64 };
	struct binpool *pool = thp_pool(64 * MIB);
	static struct watched w[N];
	uint64_t asked = 0;

	(void)state;
	memset(w, 0, sizeof(w));
	free_all_after(pool, w, N, 4096);
	for (int call = 1; call <= (N + PER_CALL - 1) / PER_CALL; call++) {
		assert_int_equal(binpool_poll(pool), N);
		asked = 0;
		for (int i = 0; i < N; i++)
			asked += w[i].asked;
		assert_int_equal(asked, call * PER_CALL);
	}
	for (int i = 0; i < N; i++)
		assert_true(w[i].asked >= 1);
	w[N - 1].answer = 1;
	for (int call = 0; call < (N + PER_CALL - 1) / PER_CALL; call++)
		binpool_poll(pool);
	assert_int_equal(w[N - 1].released, 1);
	for (int i = 0; i < N; i++)
		w[i].answer = 1;
	assert_ok(binpool_destroy(pool));
	for (int i = 0; i < N; i++)
		assert_int_equal(w[i].released, 1);
}

/* Held buffers and free runs come first, then fences, then the provider. */
static void order(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct watched w = {0};
	struct binpool_stats s;
	void *p, *q, *mib = binpool_alloc(pool, MIB);

	(void)state;
	/* Of an extent of its own size, so that nothing else is free there. */
	p = binpool_alloc(pool, 16 * MIB);
	assert_non_null(p);
	{
		struct binpool_fence f = watch(&w);

		assert_ok(binpool_free_after(pool, p, &f, 1));
	}
	for (int i = 0; i < 1000; i++) {
		assert_ok(binpool_free(pool, mib));
		mib = binpool_alloc(pool, MIB);
		assert_non_null(mib);
	}
	q = binpool_alloc(pool, 64 * KIB);
	assert_non_null(q);
	assert_int_equal(w.asked, 0);
	s = stats_of(pool);
	w.answer = 1;
	assert_ptr_equal(binpool_alloc(pool, 16 * MIB), p);
	assert_int_equal(w.asked, 1);
	assert_int_equal(stats_of(pool).extent_allocs, s.extent_allocs);
	check_pool(pool);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_free(pool, mib));
	assert_ok(binpool_destroy(pool));
}

/* However many wait: all are asked before the pool or its provider refuses a request. */
static void before_refusal_by(uint64_t pool_bytes, uint64_t provider_bytes, int err)
{
	enum { N = 300 };
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, pool_bytes * N);
	static struct watched w[N];

	c.max_bytes = provider_bytes * N;
	memset(w, 0, sizeof(w));
	free_all_after(pool, w, N, KIB);
	errno = 0;
	assert_null(binpool_alloc(pool, KIB));
	assert_int_equal(errno, err);
	for (int i = 0; i < N; i++)
		assert_true(w[i].asked);
	w[N / 2].answer = 1;
	assert_non_null(binpool_alloc(pool, KIB));
	assert_int_equal(w[N / 2].released, 1);
	assert_int_equal(stats_of(pool).pending_blocks, N - 1);
	check_pool(pool);
	/* What is given back is asked for, too. */
	for (int i = 0; i < N; i++)
		w[i].answer = 1;
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).pending_blocks, 0);
	assert_int_equal(c.bytes, KIB);
	assert_int_equal(binpool_destroy(pool), -EBUSY);
	assert_ok(binpool_free(pool, (void *)(uintptr_t)((1 << 20) + N / 2 * (KIB + 64))));
	assert_ok(binpool_destroy(pool));
}

static void before_refusal(void **state)
{
	(void)state;
	before_refusal_by(KIB, GIB, ENOSPC);
	before_refusal_by(GIB, KIB, ENOMEM);
}

static void bad_input(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB), *other = thp_pool(64 * MIB);
	struct watched w = {.answer = 1};
	uint64_t counter = 0;
	struct binpool_fence good = watch(&w), f[2] = {good, at_one(&counter)};
	char *p = binpool_alloc(pool, MIB), *q = binpool_alloc(pool, MIB);
	struct binpool_stats before = stats_of(pool), after;
	struct {
		struct binpool_fence fence;
		int err;
	} bad[] = {
		{FENCE(.kind = 0), -EINVAL},
		{FENCE(.kind = 4), -EINVAL},
		{FENCE(.kind = BINPOOL_FENCE_COUNTER), -EINVAL},
		{FENCE(.kind = BINPOOL_FENCE_COUNTER,
		       .counter = (const uint64_t *)((char *)&counter + 4)),
		 -EINVAL},
		{FENCE(.kind = BINPOOL_FENCE_CALLBACK), -EINVAL},
		{FENCE(.kind = BINPOOL_FENCE_EVENTFD, .fd = -1), -EBADF},
		{FENCE(.kind = BINPOOL_FENCE_EVENTFD, .fd = 9999), -EBADF},
		{{.size = 3, .kind = BINPOOL_FENCE_EVENTFD}, -EINVAL},
		{{.size = 0}, -EINVAL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_int_equal(binpool_free_after(pool, p, &bad[i].fence, 1), bad[i].err);
	f[1].kind = 77;
	assert_int_equal(binpool_free_after(pool, p, f, 2), -EINVAL);
	assert_error_names("fence 1: kind is 77: EVENTFD (1), COUNTER (2) or CALLBACK (3)");
	f[1].kind = BINPOOL_FENCE_COUNTER;
	f[1].size = sizeof(f[1]) - 8;
	assert_int_equal(binpool_free_after(pool, p, f, 2), -EINVAL);
	assert_int_equal(binpool_free_after(pool, p, NULL, 1), -EINVAL);
	assert_int_equal(binpool_free_after(pool, p, f, SIZE_MAX), -EINVAL);
	assert_int_equal(binpool_free_after(NULL, p, &good, 1), -EINVAL);
	assert_int_equal(binpool_free_after(pool, p + 64, &good, 1), -EINVAL);
	assert_int_equal(binpool_free_after(pool, &w, &good, 1), -EINVAL);
	assert_int_equal(binpool_free_after(other, p, &good, 1), -EINVAL);
	assert_int_equal(binpool_poll(NULL), -EINVAL);
	after = stats_of(pool);
	assert_memory_equal(&before, &after, sizeof(before));
	assert_int_equal(w.asked + w.released, 0);
	/* NULL is as free as can be. */
	assert_ok(binpool_free_after(pool, NULL, &good, 1));
	assert_int_equal(w.released, 1);
	/* What is free is not to be freed again either way. */
	assert_ok(binpool_free(pool, q));
	assert_int_equal(binpool_free_after(pool, q, &good, 1), -EINVAL);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
	assert_ok(binpool_destroy(other));
}

/* A child asks nobody and gives nothing back. */
static void forked(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct watched w = {.answer = 1};
	int fd = eventfd(0, 0), status;
	struct binpool_fence f[] = {FENCE(.kind = BINPOOL_FENCE_EVENTFD, .fd = fd), watch(&w)};
	void *p = binpool_alloc(pool, MIB), *q = binpool_alloc(pool, MIB);
	pid_t pid;

	(void)state;
	assert_ok(binpool_free_after(pool, p, f, 2));
	fflush(NULL);
	pid = fork();
	if (!pid) {
		if (binpool_poll(pool) != -EOWNERDEAD || binpool_free_after(pool, q, f, 2))
			_exit(1);
		if (binpool_destroy(pool) || w.asked || w.released)
			_exit(2);
		/* The child's copy of the duplicate is gone. */
		_exit(dup(0) <= fd + 1 ? 0 : 3);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(binpool_poll(pool), 1);
	assert_int_equal(w.released, 1);
	assert_int_equal(eventfd_write(fd, 1), 0);
	assert_int_equal(binpool_poll(pool), 0);
	close(fd);
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_destroy(pool));
}

/* Any order of frees, of fences that end, and of questions. */
static void random_trace(void **state)
{
	enum { N = 64 };
	struct rng r = rng_make();
	struct binpool *pool = thp_pool(256 * MIB);
	uint64_t passed[N] = {0}, wanted[N] = {0};
	void *live[N] = {0};

	(void)state;
	for (uint64_t i = 0; i < rounds(20000); i++) {
		uint64_t k = rng_below(&r, N);
		struct binpool_fence f = FENCE(.kind = BINPOOL_FENCE_COUNTER, .counter = &passed[k],
					       .target = wanted[k] + 1);

		if (!live[k]) {
			live[k] = binpool_alloc(pool, rng_size(&r, 21));
		} else if (rng_below(&r, 2)) {
			assert_ok(binpool_free(pool, live[k]));
			live[k] = NULL;
		} else {
			assert_ok(binpool_free_after(pool, live[k], &f, 1));
			wanted[k]++;
			live[k] = NULL;
		}
		k = rng_below(&r, N);
		if (passed[k] < wanted[k])
			passed[k]++;
		if (rng_below(&r, 8) == 0)
			binpool_poll(pool);
		if (i % 256 == 0)
			check_pool(pool);
	}
	for (int k = 0; k < N; k++) {
		passed[k] = wanted[k];
		assert_ok(binpool_free(pool, live[k]));
	}
	assert_ok(binpool_destroy(pool));
}

struct late {
	struct binpool *pool;
	void *ptr;
	uint64_t counter;
};

/* When the other thread waits for the end, the last buffer is freed, after a fence. */
static void *free_late(void *arg)
{
	struct late *l = arg;
	struct binpool_fence f = at_one(&l->counter);
	bool waits = false;
	int err;

	while (!waits) {
		sched_yield();
		pool_lock(l->pool);
		waits = l->pool->cache_off;
		pool_unlock(l->pool);
	}
	err = binpool_free_after(l->pool, l->ptr, &f, 1);
	__atomic_store_n(&l->counter, 1, __ATOMIC_RELEASE);
	return err ? l : NULL;
}

/* Who waits for the end asks fences that came while he waited, and does not wait in full. */
static void end_waits_for_late_ones(void **state)
{
	const uint64_t long_ms = 40000;
	struct late l = {.pool = real_pool(32 * MIB)};
	pthread_t thread;
	uint64_t start;
	void *wrong;

	(void)state;
	l.ptr = binpool_alloc(l.pool, 5000);
	start = now_ns();
	assert_int_equal(pthread_create(&thread, NULL, free_late, &l), 0);
	assert_ok(binpool_destroy_wait(l.pool, (uint32_t)long_ms));
	assert_true(now_ns() - start < long_ms / 2 * 1000000);
	assert_int_equal(pthread_join(thread, &wrong), 0);
	assert_null(wrong);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counters),	cmocka_unit_test(descriptors),
		cmocka_unit_test(callbacks),	cmocka_unit_test(several),
		cmocka_unit_test(references),	cmocka_unit_test(round_robin),
		cmocka_unit_test(order),	cmocka_unit_test(before_refusal),
		cmocka_unit_test(bad_input),	cmocka_unit_test(forked),
		cmocka_unit_test(random_trace), cmocka_unit_test(end_waits_for_late_ones),
	};

	return cmocka_run_group_tests_name("fence", tests, NULL, NULL);
}
