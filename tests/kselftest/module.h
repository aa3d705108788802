/* SPDX-License-Identifier: GPL-2.0 */
/*
 * For programs that load the module themselves, from the file $BINPOOL_KO, or turn its
 * parameters. No state.
 */
#ifndef BINPOOL_TEST_MODULE_H
#define BINPOOL_TEST_MODULE_H

#include "device.h"

/* All return 0 or -errno; the first a descriptor. */

static inline int module_open(void)
{
	const char *ko = getenv("BINPOOL_KO");
	int fd = ko ? open(ko, O_RDONLY | O_CLOEXEC) : -1;

	return fd >= 0 ? fd : ko ? -errno : -ENOENT;
}

static inline int module_load_from(int fd, const char *parameters)
{
	return syscall(SYS_finit_module, fd, parameters, 0) ? -errno : 0;
}

static inline int module_load(const char *parameters)
{
	int fd = module_open(), ret;

	if (fd < 0)
		return fd;
	ret = module_load_from(fd, parameters);
	close(fd);
	return ret;
}

/* Another one, that is built beside it. */
static inline int module_load_beside(const char *name)
{
	const char *ko = getenv("BINPOOL_KO");
	char path[512];
	int fd, ret;

	if (!ko || !strrchr(ko, '/'))
		return -ENOENT;
	snprintf(path, sizeof(path), "%.*s/%s", (int)(strrchr(ko, '/') - ko), ko, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = syscall(SYS_finit_module, fd, "", 0) ? -errno : 0;
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

#define PARAM(name) "/sys/module/binpool/parameters/" name

/* A number of the kernel, anywhere in sysfs or procfs. */
static inline long long number_read(const char *path)
{
	char text[64], *end;
	int n = text_read(path, text, sizeof(text));
	long long value;

	if (n < 0)
		return n;
	value = strtoll(text, &end, 10);
	return end == text ? -EBADMSG : value;
}

static inline int number_write(const char *path, __u64 value)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	return text_write(path, text);
}

#endif /* BINPOOL_TEST_MODULE_H */
