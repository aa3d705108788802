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
 * Errors: -EFBIG an extent is above CL_DEVICE_MAX_MEM_ALLOC_SIZE; -EBUSY the pool is attached
 * with BINPOOL_CL_ZEROCOPY; -ENOMEM; -EIO any other OpenCL error, named in
 * binpool_last_error(). Allocations that need a new extent fail with the same.
 */
int binpool_cl_attach(struct binpool *pool, cl_context context, cl_command_queue queue,
		      uint64_t *id);

/*
 * Kernels work on the pool's memory itself: extents are cl_mem that are not mapped, and buffers
 * are parts of them, see binpool_cl_mem. One context at a time. On a device that does not share
 * the host's memory a kernel's use of it costs device memory of the extent's size. Detaching
 * also waits for calls of binpool_cl_acquire and binpool_cl_release in other threads.
 */
#define BINPOOL_CL_ZEROCOPY (1u << 8)

/*
 * As that, with @flags: 0, BINPOOL_CL_ZEROCOPY, BINPOOL_REGISTRAR_OPTIONAL. Errors: also -EINVAL
 * unknown flags; -EBUSY ZEROCOPY, and the pool is attached already.
 */
int binpool_cl_attach_ex(struct binpool *pool, cl_context context, cl_command_queue queue,
			 uint32_t flags, uint64_t *id);

/*
 * *mem: the buffer at @ptr, all of its capacity, of a pool that is attached to @context with
 * BINPOOL_CL_ZEROCOPY: for kernels. The pool's; it stays until the buffer is freed. With the
 * first call what is in the buffer becomes undefined. The host has it then, and may read and
 * write it except between binpool_cl_acquire and binpool_cl_release.
 * Errors: -EOPNOTSUPP less than a page, or it does not begin at one (binpool_alloc_aligned);
 * -EBUSY another context has the pool, or the device has the buffer, or one that was freed here
 * and not released;
 * -ENOENT the pool is not attached so, or the extent was refused; -EINVAL; -ENOMEM; -ENODEV the
 * process is ending; -EIO any other OpenCL error.
 */
int binpool_cl_mem(struct binpool *pool, void *ptr, cl_context context, cl_mem *mem);

/*
 * The device gets the buffer: after this what the host has written is there, for commands in
 * @queue and in others of the context. With @done it is not waited for, and *done, the caller's,
 * is what commands in other queues have to wait for. Who frees a buffer has released it.
 * Both are for in-order queues. In one that is out of order the caller waits for *done before
 * what uses the buffer, and has waited for the device's commands before binpool_cl_release.
 * Errors: -EBUSY the device has it; -ENOENT nobody called binpool_cl_mem for it; else as there.
 */
int binpool_cl_acquire(struct binpool *pool, void *ptr, cl_command_queue queue, cl_event *done);

/*
 * The host gets it back, with what the device has written by commands before in @queue, or, with
 * @done, when that is complete. Errors: -EINVAL the host has it; else as binpool_cl_acquire's.
 */
int binpool_cl_release(struct binpool *pool, void *ptr, cl_command_queue queue, cl_event *done);

/*
 * As binpool_free_after, for a buffer that commands already enqueued in @queue may
 * use: the library enqueues a marker, flushes the queue, and the buffer rests until the
 * marker is complete. A command that fails has ended, too, and counts in fence_errors.
 * Errors: as binpool_free_after's; -EIO any other OpenCL error. The buffer is the
 * caller's still then.
 */
int binpool_free_on_cl_queue(struct binpool *pool, void *ptr, cl_command_queue queue);

/*
 * Fills @out, whose size the caller has set, with a fence for binpool_free_after that
 * is over when @event is complete or failed. The event is retained until the pool has no
 * more use for the fence; who does not hand it to a pool calls its release himself. Commands
 * that nobody has flushed may never run. Errors: -EIO.
 */
int binpool_cl_fence(cl_event event, struct binpool_fence *out);

/*
 * An allocator of device memory for a pool of handles: fills @ops, whose size the caller
 * has set, for binpool_create with BINPOOL_KIND_HANDLE. The handles are cl_mem of
 * @context, made with @flags (as clCreateBuffer's, without a host pointer; 0: read and
 * write), and there on @device when they are handed out. Parts are sub-buffers: their
 * offset is a multiple of CL_DEVICE_MEM_BASE_ADDR_ALIGN, else -EINVAL. The context is
 * retained until the pool is destroyed, or ops->release called because none was made.
 * Errors: -EINVAL; -ENOMEM; -EIO any other OpenCL error, named in binpool_last_error().
 * Allocations also fail with -EFBIG, above CL_DEVICE_MAX_MEM_ALLOC_SIZE.
 */
int binpool_cl_device_allocator(cl_context context, cl_device_id device, cl_mem_flags flags,
				struct binpool_allocator_ops *ops);

#ifdef __cplusplus
}
#endif

#endif /* BINPOOL_CL_H */
