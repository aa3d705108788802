// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Each call to a provider and a registrar fails once, with each kind of error: what fails
 * is that request alone, nothing leaks, and the pool goes on. Then what a driver that is
 * gone, or takes only so much, does to a pool.
 */
#include "unit.h"

#include "faulty.h"

#define LIVE 12

struct outcome {
	uint64_t refused; /* requests */
	int err;	  /* of the last */
};

/* With and without extents that grow in place. */
#define WAYS 2

static struct binpool *pool_of(struct faulty_provider *p, uint64_t max_bytes)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.name = "faulty";
	o.max_bytes = max_bytes;
	pool = faulty_pool(&o, p);
	assert_non_null(pool);
	return pool;
}

static void note(struct outcome *out, struct binpool *pool, int err)
{
	if (!err)
		return;
	out->refused++;
	out->err = err;
	assert_true(strlen(binpool_last_error()) > 10);
	check_pool(pool);
}

/* Grows, shrinks and grows again, with every kind of request. */
static struct outcome work(struct binpool *pool)
{
	static const uint64_t sizes[] = {100, 5000, 3 * MIB, 9 * MIB, 70000, MIB};
	struct outcome out = {0};
	void *p[LIVE] = {0}, *bulk[8];
	int err;

	for (uint64_t round = 0; round < 3; round++) {
		for (uint64_t i = 0; i < LIVE; i++) {
			uint64_t size = sizes[(i + round) % 6] << round;

			p[i] = i % 3 ? binpool_alloc(pool, size)
				     : binpool_alloc_aligned(pool, size, 4096);
			note(&out, pool, p[i] ? 0 : -errno);
		}
		err = binpool_alloc_bulk(pool, 2 * MIB, 8, bulk);
		note(&out, pool, err);
		if (!err)
			assert_ok(binpool_free_bulk(pool, 8, bulk));
		assert_ok(binpool_free_bulk(pool, LIVE, p));
		assert_ok(binpool_free_held(pool));
		note(&out, pool, binpool_reserve(pool, 12 * MIB));
		check_pool(pool);
	}
	return out;
}

static void end(struct binpool *pool, const struct faulty_provider *p,
		const struct faulty_registrar *r)
{
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_int_equal(stats_of(pool).active_bytes, 0);
	assert_int_equal(p->extents, stats_of(pool).extents);
	assert_int_equal(p->bytes, stats_of(pool).reserved_bytes);
	if (r)
		assert_int_equal(r->attached, stats_of(pool).extents);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(p->extents, 0);
	if (r) {
		assert_int_equal(r->attached, 0);
		assert_int_equal(r->released, 1);
	}
}

/* A shortage is got over by asking for less, or by giving back; any other error is the answer. */
static void each_provider_call(void **state)
{
	static const int errors[] = {-ENOMEM, -EPERM, -EDQUOT, -EINTR};
	uint64_t calls = 1;

	(void)state;
	for (size_t e = 0; e < WAYS * sizeof(errors) / sizeof(errors[0]); e++) {
		int error = errors[e / WAYS];

		for (uint64_t n = 0; n <= calls; n++) {
			struct faulty_provider p = {.faults = {.fail_at = n, .fail_with = error},
						    .in_place = e % WAYS};
			struct binpool *pool = pool_of(&p, 0);
			struct outcome out = work(pool);

			if (!n)
				calls = p.faults.calls;
			assert_int_equal(p.faults.failed, n != 0);
			assert_true(out.refused <= p.faults.failed);
			if (out.refused)
				assert_int_equal(out.err, error);
			if (n && error == -EPERM)
				assert_int_equal(out.refused, 1);
			assert_int_equal(stats_of(pool).refused, out.refused);
			end(pool, &p, NULL);
		}
	}
	printf("# %llu calls, each with every error\n", (unsigned long long)calls);
	assert_true(calls >= 10);
}

static void each_attach(void **state)
{
	static const int errors[] = {-ENOMEM, -EFBIG, -EIO};
	uint64_t calls = 1;

	(void)state;
	for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
		for (uint64_t n = 0; n <= calls; n++) {
			struct faulty_provider p = {0};
			struct faulty_registrar first = {0}, r = {0};
			struct binpool *pool = pool_of(&p, 0);
			struct outcome out;
			uint64_t id;

			r.faults = (struct faults){.fail_at = n, .fail_with = errors[e]};
			assert_ok(faulty_registrar_add(pool, &first, &id));
			assert_ok(faulty_registrar_add(pool, &r, &id));
			out = work(pool);
			if (!n)
				calls = r.faults.calls;
			assert_int_equal(r.faults.failed, n != 0);
			assert_int_equal(first.attached, r.attached);
			/* What was too large may have been got in a smaller extent. */
			assert_true(out.refused == r.faults.failed ||
				    (errors[e] == -EFBIG && !out.refused));
			if (out.refused)
				assert_int_equal(out.err, errors[e]);
			end(pool, &p, &r);
			assert_int_equal(first.attached, 0);
		}
	}
	assert_true(calls >= 10);
}

/* A provider that has nothing above 4 MiB: what fits is served, what does not is a shortage. */
static void small_extents_only(void **state)
{
	struct faulty_provider p = {.faults = {.largest = 4 * MIB}};
	struct binpool *pool = pool_of(&p, 0);
	void *small[64];

	(void)state;
	/* From 32 MiB on the pool would like larger extents. */
	for (int i = 0; i < 64; i++) {
		small[i] = binpool_alloc(pool, 3 * MIB);
		assert_non_null(small[i]);
	}
	assert_true(p.faults.failed > 0);
	assert_null(binpool_alloc(pool, 5 * MIB));
	assert_int_equal(errno, ENOMEM);
	check_pool(pool);
	/* Not for want of what is held. */
	assert_ok(binpool_free_bulk(pool, 64, small));
	assert_null(binpool_alloc(pool, 5 * MIB));
	assert_int_equal(errno, ENOMEM);
	check_pool(pool);
	end(pool, &p, NULL);
}

/* A registrar whose device takes only so much says EFBIG, and gets smaller extents. */
static void small_registrations_only(void **state)
{
	struct faulty_registrar r = {.faults = {.largest = 4 * MIB}};
	struct faulty_provider p = {0};
	struct binpool *pool = pool_of(&p, 0);
	void *small[64];
	uint64_t id;

	(void)state;
	assert_ok(faulty_registrar_add(pool, &r, &id));
	for (int i = 0; i < 64; i++) {
		small[i] = binpool_alloc(pool, 3 * MIB);
		assert_non_null(small[i]);
	}
	assert_null(binpool_alloc(pool, 5 * MIB));
	assert_int_equal(errno, EFBIG);
	assert_int_equal(r.attached, p.extents);
	assert_ok(binpool_free_bulk(pool, 64, small));
	check_pool(pool);
	end(pool, &p, &r);
}

/* The driver goes: what is there serves on, nothing new comes, and all of it can be given back. */
static void driver_gone(void **state)
{
	struct faulty_registrar r = {0};
	struct faulty_provider p = {0};
	struct binpool *pool = pool_of(&p, 0);
	uint64_t id;
	void *a;

	(void)state;
	assert_ok(faulty_registrar_add(pool, &r, &id));
	assert_ok(binpool_reserve(pool, 8 * MIB));
	r.faults.gone = true;
	for (int i = 0; i < 100; i++) {
		a = binpool_alloc(pool, (uint64_t)i * 20000);
		assert_non_null(a);
		assert_ok(binpool_free(pool, a));
	}
	assert_null(binpool_alloc(pool, 20 * MIB));
	assert_int_equal(errno, ENODEV);
	assert_error_names("the faulty registrar fails");
	assert_int_equal(p.extents, r.attached);
	check_pool(pool);
	/* It comes back. */
	r.faults.gone = false;
	a = binpool_alloc(pool, 20 * MIB);
	assert_non_null(a);
	r.faults.gone = p.faults.gone = true;
	assert_ok(binpool_free(pool, a));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(r.attached, 0);
	assert_int_equal(p.extents, 0);
	assert_null(binpool_alloc(pool, 1));
	assert_int_equal(errno, ENODEV);
	check_pool(pool);
	end(pool, &p, &r);
}

/* A provider that runs dry while threads hold buffers: nothing is lost, the limit is not passed. */
static void runs_dry(void **state)
{
	struct faulty_provider p = {0};
	struct binpool *pool = pool_of(&p, 0);
	struct rng r = rng_make();
	void *live[64] = {0};
	uint64_t failures = 0;

	(void)state;
	for (uint64_t i = 0; i < rounds(20000); i++) {
		uint64_t j = rng_below(&r, 64);

		/* Every tenth call fails, and none is above what is left of 64 MiB. */
		p.faults.fail_at = p.faults.calls + 1 + rng_below(&r, 10);
		p.faults.fail_with = rng_below(&r, 4) ? -ENOMEM : -EPERM;
		p.faults.largest = 64 * MIB > p.bytes ? 64 * MIB - p.bytes : 1;
		assert_ok(binpool_free(pool, live[j]));
		live[j] = binpool_alloc(pool, rng_size(&r, 23));
		if (!live[j]) {
			failures++;
			assert_true(errno == ENOMEM || errno == EPERM);
		}
		assert_true(p.bytes_max <= 64 * MIB);
		if (!(i % 64))
			check_pool(pool);
	}
	printf("# %llu requests failed\n", (unsigned long long)failures);
	assert_true(failures > 0);
	assert_ok(binpool_free_bulk(pool, 64, live));
	check_pool(pool);
	end(pool, &p, NULL);
}

/* An extent that could not grow has no addresses for less either: a new one is got. */
static void addresses_lost(void **state)
{
	struct faulty_provider p = {.in_place = true, .loses = true};
	struct binpool *pool = pool_of(&p, 256 * MIB);
	void *a = binpool_alloc(pool, 16 * MIB), *b;

	(void)state;
	p.faults.fail_at = p.faults.calls + 1;
	p.faults.fail_with = -ENOMEM;
	b = binpool_alloc(pool, MIB);
	assert_non_null(b);
	assert_int_equal(p.faults.failed, 1);
	assert_int_equal(stats_of(pool).extents, 2);
	check_pool(pool);
	assert_ok(binpool_free(pool, a));
	assert_ok(binpool_free(pool, b));
	end(pool, &p, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_provider_call), cmocka_unit_test(each_attach),
		cmocka_unit_test(small_extents_only), cmocka_unit_test(small_registrations_only),
		cmocka_unit_test(driver_gone),	      cmocka_unit_test(runs_dry),
		cmocka_unit_test(addresses_lost),
	};

	return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
