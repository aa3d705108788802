// SPDX-License-Identifier: GPL-2.0
/*
 * What of the free memory is kept, and what the system has back: whether anything is held
 * at all, which runs go first, and how many. Owns the two switches, which are read
 * under a node's lock by whoever holds something there.
 */
#include <linux/bitmap.h>

#include "internal.h"

static bool hold = true;
static bool suspended; /* nothing is held while the system hibernates */

/*
 * Whether what comes back to @node is held. Without holding only the reserve is: what
 * turns out to be too much goes right after.
 */
bool held_wanted(const struct node_pool *node)
{
	lockdep_assert_held(&node->lock);
	return (hold || node->reserve) && !suspended && !limit_excess();
}

/* Whether nobody has wanted @run for so long that the system may have it. */
static bool idle(const struct frame *run)
{
	return time_after(jiffies, run->since + msecs_to_jiffies(keep_ms));
}

/*
 * The run that goes back first: dirty before clean, short before long ones, the
 * one that came first of a bin.
 */
static struct frame *least_wanted(struct node_pool *node, enum give what)
{
	struct frame *run;
	unsigned int bin;
	int clean;

	lockdep_assert_held(&node->lock);
	for (clean = 0; clean < 2; clean++) {
		struct bins *bins = &node->held[clean];

		for_each_set_bit(bin, bins->filled, nr_bins) {
			run = list_last_entry(&bins->list[bin], struct frame, link);
			if (what != GIVE_IDLE || idle(run))
				return run;
		}
	}
	return NULL;
}

/* At least how many frames GIVE_IDLE would give back. */
unsigned long held_idle(struct node_pool *node)
{
	unsigned long nr = 0;
	unsigned int bin;
	int clean;

	spin_lock(&node->lock);
	for (clean = 0; clean < 2; clean++) {
		struct bins *bins = &node->held[clean];

		for_each_set_bit(bin, bins->filled, nr_bins) {
			struct frame *run = list_last_entry(&bins->list[bin], struct frame, link);

			if (idle(run))
				nr += run->nr;
		}
	}
	nr = min(nr, node_spare(node));
	spin_unlock(&node->lock);
	return nr;
}

/*
 * Gives held frames of @node back to the system until at most @keep are held or
 * @nr went. Returns how many went. The beginning of a run goes first: its end is
 * what is handed out, and hot.
 */
unsigned long held_to_system(struct node_pool *node, enum give what, unsigned long keep,
			     unsigned long nr)
{
	unsigned long gone = 0;

	while (gone < nr) {
		struct frame *run = NULL;
		unsigned long room;
		LIST_HEAD(runs);

		spin_lock(&node->lock);
		room = node->stats.held > keep ? node->stats.held - keep : 0;
		if (what != GIVE_ALL)
			room = min(room, node_spare(node));
		room = min(room, nr - gone);
		if (room)
			run = least_wanted(node, what);
		if (run) {
			room = min(room, run->nr);
			run = held_carve(node, run, 0, room);
			/* At once, so that nobody counts it for the reserve. */
			run_uncount(node, run);
		}
		node_unlock(node);
		if (!run)
			break;
		gone += run->nr;
		list_add(&run->link, &runs);
		frames_to_system(&runs);
	}
	return gone;
}

/* Frames that could be taken from limit and floor if all held memory went that may. */
unsigned long room_possible(void)
{
	unsigned long room = room_left();
	int nid;

	for_each_node(nid)
		room += READ_ONCE(node_of(nid)->spare);
	return room;
}

/*
 * Makes it possible to take @nr more frames from limit and floor, by giving back held
 * memory, of any node, but none if all of it were not enough.
 */
bool make_room(unsigned long nr)
{
	unsigned long left = room_left();
	int nid;

	if (nr <= left)
		return true;
	if (nr > room_possible())
		return false;
	nr -= left;
	for_each_node(nid)
		nr -= held_to_system(node_of(nid), GIVE_SPARE, 0, nr);
	return !nr;
}

/*
 * Gives back what is held on every node, also what is just being cleaned. -EINTR if a
 * fatal signal came before all of that was back.
 */
int held_free_all(enum give what)
{
	int nid, err = cleaners_pause(PAUSE_FOR_ALL);

	for_each_node(nid)
		held_to_system(node_of(nid), what, 0, ULONG_MAX);
	cleaners_resume();
	room_made();
	return err;
}

bool holding(void)
{
	return READ_ONCE(hold);
}

/* Without holding, what was held beyond the reserve goes right after. */
void held_excess_to_system(struct node_pool *node)
{
	if (!holding())
		held_to_system(node, GIVE_SPARE, 0, ULONG_MAX);
}

/*
 * After set_holding(false) nothing but the reserve is held: whoever saw the old
 * value put under a node's lock, which is taken again here.
 */
int set_holding(bool on)
{
	WRITE_ONCE(hold, on);
	return on ? 0 : held_free_all(GIVE_SPARE);
}

/* From held_suspend(true) on nothing is held at all, until held_suspend(false). */
void held_suspend(bool on)
{
	WRITE_ONCE(suspended, on);
	if (on)
		held_free_all(GIVE_ALL);
}
