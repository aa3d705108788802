// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A library that programs load at run time, with RTLD_LOCAL and its runtime among what it needs,
 * as PyTorch is; with DRIVER it was linked with the driver instead. With BARE whoever calls it
 * calls the functions themselves, and is not linked with either. With LOOKUP it opens the driver
 * and asks it for its functions, as a runtime that was linked statically; with BY_NAME it asks the
 * loader. Owns nothing.
 */
#include <dlfcn.h>

#include "fake.h"

#ifdef LOOKUP

__attribute__((visibility("default"))) struct plugin plugin;

/* Those it is looking for have other versions than their names say. */
static void *look_up(void *driver, const char *name, const char *symbol)
{
#ifdef BY_NAME
	(void)name;
	return dlsym(driver, symbol);
#else
	const int cuda = 12080, found = 0;
	int (*get)(const char *, void **, int, unsigned long long, int *);
	void *function = NULL;
	int status = -1;

	(void)symbol;
	*(void **)&get = dlsym(driver, "cuGetProcAddress_v2");
	/* As runtimes do. */
	if (get("cuGetProcAddress", (void **)&get, cuda, 0, &status) || status != found)
		return NULL;
	if (get(name, &function, cuda, 0, &status) || status != found)
		return NULL;
	return function;
#endif
}

static void __attribute__((constructor)) look_all_up(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	*(void **)&plugin.host_alloc = look_up(driver, "cuMemHostAlloc", "cuMemHostAlloc");
	*(void **)&plugin.malloc_host = look_up(driver, "cuMemAllocHost", "cuMemAllocHost_v2");
	*(void **)&plugin.free_host = look_up(driver, "cuMemFreeHost", "cuMemFreeHost");
	*(void **)&plugin.get_flags = look_up(driver, "cuMemHostGetFlags", "cuMemHostGetFlags");
	*(void **)&plugin.get_device =
		look_up(driver, "cuMemHostGetDevicePointer", "cuMemHostGetDevicePointer_v2");
}

#else

#ifdef DRIVER
#define HOST_ALLOC  cuMemHostAlloc
#define MALLOC_HOST cuMemAllocHost_v2
#define FREE_HOST   cuMemFreeHost
#define GET_FLAGS   cuMemHostGetFlags
#define GET_DEVICE  cuMemHostGetDevicePointer_v2
#else
#define HOST_ALLOC  cudaHostAlloc
#define MALLOC_HOST cudaMallocHost
#define FREE_HOST   cudaFreeHost
#define GET_FLAGS   cudaHostGetFlags
#define GET_DEVICE  cudaHostGetDevicePointer
#endif

int HOST_ALLOC(void **out, size_t bytes, unsigned int flags);
int MALLOC_HOST(void **out, size_t bytes);
int FREE_HOST(void *ptr);
int GET_FLAGS(unsigned int *flags, void *ptr);
int GET_DEVICE(void **device, void *ptr, unsigned int flags);

#ifdef BARE
#define REACH(here, function) function
#else
#define REACH(here, function) here

/* The return address is to be here, so nothing is to jump there. */
static int keep(int err)
{
	__asm__ volatile("" ::: "memory");
	return err;
}

static int host_alloc(void **out, size_t bytes, unsigned int flags)
{
	return keep(HOST_ALLOC(out, bytes, flags));
}

static int malloc_host(void **out, size_t bytes)
{
	return keep(MALLOC_HOST(out, bytes));
}

static int free_host(void *ptr)
{
	return keep(FREE_HOST(ptr));
}

static int get_flags(unsigned int *flags, void *ptr)
{
	return keep(GET_FLAGS(flags, ptr));
}

static int get_device(void **device, void *ptr, unsigned int flags)
{
	return keep(GET_DEVICE(device, ptr, flags));
}
#endif

#ifdef DRIVER
#define LAST_ERROR NULL
#define USE_DEVICE NULL
#else
int cudaGetLastError(void);
int cudaSetDevice(int device);
#define LAST_ERROR cudaGetLastError
#define USE_DEVICE cudaSetDevice
#endif

__attribute__((visibility("default"))) const struct plugin plugin = {
	.host_alloc = REACH(host_alloc, HOST_ALLOC),
	.malloc_host = REACH(malloc_host, MALLOC_HOST),
	.free_host = REACH(free_host, FREE_HOST),
	.get_flags = REACH(get_flags, GET_FLAGS),
	.get_device = REACH(get_device, GET_DEVICE),
	.last_error = LAST_ERROR,
	.use_device = USE_DEVICE,
};

#endif
