// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What a pool says of itself: lines of a verbose pool, reports, statistics; and
 * statistics that a program keeps by the same rules.
 */
#include "unit.h"

#include <fcntl.h>
#include <unistd.h>

/* What @work writes to @fd meanwhile. */
static void heard(int fd, void (*work)(void *), void *arg, char *said, size_t len)
{
	char name[] = "/tmp/binpool-report-XXXXXX";
	int file = mkstemp(name), kept;
	ssize_t n;

	assert_true(file >= 0);
	unlink(name);
	fflush(NULL);
	kept = dup(fd);
	dup2(file, fd);
	work(arg);
	fflush(NULL);
	dup2(kept, fd);
	close(kept);
	n = pread(file, said, len - 1, 0);
	assert_true(n >= 0);
	said[n] = '\0';
	close(file);
}

static struct binpool *verbose_pool(struct counter *c)
{
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops), .ctx = c, .alloc = counter_alloc, .free = counter_free};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.name = "loud";
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	o.flags = BINPOOL_POOL_VERBOSE;
	o.max_bytes = 10 * KIB;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

/* Its name is not said twice. */
static void create_nameless(void *arg)
{
	struct binpool *pool;

	(void)arg;
	pool = NULL;
	setenv("BINPOOL_OPTS", "provider=thp,verbose", 1);
	assert_ok(binpool_create(&pool, NULL));
	unsetenv("BINPOOL_OPTS");
	assert_ok(binpool_destroy(pool));
}

static void nameless(void **state)
{
	static const char expected[] = "binpool: created over thp";
	char said[1000];

	(void)state;
	heard(STDERR_FILENO, create_nameless, NULL, said, sizeof(said));
	assert_memory_equal(said, expected, sizeof(expected) - 1);
}

static void lead_a_life(void *arg)
{
	struct binpool *pool = verbose_pool(arg);
	void *p = binpool_alloc(pool, 1000), *q;

	assert_ok(binpool_free(pool, p));
	assert_ptr_equal(binpool_alloc(pool, 1000), p);
	assert_ok(binpool_free(pool, p));
	q = binpool_alloc(pool, 10 * KIB);
	assert_int_equal(binpool_free(pool, p), -EINVAL);
	assert_ok(binpool_free(pool, q));
	assert_null(binpool_alloc(pool, 11 * KIB));
	assert_true(binpool_trim(pool, 0, 0) > 0);
	assert_ok(binpool_stop_holding(pool));
	assert_ok(binpool_resume_holding(pool));
	assert_ok(binpool_free_held(pool));
	assert_ok(binpool_destroy(pool));
}

/* Each operation, with class and what is held of it; nothing of a pool that was not asked. */
static void lines(void **state)
{
	static const char *const expected[] = {
		"binpool: loud: created over allocator\n",
		"binpool: loud: extent 0x100000: 1024 bytes from allocator\n",
		"binpool: loud: alloc 1000: 0x100000, 1024 bytes, bin 159: new, 0 held there\n",
		"binpool: loud: free 0x100000: bin 159: held, 1 held there\n",
		"alloc 1000: 0x100000, 1024 bytes, bin 159: reused, 0 held there\n",
		"binpool: loud: held 0x100000 of bin 159 is given up\n",
		"binpool: loud: extent 0x100000: 1024 bytes go back\n",
		"free of 0x100000, where no buffer of this pool starts\n",
		"binpool: loud: alloc 11264: pool loud: asked for 11 KiB, which never fits",
		"binpool: loud: trim to 0 bytes, what is 0 ms old: 10240 bytes given back\n",
		"binpool: loud: stop_holding\n",
		"binpool: loud: resume_holding\n",
		"binpool: loud: free_held\n",
	};
	struct counter c = COUNTER_INIT;
	char said[8192], *at = said;

	(void)state;
	heard(STDERR_FILENO, lead_a_life, &c, said, sizeof(said));
	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
		at = strstr(at, expected[i]);
		if (!at)
			fail_msg("no '%s' where it should be in:\n%s", expected[i], said);
	}
}

static void live_silently(void *arg)
{
	struct binpool *pool = counter_pool(arg, BINPOOL_CLASSES_TIGHT, 0);

	assert_ok(binpool_free(pool, binpool_alloc(pool, 1000)));
	assert_int_equal(binpool_free(pool, pool), -EINVAL);
	assert_ok(binpool_destroy(pool));
}

static void silence(void **state)
{
	struct counter c = COUNTER_INIT;
	char said[1000];

	(void)state;
	heard(STDERR_FILENO, live_silently, &c, said, sizeof(said));
	assert_string_equal(said, "");
}

static void print(void *arg)
{
	assert_ok(binpool_print_report(arg, BINPOOL_REPORT_TABLE, STDOUT_FILENO));
}

/* The header alone, and a report on standard output. */
static void printed(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_HYSOP, 0);
	char header[200], said[4000], report[4000];
	int len;

	(void)state;
	len = binpool_report(pool, BINPOOL_REPORT_HEADER, header, sizeof(header));
	assert_int_equal(len, strlen(header));
	assert_string_equal(header,
			    "pool counter: provider allocator, hysop classes, 4 mantissa bits\n");
	heard(STDOUT_FILENO, print, pool, said, sizeof(said));
	assert_true(binpool_report(pool, BINPOOL_REPORT_TABLE, report, sizeof(report)) > 0);
	assert_memory_equal(said, header, (size_t)len);
	assert_int_equal(strlen(said), strlen(report));

	assert_int_equal(binpool_print_report(NULL, 0, 1), -EINVAL);
	assert_int_equal(binpool_print_report(pool, 3, 1), -EINVAL);
	assert_int_equal(binpool_report(pool, 3, NULL, 0), -EINVAL);
	assert_error_names("TABLE (0), KEYS (1) or HEADER (2)");
	assert_int_equal(binpool_print_report(pool, 0, -1), -EBADF);
	assert_error_names("write");
	assert_ok(binpool_destroy(pool));
}

/* What was never measured is no time of 0 ns. */
static void times(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	char said[4000];
	char *p, *q;

	(void)state;
	assert_ok(binpool_reserve(pool, 8 * MIB));
	p = binpool_alloc(pool, MIB);
	assert_non_null(p);
	assert_int_equal(stats_of(pool).allocs, 1);
	assert_true(binpool_report(pool, BINPOOL_REPORT_TABLE, said, sizeof(said)) > 0);
	assert_non_null(
		strstr(said, "per new buffer: - (1); giving back, per dissolved one: - (0)\n"));
	assert_non_null(strstr(said, " in 1 extent ("));
	assert_non_null(strstr(said, " 1 buffer, "));
	assert_non_null(strstr(said, " 0 buffers, "));
	assert_non_null(strstr(said, " 1 call for memory, "));
	assert_non_null(strstr(said, "; 0 back, -\n"));
	assert_null(strstr(said, " 0 ns"));
	q = binpool_alloc(pool, 32 * MIB);
	assert_non_null(q);
	assert_true(binpool_report(pool, BINPOOL_REPORT_TABLE, said, sizeof(said)) > 0);
	assert_non_null(strstr(said, "s (2); giving back, "));
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_destroy(pool));
}

/* A program's own statistics have the same identities as a pool's. */
static void own_statistics(void **state)
{
	struct binpool_stats s = {.size = sizeof(s)};
	struct rng r = rng_make();

	(void)state;
	assert_int_equal(binpool_stats_mean_alloc_ns(&s), 0);
	assert_int_equal(binpool_stats_mean_free_ns(&s), 0);
	assert_true(binpool_stats_reuse_factor(&s) == 0);
	assert_int_equal(binpool_stats_push_free(&s, 1, 1), -EINVAL);
	assert_int_equal(binpool_stats_push_return(&s, 1), -EINVAL);
	assert_int_equal(binpool_stats_push_reuse(&s, 1), -EINVAL);
	for (uint64_t i = 0; i < rounds(20000); i++) {
		switch (rng_below(&r, 4)) {
		case 0:
			assert_ok(binpool_stats_push_alloc(&s, 64, 30));
			break;
		case 1:
			if (s.held_blocks || s.active_blocks)
				assert_ok(binpool_stats_push_free(&s, 64, 10));
			break;
		case 2:
			if (s.active_blocks)
				assert_ok(binpool_stats_push_return(&s, 64));
			break;
		default:
			if (s.held_blocks)
				assert_ok(binpool_stats_push_reuse(&s, 64));
		}
		assert_int_equal(s.active_blocks, s.allocs + s.reuses - s.returns - s.frees_active);
		assert_int_equal(s.held_blocks, s.returns - s.reuses - s.frees_held);
		assert_int_equal(s.managed_bytes, s.active_bytes + s.held_bytes);
		assert_int_equal(s.reserved_bytes, 64 * (s.active_blocks + s.held_blocks));
	}
	assert_int_equal(binpool_stats_mean_alloc_ns(&s), 30);
	assert_int_equal(binpool_stats_mean_free_ns(&s), 10);
	assert_true(binpool_stats_reuse_factor(&s) > 0 && binpool_stats_reuse_factor(&s) < 1);

	assert_int_equal(binpool_stats_push_alloc(NULL, 1, 1), -EINVAL);
	s.size = 8;
	assert_int_equal(binpool_stats_push_alloc(&s, 1, 1), -EINVAL);
	assert_int_equal(binpool_stats_mean_alloc_ns(&s), -EINVAL);
	assert_int_equal(binpool_stats_mean_free_ns(NULL), -EINVAL);
	assert_true(binpool_stats_reuse_factor(NULL) < 0);
}

/* A pool's, by the same functions. */
static void of_a_pool(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	struct binpool_stats s;

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_ok(binpool_free(pool, binpool_alloc(pool, 1000)));
	s = stats_of(pool);
	assert_true(binpool_stats_reuse_factor(&s) == 0.75);
	assert_int_equal(binpool_stats_mean_alloc_ns(&s), s.alloc_ns);
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines),     cmocka_unit_test(nameless),
		cmocka_unit_test(silence),   cmocka_unit_test(printed),
		cmocka_unit_test(times),     cmocka_unit_test(own_statistics),
		cmocka_unit_test(of_a_pool),
	};

	return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
