/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * An allocator that is measured: what hotpath.c knows of it. One per process; a peer's
 * functions may be called from all threads that were begun.
 */
#ifndef BINPOOL_BENCH_PEER_H
#define BINPOOL_BENCH_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* Two pools: where a peer has no such thing, both are the same. */
#define POOLS 2

struct bench {
	uint64_t cache_bytes; /* binpool's option of that name */
	unsigned int live;    /* buffers of a size that are live at once, at most */
};

struct peer {
	/* 0, or -1 and a line on stderr. */
	int (*begin)(const struct bench *bench);
	void (*end)(void);
	/* Of each thread but the first; may be NULL. */
	int (*thread_begin)(void);
	void (*thread_end)(void);
	void *(*alloc)(int pool, size_t bytes);
	void (*free)(int pool, void *ptr);
	/* What a buffer can hold. */
	size_t (*usable)(int pool, void *ptr);
	/* The most that was had from the system; NULL: what was resident tells. */
	uint64_t (*reserved_max)(void);
};

extern const struct peer peer_binpool, peer_malloc;

#endif
