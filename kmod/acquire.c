// SPDX-License-Identifier: GPL-2.0
/*
 * Where a block's frames come from, in which order, and what is tried before a
 * request is refused. Owns no state.
 */
#include <linux/cpuset.h>
#include <linux/file.h>
#include <linux/sched/signal.h>

#include "internal.h"

/* Without reclaim first: what is free costs nobody anything. */
#define GFP_FREE_ONLY ((GFP_HIGHUSER | __GFP_ZERO) & ~__GFP_DIRECT_RECLAIM)
#define GFP_RECLAIM   (GFP_HIGHUSER | __GFP_ZERO | __GFP_RETRY_MAYFAIL)

/* More than asked for that is taken to find one run in it, in times of it. */
#define CONTIG_EXCESS 3

/* Whether the caller may use memory of @nid. */
bool node_allowed(int nid)
{
	return nid >= 0 && nid < MAX_NUMNODES && node_state(nid, N_MEMORY) &&
	       node_isset(nid, cpuset_current_mems_allowed);
}

/* The node after @node in which @req may look: the preferred one comes first. */
static struct node_pool *next_node_of(const struct request *req, const struct node_pool *node)
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

#define for_each_node_of(node, req)                                                                \
	for (node = next_node_of(req, NULL); node; node = next_node_of(req, node))

static void saw_run(struct request *req, unsigned long nr)
{
	req->run_max = max(req->run_max, nr);
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
static unsigned long take_fresh(struct request *req, struct node_pool *node, unsigned long nr,
				bool some, gfp_t gfp, struct list_head *runs, int *err)
{
	unsigned long take = limit_take(nr, some), got = 0, room;
	LIST_HEAD(mine);

	*err = take < nr ? -ENOSPC : 0;
	room = floor_take(take, some);
	if (room < take) {
		*err = -ENOMEM;
		limit_give(take - room);
		take = room;
	}
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

static bool take_held_run(struct request *req, struct node_pool *node, struct list_head *runs)
{
	struct frame *run = held_take(node, req->nr, req->align);

	if (run)
		list_add_tail(&run->link, runs);
	return run ||
	       ((req->flags & BINPOOL_ALLOC_CONTIG) && held_join(node, req->nr, req->align, runs));
}

/*
 * One run from fresh frames: they are put beside the held ones, where neighbours
 * join, until one run is long enough; what was too much goes back.
 */
static int take_fresh_run(struct request *req, struct node_pool *node, gfp_t gfp,
			  struct list_head *runs)
{
	/* As many as hold an aligned run wherever they begin. */
	unsigned long want = req->nr + req->align - 1;
	unsigned long chunk = want, added = 0, got;
	struct frame *run, *tmp;
	bool found = false;
	int err;

	do {
		LIST_HEAD(mine);

		got = take_fresh(req, node, chunk, true, gfp, &mine, &err);
		list_for_each_entry_safe(run, tmp, &mine, link) {
			list_del_init(&run->link);
			held_put(run, true);
		}
		added += got;
		found = got && take_held_run(req, node, runs);
		chunk = max(want / 4, 1UL);
	} while (!found && !err && added < (1 + CONTIG_EXCESS) * want);

	if (!found)
		saw_run(req, held_run_max(node));
	held_to_system(node, 0, found ? added - min(added, req->nr) : added);
	if (found)
		return 0;
	/* Memory there was, if enough came; only no run of it. */
	return added >= want || !err ? -ENOMEM : err;
}

static int take_fresh_block(struct request *req, struct node_pool *node, gfp_t gfp,
			    struct list_head *runs)
{
	int err;

	if (req->flags & BINPOOL_ALLOC_CONTIG)
		return take_fresh_run(req, node, gfp, runs);
	take_fresh(req, node, req->nr, false, gfp, runs, &err);
	return err;
}

/* The whole block from what @node holds, in several runs if need be. */
static bool take_held_block(struct request *req, struct node_pool *node, struct list_head *runs)
{
	LIST_HEAD(mine);

	if (take_held_run(req, node, runs))
		return true;
	if (req->flags & BINPOOL_ALLOC_CONTIG || READ_ONCE(node->stats.held) < req->nr)
		return false;
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
	if (!(req->flags & BINPOOL_ALLOC_CONTIG))
		return take_mixed(req, runs);
	/* One run: held memory in other shapes makes room for it. */
	for_each_node_of(node, req) {
		saw_run(req, held_run_max(node));
		if (req->flags & BINPOOL_ALLOC_NOWAIT ||
		    !floor_could_allow(req->nr, READ_ONCE(node->stats.held)) ||
		    !held_to_system(node, 0, ULONG_MAX))
			continue;
		err = take_fresh_block(req, node, GFP_FREE_ONLY, runs);
		if (!err || err == -EINTR)
			return err;
	}
	return err;
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
			rest = run_split(run, done);
			run_set(run, done, run->state, true);
			list_add(&rest->link, &run->link);
		}
		if (err == -EHWPOISON) {
			if (rest->nr > 1) {
				struct frame *after = run_split(rest, 1);

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

/*
 * Gets the clean frames of a block, as private runs in @runs. -EINTR at a fatal
 * signal, -ENOSPC at the limit, -ENOMEM if the system has none, or no run.
 */
int acquire(struct request *req, struct list_head *runs)
{
	unsigned long deadline = jiffies + msecs_to_jiffies(limbo_wait_ms);
	bool flushed = false;

	if (frames_to_bytes(req->nr) > limit_max_bytes())
		return -ENOSPC;
	/* The caller may move to another node's CPU meanwhile. */
	req->first = req->nid == NUMA_NO_NODE ? numa_mem_id() : req->nid;
	for (;;) {
		unsigned int gen = limbo_generation();
		s64 returns = atomic64_read(&events.returns);
		int err = take_round(req, runs);

		if (!err)
			err = clean_all(runs);
		if (!err)
			return 0;
		if (fatal_signal_pending(current))
			return -EINTR;
		if (err == -EAGAIN)
			continue;
		if (req->flags & BINPOOL_ALLOC_NOWAIT)
			return err;
		if (!flushed) {
			/* Blocks closed by kernel threads, or from interrupts. */
			flush_delayed_fput();
			flushed = true;
			if (atomic64_read(&events.returns) != returns)
				continue;
		}
		if (!limbo_total())
			return err;
		switch (limbo_wait(gen, deadline)) {
		case -EINTR:
			return -EINTR;
		case -ETIMEDOUT:
			return err;
		}
	}
}
