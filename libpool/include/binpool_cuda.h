/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * CUDA for binpool pools: libbinpool-cuda. Same conventions as binpool.h. It needs
 * nothing of CUDA to be built or installed: the driver, libcuda.so.1, is looked for
 * when a function is first called, and -ENODEV if there is none. A context is never
 * made: the caller's is used.
 *
 * Handles are those of the driver and of the runtime alike: CUstream and cudaStream_t are
 * struct CUstream_st *, CUevent and cudaEvent_t struct CUevent_st *.
 *
 * All calls of the library are made in relaxed capture mode, so that they disturb
 * no thread that captures a graph.
 */
#ifndef BINPOOL_CUDA_H
#define BINPOOL_CUDA_H

#include <binpool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;
struct CUevent_st;

/*
 * As binpool_free_after, for a buffer that work already in @stream may use: the
 * library records an event of its own, which it uses again later. @stream may be NULL, the
 * legacy default stream, or the per-thread one by its handle ((CUstream)2). If its
 * context is destroyed before the event is over, that counts as over, and in fence_errors.
 * Errors: as binpool_free_after's; -EBUSY the stream is being captured: what it will do
 * is not known yet; -ENODEV no driver, or no context; -EINVAL also a stream that is none;
 * -EIO any other CUDA error, named in binpool_last_error(). The buffer is the
 * caller's still then.
 */
int binpool_free_on_cuda_stream(struct binpool *pool, void *ptr, struct CUstream_st *stream);

/*
 * Fills @out, whose size the caller has set, with a fence for binpool_free_after that
 * is over when @event, which the caller has recorded, is. The caller neither records
 * it again nor destroys it before. Errors: -ENODEV.
 */
int binpool_cuda_fence(struct CUevent_st *event, struct binpool_fence *out);

/*
 * An allocator of device memory for a pool of handles: fills @ops, whose size the caller
 * has set, for binpool_create with BINPOOL_KIND_HANDLE. The handles are CUdeviceptr of
 * the context that is current to the calling thread; which one is current to whoever
 * allocates does not matter. Parts are addresses inside. Ends the context first, its
 * memory is gone: freeing is nothing then, and allocating -ENODEV.
 * Errors: -ENODEV no driver (libcuda.so.1), no device, no current context; -EINVAL;
 * -ENOMEM; -EIO any other CUDA error, named in binpool_last_error().
 */
int binpool_cuda_device_allocator(struct binpool_allocator_ops *ops);

#ifdef __cplusplus
}
#endif

#endif /* BINPOOL_CUDA_H */
