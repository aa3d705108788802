// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Who is served and who is handed on, and what both are told. Owns nothing.
 */
#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "scenario.h"

#define OTHER_FLAG   0x80u
#define BAD_VALUE    1
#define NO_MEMORY    2
#define WRITECOMBINE 4u

void scenario_served(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	struct fake *fake = driver_state();
	char *ptr, *other;
	void *device;
	glob_t tasks;

	ptr = served(cuda, MIB, 0);
	/* Registered as a whole, and once. */
	CHECK(fake->registers >= 1);
	CHECK((uintptr_t)ptr % 4096 == 0);
	CHECK(!cuda->get_device(&device, ptr, 0));
	CHECK(device != ptr && pinned(ptr, MIB));
	CHECK(!cuda->get_device((void **)&other, ptr + 12345, 0));
	CHECK(other == (char *)device + 12345);
	CHECK(cuda->get_device(&device, ptr, OTHER_FLAG) == BAD_VALUE);
	CHECK(!cuda->malloc_host((void **)&other, 100));
	CHECK(runtime_allocs() == 0 && fake->host_allocs == 0);
	CHECK((uintptr_t)other % 512 == 0 && pinned(other, 100));
	CHECK(!cuda->free_host(other));
	CHECK(!cuda->free_host(ptr));
	CHECK(!cuda->free_host(NULL));
	CHECK(fake->host_frees == 0);
	CHECK(cuda->last_error() == BAD_VALUE && !cuda->last_error());
	/* The pool has a thread, which gives back what is idle. */
	CHECK(!chdir("/proc/self/task/") && glob("[0-9]*", 0, NULL, &tasks) == 0);
	CHECK(tasks.gl_pathc == 2);
	globfree(&tasks);
}

void scenario_passed(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	struct fake *fake = driver_state();
	void *ptr = &ptr;

	CHECK(!cuda->host_alloc(&ptr, MIB, WRITECOMBINE));
	CHECK(runtime_allocs() == 1 && fake->host_allocs == 1);
	/* What is not ours is not ours to free. */
	CHECK(!cuda->free_host(ptr));
	CHECK(fake->host_frees == 1);
	CHECK(cuda->host_alloc(&ptr, MIB, OTHER_FLAG) == BAD_VALUE);
	CHECK(!cuda->host_alloc(&ptr, 0, 0) && !ptr);
	CHECK(cuda->host_alloc(NULL, MIB, 0) == BAD_VALUE);
	CHECK(cuda->malloc_host(NULL, MIB) == BAD_VALUE);
	/* What no pool has, and what does not fit into any. */
	CHECK(cuda->host_alloc(&ptr, (size_t)1 << 62, 0) == NO_MEMORY);
	CHECK(cuda->host_alloc(&ptr, SIZE_MAX, 0) == NO_MEMORY);
	CHECK(runtime_allocs() == 7);
	CHECK(cuda->free_host(&ptr) == BAD_VALUE);
	CHECK(cuda->last_error() == BAD_VALUE);
}

/* More than any machine of these days has of huge pages. */
void scenario_too_much(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	void *ptr;

	CHECK(!cuda->host_alloc(&ptr, (size_t)1 << 39, 0));
	CHECK(runtime_allocs() == 1);
	CHECK(!cuda->free_host(ptr) && driver_state()->host_frees == 1);
	CHECK(regions() == 0);
}

/* A runtime that asks the driver by symbols of ours: that is not the program's call. */
void scenario_nested(void)
{
	const struct plugin *cuda = plugin_load("plugin11");
	struct fake *fake = driver_state();
	void *ptr;

	fake->register_error = 2;
	CHECK(!cuda->host_alloc(&ptr, MIB, 0));
	CHECK(fake->runtime_allocs[11] == 1 && fake->host_allocs == 1);
	fake->register_error = 0;
	CHECK(!cuda->free_host(ptr));
	CHECK(fake->runtime_frees[11] == 1 && fake->host_frees == 1);
}

/* What the driver registers in pieces only is nothing that one copy could be made of. */
void scenario_pieces(void)
{
	const size_t bytes = 1024 * (size_t)MIB + 4 * MIB;
	const struct plugin *cuda = plugin_load("plugin");
	struct fake *fake = driver_state();
	void *ptr;

	fake->largest = 1024 * (size_t)MIB;
	CHECK(!cuda->host_alloc(&ptr, bytes, 0));
	CHECK(runtime_allocs() == 1 && fake->host_allocs == 1);
	CHECK(fake->registers == 2);
	CHECK(!cuda->free_host(ptr) && fake->host_frees == 1);
	CHECK(!cuda->free_host(served(cuda, MIB, 0)));
}

void scenario_flags(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	unsigned int flags;
	char *ptr[4];
	void *real;

	for (unsigned int i = 0; i < 4; i++)
		ptr[i] = served(cuda, 4 * KIB + i, i);
	for (unsigned int i = 0; i < 4; i++) {
		CHECK(!cuda->get_flags(&flags, ptr[i]));
		CHECK(flags == (i | 2));
		flags = 77;
		CHECK(!cuda->get_flags(&flags, ptr[i] + 4 * KIB + i - 1));
		CHECK(flags == (i | 2));
		/* Behind the first buffer may be another. */
		CHECK(!i || cuda->get_flags(&flags, ptr[i] + 4 * KIB + i) == BAD_VALUE);
	}
	CHECK(!cuda->host_alloc(&real, KIB, WRITECOMBINE | 1));
	CHECK(!cuda->get_flags(&flags, real) && flags == (WRITECOMBINE | 3));
	CHECK(cuda->get_flags(&flags, ptr) == BAD_VALUE);
	for (unsigned int i = 0; i < 4; i++)
		CHECK(!cuda->free_host(ptr[i]));
	CHECK(cuda->get_flags(&flags, ptr[0]) == BAD_VALUE);
	CHECK(!cuda->free_host(real));
}

/* What is no buffer's start is answered as the real function does, and harms nothing. */
void scenario_wrong(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	struct fake *fake = driver_state();
	char *ptr = served(cuda, MIB, 0), *other;
	unsigned long known = regions();

	CHECK(cuda->free_host(ptr + 4096) == BAD_VALUE);
	CHECK(cuda->last_error() == BAD_VALUE);
	CHECK(!cuda->free_host(ptr));
	for (int i = 0; i < 3; i++)
		CHECK(cuda->free_host(ptr) == BAD_VALUE);
	CHECK(regions() == known && fake->unregisters == 0 && fake->harmed == 0);
	/* It is not handed out twice. */
	ptr = served(cuda, MIB, 0);
	other = served(cuda, MIB, 0);
	CHECK(ptr + MIB <= other || other + MIB <= ptr);
	CHECK(!cuda->free_host(other) && !cuda->free_host(ptr));
}

static void start_driver(void)
{
	int (*init)(unsigned int);

	*(void **)&init = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit");
	CHECK(!init(0));
}

/* All of the driver's functions on our memory; the address of some that is freed. */
static void *driver_served(const struct plugin *driver, unsigned int asked)
{
	struct fake *fake = driver_state();
	unsigned int flags;
	void *ptr, *device;

	ptr = served(driver, 3 * MIB, asked);
	CHECK(!driver->get_flags(&flags, ptr) && flags == 3);
	CHECK(!driver->get_device(&device, ptr, 0) && device != ptr);
	CHECK(!driver->free_host(ptr));
	CHECK(!driver->malloc_host(&ptr, MIB));
	CHECK(fake->host_allocs == 0 && pinned(ptr, MIB));
	CHECK(!driver->free_host(ptr));
	return ptr;
}

/* What is not for us: @freed, and flags that are none of ours. */
static void driver_passed(const struct plugin *driver, void *freed)
{
	struct fake *fake = driver_state();
	void *ptr;

	CHECK(driver->free_host(freed) == BAD_VALUE);
	CHECK(!driver->host_alloc(&ptr, MIB, WRITECOMBINE));
	CHECK(fake->host_allocs == 1);
	CHECK(!driver->free_host(ptr) && fake->host_frees == 1);
}

/* Who uses the driver himself has made a context before. */
void scenario_driver(void)
{
	const struct plugin *driver = plugin_load("driver_plugin");
	struct fake *fake = driver_state();
	void *ptr;
	int (*old)(void **, unsigned int);

	start_driver();
	CHECK(driver->host_alloc(&ptr, MIB, 0) == FAKE_LEGACY_ERR);
	CHECK(fake->contexts == 0);
	make_context(0);
	driver_served(driver, 3);
	*(void **)&old = dlsym(RTLD_DEFAULT, "cuMemAllocHost");
	CHECK(old && !old(&ptr, MIB));
	CHECK(fake->host_allocs == 0 && pinned(ptr, MIB));
	CHECK(!driver->free_host(ptr));
	driver_passed(driver, ptr);
}

static void looked_up(const struct plugin *driver)
{
	void *ptr;

	CHECK((void *)driver->malloc_host == dlsym(RTLD_DEFAULT, "cuMemAllocHost_v2"));
	CHECK((void *)driver->get_device == dlsym(RTLD_DEFAULT, "cuMemHostGetDevicePointer_v2"));
	start_driver();
	make_context(0);
	ptr = driver_served(driver, 1);
	driver_passed(driver, ptr);
}

/* Who looks the functions up is served if that was asked for. */
void scenario_looked_up(void)
{
	looked_up(plugin_load("lookup_plugin"));
}

void scenario_looked_up_by_name(void)
{
	int (*get)(const char *, void **, int, unsigned long long, int *);
	void *handle = dlopen("libcuda.so.1", RTLD_NOW), *function;
	int status;

	looked_up(plugin_load("by_name_plugin"));
	/* What there is not is not there, and all else is the driver's. */
	CHECK(!dlsym(handle, "cuMemAllocHost_v3") && !dlsym(handle, "cudaHostAlloc"));
	CHECK(dlsym(handle, "cuInit"));
	CHECK(!dlsym(dlopen("libc.so.6", RTLD_NOW), "cuMemHostAlloc"));
	*(void **)&get = dlsym(handle, "cuGetProcAddress_v2");
	CHECK(!get("cuCtxSynchronize", &function, 12000, 0, &status) && !status);
	CHECK(function == dlsym(handle, "cuCtxSynchronize"));
	CHECK(!get("cuNothing", &function, 12000, 0, &status) && status && !function);
}

/* And not else. */
void scenario_not_looked_up(void)
{
	static const char *const names[] = {"lookup_plugin", "by_name_plugin"};
	int (*get)(const char *, void **, int, unsigned long long, int *);
	struct fake *fake = driver_state();
	void *ptr, *function;
	int status;

	start_driver();
	make_context(0);
	for (unsigned long i = 0; i < 2; i++) {
		const struct plugin *driver = plugin_load(names[i]);

		CHECK(!driver->host_alloc(&ptr, MIB, 0));
		CHECK(fake->host_allocs == i + 1);
		CHECK(!driver->free_host(ptr) && fake->host_frees == i + 1);
	}
	/* What was linked with the driver calls ours, which changes nothing either. */
	*(void **)&get = dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
	CHECK(get && !get("cuMemHostAlloc", &function, 12000, 0, &status) && function);
	CHECK(function != dlsym(RTLD_DEFAULT, "cuMemHostAlloc"));
	CHECK(!is_mapped("libbinpool.so"));
}

/* first.so and second.so are there, too: dlsym knows who asks for the next. */
void scenario_next(void)
{
	int (*which)(void);

	*(void **)&which = dlsym(RTLD_DEFAULT, "which");
	CHECK(which && which() == 12);
	CHECK(dlsym(RTLD_DEFAULT, "nowhere") == NULL && dlerror());
}

static void *fresh_thread(void *arg)
{
	const struct plugin *cuda = arg;
	void *ptr = served(cuda, MIB, 0);

	CHECK(!cuda->free_host(ptr));
	return NULL;
}

/* The runtime makes it, as it would have; every thread begins without one. */
void scenario_no_context(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	struct fake *fake = driver_state();
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, fresh_thread, (void *)(uintptr_t)cuda));
	CHECK(!pthread_join(thread, NULL));
	CHECK(fake->contexts == 1);
	CHECK(!cuda->free_host(served(cuda, MIB, 0)));
	CHECK(fake->contexts == 1);
}

/* Each caller reaches the runtime that he was linked with. */
void scenario_two_runtimes(void)
{
	const struct plugin *twelve = plugin_load("plugin"), *eleven = plugin_load("plugin11");
	struct fake *fake = driver_state();
	void *ptr;

	CHECK(!eleven->host_alloc(&ptr, KIB, WRITECOMBINE));
	CHECK(fake->runtime_allocs[11] == 1 && fake->runtime_allocs[12] == 0);
	CHECK(!eleven->free_host(ptr));
	CHECK(fake->runtime_frees[11] == 1 && fake->runtime_frees[12] == 0);
	CHECK(!twelve->host_alloc(&ptr, KIB, WRITECOMBINE));
	CHECK(fake->runtime_allocs[11] == 1 && fake->runtime_allocs[12] == 1);
	CHECK(!twelve->free_host(ptr));
	CHECK(fake->runtime_frees[11] == 1 && fake->runtime_frees[12] == 1);
	/* Ours may be freed by either. */
	CHECK(!eleven->free_host(served(twelve, MIB, 0)));
}

/* Who is not linked with a runtime reaches the one that is loaded. */
void scenario_bare(void)
{
	const struct plugin *cuda = plugin_load("bare_plugin");
	int (*ours)(void **, size_t, unsigned int);
	void *ptr;

	*(void **)&ours = dlsym(RTLD_DEFAULT, "cudaHostAlloc");
	CHECK(ours && cuda->host_alloc == ours);
	CHECK(!cuda->host_alloc(&ptr, KIB, WRITECOMBINE));
	CHECK(driver_state()->runtime_allocs[12] == 1);
	CHECK(!cuda->free_host(ptr));
	CHECK(!cuda->free_host(served(cuda, MIB, 0)));
}

/* What is turned off, or cannot work, is as if it was not there. */
void scenario_real_only(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	struct fake *fake = driver_state();
	unsigned int flags;
	void *ptr, *device;

	for (unsigned long i = 1; i <= 3; i++) {
		CHECK(!cuda->host_alloc(&ptr, MIB, 1));
		CHECK(runtime_allocs() == i && fake->host_allocs == i);
		CHECK(!cuda->get_flags(&flags, ptr) && flags == 3);
		CHECK(!cuda->get_device(&device, ptr, 0));
		CHECK(!cuda->free_host(ptr));
		CHECK(fake->host_frees == i);
	}
	CHECK(fake->registers == fake->unregisters && regions() == 0);
	CHECK(!getenv("BINPOOL_PRELOAD") || !is_mapped("libbinpool.so"));
}

/* With a pool of one extent of 2 MiB: what it has no room for is the real function's. */
void scenario_limit(void)
{
	const struct plugin *cuda = plugin_load("plugin");
	void *ptr = served(cuda, 2 * MIB, 0), *real;

	CHECK(!cuda->host_alloc(&real, 2 * MIB, 0));
	CHECK(runtime_allocs() == 1);
	CHECK(!cuda->free_host(real));
	CHECK(!cuda->free_host(ptr));
	CHECK(driver_state()->host_frees == 1);
}

/* A program without CUDA. */
void scenario_untouched(void)
{
	CHECK(is_mapped("libbinpool-preload.so"));
	CHECK(!is_mapped("libbinpool.so") && !is_mapped("libbinpool-cuda.so"));
	CHECK(!is_mapped("libcuda"));
}

/* The runtime says it. */
void scenario_no_driver(void)
{
	const int insufficient = 35, no_device = 100;
	const struct plugin *cuda = plugin_load("plugin");
	int (*driver_alloc)(void **, size_t, unsigned int);
	void *ptr;

	CHECK(cuda->host_alloc(&ptr, MIB, 0) == insufficient);
	CHECK(cuda->last_error() == insufficient);
	CHECK(cuda->free_host(NULL) == insufficient);
	CHECK(!is_mapped("libbinpool.so"));
	/* Only ours is there: whoever finds it is told that there is no device. */
	*(void **)&driver_alloc = dlsym(RTLD_DEFAULT, "cuMemHostAlloc");
	CHECK(driver_alloc && driver_alloc(&ptr, MIB, 0) == no_device);
}
