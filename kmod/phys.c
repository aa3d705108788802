// SPDX-License-Identifier: GPL-2.0
/*
 * Physical addresses: PHYS, and the quarantine of memory whose addresses were told.
 * A device that was given an address may write there long after the block is closed,
 * and no reference says so. So this memory reaches nobody, not even when it is
 * wanted badly, before the administrator says by phys_release that no device uses
 * such an address any more. Owns node->quarantine, which node->lock protects.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/capability.h>
#include <linux/io.h>
#include <linux/kernel.h>
#include <linux/sched.h>
#include <linux/security.h>
#include <linux/uaccess.h>

#include "internal.h"
#include "ioctl.h"

/*
 * Where memory lies is for those who may do raw I/O on this machine, as they may
 * work with these addresses: the initial user namespace's. Under lockdown it is a
 * matter of confidentiality, not of integrity, since to be told changes nothing; of
 * that level's reasons /proc/kcore is the one that tells the same, what lies where.
 */
static int may_know(void)
{
	if (!capable(CAP_SYS_RAWIO))
		return -EPERM;
	return security_locked_down(LOCKDOWN_KCORE);
}

long ioctl_phys(struct block *block, void __user *arg)
{
	struct binpool_phys_run __user *runs;
	struct binpool_phys phys;
	unsigned int i, room;
	int err;

	err = may_know();
	if (err)
		return err;
	err = ioctl_read(&phys, sizeof(phys), offsetofend(struct binpool_phys, reserved), arg);
	if (err)
		return err;
	if (phys.flags || phys.reserved)
		return -EINVAL;
	runs = u64_to_user_ptr(phys.runs);
	room = min(phys.nr_runs, block->nr_runs);
	/* Before the first is told, whatever becomes of the rest. */
	if (room)
		WRITE_ONCE(block->told, true);
	for (i = 0; i < room; i++) {
		struct binpool_phys_run run = {
			.address = page_to_phys(block->runs[i].page),
			.bytes = frames_to_bytes(block_run_frames(block, i)),
		};

		if (copy_to_user(&runs[i], &run, sizeof(run)))
			return -EFAULT;
		cond_resched();
	}
	phys.nr_runs = block->nr_runs;
	return ioctl_write(arg, &phys, sizeof(phys));
}

/* Takes over the private runs of a block that came back; they stay charged. */
void quarantine_put(struct block *block, struct list_head *runs)
{
	struct frame *run, *tmp;

	list_for_each_entry_safe(run, tmp, runs, link) {
		struct node_pool *node = node_of_frame(run);

		list_del_init(&run->link);
		kref_get(&block->ref);
		run->block = block;
		atomic_long_add(run->nr, &block->quarantine);
		spin_lock(&node->lock);
		run_uncount(node, run);
		run_set(run, run->other, run->nr, FRAME_QUARANTINE, false);
		node->stats.quarantine += run->nr;
		list_add_tail(&run->link, &node->quarantine);
		node_unlock(node);
		cond_resched();
	}
}

/* What is in quarantine on @node comes back now, as if its blocks were closed now. */
void quarantine_release(struct node_pool *node)
{
	struct frame *run, *tmp;
	LIST_HEAD(released);

	spin_lock(&node->lock);
	list_splice_init(&node->quarantine, &released);
	spin_unlock(&node->lock);

	list_for_each_entry_safe(run, tmp, &released, link) {
		struct block *block = run->block;
		unsigned long nr = run->nr;
		LIST_HEAD(one);

		list_move(&run->link, &one);
		run->block = NULL;
		frames_return(block, &one);
		atomic_long_sub(nr, &block->quarantine);
		block_put(block);
	}
}

void quarantine_init(struct node_pool *node)
{
	INIT_LIST_HEAD(&node->quarantine);
}

/* At unload nobody is left to keep it apart: who unloads, releases. */
void quarantine_exit(struct node_pool *node)
{
	if (node->stats.quarantine)
		pr_notice("node %d: %llu bytes leave quarantine, since the module is unloaded\n",
			  node->nid, frames_to_bytes(node->stats.quarantine));
	quarantine_release(node);
}
