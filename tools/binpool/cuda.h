/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The part of the CUDA driver that `binpool` calls, as its documentation has it. It is
 * loaded when it is needed, so that the command runs where there is none. Main thread only.
 */
#ifndef BINPOOL_CLI_CUDA_H
#define BINPOOL_CLI_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef unsigned long long CUdeviceptr;

#define CUDA_ERROR_INVALID_VALUE  1
#define CUDA_ERROR_NO_DEVICE	  100
#define CU_STREAM_NON_BLOCKING	  1
#define CU_EVENT_DEFAULT	  0
#define CU_MEMHOSTALLOC_PORTABLE  1
#define CU_MEMORYTYPE_HOST	  1
#define CU_POINTER_MEMORY_TYPE	  2
#define CU_DEVICE_MULTIPROCESSORS 16
#define CU_JIT_ERROR_LOG	  5
#define CU_JIT_ERROR_LOG_BYTES	  6

/* name, symbol, arguments */
/* clang-format off */
#define CUDA_CALLS(call) \
	call(Init, "cuInit", (unsigned int flags)) \
	call(DriverGetVersion, "cuDriverGetVersion", (int *version)) \
	call(GetErrorName, "cuGetErrorName", (CUresult err, const char **name)) \
	call(DeviceGetCount, "cuDeviceGetCount", (int *count)) \
	call(DeviceGet, "cuDeviceGet", (CUdevice *device, int ordinal)) \
	call(DeviceGetName, "cuDeviceGetName", (char *name, int len, CUdevice device)) \
	call(DeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int which, CUdevice device)) \
	call(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *ctx, CUdevice device)) \
	call(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device)) \
	call(CtxSetCurrent, "cuCtxSetCurrent", (CUcontext ctx)) \
	call(MemGetInfo, "cuMemGetInfo_v2", (size_t *unused, size_t *total)) \
	call(MemAlloc, "cuMemAlloc_v2", (CUdeviceptr *ptr, size_t bytes)) \
	call(MemFree, "cuMemFree_v2", (CUdeviceptr ptr)) \
	call(MemHostAlloc, "cuMemHostAlloc", (void **ptr, size_t bytes, unsigned int flags)) \
	call(MemFreeHost, "cuMemFreeHost", (void *ptr)) \
	call(MemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr to, const void *from, size_t bytes)) \
	call(MemcpyDtoH, "cuMemcpyDtoH_v2", (void *to, CUdeviceptr from, size_t bytes)) \
	call(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", \
	     (CUdeviceptr to, const void *from, size_t bytes, CUstream stream)) \
	call(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", \
	     (void *to, CUdeviceptr from, size_t bytes, CUstream stream)) \
	call(PointerGetAttribute, "cuPointerGetAttribute", (void *value, int which, CUdeviceptr ptr)) \
	call(StreamCreate, "cuStreamCreate", (CUstream *stream, unsigned int flags)) \
	call(StreamDestroy, "cuStreamDestroy_v2", (CUstream stream)) \
	call(StreamSynchronize, "cuStreamSynchronize", (CUstream stream)) \
	call(StreamWaitEvent, "cuStreamWaitEvent", \
	     (CUstream stream, CUevent event, unsigned int flags)) \
	call(StreamAddCallback, "cuStreamAddCallback", \
	     (CUstream stream, void (*fn)(CUstream stream, CUresult status, void *arg), void *arg, \
	      unsigned int flags)) \
	call(EventCreate, "cuEventCreate", (CUevent *event, unsigned int flags)) \
	call(EventDestroy, "cuEventDestroy_v2", (CUevent event)) \
	call(EventRecord, "cuEventRecord", (CUevent event, CUstream stream)) \
	call(EventElapsedTime, "cuEventElapsedTime", (float *ms, CUevent start, CUevent end)) \
	call(ModuleLoadDataEx, "cuModuleLoadDataEx", \
	     (CUmodule *module, const void *image, unsigned int n, int *options, void **values)) \
	call(ModuleUnload, "cuModuleUnload", (CUmodule module)) \
	call(ModuleGetFunction, "cuModuleGetFunction", \
	     (CUfunction *function, CUmodule module, const char *name)) \
	call(LaunchKernel, "cuLaunchKernel", \
	     (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, \
	      unsigned int block_x, unsigned int block_y, unsigned int block_z, \
	      unsigned int shared_bytes, CUstream stream, void **arguments, void **extra))
/* clang-format on */

struct cuda {
#define CUDA_MEMBER(name, symbol, arguments) CUresult(*name) arguments;
	CUDA_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

extern struct cuda cuda;

/* Loads the driver; once it is loaded `cuda` can be called. A CLI_* status, said on stderr. */
int cuda_load(void);
/* "CUDA_ERROR_OUT_OF_MEMORY (2)"; of the thread's, until its next call. */
const char *cuda_problem(CUresult err);
/* "CUDA: WHAT: PROBLEM" on stderr. Returns CLI_FAILED. */
int cuda_failed(const char *what, CUresult err);
/*
 * Device number @text, which is one (NULL: 0), its name in @name, and its context current to this
 * thread. cuda_close_device() is to follow if 0 is returned. A CLI_* status.
 */
int cuda_open_device(const char *text, CUdevice *device, char *name, size_t name_len);
void cuda_close_device(CUdevice device);

#endif /* BINPOOL_CLI_CUDA_H */
