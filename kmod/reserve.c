// SPDX-License-Identifier: GPL-2.0
/*
 * The reserve: memory that is got from the system ahead and kept. A node's reserve
 * is how many frames it manages at least, in whatever state; held frames above it
 * are spare, and what the system may have back. It is filled in the background, a
 * few frames at a time, within max_bytes and floor_bytes. Owns node->reserve and
 * node->spare (both protected by node->lock) and the work that fills.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mmzone.h>
#include <linux/mutex.h>
#include <linux/nodemask.h>

#include "internal.h"

/* Frames got at a time. */
#define FILL_BATCH 32

/* Pauses after an attempt that did not get all. */
#define DELAY_MIN_MS 1000
#define DELAY_MAX_MS 60000

static bool stopped; /* the system hibernates, or the module is unloaded */

unsigned long node_managed(const struct node_pool *node)
{
	return node->stats.active + node->stats.held + node->stats.limbo + node->stats.quarantine;
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

/* Gets up to @nr frames and holds them. Returns how many. */
static unsigned long fill_some(struct node_pool *node, unsigned long nr)
{
	struct request nobodys = {};
	struct frame *run, *tmp;
	unsigned long got;
	LIST_HEAD(runs);
	int err;

	got = take_fresh(&nobodys, node, nr, true, GFP_RECLAIM, &runs, &err);
	/* Of what is scattered the page allocator makes no more. */
	if (!got)
		got = scan_frames(node, nr, &runs);
	list_for_each_entry_safe(run, tmp, &runs, link) {
		list_del_init(&run->link);
		held_put(run, true);
	}
	return got;
}

static void fill(struct work_struct *work)
{
	struct node_pool *node = container_of(to_delayed_work(work), struct node_pool, fill_work);
	unsigned long nr;

	while (!READ_ONCE(stopped) && (nr = missing(node)) &&
	       fill_some(node, min_t(unsigned long, nr, FILL_BATCH)))
		cond_resched();
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
	nr = min(node_managed(node), node->reserve);
	spin_unlock(&node->lock);
	return nr;
}

static DEFINE_MUTEX(set_lock); /* one change of reserves at a time */

static void set_node(struct node_pool *node, unsigned long nr)
{
	spin_lock(&node->lock);
	node->reserve = nr;
	node_unlock(node);
	reserve_fill_node(node);
}

/*
 * Sets the reserve of one node, rounded down to frames; returns as soon as it is set.
 * -EINVAL if all reserves together would be above max_bytes.
 */
int reserve_set_node(int nid, u64 bytes)
{
	struct node_pool *node = node_of(nid);
	int err = 0;

	if (mutex_lock_killable(&set_lock))
		return -EINTR;
	if (bytes > limit_max_bytes() ||
	    frames_to_bytes(reserve_total() - node->reserve) + bytes > limit_max_bytes())
		err = -EINVAL;
	else
		set_node(node, bytes >> PMD_SHIFT);
	mutex_unlock(&set_lock);
	return err;
}

/* As reserve_set_node(), for all nodes that have memory, in equal parts. */
int reserve_set(u64 bytes)
{
	unsigned long nr = bytes >> PMD_SHIFT;
	unsigned int nodes = num_node_state(N_MEMORY);
	int nid;

	if (bytes > limit_max_bytes())
		return -EINVAL;
	if (mutex_lock_killable(&set_lock))
		return -EINTR;
	for_each_node_state(nid, N_MEMORY) {
		unsigned long part = DIV_ROUND_UP(nr, nodes);

		set_node(node_of(nid), part);
		nr -= part;
		nodes--;
	}
	mutex_unlock(&set_lock);
	return 0;
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
