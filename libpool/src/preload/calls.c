// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A call of the program's: ours to answer, or handed on to the function that it would have
 * reached without us. Owns the mark of a thread that is in such a call: what the runtime asks of
 * the driver then is not the program's, and passes.
 */
#include "preload.h"

static __thread bool inside;

bool call_inside(void)
{
	return inside;
}

/* Whether it is the program's. */
static bool enter(const struct call *call)
{
	if (inside)
		return false;
	inside = true;
	count(call->counter, 1);
	return true;
}

static int leave(int err)
{
	inside = false;
	return err;
}

/* An address that is nobody's, for the real function to say what it says of such. */
static void *nobody(void)
{
	static char place;

	return &place;
}

/* The real ones; who has none has no device either. */
static int next_alloc(const struct call *call, void **out, size_t bytes, const unsigned int *flags)
{
	union {
		void *address;
		int (*plain)(void **, size_t);
		int (*flagged)(void **, size_t, unsigned int);
	} next = {.address = next_function(call->name, call->family, call->caller)};

	if (!next.address)
		return CUDA_ERROR_NO_DEVICE;
	return flags ? next.flagged(out, bytes, *flags) : next.plain(out, bytes);
}

static int next_free(const struct call *call, void *ptr)
{
	union {
		void *address;
		int (*free)(void *);
	} next = {.address = next_function(call->name, call->family, call->caller)};

	return next.address ? next.free(ptr) : CUDA_ERROR_NO_DEVICE;
}

static int next_flags(const struct call *call, unsigned int *flags, void *ptr)
{
	union {
		void *address;
		int (*flags)(unsigned int *, void *);
	} next = {.address = next_function(call->name, call->family, call->caller)};

	return next.address ? next.flags(flags, ptr) : CUDA_ERROR_NO_DEVICE;
}

static int next_device(const struct call *call, void **device, void *ptr, unsigned int flags)
{
	union {
		void *address;
		int (*device)(void **, void *, unsigned int);
	} next = {.address = next_function(call->name, call->family, call->caller)};

	return next.address ? next.device(device, ptr, flags) : CUDA_ERROR_NO_DEVICE;
}

/* @flags NULL: the function has none. */
int call_alloc(const struct call *call, void **out, size_t bytes, const unsigned int *flags)
{
	uint64_t start;
	void *ptr;
	int err;

	if (!enter(call))
		return next_alloc(call, out, bytes, flags);
	ptr = out ? serve_alloc(call, bytes, flags ? *flags : 0) : NULL;
	if (ptr) {
		*out = ptr;
		return leave(CUDA_SUCCESS);
	}
	start = clock_ns();
	err = next_alloc(call, out, bytes, flags);
	count(COUNT_passed, 1);
	count(COUNT_passed_bytes, bytes);
	count(COUNT_passed_ns, clock_ns() - start);
	return leave(err);
}

int call_free(const struct call *call, void *ptr)
{
	if (!enter(call))
		return next_free(call, ptr);
	switch (serve_free(ptr)) {
	case OWNER_US:
		return leave(CUDA_SUCCESS);
	case OWNER_NOBODY:
		count(COUNT_frees_wrong, 1);
		return leave(next_free(call, nobody()));
	default:
		count(COUNT_frees_passed, 1);
		return leave(next_free(call, ptr));
	}
}

int call_flags(const struct call *call, unsigned int *flags, void *ptr)
{
	if (!enter(call))
		return next_flags(call, flags, ptr);
	switch (flags ? serve_flags(ptr, flags) : OWNER_OTHERS) {
	case OWNER_US:
		return leave(CUDA_SUCCESS);
	case OWNER_NOBODY:
		return leave(next_flags(call, flags, nobody()));
	default:
		return leave(next_flags(call, flags, ptr));
	}
}

/* Flags have to be 0: the real one says so. */
int call_device(const struct call *call, void **device, void *ptr, unsigned int flags)
{
	if (!enter(call))
		return next_device(call, device, ptr, flags);
	if (device && !flags && serve_device(ptr, device) == OWNER_US)
		return leave(CUDA_SUCCESS);
	return leave(next_device(call, device, ptr, flags));
}
