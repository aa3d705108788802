// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What is exported: the functions of CUDA's runtime and driver that pinned memory comes from, as
 * their documentation has them. Owns nothing. Each tells who called it; the rest is calls.c.
 */
#include "preload.h"

#define CALL(function, kind)                                                                       \
	(&(const struct call){.name = #function,                                                   \
			      .family = kind##_FAMILY,                                             \
			      .caller = __builtin_return_address(0),                               \
			      .counter = COUNT_##function})

EXPORT int cudaHostAlloc(void **out, size_t bytes, unsigned int flags)
{
	return call_alloc(CALL(cudaHostAlloc, RUNTIME), out, bytes, &flags);
}

EXPORT int cudaMallocHost(void **out, size_t bytes)
{
	return call_alloc(CALL(cudaMallocHost, RUNTIME), out, bytes, NULL);
}

EXPORT int cudaFreeHost(void *ptr)
{
	return call_free(CALL(cudaFreeHost, RUNTIME), ptr);
}

EXPORT int cudaHostGetFlags(unsigned int *flags, void *ptr)
{
	return call_flags(CALL(cudaHostGetFlags, RUNTIME), flags, ptr);
}

EXPORT int cudaHostGetDevicePointer(void **device, void *ptr, unsigned int flags)
{
	return call_device(CALL(cudaHostGetDevicePointer, RUNTIME), device, ptr, flags);
}

EXPORT int cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
	return call_alloc(CALL(cuMemHostAlloc, DRIVER), out, bytes, &flags);
}

/* What is called cuMemAllocHost since CUDA 3.2; before, sizes were of 32 bits. */
EXPORT int cuMemAllocHost_v2(void **out, size_t bytes)
{
	return call_alloc(CALL(cuMemAllocHost_v2, DRIVER), out, bytes, NULL);
}

EXPORT int cuMemAllocHost(void **out, unsigned int bytes)
{
	return call_alloc(CALL(cuMemAllocHost, DRIVER), out, bytes, NULL);
}

EXPORT int cuMemFreeHost(void *ptr)
{
	return call_free(CALL(cuMemFreeHost, DRIVER), ptr);
}

EXPORT int cuMemHostGetFlags(unsigned int *flags, void *ptr)
{
	return call_flags(CALL(cuMemHostGetFlags, DRIVER), flags, ptr);
}

/* A CUdeviceptr is as large as a pointer. */
EXPORT int cuMemHostGetDevicePointer_v2(void **device, void *ptr, unsigned int flags)
{
	return call_device(CALL(cuMemHostGetDevicePointer_v2, DRIVER), device, ptr, flags);
}
