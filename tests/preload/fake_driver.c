// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * libcuda.so.1 of the tests. Owns regions of pinned memory, contexts and copies; one lock. For
 * many threads.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

#define EXPORT		__attribute__((visibility("default")))
#define INVALID_VALUE	1
#define OUT_OF_MEMORY	2
#define NOT_INITIALIZED 3
#define DEINITIALIZED	4
#define BAD_CONTEXT	201
#define DESTROYED	709
#define REGISTERED	712
#define NOT_REGISTERED	713
#define NOT_SUPPORTED	801
#define CAPTURING	900
#define CONTEXTS	16
#define LARGE		((size_t)1 << 30)
#define LARGEST		((size_t)1 << 40)

struct CUctx_st {
	unsigned long long id; /* 0: there is none */
	int device;
	int refs; /* of a primary one */
};

struct region {
	struct region *next;
	char *ptr;
	size_t bytes;
	unsigned int flags;
	bool registered;
	unsigned long long owner; /* of a registration: the context's id */
};

struct copy {
	struct copy *next;
	unsigned long long context;
	void *to;
	const void *from;
	size_t bytes;
};

static struct fake state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st contexts[CONTEXTS]; /* the primary ones first */
static unsigned long long ids;
static struct region *regions;
static struct copy *copies, **copies_end = &copies;
static bool initialised, gone;
static bool forked; /* a child has no use of its parent's driver */
static __thread struct CUctx_st *stack[8];
static __thread int depth;
static __thread int mode;

EXPORT struct fake *fake(void)
{
	return &state;
}

#define ADD(counter) __atomic_fetch_add(&state.counter, 1, __ATOMIC_SEQ_CST)

static int enter(void)
{
	if (forked)
		return NOT_INITIALIZED;
	if (__atomic_load_n(&gone, __ATOMIC_SEQ_CST)) {
		ADD(late);
		return DEINITIALIZED;
	}
	pthread_mutex_lock(&lock);
	return 0;
}

static int leave(int err)
{
	pthread_mutex_unlock(&lock);
	return err;
}

static struct CUctx_st *current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

static struct region *containing(const void *ptr)
{
	struct region *r = regions;

	while (r && ((const char *)ptr < r->ptr || (const char *)ptr >= r->ptr + r->bytes))
		r = r->next;
	return r;
}

/* Of all contexts, or of one. */
static void carry_out(const struct CUctx_st *context)
{
	struct copy **at = &copies, *c;

	while ((c = *at)) {
		if (context && c->context != context->id) {
			at = &c->next;
			continue;
		}
		memcpy(c->to, c->from, c->bytes);
		*at = c->next;
		free(c);
	}
	copies_end = at;
}

static struct CUctx_st *context_make(struct CUctx_st *context, int device)
{
	*context = (struct CUctx_st){.id = ++ids, .device = device};
	ADD(contexts);
	return context;
}

static void in_child(void)
{
	forked = true;
}

static void at_exit(void)
{
	__atomic_store_n(&gone, true, __ATOMIC_SEQ_CST);
}

EXPORT int cuInit(unsigned int flags)
{
	int err = enter();

	if (err)
		return err;
	if (!initialised && (atexit(at_exit) || pthread_atfork(NULL, NULL, in_child)))
		return leave(OUT_OF_MEMORY);
	initialised = true;
	return leave((int)flags);
}

/* ---- Contexts -------------------------------------------------------------- */

EXPORT int cuDeviceGetCount(int *count)
{
	*count = FAKE_DEVICES;
	return 0;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return 0;
}

EXPORT int cuDeviceGetAttribute(int *value, int which, int device)
{
	(void)which;
	(void)device;
	*value = 1;
	return 0;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active)
{
	int err = enter();

	if (err)
		return err;
	*flags = 0;
	*active = contexts[device].refs > 0;
	return leave(0);
}

EXPORT int cuDevicePrimaryCtxRetain(struct CUctx_st **context, int device)
{
	int err = enter();

	if (err)
		return err;
	if (state.retain_error && contexts[device].refs)
		return leave(state.retain_error);
	*context = &contexts[device];
	if (!contexts[device].refs)
		context_make(*context, device);
	contexts[device].refs++;
	return leave(0);
}

static void context_end(struct CUctx_st *context)
{
	struct region **at = &regions, *r;

	carry_out(context);
	while ((r = *at)) {
		if (!r->registered || r->owner != context->id) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		free(r);
	}
	context->id = 0;
	context->refs = 0;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
	int err = enter();

	if (err)
		return err;
	if (!--contexts[device].refs)
		context_end(&contexts[device]);
	return leave(0);
}

EXPORT void fake_reset(int device)
{
	pthread_mutex_lock(&lock);
	context_end(&contexts[device]);
	pthread_mutex_unlock(&lock);
}

EXPORT void *fake_make_context(int device)
{
	static int made = FAKE_DEVICES;

	pthread_mutex_lock(&lock);
	stack[depth++] = context_make(&contexts[made++], device);
	pthread_mutex_unlock(&lock);
	return current();
}

EXPORT int cuCtxGetCurrent(struct CUctx_st **context)
{
	int err = enter();

	if (err)
		return err;
	*context = current();
	return leave(initialised ? 0 : NOT_INITIALIZED);
}

EXPORT int cuCtxSetCurrent(struct CUctx_st *context)
{
	depth = context ? 1 : 0;
	stack[0] = context;
	return 0;
}

EXPORT int cuCtxPushCurrent_v2(struct CUctx_st *context)
{
	int err = enter();

	if (err)
		return err;
	if (!context->id)
		return leave(DESTROYED);
	stack[depth++] = context;
	return leave(0);
}

EXPORT int cuCtxPopCurrent_v2(struct CUctx_st **context)
{
	*context = stack[--depth];
	return 0;
}

EXPORT int cuCtxGetId(struct CUctx_st *context, unsigned long long *id)
{
	int err = enter();

	if (err)
		return err;
	*id = context->id;
	return leave(context->id ? state.id_error : DESTROYED);
}

EXPORT int cuCtxGetDevice(int *device)
{
	if (!current())
		return BAD_CONTEXT;
	*device = current()->device;
	return 0;
}

EXPORT int cuCtxSynchronize(void)
{
	void (*hook)(void);
	int err = enter();

	if (err)
		return err;
	if (!current() || !current()->id)
		return leave(BAD_CONTEXT);
	if (state.capturing) {
		ADD(broken);
		return leave(CAPTURING);
	}
	ADD(syncs);
	if (!state.sync_error)
		carry_out(current());
	hook = state.in_sync;
	state.in_sync = NULL;
	leave(0);
	if (hook)
		hook();
	return state.sync_error;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *to)
{
	int before = mode;

	mode = *to;
	*to = before;
	return 0;
}

EXPORT int fake_copy(void *to, const void *from, size_t bytes)
{
	struct copy *c = calloc(1, sizeof(*c));
	int pinned;

	pthread_mutex_lock(&lock);
	*c = (struct copy){.context = current()->id, .to = to, .from = from, .bytes = bytes};
	pinned = containing(from) != NULL;
	if (pinned) {
		*copies_end = c;
		copies_end = &c->next;
	} else {
		free(c);
	}
	pthread_mutex_unlock(&lock);
	return !pinned;
}

/* ---- Memory ------------------------------------------------------------------ */

static int region_add(void *ptr, size_t bytes, unsigned int flags, bool registered)
{
	struct region *r = calloc(1, sizeof(*r));

	if (!r)
		return OUT_OF_MEMORY;
	*r = (struct region){.next = regions,
			     .ptr = ptr,
			     .bytes = bytes,
			     .flags = flags,
			     .registered = registered,
			     .owner = current()->id};
	regions = r;
	return 0;
}

/* Takes it out of the list if it begins there. */
static struct region *region_take(void *ptr, bool registered)
{
	struct region **at = &regions, *r;

	while ((r = *at) && (r->ptr != ptr || r->registered != registered))
		at = &r->next;
	if (r)
		*at = r->next;
	return r;
}

EXPORT int cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
	const unsigned int known = 7;
	int err = enter();
	void *ptr;

	if (err)
		return err;
	if (!current())
		return leave(BAD_CONTEXT);
	if (!out || !bytes || flags & ~known)
		return leave(INVALID_VALUE);
	if (state.alloc_error)
		return leave(state.alloc_error);
	if (bytes > LARGEST)
		return leave(OUT_OF_MEMORY);
	/* Addresses only, if it is large. */
	ptr = mmap(NULL, bytes, bytes < LARGE ? PROT_READ | PROT_WRITE : PROT_NONE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ptr == MAP_FAILED)
		return leave(OUT_OF_MEMORY);
	err = region_add(ptr, bytes, flags, false);
	ADD(host_allocs);
	*out = ptr;
	return leave(err);
}

EXPORT int cuMemAllocHost_v2(void **out, size_t bytes)
{
	return cuMemHostAlloc(out, bytes, 0);
}

EXPORT int cuMemAllocHost(void **out, unsigned int bytes)
{
	return cuMemHostAlloc(out, bytes, 0);
}

/* Waits for the devices, as the real one. */
EXPORT int cuMemFreeHost(void *ptr)
{
	struct region *r;
	int err = enter();

	if (err)
		return err;
	r = region_take(ptr, false);
	if (!r) {
		if (containing(ptr))
			ADD(harmed);
		return leave(INVALID_VALUE);
	}
	carry_out(NULL);
	ADD(host_frees);
	munmap(r->ptr, r->bytes);
	free(r);
	return leave(0);
}

EXPORT int cuMemHostGetFlags(unsigned int *flags, void *ptr)
{
	const struct region *r;
	int err = enter();

	if (err)
		return err;
	r = containing(ptr);
	if (!r || r->registered)
		return leave(INVALID_VALUE);
	*flags = r->flags | 2; /* mapped, as the real one says of all */
	return leave(0);
}

/* Devices have other addresses here, and only starts are known. */
EXPORT int cuMemHostGetDevicePointer_v2(void **device, void *ptr, unsigned int flags)
{
	const struct region *r;
	int err = enter();

	if (err)
		return err;
	r = containing(ptr);
	if (!r || r->ptr != ptr || flags || !current())
		return leave(INVALID_VALUE);
	*device = (char *)ptr + ((uintptr_t)1 << 46);
	return leave(0);
}

EXPORT int cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned int flags)
{
	const struct region *r = regions;
	int err = enter();

	if (err)
		return err;
	if (!current() || !current()->id)
		return leave(BAD_CONTEXT);
	if (state.register_error)
		return leave(state.register_error);
	if (state.largest && bytes > state.largest)
		return leave(OUT_OF_MEMORY);
	while (r && ((char *)ptr + bytes <= r->ptr || (char *)ptr >= r->ptr + r->bytes))
		r = r->next;
	if (r)
		return leave(REGISTERED);
	ADD(registers);
	return leave(region_add(ptr, bytes, flags, true));
}

EXPORT int cuMemHostUnregister(void *ptr)
{
	struct region *r;
	int err = enter();

	if (err)
		return err;
	r = region_take(ptr, true);
	if (!r)
		return leave(NOT_REGISTERED);
	carry_out(NULL);
	ADD(unregisters);
	free(r);
	return leave(0);
}

EXPORT int cuPointerGetAttribute(void *value, int which, unsigned long long ptr)
{
	const int type = 2, host = 1;
	bool found;
	int err = enter();

	if (err)
		return err;
	found = containing((const void *)(uintptr_t)ptr);
	if (found && which == type)
		*(unsigned int *)value = (unsigned int)host;
	return leave(!found ? INVALID_VALUE : which == type ? 0 : NOT_SUPPORTED);
}

EXPORT unsigned long fake_regions(void)
{
	unsigned long n = 0;

	pthread_mutex_lock(&lock);
	for (const struct region *r = regions; r; r = r->next)
		n++;
	pthread_mutex_unlock(&lock);
	return n;
}

EXPORT int fake_pinned(const void *ptr, size_t bytes)
{
	const struct region *r;
	int pinned;

	pthread_mutex_lock(&lock);
	r = containing(ptr);
	pinned = r && bytes <= (size_t)(r->ptr + r->bytes - (const char *)ptr);
	pthread_mutex_unlock(&lock);
	return pinned;
}

/* ---- Functions by name ------------------------------------------------------------- */

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version,
			       unsigned long long flags, int *status)
{
	const int found = 0, not_found = 1, cuda = 12000;
	static const struct {
		const char *name;
		void *function;
	} known[] = {
		{"cuGetProcAddress", (void *)cuGetProcAddress_v2},
		{"cuMemHostAlloc", (void *)cuMemHostAlloc},
		{"cuMemAllocHost", (void *)cuMemAllocHost_v2},
		{"cuMemFreeHost", (void *)cuMemFreeHost},
		{"cuMemHostGetFlags", (void *)cuMemHostGetFlags},
		{"cuMemHostGetDevicePointer", (void *)cuMemHostGetDevicePointer_v2},
		{"cuCtxSynchronize", (void *)cuCtxSynchronize},
	};

	*function = NULL;
	*status = not_found;
	if (flags || version < cuda)
		return INVALID_VALUE;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (strcmp(name, known[i].name))
			continue;
		*function = known[i].function;
		*status = found;
	}
	return 0;
}

/* ---- What libbinpool-cuda looks for, and nobody calls here ------------------------ */

#define UNUSED(name)                                                                               \
	EXPORT int name(void);                                                                     \
	EXPORT int name(void)                                                                      \
	{                                                                                          \
		return NOT_SUPPORTED;                                                              \
	}

UNUSED(cuEventCreate)
UNUSED(cuEventRecord)
UNUSED(cuEventQuery)
UNUSED(cuEventDestroy_v2)
UNUSED(cuStreamIsCapturing)
UNUSED(cuStreamGetCtx)
UNUSED(cuMemAlloc_v2)
UNUSED(cuMemFree_v2)

EXPORT int cuGetErrorName(int err, const char **name)
{
	(void)err;
	*name = "CUDA_ERROR_OF_THE_TEST";
	return 0;
}
