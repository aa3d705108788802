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
	CUcontext context;
	unsigned long long id; /* of the context, whose address may become another's */
};

/* Whether the context is still the one that it was. In relaxed mode: cuda_enter(). */
static bool context_lives(const struct device *d)
{
	unsigned long long id;

	return !d->cu->CtxGetId || (!d->cu->CtxGetId(d->context, &id) && id == d->id);
}

/* In our context and in relaxed mode. */
static int alloc_here(const struct device *d, uint64_t bytes, uint64_t *handle)
{
	CUdeviceptr ptr = 0;
	CUcontext ours;
	CUresult err;

	if (!context_lives(d)) {
		binpool_set_last_error("CUDA: the context of this allocator was destroyed");
		return -ENODEV;
	}
	err = d->cu->CtxPushCurrent(d->context);
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
	if (context_lives(d) && !d->cu->CtxPushCurrent(d->context)) {
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
	CUresult err;
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
	err = cu->CtxGetCurrent(&d->context);
	if (!err && d->context && cu->CtxGetId)
		err = cu->CtxGetId(d->context, &d->id);
	cuda_leave(cu, mode);
	if (err || !d->context) {
		free(d);
		if (err)
			return cuda_explain(cu, "cuCtxGetCurrent", err);
		binpool_set_last_error("CUDA: no context is current to this thread: make one, as "
				       "cudaFree(0) does, or the first array on the device");
		return -ENODEV;
	}
	made.ctx = d;
	struct_fill(ops, &made, sizeof(made));
	return 0;
}
