// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * OpenCL for `binpool`: finds devices, and says what is missing. Owns nothing. Main thread only,
 * but for cl_problem.
 */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "opencl.h"

const char *cl_problem(cl_int status)
{
	static _Thread_local char text[64];

	switch (status) {
	case CL_DEVICE_NOT_FOUND:
		return "device not found";
	case CL_DEVICE_NOT_AVAILABLE:
		return "device not available";
	case CL_MEM_OBJECT_ALLOCATION_FAILURE:
		return "no device memory";
	case CL_OUT_OF_RESOURCES:
		return "out of device resources";
	case CL_OUT_OF_HOST_MEMORY:
		return "out of host memory";
	case CL_INVALID_BUFFER_SIZE:
		return "more than one buffer of the device can have (CL_INVALID_BUFFER_SIZE)";
	case CL_INVALID_VALUE:
		return "a value that the device does not take (CL_INVALID_VALUE)";
	case CL_MAP_FAILURE:
		return "the memory cannot be mapped (CL_MAP_FAILURE)";
	case CL_BUILD_PROGRAM_FAILURE:
		return "the program does not build";
	default:
		snprintf(text, sizeof(text), "OpenCL error %d", status);
		return text;
	}
}

int cl_failed(const char *what, cl_int status)
{
	cli_error("OpenCL: %s: %s", what, cl_problem(status));
	return CLI_FAILED;
}

/* A device that was seen; the better kind wins, then the earlier. */
struct candidate {
	cl_platform_id platform;
	cl_device_id id;
	char name[128];
	int rank;
};

static int rank_of(cl_device_id id)
{
	cl_device_type type = 0;

	clGetDeviceInfo(id, CL_DEVICE_TYPE, sizeof(type), &type, NULL);
	if (type & CL_DEVICE_TYPE_GPU)
		return 3;
	return type & CL_DEVICE_TYPE_ACCELERATOR ? 2 : 1;
}

/* Looks through the devices of one platform; names are added to @seen. */
static void look_at_platform(cl_platform_id platform, const char *wanted, struct candidate *best,
			     char *seen, size_t seen_size)
{
	cl_device_id ids[64];
	cl_uint count = 0, i;
	size_t length;
	char name[128];
	int rank;

	if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 64, ids, &count) != CL_SUCCESS)
		return;
	for (i = 0; i < count && i < 64; i++) {
		if (clGetDeviceInfo(ids[i], CL_DEVICE_NAME, sizeof(name), name, NULL) != CL_SUCCESS)
			strcpy(name, "unnamed");
		length = strlen(seen);
		snprintf(seen + length, seen_size - length, "%s'%s'", length ? ", " : "", name);
		if (wanted && !strcasestr(name, wanted))
			continue;
		rank = rank_of(ids[i]);
		if (rank <= best->rank)
			continue;
		best->platform = platform;
		best->id = ids[i];
		best->rank = rank;
		strcpy(best->name, name);
	}
}

int cl_find_device(const char *wanted, cl_platform_id *platform, cl_device_id *id, char *name,
		   size_t name_len)
{
	cl_platform_id platforms[16];
	struct candidate best = {0};
	cl_uint count = 0, i;
	char seen[1024] = "";
	cl_int status = clGetPlatformIDs(16, platforms, &count);

	if (status != CL_SUCCESS || !count) {
		cli_error(
			"there is no OpenCL platform here: install one (for a CPU: pocl-opencl-icd), "
			"or see to it that OCL_ICD_VENDORS names the right folder");
		return CLI_FAILED;
	}
	for (i = 0; i < count && i < 16; i++)
		look_at_platform(platforms[i], wanted, &best, seen, sizeof(seen));
	if (!best.rank) {
		if (!seen[0])
			cli_error("the OpenCL platforms here have no device; PoCL has none where "
				  "it cannot write to its cache: see that POCL_CACHE_DIR, or "
				  "$XDG_CACHE_HOME or $HOME/.cache, is a folder that it may "
				  "write to");
		else
			cli_error("no OpenCL device has '%s' in its name; there are: %s", wanted,
				  seen);
		return CLI_FAILED;
	}
	*platform = best.platform;
	*id = best.id;
	snprintf(name, name_len, "%s", best.name);
	return CLI_OK;
}
