/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The device that the tests of OpenCL run on. No state.
 */
#ifndef UNIT_OPENCL_H
#define UNIT_OPENCL_H

#include <stdio.h>

#include <binpool_cl.h>

/* The first there is; NULL, and a line that says so: no runtime is installed. */
static inline cl_device_id find_cl_device(void)
{
	cl_platform_id platform;
	cl_device_id device;
	cl_uint n = 0;

	if (!clGetPlatformIDs(1, &platform, &n) && n &&
	    !clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, &n) && n)
		return device;
	printf("# no OpenCL device: install pocl-opencl-icd\n");
	return NULL;
}

#endif /* UNIT_OPENCL_H */
