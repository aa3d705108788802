// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * disk HOW FILE direct|cached: a file goes to the device, as a whole. HOW:
 *
 *	pool	io_uring reads into buffers of a pool, DEPTH at once, and each is copied from
 *		there and freed on the stream
 *	ring	by hand: two buffers of cuMemHostAlloc by turns, read into by pread
 *	plain	read() into ordinary memory, copied from there
 *
 * "cached" leaves the file in the page cache, "direct" goes past it where the file system can.
 * Buffers and rings are made within the time that is told; the context and the device's memory are
 * there before. The data is looked at afterwards.
 *
 * file FILE BYTES makes one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAVE_URING
#include <binpool_uring.h>
#endif
#include <binpool_cuda.h>

#include "bench.h"

#define CHUNK	(4 * MIB)
#define DEPTH	8
#define WAIT_MS 20000

static const char *path;
static bool direct;
static int file = -1;
static size_t bytes;
static CUdeviceptr there;
static CUstream stream;
static double setup_ms;

static void check_read(ssize_t got, size_t at)
{
	if (got < 0)
		end(1, "%s at %zu: %s", path, at, strerror((int)-got));
	if (got != (ssize_t)CHUNK)
		end(1, "%s at %zu: %zd bytes were read", path, at, got);
}

/* ---- A pool ------------------------------------------------------------------------------- */

#ifdef HAVE_URING
static struct binpool *pool;
static struct binpool_uring *table;
static struct io_uring ring;

static void pool_open(void)
{
	struct binpool_options options = BINPOOL_OPTIONS_INIT;
	uint64_t id;
	int err;

	options.provider = BINPOOL_PROVIDER_THP;
	options.max_bytes = 2 * DEPTH * CHUNK;
	err = io_uring_queue_init(DEPTH, &ring, 0);
	if (err)
		end(IMPOSSIBLE, "there is no io_uring here: %s", strerror(-err));
	POOL(binpool_create(&pool, &options));
	POOL(binpool_cuda_attach(pool, 0, &id));
	POOL(binpool_reserve(pool, options.max_bytes));
	POOL(binpool_uring_attach(pool, &ring, 2 * DEPTH, &table));
	if (binpool_uring_sync(table) <= 0)
		printf("# not as fixed buffers: %s\n", binpool_uring_reason(table));
}

static char *pool_take(void)
{
	const struct binpool_alloc_opts want = {
		.size = sizeof(want),
		.bytes = CHUNK,
		.flags = BINPOOL_BUF_WAIT,
		.wait_ms = WAIT_MS,
	};
	struct binpool_buf buf = {.size = sizeof(buf)};

	POOL(binpool_alloc_ex(pool, &want, &buf));
	return buf.ptr;
}

/* What is being read, by its place in the queue. */
static struct reading {
	char *ptr;
	size_t at;
} readings[DEPTH];

static void pool_read(struct reading *r, size_t at)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
	int slot, err;

	r->ptr = pool_take();
	r->at = at;
	slot = binpool_uring_find(table, r->ptr, CHUNK);
	if (slot >= 0)
		io_uring_prep_read_fixed(sqe, file, r->ptr, (unsigned int)CHUNK, at, slot);
	else
		io_uring_prep_read(sqe, file, r->ptr, (unsigned int)CHUNK, at);
	io_uring_sqe_set_data(sqe, r);
	err = io_uring_submit(&ring);
	if (err != 1)
		end(1, "io_uring_submit: %s", strerror(-err));
}

static void pool_run(void)
{
	struct io_uring_cqe *cqe;
	struct reading *r;
	size_t next = 0;
	int err;

	for (size_t i = 0; i < DEPTH && next < bytes; i++, next += CHUNK)
		pool_read(&readings[i], next);
	for (size_t done = 0; done < bytes; done += CHUNK) {
		err = io_uring_wait_cqe(&ring, &cqe);
		if (err)
			end(1, "io_uring_wait_cqe: %s", strerror(-err));
		r = io_uring_cqe_get_data(cqe);
		check_read(cqe->res, r->at);
		io_uring_cqe_seen(&ring, cqe);
		CU(MemcpyHtoDAsync_v2(there + r->at, r->ptr, CHUNK, stream));
		POOL(binpool_free_on_cuda_stream(pool, r->ptr, stream));
		if (next < bytes) {
			pool_read(r, next);
			next += CHUNK;
		}
	}
}
#else
static void pool_open(void)
{
	end(IMPOSSIBLE, "this was built without liburing's headers");
}

static void pool_run(void)
{
}
#endif

/* ---- By hand ----------------------------------------------------------------------------------
 */

static char *buffers[2];
static CUevent events[2];

static void ring_open(void)
{
	/* O_DIRECT wants them at the border of a block, which pages have. */
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *all;

	CU(MemHostAlloc(&all, 2 * CHUNK + page, 0));
	buffers[0] = (char *)(((uintptr_t)all + page - 1) & ~(page - 1));
	buffers[1] = buffers[0] + CHUNK;
	for (int i = 0; i < 2; i++)
		CU(EventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
}

static void ring_run(void)
{
	for (size_t at = 0; at < bytes; at += CHUNK) {
		size_t i = at / CHUNK % 2;
		ssize_t got;

		CU(EventSynchronize(events[i]));
		got = pread(file, buffers[i], CHUNK, (off_t)at);
		check_read(got < 0 ? -errno : got, at);
		CU(MemcpyHtoDAsync_v2(there + at, buffers[i], CHUNK, stream));
		CU(EventRecord(events[i], stream));
	}
}

static void plain_open(void)
{
	buffers[0] = malloc(CHUNK);
	if (!buffers[0])
		end(1, "malloc failed");
}

static void plain_run(void)
{
	for (size_t at = 0; at < bytes; at += CHUNK) {
		ssize_t got = pread(file, buffers[0], CHUNK, (off_t)at);

		check_read(got < 0 ? -errno : got, at);
		CU(MemcpyHtoD_v2(there + at, buffers[0], CHUNK));
	}
}

static const struct way {
	const char *name;
	void (*open)(void);
	void (*run)(void);
	bool direct; /* it can go past the page cache */
} ways[] = {
	{"pool", pool_open, pool_run, true},
	{"ring", ring_open, ring_run, true},
	{"plain", plain_open, plain_run, false},
};

/* ---- Both -------------------------------------------------------------------------------------
 */

static void file_open(const struct way *way)
{
	struct stat st;

	if (direct && way->direct) {
		file = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
		if (file < 0)
			printf("# the file system has no O_DIRECT: the page cache is in between\n");
	}
	if (file < 0)
		file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0 || fstat(file, &st))
		end(1, "%s: %m", path);
	bytes = (size_t)st.st_size;
	if (!bytes || bytes % CHUNK)
		end(1, "%s: not a number of %zu bytes", path, CHUNK);
	if (direct)
		posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
}

static void look(void)
{
	char *back;

	CU(MemHostAlloc((void **)&back, CHUNK, 0));
	for (size_t at = 0; at < bytes; at += CHUNK) {
		CU(MemcpyDtoH_v2(back, there + at, CHUNK));
		if (pattern_check(back, CHUNK, at / CHUNK) != CHUNK)
			end(1, "data on the device is wrong, in the %zu bytes at %zu", CHUNK, at);
	}
}

int disk_main(char **args)
{
	const struct way *way = NULL;
	double start, took, cpu;

	if (!args[0] || !args[1] || !args[2])
		end(1, "disk HOW FILE direct|cached");
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (!strcmp(args[0], ways[i].name))
			way = &ways[i];
	if (!way)
		end(1, "no such way: %s", args[0]);
	path = args[1];
	direct = !strcmp(args[2], "direct");
	cuda_open();
	CU(StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	file_open(way);
	CU(MemAlloc_v2(&there, bytes));
	CU(CtxSynchronize());

	cpu = cpu_ms();
	start = now_ms();
	way->open();
	setup_ms = now_ms() - start;
	way->run();
	CU(StreamSynchronize(stream));
	took = now_ms() - start;
	printf("rate_GBps %.3f\nsetup_ms %.3f\nGiB_cpu_ms %.2f\n", (double)bytes / took / 1e6,
	       setup_ms, (cpu_ms() - cpu) * (double)GIB / (double)bytes);
	look();
	return 0;
}

int file_main(char **args)
{
	size_t size, done = 0;
	char *chunk;

	if (!args[0] || !args[1])
		end(1, "file FILE BYTES");
	size = bytes_of(args[1]) / CHUNK * CHUNK;
	path = args[0];
	chunk = malloc(CHUNK);
	file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (!chunk || file < 0)
		end(IMPOSSIBLE, "%s: %m", path);
	for (; done < size; done += CHUNK) {
		pattern_fill(chunk, CHUNK, done / CHUNK);
		if (write(file, chunk, CHUNK) != (ssize_t)CHUNK)
			end(IMPOSSIBLE, "%s, after %zu MiB: %m", path, done / MIB);
	}
	/* So that it can be dropped from the page cache. */
	if (fsync(file))
		end(IMPOSSIBLE, "%s: %m", path);
	return 0;
}
