// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * For those who do not call the driver by its symbols but look its functions up: runtimes that
 * are linked statically, CuPy, JAX. Only if it was asked for (BINPOOL_PRELOAD_DRIVER=1): else all
 * goes to the real functions. Owns pointers to these, which are looked for once.
 *
 * dlsym(3) knows its caller by the return address: whoever asks for RTLD_NEXT, say. So the real
 * one is jumped to, and not called, and finds that address where it was.
 */
#include <dlfcn.h>
#include <string.h>

#include "preload.h"

/* Return by a jump, however the file is compiled. */
#ifdef __clang__
#define JUMPS
#define JUMP __attribute__((musttail)) return
#else
#define JUMPS __attribute__((optimize("O2"), noinline))
#define JUMP  return
#endif

typedef void *dlsym_fn(void *restrict handle, const char *restrict name);
typedef int get_proc_v1_fn(const char *name, void **function, int version,
			   unsigned long long flags);
typedef int get_proc_v2_fn(const char *name, void **function, int version, unsigned long long flags,
			   int *status);

/* The version of CUDA from which on cuGetProcAddress has the last argument. */
#define GET_PROC_V2_SINCE 12000

EXPORT get_proc_v1_fn cuGetProcAddress;
EXPORT get_proc_v2_fn cuGetProcAddress_v2;

static dlsym_fn *real_dlsym; /* atomic */

static dlsym_fn *find_dlsym(void)
{
	/* The first of each architecture's glibc. */
	static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34"};
	dlsym_fn *found = __atomic_load_n(&real_dlsym, __ATOMIC_ACQUIRE);

	for (size_t i = 0; !found && i < sizeof(versions) / sizeof(versions[0]); i++)
		*(void **)&found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	__atomic_store_n(&real_dlsym, found, __ATOMIC_RELEASE);
	return found;
}

void *real_symbol(void *handle, const char *name)
{
	dlsym_fn *real = find_dlsym();

	return real ? real(handle, name) : NULL;
}

/* Ours for a function of the driver's, by the name of its symbol; NULL: there is none. */
static void *ours_of(const char *name)
{
	static const struct {
		const char *name;
		const void *function;
	} ours[] = {
		{"cuGetProcAddress", cuGetProcAddress},
		{"cuGetProcAddress_v2", cuGetProcAddress_v2},
		{"cuMemHostAlloc", cuMemHostAlloc},
		{"cuMemAllocHost", cuMemAllocHost},
		{"cuMemAllocHost_v2", cuMemAllocHost_v2},
		{"cuMemFreeHost", cuMemFreeHost},
		{"cuMemHostGetFlags", cuMemHostGetFlags},
		{"cuMemHostGetDevicePointer_v2", cuMemHostGetDevicePointer_v2},
	};

	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
		if (!strcmp(name, ours[i].name))
			return (void *)(uintptr_t)ours[i].function;
	return NULL;
}

/* What a caller gets instead of what he asks for; NULL: that. */
static void *instead(void *handle, const char *name)
{
	void *ours;

	if (!name || name[0] != 'c' || name[1] != 'u' || !settings_get()->driver ||
	    handle == RTLD_NEXT || handle == RTLD_DEFAULT)
		return NULL;
	ours = ours_of(name);
	/* Only for what there is. */
	return ours && real_symbol(handle, name) ? ours : NULL;
}

static void *none(void *restrict handle, const char *restrict name)
{
	(void)handle;
	(void)name;
	return NULL;
}

EXPORT JUMPS void *dlsym(void *restrict handle, const char *restrict name)
{
	void *ours = instead(handle, name);
	dlsym_fn *real;

	if (ours)
		return ours;
	real = find_dlsym();
	if (!real)
		real = none;
	JUMP real(handle, name);
}

/* After the driver has answered. Its newer versions of a function have the older one's name. */
static void replace(const char *name, int version, void **function)
{
	static const char *const renamed[] = {"cuMemAllocHost", "cuMemHostGetDevicePointer"};
	const int renamed_since = 3020;
	char symbol[64];
	const char *v2 = "";
	void *ours;

	if (!settings_get()->driver || !function || !*function || strlen(name) > 48)
		return;
	for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]); i++)
		if (!strcmp(name, renamed[i]) && version >= renamed_since)
			v2 = "_v2";
	if (!strcmp(name, "cuGetProcAddress") && version >= GET_PROC_V2_SINCE)
		v2 = "_v2";
	strcat(strcpy(symbol, name), v2);
	ours = ours_of(symbol);
	if (ours)
		*function = ours;
}

/* Many functions are asked for, so the real one is kept. */
static void *real_get_proc(void **kept, const char *name, const void *caller)
{
	void *real = __atomic_load_n(kept, __ATOMIC_ACQUIRE);

	if (!real) {
		real = next_function(name, DRIVER_FAMILY, caller);
		__atomic_store_n(kept, real, __ATOMIC_RELEASE);
	}
	return real;
}

EXPORT int cuGetProcAddress(const char *name, void **function, int version,
			    unsigned long long flags)
{
	static void *kept;
	get_proc_v1_fn *real;
	int err;

	*(void **)&real = real_get_proc(&kept, __func__, __builtin_return_address(0));
	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	err = real(name, function, version, flags);
	if (!err)
		replace(name, version, function);
	return err;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version,
			       unsigned long long flags, int *status)
{
	static void *kept;
	get_proc_v2_fn *real;
	int err;

	*(void **)&real = real_get_proc(&kept, __func__, __builtin_return_address(0));
	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	err = real(name, function, version, flags, status);
	if (!err)
		replace(name, version, function);
	return err;
}
