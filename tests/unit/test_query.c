// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What is known of an address: any of a buffer, of what is held, of free memory, of
 * memory that is nobody's.
 */
#include "unit.h"

#include <sched.h>
#include <unistd.h>

#include "pool.h"

static struct binpool_ptr_info at(const void *ptr)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};

	assert_ok(binpool_query(ptr, &info));
	return info;
}

static void nowhere(const void *ptr)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};

	assert_int_equal(binpool_query(ptr, &info), -ENOENT);
	assert_error_names("no pool");
}

/* Every address of a buffer leads to it, whatever its size. */
static void interior(void **state)
{
	static const uint64_t sizes[] = {1, 100, 4000, 4096, 10000, 100000, MIB, 5 * MIB, 20 * MIB};
	struct binpool *pool = real_pool(0);
	char *p[9];

	(void)state;
	for (int i = 0; i < 9; i++)
		assert_non_null(p[i] = binpool_alloc(pool, sizes[i]));
	for (int i = 0; i < 9; i++) {
		const uint64_t offsets[] = {0, 1, sizes[i] / 2, sizes[i] - 1};

		for (int j = 0; j < 4; j++) {
			struct binpool_ptr_info info;

			if (offsets[j] >= sizes[i])
				continue;
			info = at(p[i] + offsets[j]);
			assert_ptr_equal(info.pool, pool);
			assert_ptr_equal(info.buffer, p[i]);
			assert_int_equal(info.offset, offsets[j]);
			assert_int_equal(info.bytes, sizes[i]);
			assert_in_range(info.capacity, sizes[i], sizes[i] + sizes[i] / 16 + 64);
			assert_int_equal(info.state, BINPOOL_PTR_ACTIVE);
			assert_int_equal(info.references, 1);
			assert_in_range((uintptr_t)p[i], (uintptr_t)info.extent,
					(uintptr_t)info.extent + info.extent_bytes - sizes[i]);
			assert_int_equal(info.registrations, 0);
			assert_string_equal(info.registrars, "");
			assert_int_equal(info.provider, stats_of(pool).provider);
			assert_int_equal(info.page_bytes, pmd_size());
			assert_in_range(info.run_bytes, info.page_bytes, info.extent_bytes);
			assert_in_range((uintptr_t)p[i] + offsets[j], (uintptr_t)info.run,
					(uintptr_t)info.run + info.run_bytes - 1);
			assert_true(info.node >= 0);
		}
	}
	for (int i = 0; i < 9; i++)
		assert_ok(binpool_free(pool, p[i]));
	assert_ok(binpool_destroy(pool));
	nowhere(p[0]);
}

/* Held, free, of size 0, nobody's. */
static void states(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	char *p = binpool_alloc(pool, MIB), *q = binpool_alloc(pool, 100), *r, here;
	struct binpool_ptr_info info;
	struct binpool_fence fence;
	uint64_t counter = 0;
	char text[2000];

	(void)state;
	assert_ok(binpool_free(pool, p));
	info = at(p + 5000);
	assert_int_equal(info.state, BINPOOL_PTR_HELD);
	assert_ptr_equal(info.buffer, p);
	assert_int_equal(info.bytes, 0);
	assert_int_equal(info.references, 0);
	assert_ok(binpool_free_held(pool));
	info = at(p + 5000);
	assert_int_equal(info.state, BINPOOL_PTR_FREE);
	assert_null(info.buffer);
	assert_ptr_equal(info.pool, pool);
	/* In a slab, where no buffer is. */
	info = at(q + 3000);
	assert_int_equal(info.state, BINPOOL_PTR_FREE);

	/* Freed, while something is at work on it. */
	r = binpool_alloc(pool, 5000);
	fence = (struct binpool_fence){.size = sizeof(fence),
				       .kind = BINPOOL_FENCE_COUNTER,
				       .counter = &counter,
				       .target = 1};
	assert_ok(binpool_free_after(pool, r, &fence, 1));
	info = at(r + 4999);
	assert_int_equal(info.state, BINPOOL_PTR_PENDING);
	assert_ptr_equal(info.buffer, r);
	assert_true(binpool_leaks(pool, BINPOOL_REPORT_KEYS, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "active_blocks=1\n"));
	counter = 1;
	assert_int_equal(binpool_poll(pool), 0);

	r = binpool_alloc(pool, 0);
	info = at(r);
	assert_int_equal(info.state, BINPOOL_PTR_ACTIVE);
	assert_int_equal(info.capacity, 0);
	assert_null(info.extent);
	assert_int_equal(info.page_bytes, 0);
	assert_ok(binpool_free(pool, r));
	nowhere(&here);
	nowhere(NULL);
	nowhere((void *)UINTPTR_MAX);
	nowhere((void *)nowhere);
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_destroy(pool));
}

static struct binpool_ptr_info seen;

static int attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	(void)ctx;
	*cookie = NULL;
	(void)extent;
	return 0;
}

static void detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	(void)ctx;
	(void)cookie;
	/* What is about to go back to the provider is no pool's any more. */
	seen = (struct binpool_ptr_info){.size = sizeof(seen)};
	if (binpool_query(extent->ptr, &seen))
		assert_error_names("no pool");
}

/* With whom it is registered, also seen from a callback; tags and references. */
static void registered(void **state)
{
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops), .name = "first", .attach = attach, .detach = detach};
	struct binpool_alloc_opts o = {.size = sizeof(o), .bytes = 1000, .tag = "mine"};
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool *pool = real_pool(64 * MIB);
	struct binpool_ptr_info info;
	uint64_t id[2];

	(void)state;
	assert_ok(binpool_alloc_ex(pool, &o, &buf));
	assert_ok(binpool_add_registrar(pool, &ops, &id[0]));
	ops.name = "second";
	assert_ok(binpool_add_registrar(pool, &ops, &id[1]));
	assert_ok(binpool_buffer_get(pool, &buf));
	info = at((char *)buf.ptr + 999);
	assert_int_equal(info.registrations, 2);
	assert_string_equal(info.registrars, "second,first");
	assert_string_equal(info.tag, "mine");
	assert_int_equal(info.references, 2);
	assert_ok(binpool_remove_registrar(pool, id[1]));
	assert_ptr_equal(seen.pool, pool);
	assert_int_equal(seen.registrations, 1);
	assert_string_equal(seen.registrars, "first");
	assert_ok(binpool_buffer_put(pool, &buf));
	assert_ok(binpool_free(pool, buf.ptr));
	assert_ok(binpool_destroy(pool));
	assert_null(seen.pool);
}

static int inner_alloc(void *ctx, uint64_t bytes, void **ptr)
{
	*ptr = binpool_alloc(ctx, bytes);
	return *ptr ? 0 : -errno;
}

static void inner_free(void *ctx, void *ptr, uint64_t bytes)
{
	if (binpool_free_sized(ctx, ptr, bytes))
		abort();
}

/* Of pools over one another the one whose user has the buffer answers. */
static void outermost(void **state)
{
	struct binpool *pools[3] = {real_pool(64 * MIB)};
	char *p;

	(void)state;
	for (int i = 1; i < 3; i++) {
		struct binpool_allocator_ops ops = {.size = sizeof(ops),
						    .ctx = pools[i - 1],
						    .alloc = inner_alloc,
						    .free = inner_free};
		struct binpool_options o = BINPOOL_OPTIONS_INIT;

		o.provider = BINPOOL_PROVIDER_ALLOCATOR;
		o.allocator = &ops;
		assert_ok(binpool_create(&pools[i], &o));
	}
	p = binpool_alloc(pools[2], 100000);
	assert_ptr_equal(at(p + 99999).pool, pools[2]);
	assert_int_equal(at(p).provider, BINPOOL_PROVIDER_ALLOCATOR);
	assert_int_equal(at(p).page_bytes, pmd_size());
	assert_ok(binpool_free(pools[2], p));
	assert_int_equal(at(p).state, BINPOOL_PTR_HELD);
	assert_ok(binpool_destroy(pools[2]));
	assert_ptr_equal(at(p).pool, pools[1]);
	assert_ok(binpool_destroy(pools[1]));
	assert_ptr_equal(at(p).pool, pools[0]);
	assert_ok(binpool_destroy(pools[0]));
	nowhere(p);
}

/* While others make and destroy pools and their memory comes and goes. */
struct shared {
	void *ptr;
	bool found;
};

static void *makes_pools(void *arg)
{
	struct shared *s = arg;
	uint64_t n = rounds(200);

	for (uint64_t i = 0; i < n; i++) {
		struct binpool *pool = thp_pool(16 * MIB);
		void *p = binpool_alloc(pool, 2 * MIB);

		__atomic_store_n(&s->ptr, p, __ATOMIC_RELAXED);
		while (!i && !__atomic_load_n(&s->found, __ATOMIC_RELAXED))
			sched_yield();
		if (!p || binpool_free(pool, p) || binpool_destroy(pool))
			return "a pool failed";
	}
	return NULL;
}

static void *destroys(void *pool)
{
	return binpool_destroy(pool) ? "a pool failed" : NULL;
}

static void is_listed(struct binpool *pool, void *arg)
{
	struct binpool **wanted = arg;

	if (pool == *wanted)
		*wanted = NULL;
}

static bool can_be_found(struct binpool *pool)
{
	struct binpool *wanted = pool;

	pools_each(is_listed, &wanted);
	return !wanted;
}

/* Who has found a pool keeps it, but not from being found no more. */
static void found_before_it_goes(void **state)
{
	struct binpool *pool = thp_pool(16 * MIB);
	pthread_t thread;
	void *wrong;

	(void)state;
	pool_lock(pool);
	pool->finders++;
	pool_unlock(pool);
	assert_int_equal(pthread_create(&thread, NULL, destroys, pool), 0);
	alarm(60);
	while (can_be_found(pool))
		sched_yield();
	alarm(0);
	usleep(20000);
	assert_int_equal(pthread_tryjoin_np(thread, &wrong), EBUSY);
	pool_unpin(pool, &pool->finders);
	assert_int_equal(pthread_join(thread, &wrong), 0);
	assert_null(wrong);
}

static void while_pools_go(void **state)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};
	struct shared s = {0};
	pthread_t thread;
	void *wrong;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, makes_pools, &s), 0);
	while (pthread_tryjoin_np(thread, &wrong)) {
		int err = binpool_query(__atomic_load_n(&s.ptr, __ATOMIC_RELAXED), &info);

		assert_true(!err || err == -ENOENT);
		if (!err)
			__atomic_store_n(&s.found, true, __ATOMIC_RELAXED);
	}
	assert_null(wrong);
}

static void bad_arguments(void **state)
{
	struct {
		struct binpool_ptr_info known;
		char tail[8];
	} newer;
	struct binpool *pool = real_pool(64 * MIB);
	void *p = binpool_alloc(pool, 100);

	(void)state;
	assert_int_equal(binpool_query(p, NULL), -EINVAL);
	newer.known.size = 0;
	assert_int_equal(binpool_query(p, &newer.known), -EINVAL);
	memset(&newer, 0xee, sizeof(newer));
	newer.known.size = sizeof(newer);
	assert_ok(binpool_query(p, &newer.known));
	assert_int_equal(newer.tail[7], 0);
	memset(&newer, 0xee, sizeof(newer));
	newer.known.size = offsetof(struct binpool_ptr_info, offset);
	assert_ok(binpool_query(p, &newer.known));
	assert_ptr_equal(newer.known.buffer, p);
	assert_int_equal(newer.known.bytes, 0xeeeeeeeeeeeeeeee);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(interior),
		cmocka_unit_test(states),
		cmocka_unit_test(registered),
		cmocka_unit_test(outermost),
		cmocka_unit_test(found_before_it_goes),
		cmocka_unit_test(while_pools_go),
		cmocka_unit_test(bad_arguments),
	};

	return cmocka_run_group_tests_name("query", tests, NULL, NULL);
}
