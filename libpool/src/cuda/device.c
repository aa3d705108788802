// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * CUDA, memory of a device: an allocator of handles that are CUdeviceptr. Owns a struct
 * device per allocator, whose members are fixed; the pool calls alloc and free one at a
 * time.
 */
#include <errno.h>
#include <stdlib.h>

#include "../versioned.h"
#include "cuda.h"

struct device {
	const struct cuda *cu;
	struct owner owner;
};

/* In our context and in relaxed mode. */
static int alloc_here(const struct device *d, uint64_t bytes, uint64_t *handle)
{
	CUdeviceptr ptr = 0;
	CUcontext ours;
	CUresult err;

	if (!owner_alive(d->cu, &d->owner)) {
		binpool_set_last_error("CUDA: the context of this allocator was destroyed");
		return -ENODEV;
	}
	err = d->cu->CtxPushCurrent(d->owner.ctx);
	if (err)
		return cuda_explain(d->cu, "cuCtxPushCurrent", err);
	err = d->cu->MemAlloc(&ptr, (size_t)bytes);
	d->cu->CtxPopCurrent(&ours);
	if (err)
		return cuda_explain(d->cu, "cuMemAlloc", err);
	*handle = ptr;
	return 0;
}

static int device_alloc(void *ctx, uint64_t bytes, uint64_t *handle)
{
	const struct device *d = ctx;
	int mode, err;

	if (cuda_gone()) {
		binpool_set_last_error("CUDA: the process is ending");
		return -ENODEV;
	}
	mode = cuda_enter(d->cu);
	err = alloc_here(d, bytes, handle);
	cuda_leave(d->cu, mode);
	return err;
}

static void device_free(void *ctx, uint64_t handle, uint64_t bytes)
{
	const struct device *d = ctx;
	CUcontext ours;
	int mode;

	(void)bytes;
	if (cuda_gone())
		return;
	mode = cuda_enter(d->cu);
	/* With its context the memory is gone. */
	if (!owner_enter(d->cu, &d->owner)) {
		d->cu->MemFree(handle);
		d->cu->CtxPopCurrent(&ours);
	}
	cuda_leave(d->cu, mode);
}

static int device_sub(void *ctx, uint64_t handle, uint64_t offset, uint64_t bytes, uint64_t *part)
{
	(void)ctx;
	(void)bytes;
	*part = handle + offset;
	return 0;
}

EXPORT int binpool_cuda_device_allocator(struct binpool_allocator_ops *ops)
{
	struct binpool_allocator_ops made = {
		.alloc_handle = device_alloc,
		.free_handle = device_free,
		.sub = device_sub,
		.release = free,
	};
	const struct cuda *cu;
	struct device *d;
	int mode, ret;

	ret = struct_check(ops, sizeof(*ops), "ops");
	if (ret)
		return ret;
	cu = cuda_get();
	if (!cu)
		return -ENODEV;
	d = calloc(1, sizeof(*d));
	if (!d) {
		binpool_set_last_error("CUDA: no memory for an allocator's description");
		return -ENOMEM;
	}
	d->cu = cu;
	mode = cuda_enter(cu);
	ret = owner_current(cu, &d->owner);
	cuda_leave(cu, mode);
	if (ret) {
		free(d);
		return ret;
	}
	made.ctx = d;
	struct_fill(ops, &made, sizeof(made));
	return 0;
}
