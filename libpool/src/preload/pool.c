// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool that programs are served from, and the libraries it takes. Owns both, which are made
 * once, when somebody is to be served first (the lock making), and stay; and the marks that the
 * process is a forked child, or ends.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "preload.h"

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static struct library library;
static struct binpool *pool; /* atomic; set once */
static bool tried;	     /* for good or ill; atomic */
static char reason[1024];    /* fixed once tried is set */

static bool inherited, exiting; /* atomic */

struct symbol {
	const char *name;
	size_t offset; /* in struct library */
};

bool pool_inherited(void)
{
	return __atomic_load_n(&inherited, __ATOMIC_RELAXED);
}

bool pool_exiting(void)
{
	return __atomic_load_n(&exiting, __ATOMIC_RELAXED);
}

static void in_child(void)
{
	__atomic_store_n(&inherited, true, __ATOMIC_RELAXED);
	buffers_after_fork();
}

/* Exit handlers run last come, first served: the driver's, which are older, run after this. */
static void at_exit(void)
{
	__atomic_store_n(&exiting, true, __ATOMIC_RELAXED);
}

/* Links what of a library is used. making. */
static bool load(const char *name, const struct symbol *symbols, size_t count)
{
	void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (!handle) {
		snprintf(reason, sizeof(reason), "%s", dlerror());
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		void *address = real_symbol(handle, symbols[i].name);

		if (!address) {
			snprintf(reason, sizeof(reason), "%s is too old: it has no %s", name,
				 symbols[i].name);
			return false;
		}
		memcpy((char *)&library + symbols[i].offset, &address, sizeof(address));
	}
	return true;
}

/* They lie beside us; the second finds the first as it is loaded already. making. */
static bool load_both(void)
{
#define LIBRARY_ENTRY(name) {#name, offsetof(struct library, name)},
	static const struct symbol base[] = {LIBRARY_CALLS(LIBRARY_ENTRY)};
	static const struct symbol cuda[] = {LIBRARY_CUDA_CALLS(LIBRARY_ENTRY)};
#undef LIBRARY_ENTRY

	return load("libbinpool.so.0", base, sizeof(base) / sizeof(base[0])) &&
	       load("libbinpool-cuda.so.0", cuda, sizeof(cuda) / sizeof(cuda[0]));
}

static struct binpool *fail(struct binpool *p)
{
	snprintf(reason, sizeof(reason), "%s", library.binpool_last_error());
	if (p)
		library.binpool_destroy(p);
	return NULL;
}

static uint64_t memory_bytes(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* making. */
static struct binpool *make(void)
{
	const uint64_t percent = 80;
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool_registrar_ops note = {
		.size = sizeof(note),
		.name = "preload",
		.attach = buffers_extent_add,
		.detach = buffers_extent_remove,
	};
	struct binpool *p;
	uint64_t id;
	int err;

	if (!load_both())
		return NULL;
	if (pthread_atfork(buffers_before_fork, buffers_after_fork, in_child) || atexit(at_exit)) {
		snprintf(reason, sizeof(reason), "no memory for handlers of fork and exit");
		return NULL;
	}
	o.name = "preload";
	/*
	 * Of a bound that is told, reserved huge pages are taken only if they reach so far: a few,
	 * which others want, would run dry at once, and getting them is no faster.
	 */
	o.max_bytes = memory_bytes() / 100 * percent;
	/* What is idle goes back, and all that is free when memory is short. */
	o.flags = BINPOOL_POOL_REAPER;
	err = library.binpool_create(&p, &o);
	if (err == -EAGAIN || err == -EMFILE) {
		o.flags = 0;
		err = library.binpool_create(&p, &o);
	}
	if (err)
		return fail(NULL);
	if (library.binpool_add_registrar(p, &note, &id) || library.binpool_cuda_attach(p, 0, &id))
		return fail(p);
	return p;
}

struct binpool *pool_made(const struct library **out)
{
	struct binpool *p = __atomic_load_n(&pool, __ATOMIC_ACQUIRE);

	*out = &library;
	return p;
}

struct binpool *pool_get(const struct library **out)
{
	if (!__atomic_load_n(&tried, __ATOMIC_ACQUIRE)) {
		pthread_mutex_lock(&making);
		if (!tried) {
			__atomic_store_n(&pool, make(), __ATOMIC_RELEASE);
			__atomic_store_n(&tried, true, __ATOMIC_RELEASE);
		}
		pthread_mutex_unlock(&making);
	}
	return pool_made(out);
}

const char *pool_reason(void)
{
	return __atomic_load_n(&tried, __ATOMIC_ACQUIRE) ? reason : "";
}
