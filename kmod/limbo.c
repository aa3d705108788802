// SPDX-License-Identifier: GPL-2.0
/*
 * Limbo: frames that came back while somebody still pins them (a registered
 * io_uring buffer, direct I/O in flight, a page in a pipe). They keep our
 * reference and their charge, are handed to nobody, and are looked at again after
 * 1, 2, 4 ... 1000 ms until they are free; then they are held like the rest.
 * Owns node->limbo (protected by node->lock) and its work.
 */
#include <linux/sched.h>

#include "internal.h"
#include "trace.h"

#define DELAY_MAX_MS 1000

static struct workqueue_struct *limbo_wq;
static atomic_long_t limbo_frames;

unsigned long limbo_total(void)
{
	return atomic_long_read(&limbo_frames);
}

/*
 * Looks at limbo soon; the pauses begin anew. A look that is due soon already is not
 * put off, however fast frames come. Called with node->lock held.
 */
static void look_soon(struct node_pool *node)
{
	lockdep_assert_held(&node->lock);
	if (node->limbo_delay_ms > 1) {
		node->limbo_delay_ms = 1;
		mod_delayed_work(limbo_wq, &node->limbo_work, msecs_to_jiffies(1));
	} else {
		queue_delayed_work(limbo_wq, &node->limbo_work, msecs_to_jiffies(1));
	}
}

/* Takes over a private frame, a run of its own, that @block gave back. */
void limbo_put(struct frame *f, struct block *block)
{
	struct node_pool *node = node_of_frame(f);

	trace_limbo_enter(node->nid);
	kref_get(&block->ref);
	f->block = block;
	f->since = jiffies;
	charge_to_limbo(block);
	atomic_long_inc(&block->limbo);
	atomic_long_inc(&limbo_frames);
	spin_lock(&node->lock);
	run_uncount(node, f);
	f->state = FRAME_LIMBO;
	node->stats.limbo++;
	list_add_tail(&f->link, &node->limbo);
	look_soon(node);
	node_unlock(node);
}

static bool overdue(const struct frame *f)
{
	return limbo_max_ms && time_after(jiffies, f->since + msecs_to_jiffies(limbo_max_ms));
}

/* A frame leaves limbo: it is held again, or, if still @pinned, given up. */
static void leave(struct node_pool *node, struct frame *f, bool pinned)
{
	struct block *block = f->block;
	LIST_HEAD(run);

	trace_limbo_leave(node->nid, f->since, pinned);
	f->block = NULL;
	/* First: who sees nothing in limbo any more is not charged for it either. */
	charge_from_limbo(block);
	list_add(&f->link, &run);
	if (pinned) {
		/* Whoever pins it keeps it alive, and frees it when done. */
		atomic64_inc(&events.pinned_dropped);
		frames_to_system(&run);
	} else {
		held_return(&run);
	}
	atomic_long_dec(&block->limbo);
	block_put(block);
	atomic_long_dec(&limbo_frames);
}

static void look(struct work_struct *work)
{
	struct node_pool *node = container_of(to_delayed_work(work), struct node_pool, limbo_work);
	struct frame *f, *tmp;
	bool some = false;
	LIST_HEAD(pinned);

	spin_lock(&node->lock);
	list_splice_init(&node->limbo, &pinned);
	spin_unlock(&node->lock);

	list_for_each_entry_safe(f, tmp, &pinned, link) {
		bool idle = frame_idle(f);

		cond_resched();
		if (!idle && !overdue(f))
			continue;
		list_del_init(&f->link);
		leave(node, f, !idle);
		some = true;
	}
	if (some)
		room_made();

	spin_lock(&node->lock);
	list_splice(&pinned, &node->limbo);
	if (!list_empty(&node->limbo)) {
		node->limbo_delay_ms = min(node->limbo_delay_ms * 2, DELAY_MAX_MS);
		queue_delayed_work(limbo_wq, &node->limbo_work,
				   msecs_to_jiffies(node->limbo_delay_ms));
	}
	node_unlock(node);
}

void limbo_init(struct node_pool *node)
{
	INIT_LIST_HEAD(&node->limbo);
	INIT_DELAYED_WORK(&node->limbo_work, look);
	node->limbo_delay_ms = 1;
}

/* At unload: nothing else runs any more. What is still pinned is given up. */
void limbo_exit(struct node_pool *node)
{
	struct frame *f, *tmp;

	cancel_delayed_work_sync(&node->limbo_work);
	list_for_each_entry_safe(f, tmp, &node->limbo, link) {
		list_del_init(&f->link);
		leave(node, f, !frame_idle(f));
	}
}

int __init limbo_wq_init(void)
{
	limbo_wq = alloc_workqueue("binpool", WQ_UNBOUND, 0);
	return limbo_wq ? 0 : -ENOMEM;
}

void limbo_wq_exit(void)
{
	destroy_workqueue(limbo_wq);
}
