// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What was under way on the devices is over. cudaFreeHost waits for that, and programs rely on
 * it: they free what a copy still reads. Owns the tickets, of which a synchronisation passes all
 * that were given out before it began (the lock turn: one at a time), and the contexts in which
 * somebody was served (the lock noting; they stay).
 *
 * Memory of ours is known in all contexts, so all are waited for: the devices' primary ones, and
 * others that we have seen.
 */
#include <pthread.h>
#include <stdlib.h>

#include "preload.h"

#define CAPTURE_RELAXED 2

struct context {
	struct context *next;
	CUcontext context;
	unsigned long long id; /* its address may become another's */
	uint64_t round;	       /* that it was last waited for in; in turn */
};

static pthread_mutex_t noting = PTHREAD_MUTEX_INITIALIZER;
static struct context *contexts; /* read without a lock */

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static uint64_t rounds; /* in turn */
static uint64_t given;	/* atomic */
static uint64_t passed; /* atomic, written in turn */

static bool alive(const struct driver *cu, const struct context *c)
{
	unsigned long long id;
	int err = cu->CtxGetId(c->context, &id);

	return err ? !context_id_gone(err) : id == c->id;
}

static struct context *noted(CUcontext context, unsigned long long id)
{
	struct context *c = __atomic_load_n(&contexts, __ATOMIC_ACQUIRE);

	while (c && (c->context != context || c->id != id))
		c = c->next;
	return c;
}

void barrier_note(const struct driver *cu, CUcontext context)
{
	unsigned long long id;
	struct context *c;

	/* A driver too old to tell contexts apart: the primary ones have to do. */
	if (!cu->CtxGetId || cu->CtxGetId(context, &id) || noted(context, id))
		return;
	pthread_mutex_lock(&noting);
	c = noted(context, id) ? NULL : malloc(sizeof(*c));
	if (c) {
		*c = (struct context){.next = contexts, .context = context, .id = id};
		__atomic_store_n(&contexts, c, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&noting);
}

uint64_t barrier_ticket(void)
{
	return __atomic_add_fetch(&given, 1, __ATOMIC_SEQ_CST);
}

/* A context that is gone has ended, and its work with it. In turn. */
static bool synchronize(const struct driver *cu, CUcontext context)
{
	CUcontext popped;
	int err;

	for (struct context *c = __atomic_load_n(&contexts, __ATOMIC_ACQUIRE); c; c = c->next)
		if (c->context == context)
			c->round = rounds;
	err = cu->CtxPushCurrent(context);
	if (err)
		return context_gone(err);
	err = cu->CtxSynchronize();
	cu->CtxPopCurrent(&popped);
	return !err;
}

static bool synchronize_primary(const struct driver *cu, int ordinal)
{
	CUcontext context;
	unsigned int flags;
	int device, active = 0, err;
	bool over;

	err = cu->DeviceGet(&device, ordinal);
	if (!err)
		err = cu->PrimaryCtxGetState(device, &flags, &active);
	/* It is there already: nothing is made by this. */
	if (!err && active)
		err = cu->PrimaryCtxRetain(&context, device);
	if (err || !active)
		return !err || context_gone(err);
	over = synchronize(cu, context);
	cu->PrimaryCtxRelease(device);
	return over;
}

static bool synchronize_all(const struct driver *cu)
{
	bool over = true;
	int count;

	if (cu->DeviceGetCount(&count))
		return false;
	rounds++;
	for (int i = 0; i < count && over; i++)
		over = synchronize_primary(cu, i);
	for (struct context *c = __atomic_load_n(&contexts, __ATOMIC_ACQUIRE); c && over;
	     c = c->next)
		if (c->round != rounds && alive(cu, c))
			over = synchronize(cu, c->context);
	return over;
}

/*
 * Whoever is in relaxed mode may be capturing a graph, which a synchronisation would break. It
 * has to wait then.
 */
static bool try_synchronize(void)
{
	const struct driver *cu = driver_get();
	int mode = CAPTURE_RELAXED;
	bool over;

	if (!cu || cu->ThreadExchangeStreamCaptureMode(&mode))
		return false;
	over = mode != CAPTURE_RELAXED && synchronize_all(cu);
	cu->ThreadExchangeStreamCaptureMode(&mode);
	return over;
}

bool barrier_passed(uint64_t ticket, bool wait)
{
	uint64_t begun, start;
	bool over;

	/* With the driver gone nothing is at work, and nobody is served any more. */
	if (pool_exiting() || ticket <= __atomic_load_n(&passed, __ATOMIC_ACQUIRE))
		return true;
	if (!wait)
		return false;
	pthread_mutex_lock(&turn);
	over = ticket <= passed;
	if (!over) {
		begun = __atomic_load_n(&given, __ATOMIC_SEQ_CST);
		start = clock_ns();
		over = try_synchronize();
		count(COUNT_waits, 1);
		count(COUNT_waits_failed, !over);
		count(COUNT_wait_ns, clock_ns() - start);
		if (over)
			__atomic_store_n(&passed, begun, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&turn);
	return over;
}
