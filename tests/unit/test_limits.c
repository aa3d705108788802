// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Limits and extents on real memory: what users of such pools reported as lost
 * to rounding, fragmentation and hoarding.
 */
#include <inttypes.h>
#include <unistd.h>

#include "unit.h"

static void eight_in_64(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	void *p[8];

	(void)state;
	for (int i = 0; i < 8; i++) {
		p[i] = binpool_alloc(pool, 8 * MIB);
		if (!p[i])
			fail_msg("number %d: %s", i, binpool_last_error());
		memset(p[i], i, 8 * MIB);
	}
	assert_int_equal(stats_of(pool).reserved_bytes, 64 * MIB);
	assert_null(binpool_alloc(pool, 1));
	assert_int_equal(errno, ENOSPC);
	assert_error_names("max_bytes is 64 MiB");
	for (int i = 0; i < 8; i++)
		assert_int_equal(((unsigned char *)p[i])[8 * MIB - 1], i);
	for (int i = 0; i < 8; i++)
		assert_ok(binpool_free(pool, p[i]));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* What is in the way: all is in use, or what is free is in pieces. */
static void what_is_in_the_way(void **state)
{
	struct binpool *pool = real_pool(4 * MIB);
	void *p[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_non_null(p[i] = binpool_alloc(pool, MIB));
	assert_null(binpool_alloc(pool, 2 * MIB));
	assert_error_names("4 MiB are in use, which leaves 0 B");
	assert_ok(binpool_free(pool, p[0]));
	assert_null(binpool_alloc(pool, 2 * MIB));
	assert_error_names("3 MiB are in use, which leaves 1 MiB");
	assert_ok(binpool_free(pool, p[2]));
	assert_null(binpool_alloc(pool, 2 * MIB));
	assert_error_names("2 MiB are in use, in 4 MiB reserved, and no stretch of the rest");
	assert_ok(binpool_free(pool, p[1]));
	assert_ok(binpool_free(pool, p[3]));
	assert_ok(binpool_destroy(pool));
}

/* One request as large as the limit, whatever was there before. */
static void whole_limit(void **state)
{
	const uint64_t limit = rounds(10) > 1 ? GIB : 64 * MIB;
	struct binpool *pool = real_pool(limit);
	struct rng r = rng_make();
	void *p[200], *all;

	(void)state;
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 200; i++) {
			p[i] = binpool_alloc(pool, 1 + rng_size(&r, round ? 18 : 12));
			assert_non_null(p[i]);
		}
		for (int i = 0; i < 200; i++)
			assert_ok(binpool_free(pool, p[i]));
		all = binpool_alloc(pool, limit);
		if (!all)
			fail_msg("%s", binpool_last_error());
		memset(all, round, 4096);
		memset((char *)all + limit - 4096, round, 4096);
		assert_int_equal(stats_of(pool).reserved_bytes, limit);
		assert_ok(binpool_free(pool, all));
		check_pool(pool);
	}
	assert_ok(binpool_destroy(pool));
}

/* Held neighbours join before the limit refuses. */
static void held_neighbours_join(void **state)
{
	struct binpool *pool = real_pool(16 * MIB);
	void *p[16], *large;

	(void)state;
	assert_ok(binpool_reserve(pool, 16 * MIB));
	assert_int_equal(stats_of(pool).extents, 1);
	for (int i = 0; i < 16; i++)
		assert_non_null(p[i] = binpool_alloc(pool, MIB));
	assert_int_equal(stats_of(pool).extent_allocs, 1);
	for (int i = 4; i < 8; i++)
		assert_ok(binpool_free(pool, p[i]));
	large = binpool_alloc(pool, 4 * MIB);
	assert_ptr_equal(large, p[4] < p[7] ? p[4] : p[7]);
	assert_int_equal(stats_of(pool).frees_held, 4);
	assert_int_equal(stats_of(pool).extent_allocs, 1);
	assert_ok(binpool_free(pool, large));
	for (int i = 0; i < 16; i++)
		if (i < 4 || i >= 8)
			assert_ok(binpool_free(pool, p[i]));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* A free stretch is used before the provider is asked. */
static void free_stretch(void **state)
{
	struct binpool *pool = real_pool(0);
	void *a, *b, *c;
	char *x;

	(void)state;
	assert_ok(binpool_reserve(pool, 8 * MIB));
	a = binpool_alloc(pool, MIB);
	b = binpool_alloc(pool, 128 * KIB);
	c = binpool_alloc(pool, MIB);
	assert_true(a && b && c);
	assert_ok(binpool_stop_holding(pool));
	assert_ok(binpool_free(pool, b));
	x = binpool_alloc(pool, 100 * KIB);
	assert_ptr_equal(x, b);
	assert_int_equal(stats_of(pool).extent_allocs, 1);
	assert_ok(binpool_free(pool, x));
	assert_ok(binpool_free(pool, a));
	assert_ok(binpool_free(pool, c));
	/* Not holding: the memory is gone. */
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_destroy(pool));
}

/* Of the free stretches that fit it is the lowest, in whatever order they became free. */
static void lowest_fit(void **state)
{
	static const size_t sizes[] = {130 * KIB, 3 * MIB, 134 * KIB, 5 * MIB};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;
	void *p[8], *q;

	(void)state;
	o.provider = BINPOOL_PROVIDER_THP;
	o.mantissa_bits = 16;
	assert_ok(binpool_create(&pool, &o));
	/* Every second one stays, so that the others do not join. */
	for (size_t i = 0; i < 8; i++) {
		p[i] = binpool_alloc(pool, i % 2 ? 4 * KIB : sizes[i / 2]);
		assert_non_null(p[i]);
		assert_true(!i || p[i] > p[i - 1]);
	}
	assert_ok(binpool_stop_holding(pool));
	for (size_t first = 0; first < 4; first++) {
		for (size_t i = 0; i < 4; i++)
			assert_ok(binpool_free(pool, p[(first + i) % 4 * 2]));
		for (size_t i = 0; i < 4; i++) {
			q = binpool_alloc(pool, sizes[i] - KIB);
			assert_ptr_equal(q, p[i == 2 ? 2 : i * 2]);
			assert_ok(binpool_free(pool, q));
		}
		for (size_t i = 0; i < 4; i++)
			assert_ptr_equal(binpool_alloc(pool, sizes[i]), p[i * 2]);
		check_pool(pool);
	}
	assert_ok(binpool_free_bulk(pool, 8, p));
	assert_ok(binpool_destroy(pool));
}

/* Many small buffers need few extents, and so few registrations. */
static void few_extents(void **state)
{
	struct binpool *pool = real_pool(0);
	const size_t n = rounds(100000);
	void **p = calloc(n, sizeof(*p));
	struct binpool_stats s;

	(void)state;
	assert_ok(binpool_alloc_bulk(pool, 1000, n, p));
	s = stats_of(pool);
	assert_int_equal(s.active_blocks, n);
	assert_true(s.extents <= 28);
	assert_true(s.reserved_bytes <= s.managed_bytes + s.managed_bytes / 4 + 8 * MIB);
	check_pool(pool);
	assert_ok(binpool_free_bulk(pool, n, p));
	assert_ok(binpool_alloc_bulk(pool, 1000, n, p));
	assert_int_equal(stats_of(pool).extent_allocs, s.extent_allocs);
	assert_in_range(stats_of(pool).reuses, 1, n);
	assert_ok(binpool_free_bulk(pool, n, p));
	free(p);
	assert_ok(binpool_destroy(pool));
}

/* 129.5 MiB takes at most a sixteenth more, also of the provider. */
static void reported_waste(void **state)
{
	const uint64_t asked = 135790592; /* 129.5 MiB */
	struct binpool *pool = real_pool(0);
	struct binpool_stats s;
	void *p = binpool_alloc(pool, asked);

	(void)state;
	assert_non_null(p);
	s = stats_of(pool);
	assert_true((double)s.managed_bytes <= 1.0625 * (double)asked);
	assert_true((double)s.reserved_bytes <= 1.0625 * (double)asked);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free_held(pool));
	/* A power of two costs nothing on top. */
	p = binpool_alloc(pool, 128 * MIB);
	assert_non_null(p);
	assert_int_equal(stats_of(pool).reserved_bytes, 128 * MIB);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

/* The pool grows by an eighth of itself, and never past the limit. */
static void growth(void **state)
{
	struct binpool *pool = real_pool(130 * MIB);
	struct binpool_stats s, last = {0};
	uint64_t n = 0;
	void *p[2048];

	(void)state;
	while (n < 2048 && (p[n] = binpool_alloc(pool, 100 * KIB))) {
		n++;
		s = stats_of(pool);
		if (s.reserved_bytes != last.reserved_bytes) {
			uint64_t step = s.reserved_bytes - last.reserved_bytes;

			assert_true(step >= 2 * MIB);
			assert_true(step <= 4 * MIB || step <= last.reserved_bytes / 4);
		}
		last = s;
	}
	assert_int_equal(errno, ENOSPC);
	assert_int_equal(last.reserved_bytes, 130 * MIB);
	assert_true(last.managed_bytes >= 127 * MIB);
	assert_ok(binpool_free_bulk(pool, n, p));
	assert_ok(binpool_destroy(pool));
}

static void alignment(void **state)
{
	struct binpool *pool = real_pool(0);
	void *p[32], *plain;

	(void)state;
	plain = binpool_alloc(pool, 100);
	for (int i = 0; i <= 30; i++) {
		p[i] = binpool_alloc_aligned(pool, 100, (size_t)1 << i);
		if (!p[i])
			fail_msg("alignment 2^%d: %s", i, binpool_last_error());
		assert_int_equal((uintptr_t)p[i] & (((uintptr_t)1 << i) - 1), 0);
		check_pool(pool);
	}
	/* It costs addresses, not memory. */
	assert_true(stats_of(pool).reserved_bytes <= 64 * MIB);
	for (int i = 0; i <= 30; i++)
		assert_ok(binpool_free(pool, p[i]));
	assert_ok(binpool_free(pool, plain));
	/* A held buffer serves an aligned request only if it is aligned. */
	for (int i = 0; i < 200; i++) {
		size_t align = (size_t)1 << (i % 22);
		void *q = binpool_alloc_aligned(pool, 100, align);

		assert_int_equal((uintptr_t)q & (align - 1), 0);
		assert_ok(binpool_free(pool, q));
	}
	check_pool(pool);
	/* Whole pages start at a page. */
	for (uint64_t size = 4096; size <= MIB; size *= 2) {
		void *q = binpool_alloc(pool, size);

		assert_int_equal((uintptr_t)q & 4095, 0);
		assert_ok(binpool_free(pool, q));
	}
	assert_ok(binpool_destroy(pool));
}

static bool is_zero(const char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i])
			return false;
	return true;
}

static void zeroed(void **state)
{
	struct binpool *pool = real_pool(0);
	struct binpool_alloc_opts o = {.size = sizeof(o), .bytes = 50000};
	struct binpool_buf buf = {.size = sizeof(buf)};
	void *p;

	(void)state;
	/* Fresh memory is known to be zero; used memory is not. */
	assert_ok(binpool_alloc_ex(pool, &o, &buf));
	assert_int_equal(buf.flags, BINPOOL_BUF_ZEROED);
	assert_true(is_zero(buf.ptr, 50000));
	memset(buf.ptr, 0xee, buf.capacity);
	p = buf.ptr;
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_alloc_ex(pool, &o, &buf));
	assert_ptr_equal(buf.ptr, p);
	assert_int_equal(buf.flags, 0);
	assert_ok(binpool_free(pool, p));
	o.flags = BINPOOL_BUF_ZEROED;
	assert_ok(binpool_alloc_ex(pool, &o, &buf));
	assert_ptr_equal(buf.ptr, p);
	assert_int_equal(buf.flags, BINPOOL_BUF_ZEROED);
	assert_true(is_zero(buf.ptr, 50000));
	memset(buf.ptr, 0xee, buf.capacity);
	assert_ok(binpool_free(pool, p));

	/* A run that joined used memory, below or above it, is not known to be zero. */
	o.flags = 0;
	p = binpool_alloc(pool, 64); /* keeps the extent */
	for (uint64_t size = 128 * KIB; size <= 2 * MIB; size *= 2) {
		o.bytes = size;
		assert_ok(binpool_alloc_ex(pool, &o, &buf));
		if (buf.flags & BINPOOL_BUF_ZEROED)
			assert_true(is_zero(buf.ptr, size));
		memset(buf.ptr, 0xee, buf.capacity);
		assert_ok(binpool_free(pool, buf.ptr));
		assert_ok(binpool_free_held(pool));
	}
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

static void reserve(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	void *p;

	(void)state;
	assert_ok(binpool_reserve(pool, 0));
	assert_int_equal(stats_of(pool).extents, 0);
	assert_ok(binpool_reserve(pool, 20 * MIB));
	assert_int_equal(stats_of(pool).reserved_bytes, 20 * MIB);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_ok(binpool_reserve(pool, 20 * MIB));
	assert_int_equal(stats_of(pool).extent_allocs, 1);
	p = binpool_alloc(pool, 20 * MIB);
	assert_non_null(p);
	assert_int_equal(stats_of(pool).extent_allocs, 1);
	assert_int_equal(binpool_reserve(pool, 100 * MIB), -EFBIG);
	assert_int_equal(binpool_reserve(pool, 60 * MIB), -ENOSPC);
	assert_ok(binpool_free(pool, p));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

static void may_alloc(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);

	(void)state;
	assert_int_equal(binpool_max_bytes(pool), 64 * MIB);
	assert_int_equal(binpool_may_alloc(pool, 64 * MIB), 1);
	assert_int_equal(binpool_may_alloc(pool, 64 * MIB + 1), 0);
	assert_int_equal(binpool_may_alloc(pool, UINT64_MAX), 0);
	assert_int_equal(binpool_may_alloc(pool, 0), 1);
	assert_ok(binpool_reserve(pool, 32 * MIB));
	assert_int_equal(binpool_may_alloc(pool, 32 * MIB), 1);
	assert_int_equal(binpool_may_alloc(pool, 33 * MIB), 0);
	assert_ok(binpool_destroy(pool));
}

/* A limit below one huge page can never be kept: said at once. */
static void tiny_limit(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	(void)state;
	o.provider = BINPOOL_PROVIDER_THP;
	o.max_bytes = 4096;
	assert_int_equal(binpool_create(&pool, &o), -EINVAL);
	assert_error_names("units");
	assert_null(pool);
	o.max_bytes = 3 * MIB; /* one huge page and a half: one is there */
	assert_ok(binpool_create(&pool, &o));
	assert_ok(binpool_free(pool, binpool_alloc(pool, 2 * MIB)));
	assert_null(binpool_alloc(pool, 3 * MIB));
	assert_int_equal(errno, EFBIG);
	assert_error_names("option max_bytes");
	assert_int_equal(stats_of(pool).reserved_bytes, 2 * MIB);
	assert_ok(binpool_destroy(pool));
	/* A limit that nobody set is told by what it comes from. */
	pool = thp_pool(0);
	assert_null(binpool_alloc(pool, (uint64_t)1 << 60));
	assert_int_equal(errno, EFBIG);
	assert_error_names("80 % of memory");
	assert_ok(binpool_destroy(pool));
}

#define USER_MAX_BYTES "/sys/class/misc/binpool/user_max_bytes"

static void set_user_max(uint64_t bytes)
{
	FILE *f = fopen(USER_MAX_BYTES, "we");

	assert_non_null(f);
	assert_true(fprintf(f, "%" PRIu64, bytes) > 0);
	assert_int_equal(fclose(f), 0);
}

static struct binpool *device_pool(uint64_t max_bytes)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.provider = BINPOOL_PROVIDER_DEVICE;
	o.max_bytes = max_bytes;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

/* A budget of the module's is refused with a sentence, and is what a pool begins with. */
static void users_budget(void **state)
{
	struct binpool *pool;
	void *p[2];

	(void)state;
	if (access(USER_MAX_BYTES, W_OK)) {
		printf("# no module whose user_max_bytes may be written\n");
		skip();
	}
	pool = device_pool(256 * MIB);
	p[0] = binpool_alloc(pool, 4 * MIB);
	assert_non_null(p[0]);
	set_user_max(stats_of(pool).reserved_bytes + 16 * MIB);
	assert_null(binpool_alloc(pool, 64 * MIB));
	assert_int_equal(errno, EDQUOT);
	assert_error_names("asked for 64 MiB");
	assert_error_names("leaves this one 16 MiB");
	assert_error_names("raise " USER_MAX_BYTES);
	assert_ok(binpool_free(pool, p[0]));

	/* What the pool itself holds makes room. */
	assert_ok(binpool_free_held(pool));
	set_user_max(16 * MIB);
	for (int i = 0; i < 2; i++)
		assert_non_null(p[i] = binpool_alloc(pool, 6 * MIB));
	for (int i = 0; i < 2; i++)
		assert_ok(binpool_free(pool, p[i]));
	p[0] = binpool_alloc(pool, 16 * MIB);
	if (!p[0])
		fail_msg("%s", binpool_last_error());
	assert_ok(binpool_free(pool, p[0]));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));

	pool = device_pool(0);
	assert_int_equal(binpool_max_bytes(pool), 16 * MIB);
	assert_null(binpool_alloc(pool, 17 * MIB));
	assert_int_equal(errno, EFBIG);
	assert_error_names(USER_MAX_BYTES);
	assert_ok(binpool_destroy(pool));
	set_user_max(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(eight_in_64),	cmocka_unit_test(what_is_in_the_way),
		cmocka_unit_test(whole_limit),	cmocka_unit_test(held_neighbours_join),
		cmocka_unit_test(free_stretch), cmocka_unit_test(lowest_fit),
		cmocka_unit_test(few_extents),	cmocka_unit_test(reported_waste),
		cmocka_unit_test(growth),	cmocka_unit_test(alignment),
		cmocka_unit_test(zeroed),	cmocka_unit_test(reserve),
		cmocka_unit_test(may_alloc),	cmocka_unit_test(tiny_limit),
		cmocka_unit_test(users_budget),
	};

	return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
