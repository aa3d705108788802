// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Extents that grow and shrink in place, and those that must not.
 */
#include "unit.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache.h"

#define SEEN_MAX 64

/* What a registrar was told of. */
struct seen {
	const char *base[SEEN_MAX];
	uint64_t bytes[SEEN_MAX];
	size_t n;
};

static int see(void *ctx, const struct binpool_extent *e, void **cookie)
{
	struct seen *seen = ctx;

	if (seen->n == SEEN_MAX)
		return -ENOSPC;
	seen->base[seen->n] = e->ptr;
	seen->bytes[seen->n] = e->bytes;
	*cookie = &seen->base[seen->n++];
	return 0;
}

static void unsee(void *ctx, const struct binpool_extent *e, void *cookie)
{
	struct seen *seen = ctx;
	const char **base = cookie;

	/* It is what it was when it was registered. */
	if (*base != e->ptr || seen->bytes[base - seen->base] != e->bytes)
		abort();
	*base = NULL;
}

static uint64_t add(struct binpool *pool, struct seen *seen)
{
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.ctx = seen,
		.attach = see,
		.detach = unsee,
	};
	uint64_t id;

	assert_ok(binpool_add_registrar(pool, &ops, &id));
	return id;
}

static bool registered(const struct seen *seen, const char *ptr, uint64_t bytes)
{
	for (size_t i = 0; i < seen->n; i++)
		if (seen->base[i] && ptr >= seen->base[i] &&
		    ptr + bytes <= seen->base[i] + seen->bytes[i])
			return true;
	return false;
}

/* Memory that is got piece by piece is one extent, and buffers lie across its pieces. */
static void in_place(void **state)
{
	struct binpool *pool = thp_pool(0);
	struct binpool_stats s;
	char *p[40];

	(void)state;
	for (int i = 0; i < 40; i++) {
		p[i] = binpool_alloc(pool, 3 * MIB);
		assert_non_null(p[i]);
		memset(p[i], i, 3 * MIB);
		check_pool(pool);
	}
	s = stats_of(pool);
	assert_int_equal(s.extents, 1);
	assert_true(s.extent_extends > 10);
	assert_in_range(s.reserved_bytes, 120 * MIB, 124 * MIB);
	for (int i = 0; i < 40; i++)
		for (size_t at = 0; at < 3 * MIB; at += 4096)
			assert_int_equal(p[i][at], i);
	assert_ok(binpool_free_bulk(pool, 40, (void **)p));
	check_pool(pool);
	/* What is free at the end counts: the pool grows by the rest. */
	p[0] = binpool_alloc(pool, 200 * MIB);
	assert_int_equal(stats_of(pool).extents, 1);
	assert_int_equal(stats_of(pool).reserved_bytes, 200 * MIB);
	memset(p[0], 1, 200 * MIB);
	assert_ok(binpool_free(pool, p[0]));
	assert_ok(binpool_destroy(pool));
}

/* free_held gives the end of an extent back, and it grows again. */
static void shrinks(void **state)
{
	struct binpool *pool = thp_pool(0);
	char *p[16];

	(void)state;
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 16; i++) {
			p[i] = binpool_alloc(pool, 4 * MIB);
			assert_non_null(p[i]);
			memset(p[i], i + 1, 4 * MIB);
		}
		assert_true(stats_of(pool).reserved_bytes >= 64 * MIB);
		for (int i = 15; i > 2; i--)
			assert_ok(binpool_free(pool, p[i]));
		assert_ok(binpool_free_held(pool));
		assert_int_equal(stats_of(pool).reserved_bytes, 12 * MIB);
		assert_int_equal(stats_of(pool).extent_shrinks, round + 1);
		check_pool(pool);
		/* What comes again is new, and zero. */
		p[3] = binpool_alloc(pool, 9 * MIB);
		for (size_t at = 0; at < 9 * MIB; at += 4096)
			assert_int_equal(p[3][at], 0);
		assert_int_equal(p[2][4 * MIB - 1], 3);
		assert_ok(binpool_free(pool, p[3]));
		for (int i = 0; i < 3; i++)
			assert_ok(binpool_free(pool, p[i]));
	}
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_destroy(pool));
}

/* Every buffer lies in one registration, whenever the registrar came, and none changes. */
static void registrations(void **state)
{
	struct binpool *pool = thp_pool(0);
	struct binpool_stats s;
	struct seen seen = {0};
	void *p[64];
	uint64_t id;

	(void)state;
	for (int i = 0; i < 8; i++)
		p[i] = binpool_alloc(pool, 3 * MIB);
	id = add(pool, &seen);
	assert_int_equal(seen.n, 1);
	for (int i = 8; i < 64; i++)
		p[i] = binpool_alloc(pool, 3 * MIB);
	s = stats_of(pool);
	assert_true(s.extents > 1 && s.extents == s.registrations);
	for (int i = 0; i < 64; i++)
		assert_true(registered(&seen, p[i], 3 * MIB));
	check_pool(pool);
	/* Nor does one shrink. */
	for (int i = 63; i > 0; i--)
		assert_ok(binpool_free(pool, p[i]));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).extent_shrinks, 0);
	assert_int_equal(stats_of(pool).extents, 1);
	assert_ok(binpool_remove_registrar(pool, id));
	/* It may again when nobody knows of it. */
	for (int i = 1; i < 64; i++)
		assert_non_null(p[i] = binpool_alloc(pool, 3 * MIB));
	assert_int_equal(stats_of(pool).extents, 1);
	check_pool(pool);
	assert_ok(binpool_free_bulk(pool, 64, p));
	assert_ok(binpool_destroy(pool));
}

/* A sanitizer's own addresses are beyond every limit. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* Addresses for a few extents only. */
static int few_addresses(void)
{
	struct binpool *pool = thp_pool(0);
	struct rlimit limit = {.rlim_cur = 800 * MIB, .rlim_max = 800 * MIB};
	void *p[20];

	if (setrlimit(RLIMIT_AS, &limit))
		return 1;
	for (int i = 0; i < 20; i++) {
		p[i] = binpool_alloc(pool, 3 * MIB);
		if (!p[i])
			return 2;
	}
	check_pool(pool);
	if (binpool_alloc(pool, 800 * MIB) || errno != ENOMEM)
		return 3;
	if (binpool_free_bulk(pool, 20, p) || binpool_destroy(pool))
		return 4;
	return 0;
}

static void no_room(void **state)
{
	pid_t pid = fork();
	int status;

	(void)state;
	if (!pid)
		_exit(few_addresses());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/*
 * Where no more addresses could be reserved than an extent has, one cut shorter than the
 * granule grows by what it had, not into what is next to it.
 */
static int cut_below_granule(void)
{
	struct rlimit limit = {.rlim_cur = 400 * MIB, .rlim_max = RLIM_INFINITY};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;
	void *p[2];

	o.provider = BINPOOL_PROVIDER_THP;
	o.granule = 32 * MIB;
	o.max_bytes = 512 * MIB;
	if (setrlimit(RLIMIT_AS, &limit) || binpool_create(&pool, &o))
		return 1;
	if (binpool_reserve(pool, 64 * MIB))
		return 2;
	p[0] = binpool_alloc(pool, 1);
	if (!p[0] || binpool_trim(pool, 62 * MIB, 0) != (int64_t)(2 * MIB))
		return 3;
	/* As much as there is in place. */
	p[1] = binpool_alloc(pool, 1);
	if (!p[1] || stats_of(pool).reserved_bytes != 64 * MIB || stats_of(pool).extents != 1)
		return 4;
	memset(p[1], 1, 32 * MIB);
	check_pool(pool);
	if (binpool_free_bulk(pool, 2, p) || binpool_destroy(pool))
		return 5;
	return 0;
}

static void no_further_than_room(void **state)
{
	pid_t pid = fork();
	int status;

	(void)state;
	if (!pid)
		_exit(cut_below_granule());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}
#endif

static void *take_and_give(void *arg)
{
	struct binpool *pool = arg;
	struct rng r = {(uint64_t)(uintptr_t)&r};
	void *p[8] = {0};

	for (uint64_t i = 0; i < rounds(3000); i++) {
		uint64_t at = rng_below(&r, 8);

		if (binpool_free(pool, p[at]))
			return "free";
		p[at] = binpool_alloc(pool, 1 + rng_size(&r, 22));
		if (!p[at])
			return "alloc";
		memset(p[at], 1, 1);
	}
	return binpool_free_bulk(pool, 8, p) ? "free_bulk" : NULL;
}

/* Extents grow and shrink while others carve from their ends. */
static void threads(void **state)
{
	struct binpool *pool = real_pool(0);
	pthread_t t[4];
	void *error;

	(void)state;
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, take_and_give, pool);
	for (uint64_t i = 0; i < rounds(300); i++)
		assert_ok(binpool_free_held(pool));
	for (int i = 0; i < 4; i++) {
		pthread_join(t[i], &error);
		assert_null(error);
	}
	check_pool(pool);
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_place),
		cmocka_unit_test(shrinks),
		cmocka_unit_test(registrations),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
		cmocka_unit_test(no_room),
		cmocka_unit_test(no_further_than_room),
#endif
		cmocka_unit_test(threads),
	};

	return cmocka_run_group_tests_name("grow", tests, NULL, NULL);
}
