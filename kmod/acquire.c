// SPDX-License-Identifier: GPL-2.0
/*
 * Where a block's frames come from, in which order, and what is tried before a
 * request is refused. Owns the counts of who waits for room, which are atomic.
 *
 * What a request sleeps for, each time killably and bounded:
 *   frames that are being cleaned   the cleaners tell (clean.c)
 *   another's search for a run      its end tells (contig.c)
 *   its turn to scan                the scan before it tells (scan.c)
 *   limbo, if what is there would do, for limbo_wait_ms: room_made() tells, which
 *       whoever leaves room calls: limbo, a block that is closed, a limit that is
 *       raised, held memory that goes (which a round does not see on its way). What
 *       others do to RLIMIT_MEMLOCK and to the system's free memory is seen at the next
 *       of these.
 */
#include <linux/cpuset.h>
#include <linux/file.h>
#include <linux/sched/signal.h>

#include "internal.h"

static DECLARE_WAIT_QUEUE_HEAD(room_wait);
static atomic_t waiting; /* requests that may come to sleep there */
static atomic_t rooms;	 /* counts room_made() while there are any */

/*
 * Something that a request may have been refused for is no longer so. Not to be called
 * by a request for what it gives back itself: it would wake itself for ever. (What
 * reclaim on its behalf takes from us comes to an end.)
 */
void room_made(void)
{
	/* Either we see who is waiting, or he sees what made room. */
	smp_mb();
	if (!atomic_read(&waiting))
		return;
	atomic_inc(&rooms);
	wake_up_all(&room_wait);
}

/*
 * Waits until room was made since @seen was read of rooms, or until @deadline, in
 * jiffies. 0, -ETIMEDOUT, or -EINTR at a fatal signal.
 */
static int wait_for_room(int seen, unsigned long deadline)
{
	long left = deadline - jiffies;

	if (left <= 0)
		return -ETIMEDOUT;
	left = wait_event_killable_timeout(room_wait, atomic_read(&rooms) != seen, left);
	if (left < 0)
		return -EINTR;
	return left ? 0 : -ETIMEDOUT;
}

/* Whether the caller may use memory of @nid. */
bool node_allowed(int nid)
{
	return nid >= 0 && nid < MAX_NUMNODES && node_state(nid, N_MEMORY) &&
	       node_isset(nid, cpuset_current_mems_allowed);
}

/* The node after @node in which @req may look: the preferred one comes first. */
struct node_pool *next_node_of(const struct request *req, const struct node_pool *node)
{
	int nid, first = req->first;

	if (!node && node_allowed(first))
		return node_of(first);
	if (req->flags & BINPOOL_ALLOC_STRICT_NODE)
		return NULL;
	nid = node && node->nid != first ? node->nid + 1 : 0;
	for (; nid < MAX_NUMNODES; nid++)
		if (nid != first && node_allowed(nid))
			return node_of(nid);
	return NULL;
}

static void saw_runs(struct request *req, struct list_head *runs)
{
	struct frame *run;

	list_for_each_entry(run, runs, link)
		saw_run(req, run->nr);
}

/*
 * Frames of @node from the system: up to @nr if @some will do, else all or none.
 * Returns how many; fewer than @nr have a reason in *@err.
 */
unsigned long take_fresh(struct request *req, struct node_pool *node, unsigned long nr, bool some,
			 gfp_t gfp, struct list_head *runs, int *err)
{
	unsigned long take = room_take(nr, some, err), got = 0;
	LIST_HEAD(mine);

	if (take)
		got = fresh_runs(node, take, gfp, &mine);
	limit_give(take - got);
	if (got < take)
		*err = fatal_signal_pending(current) ? -EINTR : -ENOMEM;
	if (*err && !some) {
		saw_runs(req, &mine);
		frames_to_system(&mine);
		return 0;
	}
	req->fresh |= got;
	list_splice_tail(&mine, runs);
	return got;
}

static int take_fresh_block(struct request *req, struct node_pool *node, gfp_t gfp,
			    struct list_head *runs)
{
	int err;

	take_fresh(req, node, req->nr, false, gfp, runs, &err);
	return err;
}

/* The whole block from what @node holds, in several runs if need be. */
static bool take_held_block(struct request *req, struct node_pool *node, struct list_head *runs)
{
	struct frame *run = held_take(node, req->nr, req->align);
	LIST_HEAD(mine);

	if (run) {
		list_add_tail(&run->link, runs);
		return true;
	}
	if (READ_ONCE(node->stats.held) < req->nr)
		return false;
	if (held_join(node, req->nr, req->align, runs))
		return true;
	if (held_gather(node, req->nr, &mine) < req->nr) {
		held_return(&mine);
		return false;
	}
	list_splice_tail(&mine, runs);
	return true;
}

/* What is held on any node, and fresh frames of any node for the rest. */
static int take_mixed(struct request *req, struct list_head *runs)
{
	gfp_t gfp = req->flags & BINPOOL_ALLOC_NOWAIT ? GFP_FREE_ONLY : GFP_RECLAIM;
	struct node_pool *node;
	unsigned long got = 0;
	int err = -ENOMEM;
	LIST_HEAD(fresh);
	LIST_HEAD(held);

	for_each_node_of(node, req)
		got += held_gather(node, req->nr - got, &held);
	/* What else is held, on nodes that are not for this request, gives way to it. */
	make_room(req->nr - got);
	if (limit_left() < req->nr - got)
		err = -ENOSPC;
	for_each_node_of(node, req) {
		if (got == req->nr || err == -ENOSPC || err == -EINTR)
			break;
		got += take_fresh(req, node, req->nr - got, true, gfp, &fresh, &err);
	}
	if (got < req->nr) {
		saw_runs(req, &fresh);
		frames_to_system(&fresh);
		held_return(&held);
		return err;
	}
	list_splice_tail(&held, runs);
	list_splice_tail(&fresh, runs);
	return 0;
}

/* One round through all sources, cheap ones first. */
static int take_round(struct request *req, struct list_head *runs)
{
	struct node_pool *node;
	int err = -ENOMEM;

	if (req->flags & BINPOOL_ALLOC_CONTIG)
		return contig_round(req, runs);
	req->fresh = false;
	for_each_node_of(node, req) {
		if (take_held_block(req, node, runs))
			return 0;
		err = take_fresh_block(req, node, GFP_FREE_ONLY, runs);
		if (!err || err == -EINTR)
			return err;
	}
	if (!(req->flags & BINPOOL_ALLOC_NOWAIT)) {
		for_each_node_of(node, req) {
			err = take_fresh_block(req, node, GFP_RECLAIM, runs);
			if (!err || err == -EINTR)
				return err;
		}
	}
	return take_mixed(req, runs);
}

/*
 * Cleans what is dirty of @runs. If that is interrupted, or a frame turns out to
 * be poisoned, everything but the poisoned frame is held again, each part as
 * clean as it is: -EINTR, or -EAGAIN to take other frames.
 */
static int clean_all(struct list_head *runs)
{
	struct frame *run;
	int err;

	list_for_each_entry(run, runs, link) {
		unsigned long done = run_clean(run, &err);
		struct frame *rest = run;

		if (!err)
			continue;
		if (done) {
			rest = run_split(run, done, FRAME_TAKEN);
			run_set(run, run->other, done, run->state, true);
			list_add(&rest->link, &run->link);
		}
		if (err == -EHWPOISON) {
			if (rest->nr > 1) {
				struct frame *after = run_split(rest, 1, FRAME_TAKEN);

				list_add(&after->link, &rest->link);
			}
			list_del_init(&rest->link);
			frame_retire(rest);
			err = -EAGAIN;
		}
		held_return(runs);
		return err;
	}
	return 0;
}

/* One round, paid for: what fails is not charged. */
static int take_charged(struct request *req, struct list_head *runs)
{
	int err = charge_take(req);

	if (err)
		return err;
	err = frames_to_bytes(req->nr) > limit_max_bytes() ? -ENOSPC : take_round(req, runs);
	if (!err)
		err = clean_all(runs);
	if (err)
		charge_give(req->opener, req->nr, req->locked);
	return err;
}

/* Whether what is in limbo might be what @req failed for. */
static bool awaits_limbo(const struct request *req, int err)
{
	if (err == -EDQUOT)
		return charge_awaits_limbo(req);
	return limbo_total() && frames_to_bytes(req->nr) <= limit_max_bytes();
}

/*
 * The cheapest way: a run that lies ready, best a clean one, on the node that comes
 * first. No cleaner need be paused for it. -EDQUOT, or -EAGAIN if there is none.
 */
static int take_ready(struct request *req, struct list_head *runs)
{
	struct frame *run = NULL;
	int err = charge_take(req);

	if (err)
		return err;
	if (node_allowed(req->first))
		run = held_take(node_of(req->first), req->nr, req->align);
	if (run) {
		list_add_tail(&run->link, runs);
		if (!clean_all(runs))
			return 0;
	}
	charge_give(req->opener, req->nr, req->locked);
	return -EAGAIN;
}

/* One run may need just the frames in work, and a round for it breaks up others. */
static int pause_for(const struct request *req)
{
	return cleaners_pause(req->flags & BINPOOL_ALLOC_CONTIG ? PAUSE_LONG_MS : PAUSE_SHORT_MS);
}

/* Everything else, with the cleaners paused. */
static int take_anywhere(struct request *req, struct list_head *runs)
{
	unsigned long deadline = jiffies + msecs_to_jiffies(limbo_wait_ms);
	unsigned long back = jiffies + msecs_to_jiffies(PAUSE_LONG_MS);
	bool flushed = false;
	int err, waited;

	for (;;) {
		unsigned int searched = contig_generation();
		int seen = atomic_read(&rooms);
		bool busy = cleaners_busy();
		s64 returns = atomic64_read(&events.returns);

		err = take_charged(req, runs);
		if (!err)
			return 0;
		if (fatal_signal_pending(current))
			return -EINTR;
		if (err == -EAGAIN)
			continue;
		/* A frame in work, which a round cannot see, may be the one that is missing. */
		if (busy && err != -EDQUOT && time_before(jiffies, back)) {
			if (cleaners_wait(PAUSE_LONG_MS))
				return -EINTR;
			continue;
		}
		if (req->flags & BINPOOL_ALLOC_NOWAIT)
			return err;
		if (!flushed) {
			/* Blocks closed by kernel threads, or from interrupts. */
			flush_delayed_fput();
			flushed = true;
			if (atomic64_read(&events.returns) != returns)
				continue;
		}
		if (err != -EDQUOT) {
			waited = contig_wait(req, searched, deadline);
			if (waited == -EINTR)
				return waited;
			if (!waited)
				continue;
		}
		if (!awaits_limbo(req, err))
			return err;
		/* It may take long: nobody stops cleaning by being over a limit. */
		cleaners_resume();
		waited = wait_for_room(seen, deadline);
		if (pause_for(req) || waited == -EINTR)
			return -EINTR;
		if (waited)
			return err;
		back = jiffies + msecs_to_jiffies(PAUSE_LONG_MS);
	}
}

/*
 * Gets the clean frames of a block, as private runs in @runs, charged. -EINTR at a
 * fatal signal, -EDQUOT if who asks may not have them, -ENOSPC at the module's limit,
 * -ENOMEM if the system has none, or no run.
 */
int acquire(struct request *req, struct list_head *runs)
{
	int err;

	/* The caller may move to another node's CPU meanwhile. */
	req->first = req->nid == NUMA_NO_NODE ? numa_mem_id() : req->nid;
	err = take_ready(req, runs);
	if (!err || (err == -EDQUOT && req->flags & BINPOOL_ALLOC_NOWAIT))
		return err;
	atomic_inc(&waiting);
	/* As in room_made(). */
	smp_mb__after_atomic();
	err = pause_for(req) ?: take_anywhere(req, runs);
	atomic_dec(&waiting);
	cleaners_resume();
	return err;
}
