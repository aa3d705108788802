// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What may be handed in: NULL, versions of structs, unknown flags and values,
 * BINPOOL_OPTS. Everything bad is a documented errno and changes nothing.
 */
#include "unit.h"

/* A struct of the future: the library's, and something behind it. */
#define LONGER(type)                                                                               \
	struct {                                                                                   \
		type known;                                                                        \
		unsigned char tail[32];                                                            \
	}

static void options_versions(void **state)
{
	LONGER(struct binpool_options) longer = {.known = BINPOOL_OPTIONS_INIT};
	struct binpool *pool = (struct binpool *)1;

	(void)state;
	longer.known.provider = BINPOOL_PROVIDER_THP;
	longer.known.size = sizeof(longer);
	assert_ok(binpool_create(&pool, &longer.known));
	assert_ok(binpool_destroy(pool));
	longer.tail[31] = 1;
	assert_int_equal(binpool_create(&pool, &longer.known), -E2BIG);
	assert_null(pool);
	/* One that was never set: there is nothing to look at. */
	longer.tail[31] = 0;
	longer.known.size = SIZE_MAX / 2;
	assert_int_equal(binpool_create(&pool, &longer.known), -E2BIG);
	assert_error_names("member size");
	longer.tail[31] = 1;
	/* What the size does not cover is not looked at. */
	longer.known.size = sizeof(longer.known);
	assert_ok(binpool_create(&pool, &longer.known));
	assert_ok(binpool_destroy(pool));
	/* A short one: the rest is zero. */
	longer.known.size = offsetof(struct binpool_options, mantissa_bits);
	longer.known.mantissa_bits = 12345;
	assert_ok(binpool_create(&pool, &longer.known));
	assert_int_equal(binpool_pool_bin_number(pool, 1 << 20),
			 binpool_tight_bin_number(0, 1 << 20));
	assert_ok(binpool_destroy(pool));
	longer.known.size = 0;
	assert_int_equal(binpool_create(&pool, &longer.known), -EINVAL);
	longer.known.size = sizeof(size_t) - 1;
	assert_int_equal(binpool_create(&pool, &longer.known), -EINVAL);
	assert_int_equal(binpool_create(NULL, NULL), -EINVAL);
}

static void outputs_versions(void **state)
{
	struct binpool *pool = thp_pool(16 * MIB);
	LONGER(struct binpool_stats) stats;
	LONGER(struct binpool_buf) buf;
	void *p = binpool_alloc(pool, 1000);

	(void)state;
	memset(&stats, 0xee, sizeof(stats));
	stats.known.size = sizeof(stats);
	assert_ok(binpool_get_stats(pool, &stats.known));
	assert_int_equal(stats.known.size, sizeof(stats));
	assert_int_equal(stats.known.active_blocks, 1);
	for (size_t i = 0; i < sizeof(stats.tail); i++)
		assert_int_equal(stats.tail[i], 0);

	memset(&stats, 0xee, sizeof(stats));
	stats.known.size = offsetof(struct binpool_stats, held_blocks);
	assert_ok(binpool_get_stats(pool, &stats.known));
	assert_int_equal(stats.known.active_blocks, 1);
	assert_int_equal(stats.known.held_blocks, 0xeeeeeeeeeeeeeeee);
	stats.known.size = 3;
	assert_int_equal(binpool_get_stats(pool, &stats.known), -EINVAL);
	assert_int_equal(binpool_get_stats(pool, NULL), -EINVAL);

	memset(&buf, 0xee, sizeof(buf));
	buf.known.size = sizeof(buf);
	assert_ok(binpool_buf_info(pool, p, &buf.known));
	assert_ptr_equal(buf.known.ptr, p);
	assert_int_equal(buf.known.bytes, 1000);
	assert_int_equal(buf.known.reserved, 0);
	assert_int_equal(buf.tail[0], 0);
	buf.known.size = 0;
	assert_int_equal(binpool_buf_info(pool, p, &buf.known), -EINVAL);
	assert_int_equal(binpool_buf_info(pool, p, NULL), -EINVAL);
	buf.known.size = sizeof(buf.known);
	assert_int_equal(binpool_buf_info(pool, (char *)p + 1, &buf.known), -EINVAL);
	assert_int_equal(binpool_buf_info(pool, NULL, &buf.known), -EINVAL);
	assert_ok(binpool_free(pool, p));
	assert_int_equal(binpool_buf_info(pool, p, &buf.known), -EINVAL);
	assert_ok(binpool_destroy(pool));
}

/* A struct to be filled, and what is behind it. */
union wild {
	size_t size;
	struct binpool_stats stats;
	struct binpool_buf buf;
	struct binpool_ptr_info info;
	struct binpool_share share;
	struct binpool_allocator_ops ops;
	unsigned char bytes[2 * 4096];
};

static int number_alloc(void *ctx, uint64_t bytes, uint64_t *handle)
{
	void *ptr;
	int err = counter_alloc(ctx, bytes, &ptr);

	*handle = (uintptr_t)ptr;
	return err;
}

static void number_free(void *ctx, uint64_t handle, uint64_t bytes)
{
	counter_free(ctx, (void *)(uintptr_t)handle, bytes);
}

static struct binpool *handle_pool(struct counter *c)
{
	const struct binpool_allocator_ops ops = {
		.size = sizeof(ops),
		.ctx = c,
		.alloc_handle = number_alloc,
		.free_handle = number_free,
	};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.kind = BINPOOL_KIND_HANDLE;
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

enum { STATS, INFO, QUERY, ALLOC, SUB, EXPORT, OPS, HANDLE, FILLED };

static int fill(int what, struct binpool *pool, struct binpool *handles, void *p, union wild *w)
{
	const struct binpool_alloc_opts opts = {.size = sizeof(opts), .bytes = 100};
	const struct binpool_buf parent = {.size = sizeof(parent), .ptr = p};

	switch (what) {
	case STATS:
		return binpool_get_stats(pool, &w->stats);
	case INFO:
		return binpool_buf_info(pool, p, &w->buf);
	case QUERY:
		return binpool_query(p, &w->info);
	case ALLOC:
		return binpool_alloc_ex(pool, &opts, &w->buf);
	case SUB:
		return binpool_buffer_sub(pool, &parent, 0, 1, &w->buf);
	case EXPORT:
		return binpool_export(pool, p, &w->share);
	case OPS:
		return binpool_pool_allocator(pool, &w->ops);
	default:
		return binpool_handle_alloc(handles, 100, &w->buf);
	}
}

/* A size that was never set is not written to, nor is anything else done. */
static void wild_sizes(void **state)
{
	const size_t most = 4096, bad[] = {most + 1, 2 * most, SIZE_MAX / 2, SIZE_MAX};
	struct counter c = COUNTER_INIT;
	struct binpool *pool = thp_pool(16 * MIB), *handles = handle_pool(&c);
	struct binpool_stats before[2], after[2];
	void *p = binpool_alloc(pool, 1000);
	union wild w;
	int err;

	(void)state;
	before[0] = stats_of(pool);
	before[1] = stats_of(handles);
	for (int what = 0; what < FILLED; what++) {
		for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
			memset(&w, 0xee, sizeof(w));
			w.size = bad[i];
			err = fill(what, pool, handles, p, &w);
			if (err != -E2BIG)
				fail_msg("function %d, size %zu: %d", what, bad[i], err);
			assert_error_names("member size");
			assert_int_equal(w.size, bad[i]);
			for (size_t j = sizeof(w.size); j < sizeof(w); j++)
				assert_int_equal(w.bytes[j], 0xee);
		}
	}
	after[0] = stats_of(pool);
	after[1] = stats_of(handles);
	assert_memory_equal(before, after, sizeof(before));
	/* Up to there it is filled, and what follows is not touched. */
	for (int what = 0; what < FILLED; what++) {
		if (what == EXPORT)
			continue;
		memset(&w, 0xee, sizeof(w));
		w.size = most;
		assert_ok(fill(what, pool, handles, p, &w));
		assert_int_equal(w.size, most);
		assert_int_equal(w.bytes[most - 1], 0);
		assert_int_equal(w.bytes[most], 0xee);
		if (what == ALLOC)
			assert_ok(binpool_free(pool, w.buf.ptr));
		if (what == SUB)
			assert_ok(binpool_buffer_put(pool, &w.buf));
		if (what == OPS)
			w.ops.release(w.ops.ctx);
		if (what == HANDLE)
			assert_ok(binpool_handle_free(handles, &w.buf));
	}
	/* Those of the caller's own are read only. */
	memset(&w, 0, sizeof(w));
	w.size = most + 1;
	assert_int_equal(binpool_stats_push_alloc(&w.stats, 1, 1), -E2BIG);
	assert_int_equal(w.stats.allocs, 0);
	assert_true(binpool_stats_reuse_factor(&w.stats) < 0);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
	assert_ok(binpool_destroy(handles));
}

/* Of what is read more than the struct is looked at up to there only. */
static void wild_inputs(void **state)
{
	struct binpool_buf buf = {.size = sizeof(buf)};
	union wild w = {.bytes = {0}};
	struct binpool_import *import;
	struct binpool *pool;
	uint64_t id;
	void *p;

	(void)state;
	w.size = 4097;
	assert_int_equal(binpool_create(&pool, (void *)&w), -E2BIG);
	assert_null(pool);
	pool = thp_pool(16 * MIB);
	p = binpool_alloc(pool, 1000);
	assert_int_equal(binpool_alloc_ex(pool, (void *)&w, &buf), -E2BIG);
	assert_int_equal(binpool_buffer_get(pool, &w.buf), -E2BIG);
	assert_int_equal(binpool_buffer_put(pool, &w.buf), -E2BIG);
	assert_int_equal(binpool_free_after(pool, p, (void *)&w, 1), -E2BIG);
	assert_int_equal(binpool_add_registrar(pool, (void *)&w, &id), -E2BIG);
	assert_int_equal(binpool_import(&import, &w.share), -E2BIG);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

static void alloc_opts(void **state)
{
	struct binpool *pool = thp_pool(16 * MIB);
	LONGER(struct binpool_alloc_opts) o = {.known = {.size = sizeof(o), .bytes = 100}};
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool_stats before, after;

	(void)state;
	assert_ok(binpool_alloc_ex(pool, &o.known, &buf));
	assert_ok(binpool_free(pool, buf.ptr));
	before = stats_of(pool);
	o.tail[3] = 1;
	assert_int_equal(binpool_alloc_ex(pool, &o.known, &buf), -E2BIG);
	o.tail[3] = 0;
	o.known.flags = 1;
	assert_int_equal(binpool_alloc_ex(pool, &o.known, &buf), -EINVAL);
	o.known.flags = BINPOOL_BUF_ZEROED | 1u << 31;
	assert_int_equal(binpool_alloc_ex(pool, &o.known, &buf), -EINVAL);
	assert_error_names("ZEROED (0x10000), WAIT (0x20000)");
	o.known.flags = 0;
	o.known.wait_ms = 1;
	assert_int_equal(binpool_alloc_ex(pool, &o.known, &buf), -EINVAL);
	assert_error_names("without the flag WAIT");
	o.known.wait_ms = 0;
	assert_int_equal(binpool_alloc_ex(pool, NULL, &buf), -EINVAL);
	assert_int_equal(binpool_alloc_ex(pool, &o.known, NULL), -EINVAL);
	assert_int_equal(binpool_alloc_ex(NULL, &o.known, &buf), -EINVAL);
	buf.size = 0;
	assert_int_equal(binpool_alloc_ex(pool, &o.known, &buf), -EINVAL);
	after = stats_of(pool);
	assert_memory_equal(&before, &after, sizeof(before));
	buf.size = sizeof(buf);
	o.known.alignment = 48;
	assert_int_equal(binpool_alloc_ex(pool, &o.known, &buf), -EINVAL);
	assert_ok(binpool_destroy(pool));
}

static void create_fails(int err, const char *word, struct binpool_options o)
{
	struct binpool *pool;

	assert_int_equal(binpool_create(&pool, &o), err);
	assert_null(pool);
	assert_error_names(word);
}

static void bad_options(void **state)
{
	const struct binpool_options good = BINPOOL_OPTIONS_INIT;
	struct counter c = COUNTER_INIT;
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops), .ctx = &c, .alloc = counter_alloc, .free = counter_free};
	struct binpool_options o;

	(void)state;
#define BAD(err, word, ...)                                                                        \
	do {                                                                                       \
		o = good;                                                                          \
		__VA_ARGS__;                                                                       \
		create_fails(err, word, o);                                                        \
	} while (0)
	BAD(-EINVAL, "HOST (0) or HANDLE (1)", o.kind = 2);
	BAD(-EINVAL, "or ALLOCATOR (4)", o.provider = 5);
	BAD(-EINVAL, "TIGHT (0) or HYSOP (1)", o.classes = 2);
	BAD(-EINVAL, "0x80000000 means nothing", o.flags = 1u << 31 | BINPOOL_POOL_LEAKS);
	BAD(-EINVAL, "DEBUG (0x20)", o.flags = 1u << 31);
	BAD(-EINVAL, "mantissa_bits", o.mantissa_bits = 17);
	BAD(-EINVAL, "granule", o.granule = 100);
	BAD(-EINVAL, "cache line", o.granule = 32);
	BAD(-EINVAL, "node", o.node = -2);
	BAD(-EINVAL, "no such node", o.node = 1000);
	BAD(-EINVAL, "no such node", o.node = INT32_MAX);
	BAD(-EINVAL, "STRICT_NODE", o.flags = BINPOOL_POOL_STRICT_NODE);
	BAD(-EINVAL, "not ALLOCATOR", o.allocator = &ops);
	BAD(-EINVAL, "NULL", o.provider = BINPOOL_PROVIDER_ALLOCATOR);
	BAD(-EINVAL, "no node", o.provider = BINPOOL_PROVIDER_ALLOCATOR, o.allocator = &ops,
	    o.node = 0);
	ops.free = NULL;
	BAD(-EINVAL, "alloc and free", o.provider = BINPOOL_PROVIDER_ALLOCATOR, o.allocator = &ops);
	ops.size = 4;
	BAD(-EINVAL, "size", o.provider = BINPOOL_PROVIDER_ALLOCATOR, o.allocator = &ops);
#undef BAD
}

static void null_pool(void **state)
{
	struct binpool_stats s = {.size = sizeof(s)};
	void *p = NULL;

	(void)state;
	assert_null(binpool_alloc(NULL, 1));
	assert_int_equal(errno, EINVAL);
	assert_null(binpool_alloc_aligned(NULL, 1, 64));
	assert_int_equal(errno, EINVAL);
	assert_int_equal(binpool_free(NULL, &s), -EINVAL);
	assert_int_equal(binpool_free(NULL, NULL), -EINVAL);
	assert_int_equal(binpool_free_sized(NULL, &s, 1), -EINVAL);
	assert_int_equal(binpool_alloc_bulk(NULL, 1, 1, &p), -EINVAL);
	assert_int_equal(binpool_free_bulk(NULL, 1, &p), -EINVAL);
	assert_int_equal(binpool_reserve(NULL, 1), -EINVAL);
	assert_int_equal(binpool_free_held(NULL), -EINVAL);
	assert_int_equal(binpool_stop_holding(NULL), -EINVAL);
	assert_int_equal(binpool_resume_holding(NULL), -EINVAL);
	assert_int_equal(binpool_pool_bin_number(NULL, 1), -EINVAL);
	assert_int_equal(binpool_pool_alloc_size(NULL, 1), -EINVAL);
	assert_int_equal(binpool_held_blocks(NULL), -EINVAL);
	assert_int_equal(binpool_may_alloc(NULL, 1), -EINVAL);
	assert_int_equal(binpool_max_bytes(NULL), -EINVAL);
	assert_int_equal(binpool_get_stats(NULL, &s), -EINVAL);
	assert_int_equal(binpool_report(NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(binpool_remove_registrar(NULL, 1), -EINVAL);
	assert_int_equal(binpool_destroy(NULL), -EINVAL);
	assert_int_equal(binpool_destroy_wait(NULL, 1), -EINVAL);
	assert_string_equal(binpool_provider_reason(NULL), "");
	assert_null(binpool_provider_name(99));
	assert_string_equal(binpool_provider_name(BINPOOL_PROVIDER_THP), "thp");
	binpool_set_last_error(NULL);
	assert_string_equal(binpool_last_error(), "");
	binpool_set_last_error("mine");
	assert_string_equal(binpool_last_error(), "mine");
}

static void environment(void **state)
{
	static const struct {
		const char *opts, *said;
	} bad[] = {
		{"provider=best", "'best' is no value of provider, which is auto, device, hugetlb"},
		{"colour=red", "no option 'colour'; there are provider, node, "},
		{"colour", "leaks, debug"},
		{"max_bytes=lots", "max_bytes, which is bytes, or with K, M, G or T"},
		{"max_bytes=1X", "'1X'"},
		{"max_bytes=-1", "'-1'"},
		{"max_bytes=99999999T", "below 2^64"},
		{"max_bytes=1MB", "'1MB'"},
		{"max_bytes", "'' is no value of max_bytes"},
		{"classes=loose", "tight or hysop"},
		{"cache_bytes=none", "auto, or bytes"},
		{"extent_idle_ms=4G", "below 2^32"},
		{"verbose=3", "0 or 1"},
		{"node=here", "-1 for any"},
		{"provider=allocator", "hugetlb or thp"},
		/* That it was not the program is said. */
		{"thp=1,mantissa_bits=99", "no option 'thp'"},
		{"mantissa_bits=99", "0 to 16; BINPOOL_OPTS is 'mantissa_bits=99'"},
		{"node=9999", "BINPOOL_OPTS is 'node=9999'"},
	};
	struct counter c = COUNTER_INIT;
	struct binpool *pool;

	(void)state;
	setenv("BINPOOL_OPTS",
	       "provider=thp,max_bytes=64M,mantissa_bits=0,classes=hysop,granule=4K", 1);
	assert_ok(binpool_create(&pool, NULL));
	assert_int_equal(stats_of(pool).provider, BINPOOL_PROVIDER_THP);
	assert_int_equal(binpool_max_bytes(pool), 64 * MIB);
	assert_int_equal(binpool_pool_alloc_size(pool, 1), 4096);
	assert_int_equal(binpool_pool_bin_number(pool, 70000), 16);
	assert_ok(binpool_destroy(pool));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		setenv("BINPOOL_OPTS", bad[i].opts, 1);
		if (binpool_create(&pool, NULL) != -EINVAL)
			fail_msg("BINPOOL_OPTS=%s was taken", bad[i].opts);
		assert_error_names(bad[i].said);
	}
	/* Not for pools over an allocator. */
	pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	assert_ok(binpool_destroy(pool));
	unsetenv("BINPOOL_OPTS");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_versions), cmocka_unit_test(outputs_versions),
		cmocka_unit_test(wild_sizes),	    cmocka_unit_test(wild_inputs),
		cmocka_unit_test(alloc_opts),	    cmocka_unit_test(bad_options),
		cmocka_unit_test(null_pool),	    cmocka_unit_test(environment),
	};

	return cmocka_run_group_tests_name("abi", tests, NULL, NULL);
}
