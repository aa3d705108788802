/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The part of the CUDA driver that libbinpool-cuda calls, as its documentation has it.
 * Private.
 */
#ifndef BINPOOL_SRC_CUDA_H
#define BINPOOL_SRC_CUDA_H

#include <stdbool.h>

#include <binpool_cuda.h>

#include "errors.h"

#define EXPORT __attribute__((visibility("default")))

typedef int CUresult;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef unsigned long long CUdeviceptr;

#define CU_EVENT_DISABLE_TIMING	       2
#define CU_STREAM_CAPTURE_MODE_RELAXED 2
#define CU_MEMHOSTREGISTER_PORTABLE    1
#define CU_MEMHOSTREGISTER_DEVICEMAP   2
#define CU_MEMORYTYPE_HOST	       1
/* Of a device, and of a pointer. */
#define CU_DEVICE_CAN_MAP_HOST_MEMORY 19
#define CU_POINTER_MEMORY_TYPE	      2
#define CU_POINTER_RANGE_START	      11
#define CU_POINTER_RANGE_BYTES	      12

/* name, symbol, arguments; those that an older driver may lack are marked. */
/* clang-format off */
#define CUDA_CALLS(call) \
	call(Init, "cuInit", (unsigned int flags), true) \
	call(GetErrorName, "cuGetErrorName", (CUresult err, const char **name), true) \
	call(CtxGetCurrent, "cuCtxGetCurrent", (CUcontext *ctx), true) \
	call(CtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext ctx), true) \
	call(CtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext *ctx), true) \
	call(CtxGetId, "cuCtxGetId", (CUcontext ctx, unsigned long long *id), false) \
	call(EventCreate, "cuEventCreate", (CUevent *event, unsigned int flags), true) \
	call(EventRecord, "cuEventRecord", (CUevent event, CUstream stream), true) \
	call(EventQuery, "cuEventQuery", (CUevent event), true) \
	call(EventDestroy, "cuEventDestroy_v2", (CUevent event), true) \
	call(StreamIsCapturing, "cuStreamIsCapturing", (CUstream stream, int *status), true) \
	call(StreamGetCtx, "cuStreamGetCtx", (CUstream stream, CUcontext *ctx), true) \
	call(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *mode), \
	     true) \
	call(MemAlloc, "cuMemAlloc_v2", (CUdeviceptr *ptr, size_t bytes), true) \
	call(MemFree, "cuMemFree_v2", (CUdeviceptr ptr), true) \
	call(CtxGetDevice, "cuCtxGetDevice", (int *device), true) \
	call(DevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", \
	     (int device, unsigned int *flags, int *active), true) \
	call(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *ctx, int device), \
	     true) \
	call(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int device), true) \
	call(DeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int which, int device), true) \
	call(PointerGetAttribute, "cuPointerGetAttribute", \
	     (void *value, int which, CUdeviceptr ptr), true) \
	call(MemHostRegister, "cuMemHostRegister_v2", \
	     (void *ptr, size_t bytes, unsigned int flags), true) \
	call(MemHostUnregister, "cuMemHostUnregister", (void *ptr), true) \
	call(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", \
	     (CUdeviceptr *device, void *ptr, unsigned int flags), true)
/* clang-format on */

struct cuda {
#define CUDA_MEMBER(name, symbol, arguments, needed) CUresult(*name) arguments;
	CUDA_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* driver.c */
/* NULL, explained: there is no driver. */
const struct cuda *cuda_get(void);
/* The process ends, and the driver with it, or soon: nothing of it is to be called. */
bool cuda_gone(void);
/* Around all other calls: nothing of them is another thread's capture's business. */
int cuda_enter(const struct cuda *cuda);
void cuda_leave(const struct cuda *cuda, int mode);
/* Makes the sentence for CUDA's @err from @call; the errno for it. */
int cuda_explain(const struct cuda *cuda, const char *call, CUresult err);

/* The same for what is not CUDA's; returns @err. */
int cuda_refuse(int err, const char *sentence);

/* context.c */
struct owner {
	CUcontext ctx;
	unsigned long long id; /* 0: the driver tells none */
};

/* Whether the context is there still. */
bool owner_alive(const struct cuda *cu, const struct owner *o);
/* Makes it the thread's, until CtxPopCurrent; or an error, CUDA's. */
CUresult owner_enter(const struct cuda *cu, const struct owner *o);
/* A context's. -ENODEV: it is gone; what else cannot be told is an error, too. */
int owner_of(const struct cuda *cu, CUcontext ctx, struct owner *o);
/* The calling thread's. -ENODEV: it has none. */
int owner_current(const struct cuda *cu, struct owner *o);

#endif /* BINPOOL_SRC_CUDA_H */
