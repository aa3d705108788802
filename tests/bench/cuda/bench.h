/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What bench-cuda's programs share: the CUDA driver, by its library, so that nothing of CUDA is
 * needed to build them; memory of several kinds to compare; clocks and output.
 *
 * A program prints figures, "NAME[.PEER] VALUE...", lines for people, "# ...", and nothing else.
 * It ends with 0, with IMPOSSIBLE and a sentence on stderr if it cannot be done here, or with 1
 * and a sentence.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB	   ((size_t)1 << 10)
#define MIB	   ((size_t)1 << 20)
#define GIB	   ((size_t)1 << 30)
#define IMPOSSIBLE 77

/* ---- The driver ---------------------------------------------------------------------- */

/* As its documentation has them. */
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef unsigned long long CUdeviceptr;

#define CUDA_ERROR_OUT_OF_MEMORY    2
#define CUDA_ERROR_NOT_READY	    600
#define CU_STREAM_NON_BLOCKING	    1
#define CU_EVENT_DISABLE_TIMING	    2
#define CU_MEMHOSTREGISTER_PORTABLE 1
#define CU_MEMORYTYPE_HOST	    1
#define CU_POINTER_MEMORY_TYPE	    2
#define CU_DEVICE_NAME_BYTES	    256

/* Each call that is used. */
/* clang-format off */
#define CUDA_CALLS(CALL) \
	CALL(Init, (unsigned int flags)) \
	CALL(DriverGetVersion, (int *version)) \
	CALL(DeviceGet, (int *device, int ordinal)) \
	CALL(DeviceGetName, (char *name, int bytes, int device)) \
	CALL(DevicePrimaryCtxRetain, (CUcontext *ctx, int device)) \
	CALL(CtxSetCurrent, (CUcontext ctx)) \
	CALL(CtxSynchronize, (void)) \
	CALL(GetErrorName, (int error, const char **name)) \
	CALL(StreamCreate, (CUstream *stream, unsigned int flags)) \
	CALL(StreamSynchronize, (CUstream stream)) \
	CALL(EventCreate, (CUevent *event, unsigned int flags)) \
	CALL(EventRecord, (CUevent event, CUstream stream)) \
	CALL(EventQuery, (CUevent event)) \
	CALL(EventSynchronize, (CUevent event)) \
	CALL(MemGetInfo_v2, (size_t *unused, size_t * total)) \
	CALL(MemAlloc_v2, (CUdeviceptr *ptr, size_t bytes)) \
	CALL(MemFree_v2, (CUdeviceptr ptr)) \
	CALL(MemHostAlloc, (void **ptr, size_t bytes, unsigned int flags)) \
	CALL(MemFreeHost, (void *ptr)) \
	CALL(MemHostRegister_v2, (void *ptr, size_t bytes, unsigned int flags)) \
	CALL(MemHostUnregister, (void *ptr)) \
	CALL(MemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes)) \
	CALL(MemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes)) \
	CALL(MemcpyHtoDAsync_v2, \
	     (CUdeviceptr to, const void *from, size_t bytes, CUstream stream)) \
	CALL(MemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream)) \
	CALL(PointerGetAttribute, (void *value, int which, CUdeviceptr ptr))
/* clang-format on */

struct cuda {
#define CUDA_MEMBER(name, args) int(*name) args;
	CUDA_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

extern struct cuda cu;
extern CUcontext context; /* the first device's primary one */

/* Loads the driver and makes the context current; ends the program where there is none. */
void cuda_open(void);
/* Ends the program if the call failed, for want of memory as IMPOSSIBLE: CU(MemFree_v2(p)). */
#define CU(call) cuda_check(#call, cu.call)
void cuda_check(const char *call, int error);
/* Whether the driver knows the byte as pinned. */
bool cuda_is_pinned(const void *ptr);

/* ---- Memory ---------------------------------------------------------------------------- */

struct binpool;

/* The same, with the pool's sentence: POOL(binpool_free(pool, ptr)). */
#define POOL(call) pool_check(call)
void pool_check(int err);

struct memory {
	const struct memory_kind *kind;
	struct binpool *pool; /* of the kinds that are one */
	bool bare;	      /* it is registered afterwards */
};

/*
 * The kinds: "pool-hugetlb", "pool-thp" (binpool), "hugetlb", "thp" (by hand: mapped, populated,
 * registered), "warm" (by hand, the files that a parent keeps), "host" (cuMemHostAlloc),
 * "pageable". Unknown ones end the program.
 */
void memory_open(struct memory *m, const char *kind);
/* Pinned, but for pageable; every page of it is there. Never NULL. */
void *memory_get(struct memory *m, size_t bytes);
void memory_put(struct memory *m, void *ptr, size_t bytes);
bool memory_is_pinned(const struct memory *m);
/*
 * For memory that is to be registered afterwards: a pool by its registrar, what is mapped by
 * hand by memory_register. "host" is got then, and NULL before. It is unregistered by hand, too.
 */
void memory_open_bare(struct memory *m, const char *kind);
void memory_register(struct memory *m, void **ptr, size_t bytes);
void memory_unregister(struct memory *m, void *ptr, size_t bytes);

/* ---- The rest ---------------------------------------------------------------------------- */

double now_ms(void);
double cpu_ms(void); /* of this process */
__attribute__((noreturn, format(printf, 2, 3))) void end(int status, const char *format, ...);
/* "64K", "16G", "1000". */
size_t bytes_of(const char *text);
/* Words that tell @seed and where they are. */
void pattern_fill(void *at, size_t bytes, uint64_t seed);
/* Where the first wrong byte is, @bytes: nowhere. */
size_t pattern_check(const void *at, size_t bytes, uint64_t seed);
/* The element below which @part of the sorted @values lie. */
double quantile(const double *values, size_t n, double part);
void sort(double *values, size_t n);

/* What main() knows; each takes its arguments, NULL at the end. */
int alloc_main(char **args);
int copy_main(char **args);
int disk_main(char **args);
int file_main(char **args);
int neighbour_main(char **args);
int probe_main(char **args);
int ready_main(char **args);
int reuse_main(char **args);
int threads_main(char **args);

#endif /* BENCH_H */
