// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers that are freed while an OpenCL queue is at work on them, on a real
 * runtime (PoCL's CPU device is enough).
 */
#include "unit.h"

#include "opencl.h"

static cl_device_id device;
static cl_context context;
static cl_command_queue queue;

static int find_device(void **state)
{
	cl_int err;

	(void)state;
	device = find_cl_device();
	if (!device)
		return 0;
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
	if (err)
		return -1;
	queue = clCreateCommandQueue(context, device, 0, &err);
	return err ? -1 : 0;
}

static int forget_device(void **state)
{
	(void)state;
	if (queue)
		clReleaseCommandQueue(queue);
	if (context)
		clReleaseContext(context);
	return 0;
}

static cl_mem device_memory(size_t bytes)
{
	cl_int err;
	cl_mem mem = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &err);

	assert_int_equal(err, CL_SUCCESS);
	return mem;
}

/* What the queue waits for until the test lets it go on. */
static cl_event gate_make(void)
{
	cl_int err;
	cl_event gate = clCreateUserEvent(context, &err);

	assert_int_equal(err, CL_SUCCESS);
	return gate;
}

static void gate_open(cl_event gate, cl_int status)
{
	assert_int_equal(clSetUserEventStatus(gate, status), CL_SUCCESS);
	assert_int_equal(clReleaseEvent(gate), CL_SUCCESS);
}

static cl_uint references(cl_event event)
{
	cl_uint n;

	assert_int_equal(clGetEventInfo(event, CL_EVENT_REFERENCE_COUNT, sizeof(n), &n, NULL),
			 CL_SUCCESS);
	return n;
}

/* A buffer whose copy is under way rests until the queue is past it. */
static void held_up(void **state)
{
	struct binpool *pool;
	char *p, *q;
	cl_event gate;
	cl_mem mem;

	(void)state;
	if (!device)
		skip();
	pool = thp_pool(64 * MIB);
	mem = device_memory(MIB);
	gate = gate_make();
	p = binpool_alloc(pool, MIB);
	memset(p, 1, MIB);
	assert_int_equal(clEnqueueWriteBuffer(queue, mem, CL_FALSE, 0, MIB, p, 1, &gate, NULL),
			 CL_SUCCESS);
	assert_ok(binpool_free_on_cl_queue(pool, p, queue));
	assert_int_equal(binpool_free_on_cl_queue(pool, p, queue), -EINVAL);
	assert_int_equal(binpool_free(pool, p), -EINVAL);
	assert_int_equal(binpool_poll(pool), 1);
	q = binpool_alloc(pool, MIB);
	assert_ptr_not_equal(p, q);
	gate_open(gate, CL_COMPLETE);
	assert_int_equal(clFinish(queue), CL_SUCCESS);
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(stats_of(pool).fence_errors, 0);
	/* The copy had what it should have. */
	assert_int_equal(clEnqueueReadBuffer(queue, mem, CL_TRUE, 0, MIB, q, 0, NULL, NULL),
			 CL_SUCCESS);
	for (size_t i = 0; i < MIB; i++)
		assert_int_equal(q[i], 1);
	check_pool(pool);
	assert_ok(binpool_free_on_cl_queue(pool, q, queue));
	assert_ok(binpool_destroy_wait(pool, 60000));
	clReleaseMemObject(mem);
}

/*
 * The queue has much to do for each copy. The pool has room for a few, so each
 * buffer is used again and again; each copy has to find what was written for it.
 */
static void running(void **state)
{
	enum { COPIES = 100 };
	const size_t bytes = 256 * KIB, load_bytes = 8 * MIB;
	struct binpool_alloc_opts want = {
		.size = sizeof(want),
		.bytes = bytes,
		.flags = BINPOOL_BUF_WAIT,
		.wait_ms = 60000,
	};
	struct binpool *pool;
	cl_mem mem, load[2];
	char *back;

	(void)state;
	if (!device)
		skip();
	pool = thp_pool(4 * MIB);
	mem = device_memory(COPIES * bytes);
	load[0] = device_memory(load_bytes);
	load[1] = device_memory(load_bytes);
	for (size_t i = 0; i < COPIES; i++) {
		struct binpool_buf buf = {.size = sizeof(buf)};

		assert_ok(binpool_alloc_ex(pool, &want, &buf));
		memset(buf.ptr, (int)i, bytes);
		assert_int_equal(clEnqueueCopyBuffer(queue, load[i % 2], load[1 - i % 2], 0, 0,
						     load_bytes, 0, NULL, NULL),
				 CL_SUCCESS);
		assert_int_equal(clEnqueueWriteBuffer(queue, mem, CL_FALSE, i * bytes, bytes,
						      buf.ptr, 0, NULL, NULL),
				 CL_SUCCESS);
		assert_ok(binpool_free_on_cl_queue(pool, buf.ptr, queue));
	}
	/* Nobody finishes the queue: its events alone say that all is over. */
	while (binpool_poll(pool))
		;
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_ok(binpool_destroy(pool));
	back = malloc(COPIES * bytes);
	assert_non_null(back);
	assert_int_equal(
		clEnqueueReadBuffer(queue, mem, CL_TRUE, 0, COPIES * bytes, back, 0, NULL, NULL),
		CL_SUCCESS);
	for (size_t i = 0; i < COPIES * bytes; i++)
		if (back[i] != (char)(i / bytes))
			fail_msg("copy %zu had what is not its own", i / bytes);
	free(back);
	clReleaseMemObject(load[0]);
	clReleaseMemObject(load[1]);
	clReleaseMemObject(mem);
}

/* The caller's own events: retained, and several for one buffer. */
static void events(void **state)
{
	struct binpool_fence f[2] = {{.size = sizeof(f[0])}, {.size = sizeof(f[0])}};
	struct binpool *pool;
	cl_event gate[2];
	void *p;

	(void)state;
	if (!device)
		skip();
	pool = thp_pool(64 * MIB);
	p = binpool_alloc(pool, MIB);
	for (int i = 0; i < 2; i++) {
		gate[i] = gate_make();
		assert_ok(binpool_cl_fence(gate[i], &f[i]));
		assert_int_equal(references(gate[i]), 2);
	}
	assert_ok(binpool_free_after(pool, p, f, 2));
	assert_int_equal(binpool_poll(pool), 1);
	/* The last of a failed command's status is that it failed. */
	assert_int_equal(clSetUserEventStatus(gate[0], -5), CL_SUCCESS);
	assert_int_equal(binpool_poll(pool), 1);
	assert_int_equal(clSetUserEventStatus(gate[1], CL_COMPLETE), CL_SUCCESS);
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(stats_of(pool).fence_errors, 1);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(references(gate[i]), 1);
		clReleaseEvent(gate[i]);
	}
	assert_ok(binpool_destroy(pool));
}

static void bad_input(void **state)
{
	struct binpool_fence f = {.size = sizeof(f)};
	union {
		struct binpool_fence f;
		unsigned char bytes[8192];
	} wild;
	struct binpool_stats before, after;
	struct binpool *pool;
	char *p;

	(void)state;
	if (!device)
		skip();
	pool = thp_pool(64 * MIB);
	p = binpool_alloc(pool, MIB);
	before = stats_of(pool);
	assert_int_equal(binpool_free_on_cl_queue(NULL, p, queue), -EINVAL);
	assert_int_equal(binpool_free_on_cl_queue(pool, p, NULL), -EINVAL);
	assert_int_equal(binpool_free_on_cl_queue(pool, p + 64, queue), -EINVAL);
	assert_int_equal(binpool_free_on_cl_queue(pool, &f, queue), -EINVAL);
	assert_ok(binpool_free_on_cl_queue(pool, NULL, queue));
	assert_int_equal(binpool_cl_fence(NULL, &f), -EINVAL);
	f.size = 8;
	{
		cl_event gate = gate_make();

		assert_int_equal(binpool_cl_fence(gate, NULL), -EINVAL);
		assert_int_equal(binpool_cl_fence(gate, &f), -EINVAL);
		/* What was never set; there would be room here. */
		memset(&wild, 0xee, sizeof(wild));
		wild.f.size = 4097;
		assert_int_equal(binpool_cl_fence(gate, &wild.f), -E2BIG);
		assert_error_names("member size");
		assert_int_equal(wild.bytes[4097], 0xee);
		assert_int_equal(references(gate), 1);
		gate_open(gate, CL_COMPLETE);
	}
	after = stats_of(pool);
	assert_memory_equal(&before, &after, sizeof(before));
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(held_up),
		cmocka_unit_test(running),
		cmocka_unit_test(events),
		cmocka_unit_test(bad_input),
	};

	return cmocka_run_group_tests_name("opencl_queue", tests, find_device, forget_device);
}
