// SPDX-License-Identifier: GPL-2.0
/*
 * What was found wrong: each finding a line at once, whichever process found it,
 * and a count by kind. Counts are atomic; a line is one write().
 */
#include <stdarg.h>

#include "stress.h"

/* Reports of a kind that are printed; the others are counted. */
#define PRINTED 5

const char *const check_names[CHECKS] = {
	[CHECK_ZERO] = "new blocks are zero",
	[CHECK_DATA] = "blocks have what their owners wrote",
	[CHECK_FRAMES] = "no frame is in two blocks",
	[CHECK_QUARANTINE] = "what is in quarantine stays there, and is paid for",
	[CHECK_ERRNO] = "errors are those documented",
	[CHECK_COUNTERS] = "counters add up, below the limit",
	[CHECK_OPENERS] = "opener_bytes is what openers have",
	[CHECK_PROCESSES] = "no process crashed or hung",
	[CHECK_RETURN] = "everything comes back",
};

const char *const op_names[OPS] = {
	[OP_ALLOC] = "alloc",
	[OP_CLOSE] = "close",
	[OP_CLOSE_FD] = "close fd",
	[OP_MAP] = "map",
	[OP_UNMAP] = "unmap",
	[OP_MOVE] = "move",
	[OP_PROTECT] = "protect",
	[OP_ADVISE] = "advise",
	[OP_WRITE] = "write",
	[OP_VERIFY] = "verify",
	[OP_PIPE] = "pipe",
	[OP_REGISTER] = "register",
	[OP_FLIGHT_READ] = "read in flight",
	[OP_FLIGHT_WRITE] = "write in flight",
	[OP_UNPIN] = "unpin",
	[OP_DIRECT_READ] = "direct read",
	[OP_DIRECT_WRITE] = "direct write",
	[OP_SEND] = "send",
	[OP_RECEIVE] = "receive",
	[OP_FORK] = "fork",
	[OP_EXPORT] = "export",
	[OP_PHYS] = "phys",
	[OP_TRIM] = "trim",
	[OP_LIMIT] = "limit",
	[OP_INFO] = "info",
	[OP_QUERY] = "query",
};

void report(enum check check, const char *format, ...)
{
	unsigned int before = atomic_fetch_add(&shared->reports[check], 1);
	char text[512];
	va_list args;
	int n, m;

	if (before >= PRINTED)
		return;
	n = snprintf(text, sizeof(text), "# %s%s: ", shared->options.plant ? "(planted) " : "NOT: ",
		     check_names[check]);
	va_start(args, format);
	m = vsnprintf(text + n, sizeof(text) - (size_t)n - 1, format, args);
	va_end(args);
	n = n + m < (int)sizeof(text) - 2 ? n + m : (int)sizeof(text) - 2;
	text[n++] = '\n';
	if (write(STDERR_FILENO, text, (size_t)n) < 0)
		return; /* nobody reads; the counts remain */
}

/* Whether this violation is to be made here. */
bool planted(enum plant plant)
{
	return shared->options.plant == plant;
}

/* Or is not possible here. */
bool op_was_done(enum op op)
{
	__u64 needs = op == OP_REGISTER ? BINPOOL_FEATURE_URING_FIXED
		      : op == OP_EXPORT ? BINPOOL_FEATURE_DMABUF
					: 0;

	return atomic_load(&shared->done[op]) || (shared->features & needs) != needs;
}

bool errno_allowed(enum op op, int ret, const int *allowed, size_t n)
{
	if (ret >= 0)
		return true;
	for (size_t i = 0; i < n; i++) {
		if (ret == -allowed[i])
			return false;
	}
	report(CHECK_ERRNO, "%s: %s (%d)", op_names[op], strerror(-ret), -ret);
	return false;
}
