// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * io_uring on a real ring and a real file: fixed reads into pool buffers, and
 * the table's changes when extents come and go.
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <binpool_uring.h>

#include "pool.h"

#define FILE_BYTES   (8 * MIB)
#define NR_HUGEPAGES "/proc/sys/vm/nr_hugepages"

static int file = -1;
static char path[] = "/var/tmp/binpool-uring-XXXXXX";

static unsigned char byte_at(uint64_t offset)
{
	return (unsigned char)(offset * 31 + (offset >> 12) * 7);
}

static int make_file(void **state)
{
	char *bytes = malloc(FILE_BYTES);
	int fd = mkstemp(path);

	(void)state;
	if (fd < 0 || !bytes)
		return -1;
	for (uint64_t i = 0; i < FILE_BYTES; i++)
		bytes[i] = (char)byte_at(i);
	if (write(fd, bytes, FILE_BYTES) != (ssize_t)FILE_BYTES || fsync(fd))
		return -1;
	free(bytes);
	close(fd);
	file = open(path, O_RDONLY | O_DIRECT);
	if (file < 0) {
		printf("# %s: no O_DIRECT there, reading through the page cache\n", path);
		file = open(path, O_RDONLY);
	}
	return file < 0 ? -1 : 0;
}

static int remove_file(void **state)
{
	(void)state;
	close(file);
	unlink(path);
	return 0;
}

/* Reads from the file into a pool buffer and compares; whether it was a fixed read. */
static bool read_and_check(struct io_uring *ring, struct binpool_uring *u, char *p, uint64_t bytes,
			   uint64_t offset)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	struct io_uring_cqe *cqe;
	int slot = binpool_uring_find(u, p, bytes);

	memset(p, 0, bytes);
	if (slot >= 0)
		io_uring_prep_read_fixed(sqe, file, p, (unsigned int)bytes, offset, slot);
	else
		io_uring_prep_read(sqe, file, p, (unsigned int)bytes, offset);
	assert_int_equal(io_uring_submit(ring), 1);
	assert_int_equal(io_uring_wait_cqe(ring, &cqe), 0);
	if (cqe->res != (int)bytes)
		fail_msg("read of %llu bytes, slot %d: %d", (unsigned long long)bytes, slot,
			 cqe->res);
	io_uring_cqe_seen(ring, cqe);
	for (uint64_t i = 0; i < bytes; i++)
		if ((unsigned char)p[i] != byte_at(offset + i))
			fail_msg("byte %llu is wrong", (unsigned long long)i);
	return slot >= 0;
}

static void reads_on(struct binpool *pool)
{
	struct binpool_uring *u;
	struct io_uring ring;
	char *p[4];

	assert_int_equal(io_uring_queue_init(8, &ring, 0), 0);
	p[0] = binpool_alloc_aligned(pool, MIB, 4096);
	assert_ok(binpool_uring_attach(pool, &ring, 16, &u));
	assert_string_equal(binpool_uring_reason(u), "");
	for (int i = 1; i < 4; i++)
		p[i] = binpool_alloc_aligned(pool, (uint64_t)i * 3 * MIB, 4096);
	assert_true(p[0] && p[1] && p[2] && p[3]);
	/* Known only after a sync. */
	assert_true(binpool_uring_find(u, p[0], MIB) >= 0);
	assert_int_equal(binpool_uring_find(u, p[3], 9 * MIB), -1);
	assert_int_equal(binpool_uring_sync(u), stats_of(pool).extents);
	for (int i = 0; i < 4; i++)
		assert_true(read_and_check(&ring, u, p[i], MIB, (uint64_t)i * MIB));
	/* Part of a buffer, at an odd place of the file in the page's terms. */
	assert_true(read_and_check(&ring, u, p[3] + 4096, 8192, 512 * 9));
	assert_int_equal(binpool_uring_find(u, p, 8), -1);
	assert_int_equal(binpool_uring_find(u, p[0], SIZE_MAX), -1);
	for (int i = 0; i < 4; i++)
		assert_ok(binpool_free(pool, p[i]));
	assert_ok(binpool_uring_detach(u));
	assert_int_equal(stats_of(pool).registrations, 0);
	/* The ring is the caller's, and may have a table again. */
	assert_ok(binpool_uring_attach(pool, &ring, 1, &u));
	assert_ok(binpool_uring_detach(u));
	io_uring_queue_exit(&ring);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

static void reads_thp(void **state)
{
	(void)state;
	reads_on(thp_pool(64 * MIB));
}

static void reads_hugetlb(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	uint64_t before = sys_number(0, NR_HUGEPAGES);
	struct binpool *pool;
	FILE *f = fopen(NR_HUGEPAGES, "w");
	bool there = false;

	(void)state;
	if (f) {
		fprintf(f, "%llu\n", (unsigned long long)before + 16);
		fclose(f);
		there = sys_number(0, NR_HUGEPAGES) >= before + 16;
	}
	if (there) {
		o.provider = BINPOOL_PROVIDER_HUGETLB;
		assert_ok(binpool_create(&pool, &o));
		reads_on(pool);
	}
	f = fopen(NR_HUGEPAGES, "w");
	if (f) {
		fprintf(f, "%llu\n", (unsigned long long)before);
		fclose(f);
	}
	if (!there) {
		printf("# cannot have huge pages through " NR_HUGEPAGES "\n");
		skip();
	}
}

/* Blocks of the module: fixed reads where the kernel can, else a reason and plain reads. */
static void reads_device(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool_uring *u;
	struct binpool *pool;
	struct io_uring ring;
	char *p;

	(void)state;
	if (access("/dev/binpool", F_OK)) {
		printf("# no /dev/binpool: the module is not loaded\n");
		skip();
	}
	o.provider = BINPOOL_PROVIDER_DEVICE;
	assert_ok(binpool_create(&pool, &o));
	assert_int_equal(io_uring_queue_init(8, &ring, 0), 0);
	assert_ok(binpool_uring_attach(pool, &ring, 4, &u));
	p = binpool_alloc(pool, 4 * MIB);
	assert_non_null(p);
	if (binpool_uring_sync(u)) {
		assert_string_equal(binpool_uring_reason(u), "");
		assert_true(read_and_check(&ring, u, p, 4 * MIB, MIB));
	} else {
		printf("# not registered: %s\n", binpool_uring_reason(u));
		assert_non_null(strstr(binpool_uring_reason(u), "6.12"));
		assert_false(read_and_check(&ring, u, p, 4 * MIB, MIB));
	}
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_uring_detach(u));
	io_uring_queue_exit(&ring);
	assert_ok(binpool_destroy(pool));
}

/* An extent that went is not found, though a new one is at its addresses. */
static void extents_go(void **state)
{
	struct binpool *pool = thp_pool(0);
	struct binpool_uring *u;
	struct io_uring ring;
	char *p, *q;
	int again = 0;

	(void)state;
	assert_int_equal(io_uring_queue_init(8, &ring, 0), 0);
	assert_ok(binpool_uring_attach(pool, &ring, 2, &u));
	for (int i = 0; i < 20; i++) {
		p = binpool_alloc(pool, 4 * MIB);
		assert_non_null(p);
		assert_int_equal(binpool_uring_sync(u), 1);
		assert_true(binpool_uring_find(u, p, 4 * MIB) >= 0);
		assert_true(read_and_check(&ring, u, p, 4 * MIB, 0));
		assert_ok(binpool_free(pool, p));
		assert_ok(binpool_free_held(pool));
		assert_int_equal(binpool_uring_find(u, p, 4 * MIB), -1);
		q = binpool_alloc(pool, 4 * MIB);
		assert_non_null(q);
		again += p == q;
		assert_int_equal(binpool_uring_find(u, q, 4 * MIB), -1);
		assert_false(read_and_check(&ring, u, q, MIB, MIB));
		assert_int_equal(binpool_uring_sync(u), 1);
		/* The new one's own slot: the bytes are in the memory we see. */
		assert_true(read_and_check(&ring, u, q, 4 * MIB, 2 * MIB));
		assert_ok(binpool_free(pool, q));
		assert_ok(binpool_free_held(pool));
	}
	printf("# the address came back %d times of 20\n", again);
	assert_true(again > 0);
	assert_int_equal(binpool_uring_sync(u), 0);
	assert_ok(binpool_uring_detach(u));
	io_uring_queue_exit(&ring);
	assert_ok(binpool_destroy(pool));
}

/* More extents than slots: the rest is read without, and served when slots are free. */
static void too_few_slots(void **state)
{
	struct binpool *pool = thp_pool(0);
	struct binpool_uring *u;
	struct io_uring ring;
	char *p[3];
	int fixed = 0;

	(void)state;
	assert_int_equal(io_uring_queue_init(8, &ring, 0), 0);
	assert_ok(binpool_uring_attach(pool, &ring, 2, &u));
	for (int i = 0; i < 3; i++)
		p[i] = binpool_alloc(pool, 4 * MIB);
	assert_int_equal(binpool_uring_sync(u), 2);
	assert_non_null(strstr(binpool_uring_reason(u), "2 slots"));
	for (int i = 0; i < 3; i++)
		fixed += read_and_check(&ring, u, p[i], MIB, 0);
	assert_int_equal(fixed, 2);
	for (int i = 0; i < 2; i++)
		assert_ok(binpool_free(pool, p[i]));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(binpool_uring_sync(u), 1);
	assert_string_equal(binpool_uring_reason(u), "");
	assert_true(read_and_check(&ring, u, p[2], MIB, 0));
	assert_ok(binpool_free(pool, p[2]));
	/* The pool may go first. */
	assert_ok(binpool_destroy(pool));
	assert_int_equal(binpool_uring_sync(u), 0);
	assert_ok(binpool_uring_detach(u));
	io_uring_queue_exit(&ring);
}

static void bad_arguments(void **state)
{
	struct binpool *pool = thp_pool(0);
	struct binpool_uring *u, *second;
	struct io_uring ring;

	(void)state;
	assert_int_equal(io_uring_queue_init(8, &ring, 0), 0);
	assert_int_equal(binpool_uring_attach(NULL, &ring, 2, &u), -EINVAL);
	assert_int_equal(binpool_uring_attach(pool, NULL, 2, &u), -EINVAL);
	assert_int_equal(binpool_uring_attach(pool, &ring, 2, NULL), -EINVAL);
	assert_int_equal(binpool_uring_attach(pool, &ring, 0, &u), -EINVAL);
	assert_int_equal(binpool_uring_attach(pool, &ring, 16385, &u), -EINVAL);
	assert_ok(binpool_uring_attach(pool, &ring, 16384, &u));
	assert_int_equal(binpool_uring_attach(pool, &ring, 2, &second), -EBUSY);
	assert_null(second);
	assert_ok(binpool_uring_detach(u));
	assert_int_equal(binpool_uring_detach(NULL), -EINVAL);
	assert_int_equal(binpool_uring_sync(NULL), -EINVAL);
	assert_int_equal(binpool_uring_find(NULL, &u, 1), -1);
	assert_string_equal(binpool_uring_reason(NULL), "");
	io_uring_queue_exit(&ring);
	assert_ok(binpool_destroy(pool));
}

/* Without the right to lock memory: a reason with the limit, and plain reads work. */
static void memlock(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	fflush(NULL);
	pid = fork();
	if (!pid) {
		struct rlimit limit = {MIB, MIB};
		struct binpool *pool = thp_pool(0);
		struct binpool_uring *u;
		struct io_uring ring;
		char *p;

		/* It may be raised later. */
		limit.rlim_max = 8 * MIB;
		if (setrlimit(RLIMIT_MEMLOCK, &limit) || (!getuid() && setuid(65534)) ||
		    io_uring_queue_init(8, &ring, 0) || binpool_uring_attach(pool, &ring, 4, &u))
			_exit(1);
		p = binpool_alloc(pool, 4 * MIB);
		if (!p || binpool_uring_sync(u) || binpool_uring_find(u, p, 4 * MIB) != -1)
			_exit(2);
		if (!strstr(binpool_uring_reason(u), "RLIMIT_MEMLOCK"))
			_exit(3);
		if (read_and_check(&ring, u, p, MIB, MIB))
			_exit(4);
		/* The reason goes with what was refused. */
		limit.rlim_cur = limit.rlim_max;
		if (setrlimit(RLIMIT_MEMLOCK, &limit) || binpool_free(pool, p) ||
		    binpool_free_held(pool))
			_exit(5);
		p = binpool_alloc(pool, 4 * MIB);
		if (!p || binpool_uring_sync(u) != 1 || *binpool_uring_reason(u))
			_exit(6);
		_exit(binpool_uring_detach(u) ? 7 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* What a child that may lock @limit bytes, and is nobody, ends with; 0 is good. */
static void as_nobody(int (*fn)(void), rlim_t limit)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (!pid) {
		struct rlimit l = {limit, limit};

		if (setrlimit(RLIMIT_MEMLOCK, &l) || (!getuid() && setuid(65534)))
			_exit(1);
		_exit(fn());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static bool kernel_clones(void)
{
	struct utsname name;
	int major = 0, minor = 0;

	return !uname(&name) && sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
	       (major > 6 || (major == 6 && minor >= 12));
}

/* A pool's second ring has what the first has, and the kernel charges it once. */
static int has_clones(void)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct binpool_uring *u[3];
	struct io_uring ring[3];
	char *p = binpool_alloc(pool, 4 * MIB), *q;

	for (int i = 0; i < 3; i++)
		if (io_uring_queue_init(8, &ring[i], 0) ||
		    binpool_uring_attach(pool, &ring[i], i < 2 ? 4 : 5, &u[i]))
			return 2;
	if (binpool_uring_find(u[0], p, 4 * MIB) < 0 || *binpool_uring_reason(u[0]))
		return 3;
	/* One with another table is not made like that, and finds the limit used up. */
	if (binpool_uring_find(u[2], p, 4 * MIB) >= 0 ||
	    !strstr(binpool_uring_reason(u[2]), "RLIMIT_MEMLOCK is 5242880 bytes") ||
	    !strstr(binpool_uring_reason(u[2]), "needs 4194304 more") ||
	    !strstr(binpool_uring_reason(u[2]), "have 4194304"))
		return 4;
	if (!kernel_clones()) {
		printf("# this kernel clones no tables: Linux 6.12 does\n");
		return strstr(binpool_uring_reason(u[1]), "have 4194304") ? 0 : 5;
	}
	if (!read_and_check(&ring[0], u[0], p, MIB, 0) ||
	    !read_and_check(&ring[1], u[1], p + MIB, MIB, MIB))
		return 6;
	/* The first is gone, and the second stays as it is. */
	if (binpool_uring_detach(u[0]) || !read_and_check(&ring[1], u[1], p, MIB, 2 * MIB))
		return 7;
	if (binpool_free(pool, p) || binpool_free_held(pool) || binpool_uring_sync(u[1]))
		return 8;
	/* Nothing is charged any more: as much can be registered again. */
	q = binpool_alloc(pool, 4 * MIB);
	if (!q || binpool_uring_sync(u[1]) != 1 || !read_and_check(&ring[1], u[1], q, MIB, 3 * MIB))
		return 9;
	return 0;
}

static void clones(void **state)
{
	(void)state;
	as_nobody(has_clones, 5 * MIB);
}

/* What the first ring still has of memory that is gone is not taken over. */
static void clones_no_ghosts(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct binpool_uring *u[2];
	struct io_uring ring[2];
	char *p, *q;

	(void)state;
	for (int i = 0; i < 2; i++)
		assert_int_equal(io_uring_queue_init(8, &ring[i], 0), 0);
	assert_ok(binpool_uring_attach(pool, &ring[0], 4, &u[0]));
	q = binpool_alloc(pool, 4 * MIB);
	/* Another extent, at the same addresses. */
	for (int i = 0; i < 20; i++) {
		p = q;
		assert_int_equal(binpool_uring_sync(u[0]), 1);
		assert_ok(binpool_free(pool, p));
		assert_ok(binpool_free_held(pool));
		q = binpool_alloc(pool, 4 * MIB);
		if (p == q)
			break;
	}
	assert_ptr_equal(p, q);
	/* The first ring's table is that of before. */
	assert_ok(binpool_uring_attach(pool, &ring[1], 4, &u[1]));
	assert_true(read_and_check(&ring[1], u[1], q, MIB, MIB));
	assert_int_equal(binpool_uring_sync(u[1]), 1);
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(binpool_uring_sync(u[1]), 0);
	for (int i = 0; i < 2; i++) {
		assert_ok(binpool_uring_detach(u[i]));
		io_uring_queue_exit(&ring[i]);
	}
	assert_ok(binpool_destroy(pool));
}

static void *grow_and_sync(void *arg)
{
	struct binpool_uring *none;
	void **args = arg;

	args[2] = binpool_alloc(args[0], 4 * MIB);
	/* It is not this thread's ring, nor is the other. */
	args[3] = (void *)(intptr_t)binpool_uring_sync(args[1]);
	args[5] = (void *)(intptr_t)binpool_uring_attach(args[0], args[4], 4, &none);
	args[6] = (void *)(intptr_t)binpool_uring_detach(args[1]);
	return NULL;
}

/* A ring that takes its own thread only: the pool's are others. */
static void single_issuer(void **state)
{
	struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER};
	struct binpool *pool = thp_pool(64 * MIB);
	struct binpool_uring *u;
	struct io_uring ring, other;
	void *args[7] = {pool};
	pthread_t thread;
	char *p;

	(void)state;
	assert_int_equal(io_uring_queue_init_params(8, &ring, &params), 0);
	assert_int_equal(io_uring_queue_init(8, &other, IORING_SETUP_SINGLE_ISSUER), 0);
	assert_ok(binpool_uring_attach(pool, &ring, 4, &u));
	args[1] = u;
	args[4] = &other;
	assert_int_equal(pthread_create(&thread, NULL, grow_and_sync, args), 0);
	pthread_join(thread, NULL);
	p = args[2];
	assert_non_null(p);
	assert_int_equal((intptr_t)args[3], -EEXIST);
	assert_int_equal((intptr_t)args[5], -EEXIST);
	assert_int_equal((intptr_t)args[6], -EEXIST);
	assert_int_equal(stats_of(pool).registrations, 1);
	assert_int_equal(binpool_uring_find(u, p, MIB), -1);
	assert_int_equal(binpool_uring_sync(u), 1);
	assert_true(read_and_check(&ring, u, p, MIB, MIB));
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_uring_detach(u));
	io_uring_queue_exit(&other);
	io_uring_queue_exit(&ring);
	assert_ok(binpool_destroy(pool));
}

/* Much memory that is little: the same pages again and again. */
static int repeat_alloc(void *ctx, uint64_t bytes, void **ptr)
{
	const uint64_t step = 2 * MIB;
	char *base =
		mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (base == MAP_FAILED)
		return -ENOMEM;
	for (uint64_t at = 0; at < bytes; at += step)
		if (mmap(base + at, bytes - at < step ? bytes - at : step, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_FIXED, *(int *)ctx, 0) == MAP_FAILED)
			return -ENOMEM;
	*ptr = base;
	return 0;
}

static void repeat_free(void *ctx, void *ptr, uint64_t bytes)
{
	(void)ctx;
	munmap(ptr, bytes);
}

/* The kernel takes a GiB at most: where a piece ends is seen, and read across without. */
static void border(void **state)
{
	int fd = memfd_create("repeat", MFD_CLOEXEC);
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops), .ctx = &fd, .alloc = repeat_alloc, .free = repeat_free};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool_uring *u;
	struct binpool *pool;
	struct io_uring ring;
	char *p;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 2 * MIB), 0);
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	assert_ok(binpool_create(&pool, &o));
	p = binpool_alloc(pool, GIB + 2 * MIB);
	assert_non_null(p);
	assert_int_equal(io_uring_queue_init(8, &ring, 0), 0);
	/* All of an extent or nothing. */
	assert_ok(binpool_uring_attach(pool, &ring, 1, &u));
	assert_int_equal(binpool_uring_sync(u), 0);
	assert_non_null(strstr(binpool_uring_reason(u), "slots"));
	assert_int_equal(binpool_uring_find(u, p, 4096), -1);
	assert_ok(binpool_uring_detach(u));
	assert_ok(binpool_uring_attach(pool, &ring, 3, &u));
	assert_string_equal(binpool_uring_reason(u), "");
	assert_int_equal(binpool_uring_sync(u), 2);
	assert_true(binpool_uring_find(u, p + GIB - 4096, 4096) >= 0);
	assert_true(binpool_uring_find(u, p + GIB, 4096) >= 0);
	assert_int_not_equal(binpool_uring_find(u, p + GIB - 4096, 4096),
			     binpool_uring_find(u, p + GIB, 4096));
	assert_int_equal(binpool_uring_find(u, p + GIB - 4096, 8192), -1);
	assert_true(read_and_check(&ring, u, p + GIB - 8192, 8192, 0));
	assert_true(read_and_check(&ring, u, p + GIB, 8192, 16384));
	assert_false(read_and_check(&ring, u, p + GIB - 4096, 8192, 32768));
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(binpool_uring_sync(u), 0);
	assert_ok(binpool_uring_detach(u));
	io_uring_queue_exit(&ring);
	assert_ok(binpool_destroy(pool));
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_thp),	    cmocka_unit_test(reads_hugetlb),
		cmocka_unit_test(reads_device),	    cmocka_unit_test(extents_go),
		cmocka_unit_test(too_few_slots),    cmocka_unit_test(bad_arguments),
		cmocka_unit_test(memlock),	    cmocka_unit_test(clones),
		cmocka_unit_test(clones_no_ghosts), cmocka_unit_test(single_issuer),
		cmocka_unit_test(border),
	};

	return cmocka_run_group_tests_name("uring", tests, make_file, remove_file);
}
