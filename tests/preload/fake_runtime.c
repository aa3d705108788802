// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * libcudart.so.VERSION of the tests, with versions of its symbols as the real one's. Owns the
 * last error and the device of a thread. It opens the driver, and asks it by pointers; BY_SYMBOL
 * by those symbols that everybody sees, which may be another's.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "fake.h"

#define EXPORT		    __attribute__((visibility("default")))
#define INSUFFICIENT_DRIVER 35

struct CUctx_st;

static struct {
	struct fake *(*fake)(void);
	int (*init)(unsigned int flags);
	int (*retain)(struct CUctx_st **context, int device);
	int (*get_current)(struct CUctx_st **context);
	int (*set_current)(struct CUctx_st *context);
	int (*id)(struct CUctx_st *context, unsigned long long *id);
	int (*alloc)(void **out, size_t bytes, unsigned int flags);
	int (*free)(void *ptr);
	int (*flags)(unsigned int *flags, void *ptr);
	int (*device)(void **device, void *ptr, unsigned int flags);
} driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *library;
static __thread int last, device_of_thread;

static void load(void)
{
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return;
	*(void **)&driver.fake = dlsym(library, "fake");
	*(void **)&driver.init = dlsym(library, "cuInit");
	*(void **)&driver.retain = dlsym(library, "cuDevicePrimaryCtxRetain");
	*(void **)&driver.get_current = dlsym(library, "cuCtxGetCurrent");
	*(void **)&driver.set_current = dlsym(library, "cuCtxSetCurrent");
	*(void **)&driver.id = dlsym(library, "cuCtxGetId");
#ifdef BY_SYMBOL
	*(void **)&driver.alloc = dlsym(RTLD_DEFAULT, "cuMemHostAlloc");
	*(void **)&driver.free = dlsym(RTLD_DEFAULT, "cuMemFreeHost");
#else
	*(void **)&driver.alloc = dlsym(library, "cuMemHostAlloc");
	*(void **)&driver.free = dlsym(library, "cuMemFreeHost");
#endif
	*(void **)&driver.flags = dlsym(library, "cuMemHostGetFlags");
	*(void **)&driver.device = dlsym(library, "cuMemHostGetDevicePointer_v2");
	driver.init(0);
}

static int answer(int err)
{
	if (err)
		last = err;
	return err;
}

/* Has the primary context current, made if there is none. */
static int begin(void)
{
	struct CUctx_st *context = NULL;
	unsigned long long id;
	int err;

	pthread_once(&once, load);
	if (!library)
		return answer(INSUFFICIENT_DRIVER);
	if (!driver.get_current(&context) && context && !driver.id(context, &id))
		return 0;
	err = driver.retain(&context, device_of_thread);
	return answer(err ? err : driver.set_current(context));
}

EXPORT int cudaGetLastError(void)
{
	int err = last;

	last = 0;
	return err;
}

EXPORT int cudaSetDevice(int device)
{
	device_of_thread = device;
	pthread_once(&once, load);
	if (library)
		driver.set_current(NULL);
	return begin();
}

EXPORT int cudaFree(void *ptr)
{
	return ptr ? answer(1) : begin();
}

EXPORT int cudaHostAlloc(void **out, size_t bytes, unsigned int flags)
{
	int err = begin();

	if (err)
		return err;
	__atomic_fetch_add(&driver.fake()->runtime_allocs[VERSION], 1, __ATOMIC_SEQ_CST);
	if (out && !bytes) {
		*out = NULL;
		return 0;
	}
	return answer(driver.alloc(out, bytes, flags));
}

/* Not through the exported symbol, which may be another's. */
EXPORT int cudaMallocHost(void **out, size_t bytes)
{
	int err = begin();

	if (err)
		return err;
	__atomic_fetch_add(&driver.fake()->runtime_allocs[VERSION], 1, __ATOMIC_SEQ_CST);
	return answer(driver.alloc(out, bytes, 0));
}

EXPORT int cudaFreeHost(void *ptr)
{
	int err = begin();

	if (err)
		return err;
	__atomic_fetch_add(&driver.fake()->runtime_frees[VERSION], 1, __ATOMIC_SEQ_CST);
	return ptr ? answer(driver.free(ptr)) : 0;
}

EXPORT int cudaHostGetFlags(unsigned int *flags, void *ptr)
{
	int err = begin();

	return err ? err : answer(driver.flags(flags, ptr));
}

EXPORT int cudaHostGetDevicePointer(void **device, void *ptr, unsigned int flags)
{
	int err = begin();

	return err ? err : answer(driver.device(device, ptr, flags));
}
