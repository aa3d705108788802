/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Traces of pool operations, as CSV. A reader belongs to one thread; no locks.
 */
#ifndef BINPOOL_CLI_TRACE_H
#define BINPOOL_CLI_TRACE_H

#include <stdint.h>

#define TRACE_HEADER_REQUEST  "mantissa_bits,step,op,handle,size"
#define TRACE_HEADER_COUNTERS ",active_blocks,held_blocks,active_bytes,managed_bytes"

enum trace_op { TRACE_CREATE, TRACE_ALLOC, TRACE_FREE, TRACE_FREE_HELD, TRACE_STOP_HOLDING };

enum trace_counter {
	TRACE_ACTIVE_BLOCKS,
	TRACE_HELD_BLOCKS,
	TRACE_ACTIVE_BYTES,
	TRACE_MANAGED_BYTES,
	TRACE_COUNTERS,
};

struct trace_line {
	unsigned long number; /* in the file, from 1 */
	uint32_t mantissa_bits;
	uint64_t step;
	enum trace_op op;
	int has_handle;
	uint64_t handle; /* of alloc and free */
	int has_bytes;
	uint64_t bytes; /* of alloc; may be missing for free */
	int has_counters;
	uint64_t counters[TRACE_COUNTERS]; /* recorded after the operation */
};

struct trace;

/* Opens @path and reads its header. Returns a CLI_* status, said on stderr if not OK. */
int trace_open(struct trace **trace, const char *path);

/* The next operation; *end is set when there is none. Returns as trace_open. */
int trace_next(struct trace *trace, struct trace_line *line, int *end);

void trace_close(struct trace *trace);

const char *trace_op_name(enum trace_op op);
const char *trace_counter_name(int counter);

#endif /* BINPOOL_CLI_TRACE_H */
