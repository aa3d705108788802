/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the files of libbinpool-opencl share. Private.
 */
#ifndef BINPOOL_SRC_OPENCL_H
#define BINPOOL_SRC_OPENCL_H

#include <stdbool.h>

#include <binpool_cl.h>

#define EXPORT __attribute__((visibility("default")))

/* error.c */
/* Makes the sentence for OpenCL's @err from @call, on @bytes unless 0; the errno for it. */
int cl_explain(const char *call, size_t bytes, cl_int err);
/* The same for what is not OpenCL's; returns @err. */
int cl_refuse(int err, const char *sentence);

/*
 * The process ends, and OpenCL with it, or soon: nothing of it is to be called. Known
 * from the exit on of whoever called cl_watch_exit() after OpenCL had begun.
 */
bool cl_gone(void);
void cl_watch_exit(void);

/* attach.c: what pools have with contexts. Fixed once it is in the list. */
struct side {
	struct side *next;
	const struct binpool *pool;
	cl_context context;
	cl_command_queue queue;
	bool zerocopy;
	cl_ulong max_bytes;	/* of one cl_mem on the queue's device */
	size_t align;		/* of a sub-buffer's offset */
	struct parent *parents; /* zerocopy.c */
};

/* The extent as a cl_mem. 0 or -errno, explained. */
int side_wrap(const struct side *s, const struct binpool_extent *extent, cl_mem *mem);
/* The one of the pool's, with ZEROCOPY; NULL: there is none. Locked. */
struct side *side_zerocopy(const struct binpool *pool);
/* The lock of all sides and parents. No call of OpenCL is made under it. */
void sides_lock(void);
void sides_unlock(void);
/* Waits for sides_wake(), and may return without. Both locked. */
void sides_wait(void);
void sides_wake(void);

/* zerocopy.c: a registrar's. */
int zerocopy_attach(void *ctx, const struct binpool_extent *extent, void **cookie);
void zerocopy_detach(void *ctx, const struct binpool_extent *extent, void *cookie);

#endif /* BINPOOL_SRC_OPENCL_H */
