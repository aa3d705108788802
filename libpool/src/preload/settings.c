// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The environment. Owns the settings, which are read once, at the first call of the program's
 * that comes our way, and fixed then.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "preload.h"

static struct settings settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *value_of(const char *name)
{
	const char *value = secure_getenv(name);

	return value && *value ? value : NULL;
}

/* Whether the variable is @chosen; what is neither that nor @usual (NULL: no word) is said. */
static bool is(const char *name, const char *chosen, const char *usual)
{
	const char *value = value_of(name);

	if (!value)
		return false;
	if (!strcmp(value, chosen))
		return true;
	if (!usual || strcmp(value, usual))
		dprintf(STDERR_FILENO,
			"binpool-preload[%d] %s is '%.64s', which it does not know, as if it were "
			"not set: %s%s%s\n",
			(int)getpid(), name, value, chosen, usual ? " or " : "",
			usual ? usual : "");
	return false;
}

static void read_all(void)
{
	settings.off = is("BINPOOL_PRELOAD", "0", "1");
	settings.driver = is("BINPOOL_PRELOAD_DRIVER", "1", "0") && !settings.off;
	settings.immediate = is("BINPOOL_PRELOAD_FREE", "immediate", NULL);
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
