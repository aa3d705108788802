/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Locks that are held for less than it takes to fall asleep, and waiting for what is told under
 * one. Part of pool.h. A mutex of libc's would do; it asks with each step what kind it is, and
 * these are taken with every miss.
 */
#ifndef BINPOOL_LOCK_H
#define BINPOOL_LOCK_H

#include <stdbool.h>
#include <stdint.h>

/* All zero: free. There is nothing to destroy. */
struct lock {
	uint32_t state;
};

#define LOCK_FREE  0u
#define LOCK_TAKEN 1u
#define LOCK_SLEPT 2u /* the same, and somebody may sleep until it is free */

/* One for long work: who has waited longest gets it next. All zero: free. */
struct queue_lock {
	uint32_t next;	  /* number of who comes next */
	uint32_t serving; /* and of who has it, or may */
};

/* lock.c */
void queue_take(struct queue_lock *lock);
bool queue_try(struct queue_lock *lock);
void queue_give(struct queue_lock *lock);
void lock_wait(struct lock *lock);
void lock_wake(struct lock *lock);
/*
 * Sleeps while *@word is @seen, until futex_wake_all() or @end (CLOCK_MONOTONIC, ns; UINT64_MAX:
 * never); false: it is past. May return early.
 */
bool futex_wait(const uint32_t *word, uint32_t seen, uint64_t end);
void futex_wake_all(const uint32_t *word);

static inline bool lock_try(struct lock *lock)
{
	uint32_t was = LOCK_FREE;

	return __atomic_compare_exchange_n(&lock->state, &was, LOCK_TAKEN, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED);
}

static inline void lock_take(struct lock *lock)
{
	if (__builtin_expect(!lock_try(lock), 0))
		lock_wait(lock);
}

/* What the lock is part of may be gone as soon as it is free. */
static inline void lock_give(struct lock *lock)
{
	uint32_t was = __atomic_exchange_n(&lock->state, LOCK_FREE, __ATOMIC_RELEASE);

	if (__builtin_expect(was == LOCK_SLEPT, 0))
		lock_wake(lock);
}

#endif /* BINPOOL_LOCK_H */
