// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A CUDA device for `binpool run`: has the driver translate the checksum for it, and sends
 * a slot's chunk there, through the kernel, and back, without blocking. Owns the context, the
 * three streams and the slots' device memory. The main thread calls everything here but
 * slot_is_back, which the driver calls from a thread of its own and which touches the slot
 * only to hand it over (see run.h).
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <binpool_cuda.h>

#include "cli.h"
#include "cuda.h"
#include "run.h"

/* Threads of a block, and blocks per multiprocessor. */
#define THREADS		   256u
#define BLOCKS_PER_UNIT	   2u
#define BLOCKS_MAX	   128u
#define NS_PER_MILLISECOND 1e6

struct cuda_device {
	CUdevice device;
	int open; /* its context is ours to give back */
	/* One each, so that both directions and the kernel run side by side. */
	CUstream in, kernels, out;
	CUmodule module;
	CUfunction checksum;
	unsigned int blocks;
};

/* A stage is between the event of its number and the next. */
enum { WRITE, WRITE_END, KERNEL, KERNEL_END, BACK, BACK_END, EVENTS };

struct cuda_slot {
	CUdeviceptr data, partials;
	CUevent events[EVENTS];
};

/* ---- Making ready --------------------------------------------------------------- */

static int check_memory(const struct device *device, const struct run_options *options)
{
	uint64_t needed = options->buffer_bytes * options->depth;
	size_t unused = 0, total = 0;
	CUresult err = cuda.MemGetInfo(&unused, &total);

	if (err)
		return cuda_failed("asking for the device's memory", err);
	if (needed <= unused)
		return CLI_OK;
	cli_error("--depth %" PRIu32 " buffers of %" PRIu64 " bytes need %" PRIu64
		  " bytes, but CUDA device '%s' has %zu left of %zu: lower --depth or "
		  "--buffer-size",
		  options->depth, options->buffer_bytes, needed, device->name, unused, total);
	return CLI_FAILED;
}

static int build_kernel(struct device *device)
{
	struct cuda_device *there = device->own;
	char log[2048] = "";
	int options[] = {CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BYTES};
	void *values[] = {log, (void *)(uintptr_t)(sizeof(log) - 1)};
	CUresult err = cuda.ModuleLoadDataEx(&there->module, checksum_ptx, 2, options, values);

	if (err) {
		cli_error("CUDA: translating the checksum for '%s': %s\n%s", device->name,
			  cuda_problem(err), log);
		return CLI_FAILED;
	}
	err = cuda.ModuleGetFunction(&there->checksum, there->module, "checksum");
	return err ? cuda_failed("finding the checksum", err) : CLI_OK;
}

static int make_streams(struct cuda_device *there)
{
	CUstream *streams[] = {&there->in, &there->kernels, &there->out};
	CUresult err = 0;
	size_t i;

	for (i = 0; i < sizeof(streams) / sizeof(streams[0]) && !err; i++)
		err = cuda.StreamCreate(streams[i], CU_STREAM_NON_BLOCKING);
	return err ? cuda_failed("making a stream", err) : CLI_OK;
}

static int cuda_open(struct device *device, const char *name, const struct run_options *options)
{
	struct cuda_device *there = calloc(1, sizeof(*there));
	int units = 1, ret;

	device->own = there;
	if (!there) {
		cli_error("no memory for a device's record");
		return CLI_FAILED;
	}
	ret = cuda_load();
	if (!ret)
		ret = cuda_open_device(name, &there->device, device->name, sizeof(device->name));
	if (ret)
		return ret;
	there->open = 1;
	cuda.DeviceGetAttribute(&units, CU_DEVICE_MULTIPROCESSORS, there->device);
	there->blocks = (unsigned int)units * BLOCKS_PER_UNIT;
	if (there->blocks > BLOCKS_MAX)
		there->blocks = BLOCKS_MAX;
	device->items = (size_t)there->blocks * THREADS;
	ret = check_memory(device, options);
	if (!ret)
		ret = make_streams(there);
	return ret ? ret : build_kernel(device);
}

static void cuda_close(struct device *device)
{
	struct cuda_device *there = device->own;

	if (!there)
		return;
	if (there->module)
		cuda.ModuleUnload(there->module);
	if (there->out)
		cuda.StreamDestroy(there->out);
	if (there->kernels)
		cuda.StreamDestroy(there->kernels);
	if (there->in)
		cuda.StreamDestroy(there->in);
	if (there->open)
		cuda_close_device(there->device);
	free(there);
}

static int cuda_attach(struct device *device, struct binpool *pool, uint32_t flags, uint64_t *id)
{
	(void)device;
	return binpool_cuda_attach(pool, flags, id);
}

static int cuda_init_slot(struct device *device, struct slot *slot, uint64_t buffer_bytes)
{
	struct cuda_slot *there = calloc(1, sizeof(*there));
	CUresult err;
	int i;

	slot->on_device = there;
	if (!there) {
		cli_error("no memory for a slot's record");
		return CLI_FAILED;
	}
	err = cuda.MemAlloc(&there->data, buffer_bytes);
	if (!err)
		err = cuda.MemAlloc(&there->partials, device->items * sizeof(uint64_t));
	for (i = 0; i < EVENTS && !err; i++)
		err = cuda.EventCreate(&there->events[i], CU_EVENT_DEFAULT);
	return err ? cuda_failed("getting device memory", err) : CLI_OK;
}

static void cuda_exit_slot(struct slot *slot)
{
	struct cuda_slot *there = slot->on_device;
	int i;

	if (!there)
		return;
	for (i = 0; i < EVENTS; i++)
		if (there->events[i])
			cuda.EventDestroy(there->events[i]);
	if (there->partials)
		cuda.MemFree(there->partials);
	if (there->data)
		cuda.MemFree(there->data);
	free(there);
}

/* ---- A chunk's way ------------------------------------------------------------------ */

static void slot_is_back(CUstream stream, CUresult status, void *arg)
{
	struct slot *slot = arg;
	int wake_fd = slot->wake_fd;

	(void)stream;
	slot->status = status;
	atomic_store(&slot->state, SLOT_BACK);
	wake_main(wake_fd);
}

static int slot_failed(struct slot *slot, const char *what, CUresult err)
{
	snprintf(slot->problem, sizeof(slot->problem), "CUDA: %s for %s at %" PRIu64 ": %s", what,
		 slot->source->path, slot->offset, cuda_problem(err));
	return -1;
}

static CUresult write_chunk(const struct cuda_device *dev, const struct slot *slot)
{
	const struct cuda_slot *there = slot->on_device;
	CUresult err = cuda.EventRecord(there->events[WRITE], dev->in);

	if (!err)
		err = cuda.MemcpyHtoDAsync(there->data, slot->in, slot->bytes, dev->in);
	return err ? err : cuda.EventRecord(there->events[WRITE_END], dev->in);
}

/* Changes one byte of the device's copy, where a test asked for it. */
static CUresult corrupt(const struct cuda_device *dev, const struct slot *slot, uint64_t at)
{
	const struct cuda_slot *there = slot->on_device;
	unsigned char byte;
	CUresult err = cuda.StreamSynchronize(dev->in);

	if (!err)
		err = cuda.MemcpyDtoH(&byte, there->data + at, 1);
	byte ^= 1;
	return err ? err : cuda.MemcpyHtoD(there->data + at, &byte, 1);
}

/* The checksum of the chunk once it has arrived. */
static CUresult sum_chunk(const struct cuda_device *dev, const struct slot *slot)
{
	struct cuda_slot *there = slot->on_device;
	uint64_t bytes = slot->bytes, first = slot->offset / sizeof(uint64_t);
	void *arguments[] = {&there->data, &bytes, &first, &there->partials};
	CUresult err = cuda.StreamWaitEvent(dev->kernels, there->events[WRITE_END], 0);

	if (!err)
		err = cuda.EventRecord(there->events[KERNEL], dev->kernels);
	if (!err)
		err = cuda.LaunchKernel(dev->checksum, dev->blocks, 1, 1, THREADS, 1, 1, 0,
					dev->kernels, arguments, NULL);
	return err ? err : cuda.EventRecord(there->events[KERNEL_END], dev->kernels);
}

static CUresult read_chunk(const struct device *device, struct slot *slot)
{
	const struct cuda_device *dev = device->own;
	const struct cuda_slot *there = slot->on_device;
	CUresult err = cuda.StreamWaitEvent(dev->out, there->events[KERNEL_END], 0);

	if (!err)
		err = cuda.MemcpyDtoHAsync(slot->partials, there->partials,
					   device->items * sizeof(uint64_t), dev->out);
	if (!err)
		err = cuda.EventRecord(there->events[BACK], dev->out);
	if (!err)
		err = cuda.MemcpyDtoHAsync(slot->out, there->data, slot->bytes, dev->out);
	return err ? err : cuda.EventRecord(there->events[BACK_END], dev->out);
}

static int cuda_start(struct device *device, struct slot *slot, const struct fault *fault)
{
	const struct cuda_device *dev = device->own;
	const char *what = "writing to the device";
	CUresult err;

	slot->status = 0;
	atomic_store(&slot->state, SLOT_ON_DEVICE);
	err = write_chunk(dev, slot);
	if (!err && fault->place == FAULT_DEVICE) {
		what = "corrupting the device's copy";
		err = corrupt(dev, slot, fault->offset - slot->offset);
	}
	if (!err) {
		what = "starting the checksum";
		err = sum_chunk(dev, slot);
	}
	if (!err) {
		what = "reading from the device";
		err = read_chunk(device, slot);
	}
	if (!err) {
		what = "asking for a callback";
		err = cuda.StreamAddCallback(dev->out, slot_is_back, slot, 0);
	}
	if (!err)
		return 0;
	/* Nobody will tell when what was begun is through with the buffers. */
	cuda.StreamSynchronize(dev->in);
	cuda.StreamSynchronize(dev->kernels);
	cuda.StreamSynchronize(dev->out);
	return slot_failed(slot, what, err);
}

static CUresult add_time(const struct slot *slot, int stage, uint64_t *sum)
{
	const struct cuda_slot *there = slot->on_device;
	float ms = 0;
	CUresult err = cuda.EventElapsedTime(&ms, there->events[stage], there->events[stage + 1]);

	*sum += (uint64_t)((double)ms * NS_PER_MILLISECOND);
	return err;
}

static int cuda_finish(struct device *device, struct slot *slot)
{
	CUresult err = slot->status;

	if (!err)
		err = add_time(slot, WRITE, &device->write_ns);
	if (!err)
		err = add_time(slot, KERNEL, &device->kernel_ns);
	if (!err)
		err = add_time(slot, BACK, &device->back_ns);
	return err ? slot_failed(slot, "the way through the device", err) : 0;
}

const struct device_ops device_cuda = {
	.kind = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.attach = cuda_attach,
	.init_slot = cuda_init_slot,
	.exit_slot = cuda_exit_slot,
	.start = cuda_start,
	.finish = cuda_finish,
};
