// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A CUDA driver without a device: libcuda.so.1 whose device memory is the host's and whose streams
 * have done what they are asked before the call is over. For `binpool`, and for tests of
 * amounts, where there is no GPU; what unit tests let fail is unit/fake_cuda's. Owns contexts and
 * ranges of pinned memory; one lock. For many threads. Environment:
 *   SOFT_CUDA_DEVICES  how many (1)
 *   SOFT_CUDA_NAME     their name
 *   SOFT_CUDA_MOST     bytes that may be registered; more are CUDA_ERROR_OUT_OF_MEMORY
 *   SOFT_CUDA_SLOW     copies of registered memory, not of the driver's own, take so many times
 *                      as long
 *   SOFT_CUDA_ENDS_EARLY  at exit it ends before those who loaded it do
 *   SOFT_CUDA_TELLS    prints a line when memory is unregistered, and when it is called too late
 *   SOFT_CUDA_HANGS    registering so many bytes never ends
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT	       __attribute__((visibility("default")))
#define INVALID_VALUE  1
#define OUT_OF_MEMORY  2
#define DEINITIALIZED  4
#define NO_CONTEXT     201
#define DESTROYED      709
#define REGISTERED     712
#define NOT_REGISTERED 713
#define CONTEXTS       64
#define ALIGNMENT      ((size_t)256)
#define DEVICE_BYTES   ((size_t)16 << 30)

typedef unsigned long long CUdeviceptr;

struct CUctx_st {
	unsigned long long id; /* 0: there is none */
	int device, refs;
};

struct range {
	struct range *next;
	char *ptr;
	size_t bytes;
	unsigned long long owner; /* id of the context; 0: the driver's own memory */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st contexts[CONTEXTS]; /* the primary ones first */
static unsigned long long ids;
static int made = CONTEXTS / 2;
static struct range *ranges;
static uint64_t registered;
static __thread struct CUctx_st *stack[8];
static __thread int depth;
static __thread int capture_mode;
static bool ended, unloaded, told;

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

static struct CUctx_st *current(void)
{
	return depth && stack[depth - 1] && stack[depth - 1]->id ? stack[depth - 1] : NULL;
}

/* As the real one: from an exit handler on there is an error for everything. */
static void ending(void)
{
	ended = true;
}

static void __attribute__((destructor)) unloading(void)
{
	unloaded = true;
}

EXPORT int cuInit(unsigned int flags)
{
	if (!getenv("SOFT_CUDA_ENDS_EARLY") && atexit(ending))
		return OUT_OF_MEMORY;
	return setting("SOFT_CUDA_DEVICES", 1) ? (int)flags : 100;
}

EXPORT int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return 0;
}

EXPORT int cuGetErrorName(int err, const char **name)
{
	*name = err == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
		: err == REGISTERED  ? "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
				     : "CUDA_ERROR_OF_THE_TEST";
	return 0;
}

/* ---- Devices and contexts -------------------------------------------------------- */

EXPORT int cuDeviceGetCount(int *count)
{
	*count = (int)setting("SOFT_CUDA_DEVICES", 1);
	return 0;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return ordinal < (int)setting("SOFT_CUDA_DEVICES", 1) ? 0 : 101;
}

EXPORT int cuDeviceGetName(char *name, int len, int device)
{
	const char *set = getenv("SOFT_CUDA_NAME");

	(void)device;
	snprintf(name, (size_t)len, "%s", set ? set : "soft");
	return 0;
}

/* It can map host memory, and has one multiprocessor. */
EXPORT int cuDeviceGetAttribute(int *value, int which, int device)
{
	(void)which;
	(void)device;
	*value = 1;
	return 0;
}

/* What a context registered goes with it. Locked. */
static void context_end(struct CUctx_st *ctx)
{
	struct range **at = &ranges, *r;

	while ((r = *at)) {
		if (r->owner != ctx->id) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		registered -= r->bytes;
		free(r);
	}
	ctx->id = 0;
	ctx->refs = 0;
}

EXPORT int cuDevicePrimaryCtxRetain(struct CUctx_st **ctx, int device)
{
	/* Later than whoever loaded it watches for the end. */
	if (getenv("SOFT_CUDA_ENDS_EARLY") && atexit(ending))
		return OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	*ctx = &contexts[device];
	if (!(*ctx)->refs++)
		**ctx = (struct CUctx_st){.id = ++ids, .device = device, .refs = 1};
	pthread_mutex_unlock(&lock);
	return 0;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active)
{
	*flags = 0;
	if (device >= (int)setting("SOFT_CUDA_DEVICES", 1))
		return 101;
	pthread_mutex_lock(&lock);
	*active = contexts[device].refs > 0;
	pthread_mutex_unlock(&lock);
	return 0;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
	pthread_mutex_lock(&lock);
	if (contexts[device].refs && !--contexts[device].refs)
		context_end(&contexts[device]);
	pthread_mutex_unlock(&lock);
	return 0;
}

EXPORT int cuDevicePrimaryCtxReset_v2(int device)
{
	pthread_mutex_lock(&lock);
	context_end(&contexts[device]);
	pthread_mutex_unlock(&lock);
	return 0;
}

EXPORT int cuCtxCreate_v2(struct CUctx_st **ctx, unsigned int flags, int device)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	*ctx = &contexts[made++];
	**ctx = (struct CUctx_st){.id = ++ids, .device = device, .refs = 1};
	pthread_mutex_unlock(&lock);
	stack[depth++] = *ctx;
	return 0;
}

EXPORT int cuCtxDestroy_v2(struct CUctx_st *ctx)
{
	pthread_mutex_lock(&lock);
	context_end(ctx);
	pthread_mutex_unlock(&lock);
	if (depth && stack[depth - 1] == ctx)
		depth--;
	return 0;
}

EXPORT int cuCtxSetCurrent(struct CUctx_st *ctx)
{
	if (depth)
		depth--;
	if (ctx)
		stack[depth++] = ctx;
	return 0;
}

EXPORT int cuCtxGetCurrent(struct CUctx_st **ctx)
{
	*ctx = depth ? stack[depth - 1] : NULL;
	return 0;
}

EXPORT int cuCtxPushCurrent_v2(struct CUctx_st *ctx)
{
	if (ended || !ctx || !ctx->id)
		return ended ? DEINITIALIZED : DESTROYED;
	stack[depth++] = ctx;
	return 0;
}

EXPORT int cuCtxPopCurrent_v2(struct CUctx_st **ctx)
{
	*ctx = stack[--depth];
	return 0;
}

EXPORT int cuCtxGetId(struct CUctx_st *ctx, unsigned long long *id)
{
	*id = ctx->id;
	return ended ? DEINITIALIZED : ctx->id ? 0 : DESTROYED;
}

EXPORT int cuCtxGetDevice(int *device)
{
	const struct CUctx_st *ctx = current();

	*device = ctx ? ctx->device : 0;
	return ctx ? 0 : NO_CONTEXT;
}

/* Whoever calls anything asks for this before. */
EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
	int before = capture_mode;

	if (unloaded)
		_exit(99);
	if (ended && !told && getenv("SOFT_CUDA_TELLS")) {
		printf("called after its end\n");
		told = true;
	}
	capture_mode = *mode;
	*mode = before;
	return 0;
}

/* ---- Memory --------------------------------------------------------------------- */

EXPORT int cuMemGetInfo_v2(size_t *unused, size_t *total)
{
	*unused = *total = DEVICE_BYTES;
	return current() ? 0 : NO_CONTEXT;
}

EXPORT int cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
	*ptr = (uintptr_t)aligned_alloc(ALIGNMENT, (bytes / ALIGNMENT + 1) * ALIGNMENT);
	return !current() ? NO_CONTEXT : *ptr ? 0 : OUT_OF_MEMORY;
}

EXPORT int cuMemFree_v2(CUdeviceptr ptr)
{
	free((void *)(uintptr_t)ptr);
	return 0;
}

/* The first that shares a byte. Locked. */
static struct range *range_of(const char *ptr, size_t bytes)
{
	struct range *r = ranges;

	while (r && (ptr >= r->ptr + r->bytes || r->ptr >= ptr + bytes))
		r = r->next;
	return r;
}

static int range_add(void *ptr, size_t bytes, unsigned long long owner)
{
	struct range *r = malloc(sizeof(*r));

	if (!r)
		return OUT_OF_MEMORY;
	*r = (struct range){.next = ranges, .ptr = ptr, .bytes = bytes, .owner = owner};
	ranges = r;
	return 0;
}

static int range_remove(const void *ptr, bool own)
{
	struct range **at = &ranges, *r;

	while ((r = *at) && (r->ptr != (const char *)ptr || own != !r->owner))
		at = &r->next;
	if (!r)
		return NOT_REGISTERED;
	*at = r->next;
	registered -= own ? 0 : r->bytes;
	free(r);
	return 0;
}

EXPORT int cuMemHostAlloc(void **ptr, size_t bytes, unsigned int flags)
{
	int err;

	(void)flags;
	*ptr = malloc(bytes);
	if (!*ptr)
		return OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	err = range_add(*ptr, bytes, 0);
	pthread_mutex_unlock(&lock);
	return err;
}

EXPORT int cuMemFreeHost(void *ptr)
{
	int err;

	pthread_mutex_lock(&lock);
	err = range_remove(ptr, true);
	pthread_mutex_unlock(&lock);
	if (!err)
		free(ptr);
	return err ? INVALID_VALUE : 0;
}

EXPORT int cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned int flags)
{
	int err = NO_CONTEXT;

	(void)flags;
	while (bytes >= setting("SOFT_CUDA_HANGS", UINT64_MAX))
		pause();
	pthread_mutex_lock(&lock);
	if (current())
		err = range_of(ptr, bytes) ? REGISTERED
		      : registered + bytes > setting("SOFT_CUDA_MOST", UINT64_MAX)
			      ? OUT_OF_MEMORY
			      : range_add(ptr, bytes, current()->id);
	if (!err)
		registered += bytes;
	pthread_mutex_unlock(&lock);
	return err;
}

EXPORT int cuMemHostUnregister(void *ptr)
{
	int err;

	if (getenv("SOFT_CUDA_TELLS"))
		printf("unregistered\n");
	pthread_mutex_lock(&lock);
	err = range_remove(ptr, false);
	pthread_mutex_unlock(&lock);
	return err;
}

EXPORT int cuMemHostGetDevicePointer_v2(CUdeviceptr *there, void *ptr, unsigned int flags)
{
	bool known;

	(void)flags;
	pthread_mutex_lock(&lock);
	known = range_of(ptr, 1);
	pthread_mutex_unlock(&lock);
	*there = (uintptr_t)ptr;
	return known ? 0 : INVALID_VALUE;
}

/* CU_POINTER_ATTRIBUTE_MEMORY_TYPE, RANGE_START_ADDR and RANGE_SIZE of pinned memory. */
EXPORT int cuPointerGetAttribute(void *value, int which, CUdeviceptr ptr)
{
	const struct range *r;
	int err = 0;

	pthread_mutex_lock(&lock);
	r = range_of((char *)(uintptr_t)ptr, 1);
	if (!r)
		err = INVALID_VALUE;
	else if (which == 2)
		*(unsigned int *)value = 1;
	else if (which == 11)
		*(CUdeviceptr *)value = (uintptr_t)r->ptr;
	else
		*(size_t *)value = r->bytes;
	pthread_mutex_unlock(&lock);
	return err;
}

/* ---- Copies ----------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* @host: the side of it that may be pinned. A range has to have all of it, or nothing. */
static int copy(void *to, const void *from, const void *host, size_t bytes)
{
	uint64_t start = now_ns(), slow = setting("SOFT_CUDA_SLOW", 0);
	const struct range *r;
	bool whole, foreign;

	pthread_mutex_lock(&lock);
	r = range_of(host, bytes);
	whole = !r ||
		((const char *)host >= r->ptr && (const char *)host + bytes <= r->ptr + r->bytes);
	foreign = r && r->owner;
	pthread_mutex_unlock(&lock);
	if (!whole || !current())
		return whole ? NO_CONTEXT : INVALID_VALUE;
	memcpy(to, from, bytes);
	if (foreign && slow)
		usleep((useconds_t)((now_ns() - start) * slow / 1000));
	return 0;
}

EXPORT int cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	return copy((void *)(uintptr_t)to, from, from, bytes);
}

EXPORT int cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	return copy(to, (void *)(uintptr_t)from, to, bytes);
}

EXPORT int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *stream)
{
	(void)stream;
	return cuMemcpyHtoD_v2(to, from, bytes);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream)
{
	(void)stream;
	return cuMemcpyDtoH_v2(to, from, bytes);
}

EXPORT int cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream)
{
	(void)stream;
	memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
	return 0;
}
