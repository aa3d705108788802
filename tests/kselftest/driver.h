/* SPDX-License-Identifier: GPL-2.0 */
/*
 * For programs that give blocks to drivers of the kernel's own: their modules, and the
 * camera vivid (V4L2). No state.
 */
#ifndef BINPOOL_TEST_DRIVER_H
#define BINPOOL_TEST_DRIVER_H

#include <linux/videodev2.h>

#include "device.h"

/* Whether a line of the shell ends well; what it says is nobody's business. */
static inline bool command(const char *line)
{
	char quiet[512];

	snprintf(quiet, sizeof(quiet), "%s >/dev/null 2>&1", line);
	return !system(quiet);
}

/* A module with its parameters, or -r and its name. */
static inline bool module_insert(const char *arguments)
{
	char line[256];

	snprintf(line, sizeof(line), "modprobe -q %s", arguments);
	return command(line);
}

static inline int vivid_open(void)
{
	char path[64];

	for (int i = 0; i < 8; i++) {
		struct v4l2_capability cap;
		int fd;

		snprintf(path, sizeof(path), "/dev/video%d", i);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (!request(fd, VIDIOC_QUERYCAP, &cap) && !strcmp((char *)cap.driver, "vivid"))
			return fd;
		close(fd);
	}
	return -ENODEV;
}

#endif /* BINPOOL_TEST_DRIVER_H */
