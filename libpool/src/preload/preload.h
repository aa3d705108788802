/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * libbinpool-preload.so: pinned memory of a pool for programs that know nothing of it, by
 * LD_PRELOAD. Private.
 *
 * Every child of the program inherits it, with CUDA or without. So it has no constructor, links
 * libc only, and loads driver and library when the first call is to be served. What is not ours
 * to answer is handed on to the function that the caller would have reached without us.
 *
 * Its exported names are without a version: an interposed one with a version is never found by
 * those who were linked with that of the runtime (cudaHostAlloc@libcudart.so.12).
 *
 * Locks, in the order in which they may be taken: making (pool.c), turn (barrier.c), ours
 * (buffers.c). None but making is held over a call of anybody else's, but for turn over those
 * of the driver.
 */
#ifndef BINPOOL_SRC_PRELOAD_H
#define BINPOOL_SRC_PRELOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <binpool_cuda.h>

/* Those of cudaError_t are the same as far as they are used. */
#include "../cuda/errors.h"

#define EXPORT __attribute__((visibility("default")))

/* Flags of allocations, of runtime and driver alike. */
#define CUDA_HOST_PORTABLE 1u
#define CUDA_HOST_MAPPED   2u

/* ---- stats.c ------------------------------------------------------------------- */

/* What was counted: its name in the statistics at exit. Amounts are in bytes, times in ns. */
/* clang-format off */
#define COUNTERS(count) \
	count(cudaHostAlloc) count(cudaMallocHost) count(cudaFreeHost) \
	count(cudaHostGetFlags) count(cudaHostGetDevicePointer) \
	count(cuMemHostAlloc) count(cuMemAllocHost) count(cuMemAllocHost_v2) \
	count(cuMemFreeHost) count(cuMemHostGetFlags) count(cuMemHostGetDevicePointer_v2) \
	count(served) count(served_bytes) count(served_ns) count(served_max_ns) \
	count(passed) count(passed_bytes) count(passed_ns) \
	count(passed_off) count(passed_flags) count(passed_size) count(passed_context) \
	count(passed_pool) count(passed_refused) count(passed_child) \
	count(frees) count(frees_passed) count(frees_wrong) count(frees_child) \
	count(frees_deferred) count(waits) count(waits_failed) count(wait_ns)
/* clang-format on */

enum counter {
#define COUNTER(name) COUNT_##name,
	COUNTERS(COUNTER)
#undef COUNTER
};

void count(enum counter counter, uint64_t amount);
void count_max(enum counter counter, uint64_t amount);
/* That the pool had nothing, and why. */
void count_refusal(const char *sentence);
uint64_t clock_ns(void);

/* ---- settings.c: the environment, read at the first call ------------------- */

struct settings {
	bool off;	/* BINPOOL_PRELOAD=0 */
	bool immediate; /* BINPOOL_PRELOAD_FREE=immediate */
	bool driver;	/* BINPOOL_PRELOAD_DRIVER=1 */
};

const struct settings *settings_get(void);
/* BINPOOL_PRELOAD_STATS, read anew: "1", or a file; NULL: there are to be none. */
const char *settings_stats(void);

/* ---- next.c: what the caller would have reached without us ----------------- */

/* @family: "libcudart.so" or "libcuda.so", where it is looked for at last. NULL: nowhere. */
void *next_function(const char *name, const char *family, const void *caller);
/* Whether such a library is loaded; its path, if @path is not NULL. */
bool library_loaded(const char *family, char *path, size_t room);

/* ---- lookup.c: functions that are looked up ---------------------------------- */

/* What dlsym says, ours not in between. */
void *real_symbol(void *handle, const char *name);

/* ---- driver.c: the driver's calls that we make ------------------------------ */

typedef struct CUctx_st *CUcontext;

/* name, symbol, arguments; those that an older driver may lack are marked. */
/* clang-format off */
#define DRIVER_CALLS(call) \
	call(CtxGetCurrent, "cuCtxGetCurrent", (CUcontext *ctx), true) \
	call(CtxGetId, "cuCtxGetId", (CUcontext ctx, unsigned long long *id), false) \
	call(CtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext ctx), true) \
	call(CtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext *ctx), true) \
	call(CtxSynchronize, "cuCtxSynchronize", (void), true) \
	call(DeviceGetCount, "cuDeviceGetCount", (int *count), true) \
	call(DeviceGet, "cuDeviceGet", (int *device, int ordinal), true) \
	call(PrimaryCtxGetState, "cuDevicePrimaryCtxGetState", \
	     (int device, unsigned int *flags, int *active), true) \
	call(PrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *ctx, int device), true) \
	call(PrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int device), true) \
	call(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *mode), \
	     true)
/* clang-format on */

struct driver {
#define DRIVER_MEMBER(name, symbol, arguments, needed) int(*name) arguments;
	DRIVER_CALLS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
};

/* NULL: there is none, or one that is too old. */
const struct driver *driver_get(void);
/* NULL: none is current to this thread. */
CUcontext driver_context(const struct driver *driver);

/* ---- pool.c: the libraries and the pool, made when they are first needed ---- */

/* clang-format off */
#define LIBRARY_CALLS(call) \
	call(binpool_create) call(binpool_destroy) \
	call(binpool_alloc_aligned) call(binpool_free) call(binpool_free_after) \
	call(binpool_get_stats) call(binpool_provider_name) call(binpool_query) \
	call(binpool_add_registrar) call(binpool_last_error)
#define LIBRARY_CUDA_CALLS(call) \
	call(binpool_cuda_attach) call(binpool_cuda_device_ptr)
/* clang-format on */

struct library {
#define LIBRARY_MEMBER(name) __typeof__(name) *name;
	LIBRARY_CALLS(LIBRARY_MEMBER)
	LIBRARY_CUDA_CALLS(LIBRARY_MEMBER)
#undef LIBRARY_MEMBER
};

/* NULL: there is none in this process, and will be none. In a context that is current. */
struct binpool *pool_get(const struct library **library);
/* The same, if it was made already. */
struct binpool *pool_made(const struct library **library);
/* The process got the pool by fork: it is the parent's. */
bool pool_inherited(void);
/* The process ends: the driver may be gone. */
bool pool_exiting(void);
/* Why there is none; "" while nobody knows. */
const char *pool_reason(void);

/* ---- barrier.c: what was under way on the devices is over -------------------- */

/* A context in which somebody was served. */
void barrier_note(const struct driver *driver, CUcontext context);
/* Now; for barrier_passed(). */
uint64_t barrier_ticket(void);
/* Whether a synchronisation that began after the ticket is over; @wait: or is after one now. */
bool barrier_passed(uint64_t ticket, bool wait);

/* ---- buffers.c: what is ours ------------------------------------------------- */

/* False: no memory. */
bool buffers_add(void *ptr, size_t bytes, unsigned int flags);
/* A buffer begins there, and is not from now on. */
bool buffers_remove(const void *ptr);
/* The buffer that begins there. */
bool buffers_flags(const void *ptr, unsigned int *flags);
void buffers_amount(uint64_t *count, uint64_t *bytes);
/* An extent that comes or goes. */
int buffers_extent_add(void *ctx, const struct binpool_extent *extent, void **cookie);
void buffers_extent_remove(void *ctx, const struct binpool_extent *extent, void *cookie);
/* Whether the address is in one. */
bool buffers_ours(const void *ptr);
/* Around fork. */
void buffers_before_fork(void);
void buffers_after_fork(void);

/* ---- calls.c: calls of the program's ------------------------------------------- */

#define RUNTIME_FAMILY "libcudart.so"
#define DRIVER_FAMILY  "libcuda.so"

struct call {
	const char *name;   /* of the function */
	const char *family; /* of the libraries that have the real one */
	const void *caller; /* where it returns to */
	enum counter counter;
};

int call_alloc(const struct call *call, void **out, size_t bytes, const unsigned int *flags);
int call_free(const struct call *call, void *ptr);
int call_flags(const struct call *call, unsigned int *flags, void *ptr);
int call_device(const struct call *call, void **device, void *ptr, unsigned int flags);
/* Whether this thread is in one of them. */
bool call_inside(void);

/* ---- entry.c: what is exported ---------------------------------------------------- */

EXPORT int cudaHostAlloc(void **out, size_t bytes, unsigned int flags);
EXPORT int cudaMallocHost(void **out, size_t bytes);
EXPORT int cudaFreeHost(void *ptr);
EXPORT int cudaHostGetFlags(unsigned int *flags, void *ptr);
EXPORT int cudaHostGetDevicePointer(void **device, void *ptr, unsigned int flags);
EXPORT int cuMemHostAlloc(void **out, size_t bytes, unsigned int flags);
EXPORT int cuMemAllocHost(void **out, unsigned int bytes);
EXPORT int cuMemAllocHost_v2(void **out, size_t bytes);
EXPORT int cuMemFreeHost(void *ptr);
EXPORT int cuMemHostGetFlags(unsigned int *flags, void *ptr);
EXPORT int cuMemHostGetDevicePointer_v2(void **device, void *ptr, unsigned int flags);

/* ---- serve.c ------------------------------------------------------------------- */

/* Memory of ours; NULL: the caller's own function is to be called. */
void *serve_alloc(const struct call *call, size_t bytes, unsigned int flags);

enum owner {
	OWNER_OTHERS, /* to be handed on */
	OWNER_US,     /* done */
	OWNER_NOBODY, /* our memory, but no buffer begins there */
};

enum owner serve_free(void *ptr);
/* What device code uses for an address of ours. */
enum owner serve_device(const void *ptr, void **device);
enum owner serve_flags(const void *ptr, unsigned int *flags);

#endif /* BINPOOL_SRC_PRELOAD_H */
