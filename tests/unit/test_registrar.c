// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Registrars, with a mock that fails on demand and writes down what happens.
 */
#include "unit.h"

/* What happened, over all mocks of a test: one letter for each call. */
static char events[1024];

struct mock {
	char letter; /* upper case: attached, lower: detached */
	int fail_at; /* this attach fails; 0: none */
	int fail_with;
	int attached, calls, released;
	struct binpool *reenter; /* used in callbacks */
	int reenter_err;
};

static void note(char letter)
{
	size_t n = strlen(events);

	if (n + 1 < sizeof(events))
		events[n] = letter;
}

static int mock_attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	struct mock *m = ctx;

	if (m->reenter) {
		m->reenter_err = binpool_alloc(m->reenter, 1) ? 0 : -errno;
		if (m->reenter_err == -EDEADLK)
			m->reenter_err = binpool_free_held(m->reenter);
	}
	if (++m->calls == m->fail_at) {
		binpool_set_last_error("the mock does not like it");
		return m->fail_with;
	}
	/* All of it is there and writable. */
	memset(extent->ptr, m->letter, extent->bytes);
	*cookie = (char *)extent->ptr + 1;
	m->attached++;
	note(m->letter);
	return 0;
}

static void mock_detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	struct mock *m = ctx;

	/* The memory is still there, and the cookie is this extent's. */
	if (cookie != (char *)extent->ptr + 1)
		abort();
	memset(extent->ptr, 0, extent->bytes);
	m->attached--;
	note((char)(m->letter + 'a' - 'A'));
}

static void mock_release(void *ctx)
{
	struct mock *m = ctx;

	m->released++;
	note('!');
}

static int add(struct binpool *pool, struct mock *m, uint64_t *id)
{
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.name = "mock",
		.ctx = m,
		.attach = mock_attach,
		.detach = mock_detach,
		.release = mock_release,
	};

	return binpool_add_registrar(pool, &ops, id);
}

static int setup(void **state)
{
	(void)state;
	memset(events, 0, sizeof(events));
	return 0;
}

static void follows_extents(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	struct mock a = {.letter = 'A'}, b = {.letter = 'B'};
	uint64_t ia, ib;
	void *p;

	(void)state;
	assert_ok(binpool_reserve(pool, 4 * MIB));
	assert_ok(add(pool, &a, &ia));
	assert_string_equal(events, "A");
	assert_ok(add(pool, &b, &ib));
	assert_true(ia != ib);
	p = binpool_alloc(pool, 16 * MIB);
	assert_non_null(p);
	assert_string_equal(events, "ABAB");
	assert_int_equal(stats_of(pool).registrations, 4);
	assert_int_equal(stats_of(pool).registration_allocs, 4);
	/* The empty extent goes; the last attached is the first detached. */
	assert_ok(binpool_free_held(pool));
	assert_string_equal(events, "ABABba");
	assert_int_equal(stats_of(pool).registrations, 2);
	assert_ok(binpool_remove_registrar(pool, ia));
	assert_string_equal(events, "ABABbaa!");
	assert_int_equal(binpool_remove_registrar(pool, ia), -ENOENT);
	assert_int_equal(binpool_remove_registrar(pool, 0), -ENOENT);
	assert_int_equal(a.attached, 0);
	assert_int_equal(a.released, 1);
	assert_int_equal(b.attached, 1);
	assert_ok(binpool_free(pool, p));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
	assert_string_equal(events, "ABABbaa!b!");
}

/* The n-th attach fails: everything before it is undone, the allocation fails with it. */
static void failed_attach(void **state)
{
	(void)state;
	for (int n = 1; n <= 3; n++) {
		struct binpool *pool = real_pool(64 * MIB);
		struct mock m[3] = {{.letter = 'A'}, {.letter = 'B'}, {.letter = 'C'}};
		struct binpool_stats before, after;
		uint64_t id;

		setup(NULL);
		for (int i = 0; i < 3; i++)
			assert_ok(add(pool, &m[i], &id));
		assert_ok(binpool_reserve(pool, 4 * MIB));
		assert_string_equal(events, "ABC");
		m[n - 1].fail_at = 2;
		m[n - 1].fail_with = -EPERM;
		before = stats_of(pool);
		assert_null(binpool_alloc(pool, 8 * MIB));
		assert_int_equal(errno, EPERM);
		assert_error_names("the mock does not like it");
		assert_string_equal(events, n == 1 ? "ABC" : n == 2 ? "ABCAa" : "ABCABba");
		after = stats_of(pool);
		assert_int_equal(after.reserved_bytes, before.reserved_bytes);
		assert_int_equal(after.registrations, before.registrations);
		assert_int_equal(after.extents, before.extents);
		assert_int_equal(after.allocs, before.allocs);
		assert_int_equal(after.refused, before.refused + 1);
		check_pool(pool);
		/* The next one works. */
		assert_ok(binpool_free(pool, binpool_alloc(pool, 8 * MIB)));
		assert_ok(binpool_destroy(pool));
		for (int i = 0; i < 3; i++) {
			assert_int_equal(m[i].attached, 0);
			assert_int_equal(m[i].released, 1);
		}
	}
}

/* A registrar's ENOMEM is its own: nothing held is thrown away for it. */
static void failure_keeps_held(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	struct mock a = {.letter = 'A', .fail_at = 2, .fail_with = -ENOMEM};
	uint64_t id;

	(void)state;
	assert_ok(add(pool, &a, &id));
	assert_ok(binpool_free(pool, binpool_alloc(pool, 3 * MIB)));
	assert_null(binpool_alloc(pool, 8 * MIB));
	assert_int_equal(errno, ENOMEM);
	assert_int_equal(stats_of(pool).held_blocks, 1);
	assert_int_equal(stats_of(pool).frees_held, 0);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

static void failed_add(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	struct mock a = {.letter = 'A', .fail_at = 3, .fail_with = -EIO}, b = {.letter = 'B'};
	uint64_t id;

	(void)state;
	/* What is registered does not grow in place. */
	assert_ok(add(pool, &b, &id));
	for (int i = 0; i < 4; i++)
		assert_non_null(binpool_alloc(pool, 4 * MIB));
	assert_int_equal(stats_of(pool).extents, 4);
	assert_ok(binpool_remove_registrar(pool, id));
	assert_string_equal(events, "BBBBbbbb!");
	memset(events, 0, sizeof(events));
	id = 77;
	assert_int_equal(add(pool, &a, &id), -EIO);
	assert_error_names("the mock does not like it");
	assert_int_equal(a.attached, 0);
	assert_int_equal(a.released, 0);
	assert_int_equal(id, 77);
	assert_int_equal(stats_of(pool).registrations, 0);
	assert_string_equal(events, "AAaa");
	assert_ok(add(pool, &a, &id));
	assert_int_equal(a.attached, 4);
	assert_ok(binpool_remove_registrar(pool, id));
	assert_int_equal(a.attached, 0);
	check_pool(pool);
	/* Buffers live: left to the end of the process, as a leak check would be told. */
	assert_int_equal(binpool_destroy(pool), -EBUSY);
	assert_int_equal(binpool_destroy_wait(pool, 10), -EBUSY);
}

static void bad_arguments(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	struct binpool_registrar_ops ops = {.size = sizeof(ops), .attach = mock_attach};
	struct mock a = {.letter = 'A'};
	uint64_t id;

	(void)state;
	assert_int_equal(binpool_add_registrar(pool, &ops, &id), -EINVAL);
	assert_int_equal(binpool_add_registrar(pool, NULL, &id), -EINVAL);
	assert_int_equal(binpool_add_registrar(NULL, &ops, &id), -EINVAL);
	assert_int_equal(add(pool, &a, NULL), -EINVAL);
	assert_int_equal(a.calls, 0);
	assert_ok(binpool_destroy(pool));
}

/* A callback may use another pool, not its own. */
static void reentry(void **state)
{
	struct binpool *pool = real_pool(64 * MIB), *other = real_pool(64 * MIB);
	struct mock a = {.letter = 'A', .reenter = pool}, b = {.letter = 'B', .reenter = other};
	uint64_t id;

	(void)state;
	assert_ok(add(pool, &a, &id));
	assert_ok(add(pool, &b, &id));
	assert_ok(binpool_free(pool, binpool_alloc(pool, 1)));
	assert_int_equal(a.reenter_err, -EDEADLK);
	assert_ok(b.reenter_err);
	assert_int_equal(stats_of(other).active_blocks, 1);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(binpool_destroy(other), -EBUSY);
}

/* Registrations follow extents, not allocations. */
static void few_registrations(void **state)
{
	struct binpool *pool = real_pool(0);
	struct mock a = {.letter = 'A'};
	struct rng r = rng_make();
	void *p[64] = {0};
	uint64_t id;

	(void)state;
	assert_ok(add(pool, &a, &id));
	for (uint64_t i = 0; i < rounds(100000); i++) {
		uint64_t j = rng_below(&r, 64);

		assert_ok(binpool_free(pool, p[j]));
		p[j] = binpool_alloc(pool, rng_size(&r, 18));
		assert_non_null(p[j]);
	}
	assert_int_equal(stats_of(pool).registration_allocs, stats_of(pool).extent_allocs);
	assert_true(stats_of(pool).registration_allocs < 40);
	assert_ok(binpool_free_bulk(pool, 64, p));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(a.attached, 0);
}

/* A registrar of a pool over an allocator sees each allocation. */
static void over_allocator(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool;
	struct mock a = {.letter = 'A'};
	uint64_t id;
	void *p;

	(void)state;
	c.real = true;
	pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	assert_ok(add(pool, &a, &id));
	p = binpool_alloc(pool, 1000);
	assert_int_equal(a.attached, 1);
	assert_ok(binpool_free(pool, p));
	assert_int_equal(a.attached, 1);
	assert_ok(binpool_free_held(pool));
	assert_int_equal(a.attached, 0);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(c.bytes, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(follows_extents, setup),
		cmocka_unit_test_setup(failed_attach, setup),
		cmocka_unit_test_setup(failure_keeps_held, setup),
		cmocka_unit_test_setup(failed_add, setup),
		cmocka_unit_test_setup(bad_arguments, setup),
		cmocka_unit_test_setup(reentry, setup),
		cmocka_unit_test_setup(few_registrations, setup),
		cmocka_unit_test_setup(over_allocator, setup),
	};

	return cmocka_run_group_tests_name("registrar", tests, NULL, NULL);
}
