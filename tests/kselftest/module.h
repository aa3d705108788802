/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Loading and unloading the module, for the tests that are about that. Its file is
 * $BINPOOL_KO. All return 0 or -errno.
 */
#ifndef BINPOOL_TEST_MODULE_H
#define BINPOOL_TEST_MODULE_H

#include "device.h"

static inline int module_load(const char *parameters)
{
	const char *ko = getenv("BINPOOL_KO");
	int fd = ko ? open(ko, O_RDONLY | O_CLOEXEC) : -1, ret;

	if (fd < 0)
		return ko ? -errno : -ENOENT;
	ret = syscall(SYS_finit_module, fd, parameters, 0) ? -errno : 0;
	close(fd);
	return ret;
}

static inline int module_unload(void)
{
	return syscall(SYS_delete_module, "binpool", O_NONBLOCK) ? -errno : 0;
}

static inline bool module_loaded(void)
{
	return !access("/sys/module/binpool/refcnt", F_OK);
}

#endif /* BINPOOL_TEST_MODULE_H */
