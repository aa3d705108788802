// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers that CUDA streams read: freed at once, handed out again when the streams are
 * past them. The driver is called through its library, so that this needs no toolkit.
 *
 *	cc cuda.c $(pkg-config --cflags --libs binpool-cuda) -ldl
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <binpool_cuda.h>

#define BYTES	((size_t)1 << 20)
#define BUFFERS 100
/* For those who run examples as tests. */
#define EXIT_SKIPPED 77

/* Of cuda.h. */
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef unsigned long long CUdeviceptr;

static struct {
	int (*init)(unsigned int flags);
	int (*retain)(CUcontext *ctx, int device);
	int (*set_current)(CUcontext ctx);
	int (*stream_create)(CUstream *stream, unsigned int flags);
	int (*event_create)(CUevent *event, unsigned int flags);
	int (*event_record)(CUevent event, CUstream stream);
	int (*mem_alloc)(CUdeviceptr *ptr, size_t bytes);
	int (*copy)(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
} cu;

static int load(void *library, const char *symbol, void *at)
{
	void *address = library ? dlsym(library, symbol) : NULL;

	memcpy(at, &address, sizeof(address));
	return !address;
}

int main(void)
{
	struct binpool_fence fence = {.size = sizeof(fence)};
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	CUstream stream = NULL; /* the default one */
	CUstream both[2] = {NULL};
	const int devices[2] = {0, 0};
	struct binpool *pool;
	CUdeviceptr memory;
	CUcontext context;
	CUevent event;
	char *buffer;

	if (load(library, "cuInit", &cu.init) ||
	    load(library, "cuDevicePrimaryCtxRetain", &cu.retain) ||
	    load(library, "cuCtxSetCurrent", &cu.set_current) ||
	    load(library, "cuStreamCreate", &cu.stream_create) ||
	    load(library, "cuEventCreate", &cu.event_create) ||
	    load(library, "cuEventRecord", &cu.event_record) ||
	    load(library, "cuMemAlloc_v2", &cu.mem_alloc) ||
	    load(library, "cuMemcpyHtoDAsync_v2", &cu.copy) || cu.init(0) ||
	    cu.retain(&context, 0)) {
		printf("there is no CUDA device\n");
		return EXIT_SKIPPED;
	}
	if (cu.set_current(context) || cu.mem_alloc(&memory, BYTES) || cu.event_create(&event, 0) ||
	    cu.stream_create(&both[1], 0) || binpool_create(&pool, NULL)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	for (int i = 0; i < BUFFERS; i++) {
		buffer = binpool_alloc(pool, BYTES);
		if (!buffer || !memset(buffer, i, BYTES) ||
		    cu.copy(memory, buffer, BYTES, stream) ||
		    binpool_free_on_cuda_stream(pool, buffer, stream)) {
			fprintf(stderr, "%s\n", binpool_last_error());
			return 1;
		}
	}
	/* Two streams read this one. */
	buffer = binpool_alloc(pool, BYTES);
	if (!buffer || cu.copy(memory, buffer, BYTES / 2, both[0]) ||
	    cu.copy(memory + BYTES / 2, buffer + BYTES / 2, BYTES / 2, both[1]) ||
	    binpool_free_on_cuda_streams(pool, buffer, both, devices, 2)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	/* An event of one's own does as well. */
	buffer = binpool_alloc(pool, BYTES);
	if (!buffer || cu.copy(memory, buffer, BYTES, stream) || cu.event_record(event, stream) ||
	    binpool_cuda_fence(event, &fence) || binpool_free_after(pool, buffer, &fence, 1) ||
	    binpool_destroy_wait(pool, 60000)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	printf("%d copies\n", BUFFERS + 3);
	return 0;
}
