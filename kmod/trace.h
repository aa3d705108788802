/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints, events/binpool/ in tracefs: the life of a block, and of the frames
 * behind it. Amounts are in bytes, nodes are NUMA nodes (-1: several, or any). No
 * addresses.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM binpool

#if !defined(BINPOOL_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define BINPOOL_TRACE_H

#include <linux/jiffies.h>
#include <linux/tracepoint.h>

#include "internal.h"

/* clang-format off */

/* A block was made; of held memory only, or with memory of the system. */
TRACE_EVENT(alloc,
	TP_PROTO(const struct block *block, bool fresh),
	TP_ARGS(block, fresh),
	TP_STRUCT__entry(
		__field(u64, bytes)
		__field(u64, capacity)
		__field(int, node)
		__field(unsigned int, runs)
		__field(bool, fresh)
	),
	TP_fast_assign(
		__entry->bytes = block->bytes;
		__entry->capacity = frames_to_bytes(block->nr);
		__entry->node = block->nid;
		__entry->runs = block->nr_runs;
		__entry->fresh = fresh;
	),
	TP_printk("bytes=%llu capacity=%llu node=%d runs=%u source=%s",
		  __entry->bytes, __entry->capacity, __entry->node, __entry->runs,
		  __entry->fresh ? "fresh" : "held")
);

/* A well-formed request was refused. */
TRACE_EVENT(alloc_failed,
	TP_PROTO(const struct request *req, u64 bytes, int err),
	TP_ARGS(req, bytes, err),
	TP_STRUCT__entry(
		__field(u64, bytes)
		__field(u64, run_max_bytes)
		__field(u32, flags)
		__field(int, node)
		__field(int, err)
	),
	TP_fast_assign(
		__entry->bytes = bytes;
		__entry->run_max_bytes = frames_to_bytes(req->run_max);
		__entry->flags = req->flags;
		__entry->node = req->nid;
		__entry->err = err;
	),
	TP_printk("bytes=%llu node=%d flags=%#x err=%d run_max_bytes=%llu",
		  __entry->bytes, __entry->node, __entry->flags, __entry->err,
		  __entry->run_max_bytes)
);

/* A block came back. */
TRACE_EVENT(return,
	TP_PROTO(const struct block *block),
	TP_ARGS(block),
	TP_STRUCT__entry(
		__field(u64, bytes)
		__field(u64, capacity)
		__field(int, node)
		__field(u64, age_ms)
	),
	TP_fast_assign(
		__entry->bytes = block->bytes;
		__entry->capacity = frames_to_bytes(block->nr);
		__entry->node = block->nid;
		__entry->age_ms = jiffies64_to_msecs(get_jiffies_64() - block->since);
	),
	TP_printk("bytes=%llu capacity=%llu node=%d age_ms=%llu",
		  __entry->bytes, __entry->capacity, __entry->node, __entry->age_ms)
);

/* A frame that came back is still pinned. */
TRACE_EVENT(limbo_enter,
	TP_PROTO(int node),
	TP_ARGS(node),
	TP_STRUCT__entry(
		__field(int, node)
	),
	TP_fast_assign(
		__entry->node = node;
	),
	TP_printk("node=%d", __entry->node)
);

/* It no longer is, or was given up. */
TRACE_EVENT(limbo_leave,
	TP_PROTO(int node, unsigned long since, bool dropped),
	TP_ARGS(node, since, dropped),
	TP_STRUCT__entry(
		__field(int, node)
		__field(unsigned int, waited_ms)
		__field(bool, dropped)
	),
	TP_fast_assign(
		__entry->node = node;
		__entry->waited_ms = jiffies_to_msecs(jiffies - since);
		__entry->dropped = dropped;
	),
	TP_printk("node=%d waited_ms=%u dropped=%d",
		  __entry->node, __entry->waited_ms, __entry->dropped)
);

/* A frame was zeroed, by a thread of ours or by the one who called ALLOC. */
TRACE_EVENT(clean,
	TP_PROTO(int node, bool background),
	TP_ARGS(node, background),
	TP_STRUCT__entry(
		__field(int, node)
		__field(bool, background)
	),
	TP_fast_assign(
		__entry->node = node;
		__entry->background = background;
	),
	TP_printk("node=%d by=%s", __entry->node,
		  __entry->background ? "background" : "caller")
);

/* Frames came from the system: as many as wanted, or fewer. */
TRACE_EVENT(fresh,
	TP_PROTO(int node, unsigned long wanted, unsigned long got),
	TP_ARGS(node, wanted, got),
	TP_STRUCT__entry(
		__field(int, node)
		__field(u64, wanted_bytes)
		__field(u64, bytes)
	),
	TP_fast_assign(
		__entry->node = node;
		__entry->wanted_bytes = frames_to_bytes(wanted);
		__entry->bytes = frames_to_bytes(got);
	),
	TP_printk("node=%d wanted_bytes=%llu bytes=%llu",
		  __entry->node, __entry->wanted_bytes, __entry->bytes)
);

/* Frames went back to the system. */
TRACE_EVENT(free,
	TP_PROTO(int node, unsigned long nr),
	TP_ARGS(node, nr),
	TP_STRUCT__entry(
		__field(int, node)
		__field(u64, bytes)
	),
	TP_fast_assign(
		__entry->node = node;
		__entry->bytes = frames_to_bytes(nr);
	),
	TP_printk("node=%d bytes=%llu", __entry->node, __entry->bytes)
);

/* clang-format on */

#endif /* BINPOOL_TRACE_H */

/* This part is read once more by the file that defines the tracepoints. */
#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
