// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sentences for people. Owns the calling thread's last error; no lock.
 */
#include <stdarg.h>
#include <string.h>

#include "pool.h"

static __thread char last_error[1024];

EXPORT const char *binpool_last_error(void)
{
	return last_error;
}

EXPORT void binpool_set_last_error(const char *sentence)
{
	snprintf(last_error, sizeof(last_error), "%s", sentence ? sentence : "");
}

int explain(int err, const char *fmt, ...)
{
	/* The old sentence may be among the arguments. */
	char text[sizeof(last_error)];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	memcpy(last_error, text, sizeof(text));
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
