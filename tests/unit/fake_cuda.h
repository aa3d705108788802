/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A CUDA driver that does what a test tells it: contexts that go, streams that are
 * captured, calls that fail. It has no device. For one thread at a time.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>

/* CUcontext, CUstream and CUevent. */
struct CUctx_st {
	unsigned long long id; /* 0: destroyed */
	int device;
	struct CUstream_st *default_stream; /* which all its handles are; NULL: it has none */
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
	/* Of the devices that there are. NULL, or destroyed: there is none. */
	struct CUctx_st *primary[2];
	long retained;	  /* of these, by the library */
	int mode;	  /* of capture, of the thread; global at first */
	int record_error; /* what EventRecord answers */
	int signal;	  /* that EventRecord raises first */
	int query_error;  /* what EventQuery answers */
	int alloc_error;  /* what MemAlloc answers */
	int push_error;	  /* what CtxPushCurrent answers */
	int id_error;	  /* what CtxGetId answers of a context that is there */
	/* Registering: this call fails, from 1 on, and how; above so many bytes it does, too. */
	unsigned long register_calls, register_fail_at;
	int register_error;
	unsigned long long largest; /* 0: no bound */
	/* Unregistering fails so, after so many times more. */
	int unregister_error;
	unsigned long unregister_spares;
	bool unranged; /* ranges are not told, and registering twice is an invalid value */
	unsigned long registered, unregistered; /* so far, that did not fail */
	unsigned int register_flags;		/* of the last */
	long allocated;				/* device memory, in pieces */
	unsigned long created, recorded, queried;
	unsigned long wrong; /* calls in another mode, on what is gone, or in a wrong context */
};

struct fake_cuda *fake_cuda(void);
/* The calling thread's own default stream; NULL: it has none, and the context's is meant. */
struct CUstream_st **fake_cuda_of_thread(void);
/* Registrations that there are; those of destroyed contexts are gone. */
unsigned long fake_cuda_registrations(void);

#endif /* FAKE_CUDA_H */
