// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Who is served, and how buffers come back. Owns nothing.
 */
#include <string.h>
#include <unistd.h>

#include "preload.h"

/* What real functions align small memory to at least. */
#define SMALL_ALIGNMENT 512u

/* The context to serve in; NULL: the program has none. */
static CUcontext context_of(const struct call *call, const struct driver *cu)
{
	CUcontext context = driver_context(cu);
	int (*cuda_free)(void *);

	if (context || strcmp(call->family, RUNTIME_FAMILY))
		return context;
	/* The runtime makes its own, as it would have done in this very call. */
	*(void **)&cuda_free = next_function("cudaFree", call->family, call->caller);
	if (!cuda_free || cuda_free(NULL))
		return NULL;
	return driver_context(cu);
}

/* Whether such a request is one for us; if not, it is counted why. */
static bool wanted(size_t bytes, unsigned int flags)
{
	enum counter why;

	if (settings_get()->off)
		why = COUNT_passed_off;
	else if (pool_inherited() || pool_exiting())
		why = COUNT_passed_child;
	else if (flags & ~(CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED))
		why = COUNT_passed_flags;
	else if (!bytes)
		why = COUNT_passed_size;
	else
		return true;
	count(why, 1);
	return false;
}

/*
 * In one piece, as copies need it. What was registered may be so no more: the device was reset;
 * then it is registered again by this.
 */
static bool registered(const struct library *lib, struct binpool *pool, const void *ptr,
		       size_t bytes)
{
	unsigned long long device;
	uint64_t reach;

	return !lib->binpool_cuda_device_ptr(pool, ptr, &device, &reach) && reach >= bytes;
}

static void *allocate(const struct call *call, size_t bytes, unsigned int flags)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	const struct driver *cu = driver_get();
	const struct library *lib;
	struct binpool *pool;
	CUcontext context;
	void *ptr;

	context = cu ? context_of(call, cu) : NULL;
	if (!context) {
		count(COUNT_passed_context, 1);
		return NULL;
	}
	barrier_note(cu, context);
	pool = pool_get(&lib);
	if (!pool) {
		count(COUNT_passed_pool, 1);
		return NULL;
	}
	ptr = lib->binpool_alloc_aligned(pool, bytes, bytes < page ? SMALL_ALIGNMENT : page);
	if (ptr && (!registered(lib, pool, ptr, bytes) || !buffers_add(ptr, bytes, flags))) {
		lib->binpool_free(pool, ptr);
		ptr = NULL;
	}
	if (!ptr)
		count_refusal(lib->binpool_last_error());
	return ptr;
}

void *serve_alloc(const struct call *call, size_t bytes, unsigned int flags)
{
	uint64_t start, ns;
	void *ptr;

	if (!wanted(bytes, flags))
		return NULL;
	start = clock_ns();
	ptr = allocate(call, bytes, flags);
	ns = clock_ns() - start;
	if (ptr) {
		count(COUNT_served, 1);
		count(COUNT_served_bytes, bytes);
		count(COUNT_served_ns, ns);
		count_max(COUNT_served_max_ns, ns);
	}
	return ptr;
}

/*
 * Asked by whoever finds the pool without a buffer. Its own thread does not wait for devices: that
 * is for those who may know whether a graph is being captured.
 */
static int over(void *ctx)
{
	uint64_t ticket;

	memcpy(&ticket, &ctx, sizeof(ticket));
	return barrier_passed(ticket, call_inside());
}

static void give_back(const struct library *lib, struct binpool *pool, void *ptr)
{
	struct binpool_fence fence = {
		.size = sizeof(fence),
		.kind = BINPOOL_FENCE_CALLBACK,
		.done = over,
	};
	uint64_t ticket;

	_Static_assert(sizeof(ticket) == sizeof(fence.ctx), "a ticket is kept as a pointer");
	if (settings_get()->immediate) {
		lib->binpool_free(pool, ptr);
		return;
	}
	ticket = barrier_ticket();
	if (barrier_passed(ticket, true)) {
		lib->binpool_free(pool, ptr);
		return;
	}
	count(COUNT_frees_deferred, 1);
	memcpy(&fence.ctx, &ticket, sizeof(ticket));
	/* If there is no memory for that it stays in use: it must not be used again too soon. */
	lib->binpool_free_after(pool, ptr, &fence, 1);
}

enum owner serve_free(void *ptr)
{
	const struct library *lib;
	struct binpool *pool = pool_made(&lib);
	unsigned int flags;

	if (!pool || !ptr || !buffers_ours(ptr))
		return OWNER_OTHERS;
	if (pool_inherited()) {
		if (!buffers_flags(ptr, &flags))
			return OWNER_NOBODY;
		count(COUNT_frees_child, 1);
		return OWNER_US;
	}
	if (!buffers_remove(ptr))
		return OWNER_NOBODY;
	count(COUNT_frees, 1);
	give_back(lib, pool, ptr);
	return OWNER_US;
}

/*
 * Of any address in a buffer. The real functions call all memory mapped, whether that was asked for
 * or not: seen with CUDA 13, where the host and its devices have the same addresses.
 */
enum owner serve_flags(const void *ptr, unsigned int *flags)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};
	const struct library *lib;

	if (!pool_made(&lib) || !buffers_ours(ptr))
		return OWNER_OTHERS;
	if (!buffers_flags(ptr, flags) &&
	    (lib->binpool_query(ptr, &info) || info.offset < 0 ||
	     (uint64_t)info.offset >= info.bytes || !buffers_flags(info.buffer, flags)))
		return OWNER_NOBODY;
	*flags |= CUDA_HOST_MAPPED;
	return OWNER_US;
}

enum owner serve_device(const void *ptr, void **out)
{
	const struct library *lib;
	struct binpool *pool = pool_made(&lib);
	unsigned long long device;

	if (!pool || !buffers_ours(ptr) || lib->binpool_cuda_device_ptr(pool, ptr, &device, NULL))
		return OWNER_OTHERS;
	*out = (void *)(uintptr_t)device;
	return OWNER_US;
}
