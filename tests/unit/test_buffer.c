// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * References, sub-buffers, tags and the leak report, on extents and over an allocator.
 */
#include "unit.h"

#include <sys/wait.h>
#include <unistd.h>

static struct counter counter;

/* One pool over an allocator, one of extents. */
static struct binpool *pool_number(int i)
{
	counter = (struct counter)COUNTER_INIT;
	return i ? real_pool(32 * MIB) : counter_pool(&counter, BINPOOL_CLASSES_TIGHT, 0);
}

static struct binpool_buf of(void *ptr)
{
	return (struct binpool_buf){.size = sizeof(struct binpool_buf), .ptr = ptr};
}

/* A freed buffer with references is nobody else's, and returns with the last. */
static void references_on(struct binpool *pool, size_t size)
{
	struct binpool_buf buf = of(binpool_alloc(pool, size)), info = of(NULL);
	void *other;

	assert_ok(binpool_buffer_get(pool, &buf));
	assert_ok(binpool_buffer_get(pool, &buf));
	check_pool(pool);
	assert_ok(binpool_free_sized(pool, buf.ptr, size));
	assert_int_equal(stats_of(pool).active_blocks, 1);
	assert_int_equal(stats_of(pool).active_bytes, size);
	assert_int_equal(binpool_held_blocks(pool), 0);
	assert_int_equal(binpool_free(pool, buf.ptr), -EINVAL);
	assert_error_names("2 references");
	assert_ok(binpool_buf_info(pool, buf.ptr, &info));
	assert_int_equal(info.bytes, size);
	assert_int_equal(binpool_destroy(pool), -EBUSY);

	other = binpool_alloc(pool, size);
	assert_ptr_not_equal(other, buf.ptr);
	assert_ok(binpool_free(pool, other));

	assert_ok(binpool_buffer_put(pool, &buf));
	assert_int_equal(stats_of(pool).active_blocks, 1);
	assert_ok(binpool_buffer_get(pool, &buf));
	assert_ok(binpool_buffer_put(pool, &buf));
	check_pool(pool);
	assert_ok(binpool_buffer_put(pool, &buf));
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_int_equal(binpool_buffer_put(pool, &buf), -EINVAL);
	assert_int_equal(binpool_buffer_get(pool, &buf), -EINVAL);
	assert_error_names("no live buffer");
	check_pool(pool);
	/* The most recently returned is handed out first. */
	if (size) {
		assert_ptr_equal(binpool_alloc(pool, size), buf.ptr);
		assert_ok(binpool_free(pool, buf.ptr));
	}
}

static void references(void **state)
{
	static const size_t sizes[] = {0, 100, 5000, 3000000};

	(void)state;
	for (int i = 0; i < 2; i++) {
		for (size_t j = 0; j < sizeof(sizes) / sizeof(sizes[0]); j++) {
			struct binpool *pool = pool_number(i);

			references_on(pool, sizes[j]);
			assert_ok(binpool_stop_holding(pool));
			references_on(pool, 0);
			assert_ok(binpool_destroy(pool));
			assert_int_equal(counter.bytes, 0);
		}
	}
}

/* A put may give up the allocation's own reference too: the last one frees. */
static void puts_only(void **state)
{
	struct binpool *pool = real_pool(32 * MIB);
	struct binpool_buf buf = of(binpool_alloc(pool, 1000));

	(void)state;
	assert_ok(binpool_buffer_put(pool, &buf));
	assert_int_equal(binpool_free(pool, buf.ptr), -EINVAL);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_ptr_equal(binpool_alloc(pool, 1000), buf.ptr);
	assert_ok(binpool_buffer_get(pool, &buf));
	assert_ok(binpool_buffer_put(pool, &buf));
	assert_int_equal(stats_of(pool).active_blocks, 1);
	assert_ok(binpool_free(pool, buf.ptr));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

static void parts_on(struct binpool *pool)
{
	struct binpool_buf buf = of(binpool_alloc(pool, 10000)), a = of(NULL), b = of(NULL),
			   c = of(NULL), wrong;
	char *p = buf.ptr;

	assert_ok(binpool_buffer_sub(pool, &buf, 0, 10000, &a));
	assert_ptr_equal(a.ptr, p);
	assert_int_equal(a.bytes, 10000);
	assert_int_equal(a.parent, (uintptr_t)p);
	assert_ok(binpool_buffer_sub(pool, &buf, 4000, 3000, &b));
	assert_ptr_equal(b.ptr, p + 4000);
	assert_int_equal(b.capacity, 3000);
	/* A part of a part keeps the whole. */
	assert_ok(binpool_buffer_sub(pool, &b, 1000, 2000, &c));
	assert_ptr_equal(c.ptr, p + 5000);
	assert_int_equal(c.parent, (uintptr_t)p);
	check_pool(pool);

	wrong = of(NULL);
	assert_int_equal(binpool_buffer_sub(pool, &buf, 0, 0, &wrong), -EINVAL);
	assert_int_equal(binpool_buffer_sub(pool, &buf, 0, 10001, &wrong), -EINVAL);
	assert_int_equal(binpool_buffer_sub(pool, &buf, 10000, 1, &wrong), -EINVAL);
	assert_int_equal(binpool_buffer_sub(pool, &buf, UINT64_MAX, 2, &wrong), -EINVAL);
	assert_int_equal(binpool_buffer_sub(pool, &b, 1000, 2001, &wrong), -EINVAL);
	assert_error_names("2001 bytes at 1000 of a buffer of 3000");
	wrong = b;
	wrong.bytes--;
	assert_int_equal(binpool_buffer_put(pool, &wrong), -EINVAL);
	assert_error_names("no sub-buffer");
	/* A part is no start of a buffer. */
	assert_int_equal(binpool_free(pool, b.ptr), -EINVAL);

	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_buffer_put(pool, &a));
	assert_ok(binpool_buffer_get(pool, &b));
	assert_ok(binpool_buffer_put(pool, &b));
	assert_ok(binpool_buffer_put(pool, &b));
	assert_int_equal(binpool_buffer_put(pool, &b), -EINVAL);
	assert_int_equal(stats_of(pool).active_blocks, 1);
	assert_int_equal(stats_of(pool).active_bytes, 10000);
	check_pool(pool);
	assert_ok(binpool_buffer_put(pool, &c));
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_int_equal(binpool_buffer_put(pool, &c), -EINVAL);
	check_pool(pool);
}

static void parts(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct binpool *pool = pool_number(i);

		parts_on(pool);
		assert_ok(binpool_destroy(pool));
	}
}

/* What keeps a buffer for a part is that part's to give up. */
static void parts_keep(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct binpool *pool = pool_number(i);
		struct binpool_buf buf = of(binpool_alloc(pool, 1000)), part = of(NULL);

		assert_ok(binpool_buffer_get(pool, &buf));
		assert_ok(binpool_buffer_sub(pool, &buf, 10, 20, &part));
		assert_ok(binpool_buffer_put(pool, &buf));
		assert_ok(binpool_buffer_put(pool, &buf));
		assert_int_equal(binpool_buffer_put(pool, &buf), -EINVAL);
		assert_error_names("parts");
		assert_int_equal(binpool_free(pool, buf.ptr), -EINVAL);
		assert_int_equal(stats_of(pool).active_blocks, 1);
		check_pool(pool);
		assert_ok(binpool_buffer_put(pool, &part));
		assert_int_equal(stats_of(pool).active_blocks, 0);
		check_pool(pool);
		assert_ok(binpool_destroy(pool));
	}
}

static void bad_arguments(void **state)
{
	struct binpool *pool = real_pool(32 * MIB), *other = real_pool(32 * MIB);
	struct binpool_buf buf = of(binpool_alloc(pool, 100)), out = of(NULL);
	struct binpool_stats before = stats_of(pool), after;
	struct {
		struct binpool_buf known;
		char tail[8];
	} newer = {.known = buf};

	(void)state;
	assert_int_equal(binpool_buffer_get(NULL, &buf), -EINVAL);
	assert_int_equal(binpool_buffer_put(NULL, &buf), -EINVAL);
	assert_int_equal(binpool_buffer_sub(NULL, &buf, 0, 1, &out), -EINVAL);
	assert_int_equal(binpool_buffer_get(pool, NULL), -EINVAL);
	assert_int_equal(binpool_buffer_put(pool, NULL), -EINVAL);
	assert_int_equal(binpool_buffer_sub(pool, NULL, 0, 1, &out), -EINVAL);
	assert_int_equal(binpool_buffer_sub(pool, &buf, 0, 1, NULL), -EINVAL);
	assert_int_equal(binpool_buffer_get(other, &buf), -EINVAL);
	assert_int_equal(binpool_buffer_put(other, &buf), -EINVAL);
	assert_int_equal(binpool_leaks(NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(binpool_leaks(pool, 2, NULL, 0), -EINVAL);
	assert_error_names("TABLE (0) or KEYS (1)");
	assert_int_equal(binpool_leaks(pool, 0, NULL, 1), -EINVAL);
	out.size = 0;
	assert_int_equal(binpool_buffer_sub(pool, &buf, 0, 1, &out), -EINVAL);
	buf.size = 4;
	assert_int_equal(binpool_buffer_get(pool, &buf), -EINVAL);
	newer.known.size = sizeof(newer);
	newer.tail[7] = 1;
	assert_int_equal(binpool_buffer_put(pool, &newer.known), -E2BIG);
	after = stats_of(pool);
	assert_memory_equal(&before, &after, sizeof(before));
	/* As an older program has it: no parent. */
	buf.size = offsetof(struct binpool_buf, parent);
	assert_ok(binpool_buffer_put(pool, &buf));
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_ok(binpool_destroy(pool));
	assert_ok(binpool_destroy(other));
}

/* A child's references are nobody's. */
static void in_a_child(void **state)
{
	struct binpool *pool = real_pool(32 * MIB);
	struct binpool_buf buf = of(binpool_alloc(pool, 1000)), part = of(NULL);
	int status;
	pid_t pid;

	(void)state;
	assert_ok(binpool_buffer_sub(pool, &buf, 10, 20, &part));
	fflush(NULL);
	pid = fork();
	if (!pid) {
		if (binpool_buffer_get(pool, &buf) != -EOWNERDEAD ||
		    binpool_buffer_put(pool, &part) || binpool_free(pool, buf.ptr) ||
		    binpool_destroy(pool))
			_exit(1);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_ok(binpool_buffer_put(pool, &part));
	assert_ok(binpool_free(pool, buf.ptr));
	assert_ok(binpool_destroy(pool));
}

/* Threads that pass one buffer on by references; it goes back once. */
static void *pass_on(void *arg)
{
	struct binpool_buf buf = *(struct binpool_buf *)arg, part = of(NULL);
	struct binpool *pool = (struct binpool *)(uintptr_t)buf.extent_offset;
	uint64_t n = rounds(20000);

	buf.extent_offset = 0;
	for (uint64_t i = 0; i < n; i++) {
		void *own = binpool_alloc(pool, 1000);

		if (!own || binpool_buffer_get(pool, &buf) ||
		    binpool_buffer_sub(pool, &buf, i % 900, 50, &part) || binpool_free(pool, own) ||
		    binpool_buffer_put(pool, &buf) || binpool_buffer_put(pool, &part))
			return (void *)binpool_last_error();
	}
	return binpool_buffer_put(pool, &buf) ? (void *)binpool_last_error() : NULL;
}

static void many_threads(void **state)
{
	struct binpool *pool = real_pool(32 * MIB);
	struct binpool_buf buf = of(binpool_alloc(pool, 1000)), given;
	pthread_t thread[4];
	void *wrong;

	(void)state;
	given = buf;
	given.extent_offset = (uintptr_t)pool;
	for (int i = 0; i < 4; i++) {
		assert_ok(binpool_buffer_get(pool, &buf));
		assert_int_equal(pthread_create(&thread[i], NULL, pass_on, &given), 0);
	}
	assert_ok(binpool_free(pool, buf.ptr));
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(thread[i], &wrong), 0);
		assert_null(wrong);
	}
	check_pool(pool);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_int_equal(binpool_buffer_put(pool, &buf), -EINVAL);
	assert_ok(binpool_destroy(pool));
}

/* ---- Tags and leaks -------------------------------------------------------- */

static void *tagged(struct binpool *pool, uint64_t bytes, const char *tag)
{
	struct binpool_alloc_opts o = {.size = sizeof(o), .bytes = bytes, .tag = tag};
	struct binpool_buf buf = of(NULL);

	assert_ok(binpool_alloc_ex(pool, &o, &buf));
	return buf.ptr;
}

static void leaks_on(struct binpool *pool)
{
	struct binpool_buf buf;
	void *p[6];
	char text[8192], expected[256];
	int len;

	assert_int_equal(binpool_leaks(pool, BINPOOL_REPORT_TABLE, text, sizeof(text)), 0);
	assert_string_equal(text, "");
	/* Nothing to sort; UBSan sees it. */
	assert_true(binpool_leaks(pool, BINPOOL_REPORT_KEYS, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "\nactive_blocks=0\nactive_bytes=0\n"));
	p[0] = tagged(pool, 1000, "loader");
	p[1] = tagged(pool, 5000, "loader");
	p[2] = tagged(pool, 0, "index\n");
	p[3] = binpool_alloc(pool, 70000);
	p[4] = tagged(pool, 300, "gone");
	/* What was freed takes its tag along. */
	assert_ok(binpool_free(pool, p[4]));
	p[5] = binpool_alloc(pool, 300);
	assert_ptr_equal(p[4], p[5]);
	buf = of(p[0]);
	assert_ok(binpool_buffer_get(pool, &buf));
	check_pool(pool);

	len = binpool_leaks(pool, BINPOOL_REPORT_TABLE, NULL, 0);
	assert_int_equal(binpool_leaks(pool, BINPOOL_REPORT_TABLE, text, sizeof(text)), len);
	assert_int_equal(strlen(text), len);
	assert_non_null(strstr(text, "5 buffers in use, 74.51 KiB asked for"));
	assert_non_null(strstr(text, "loader                          2 buffers, 5.86 KiB\n"));
	assert_non_null(strstr(text, "index?                          1 buffer, 0 B\n"));
	assert_non_null(strstr(text, "(no tag)                        2 buffers, 68.65 KiB\n"));
	assert_null(strstr(text, "gone"));
	snprintf(expected, sizeof(expected), "%p: 1000 bytes, loader, 2 references\n", p[0]);
	assert_non_null(strstr(text, expected));
	snprintf(expected, sizeof(expected), "%p: 70000 bytes, (no tag)\n", p[3]);
	assert_non_null(strstr(text, expected));

	assert_true(binpool_leaks(pool, BINPOOL_REPORT_KEYS, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "\nactive_blocks=5\nactive_bytes=76300\n"));
	assert_non_null(strstr(text, "tag.2.name=loader\ntag.2.active_blocks=2\n"
				     "tag.2.active_bytes=6000\n"));
	snprintf(expected, sizeof(expected), ".ptr=%p\n", p[1]);
	assert_non_null(strstr(text, expected));

	assert_ok(binpool_buffer_put(pool, &buf));
	for (int i = 0; i < 6; i++)
		if (i != 4)
			assert_ok(binpool_free(pool, p[i]));
	check_pool(pool);
	assert_int_equal(binpool_leaks(pool, BINPOOL_REPORT_TABLE, text, sizeof(text)), 0);
}

static void leaks(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct binpool *pool = pool_number(i);

		leaks_on(pool);
		assert_ok(binpool_destroy(pool));
	}
}

static void long_tag(void **state)
{
	struct binpool *pool = real_pool(32 * MIB);
	struct binpool_alloc_opts o = {.size = sizeof(o), .bytes = 100};
	struct binpool_buf buf = of(NULL);
	char tag[BINPOOL_TAG_LEN + 1];

	(void)state;
	memset(tag, 'x', sizeof(tag));
	tag[BINPOOL_TAG_LEN] = '\0';
	o.tag = tag;
	assert_int_equal(binpool_alloc_ex(pool, &o, &buf), -EINVAL);
	assert_error_names("tag");
	assert_int_equal(stats_of(pool).active_blocks, 0);
	tag[BINPOOL_TAG_LEN - 1] = '\0';
	assert_ok(binpool_alloc_ex(pool, &o, &buf));
	assert_ok(binpool_free(pool, buf.ptr));
	assert_ok(binpool_destroy(pool));
}

/* More than are listed one by one. */
static void many_leaks(void **state)
{
	struct binpool *pool = real_pool(32 * MIB);
	char text[8192];
	void *p[50];

	(void)state;
	assert_ok(binpool_alloc_bulk(pool, 100, 50, p));
	assert_in_range(binpool_leaks(pool, BINPOOL_REPORT_TABLE, text, sizeof(text)), 1,
			sizeof(text));
	assert_non_null(strstr(text, "and 30 more"));
	assert_ok(binpool_free_bulk(pool, 50, p));
	assert_ok(binpool_destroy(pool));
}

/* What a child with a leaking pool of these flags writes to stderr until it has exited. */
static void child_says(uint32_t flags, bool destroy, char *said, size_t len)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	pid_t pid;
	int fds[2];

	fflush(NULL);
	assert_int_equal(pipe(fds), 0);
	pid = fork();
	if (!pid) {
		struct binpool *pool;

		dup2(fds[1], STDERR_FILENO);
		o.name = "leaky";
		o.provider = BINPOOL_PROVIDER_THP;
		o.flags = flags;
		if (binpool_create(&pool, &o))
			_exit(1);
		tagged(pool, 100, "forgotten");
		if (destroy && binpool_destroy(pool) != -EBUSY)
			_exit(1);
		if (destroy)
			_exit(0);
		exit(0);
	}
	assert_int_equal(child_said(pid, fds, said, len), 0);
}

/* Silent unless asked: at a destroy that is refused, and at the end of the process. */
static void told_when_asked(void **state)
{
	char said[4096];

	(void)state;
	for (int destroy = 0; destroy < 2; destroy++) {
		child_says(0, destroy, said, sizeof(said));
		assert_string_equal(said, "");
		child_says(BINPOOL_POOL_LEAKS, destroy, said, sizeof(said));
		assert_non_null(strstr(said, "pool leaky: 1 buffer in use, 100 B asked for"));
		assert_non_null(strstr(said, "forgotten"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(references), cmocka_unit_test(puts_only),
		cmocka_unit_test(parts),      cmocka_unit_test(bad_arguments),
		cmocka_unit_test(in_a_child), cmocka_unit_test(many_threads),
		cmocka_unit_test(leaks),      cmocka_unit_test(long_tag),
		cmocka_unit_test(many_leaks), cmocka_unit_test(told_when_asked),
		cmocka_unit_test(parts_keep),
	};

	return cmocka_run_group_tests_name("buffer", tests, NULL, NULL);
}
