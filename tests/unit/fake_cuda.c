// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * libcuda.so.1 for test_cuda_fake. Owns the one struct fake_cuda; a single thread.
 */
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

static struct CUctx_st *below;

EXPORT int cuCtxPushCurrent_v2(struct CUctx_st *ctx)
{
	check(ctx && ctx->id && !below);
	below = fake.current;
	fake.current = ctx;
	return 0;
}

EXPORT int cuCtxPopCurrent_v2(struct CUctx_st **ctx)
{
	*ctx = fake.current;
	fake.current = below;
	below = NULL;
	return 0;
}

EXPORT int cuCtxGetId(struct CUctx_st *ctx, unsigned long long *id)
{
	check(true);
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
	check(event->ctx == stream->ctx && event->id == stream->ctx->id && !stream->capturing);
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
	if (!stream)
		return BAD;
	*status = stream->capturing;
	return 0;
}

EXPORT int cuStreamGetCtx(struct CUstream_st *stream, struct CUctx_st **ctx)
{
	check(true);
	*ctx = stream->ctx;
	return 0;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
	int old = fake.mode;

	fake.mode = *mode;
	*mode = old;
	return 0;
}
