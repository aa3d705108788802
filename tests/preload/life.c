// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What becomes of buffers: copies in flight, captures, refusals, forked children, threads, and
 * the end. Owns nothing.
 */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dlfcn.h>

#include "scenario.h"

#define RELAXED 2

/* Frees a buffer that a copy still reads, and writes to whatever is had next. */
static unsigned char copied_through(const struct plugin *cuda, bool *again)
{
	static unsigned char to[64 * KIB];
	unsigned char *from = served(cuda, sizeof(to), 0), *next;

	memset(from, 1, sizeof(to));
	memset(to, 0, sizeof(to));
	CHECK(!copy_later(to, from, sizeof(to)));
	CHECK(!cuda->free_host(from));
	next = served(cuda, sizeof(to), 0);
	*again = next == from;
	memset(next, 2, sizeof(to));
	/* Waits for all there is: the real one does. */
	CHECK(!cuda->host_alloc((void **)&from, KIB, 4) && !cuda->free_host(from));
	CHECK(!cuda->free_host(next));
	return to[sizeof(to) - 1];
}

void scenario_reuse(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	bool again;

	for (int i = 0; i < 1000; i++)
		CHECK(copied_through(cuda, &again) == 1);
	CHECK(again);
	CHECK(driver_state()->syncs >= 1000);
}

/* The same would be seen: without waiting, as it was asked for, the copy reads what is new. */
void scenario_reuse_control(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	bool again;

	CHECK(copied_through(cuda, &again) == 2);
	CHECK(again);
	CHECK(driver_state()->syncs == 0);
}

static const struct plugin *hooked;
static unsigned char *hooked_from, hooked_to[KIB];

static void *free_meanwhile(void *arg)
{
	(void)arg;
	CHECK(!hooked->use_device(0));
	CHECK(!copy_later(hooked_to, hooked_from, KIB));
	CHECK(!hooked->free_host(hooked_from));
	memset(hooked_from, 2, KIB);
	return NULL;
}

static pthread_t meanwhile;

static void in_sync(void)
{
	CHECK(!pthread_create(&meanwhile, NULL, free_meanwhile, NULL));
	/* So that it is about to wait; if it is late there is nothing to be seen. */
	usleep(50000);
}

/* A synchronisation that had begun before the free does not count. */
void scenario_sync_before(void)
{
	unsigned char *ptr;

	hooked = plugin_load("plugin");
	hooked_from = served(hooked, KIB, 0);
	ptr = served(hooked, MIB, 0);
	memset(hooked_from, 1, KIB);
	driver_state()->in_sync = in_sync;
	CHECK(!hooked->free_host(ptr));
	CHECK(!pthread_join(meanwhile, NULL));
	CHECK(hooked_to[KIB - 1] == 1);
}

/* Wherever the copy is: another device, or a context that is not its device's primary one. */
void scenario_all_contexts(void)
{
	static unsigned char to[3][KIB];
	const struct plugin *cuda = plugin_load("plugin");
	unsigned char *from[3];

	/* In the context of the second device nobody allocated. */
	CHECK(!cuda->use_device(0));
	from[0] = served(cuda, KIB, 0);
	from[1] = served(cuda, KIB, 0);
	CHECK(!cuda->use_device(1));
	memset(from[1], 2, KIB);
	CHECK(!copy_later(to[1], from[1], KIB));
	make_context(0);
	from[2] = served(cuda, KIB, 0);
	memset(from[2], 3, KIB);
	CHECK(!copy_later(to[2], from[2], KIB));
	CHECK(!cuda->use_device(0));
	memset(from[0], 1, KIB);
	CHECK(!copy_later(to[0], from[0], KIB));
	CHECK(!cuda->free_host(from[2]));
	for (int i = 0; i < 3; i++)
		CHECK(to[i][KIB - 1] == i + 1);
	CHECK(!cuda->free_host(from[1]) && !cuda->free_host(from[0]));
}

/* A context of which it is not told for now whether it is there is waited for. */
void scenario_not_told(void)
{
	static unsigned char to[KIB];
	const struct plugin *cuda = plugin_load("plugin");
	unsigned char *from;

	make_context(0);
	from = served(cuda, KIB, 0);
	memset(from, 1, KIB);
	CHECK(!copy_later(to, from, KIB));
	CHECK(!cuda->use_device(0));
	driver_state()->id_error = 719;
	CHECK(!cuda->free_host(from));
	CHECK(to[KIB - 1] == 1);
	driver_state()->id_error = 0;
	/* One that cannot be waited for keeps what was freed. */
	from = served(cuda, KIB, 0);
	memset(from, 2, KIB);
	CHECK(!copy_later(to, from, KIB));
	driver_state()->retain_error = 719;
	CHECK(!cuda->free_host(from));
	CHECK(to[KIB - 1] == 1);
	driver_state()->retain_error = 0;
	CHECK(served(cuda, KIB, 0) != from || to[KIB - 1] == 2);
}

/* A graph that is being captured is not broken; what was freed then is not handed out. */
void scenario_capture(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	struct fake *fake = driver_state();
	int (*exchange)(int *mode);
	int mode = RELAXED;
	void *ptr = served(cuda, 3 * MIB, 0), *next[8];
	unsigned long syncs = fake->syncs;

	*(void **)&exchange =
		dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuThreadExchangeStreamCaptureMode");
	CHECK(!exchange(&mode));
	fake->capturing = 1;
	CHECK(!cuda->free_host(ptr));
	CHECK(cuda->free_host(ptr) == 1);
	for (int i = 0; i < 8; i++) {
		next[i] = served(cuda, 3 * MIB, 0);
		CHECK(next[i] != ptr);
	}
	CHECK(fake->syncs == syncs && fake->broken == 0);
	/* The pool's own thread does not either. */
	usleep(300000);
	CHECK(fake->syncs == syncs && fake->broken == 0);
	fake->capturing = 0;
	CHECK(!exchange(&mode) && mode == RELAXED);
	for (int i = 0; i < 8; i++)
		CHECK(!cuda->free_host(next[i]));
	CHECK(fake->syncs > syncs);
}

/* Not waited for is not over. */
void scenario_sync_fails(void)
{
	const int launch_failed = 719;
	const struct plugin *cuda = plugin_load("plugin");
	struct fake *fake = driver_state();
	enum { MANY = 100 };
	void *ptr = served(cuda, 3 * MIB, 0), *next[MANY];
	bool again = false;

	fake->sync_error = launch_failed;
	CHECK(!cuda->free_host(ptr));
	for (int i = 0; i < 20; i++) {
		next[i] = served(cuda, 3 * MIB, 0);
		CHECK(next[i] != ptr);
	}
	fake->sync_error = 0;
	for (int i = 0; i < 20; i++)
		CHECK(!cuda->free_host(next[i]));
	/* Now it may be had again, by who finds nothing else. */
	for (int i = 0; i < MANY; i++) {
		next[i] = served(cuda, 3 * MIB, 0);
		again |= next[i] == ptr;
	}
	CHECK(again);
	for (int i = 0; i < MANY; i++)
		CHECK(!cuda->free_host(next[i]));
}

/* The real function serves then, and nothing of the attempt is left. */
void scenario_refused(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	struct fake *fake = driver_state();
	void *ptr;

	fake->register_error = 2;
	for (unsigned long i = 1; i <= 3; i++) {
		CHECK(!cuda->host_alloc(&ptr, 8 * MIB, 0));
		CHECK(fake->host_allocs == i && runtime_allocs() == i);
		CHECK(!cuda->last_error());
		CHECK(!cuda->free_host(ptr) && fake->host_frees == i);
	}
	CHECK(fake->registers == fake->unregisters && regions() == 0);
	fake->register_error = 0;
	CHECK(!cuda->free_host(served(cuda, 8 * MIB, 0)));
}

/* After that nothing is registered: what is held is again, before it is handed out. */
void scenario_reset(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	struct fake *fake = driver_state();
	unsigned long registers;
	void *ptr;

	CHECK(!cuda->free_host(served(cuda, MIB, 0)));
	registers = fake->registers;
	reset_device(0);
	CHECK(regions() == 0);
	ptr = served(cuda, MIB, 0);
	CHECK(fake->registers > registers);
	CHECK(!cuda->free_host(ptr));
	/* Freed while nothing is registered. */
	ptr = served(cuda, MIB, 0);
	reset_device(0);
	CHECK(!cuda->free_host(ptr));
	CHECK(!cuda->free_host(served(cuda, MIB, 0)));
}

static bool stop; /* atomic */
static void *looked_at;

static void *in_other_thread(void *arg)
{
	const struct plugin *cuda = arg;
	unsigned int flags;
	void *ptr;

	for (int i = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); i++) {
		/* What is locked most of the time is, now and then, when the other forks. */
		for (int j = 0; j < 1000; j++)
			CHECK(!cuda->get_flags(&flags, looked_at));
		CHECK(!cuda->host_alloc(&ptr, KIB << i % 12, 0));
		CHECK(!cuda->free_host(ptr));
	}
	return NULL;
}

/* A child has the parent's buffers, if at all, to look at. */
void scenario_fork(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	struct fake *fake = driver_state();
	unsigned char *ptr = served(cuda, MIB, 3);
	const int not_initialized = 3;
	unsigned long syncs, allocs = runtime_allocs();
	unsigned int flags;
	pthread_t thread[2];
	void *real;
	int status;

	looked_at = ptr;
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&thread[i], NULL, in_other_thread, (void *)(uintptr_t)cuda));
	for (int i = 0; i < 100; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child) {
			syncs = fake->syncs;
			alarm(20);
			CHECK(!cuda->get_flags(&flags, ptr) && flags == 3);
			CHECK(!cuda->free_host(ptr) && !cuda->free_host(ptr));
			CHECK(fake->syncs == syncs);
			/* What becomes of more is the runtime's to say. */
			CHECK(cuda->host_alloc(&real, KIB, 0) == not_initialized);
			if (!i)
				exit(0);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child);
		if (status)
			printf("child %d: status 0x%x\n", i, (unsigned int)status);
		CHECK(status == 0);
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(thread[i], NULL));
	CHECK(runtime_allocs() == allocs);
	CHECK(ptr[MIB - 1] == 0x5a);
	CHECK(!cuda->free_host(ptr) && cuda->free_host(ptr) == 1);
}

struct worker {
	const struct plugin *cuda;
	unsigned char id;
};

/* Nobody else has what one has. */
static void *work(void *arg)
{
	enum { LIVE = 16, ROUNDS = 400 };
	const struct worker *w = arg;
	unsigned int seed = w->id;
	unsigned char *ptr[LIVE] = {0};
	size_t bytes[LIVE];

	for (int i = 0; i < ROUNDS; i++) {
		int at = rand_r(&seed) % LIVE;

		if (ptr[at]) {
			CHECK(ptr[at][0] == w->id && ptr[at][bytes[at] - 1] == w->id);
			CHECK(!w->cuda->free_host(ptr[at]));
		}
		bytes[at] = 1 + (size_t)rand_r(&seed) % (256 * KIB);
		CHECK(!w->cuda->host_alloc((void **)&ptr[at], bytes[at], 0));
		memset(ptr[at], w->id, bytes[at]);
	}
	for (int at = 0; at < LIVE; at++)
		CHECK(!ptr[at] || !w->cuda->free_host(ptr[at]));
	return NULL;
}

void scenario_threads(void)
{
	enum { THREADS = 8 };
	const struct plugin *cuda = plugin_load("plugin");
	struct worker w[THREADS];
	pthread_t thread[THREADS];

	for (int i = 0; i < THREADS; i++) {
		w[i] = (struct worker){.cuda = cuda, .id = (unsigned char)(i + 1)};
		CHECK(!pthread_create(&thread[i], NULL, work, &w[i]));
	}
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(thread[i], NULL));
	CHECK(runtime_allocs() == 0 && driver_state()->host_allocs == 0);
}

/* As many registrations as extents, not as buffers. */
void scenario_many(void)
{
	enum { MANY = 2000 };
	static void *ptr[MANY];
	const struct plugin *cuda = plugin_load("plugin");
	struct fake *fake = driver_state();
	unsigned int flags;

	for (size_t i = 0; i < MANY; i++)
		ptr[i] = served(cuda, 1 + 37 * i % (16 * KIB), i % 4);
	CHECK(fake->registers - fake->unregisters < 30);
	for (size_t i = 0; i < MANY; i++)
		CHECK((uintptr_t)ptr[i] % (1 + 37 * i % (16 * KIB) < 4 * KIB ? 512 : 4 * KIB) == 0);
	for (size_t i = 0; i < MANY; i++)
		CHECK(!cuda->get_flags(&flags, ptr[i]) && flags == (i % 4 | 2));
	for (size_t i = 0; i < MANY; i++)
		CHECK(!cuda->free_host(ptr[i]));
}

static const struct plugin *late_cuda;
static void *late[2];

/* Destructors run after the driver has ended. */
static void __attribute__((destructor)) too_late(void)
{
	const int deinitialized = 4;
	const unsigned long calls_of_runtime = 2;

	if (!late_cuda)
		return;
	CHECK(!late_cuda->free_host(late[1]));
	CHECK(driver_state()->late == 0);
	/* The runtime asks it, and is told that it is gone; we do not. */
	CHECK(late_cuda->host_alloc(&late[1], MIB, 0) == deinitialized);
	CHECK(driver_state()->late == calls_of_runtime);
}

static void before_end(void)
{
	CHECK(!late_cuda->free_host(late[0]));
}

/* No call of the driver's after its end, whoever frees. */
void scenario_at_exit(void)
{
	late_cuda = plugin_load("plugin");
	late[0] = served(late_cuda, MIB, 0);
	late[1] = served(late_cuda, 40 * MIB, 0);
	CHECK(!atexit(before_end));
	CHECK(driver_state()->late == 0);
}
