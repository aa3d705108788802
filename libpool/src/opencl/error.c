// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * OpenCL's errors as sentences and errnos; and its end. Owns the mark of that; no lock.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "opencl.h"

static bool gone, watching;

bool cl_gone(void)
{
	return __atomic_load_n(&gone, __ATOMIC_RELAXED);
}

/* Exit handlers run last come, first served: OpenCL's, which are older, run after this one. */
static void exiting(void)
{
	__atomic_store_n(&gone, true, __ATOMIC_RELAXED);
}

void cl_watch_exit(void)
{
	if (!__atomic_exchange_n(&watching, true, __ATOMIC_RELAXED) && atexit(exiting))
		__atomic_store_n(&watching, false, __ATOMIC_RELAXED);
}

static const char *cl_name(cl_int err)
{
	switch (err) {
	case CL_DEVICE_NOT_AVAILABLE:
		return "CL_DEVICE_NOT_AVAILABLE";
	case CL_MEM_OBJECT_ALLOCATION_FAILURE:
		return "CL_MEM_OBJECT_ALLOCATION_FAILURE";
	case CL_OUT_OF_RESOURCES:
		return "CL_OUT_OF_RESOURCES";
	case CL_OUT_OF_HOST_MEMORY:
		return "CL_OUT_OF_HOST_MEMORY";
	case CL_MAP_FAILURE:
		return "CL_MAP_FAILURE";
	case CL_INVALID_VALUE:
		return "CL_INVALID_VALUE";
	case CL_INVALID_CONTEXT:
		return "CL_INVALID_CONTEXT";
	case CL_INVALID_COMMAND_QUEUE:
		return "CL_INVALID_COMMAND_QUEUE";
	case CL_INVALID_HOST_PTR:
		return "CL_INVALID_HOST_PTR";
	case CL_INVALID_MEM_OBJECT:
		return "CL_INVALID_MEM_OBJECT";
	case CL_INVALID_BUFFER_SIZE:
		return "CL_INVALID_BUFFER_SIZE";
	case CL_MISALIGNED_SUB_BUFFER_OFFSET:
		return "CL_MISALIGNED_SUB_BUFFER_OFFSET";
	default:
		return "see CL/cl.h";
	}
}

int cl_refuse(int err, const char *sentence)
{
	binpool_set_last_error(sentence);
	return err;
}

int cl_explain(const char *call, size_t bytes, cl_int err)
{
	char text[256], on[40];

	snprintf(on, sizeof(on), " on %zu bytes", bytes);
	snprintf(text, sizeof(text), "OpenCL: %s%s: error %d (%s)", call, bytes ? on : "", err,
		 cl_name(err));
	binpool_set_last_error(text);
	switch (err) {
	case CL_MEM_OBJECT_ALLOCATION_FAILURE:
	case CL_OUT_OF_RESOURCES:
	case CL_OUT_OF_HOST_MEMORY:
		return -ENOMEM;
	case CL_INVALID_BUFFER_SIZE:
		return -EFBIG;
	case CL_MISALIGNED_SUB_BUFFER_OFFSET:
		return -EINVAL;
	default:
		return -EIO;
	}
}
