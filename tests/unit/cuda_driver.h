/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The CUDA driver as tests call it, by its library, so that nothing of CUDA is needed to
 * build them; and the first device. Owns the table of calls and the device's context.
 */
#ifndef UNIT_CUDA_DRIVER_H
#define UNIT_CUDA_DRIVER_H

#include <dlfcn.h>

#include "unit.h"

/* As the driver's documentation has them. */
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef unsigned long long CUdeviceptr;

#define CU_STREAM_NON_BLOCKING	      1
#define CU_EVENT_DISABLE_TIMING	      2
#define CUDA_ERROR_NOT_READY	      600
#define CU_STREAM_PER_THREAD	      ((CUstream)2)
#define CU_STREAM_CAPTURE_MODE_GLOBAL 0
#define CU_MEMHOSTREGISTER_PORTABLE   1
#define CU_MEMORYTYPE_HOST	      1
#define CU_POINTER_MEMORY_TYPE	      2
#define CU_POINTER_RANGE_BYTES	      12

static struct {
	int (*Init)(unsigned int flags);
	int (*DeviceGet)(int *device, int ordinal);
	int (*DeviceGetCount)(int *count);
	int (*DevicePrimaryCtxRetain)(CUcontext *ctx, int device);
	int (*DevicePrimaryCtxReset_v2)(int device);
	int (*DevicePrimaryCtxRelease_v2)(int device);
	int (*CtxCreate_v2)(CUcontext *ctx, unsigned int flags, int device);
	int (*CtxDestroy_v2)(CUcontext ctx);
	int (*CtxSetCurrent)(CUcontext ctx);
	int (*StreamCreate)(CUstream *stream, unsigned int flags);
	int (*StreamDestroy_v2)(CUstream stream);
	int (*StreamSynchronize)(CUstream stream);
	int (*StreamBeginCapture_v2)(CUstream stream, int mode);
	int (*StreamEndCapture)(CUstream stream, CUgraph *graph);
	int (*GraphDestroy)(CUgraph graph);
	int (*LaunchHostFunc)(CUstream stream, void (*fn)(void *), void *arg);
	int (*EventCreate)(CUevent *event, unsigned int flags);
	int (*EventRecord)(CUevent event, CUstream stream);
	int (*EventQuery)(CUevent event);
	int (*EventDestroy_v2)(CUevent event);
	int (*MemAlloc_v2)(CUdeviceptr *ptr, size_t bytes);
	int (*MemFree_v2)(CUdeviceptr ptr);
	int (*MemcpyHtoD_v2)(CUdeviceptr to, const void *from, size_t bytes);
	int (*MemcpyHtoDAsync_v2)(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
	int (*MemcpyDtoH_v2)(void *to, CUdeviceptr from, size_t bytes);
	int (*MemcpyDtoDAsync_v2)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
	int (*MemHostRegister_v2)(void *ptr, size_t bytes, unsigned int flags);
	int (*MemHostUnregister)(void *ptr);
	int (*MemGetInfo_v2)(size_t *unused, size_t *total);
	int (*PointerGetAttribute)(void *value, int which, CUdeviceptr ptr);
} cu;

static bool driver;
static int device;
static CUcontext context;

#define CALL(name)                                                                                 \
	{                                                                                          \
		"cu" #name, &cu.name                                                               \
	}

static inline int find_device(void **state)
{
	const struct {
		const char *symbol;
		void *at;
	} calls[] = {
		CALL(Init),
		CALL(DeviceGet),
		CALL(DeviceGetCount),
		CALL(DevicePrimaryCtxRetain),
		CALL(DevicePrimaryCtxReset_v2),
		CALL(DevicePrimaryCtxRelease_v2),
		CALL(CtxCreate_v2),
		CALL(CtxDestroy_v2),
		CALL(CtxSetCurrent),
		CALL(StreamCreate),
		CALL(StreamDestroy_v2),
		CALL(StreamSynchronize),
		CALL(StreamBeginCapture_v2),
		CALL(StreamEndCapture),
		CALL(GraphDestroy),
		CALL(LaunchHostFunc),
		CALL(EventCreate),
		CALL(EventRecord),
		CALL(EventQuery),
		CALL(EventDestroy_v2),
		CALL(MemAlloc_v2),
		CALL(MemFree_v2),
		CALL(MemcpyHtoD_v2),
		CALL(MemcpyHtoDAsync_v2),
		CALL(MemcpyDtoH_v2),
		CALL(MemcpyDtoDAsync_v2),
		CALL(MemHostRegister_v2),
		CALL(MemHostUnregister),
		CALL(MemGetInfo_v2),
		CALL(PointerGetAttribute),
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	(void)state;
	driver = library != NULL;
	for (size_t i = 0; library && i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *address = dlsym(library, calls[i].symbol);

		if (!address)
			return -1;
		memcpy(calls[i].at, &address, sizeof(address));
	}
	if (!driver || cu.Init(0) || cu.DeviceGet(&device, 0)) {
		printf("# no CUDA device\n");
		return 0;
	}
	return cu.DevicePrimaryCtxRetain(&context, device) || cu.CtxSetCurrent(context);
}

static inline void need_device(void)
{
	if (!context)
		skip();
	assert_int_equal(cu.CtxSetCurrent(context), 0);
}

static inline bool is_pinned(const void *ptr)
{
	unsigned int type = 0;

	return !cu.PointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, (uintptr_t)ptr) &&
	       type == CU_MEMORYTYPE_HOST;
}

#endif /* UNIT_CUDA_DRIVER_H */
