// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Kernels that do not let memory be unmapped, since there are as many mappings as there may be
 * (vm.max_map_count): it stays counted and is tried again, or goes without its addresses.
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faulty.h"
#include "pool.h"

/* Mappings cannot be split, whose memory is not bookkeeping; and as before Linux 5.18. */
static bool full, old;

int __real_munmap(void *at, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset);
int __real_madvise(void *at, size_t bytes, int advice);
int __real_munlock(const void *at, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);

int __wrap_munmap(void *at, size_t bytes)
{
	if (full && bytes >= MIB) {
		errno = ENOMEM;
		return -1;
	}
	return __real_munmap(at, bytes);
}

void *__wrap_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	if (full && flags & MAP_FIXED) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return __real_mmap(at, bytes, prot, flags, fd, offset);
}

/* Of this pool all spare runs are away, and no more can be had. */
static struct binpool *poor;
static struct run *spares;

static void runs_hide(void)
{
	struct arena *arena = &poor->arena;

	pool_lock(poor);
	spares = arena->spare;
	arena->spare = NULL;
	arena->spares = 0;
	pool_unlock(poor);
}

static void runs_show(void)
{
	struct run *next;

	pool_lock(poor);
	for (struct run *run = spares; run; run = next) {
		next = run->next;
		run_delete(&poor->arena, run);
	}
	pool_unlock(poor);
	spares = NULL;
	poor = NULL;
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
	return spares ? NULL : __real_aligned_alloc(align, bytes);
}

int __wrap_madvise(void *at, size_t bytes, int advice)
{
	if (poor && !spares && advice == MADV_POPULATE_WRITE)
		runs_hide();
	/* DONTNEED_LOCKED, which they do not know; nor the other where memory is locked. */
	if (old && (advice == 24 || (full && advice == MADV_DONTNEED))) {
		errno = EINVAL;
		return -1;
	}
	return __real_madvise(at, bytes, advice);
}

int __wrap_munlock(const void *at, size_t bytes)
{
	if (old && full) {
		errno = ENOMEM;
		return -1;
	}
	return __real_munlock(at, bytes);
}

static int ordinary(void **state)
{
	(void)state;
	full = old = false;
	return 0;
}

static uint64_t resident(void)
{
	unsigned long long pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%*u %llu", &pages), 1);
	fclose(f);
	return pages * page_size();
}

/* Extents that stay are reserved still, and no more is reserved than may be. */
static void whole_extents(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	struct faulty_registrar r = {.attached = 0};
	struct binpool_ptr_info info = {.size = sizeof(info)};
	struct binpool_stats s;
	uint64_t id;
	void *p;

	(void)state;
	assert_ok(faulty_registrar_add(pool, &r, &id));
	p = binpool_alloc(pool, 40 * MIB);
	assert_non_null(p);
	assert_ok(binpool_free(pool, p));
	full = true;
	for (int i = 0; i < 2; i++) {
		assert_ok(binpool_free_held(pool));
		s = stats_of(pool);
		assert_in_range(s.reserved_bytes, 40 * MIB, 64 * MIB);
		assert_int_equal(s.extents, 1);
		assert_int_equal(s.extent_frees, 0);
		assert_int_equal(s.held_blocks, 0);
		/* Nobody knows of it any more. */
		assert_int_equal(r.attached, 0);
		assert_int_equal(binpool_query(p, &info), -ENOENT);
		assert_int_equal(binpool_trim(pool, 0, 0), 0);
		check_pool(pool);
	}
	assert_null(binpool_alloc(pool, 40 * MIB));
	assert_int_equal(errno, ENOSPC);
	/* What is left can be had. */
	p = binpool_alloc(pool, 8 * MIB);
	assert_non_null(p);
	assert_ok(binpool_free(pool, p));
	assert_int_equal(binpool_destroy(pool), -ENOMEM);
	assert_error_names("max_map_count");
	assert_int_equal(stats_of(pool).extents, 2);
	check_pool(pool);
	full = false;
	/* When it can go, whoever needs it finds out. */
	p = binpool_alloc(pool, 64 * MIB);
	assert_non_null(p);
	check_pool(pool);
	assert_ok(binpool_free(pool, p));
	full = true;
	assert_ok(binpool_free_held(pool));
	full = false;
	assert_int_equal(binpool_trim(pool, 0, 0), 64 * MIB);
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(r.attached, 0);
}

/* Also one that was refused as soon as it was there. */
static void refused_by_a_registrar(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	struct faulty_registrar r = {.faults = {.gone = true}};
	uint64_t id;

	(void)state;
	assert_ok(faulty_registrar_add(pool, &r, &id));
	full = true;
	assert_null(binpool_alloc(pool, 16 * MIB));
	assert_int_equal(errno, ENODEV);
	assert_in_range(stats_of(pool).reserved_bytes, 16 * MIB, 64 * MIB);
	check_pool(pool);
	full = false;
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_ok(binpool_destroy(pool));
}

/* An extent's end: its memory goes without the addresses. */
static void ends(void **state)
{
	struct binpool *pool = thp_pool(256 * MIB);
	uint64_t reserved, before;
	void *kept, *p;

	(void)state;
	kept = binpool_alloc(pool, MIB);
	p = binpool_alloc(pool, 100 * MIB);
	assert_true(kept && p);
	assert_int_equal(stats_of(pool).extents, 1);
	memset(p, 1, 100 * MIB);
	assert_ok(binpool_free(pool, p));
	reserved = stats_of(pool).reserved_bytes;
	before = resident();
	full = true;
	assert_ok(binpool_free_held(pool));
	full = false;
	reserved -= stats_of(pool).reserved_bytes;
	assert_true(reserved >= 100 * MIB);
	assert_true(resident() + reserved <= before + 8 * MIB);
	check_pool(pool);
	/* Elsewhere, or there. */
	p = binpool_alloc(pool, 100 * MIB);
	assert_non_null(p);
	memset(p, 2, 100 * MIB);
	assert_ok(binpool_free_sized(pool, p, 100 * MIB));
	assert_ok(binpool_free(pool, kept));
	assert_ok(binpool_destroy(pool));
}

/* Where not even that goes it is the pool's as before, and not taken for zero. */
static void ends_that_stay(void **state)
{
	struct binpool_alloc_opts o = {
		.size = sizeof(o), .bytes = 100 * MIB, .flags = BINPOOL_BUF_ZEROED};
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool *pool = thp_pool(128 * MIB);
	struct binpool_stats before, after;
	void *kept;
	char *p;

	(void)state;
	kept = binpool_alloc(pool, 2 * MIB);
	p = binpool_alloc(pool, 100 * MIB);
	assert_true(kept && p);
	memset(p, 1, 100 * MIB);
	assert_ok(binpool_free(pool, p));
	before = stats_of(pool);
	full = old = true;
	assert_ok(binpool_free_held(pool));
	after = stats_of(pool);
	assert_int_equal(after.reserved_bytes, before.reserved_bytes);
	assert_int_equal(after.extent_shrinks, 0);
	assert_int_equal(after.held_blocks, 0);
	check_pool(pool);
	assert_int_equal(binpool_trim(pool, 0, 0), 0);
	assert_ok(binpool_alloc_ex(pool, &o, &buf));
	assert_ptr_equal(buf.ptr, p);
	for (uint64_t i = 0; i < 100 * MIB; i += 4096)
		assert_int_equal(p[i], 0);
	assert_int_equal(stats_of(pool).extent_allocs, before.extent_allocs);
	assert_ok(binpool_free(pool, buf.ptr));
	full = old = false;
	assert_ok(binpool_free_held(pool));
	assert_true(stats_of(pool).reserved_bytes <= before.reserved_bytes - 100 * MIB);
	check_pool(pool);
	assert_ok(binpool_free(pool, kept));
	assert_ok(binpool_destroy(pool));
}

/*
 * Where there is no memory for bookkeeping when an extent has grown in place, which cannot be
 * undone: what it grew by is the pool's all the same.
 */
static void growth_that_stays(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	uint64_t reserved;
	void *p, *q;

	(void)state;
	p = binpool_alloc(pool, 4 * MIB);
	assert_non_null(p);
	reserved = stats_of(pool).reserved_bytes;
	assert_int_equal(reserved, 4 * MIB);
	poor = pool;
	full = old = true;
	q = binpool_alloc(pool, 4 * MIB);
	assert_int_equal(errno, ENOMEM);
	assert_null(q);
	assert_error_names("bookkeeping");
	assert_non_null(spares);
	full = old = false;
	runs_show();
	reserved = stats_of(pool).reserved_bytes;
	assert_int_equal(reserved, 8 * MIB);
	assert_int_equal(pool->pending, 0);
	check_pool(pool);
	/* It is the next one's. */
	q = binpool_alloc(pool, 4 * MIB);
	assert_non_null(q);
	memset(q, 1, 4 * MIB);
	assert_int_equal(stats_of(pool).reserved_bytes, reserved);
	assert_int_equal(stats_of(pool).extent_extends, 1);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_int_equal(pool->pending, 0);
	assert_ok(binpool_destroy(pool));
}

/* An import stays what it is, to be closed later. */
static void imports(void **state)
{
	const int some = F_SEAL_SHRINK | F_SEAL_GROW;
	struct binpool_share s = {.size = sizeof(s), .bytes = MIB, .unit = MIB};
	struct binpool_import *i;
	char *p;

	(void)state;
	s.extent_fd = memfd_make("test", 0);
	s.generation_fd = memfd_make("test", 0);
	assert_int_equal(ftruncate(s.extent_fd, (off_t)MIB), 0);
	assert_int_equal(ftruncate(s.generation_fd, (off_t)page_size()), 0);
	assert_int_equal(fcntl(s.extent_fd, F_ADD_SEALS, some), 0);
	assert_int_equal(
		fcntl(s.generation_fd, F_ADD_SEALS, some | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL), 0);
	assert_ok(binpool_import(&i, &s));
	p = binpool_import_ptr(i);
	p[0] = 5;
	full = true;
	assert_int_equal(binpool_import_close(i), -ENOMEM);
	assert_error_names("max_map_count");
	assert_ok(binpool_import_check(i));
	assert_int_equal(p[0], 5);
	full = false;
	assert_ok(binpool_import_close(i));
	close(s.extent_fd);
	close(s.generation_fd);
}

/* A child has it as little as all else. */
static void in_a_child(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	int status;
	pid_t pid;

	(void)state;
	assert_ok(binpool_free(pool, binpool_alloc(pool, 16 * MIB)));
	full = true;
	assert_ok(binpool_free_held(pool));
	full = false;
	fflush(NULL);
	pid = fork();
	if (!pid)
		_exit(binpool_destroy(pool) ? 1 : 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(whole_extents, ordinary),
		cmocka_unit_test_teardown(refused_by_a_registrar, ordinary),
		cmocka_unit_test_teardown(ends, ordinary),
		cmocka_unit_test_teardown(ends_that_stay, ordinary),
		cmocka_unit_test_teardown(growth_that_stays, ordinary),
		cmocka_unit_test_teardown(imports, ordinary),
		cmocka_unit_test_teardown(in_a_child, ordinary),
	};

	return cmocka_run_group_tests_name("stuck", tests, NULL, NULL);
}
