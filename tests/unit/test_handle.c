// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pools of handles over an allocator that counts, and pools over pools of both kinds.
 */
#include "unit.h"

#include <sys/wait.h>
#include <unistd.h>

/* Handles are small numbers; what is out, and what parts of it are. */
struct handles {
	struct counter c;
	uint64_t next, parts, released;
	int refuse; /* parts, with this error */
	struct binpool *pool;
};

static int handle_alloc(void *ctx, uint64_t bytes, uint64_t *handle)
{
	struct handles *h = ctx;
	void *unused;
	int err = counter_alloc(&h->c, bytes, &unused);

	if (!err)
		*handle = ++h->next;
	return err;
}

static void handle_free(void *ctx, uint64_t handle, uint64_t bytes)
{
	struct handles *h = ctx;

	if (!handle || handle > h->next)
		abort();
	counter_free(&h->c, NULL, bytes);
}

static int part_make(void *ctx, uint64_t handle, uint64_t offset, uint64_t bytes, uint64_t *part)
{
	struct handles *h = ctx;

	(void)bytes;
	if (h->refuse)
		return h->refuse;
	__atomic_fetch_add(&h->parts, 1, __ATOMIC_RELAXED);
	*part = handle << 32 | offset;
	return 0;
}

static void part_free(void *ctx, uint64_t part)
{
	struct handles *h = ctx;
	struct binpool_stats s = {.size = sizeof(s)};

	/* Its own pool, but no lock of it is held. */
	if (!part || (h->pool && binpool_get_stats(h->pool, &s) != -EDEADLK))
		abort();
	__atomic_fetch_sub(&h->parts, 1, __ATOMIC_RELAXED);
}

static void release(void *ctx)
{
	struct handles *h = ctx;

	h->released++;
}

static void handles_init(struct handles *h)
{
	*h = (struct handles){.c = COUNTER_INIT};
}

static struct binpool_allocator_ops ops_of(struct handles *h)
{
	return (struct binpool_allocator_ops){
		.size = sizeof(struct binpool_allocator_ops),
		.ctx = h,
		.alloc_handle = handle_alloc,
		.free_handle = handle_free,
		.sub = part_make,
		.sub_free = part_free,
		.release = release,
	};
}

static struct binpool *pool_over(const struct binpool_allocator_ops *ops, uint32_t kind,
				 uint64_t max_bytes)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.name = "handles";
	o.kind = kind;
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = ops;
	o.max_bytes = max_bytes;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

static struct binpool *handle_pool(struct handles *h, uint64_t max_bytes)
{
	struct binpool_allocator_ops ops = ops_of(h);

	h->pool = pool_over(&ops, BINPOOL_KIND_HANDLE, max_bytes);
	return h->pool;
}

static struct binpool_buf take(struct binpool *pool, uint64_t size)
{
	struct binpool_buf buf = {.size = sizeof(buf)};

	assert_ok(binpool_handle_alloc(pool, size, &buf));
	assert_int_equal(buf.bytes, size);
	assert_true(buf.capacity >= size);
	return buf;
}

/* The same bins, counters and order as pools of pointers. */
static void round_trip(void **state)
{
	struct binpool_buf a, b, c = {.size = sizeof(c)};
	struct binpool *pool;
	struct handles h;

	(void)state;
	handles_init(&h);
	pool = handle_pool(&h, 0);
	assert_int_equal(binpool_max_bytes(pool), INT64_MAX);
	a = take(pool, 1000);
	b = take(pool, 1000);
	assert_null(a.ptr);
	assert_int_equal(a.handle, 1);
	assert_int_equal(b.handle, 2);
	assert_int_equal(a.extent_fd, -1);
	assert_int_equal(stats_of(pool).reserved_bytes, h.c.bytes);
	assert_ok(binpool_buf_info(pool, (void *)(uintptr_t)b.handle, &c));
	assert_int_equal(c.handle, b.handle);
	assert_int_equal(c.bytes, 1000);
	assert_ok(binpool_handle_free(pool, &a));
	assert_ok(binpool_handle_free(pool, &b));
	check_pool(pool);
	c = take(pool, 999);
	assert_int_equal(c.handle, b.handle);
	assert_int_equal(stats_of(pool).reuses, 1);
	assert_int_equal(h.c.allocs, 2);
	/* By its handle alone. */
	c = (struct binpool_buf){.size = sizeof(c), .handle = c.handle};
	assert_ok(binpool_handle_free(pool, &c));
	assert_ok(binpool_reserve(pool, 5000));
	assert_int_equal(binpool_held_blocks(pool), 3);
	assert_true(binpool_trim(pool, 0, 0) > 7000);
	assert_int_equal(h.c.bytes, 0);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(h.released, 1);
}

static void misuse(void **state)
{
	struct binpool_buf a, wrong;
	struct binpool_stats before, after;
	struct binpool *pool;
	struct handles h;

	(void)state;
	handles_init(&h);
	pool = handle_pool(&h, 0);
	a = take(pool, 1000);
	before = stats_of(pool);
	wrong = a;
	wrong.bytes = 999;
	assert_int_equal(binpool_handle_free(pool, &wrong), -EINVAL);
	assert_error_names("1000");
	wrong = a;
	wrong.handle = 77;
	assert_int_equal(binpool_handle_free(pool, &wrong), -EINVAL);
	wrong.handle = 0;
	assert_int_equal(binpool_handle_free(pool, &wrong), -EINVAL);
	assert_int_equal(binpool_handle_free(pool, NULL), -EINVAL);
	assert_int_equal(binpool_handle_free(NULL, &a), -EINVAL);
	assert_int_equal(binpool_handle_alloc(NULL, 1, &a), -EINVAL);
	assert_int_equal(binpool_handle_alloc(pool, 1, NULL), -EINVAL);
	wrong.size = 0;
	assert_int_equal(binpool_handle_alloc(pool, 1, &wrong), -EINVAL);
	after = stats_of(pool);
	assert_memory_equal(&before, &after, sizeof(before));
	assert_int_equal(binpool_destroy(pool), -EBUSY);
	assert_ok(binpool_handle_free(pool, &a));
	assert_int_equal(binpool_handle_free(pool, &a), -EINVAL);
	assert_error_names("free already");
	assert_ok(binpool_destroy(pool));
}

/* What is for pointers is refused on handles, and the other way round. */
static void wrong_kind(void **state)
{
	struct binpool_registrar_ops r = {.size = sizeof(r)};
	struct binpool_share share = {.size = sizeof(share)};
	struct binpool_alloc_opts o = {.size = sizeof(o), .bytes = 100};
	struct binpool *pool, *host = real_pool(16 * MIB);
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool_stats before, after;
	struct handles h;
	void *p, *q = NULL;
	uint64_t id;

	(void)state;
	handles_init(&h);
	pool = handle_pool(&h, 0);
	before = stats_of(pool);
	assert_null(binpool_alloc(pool, 100));
	assert_int_equal(errno, EINVAL);
	assert_error_names("handles");
	assert_null(binpool_alloc_aligned(pool, 100, 64));
	assert_int_equal(errno, EINVAL);
	assert_int_equal(binpool_alloc_bulk(pool, 100, 1, &q), -EINVAL);
	assert_int_equal(binpool_free(pool, &h), -EINVAL);
	assert_int_equal(binpool_free_sized(pool, (void *)1, 1), -EINVAL);
	assert_int_equal(binpool_add_registrar(pool, &r, &id), -EINVAL);
	assert_int_equal(binpool_export(pool, (void *)1, &share), -EINVAL);
	assert_error_names("handles");
	o.flags = BINPOOL_BUF_ZEROED;
	assert_int_equal(binpool_alloc_ex(pool, &o, &buf), -EOPNOTSUPP);
	after = stats_of(pool);
	assert_memory_equal(&before, &after, sizeof(before));
	o.flags = 0;
	o.alignment = 64;
	assert_int_equal(binpool_alloc_ex(pool, &o, &buf), -EINVAL);
	assert_error_names("alignment");

	p = binpool_alloc(host, 100);
	assert_int_equal(binpool_handle_alloc(host, 100, &buf), -EINVAL);
	buf.ptr = p;
	assert_int_equal(binpool_handle_free(host, &buf), -EINVAL);
	assert_error_names("pointers");
	assert_ok(binpool_free(host, p));
	assert_ok(binpool_destroy(host));
	assert_ok(binpool_destroy(pool));
}

static void size_zero(void **state)
{
	struct binpool_buf a, b;
	struct binpool *pool;
	struct handles h;

	(void)state;
	handles_init(&h);
	pool = handle_pool(&h, 0);
	a = take(pool, 0);
	b = take(pool, 0);
	assert_int_equal(a.handle, 0);
	assert_ptr_not_equal(a.ptr, b.ptr);
	assert_int_equal(h.c.allocs, 0);
	check_pool(pool);
	assert_ok(binpool_handle_free(pool, &a));
	assert_int_equal(binpool_handle_free(pool, &a), -EINVAL);
	assert_ok(binpool_handle_free(pool, &b));
	assert_ok(binpool_destroy(pool));
}

/* Limits and the order of reclaim are those of pools of pointers. */
static void limits(void **state)
{
	struct binpool_buf buf[4], more = {.size = sizeof(more)};
	struct binpool *pool;
	struct handles h;

	(void)state;
	handles_init(&h);
	pool = handle_pool(&h, 64 * MIB);
	for (int i = 0; i < 4; i++)
		buf[i] = take(pool, MIB << i);
	for (int i = 0; i < 4; i++)
		assert_ok(binpool_handle_free(pool, &buf[i]));
	h.c.max_bytes = 15 * MIB;
	more = take(pool, 10 * MIB);
	assert_int_equal(stats_of(pool).frees_held, 2); /* 8 and 4 */
	assert_int_equal(stats_of(pool).held_bytes, 3 * MIB);
	h.c.max_bytes = UINT64_MAX;
	assert_int_equal(binpool_handle_alloc(pool, 60 * MIB, &buf[0]), -ENOSPC);
	assert_int_equal(binpool_handle_alloc(pool, 65 * MIB, &buf[0]), -EFBIG);
	h.c.fail_with = -EIO;
	assert_int_equal(binpool_handle_alloc(pool, 20 * MIB, &buf[0]), -EIO);
	assert_ok(binpool_handle_free(pool, &more));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* References, and parts that are handles of their own. */
static void references(void **state)
{
	struct binpool_buf buf, a = {.size = sizeof(a)}, b = {.size = sizeof(b)};
	struct binpool *pool;
	struct handles h;

	(void)state;
	handles_init(&h);
	pool = handle_pool(&h, 0);
	buf = take(pool, 10000);
	assert_ok(binpool_buffer_get(pool, &buf));
	assert_ok(binpool_buffer_sub(pool, &buf, 4096, 4096, &a));
	assert_int_equal(a.handle, buf.handle << 32 | 4096);
	assert_int_equal(a.parent, buf.handle);
	assert_null(a.ptr);
	assert_ok(binpool_buffer_sub(pool, &a, 1024, 1024, &b));
	assert_int_equal(b.handle, buf.handle << 32 | 5120);
	assert_int_equal(h.parts, 2);
	check_pool(pool);
	assert_int_equal(binpool_handle_free(pool, &a), -EINVAL);
	assert_error_names("binpool_buffer_put");

	assert_ok(binpool_handle_free(pool, &buf));
	assert_int_equal(binpool_handle_free(pool, &buf), -EINVAL);
	assert_ok(binpool_buffer_put(pool, &buf));
	assert_ok(binpool_buffer_put(pool, &a));
	assert_int_equal(binpool_buffer_put(pool, &a), -EINVAL);
	assert_int_equal(h.parts, 1);
	assert_int_equal(stats_of(pool).active_blocks, 1);

	/* A part that cannot be made leaves no trace. */
	h.refuse = -EIO;
	assert_int_equal(binpool_buffer_sub(pool, &b, 0, 10, &a), -EIO);
	h.refuse = 5;
	assert_int_equal(binpool_buffer_sub(pool, &b, 0, 10, &a), -EIO);
	check_pool(pool);
	assert_ok(binpool_buffer_put(pool, &b));
	assert_int_equal(h.parts, 0);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_ok(binpool_destroy(pool));
}

/* A freed handle rests until what is at work on it is done. */
static void fences(void **state)
{
	struct binpool_fence f = {.size = sizeof(f), .kind = BINPOOL_FENCE_COUNTER, .target = 3};
	uint64_t done = 0;
	struct binpool_buf a, b;
	struct binpool *pool;
	struct handles h;

	(void)state;
	handles_init(&h);
	pool = handle_pool(&h, 0);
	a = take(pool, 1000);
	f.counter = &done;
	assert_ok(binpool_free_after(pool, (void *)(uintptr_t)a.handle, &f, 1));
	assert_int_equal(binpool_handle_free(pool, &a), -EINVAL);
	b = take(pool, 1000);
	assert_int_not_equal(a.handle, b.handle);
	done = 3;
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(take(pool, 1000).handle, a.handle);
	assert_ok(binpool_handle_free(pool, &a));
	/* After none: at once. */
	assert_ok(binpool_free_after(pool, (void *)(uintptr_t)b.handle, NULL, 0));
	assert_int_equal(binpool_handle_free(pool, &b), -EINVAL);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

static void no_parts(void **state)
{
	struct binpool_buf buf, a = {.size = sizeof(a)};
	struct binpool_allocator_ops ops;
	struct binpool *pool;
	struct handles h;

	(void)state;
	handles_init(&h);
	ops = ops_of(&h);
	/* As a program has it that knows of nothing further. */
	ops.size = offsetof(struct binpool_allocator_ops, sub);
	pool = pool_over(&ops, BINPOOL_KIND_HANDLE, 0);
	buf = take(pool, 100);
	assert_int_equal(binpool_buffer_sub(pool, &buf, 0, 10, &a), -EOPNOTSUPP);
	check_pool(pool);
	assert_ok(binpool_buffer_put(pool, &buf));
	assert_ok(binpool_destroy(pool));
	assert_int_equal(h.released, 0);
	assert_int_equal(h.c.bytes, 0);
}

static void tags(void **state)
{
	struct binpool_alloc_opts o = {.size = sizeof(o), .bytes = 100, .tag = "weights"};
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool *pool;
	char text[2000];
	struct handles h;

	(void)state;
	handles_init(&h);
	pool = handle_pool(&h, 0);
	assert_ok(binpool_alloc_ex(pool, &o, &buf));
	assert_true(binpool_leaks(pool, BINPOOL_REPORT_TABLE, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "0x1: 100 bytes, weights"));
	assert_ok(binpool_handle_free(pool, &buf));
	assert_ok(binpool_destroy(pool));
}

static void bad_options(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool_allocator_ops ops;
	struct binpool *pool;
	struct handles h;

	(void)state;
	handles_init(&h);
	ops = ops_of(&h);
	o.kind = BINPOOL_KIND_HANDLE;
	assert_int_equal(binpool_create(&pool, &o), -EINVAL);
	assert_error_names("ALLOCATOR");
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	ops.free_handle = NULL;
	assert_int_equal(binpool_create(&pool, &o), -EINVAL);
	assert_error_names("free_handle");
	o.kind = BINPOOL_KIND_HOST;
	assert_int_equal(binpool_create(&pool, &o), -EINVAL);
	/* Never made, so the allocator is the caller's still. */
	assert_int_equal(h.released, 0);
}

/* A child frees nothing of its parent's. */
static void in_a_child(void **state)
{
	struct binpool_buf buf;
	struct binpool *pool;
	struct handles h;
	int status;
	pid_t pid;

	(void)state;
	handles_init(&h);
	pool = handle_pool(&h, 0);
	buf = take(pool, 100);
	fflush(NULL);
	pid = fork();
	if (!pid) {
		struct binpool_buf more = {.size = sizeof(more)};

		if (binpool_handle_free(pool, &buf) ||
		    binpool_handle_alloc(pool, 1, &more) != -EOWNERDEAD || binpool_destroy(pool) ||
		    h.c.frees || h.released)
			_exit(1);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_ok(binpool_handle_free(pool, &buf));
	assert_ok(binpool_destroy(pool));
}

/* Threads: buffers, references and parts at once; the allocator is called one at a time. */
static void *use(void *arg)
{
	struct binpool *pool = arg;
	uint64_t n = rounds(5000);

	for (uint64_t i = 0; i < n; i++) {
		struct binpool_buf buf = {.size = sizeof(buf)}, part = {.size = sizeof(part)};

		if (binpool_handle_alloc(pool, 1000 + i % 7 * 1000, &buf) ||
		    binpool_buffer_sub(pool, &buf, i % 900, 50, &part) ||
		    binpool_handle_free(pool, &buf) || binpool_buffer_put(pool, &part))
			return (void *)binpool_last_error();
		if (i % 100 == 0 && binpool_trim(pool, 0, 0) < 0)
			return "trim failed";
	}
	return NULL;
}

static void threads(void **state)
{
	pthread_t thread[4];
	struct binpool *pool;
	struct handles h;
	void *wrong;

	(void)state;
	handles_init(&h);
	pool = handle_pool(&h, 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, use, pool), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(thread[i], &wrong), 0);
		assert_null(wrong);
	}
	check_pool(pool);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_int_equal(h.parts, 0);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(h.c.bytes, 0);
}

/* ---- Pools over pools ------------------------------------------------------ */

static void over_handles(void **state)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops)};
	struct binpool_buf buf, part = {.size = sizeof(part)};
	struct binpool *inner, *outer;
	struct handles h;

	(void)state;
	handles_init(&h);
	inner = handle_pool(&h, 0);
	h.pool = NULL;
	assert_ok(binpool_pool_allocator(inner, &ops));
	assert_int_equal(binpool_destroy(inner), -EBUSY);
	assert_error_names("1 other pools");
	outer = pool_over(&ops, BINPOOL_KIND_HANDLE, 0);
	buf = take(outer, 1000);
	assert_int_equal(buf.handle, 1);
	assert_ok(binpool_buffer_sub(outer, &buf, 10, 10, &part));
	assert_int_equal(h.parts, 1);
	assert_ok(binpool_buffer_put(outer, &part));
	assert_int_equal(h.parts, 0);
	assert_ok(binpool_handle_free(outer, &buf));
	assert_int_equal(stats_of(inner).active_blocks, 1);
	assert_ok(binpool_destroy(outer));
	assert_int_equal(stats_of(inner).active_blocks, 0);
	assert_ok(binpool_destroy(inner));
	assert_int_equal(h.released, 1);
}

static void over_host(void **state)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops)};
	struct binpool *inner = real_pool(32 * MIB), *outer;
	struct rng r = rng_make();
	void *p[64] = {0};

	(void)state;
	assert_ok(binpool_pool_allocator(inner, &ops));
	outer = pool_over(&ops, BINPOOL_KIND_HOST, 20 * MIB);
	for (uint64_t i = 0; i < rounds(5000); i++) {
		uint64_t j = rng_below(&r, 64);

		if (p[j]) {
			assert_ok(binpool_free(outer, p[j]));
			p[j] = NULL;
		} else {
			p[j] = binpool_alloc(outer, 1 + rng_size(&r, 17));
			assert_non_null(p[j]);
			memset(p[j], 1, 1);
		}
	}
	check_pool(outer);
	check_pool(inner);
	assert_int_equal(stats_of(inner).active_blocks, stats_of(outer).extents);
	for (int i = 0; i < 64; i++)
		assert_ok(binpool_free(outer, p[i]));
	assert_ok(binpool_destroy(outer));
	assert_ok(binpool_destroy(inner));
}

static void over_bad_arguments(void **state)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops)};
	struct binpool *pool = real_pool(32 * MIB);

	(void)state;
	assert_int_equal(binpool_pool_allocator(NULL, &ops), -EINVAL);
	assert_int_equal(binpool_pool_allocator(pool, NULL), -EINVAL);
	ops.size = 8;
	assert_int_equal(binpool_pool_allocator(pool, &ops), -EINVAL);
	ops.size = sizeof(ops);
	assert_ok(binpool_pool_allocator(pool, &ops));
	/* Not used after all. */
	ops.release(ops.ctx);
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip),
		cmocka_unit_test(misuse),
		cmocka_unit_test(wrong_kind),
		cmocka_unit_test(size_zero),
		cmocka_unit_test(limits),
		cmocka_unit_test(references),
		cmocka_unit_test(fences),
		cmocka_unit_test(no_parts),
		cmocka_unit_test(tags),
		cmocka_unit_test(bad_options),
		cmocka_unit_test(in_a_child),
		cmocka_unit_test(threads),
		cmocka_unit_test(over_handles),
		cmocka_unit_test(over_host),
		cmocka_unit_test(over_bad_arguments),
	};

	return cmocka_run_group_tests_name("handle", tests, NULL, NULL);
}
