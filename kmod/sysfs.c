// SPDX-License-Identifier: GPL-2.0
/*
 * /sys/class/misc/binpool/: what the module has and counts, one value per file,
 * and a folder for each node that has memory. Amounts are in bytes.
 */
#include <linux/device.h>
#include <linux/kernel.h>
#include <linux/kobject.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "internal.h"
#include "param.h"

/* As it is told: until a block is made of it, what is taken is held like the rest. */
static struct node_stats node_stats(int nid)
{
	struct node_pool *node = node_of(nid);
	struct node_stats stats;

	spin_lock(&node->lock);
	stats = node->stats;
	spin_unlock(&node->lock);
	stats.held += stats.taken;
	return stats;
}

struct node_stats stats_sum(void)
{
	struct node_stats sum = {};
	int nid;

	for_each_node(nid) {
		struct node_stats one = node_stats(nid);

		sum.active += one.active;
		sum.held += one.held;
		sum.held_clean += one.held_clean;
		sum.taken += one.taken;
		sum.limbo += one.limbo;
		sum.quarantine += one.quarantine;
		sum.retired += one.retired;
	}
	return sum;
}

/* The same amounts are shown in total and for each node. */
struct node_dir {
	struct kobject kobj;
	int nid;
	struct bin_dirs bins;
};

static struct node_dir *node_dirs[MAX_NUMNODES];

static int dir_nid(const struct kobject *kobj)
{
	return container_of(kobj, struct node_dir, kobj)->nid;
}

#define AMOUNT_ATTR(member)                                                                        \
	static ssize_t member##_bytes_show(struct device *dev, struct device_attribute *attr,      \
					   char *buf)                                              \
	{                                                                                          \
		return sysfs_emit(buf, "%llu\n", frames_to_bytes(stats_sum().member));             \
	}                                                                                          \
	static DEVICE_ATTR_RO(member##_bytes);                                                     \
	static ssize_t node_##member##_show(struct kobject *kobj, struct kobj_attribute *attr,     \
					    char *buf)                                             \
	{                                                                                          \
		return sysfs_emit(buf, "%llu\n",                                                   \
				  frames_to_bytes(node_stats(dir_nid(kobj)).member));              \
	}                                                                                          \
	static struct kobj_attribute node_attr_##member =                                          \
		__ATTR(member##_bytes, 0444, node_##member##_show, NULL)

AMOUNT_ATTR(active);
AMOUNT_ATTR(held);
AMOUNT_ATTR(held_clean);
AMOUNT_ATTR(limbo);
AMOUNT_ATTR(quarantine);
AMOUNT_ATTR(retired);

#define COUNT_ATTR(name)                                                                           \
	static ssize_t name##_show(struct device *dev, struct device_attribute *attr, char *buf)   \
	{                                                                                          \
		return sysfs_emit(buf, "%lld\n", atomic64_read(&events.name));                     \
	}                                                                                          \
	static DEVICE_ATTR_RO(name)

COUNT_ATTR(allocs);
COUNT_ATTR(reuses);
COUNT_ATTR(returns);
COUNT_ATTR(scan_ns);
COUNT_ATTR(scan_windows);
COUNT_ATTR(scan_refused);

#define FRAME_COUNT_ATTR(name)                                                                     \
	static ssize_t name##_bytes_show(struct device *dev, struct device_attribute *attr,        \
					 char *buf)                                                \
	{                                                                                          \
		return sysfs_emit(buf, "%llu\n", frames_to_bytes(atomic64_read(&events.name)));    \
	}                                                                                          \
	static DEVICE_ATTR_RO(name##_bytes)

FRAME_COUNT_ATTR(freed);
FRAME_COUNT_ATTR(pinned_dropped);
FRAME_COUNT_ATTR(pressure_freed);
FRAME_COUNT_ATTR(cleaned_inline);
FRAME_COUNT_ATTR(cleaned_background);

static ssize_t frame_bytes_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%lu\n", FRAME_BYTES);
}
static DEVICE_ATTR_RO(frame_bytes);

static ssize_t mantissa_bits_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", mantissa_bits);
}
static DEVICE_ATTR_RO(mantissa_bits);

static ssize_t managed_bytes_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", limit_managed_bytes());
}
static DEVICE_ATTR_RO(managed_bytes);

static ssize_t max_bytes_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", limit_max_bytes());
}

static ssize_t max_bytes_store(struct device *dev, struct device_attribute *attr, const char *buf,
			       size_t len)
{
	u64 bytes;
	int err = knob_number("max_bytes", buf, FRAME_BYTES, limit_machine_bytes(NUMA_NO_NODE),
			      false, limit_max_bytes(), &bytes);

	if (!err)
		err = limit_set(bytes);
	return err ?: len;
}
static DEVICE_ATTR_RW(max_bytes);

static ssize_t user_max_bytes_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", user_limit_bytes());
}

static ssize_t user_max_bytes_store(struct device *dev, struct device_attribute *attr,
				    const char *buf, size_t len)
{
	u64 bytes;
	int err = knob_number("user_max_bytes", buf, FRAME_BYTES, limit_machine_bytes(NUMA_NO_NODE),
			      true, user_limit_bytes(), &bytes);

	if (err)
		return err;
	user_limit_set(bytes);
	return len;
}
static DEVICE_ATTR_RW(user_max_bytes);

static ssize_t reserve_bytes_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", frames_to_bytes(reserve_total()));
}

static ssize_t reserve_bytes_store(struct device *dev, struct device_attribute *attr,
				   const char *buf, size_t len)
{
	u64 bytes;
	int err = knob_number("reserve_bytes", buf, 0, limit_machine_bytes(NUMA_NO_NODE), false,
			      frames_to_bytes(reserve_total()), &bytes);

	if (!err)
		err = reserve_set(bytes);
	return err ?: len;
}
static DEVICE_ATTR_RW(reserve_bytes);

static ssize_t reserve_filled_bytes_show(struct device *dev, struct device_attribute *attr,
					 char *buf)
{
	unsigned long nr = 0;
	int nid;

	for_each_node(nid)
		nr += reserve_filled(nid);
	return sysfs_emit(buf, "%llu\n", frames_to_bytes(nr));
}
static DEVICE_ATTR_RO(reserve_filled_bytes);

static ssize_t node_reserve_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n",
			  frames_to_bytes(READ_ONCE(node_of(dir_nid(kobj))->reserve)));
}

static ssize_t node_reserve_store(struct kobject *kobj, struct kobj_attribute *attr,
				  const char *buf, size_t len)
{
	int err, nid = dir_nid(kobj);
	char knob[32];
	u64 bytes;

	snprintf(knob, sizeof(knob), "node%d/reserve_bytes", nid);
	err = knob_number(knob, buf, 0, limit_machine_bytes(NUMA_NO_NODE), false,
			  frames_to_bytes(READ_ONCE(node_of(nid)->reserve)), &bytes);
	if (!err)
		err = reserve_set_node(nid, bytes);
	return err ?: len;
}

static struct kobj_attribute node_attr_reserve =
	__ATTR(reserve_bytes, 0644, node_reserve_show, node_reserve_store);

static ssize_t node_reserve_filled_show(struct kobject *kobj, struct kobj_attribute *attr,
					char *buf)
{
	return sysfs_emit(buf, "%llu\n", frames_to_bytes(reserve_filled(dir_nid(kobj))));
}

static struct kobj_attribute node_attr_reserve_filled =
	__ATTR(reserve_filled_bytes, 0444, node_reserve_filled_show, NULL);

static ssize_t holding_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", holding());
}

static ssize_t holding_store(struct device *dev, struct device_attribute *attr, const char *buf,
			     size_t len)
{
	bool on;
	int err = knob_flag("holding", buf, false, &on) ?: set_holding(on);

	return err ?: len;
}
static DEVICE_ATTR_RW(holding);

static ssize_t free_held_store(struct device *dev, struct device_attribute *attr, const char *buf,
			       size_t len)
{
	bool on;
	int err = knob_flag("free_held", buf, true, &on);

	if (err)
		return err;
	return held_free_all(GIVE_SPARE) ?: len;
}
static DEVICE_ATTR_WO(free_held);

static ssize_t phys_release_store(struct device *dev, struct device_attribute *attr,
				  const char *buf, size_t len)
{
	bool on;
	int nid, err = knob_flag("phys_release", buf, true, &on);

	if (err)
		return err;
	for_each_node(nid)
		quarantine_release(node_of(nid));
	return len;
}
static DEVICE_ATTR_WO(phys_release);

/* One a line, whatever their number. */
/* clang-format off */
static struct attribute *device_attrs[] = {
	&dev_attr_frame_bytes.attr,
	&dev_attr_mantissa_bits.attr,
	&dev_attr_max_bytes.attr,
	&dev_attr_user_max_bytes.attr,
	&dev_attr_managed_bytes.attr,
	&dev_attr_active_bytes.attr,
	&dev_attr_held_bytes.attr,
	&dev_attr_held_clean_bytes.attr,
	&dev_attr_limbo_bytes.attr,
	&dev_attr_quarantine_bytes.attr,
	&dev_attr_retired_bytes.attr,
	&dev_attr_freed_bytes.attr,
	&dev_attr_pinned_dropped_bytes.attr,
	&dev_attr_pressure_freed_bytes.attr,
	&dev_attr_cleaned_inline_bytes.attr,
	&dev_attr_cleaned_background_bytes.attr,
	&dev_attr_reserve_bytes.attr,
	&dev_attr_reserve_filled_bytes.attr,
	&dev_attr_allocs.attr,
	&dev_attr_reuses.attr,
	&dev_attr_returns.attr,
	&dev_attr_scan_ns.attr,
	&dev_attr_scan_windows.attr,
	&dev_attr_scan_refused.attr,
	&dev_attr_holding.attr,
	&dev_attr_free_held.attr,
	&dev_attr_phys_release.attr,
	NULL,
};

/* clang-format on */

static const struct attribute_group device_group = {
	.attrs = device_attrs,
};

const struct attribute_group *device_groups[] = {
	&device_group,
	NULL,
};

static struct attribute *node_attrs[] = {
	&node_attr_active.attr,	 &node_attr_held.attr,		 &node_attr_held_clean.attr,
	&node_attr_limbo.attr,	 &node_attr_quarantine.attr,	 &node_attr_retired.attr,
	&node_attr_reserve.attr, &node_attr_reserve_filled.attr, NULL,
};
ATTRIBUTE_GROUPS(node);

static void node_dir_release(struct kobject *kobj)
{
	kfree(container_of(kobj, struct node_dir, kobj));
}

static const struct kobj_type node_dir_type = {
	.release = node_dir_release,
	.sysfs_ops = &kobj_sysfs_ops,
	.default_groups = node_groups,
};

int node_dirs_init(struct kobject *parent)
{
	int nid;

	for_each_node_state(nid, N_MEMORY) {
		struct node_dir *dir = kzalloc(sizeof(*dir), GFP_KERNEL);
		int err;

		if (!dir)
			return -ENOMEM;
		dir->nid = nid;
		err = kobject_init_and_add(&dir->kobj, &node_dir_type, parent, "node%d", nid);
		if (err) {
			kobject_put(&dir->kobj);
			return err;
		}
		node_dirs[nid] = dir;
		err = bin_dirs_init(&dir->bins, &dir->kobj, node_of(nid));
		if (err)
			return err;
	}
	return 0;
}

void node_dirs_exit(void)
{
	int nid;

	for_each_node(nid) {
		if (!node_dirs[nid])
			continue;
		bin_dirs_exit(&node_dirs[nid]->bins);
		kobject_put(&node_dirs[nid]->kobj);
	}
}
