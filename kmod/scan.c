// SPDX-License-Identifier: GPL-2.0
/*
 * The scan: frames of a certain place, whoever's memory is there now. A window of
 * adjacent frames is looked at page by page, without touching anything, and dropped
 * at the first page that cannot be moved away; only then are its frames taken, one
 * by one, the movable pages in them being migrated by the kernel.
 *
 * That is not for free: each frame drains the caches of all CPUs. So one scan runs
 * at a time on the machine, for contig_ms per request and contig_duty percent of the
 * time in all, and a frame that could not be had is left alone for a while. Owns
 * the turn, and what it protects: the credit, the table of failed frames, and
 * node->scan_key.
 */
#include <linux/hash.h>
#include <linux/mmzone.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/wait.h>

#include "compat.h"
#include "internal.h"
#include "trace.h"

/* Others' pages are migrated with the means of an ordinary user allocation. */
#define GFP_SCAN (GFP_HIGHUSER | __GFP_ZERO | __GFP_NOWARN | __GFP_RETRY_MAYFAIL)

/* contig_duty is of this time: what was not used of it so long is lost. */
#define DUTY_MS (60 * MSEC_PER_SEC)

/* A request that has less time left than this need not begin. */
#define SLICE_MIN_NS NSEC_PER_MSEC

/* How long a frame is left alone that could not be had, and how many are known. */
#define FAILED_MS   (10 * MSEC_PER_SEC)
#define FAILED_BITS 10

/* Bound of a walk that only looks. */
#define LOOK_MS 100

/* Own stretches, longest first, around which a window is looked for. */
#define ANCHORS 4

static unsigned long turn; /* bit 0: taken */
static DECLARE_WAIT_QUEUE_HEAD(turn_wait);
static u64 credit_ns = U64_MAX, credited_at;
static struct {
	unsigned long key;
	unsigned long at; /* jiffies; 0: no entry */
} failed[1 << FAILED_BITS];

/*
 * Whether this kernel, as it is set up, lets frames be taken. Where it moves memory in
 * larger blocks than a frame, it would take too much, and complain.
 */
bool scan_possible(void)
{
	return COMPAT_CONTIG && READ_ONCE(contig_ms) &&
	       (!COMPAT_CONTIG_BY_HAND || READ_ONCE(contig_scan_61)) &&
	       pageblock_order <= FRAME_ORDER;
}

static void fail(unsigned long key)
{
	unsigned int slot = hash_long(key, FAILED_BITS);

	failed[slot].key = key;
	failed[slot].at = jiffies ?: 1;
}

static bool failed_lately(unsigned long key)
{
	unsigned int slot = hash_long(key, FAILED_BITS);

	return failed[slot].at && failed[slot].key == key &&
	       time_before(jiffies, failed[slot].at + msecs_to_jiffies(FAILED_MS));
}

/*
 * Waits for the turn, no longer than a scan may take, and finds out how long this one
 * may. @spent_ns is what the request has used already. 0, -EINTR at a fatal signal,
 * or -EBUSY if there is no time for it.
 */
int scan_begin(struct scan *scan, struct node_pool *node, unsigned long nr, unsigned long align,
	       u64 *spent_ns)
{
	unsigned int ms = READ_ONCE(contig_ms), duty = READ_ONCE(contig_duty);
	u64 budget = (u64)ms * NSEC_PER_MSEC, most;
	long left;

	if (!scan_possible() || *spent_ns >= budget)
		return -EBUSY;
	left = wait_event_killable_timeout(turn_wait, !test_and_set_bit_lock(0, &turn),
					   msecs_to_jiffies(ms));
	if (left <= 0)
		return left ? -EINTR : -EBUSY;

	most = max((u64)DUTY_MS * NSEC_PER_MSEC / 100 * duty, budget);
	*scan = (struct scan){.node = node, .nr = nr, .align = align, .began = ktime_get_ns()};
	if (credit_ns < most)
		credit_ns += (scan->began - credited_at) / 100 * duty;
	credited_at = scan->began;
	if (credit_ns > most || duty == 100)
		credit_ns = most;
	scan->deadline = scan->began + min(budget - *spent_ns, credit_ns);
	if (scan->deadline - scan->began >= SLICE_MIN_NS)
		return 0;
	scan_end(scan, spent_ns);
	return -EBUSY;
}

void scan_end(struct scan *scan, u64 *spent_ns)
{
	u64 ns = ktime_get_ns() - scan->began;

	*spent_ns += ns;
	credit_ns -= min(credit_ns, ns);
	atomic64_add(ns, &events.scan_ns);
	clear_bit_unlock(0, &turn);
	wake_up(&turn_wait);
}

static bool out_of_time(struct scan *scan)
{
	if (ktime_get_ns() >= scan->deadline || fatal_signal_pending(current))
		scan->stop = true;
	return scan->stop;
}

/* Frames taken like this ask no watermark: what is free of them must be to spare. */
static bool can_spare(struct zone *zone, unsigned long free)
{
	return zone_page_state(zone, NR_FREE_PAGES) >=
	       free + low_wmark_pages(zone) + zone->lowmem_reserve[gfp_zone(GFP_SCAN)];
}

enum fit {
	UNFIT,
	MOVABLE, /* in use, by what can be moved */
	FREE,
};

/*
 * What is in the frame at @key, as far as it can be told without a reference on
 * anything: all of this may change while it is read. What only a driver can move
 * counts as unmovable, and so does a page that is written to a disk now or pinned:
 * those would be waited for. Nor does a frame fit whose zone has nothing to spare;
 * another zone may have.
 */
static enum fit look(const struct node_pool *node, unsigned long key)
{
	unsigned long pfn = key << FRAME_ORDER, end = pfn + FRAME_PAGES, step, free = 0;
	struct page *page = pfn_to_online_page(pfn);
	struct zone *zone;

	if (!page || page_to_nid(page) != node->nid)
		return UNFIT;
	zone = page_zone(page);
	if (zone_idx(zone) >= ZONE_MOVABLE || !can_spare(zone, 0))
		return UNFIT;
	for (; pfn < end; pfn += step) {
		struct page *head;

		page = pfn_to_page(pfn);
		step = 1;
		if (page_zone(page) != zone || PageReserved(page))
			return UNFIT;
		if (PageBuddy(page)) {
			step = 1UL << min_t(unsigned long, page_private(page), FRAME_ORDER);
			free += min(step, end - pfn);
			continue;
		}
		head = compound_head(page);
		if (head == page && !PageHead(page) && !page_ref_count(page)) {
			/* A kernel may keep its own pages without a reference. */
			if (page_has_type(page))
				return UNFIT;
			free++; /* on its way from or to a list of free pages */
			continue;
		}
		/* Slabs, page tables, hugetlb pages and frames of ours are not there. */
		if (!PageLRU(head) || PageWriteback(head) ||
		    folio_maybe_dma_pinned(page_folio(head)))
			return UNFIT;
		if (PageHead(head)) {
			unsigned int order = compound_order(head);
			unsigned long after;

			if (order > FRAME_ORDER)
				return UNFIT;
			after = page_to_pfn(head) + (1UL << order);
			step = after > pfn ? after - pfn : 1;
		}
	}
	if (!can_spare(zone, free))
		return UNFIT;
	return free < FRAME_PAGES ? MOVABLE : FREE;
}

/* The end of the stretch of @own that holds @key, or 0. */
static unsigned long own_end(const struct own *own, unsigned long key)
{
	unsigned long lo = 0, hi = own->nr;

	while (lo < hi) {
		unsigned long mid = lo + (hi - lo) / 2;
		const struct stretch *s = &own->of[mid];

		if (key < s->key)
			hi = mid;
		else if (key >= s->key + s->nr)
			lo = mid + 1;
		else
			return s->key + s->nr;
	}
	return 0;
}

struct walk {
	const struct own *own;
	bool free_only; /* no page may be in use */
};

static bool fits(struct scan *scan, const struct walk *walk, unsigned long key)
{
	enum fit fit;

	if (own_end(walk->own, key))
		return true;
	if (!walk->free_only && failed_lately(key))
		return false;
	cond_resched();
	fit = look(scan->node, key);
	return walk->free_only ? fit == FREE : fit != UNFIT;
}

/*
 * The first window that begins at @from or later, and ends at @end or before, all of
 * whose frames are own ones or fit. False if there is none, or no time.
 */
static bool next_window(struct scan *scan, const struct walk *walk, unsigned long from,
			unsigned long end, unsigned long *key)
{
	unsigned long start = ALIGN(from, scan->align), known = start, at;

	while (start + scan->nr <= end) {
		/* From its end on: what is in the way there spares a look at the rest. */
		for (at = start + scan->nr; at > known; at--)
			if (out_of_time(scan) || !fits(scan, walk, at - 1))
				break;
		if (scan->stop)
			return false;
		if (at == known) {
			*key = start;
			return true;
		}
		if (!walk->free_only)
			atomic64_inc(&events.scan_refused);
		/* Frames from @at to the window's end are known to fit. */
		known = start + scan->nr;
		start = ALIGN(at, scan->align);
		known = max(known, start);
	}
	return false;
}

/* The longest stretch of @own that is shorter than @below; NULL if there is none. */
static const struct stretch *longest_below(const struct own *own, unsigned long below)
{
	const struct stretch *best = NULL;
	unsigned long i;

	for (i = 0; i < own->nr; i++)
		if (own->of[i].nr < below && (!best || own->of[i].nr > best->nr))
			best = &own->of[i];
	return best;
}

static bool walk_node(struct scan *scan, const struct walk *walk, unsigned long *key)
{
	unsigned long begin = node_start_pfn(scan->node->nid) >> FRAME_ORDER;
	unsigned long end = node_end_pfn(scan->node->nid) >> FRAME_ORDER;
	const struct stretch *anchor;
	unsigned long below = scan->nr, i, from;

	/* What we have already is the better part of a run. */
	for (i = 0; i < ANCHORS; i++) {
		anchor = longest_below(walk->own, below);
		if (!anchor)
			break;
		below = anchor->nr;
		from = anchor->key + anchor->nr;
		from = max(begin, from > scan->nr ? from - scan->nr : 0);
		if (next_window(scan, walk, from, min(end, anchor->key + scan->nr), key))
			return true;
	}
	from = clamp(scan->node->scan_key, begin, end);
	if (!next_window(scan, walk, from, end, key) &&
	    !next_window(scan, walk, begin, min(end, from + scan->nr - 1), key))
		return false;
	if (!walk->free_only)
		scan->node->scan_key = *key;
	return true;
}

/* A window to try: it begins at *@key. False if there is none, or no time. */
bool scan_window(struct scan *scan, const struct own *own, unsigned long *key)
{
	const struct walk walk = {.own = own};

	return !out_of_time(scan) && walk_node(scan, &walk, key);
}

/*
 * Whether @node has a window of own and free frames now. That is no promise, but
 * without it nothing is won by making room. Needs no turn: it only looks, and not
 * for long.
 */
bool scan_would_fit(struct node_pool *node, unsigned long nr, unsigned long align,
		    const struct own *own)
{
	const struct walk walk = {.own = own, .free_only = true};
	struct scan scan = {
		.node = node,
		.nr = nr,
		.align = align,
		.deadline = ktime_get_ns() + LOOK_MS * NSEC_PER_MSEC,
	};
	unsigned long key;

	return walk_node(&scan, &walk, &key);
}

/* Takes one frame, as a private run appended to @runs. */
static bool take_frame(struct scan *scan, unsigned long key, struct list_head *runs)
{
	struct page *page = pfn_to_page(key << FRAME_ORDER);
	struct frame *f;
	int err;

	if (out_of_time(scan))
		return false;
	if (look(scan->node, key) == UNFIT) {
		fail(key);
		return false;
	}
	err = compat_alloc_contig(page_to_pfn(page), FRAME_ORDER, GFP_SCAN);
	if (err) {
		if (!fatal_signal_pending(current))
			fail(key);
		return false;
	}
	f = frame_adopt(page, compat_contig_zeroes(GFP_SCAN));
	if (!f) {
		put_page(page);
		scan->stop = true;
		return false;
	}
	floor_arrived(1);
	list_add_tail(&f->link, runs);
	return true;
}

/* Takes what is not own of the frames from @from on, as far as @nr, upward or downward. */
static bool take_frames(struct scan *scan, const struct own *own, unsigned long from, long step,
			unsigned long nr, struct list_head *runs, unsigned long *got)
{
	for (; nr; nr--, from += step) {
		if (own_end(own, from))
			continue;
		if (!take_frame(scan, from, runs))
			return false;
		++*got;
	}
	return true;
}

/*
 * Takes the frames of the window at @key that are not own ones, as private runs
 * appended to @runs, beginning beside the longest own stretch in it, so that this one
 * has grown if not all can be had. Returns how many, after floor_arrived() for each.
 */
unsigned long scan_take(struct scan *scan, const struct own *own, unsigned long key,
			struct list_head *runs)
{
	unsigned long end = key + scan->nr, from = key, longest = 0, missing = 0, at, after;
	unsigned long got = 0;

	atomic64_inc(&events.scan_windows);
	for (at = key; at < end; at = after) {
		after = own_end(own, at);
		if (!after) {
			after = at + 1;
			missing++;
		} else if (min(after, end) - at > longest) {
			longest = min(after, end) - at;
			from = at;
		}
	}
	if (take_frames(scan, own, from, 1, end - from, runs, &got))
		take_frames(scan, own, from - 1, -1, from - key, runs, &got);
	trace_fresh(scan->node->nid, missing, got);
	return got;
}

/*
 * Up to @nr frames of @node from wherever they can be had, as private runs of one,
 * appended to @runs; within max_bytes and what the floor leaves. Returns how many:
 * fewer if there are no more, or no time. For the reserve, when the page allocator has
 * given what it has.
 */
unsigned long scan_frames(struct node_pool *node, unsigned long nr, struct list_head *runs)
{
	const struct own none = {};
	unsigned long take, got = 0, key;
	struct scan scan;
	u64 spent_ns = 0;
	int err;

	take = room_take(nr, true, &err);
	if (take && !scan_begin(&scan, node, 1, 1, &spent_ns)) {
		while (got < take && scan_window(&scan, &none, &key))
			got += scan_take(&scan, &none, key, runs);
		scan_end(&scan, &spent_ns);
	}
	room_give(take - got);
	return got;
}
