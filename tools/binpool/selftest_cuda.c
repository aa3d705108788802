// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * CUDA for `binpool selftest`. Owns a device's context and memory.
 */
#include <inttypes.h>
#include <stdlib.h>

#include <binpool_cuda.h>

#include "cli.h"
#include "cuda.h"
#include "selftest.h"

struct own {
	CUdevice device;
	CUdeviceptr there;
};

static int open_cuda(struct consumer *c, const char *which, uint64_t bytes)
{
	struct own *own;
	int version = 0, ret = cuda_load();
	CUdevice device;
	CUresult err;
	void *host;

	c->name = "CUDA";
	c->other_name = "cuMemHostAlloc";
	if (!ret)
		ret = cuda_open_device(which, &device, c->device, sizeof(c->device));
	if (ret)
		return ret;
	own = calloc(1, sizeof(*own));
	if (!own) {
		cuda_close_device(device);
		cli_error("no memory for a device's record");
		return CLI_FAILED;
	}
	own->device = device;
	c->own = own;
	cuda.DriverGetVersion(&version);
	printf("CUDA %d.%d, device %s: %s\n", version / 1000, version % 1000 / 10,
	       which ? which : "0", c->device);
	err = cuda.MemAlloc(&own->there, bytes);
	if (err)
		return cuda_failed("getting device memory", err);
	err = cuda.MemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE);
	if (err)
		return cuda_failed("cuMemHostAlloc, to compare with", err);
	c->other = host;
	return CLI_OK;
}

static void close_cuda(struct consumer *c)
{
	struct own *own = c->own;

	if (!own)
		return;
	if (c->other)
		cuda.MemFreeHost(c->other);
	if (own->there)
		cuda.MemFree(own->there);
	cuda_close_device(own->device);
	free(own);
}

static int attach_cuda(struct consumer *c, struct binpool *pool, uint64_t *id)
{
	(void)c;
	return binpool_cuda_attach(pool, 0, id);
}

/* What the driver says of the first and the last byte. */
static int is_pinned(const unsigned char *memory, uint64_t bytes)
{
	const unsigned char *const ends[] = {memory, memory + bytes - 1};
	unsigned int type;
	size_t i;

	for (i = 0; i < 2; i++) {
		type = 0;
		if (cuda.PointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE,
					     (CUdeviceptr)(uintptr_t)ends[i]) ||
		    type != CU_MEMORYTYPE_HOST)
			return 0;
	}
	return 1;
}

static int look_cuda(struct consumer *c, struct binpool *pool, const unsigned char *buffer,
		     uint64_t bytes)
{
	unsigned long long device_ptr;
	uint64_t left = 0;

	(void)c;
	if (binpool_cuda_device_ptr(pool, buffer, &device_ptr, &left)) {
		cli_error("CUDA has no device pointer for the buffer: %s", binpool_last_error());
		return CLI_FAILED;
	}
	if (!is_pinned(buffer, bytes)) {
		cli_error("CUDA registered the pool's memory, but does not call it pinned");
		return CLI_FAILED;
	}
	printf("  device pointer   %s the host's, good for %" PRIu64 " bytes\n",
	       device_ptr == (uintptr_t)buffer ? "is" : "is not", left);
	return CLI_OK;
}

static const char *write_cuda(struct consumer *c, const unsigned char *from, uint64_t bytes)
{
	const struct own *own = c->own;
	CUresult err = cuda.MemcpyHtoD(own->there, from, bytes);

	return err ? cuda_problem(err) : NULL;
}

static const char *read_cuda(struct consumer *c, unsigned char *to, uint64_t bytes)
{
	const struct own *own = c->own;
	CUresult err = cuda.MemcpyDtoH(to, own->there, bytes);

	return err ? cuda_problem(err) : NULL;
}

const struct consumer_ops consumer_cuda = {
	.open = open_cuda,
	.close = close_cuda,
	.attach = attach_cuda,
	.look = look_cuda,
	.write = write_cuda,
	.read = read_cuda,
};
