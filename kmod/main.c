// SPDX-License-Identifier: GPL-2.0
/*
 * Loading and unloading: parameters, the nodes, /dev/binpool. Owns the array of
 * nodes, which does not change while the module is loaded.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "internal.h"
#include "param.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

static unsigned long long max_bytes;
PARAM_BYTES(max_bytes, FRAME_BYTES, 0444,
	    "limit in bytes (0: half of memory, at most what is available)");

unsigned int mantissa_bits = BINPOOL_MANTISSA_BITS_DEFAULT;
PARAM_UINT(mantissa_bits, 0, 8, 0444, "size classes per power of two are 2^this, 0 to 8 (4)");

unsigned long long floor_bytes;
PARAM_BYTES(floor_bytes, 0, 0644, "bytes that stay available to the system (0: 5 %, >= 256 MiB)");

unsigned int limbo_wait_ms = 1000;
PARAM_UINT(limbo_wait_ms, 0, 10 * 60 * MSEC_PER_SEC, 0644,
	   "how long ALLOC waits for pinned memory to come back (1000)");

unsigned int limbo_max_ms;
PARAM_UINT(limbo_max_ms, 0, 24 * 60 * 60 * MSEC_PER_SEC, 0644,
	   "give returned memory up when it stays pinned that long (0: never)");

unsigned int keep_ms = 10 * MSEC_PER_SEC;
PARAM_UINT(keep_ms, 0, 24 * 60 * 60 * MSEC_PER_SEC, 0644,
	   "how long held memory stays though the system wants some (10000)");

unsigned int clean_threads = 1;
PARAM_UINT(clean_threads, 0, 16, 0444, "threads per node that clean held memory, 0 to 16 (1)");

static unsigned long long reserve_bytes;
PARAM_BYTES(reserve_bytes, 0, 0444, "memory that is got ahead and kept, over all nodes (0)");

static bool reserve_wait;
PARAM_FLAG(reserve_wait, 0444, "loading waits until the reserve is filled (N)");

static unsigned long long user_max_bytes;
PARAM_BYTES(user_max_bytes, FRAME_BYTES, 0444, "limit of each user in bytes (0: max_bytes)");

bool memlock;
PARAM_FLAG(memlock, 0644, "charge blocks to RLIMIT_MEMLOCK as well (N)");

unsigned int contig_ms = 500;
PARAM_UINT(contig_ms, 0, 60 * MSEC_PER_SEC, 0644,
	   "how long an ALLOC may move others' memory for one run (500; 0: not at all)");

unsigned int contig_duty = 5;
PARAM_UINT(contig_duty, 1, 100, 0644,
	   "percent of the time that all ALLOCs together may do so (5; 100: no bound)");

bool contig_scan_61;
PARAM_FLAG(contig_scan_61, 0644, "do so on Linux 6.1, too, where it needs more trust in us (N)");

struct events events;
static struct node_pool *nodes[MAX_NUMNODES];

struct node_pool *node_of(int nid)
{
	return nodes[nid];
}

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = BINPOOL_DEVICE_NAME,
	.fops = &device_fops,
	.groups = device_groups,
	.mode = 0660,
};

static void nodes_exit(void)
{
	int nid;

	for_each_node(nid) {
		struct node_pool *node = nodes[nid];

		if (!node)
			continue;
		cleaners_exit(node);
		quarantine_exit(node);
		limbo_exit(node);
		held_to_system(node, GIVE_ALL, 0, ULONG_MAX);
		reserve_exit(node);
		WARN_ON(node_managed(node));
		held_exit(node);
		bin_counts_exit(node);
		kfree(node);
	}
}

static int __init nodes_init(void)
{
	int nid, err;

	for_each_node(nid) {
		struct node_pool *node = kzalloc_node(sizeof(*node), GFP_KERNEL, NUMA_NO_NODE);

		if (!node)
			return -ENOMEM;
		node->nid = nid;
		spin_lock_init(&node->lock);
		limbo_init(node);
		quarantine_init(node);
		reserve_init(node);
		nodes[nid] = node;
		err = held_init(node) ?: bin_counts_init(node) ?: cleaners_init(node);
		if (err)
			return err;
	}
	return 0;
}

static int __init binpool_init(void)
{
	int err;

	limit_init(max_bytes);
	if (reserve_bytes > limit_max_bytes()) {
		pr_err("reserve_bytes=%llu is above max_bytes (%llu)\n", reserve_bytes,
		       limit_max_bytes());
		return -EINVAL;
	}
	user_limit_set(user_max_bytes);
	err = frames_init();
	if (err)
		return err;
	err = limbo_wq_init();
	if (err)
		goto frames;
	err = nodes_init();
	if (err)
		goto nodes;
	err = pressure_init();
	if (err)
		goto nodes;
	err = misc_register(&device);
	if (err)
		goto pressure;
	/* The device may be open already, so from here on loading does not fail. */
	if (node_dirs_init(&device.this_device->kobj))
		pr_warn("no memory for the folders of nodes and bins in sysfs: some are missing\n");
	holders_init();
	pr_info("at most %llu bytes in frames of %lu bytes\n", limit_max_bytes(), FRAME_BYTES);
	reserve_set(reserve_bytes);
	if (reserve_wait)
		reserve_wait_filled();
	return 0;

pressure:
	pressure_exit();
nodes:
	nodes_exit();
	limbo_wq_exit();
frames:
	frames_exit();
	return err;
}

static void __exit binpool_exit(void)
{
	holders_exit();
	node_dirs_exit();
	misc_deregister(&device);
	pressure_exit();
	reserve_stop(true);
	nodes_exit();
	limbo_wq_exit();
	frames_exit();
	users_exit();
}

module_init(binpool_init);
module_exit(binpool_exit);

MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
MODULE_DESCRIPTION("Contiguous, huge, pinnable host memory from bins");
MODULE_AUTHOR("The binpool authors");
