// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Every function with every pointer that is no buffer, and every number that is none of bytes:
 * the documented error with a sentence, and nothing has changed. Pools with and without caches,
 * that find misuse, over an allocator and of handles.
 */
#include "unit.h"

#include <sys/mman.h>
#include <unistd.h>

#define BYTES 5000

/* ---- Functions on a pointer ------------------------------------------------ */

static int by_free(struct binpool *pool, void *p)
{
	return binpool_free(pool, p);
}

static int by_free_sized(struct binpool *pool, void *p)
{
	return binpool_free_sized(pool, p, BYTES);
}

static int by_free_bulk(struct binpool *pool, void *p)
{
	return binpool_free_bulk(pool, 1, &p);
}

static int by_free_cached(struct binpool *pool, void *p)
{
	int err = binpool_free_cached(pool, p);

	binpool_set_last_error("it says nothing");
	return err == -EAGAIN ? -EINVAL : err;
}

static int by_free_after(struct binpool *pool, void *p)
{
	uint64_t counter = 1;
	struct binpool_fence f = {
		.size = sizeof(f), .kind = BINPOOL_FENCE_COUNTER, .counter = &counter};

	return binpool_free_after(pool, p, &f, 1);
}

static int by_free_after_nothing(struct binpool *pool, void *p)
{
	return binpool_free_after(pool, p, NULL, 0);
}

static int by_info(struct binpool *pool, void *p)
{
	struct binpool_buf out = {.size = sizeof(out)};

	return binpool_buf_info(pool, p, &out);
}

static int by_get(struct binpool *pool, void *p)
{
	return binpool_buffer_get(
		pool, &(struct binpool_buf){.size = sizeof(struct binpool_buf), .ptr = p});
}

static int by_put(struct binpool *pool, void *p)
{
	return binpool_buffer_put(
		pool, &(struct binpool_buf){.size = sizeof(struct binpool_buf), .ptr = p});
}

static int by_sub(struct binpool *pool, void *p)
{
	struct binpool_buf out = {.size = sizeof(out)};

	return binpool_buffer_sub(
		pool, &(struct binpool_buf){.size = sizeof(struct binpool_buf), .ptr = p}, 0, 1,
		&out);
}

static int by_export(struct binpool *pool, void *p)
{
	struct binpool_share out = {.size = sizeof(out)};

	return binpool_export(pool, p, &out);
}

/* A host's pointer in a pool of handles, and the other way round. */
static int by_handle_free(struct binpool *pool, void *p)
{
	return binpool_handle_free(pool, &(struct binpool_buf){.size = sizeof(struct binpool_buf),
							       .handle = (uintptr_t)p});
}

static const struct {
	const char *name;
	int (*call)(struct binpool *pool, void *p);
	bool null_is_fine;
} on_pointers[] = {
	{"free", by_free, true},
	{"free_sized", by_free_sized, true},
	{"free_bulk", by_free_bulk, true},
	{"free_cached", by_free_cached, true},
	{"free_after", by_free_after, true},
	{"free_after without a fence", by_free_after_nothing, true},
	{"buf_info", by_info, false},
	{"buffer_get", by_get, false},
	{"buffer_put", by_put, false},
	{"buffer_sub", by_sub, false},
	{"export", by_export, false},
	{"handle_free", by_handle_free, false},
};

/* ---- Pools ------------------------------------------------------------------ */

static uint64_t next_handle;

static int handle_alloc(void *ctx, uint64_t bytes, uint64_t *handle)
{
	(void)ctx;
	(void)bytes;
	*handle = next_handle += 1 << 20;
	return 0;
}

static void handle_free(void *ctx, uint64_t handle, uint64_t bytes)
{
	(void)ctx;
	(void)handle;
	(void)bytes;
}

enum { ORDINARY, CACHELESS, DEBUGGED, EXACT, HANDLES, POOLS };

static struct binpool *make(int what, struct counter *c)
{
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops), .ctx = c, .alloc = counter_alloc, .free = counter_free};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.provider = what >= EXACT ? BINPOOL_PROVIDER_ALLOCATOR : BINPOOL_PROVIDER_THP;
	o.max_bytes = 64 * MIB;
	if (what == CACHELESS)
		o.cache_bytes = 0;
	if (what == DEBUGGED)
		o.flags = BINPOOL_POOL_DEBUG;
	if (what >= EXACT)
		o.allocator = &ops;
	if (what == HANDLES) {
		o.kind = BINPOOL_KIND_HANDLE;
		ops.alloc_handle = handle_alloc;
		ops.free_handle = handle_free;
	}
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

/* A live buffer's address, or its handle. */
static char *take(struct binpool *pool, int what, uint64_t bytes)
{
	struct binpool_alloc_opts o = {.size = sizeof(o), .bytes = bytes};
	struct binpool_buf buf = {.size = sizeof(buf)};

	assert_ok(binpool_alloc_ex(pool, &o, &buf));
	return what == HANDLES && buf.handle ? (char *)(uintptr_t)buf.handle : buf.ptr;
}

static void give(struct binpool *pool, int what, char *p)
{
	if (what == HANDLES)
		assert_ok(by_handle_free(pool, p));
	else
		assert_ok(binpool_free(pool, p));
}

static void same(struct binpool *pool, const struct binpool_stats *before, const char *what)
{
	struct binpool_stats after = stats_of(pool);

	if (memcmp(before, &after, sizeof(after)))
		fail_msg("%s has changed counters", what);
}

/* ---- Tests ------------------------------------------------------------------- */

static void pointers_of(int what)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = make(what, &c), *other = make(what, &c);
	const long page = sysconf(_SC_PAGESIZE);
	char *gone = mmap(NULL, (size_t)page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *live = take(pool, what, BYTES), *held = take(pool, what, 3 * BYTES);
	char *dissolved = take(pool, what, 20 * MIB), *foreign = take(other, what, BYTES);
	char *heap = malloc(100), stack[64];
	struct binpool_stats before, before_other;
	struct binpool_buf known = {.size = sizeof(known)};

	assert_true(gone != MAP_FAILED && heap);
	munmap(gone, (size_t)page);
	give(pool, what, dissolved);
	assert_ok(binpool_free_held(pool));
	give(pool, what, held);
	assert_int_equal(binpool_held_blocks(pool), 1);
	{
		/* As numbers: some are beyond what any object has. */
		const uintptr_t bad[] = {
			1,
			63,
			64,
			4096,
			(uintptr_t)-1,
			(uintptr_t)-64,
			(uintptr_t)-4096,
			(uintptr_t)1 << 63,
			(uintptr_t)0xffff800000000000,
			((uintptr_t)1 << 47) - 4096,
			(uintptr_t)1 << 47,
			((uintptr_t)1 << 56) - 64,
			(uintptr_t)1 << 57,
			(uintptr_t)stack,
			(uintptr_t)heap,
			(uintptr_t)gone,
			(uintptr_t) "constant",
			(uintptr_t)pointers_of,
			(uintptr_t)pool,
			(uintptr_t)&pool,
			(uintptr_t)live + 1,
			(uintptr_t)live - 1,
			(uintptr_t)live + 64,
			(uintptr_t)live + 4096,
			(uintptr_t)live + BYTES,
			(uintptr_t)live | (uintptr_t)1 << 60,
			(uintptr_t)held,
			(uintptr_t)dissolved,
			(uintptr_t)foreign,
			0,
		};

		before = stats_of(pool);
		before_other = stats_of(other);
		for (size_t f = 0; f < sizeof(on_pointers) / sizeof(on_pointers[0]); f++) {
			for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
				bool fine = !bad[i] && on_pointers[f].null_is_fine;
				int err;

				/* Two allocators may say the same of different things. */
				if (what >= EXACT && bad[i] == (uintptr_t)foreign &&
				    foreign == live)
					continue;
				binpool_set_last_error("");
				err = on_pointers[f].call(pool, (void *)bad[i]);
				if (fine && !err)
					continue;
				if (err != -EINVAL || !*binpool_last_error())
					fail_msg("%s of %p: %d, '%s'", on_pointers[f].name,
						 (void *)bad[i], err, binpool_last_error());
				same(pool, &before, on_pointers[f].name);
			}
			same(other, &before_other, on_pointers[f].name);
			check_pool(pool);
		}
	}
	assert_ok(binpool_buf_info(pool, live, &known));
	assert_int_equal(known.bytes, BYTES);
	give(pool, what, live);
	give(other, what, foreign);
	free(heap);
	assert_ok(binpool_destroy(pool));
	assert_ok(binpool_destroy(other));
}

static void pointers(void **state)
{
	(void)state;
	for (int what = ORDINARY; what < POOLS; what++)
		pointers_of(what);
}

static bool too_large(int err)
{
	return err == EFBIG || err == E2BIG || err == ENOSPC || err == ENOMEM;
}

/* What no memory has, or what wraps where something is added. */
static const uint64_t far[] = {
	UINT64_MAX,
	UINT64_MAX - 1,
	UINT64_MAX - 63,
	UINT64_MAX - 4095,
	UINT64_MAX - (1 << 30),
	(uint64_t)1 << 63,
	((uint64_t)1 << 63) + 1,
	((uint64_t)1 << 63) - 1,
	(uint64_t)1 << 62,
	(uint64_t)1 << 48,
};

static void sizes_of(int what)
{
	static const uint64_t crooked[] = {
		3, 48, (1 << 20) - 1, (uint64_t)1 << 31, (uint64_t)1 << 63, UINT64_MAX};
	struct counter c = COUNTER_INIT;
	struct binpool *pool = make(what, &c);
	struct binpool_buf live = {.size = sizeof(live)}, out = {.size = sizeof(out)};
	struct binpool_alloc_opts o = {.size = sizeof(o), .bytes = BYTES};
	struct binpool_stats s;
	uint64_t refused = 0;
	void *many[2];

	assert_ok(binpool_alloc_ex(pool, &o, &live));
	for (size_t i = 0; i < sizeof(far) / sizeof(far[0]); i++) {
		o.bytes = far[i];
		assert_true(too_large(-binpool_alloc_ex(pool, &o, &out)));
		assert_true(*binpool_last_error());
		o.flags = BINPOOL_BUF_WAIT;
		o.wait_ms = UINT32_MAX;
		assert_true(too_large(-binpool_alloc_ex(pool, &o, &out)));
		o.flags = o.wait_ms = 0;
		assert_true(too_large(-binpool_reserve(pool, far[i])));
		assert_int_equal(binpool_may_alloc(pool, far[i]), 0);
		refused += 3;
		if (what == HANDLES) {
			assert_true(too_large(-binpool_handle_alloc(pool, far[i], &out)));
			refused++;
		} else {
			assert_null(binpool_alloc(pool, far[i]));
			assert_true(too_large(errno));
			assert_null(binpool_alloc_aligned(pool, far[i], 1 << 30));
			assert_true(too_large(errno));
			assert_true(too_large(-binpool_alloc_bulk(pool, far[i], 2, many)));
			refused += 3;
			assert_int_equal(binpool_free_sized(pool, live.ptr, far[i]), -EINVAL);
			assert_null(binpool_alloc_cached(pool, far[i]));
			assert_int_equal(errno, EAGAIN);
		}
		for (size_t j = 0; j < sizeof(far) / sizeof(far[0]); j++)
			assert_int_equal(binpool_buffer_sub(pool, &live, far[i], far[j], &out),
					 -EINVAL);
		assert_int_equal(binpool_buffer_sub(pool, &live, far[i], 1, &out), -EINVAL);
		assert_int_equal(binpool_buffer_sub(pool, &live, 1, far[i], &out), -EINVAL);
		/* Older than anything can be. */
		assert_int_equal(binpool_trim(pool, 0, far[i]), 0);
		assert_int_equal(binpool_trim(pool, far[i], 0), 0);
	}
	s = stats_of(pool);
	assert_int_equal(s.refused, refused);
	assert_int_equal(s.active_blocks, 1);
	assert_int_equal(s.active_bytes, BYTES);
	o.bytes = 100;
	for (size_t i = 0; i < sizeof(crooked) / sizeof(crooked[0]); i++) {
		o.alignment = crooked[i];
		assert_int_equal(binpool_alloc_ex(pool, &o, &out), -EINVAL);
		if (what == HANDLES)
			continue;
		assert_null(binpool_alloc_aligned(pool, 100, crooked[i]));
		assert_int_equal(errno, EINVAL);
	}
	assert_null(binpool_alloc_aligned(pool, 100, 0));
	assert_int_equal(errno, EINVAL);
	assert_int_equal(binpool_pool_bin_number(pool, UINT64_MAX), -E2BIG);
	assert_int_equal(binpool_pool_alloc_size(pool, UINT32_MAX), -EINVAL);
	assert_int_equal(stats_of(pool).active_blocks, 1);
	check_pool(pool);
	if (what == HANDLES)
		assert_ok(binpool_handle_free(pool, &live));
	else
		assert_ok(binpool_free(pool, live.ptr));
	assert_ok(binpool_destroy_wait(pool, UINT32_MAX));
}

static void sizes(void **state)
{
	(void)state;
	for (int what = ORDINARY; what < POOLS; what++)
		sizes_of(what);
}

/* Functions for the other kind of pool, and what is to be filled that is not there. */
static void kinds_and_nulls(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *host = make(ORDINARY, &c), *handles = make(HANDLES, &c);
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool_stats none = {.size = 0}, before[2] = {stats_of(host), stats_of(handles)};
	struct binpool_ptr_info info = {.size = sizeof(info)};
	void *p = NULL;

	(void)state;
	assert_null(binpool_alloc(handles, 1));
	assert_int_equal(errno, EINVAL);
	assert_null(binpool_alloc_aligned(handles, 1, 64));
	assert_int_equal(errno, EINVAL);
	assert_int_equal(binpool_alloc_bulk(handles, 1, 1, &p), -EINVAL);
	assert_int_equal(binpool_handle_alloc(host, 1, &buf), -EINVAL);
	assert_int_equal(binpool_handle_alloc(handles, 1, NULL), -EINVAL);
	assert_int_equal(binpool_handle_alloc(NULL, 1, &buf), -EINVAL);
	assert_int_equal(binpool_handle_free(handles, NULL), -EINVAL);
	assert_int_equal(binpool_alloc_bulk(host, 1, 1, NULL), -EINVAL);
	assert_int_equal(binpool_free_bulk(host, 1, NULL), -EINVAL);
	assert_ok(binpool_alloc_bulk(host, 1, 0, NULL));
	assert_ok(binpool_free_bulk(host, 0, NULL));
	assert_int_equal(binpool_buf_info(NULL, &buf, &buf), -EINVAL);
	assert_int_equal(binpool_query(&buf, NULL), -EINVAL);
	assert_int_equal(binpool_query(NULL, &info), -ENOENT);
	assert_int_equal(binpool_query((void *)(uintptr_t)-1, &info), -ENOENT);
	assert_int_equal(binpool_query(&buf, &info), -ENOENT);
	assert_int_equal(binpool_pool_allocator(host, NULL), -EINVAL);
	assert_int_equal(binpool_pool_allocator(NULL, NULL), -EINVAL);
	assert_int_equal(binpool_export(host, NULL, NULL), -EINVAL);
	assert_int_equal(binpool_import(NULL, NULL), -EINVAL);
	assert_int_equal(binpool_report(host, BINPOOL_REPORT_TABLE, NULL, 1), -EINVAL);
	assert_int_equal(binpool_remove_registrar(host, 0), -ENOENT);
	assert_int_equal(binpool_remove_registrar(host, UINT64_MAX), -ENOENT);
	assert_int_equal(binpool_stats_push_alloc(NULL, 1, 1), -EINVAL);
	assert_int_equal(binpool_stats_push_free(NULL, 1, 1), -EINVAL);
	assert_int_equal(binpool_stats_push_return(NULL, 1), -EINVAL);
	assert_int_equal(binpool_stats_push_reuse(NULL, 1), -EINVAL);
	assert_int_equal(binpool_stats_mean_alloc_ns(NULL), -EINVAL);
	assert_int_equal(binpool_stats_mean_free_ns(NULL), -EINVAL);
	assert_int_equal(binpool_stats_push_free(&none, 1, 1), -EINVAL);
	assert_int_equal(binpool_stats_push_return(&none, 1), -EINVAL);
	assert_int_equal(binpool_stats_push_reuse(&none, 1), -EINVAL);
	same(host, &before[0], "a call");
	same(handles, &before[1], "a call");
	assert_ok(binpool_destroy(host));
	assert_ok(binpool_destroy(handles));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pointers),
		cmocka_unit_test(sizes),
		cmocka_unit_test(kinds_and_nulls),
	};

	return cmocka_run_group_tests_name("bad_input", tests, NULL, NULL);
}
