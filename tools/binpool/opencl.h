/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What the parts of `binpool` that call OpenCL share. */
#ifndef BINPOOL_CLI_OPENCL_H
#define BINPOOL_CLI_OPENCL_H

#include <stddef.h>

#include <CL/cl.h>

/* An error's name for people; of the thread's, until its next call. */
const char *cl_problem(cl_int status);
/* "OpenCL: WHAT: PROBLEM" on stderr. Returns CLI_FAILED. */
int cl_failed(const char *what, cl_int status);
/* A device with @wanted (NULL: anything) in its name, GPUs first. A CLI_* status. */
int cl_find_device(const char *wanted, cl_platform_id *platform, cl_device_id *id, char *name,
		   size_t name_len);

#endif /* BINPOOL_CLI_OPENCL_H */
