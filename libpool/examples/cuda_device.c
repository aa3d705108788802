// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A pool of CUDA device memory. The driver is called through its library, so that this
 * needs no toolkit.
 *
 *	cc cuda_device.c $(pkg-config --cflags --libs binpool-cuda) -ldl
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <binpool_cuda.h>

/* For those who run examples as tests. */
#define EXIT_SKIPPED 77

/* Of cuda.h. */
typedef struct CUctx_st *CUcontext;
typedef unsigned long long CUdeviceptr;

static struct {
	int (*init)(unsigned int flags);
	int (*retain)(CUcontext *ctx, int device);
	int (*set_current)(CUcontext ctx);
	int (*fill)(CUdeviceptr ptr, unsigned char byte, size_t n);
	int (*copy)(void *to, CUdeviceptr from, size_t n);
} cu;

static int load(void *library, const char *symbol, void *at)
{
	void *address = library ? dlsym(library, symbol) : NULL;

	memcpy(at, &address, sizeof(address));
	return !address;
}

static int say_why(void)
{
	fprintf(stderr, "%s\n", binpool_last_error());
	return 1;
}

int main(void)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops)};
	struct binpool_options options = BINPOOL_OPTIONS_INIT;
	struct binpool_buf buf = {.size = sizeof(buf)};
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	unsigned char byte = 0;
	struct binpool *pool;
	CUcontext context;

	if (load(library, "cuInit", &cu.init) ||
	    load(library, "cuDevicePrimaryCtxRetain", &cu.retain) ||
	    load(library, "cuCtxSetCurrent", &cu.set_current) ||
	    load(library, "cuMemsetD8_v2", &cu.fill) ||
	    load(library, "cuMemcpyDtoH_v2", &cu.copy) || cu.init(0) || cu.retain(&context, 0)) {
		printf("no CUDA device here\n");
		return EXIT_SKIPPED;
	}
	/* The pool's memory is that of the context that is current now. */
	if (cu.set_current(context) || binpool_cuda_device_allocator(&ops))
		return say_why();
	options.name = "device memory";
	options.kind = BINPOOL_KIND_HANDLE;
	options.provider = BINPOOL_PROVIDER_ALLOCATOR;
	options.allocator = &ops;
	if (binpool_create(&pool, &options)) {
		ops.release(ops.ctx);
		return say_why();
	}

	if (binpool_handle_alloc(pool, 100000, &buf))
		return say_why();
	if (cu.fill(buf.handle, 7, 100000) || cu.copy(&byte, buf.handle + 99999, 1))
		return 1;
	printf("the device wrote %d\n", byte);

	/* Freed at once, handed out again when the stream (here the default) is past it. */
	if (binpool_free_on_cuda_stream(pool, (void *)(uintptr_t)buf.handle, NULL) ||
	    binpool_destroy_wait(pool, 10000))
		return say_why();
	return byte != 7;
}
