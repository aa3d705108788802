// SPDX-License-Identifier: GPL-2.0
/*
 * What is counted for each bin of a node, and the folders that show it:
 * node<N>/bins/<capacity in bytes>/. Owns node->bin_counts (atomics: counting takes
 * no lock) and the folders, which are made at loading and removed at unloading.
 */
#include <linux/kobject.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

#include "internal.h"

struct bin_counts {
	atomic_long_t active; /* frames of the node in blocks of this capacity */
	atomic_long_t allocs; /* such blocks, by the node of their first frame */
	atomic_long_t reuses;
};

struct bin_dir {
	struct kobject kobj;
	struct node_pool *node;
	unsigned int bin;
	struct bin_dir *next;
};

/* Counts a block's frames in (@sign 1) or out (-1). */
void bin_count_active(const struct block *block, long sign)
{
	const struct frame *run;

	list_for_each_entry(run, &block->frames, link)
		atomic_long_add(sign * (long)run->nr,
				&node_of_frame(run)->bin_counts[block->bin].active);
}

/* Counts a block that was made, of held memory only unless @fresh. */
void bin_count_alloc(const struct block *block, bool fresh)
{
	const struct frame *run = list_first_entry(&block->frames, struct frame, link);
	struct bin_counts *counts = &node_of_frame(run)->bin_counts[block->bin];

	atomic_long_inc(fresh ? &counts->allocs : &counts->reuses);
}

int bin_counts_init(struct node_pool *node)
{
	node->bin_counts = kvcalloc(nr_bins, sizeof(*node->bin_counts), GFP_KERNEL);
	return node->bin_counts ? 0 : -ENOMEM;
}

void bin_counts_exit(struct node_pool *node)
{
	kvfree(node->bin_counts);
}

static struct bin_dir *bin_dir(struct kobject *kobj)
{
	return container_of(kobj, struct bin_dir, kobj);
}

static ssize_t emit_held(struct kobject *kobj, char *buf, bool clean_only)
{
	struct bin_dir *dir = bin_dir(kobj);

	return sysfs_emit(buf, "%llu\n",
			  frames_to_bytes(held_in_bin(dir->node, dir->bin, clean_only)));
}

static ssize_t held_bytes_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return emit_held(kobj, buf, false);
}

static ssize_t held_clean_bytes_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return emit_held(kobj, buf, true);
}

static ssize_t active_bytes_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct bin_dir *dir = bin_dir(kobj);
	long nr = atomic_long_read(&dir->node->bin_counts[dir->bin].active);

	return sysfs_emit(buf, "%llu\n", frames_to_bytes(nr));
}

static ssize_t allocs_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct bin_dir *dir = bin_dir(kobj);

	return sysfs_emit(buf, "%lu\n", atomic_long_read(&dir->node->bin_counts[dir->bin].allocs));
}

static ssize_t reuses_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct bin_dir *dir = bin_dir(kobj);

	return sysfs_emit(buf, "%lu\n", atomic_long_read(&dir->node->bin_counts[dir->bin].reuses));
}

static struct kobj_attribute held_bytes_attr = __ATTR_RO(held_bytes);
static struct kobj_attribute held_clean_bytes_attr = __ATTR_RO(held_clean_bytes);
static struct kobj_attribute active_bytes_attr = __ATTR_RO(active_bytes);
static struct kobj_attribute allocs_attr = __ATTR_RO(allocs);
static struct kobj_attribute reuses_attr = __ATTR_RO(reuses);

static struct attribute *bin_attrs[] = {
	&active_bytes_attr.attr, &held_bytes_attr.attr, &held_clean_bytes_attr.attr,
	&allocs_attr.attr,	 &reuses_attr.attr,	NULL,
};
ATTRIBUTE_GROUPS(bin);

static void bin_dir_release(struct kobject *kobj)
{
	kfree(bin_dir(kobj));
}

static const struct kobj_type bin_dir_type = {
	.release = bin_dir_release,
	.sysfs_ops = &kobj_sysfs_ops,
	.default_groups = bin_groups,
};

/*
 * A folder for each bin that a block or a run may be in: those whose capacity the
 * machine has. Those there are when memory runs out stay, for bin_dirs_exit().
 */
int bin_dirs_init(struct bin_dirs *dirs, struct kobject *parent, struct node_pool *node)
{
	unsigned long machine = limit_machine_bytes(NUMA_NO_NODE) >> PMD_SHIFT;
	unsigned long nr = 1;

	dirs->root = kobject_create_and_add("bins", parent);
	if (!dirs->root)
		return -ENOMEM;
	while (nr <= machine) {
		struct bin_dir *dir = kzalloc(sizeof(*dir), GFP_KERNEL);
		int err;

		if (!dir)
			return -ENOMEM;
		dir->node = node;
		dir->bin = run_bin(nr);
		err = kobject_init_and_add(&dir->kobj, &bin_dir_type, dirs->root, "%llu",
					   frames_to_bytes(nr));
		if (err) {
			kobject_put(&dir->kobj);
			return err;
		}
		dir->next = dirs->first;
		dirs->first = dir;
		nr = binpool_alloc_size(mantissa_bits, dir->bin) + 1;
	}
	return 0;
}

void bin_dirs_exit(struct bin_dirs *dirs)
{
	while (dirs->first) {
		struct bin_dir *dir = dirs->first;

		dirs->first = dir->next;
		kobject_put(&dir->kobj);
	}
	kobject_put(dirs->root);
}
