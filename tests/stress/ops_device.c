// SPDX-License-Identifier: GPL-2.0
/*
 * What is asked of the device and of blocks beside memory: INFO, QUERY, TRIM.
 */
#include "stress.h"

bool op_trim(struct task *task, struct slot *slot)
{
	struct binpool_trim t = {
		.size = sizeof(t),
		.held_bytes = below(&task->rng, shared->options.max_bytes),
		.node = BINPOOL_NODE_ANY,
	};

	(void)slot;
	if (one_in(&task->rng, 2))
		t.node = shared->nodes[below(&task->rng, shared->nr_nodes)];
	if (!SUCCEEDED(OP_TRIM, request(worker.dev[0], BINPOOL_IOC_TRIM, &t), 0))
		return false;
	if (t.freed_bytes % shared->frame)
		report(CHECK_COUNTERS, "TRIM freed %llu bytes", (unsigned long long)t.freed_bytes);
	return true;
}

bool op_info(struct task *task, struct slot *slot)
{
	struct binpool_info info;

	(void)slot;
	if (!SUCCEEDED(OP_INFO, device_info(worker.dev[below(&task->rng, OPENERS)], &info), 0))
		return false;
	if (info.frame_bytes != shared->frame ||
	    (info.max_bytes | info.active_bytes | info.held_bytes | info.limbo_bytes |
	     info.opener_bytes) %
		    shared->frame)
		report(CHECK_COUNTERS, "INFO has amounts that are no frames");
	return true;
}

bool op_query(struct task *task, struct slot *slot)
{
	struct binpool_query q;

	(void)task;
	if (slot->fd < 0 || !SUCCEEDED(OP_QUERY, block_query(slot->fd, &q), 0))
		return false;
	if (q.capacity != slot->capacity || q.bytes > q.capacity || q.frame_bytes != shared->frame)
		report(CHECK_DATA, "QUERY says %llu bytes of a block of %llu",
		       (unsigned long long)q.capacity, (unsigned long long)slot->capacity);
	return true;
}
