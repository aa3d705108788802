/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A process that ends with a pool that a driver knows: whoever ends it, in whatever order, also
 * when the libraries were closed, nothing of the driver is called once that has ended. A
 * program of tests defines driver_begin() and includes this. Owns the pool; a single thread,
 * but for the pool's own.
 */
#ifndef UNIT_EXIT_ORDERS_H
#define UNIT_EXIT_ORDERS_H

#include "unit.h"

#include <dlfcn.h>
#include <libgen.h>
#include <unistd.h>

/* The libraries' functions, as a program has them that opens them. */
static struct {
	void *library, *part;
	int (*create)(struct binpool **pool, const struct binpool_options *opts);
	int (*destroy_wait)(struct binpool *pool, uint32_t ms);
	void *(*alloc)(struct binpool *pool, size_t size);
	int (*free)(struct binpool *pool, void *ptr);
	int (*background)(struct binpool *pool, uint64_t bytes_per_second);
} lib;

static struct binpool *end_pool;
static void *end_buffer;
static bool end_in_destructor;

/*
 * Begins with the driver, has end_pool attached by lib.part, and end_buffer freed once the driver
 * is through with it, if that is wanted. 77: there is no device.
 */
static int driver_begin(bool fenced);

/* BUILD/tests/unit/@name, as this program is BUILD/tests/unit/PROGRAM. */
static void path_from_here(const char *name, char path[4200])
{
	char self[4000];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = '\0';
	snprintf(path, 4200, "%s/%s", dirname(self), name);
}

static void *open_beside(const char *name)
{
	char path[4200];

	path_from_here(name, path);
	return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static int begin(const char *part, bool background, bool fenced)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;

	lib.library = open_beside("../../lib/libbinpool.so.0");
	lib.part = open_beside(part);
	if (!lib.library || !lib.part)
		return 20;
	*(void **)&lib.create = dlsym(lib.library, "binpool_create");
	*(void **)&lib.destroy_wait = dlsym(lib.library, "binpool_destroy_wait");
	*(void **)&lib.alloc = dlsym(lib.library, "binpool_alloc");
	*(void **)&lib.free = dlsym(lib.library, "binpool_free");
	*(void **)&lib.background = dlsym(lib.library, "binpool_register_in_background");
	o.provider = BINPOOL_PROVIDER_THP;
	o.flags = BINPOOL_POOL_REAPER;
	if (lib.create(&end_pool, &o) ||
	    (background && lib.background(end_pool, BINPOOL_UNLIMITED)))
		return 21;
	end_buffer = lib.alloc(end_pool, 100000);
	return end_buffer ? driver_begin(fenced) : 22;
}

static void end(void)
{
	/* Nobody got as far as that. */
	if (!end_pool)
		return;
	if ((end_buffer && lib.free(end_pool, end_buffer)) || lib.destroy_wait(end_pool, 1000))
		_exit(9);
	end_pool = NULL;
}

static void __attribute__((destructor)) at_the_very_end(void)
{
	if (end_in_destructor)
		end();
}

static int closed(void)
{
	return dlclose(lib.part) || dlclose(lib.library) ? 23 : 0;
}

/* Of its name: when is it ended, and what is special. */
static int run_order(const char *name, const char *part)
{
	bool background = strstr(name, "background"), fenced = strstr(name, "fenced");
	int err;

	/* An older handler than any driver's runs later. */
	if (strstr(name, "handler-before") && atexit(end))
		return 24;
	end_in_destructor = strstr(name, "destructor");
	err = begin(part, background, fenced);
	if (!err && strstr(name, "handler-after") && atexit(end))
		return 24;
	if (!err && strstr(name, "closed"))
		err = closed();
	if (!err && strstr(name, "now"))
		end();
	return err;
}

/* @said is what the program is to say in that order, NULL: nothing. */
struct order {
	const char *name;
	const char *said;
};

/*
 * With a @real driver nothing is ever said. @racing: nor is it if no thread of the pool's has to
 * do with the driver just then.
 */
static void try_order(const struct order *order, bool real, bool racing)
{
	const char *expected = order->said && !real ? order->said : "";
	char said[4096];
	int status;

	setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
	status = run_self(order->name, said, sizeof(said));
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		printf("# no device\n");
		skip();
	}
	if (status || (strcmp(said, expected) && (*said || !racing)))
		fail_msg("%s: status 0x%x, said '%s'", order->name, status, said);
}

static void try_orders(const struct order *orders, size_t n, bool real)
{
	for (size_t i = 0; i < n; i++)
		try_order(&orders[i], real, false);
}

#endif /* UNIT_EXIT_ORDERS_H */
