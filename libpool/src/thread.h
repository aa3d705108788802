/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the library has of each thread that uses it (thread.c). Part of pool.h.
 */
#ifndef BINPOOL_THREAD_H
#define BINPOOL_THREAD_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * How threads' own variables are found. The fastest way is not every libc's in a library that is
 * loaded late: TLS_MODEL in build.mk changes it.
 */
#ifndef TLS_MODEL
#define TLS_MODEL "initial-exec"
#endif
#define TLS __attribute__((tls_model(TLS_MODEL)))

struct thread_caches;

struct thread {
	struct thread *prev, *next;
	pid_t tid;
	struct thread_caches *caches; /* cache.c's; NULL: none */
	char *text;		      /* error.c's; NULL: none */
};

/* The calling thread's; NULL: it has none yet. */
extern __thread struct thread *thread_record TLS;

/* The same, made if there is none; NULL: no memory. Under any lock. */
struct thread *thread_get(void);
/* Frees what threads left that ended without a word: if there may be many, or all. Unlocked. */
void threads_reap(bool all);
void threads_before_fork(void);
void threads_after_fork(bool child);

#endif /* BINPOOL_THREAD_H */
