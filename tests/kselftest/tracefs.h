/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Where the kernel's trace is, which is the whole machine's; no state of its own.
 */
#ifndef BINPOOL_TEST_TRACEFS_H
#define BINPOOL_TEST_TRACEFS_H

#include <sys/mount.h>

#include "device.h"

#define TRACEFS "/sys/kernel/tracing/"

/* False: the kernel has none. */
static inline bool tracefs_mount(void)
{
	return !mount("tracefs", TRACEFS, "tracefs", 0, NULL) || errno == EBUSY;
}

static inline int trace_clear(void)
{
	int fd = open(TRACEFS "trace", O_WRONLY | O_TRUNC | O_CLOEXEC);

	return fd < 0 ? -errno : close(fd);
}

/* Whose event a line of the trace is: "name-PID  [CPU] ...". */
static inline unsigned long traced_pid(const char *line)
{
	const char *at = strstr(line, " [");

	while (at && at > line && at[-1] == ' ')
		at--;
	while (at && at > line && at[-1] >= '0' && at[-1] <= '9')
		at--;
	return at ? strtoul(at, NULL, 10) : 0;
}

#endif /* BINPOOL_TEST_TRACEFS_H */
