/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A CUDA driver that does what a test tells it: contexts that go, streams that are
 * captured, calls that fail. It has no device. For one thread.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>

/* CUcontext, CUstream and CUevent. */
struct CUctx_st {
	unsigned long long id; /* 0: destroyed */
};

struct CUstream_st {
	struct CUctx_st *ctx;
	bool capturing;
	unsigned long long submitted, finished;
};

struct CUevent_st {
	struct CUctx_st *ctx;
	unsigned long long id; /* of its context when it was made */
	const struct CUstream_st *stream;
	unsigned long long ticket;
};

struct fake_cuda {
	struct CUctx_st *current;
	int mode;	  /* of capture, of the thread; global at first */
	int record_error; /* what EventRecord answers */
	int query_error;  /* what EventQuery answers */
	int alloc_error;  /* what MemAlloc answers */
	long allocated;	  /* device memory, in pieces */
	unsigned long created, recorded, queried;
	unsigned long wrong; /* calls in another mode, on what is gone, or in a wrong context */
};

struct fake_cuda *fake_cuda(void);

#endif /* FAKE_CUDA_H */
