// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Registering in the background: a thread that takes the turn for one extent after the
 * other, and those who wait for it. Owns struct background; its lock, which is taken last, under
 * no other lock but the turn, and held over no callback.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"

#define NS_PER_S  1000000000u
#define NS_PER_MS 1000000u
/* Those who wait for the turn get it in between: after so much of the time that it had it. */
#define REST_PART 16u

struct background {
	struct binpool *pool;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work; /* the thread waits for it, others for done */
	pthread_cond_t done;
	bool stop;
	bool kicked;		   /* there may be something to do */
	uint64_t bytes_per_second; /* 0: nothing is to be done */
	const void *wanted;	   /* whose extent is the next; NULL: nobody asked */
	uint64_t steps;		   /* times that those who wait had reason to look again */
	int error;		   /* the last that there was, and its sentence */
	char cause[1024];
	uint64_t bytes, begin, end; /* of the last extent */
};

/* Waits for @cond until @end (now_ns()). b->lock. */
static void wait_until(struct background *b, pthread_cond_t *cond, uint64_t end)
{
	struct timespec t = {.tv_sec = (time_t)(end / NS_PER_S), .tv_nsec = (long)(end % NS_PER_S)};

	if (end == UINT64_MAX)
		pthread_cond_wait(cond, &b->lock);
	else
		pthread_cond_timedwait(cond, &b->lock, &t);
}

void background_kick(struct background *b)
{
	pthread_mutex_lock(&b->lock);
	b->kicked = true;
	b->steps++;
	pthread_cond_signal(&b->work);
	pthread_cond_broadcast(&b->done);
	pthread_mutex_unlock(&b->lock);
}

/* ---- The thread -------------------------------------------------------------- */

/* The one of these extents that @ptr is in, or NULL. The pool is locked. */
static struct extent *extent_of(struct extent *e, const void *ptr)
{
	const char *at = ptr;

	while (e && (!at || at < e->base || (uint64_t)(at - e->base) >= e->bytes))
		e = e->next;
	return e;
}

static bool is_missing(const struct extent *e)
{
	return e && !e->registered && !e->refused;
}

/* The next to register: what somebody waits for, or the oldest. In turn. */
static struct extent *pick(struct binpool *pool, const void *wanted)
{
	struct extent *e;

	if (!pool->registrars)
		return NULL;
	pool_lock(pool);
	e = extent_of(pool->extents, wanted);
	if (!is_missing(e))
		for (e = pool->extents; e && !is_missing(e);)
			e = e->next;
	pool_unlock(pool);
	return e;
}

/* Registers an extent; in turn. How many bytes it has, 0: there was nothing to do. */
static uint64_t step(struct binpool *pool, struct background *b, const void *wanted)
{
	struct extent *e = pick(pool, wanted);
	int err;

	if (!e)
		return 0;
	err = registrars_complete(pool, e);
	if (err) {
		pthread_mutex_lock(&b->lock);
		b->error = err;
		snprintf(b->cause, sizeof(b->cause), "%s", binpool_last_error());
		pthread_mutex_unlock(&b->lock);
	}
	pool_lock(pool);
	e->refused = err;
	pool_unlock(pool);
	return e->bytes;
}

/* When an extent may follow the last one. b->lock. */
static uint64_t due(const struct background *b)
{
	uint64_t rest = b->end + (b->end - b->begin) / REST_PART;
	double seconds;

	if (b->bytes_per_second == BINPOOL_UNLIMITED)
		return rest;
	seconds = (double)b->bytes / (double)b->bytes_per_second;
	/* So long that nobody will see the end of it. */
	if (seconds > (double)UINT32_MAX)
		seconds = (double)UINT32_MAX;
	return u64_max(rest, b->begin + (uint64_t)(seconds * NS_PER_S));
}

/* Waits until there is something to do, and time to; false: it is the end. b->lock. */
static bool wait_work(struct background *b)
{
	while (!b->stop) {
		if (!b->kicked || !b->bytes_per_second)
			wait_until(b, &b->work, UINT64_MAX);
		else if (now_ns() < due(b))
			wait_until(b, &b->work, due(b));
		else
			return true;
	}
	return false;
}

static void *run(void *arg)
{
	struct background *b = arg;
	struct binpool *pool = b->pool;
	uint64_t bytes, begin;
	const void *wanted;

	pthread_mutex_lock(&b->lock);
	while (wait_work(b)) {
		wanted = b->wanted;
		b->kicked = false;
		pthread_mutex_unlock(&b->lock);
		turn_take(pool);
		begin = now_ns();
		bytes = step(pool, b, wanted);
		turn_give(pool);
		extents_settle(pool);
		pthread_mutex_lock(&b->lock);
		if (bytes) {
			b->bytes = bytes;
			b->begin = begin;
			b->end = now_ns();
			/* There may be more. */
			b->kicked = true;
		}
		if (b->wanted == wanted)
			b->wanted = NULL;
		b->steps++;
		pthread_cond_broadcast(&b->done);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

static void background_delete(struct background *b)
{
	pthread_cond_destroy(&b->work);
	pthread_cond_destroy(&b->done);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

/* In turn, with a rate of 0. */
static int start_thread(struct binpool *pool)
{
	struct background *b = calloc(1, sizeof(*b));
	pthread_condattr_t monotonic;
	int err;

	if (!b || pthread_condattr_init(&monotonic)) {
		free(b);
		return explain(-ENOMEM, "no memory for a pool's thread");
	}
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&b->work, &monotonic);
	pthread_cond_init(&b->done, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_mutex_init(&b->lock, NULL);
	b->pool = pool;
	err = pool_thread_start(&b->thread, run, b, "binpool-register");
	if (err)
		background_delete(b);
	else
		/* Others use it at once, so never one that goes again. Till then it has no work. */
		__atomic_store_n(&pool->background, b, __ATOMIC_RELEASE);
	return err;
}

void background_stop(struct binpool *pool)
{
	struct background *b = pool->background;

	if (!b)
		return;
	if (!pool->dead) {
		pthread_mutex_lock(&b->lock);
		b->stop = true;
		pthread_cond_signal(&b->work);
		pthread_mutex_unlock(&b->lock);
		pthread_join(b->thread, NULL);
		background_delete(b);
	} else {
		/* Its lock may be one that a thread of the parent's had. */
		free(b);
	}
	pool->background = NULL;
}

EXPORT int binpool_register_in_background(struct binpool *pool, uint64_t bytes_per_second)
{
	struct background *b;
	int err = pool_enter_host(pool);

	if (err)
		return err;
	turn_take(pool);
	if (!pool->background)
		err = start_thread(pool);
	turn_give(pool);
	extents_settle(pool);
	if (err)
		return err;
	pool_lock(pool);
	for (struct extent *e = pool->extents; e; e = e->next)
		e->refused = false;
	pool_unlock(pool);
	b = background_of(&pool->background);
	pthread_mutex_lock(&b->lock);
	b->bytes_per_second = bytes_per_second;
	b->kicked = true;
	pthread_cond_signal(&b->work);
	pthread_mutex_unlock(&b->lock);
	return 0;
}

/* ---- Those who wait ------------------------------------------------------------- */

/* Extents; of these, not registered; of these, refused. */
struct found {
	uint64_t extents, missing, refused;
};

/* Counts the extent that @ptr is in, or with NULL all. What was refused is to be tried again. */
static struct found look(struct binpool *pool, const void *ptr)
{
	struct found found = {0};

	pool_lock(pool);
	for (struct extent *e = ptr ? extent_of(pool->extents, ptr) : pool->extents; e;
	     e = ptr ? NULL : e->next) {
		found.extents++;
		/* Without registrars nothing is missing. */
		found.missing += pool->registrars && !e->registered;
		found.refused += e->refused;
		e->refused = false;
	}
	/* A buffer of size 0 has nothing to be registered. */
	if (!found.extents && extent_of(pool->voids, ptr))
		found.extents = 1;
	pool_unlock(pool);
	return found;
}

/*
 * What is lost is found out, unless somebody is at work for long; and registered
 * here and now, if no thread does it. The first error, explained.
 */
static int look_in_turn(struct binpool *pool, const void *ptr, bool complete)
{
	struct extent *e;
	int err = 0;

	if (complete)
		turn_take(pool);
	else if (!turn_try(pool))
		return 0;
	for (e = ptr ? registrars_extent_at(pool, ptr) : pool->extents; e && !err;
	     e = ptr ? NULL : e->next) {
		if (complete)
			err = registrars_complete(pool, e);
		else
			registrars_drop_lost(pool, e);
	}
	turn_give(pool);
	extents_settle(pool);
	return err;
}

/* Waits for a step after the @steps-th; false: it is @end, or nothing is to be waited for. */
static bool wait_step(struct background *b, const void *ptr, uint64_t steps, uint64_t end)
{
	bool on_time;

	pthread_mutex_lock(&b->lock);
	b->kicked = true;
	if (ptr)
		b->wanted = ptr;
	pthread_cond_signal(&b->work);
	while (b->steps == steps && now_ns() < end)
		wait_until(b, &b->done, end);
	on_time = b->steps != steps;
	pthread_mutex_unlock(&b->lock);
	return on_time;
}

static uint64_t steps_of(struct background *b)
{
	uint64_t steps;

	pthread_mutex_lock(&b->lock);
	steps = b->steps;
	pthread_mutex_unlock(&b->lock);
	return steps;
}

static bool is_paused(struct background *b)
{
	bool paused;

	pthread_mutex_lock(&b->lock);
	paused = !b->bytes_per_second;
	pthread_mutex_unlock(&b->lock);
	return paused;
}

/* The last error of the thread's, told to this one. */
static int explain_refusal(struct background *b)
{
	char cause[sizeof(b->cause)];
	int err;

	pthread_mutex_lock(&b->lock);
	err = b->error;
	memcpy(cause, b->cause, sizeof(cause));
	pthread_mutex_unlock(&b->lock);
	return explain(err, "%s", cause);
}

EXPORT int binpool_wait_registered(struct binpool *pool, const void *ptr, uint32_t ms)
{
	uint64_t end = ms == UINT32_MAX ? UINT64_MAX : now_ns() + (uint64_t)ms * NS_PER_MS;
	int err = pool_enter_host(pool);
	struct background *b;
	struct found found;
	bool first = true;
	uint64_t steps;

	if (err)
		return err;
	for (;; first = false) {
		b = background_of(&pool->background);
		steps = b ? steps_of(b) : 0;
		err = look_in_turn(pool, ptr, !b);
		found = look(pool, ptr);
		if (ptr && !found.extents)
			return explain(-ENOENT, "pool %s: %p is in no extent of it", pool->name,
				       ptr);
		if (!b || !found.missing)
			return err;
		/* What was refused before this call is tried again, if there is time. */
		if (found.refused && (!first || !ms)) {
			background_kick(b);
			return explain_refusal(b);
		}
		if (!wait_step(b, ptr, steps, end))
			return explain(ms ? -ETIMEDOUT : -EAGAIN,
				       "pool %s: %llu extent%s still to be registered%s",
				       pool->name, (unsigned long long)found.missing,
				       plural(found.missing),
				       is_paused(b) ? ", and it is paused: "
						      "binpool_register_in_background was called "
						      "with 0 bytes a second"
						    : "");
	}
}
