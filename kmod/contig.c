// SPDX-License-Identifier: GPL-2.0
/*
 * One run of memory: where a CONTIG block comes from. Owns no state.
 */
#include "internal.h"

/* More than asked for that is taken to find one run in it, in times of it. */
#define CONTIG_EXCESS 3

static bool take_held_run(struct request *req, struct node_pool *node, struct list_head *runs)
{
	struct frame *run = held_take(node, req->nr, req->align);

	if (run)
		list_add_tail(&run->link, runs);
	return run || held_join(node, req->nr, req->align, true, runs);
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
	held_to_system(node, GIVE_ALL, 0, found ? added - min(added, req->nr) : added);
	if (found)
		return 0;
	/* Memory there was, if enough came; only no run of it. */
	return added >= want || !err ? -ENOMEM : err;
}

/* One round through all sources, cheap ones first. */
int contig_round(struct request *req, struct list_head *runs)
{
	struct node_pool *node;
	int err = -ENOMEM;

	req->fresh = false;
	for_each_node_of(node, req) {
		if (take_held_run(req, node, runs))
			return 0;
		err = take_fresh_run(req, node, GFP_FREE_ONLY, runs);
		if (!err || err == -EINTR)
			return err;
	}
	if (!(req->flags & BINPOOL_ALLOC_NOWAIT)) {
		for_each_node_of(node, req) {
			err = take_fresh_run(req, node, GFP_RECLAIM, runs);
			if (!err || err == -EINTR)
				return err;
		}
	}
	/* Held memory in other shapes makes room for it. */
	for_each_node_of(node, req) {
		saw_run(req, held_run_max(node));
		if (req->flags & BINPOOL_ALLOC_NOWAIT ||
		    !floor_could_allow(req->nr, READ_ONCE(node->stats.held)) ||
		    !held_to_system(node, GIVE_SPARE, 0, ULONG_MAX))
			continue;
		err = take_fresh_run(req, node, GFP_FREE_ONLY, runs);
		if (!err || err == -EINTR)
			return err;
	}
	return err;
}
