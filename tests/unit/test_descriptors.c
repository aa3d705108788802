// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Processes that have no file descriptor left: what needs none works, and what does says so.
 */
#include "unit.h"

#include <sys/resource.h>
#include <unistd.h>

#include "pool.h"

static rlim_t most;

static void set_limit(rlim_t n)
{
	const struct rlimit limit = {n, most};

	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static int none_left(void **state)
{
	struct rlimit limit;

	(void)state;
	if (getrlimit(RLIMIT_NOFILE, &limit))
		return -1;
	most = limit.rlim_max;
	/* What is open already stays so. */
	set_limit(0);
	return 0;
}

static int enough(void **state)
{
	(void)state;
	set_limit(most);
	return 0;
}

static int create(struct binpool **pool, uint32_t provider, uint32_t flags)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;

	o.provider = provider;
	o.flags = flags;
	return binpool_create(pool, &o);
}

/* An allocator's memory needs no file. */
static void allocator(void **state)
{
	struct counter c = COUNTER_INIT;
	struct binpool *pool = counter_pool(&c, BINPOOL_CLASSES_TIGHT, 0);
	void *p = binpool_alloc(pool, 1000);

	(void)state;
	assert_non_null(p);
	assert_true(binpool_max_bytes(pool) > 0);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

/* Nor do pools that have memory, and what is held is theirs to use. */
static void thp(void **state)
{
	struct binpool *pool;
	void *p[512];
	size_t n = 0;

	(void)state;
	assert_ok(create(&pool, BINPOOL_PROVIDER_THP, 0));
	assert_null(binpool_alloc(pool, MIB));
	assert_int_equal(errno, EMFILE);
	assert_error_names("ulimit -n");
	set_limit(most);
	p[0] = binpool_alloc(pool, 16 * MIB);
	assert_non_null(p[0]);
	assert_ok(binpool_free(pool, p[0]));
	assert_int_equal(stats_of(pool).held_blocks, 1);
	set_limit(0);
	for (; n < sizeof(p) / sizeof(p[0]); n++) {
		p[n] = binpool_alloc(pool, MIB);
		if (!p[n])
			break;
	}
	assert_int_equal(errno, EMFILE);
	assert_true(n >= 16);
	assert_ok(binpool_free_bulk(pool, n, p));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

static void others(void **state)
{
	const struct provider p = {.node = BINPOOL_NODE_ANY, .unit = pmd_size()};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	(void)state;
	assert_int_equal(create(&pool, BINPOOL_PROVIDER_HUGETLB, 0), -EMFILE);
	assert_error_names("ulimit -n");
	assert_int_equal(create(&pool, BINPOOL_PROVIDER_AUTO, 0), -EMFILE);
	assert_error_names("ulimit -n");
	assert_int_equal(create(&pool, BINPOOL_PROVIDER_THP, BINPOOL_POOL_REAPER), -EMFILE);
	assert_error_names("ulimit -n");
	/* Whether there is such a node cannot be seen. */
	o.provider = BINPOOL_PROVIDER_THP;
	o.node = 0;
	assert_int_equal(binpool_create(&pool, &o), -EMFILE);
	assert_error_names("node0");
	/* Nor how many huge pages there are. */
	assert_int_equal(provider_hugetlb.enough(&p, pmd_size()), 0);
	set_limit(most);
	assert_int_equal(provider_hugetlb.enough(&p, 1024 * GIB), -ENOMEM);
}

/* A thread that hears of less than it was asked to is none. */
static void reaper(void **state)
{
	struct binpool *pool;
	int first, last, err = -EMFILE;
	bool told;

	(void)state;
	set_limit(most);
	last = binpool_pressure_fd();
	told = last >= 0;
	close(last);
	first = dup(STDOUT_FILENO);
	close(first);
	/* It wants two, and one more where the kernel tells of pressure. */
	for (int n = 0; n < 2 + told; n++) {
		set_limit((rlim_t)(first + n));
		assert_int_equal(create(&pool, BINPOOL_PROVIDER_THP, BINPOOL_POOL_REAPER), -EMFILE);
	}
	/* One more is for a moment. */
	for (int n = 2 + told; n < 8 && err; n++) {
		set_limit((rlim_t)(first + n));
		err = create(&pool, BINPOOL_PROVIDER_THP, BINPOOL_POOL_REAPER);
	}
	assert_ok(err);
	assert_ok(binpool_destroy(pool));
}

static void query(void **state)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};
	struct binpool_stats s;
	struct binpool *pool;
	void *p;

	(void)state;
	assert_ok(create(&pool, BINPOOL_PROVIDER_THP, 0));
	set_limit(most);
	p = binpool_alloc(pool, MIB);
	assert_non_null(p);
	set_limit(0);
	assert_int_equal(binpool_query(p, &info), -EMFILE);
	assert_error_names("smaps");
	s = stats_of(pool);
	assert_int_equal(s.active_blocks, 1);
	assert_int_equal(s.page_bytes, 0);
	set_limit(most);
	assert_ok(binpool_query(p, &info));
	assert_true(info.page_bytes > 0);
	assert_int_equal(stats_of(pool).page_bytes, info.page_bytes);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(allocator, none_left, enough),
		cmocka_unit_test_setup_teardown(thp, none_left, enough),
		cmocka_unit_test_setup_teardown(others, none_left, enough),
		cmocka_unit_test_setup_teardown(reaper, none_left, enough),
		cmocka_unit_test_setup_teardown(query, none_left, enough),
	};

	return cmocka_run_group_tests_name("descriptors", tests, NULL, NULL);
}
