// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers in other processes: real ones, which send descriptors through sockets, and
 * which are killed. Over hugetlb, for whose pages root is needed, or over the provider that
 * BINPOOL_TEST_PROVIDER names.
 */
#include "unit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"

#define NR_HUGEPAGES "/proc/sys/vm/nr_hugepages"
#define PAGES	     ((uint64_t)12)
#define POOL_BYTES   (8 * MIB)

static uint64_t pages_before;

static bool set_pages(uint64_t n)
{
	FILE *f = fopen(NR_HUGEPAGES, "w");
	bool ok = f && fprintf(f, "%llu\n", (unsigned long long)n) > 0;

	return f && !fclose(f) && ok;
}

static uint64_t free_pages(void)
{
	return sys_number(0, "/sys/kernel/mm/hugepages/hugepages-%llukB/free_hugepages",
			  (unsigned long long)pmd_size() / 1024);
}

static int have_pages(void **state)
{
	(void)state;
	pages_before = sys_number(0, NR_HUGEPAGES);
	if (free_pages() < PAGES)
		set_pages(pages_before + PAGES);
	return 0;
}

static int restore_pages(void **state)
{
	(void)state;
	if (sys_number(0, NR_HUGEPAGES) != pages_before)
		set_pages(pages_before);
	return 0;
}

/* A pool whose extents are files. */
static struct binpool *file_pool(void)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	if (getenv("BINPOOL_TEST_PROVIDER"))
		return real_pool(POOL_BYTES);
	o.provider = BINPOOL_PROVIDER_HUGETLB;
	o.max_bytes = POOL_BYTES;
	return binpool_create(&pool, &o) ? NULL : pool;
}

static void need_pages(void)
{
	if (getenv("BINPOOL_TEST_PROVIDER") || free_pages() >= PAGES)
		return;
	printf("# cannot have %llu free pages through " NR_HUGEPAGES "\n",
	       (unsigned long long)PAGES);
	skip();
}

/* ---- Two processes ------------------------------------------------------------ */

/* A share, or with descriptors of -1 only a word. */
static bool tell(int socket, const struct binpool_share *share)
{
	char room[CMSG_SPACE(2 * sizeof(int))] = {0};
	struct iovec data = {.iov_base = (void *)(uintptr_t)share, .iov_len = sizeof(*share)};
	struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1};
	int fds[2] = {share->extent_fd, share->generation_fd};
	struct cmsghdr *c;

	if (fds[0] >= 0) {
		m.msg_control = room;
		m.msg_controllen = sizeof(room);
		c = CMSG_FIRSTHDR(&m);
		*c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(fds)),
				      .cmsg_level = SOL_SOCKET,
				      .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(c), fds, sizeof(fds));
	}
	return sendmsg(socket, &m, MSG_NOSIGNAL) == sizeof(*share);
}

static bool hear(int socket, struct binpool_share *share)
{
	char room[CMSG_SPACE(2 * sizeof(int))] = {0};
	struct iovec data = {.iov_base = share, .iov_len = sizeof(*share)};
	struct msghdr m = {.msg_iov = &data,
			   .msg_iovlen = 1,
			   .msg_control = room,
			   .msg_controllen = sizeof(room)};
	int fds[2] = {-1, -1};
	struct cmsghdr *c;

	if (recvmsg(socket, &m, MSG_CMSG_CLOEXEC | MSG_WAITALL) != sizeof(*share))
		return false;
	c = CMSG_FIRSTHDR(&m);
	if (c)
		memcpy(fds, CMSG_DATA(c), sizeof(fds));
	share->extent_fd = fds[0];
	share->generation_fd = fds[1];
	return true;
}

static bool tell_word(int socket)
{
	const struct binpool_share nothing = {.extent_fd = -1, .generation_fd = -1};

	return tell(socket, &nothing);
}

static bool hear_word(int socket)
{
	struct binpool_share nothing;

	return hear(socket, &nothing);
}

static void share_close(const struct binpool_share *s)
{
	close(s->extent_fd);
	close(s->generation_fd);
}

static bool export_to(int socket, struct binpool *pool, void *ptr)
{
	struct binpool_share s = {.size = sizeof(s)};
	bool ok;

	if (binpool_export(pool, ptr, &s))
		return false;
	ok = tell(socket, &s);
	share_close(&s);
	return ok;
}

static struct binpool_import *import_from(int socket)
{
	struct binpool_import *i = NULL;
	struct binpool_share s;

	if (!hear(socket, &s))
		return NULL;
	if (binpool_import(&i, &s))
		i = NULL;
	share_close(&s);
	return i;
}

/* Runs @f in a child at the other end of @*socket. */
static pid_t child_start(int (*f)(int socket), int *socket)
{
	int ends[2];
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		close(ends[0]);
		_exit(f(ends[1]));
	}
	close(ends[1]);
	*socket = ends[0];
	return pid;
}

static void child_end(pid_t pid, int socket, int expected)
{
	int status;

	close(socket);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, expected);
}

static void child_kill(pid_t pid, int socket)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	child_end(pid, socket, SIGKILL);
}

static bool all_are(const char *p, size_t n, char value)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != value)
			return false;
	return true;
}

/* ---- Tests ---------------------------------------------------------------------- */

static int exporter(int socket)
{
	struct binpool *pool = file_pool();
	char *p = binpool_alloc(pool, MIB), *q = binpool_alloc(pool, 5000);

	if (!p || !q)
		return 1;
	memset(p, 1, MIB);
	memset(q, 2, 5000);
	if (!export_to(socket, pool, p) || !export_to(socket, pool, q) || !hear_word(socket))
		return 2;
	/* What the other wrote is here, without a word of it. */
	if (!all_are(p, MIB, 11) || !all_are(q, 5000, 12))
		return 3;
	if (binpool_free(pool, p) || !tell_word(socket) || !hear_word(socket))
		return 4;
	if (binpool_alloc(pool, MIB) != p || !tell_word(socket) || !hear_word(socket))
		return 5;
	return binpool_free(pool, p) || binpool_free(pool, q) || binpool_destroy(pool) ? 6 : 0;
}

static void back_and_forth(void **state)
{
	struct binpool_import *big, *small;
	char *p, *q;
	int socket;
	pid_t pid;

	(void)state;
	need_pages();
	pid = child_start(exporter, &socket);
	big = import_from(socket);
	small = import_from(socket);
	assert_true(big && small);
	p = binpool_import_ptr(big);
	q = binpool_import_ptr(small);
	assert_true(all_are(p, MIB, 1) && all_are(q, 5000, 2));
	assert_ok(binpool_import_check(big));
	memset(p, 11, MIB);
	memset(q, 12, 5000);
	assert_true(tell_word(socket) && hear_word(socket));
	/* It is free now. */
	assert_int_equal(binpool_import_check(big), -ESTALE);
	assert_error_names("freed");
	assert_ok(binpool_import_check(small));
	assert_true(tell_word(socket) && hear_word(socket));
	/* And in other hands. */
	assert_int_equal(binpool_import_check(big), -ESTALE);
	assert_true(tell_word(socket));
	child_end(pid, socket, 0);
	assert_int_equal(binpool_import_check(small), -ESTALE);
	assert_ok(binpool_import_close(big));
	assert_ok(binpool_import_close(small));
}

static int exporter_that_stays(int socket)
{
	struct binpool *pool = file_pool();
	char *p = binpool_alloc(pool, 3 * MIB);

	if (!p)
		return 1;
	memset(p, 3, 3 * MIB);
	if (!export_to(socket, pool, p))
		return 2;
	pause();
	return 3;
}

/* What an exporter has shared outlives it. */
static void exporter_killed(void **state)
{
	uint64_t pages = free_pages();
	struct binpool_import *i;
	int socket;
	pid_t pid;
	char *p;

	(void)state;
	need_pages();
	pid = child_start(exporter_that_stays, &socket);
	i = import_from(socket);
	assert_non_null(i);
	child_kill(pid, socket);
	p = binpool_import_ptr(i);
	assert_ok(binpool_import_check(i));
	assert_true(all_are(p, 3 * MIB, 3));
	memset(p, 4, 3 * MIB);
	assert_true(all_are(p, 3 * MIB, 4));
	if (!getenv("BINPOOL_TEST_PROVIDER"))
		assert_true(free_pages() < pages);
	assert_ok(binpool_import_close(i));
	assert_int_equal(free_pages(), pages);
}

static int importer_that_stays(int socket)
{
	struct binpool_import *i = import_from(socket);
	char *p = binpool_import_ptr(i);

	if (!p)
		return 1;
	p[0] = 5;
	tell_word(socket);
	pause();
	return 2;
}

/* An importer that is killed costs the exporter nothing; a fence may wait for its end. */
static void importer_killed(void **state)
{
	struct binpool_fence f = {.size = sizeof(f), .kind = BINPOOL_FENCE_EVENTFD};
	struct binpool_share s = {.size = sizeof(s)};
	struct binpool_import *i;
	struct binpool *pool;
	int socket;
	pid_t pid;
	char *p;

	(void)state;
	need_pages();
	pid = child_start(importer_that_stays, &socket);
	pool = file_pool();
	p = binpool_alloc(pool, 6 * MIB);
	assert_non_null(p);
	assert_ok(binpool_export(pool, p, &s));
	assert_true(tell(socket, &s));
	assert_ok(binpool_import(&i, &s));
	share_close(&s);
	assert_true(hear_word(socket));
	assert_int_equal(p[0], 5);
	f.fd = socket;
	assert_ok(binpool_free_after(pool, p, &f, 1));
	assert_int_equal(binpool_poll(pool), 1);
	/* As long as it waits it is what it was. */
	assert_ok(binpool_import_check(i));
	check_pool(pool);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(binpool_poll(pool), 0);
	close(socket);
	assert_int_equal(binpool_import_check(i), -ESTALE);
	assert_ptr_equal(binpool_alloc(pool, 6 * MIB), p);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_import_close(i));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

enum { REUSES = 200 };

static int reuser(int socket)
{
	struct binpool *pool = file_pool();
	const size_t bytes = 64 * KIB;

	for (int i = 0; i < REUSES; i++) {
		char *p = binpool_alloc(pool, bytes);

		if (!p)
			return 1;
		memset(p, i, bytes);
		if (!export_to(socket, pool, p) || !hear_word(socket))
			return 2;
		if (binpool_free(pool, p) || binpool_alloc(pool, bytes) != p)
			return 3;
		memset(p, ~i, bytes);
		if (binpool_free(pool, p))
			return 4;
	}
	return binpool_destroy(pool) ? 5 : 0;
}

/* What a check says of what was read before it is true, while the buffer changes hands. */
static void never_mixed(void **state)
{
	int socket, wrong = 0;
	pid_t pid;

	(void)state;
	need_pages();
	pid = child_start(reuser, &socket);
	for (int i = 0; i < REUSES; i++) {
		struct binpool_import *import = import_from(socket);
		char *p = binpool_import_ptr(import);
		bool right;

		assert_non_null(import);
		assert_true(tell_word(socket));
		do {
			right = all_are(p, 64 * KIB, (char)i);
			if (binpool_import_check(import))
				break;
			wrong += !right;
		} while (right);
		assert_ok(binpool_import_close(import));
	}
	assert_int_equal(wrong, 0);
	child_end(pid, socket, 0);
}

/* More than one page of generations; each is of its own buffer. */
static void many(void **state)
{
	enum { N = 1200 };
	static struct binpool_import *imports[N];
	static char *p[N];
	struct binpool *pool;

	(void)state;
	need_pages();
	pool = file_pool();
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < N; i++) {
			struct binpool_share s = {.size = sizeof(s)}, again = s;

			p[i] = binpool_alloc(pool, 100);
			memset(p[i], i, 100);
			assert_ok(binpool_export(pool, p[i], &s));
			assert_ok(binpool_export(pool, p[i], &again));
			assert_int_equal(s.slot, again.slot);
			assert_int_equal(s.generation, again.generation);
			share_close(&again);
			assert_ok(binpool_import(&imports[i], &s));
			share_close(&s);
		}
		check_pool(pool);
		for (int i = 0; i < N; i += 2)
			assert_ok(binpool_free(pool, p[i]));
		for (int i = 0; i < N; i++) {
			assert_int_equal(binpool_import_check(imports[i]), i % 2 ? 0 : -ESTALE);
			assert_true(all_are(binpool_import_ptr(imports[i]), 100, (char)i));
			assert_ok(binpool_import_close(imports[i]));
			if (i % 2)
				assert_ok(binpool_free(pool, p[i]));
		}
		check_pool(pool);
	}
	assert_ok(binpool_destroy(pool));
}

/* A buffer that others have a reference to is still itself. */
static void references(void **state)
{
	struct binpool_share s = {.size = sizeof(s)};
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool_import *i;
	struct binpool *pool;
	int status;
	pid_t pid;

	(void)state;
	need_pages();
	pool = file_pool();
	buf.ptr = binpool_alloc(pool, MIB);
	assert_ok(binpool_export(pool, buf.ptr, &s));
	assert_ok(binpool_import(&i, &s));
	assert_ok(binpool_buffer_get(pool, &buf));
	assert_ok(binpool_free(pool, buf.ptr));
	assert_ok(binpool_import_check(i));
	/* A child of the exporter ends its share of the pool, and nothing else. */
	fflush(NULL);
	pid = fork();
	if (!pid)
		_exit(binpool_export(pool, buf.ptr, &s) != -EOWNERDEAD ||
		      binpool_free(pool, buf.ptr) || binpool_destroy(pool) ||
		      binpool_import_check(i));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_ok(binpool_import_check(i));
	assert_ok(binpool_buffer_put(pool, &buf));
	assert_int_equal(binpool_import_check(i), -ESTALE);
	assert_ok(binpool_import_close(i));
	assert_int_equal(binpool_import(&i, &s), -ESTALE);
	share_close(&s);
	assert_ok(binpool_destroy(pool));
}

/* Nor is it over for others when the references are, but not the fences. */
static void references_before_fences(void **state)
{
	static uint64_t counter = UINT64_MAX;
	const struct binpool_fence f = {sizeof(f), BINPOOL_FENCE_COUNTER, .counter = &counter};
	struct binpool_share s = {.size = sizeof(s)};
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool_import *i;
	struct binpool *pool;

	(void)state;
	need_pages();
	pool = file_pool();
	buf.ptr = binpool_alloc(pool, MIB);
	assert_ok(binpool_export(pool, buf.ptr, &s) || binpool_import(&i, &s));
	share_close(&s);
	assert_ok(binpool_buffer_get(pool, &buf) || binpool_free_after(pool, buf.ptr, &f, 1) ||
		  binpool_buffer_put(pool, &buf) || binpool_import_check(i));
	counter = 0;
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(binpool_import_check(i), -ESTALE);
	assert_ok(binpool_import_close(i) || binpool_destroy(pool));
}

static void bad_input(void **state)
{
	struct binpool_share good = {.size = sizeof(good)}, s;
	struct binpool *pool, *thp = thp_pool(64 * MIB);
	struct binpool_stats before, after;
	struct binpool_import *i = NULL;
	int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
	char *p, *q = binpool_alloc(thp, MIB), *nothing;

	(void)state;
	assert_int_equal(binpool_export(thp, q, &good), -EOPNOTSUPP);
	assert_error_names("thp");
	assert_ok(binpool_free(thp, q));
	assert_ok(binpool_destroy(thp));
	assert_int_equal(binpool_import_check(NULL), -EINVAL);
	assert_int_equal(binpool_import_close(NULL), -EINVAL);
	assert_null(binpool_import_ptr(NULL));
	need_pages();
	pool = file_pool();
	p = binpool_alloc(pool, MIB);
	nothing = binpool_alloc(pool, 0);
	before = stats_of(pool);
	assert_int_equal(binpool_export(NULL, p, &good), -EINVAL);
	assert_int_equal(binpool_export(pool, NULL, &good), -EINVAL);
	assert_int_equal(binpool_export(pool, p + 64, &good), -EINVAL);
	assert_int_equal(binpool_export(pool, &s, &good), -EINVAL);
	assert_int_equal(binpool_export(pool, p, NULL), -EINVAL);
	assert_int_equal(binpool_export(pool, nothing, &good), -EOPNOTSUPP);
	s.size = 0;
	assert_int_equal(binpool_export(pool, p, &s), -EINVAL);
	assert_ok(binpool_export(pool, p, &good));
	assert_int_equal(binpool_import(NULL, &good), -EINVAL);
	assert_int_equal(binpool_import(&i, NULL), -EINVAL);
#define REFUSED(err, member, value)                                                                \
	do {                                                                                       \
		s = good;                                                                          \
		s.member = value;                                                                  \
		assert_int_equal(binpool_import(&i, &s), err);                                     \
		assert_null(i);                                                                    \
	} while (0)
	REFUSED(-EINVAL, size, 4);
	REFUSED(-EBADF, extent_fd, -1);
	REFUSED(-EBADF, generation_fd, 9999);
	REFUSED(-EINVAL, generation_fd, good.extent_fd);
	REFUSED(-EINVAL, extent_fd, good.generation_fd);
	/* Neither sealed nor a block. */
	REFUSED(-EINVAL, extent_fd, zero);
	REFUSED(-EINVAL, offset, UINT64_MAX);
	REFUSED(-EINVAL, offset, 1024 * GIB);
	REFUSED(-EINVAL, bytes, 0);
	REFUSED(-EINVAL, bytes, UINT64_MAX);
	REFUSED(-EINVAL, unit, 0);
	REFUSED(-EINVAL, unit, 3);
	REFUSED(-EINVAL, unit, (uint64_t)1 << 63);
	REFUSED(-EINVAL, slot, 512);
	REFUSED(-EINVAL, reserved, 1);
	REFUSED(-ESTALE, generation, good.generation + 1);
	/* Nobody else writes a generation, nor seals the buffer, or makes it shorter or longer. */
	assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, good.generation_fd, 0) ==
		    MAP_FAILED);
	assert_true(ftruncate(good.generation_fd, 0) && pwrite(good.generation_fd, "x", 1, 0) < 0);
	assert_int_not_equal(fcntl(good.extent_fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
	assert_true(ftruncate(good.extent_fd, 0) && ftruncate(good.extent_fd, (off_t)GIB));
	after = stats_of(pool);
	assert_memory_equal(&before, &after, sizeof(before));
	share_close(&good);
	close(zero);
	assert_ok(binpool_free(pool, nothing));
	assert_ok(binpool_free(pool, p));
	assert_int_equal(binpool_export(pool, p, &good), -EINVAL);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(back_and_forth),
		cmocka_unit_test(exporter_killed),
		cmocka_unit_test(importer_killed),
		cmocka_unit_test(never_mixed),
		cmocka_unit_test(many),
		cmocka_unit_test(references),
		cmocka_unit_test(references_before_fences),
		cmocka_unit_test(bad_input),
	};

	return cmocka_run_group_tests_name("share", tests, have_pages, restore_pages);
}
