// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A pool's own thread: asks fences, gives back what is to go and what is idle, and
 * all that is free when memory is short. Owns struct reaper: asleep is the pool's lock's, the
 * rest is fixed while the thread runs.
 */
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cache.h"

/* How long it naps while fences are not over: shorter after one was. */
#define NAP_MIN_MS 1
#define NAP_MAX_MS 20

enum { WAKE, PSI, ASKED, SOURCES };

/* Of which pool the calling thread is, if it is one. */
static __thread const struct reaper *self;

struct reaper {
	pthread_t thread;
	int fd[SOURCES]; /* -1: there is no such source */
	bool asleep;	 /* for long: to be woken if there is something to do */
	bool stop;
};

bool reaper_sleeps(struct binpool *pool)
{
	bool sleeps = pool->reaper && pool->reaper->asleep;

	assert_locked(pool);
	if (sleeps)
		pool->reaper->asleep = false;
	return sleeps;
}

void reaper_wake(struct binpool *pool)
{
	eventfd_write(pool->reaper->fd[WAKE], 1);
}

bool reaper_takes(struct binpool *pool)
{
	bool sleeps;

	if (!pool->reaper || self == pool->reaper)
		return false;
	pool_lock(pool);
	sleeps = reaper_sleeps(pool);
	pool_unlock(pool);
	if (sleeps)
		reaper_wake(pool);
	return true;
}

static uint64_t idle_every_ms(const struct binpool *pool)
{
	return pool->extent_idle_ms / 2 + 1;
}

/* *last: when it looked, since that is work for all threads. */
static void give_idle_back(struct binpool *pool, uint64_t *last)
{
	const uint64_t ns_per_ms = 1000000;
	uint64_t now = now_ns();

	if (now - *last < idle_every_ms(pool) * ns_per_ms)
		return;
	*last = now;
	trim_idle(pool, pool->extent_idle_ms);
}

/* How long to sleep, in ms. */
static int how_long(struct binpool *pool, int nap)
{
	int ms = (int)u64_min(idle_every_ms(pool), INT_MAX);

	pool_lock(pool);
	if (pool->give_back)
		nap = NAP_MIN_MS;
	if ((pool->fences.count || pool->give_back) && ms > nap)
		ms = nap;
	pool->reaper->asleep = ms > NAP_MAX_MS;
	pool_unlock(pool);
	return ms;
}

static void *run(void *arg)
{
	struct binpool *pool = arg;
	struct reaper *r = pool->reaper;
	struct pollfd p[SOURCES] = {
		[WAKE] = {.fd = r->fd[WAKE], .events = POLLIN},
		[PSI] = {.fd = r->fd[PSI], .events = POLLPRI},
		[ASKED] = {.fd = r->fd[ASKED], .events = POLLIN},
	};
	uint64_t looked = 0;
	int nap = NAP_MIN_MS;
	eventfd_t woken;

	self = r;

	while (!__atomic_load_n(&r->stop, __ATOMIC_ACQUIRE)) {
		int n = poll(p, SOURCES, how_long(pool, nap));

		nap = nap < NAP_MAX_MS ? 2 * nap : NAP_MAX_MS;
		if (n > 0 && p[WAKE].revents) {
			eventfd_read(r->fd[WAKE], &woken);
			nap = NAP_MIN_MS;
		}
		if (n > 0 && p[ASKED].revents)
			asked_take(r->fd[ASKED]);
		if (n > 0 && (p[PSI].revents & POLLPRI || p[ASKED].revents)) {
			pool_lock(pool);
			pool->stats.pressure_trims++;
			pool_unlock(pool);
			binpool_trim(pool, 0, 0);
		}
		/* The kernel may take the trigger away. */
		if (n > 0 && p[PSI].revents & POLLERR)
			p[PSI].fd = -1;
		if (fences_poll(pool, FENCES_PER_CALL))
			nap = NAP_MIN_MS;
		extents_settle(pool);
		give_idle_back(pool, &looked);
	}
	return NULL;
}

static void reaper_delete(struct reaper *r)
{
	for (int i = 0; i < SOURCES; i++)
		if (r->fd[i] >= 0)
			close(r->fd[i]);
	free(r);
}

int pool_thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg, const char *name)
{
	sigset_t all, old;
	int err;

	/* Signals are for the program's threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(thread, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (err)
		return explain(-err, "a pool's thread: %s", strerror(err));
	pthread_setname_np(*thread, name);
	return 0;
}

int reaper_start(struct binpool *pool)
{
	struct reaper *r;
	int err;

	if (!(pool->flags & BINPOOL_POOL_REAPER))
		return 0;
	r = calloc(1, sizeof(*r));
	if (!r)
		return explain(-ENOMEM, "no memory for a pool's thread");
	r->fd[WAKE] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	err = r->fd[WAKE] < 0 ? -errno : 0;
	/* Where the system has one of these not, it hears of less. */
	r->fd[PSI] = binpool_pressure_fd();
	r->fd[ASKED] = asked_watch();
	for (int i = 0; i < SOURCES && !err; i++)
		err = no_descriptor(-r->fd[i]) ? r->fd[i] : 0;
	if (err) {
		reaper_delete(r);
		return explain(err, "a pool's thread: no descriptor for it: %s; raise ulimit -n",
			       strerror(-err));
	}
	pool->reaper = r;
	err = pool_thread_start(&r->thread, run, pool, "binpool-reaper");
	if (err) {
		pool->reaper = NULL;
		reaper_delete(r);
	}
	return err;
}

void reaper_stop(struct binpool *pool)
{
	struct reaper *r = pool->reaper;

	if (!r)
		return;
	if (!pool->dead) {
		__atomic_store_n(&r->stop, true, __ATOMIC_RELEASE);
		reaper_wake(pool);
		pthread_join(r->thread, NULL);
	}
	pool->reaper = NULL;
	reaper_delete(r);
}
