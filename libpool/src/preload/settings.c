// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The environment. Owns the settings, which are read once, at the first call of the program's
 * that comes our way, and fixed then.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"

static struct settings settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *value_of(const char *name)
{
	const char *value = secure_getenv(name);

	return value && *value ? value : NULL;
}

static void read_all(void)
{
	const char *on = value_of("BINPOOL_PRELOAD");
	const char *how = value_of("BINPOOL_PRELOAD_FREE");
	const char *driver = value_of("BINPOOL_PRELOAD_DRIVER");

	settings.off = on && !strcmp(on, "0");
	settings.driver = !settings.off && driver && !strcmp(driver, "1");
	settings.immediate = how && !strcmp(how, "immediate");
}

const struct settings *settings_get(void)
{
	pthread_once(&once, read_all);
	return &settings;
}

const char *settings_stats(void)
{
	const char *where = value_of("BINPOOL_PRELOAD_STATS");

	return where && strcmp(where, "0") ? where : NULL;
}
