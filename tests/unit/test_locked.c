// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What is said of an extent's memory is what the kernel has made of it: locked, while the limit
 * goes up and down and memory comes and goes at its end; and in huge pages.
 */
#include "unit.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"

#define PIECE	   (4 * MIB)
#define PIECES_MAX 12

/* The limit at most, made enough for all if that may be done. */
static struct rlimit limit;

static bool set_limit(uint64_t bytes)
{
	limit.rlim_cur = u64_min(bytes, limit.rlim_max);
	return !setrlimit(RLIMIT_MEMLOCK, &limit);
}

/* Whether the kernel says so of the mapping that @ptr is in. */
static bool really_locked(const void *ptr)
{
	FILE *f = fopen("/proc/thread-self/smaps", "re");
	unsigned long long start, end;
	bool here = false, yes = false;
	char line[512];

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%llx-%llx ", &start, &end) == 2)
			here = (uintptr_t)ptr >= start && (uintptr_t)ptr < end;
		else if (here && !strncmp(line, "VmFlags:", 8))
			yes = strstr(line, " lo");
	}
	if (f)
		fclose(f);
	return yes;
}

static uint64_t said_locked(struct binpool *pool)
{
	char buf[16384], *at;

	if (binpool_report(pool, BINPOOL_REPORT_KEYS, buf, sizeof(buf)) <= 0)
		return UINT64_MAX;
	at = strstr(buf, "\nlocked_bytes=");
	return at ? strtoull(at + strlen("\nlocked_bytes="), NULL, 10) : UINT64_MAX;
}

/* 0, or a number that is not. */
static int check(struct binpool *pool, char *const *p, int n, uint64_t before)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};

	if (said_locked(pool) != status_bytes("VmLck") - before) {
		printf("# said %llu, are %llu\n", (unsigned long long)said_locked(pool),
		       (unsigned long long)(status_bytes("VmLck") - before));
		return 10;
	}
	for (int i = 0; i < n; i++)
		for (int end = 0; end < 2; end++) {
			const char *at = p[i] + (end ? PIECE - 1 : 0);

			if (binpool_query(at, &info))
				return 11;
			if (info.locked != really_locked(at))
				return info.locked ? 12 : 13;
		}
	return 0;
}

/* Without the right to lock beyond the limit. */
static int up_and_down(void)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct rng r = rng_make();
	struct binpool *pool;
	char *p[PIECES_MAX];
	bool some = false;
	uint64_t before;
	int n = 0, err = 0;

	limit = (struct rlimit){PIECES_MAX * PIECE, PIECES_MAX * PIECE};
	if (setrlimit(RLIMIT_MEMLOCK, &limit) && getrlimit(RLIMIT_MEMLOCK, &limit))
		return 1;
	if ((!getuid() && setuid(65534)) || prctl(PR_SET_DUMPABLE, 1))
		return 1;
	o.provider = BINPOOL_PROVIDER_THP;
	o.max_bytes = PIECES_MAX * PIECE;
	if (binpool_create(&pool, &o))
		return 2;
	before = status_bytes("VmLck");
	for (uint64_t i = 0; i < 100 && !err; i++) {
		if (!set_limit(rng_below(&r, limit.rlim_max / PIECE + 1) * PIECE))
			return 3;
		/* From the beginning now and then: what is locked first is first. */
		for (bool all = i % 16 == 15; all && n;)
			if (binpool_free(pool, p[--n]) || binpool_free_held(pool))
				return 5;
		if (n < PIECES_MAX && rng_below(&r, 5) > 1) {
			p[n] = binpool_alloc(pool, PIECE);
			if (!p[n])
				return 4;
			n++;
		} else if (n && (binpool_free(pool, p[--n]) || binpool_free_held(pool))) {
			return 5;
		}
		err = check(pool, p, n, before);
		some = some || said_locked(pool);
	}
	if (err)
		return err;
	if (!some)
		return 6;
	while (n)
		binpool_free(pool, p[--n]);
	return binpool_destroy(pool);
}

static void as_the_kernel_says(void **state)
{
	int status;
	pid_t pid;

	(void)state;
#ifdef __SANITIZE_ADDRESS__
	print_message("# AddressSanitizer lets no memory be locked\n");
	skip();
#endif
	fflush(NULL);
	pid = fork();
	if (!pid) {
		status = up_and_down();
		fflush(NULL);
		_exit(status);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* Small pages at an extent's end are not its page size when they are gone. */
static void pages_after_a_cut(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	void *kept = binpool_alloc(pool, PIECE), *p;
	uint64_t page = stats_of(pool).page_bytes;

	(void)state;
	if (page != pmd_size()) {
		print_message("# this system gives no huge pages\n");
		skip();
	}
	assert_int_equal(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
	p = binpool_alloc(pool, 3 * PIECE);
	assert_int_equal(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
	assert_non_null(p);
	assert_int_equal(stats_of(pool).extents, 1);
	assert_int_equal(stats_of(pool).page_bytes, page_size());
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).page_bytes, page);
	assert_ok(binpool_free(pool, kept));
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_the_kernel_says),
		cmocka_unit_test(pages_after_a_cut),
	};

	return cmocka_run_group_tests_name("locked", tests, NULL, NULL);
}
