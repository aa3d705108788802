// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What takes longer than an instruction of locks. Owns nothing.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pool.h"

/* So often a thread looks before it sleeps: some microseconds. */
#define SPINS 100u

static void spin(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb");
#else
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
#endif
}

bool futex_wait(const uint32_t *word, uint32_t seen, uint64_t end)
{
	const uint64_t ns_per_s = 1000000000u;
	struct timespec t = {.tv_sec = (time_t)(end / ns_per_s), .tv_nsec = (long)(end % ns_per_s)};
	int saved = errno;
	bool late;

	late = syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen,
		       end == UINT64_MAX ? NULL : &t, NULL, FUTEX_BITSET_MATCH_ANY) &&
	       errno == ETIMEDOUT;
	errno = saved;
	return !late;
}

static void wake(const uint32_t *word, int most)
{
	int saved = errno;

	/* If the memory is gone meanwhile, who waits there now expects to be woken early. */
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, most);
	errno = saved;
}

void lock_wait(struct lock *lock)
{
	for (uint32_t i = 0; i < SPINS; i++) {
		spin();
		if (__atomic_load_n(&lock->state, __ATOMIC_RELAXED) == LOCK_FREE && lock_try(lock))
			return;
	}
	/* Others may sleep, too: who was one of them leaves it said. */
	while (__atomic_exchange_n(&lock->state, LOCK_SLEPT, __ATOMIC_ACQUIRE) != LOCK_FREE)
		futex_wait(&lock->state, LOCK_SLEPT, UINT64_MAX);
}

void lock_wake(struct lock *lock)
{
	wake(&lock->state, 1);
}

void futex_wake_all(const uint32_t *word)
{
	wake(word, INT_MAX);
}

void queue_take(struct queue_lock *lock)
{
	uint32_t own = __atomic_fetch_add(&lock->next, 1, __ATOMIC_SEQ_CST), now;

	while ((now = __atomic_load_n(&lock->serving, __ATOMIC_SEQ_CST)) != own)
		futex_wait(&lock->serving, now, UINT64_MAX);
}

bool queue_try(struct queue_lock *lock)
{
	uint32_t now = __atomic_load_n(&lock->serving, __ATOMIC_ACQUIRE);

	return __atomic_compare_exchange_n(&lock->next, &now, now + 1, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED);
}

/* Who comes between the two steps sees that it is his number, or is seen. */
void queue_give(struct queue_lock *lock)
{
	uint32_t now = __atomic_add_fetch(&lock->serving, 1, __ATOMIC_SEQ_CST);

	if (__atomic_load_n(&lock->next, __ATOMIC_SEQ_CST) != now)
		futex_wake_all(&lock->serving);
}
