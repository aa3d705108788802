// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The end of a process, with the shared library: whatever it leaves behind, in whatever
 * order handlers and destructors run, and also if the library was closed, there is no
 * crash and not a word.
 */
#include "unit.h"

#include <dlfcn.h>
#include <libgen.h>
#include <unistd.h>

/* The library's functions, as a program has them that opens it. */
static struct {
	void *library;
	int (*create)(struct binpool **pool, const struct binpool_options *opts);
	int (*destroy)(struct binpool *pool);
	void *(*alloc)(struct binpool *pool, size_t size);
	int (*free)(struct binpool *pool, void *ptr);
	int (*add_registrar)(struct binpool *pool, const struct binpool_registrar_ops *ops,
			     uint64_t *id);
} lib;

static struct binpool *pool;
static void *live;
static bool destroy_at_end; /* in this program's destructor */

static int library_open(void)
{
	const struct {
		const char *name;
		void **entry;
	} entries[] = {
		{"binpool_create", (void **)&lib.create},
		{"binpool_destroy", (void **)&lib.destroy},
		{"binpool_alloc", (void **)&lib.alloc},
		{"binpool_free", (void **)&lib.free},
		{"binpool_add_registrar", (void **)&lib.add_registrar},
	};
	char self[4000], path[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n < 0)
		return -1;
	self[n] = '\0';
	/* BUILD/tests/unit/test_exit */
	snprintf(path, sizeof(path), "%s/../../lib/libbinpool.so.0", dirname(self));
	lib.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; lib.library && i < sizeof(entries) / sizeof(entries[0]); i++) {
		*entries[i].entry = dlsym(lib.library, entries[i].name);
		if (!*entries[i].entry)
			return -1;
	}
	return lib.library ? 0 : -1;
}

/* A pool with something in use and something held. */
static int make_pool(void)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;

	o.provider = BINPOOL_PROVIDER_THP;
	o.flags = BINPOOL_POOL_REAPER;
	if (lib.create(&pool, &o))
		return -1;
	live = lib.alloc(pool, 5000);
	return live && !lib.free(pool, lib.alloc(pool, 100000)) ? 0 : -1;
}

static void end_pool(void)
{
	if (lib.free(pool, live) || lib.destroy(pool))
		_exit(9);
}

static void __attribute__((destructor)) at_the_very_end(void)
{
	if (destroy_at_end)
		end_pool();
}

static int left_alone(void)
{
	return library_open() || make_pool();
}

static int closed_library(void)
{
	return library_open() || make_pool() || dlclose(lib.library);
}

static int closed_and_opened(void)
{
	void *mine;

	if (closed_library() || library_open())
		return 1;
	/* It was never gone. */
	mine = lib.alloc(pool, 5000);
	return !mine || lib.free(pool, mine);
}

/* Its handler is older than the library, so it runs last. */
static int handler_before(void)
{
	return atexit(end_pool) || library_open() || make_pool();
}

static int handler_after(void)
{
	return library_open() || make_pool() || atexit(end_pool);
}

static int in_a_destructor(void)
{
	destroy_at_end = true;
	return library_open() || make_pool() || dlclose(lib.library);
}

static void *goes_on(void *arg)
{
	(void)arg;
	for (;;)
		lib.free(pool, lib.alloc(pool, 70000));
	return NULL;
}

static int with_threads(void)
{
	pthread_t thread;

	if (library_open() || make_pool())
		return 1;
	for (int i = 0; i < 3; i++)
		if (pthread_create(&thread, NULL, goes_on, NULL))
			return 1;
	usleep(20000);
	return 0;
}

/* Its last thread is not the first. */
static void *ends_process(void *arg)
{
	(void)arg;
	exit(make_pool() || lib.destroy(pool) != -EBUSY);
}

static int from_another_thread(void)
{
	pthread_t thread;

	if (library_open() || pthread_create(&thread, NULL, ends_process, NULL))
		return 1;
	pthread_exit(NULL);
}

static int attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	(void)ctx;
	(void)extent;
	*cookie = NULL;
	return 0;
}

static void detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	(void)ctx;
	(void)extent;
	(void)cookie;
	/* Nobody gave anything back. */
	_exit(8);
}

/* A driver that may be gone is not called by a pool that nobody destroys. */
static int registrar_left(void)
{
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops), .attach = attach, .detach = detach};
	uint64_t id;

	return library_open() || make_pool() || lib.add_registrar(pool, &ops, &id);
}

static const struct {
	const char *name;
	int (*run)(void);
} ends[] = {
	{"left_alone", left_alone},
	{"closed_library", closed_library},
	{"closed_and_opened", closed_and_opened},
	{"handler_before", handler_before},
	{"handler_after", handler_after},
	{"in_a_destructor", in_a_destructor},
	{"with_threads", with_threads},
	{"from_another_thread", from_another_thread},
	{"registrar_left", registrar_left},
};

/* Runs this program again as @name. */
static void ends_well(const char *name)
{
	char said[4096];
	int status;

	/* What is left behind is left on purpose. */
	setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
	status = run_self(name, said, sizeof(said));
	if (status || *said)
		fail_msg("%s: status 0x%x, said '%s'", name, status, said);
}

static void all_ends(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		ends_well(ends[i].name);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_ends),
	};

	for (size_t i = 0; argc > 1 && i < sizeof(ends) / sizeof(ends[0]); i++)
		if (!strcmp(argv[1], ends[i].name))
			return ends[i].run();
	return cmocka_run_group_tests_name("exit", tests, NULL, NULL);
}
