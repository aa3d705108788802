// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * CUDA as a registrar: each extent is pinned once, in one registration where the driver
 * takes it. Owns a struct pinning per attached pool, and what it knows of the pool's extents;
 * pinnings_lock, which is held over no call of the driver.
 *
 * The pool calls attach, check and detach one at a time; binpool_cuda_device_ptr may come at
 * any time, and only changes which context is used from now on.
 *
 * A registration is the context's that made it, and gone with it; a context's address is not
 * enough to know it by, so its id is compared. Every call is in relaxed capture mode.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda.h"

/* What is registered at once where the driver does not take all of an extent. */
#define PIECE_BYTES ((uint64_t)1 << 30)

/* An extent that is registered. Fixed, but for what attach and detach do. */
struct pinned {
	struct pinned *next;
	char *ptr;
	uint64_t bytes;
	uint64_t piece; /* bytes of each registration but the last */
	uint64_t done;	/* bytes, from ptr on, that we registered and have not undone */
	struct owner owner;
	bool listed; /* all of it is registered; under the lock */
};

struct pinning {
	struct pinning *next;
	const struct cuda *cu;
	const struct binpool *pool;
	struct owner owner; /* whose the next registration is */
	struct pinned *extents;
	uint64_t users; /* extents that are not detached, and the pool; under the lock */
};

static pthread_mutex_t pinnings_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pinning *pinnings;

/* ---- Contexts ------------------------------------------------------------ */

static struct owner owner_get(const struct pinning *p)
{
	struct owner o;

	pthread_mutex_lock(&pinnings_lock);
	o = p->owner;
	pthread_mutex_unlock(&pinnings_lock);
	return o;
}

/* The context to register in: the one of before, or if it is gone the current one. */
static int owner_choose(struct pinning *p, struct owner *o)
{
	int err;

	*o = owner_get(p);
	if (owner_alive(p->cu, o))
		return 0;
	err = owner_current(p->cu, o);
	if (err == -ENODEV)
		return cuda_refuse(err,
				   "CUDA: the context that registered this pool was destroyed, and "
				   "none is current to this thread");
	if (err)
		return err;
	pthread_mutex_lock(&pinnings_lock);
	p->owner = *o;
	pthread_mutex_unlock(&pinnings_lock);
	return 0;
}

/* ---- Registering ----------------------------------------------------------- */

static uint64_t page_bytes(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

static CUdeviceptr address(const void *ptr)
{
	return (CUdeviceptr)(uintptr_t)ptr;
}

/*
 * Whether CUDA knows the byte at @ptr as pinned host memory; it is taken to do so if it has an
 * error for every call, as after a kernel that failed. In a context.
 */
static bool is_pinned(const struct cuda *cu, const void *ptr)
{
	unsigned int type = 0;
	CUresult err = cu->PointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, address(ptr));

	switch (err) {
	case CUDA_SUCCESS:
		return type == CU_MEMORYTYPE_HOST;
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_INVALID_CONTEXT:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
		return false;
	default:
		return true;
	}
}

/* Where the registration that @ptr is in ends, if that is known; else NULL. In a context. */
static char *range_end(const struct cuda *cu, const void *ptr)
{
	CUdeviceptr start = 0;
	size_t bytes = 0;

	if (cu->PointerGetAttribute(&start, CU_POINTER_RANGE_START, address(ptr)) ||
	    cu->PointerGetAttribute(&bytes, CU_POINTER_RANGE_BYTES, address(ptr)) ||
	    address(ptr) - start >= bytes)
		return NULL;
	return (char *)(uintptr_t)(start + bytes);
}

/*
 * Somebody has registered a part of the extent, or all of it in one piece: 0, that is as good as
 * our own. In a context.
 */
static int take_foreign(const struct cuda *cu, const struct binpool_extent *extent)
{
	char *ptr = extent->ptr, *end = ptr + extent->bytes, *at = ptr, *next;
	char text[256];

	while (at < end && is_pinned(cu, at)) {
		next = range_end(cu, at);
		if (next && next < end)
			break;
		at = next ? end : at + page_bytes();
	}
	if (at >= end)
		return 0;
	snprintf(text, sizeof(text),
		 "CUDA: somebody else has registered a part of the extent at %p, %llu bytes, not "
		 "all of it in one piece: that is to be undone first",
		 (void *)ptr, (unsigned long long)extent->bytes);
	return cuda_refuse(-EBUSY, text);
}

/* Whether some of it is pinned, as far as pages go. In a context. */
static bool is_pinned_in_part(const struct cuda *cu, const struct binpool_extent *extent)
{
	const char *ptr = extent->ptr;
	uint64_t at = 0;

	while (at < extent->bytes && !is_pinned(cu, ptr + at))
		at += page_bytes();
	return at < extent->bytes;
}

/* What to ask for. In a context. */
static unsigned int flags_here(const struct cuda *cu)
{
	unsigned int flags = CU_MEMHOSTREGISTER_PORTABLE;
	int device, can = 0;

	if (!cu->CtxGetDevice(&device) &&
	    !cu->DeviceGetAttribute(&can, CU_DEVICE_CAN_MAP_HOST_MEMORY, device) && can)
		flags |= CU_MEMHOSTREGISTER_DEVICEMAP;
	return flags;
}

/* Whether memory is not registered any more, though unregistering it has failed. In a context. */
static bool is_undone(const struct cuda *cu, const char *ptr, CUresult err)
{
	/* Others may be of work before it, as errors of kernels are told by any call. */
	return context_gone(err) || err == CUDA_ERROR_NOT_REGISTERED || !is_pinned(cu, ptr);
}

/*
 * Unregisters the last piece first. An error, explained: it and those before it are registered
 * still. In a context.
 */
static int unregister_pieces(const struct cuda *cu, struct pinned *e)
{
	while (e->done) {
		uint64_t last = (e->done - 1) / e->piece * e->piece;
		CUresult err = cu->MemHostUnregister(e->ptr + last);

		if (err && !is_undone(cu, e->ptr + last, err))
			return cuda_explain(cu, "cuMemHostUnregister", err);
		e->done = last;
	}
	return 0;
}

/* Registers all of it in pieces, or nothing, unless that cannot be undone. In a context. */
static CUresult register_pieces(const struct cuda *cu, struct pinned *e)
{
	const unsigned int flags = flags_here(cu);
	CUresult err = CUDA_SUCCESS;

	while (e->done < e->bytes && !err) {
		uint64_t left = e->bytes - e->done, n = left < e->piece ? left : e->piece;

		err = cu->MemHostRegister(e->ptr + e->done, (size_t)n, flags);
		if (!err)
			e->done += n;
	}
	if (err)
		unregister_pieces(cu, e);
	return err;
}

/* Whether smaller pieces may do where all at once did not. */
static bool pieces_may_do(CUresult err)
{
	return err != CUDA_ERROR_REGISTERED && err != CUDA_ERROR_DEINITIALIZED &&
	       err != CUDA_ERROR_INVALID_CONTEXT && err != CUDA_ERROR_CONTEXT_IS_DESTROYED &&
	       err != CUDA_ERROR_NOT_PERMITTED && err != CUDA_ERROR_NOT_SUPPORTED &&
	       (err < CUDA_ERROR_CAPTURE_FIRST || err > CUDA_ERROR_CAPTURE_LAST);
}

/* In a context. */
static int pin_here(const struct cuda *cu, const struct binpool_extent *extent, struct pinned *e)
{
	CUresult err;

	e->piece = extent->bytes;
	err = register_pieces(cu, e);
	if (err && pieces_may_do(err) && extent->bytes > PIECE_BYTES) {
		e->piece = PIECE_BYTES;
		err = register_pieces(cu, e);
	}
	/* A driver may call that by the other name. */
	if (!e->done && (err == CUDA_ERROR_REGISTERED ||
			 (err == CUDA_ERROR_INVALID_VALUE && is_pinned_in_part(cu, extent)))) {
		e->piece = extent->bytes;
		return take_foreign(cu, extent);
	}
	return err ? cuda_explain(cu, "cuMemHostRegister", err) : 0;
}

/* In relaxed mode. */
static int pin(struct pinning *p, const struct binpool_extent *extent, struct pinned *e)
{
	CUcontext ours;
	CUresult err;
	int ret = owner_choose(p, &e->owner);

	if (ret)
		return ret;
	err = p->cu->CtxPushCurrent(e->owner.ctx);
	if (err)
		return cuda_explain(p->cu, "cuCtxPushCurrent", err);
	ret = pin_here(p->cu, extent, e);
	p->cu->CtxPopCurrent(&ours);
	return ret;
}

static int attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	struct pinning *p = ctx;
	struct pinned *e;
	int mode, err;

	if (cuda_gone())
		return cuda_refuse(-ENODEV, "CUDA: the process is ending");
	e = calloc(1, sizeof(*e));
	if (!e)
		return cuda_refuse(-ENOMEM, "CUDA: no memory for an extent's description");
	e->ptr = extent->ptr;
	e->bytes = extent->bytes;
	mode = cuda_enter(p->cu);
	err = pin(p, extent, e);
	cuda_leave(p->cu, mode);
	if (err && !e->done) {
		free(e);
		return err;
	}
	pthread_mutex_lock(&pinnings_lock);
	p->users++;
	e->listed = !err;
	if (e->listed) {
		e->next = p->extents;
		p->extents = e;
	}
	pthread_mutex_unlock(&pinnings_lock);
	*cookie = e;
	return err;
}

/*
 * Whether the extent is still registered: its context may be gone, or somebody undid it. The
 * context of the thread that finds out takes its place, as a pool's own thread has none.
 */
static int check(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	struct pinning *p = ctx;
	const struct pinned *e = cookie;
	struct owner o;
	CUresult entered;
	CUcontext ours;
	bool lost = false;
	int mode;

	if (cuda_gone())
		return 0;
	mode = cuda_enter(p->cu);
	entered = owner_enter(p->cu, &e->owner);
	if (!entered) {
		lost = !is_pinned(p->cu, extent->ptr);
		p->cu->CtxPopCurrent(&ours);
	} else if (context_gone(entered)) {
		lost = true;
		owner_choose(p, &o);
	}
	cuda_leave(p->cu, mode);
	return lost ? -ENODEV : 0;
}

/* One user less. pinnings_lock. */
static void put(struct pinning *p)
{
	if (!--p->users)
		free(p);
}

/*
 * Waits for all of the device. With its context a registration is gone. One that is not to be
 * undone keeps its memory where it is: somebody else's would be written by the device.
 */
static int try_detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	struct pinning *p = ctx;
	struct pinned *e = cookie, **at;
	CUresult entered;
	CUcontext ours;
	int mode, err = 0;

	(void)extent;
	pthread_mutex_lock(&pinnings_lock);
	if (e->listed) {
		for (at = &p->extents; *at != e; at = &(*at)->next)
			;
		*at = e->next;
		e->listed = false;
	}
	pthread_mutex_unlock(&pinnings_lock);
	if (e->done && !cuda_gone()) {
		mode = cuda_enter(p->cu);
		entered = owner_enter(p->cu, &e->owner);
		if (!entered) {
			err = unregister_pieces(p->cu, e);
			p->cu->CtxPopCurrent(&ours);
		} else if (!context_gone(entered)) {
			err = cuda_explain(p->cu, "cuCtxPushCurrent", entered);
		}
		cuda_leave(p->cu, mode);
	}
	if (err)
		return err;
	free(e);
	pthread_mutex_lock(&pinnings_lock);
	put(p);
	pthread_mutex_unlock(&pinnings_lock);
	return 0;
}

/* ---- A pool's pinning -------------------------------------------------------- */

/* pinnings_lock. */
static struct pinning *pinning_of(const struct binpool *pool)
{
	struct pinning *p = pinnings;

	while (p && p->pool != pool)
		p = p->next;
	return p;
}

static void release(void *ctx)
{
	struct pinning *p = ctx, **at;

	pthread_mutex_lock(&pinnings_lock);
	for (at = &pinnings; *at != p; at = &(*at)->next)
		;
	*at = p->next;
	put(p);
	pthread_mutex_unlock(&pinnings_lock);
}

/* False: there is one of this pool. */
static bool publish(struct pinning *p)
{
	bool first;

	pthread_mutex_lock(&pinnings_lock);
	first = !pinning_of(p->pool);
	if (first) {
		p->next = pinnings;
		pinnings = p;
	}
	pthread_mutex_unlock(&pinnings_lock);
	return first;
}

EXPORT int binpool_cuda_attach(struct binpool *pool, uint32_t flags, uint64_t *id)
{
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.name = "cuda",
		.attach = attach,
		.try_detach = try_detach,
		.release = release,
		.flags = flags,
		.check = check,
	};
	const struct cuda *cu;
	struct pinning *p;
	int mode, err;

	if (!pool || !id)
		return cuda_refuse(-EINVAL, "binpool_cuda_attach: pool or id is NULL");
	cu = cuda_get();
	if (!cu)
		return -ENODEV;
	p = calloc(1, sizeof(*p));
	if (!p)
		return cuda_refuse(-ENOMEM, "CUDA: no memory for a registrar's description");
	p->cu = cu;
	p->pool = pool;
	p->users = 1;
	mode = cuda_enter(cu);
	err = owner_current(cu, &p->owner);
	cuda_leave(cu, mode);
	if (!err && !publish(p))
		err = cuda_refuse(-EBUSY,
				  "CUDA: this pool is attached already, and for all contexts");
	if (err) {
		free(p);
		return err;
	}
	ops.ctx = p;
	err = binpool_add_registrar(pool, &ops, id);
	if (err)
		release(p);
	return err;
}

/* ---- Device pointers ----------------------------------------------------------- */

/*
 * Copies what is known of @ptr: 1; 0: nothing. -ENOENT the pool is not attached. *cu: the
 * driver then.
 */
static int look_up(const struct binpool *pool, const char *ptr, struct pinned *found,
		   const struct cuda **cu)
{
	const struct pinning *p;
	int ret = -ENOENT;

	pthread_mutex_lock(&pinnings_lock);
	p = pinning_of(pool);
	if (p) {
		const struct pinned *e = p->extents;

		*cu = p->cu;
		while (e && (ptr < e->ptr || (uint64_t)(ptr - e->ptr) >= e->bytes))
			e = e->next;
		if (e)
			*found = *e;
		ret = e != NULL;
	}
	pthread_mutex_unlock(&pinnings_lock);
	if (ret < 0)
		return cuda_refuse(ret, "CUDA: this pool is not attached: binpool_cuda_attach");
	return ret;
}

/* In a context. */
static int ask_here(const struct cuda *cu, const struct pinned *e, const char *ptr,
		    CUdeviceptr *device, uint64_t *left)
{
	uint64_t offset = (uint64_t)(ptr - e->ptr) / e->piece * e->piece;
	char *start = e->ptr + offset;
	CUdeviceptr mapped;
	CUresult err = cu->MemHostGetDevicePointer(&mapped, start, 0);

	if (err)
		return cuda_explain(cu, "cuMemHostGetDevicePointer", err);
	*device = mapped + (CUdeviceptr)(ptr - start);
	*left = e->bytes - offset < e->piece ? e->bytes - offset : e->piece;
	*left -= (uint64_t)(ptr - start);
	return 0;
}

/* In the thread's context, or else the registration's. -ENODEV: that is gone. */
static int ask(const struct cuda *cu, const struct pinned *e, const char *ptr, CUdeviceptr *device,
	       uint64_t *left)
{
	int ret = -ENODEV, mode = cuda_enter(cu);
	struct owner o;
	CUcontext ours;

	if (owner_alive(cu, &e->owner)) {
		if (!owner_current(cu, &o))
			ret = ask_here(cu, e, ptr, device, left);
		else if (!cu->CtxPushCurrent(e->owner.ctx)) {
			ret = ask_here(cu, e, ptr, device, left);
			cu->CtxPopCurrent(&ours);
		}
	}
	cuda_leave(cu, mode);
	return ret;
}

/* If the context is gone, the thread's is the one to register in from now on. */
static void adopt(const struct binpool *pool, const struct cuda *cu)
{
	int mode = cuda_enter(cu);
	struct owner o, now;
	struct pinning *p;

	pthread_mutex_lock(&pinnings_lock);
	p = pinning_of(pool);
	o = p ? p->owner : (struct owner){0};
	pthread_mutex_unlock(&pinnings_lock);
	if (!owner_alive(cu, &o) && !owner_current(cu, &now)) {
		pthread_mutex_lock(&pinnings_lock);
		p = pinning_of(pool);
		if (p && p->owner.ctx == o.ctx && p->owner.id == o.id)
			p->owner = now;
		pthread_mutex_unlock(&pinnings_lock);
	}
	cuda_leave(cu, mode);
}

EXPORT int binpool_cuda_device_ptr(struct binpool *pool, const void *ptr,
				   unsigned long long *device, uint64_t *bytes)
{
	const struct cuda *cu = NULL;
	struct pinned e = {0};
	CUdeviceptr there = 0;
	uint64_t left = 0;
	int ret;

	if (!pool || !ptr || !device)
		return cuda_refuse(-EINVAL, "binpool_cuda_device_ptr: an argument is NULL");
	/* A forked child is to call no driver. */
	if (binpool_max_bytes(pool) < 0)
		return (int)binpool_max_bytes(pool);
	if (cuda_gone())
		return cuda_refuse(-ENODEV, "CUDA: the process is ending");
	ret = look_up(pool, ptr, &e, &cu);
	if (ret < 0)
		return ret;
	ret = ret ? ask(cu, &e, ptr, &there, &left) : -ENODEV;
	if (ret == -ENODEV) {
		/* It was refused, or lost. */
		adopt(pool, cu);
		ret = binpool_wait_registered(pool, ptr, 0);
		if (!ret)
			ret = look_up(pool, ptr, &e, &cu);
		if (!ret)
			ret = cuda_refuse(-ENOENT, "CUDA: the extent has gone meanwhile");
		else if (ret > 0)
			ret = ask(cu, &e, ptr, &there, &left);
	}
	if (ret)
		return ret;
	*device = there;
	if (bytes)
		*bytes = left;
	return 0;
}
