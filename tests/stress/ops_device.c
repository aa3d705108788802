// SPDX-License-Identifier: GPL-2.0
/*
 * What is asked of the device and of blocks beside memory: INFO, TRIM, LIMIT, QUERY,
 * EXPORT_DMABUF.
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

/* Mostly none, or one that lets some blocks through. */
bool op_limit(struct task *task, struct slot *slot)
{
	struct binpool_limit l = {.size = sizeof(l)};

	(void)slot;
	if (one_in(&task->rng, 3))
		l.max_bytes = shared->frame + below(&task->rng, shared->options.max_bytes / 4);
	return SUCCEEDED(OP_LIMIT,
			 request(worker.dev[below(&task->rng, OPENERS)], BINPOOL_IOC_LIMIT, &l), 0);
}

/* The mapping of a dma-buf is as good as the block's, and keeps it as long. */
bool op_export(struct task *task, struct slot *slot)
{
	const __u32 flags = one_in(&task->rng, 4) ? BINPOOL_EXPORT_READ_ONLY : 0;
	struct binpool_export_dmabuf e = {.size = sizeof(e), .flags = flags};
	struct view *view;
	int block = slot->fd;

	if (slot->fd < 0 || !(shared->features & BINPOOL_FEATURE_DMABUF) ||
	    !SUCCEEDED(OP_EXPORT, request(slot->fd, BINPOOL_IOC_EXPORT_DMABUF, &e), ENOMEM, EMFILE))
		return false;
	slot->fd = e.fd;
	view = slot_map(slot, 0, slot->capacity / shared->page, flags);
	slot->fd = block;
	close(e.fd);
	if (!view)
		return false;
	/* It may not become writable later. */
	if (!view_verify(slot, view, 0, view->pages, CHECK_DATA) || flags)
		view_unmap(view);
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
