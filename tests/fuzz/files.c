// SPDX-License-Identifier: GPL-2.0
/*
 * The system calls that take a descriptor, with random arguments, on the device
 * and on a block: neither is more than a device and memory. What would change the
 * device's file for others (its mode, its owner) is left to blocks.
 */
#include <poll.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>

#include "fuzz.h"

#define WORDS 512

static char buffer[4096];
static int memfd, ends[2];

/* Must all fail: there is nothing to read or write, and no size to set. */
static int data_call(int fd, __u64 *rng)
{
	struct iovec part = {buffer, below(rng, sizeof(buffer))};
	off_t at = (off_t)(random_next(rng) >> (1 + below(rng, 60)));
	size_t len = 1 + below(rng, sizeof(buffer) - 1);

	switch (below(rng, 13)) {
	case 0:
		return (int)read(fd, buffer, len);
	case 1:
		return (int)write(fd, buffer, len);
	case 2:
		return (int)pread(fd, buffer, len, at);
	case 3:
		return (int)pwrite(fd, buffer, len, at);
	case 4:
		part.iov_len = len;
		return (int)readv(fd, &part, 1);
	case 5:
		part.iov_len = len;
		return (int)writev(fd, &part, 1);
	case 6:
		return ftruncate(fd, at);
	case 7:
		return fallocate(fd, (int)below(rng, 128), at, (off_t)len);
	case 8:
		return (int)splice(fd, NULL, ends[1], NULL, len, SPLICE_F_NONBLOCK);
	case 9:
		return (int)sendfile(memfd, fd, NULL, len);
	case 10:
		return (int)copy_file_range(fd, NULL, memfd, NULL, len, 0);
	case 11:
		return (int)syscall(SYS_getdents64, fd, buffer, sizeof(buffer));
	default:
		return fchdir(fd);
	}
}

/* May do what they do with any file. */
static void other_call(int fd, bool block, __u64 *rng)
{
	struct pollfd wait = {.fd = fd, .events = (short)random_next(rng)};
	struct epoll_event event = {.events = EPOLLIN};
	struct statfs fs;
	struct stat st;
	int epoll;

	switch (below(rng, 14)) {
	case 0:
		fstat(fd, &st);
		break;
	case 1:
		fstatfs(fd, &fs);
		break;
	case 2:
		lseek(fd, (off_t)random_value(rng), (int)below(rng, 6));
		break;
	case 3:
		poll(&wait, 1, 0);
		break;
	case 4:
		epoll = epoll_create1(EPOLL_CLOEXEC);
		epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
		close(epoll);
		break;
	case 5:
		flock(fd, (int)below(rng, 16) | LOCK_NB);
		break;
	case 6:
		fsync(fd);
		break;
	case 7:
		/* F_NOTIFY and the setters of owners and signals would signal us. */
		fcntl(fd, one_in(rng, 2) ? F_GETFL : F_GETLK, &(struct flock){0});
		fcntl(fd, F_SETLEASE, (int)below(rng, 4));
		fcntl(fd, F_ADD_SEALS, (int)below(rng, 32));
		break;
	case 8:
		fcntl(fd, F_SETFL, (int)random_next(rng) & ~O_ASYNC);
		break;
	case 9:
		close(dup(fd));
		break;
	case 10:
		posix_fadvise(fd, (off_t)random_value(rng), (off_t)random_value(rng),
			      (int)below(rng, 6));
		readahead(fd, 0, fuzz.frame);
		break;
	case 11:
		fgetxattr(fd, "user.x", buffer, sizeof(buffer));
		if (block)
			fsetxattr(fd, "user.x", buffer, below(rng, 64), 0);
		break;
	case 12:
		if (block && !fchmod(fd, (mode_t)below(rng, 01000)))
			fchown(fd, (uid_t)below(rng, 2000), (gid_t)-1);
		break;
	case 13:
		sync_file_range(fd, 0, (off_t)fuzz.frame, (unsigned int)below(rng, 8));
		break;
	}
}

/* No second file on a block: opening what /proc shows of it fails. */
static void reopen(int fd, bool block)
{
	char path[64];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (block && (again >= 0 || errno != ENXIO))
		wrong("opening a block by /proc: %s", again < 0 ? strerror(errno) : "done");
	close(again);
}

int fuzz_files(void)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC), block = block_alloc(dev, fuzz.frame);
	__u64 *words = block_map(block, fuzz.frame);
	__u64 rng = fuzz.seed ^ 0x66696c65, n = 0;

	memfd = memfd_create("fuzz", MFD_CLOEXEC);
	if (block < 0 || words == MAP_FAILED || memfd < 0 || pipe2(ends, O_CLOEXEC | O_NONBLOCK)) {
		wrong("no block: %s", strerror(errno));
		return 1;
	}
	for (unsigned int i = 0; i < WORDS; i++)
		words[i] = ~(__u64)i;
	for (; now_ms() < fuzz.end_ms; n++) {
		bool on_block = one_in(&rng, 2);
		int fd = on_block ? block : dev, ret;

		if (one_in(&rng, 2)) {
			ret = data_call(fd, &rng);
			if (ret >= 0)
				wrong("a %s was read or written: %d", on_block ? "block" : "device",
				      ret);
		} else if (one_in(&rng, 16)) {
			reopen(fd, on_block);
		} else {
			other_call(fd, on_block, &rng);
		}
	}
	if (fuzz.planted)
		words[7] = 7;
	for (unsigned int i = 0; i < WORDS; i++) {
		if (words[i] != ~(__u64)i)
			wrong("word %u of the block changed", i);
	}
	return verdict(n);
}
