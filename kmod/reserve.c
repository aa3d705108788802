// SPDX-License-Identifier: GPL-2.0
/*
 * The reserve: memory that is got from the system ahead and kept. A node's reserve
 * is how many frames it manages at least, in whatever state; held frames above it
 * are spare, and what the system may have back. It is filled in the background, a
 * few frames at a time, within max_bytes and floor_bytes. Owns node->reserve,
 * node->spare and node->batches (all protected by node->lock) and the work that fills.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mmzone.h>
#include <linux/mutex.h>
#include <linux/nodemask.h>

#include "internal.h"
#include "param.h"

/* Frames got at a time. */
#define FILL_BATCH 32UL

/* Pauses after an attempt that did not get all. */
#define DELAY_MIN_MS 1000
#define DELAY_MAX_MS 60000

static bool stopped;			    /* the system hibernates, or the module is unloaded */
static DECLARE_WAIT_QUEUE_HEAD(batch_wait); /* for the end of a batch */

unsigned long node_managed(const struct node_pool *node)
{
	const struct node_stats *stats = &node->stats;

	return stats->active + stats->held + stats->taken + stats->limbo + stats->quarantine;
}

/* Held frames above the reserve. */
unsigned long node_spare(const struct node_pool *node)
{
	unsigned long managed = node_managed(node);

	return min(node->stats.held, managed > node->reserve ? managed - node->reserve : 0);
}

/*
 * Ends a change of @node's counts. Spare frames are told to the system as
 * reclaimable, so that MemAvailable has them.
 */
void node_unlock(struct node_pool *node) __releases(&node->lock)
{
	unsigned long spare = node_spare(node);
	long more = spare - node->spare;

	lockdep_assert_held(&node->lock);
	if (more) {
		node->spare = spare;
		mod_node_page_state(NODE_DATA(node->nid), NR_KERNEL_MISC_RECLAIMABLE,
				    more * (long)FRAME_PAGES);
	}
	spin_unlock(&node->lock);
}

static unsigned long missing(struct node_pool *node)
{
	unsigned long managed, reserve;

	spin_lock(&node->lock);
	managed = node_managed(node);
	reserve = node->reserve;
	spin_unlock(&node->lock);
	return reserve > managed ? reserve - managed : 0;
}

/* Begins a batch, unless nothing is missing. Returns how many frames to get. */
static unsigned long batch_begin(struct node_pool *node)
{
	unsigned long nr, managed;

	spin_lock(&node->lock);
	managed = node_managed(node);
	nr = node->reserve > managed ? min(node->reserve - managed, FILL_BATCH) : 0;
	if (nr)
		WRITE_ONCE(node->batches, node->batches + 1);
	spin_unlock(&node->lock);
	return nr;
}

static void batch_end(struct node_pool *node)
{
	spin_lock(&node->lock);
	WRITE_ONCE(node->batches, node->batches + 1);
	spin_unlock(&node->lock);
	wake_up_all(&batch_wait);
}

/* Waits until the batch is over that may have begun before now: 0, or -EINTR. */
static int batch_wait_over(struct node_pool *node)
{
	unsigned int now;

	spin_lock(&node->lock);
	now = node->batches;
	spin_unlock(&node->lock);
	if (!(now & 1))
		return 0;
	return wait_event_killable(batch_wait, READ_ONCE(node->batches) != now) ? -EINTR : 0;
}

/* Gets up to @nr frames and holds them. Returns how many. */
static unsigned long fill_some(struct node_pool *node, unsigned long nr)
{
	struct request nobodys = {};
	unsigned long got;
	LIST_HEAD(runs);
	int err;

	got = take_fresh(&nobodys, node, nr, true, GFP_RECLAIM, &runs, &err);
	/* Of what is scattered the page allocator makes no more. */
	if (!got)
		got = scan_frames(node, nr, &runs);
	/* What max_bytes, lowered meanwhile, has no room for goes back. */
	held_return(&runs);
	return got;
}

static void fill(struct work_struct *work)
{
	struct node_pool *node = container_of(to_delayed_work(work), struct node_pool, fill_work);
	unsigned long nr, got;

	do {
		nr = READ_ONCE(stopped) ? 0 : batch_begin(node);
		if (!nr)
			break;
		got = fill_some(node, nr);
		batch_end(node);
		cond_resched();
	} while (got);
	complete_all(&node->filled);
	if (!READ_ONCE(stopped) && missing(node)) {
		node->fill_delay_ms =
			clamp_t(unsigned int, node->fill_delay_ms * 2, DELAY_MIN_MS, DELAY_MAX_MS);
		queue_delayed_work(system_unbound_wq, &node->fill_work,
				   msecs_to_jiffies(node->fill_delay_ms));
	}
}

/* Looks at @node's reserve now, if anything of it is missing. */
void reserve_fill_node(struct node_pool *node)
{
	if (READ_ONCE(stopped) || !missing(node))
		return;
	node->fill_delay_ms = 0;
	mod_delayed_work(system_unbound_wq, &node->fill_work, 0);
}

/* Looks at all nodes' reserves now: one was raised, or there is more room. */
void reserve_fill(void)
{
	int nid;

	for_each_node_state(nid, N_MEMORY)
		reserve_fill_node(node_of(nid));
}

/* Stops filling; reserve_stop(false) begins again. */
void reserve_stop(bool on)
{
	int nid;

	WRITE_ONCE(stopped, on);
	if (!on) {
		reserve_fill();
		return;
	}
	for_each_node(nid)
		if (node_of(nid))
			cancel_delayed_work_sync(&node_of(nid)->fill_work);
}

unsigned long reserve_total(void)
{
	unsigned long nr = 0;
	int nid;

	for_each_node(nid)
		nr += READ_ONCE(node_of(nid)->reserve);
	return nr;
}

unsigned long reserve_filled(int nid)
{
	struct node_pool *node = node_of(nid);
	unsigned long nr;

	spin_lock(&node->lock);
	nr = node_managed(node);
	/* What a batch has got is not to be had before it is held. */
	if (node->batches & 1)
		nr -= node->stats.taken;
	nr = min(nr, node->reserve);
	spin_unlock(&node->lock);
	return nr;
}

static DEFINE_MUTEX(set_lock); /* one change of reserves at a time */

/* Returns whether it was lowered: the caller then waits for the batch under way. */
static bool set_node(struct node_pool *node, unsigned long nr)
{
	bool lowered;

	spin_lock(&node->lock);
	lowered = nr < node->reserve;
	node->reserve = nr;
	node_unlock(node);
	reserve_fill_node(node);
	return lowered;
}

/* Says which limit was in the way; @others is what the other nodes' reserves take of it. */
static void refuse_above(const struct node_pool *node, u64 bytes, u64 others)
{
	u64 max = limit_max_bytes(), now = frames_to_bytes(node->reserve);

	if (!__ratelimit(&refusals))
		return;
	pr_notice("node%d/reserve_bytes=%llu beside %llu is above max_bytes=%llu; it stays %llu\n",
		  node->nid, bytes, others, max, now);
}

/*
 * Sets the reserve of one node, rounded down to frames. Returns as soon as it is set
 * and nothing more comes for one that was higher. -EINVAL if all reserves together would
 * be above max_bytes, -EINTR at a fatal signal.
 */
int reserve_set_node(int nid, u64 bytes)
{
	struct node_pool *node = node_of(nid);
	u64 others, max = limit_max_bytes();
	bool lowered = false;
	int err = 0;

	if (mutex_lock_killable(&set_lock))
		return -EINTR;
	others = frames_to_bytes(reserve_total() - node->reserve);
	if (bytes > max || others + bytes > max) {
		err = -EINVAL;
		refuse_above(node, bytes, others);
	} else {
		lowered = set_node(node, bytes >> PMD_SHIFT);
	}
	mutex_unlock(&set_lock);
	return lowered ? batch_wait_over(node) : err;
}

/* As reserve_set_node(), for all nodes that have memory, in equal parts. */
int reserve_set(u64 bytes)
{
	unsigned long nr = bytes >> PMD_SHIFT;
	unsigned int nodes = num_node_state(N_MEMORY);
	nodemask_t lowered = NODE_MASK_NONE;
	int nid, err = 0;
	u64 max = limit_max_bytes();

	if (bytes > max) {
		if (__ratelimit(&refusals))
			pr_notice("reserve_bytes=%llu is above max_bytes=%llu; it stays %llu\n",
				  bytes, max, frames_to_bytes(reserve_total()));
		return -EINVAL;
	}
	if (mutex_lock_killable(&set_lock))
		return -EINTR;
	for_each_node_state(nid, N_MEMORY) {
		unsigned long part = DIV_ROUND_UP(nr, nodes);

		if (set_node(node_of(nid), part))
			node_set(nid, lowered);
		nr -= part;
		nodes--;
	}
	mutex_unlock(&set_lock);
	for_each_node_mask(nid, lowered) err = err ?: batch_wait_over(node_of(nid));
	return err;
}

/* Waits until each node's first attempt to fill is over, or a fatal signal comes. */
void reserve_wait_filled(void)
{
	int nid;

	for_each_node_state(nid, N_MEMORY)
		if (READ_ONCE(node_of(nid)->reserve) &&
		    wait_for_completion_killable(&node_of(nid)->filled))
			return;
}

void reserve_init(struct node_pool *node)
{
	INIT_DELAYED_WORK(&node->fill_work, fill);
	init_completion(&node->filled);
}

/* At unload, after the last frame of @node went. */
void reserve_exit(struct node_pool *node)
{
	cancel_delayed_work_sync(&node->fill_work);
}
