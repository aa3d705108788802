// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the library has of each thread that uses it, and the thread's end. Owns the list of
 * these records; records_lock, which is the last of all and held for list work only.
 *
 * At a thread's end a destructor frees its record. It does not if the thread first used the
 * library in its very last destructors, after which none runs: such a record is found by
 * threads_reap(), which asks for every thread whether it is still there.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cache.h"
#include "thread.h"

/* So many records at least are made before it is worth while to look for those left over. */
#define REAP_AT_MIN 16u

__thread struct thread *thread_record;

static pthread_mutex_t records_lock = PTHREAD_MUTEX_INITIALIZER;
static struct thread *records;
static uint64_t records_n, reap_at = REAP_AT_MIN;

static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool key_made;

static void unlink_record(struct thread *t)
{
	LIST_REMOVE(records, t, prev, next);
	records_n--;
}

/* Frees a record that is in no list. No lock is held. */
static void record_free(struct thread *t)
{
	caches_end(t);
	free(t->text);
	free(t);
}

static void thread_end(void *arg)
{
	struct thread *t = arg;

	pthread_mutex_lock(&records_lock);
	unlink_record(t);
	pthread_mutex_unlock(&records_lock);
	thread_record = NULL;
	record_free(t);
}

static void make_key(void)
{
	key_made = !pthread_key_create(&key, thread_end);
}

struct thread *thread_get(void)
{
	struct thread *t = thread_record;

	if (t)
		return t;
	t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	t->tid = (pid_t)syscall(SYS_gettid);
	pthread_once(&key_once, make_key);
	/* Where that cannot be done the record is left over. */
	if (key_made)
		pthread_setspecific(key, t);
	pthread_mutex_lock(&records_lock);
	LIST_PUSH(records, t, prev, next);
	records_n++;
	pthread_mutex_unlock(&records_lock);
	thread_record = t;
	return t;
}

/* Another thread may have its number by now; then it is found when that one ends. */
static bool ended(const struct thread *t)
{
	return syscall(SYS_tgkill, getpid(), t->tid, 0) && errno == ESRCH;
}

void threads_reap(bool all)
{
	struct thread *left = NULL, *next;
	int before = errno;

	pthread_mutex_lock(&records_lock);
	if (all || records_n >= reap_at) {
		for (struct thread *t = records; t; t = next) {
			next = t->next;
			if (!ended(t))
				continue;
			unlink_record(t);
			t->next = left;
			left = t;
		}
		reap_at = u64_max(2 * records_n, REAP_AT_MIN);
	}
	pthread_mutex_unlock(&records_lock);
	for (; left; left = next) {
		next = left->next;
		record_free(left);
	}
	errno = before;
}

void threads_before_fork(void)
{
	pthread_mutex_lock(&records_lock);
}

/* In a child there is this thread only; the caches that others had are dead pools'. */
void threads_after_fork(bool child)
{
	struct thread *next;

	for (struct thread *t = child ? records : NULL; t; t = next) {
		next = t->next;
		if (t == thread_record) {
			t->tid = (pid_t)syscall(SYS_gettid);
			continue;
		}
		unlink_record(t);
		free(t->caches);
		free(t->text);
		free(t);
	}
	pthread_mutex_unlock(&records_lock);
}
