// SPDX-License-Identifier: GPL-2.0
/*
 * One run of memory: where a CONTIG block comes from. Held memory first; then a
 * search on each node, with more of it tried at each round: frames that are free,
 * frames that reclaim makes free, and at last frames of a certain place (scan.c).
 *
 * A search has frames of its own, private until it ends, and looks for a run among
 * them and what is held, which stays where it is meanwhile. What it did not need goes
 * back, but for its part of the longest run it saw: that is held, so that a request
 * for what was told as the longest is one that can be met.
 *
 * Meanwhile another request may fail for want of what a search is about to give back.
 * It waits for that (contig_wait()). Owns the counts for it.
 */
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/sort.h>
#include <linux/wait.h>

#include "internal.h"

/* More than asked for that is taken to find one run in it, in times of it. */
#define EXCESS	    3
#define EXCESS_SCAN 1 /* if a scan can fill what is missing */

/* Frames asked for at a time where that may take long. */
#define HARD_CHUNK 16UL

struct search {
	struct request *req;
	struct node_pool *node;
	struct list_head mine; /* private runs, by address, none adjacent to another */
	struct own own;	       /* mine and held; as of when it was last looked */
};

static atomic_t searching; /* rounds under way */
static atomic_t searched;  /* and those that have ended */
static DECLARE_WAIT_QUEUE_HEAD(searched_wait);

static unsigned long frames_of(const struct list_head *runs)
{
	const struct frame *run;
	unsigned long nr = 0;

	list_for_each_entry(run, runs, link)
		nr += run->nr;
	return nr;
}

/* Moves what private runs have from @key on, @nr frames, to @to. Returns how many. */
static unsigned long cut(struct list_head *runs, unsigned long key, unsigned long nr,
			 struct list_head *to)
{
	unsigned long end = key + nr, got = 0;
	struct frame *run, *tmp, *rest;

	list_for_each_entry_safe(run, tmp, runs, link) {
		unsigned long start = frame_key(run->page);

		if (start >= end || start + run->nr <= key)
			continue;
		if (start < key) {
			rest = run_split(run, key - start, FRAME_TAKEN);
			list_add(&rest->link, &run->link);
			run = rest;
			start = key;
		}
		if (start + run->nr > end) {
			rest = run_split(run, end - start, FRAME_TAKEN);
			list_add(&rest->link, &run->link);
		}
		list_move_tail(&run->link, to);
		got += run->nr;
	}
	return got;
}

static int stretch_cmp(const void *a, const void *b)
{
	const struct stretch *x = a, *y = b;

	return x->key < y->key ? -1 : x->key > y->key;
}

/* Looks again at what there is to make a run of. */
static int look_at_own(struct search *search)
{
	unsigned long max = READ_ONCE(search->node->stats.held), nr, i, last = 0;
	struct stretch *of;
	struct frame *run;

	list_for_each_entry(run, &search->mine, link)
		max++;
	kvfree(search->own.of);
	search->own = (struct own){};
	if (!max)
		return 0;
	of = kvmalloc_array(max, sizeof(*of), GFP_KERNEL);
	if (!of)
		return -ENOMEM;

	nr = 0;
	list_for_each_entry(run, &search->mine, link)
		of[nr++] = (struct stretch){frame_key(run->page), run->nr};
	nr += held_stretches(search->node, of + nr, max - nr);
	sort(of, nr, sizeof(*of), stretch_cmp, NULL);
	for (i = 1; i < nr; i++) {
		if (of[last].key + of[last].nr == of[i].key)
			of[last].nr += of[i].nr;
		else
			of[++last] = of[i];
	}
	search->own = (struct own){of, nr ? last + 1 : 0};
	return 0;
}

/* Frames of @s from its first aligned one on. */
static unsigned long aligned_nr(const struct stretch *s, unsigned long align)
{
	unsigned long skip = ALIGN(s->key, align) - s->key;

	return s->nr > skip ? s->nr - skip : 0;
}

/* The shortest stretch that serves, or the longest that does not; NULL if none. */
static const struct stretch *best_own(const struct search *search)
{
	const struct request *req = search->req;
	const struct stretch *best = NULL;
	unsigned long best_nr = 0, i;

	for (i = 0; i < search->own.nr; i++) {
		const struct stretch *s = &search->own.of[i];
		unsigned long nr = aligned_nr(s, req->align);

		if (nr && (nr >= req->nr ? best_nr < req->nr || nr < best_nr
					 : best_nr < req->nr && nr > best_nr)) {
			best = s;
			best_nr = nr;
		}
	}
	return best;
}

static unsigned long own_within(const struct own *own, unsigned long key, unsigned long nr)
{
	unsigned long got = 0, i;

	for (i = 0; i < own->nr; i++) {
		unsigned long from = max(key, own->of[i].key);
		unsigned long to = min(key + nr, own->of[i].key + own->of[i].nr);

		if (from < to)
			got += to - from;
	}
	return got;
}

/* Makes room for @missing frames of what is private: the longest run goes last. */
static void drop_mine(struct search *search, unsigned long missing)
{
	const struct stretch *best = best_own(search);
	LIST_HEAD(longest);

	if (best)
		cut(&search->mine, best->key, best->nr, &longest);
	frames_to_system(&search->mine);
	if (missing > room_left())
		frames_to_system(&longest);
	list_splice(&longest, &search->mine);
}

/*
 * Takes the window at @key: own frames, and with a @scan those that are missing. 0,
 * -EAGAIN if own frames have gone meanwhile, -EBUSY if not all of the missing ones
 * can be had; they are mine then. -EINTR, or what is in the way: -ENOSPC, -ENOMEM.
 */
static int take_window(struct search *search, struct scan *scan, unsigned long key,
		       struct list_head *runs)
{
	unsigned long nr = search->req->nr, missing, got = 0;
	LIST_HEAD(held);
	LIST_HEAD(mine);
	int err = 0;

	held_take_within(search->node, key, key + nr, &held);
	missing = nr - frames_of(&held) - cut(&search->mine, key, nr, &mine);
	if (missing != nr - own_within(&search->own, key, nr)) {
		err = -EAGAIN;
		goto back;
	}
	/* Before anybody's held memory has to go, what is of no use here does: if that helps. */
	if (missing > room_left() && missing <= room_possible() + frames_of(&search->mine))
		drop_mine(search, missing);
	if (missing && !make_room(missing)) {
		err = -ENOSPC;
	} else if (missing && room_take(missing, false, &err)) {
		got = scan_take(scan, &search->own, key, &mine);
		room_give(missing - got);
		search->req->fresh |= got;
		if (got < missing)
			err = fatal_signal_pending(current) ? -EINTR : -EBUSY;
	}
	if (!err) {
		list_splice_tail(&held, runs);
		list_splice_tail(&mine, runs);
		return 0;
	}
back:
	list_splice(&mine, &search->mine);
	runs_tidy(&search->mine);
	held_return(&held);
	return err;
}

/* A run of own frames, if there is one: 0, -EAGAIN if not, or another errno. */
static int take_own(struct search *search, struct list_head *runs)
{
	const struct request *req = search->req;
	struct frame *run = held_take(search->node, req->nr, req->align);
	const struct stretch *best;
	int err;

	if (run) {
		list_add_tail(&run->link, runs);
		return 0;
	}
	do {
		err = look_at_own(search);
		if (err)
			return err;
		best = best_own(search);
		if (!best || aligned_nr(best, req->align) < req->nr)
			return -EAGAIN;
		err = take_window(search, NULL, ALIGN(best->key, req->align), runs);
	} while (err == -EAGAIN);
	return err;
}

/*
 * Up to how many frames a search may have at a time: @excess times more than the @want
 * that hold an aligned run, but of what the limit leaves beside the request half is for
 * others.
 */
static unsigned long most_of(const struct search *search, unsigned long want, unsigned int excess)
{
	unsigned long nr = search->req->nr, have = frames_of(&search->mine);
	unsigned long room = limit_left() + have;

	return min((1 + excess) * want, room > nr ? nr + (room - nr) / 2 : nr);
}

/*
 * Frames from the page allocator until a run is among the own ones: as many as hold
 * an aligned run wherever they begin, then up to @excess times that, in small parts
 * and within most_of(). With @hard the system reclaims and compacts memory for them,
 * for contig_ms.
 */
static int take_batches(struct search *search, bool hard, unsigned int excess,
			struct list_head *runs)
{
	gfp_t gfp = (hard ? GFP_RECLAIM : GFP_FREE_ONLY) & ~__GFP_ZERO; /* most goes back */
	u64 end = ktime_get_ns() + (u64)READ_ONCE(contig_ms) * NSEC_PER_MSEC;
	unsigned long want = search->req->nr + search->req->align - 1;
	unsigned long have = frames_of(&search->mine), most, chunk;
	int short_of = 0, err = -EAGAIN;

	while (err == -EAGAIN && !short_of && (!hard || ktime_get_ns() < end)) {
		most = most_of(search, want, excess);
		if (have >= most)
			break;
		chunk = min(have < want ? want - have : max(want / 4, 1UL), most - have);
		if (hard)
			chunk = min(chunk, HARD_CHUNK);
		have += take_fresh(search->req, search->node, chunk, true, gfp, &search->mine,
				   &short_of);
		if (short_of == -EINTR)
			return -EINTR;
		runs_tidy(&search->mine);
		err = take_own(search, runs);
	}
	return err;
}

/* A run of a certain place. -EAGAIN if there is no time for it. */
static int take_scanned(struct search *search, struct list_head *runs)
{
	struct request *req = search->req;
	struct scan scan;
	unsigned long key;
	int err;

	err = scan_begin(&scan, search->node, req->nr, req->align, &req->scanned_ns);
	if (err)
		return err == -EINTR ? err : -EAGAIN;
	do {
		err = look_at_own(search);
		if (err)
			break;
		err = -EBUSY;
		if (!scan_window(&scan, &search->own, &key))
			break;
		err = take_window(search, &scan, key, runs);
	} while (err == -EBUSY || err == -EAGAIN);
	scan_end(&scan, &req->scanned_ns);
	return err;
}

/* Ends the search on a node: what the search has goes back, or is held. */
static void end_search(struct search *search, bool found)
{
	const struct stretch *best;
	LIST_HEAD(keep);

	if (!found && !look_at_own(search)) {
		best = best_own(search);
		if (best) {
			cut(&search->mine, best->key, best->nr, &keep);
			held_return(&keep);
		}
	}
	frames_to_system(&search->mine);
	kvfree(search->own.of);
	search->own = (struct own){};
}

/* One round on one node: 0, or an errno, of which only -EINTR ends the search. */
static int search_node(struct search *search, bool hard, struct list_head *runs)
{
	const struct request *req = search->req;
	bool scan = scan_possible() && !(req->flags & BINPOOL_ALLOC_NOWAIT);
	int err;

	err = take_own(search, runs);
	if (err != -EAGAIN)
		return err;
	if (!hard)
		return take_batches(search, false, scan ? EXCESS_SCAN : EXCESS, runs);
	if (scan) {
		err = take_scanned(search, runs);
		if (err != -EAGAIN)
			return err;
	} else if (req->nr > room_left() && !look_at_own(search) &&
		   scan_would_fit(search->node, req->nr, req->align, &search->own)) {
		/* Where nothing is moved, a run can only be where all is free. */
		make_room(req->nr - min(req->nr, frames_of(&search->mine)));
		err = take_batches(search, false, EXCESS, runs);
		if (err != -EAGAIN)
			return err;
	}
	return take_batches(search, true, scan ? EXCESS_SCAN : EXCESS, runs);
}

/* When all is over: the longest run that is held now is the one that is told. */
static void saw_held(struct request *req)
{
	struct search search = {.req = req, .mine = LIST_HEAD_INIT(search.mine)};
	const struct stretch *best;

	for_each_node_of(search.node, req) {
		best = look_at_own(&search) ? NULL : best_own(&search);
		if (best)
			saw_run(req, aligned_nr(best, req->align));
	}
	kvfree(search.own.of);
}

static int search_nodes(struct request *req, struct list_head *runs)
{
	struct search search = {.req = req, .mine = LIST_HEAD_INIT(search.mine)};
	struct node_stats sum;
	struct node_pool *node;
	int hard, err = -ENOMEM;

	req->fresh = false;
	req->run_max = 0;
	/* Too much is in use: no run would help. */
	sum = stats_sum();
	if (req->nr > limit_left() + sum.held - sum.taken)
		return -ENOSPC;
	for (hard = 0; hard < 2 && err && err != -EINTR; hard++) {
		if (hard && req->flags & BINPOOL_ALLOC_NOWAIT)
			break;
		for_each_node_of(node, req) {
			if (search.node && search.node != node)
				end_search(&search, false);
			search.node = node;
			err = search_node(&search, hard, runs);
			if (fatal_signal_pending(current))
				err = err ? -EINTR : 0;
			if (!err || err == -EINTR)
				break;
		}
	}
	if (search.node)
		end_search(&search, !err);
	if (!err || err == -EINTR)
		return err;
	saw_held(req);
	return -ENOMEM;
}

/* One round through all sources, cheap ones first. */
int contig_round(struct request *req, struct list_head *runs)
{
	int err;

	atomic_inc(&searching);
	err = search_nodes(req, runs);
	atomic_dec(&searching);
	atomic_inc(&searched);
	wake_up_all(&searched_wait);
	return err;
}

unsigned int contig_generation(void)
{
	return atomic_read(&searched);
}

/*
 * For a request that failed: whether a search ended, other than its own, since @gen was
 * read; else waits for one that is under way, until @deadline, in jiffies. 0,
 * -ETIMEDOUT if there is none or no time, or -EINTR at a fatal signal.
 */
int contig_wait(const struct request *req, unsigned int gen, unsigned long deadline)
{
	unsigned int own = req->flags & BINPOOL_ALLOC_CONTIG ? 1 : 0;
	long left = deadline - jiffies;

	if (left <= 0)
		return -ETIMEDOUT;
	if (contig_generation() - gen > own)
		return 0;
	if (wait_event_killable_timeout(searched_wait,
					contig_generation() - gen > own || !atomic_read(&searching),
					left) < 0)
		return -EINTR;
	return contig_generation() - gen > own ? 0 : -ETIMEDOUT;
}
