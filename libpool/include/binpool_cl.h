/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * OpenCL for binpool pools: libbinpool-opencl. Same conventions as binpool.h.
 */
#ifndef BINPOOL_CL_H
#define BINPOOL_CL_H

/* Nothing here is newer; a program that says otherwise before is heard. */
#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#include <CL/cl.h>
#include <binpool.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * STAGING: each extent becomes the host memory of one cl_mem
 * (CL_MEM_USE_HOST_PTR), mapped for reading and writing once and kept mapped,
 * so that the runtime knows the memory as pinned. Buffers are then the host
 * pointers of clEnqueueReadBuffer and clEnqueueWriteBuffer. A pool may have
 * any number of contexts. Context and queue are retained until detached.
 * *id is for binpool_remove_registrar, which blocks until @queue has finished
 * what touches the extents.
 * Errors: -EFBIG an extent is above CL_DEVICE_MAX_MEM_ALLOC_SIZE; -ENOMEM;
 * -EIO any other OpenCL error, named in binpool_last_error().
 */
int binpool_cl_attach(struct binpool *pool, cl_context context, cl_command_queue queue,
		      uint64_t *id);

#ifdef __cplusplus
}
#endif

#endif /* BINPOOL_CL_H */
