// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Streams, events and kernels of a CUDA driver without a device (soft_cuda.c): all is done
 * before the call is over. Owns nothing.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT	      __attribute__((visibility("default")))
#define INVALID_VALUE 1
#define OUT_OF_MEMORY 2
#define NO_CONTEXT    201

typedef unsigned long long CUdeviceptr;
struct CUctx_st;

struct stream {
	struct CUctx_st *ctx;
};

struct event {
	struct timespec at;
};

/* soft_cuda.c */
int cuCtxGetCurrent(struct CUctx_st **ctx);

EXPORT int cuStreamCreate(struct stream **s, unsigned int flags)
{
	(void)flags;
	*s = calloc(1, sizeof(**s));
	if (!*s)
		return OUT_OF_MEMORY;
	if (cuCtxGetCurrent(&(*s)->ctx))
		return NO_CONTEXT;
	return 0;
}

EXPORT int cuStreamDestroy_v2(struct stream *s)
{
	free(s);
	return 0;
}

EXPORT int cuStreamSynchronize(struct stream *s)
{
	(void)s;
	return 0;
}

EXPORT int cuStreamGetCtx(struct stream *s, struct CUctx_st **ctx)
{
	int err = 0;

	/* 1 and 2 are the default stream's other names. */
	if ((uintptr_t)s <= 2)
		err = cuCtxGetCurrent(ctx);
	else
		*ctx = s->ctx;
	return !err && !*ctx ? NO_CONTEXT : err;
}

EXPORT int cuStreamIsCapturing(struct stream *s, int *status)
{
	struct CUctx_st *ctx;

	*status = 0;
	return cuStreamGetCtx(s, &ctx);
}

EXPORT int cuStreamBeginCapture_v2(struct stream *s, int mode)
{
	(void)s;
	(void)mode;
	return 0;
}

EXPORT int cuStreamEndCapture(struct stream *s, void **graph)
{
	(void)s;
	*graph = NULL;
	return 0;
}

EXPORT int cuGraphDestroy(void *graph)
{
	(void)graph;
	return 0;
}

EXPORT int cuLaunchHostFunc(struct stream *s, void (*fn)(void *arg), void *arg)
{
	(void)s;
	fn(arg);
	return 0;
}

EXPORT int cuStreamAddCallback(struct stream *s, void (*fn)(struct stream *s, int err, void *arg),
			       void *arg, unsigned int flags)
{
	fn(s, 0, arg);
	return (int)flags;
}

EXPORT int cuStreamWaitEvent(struct stream *s, struct event *e, unsigned int flags)
{
	(void)s;
	(void)e;
	return (int)flags;
}

EXPORT int cuEventCreate(struct event **e, unsigned int flags)
{
	(void)flags;
	*e = calloc(1, sizeof(**e));
	return *e ? 0 : OUT_OF_MEMORY;
}

EXPORT int cuEventRecord(struct event *e, struct stream *s)
{
	(void)s;
	return clock_gettime(CLOCK_MONOTONIC, &e->at);
}

EXPORT int cuEventQuery(struct event *e)
{
	(void)e;
	return 0;
}

EXPORT int cuEventDestroy_v2(struct event *e)
{
	free(e);
	return 0;
}

EXPORT int cuEventElapsedTime(float *ms, struct event *start, struct event *end)
{
	*ms = (float)((double)(end->at.tv_sec - start->at.tv_sec) * 1e3 +
		      (double)(end->at.tv_nsec - start->at.tv_nsec) / 1e6);
	return 0;
}

/* The one program that it can run is the checksum of `binpool run`. */
EXPORT int cuModuleLoadDataEx(void **module, const void *image, unsigned int n, int *options,
			      void **values)
{
	(void)n;
	(void)options;
	(void)values;
	*module = (void *)1;
	return strstr(image, ".entry checksum") ? 0 : 218;
}

EXPORT int cuModuleUnload(void *module)
{
	(void)module;
	return 0;
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
	*function = module;
	return strcmp(name, "checksum") ? 500 : 0;
}

/* tools/binpool/checksum.c */
uint64_t checksum(const unsigned char *data, uint64_t bytes, uint64_t offset);

EXPORT int cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y,
			  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			  unsigned int block_z, unsigned int shared_bytes, struct stream *s,
			  void **arguments, void **extra)
{
	const unsigned char *data = (void *)(uintptr_t) * (CUdeviceptr *)arguments[0];
	uint64_t *partials = (void *)(uintptr_t) * (CUdeviceptr *)arguments[3];

	(void)s;
	if (!function || grid_y * grid_z * block_y * block_z != 1 || shared_bytes || extra)
		return INVALID_VALUE;
	memset(partials, 0, sizeof(*partials) * grid_x * block_x);
	partials[0] = checksum(data, *(uint64_t *)arguments[1],
			       *(uint64_t *)arguments[2] * sizeof(uint64_t));
	return 0;
}
