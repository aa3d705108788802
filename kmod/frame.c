// SPDX-License-Identifier: GPL-2.0
/*
 * Frames: their records and index, how they come from the system and go back,
 * cleaning, and whether somebody else still holds one. Owns the index of all
 * frames, by page frame number; see internal.h for who may erase from it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/highmem.h>
#include <linux/list_sort.h>
#include <linux/page-flags.h>
#include <linux/page_ref.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/sort.h>

#include "compat.h"
#include "internal.h"
#include "trace.h"

/* Frames erased from the index per hold of a node's lock. */
#define ERASE_BATCH 64

DEFINE_XARRAY(frame_index);
static struct kmem_cache *records;

unsigned long frame_key(const struct page *page)
{
	return page_to_pfn(page) >> FRAME_ORDER;
}

/*
 * The frame @n frames after (before, if negative) @f in memory, NULL if it is
 * not ours. For frames beyond @f's own run hold the lock of @f's node, and mind
 * that the neighbour may be of another node.
 */
struct frame *frame_next(const struct frame *f, long n)
{
	return xa_load(&frame_index, frame_key(f->page) + n);
}

/* Makes a run of the @nr frames from @first to @last. */
void run_set(struct frame *first, struct frame *last, unsigned long nr, enum frame_state state,
	     bool clean)
{
	first->nr = nr;
	first->other = last;
	last->other = first;
	first->state = state;
	first->clean = clean;
	last->state = state;
	last->clean = clean;
}

/* Cuts a run after @nr frames; returns what follows, in no list and in @state. */
struct frame *run_split(struct frame *f, unsigned long nr, enum frame_state state)
{
	unsigned long rest_nr = f->nr - nr;
	struct frame *last = f->other;
	struct frame *rest = rest_nr == 1 ? last : frame_next(f, nr);

	run_set(f, nr == 1 ? f : frame_next(f, nr - 1), nr, f->state, f->clean);
	run_set(rest, last, rest_nr, state, f->clean);
	rest->since = f->since;
	INIT_LIST_HEAD(&rest->link);
	return rest;
}

static unsigned long *number_of(struct node_pool *node, const struct frame *run)
{
	switch (run->state) {
	case FRAME_ACTIVE:
		return &node->stats.active;
	case FRAME_LIMBO:
		return &node->stats.limbo;
	case FRAME_QUARANTINE:
		return &node->stats.quarantine;
	default:
		return &node->stats.taken;
	}
}

/*
 * Takes a run, which is not held, out of its node's numbers: it will be counted again
 * before anybody sees them, or it leaves for the system.
 */
void run_uncount(struct node_pool *node, struct frame *run)
{
	lockdep_assert_held(&node->lock);
	if (run->state == FRAME_LEAVING)
		return;
	*number_of(node, run) -= run->nr;
	run->state = FRAME_LEAVING;
}

static int run_cmp(void *unused, const struct list_head *a, const struct list_head *b)
{
	unsigned long x = frame_key(list_entry(a, struct frame, link)->page);
	unsigned long y = frame_key(list_entry(b, struct frame, link)->page);

	return x < y ? -1 : x > y;
}

/*
 * Sorts private runs by address and joins those that are adjacent, of one node and
 * equally clean. Returns how many they are then.
 */
unsigned int runs_tidy(struct list_head *runs)
{
	struct frame *run, *tmp, *prev = NULL;
	unsigned int n = 0;

	if (list_is_singular(runs))
		return 1;
	list_sort(NULL, runs, run_cmp);
	list_for_each_entry_safe(run, tmp, runs, link) {
		if (prev && frame_key(prev->page) + prev->nr == frame_key(run->page) &&
		    page_to_nid(prev->page) == page_to_nid(run->page) &&
		    prev->clean == run->clean) {
			list_del_init(&run->link);
			run_set(prev, run->other, prev->nr + run->nr, FRAME_TAKEN, prev->clean);
			continue;
		}
		prev = run;
		n++;
	}
	return n;
}

static int page_cmp(const void *a, const void *b)
{
	unsigned long x = page_to_pfn(*(struct page *const *)a);
	unsigned long y = page_to_pfn(*(struct page *const *)b);

	return x < y ? -1 : x > y;
}

static struct frame *frame_new(struct page *page)
{
	struct frame *f = kmem_cache_zalloc(records, GFP_KERNEL);

	if (!f)
		return NULL;
	f->page = page;
	INIT_LIST_HEAD(&f->link);
	if (xa_insert(&frame_index, frame_key(page), f, GFP_KERNEL)) {
		kmem_cache_free(records, f);
		return NULL;
	}
	/* A stale index, left by the page's last life, costs the huge mapping. */
	page_folio(page)->index = 0;
	run_set(f, f, 1, FRAME_TAKEN, false);
	return f;
}

/*
 * Makes a page of the frame's size, got from the system, a private run of one,
 * counted as taken. NULL if there is no memory for its record; the page stays the
 * caller's.
 */
struct frame *frame_adopt(struct page *page, bool clean)
{
	struct frame *f = frame_new(page);
	struct node_pool *node;

	if (!f)
		return NULL;
	f->clean = clean;
	node = node_of_frame(f);
	spin_lock(&node->lock);
	node->stats.taken++;
	node_unlock(node);
	return f;
}

/*
 * Up to @nr frames of @node from the system, appended to @runs as private runs,
 * counted as taken. The caller has taken them from limit and floor. Fewer come if
 * the system has no more, or at a fatal signal. Returns how many.
 */
unsigned long fresh_runs(struct node_pool *node, unsigned long nr, gfp_t gfp,
			 struct list_head *runs)
{
	bool clean = (gfp & __GFP_ZERO) || want_init_on_alloc(gfp);
	struct frame *run = NULL;
	struct page **pages;
	unsigned long i, got = 0, made = 0;

	pages = kvmalloc_array(nr, sizeof(*pages), GFP_KERNEL);
	if (!pages) {
		floor_arrived(nr);
		return 0;
	}

	gfp |= __GFP_COMP | __GFP_NOWARN | __GFP_THISNODE;
	while (got < nr && !fatal_signal_pending(current)) {
		struct page *page = alloc_pages_node(node->nid, gfp, FRAME_ORDER);

		if (!page)
			break;
		pages[got++] = page;
		floor_arrived(1);
		cond_resched();
	}
	floor_arrived(nr - got);

	/* In order of address, neighbours become runs. */
	sort(pages, got, sizeof(*pages), page_cmp, NULL);
	for (i = 0; i < got; i++) {
		struct frame *f = frame_new(pages[i]);

		if (!f)
			break;
		made++;
		if (run && frame_key(run->page) + run->nr == frame_key(f->page)) {
			run_set(run, f, run->nr + 1, FRAME_TAKEN, clean);
		} else {
			run_set(f, f, 1, FRAME_TAKEN, clean);
			list_add_tail(&f->link, runs);
			run = f;
		}
		cond_resched();
	}
	for (; i < got; i++)
		put_page(pages[i]);
	kvfree(pages);

	spin_lock(&node->lock);
	node->stats.taken += made;
	node_unlock(node);
	trace_fresh(node->nid, nr, made);
	return made;
}

static bool frame_poisoned(const struct frame *f)
{
	unsigned long i;

	for (i = 0; i < FRAME_PAGES; i++)
		if (PageHWPoison(f->page + i))
			return true;
	return false;
}

static void forget(struct node_pool *node, struct frame **batch, unsigned int n)
{
	unsigned int i;

	spin_lock(&node->lock);
	for (i = 0; i < n; i++)
		xa_erase(&frame_index, frame_key(batch[i]->page));
	spin_unlock(&node->lock);
}

/*
 * Counts a forgotten frame that has a poisoned page. Its reference is never dropped,
 * not even at unload, since that would free the bad page with the others.
 */
static void retire(struct node_pool *node, const struct frame *f)
{
	pr_warn("retired the frame of a page with a memory failure, on node %d\n", node->nid);
	spin_lock(&node->lock);
	node->stats.retired++;
	spin_unlock(&node->lock);
}

/*
 * Gives private runs back to the system, but for poisoned frames, and to the limit. In
 * the node's numbers they are no more from the beginning.
 */
void frames_to_system(struct list_head *runs)
{
	struct frame *batch[ERASE_BATCH];
	struct frame *run, *tmp;

	list_for_each_entry_safe(run, tmp, runs, link) {
		unsigned long left = run->nr, key = frame_key(run->page);
		struct node_pool *node = node_of_frame(run);

		list_del(&run->link);
		if (run->state != FRAME_LEAVING) {
			spin_lock(&node->lock);
			run_uncount(node, run);
			node_unlock(node);
		}
		while (left) {
			unsigned int i, n = min_t(unsigned long, left, ERASE_BATCH);

			for (i = 0; i < n; i++)
				batch[i] = xa_load(&frame_index, key + i);
			forget(node, batch, n);
			for (i = 0; i < n; i++) {
				if (frame_poisoned(batch[i])) {
					retire(node, batch[i]);
				} else {
					put_page(batch[i]->page);
					atomic64_inc(&events.freed);
				}
				kmem_cache_free(records, batch[i]);
			}
			limit_give(n);
			trace_free(node->nid, n);
			key += n;
			left -= n;
			cond_resched();
		}
		/* Under max_bytes, or with a memory failure, the reserve may have lost some. */
		reserve_fill_node(node);
	}
}

/*
 * Whether the reference of the pool is the only one. The count of references
 * decides, not that of pins: direct I/O before Linux 6.2 and vmsplice take plain
 * references. Freezing it excludes whoever is just about to take one.
 */
bool frame_idle(const struct frame *f)
{
	if (!page_ref_freeze(f->page, 1))
		return false;
	page_ref_unfreeze(f->page, 1);
	return true;
}

/* Takes a poisoned private frame, a run of its own in no list, out of use for good. */
void frame_retire(struct frame *f)
{
	struct node_pool *node = node_of_frame(f);

	spin_lock(&node->lock);
	run_uncount(node, f);
	node_unlock(node);
	forget(node, &f, 1);
	retire(node, f);
	kmem_cache_free(records, f);
	limit_give(1);
	reserve_fill_node(node);
}

/* Zeroes a private frame, in nobody's hands but ours: 0, or -EHWPOISON. */
int frame_clean(struct frame *f)
{
	if (frame_poisoned(f))
		return -EHWPOISON;
	compat_clear_pages(f->page, FRAME_PAGES);
	return 0;
}

/*
 * Makes a private run fit to be handed out: zeroes it, unless it is clean, frame by
 * frame. What is clean is looked at only if the kernel has met a memory failure on
 * its node, which may have come while it was held. Returns how many frames were
 * done: all, or fewer if a fatal signal came or the next frame is poisoned (-EINTR
 * or -EHWPOISON in *err).
 */
unsigned long run_clean(struct frame *run, int *err)
{
	bool look = compat_memory_failed(page_to_nid(run->page));
	unsigned long i;

	*err = 0;
	if (run->clean && !look)
		return run->nr;
	for (i = 0; i < run->nr; i++) {
		struct frame *f = frame_next(run, i);

		if (fatal_signal_pending(current))
			*err = -EINTR;
		else if (!run->clean)
			*err = frame_clean(f);
		else if (frame_poisoned(f))
			*err = -EHWPOISON;
		if (*err)
			return i;
		if (!run->clean) {
			atomic64_inc(&events.cleaned_inline);
			trace_clean(page_to_nid(f->page), false);
		}
		cond_resched();
	}
	run_set(run, run->other, run->nr, run->state, true);
	return run->nr;
}

int frames_init(void)
{
	records = kmem_cache_create("binpool_frame", sizeof(struct frame), 0, 0, NULL);
	return records ? 0 : -ENOMEM;
}

void frames_exit(void)
{
	WARN_ON(!xa_empty(&frame_index));
	kmem_cache_destroy(records);
}
