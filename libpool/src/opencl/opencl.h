/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the files of libbinpool-opencl share. Private.
 */
#ifndef BINPOOL_SRC_OPENCL_H
#define BINPOOL_SRC_OPENCL_H

#include <stdbool.h>

#include <binpool_cl.h>

#define EXPORT __attribute__((visibility("default")))

/* Makes the sentence for OpenCL's @err from @call, on @bytes unless 0; the errno for it. */
int cl_explain(const char *call, size_t bytes, cl_int err);

/*
 * The process ends, and OpenCL with it, or soon: nothing of it is to be called. Known
 * from the exit on of whoever called cl_watch_exit() after OpenCL had begun.
 */
bool cl_gone(void);
void cl_watch_exit(void);

#endif /* BINPOOL_SRC_OPENCL_H */
