// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * libcuda.so.1 for tests of bench-cuda where there is no device: device memory is the host's, and
 * copies that nobody waits for come late, so that a buffer which is used too early has other data.
 * Owns the ranges of pinned memory and the copies that are to come; one lock. For many threads.
 *
 * FAKE_CUDA_HANG in the environment: who asks for pinned memory never gets an answer.
 * FAKE_CUDA_WRONG: the last byte of a copy to the device is not copied.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT	      __attribute__((visibility("default")))
#define INVALID_VALUE 1
#define OUT_OF_MEMORY 2
#define NOT_READY     600
#define REGISTERED    712
#define RANGES	      4096
/* So many copies may be to come, and so often is an event asked before it is over. */
#define LATE	512
#define QUERIES 2

struct CUevent_st {
	unsigned long ticket;
	int queries;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	char *ptr;
	size_t bytes; /* 0: unused */
} ranges[RANGES];
static struct {
	void *to;
	const void *from;
	size_t bytes;
} late[LATE];
static unsigned long begun, done; /* copies */
static int the_context, streams[64], stream_count;
static __thread void *current;

/* ---- Copies: lock ------------------------------------------------------------------- */

static void finish(unsigned long ticket)
{
	for (; done < ticket; done++)
		memcpy(late[done % LATE].to, late[done % LATE].from, late[done % LATE].bytes);
}

static size_t find(const char *ptr, size_t bytes)
{
	size_t i;

	for (i = 0; i < RANGES; i++)
		if (ranges[i].bytes && ptr < ranges[i].ptr + ranges[i].bytes &&
		    ranges[i].ptr < ptr + bytes)
			break;
	return i;
}

/* From and to memory that is not pinned it is over when the call is. */
static int copy(void *to, const void *from, size_t bytes, const void *host)
{
	pthread_mutex_lock(&lock);
	if (begun - done == LATE)
		finish(done + 1);
	late[begun % LATE].to = to;
	late[begun % LATE].from = from;
	late[begun % LATE].bytes = bytes;
	begun++;
	if (!host || find(host, 1) == RANGES)
		finish(begun);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int wait_for_all(void)
{
	pthread_mutex_lock(&lock);
	finish(begun);
	pthread_mutex_unlock(&lock);
	return 0;
}

static void *pointer(unsigned long long at)
{
	return (void *)(uintptr_t)at;
}

static size_t right(size_t bytes)
{
	return bytes && getenv("FAKE_CUDA_WRONG") ? bytes - 1 : bytes;
}

EXPORT int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes)
{
	return copy(pointer(to), from, right(bytes), NULL);
}

EXPORT int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes)
{
	return copy(to, pointer(from), bytes, NULL);
}

EXPORT int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream)
{
	(void)stream;
	return copy(pointer(to), from, right(bytes), from);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream)
{
	(void)stream;
	return copy(to, pointer(from), bytes, to);
}

/* ---- Streams and events --------------------------------------------------------------- */

EXPORT int cuStreamCreate(void **stream, unsigned int flags)
{
	(void)flags;
	*stream = &streams[stream_count++ % 64];
	return 0;
}

EXPORT int cuStreamSynchronize(void *stream)
{
	(void)stream;
	return wait_for_all();
}

EXPORT int cuCtxSynchronize(void)
{
	return wait_for_all();
}

EXPORT int cuStreamIsCapturing(void *stream, int *status)
{
	(void)stream;
	*status = 0;
	return 0;
}

EXPORT int cuStreamGetCtx(void *stream, void **ctx)
{
	(void)stream;
	*ctx = &the_context;
	return 0;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
	*mode = 0;
	return 0;
}

EXPORT int cuEventCreate(struct CUevent_st **event, unsigned int flags)
{
	(void)flags;
	*event = calloc(1, sizeof(**event));
	return *event ? 0 : OUT_OF_MEMORY;
}

EXPORT int cuEventDestroy_v2(struct CUevent_st *event)
{
	free(event);
	return 0;
}

EXPORT int cuEventRecord(struct CUevent_st *event, void *stream)
{
	(void)stream;
	pthread_mutex_lock(&lock);
	event->ticket = begun;
	event->queries = 0;
	pthread_mutex_unlock(&lock);
	return 0;
}

EXPORT int cuEventQuery(struct CUevent_st *event)
{
	int err = 0;

	pthread_mutex_lock(&lock);
	if (event->ticket > done && event->queries++ < QUERIES)
		err = NOT_READY;
	else
		finish(event->ticket);
	pthread_mutex_unlock(&lock);
	return err;
}

EXPORT int cuEventSynchronize(struct CUevent_st *event)
{
	pthread_mutex_lock(&lock);
	finish(event->ticket);
	pthread_mutex_unlock(&lock);
	return 0;
}

/* ---- Memory ------------------------------------------------------------------------------ */

static int range_add(void *ptr, size_t bytes)
{
	size_t i = 0;
	int err = 0;

	pthread_mutex_lock(&lock);
	if (find(ptr, bytes) < RANGES)
		err = REGISTERED;
	while (i < RANGES && ranges[i].bytes)
		i++;
	if (!err && i == RANGES)
		err = OUT_OF_MEMORY;
	if (!err) {
		ranges[i].ptr = ptr;
		ranges[i].bytes = bytes;
	}
	pthread_mutex_unlock(&lock);
	return err;
}

/* Its bytes; 0: there is none that begins there. */
static size_t range_delete(void *ptr)
{
	size_t i, bytes = 0;

	pthread_mutex_lock(&lock);
	finish(begun);
	i = find(ptr, 1);
	if (i < RANGES && ranges[i].ptr == ptr) {
		bytes = ranges[i].bytes;
		ranges[i].bytes = 0;
	}
	pthread_mutex_unlock(&lock);
	return bytes;
}

EXPORT int cuMemHostAlloc(void **ptr, size_t bytes, unsigned int flags)
{
	(void)flags;
	while (getenv("FAKE_CUDA_HANG"))
		pause();
	*ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE,
		    -1, 0);
	return *ptr == MAP_FAILED ? OUT_OF_MEMORY : range_add(*ptr, bytes);
}

EXPORT int cuMemFreeHost(void *ptr)
{
	size_t bytes = range_delete(ptr);

	return bytes && !munmap(ptr, bytes) ? 0 : INVALID_VALUE;
}

EXPORT int cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned int flags)
{
	(void)flags;
	return range_add(ptr, bytes);
}

EXPORT int cuMemHostUnregister(void *ptr)
{
	return range_delete(ptr) ? 0 : INVALID_VALUE;
}

EXPORT int cuMemHostGetDevicePointer_v2(unsigned long long *device, void *ptr, unsigned int flags)
{
	(void)flags;
	*device = (uintptr_t)ptr;
	return 0;
}

EXPORT int cuPointerGetAttribute(void *value, int which, unsigned long long ptr)
{
	int err = 0;
	size_t i;

	pthread_mutex_lock(&lock);
	i = find(pointer(ptr), 1);
	if (i == RANGES)
		err = INVALID_VALUE;
	else if (which == 2) /* type */
		*(unsigned int *)value = 1;
	else if (which == 11) /* start */
		*(unsigned long long *)value = (uintptr_t)ranges[i].ptr;
	else
		*(size_t *)value = ranges[i].bytes;
	pthread_mutex_unlock(&lock);
	return err;
}

EXPORT int cuMemAlloc_v2(unsigned long long *ptr, size_t bytes)
{
	*ptr = (uintptr_t)malloc(bytes);
	return *ptr ? 0 : OUT_OF_MEMORY;
}

EXPORT int cuMemFree_v2(unsigned long long ptr)
{
	wait_for_all();
	free(pointer(ptr));
	return 0;
}

EXPORT int cuMemGetInfo_v2(size_t *unused, size_t *total)
{
	*unused = *total = (size_t)1 << 30;
	return 0;
}

/* ---- Device and context ------------------------------------------------------------------- */

EXPORT int cuInit(unsigned int flags)
{
	return (int)flags;
}

EXPORT int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return 0;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return 0;
}

EXPORT int cuDeviceGetName(char *name, int bytes, int device)
{
	(void)device;
	snprintf(name, (size_t)bytes, "no device: a fake for tests");
	return 0;
}

EXPORT int cuDeviceGetAttribute(int *value, int which, int device)
{
	(void)which;
	(void)device;
	*value = 0;
	return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **ctx, int device)
{
	(void)device;
	*ctx = &the_context;
	return 0;
}

EXPORT int cuCtxSetCurrent(void *ctx)
{
	current = ctx;
	return 0;
}

EXPORT int cuCtxGetCurrent(void **ctx)
{
	*ctx = current;
	return 0;
}

static __thread void *below;

EXPORT int cuCtxPushCurrent_v2(void *ctx)
{
	below = current;
	current = ctx;
	return 0;
}

EXPORT int cuCtxPopCurrent_v2(void **ctx)
{
	*ctx = current;
	current = below;
	return 0;
}

EXPORT int cuCtxGetDevice(int *device)
{
	*device = 0;
	return 0;
}

EXPORT int cuGetErrorName(int err, const char **name)
{
	(void)err;
	*name = "CUDA_ERROR_OF_THE_FAKE";
	return 0;
}
