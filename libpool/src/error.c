// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sentences for people. Owns the calling thread's last error; no lock.
 *
 * A thread's text comes from the heap when it first has one: threads' own memory of a library
 * that is loaded late, as by an interpreter, is short, and programs may have used it up.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"

#define TEXT_LEN 1024

static __thread char *last_error; /* NULL: none yet, or no memory for it */
static pthread_key_t text_key;
static pthread_once_t text_once = PTHREAD_ONCE_INIT;
static bool text_key_made;

static void text_end(void *text)
{
	last_error = NULL;
	free(text);
}

static void text_init(void)
{
	text_key_made = !pthread_key_create(&text_key, text_end);
}

/* The thread's, or NULL. Without a key it is never freed. */
static char *text_get(void)
{
	if (!last_error) {
		pthread_once(&text_once, text_init);
		last_error = calloc(1, TEXT_LEN);
		if (last_error && text_key_made)
			pthread_setspecific(text_key, last_error);
	}
	return last_error;
}

EXPORT const char *binpool_last_error(void)
{
	return last_error ? last_error : "";
}

EXPORT void binpool_set_last_error(const char *sentence)
{
	if ((sentence && *sentence) || last_error)
		explain(0, "%s", sentence ? sentence : "");
}

int explain(int err, const char *fmt, ...)
{
	/* The old sentence may be among the arguments. */
	char text[TEXT_LEN];
	int before = errno;
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (text_get())
		memcpy(last_error, text, sizeof(text));
	errno = before;
	return err;
}

const char *human(uint64_t bytes, char buf[HUMAN_LEN])
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	uint32_t u = binpool_log2(bytes) / 10;
	uint64_t one = (uint64_t)1 << (10 * u);

	if (bytes == UINT64_MAX)
		snprintf(buf, HUMAN_LEN, "unlimited");
	else if (bytes % one == 0)
		snprintf(buf, HUMAN_LEN, "%llu %s", (unsigned long long)(bytes / one), unit[u]);
	else
		snprintf(buf, HUMAN_LEN, "%.2f %s", (double)bytes / (double)one, unit[u]);
	return buf;
}
