// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The part of the CUDA driver without a device (soft_cuda.c) that fills its memory. Owns nothing.
 */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef unsigned long long CUdeviceptr;

EXPORT int cuMemsetD8_v2(CUdeviceptr to, unsigned char byte, size_t bytes)
{
	memset((void *)(uintptr_t)to, byte, bytes);
	return 0;
}
