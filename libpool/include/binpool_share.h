/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Buffers in other processes: a part of binpool.h, which includes this.
 */
#ifndef BINPOOL_SHARE_H
#define BINPOOL_SHARE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct binpool;

/*
 * A buffer as another process can map it: two files, and where in them. Both
 * descriptors go through a Unix socket (SCM_RIGHTS), the rest as it is; the receiver puts in the
 * descriptors' numbers as he got them.
 */
struct binpool_share {
	size_t size;
	int32_t extent_fd;     /* the file that the buffer is in */
	int32_t generation_fd; /* the file that says whether it is still that buffer */
	uint64_t offset;       /* of the buffer in extent_fd */
	uint64_t bytes;	       /* as asked for */
	uint64_t unit;	       /* what is mapped of extent_fd comes in */
	uint64_t generation;   /* in generation_fd, */
	uint32_t slot;	       /* there */
	uint32_t reserved;     /* 0 */
};

/*
 * Describes the live buffer that starts at @ptr for other processes, which then see all
 * of the file behind its extent, and can make holes in it where they cannot make it shorter: to
 * share is to trust. The descriptors in @out are the caller's to close.
 * The buffer stays this process's, to be freed as ever; freeing it takes the pool's
 * lock. Nothing waits for importers: where they need it longer, free it
 * after a fence of theirs (a pipe or socket ends with its process, too).
 * Errors: -EINVAL no such buffer; -EOPNOTSUPP there is no file behind it: provider thp, an
 * allocator, size 0, or more than one block of the module; -EMFILE; -ENOMEM.
 */
int binpool_export(struct binpool *pool, const void *ptr, struct binpool_share *out);

/* A buffer of another process's pool, mapped here. */
struct binpool_import;

/*
 * Maps an exported buffer to be read and written. It needs no pool. The descriptors stay
 * the caller's, who may close them. The memory stays as long as it is mapped, also if
 * the exporter frees it, gives it back or is killed.
 * Errors: -ESTALE it was freed already; -EBADF; -EINVAL nothing exported is like that;
 * -ENOMEM.
 */
int binpool_import(struct binpool_import **import, const struct binpool_share *share);

/* Where it is mapped. NULL for NULL. */
void *binpool_import_ptr(const struct binpool_import *import);

/*
 * 0 if the buffer is still what was exported. -ESTALE if its exporter has freed it, and
 * others may have it now: what was read since the last check that answered 0 may be
 * theirs. An exporter that ended without freeing it leaves it as it is.
 */
int binpool_import_check(const struct binpool_import *import);

/* Unmaps it. Errors: -ENOMEM the kernel has no room to (vm.max_map_count): it is there still. */
int binpool_import_close(struct binpool_import *import);

#ifdef __cplusplus
}
#endif

#endif /* BINPOOL_SHARE_H */
