// SPDX-License-Identifier: GPL-2.0
/*
 * Who holds what: the list of all blocks, binpool/holders in debugfs. Owns the list,
 * which blocks_lock protects.
 *
 * A reader of the list keeps a reference on the block he is at, and with it its
 * place, so that the lock is held for one step at a time. A block all of whose
 * references are gone is still in the list for a moment: it is passed over.
 */
#include <linux/cgroup.h>
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/seq_file.h>
#include <linux/user_namespace.h>

#include "internal.h"

#define HEADER "uid pid cgroup_id node bytes capacity runs state limbo_bytes age_ms comm\n"

static LIST_HEAD(blocks); /* oldest first */
static DEFINE_SPINLOCK(blocks_lock);
static struct dentry *debugfs_dir;

/* The caller's cgroup of the unified hierarchy; 0 if the kernel has none. */
u64 holder_cgroup(void)
{
	u64 id = 0;

#ifdef CONFIG_CGROUPS
	rcu_read_lock();
	id = cgroup_id(task_dfl_cgroup(current));
	rcu_read_unlock();
#endif
	return id;
}

void holders_add(struct block *block)
{
	block->since = get_jiffies_64();
	spin_lock(&blocks_lock);
	list_add_tail(&block->holders, &blocks);
	spin_unlock(&blocks_lock);
}

void holders_del(struct block *block)
{
	spin_lock(&blocks_lock);
	list_del(&block->holders);
	spin_unlock(&blocks_lock);
}

/* Where a reader is: the block at @pos, with a reference. */
struct place {
	struct block *block;
	loff_t pos;
};

/* The block after @block, or the first, with a reference, and in exchange for it. */
static struct block *block_after(struct block *block)
{
	struct list_head *at = block ? &block->holders : &blocks;
	struct block *next = NULL;

	spin_lock(&blocks_lock);
	list_for_each_continue(at, &blocks) {
		struct block *other = list_entry(at, struct block, holders);

		if (kref_get_unless_zero(&other->ref)) {
			next = other;
			break;
		}
	}
	spin_unlock(&blocks_lock);
	if (block)
		block_put(block);
	return next;
}

static void *holders_next(struct seq_file *m, void *v, loff_t *pos)
{
	struct place *place = m->private;

	place->block = block_after(place->block);
	place->pos = ++*pos;
	return place->block;
}

static void *holders_start(struct seq_file *m, loff_t *pos)
{
	struct place *place = m->private;

	if (!*pos) {
		if (place->block)
			block_put(place->block);
		place->block = NULL;
		place->pos = 0;
		return SEQ_START_TOKEN;
	}
	/* Reading goes on where it stopped; after a seek it has begun anew. */
	return place->pos == *pos ? place->block : NULL;
}

static void holders_stop(struct seq_file *m, void *v)
{
}

static int holders_show(struct seq_file *m, void *v)
{
	const struct block *block = v;
	char comm[TASK_COMM_LEN] = "-";
	struct task_struct *task;
	const char *state;
	unsigned long limbo;

	if (v == SEQ_START_TOKEN) {
		seq_puts(m, HEADER);
		return 0;
	}
	limbo = atomic_long_read(&block->limbo);
	if (!READ_ONCE(block->returned))
		state = "active";
	else if (atomic_long_read(&block->quarantine))
		state = "quarantine";
	else if (limbo)
		state = "limbo";
	else
		return SEQ_SKIP;
	task = get_pid_task(block->pid, PIDTYPE_TGID);
	if (task) {
		get_task_comm(comm, task);
		put_task_struct(task);
	}
	seq_printf(m, "%u %d %llu %d %llu %llu %u %s %llu %llu %*pE\n",
		   from_kuid_munged(seq_user_ns(m), block->opener->uid), pid_vnr(block->pid),
		   block->opener->cgroup, block->nid, block->bytes, frames_to_bytes(block->nr),
		   block->nr_runs, state, frames_to_bytes(limbo),
		   jiffies64_to_msecs(get_jiffies_64() - block->since), (int)strlen(comm), comm);
	return 0;
}

static const struct seq_operations holders_ops = {
	.start = holders_start,
	.next = holders_next,
	.stop = holders_stop,
	.show = holders_show,
};

static int holders_open(struct inode *inode, struct file *file)
{
	return seq_open_private(file, &holders_ops, sizeof(struct place));
}

static int holders_release(struct inode *inode, struct file *file)
{
	struct seq_file *m = file->private_data;
	struct place *place = m->private;

	if (place->block)
		block_put(place->block);
	return seq_release_private(inode, file);
}

static const struct file_operations holders_fops = {
	.owner = THIS_MODULE,
	.open = holders_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = holders_release,
};

/* A kernel without debugfs has no list to show; that is no error. */
void holders_init(void)
{
	debugfs_dir = debugfs_create_dir(KBUILD_MODNAME, NULL);
	debugfs_create_file("holders", 0400, debugfs_dir, NULL, &holders_fops);
}

void holders_exit(void)
{
	debugfs_remove(debugfs_dir);
}
