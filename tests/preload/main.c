// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * `scenarios NAME`: does what that scenario says, and is silent if all was right. Owns the
 * handles of what it loads.
 */
#include <dlfcn.h>
#include <string.h>

#include "scenario.h"

static void *driver;

const struct plugin *plugin_load(const char *name)
{
	const struct plugin *plugin;
	char path[4096], *slash;
	void *handle;

	CHECK(realpath("/proc/self/exe", path));
	slash = strrchr(path, '/');
	snprintf(slash + 1, sizeof(path) - (size_t)(slash + 1 - path), "%s.so", name);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		printf("%s\n", dlerror());
	CHECK(handle);
	plugin = dlsym(handle, "plugin");
	CHECK(plugin);
	return plugin;
}

static void *driver_symbol(const char *name)
{
	void *symbol;

	if (!driver)
		driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(driver);
	symbol = dlsym(driver, name);
	CHECK(symbol);
	return symbol;
}

struct fake *driver_state(void)
{
	struct fake *(*get)(void);

	*(void **)&get = driver_symbol("fake");
	return get();
}

int copy_later(void *to, const void *from, size_t bytes)
{
	int (*copy)(void *, const void *, size_t);

	*(void **)&copy = driver_symbol("fake_copy");
	return copy(to, from, bytes);
}

unsigned long regions(void)
{
	unsigned long (*get)(void);

	*(void **)&get = driver_symbol("fake_regions");
	return get();
}

bool pinned(const void *ptr, size_t bytes)
{
	int (*get)(const void *, size_t);

	*(void **)&get = driver_symbol("fake_pinned");
	return get(ptr, bytes);
}

void *make_context(int device)
{
	void *(*make)(int);

	*(void **)&make = driver_symbol("fake_make_context");
	return make(device);
}

void reset_device(int device)
{
	void (*reset)(int);

	*(void **)&reset = driver_symbol("fake_reset");
	reset(device);
}

unsigned long runtime_allocs(void)
{
	unsigned long n = 0;

	for (int i = 0; i < FAKE_RUNTIMES; i++)
		n += driver_state()->runtime_allocs[i];
	return n;
}

bool is_mapped(const char *name)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	bool found = false;
	char line[4096];

	CHECK(maps);
	while (!found && fgets(line, sizeof(line), maps))
		found = strstr(line, name);
	fclose(maps);
	return found;
}

void *served(const struct plugin *cuda, size_t bytes, unsigned int flags)
{
	unsigned long before = runtime_allocs(), driver_before = driver_state()->host_allocs;
	void *ptr = NULL;

	CHECK(!cuda->host_alloc(&ptr, bytes, flags));
	CHECK(ptr);
	CHECK(runtime_allocs() == before);
	CHECK(driver_state()->host_allocs == driver_before);
	CHECK(pinned(ptr, bytes));
	/* All of it is there. */
	memset(ptr, 0x5a, bytes);
	return ptr;
}

#define SCENARIO(name)                                                                             \
	{                                                                                          \
#name, scenario_##name                                                             \
	}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = {
		SCENARIO(served),	 SCENARIO(passed),	 SCENARIO(flags),
		SCENARIO(wrong),	 SCENARIO(driver),	 SCENARIO(no_context),
		SCENARIO(two_runtimes),	 SCENARIO(bare),	 SCENARIO(real_only),
		SCENARIO(untouched),	 SCENARIO(no_driver),	 SCENARIO(reuse),
		SCENARIO(reuse_control), SCENARIO(all_contexts), SCENARIO(not_told),
		SCENARIO(capture),	 SCENARIO(sync_fails),	 SCENARIO(refused),
		SCENARIO(reset),	 SCENARIO(fork),	 SCENARIO(threads),
		SCENARIO(at_exit),	 SCENARIO(many),	 SCENARIO(limit),
		SCENARIO(pieces),	 SCENARIO(looked_up),	 SCENARIO(looked_up_by_name),
		SCENARIO(not_looked_up), SCENARIO(next),	 SCENARIO(nested),
		SCENARIO(too_much),	 SCENARIO(sync_before),
	};

	for (size_t i = 0; argc == 2 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		if (strcmp(argv[1], scenarios[i].name))
			continue;
		scenarios[i].run();
		return 0;
	}
	fprintf(stderr, "usage: scenarios NAME\n");
	return 2;
}
