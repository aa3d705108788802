// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers that were freed while something is still at work on them. Owns
 * pool->fences; the pool's lock. The fences of one buffer are asked by one thread at a
 * time, which has marked it, and without a lock.
 *
 * Such a buffer is still active in every count. It stays in the list while it is
 * asked about, so that a forked child finds it there.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache.h"

struct pending {
	struct pending *prev, *next;
	struct run *run;
	uint32_t slot; /* of share.c's, if others may know of the buffer */
	bool asking;   /* a thread is: nobody else looks at what follows */
	uint32_t n;    /* of fences that are not over as far as is known */
	struct binpool_fence fence[];
};

/* ---- The list; locked ------------------------------------------------------ */

static uint64_t capacity_of(const struct run *run)
{
	return run->extent->is_void ? 0 : run->bytes;
}

/* The next in turn that nobody is asking; it goes to the end. NULL: none. */
static struct pending *list_turn(struct fences *f)
{
	for (uint64_t n = f->count; n; n--) {
		struct pending *p = f->first;

		LIST_UNLINK(f->first, f->last, p);
		LIST_APPEND(f->first, f->last, p);
		if (!p->asking)
			return p;
	}
	return NULL;
}

/* When its fences are over that is the end of the slot, too. */
void pending_share(struct pending *p, uint32_t slot)
{
	p->slot = slot;
}

/* ---- Fences ----------------------------------------------------------------- */

static int fd_done(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) > 0;
}

/* 1, 0, or a negative errno, which ends it. */
static int fence_done(struct binpool *pool, const struct binpool_fence *f)
{
	struct callback c;
	int done;

	if (f->kind == BINPOOL_FENCE_EVENTFD)
		return fd_done(f->fd);
	if (f->kind == BINPOOL_FENCE_COUNTER)
		return (int64_t)(__atomic_load_n(f->counter, __ATOMIC_ACQUIRE) - f->target) >= 0;
	callback_enter(&c, pool);
	done = f->done(f->ctx);
	callback_leave(&c);
	return done;
}

/* It is of no more use. */
static void fence_end(struct binpool *pool, const struct binpool_fence *f)
{
	struct callback c;

	if (f->kind == BINPOOL_FENCE_EVENTFD) {
		close(f->fd);
	} else if (f->kind == BINPOOL_FENCE_CALLBACK && f->release) {
		callback_enter(&c, pool);
		f->release(f->ctx);
		callback_leave(&c);
	}
}

/* Ends those fences that are over; how many ended in an error. The caller marked @p. */
static uint64_t ask(struct binpool *pool, struct pending *p)
{
	uint64_t errors = 0;

	while (p->n) {
		struct binpool_fence *f = &p->fence[p->n - 1];
		int done = fence_done(pool, f);

		if (!done)
			break;
		errors += done < 0;
		/* First, or a child forked meanwhile would close the descriptor once more. */
		p->n--;
		fence_end(pool, f);
	}
	return errors;
}

/* Asks the fences of up to @most buffers; how many were freed. Locked; lets the lock go. */
static uint64_t ask_some(struct binpool *pool, uint64_t most)
{
	uint64_t freed = 0, errors;
	struct pending *p;
	struct note *note;

	for (most = u64_min(most, pool->fences.count); most; most--) {
		p = list_turn(&pool->fences);
		if (!p)
			break;
		p->asking = true;
		pool->fences.asking++;
		pool_unlock(pool);
		errors = ask(pool, p);
		pool_lock(pool);
		p->asking = false;
		pool->fences.asking--;
		pool->stats.fence_errors += errors;
		if (p->n)
			continue;
		pool_trace(pool, "fences of %p are over", (void *)p->run->ptr);
		LIST_UNLINK(pool->fences.first, pool->fences.last, p);
		__atomic_store_n(&pool->fences.count, pool->fences.count - 1, __ATOMIC_RELAXED);
		pool->fences.bytes -= capacity_of(p->run);
		/* Others may still have references to it. */
		note = note_find(pool, p->run);
		share_end(pool, p->slot);
		if (note)
			note->fenced = NULL;
		else
			buffer_return(pool, p->run);
		free(p);
		freed++;
	}
	return freed;
}

/* Until no other thread is asking, or for long enough. Locked; lets the lock go. */
static void wait_for_askers(struct binpool *pool)
{
	const struct timespec moment = {.tv_nsec = 50000};

	for (int i = 0; pool->fences.asking && i < 1000; i++) {
		pool_unlock(pool);
		if (i < 100)
			sched_yield();
		else
			nanosleep(&moment, NULL);
		pool_lock(pool);
	}
}

uint64_t fences_poll(struct binpool *pool, uint64_t most)
{
	uint64_t freed;
	bool settle;

	/* Seen late at worst: most pools have none, and their misses need no second lock. */
	if (!__atomic_load_n(&pool->fences.count, __ATOMIC_RELAXED))
		return 0;
	pool_lock(pool);
	pool->leaving++;
	freed = ask_some(pool, most);
	/* What another thread was asking may be over since it asked. */
	if (most == UINT64_MAX && pool->fences.asking) {
		wait_for_askers(pool);
		freed += ask_some(pool, most);
	}
	settle = pool->give_back;
	pool_unlock(pool);
	if (settle)
		extents_settle(pool);
	pool_lock(pool);
	pool->leaving--;
	wake_idle(pool);
	pool_unlock(pool);
	return freed;
}

/* Whether @resting, the number of buffers in RUN_PENDING, and all else fits. Locked. */
const char *fences_check(const struct binpool *pool, uint64_t resting)
{
	uint64_t n = 0, bytes = 0, noted = 0;

	for (const struct pending *p = pool->fences.first; p; p = p->next) {
		const struct note *note = note_find(pool, p->run);

		if (note ? !note->freed || !note->fenced : run_state(p->run) != RUN_PENDING)
			return "a buffer that waits for fences is not marked so";
		n++;
		bytes += capacity_of(p->run);
		noted += note != NULL;
	}
	if (n != pool->fences.count || bytes != pool->fences.bytes || n - noted != resting)
		return "buffers that wait for fences are not counted right";
	return NULL;
}

/* Gives up a buffer's fences, telling the user nothing. */
static void pending_delete(struct pending *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->fence[i].kind == BINPOOL_FENCE_EVENTFD)
			close(p->fence[i].fd);
	free(p);
}

/* Only in a forked child is something left. */
void fences_fini(struct binpool *pool)
{
	struct pending *next;

	for (struct pending *p = pool->fences.first; p; p = next) {
		next = p->next;
		pending_delete(p);
	}
	pool->fences = (struct fences){0};
}

/* ---- Freeing ----------------------------------------------------------------- */

/* Takes over what the user says of a fence. -ERRNO, explained. */
static int fence_init(struct binpool_fence *f, const void *from, size_t i)
{
	int err = struct_in(f, sizeof(*f), from, "fence");

	if (err)
		return err;
	switch (f->kind) {
	case BINPOOL_FENCE_EVENTFD:
		f->fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0);
		return f->fd >= 0
			       ? 0
			       : explain(-errno, "fence %zu: descriptor: %s", i, strerror(errno));
	case BINPOOL_FENCE_COUNTER:
		if (!f->counter || (uintptr_t)f->counter % sizeof(*f->counter))
			return explain(-EINVAL,
				       "fence %zu: counter is NULL or not at a "
				       "multiple of 8",
				       i);
		return 0;
	case BINPOOL_FENCE_CALLBACK:
		return f->done ? 0 : explain(-EINVAL, "fence %zu: done is NULL", i);
	default:
		return explain(-EINVAL,
			       "fence %zu: kind is %u: EVENTFD (1), COUNTER (2) or CALLBACK (3)", i,
			       f->kind);
	}
}

static int fences_init(struct pending *p, const struct binpool_fence *fences, size_t n)
{
	const char *from = (const char *)fences;
	size_t step, size;
	int err;

	memcpy(&step, from, sizeof(step));
	for (; p->n < n; p->n++, from += step) {
		memcpy(&size, from, sizeof(size));
		if (size != step)
			return explain(
				-EINVAL,
				"fence %u: its member size is %zu, but that of the first %zu", p->n,
				size, step);
		err = fence_init(&p->fence[p->n], from, p->n);
		if (err)
			return err;
	}
	return 0;
}

/*
 * As note_release(), for a buffer that waits in @p. Others may use it until that is
 * over, in other processes too. Locked.
 */
static int release_later(struct binpool *pool, struct run *run, struct pending *p)
{
	struct note *note = note_find(pool, run);
	uint32_t slot = note ? note->slot : 0;
	int err;

	if (note)
		note->slot = 0;
	err = note_release(pool, run);
	if (!err) {
		p->slot = slot;
		run_set_state(run, RUN_PENDING);
		return 0;
	}
	note->slot = slot;
	if (err > 0)
		note->fenced = p;
	return err;
}

EXPORT int binpool_free_after(struct binpool *pool, void *ptr, const struct binpool_fence *fences,
			      size_t n)
{
	struct pending *p;
	struct run *run;
	bool wake = false, linger = false;
	int err = pool_enter(pool);

	if (err == -EOWNERDEAD)
		return 0;
	if (err)
		return err;
	if (!n)
		return release_at(pool, ptr, NULL);
	if (!fences || n > UINT16_MAX)
		return explain(-EINVAL, "fences is NULL, or more than %u", UINT16_MAX);
	p = malloc(sizeof(*p) + n * sizeof(p->fence[0]));
	if (!p)
		return explain(-ENOMEM, "no memory for %zu fences", n);
	*p = (struct pending){0};
	err = fences_init(p, fences, n);
	if (err) {
		pending_delete(p);
		return err;
	}
	pool_lock(pool);
	run = ptr ? buffer_find(pool, ptr, NULL) : NULL;
	err = run ? release_later(pool, run, p) : -EINVAL;
	if (err >= 0) {
		p->run = run;
		LIST_APPEND(pool->fences.first, pool->fences.last, p);
		__atomic_store_n(&pool->fences.count, pool->fences.count + 1, __ATOMIC_RELAXED);
		pool->fences.bytes += capacity_of(run);
		/* Who waits for the end of all buffers has to ask from now on. */
		if (pool->fences.count == 1)
			pool_wake(pool);
		wake = reaper_sleeps(pool);
		/* As in release_run(): its fences may be over as soon as the lock is let go. */
		linger = wake || pool->flags & BINPOOL_POOL_VERBOSE;
		pool->leaving += linger;
	}
	pool_unlock(pool);
	if (wake)
		reaper_wake(pool);
	if (linger) {
		pool_trace(pool, "free %p: waits for %zu fences", ptr, n);
		pool_unpin(pool, &pool->leaving);
	}
	if (err >= 0)
		return 0;
	if (!ptr)
		for (uint32_t i = 0; i < p->n; i++)
			if (p->fence[i].kind == BINPOOL_FENCE_CALLBACK)
				fence_end(pool, &p->fence[i]);
	pending_delete(p);
	return ptr ? -EINVAL : 0;
}

EXPORT int64_t binpool_poll(struct binpool *pool)
{
	uint64_t left;
	int err = pool_enter(pool);

	if (err)
		return err;
	fences_poll(pool, FENCES_PER_CALL);
	pool_lock(pool);
	left = pool->fences.count;
	pool_unlock(pool);
	return (int64_t)left;
}
