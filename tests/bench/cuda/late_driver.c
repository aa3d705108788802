// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * For tests of bench-cuda: what the driver without a device (soft_cuda) does at once comes late
 * here, as on a device: copies that nobody waited for, so that a buffer which is used too early has
 * other data. It is linked over that one. Owns the copies that are to come; one lock. For many
 * threads. Environment:
 *   LATE_CUDA_HANGS  who asks for pinned memory never gets an answer
 *   LATE_CUDA_WRONG  the last byte of a copy to the device is not copied
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT		__attribute__((visibility("default")))
#define OUT_OF_MEMORY	2
#define NOT_READY	600
#define POINTER_IS_KIND 2 /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
/* So many copies may be to come, and so often is an event asked before it is over. */
#define LATE	512
#define QUERIES 2

typedef unsigned long long CUdeviceptr;

struct CUevent_st {
	unsigned long ticket;
	int queries;
};

/* What is beneath. */
int soft_cuMemHostAlloc(void **ptr, size_t bytes, unsigned int flags);
int cuPointerGetAttribute(void *value, int which, CUdeviceptr ptr);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	void *to;
	const void *from;
	size_t bytes;
} late[LATE];
static unsigned long begun, done;

/* lock. */
static void finish(unsigned long ticket)
{
	for (; done < ticket; done++)
		memcpy(late[done % LATE].to, late[done % LATE].from, late[done % LATE].bytes);
}

static int finish_all(void)
{
	pthread_mutex_lock(&lock);
	finish(begun);
	pthread_mutex_unlock(&lock);
	return 0;
}

/* In order, but it is over when the call is if nothing of it is pinned. */
static int copy(void *to, const void *from, size_t bytes, const void *host)
{
	unsigned int kind;
	int pinned = host && !cuPointerGetAttribute(&kind, POINTER_IS_KIND, (uintptr_t)host);

	pthread_mutex_lock(&lock);
	if (begun - done == LATE)
		finish(done + 1);
	late[begun % LATE].to = to;
	late[begun % LATE].from = from;
	late[begun % LATE].bytes = bytes;
	begun++;
	if (!pinned)
		finish(begun);
	pthread_mutex_unlock(&lock);
	return 0;
}

static void *pointer(CUdeviceptr at)
{
	return (void *)(uintptr_t)at;
}

static size_t to_device(size_t bytes)
{
	return bytes && getenv("LATE_CUDA_WRONG") ? bytes - 1 : bytes;
}

EXPORT int cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	return copy(pointer(to), from, to_device(bytes), NULL);
}

EXPORT int cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	return copy(to, pointer(from), bytes, NULL);
}

EXPORT int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *stream)
{
	(void)stream;
	return copy(pointer(to), from, to_device(bytes), from);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream)
{
	(void)stream;
	return copy(to, pointer(from), bytes, to);
}

EXPORT int cuStreamSynchronize(void *stream)
{
	(void)stream;
	return finish_all();
}

EXPORT int cuCtxSynchronize(void)
{
	return finish_all();
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

EXPORT int cuMemHostAlloc(void **ptr, size_t bytes, unsigned int flags)
{
	while (getenv("LATE_CUDA_HANGS"))
		pause();
	return soft_cuMemHostAlloc(ptr, bytes, flags);
}
