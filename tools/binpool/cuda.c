// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The CUDA driver for `binpool`: loads it, or says what is missing; finds devices. Owns
 * the table of its calls.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "cuda.h"

struct cuda cuda;

const char *cuda_problem(CUresult err)
{
	static _Thread_local char text[96];
	const char *name = NULL;

	if (!cuda.GetErrorName || cuda.GetErrorName(err, &name) || !name)
		name = "an error without a name";
	snprintf(text, sizeof(text), "%s (%d)", name, err);
	return text;
}

int cuda_failed(const char *what, CUresult err)
{
	cli_error("CUDA: %s: %s", what, cuda_problem(err));
	return CLI_FAILED;
}

/* What is in the way of the first call, as far as it can be seen from here. */
static const char *likely_cause(CUresult err)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	if (visible && err == CUDA_ERROR_NO_DEVICE)
		return "CUDA_VISIBLE_DEVICES is set and may hide them all";
	if (access("/dev/nvidiactl", F_OK))
		return "there is no /dev/nvidiactl: the kernel has no NVIDIA driver loaded, or a "
		       "container was given no GPU (docker run --gpus all)";
	if (access("/dev/nvidiactl", R_OK | W_OK))
		return "this user may not open /dev/nvidiactl";
	return "see nvidia-smi";
}

int cuda_load(void)
{
	static const struct {
		const char *symbol;
		size_t offset;
	} calls[] = {
#define CUDA_ENTRY(name, symbol, arguments) {symbol, offsetof(struct cuda, name)},
		CUDA_CALLS(CUDA_ENTRY)
#undef CUDA_ENTRY
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *address;
	CUresult err;
	size_t i;

	if (!library) {
		cli_error("there is no CUDA driver here: %s; libcuda.so.1 comes with NVIDIA's "
			  "driver, and a container is given it with its GPUs (docker run --gpus "
			  "all)",
			  dlerror());
		return CLI_FAILED;
	}
	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		address = dlsym(library, calls[i].symbol);
		if (!address) {
			cli_error("this CUDA driver is too old: its libcuda.so.1 has no %s",
				  calls[i].symbol);
			return CLI_FAILED;
		}
		memcpy((char *)&cuda + calls[i].offset, &address, sizeof(address));
	}
	err = cuda.Init(0);
	if (err) {
		cli_error("CUDA has no device here: cuInit: %s: %s", cuda_problem(err),
			  likely_cause(err));
		return CLI_FAILED;
	}
	return CLI_OK;
}

int cuda_open_device(const char *text, CUdevice *device, char *name, size_t name_len)
{
	uint64_t number = 0;
	CUcontext context;
	CUresult err;
	int count = 0;

	if (text)
		cli_parse_u64(text, &number);
	err = cuda.DeviceGetCount(&count);
	if (err)
		return cuda_failed("counting devices", err);
	if (number >= (uint64_t)count) {
		cli_error("there is no CUDA device %s: there are %d, from 0 on", text ? text : "0",
			  count);
		return CLI_FAILED;
	}
	err = cuda.DeviceGet(device, (int)number);
	if (!err)
		err = cuda.DeviceGetName(name, (int)name_len, *device);
	if (err)
		return cuda_failed("finding the device", err);
	err = cuda.DevicePrimaryCtxRetain(&context, *device);
	if (err)
		return cuda_failed("making a context", err);
	err = cuda.CtxSetCurrent(context);
	if (!err)
		return CLI_OK;
	cuda_close_device(*device);
	return cuda_failed("using the context", err);
}

void cuda_close_device(CUdevice device)
{
	cuda.CtxSetCurrent(NULL);
	cuda.DevicePrimaryCtxRelease(device);
}
