/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A CUDA driver and runtimes without a device, for libbinpool-preload: they do what the real ones
 * do of pinned memory, count who was called, and fail as they are told. Copies are carried out
 * when somebody waits for them, and not before.
 */
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>

#define FAKE_DEVICES	2
#define FAKE_LEGACY_ERR 201 /* CUDA_ERROR_INVALID_CONTEXT */
#define FAKE_RUNTIMES	16

/* All atomic. */
struct fake {
	int register_error, alloc_error, sync_error; /* what these calls answer */
	int id_error, retain_error;		     /* and these of a context that is there */
	size_t largest;				     /* registration; 0: no bound */
	void (*in_sync)(void);			     /* called once, when copies are over */
	int capturing;				     /* a graph is, somewhere */
	unsigned long broken;			     /* captures, by a synchronisation */
	unsigned long registers, unregisters;	     /* that did not fail */
	unsigned long host_allocs, host_frees;	     /* of the driver, that did not fail */
	unsigned long harmed;			     /* registered memory that was freed */
	unsigned long syncs;
	unsigned long contexts; /* that were made */
	unsigned long late;	/* calls after the driver's end */
	/* Calls of a runtime's cudaHostAlloc and cudaMallocHost, and of cudaFreeHost, by version.
	 */
	unsigned long runtime_allocs[FAKE_RUNTIMES], runtime_frees[FAKE_RUNTIMES];
};

struct fake *fake(void);
/* A copy in the current context; both sides host memory here. 0, or 1 if @from is not pinned. */
int fake_copy(void *to, const void *from, size_t bytes);
/* Registrations and allocations that there are. */
unsigned long fake_regions(void);
/* Whether all of it is in one of them. */
int fake_pinned(const void *ptr, size_t bytes);
/* Another context than the primary one of the device; current from now on. */
void *fake_make_context(int device);
/*
 * Ends the primary context of the device, and what was registered in it. It stays current to the
 * threads that it was current to, but is of no use to them.
 */
void fake_reset(int device);

/* What a plugin has: the runtime's or the driver's functions, as its caller reaches them. */
struct plugin {
	int (*host_alloc)(void **out, size_t bytes, unsigned int flags);
	int (*malloc_host)(void **out, size_t bytes);
	int (*free_host)(void *ptr);
	int (*get_flags)(unsigned int *flags, void *ptr);
	int (*get_device)(void **device, void *ptr, unsigned int flags);
	int (*last_error)(void);       /* of the runtime's */
	int (*use_device)(int device); /* the same */
};

#endif /* FAKE_H */
