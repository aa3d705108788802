// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The providers on real memory. hugetlb pages are reserved for the time of a
 * test, which needs root; the device is tested where the module is loaded.
 */
#include "unit.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"

#define NR_HUGEPAGES  "/proc/sys/vm/nr_hugepages"
#define NR_OVERCOMMIT "/proc/sys/vm/nr_overcommit_hugepages"

static uint64_t pages_before, overcommit_before;

static bool write_number(const char *path, uint64_t n)
{
	FILE *f = fopen(path, "w");
	bool ok;

	if (!f)
		return false;
	ok = fprintf(f, "%llu\n", (unsigned long long)n) > 0;
	return !fclose(f) && ok;
}

static uint64_t free_pages(void)
{
	return sys_number(0, "/sys/kernel/mm/hugepages/hugepages-%llukB/free_hugepages",
			  (unsigned long long)pmd_size() / 1024);
}

/* Makes exactly @n pages free for the test, or skips it. */
static void have_pages(uint64_t n)
{
	uint64_t total = sys_number(0, NR_HUGEPAGES), unused = free_pages();

	if (unused == n)
		return;
	if (!write_number(NR_HUGEPAGES, total - unused + n) || free_pages() != n) {
		printf("# cannot have %llu free pages through " NR_HUGEPAGES "\n",
		       (unsigned long long)n);
		skip();
	}
}

static int save_pages(void **state)
{
	(void)state;
	pages_before = sys_number(0, NR_HUGEPAGES);
	overcommit_before = sys_number(0, NR_OVERCOMMIT);
	return 0;
}

static int restore_pages(void **state)
{
	(void)state;
	if (sys_number(0, NR_HUGEPAGES) != pages_before)
		write_number(NR_HUGEPAGES, pages_before);
	if (sys_number(0, NR_OVERCOMMIT) != overcommit_before)
		write_number(NR_OVERCOMMIT, overcommit_before);
	return 0;
}

static struct binpool *pool_of(uint32_t provider, uint64_t max_bytes)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.provider = provider;
	o.max_bytes = max_bytes;
	assert_ok(binpool_create(&pool, &o));
	assert_int_equal(stats_of(pool).provider, provider);
	return pool;
}

static bool is_zero(const void *p, size_t n)
{
	const uint64_t *words = p;

	for (size_t i = 0; i < n / sizeof(*words); i++)
		if (words[i])
			return false;
	return true;
}

/* What every provider of whole extents must do. */
static void check_memory(struct binpool *pool)
{
	struct binpool_alloc_opts o = {.size = sizeof(o), .bytes = 12 * MIB};
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool_ptr_info info = {.size = sizeof(info)};
	struct binpool_stats s;
	void *aligned;

	assert_int_equal(stats_of(pool).page_bytes, 0);
	assert_ok(binpool_alloc_ex(pool, &o, &buf));
	assert_int_equal(buf.flags, BINPOOL_BUF_ZEROED);
	assert_true(is_zero(buf.ptr, 12 * MIB));
	memset(buf.ptr, 0x5a, 12 * MIB);
	assert_true(buf.capacity >= 12 * MIB);
	assert_int_equal((uintptr_t)buf.ptr % pmd_size(), 0);
	assert_ok(binpool_query((char *)buf.ptr + 5 * MIB, &info));
	assert_ptr_equal(info.buffer, buf.ptr);
	assert_int_equal(info.page_bytes, pmd_size());
	assert_int_equal(info.extent_fd, buf.extent_fd);
	assert_int_equal(info.extent_offset, buf.extent_fd < 0 ? 0 : buf.extent_offset + 5 * MIB);
	assert_in_range(info.run_bytes, pmd_size(), info.extent_bytes);

	s = stats_of(pool);
	assert_int_equal(s.page_bytes, pmd_size());
	assert_int_equal(s.extents, 1);
	assert_int_equal(s.reserved_bytes % pmd_size(), 0);
	/* On a machine of one node, and asked for on any, it is there. */
	assert_true(buf.node >= -1);

	aligned = binpool_alloc_aligned(pool, 4096, GIB);
	assert_non_null(aligned);
	assert_int_equal((uintptr_t)aligned % GIB, 0);
	*(char *)aligned = 1;
	assert_int_equal(stats_of(pool).page_bytes, pmd_size());
	check_pool(pool);
	assert_ok(binpool_free(pool, aligned));
	assert_ok(binpool_free(pool, buf.ptr));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);

	/* Again: nobody's old bytes. */
	assert_ok(binpool_alloc_ex(pool, &o, &buf));
	assert_int_equal(buf.flags, BINPOOL_BUF_ZEROED);
	assert_true(is_zero(buf.ptr, 12 * MIB));
	assert_ok(binpool_free(pool, buf.ptr));
}

static void thp_memory(void **state)
{
	struct binpool *pool = pool_of(BINPOOL_PROVIDER_THP, 0);
	struct binpool_buf buf = {.size = sizeof(buf)};
	void *p;

	(void)state;
	check_memory(pool);
	p = binpool_alloc(pool, 100);
	assert_ok(binpool_buf_info(pool, p, &buf));
	assert_int_equal(buf.extent_fd, -1);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

/* Asking for more than there is: an errno, and nobody is killed. */
static void thp_shortage(void **state)
{
	struct binpool *pool = pool_of(BINPOOL_PROVIDER_THP, BINPOOL_UNLIMITED);
	struct binpool_stats before = stats_of(pool), after;

	(void)state;
	assert_null(binpool_alloc(pool, (size_t)1 << 45));
	assert_int_equal(errno, ENOMEM);
	assert_error_names("MemAvailable");
	after = stats_of(pool);
	before.refused = 1;
	assert_memory_equal(&before, &after, sizeof(before));
	assert_ok(binpool_destroy(pool));
}

static uint64_t locked_bytes(struct binpool *pool)
{
	char buf[16384], *at;

	assert_true(binpool_report(pool, BINPOOL_REPORT_KEYS, buf, sizeof(buf)) > 0);
	at = strstr(buf, "\nlocked_bytes=");
	assert_non_null(at);
	return strtoull(at + strlen("\nlocked_bytes="), NULL, 10);
}

/* Without the right to lock, it works and the report says so. */
static int unprivileged(void)
{
	struct rlimit limit = {4 * MIB, 4 * MIB};
	struct binpool *pool = pool_of(BINPOOL_PROVIDER_THP, 0);
	void *p;

	if (setrlimit(RLIMIT_MEMLOCK, &limit) || (!getuid() && setuid(65534)))
		return 1;
	p = binpool_alloc(pool, 4 * MIB);
	if (!p || locked_bytes(pool) != 4 * MIB)
		return 2;
	if (!binpool_alloc(pool, 8 * MIB) || locked_bytes(pool) != 4 * MIB)
		return 3;
	return 0;
}

static void thp_lock_limit(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	fflush(NULL);
	pid = fork();
	if (!pid)
		_exit(unprivileged());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void hugetlb_memory(void **state)
{
	struct binpool *pool = pool_of(BINPOOL_PROVIDER_HUGETLB, 0);
	struct binpool_buf buf = {.size = sizeof(buf)};
	char *p, *again;
	struct stat st;

	(void)state;
	have_pages(20);
	check_memory(pool);
	assert_ok(binpool_free_held(pool));
	assert_int_equal(free_pages(), 20);

	/* The file behind it has the same bytes. */
	p = binpool_alloc(pool, 100000);
	assert_ok(binpool_buf_info(pool, p, &buf));
	assert_true(buf.extent_fd >= 0);
	assert_int_equal(fstat(buf.extent_fd, &st), 0);
	again = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, buf.extent_fd, 0);
	assert_ptr_not_equal(again, MAP_FAILED);
	memset(p, 0x77, 100000);
	assert_memory_equal(again + buf.extent_offset, p, 100000);
	munmap(again, (size_t)st.st_size);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
	assert_int_equal(free_pages(), 20);
}

static void hugetlb_shortage(void **state)
{
	struct binpool *pool = pool_of(BINPOOL_PROVIDER_HUGETLB, 0);
	struct binpool_stats before, after;
	char *p, *q, *r;

	(void)state;
	have_pages(3);
	p = binpool_alloc(pool, 2 * MIB); /* as large as a pool begins with: two pages */
	assert_non_null(p);
	before = stats_of(pool);
	assert_null(binpool_alloc(pool, 8 * MIB));
	assert_int_equal(errno, ENOMEM);
	assert_error_names("nr_hugepages");
	assert_error_names("1 are free");
	assert_error_names("hugetlb.*.max of the cgroup");
	after = stats_of(pool);
	before.refused = 1;
	assert_memory_equal(&before, &after, sizeof(before));
	check_pool(pool);

	/* What is there is got, though it is less than the pool would like to grow by. */
	q = binpool_alloc(pool, MIB);
	assert_non_null(q);
	r = binpool_alloc(pool, MIB + 4096);
	assert_non_null(r);
	assert_int_equal(free_pages(), 0);
	memset(p, 1, 2 * MIB);
	memset(q, 1, MIB);

	/* Held memory is given back for a request that needs it. */
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free(pool, q));
	p = binpool_alloc(pool, 3 * MIB);
	assert_non_null(p);
	memset(p, 1, 3 * MIB);
	check_pool(pool);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free(pool, r));
	assert_ok(binpool_destroy(pool));
	assert_int_equal(free_pages(), 3);
}

/* Mapped by somebody else before we could touch it: an errno too, and no SIGBUS. */
static void hugetlb_race(void **state)
{
	struct binpool *pools[4];
	void *p[4];
	int got = 0;

	(void)state;
	have_pages(8);
	for (int i = 0; i < 4; i++) {
		pools[i] = pool_of(BINPOOL_PROVIDER_HUGETLB, 0);
		p[i] = binpool_alloc(pools[i], 6 * MIB);
		if (!p[i])
			assert_int_equal(errno, ENOMEM);
		else
			memset(p[i], i, 6 * MIB);
		got += !!p[i];
	}
	assert_int_equal(got, 2);
	for (int i = 0; i < 4; i++) {
		assert_ok(binpool_free(pools[i], p[i]));
		assert_ok(binpool_destroy(pools[i]));
	}
	assert_int_equal(free_pages(), 8);
}

/* Maps, fills, checks and unmaps its own memory; a page that went away is a SIGSEGV. */
static void *use_own_memory(void *arg)
{
	const size_t bytes = 4 * MIB, page = page_size();
	bool *stop = arg;

	for (uint64_t tag = 1; !__atomic_load_n(stop, __ATOMIC_RELAXED); tag++) {
		volatile uint64_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
					    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p == MAP_FAILED)
			return "mmap failed";
		for (size_t round = 0; round < 8; round++)
			for (size_t at = 0; at < bytes / 16; at += page) {
				volatile uint64_t *word = p + at / sizeof(*p);

				if (*word != (round ? tag + round - 1 : 0))
					return "somebody wrote there";
				*word = tag + round;
			}
		munmap((void *)(uintptr_t)p, bytes);
	}
	return NULL;
}

/* Pools that get no page, for a second. 0, or what went wrong; a child's, for SIGSEGV. */
static int short_of_pages_beside_others(void)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	uint64_t end = now_ns() + 1000000000;
	bool stop = false;
	pthread_t other[2];
	struct binpool *pool;
	void *p, *wrong;
	int ret = 0;

	signal(SIGSEGV, SIG_DFL);
	signal(SIGBUS, SIG_DFL);
	o.provider = BINPOOL_PROVIDER_HUGETLB;
	for (int i = 0; i < 2; i++)
		if (pthread_create(&other[i], NULL, use_own_memory, &stop))
			return 2;
	while (!ret && now_ns() < end) {
		if (binpool_create(&pool, &o))
			return 3;
		/* Pages beyond nr_hugepages may be allowed here, then it gets some. */
		p = binpool_alloc(pool, 1000);
		if ((!p && errno != ENOMEM) || binpool_free(pool, p))
			ret = 4;
		p = binpool_alloc_aligned(pool, 4096, 8 * MIB);
		if ((!p && errno != ENOMEM) || binpool_free(pool, p))
			ret = 5;
		if (binpool_destroy(pool))
			ret = 6;
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		if (pthread_join(other[i], &wrong) || wrong)
			ret = 7;
	return ret;
}

/* A shortage touches nothing but the pool's own addresses, which other threads may get next. */
static void hugetlb_shortage_beside_others(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	have_pages(0);
	fflush(NULL);
	pid = fork();
	if (!pid)
		_exit(short_of_pages_beside_others());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status))
		fail_msg("another thread's own memory vanished: signal %d", WTERMSIG(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void check_node(uint32_t provider)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool *pool;
	void *p;

	o.provider = provider;
	o.node = 0;
	o.flags = BINPOOL_POOL_STRICT_NODE;
	assert_ok(binpool_create(&pool, &o));
	p = binpool_alloc(pool, 3 * MIB);
	if (!p)
		fail_msg("%s", binpool_last_error());
	assert_ok(binpool_buf_info(pool, p, &buf));
	assert_int_equal(buf.node, 0);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

static void thp_node(void **state)
{
	(void)state;
	check_node(BINPOOL_PROVIDER_THP);
}

static void hugetlb_node(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	(void)state;
	have_pages(4);
	check_node(BINPOOL_PROVIDER_HUGETLB);
	o.provider = BINPOOL_PROVIDER_HUGETLB;
	o.node = 0;
	o.flags = BINPOOL_POOL_STRICT_NODE;
	assert_ok(binpool_create(&pool, &o));
	assert_null(binpool_alloc(pool, 64 * MIB));
	assert_int_equal(errno, ENOMEM);
	assert_error_names("node0/hugepages");
	assert_ok(binpool_destroy(pool));
}

/* The provider that auto takes, which its reason begins with; @because is in it, too. */
static uint32_t auto_takes(uint64_t max_bytes, const char *because)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;
	const char *why, *name;
	uint32_t provider;

	o.max_bytes = max_bytes;
	assert_ok(binpool_create(&pool, &o));
	provider = stats_of(pool).provider;
	name = binpool_provider_name(provider);
	why = binpool_provider_reason(pool);
	if (strncmp(why, name, strlen(name)) || !strstr(why, because))
		fail_msg("%s was taken, and the reason, without '%s': %s", name, because, why);
	assert_ok(binpool_destroy(pool));
	return provider;
}

static void ladder(void **state)
{
	(void)state;
	if (access("/dev/binpool", F_OK))
		assert_int_not_equal(auto_takes(0, "was taken; device: there is no /dev/binpool"),
				     BINPOOL_PROVIDER_DEVICE);
	else
		assert_int_equal(auto_takes(0, "device was taken"), BINPOOL_PROVIDER_DEVICE);
}

static void ladder_hugetlb(void **state)
{
	const uint64_t need = physical_bytes() / 16 / pmd_size();
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *asked, *found;
	void *p;

	(void)state;
	if (!access("/dev/binpool", F_OK)) {
		printf("# auto takes the device here\n");
		skip();
	}
	have_pages(8);
	/* It would run dry: half of what the pool may have is there. */
	assert_int_equal(auto_takes(8 * pmd_size(), "hugetlb was taken"), BINPOOL_PROVIDER_HUGETLB);
	assert_int_equal(auto_takes(16 * pmd_size(), "8 are free"), BINPOOL_PROVIDER_THP);
	/* Nobody said how much: a sixteenth of memory. What the kernel may add counts. */
	assert_int_equal(auto_takes(0, "max_bytes="), BINPOOL_PROVIDER_THP);
	assert_int_equal(auto_takes(0, "provider=hugetlb"), BINPOOL_PROVIDER_THP);
	assert_true(write_number(NR_OVERCOMMIT, need - 9));
	assert_int_equal(auto_takes(0, "8 are free"), BINPOOL_PROVIDER_THP);
	assert_true(write_number(NR_OVERCOMMIT, need - 8));
	assert_int_equal(auto_takes(0, "hugetlb was taken"), BINPOOL_PROVIDER_HUGETLB);
	assert_true(write_number(NR_OVERCOMMIT, 0));

	/* A pool that did not ask for these pages is told, at their end, what needs none. */
	o.max_bytes = 8 * pmd_size();
	assert_ok(binpool_create(&found, &o));
	asked = pool_of(BINPOOL_PROVIDER_HUGETLB, 0);
	assert_non_null(p = binpool_alloc(asked, 6 * pmd_size()));
	assert_null(binpool_alloc(found, 4 * pmd_size()));
	assert_error_names("BINPOOL_OPTS=provider=thp");
	assert_null(binpool_alloc(asked, 4 * pmd_size()));
	assert_null(strstr(binpool_last_error(), "provider=thp"));
	assert_ok(binpool_free(asked, p));
	assert_ok(binpool_destroy(asked));
	assert_ok(binpool_destroy(found));
}

/* More than a block may have: several, one after another in one stretch of addresses. */
static void check_several_blocks(struct binpool *pool)
{
	const uint64_t bytes = GIB + 4 * MIB;
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool_stats s;
	char *p;

	if (!binpool_may_alloc(pool, bytes)) {
		printf("# max_bytes is below 1 GiB: several blocks are not tested\n");
		return;
	}
	p = binpool_alloc(pool, bytes);
	if (!p)
		fail_msg("%s", binpool_last_error());
	s = stats_of(pool);
	assert_int_equal(s.extent_allocs - s.extent_frees, s.extents);
	assert_true(s.runs >= 2);
	assert_int_equal(s.page_bytes, pmd_size());
	assert_ok(binpool_buf_info(pool, p, &buf));
	assert_int_equal(buf.extent_fd, -1);
	for (uint64_t at = GIB - MIB; at < GIB + MIB; at++)
		p[at] = (char)(at * 7);
	for (uint64_t at = GIB - MIB; at < GIB + MIB; at++)
		assert_int_equal(p[at], (char)(at * 7));
	p[0] = p[bytes - 1] = 1;
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free_held(pool));
}

static void check_device(void)
{
	struct binpool *pool = pool_of(BINPOOL_PROVIDER_DEVICE, 0);
	struct binpool_buf buf = {.size = sizeof(buf)};
	void *p;

	assert_true(binpool_max_bytes(pool) > 0);
	check_memory(pool);
	p = binpool_alloc(pool, 3 * MIB);
	assert_non_null(p);
	assert_true(stats_of(pool).runs >= 1);
	assert_ok(binpool_buf_info(pool, p, &buf));
	assert_true(buf.extent_fd >= 0);
	assert_ok(binpool_free(pool, p));

	check_several_blocks(pool);
	/* The module's limit, with the knob. */
	p = binpool_alloc(pool, (size_t)binpool_max_bytes(pool) + 64 * MIB);
	assert_null(p);
	assert_true(errno == ENOSPC || errno == EFBIG);
	assert_error_names("max_bytes");
	assert_ok(binpool_destroy(pool));
}

/* The device where the module is loaded; elsewhere an error that says what is missing. */
static void device(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	(void)state;
	if (!access("/dev/binpool", F_OK)) {
		check_device();
		return;
	}
	printf("# no /dev/binpool: its absence is tested\n");
	o.provider = BINPOOL_PROVIDER_DEVICE;
	assert_int_equal(binpool_create(&pool, &o), -ENODEV);
	assert_error_names("/dev/binpool");
	assert_null(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(thp_memory),
		cmocka_unit_test(thp_shortage),
		cmocka_unit_test(thp_lock_limit),
		cmocka_unit_test(thp_node),
		cmocka_unit_test_setup_teardown(hugetlb_memory, save_pages, restore_pages),
		cmocka_unit_test_setup_teardown(hugetlb_shortage, save_pages, restore_pages),
		cmocka_unit_test_setup_teardown(hugetlb_race, save_pages, restore_pages),
		cmocka_unit_test_setup_teardown(hugetlb_shortage_beside_others, save_pages,
						restore_pages),
		cmocka_unit_test_setup_teardown(hugetlb_node, save_pages, restore_pages),
		cmocka_unit_test(ladder),
		cmocka_unit_test_setup_teardown(ladder_hugetlb, save_pages, restore_pages),
		cmocka_unit_test(device),
	};

	return cmocka_run_group_tests_name("provider", tests, NULL, NULL);
}
