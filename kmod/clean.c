// SPDX-License-Identifier: GPL-2.0
/*
 * Cleaning ahead: threads, some per node, that zero dirty held frames, so that an
 * ALLOC finds clean memory. They are of low priority, take one frame at a time, and
 * rest while the system reclaims memory of their node: what it then takes from us
 * would have been cleaned for nothing.
 *
 * A frame that is being cleaned is in no list, so whoever must find all that is held
 * pauses the threads first: cleaners_pause() waits for frames in work, of which
 * there is at most one per thread. Owns the threads, and the two counts below.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpumask.h>
#include <linux/freezer.h>
#include <linux/kthread.h>
#include <linux/sched.h>
#include <linux/sched/isolation.h>
#include <linux/slab.h>
#include <linux/topology.h>

#include "internal.h"
#include "trace.h"

/* How long a node counts as short of memory after the system asked for some. */
#define RECLAIM_REST_MS 100

static atomic_t paused;	 /* callers that want no frame taken */
static atomic_t working; /* threads that have one, or are about to look */
static DECLARE_WAIT_QUEUE_HEAD(idle_wait);

static bool reclaiming(const struct node_pool *node)
{
	return time_before(jiffies,
			   READ_ONCE(node->reclaim_at) + msecs_to_jiffies(RECLAIM_REST_MS));
}

static bool dirty(const struct node_pool *node)
{
	return READ_ONCE(node->stats.held) != READ_ONCE(node->stats.held_clean);
}

/* Cleans one frame of @node, if there is any. */
static bool clean_one(struct node_pool *node)
{
	struct frame *f = NULL;

	atomic_inc(&working);
	/* Either we see a pause, or who pauses sees us. */
	smp_mb__after_atomic();
	if (!atomic_read(&paused))
		f = held_take_dirty(node);
	if (f && frame_clean(f)) {
		held_drop_poisoned(f);
	} else if (f) {
		atomic64_inc(&events.cleaned_background);
		trace_clean(node->nid, true);
		held_put_cleaned(f);
	}
	if (atomic_dec_and_test(&working))
		wake_up_all(&idle_wait);
	return f;
}

/* Whether hurry() has raised our priority. */
static bool hurried(void)
{
	return task_nice(current) != MAX_NICE;
}

static int cleaner(void *data)
{
	struct node_pool *node = data;

	set_freezable();
	while (!kthread_should_stop()) {
		/* With enough to do it would never wait, and so never freeze. */
		try_to_freeze();
		wait_event_freezable(node->dirty_wait,
				     kthread_should_stop() || hurried() ||
					     (dirty(node) && !atomic_read(&paused)));
		if (hurried()) {
			set_user_nice(current, MAX_NICE);
			continue;
		}
		if (reclaiming(node)) {
			wait_event_freezable_timeout(node->dirty_wait, kthread_should_stop(),
						     msecs_to_jiffies(RECLAIM_REST_MS));
			continue;
		}
		/* What counts as dirty may be in another thread's hands. */
		if (!clean_one(node))
			wait_event_freezable_timeout(node->dirty_wait, kthread_should_stop(), 1);
		cond_resched();
	}
	return 0;
}

/* There is something to clean. */
void cleaners_wake(struct node_pool *node)
{
	if (wq_has_sleeper(&node->dirty_wait))
		wake_up(&node->dirty_wait);
}

bool cleaners_busy(void)
{
	return atomic_read(&working);
}

/*
 * Where others take the CPUs' time a thread of low priority may stop amid a frame. Those
 * without one, which may be asleep for long, are woken to lower theirs again.
 */
static void hurry(void)
{
	struct task_struct **task;
	int nid;

	for_each_node(nid) {
		for (task = node_of(nid)->cleaners; task && *task; task++)
			set_user_nice(*task, 0);
		cleaners_wake(node_of(nid));
	}
}

/*
 * Waits at most @ms until no thread has a frame; call only between cleaners_pause() and
 * cleaners_resume(). -EINTR at a fatal signal.
 */
int cleaners_wait(unsigned int ms)
{
	long left;

	if (!cleaners_busy())
		return 0;
	hurry();
	left = wait_event_killable_timeout(idle_wait, !cleaners_busy(), msecs_to_jiffies(ms));
	return left < 0 ? -EINTR : 0;
}

/*
 * Until cleaners_resume() no thread takes a frame, and those that were taken are
 * back, unless that takes longer than @ms (cleaners_busy() tells; PAUSE_FOR_ALL: never)
 * or a fatal signal came (-EINTR; resume all the same).
 */
int cleaners_pause(unsigned int ms)
{
	atomic_inc(&paused);
	/* As in clean_one(). */
	smp_mb__after_atomic();
	return cleaners_wait(ms);
}

void cleaners_resume(void)
{
	int nid;

	if (!atomic_dec_and_test(&paused))
		return;
	for_each_node_state(nid, N_MEMORY)
		if (dirty(node_of(nid)))
			cleaners_wake(node_of(nid));
}

/*
 * Where @node's threads may run: on its CPUs, but not on those that were set apart for
 * others' work (isolcpus=, nohz_full=). If that leaves none, on another node's.
 */
static void choose_cpus(const struct node_pool *node, struct cpumask *cpus)
{
	/* What isolcpus= began may change at run time, in later kernels. */
	rcu_read_lock();
	cpumask_and(cpus, housekeeping_cpumask(HK_TYPE_DOMAIN), housekeeping_cpumask(HK_TYPE_TICK));
	rcu_read_unlock();
	if (cpumask_intersects(cpus, cpumask_of_node(node->nid)))
		cpumask_and(cpus, cpus, cpumask_of_node(node->nid));
	if (!cpumask_intersects(cpus, cpu_online_mask))
		cpumask_copy(cpus, cpu_possible_mask);
}

/*
 * Starts @node's threads. A node whose memory comes later has none: its memory is
 * cleaned when it is wanted.
 */
int cleaners_init(struct node_pool *node)
{
	cpumask_var_t cpus;
	unsigned int i;

	init_waitqueue_head(&node->dirty_wait);
	if (!node_state(node->nid, N_MEMORY))
		return 0;
	node->cleaners = kcalloc(clean_threads + 1, sizeof(*node->cleaners), GFP_KERNEL);
	if (!node->cleaners || !alloc_cpumask_var(&cpus, GFP_KERNEL))
		return -ENOMEM;
	choose_cpus(node, cpus);
	for (i = 0; i < clean_threads; i++) {
		struct task_struct *task = kthread_create_on_node(cleaner, node, node->nid,
								  "binpool/%d:%u", node->nid, i);

		if (IS_ERR(task)) {
			free_cpumask_var(cpus);
			return PTR_ERR(task);
		}
		set_cpus_allowed_ptr(task, cpus);
		node->cleaners[i] = task;
		wake_up_process(task);
	}
	free_cpumask_var(cpus);
	return 0;
}

/* At unload, or when loading failed. */
void cleaners_exit(struct node_pool *node)
{
	struct task_struct **task;

	for (task = node->cleaners; task && *task; task++)
		kthread_stop(*task);
	kfree(node->cleaners);
}
