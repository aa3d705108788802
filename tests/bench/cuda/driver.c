// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The CUDA driver, and the first device's context. Owns the table of calls.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"

struct cuda cu;
CUcontext context;

void cuda_check(const char *call, int error)
{
	const char *name = "no such error";

	if (!error)
		return;
	if (cu.GetErrorName)
		cu.GetErrorName(error, &name);
	end(error == CUDA_ERROR_OUT_OF_MEMORY ? IMPOSSIBLE : 1, "cu%s: %s (%d)", call, name, error);
}

void cuda_open(void)
{
	static const struct {
		const char *symbol;
		size_t at;
	} calls[] = {
#define CUDA_ENTRY(name, args) {"cu" #name, offsetof(struct cuda, name)},
		CUDA_CALLS(CUDA_ENTRY)
#undef CUDA_ENTRY
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int device, error;

	if (!library)
		end(IMPOSSIBLE, "there is no CUDA driver here: %s", dlerror());
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *address = dlsym(library, calls[i].symbol);

		if (!address)
			end(IMPOSSIBLE, "this CUDA driver is too old: it has no %s",
			    calls[i].symbol);
		memcpy((char *)&cu + calls[i].at, &address, sizeof(address));
	}
	error = cu.Init(0);
	if (error)
		end(IMPOSSIBLE, "there is no CUDA device here: cuInit says %d", error);
	if (cu.DeviceGet(&device, 0))
		end(IMPOSSIBLE, "there is no CUDA device here");
	CU(DevicePrimaryCtxRetain(&context, device));
	CU(CtxSetCurrent(context));
}

bool cuda_is_pinned(const void *ptr)
{
	unsigned int type = 0;

	return !cu.PointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, (uintptr_t)ptr) &&
	       type == CU_MEMORYTYPE_HOST;
}

/* What there is here, for the head of the table. */
int probe_main(char **args)
{
	char name[CU_DEVICE_NAME_BYTES] = "";
	size_t unused, total;
	int version;

	(void)args;
	cuda_open();
	CU(DeviceGetName(name, (int)sizeof(name), 0));
	CU(DriverGetVersion(&version));
	CU(MemGetInfo_v2(&unused, &total));
	printf("# %s\n", name);
	printf("cuda_version %d\ndevice_free_bytes %zu\ndevice_total_bytes %zu\n", version, unused,
	       total);
	return 0;
}
