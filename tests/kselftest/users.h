/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the tests of budgets share: becoming another user and back, openers of other
 * users, of user namespaces too, and pages that stay pinned in a pipe.
 */
#ifndef BINPOOL_TEST_USERS_H
#define BINPOOL_TEST_USERS_H

#include <sched.h>
#include <sys/uio.h>

#include "binpool_test.h"

#define ALICE  12001
#define BOB    12002
#define NOBODY 12003

/* First of the subordinate ids that namespaces of these tests map; there are 1000. */
#define SUBORDINATE 200000

/*
 * From root to somebody without capabilities, or back. The group stays root's, to
 * whom the device's node belongs.
 */
static inline void become(uid_t uid)
{
	if (setresuid(uid, uid, 0)) {
		perror("setresuid");
		_exit(KSFT_FAIL);
	}
}

/* The device, opened by @uid; its descriptor, or -errno. */
static inline int open_as(uid_t uid)
{
	int fd;

	become(uid);
	fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		fd = -errno;
	become(0);
	return fd;
}

static inline int alloc_as(uid_t uid, int dev, struct binpool_alloc *a)
{
	int ret;

	become(uid);
	ret = device_alloc(dev, a);
	become(0);
	return ret;
}

static inline int limit_as(uid_t uid, int dev, __u64 max_bytes)
{
	int ret;

	become(uid);
	ret = device_limit(dev, max_bytes, NULL);
	become(0);
	return ret;
}

static inline __u64 user_bytes(int dev)
{
	struct binpool_info info;

	return device_info(dev, &info) ? ~0ULL : info.user_bytes;
}

static inline int write_map(pid_t pid, const char *name, unsigned int inside, unsigned int outside,
			    unsigned int n)
{
	char path[64], text[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	snprintf(text, sizeof(text), "%u %u %u", inside, outside, n);
	return text_write(path, text);
}

/* In the child: a new user namespace, mapped by the parent; 0 or an errno. */
static inline int enter_namespace(uid_t owner, uid_t id, bool nested, const int *ready,
				  const int *mapped)
{
	char byte = 0;

	if (setresuid(owner, owner, owner) || unshare(CLONE_NEWUSER))
		byte = (char)errno;
	if (write(ready[1], &byte, 1) != 1 || byte || read(mapped[0], &byte, 1) != 1 || byte)
		return EPERM;
	if (setresuid(id, id, id))
		return errno;
	return nested && unshare(CLONE_NEWUSER) ? errno : 0;
}

/*
 * The device, opened by id @id of a user namespace that @owner made for his subordinate
 * ids; if @nested, in another namespace that this id made inside. @fn, if given, is
 * called there, and its answer returned instead. -EIO on failure.
 *
 * The child shares our descriptors, so what it opens is ours.
 */
static inline int open_in_namespace(uid_t owner, uid_t id, bool nested, int (*fn)(int dev))
{
	int ready[2], mapped[2], status = -1;
	char byte = 1;
	pid_t pid;

	if (pipe(ready) || pipe(mapped))
		return -EIO;
	pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
	if (!pid) {
		int err = enter_namespace(owner, id, nested, ready, mapped), fd;

		if (err)
			_exit(255);
		fd = open(DEVICE, O_RDWR | O_CLOEXEC);
		if (fd >= 0 && fn) {
			int answer = fn(fd);

			close(fd);
			_exit(answer);
		}
		_exit(fd < 0 ? 254 : fd);
	}
	if (pid > 0 && read(ready[0], &byte, 1) == 1 && !byte) {
		byte = write_map(pid, "uid_map", 0, SUBORDINATE, 1000) ||
		       write_map(pid, "gid_map", 0, 0, 1);
		if (write(mapped[1], &byte, 1) != 1)
			kill(pid, SIGKILL);
	}
	if (pid > 0)
		status = child_status(pid);
	close(ready[0]);
	close(ready[1]);
	close(mapped[0]);
	close(mapped[1]);
	return status < 0 || status >= 254 ? -EIO : status;
}

/* Leaves @pages pages of a block of @bytes in a pipe, and the block to its end; 0 or -errno. */
static inline int strand(int dev, __u64 bytes, unsigned int pages, int pipe_end)
{
	struct iovec part = {.iov_len = pages * page_bytes()};
	int fd = block_alloc(dev, bytes), ret = 0;

	if (fd < 0)
		return fd;
	part.iov_base = block_map(fd, bytes);
	if (part.iov_base == MAP_FAILED || vmsplice(pipe_end, &part, 1, 0) != (ssize_t)part.iov_len)
		ret = -errno;
	munmap(part.iov_base, bytes);
	close(fd);
	return ret;
}

static inline void close_pipe(const int *ends)
{
	close(ends[0]);
	close(ends[1]);
}

#define PARAMETERS "/sys/module/binpool/parameters/"

/* A machine's limits before a test, and after. */
FIXTURE(budget)
{
	int dev; /* root's */
	int log;
	int fds;
	__u64 frame;
	long long max_bytes, user_max_bytes;
	char memlock[8];
};

FIXTURE_SETUP(budget)
{
	struct binpool_info info;

	knobs_restore();
	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->frame = info.frame_bytes;
	self->max_bytes = attr_read("max_bytes");
	self->user_max_bytes = attr_read("user_max_bytes");
	ASSERT_LE(0, self->user_max_bytes);
	ASSERT_LT(0, text_read(PARAMETERS "memlock", self->memlock, sizeof(self->memlock)));
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_read("managed_bytes"));
	self->fds = count_fds();
}

FIXTURE_TEARDOWN(budget)
{
	knobs_restore();
	if (_metadata->exit_code == KSFT_FAIL)
		return;
	EXPECT_EQ(self->fds, count_fds());
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	EXPECT_EQ(0, attr_read("active_bytes"));
	EXPECT_EQ(0, user_bytes(self->dev));
	close(self->dev);
	EXPECT_EQ(0, log_count_bad(self->log));
}

#endif /* BINPOOL_TEST_USERS_H */
