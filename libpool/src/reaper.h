/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A pool's own thread, if it was asked for (reaper.c), and what tells that memory is
 * short (pressure.c). Part of pool.h.
 */
#ifndef BINPOOL_REAPER_H
#define BINPOOL_REAPER_H

#include <pthread.h>
#include <stdbool.h>

struct binpool;
struct reaper;

/* Starts a thread of the pool's own, without signals. -ERRNO, explained. */
int pool_thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg, const char *name);
/* Starts the thread of a pool that is about to be handed out. -ERRNO, explained. */
int reaper_start(struct binpool *pool);
/* Ends it. In a forked child there is none: forgets it. No lock is held. */
void reaper_stop(struct binpool *pool);
/* Whether the thread sleeps for long: reaper_wake() is to follow. Locked. */
bool reaper_sleeps(struct binpool *pool);
/* No lock is held. */
void reaper_wake(struct binpool *pool);
/* Leaves what pool->give_back asks for to the thread; false: there is none, or it is this one. */
bool reaper_takes(struct binpool *pool);

/*
 * Other processes of this user ask each other for memory through a file. A descriptor
 * that polls readable when one did, and that asked_take() makes quiet; or -ERRNO.
 */
int asked_watch(void);
void asked_take(int fd);
/* Asks them; at most so often. No lock is held. */
void ask_others(void);

#endif /* BINPOOL_REAPER_H */
