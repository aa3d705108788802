// SPDX-License-Identifier: GPL-2.0
/*
 * Held frames: free, but kept for the next block. Per node, runs of clean and of
 * dirty frames in bins by their length; adjacent runs of one kind are joined when
 * they come, and split when a shorter one is wanted. Owns the bins; all of it is
 * protected by node->lock.
 *
 * A run is as old as the longer of the parts it was joined from, so that a hot
 * frame at its edge does not keep the rest of it young.
 *
 * A run is in the bin whose smallest length is at most its own, so every run of a
 * bin serves every request of that bin or a smaller one. The first frame of a
 * held run carries HELD_MARK in the index, to find held runs by address.
 */
#include <linux/bitmap.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "internal.h"

#define HELD_MARK XA_MARK_0

/* Held runs looked at per hold of a node's lock. */
#define WALK_BATCH 64

unsigned int nr_bins;

/* The smallest bin all of whose runs have at least @nr frames. */
static unsigned int serving_bin(unsigned long nr)
{
	return nr < 2 ? 0 : binpool_bin_number(mantissa_bits, nr - 1) + 1;
}

static int bins_init(struct bins *bins)
{
	unsigned int i;

	bins->list = kvmalloc_array(nr_bins, sizeof(*bins->list), GFP_KERNEL);
	bins->filled = bitmap_zalloc(nr_bins, GFP_KERNEL);
	bins->frames = kvcalloc(nr_bins, sizeof(*bins->frames), GFP_KERNEL);
	if (!bins->list || !bins->filled || !bins->frames)
		return -ENOMEM;
	for (i = 0; i < nr_bins; i++)
		INIT_LIST_HEAD(&bins->list[i]);
	return 0;
}

int held_init(struct node_pool *node)
{
	/* Runs longer than the machine has memory need no bin of their own. */
	nr_bins = serving_bin(2 * (limit_machine_bytes(NUMA_NO_NODE) >> PMD_SHIFT) + 2);
	return bins_init(&node->held[false]) ?: bins_init(&node->held[true]);
}

void held_exit(struct node_pool *node)
{
	int clean;

	for (clean = 0; clean < 2; clean++) {
		kvfree(node->held[clean].list);
		bitmap_free(node->held[clean].filled);
		kvfree(node->held[clean].frames);
	}
}

static void bin_add(struct node_pool *node, struct frame *run)
{
	struct bins *bins = &node->held[run->clean];
	unsigned int bin = run_bin(run->nr);

	lockdep_assert_held(&node->lock);
	list_add(&run->link, &bins->list[bin]);
	__set_bit(bin, bins->filled);
	bins->frames[bin] += run->nr;
	node->stats.held += run->nr;
	if (run->clean)
		node->stats.held_clean += run->nr;
}

static void bin_del(struct node_pool *node, struct frame *run)
{
	struct bins *bins = &node->held[run->clean];
	unsigned int bin = run_bin(run->nr);

	lockdep_assert_held(&node->lock);
	list_del_init(&run->link);
	bins->frames[bin] -= run->nr;
	if (list_empty(&bins->list[bin]))
		__clear_bit(bin, bins->filled);
	node->stats.held -= run->nr;
	if (run->clean)
		node->stats.held_clean -= run->nr;
}

static void link_run(struct node_pool *node, struct frame *run)
{
	bin_add(node, run);
	xa_set_mark(&frame_index, frame_key(run->page), HELD_MARK);
}

static void unlink_run(struct node_pool *node, struct frame *run)
{
	bin_del(node, run);
	xa_clear_mark(&frame_index, frame_key(run->page), HELD_MARK);
}

/*
 * The neighbour @n frames from @f, if it is held on the same node and as clean.
 * The nid is asked of the page first: only a record of our own node may be read.
 */
static struct frame *mate(struct node_pool *node, struct frame *f, long n)
{
	struct frame *other = frame_next(f, n);

	lockdep_assert_held(&node->lock);
	if (!other || pfn_to_nid((frame_key(f->page) + n) << FRAME_ORDER) != node->nid)
		return NULL;
	return other->state == FRAME_HELD && other->clean == f->clean ? other : NULL;
}

static void join_and_link(struct node_pool *node, struct frame *run)
{
	struct frame *before = mate(node, run, -1);
	struct frame *after = mate(node, run, run->nr);
	struct frame *last = run->other;

	if (before) {
		before = before->other;
		unlink_run(node, before);
		if (before->nr <= run->nr)
			before->since = run->since;
		before->nr += run->nr;
		run = before;
	}
	if (after) {
		unlink_run(node, after);
		if (after->nr > run->nr)
			run->since = after->since;
		run->nr += after->nr;
		last = after->other;
	}
	run_set(run, last, run->nr, FRAME_HELD, run->clean);
	link_run(node, run);
}

/*
 * Holds a run that was somewhere else. It is refused (false), and leaves, if nothing is
 * to be held, or while more is managed than the limit allows.
 */
static bool put_run(struct node_pool *node, struct frame *run)
{
	bool put = held_wanted(node);

	run_uncount(node, run);
	if (put)
		join_and_link(node, run);
	return put;
}

/*
 * Holds runs of which the caller has the only reference, wherever they are counted, or
 * gives them to the system if they may not be held.
 */
void held_return(struct list_head *runs)
{
	struct frame *run, *tmp;
	LIST_HEAD(gone);

	list_for_each_entry_safe(run, tmp, runs, link) {
		struct node_pool *node = node_of_frame(run);
		bool put, dirty = !run->clean;

		list_del_init(&run->link);
		run->since = jiffies;
		spin_lock(&node->lock);
		put = put_run(node, run);
		node_unlock(node);
		if (put && dirty)
			cleaners_wake(node);
		if (put)
			held_excess_to_system(node);
		else
			list_add_tail(&run->link, &gone);
		cond_resched();
	}
	frames_to_system(&gone);
}

/* Frames to skip at the start of @run until one of @align is met. */
static unsigned long misfit(const struct frame *run, unsigned long align)
{
	return -frame_key(run->page) & (align - 1);
}

/* Frames to skip so that @nr at the end of @run are taken, the first of @align. */
static unsigned long skip_to_end(const struct frame *run, unsigned long nr, unsigned long align)
{
	unsigned long key = frame_key(run->page);

	return ((key + run->nr - nr) & ~(align - 1)) - key;
}

/*
 * Takes @nr frames of a held run, from @skip on, which are private then; the rest
 * stays held. Cheapest is to take the end: the run keeps its place in the index.
 */
struct frame *held_carve(struct node_pool *node, struct frame *run, unsigned long skip,
			 unsigned long nr)
{
	struct frame *rest;

	lockdep_assert_held(&node->lock);
	if (skip) {
		bin_del(node, run);
		rest = run;
		run = run_split(run, skip, FRAME_TAKEN);
		bin_add(node, rest);
	} else {
		unlink_run(node, run);
		run_set(run, run->other, run->nr, FRAME_TAKEN, run->clean);
	}
	if (run->nr > nr) {
		rest = run_split(run, nr, FRAME_HELD);
		link_run(node, rest);
	}
	node->stats.taken += run->nr;
	return run;
}

/* The longest run of @bins, or nearly so: one of the last bin that is filled. */
static struct frame *longest(struct bins *bins)
{
	unsigned long bin = find_last_bit(bins->filled, nr_bins);

	return bin < nr_bins ? list_first_entry(&bins->list[bin], struct frame, link) : NULL;
}

/*
 * A frame that is being cleaned, which can take long, counts as a dirty run of one
 * though it is in no list: it is neither anybody's nor gone meanwhile.
 */
static void count_cleaning(struct node_pool *node, long nr)
{
	lockdep_assert_held(&node->lock);
	node->stats.taken -= nr;
	node->stats.held += nr;
	node->held[false].frames[run_bin(1)] += nr;
}

/* A held frame to clean, from the longest dirty run. */
struct frame *held_take_dirty(struct node_pool *node)
{
	struct frame *run;

	spin_lock(&node->lock);
	run = longest(&node->held[false]);
	if (run) {
		run = held_carve(node, run, run->nr - 1, 1);
		count_cleaning(node, 1);
	}
	node_unlock(node);
	return run;
}

/* Takes a frame of held_take_dirty() back, cleaned, and as old as it was. */
void held_put_cleaned(struct frame *f)
{
	struct node_pool *node = node_of_frame(f);
	LIST_HEAD(gone);
	bool put;

	f->clean = true;
	spin_lock(&node->lock);
	count_cleaning(node, -1);
	put = put_run(node, f);
	node_unlock(node);
	if (put) {
		held_excess_to_system(node);
		return;
	}
	list_add(&f->link, &gone);
	frames_to_system(&gone);
}

/* The same for a frame that cannot be cleaned: it is retired. */
void held_drop_poisoned(struct frame *f)
{
	struct node_pool *node = node_of_frame(f);

	spin_lock(&node->lock);
	count_cleaning(node, -1);
	node_unlock(node);
	frame_retire(f);
	room_made();
}

/* The run of @bins that serves best: smallest bin first, latest come first. */
static struct frame *best(struct bins *bins, unsigned long nr, unsigned long align)
{
	unsigned int bin = run_bin(nr);
	struct frame *run;

	run = list_first_entry_or_null(&bins->list[bin], struct frame, link);
	if (run && misfit(run, align) + nr <= run->nr)
		return run;
	bin = find_next_bit(bins->filled, nr_bins, serving_bin(nr + align - 1));
	if (bin >= nr_bins)
		return NULL;
	return list_first_entry(&bins->list[bin], struct frame, link);
}

/* One run of @nr frames that is all clean or all dirty, or NULL. */
struct frame *held_take(struct node_pool *node, unsigned long nr, unsigned long align)
{
	struct frame *run;

	spin_lock(&node->lock);
	run = best(&node->held[true], nr, align) ?: best(&node->held[false], nr, align);
	if (run)
		run = held_carve(node, run, skip_to_end(run, nr, align), nr);
	node_unlock(node);
	return run;
}

/*
 * Takes what a held run has of the frames from @from to before @to, as a private run
 * appended to @runs. Returns how long the run was.
 */
static unsigned long take_part(struct node_pool *node, struct frame *run, unsigned long from,
			       unsigned long to, struct list_head *runs)
{
	unsigned long key = frame_key(run->page), nr = run->nr;
	unsigned long skip = key < from ? from - key : 0;

	lockdep_assert_held(&node->lock);
	if (skip < nr && key < to) {
		run = held_carve(node, run, skip, min(nr - skip, to - key - skip));
		list_add_tail(&run->link, runs);
	}
	return nr;
}

/* A stretch of @nr adjacent held frames, clean or not, among the node's first runs. */
bool held_join(struct node_pool *node, unsigned long nr, unsigned long align,
	       struct list_head *runs)
{
	unsigned long key = 0, start = 0, end = 0, at;
	unsigned int seen = 0;
	bool found = false;
	struct frame *f;

	spin_lock(&node->lock);
	while (!found && seen++ < WALK_BATCH &&
	       (f = xa_find(&frame_index, &key, ULONG_MAX, HELD_MARK))) {
		if (pfn_to_nid(key << FRAME_ORDER) != node->nid) {
			key++;
			continue;
		}
		if (key != end)
			start = key;
		end = key + f->nr;
		at = ALIGN(start, align);
		found = at + nr <= end;
		key = end;
	}
	while (found && start < at + nr)
		start += take_part(node, xa_load(&frame_index, start), at, at + nr, runs);
	node_unlock(node);
	return found;
}

/* Where @node holds frames, by address: the first @max stretches. Returns how many. */
unsigned long held_stretches(struct node_pool *node, struct stretch *of, unsigned long max)
{
	unsigned long key = 0, nr = 0;
	unsigned int seen = 0;
	struct frame *f;

	spin_lock(&node->lock);
	while ((f = xa_find(&frame_index, &key, ULONG_MAX, HELD_MARK))) {
		if (++seen >= WALK_BATCH) {
			seen = 0;
			cond_resched_lock(&node->lock);
		} else if (pfn_to_nid(key << FRAME_ORDER) != node->nid) {
			key++;
		} else if (nr && of[nr - 1].key + of[nr - 1].nr == key) {
			of[nr - 1].nr += f->nr;
			key += f->nr;
		} else if (nr < max) {
			of[nr++] = (struct stretch){key, f->nr};
			key += f->nr;
		} else {
			break;
		}
	}
	spin_unlock(&node->lock);
	return nr;
}

/* Takes whatever is held of the frames from @from to before @to, in private runs. */
void held_take_within(struct node_pool *node, unsigned long from, unsigned long to,
		      struct list_head *runs)
{
	unsigned long key = 0;
	unsigned int seen = 0;
	struct frame *f;

	spin_lock(&node->lock);
	while (key < to && (f = xa_find(&frame_index, &key, to - 1, HELD_MARK))) {
		if (++seen >= WALK_BATCH) {
			seen = 0;
			cond_resched_lock(&node->lock);
		} else if (pfn_to_nid(key << FRAME_ORDER) != node->nid) {
			key++;
		} else {
			key += take_part(node, f, from, to, runs);
		}
	}
	node_unlock(node);
}

/* Up to @nr frames in few runs, clean ones first, appended to @runs. */
unsigned long held_gather(struct node_pool *node, unsigned long nr, struct list_head *runs)
{
	unsigned long got = 0;

	while (got < nr) {
		struct frame *run = held_take(node, nr - got, 1);

		if (!run) {
			spin_lock(&node->lock);
			run = longest(&node->held[true]) ?: longest(&node->held[false]);
			if (run) {
				unsigned long n = min(run->nr, nr - got);

				run = held_carve(node, run, run->nr - n, n);
			}
			node_unlock(node);
		}
		if (!run)
			break;
		list_add_tail(&run->link, runs);
		got += run->nr;
		cond_resched();
	}
	return got;
}

/* Frames in the runs of a bin, and in the smallest one those that are being cleaned. */
unsigned long held_in_bin(struct node_pool *node, unsigned int bin, bool clean_only)
{
	unsigned long nr;

	spin_lock(&node->lock);
	nr = node->held[true].frames[bin];
	if (!clean_only)
		nr += node->held[false].frames[bin];
	spin_unlock(&node->lock);
	return nr;
}
