// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sentences for people. Owns the text of the calling thread's record; no lock.
 *
 * A thread's text comes from the heap when it first has one: threads' own memory of a library
 * that is loaded late, as by an interpreter, is short, and programs may have used it up.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"

#define TEXT_LEN 1024

/* NULL: there is none yet, or no memory for it. */
static char *last_error(void)
{
	return thread_record ? thread_record->text : NULL;
}

/* The thread's, made if there is none; or NULL. */
static char *text_get(void)
{
	struct thread *t = thread_get();

	if (t && !t->text)
		t->text = calloc(1, TEXT_LEN);
	return t ? t->text : NULL;
}

EXPORT const char *binpool_last_error(void)
{
	return last_error() ? last_error() : "";
}

EXPORT void binpool_set_last_error(const char *sentence)
{
	if ((sentence && *sentence) || last_error())
		explain(0, "%s", sentence ? sentence : "");
}

int explain(int err, const char *fmt, ...)
{
	/* The old sentence may be among the arguments. */
	char text[TEXT_LEN], *to;
	int before = errno;
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	to = text_get();
	if (to)
		memcpy(to, text, sizeof(text));
	errno = before;
	return err;
}

const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
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
