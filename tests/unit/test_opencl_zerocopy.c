// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * OpenCL kernels on a pool's own memory, on a real runtime (PoCL's CPU device is enough).
 */
#include "unit.h"

#include <unistd.h>

#include "faulty.h"
#include "opencl.h"

#define BYTES MIB
#define WORDS (BYTES / sizeof(cl_uint))

static cl_device_id device;

struct side {
	cl_context context;
	cl_command_queue queue;
	cl_kernel kernel;
	cl_uint references; /* to the context, when it was new */
};

/* What the library's waits return, once done, if it is not CL_SUCCESS. */
static cl_int fault;

cl_int __real_clFlush(cl_command_queue queue);
cl_int __wrap_clFlush(cl_command_queue queue);
cl_int __wrap_clFlush(cl_command_queue queue)
{
	cl_int err = __real_clFlush(queue);

	return fault ? fault : err;
}

cl_int __real_clWaitForEvents(cl_uint n, const cl_event *events);
cl_int __wrap_clWaitForEvents(cl_uint n, const cl_event *events);
cl_int __wrap_clWaitForEvents(cl_uint n, const cl_event *events)
{
	cl_int err = __real_clWaitForEvents(n, events);

	return fault ? fault : err;
}

/* Of unmappings that nobody released. */
static int events;

cl_int __real_clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem mem, void *at, cl_uint n,
				      const cl_event *after, cl_event *done);
cl_int __wrap_clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem mem, void *at, cl_uint n,
				      const cl_event *after, cl_event *done);
cl_int __wrap_clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem mem, void *at, cl_uint n,
				      const cl_event *after, cl_event *done)
{
	cl_int err = __real_clEnqueueUnmapMemObject(queue, mem, at, n, after, done);

	events += !err && done;
	return err;
}

cl_int __real_clReleaseEvent(cl_event event);
cl_int __wrap_clReleaseEvent(cl_event event);
cl_int __wrap_clReleaseEvent(cl_event event)
{
	events--;
	return __real_clReleaseEvent(event);
}

static int find_device(void **state)
{
	(void)state;
	/* In GiB: so that PoCL's device has a limit that can be passed. */
	setenv("POCL_MEMORY_LIMIT", "1", 0);
	device = find_cl_device();
	return 0;
}

static cl_uint references(cl_context context)
{
	cl_uint n = 0;

	assert_int_equal(clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, sizeof(n), &n, NULL),
			 CL_SUCCESS);
	return n;
}

static void side_open(struct side *s)
{
	const char *source = "__kernel void work(__global uint *x, uint n)\n"
			     "{ x[get_global_id(0)] = x[get_global_id(0)] * 3 + n; }\n";
	cl_program program;
	cl_int err;

	if (!device)
		skip();
	s->context = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
	assert_int_equal(err, CL_SUCCESS);
	s->queue = clCreateCommandQueue(s->context, device, 0, &err);
	assert_int_equal(err, CL_SUCCESS);
	program = clCreateProgramWithSource(s->context, 1, &source, NULL, &err);
	assert_int_equal(err, CL_SUCCESS);
	assert_int_equal(clBuildProgram(program, 1, &device, NULL, NULL, NULL), CL_SUCCESS);
	s->kernel = clCreateKernel(program, "work", &err);
	assert_int_equal(err, CL_SUCCESS);
	clReleaseProgram(program);
	s->references = references(s->context);
}

/* Nobody has it any more. */
static void side_close(struct side *s)
{
	assert_int_equal(references(s->context), s->references);
	assert_int_equal(clReleaseKernel(s->kernel), CL_SUCCESS);
	assert_int_equal(clReleaseCommandQueue(s->queue), CL_SUCCESS);
	assert_int_equal(clReleaseContext(s->context), CL_SUCCESS);
}

static void launch(const struct side *s, cl_mem mem, cl_uint n, const cl_event *after)
{
	size_t items = WORDS;

	assert_int_equal(clSetKernelArg(s->kernel, 0, sizeof(mem), &mem), CL_SUCCESS);
	assert_int_equal(clSetKernelArg(s->kernel, 1, sizeof(n), &n), CL_SUCCESS);
	assert_int_equal(clEnqueueNDRangeKernel(s->queue, s->kernel, 1, NULL, &items, NULL,
						after ? 1 : 0, after, NULL),
			 CL_SUCCESS);
}

static struct binpool *attached(const struct side *s, uint64_t *id)
{
	struct binpool *pool = thp_pool(64 * MIB);

	assert_ok(binpool_cl_attach_ex(pool, s->context, s->queue, BINPOOL_CL_ZEROCOPY, id));
	return pool;
}

static char *page_buffer(struct binpool *pool, size_t bytes)
{
	char *p = binpool_alloc_aligned(pool, bytes, (size_t)sysconf(_SC_PAGESIZE));

	assert_non_null(p);
	return p;
}

/* ---- Tests -------------------------------------------------------------------- */

/* To and fro: each side sees what the other wrote, buffers beside each other. */
static void works_in_place(void **state)
{
	struct side s = {0};
	struct binpool *pool;
	cl_uint *p[3], expected[3][2];
	cl_mem mem[3], again;
	uint64_t id;

	(void)state;
	side_open(&s);
	pool = attached(&s, &id);
	for (cl_uint i = 0; i < 3; i++) {
		p[i] = (cl_uint *)page_buffer(pool, BYTES);
		assert_ok(binpool_cl_mem(pool, p[i], s.context, &mem[i]));
		for (cl_uint j = 0; j < WORDS; j++)
			p[i][j] = j + i;
		expected[i][0] = i;
		expected[i][1] = WORDS - 1 + i;
	}
	for (cl_uint round = 1; round < 5; round++) {
		for (int i = 0; i < 3; i++) {
			assert_ok(binpool_cl_acquire(pool, p[i], s.queue, NULL));
			launch(&s, mem[i], round, NULL);
		}
		for (int i = 0; i < 3; i++) {
			assert_ok(binpool_cl_release(pool, p[i], s.queue, NULL));
			for (int j = 0; j < 2; j++)
				expected[i][j] = expected[i][j] * 3 + round;
			assert_int_equal(p[i][0], expected[i][0]);
			assert_int_equal(p[i][WORDS - 1], expected[i][1]);
			/* The host's turn. */
			p[i][0]++;
			expected[i][0]++;
		}
	}
	assert_ok(binpool_cl_mem(pool, p[1], s.context, &again));
	assert_ptr_equal(again, mem[1]);
	for (int i = 0; i < 3; i++)
		assert_ok(binpool_free(pool, p[i]));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
	side_close(&s);
}

/* Nobody waits; events say when. */
static void not_waited_for(void **state)
{
	struct side s = {0};
	struct binpool *pool;
	cl_event done;
	cl_uint *p;
	uint64_t id;
	cl_mem mem;

	(void)state;
	side_open(&s);
	pool = attached(&s, &id);
	p = (cl_uint *)page_buffer(pool, BYTES);
	assert_ok(binpool_cl_mem(pool, p, s.context, &mem));
	memset(p, 0, BYTES);
	p[7] = 5;
	assert_ok(binpool_cl_acquire(pool, p, s.queue, &done));
	launch(&s, mem, 1, &done);
	assert_int_equal(clReleaseEvent(done), CL_SUCCESS);
	assert_ok(binpool_cl_release(pool, p, s.queue, &done));
	assert_int_equal(clWaitForEvents(1, &done), CL_SUCCESS);
	assert_int_equal(clReleaseEvent(done), CL_SUCCESS);
	assert_int_equal(p[7], 16);
	assert_int_equal(p[8], 1);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_remove_registrar(pool, id));
	assert_int_equal(binpool_cl_mem(pool, p, s.context, &mem), -EINVAL);
	assert_ok(binpool_destroy(pool));
	side_close(&s);
}

/* Runtimes would let both write. */
static void one_side_at_a_time(void **state)
{
	struct side s = {0};
	struct binpool *pool;
	char *p, *small, *odd;
	uint64_t id;
	cl_mem mem;

	(void)state;
	side_open(&s);
	pool = attached(&s, &id);
	p = page_buffer(pool, BYTES);
	assert_int_equal(binpool_cl_acquire(pool, p, s.queue, NULL), -ENOENT);
	assert_ok(binpool_cl_mem(pool, p, s.context, &mem));
	assert_int_equal(binpool_cl_release(pool, p, s.queue, NULL), -EINVAL);
	assert_error_names("the host has");
	assert_ok(binpool_cl_acquire(pool, p, s.queue, NULL));
	assert_int_equal(binpool_cl_acquire(pool, p, s.queue, NULL), -EBUSY);
	assert_ok(binpool_cl_release(pool, p, s.queue, NULL));
	assert_int_equal(binpool_cl_release(pool, p, s.queue, NULL), -EINVAL);
	small = binpool_alloc(pool, 100);
	odd = binpool_alloc(pool, 5000);
	assert_int_equal(binpool_cl_mem(pool, small, s.context, &mem), -EOPNOTSUPP);
	if ((uintptr_t)odd % 4096)
		assert_int_equal(binpool_cl_mem(pool, odd, s.context, &mem), -EOPNOTSUPP);
	assert_int_equal(binpool_cl_mem(pool, p + 4096, s.context, &mem), -EINVAL);
	assert_int_equal(binpool_cl_mem(NULL, p, s.context, &mem), -EINVAL);
	assert_int_equal(binpool_cl_mem(pool, NULL, s.context, &mem), -EINVAL);
	assert_int_equal(binpool_cl_mem(pool, p, NULL, &mem), -EINVAL);
	assert_int_equal(binpool_cl_mem(pool, p, s.context, NULL), -EINVAL);
	assert_int_equal(binpool_cl_acquire(pool, p, NULL, NULL), -EINVAL);
	assert_int_equal(binpool_cl_release(pool, p, NULL, NULL), -EINVAL);
	assert_int_equal(binpool_cl_acquire(pool, &id, s.queue, NULL), -EINVAL);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free(pool, small));
	assert_ok(binpool_free(pool, odd));
	assert_ok(binpool_destroy(pool));
	side_close(&s);
}

static cl_uint mem_references(cl_mem mem)
{
	cl_uint n = 0;

	assert_int_equal(clGetMemObjectInfo(mem, CL_MEM_REFERENCE_COUNT, sizeof(n), &n, NULL),
			 CL_SUCCESS);
	return n;
}

/* Memory that was another buffer before has that one's part, or one of its own. */
static void memory_used_again(void **state)
{
	struct side s = {0};
	struct binpool *pool;
	cl_mem mem, before;
	uint64_t id;
	char *p, *q;

	(void)state;
	side_open(&s);
	pool = attached(&s, &id);
	p = page_buffer(pool, 2 * MIB);
	assert_ok(binpool_cl_mem(pool, p, s.context, &before));
	assert_ok(binpool_free(pool, p));
	/* The same again is. */
	q = page_buffer(pool, 2 * MIB);
	assert_ptr_equal(p, q);
	assert_ok(binpool_cl_mem(pool, q, s.context, &mem));
	assert_ptr_equal(mem, before);
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_free_held(pool));
	q = page_buffer(pool, MIB);
	assert_ok(binpool_reserve(pool, 8 * MIB));
	assert_ok(binpool_cl_mem(pool, q, s.context, &mem));
	memset(q, 1, MIB);
	assert_ok(binpool_cl_acquire(pool, q, s.queue, NULL));
	launch(&s, mem, 2, NULL);
	assert_ok(binpool_cl_release(pool, q, s.queue, NULL));
	assert_int_equal(*(cl_uint *)q, 0x03030305);
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_destroy(pool));
	side_close(&s);
}

/* Parts that overlap are not kept, even if somebody else keeps the old one. */
static void overlapping_is_let_go(void **state)
{
	struct side s = {0};
	struct binpool *pool;
	cl_mem mem, before;
	uint64_t id;
	char *p, *q;

	(void)state;
	side_open(&s);
	pool = attached(&s, &id);
	p = page_buffer(pool, 2 * MIB);
	assert_ok(binpool_cl_mem(pool, p, s.context, &before));
	assert_int_equal(clRetainMemObject(before), CL_SUCCESS);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free_held(pool));
	q = page_buffer(pool, MIB);
	assert_ok(binpool_reserve(pool, 8 * MIB));
	assert_ok(binpool_cl_mem(pool, q, s.context, &mem));
	assert_int_equal(mem_references(before), 1);
	assert_int_equal(clReleaseMemObject(before), CL_SUCCESS);
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_destroy(pool));
	side_close(&s);
}

/* Freed while the device has it: nobody says that it is his before it is released. */
static void freed_and_not_released(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct side s = {0};
	struct binpool *pool;
	uint64_t id;
	cl_mem mem;
	char *p, *q;

	(void)state;
	side_open(&s);
	o.provider = BINPOOL_PROVIDER_THP;
	o.max_bytes = 4 * MIB;
	o.cache_bytes = 0;
	assert_ok(binpool_create(&pool, &o));
	assert_ok(binpool_cl_attach_ex(pool, s.context, s.queue, BINPOOL_CL_ZEROCOPY, &id));
	/* All that there is; another buffer keeps the extent. */
	p = page_buffer(pool, 2 * MIB);
	q = page_buffer(pool, 2 * MIB);
	assert_ok(binpool_cl_mem(pool, p, s.context, &mem));
	assert_ok(binpool_cl_acquire(pool, p, s.queue, NULL));
	assert_ok(binpool_free(pool, p));
	p = page_buffer(pool, 2 * MIB);
	assert_int_equal(binpool_cl_acquire(pool, p, s.queue, NULL), -EBUSY);
	assert_int_equal(binpool_cl_mem(pool, p, s.context, &mem), -EBUSY);
	assert_error_names("never released");
	assert_null(mem);
	assert_ok(binpool_free(pool, p));
	p = page_buffer(pool, MIB);
	assert_int_equal(binpool_cl_mem(pool, p, s.context, &mem), -EBUSY);
	assert_error_names("never released");
	assert_null(mem);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free_held(pool));
	p = page_buffer(pool, 2 * MIB);
	assert_ok(binpool_cl_release(pool, p, s.queue, NULL));
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_destroy(pool));
	side_close(&s);
}

static void one_context_at_a_time(void **state)
{
	struct side a = {0}, b = {0};
	struct binpool *pool;
	uint64_t ia, ib;
	cl_mem mem;
	char *p;

	(void)state;
	side_open(&a);
	side_open(&b);
	pool = attached(&a, &ia);
	p = page_buffer(pool, BYTES);
	assert_int_equal(binpool_cl_attach(pool, b.context, b.queue, &ib), -EBUSY);
	assert_int_equal(binpool_cl_attach_ex(pool, b.context, b.queue, BINPOOL_CL_ZEROCOPY, &ib),
			 -EBUSY);
	assert_error_names("one at a time");
	assert_int_equal(binpool_cl_mem(pool, p, b.context, &mem), -EBUSY);
	assert_ok(binpool_cl_mem(pool, p, a.context, &mem));
	assert_ok(binpool_remove_registrar(pool, ia));
	assert_int_equal(binpool_cl_mem(pool, p, a.context, &mem), -ENOENT);
	/* The other's turn; and with staging it has none. */
	assert_ok(binpool_cl_attach_ex(pool, b.context, b.queue, BINPOOL_CL_ZEROCOPY, &ib));
	assert_ok(binpool_cl_mem(pool, p, b.context, &mem));
	assert_ok(binpool_remove_registrar(pool, ib));
	assert_ok(binpool_cl_attach(pool, a.context, a.queue, &ia));
	assert_int_equal(binpool_cl_attach_ex(pool, b.context, b.queue, BINPOOL_CL_ZEROCOPY, &ib),
			 -EBUSY);
	assert_int_equal(binpool_cl_mem(pool, p, a.context, &mem), -ENOENT);
	assert_int_equal(binpool_cl_attach_ex(pool, b.context, b.queue, 1u << 31, &ib), -EINVAL);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
	side_close(&a);
	side_close(&b);
}

/* Of a buffer that could not be given to the device no event is left. */
static void fails_and_keeps_nothing(void **state)
{
	cl_event done, *const asked[] = {NULL, &done};

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct side s = {0};
		struct binpool *pool;
		uint64_t id;
		cl_mem mem;
		char *p;
		int ret;

		side_open(&s);
		pool = attached(&s, &id);
		p = page_buffer(pool, BYTES);
		assert_ok(binpool_cl_mem(pool, p, s.context, &mem));
		done = NULL;
		events = 0;
		fault = CL_OUT_OF_RESOURCES;
		ret = binpool_cl_acquire(pool, p, s.queue, asked[i]);
		fault = CL_SUCCESS;
		assert_true(ret < 0);
		assert_null(done);
		assert_int_equal(events, 0);
		assert_error_names(asked[i] ? "clFlush" : "clWaitForEvents");
		assert_ok(binpool_free(pool, p));
		assert_ok(binpool_destroy(pool));
		side_close(&s);
	}
}

struct crossing {
	struct binpool *pool;
	cl_command_queue queue;
	char *buffer;
	uint64_t id;
	int ret;
	bool over;
};

static void *releases(void *arg)
{
	struct crossing *c = arg;

	c->ret = binpool_cl_release(c->pool, c->buffer, c->queue, NULL);
	return NULL;
}

static void *removes(void *arg)
{
	struct crossing *c = arg;

	c->ret = binpool_remove_registrar(c->pool, c->id);
	__atomic_store_n(&c->over, true, __ATOMIC_RELEASE);
	return NULL;
}

/* Who detaches waits for a thread that is giving a buffer back, and uses what is let go of. */
static void detach_waits_for_release(void **state)
{
	struct crossing release = {0}, removal = {0};
	pthread_t releaser, remover;
	struct side s = {0};
	cl_event gate;
	cl_mem mem;
	bool early;
	cl_int err;

	(void)state;
	side_open(&s);
	/* The pool's queue is another, so that nothing of it waits for the gate. */
	release.queue = clCreateCommandQueue(s.context, device, 0, &err);
	assert_int_equal(err, CL_SUCCESS);
	removal.pool = release.pool = attached(&s, &removal.id);
	release.buffer = page_buffer(release.pool, BYTES);
	assert_ok(binpool_cl_mem(release.pool, release.buffer, s.context, &mem));
	assert_ok(binpool_cl_acquire(release.pool, release.buffer, release.queue, NULL));
	gate = clCreateUserEvent(s.context, &err);
	assert_int_equal(err, CL_SUCCESS);
	assert_int_equal(clEnqueueBarrierWithWaitList(release.queue, 1, &gate, NULL), CL_SUCCESS);
	assert_int_equal(pthread_create(&releaser, NULL, releases, &release), 0);
	do {
		usleep(1000);
		assert_int_equal(binpool_cl_acquire(release.pool, release.buffer, s.queue, NULL),
				 -EBUSY);
	} while (!strstr(binpool_last_error(), "another thread"));
	assert_int_equal(pthread_create(&remover, NULL, removes, &removal), 0);
	while (binpool_cl_mem(release.pool, release.buffer, s.context, &mem) != -ENOENT)
		usleep(1000);
	/* Time enough for one that does not wait. */
	usleep(100000);
	early = __atomic_load_n(&removal.over, __ATOMIC_ACQUIRE);
	assert_int_equal(clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
	assert_int_equal(pthread_join(releaser, NULL), 0);
	assert_int_equal(pthread_join(remover, NULL), 0);
	assert_false(early);
	assert_ok(release.ret);
	assert_ok(removal.ret);
	assert_int_equal(clReleaseEvent(gate), CL_SUCCESS);
	assert_int_equal(clReleaseCommandQueue(release.queue), CL_SUCCESS);
	assert_ok(binpool_free(release.pool, release.buffer));
	assert_ok(binpool_destroy(release.pool));
	side_close(&s);
}

/* What the device does not take is used without it, if that was asked for. */
static void optional(void **state)
{
	const uint32_t modes[] = {0, BINPOOL_CL_ZEROCOPY};
	cl_ulong most = 0;

	(void)state;
	if (!device)
		skip();
	assert_int_equal(
		clGetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(most), &most, NULL),
		CL_SUCCESS);
	if (most > GIB) {
		printf("# the device takes more than a test should ask for\n");
		skip();
	}
	for (int i = 0; i < 2; i++) {
		struct binpool_options o = BINPOOL_OPTIONS_INIT;
		struct faulty_provider provider = {.extents = 0};
		struct binpool *pool;
		struct side s = {0};
		uint64_t id;
		cl_mem mem;
		char *p;

		side_open(&s);
		o.max_bytes = 2 * most;
		pool = faulty_pool(&o, &provider);
		assert_non_null(pool);
		assert_ok(binpool_cl_attach_ex(pool, s.context, s.queue,
					       modes[i] | BINPOOL_REGISTRAR_OPTIONAL, &id));
		p = binpool_alloc(pool, most + MIB);
		assert_non_null(p);
		memset(p + most, 1, MIB);
		assert_int_equal(stats_of(pool).registrations_refused, 1);
		assert_int_equal(stats_of(pool).registered_bytes, 0);
		assert_int_equal(binpool_cl_mem(pool, p, s.context, &mem), -ENOENT);
		assert_ok(binpool_free(pool, p));
		assert_ok(binpool_destroy(pool));
		side_close(&s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(works_in_place),
		cmocka_unit_test(not_waited_for),
		cmocka_unit_test(one_side_at_a_time),
		cmocka_unit_test(memory_used_again),
		cmocka_unit_test(overlapping_is_let_go),
		cmocka_unit_test(freed_and_not_released),
		cmocka_unit_test(one_context_at_a_time),
		cmocka_unit_test(optional),
		cmocka_unit_test(detach_waits_for_release),
		cmocka_unit_test(fails_and_keeps_nothing),
	};

	return cmocka_run_group_tests_name("opencl_zerocopy", tests, find_device, NULL);
}
