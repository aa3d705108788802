// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * An OpenCL device for `binpool run`: finds it, builds the checksum for it, and
 * sends a slot's chunk there, through the kernel, and back, without blocking.
 * Owns the context, the three queues and the slots' device memory. The main
 * thread calls everything here but slot_is_back, which the runtime calls from a
 * thread of its own and which touches the slot only to hand it over (see run.h).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <binpool_cl.h>

#include "cli.h"
#include "opencl.h"
#include "run.h"

struct opencl {
	cl_platform_id platform;
	cl_device_id id;
	cl_context context;
	/* One each, so that both directions and the kernel run side by side. */
	cl_command_queue in, kernels, out;
	cl_program program;
	cl_kernel checksum;
};

enum { EVENT_WRITE, EVENT_KERNEL, EVENT_PARTIALS, EVENT_BACK, EVENTS };

struct opencl_slot {
	cl_mem data, partials;
	cl_event events[EVENTS];
};

/* Work items per compute unit, and at most: each costs 8 bytes of partial sums a chunk. */
#define ITEMS_PER_UNIT 256
#define ITEMS_MAX      16384

/* ---- Finding it ----------------------------------------------------------- */

/* What the device must offer for this run. */
static int check_device(struct device *device, const struct run_options *options)
{
	const struct opencl *cl = device->own;
	cl_ulong largest = 0, memory = 0;
	cl_bool little = CL_FALSE;
	cl_uint units = 1;
	uint64_t needed = options->buffer_bytes * options->depth;

	clGetDeviceInfo(cl->id, CL_DEVICE_ENDIAN_LITTLE, sizeof(little), &little, NULL);
	clGetDeviceInfo(cl->id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(largest), &largest, NULL);
	clGetDeviceInfo(cl->id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(memory), &memory, NULL);
	clGetDeviceInfo(cl->id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(units), &units, NULL);
	if (!little) {
		cli_error("OpenCL device '%s' is big-endian, which the checksum does not support",
			  device->name);
		return CLI_FAILED;
	}
	if (options->buffer_bytes > largest) {
		cli_error("--buffer-size is %" PRIu64
			  " bytes, but OpenCL device '%s' allows %" PRIu64 " bytes in one buffer",
			  options->buffer_bytes, device->name, (uint64_t)largest);
		return CLI_FAILED;
	}
	if (needed > memory) {
		cli_error("--depth %" PRIu32 " buffers of %" PRIu64 " bytes need %" PRIu64
			  " bytes, but OpenCL device '%s' has %" PRIu64
			  ": lower --depth or --buffer-size",
			  options->depth, options->buffer_bytes, needed, device->name,
			  (uint64_t)memory);
		return CLI_FAILED;
	}
	device->items = (size_t)units * ITEMS_PER_UNIT;
	if (device->items > ITEMS_MAX)
		device->items = ITEMS_MAX;
	return CLI_OK;
}

/* ---- Making ready ----------------------------------------------------------- */

static int build_kernel(struct device *device)
{
	struct opencl *cl = device->own;
	const char *source = checksum_kernel;
	char log[2048] = "";
	cl_int status;

	cl->program = clCreateProgramWithSource(cl->context, 1, &source, NULL, &status);
	if (status != CL_SUCCESS)
		return cl_failed("making the checksum program", status);
	status = clBuildProgram(cl->program, 1, &cl->id, NULL, NULL, NULL);
	if (status != CL_SUCCESS) {
		clGetProgramBuildInfo(cl->program, cl->id, CL_PROGRAM_BUILD_LOG, sizeof(log) - 1,
				      log, NULL);
		cli_error("OpenCL: building the checksum for '%s': %s\n%s", device->name,
			  cl_problem(status), log);
		return CLI_FAILED;
	}
	cl->checksum = clCreateKernel(cl->program, "checksum", &status);
	return status == CL_SUCCESS ? CLI_OK : cl_failed("making the checksum kernel", status);
}

static int opencl_open(struct device *device, const char *name, const struct run_options *options)
{
	cl_context_properties properties[3] = {CL_CONTEXT_PLATFORM};
	cl_command_queue *queues[3];
	struct opencl *cl = calloc(1, sizeof(*cl));
	cl_int status;
	size_t i;
	int ret;

	device->own = cl;
	if (!cl) {
		cli_error("no memory for a device's record");
		return CLI_FAILED;
	}
	ret = cl_find_device(name, &cl->platform, &cl->id, device->name, sizeof(device->name));
	if (!ret)
		ret = check_device(device, options);
	if (ret)
		return ret;
	queues[0] = &cl->in;
	queues[1] = &cl->kernels;
	queues[2] = &cl->out;
	properties[1] = (cl_context_properties)cl->platform;
	cl->context = clCreateContext(properties, 1, &cl->id, NULL, NULL, &status);
	if (status != CL_SUCCESS)
		return cl_failed("making a context", status);
	for (i = 0; i < sizeof(queues) / sizeof(queues[0]); i++) {
		*queues[i] = clCreateCommandQueue(cl->context, cl->id, CL_QUEUE_PROFILING_ENABLE,
						  &status);
		if (status != CL_SUCCESS)
			return cl_failed("making a queue", status);
	}
	return build_kernel(device);
}

static void opencl_close(struct device *device)
{
	struct opencl *cl = device->own;

	if (!cl)
		return;
	if (cl->checksum)
		clReleaseKernel(cl->checksum);
	if (cl->program)
		clReleaseProgram(cl->program);
	if (cl->out)
		clReleaseCommandQueue(cl->out);
	if (cl->kernels)
		clReleaseCommandQueue(cl->kernels);
	if (cl->in)
		clReleaseCommandQueue(cl->in);
	if (cl->context)
		clReleaseContext(cl->context);
	free(cl);
}

static int opencl_attach(struct device *device, struct binpool *pool, uint32_t flags, uint64_t *id)
{
	const struct opencl *cl = device->own;

	return binpool_cl_attach_ex(pool, cl->context, cl->in, flags, id);
}

static int opencl_init_slot(struct device *device, struct slot *slot, uint64_t buffer_bytes)
{
	const struct opencl *cl = device->own;
	struct opencl_slot *there = calloc(1, sizeof(*there));
	cl_int status;

	slot->on_device = there;
	if (!there) {
		cli_error("no memory for a slot's record");
		return CLI_FAILED;
	}
	there->data = clCreateBuffer(cl->context, CL_MEM_READ_WRITE, buffer_bytes, NULL, &status);
	if (status == CL_SUCCESS)
		there->partials = clCreateBuffer(cl->context, CL_MEM_READ_WRITE,
						 device->items * sizeof(cl_ulong), NULL, &status);
	return status == CL_SUCCESS ? CLI_OK : cl_failed("getting device memory", status);
}

static void opencl_exit_slot(struct slot *slot)
{
	struct opencl_slot *there = slot->on_device;

	if (!there)
		return;
	if (there->partials)
		clReleaseMemObject(there->partials);
	if (there->data)
		clReleaseMemObject(there->data);
	free(there);
}

/* ---- A chunk's way ------------------------------------------------------------ */

static void CL_CALLBACK slot_is_back(cl_event event, cl_int status, void *arg)
{
	struct slot *slot = arg;
	int wake_fd = slot->wake_fd;

	(void)event;
	slot->status = status;
	atomic_store(&slot->state, SLOT_BACK);
	wake_main(wake_fd);
}

static int slot_failed(struct slot *slot, const char *what, cl_int status)
{
	snprintf(slot->problem, sizeof(slot->problem), "OpenCL: %s for %s at %" PRIu64 ": %s", what,
		 slot->source->path, slot->offset, cl_problem(status));
	return -1;
}

/* Changes one byte of the device's copy, where a test asked for it. */
static cl_int corrupt(const struct opencl *cl, const struct opencl_slot *slot, uint64_t at)
{
	unsigned char byte;
	cl_int status =
		clEnqueueReadBuffer(cl->in, slot->data, CL_TRUE, at, 1, &byte, 0, NULL, NULL);

	if (status != CL_SUCCESS)
		return status;
	byte ^= 1;
	return clEnqueueWriteBuffer(cl->in, slot->data, CL_TRUE, at, 1, &byte, 0, NULL, NULL);
}

static void release_events(struct opencl_slot *slot)
{
	int i;

	for (i = 0; i < EVENTS; i++) {
		if (slot->events[i])
			clReleaseEvent(slot->events[i]);
		slot->events[i] = NULL;
	}
}

/* Enqueues the checksum of the chunk once it has arrived. */
static cl_int enqueue_checksum(const struct device *device, const struct slot *slot)
{
	struct opencl_slot *there = slot->on_device;
	const struct opencl *cl = device->own;
	cl_ulong bytes = slot->bytes, first = slot->offset / sizeof(cl_ulong);
	cl_int status = clSetKernelArg(cl->checksum, 0, sizeof(cl_mem), &there->data);

	if (status == CL_SUCCESS)
		status = clSetKernelArg(cl->checksum, 1, sizeof(bytes), &bytes);
	if (status == CL_SUCCESS)
		status = clSetKernelArg(cl->checksum, 2, sizeof(first), &first);
	if (status == CL_SUCCESS)
		status = clSetKernelArg(cl->checksum, 3, sizeof(cl_mem), &there->partials);
	if (status == CL_SUCCESS)
		status = clEnqueueNDRangeKernel(cl->kernels, cl->checksum, 1, NULL, &device->items,
						NULL, 1, &there->events[EVENT_WRITE],
						&there->events[EVENT_KERNEL]);
	return status;
}

static cl_int enqueue_reads(const struct device *device, const struct slot *slot)
{
	struct opencl_slot *there = slot->on_device;
	const struct opencl *cl = device->own;
	cl_int status = clEnqueueReadBuffer(
		cl->out, there->partials, CL_FALSE, 0, device->items * sizeof(cl_ulong),
		slot->partials, 1, &there->events[EVENT_KERNEL], &there->events[EVENT_PARTIALS]);

	if (status != CL_SUCCESS)
		return status;
	return clEnqueueReadBuffer(cl->out, there->data, CL_FALSE, 0, slot->bytes, slot->out, 1,
				   &there->events[EVENT_PARTIALS], &there->events[EVENT_BACK]);
}

static int opencl_start(struct device *device, struct slot *slot, const struct fault *fault)
{
	struct opencl_slot *there = slot->on_device;
	const struct opencl *cl = device->own;
	const char *what = "writing to the device";
	cl_int status;

	slot->status = CL_SUCCESS;
	atomic_store(&slot->state, SLOT_ON_DEVICE);
	status = clEnqueueWriteBuffer(cl->in, there->data, CL_FALSE, 0, slot->bytes, slot->in, 0,
				      NULL, &there->events[EVENT_WRITE]);
	if (status == CL_SUCCESS && fault->place == FAULT_DEVICE) {
		what = "corrupting the device's copy";
		status = corrupt(cl, there, fault->offset - slot->offset);
	}
	if (status == CL_SUCCESS) {
		what = "starting the checksum";
		status = enqueue_checksum(device, slot);
	}
	if (status == CL_SUCCESS) {
		what = "reading from the device";
		status = enqueue_reads(device, slot);
	}
	if (status == CL_SUCCESS) {
		what = "asking for a callback";
		status = clSetEventCallback(there->events[EVENT_BACK], CL_COMPLETE, slot_is_back,
					    slot);
	}
	if (status == CL_SUCCESS) {
		clFlush(cl->in);
		clFlush(cl->kernels);
		clFlush(cl->out);
		return 0;
	}
	/* Nobody will tell when those already enqueued are through with the buffers. */
	clFinish(cl->in);
	clFinish(cl->kernels);
	clFinish(cl->out);
	release_events(there);
	return slot_failed(slot, what, status);
}

/* How long a command ran on the device, and an error for one that did not. */
static int add_time(struct slot *slot, int event, const char *what, uint64_t *sum)
{
	const struct opencl_slot *there = slot->on_device;
	cl_ulong start = 0, end = 0;
	cl_int status = CL_SUCCESS;

	clGetEventInfo(there->events[event], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status),
		       &status, NULL);
	if (status < 0)
		return slot_failed(slot, what, status);
	if (clGetEventProfilingInfo(there->events[event], CL_PROFILING_COMMAND_START, sizeof(start),
				    &start, NULL) == CL_SUCCESS &&
	    clGetEventProfilingInfo(there->events[event], CL_PROFILING_COMMAND_END, sizeof(end),
				    &end, NULL) == CL_SUCCESS &&
	    end > start)
		*sum += end - start;
	return 0;
}

static int opencl_finish(struct device *device, struct slot *slot)
{
	int ret = add_time(slot, EVENT_WRITE, "writing to the device", &device->write_ns);

	if (!ret)
		ret = add_time(slot, EVENT_KERNEL, "the checksum", &device->kernel_ns);
	if (!ret)
		ret = add_time(slot, EVENT_BACK, "reading from the device", &device->back_ns);
	if (!ret && slot->status < 0)
		ret = slot_failed(slot, "reading from the device", slot->status);
	release_events(slot->on_device);
	return ret;
}

const struct device_ops device_opencl = {
	.kind = "opencl",
	.open = opencl_open,
	.close = opencl_close,
	.attach = opencl_attach,
	.init_slot = opencl_init_slot,
	.exit_slot = opencl_exit_slot,
	.start = opencl_start,
	.finish = opencl_finish,
};
