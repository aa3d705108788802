// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What tells that memory is short: the kernel's pressure stall information, and
 * other processes of this user that were refused some. Owns the time of the last
 * question; no lock.
 *
 * The module's limits and reserved huge pages run out without any stall, so the kernel
 * says nothing then. A process that is refused touches a file of its user's, which
 * the pools with a thread of their own watch.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pool.h"

#define PSI_FILE "/proc/pressure/memory"
/* Some task stalled for 5 % of two seconds; windows of other lengths need privileges. */
#define PSI_TRIGGER "some 100000 2000000"

EXPORT int binpool_pressure_fd(void)
{
	int fd = open(PSI_FILE, O_RDWR | O_NONBLOCK | O_CLOEXEC), err;

	if (fd < 0 && (errno == ENOENT || errno == EOPNOTSUPP))
		return explain(-EOPNOTSUPP, "this kernel has no " PSI_FILE ": CONFIG_PSI, or psi=1 "
					    "on its command line");
	/* The kernel reads to the final NUL. */
	if (fd < 0 || write(fd, PSI_TRIGGER, sizeof(PSI_TRIGGER)) < 0) {
		err = -errno;
		if (fd >= 0)
			close(fd);
		return explain(err,
			       PSI_FILE ": %s (before Linux 6.4 a trigger needs "
					"CAP_SYS_RESOURCE)",
			       strerror(-err));
	}
	return fd;
}

/* ---- Asking each other -------------------------------------------------------- */

#define ASK_EVERY_NS 20000000u

/* Opens the file, made if there is none, unless it is somebody else's. */
static int ask_file(char path[64])
{
	struct stat st;
	int fd;

	snprintf(path, 64, "/dev/shm/binpool-pressure.%u", (unsigned int)geteuid());
	fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
		close(fd);
		return -EACCES;
	}
	return fd;
}

/* Has @fd tell of the file that there is now. */
static int watch_file(int fd)
{
	char path[64];
	int file = ask_file(path), err;

	if (file < 0)
		return file;
	err = inotify_add_watch(fd, path, IN_ATTRIB) < 0 ? -errno : 0;
	close(file);
	return err;
}

int asked_watch(void)
{
	int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC), err;

	if (fd < 0)
		return -errno;
	err = watch_file(fd);
	if (err)
		close(fd);
	return err ? err : fd;
}

void asked_take(int fd)
{
	struct inotify_event event;
	bool gone = false;

	/* The file is watched by itself, so no event has a name. */
	while (read(fd, &event, sizeof(event)) == (ssize_t)sizeof(event))
		gone |= event.mask & IN_IGNORED;
	/* Who cleans up after a user that logs out removes it, too; the next to ask makes it anew.
	 */
	if (gone)
		watch_file(fd);
}

void ask_others(void)
{
	static uint64_t last;
	uint64_t now = now_ns(), before = __atomic_load_n(&last, __ATOMIC_RELAXED);
	char path[64];
	int fd;

	if (now - before < ASK_EVERY_NS ||
	    !__atomic_compare_exchange_n(&last, &before, now, false, __ATOMIC_RELAXED,
					 __ATOMIC_RELAXED))
		return;
	fd = ask_file(path);
	if (fd < 0)
		return;
	futimens(fd, NULL);
	close(fd);
}
