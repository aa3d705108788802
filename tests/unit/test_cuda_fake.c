// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers that CUDA streams are at work on, on a driver that fails as it is told.
 * What a real one does is test_cuda's.
 */
#include "unit.h"

#include <dlfcn.h>
#include <limits.h>
#include <sys/resource.h>

#include <binpool_cuda.h>

#include "fake_cuda.h"

static struct fake_cuda *cuda;

static int find_fake(void **state)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	struct fake_cuda *(*get)(void);

	(void)state;
	if (!library)
		return -1;
	*(void **)&get = dlsym(library, "fake_cuda");
	if (!get)
		return -1;
	cuda = get();
	return 0;
}

static void end(struct binpool *pool)
{
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(cuda->wrong, 0);
	/* The thread's own mode is as it was. */
	assert_int_equal(cuda->mode, 0);
	assert_int_equal(cuda->retained, 0);
}

/* As many events as were ever in flight, used again. */
static void events_are_pooled(void **state)
{
	enum { DEPTH = 5 };
	struct CUctx_st ctx = {.id = 11};
	struct CUstream_st stream = {.ctx = &ctx};
	struct binpool *pool = thp_pool(64 * MIB);
	unsigned long created = cuda->created;

	(void)state;
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < DEPTH; i++) {
			void *p = binpool_alloc(pool, MIB);

			stream.submitted++;
			assert_ok(binpool_free_on_cuda_stream(pool, p, &stream));
			assert_int_equal(binpool_free(pool, p), -EINVAL);
		}
		assert_int_equal(binpool_poll(pool), DEPTH);
		stream.finished += 2;
		assert_int_equal(binpool_poll(pool), DEPTH - 2);
		stream.finished += DEPTH - 2;
		assert_int_equal(binpool_poll(pool), 0);
	}
	assert_int_equal(cuda->created - created, DEPTH);
	end(pool);
}

/* What a graph will do is not known when it is captured. */
static void captured(void **state)
{
	struct CUctx_st ctx = {.id = 12};
	struct CUstream_st stream = {.ctx = &ctx, .capturing = true};
	struct binpool *pool = thp_pool(64 * MIB);
	void *p = binpool_alloc(pool, MIB);
	unsigned long recorded = cuda->recorded;

	(void)state;
	assert_int_equal(binpool_free_on_cuda_stream(pool, p, &stream), -EBUSY);
	assert_error_names("captured");
	assert_int_equal(cuda->recorded, recorded);
	assert_int_equal(stats_of(pool).pending_blocks, 0);
	assert_ok(binpool_free(pool, p));
	end(pool);
}

/* Its events go with it and are not asked; another at its address is another. */
static void context_goes(void **state)
{
	struct CUctx_st ctx = {.id = 13};
	struct CUstream_st stream = {.ctx = &ctx, .submitted = 1};
	struct binpool *pool = thp_pool(64 * MIB);
	unsigned long queried;

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_ok(binpool_free_on_cuda_stream(pool, binpool_alloc(pool, MIB), &stream));
	assert_int_equal(binpool_poll(pool), 3);
	queried = cuda->queried;
	ctx.id = 0;
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(cuda->queried, queried);
	assert_int_equal(stats_of(pool).fence_errors, 3);
	ctx.id = 14;
	assert_ok(binpool_free_on_cuda_stream(pool, binpool_alloc(pool, MIB), &stream));
	assert_int_equal(binpool_poll(pool), 1);
	stream.finished = 1;
	assert_int_equal(binpool_poll(pool), 0);
	end(pool);
}

/* Of two devices, one of them twice: it rests until the last is past it. */
static void several_streams(void **state)
{
	enum { MANY = 1000 };
	struct CUctx_st ctx[2] = {{.id = 21}, {.id = 22, .device = 1}};
	struct CUstream_st a = {.ctx = &ctx[0], .submitted = 1},
			   b = {.ctx = &ctx[1], .submitted = 1};
	struct CUstream_st *streams[] = {&a, &b, &a}, *many[MANY];
	struct binpool *pool = thp_pool(64 * MIB);
	unsigned long created = cuda->created;
	void *p;

	(void)state;
	for (int last = 0; last < 2; last++) {
		p = binpool_alloc(pool, MIB);
		a.finished = b.finished = 0;
		assert_ok(binpool_free_on_cuda_streams(pool, p, streams, NULL, 3));
		assert_int_equal(binpool_free(pool, p), -EINVAL);
		assert_int_equal(binpool_poll(pool), 1);
		*(last ? &a.finished : &b.finished) = 1;
		assert_int_equal(binpool_poll(pool), 1);
		a.finished = b.finished = 1;
		assert_int_equal(binpool_poll(pool), 0);
	}
	assert_int_equal(cuda->created - created, 3);
	/* What one of them would do later is not waited for. */
	a.submitted++;
	assert_ok(
		binpool_free_on_cuda_streams(pool, binpool_alloc(pool, MIB), streams + 1, NULL, 1));
	assert_int_equal(binpool_poll(pool), 0);
	/* One of them goes with its context, and the other is waited for all the same. */
	for (int gone = 0; gone < 2; gone++) {
		a.finished = b.finished = 0;
		assert_ok(binpool_free_on_cuda_streams(pool, binpool_alloc(pool, MIB), streams,
						       NULL, 2));
		ctx[gone].id = 0;
		assert_int_equal(binpool_poll(pool), 1);
		*(gone ? &a.finished : &b.finished) = 2;
		assert_int_equal(binpool_poll(pool), 0);
		ctx[gone].id = 23;
	}
	assert_int_equal(stats_of(pool).fence_errors, 2);
	for (int i = 0; i < MANY; i++)
		many[i] = &a;
	a.submitted = 3;
	assert_ok(binpool_free_on_cuda_streams(pool, binpool_alloc(pool, MIB), many, NULL, MANY));
	assert_int_equal(binpool_poll(pool), 1);
	a.finished = 3;
	assert_int_equal(binpool_poll(pool), 0);
	end(pool);
}

/* One that cannot be waited for: nothing is freed, and the others' events are there again. */
static void several_refused(void **state)
{
	struct CUctx_st ctx = {.id = 24};
	struct CUstream_st a = {.ctx = &ctx, .submitted = 1}, b = a;
	struct CUstream_st *streams[] = {&a, &a, &b}, *none[] = {&a, NULL};
	struct binpool *pool = thp_pool(64 * MIB);
	unsigned long created = cuda->created;
	const int strange[] = {0, 2}, negative[][2] = {{-1, -2}, {INT_MIN, 0}};
	void *p = binpool_alloc(pool, MIB);

	(void)state;
	for (int i = 0; i < 3; i++) {
		b.capturing = true;
		assert_int_equal(binpool_free_on_cuda_streams(pool, p, streams, NULL, 3), -EBUSY);
		b.capturing = false;
		cuda->record_error = 2;
		assert_int_equal(binpool_free_on_cuda_streams(pool, p, streams, NULL, 3), -ENOMEM);
		cuda->record_error = 0;
		assert_int_equal(binpool_free_on_cuda_streams(pool, p, none, NULL, 2), -ENODEV);
		assert_int_equal(binpool_free_on_cuda_streams(pool, p, none, strange, 2), -EINVAL);
		assert_error_names("cuDevicePrimaryCtxGetState");
		for (int k = 0; k < 2; k++) {
			assert_int_equal(
				binpool_free_on_cuda_streams(pool, p, streams, negative[k], 2),
				-EINVAL);
			assert_error_names("below 0");
		}
		assert_int_equal(binpool_free_on_cuda_streams(pool, p, NULL, NULL, 1), -EINVAL);
		assert_error_names("streams");
		assert_int_equal(binpool_free_on_cuda_streams(NULL, p, streams, NULL, 1), -EINVAL);
		assert_int_equal(stats_of(pool).pending_blocks, 0);
		assert_int_equal(cuda->created - created, 2);
	}
	assert_ok(binpool_free_on_cuda_streams(pool, NULL, streams, NULL, 3));
	/* Of none there is nothing to wait for. */
	assert_ok(binpool_free_on_cuda_streams(pool, p, NULL, NULL, 0));
	assert_int_equal(stats_of(pool).active_blocks, 0);
	assert_int_equal(binpool_free_on_cuda_streams(pool, p, NULL, NULL, 0), -EINVAL);
	assert_int_equal(cuda->created - created, 2);
	end(pool);
}

/* They have one handle everywhere: the device says which are meant, in whatever thread. */
static void default_streams(void **state)
{
	struct CUstream_st s[3] = {{.submitted = 1}, {.submitted = 1}, {.submitted = 1}};
	struct CUctx_st ctx[] = {
		{.id = 31, .default_stream = &s[0]},
		{.id = 32, .default_stream = &s[1], .device = 1},
		{.id = 33, .default_stream = &s[2], .device = 1},
	};
	struct CUstream_st *streams[] = {NULL, (struct CUstream_st *)2};
	struct binpool *pool = thp_pool(64 * MIB);
	const int devices[] = {0, 1}, of_the_thread[] = {-1, 0};
	void *p;

	(void)state;
	for (int i = 0; i < 3; i++)
		s[i].ctx = &ctx[i];
	/* None has a context: nothing is at work, and none is made. */
	assert_ok(
		binpool_free_on_cuda_streams(pool, binpool_alloc(pool, MIB), streams, devices, 2));
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(stats_of(pool).active_blocks, 0);
	cuda->primary[1] = &ctx[1];
	/* Nothing is current, then a device's primary one, then one that is not primary. */
	for (int now = 0; now < 3; now++) {
		struct CUstream_st *last = &s[now == 2 ? 2 : 1];

		cuda->current = now ? &ctx[now] : NULL;
		assert_ok(binpool_free_on_cuda_streams(pool, binpool_alloc(pool, MIB), streams,
						       devices, 2));
		assert_ptr_equal(cuda->current, now ? &ctx[now] : NULL);
		for (int i = 0; i < 3; i++)
			s[i].finished = &s[i] != last;
		assert_int_equal(binpool_poll(pool), 1);
		last->finished = 1;
		assert_int_equal(binpool_poll(pool), 0);
	}
	/* Both devices', of which one is current. */
	cuda->primary[0] = &ctx[0];
	cuda->current = &ctx[1];
	for (int last = 0; last < 2; last++) {
		s[0].finished = s[1].finished = 0;
		assert_ok(binpool_free_on_cuda_streams(pool, binpool_alloc(pool, MIB), streams,
						       last ? of_the_thread : devices, 2));
		s[!last].finished = 1;
		assert_int_equal(binpool_poll(pool), 1);
		s[last].finished = 1;
		assert_int_equal(binpool_poll(pool), 0);
	}
	/* One that is no default stream is waited for, whatever its device has. */
	for (int i = 0; i < 2; i++) {
		struct CUstream_st *other = &s[2];

		cuda->current = NULL;
		cuda->primary[0] = i ? &ctx[0] : NULL;
		s[2].finished = 0;
		assert_ok(binpool_free_on_cuda_streams(pool, binpool_alloc(pool, MIB), &other,
						       devices, 1));
		assert_int_equal(binpool_poll(pool), 1);
		s[2].finished = 1;
		assert_int_equal(binpool_poll(pool), 0);
	}
	/* A capture that it would break, and a context that cannot be entered. */
	p = binpool_alloc(pool, MIB);
	s[0].capturing = true;
	assert_int_equal(binpool_free_on_cuda_streams(pool, p, streams, devices, 2), -EBUSY);
	s[0].capturing = false;
	cuda->push_error = 719;
	assert_int_equal(binpool_free_on_cuda_streams(pool, p, streams, devices, 2), -EIO);
	assert_error_names("cuCtxPushCurrent");
	cuda->push_error = 0;
	assert_ok(binpool_free(pool, p));
	assert_int_equal(stats_of(pool).fence_errors, 0);
	assert_int_equal(stats_of(pool).pending_blocks, 0);
	cuda->current = cuda->primary[0] = cuda->primary[1] = NULL;
	end(pool);
}

static void errors(void **state)
{
	struct CUctx_st ctx = {.id = 15};
	struct CUstream_st stream = {.ctx = &ctx, .submitted = 1};
	struct binpool *pool = thp_pool(64 * MIB);
	struct binpool_fence f = {.size = sizeof(f)};
	unsigned long created;
	char *p = binpool_alloc(pool, MIB);
	union {
		struct binpool_fence f;
		struct binpool_allocator_ops ops;
		unsigned char bytes[8192];
	} wild;

	(void)state;
	created = cuda->created;
	for (int err = 1; err <= 2; err++) {
		cuda->record_error = err;
		assert_int_equal(binpool_free_on_cuda_stream(pool, p, &stream),
				 err == 1 ? -EINVAL : -ENOMEM);
		assert_error_names("cuEventRecord");
	}
	cuda->record_error = 0;
	/* The event that was not recorded is there for the next. */
	assert_int_equal(cuda->created - created, 1);
	/* No context. */
	assert_int_equal(binpool_free_on_cuda_stream(pool, p, NULL), -ENODEV);
	assert_int_equal(binpool_free_on_cuda_stream(NULL, p, &stream), -EINVAL);
	assert_int_equal(binpool_free_on_cuda_stream(pool, p + 64, &stream), -EINVAL);
	assert_ok(binpool_free_on_cuda_stream(pool, NULL, &stream));
	assert_int_equal(binpool_cuda_fence(NULL, &f), -EINVAL);
	f.size = 0;
	assert_int_equal(binpool_cuda_fence((struct CUevent_st *)&f, &f), -EINVAL);
	/* What was never set; there would be room here. */
	memset(&wild, 0, sizeof(wild));
	wild.f.size = 4097;
	assert_int_equal(binpool_cuda_fence((struct CUevent_st *)&f, &wild.f), -E2BIG);
	assert_int_equal(binpool_cuda_device_allocator(&wild.ops), -E2BIG);
	assert_int_equal(wild.f.kind, 0);
	assert_int_equal(cuda->created - created, 1);
	/* Which context it is cannot be told for now: it would be taken for another's that is gone.
	 */
	cuda->id_error = 719;
	assert_int_equal(binpool_free_on_cuda_stream(pool, p, &stream), -EIO);
	assert_error_names("cuCtxGetId");
	cuda->id_error = 0;
	assert_int_equal(stats_of(pool).pending_blocks, 0);
	assert_int_equal(stats_of(pool).active_blocks, 1);
	/* An error of a kernel before it: it is over, with an error. */
	assert_ok(binpool_free_on_cuda_stream(pool, p, &stream));
	cuda->query_error = 719;
	assert_int_equal(binpool_poll(pool), 0);
	cuda->query_error = 0;
	assert_int_equal(stats_of(pool).fence_errors, 1);
	end(pool);
}

static void callers_events(void **state)
{
	struct CUctx_st ctx = {.id = 16};
	struct CUstream_st a = {.ctx = &ctx, .submitted = 1}, b = a;
	struct CUevent_st event[2] = {
		{.ctx = &ctx, .id = 16, .stream = &a, .ticket = 1},
		{.ctx = &ctx, .id = 16, .stream = &b, .ticket = 1},
	};
	struct binpool_fence f[2] = {{.size = sizeof(f[0])}, {.size = sizeof(f[0])}};
	struct binpool *pool = thp_pool(64 * MIB);

	(void)state;
	assert_ok(binpool_cuda_fence(&event[0], &f[0]));
	assert_ok(binpool_cuda_fence(&event[1], &f[1]));
	assert_ok(binpool_free_after(pool, binpool_alloc(pool, MIB), f, 2));
	b.finished = 1;
	assert_int_equal(binpool_poll(pool), 1);
	a.finished = 1;
	assert_int_equal(binpool_poll(pool), 0);
	end(pool);
}

/* Device memory: made in its context, and not touched when that is gone. */
static void device_memory(void **state)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops)};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool_buf buf[2] = {{.size = sizeof(buf[0])}, {.size = sizeof(buf[0])}};
	struct CUctx_st ctx = {.id = 20};
	struct CUstream_st stream = {.ctx = &ctx, .submitted = 1};
	struct binpool *pool;

	(void)state;
	assert_int_equal(binpool_cuda_device_allocator(&ops), -ENODEV);
	assert_error_names("no context");
	cuda->current = &ctx;
	assert_ok(binpool_cuda_device_allocator(&ops));
	cuda->current = NULL;
	o.kind = BINPOOL_KIND_HANDLE;
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	assert_ok(binpool_create(&pool, &o));
	for (int i = 0; i < 2; i++)
		assert_ok(binpool_handle_alloc(pool, 5000, &buf[i]));
	assert_int_equal(cuda->allocated, 2);
	/* A kernel is at work on it. */
	assert_ok(binpool_free_on_cuda_stream(pool, (void *)(uintptr_t)buf[0].handle, &stream));
	assert_int_equal(binpool_held_blocks(pool), 0);
	stream.finished = 1;
	assert_int_equal(binpool_poll(pool), 0);
	assert_int_equal(binpool_held_blocks(pool), 1);
	assert_ok(binpool_free_held(pool));
	assert_int_equal(cuda->allocated, 1);
	/* Out of memory, and other errors. */
	cuda->alloc_error = 2;
	assert_int_equal(binpool_handle_alloc(pool, 5000, &buf[0]), -ENOMEM);
	assert_error_names("cuMemAlloc");
	cuda->alloc_error = 719;
	assert_int_equal(binpool_handle_alloc(pool, 5000, &buf[0]), -EIO);
	cuda->alloc_error = 0;
	/* That the context's id is not told does not mean that it is gone. */
	cuda->id_error = 719;
	assert_ok(binpool_handle_alloc(pool, 5000, &buf[0]));
	assert_int_equal(cuda->allocated, 2);
	assert_ok(binpool_handle_free(pool, &buf[0]));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(cuda->allocated, 1);
	cuda->id_error = 0;
	ctx.id = 0;
	assert_int_equal(binpool_handle_alloc(pool, 5000, &buf[0]), -ENODEV);
	assert_error_names("destroyed");
	assert_ok(binpool_handle_free(pool, &buf[1]));
	assert_ok(binpool_destroy(pool));
	assert_int_equal(cuda->allocated, 1);
	cuda->allocated = 0;
	free((void *)(uintptr_t)buf[1].handle);
	assert_int_equal(cuda->wrong, 0);
	assert_int_equal(cuda->mode, 0);
}

/* In a program that has asked for no driver yet: one that cannot be opened now may be later. */
static int driver_later(void)
{
	struct binpool_fence f = {.size = sizeof(f)};
	struct CUevent_st event;
	struct rlimit limit;
	rlim_t most;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return 1;
	most = limit.rlim_cur;
	limit.rlim_cur = 0;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		return 2;
	if (binpool_cuda_fence(&event, &f) != -ENODEV ||
	    !strstr(binpool_last_error(), strerror(EMFILE)))
		return 3;
	limit.rlim_cur = most;
	return setrlimit(RLIMIT_NOFILE, &limit) || binpool_cuda_fence(&event, &f) ? 4 : 0;
}

/*
 * A context that cannot be entered is not gone, nor are its registrations: the memory is kept
 * and known, and goes when it can be.
 */
static void context_not_entered(void **state)
{
	struct CUctx_st ctx = {.id = 17};
	struct binpool *pool = thp_pool(64 * MIB);
	struct binpool_stats st;
	uint64_t id;
	void *p;

	(void)state;
	cuda->current = &ctx;
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	p = binpool_alloc(pool, MIB);
	st = stats_of(pool);
	cuda->push_error = 719;
	/* It is not lost either. */
	assert_ok(binpool_wait_registered(pool, p, 0));
	assert_ok(binpool_free(pool, p));
	binpool_free_held(pool);
	assert_int_equal(stats_of(pool).stuck_bytes, st.reserved_bytes);
	cuda->push_error = 0;
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).stuck_bytes, 0);
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	end(pool);
	cuda->current = NULL;
}

static void no_descriptor_at_first(void **state)
{
	char said[4096];
	int status = run_self("driver_later", said, sizeof(said));

	(void)state;
	if (status)
		fail_msg("status 0x%x: %s", status, said);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(events_are_pooled),   cmocka_unit_test(captured),
		cmocka_unit_test(context_goes),	       cmocka_unit_test(errors),
		cmocka_unit_test(several_streams),     cmocka_unit_test(several_refused),
		cmocka_unit_test(default_streams),     cmocka_unit_test(callers_events),
		cmocka_unit_test(device_memory),       cmocka_unit_test(no_descriptor_at_first),
		cmocka_unit_test(context_not_entered),
	};

	if (argc > 1 && !strcmp(argv[1], "driver_later"))
		return driver_later();
	return cmocka_run_group_tests_name("cuda_fake", tests, find_fake, NULL);
}
