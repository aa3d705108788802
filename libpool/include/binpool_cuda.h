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
 * Has each extent of @pool registered with CUDA as a whole (cuMemHostRegister, PORTABLE, so that
 * all contexts know it as pinned, and mapped where the device can). Buffers are then host
 * pointers of cuMemcpyHtoDAsync and the like. Registrations belong to the context that is
 * current to the calling thread now; which one is current to whoever allocates does not matter.
 * Is that context destroyed, they are gone with it: freeing and detaching are nothing then,
 * and binpool_wait_registered, binpool_cuda_device_ptr and the pool's next extent have all
 * registered again, in the context that is current to their thread by then.
 *
 * Memory that somebody else has registered is taken as it is, and never unregistered; so is
 * nothing once the process ends. Unregistering waits for all work on the device: it is done
 * where extents go, never where buffers are allocated or freed; memory that the driver does not
 * let go of is kept, counted and told of: see try_detach in binpool_register.h. An extent that the
 * driver does not take in one piece, as above 2 GiB some kernels do not, is registered a GiB at a
 * time, or not at all; binpool_cuda_device_ptr says where a piece ends.
 *
 * @flags: 0 or BINPOOL_REGISTRAR_OPTIONAL. *id is for binpool_remove_registrar.
 * Errors: -ENODEV no driver (libcuda.so.1), no device, no current context; -EBUSY the pool is
 * attached already, or an extent is registered by somebody else in part; -EINVAL; -ENOMEM;
 * -EPERM or -EOPNOTSUPP as the driver says; -EIO any other CUDA error, named in
 * binpool_last_error(). Allocations that need a new extent fail with the same.
 */
int binpool_cuda_attach(struct binpool *pool, uint32_t flags, uint64_t *id);

/*
 * *device: what device code has to use for @ptr, any address in memory of an attached pool, in
 * the current context, or else in the one that registered it. *bytes, if not NULL: how far, from
 * @ptr on, the same registration reaches; no copy may cross its end.
 * Errors: as binpool_cuda_attach's; -ENOENT the pool is not attached, or @ptr not in it; or
 * -EAGAIN its extent is still to be registered in the background.
 */
int binpool_cuda_device_ptr(struct binpool *pool, const void *ptr, unsigned long long *device,
			    uint64_t *bytes);

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
 * The same for @n streams, of any contexts and devices, each as often as one likes: the buffer
 * rests until what is in all of them by now is over. @devices: NULL, or as many CUdevice, which are
 * the runtime's numbers, too. A default stream (NULL, 1 or 2) is then that of the current context
 * if this is one of its device, and of the device's primary context otherwise: no context need be
 * current, and a device that has none has nothing at work. -1 there: the current context in any
 * case. @n 0: freed at once, without a driver.
 * Errors: as binpool_free_on_cuda_stream's, of any of the streams; -EINVAL also a device that is
 * none, as any below -1. The buffer is the caller's still then, and waits for none of them. Any
 * thread may call it.
 */
int binpool_free_on_cuda_streams(struct binpool *pool, void *ptr,
				 struct CUstream_st *const *streams, const int *devices, size_t n);

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
