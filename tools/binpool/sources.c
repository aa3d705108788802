// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The files of `binpool run`: what they were when it began, with O_DIRECT where
 * their file system has it, and whether they are still the same at the end.
 * A source belongs to the main thread; the checker reads from plain_fd only.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cli.h"
#include "run.h"

/*
 * Files of /proc and the like have bytes, but say that they have none: what has
 * no size cannot be read to its end and compared.
 */
static int check_empty(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	ssize_t got = -1;
	struct stat st;
	char byte;

	if (fd >= 0)
		got = read(fd, &byte, 1);
	/* One that grew since is found when it is opened. */
	if (got > 0 && !fstat(fd, &st) && st.st_size)
		got = 0;
	if (got > 0)
		cli_error("cannot read %s: its size is said to be 0, but it has bytes, as files of "
			  "/proc do; copy it to a file with a size",
			  path);
	else if (got < 0)
		cli_error("cannot read %s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return got ? CLI_FAILED : CLI_OK;
}

int source_init(struct source *source, const char *path)
{
	struct stat st;

	memset(source, 0, sizeof(*source));
	source->path = path;
	source->plain_fd = -1;
	source->direct_fd = -1;
	if (stat(path, &st)) {
		cli_error("cannot read %s: %s", path, strerror(errno));
		return CLI_FAILED;
	}
	if (!S_ISREG(st.st_mode)) {
		cli_error("cannot read %s: it is %s", path,
			  S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
		return CLI_FAILED;
	}
	source->bytes = (uint64_t)st.st_size;
	source->mtime = st.st_mtim;
	return source->bytes ? CLI_OK : check_empty(path);
}

void source_refuse_direct(struct source *source, int error)
{
	snprintf(source->buffered_why, sizeof(source->buffered_why),
		 "its file system refuses O_DIRECT: %s", strerror(error));
	if (source->direct_fd >= 0)
		close(source->direct_fd);
	source->direct_fd = -1;
}

/* What lengths and offsets of O_DIRECT must be multiples of. */
static uint64_t direct_alignment(int fd)
{
#ifdef STATX_DIOALIGN
	struct statx stx;

	if (!statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) &&
	    (stx.stx_mask & STATX_DIOALIGN) && stx.stx_dio_offset_align)
		return stx.stx_dio_offset_align;
#endif
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

static void open_direct(struct source *source, uint64_t buffer_bytes)
{
	struct stat plain, direct;
	struct statfs fs;

	source->direct_fd = open(source->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (source->direct_fd < 0) {
		source_refuse_direct(source, errno);
		return;
	}
	/* Newer kernels accept the flag on tmpfs, where it means nothing. */
	if (!fstatfs(source->direct_fd, &fs) && fs.f_type == TMPFS_MAGIC) {
		source_refuse_direct(source, EOPNOTSUPP);
		snprintf(source->buffered_why, sizeof(source->buffered_why),
			 "it lies in memory (tmpfs)");
		return;
	}
	if (fstat(source->plain_fd, &plain) || fstat(source->direct_fd, &direct) ||
	    plain.st_dev != direct.st_dev || plain.st_ino != direct.st_ino) {
		source_refuse_direct(source, ESTALE);
		return;
	}
	source->align = direct_alignment(source->direct_fd);
	if (buffer_bytes % source->align) {
		snprintf(source->buffered_why, sizeof(source->buffered_why),
			 "O_DIRECT needs buffers of a multiple of %" PRIu64 " bytes there",
			 source->align);
		close(source->direct_fd);
		source->direct_fd = -1;
	}
}

int source_open(struct source *source, uint64_t buffer_bytes)
{
	char text[PROBLEM_LEN];

	source->plain_fd = open(source->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (source->plain_fd < 0) {
		cli_error("cannot read %s: %s", source->path, strerror(errno));
		return CLI_FAILED;
	}
	if (source_changed_size(source, text)) {
		cli_error("%s", text);
		return CLI_FAILED;
	}
	open_direct(source, buffer_bytes);
	return CLI_OK;
}

int source_changed_size(const struct source *source, char text[PROBLEM_LEN])
{
	struct stat st;

	if (fstat(source->plain_fd, &st)) {
		snprintf(text, PROBLEM_LEN, "cannot tell the size of %s: %s", source->path,
			 strerror(errno));
		return 1;
	}
	if ((uint64_t)st.st_size == source->bytes)
		return 0;
	snprintf(text, PROBLEM_LEN,
		 "%s changed its size while it was read: %" PRIu64 " bytes at the start, %" PRIu64
		 " bytes now",
		 source->path, source->bytes, (uint64_t)st.st_size);
	return 1;
}

int source_was_modified(const struct source *source)
{
	struct stat st;

	return !fstat(source->plain_fd, &st) && (st.st_mtim.tv_sec != source->mtime.tv_sec ||
						 st.st_mtim.tv_nsec != source->mtime.tv_nsec);
}

void source_close(struct source *source)
{
	if (source->plain_fd >= 0)
		close(source->plain_fd);
	if (source->direct_fd >= 0)
		close(source->direct_fd);
	source->plain_fd = -1;
	source->direct_fd = -1;
}
