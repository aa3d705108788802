// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Registering in the background, with a registrar that stops, fails and loses on demand.
 */
#include "unit.h"

#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"

#define MAX 64

/* The library's pthread_create, by the linker: fails for a pool when told to. */
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
			  void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
			  void *arg);
static struct binpool *threadless;
static bool seen; /* what was to belong to the thread, by others */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
			  void *arg)
{
	if (!threadless)
		return __real_pthread_create(thread, attr, fn, arg);
	seen = background_of(&threadless->background);
	return EAGAIN;
}

/* Its members are read while the pool's thread writes them: atomically. */
struct slow {
	int closed; /* attach waits until it is 0 */
	int inside; /* threads in attach */
	int fail;   /* this many fail first, with -EPERM */
	int lost;   /* what check answers */
	int attached, calls, released;
	void *order[MAX];
};

static int get(const int *value)
{
	return __atomic_load_n(value, __ATOMIC_SEQ_CST);
}

static void set(int *value, int to)
{
	__atomic_store_n(value, to, __ATOMIC_SEQ_CST);
}

static int slow_attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	struct slow *s = ctx;
	int call = __atomic_fetch_add(&s->calls, 1, __ATOMIC_SEQ_CST);

	/* One at a time. */
	if (__atomic_fetch_add(&s->inside, 1, __ATOMIC_SEQ_CST))
		abort();
	while (get(&s->closed))
		usleep(100);
	__atomic_fetch_sub(&s->inside, 1, __ATOMIC_SEQ_CST);
	if (get(&s->fail)) {
		__atomic_fetch_sub(&s->fail, 1, __ATOMIC_SEQ_CST);
		binpool_set_last_error("the slow one does not like it");
		return -EPERM;
	}
	if (call < MAX)
		__atomic_store_n(&s->order[call], extent->ptr, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&s->attached, 1, __ATOMIC_SEQ_CST);
	*cookie = extent->ptr;
	return 0;
}

static void slow_detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	struct slow *s = ctx;

	if (cookie != extent->ptr || get(&s->attached) < 1)
		abort();
	__atomic_fetch_sub(&s->attached, 1, __ATOMIC_SEQ_CST);
}

static void slow_release(void *ctx)
{
	struct slow *s = ctx;

	s->released++;
}

static int slow_check(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	struct slow *s = ctx;

	(void)extent;
	(void)cookie;
	return get(&s->lost) ? -ENODEV : 0;
}

static uint64_t add(struct binpool *pool, struct slow *s, uint32_t flags)
{
	const struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.name = "slow",
		.ctx = s,
		.attach = slow_attach,
		.detach = slow_detach,
		.release = slow_release,
		.flags = flags,
		.check = slow_check,
	};
	uint64_t id;

	assert_ok(binpool_add_registrar(pool, &ops, &id));
	return id;
}

/* A pool that registers in the background, at that rate. */
static struct binpool *pool_with(struct slow *s, uint64_t rate, uint64_t *id)
{
	struct binpool *pool = thp_pool(512 * MIB);

	assert_ok(binpool_register_in_background(pool, rate));
	*id = add(pool, s, 0);
	return pool;
}

/* @n buffers, each in an extent of its own. */
static void alloc_apart(struct binpool *pool, int n, char **p)
{
	for (int i = 0; i < n; i++) {
		p[i] = binpool_alloc(pool, 4 * MIB);
		assert_non_null(p[i]);
	}
	assert_int_equal(stats_of(pool).extents, n);
}

static void free_all(struct binpool *pool, int n, char **p)
{
	for (int i = 0; i < n; i++)
		assert_ok(binpool_free(pool, p[i]));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* ---- Tests -------------------------------------------------------------------- */

/* Buffers are there, and more of them, while the driver is at work. */
static void handed_out_at_once(void **state)
{
	struct slow s = {.closed = 1};
	struct binpool_ptr_info info = {.size = sizeof(info)};
	struct binpool *pool;
	uint64_t id;
	char *p, *q;

	(void)state;
	pool = pool_with(&s, BINPOOL_UNLIMITED, &id);
	p = binpool_alloc(pool, 2 * MIB);
	assert_non_null(p);
	while (!get(&s.inside))
		usleep(100);
	/* It is at work now, for as long as we like. */
	assert_int_equal(binpool_wait_registered(pool, p, 0), -EAGAIN);
	assert_error_names(": 1 extent still to be registered");
	assert_null(strstr(binpool_last_error(), "paused"));
	assert_int_equal(binpool_wait_registered(pool, p, 5), -ETIMEDOUT);
	assert_int_equal(binpool_wait_registered(pool, NULL, 5), -ETIMEDOUT);
	assert_int_equal(binpool_wait_registered(pool, &s, 5), -ENOENT);
	q = binpool_alloc(pool, MIB);
	assert_non_null(q);
	memset(q, 1, MIB);
	assert_ok(binpool_free(pool, q));
	assert_int_equal(get(&s.attached), 0);
	set(&s.closed, 0);
	assert_ok(binpool_wait_registered(pool, p, UINT32_MAX));
	assert_ok(binpool_wait_registered(pool, p, 0));
	assert_ok(binpool_wait_registered(pool, NULL, 0));
	/* A buffer of no bytes needs none. */
	q = binpool_alloc(pool, 0);
	assert_ok(binpool_wait_registered(pool, q, 0));
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_query(p, &info));
	assert_string_equal(info.registrars, "slow");
	assert_int_equal(stats_of(pool).registered_bytes, stats_of(pool).reserved_bytes);
	assert_int_equal(s.calls, 1);
	free_all(pool, 1, &p);
	assert_int_equal(s.attached, 0);
	assert_int_equal(s.released, 1);
}

/* Nothing happens at a rate of 0, and then the rest; what somebody waits for is first. */
static void stopped_and_resumed(void **state)
{
	enum { N = 5 };
	const int wanted = 3, expected[N] = {3, 0, 1, 2, 4};
	struct slow s = {.closed = 0};
	struct binpool_ptr_info info = {.size = sizeof(info)};
	struct binpool *pool;
	char *p[N];
	uint64_t id;

	(void)state;
	pool = pool_with(&s, 0, &id);
	alloc_apart(pool, N, p);
	assert_int_equal(binpool_wait_registered(pool, p[wanted], 0), -EAGAIN);
	assert_int_equal(binpool_wait_registered(pool, p[wanted], 5), -ETIMEDOUT);
	assert_int_equal(get(&s.calls), 0);
	assert_int_equal(stats_of(pool).registered_bytes, 0);
	assert_ok(binpool_query(p[0], &info));
	assert_string_equal(info.registrars, "");
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	assert_ok(binpool_wait_registered(pool, NULL, UINT32_MAX));
	assert_int_equal(s.attached, N);
	for (int i = 0; i < N; i++)
		assert_ptr_equal(s.order[i], p[expected[i]]);
	free_all(pool, N, p);
}

/* The second has to wait for longer than any test takes, until the rate is another. */
static void throttled(void **state)
{
	struct slow s = {.closed = 0};
	struct binpool *pool;
	uint64_t id;
	char *p[3];

	(void)state;
	pool = pool_with(&s, 1, &id);
	alloc_apart(pool, 3, p);
	assert_ok(binpool_wait_registered(pool, p[0], UINT32_MAX));
	assert_int_equal(binpool_wait_registered(pool, p[1], 20), -ETIMEDOUT);
	assert_int_equal(get(&s.calls), 1);
	assert_int_equal(stats_of(pool).registered_bytes, 4 * MIB);
	assert_ok(binpool_register_in_background(pool, 100 * GIB));
	assert_ok(binpool_wait_registered(pool, NULL, UINT32_MAX));
	assert_int_equal(s.attached, 3);
	free_all(pool, 3, p);
}

/* What is refused is used, and tried again by who wants it. */
static void refused(void **state)
{
	struct slow s = {.fail = 1 << 20};
	struct binpool *pool;
	uint64_t id;
	char *p[3];

	(void)state;
	pool = pool_with(&s, BINPOOL_UNLIMITED, &id);
	alloc_apart(pool, 3, p);
	assert_int_equal(binpool_wait_registered(pool, p[1], UINT32_MAX), -EPERM);
	assert_error_names("the slow one does not like it");
	assert_true(stats_of(pool).registrations_refused > 0);
	for (int i = 0; i < 3; i++)
		memset(p[i], i, 4 * MIB);
	set(&s.fail, 0);
	/* It is the answer to the last try, and has it tried again. */
	while (binpool_wait_registered(pool, p[1], 0))
		usleep(100);
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	assert_ok(binpool_wait_registered(pool, NULL, UINT32_MAX));
	assert_int_equal(s.attached, 3);
	assert_int_equal(stats_of(pool).registered_bytes, 12 * MIB);
	free_all(pool, 3, p);
}

/* Who removes it waits for the extent in hand, and no other is begun. */
static void *remove_it(void *arg)
{
	struct binpool *pool = ((void **)arg)[0];

	return binpool_remove_registrar(pool, *(uint64_t *)((void **)arg)[1]) ? "refused" : NULL;
}

static void cancelled(void **state)
{
	struct slow s = {.closed = 1};
	struct binpool *pool;
	pthread_t thread;
	uint64_t id;
	void *args[2] = {NULL, &id}, *wrong;
	char *p[3];

	(void)state;
	pool = pool_with(&s, 1, &id);
	alloc_apart(pool, 1, p);
	while (!get(&s.inside))
		usleep(100);
	args[0] = pool;
	assert_int_equal(pthread_create(&thread, NULL, remove_it, args), 0);
	set(&s.closed, 0);
	assert_int_equal(pthread_join(thread, &wrong), 0);
	assert_null(wrong);
	assert_int_equal(s.attached, 0);
	assert_int_equal(s.released, 1);
	p[1] = binpool_alloc(pool, 4 * MIB);
	p[2] = binpool_alloc(pool, 4 * MIB);
	/* Without a registrar nothing is missing. */
	assert_ok(binpool_wait_registered(pool, NULL, 0));
	assert_int_equal(s.calls, 1);
	/* One that comes later has all of them, those that are there, too. */
	id = add(pool, &s, 0);
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	assert_ok(binpool_wait_registered(pool, NULL, UINT32_MAX));
	assert_int_equal(stats_of(pool).registered_bytes, stats_of(pool).reserved_bytes);
	free_all(pool, 3, p);
	assert_int_equal(s.attached, 0);
}

/* Extents that go before their turn has come, and a pool that does. */
static void gone_before(void **state)
{
	struct slow s = {.closed = 0};
	struct binpool *pool;
	uint64_t id;
	char *p[3];

	(void)state;
	pool = pool_with(&s, 0, &id);
	alloc_apart(pool, 3, p);
	assert_ok(binpool_free(pool, p[1]));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).extents, 2);
	assert_int_equal(binpool_wait_registered(pool, p[1], 0), -ENOENT);
	p[1] = p[2];
	free_all(pool, 2, p);
	assert_int_equal(s.calls, 0);
	assert_int_equal(s.released, 1);
}

struct waiter {
	struct binpool *pool;
	void *ptr;
	int waiting, err;
};

static void *wait_for_it(void *arg)
{
	struct waiter *w = arg;

	set(&w->waiting, 1);
	w->err = binpool_wait_registered(w->pool, w->ptr, UINT32_MAX);
	return NULL;
}

/* Whoever waits for one that goes is told so, though nothing is registered. */
static void gone_while_waited_for(void **state)
{
	struct slow s = {.closed = 0};
	struct waiter w = {0};
	pthread_t t;
	uint64_t id;
	char *p[3];

	(void)state;
	w.pool = pool_with(&s, 0, &id);
	alloc_apart(w.pool, 3, p);
	w.ptr = p[1];
	assert_int_equal(pthread_create(&t, NULL, wait_for_it, &w), 0);
	while (!get(&w.waiting))
		sched_yield();
	usleep(20000);
	assert_ok(binpool_free(w.pool, p[1]));
	assert_ok(binpool_free_held(w.pool));
	pthread_join(t, NULL);
	assert_int_equal(w.err, -ENOENT);
	p[1] = p[2];
	free_all(w.pool, 2, p);
	assert_int_equal(s.calls, 0);
}

/* One that touches the memory is told of it before anybody else does. */
static void before_use(void **state)
{
	struct slow s = {.closed = 0}, first = {.closed = 0};
	struct binpool *pool;
	uint64_t id;
	char *p[2];

	(void)state;
	pool = pool_with(&s, 0, &id);
	add(pool, &first, BINPOOL_REGISTRAR_BEFORE_USE);
	alloc_apart(pool, 2, p);
	assert_int_equal(first.attached, 2);
	assert_int_equal(get(&s.calls), 0);
	set(&first.fail, 1);
	assert_null(binpool_alloc(pool, 8 * MIB));
	assert_int_equal(errno, EPERM);
	assert_int_equal(stats_of(pool).registrations_refused, 0);
	/* What it has not got it is not told of later. */
	set(&first.lost, 1);
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	assert_int_equal(binpool_wait_registered(pool, NULL, UINT32_MAX), -EBUSY);
	assert_error_names("in use");
	set(&first.lost, 0);
	free_all(pool, 2, p);
	assert_int_equal(s.attached, 0);
	assert_int_equal(first.attached, 0);
}

/* A device that is reset: all is registered again. */
static void lost(void **state)
{
	struct slow s = {.closed = 0};
	struct binpool *pool;
	uint64_t id;
	char *p[4];

	(void)state;
	pool = pool_with(&s, BINPOOL_UNLIMITED, &id);
	alloc_apart(pool, 3, p);
	assert_ok(binpool_wait_registered(pool, NULL, UINT32_MAX));
	assert_int_equal(s.calls, 3);
	assert_ok(binpool_register_in_background(pool, 0));
	set(&s.lost, 1);
	assert_int_equal(binpool_wait_registered(pool, p[1], 0), -EAGAIN);
	assert_error_names("paused: binpool_register_in_background");
	assert_int_equal(stats_of(pool).registrations_lost, 1);
	/* The pool finds out of the rest when it grows. */
	p[3] = binpool_alloc(pool, 4 * MIB);
	assert_int_equal(stats_of(pool).registrations_lost, 3);
	set(&s.lost, 0);
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	assert_ok(binpool_wait_registered(pool, NULL, UINT32_MAX));
	assert_int_equal(s.calls, 7);
	assert_int_equal(s.attached, 4);
	free_all(pool, 4, p);
}

/* A child has no such thread, and none of its callbacks. */
static void forked(void **state)
{
	struct slow s = {.closed = 0};
	struct binpool *pool;
	int status;
	uint64_t id;
	pid_t pid;
	char *p;

	(void)state;
	pool = pool_with(&s, BINPOOL_UNLIMITED, &id);
	p = binpool_alloc(pool, 4 * MIB);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		if (binpool_wait_registered(pool, p, 0) != -EOWNERDEAD ||
		    binpool_register_in_background(pool, 0) != -EOWNERDEAD)
			_exit(1);
		_exit(binpool_destroy(pool) || s.released ? 2 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_ok(binpool_wait_registered(pool, p, UINT32_MAX));
	free_all(pool, 1, &p);
}

static void bad_arguments(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool;

	(void)state;
	assert_int_equal(binpool_register_in_background(NULL, 0), -EINVAL);
	/* Over an allocator an extent is a buffer. */
	c.real = true;
	pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	assert_ok(binpool_register_in_background(pool, 5));
	assert_ok(binpool_destroy(pool));
}

/* ---- Threads ------------------------------------------------------------------------ */

struct crowd {
	struct binpool *pool;
	uint64_t seed;
	int wrong;
};

static void *uses_pool(void *arg)
{
	struct crowd *c = arg;
	struct rng r = {.state = c->seed};
	void *p[8] = {0};

	for (uint64_t i = 0; i < rounds(1500); i++) {
		uint64_t j = rng_below(&r, 8);
		int err;

		c->wrong |= binpool_free(c->pool, p[j]);
		p[j] = binpool_alloc(c->pool, rng_size(&r, 23));
		c->wrong |= !p[j];
		switch (rng_below(&r, 64)) {
		case 0:
			err = binpool_wait_registered(c->pool, p[j], (uint32_t)rng_below(&r, 2));
			c->wrong |= err && err != -EAGAIN && err != -ETIMEDOUT && err != -EPERM;
			break;
		case 1:
			c->wrong |= binpool_trim(c->pool, 0, 0) < 0;
			break;
		case 2:
			c->wrong |= binpool_register_in_background(
				c->pool, rng_below(&r, 4) ? BINPOOL_UNLIMITED : GIB);
			break;
		default:
			break;
		}
	}
	for (int i = 0; i < 8; i++)
		c->wrong |= binpool_free(c->pool, p[i]);
	return NULL;
}

static void crowd(void **state)
{
	enum { THREADS = 4 };
	struct slow s = {.fail = 20};
	struct crowd c[THREADS];
	struct rng r = rng_make();
	pthread_t thread[THREADS];
	struct binpool *pool;
	uint64_t id;

	(void)state;
	pool = pool_with(&s, BINPOOL_UNLIMITED, &id);
	for (int i = 0; i < THREADS; i++) {
		c[i] = (struct crowd){.pool = pool, .seed = rng_next(&r)};
		assert_int_equal(pthread_create(&thread[i], NULL, uses_pool, &c[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(thread[i], NULL);
		assert_int_equal(c[i].wrong, 0);
	}
	set(&s.fail, 0);
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	assert_ok(binpool_wait_registered(pool, NULL, UINT32_MAX));
	assert_int_equal(stats_of(pool).registered_bytes, stats_of(pool).reserved_bytes);
	assert_int_equal(stats_of(pool).registrations, s.attached);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(s.attached, 0);
	assert_int_equal(s.released, 1);
}

/* Where there is no thread to be had, others never see what was to be its. */
static void no_thread(void **state)
{
	struct slow s = {.closed = 0};
	struct binpool *pool = thp_pool(512 * MIB);
	char *p;

	(void)state;
	threadless = pool;
	assert_int_equal(binpool_register_in_background(pool, BINPOOL_UNLIMITED), -EAGAIN);
	assert_error_names("thread");
	threadless = NULL;
	assert_false(seen);
	add(pool, &s, 0);
	alloc_apart(pool, 1, &p);
	/* Not in the background, that is. */
	assert_int_equal(s.attached, 1);
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	assert_ok(binpool_wait_registered(pool, p, UINT32_MAX));
	free_all(pool, 1, &p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(handed_out_at_once),
		cmocka_unit_test(stopped_and_resumed),
		cmocka_unit_test(throttled),
		cmocka_unit_test(refused),
		cmocka_unit_test(cancelled),
		cmocka_unit_test(gone_before),
		cmocka_unit_test(gone_while_waited_for),
		cmocka_unit_test(before_use),
		cmocka_unit_test(lost),
		cmocka_unit_test(forked),
		cmocka_unit_test(bad_arguments),
		cmocka_unit_test(crowd),
		cmocka_unit_test(no_thread),
	};

	return cmocka_run_group_tests_name("background", tests, NULL, NULL);
}
