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
	int first = req->nid == NUMA_NO_NODE ? numa_mem_id() : req->nid;
	int nid;

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

/* @nr frames of @node from the system, all or none. */
static int take_fresh(struct request *req, struct node_pool *node, unsigned long nr, gfp_t gfp,
		      struct list_head *runs)
{
	unsigned long got;
	LIST_HEAD(mine);

	if (!limit_take(nr))
		return -ENOSPC;
	got = limit_floor_allows(nr) ? fresh_runs(node, nr, gfp, &mine) : 0;
	limit_give(nr - got);
	if (got < nr) {
		saw_runs(req, &mine);
		frames_to_system(&mine);
		return fatal_signal_pending(current) ? -EINTR : -ENOMEM;
	}
	req->fresh = true;
	list_splice_tail(&mine, runs);
	return 0;
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
	unsigned long added = 0, chunk = req->nr;
	struct frame *run, *tmp;
	bool found = false;
	int err;

	do {
		LIST_HEAD(mine);

		err = take_fresh(req, node, chunk, gfp, &mine);
		if (err)
			break;
		list_for_each_entry_safe(run, tmp, &mine, link) {
			list_del_init(&run->link);
			held_put(run, true);
		}
		added += chunk;
		found = take_held_run(req, node, runs);
		chunk = max(req->nr / 4, 1UL);
	} while (!found && added < (1 + CONTIG_EXCESS) * req->nr);

	if (!found)
		saw_run(req, held_run_max(node));
	else
		added -= min(added, req->nr);
	held_to_system(node, 0, added);
	if (found)
		return 0;
	/* Memory there was, if any came; only no run of it. */
	return added || !err ? -ENOMEM : err;
}

static int take_fresh_block(struct request *req, struct node_pool *node, gfp_t gfp,
			    struct list_head *runs)
{
	if (req->flags & BINPOOL_ALLOC_CONTIG)
		return take_fresh_run(req, node, gfp, runs);
	return take_fresh(req, node, req->nr, gfp, runs);
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
	unsigned long got = 0;
	int err = -ENOMEM;
	struct node_pool *node;
	LIST_HEAD(mine);

	for_each_node_of(node, req)
		got += held_gather(node, req->nr - got, &mine);
	for_each_node_of(node, req) {
		gfp_t gfp = req->flags & BINPOOL_ALLOC_NOWAIT ? GFP_FREE_ONLY : GFP_RECLAIM;
		unsigned long part = req->nr - got;

		/* Halve what does not fit on one node. */
		while (got < req->nr && part) {
			err = take_fresh(req, node, part, gfp, &mine);
			if (!err)
				got += part;
			if (err == -ENOSPC || err == -EINTR)
				break;
			part = err ? part / 2 : req->nr - got;
		}
	}
	if (got < req->nr) {
		saw_runs(req, &mine);
		held_return(&mine);
		return err;
	}
	list_splice_tail(&mine, runs);
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
		if (!held_to_system(node, 0, ULONG_MAX))
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
	unsigned long left = msecs_to_jiffies(limbo_wait_ms);
	bool flushed = false;

	if (frames_to_bytes(req->nr) > limit_max_bytes())
		return -ENOSPC;
	for (;;) {
		unsigned int gen = limbo_generation();
		int err = take_round(req, runs);

		if (!err)
			err = clean_all(runs);
		if (!err) {
			atomic64_inc(req->fresh ? &events.allocs : &events.reuses);
			return 0;
		}
		if (err == -EAGAIN)
			continue;
		if (err == -EINTR || req->flags & BINPOOL_ALLOC_NOWAIT)
			return err;
		if (!flushed) {
			/* Blocks closed by kernel threads, or from interrupts. */
			flush_delayed_fput();
			flushed = true;
			continue;
		}
		if (!limbo_total())
			return err;
		switch (limbo_wait(gen, &left)) {
		case -EINTR:
			return -EINTR;
		case -ETIMEDOUT:
			return err;
		}
	}
}
