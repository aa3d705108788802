// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A pool that CUDA knows as pinned: registered once, whole; its buffers are copied from at
 * full speed. The driver is called through its library, so that this needs no toolkit.
 *
 *	cc cuda_pin.c $(pkg-config --cflags --libs binpool-cuda) -ldl
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <binpool_cuda.h>

#define BYTES ((size_t)64 << 20)
/* For those who run examples as tests. */
#define EXIT_SKIPPED 77

/* Of cuda.h. */
typedef struct CUctx_st *CUcontext;
typedef unsigned long long CUdeviceptr;

static struct {
	int (*init)(unsigned int flags);
	int (*retain)(CUcontext *ctx, int device);
	int (*set_current)(CUcontext ctx);
	int (*mem_alloc)(CUdeviceptr *ptr, size_t bytes);
	int (*to_device)(CUdeviceptr to, const void *from, size_t bytes);
	int (*to_host)(void *to, CUdeviceptr from, size_t bytes);
} cu;

static int load(void *library, const char *symbol, void *at)
{
	void *address = library ? dlsym(library, symbol) : NULL;

	memcpy(at, &address, sizeof(address));
	return !address;
}

static int failed(void)
{
	fprintf(stderr, "%s\n", binpool_last_error());
	return 1;
}

int main(void)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	unsigned long long device_ptr;
	uint64_t id, left;
	struct binpool *pool;
	CUdeviceptr memory;
	CUcontext context;
	char *buffer;

	if (load(library, "cuInit", &cu.init) ||
	    load(library, "cuDevicePrimaryCtxRetain", &cu.retain) ||
	    load(library, "cuCtxSetCurrent", &cu.set_current) ||
	    load(library, "cuMemAlloc_v2", &cu.mem_alloc) ||
	    load(library, "cuMemcpyHtoD_v2", &cu.to_device) ||
	    load(library, "cuMemcpyDtoH_v2", &cu.to_host) || cu.init(0) || cu.retain(&context, 0)) {
		printf("there is no CUDA device\n");
		return EXIT_SKIPPED;
	}
	/* Registrations are the current context's. */
	if (cu.set_current(context) || cu.mem_alloc(&memory, BYTES))
		return 1;
	if (binpool_create(&pool, NULL) || binpool_cuda_attach(pool, 0, &id))
		return failed();
	buffer = binpool_alloc(pool, BYTES);
	if (!buffer || binpool_query(buffer, &info))
		return failed();
	printf("registered with %s: %llu bytes\n", info.registrars,
	       (unsigned long long)info.extent_bytes);

	/* A buffer is a host pointer of copies, as a whole or in part. */
	memset(buffer, 42, BYTES);
	if (cu.to_device(memory, buffer, BYTES) || memset(buffer, 0, BYTES) != buffer ||
	    cu.to_host(buffer, memory, BYTES) || buffer[BYTES - 1] != 42)
		return 1;
	/* Kernels that read host memory are told where it is for them. */
	if (binpool_cuda_device_ptr(pool, buffer, &device_ptr, &left))
		return failed();
	printf("at %#llx for the device, %llu bytes from there\n", device_ptr,
	       (unsigned long long)left);
	/* Had the context been destroyed meanwhile, this would register anew. */
	if (binpool_wait_registered(pool, buffer, 0))
		return failed();
	if (binpool_free(pool, buffer) || binpool_remove_registrar(pool, id) ||
	    binpool_destroy(pool))
		return failed();
	return 0;
}
