// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The driver, for what has to be asked of it. Owns the table of its calls, which is made
 * once, when somebody is to be served: then the program needs it, too.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "preload.h"

static struct driver driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool complete;

static void load(void)
{
	static const struct {
		const char *symbol;
		size_t offset;
		bool needed;
	} calls[] = {
#define DRIVER_ENTRY(name, symbol, arguments, needed)                                              \
	{symbol, offsetof(struct driver, name), needed},
		DRIVER_CALLS(DRIVER_ENTRY)
#undef DRIVER_ENTRY
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *address = real_symbol(library, calls[i].symbol);

		if (!address && calls[i].needed)
			return;
		memcpy((char *)&driver + calls[i].offset, &address, sizeof(address));
	}
	complete = true;
}

const struct driver *driver_get(void)
{
	pthread_once(&once, load);
	return complete ? &driver : NULL;
}

CUcontext driver_context(const struct driver *cu)
{
	CUcontext context = NULL;
	unsigned long long id;

	/* An error is that nobody has initialised the driver yet. */
	if (cu->CtxGetCurrent(&context) || !context)
		return NULL;
	/* A device that was reset leaves threads with a context that has ended. */
	return cu->CtxGetId && cu->CtxGetId(context, &id) ? NULL : context;
}
