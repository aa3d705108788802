// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What is less than was hoped for: other providers, small pages, memory that cannot be
 * locked or registered. It shows; and is an error where that is wanted.
 */
#include "unit.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static int pool_with(uint32_t provider, uint32_t flags, struct binpool **pool)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;

	o.name = "strict";
	o.provider = provider;
	o.flags = flags;
	return binpool_create(pool, &o);
}

/* What a child writes to stderr that runs @work, which returns 0 if all is well. */
static void child_says(int (*work)(void), char *said, size_t len)
{
	int fds[2], status;
	pid_t pid;

	fflush(NULL);
	assert_int_equal(pipe(fds), 0);
	pid = fork();
	if (!pid) {
		dup2(fds[1], STDERR_FILENO);
		_exit(work());
	}
	status = child_said(pid, fds, said, len);
	if (status)
		fail_msg("status 0x%x: %s", status, said);
}

/* A process that gets no huge pages: counted, in the report, and one line. */
static int small_pages(void)
{
	struct binpool_stats s = {.size = sizeof(s)};
	struct binpool *pool;
	char report[4096];
	void *p[3];

	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) || pool_with(BINPOOL_PROVIDER_THP, 0, &pool))
		return 1;
	for (int i = 0; i < 3; i++) {
		p[i] = binpool_alloc(pool, 5 * MIB);
		if (!p[i])
			return 2;
		memset(p[i], 1, 5 * MIB);
	}
	if (binpool_get_stats(pool, &s) || !s.fallbacks ||
	    s.fallbacks != s.extent_allocs + s.extent_extends || s.page_bytes >= MIB)
		return 3;
	if (binpool_report(pool, BINPOOL_REPORT_TABLE, report, sizeof(report)) < 0 ||
	    !strstr(report, "fallbacks"))
		return 4;
	return binpool_free_bulk(pool, 3, p) || binpool_destroy(pool) ? 5 : 0;
}

static void small_pages_show(void **state)
{
	char said[4096], *second;

	(void)state;
	child_says(small_pages, said, sizeof(said));
	assert_non_null(strstr(said, "binpool: strict:"));
	assert_non_null(strstr(said, "small pages"));
	/* Once. */
	second = strstr(strstr(said, "small pages") + 1, "small pages");
	assert_null(second);
}

static int no_small_pages(void)
{
	struct binpool_stats s = {.size = sizeof(s)};
	struct binpool *pool;

	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) ||
	    pool_with(BINPOOL_PROVIDER_THP, BINPOOL_POOL_STRICT, &pool))
		return 1;
	if (binpool_alloc(pool, 100) || errno != ENOMEM ||
	    !strstr(binpool_last_error(), "only small pages"))
		return 2;
	if (binpool_get_stats(pool, &s) || s.reserved_bytes || s.fallbacks)
		return 3;
	return binpool_destroy(pool) ? 4 : 0;
}

static void small_pages_refused(void **state)
{
	char said[4096];

	(void)state;
	child_says(no_small_pages, said, sizeof(said));
	assert_string_equal(said, "");
}

/* Huge pages are no fallback: nothing is said of them, and STRICT is content. */
static void huge_pages(void **state)
{
	struct binpool *pool;
	void *p;

	(void)state;
	assert_ok(pool_with(BINPOOL_PROVIDER_THP, BINPOOL_POOL_STRICT, &pool));
	p = binpool_alloc(pool, 10 * MIB);
	if (!p && strstr(binpool_last_error(), "RLIMIT_MEMLOCK")) {
		printf("# %s\n", binpool_last_error());
		assert_ok(binpool_destroy(pool));
		skip();
	}
	if (!p)
		fail_msg("%s", binpool_last_error());
	assert_int_equal(stats_of(pool).fallbacks, 0);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

/* AddressSanitizer's mlock() locks nothing. */
#ifdef __SANITIZE_ADDRESS__
#define LEFT "6 MiB"
#else
#define LEFT "2 MiB"
#endif

/* The limit, what is needed and what is left are told. */
static int cannot_lock(void)
{
	struct rlimit limit = {6 * MIB, 6 * MIB};
	struct binpool *strict, *pool;
	void *p;

	if (pool_with(BINPOOL_PROVIDER_THP, BINPOOL_POOL_STRICT, &strict) ||
	    pool_with(BINPOOL_PROVIDER_THP, 0, &pool))
		return 1;
	if (setrlimit(RLIMIT_MEMLOCK, &limit) || (!getuid() && setuid(65534)))
		return 2;
	p = binpool_alloc(strict, 4 * MIB);
	if (!p)
		return 3;
	if (binpool_alloc(strict, 8 * MIB) || errno != ENOMEM ||
	    !strstr(binpool_last_error(), "locking 8 MiB is refused") ||
	    !strstr(binpool_last_error(), "RLIMIT_MEMLOCK is 6 MiB and leaves " LEFT))
		return 4;
	/* Who did not ask for it goes on. */
	if (!binpool_alloc(pool, 8 * MIB))
		return 5;
	return binpool_free(strict, p) || binpool_destroy(strict) ? 6 : 0;
}

static void lock_refused(void **state)
{
	char said[4096];

	(void)state;
	child_says(cannot_lock, said, sizeof(said));
	assert_string_equal(said, "");
}

/* No provider but the best, from the environment too. */
static void no_ladder(void **state)
{
	struct binpool *pool;

	(void)state;
	if (!access("/dev/binpool", F_OK)) {
		printf("# auto takes the device here\n");
		skip();
	}
	assert_int_equal(pool_with(BINPOOL_PROVIDER_AUTO, BINPOOL_POOL_STRICT, &pool), -ENODEV);
	assert_error_names("strict");
	assert_error_names("/dev/binpool");
	setenv("BINPOOL_OPTS", "strict", 1);
	assert_int_equal(pool_with(BINPOOL_PROVIDER_AUTO, 0, &pool), -ENODEV);
	unsetenv("BINPOOL_OPTS");
}

/* ---- Registrars that need not succeed ------------------------------------------ */

struct picky {
	uint64_t attached, detached;
	bool refuse;
};

static int attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	struct picky *r = ctx;

	(void)extent;
	if (r->refuse) {
		binpool_set_last_error("RLIMIT_MEMLOCK leaves too little");
		return -ENOMEM;
	}
	r->attached++;
	*cookie = r;
	return 0;
}

static void detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	struct picky *r = ctx;

	(void)extent;
	assert_ptr_equal(cookie, r);
	r->detached++;
}

/* The pool goes on unregistered if asked to, and says so; if not, it is an error. */
static void unregistered(void **state)
{
	struct picky r = {.refuse = true};
	struct binpool_registrar_ops ops = {.size = sizeof(ops),
					    .name = "picky",
					    .ctx = &r,
					    .attach = attach,
					    .detach = detach};
	struct binpool_ptr_info info = {.size = sizeof(info)};
	struct binpool *pool = real_pool(0);
	void *p[2];
	uint64_t id;

	(void)state;
	assert_ok(binpool_add_registrar(pool, &ops, &id));
	assert_null(binpool_alloc(pool, MIB));
	assert_int_equal(errno, ENOMEM);
	assert_error_names("RLIMIT_MEMLOCK");
	assert_ok(binpool_remove_registrar(pool, id));

	ops.flags = 1u << 31;
	assert_int_equal(binpool_add_registrar(pool, &ops, &id), -EINVAL);
	assert_error_names("flags is 0x80000000: OPTIONAL (0x1)");
	ops.flags = BINPOOL_REGISTRAR_OPTIONAL;
	ops.reserved = 1;
	assert_int_equal(binpool_add_registrar(pool, &ops, &id), -EINVAL);
	ops.reserved = 0;
	assert_ok(binpool_add_registrar(pool, &ops, &id));
	p[0] = binpool_alloc(pool, MIB);
	assert_non_null(p[0]);
	assert_int_equal(stats_of(pool).registrations, 0);
	assert_int_equal(stats_of(pool).registrations_refused, 1);
	assert_ok(binpool_query(p[0], &info));
	assert_int_equal(info.registrations, 0);
	/* Later extents are registered where that works. */
	r.refuse = false;
	p[1] = binpool_alloc(pool, 64 * MIB);
	assert_non_null(p[1]);
	assert_int_equal(stats_of(pool).registrations, 1);
	assert_int_equal(r.attached, 1);
	check_pool(pool);
	assert_ok(binpool_free_bulk(pool, 2, p));
	assert_ok(binpool_destroy(pool));
	assert_int_equal(r.detached, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_pages_show), cmocka_unit_test(small_pages_refused),
		cmocka_unit_test(huge_pages),	    cmocka_unit_test(lock_refused),
		cmocka_unit_test(no_ladder),	    cmocka_unit_test(unregistered),
	};

	return cmocka_run_group_tests_name("strict", tests, NULL, NULL);
}
