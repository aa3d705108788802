// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * OpenCL as a registrar: each extent is the host memory of one cl_mem. Here is what both modes
 * have in common, and staging, where that is mapped once and kept mapped. Owns a struct side
 * per attachment, and their list; sides_mutex. The pool calls the callbacks one at a time.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "opencl.h"

static pthread_mutex_t sides_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sides_settled = PTHREAD_COND_INITIALIZER;
static struct side *sides;

void sides_lock(void)
{
	pthread_mutex_lock(&sides_mutex);
}

void sides_unlock(void)
{
	pthread_mutex_unlock(&sides_mutex);
}

void sides_wait(void)
{
	pthread_cond_wait(&sides_settled, &sides_mutex);
}

void sides_wake(void)
{
	pthread_cond_broadcast(&sides_settled);
}

struct side *side_zerocopy(const struct binpool *pool)
{
	struct side *s = sides;

	while (s && (s->pool != pool || !s->zerocopy))
		s = s->next;
	return s;
}

int side_wrap(const struct side *s, const struct binpool_extent *extent, cl_mem *mem)
{
	size_t bytes = (size_t)extent->bytes;
	char text[256];
	cl_int err;

	if (cl_gone())
		return cl_refuse(-ENODEV, "OpenCL: the process is ending");
	if (bytes > s->max_bytes) {
		snprintf(text, sizeof(text),
			 "OpenCL: an extent of %zu bytes is above CL_DEVICE_MAX_MEM_ALLOC_SIZE = "
			 "%llu of the device",
			 bytes, (unsigned long long)s->max_bytes);
		return cl_refuse(-EFBIG, text);
	}
	*mem = clCreateBuffer(s->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes,
			      extent->ptr, &err);
	return *mem ? 0 : cl_explain("clCreateBuffer(USE_HOST_PTR)", bytes, err);
}

/* ---- Staging ------------------------------------------------------------------ */

static int staging_attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	const struct side *s = ctx;
	size_t bytes = (size_t)extent->bytes;
	void *mapped;
	cl_mem mem;
	cl_int err;
	int ret = side_wrap(s, extent, &mem);

	if (ret)
		return ret;
	mapped = clEnqueueMapBuffer(s->queue, mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, bytes, 0,
				    NULL, NULL, &err);
	if (!mapped) {
		clReleaseMemObject(mem);
		return cl_explain("clEnqueueMapBuffer", bytes, err);
	}
	*cookie = mem;
	return 0;
}

/*
 * Waits for all of the queue: what it still does with the extent as a host
 * pointer has no other event that we know.
 */
static void staging_detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	const struct side *s = ctx;
	cl_mem mem = cookie;

	if (cl_gone())
		return;
	clEnqueueUnmapMemObject(s->queue, mem, extent->ptr, 0, NULL, NULL);
	clFinish(s->queue);
	clReleaseMemObject(mem);
}

/* ---- Both ---------------------------------------------------------------------- */

static void release(void *ctx)
{
	struct side *s = ctx, **at;

	sides_lock();
	for (at = &sides; *at != s; at = &(*at)->next)
		;
	*at = s->next;
	sides_unlock();
	if (!cl_gone()) {
		clReleaseCommandQueue(s->queue);
		clReleaseContext(s->context);
	}
	free(s);
}

static int ask_device(struct side *s)
{
	cl_device_id device;
	cl_uint bits = 0;
	cl_int err;

	err = clGetCommandQueueInfo(s->queue, CL_QUEUE_DEVICE, sizeof(device), &device, NULL);
	if (err)
		return cl_explain("clGetCommandQueueInfo", 0, err);
	err = clGetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(s->max_bytes),
			      &s->max_bytes, NULL);
	if (!err)
		err = clGetDeviceInfo(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof(bits), &bits,
				      NULL);
	s->align = bits / 8;
	return err ? cl_explain("clGetDeviceInfo", 0, err) : 0;
}

/* False: another has the pool, and one of the two wants it alone. */
static bool publish(struct side *s)
{
	struct side *other;

	sides_lock();
	for (other = sides; other; other = other->next)
		if (other->pool == s->pool && (other->zerocopy || s->zerocopy))
			break;
	if (!other) {
		s->next = sides;
		sides = s;
	}
	sides_unlock();
	return !other;
}

EXPORT int binpool_cl_attach_ex(struct binpool *pool, cl_context context, cl_command_queue queue,
				uint32_t flags, uint64_t *id)
{
	const bool zerocopy = flags & BINPOOL_CL_ZEROCOPY;
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.name = "opencl",
		.attach = zerocopy ? zerocopy_attach : staging_attach,
		.detach = zerocopy ? zerocopy_detach : staging_detach,
		.release = release,
		/* Mapping may write what the host has written meanwhile. */
		.flags = (flags & BINPOOL_REGISTRAR_OPTIONAL) | BINPOOL_REGISTRAR_BEFORE_USE,
	};
	struct side *s;
	int err;

	if (!pool || !context || !queue || !id)
		return cl_refuse(-EINVAL, "binpool_cl_attach: an argument is NULL");
	if (flags & ~(BINPOOL_REGISTRAR_OPTIONAL | BINPOOL_CL_ZEROCOPY))
		return cl_refuse(-EINVAL,
				 "binpool_cl_attach_ex: flags: BINPOOL_REGISTRAR_OPTIONAL and "
				 "BINPOOL_CL_ZEROCOPY are known");
	s = calloc(1, sizeof(*s));
	if (!s)
		return cl_refuse(-ENOMEM, "OpenCL: no memory for a registrar's description");
	*s = (struct side){.pool = pool, .context = context, .queue = queue, .zerocopy = zerocopy};
	err = ask_device(s);
	if (!err && !publish(s))
		err = cl_refuse(-EBUSY,
				"OpenCL: this pool is attached to a context already, and with "
				"BINPOOL_CL_ZEROCOPY there is one at a time");
	if (err) {
		free(s);
		return err;
	}
	cl_watch_exit();
	clRetainContext(context);
	clRetainCommandQueue(queue);
	ops.ctx = s;
	err = binpool_add_registrar(pool, &ops, id);
	if (err)
		release(s);
	return err;
}

EXPORT int binpool_cl_attach(struct binpool *pool, cl_context context, cl_command_queue queue,
			     uint64_t *id)
{
	return binpool_cl_attach_ex(pool, context, queue, 0, id);
}
