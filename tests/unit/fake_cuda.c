// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * libcuda.so.1 for test_cuda_fake. Owns the one struct fake_cuda; a single thread.
 */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

#include "fake_cuda.h"

#define EXPORT	 __attribute__((visibility("default")))
#define RELAXED	 2
#define BAD	 201 /* CUDA_ERROR_INVALID_CONTEXT */
#define GONE	 709 /* CUDA_ERROR_CONTEXT_IS_DESTROYED */
#define NOT_DONE 600 /* CUDA_ERROR_NOT_READY */

static struct fake_cuda fake;

EXPORT struct fake_cuda *fake_cuda(void)
{
	return &fake;
}

static void check(bool right)
{
	fake.wrong += !right || fake.mode != RELAXED;
}

EXPORT int cuInit(unsigned int flags)
{
	return (int)flags;
}

EXPORT int cuGetErrorName(int err, const char **name)
{
	(void)err;
	*name = "CUDA_ERROR_OF_THE_TEST";
	return 0;
}

EXPORT int cuCtxGetCurrent(struct CUctx_st **ctx)
{
	*ctx = fake.current;
	return 0;
}

static struct CUctx_st *below[4];
static int depth;

EXPORT int cuCtxPushCurrent_v2(struct CUctx_st *ctx)
{
	check(ctx && ctx->id && depth < 4);
	if (fake.push_error)
		return fake.push_error;
	below[depth++] = fake.current;
	fake.current = ctx;
	return 0;
}

EXPORT int cuCtxPopCurrent_v2(struct CUctx_st **ctx)
{
	*ctx = fake.current;
	check(depth > 0);
	fake.current = below[--depth];
	return 0;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active)
{
	check(true);
	*flags = 0;
	if (device >= 2)
		return 101;
	*active = fake.primary[device] && fake.primary[device]->id;
	return 0;
}

/* The library makes none. */
EXPORT int cuDevicePrimaryCtxRetain(struct CUctx_st **ctx, int device)
{
	*ctx = fake.primary[device];
	check(*ctx && (*ctx)->id);
	fake.retained++;
	return 0;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
	check(device < 2);
	fake.retained--;
	return 0;
}

EXPORT int cuCtxGetId(struct CUctx_st *ctx, unsigned long long *id)
{
	check(true);
	if (ctx->id && fake.id_error)
		return fake.id_error;
	*id = ctx->id;
	return ctx->id ? 0 : GONE;
}

EXPORT int cuMemAlloc_v2(unsigned long long *ptr, size_t bytes)
{
	check(fake.current && fake.current->id);
	if (fake.alloc_error)
		return fake.alloc_error;
	*ptr = (uintptr_t)malloc(bytes);
	fake.allocated++;
	return 0;
}

EXPORT int cuMemFree_v2(unsigned long long ptr)
{
	check(fake.current && fake.current->id);
	free((void *)(uintptr_t)ptr);
	fake.allocated--;
	return 0;
}

/* ---- Registered host memory --------------------------------------------------- */

#define ALREADY 712 /* CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED */
#define NOT_YET 713 /* CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED */
#define INVALID 1
/* What a device pointer is away from the host's. */
#define MAPPED_AT 0x100000000000ULL

static struct {
	char *ptr;
	size_t bytes; /* 0: unused */
	const struct CUctx_st *ctx;
	unsigned long long id;
} ranges[1024];

#define RANGES (sizeof(ranges) / sizeof(ranges[0]))

/* The first that is in use and shares a byte; RANGES: none. */
static size_t range_find(const char *ptr, size_t bytes)
{
	size_t i;

	for (i = 0; i < RANGES; i++) {
		if (ranges[i].bytes && ranges[i].id != ranges[i].ctx->id)
			ranges[i].bytes = 0;
		if (ranges[i].bytes && ptr < ranges[i].ptr + ranges[i].bytes &&
		    ranges[i].ptr < ptr + bytes)
			break;
	}
	return i;
}

EXPORT unsigned long fake_cuda_registrations(void)
{
	unsigned long n = 0;

	range_find(NULL, 0);
	for (size_t i = 0; i < RANGES; i++)
		n += ranges[i].bytes != 0;
	return n;
}

EXPORT int cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned int flags)
{
	size_t i;

	check(fake.current && fake.current->id);
	fake.register_flags = flags;
	if (++fake.register_calls == fake.register_fail_at)
		return fake.register_error;
	if (fake.largest && bytes > fake.largest)
		return INVALID;
	if (range_find(ptr, bytes) < RANGES)
		return fake.unranged ? INVALID : ALREADY;
	for (i = 0; i < RANGES && ranges[i].bytes; i++)
		;
	if (i == RANGES)
		return 2;
	ranges[i].ptr = ptr;
	ranges[i].bytes = bytes;
	ranges[i].ctx = fake.current;
	ranges[i].id = fake.current->id;
	fake.registered++;
	return 0;
}

EXPORT int cuMemHostUnregister(void *ptr)
{
	size_t i = range_find(ptr, 1);

	check(fake.current && fake.current->id);
	if (i == RANGES || ranges[i].ptr != ptr)
		return NOT_YET;
	if (fake.unregister_error && !fake.unregister_spares)
		return fake.unregister_error;
	fake.unregister_spares -= fake.unregister_spares != 0;
	/* It is there still. */
	(void)*(volatile char *)(ranges[i].ptr + ranges[i].bytes - 1);
	ranges[i].bytes = 0;
	fake.unregistered++;
	return 0;
}

EXPORT int cuMemHostGetDevicePointer_v2(unsigned long long *device, void *ptr, unsigned int flags)
{
	check(fake.current && fake.current->id && !flags);
	if (range_find(ptr, 1) == RANGES)
		return INVALID;
	*device = (uintptr_t)ptr + MAPPED_AT * (1 + (unsigned int)fake.current->device);
	return 0;
}

EXPORT int cuPointerGetAttribute(void *value, int which, unsigned long long ptr)
{
	size_t i = range_find((char *)(uintptr_t)ptr, 1);

	check(fake.current && fake.current->id);
	if (i == RANGES || (which != 2 && fake.unranged))
		return INVALID;
	if (which == 2)
		*(unsigned int *)value = 1;
	else if (which == 11)
		*(unsigned long long *)value = (uintptr_t)ranges[i].ptr;
	else
		*(size_t *)value = ranges[i].bytes;
	return 0;
}

EXPORT int cuCtxGetDevice(int *device)
{
	check(fake.current && fake.current->id);
	*device = fake.current->device;
	return 0;
}

EXPORT int cuDeviceGetAttribute(int *value, int which, int device)
{
	*value = which == 19 && device == 0;
	return 0;
}

/* ---- Events and streams --------------------------------------------------------- */

#define PER_THREAD 2 /* CU_STREAM_PER_THREAD */

static _Thread_local struct CUstream_st *of_thread;

EXPORT struct CUstream_st **fake_cuda_of_thread(void)
{
	return &of_thread;
}

static struct CUstream_st *resolve(struct CUstream_st *stream)
{
	if ((uintptr_t)stream > PER_THREAD)
		return stream;
	if ((uintptr_t)stream == PER_THREAD && of_thread)
		return of_thread;
	return fake.current ? fake.current->default_stream : NULL;
}

EXPORT int cuEventCreate(struct CUevent_st **event, unsigned int flags)
{
	check(fake.current && fake.current->id && flags == 2);
	*event = calloc(1, sizeof(**event));
	(*event)->ctx = fake.current;
	(*event)->id = fake.current->id;
	fake.created++;
	return 0;
}

EXPORT int cuEventRecord(struct CUevent_st *event, struct CUstream_st *stream)
{
	stream = resolve(stream);
	check(event->ctx == stream->ctx && event->id == stream->ctx->id && !stream->capturing);
	if (fake.signal)
		raise(fake.signal);
	if (fake.record_error)
		return fake.record_error;
	fake.recorded++;
	event->stream = stream;
	event->ticket = stream->submitted;
	return 0;
}

EXPORT int cuEventQuery(struct CUevent_st *event)
{
	check(event->id == event->ctx->id);
	fake.queried++;
	if (fake.query_error)
		return fake.query_error;
	return event->stream->finished >= event->ticket ? 0 : NOT_DONE;
}

EXPORT int cuEventDestroy_v2(struct CUevent_st *event)
{
	check(event->id == event->ctx->id);
	free(event);
	return 0;
}

EXPORT int cuStreamIsCapturing(struct CUstream_st *stream, int *status)
{
	check(true);
	stream = resolve(stream);
	if (!stream)
		return BAD;
	*status = stream->capturing;
	return 0;
}

EXPORT int cuStreamGetCtx(struct CUstream_st *stream, struct CUctx_st **ctx)
{
	check(true);
	*ctx = resolve(stream)->ctx;
	return 0;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
	int old = fake.mode;

	fake.mode = *mode;
	*mode = old;
	return 0;
}
