// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The CUDA driver, loaded when it is first needed. Owns the table of its calls,
 * which is made once, with driver_lock, and never changes; and the mark that the process ends.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

static struct cuda driver;
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static char reason[512]; /* that there is none */
static bool loaded;	 /* for good or ill; until then there may be one yet */
static bool ready;

static bool gone;

bool cuda_gone(void)
{
	return __atomic_load_n(&gone, __ATOMIC_RELAXED);
}

/* Exit handlers run last come, first served: the driver's, which are older, run after this. */
static void exiting(void)
{
	__atomic_store_n(&gone, true, __ATOMIC_RELAXED);
}

/* driver_lock. */
static void load(void)
{
	static const struct {
		const char *symbol;
		size_t offset;
		bool needed;
	} calls[] = {
#define CUDA_ENTRY(name, symbol, arguments, needed) {symbol, offsetof(struct cuda, name), needed},
		CUDA_CALLS(CUDA_ENTRY)
#undef CUDA_ENTRY
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	CUresult err;

	if (!library) {
		snprintf(
			reason, sizeof(reason),
			"there is no CUDA driver here: %s; libcuda.so.1 comes with NVIDIA's "
			"driver, and a container is given it with its GPUs (docker run --gpus all)",
			dlerror());
		return;
	}
	loaded = true;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *address = dlsym(library, calls[i].symbol);

		if (!address && calls[i].needed) {
			snprintf(reason, sizeof(reason),
				 "this CUDA driver is too old: its libcuda.so.1 has no %s",
				 calls[i].symbol);
			return;
		}
		memcpy((char *)&driver + calls[i].offset, &address, sizeof(address));
	}
	err = driver.Init(0);
	if (err)
		snprintf(reason, sizeof(reason), "CUDA: cuInit: error %d", err);
	else if (atexit(exiting))
		snprintf(reason, sizeof(reason), "CUDA: no memory for an exit handler");
	else
		__atomic_store_n(&ready, true, __ATOMIC_RELEASE);
}

const struct cuda *cuda_get(void)
{
	if (__atomic_load_n(&ready, __ATOMIC_ACQUIRE))
		return &driver;
	pthread_mutex_lock(&driver_lock);
	/* What was missing may have been a descriptor. */
	if (!loaded)
		load();
	if (!ready)
		binpool_set_last_error(reason);
	pthread_mutex_unlock(&driver_lock);
	return ready ? &driver : NULL;
}

int cuda_enter(const struct cuda *cuda)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	cuda->ThreadExchangeStreamCaptureMode(&mode);
	return mode;
}

void cuda_leave(const struct cuda *cuda, int mode)
{
	cuda->ThreadExchangeStreamCaptureMode(&mode);
}

int cuda_refuse(int err, const char *sentence)
{
	binpool_set_last_error(sentence);
	return err;
}

int cuda_explain(const struct cuda *cuda, const char *call, CUresult err)
{
	const char *name = NULL;
	char text[256];

	if (cuda->GetErrorName(err, &name) || !name)
		name = "unknown";
	snprintf(text, sizeof(text), "CUDA: %s: error %d (%s)", call, err, name);
	binpool_set_last_error(text);
	if (err >= CUDA_ERROR_CAPTURE_FIRST && err <= CUDA_ERROR_CAPTURE_LAST)
		return -EBUSY;
	switch (err) {
	case CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_INVALID_DEVICE:
	case CUDA_ERROR_INVALID_HANDLE:
		return -EINVAL;
	case CUDA_ERROR_NOT_INITIALIZED:
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_INVALID_CONTEXT:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
		return -ENODEV;
	case CUDA_ERROR_REGISTERED:
		return -EBUSY;
	case CUDA_ERROR_NOT_PERMITTED:
		return -EPERM;
	case CUDA_ERROR_NOT_SUPPORTED:
		return -EOPNOTSUPP;
	default:
		return -EIO;
	}
}
