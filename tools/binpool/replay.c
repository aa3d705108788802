// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * binpool replay: repeats a recorded trace of pool operations, on pools over an
 * allocator that only counts, and compares the counters after each operation.
 * Owns the pool of the trace, the buffers alive in it and the allocator's count;
 * one thread, no locks.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include <binpool.h>

#include "cli.h"
#include "trace.h"

/* Hands out addresses that nobody touches, and counts their bytes. */
struct counting_allocator {
	uintptr_t next;
	uint64_t live_bytes;
};

/* A buffer that the trace has allocated and not freed yet. */
struct buffer {
	uint64_t handle; /* the tree's key */
	void *ptr;
	uint64_t bytes;
};

struct replay {
	const char *path;
	uint32_t classes;
	int quiet;
	struct binpool *pool;
	uint32_t mantissa_bits; /* of the pool */
	void *buffers;		/* tree of struct buffer */
	struct counting_allocator allocator;
};

/* Addresses start above what is NULL to anybody and stay multiples of a cache line. */
#define FIRST_ADDRESS ((uintptr_t)1 << 20)
#define ADDRESS_STEP  64u

static int counting_alloc(void *ctx, uint64_t bytes, void **ptr)
{
	struct counting_allocator *allocator = ctx;
	uintptr_t end;

	if (__builtin_add_overflow(allocator->next, bytes, &end) ||
	    __builtin_add_overflow(end, ADDRESS_STEP, &end))
		return -ENOMEM;
	*ptr = (void *)allocator->next;
	allocator->next = end & ~(uintptr_t)(ADDRESS_STEP - 1);
	allocator->live_bytes += bytes;
	return 0;
}

static void counting_free(void *ctx, void *ptr, uint64_t bytes)
{
	struct counting_allocator *allocator = ctx;

	(void)ptr;
	allocator->live_bytes -= bytes;
}

static void print_help(void)
{
	printf("Usage: binpool replay [OPTION]... TRACE.csv\n"
	       "Repeat the operations of TRACE on a pool over an allocator that only counts, print\n"
	       "the counters after each, and stop at the first that differs from the recorded one.\n\n"
	       "  --classes WHICH  hysop (default) or tight\n"
	       "  --quiet          print differences only\n\n"
	       "A trace starts with this line; the last four columns may be missing:\n"
	       "  " TRACE_HEADER_REQUEST TRACE_HEADER_COUNTERS "\n"
	       "op is create, alloc, free, free_held or stop_holding.\n"
	       "Exit status: 0 all equal, 1 a counter differs, 2 the trace is malformed.\n");
}

static int compare_buffers(const void *a, const void *b)
{
	uint64_t left = ((const struct buffer *)a)->handle;
	uint64_t right = ((const struct buffer *)b)->handle;

	return (left > right) - (left < right);
}

static int malformed(const struct replay *replay, const struct trace_line *line, const char *what)
{
	cli_error("%s, line %lu: %s", replay->path, line->number, what);
	return CLI_USAGE;
}

static int failed(const struct replay *replay, const struct trace_line *line, int error)
{
	cli_error("%s, line %lu: %s failed: %s (%s)", replay->path, line->number,
		  trace_op_name(line->op), binpool_last_error(), strerror(error));
	return CLI_FAILED;
}

/* Ends the pool, with what the trace left alive in it. */
static int end_pool(struct replay *replay)
{
	struct buffer *buffer;
	int ret = 0;

	while (replay->buffers) {
		buffer = *(struct buffer **)replay->buffers;
		if (binpool_free(replay->pool, buffer->ptr))
			ret = CLI_FAILED;
		tdelete(buffer, &replay->buffers, compare_buffers);
		free(buffer);
	}
	if (replay->pool && binpool_destroy(replay->pool))
		ret = CLI_FAILED;
	replay->pool = NULL;
	if (ret)
		cli_error("%s: the pool could not be emptied: %s", replay->path,
			  binpool_last_error());
	if (!ret && replay->allocator.live_bytes) {
		cli_error("%s: the pool is gone and %" PRIu64 " bytes were not given back",
			  replay->path, replay->allocator.live_bytes);
		ret = CLI_FAILED;
	}
	return ret;
}

static int do_create(struct replay *replay, const struct trace_line *line)
{
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops),
		.ctx = &replay->allocator,
		.alloc = counting_alloc,
		.free = counting_free,
	};
	struct binpool_options options = BINPOOL_OPTIONS_INIT;
	int ret = end_pool(replay);

	if (ret)
		return ret;
	replay->allocator.next = FIRST_ADDRESS;
	replay->mantissa_bits = line->mantissa_bits;
	options.name = "replay";
	options.provider = BINPOOL_PROVIDER_ALLOCATOR;
	options.allocator = &ops;
	options.mantissa_bits = line->mantissa_bits;
	options.classes = replay->classes;
	options.granule = 1;
	ret = binpool_create(&replay->pool, &options);
	return ret ? failed(replay, line, -ret) : CLI_OK;
}

static int do_alloc(struct replay *replay, const struct trace_line *line)
{
	struct buffer *buffer = malloc(sizeof(*buffer));
	void *node;

	if (!buffer) {
		cli_error("no memory for a buffer's record");
		return CLI_FAILED;
	}
	buffer->handle = line->handle;
	buffer->bytes = line->bytes;
	node = tsearch(buffer, &replay->buffers, compare_buffers);
	if (!node || *(struct buffer **)node != buffer) {
		free(buffer);
		return malformed(replay, line,
				 node ? "this handle is allocated already" : "no memory");
	}
	buffer->ptr = binpool_alloc(replay->pool, line->bytes);
	if (!buffer->ptr) {
		int error = errno;

		tdelete(buffer, &replay->buffers, compare_buffers);
		free(buffer);
		return failed(replay, line, error);
	}
	return CLI_OK;
}

static int do_free(struct replay *replay, const struct trace_line *line)
{
	struct buffer key = {.handle = line->handle}, *buffer;
	void *node = tfind(&key, &replay->buffers, compare_buffers);
	int ret;

	if (!node)
		return malformed(replay, line, "this handle is not allocated");
	buffer = *(struct buffer **)node;
	if (line->has_bytes && line->bytes != buffer->bytes)
		return malformed(replay, line,
				 "size is not the one this handle was allocated with");
	ret = binpool_free_sized(replay->pool, buffer->ptr, buffer->bytes);
	if (ret)
		return failed(replay, line, -ret);
	tdelete(buffer, &replay->buffers, compare_buffers);
	free(buffer);
	return CLI_OK;
}

static int do_operation(struct replay *replay, const struct trace_line *line)
{
	int ret = 0;

	if (line->op == TRACE_CREATE)
		return do_create(replay, line);
	if (!replay->pool)
		return malformed(replay, line, "the first operation is not create");
	if (line->mantissa_bits != replay->mantissa_bits)
		return malformed(replay, line, "mantissa_bits is not that of the last create");
	switch (line->op) {
	case TRACE_ALLOC:
		return do_alloc(replay, line);
	case TRACE_FREE:
		return do_free(replay, line);
	case TRACE_FREE_HELD:
		ret = binpool_free_held(replay->pool);
		break;
	default:
		ret = binpool_stop_holding(replay->pool);
		break;
	}
	return ret ? failed(replay, line, -ret) : CLI_OK;
}

static void print_line(const struct trace_line *line, const uint64_t *counters)
{
	int i;

	printf("%" PRIu32 ",%" PRIu64 ",%s,", line->mantissa_bits, line->step,
	       trace_op_name(line->op));
	if (line->has_handle)
		printf("%" PRIu64, line->handle);
	putchar(',');
	if (line->has_bytes)
		printf("%" PRIu64, line->bytes);
	for (i = 0; i < TRACE_COUNTERS; i++)
		printf(",%" PRIu64, counters[i]);
	putchar('\n');
}

/* The counters after an operation: printed, compared, and checked against the allocator's. */
static int check_counters(struct replay *replay, const struct trace_line *line)
{
	struct binpool_stats stats = {.size = sizeof(stats)};
	uint64_t counters[TRACE_COUNTERS];
	int i, ret = binpool_get_stats(replay->pool, &stats);

	if (ret)
		return failed(replay, line, -ret);
	counters[TRACE_ACTIVE_BLOCKS] = stats.active_blocks;
	counters[TRACE_HELD_BLOCKS] = stats.held_blocks;
	counters[TRACE_ACTIVE_BYTES] = stats.active_bytes;
	counters[TRACE_MANAGED_BYTES] = stats.managed_bytes;
	if (!replay->quiet)
		print_line(line, counters);
	for (i = 0; line->has_counters && i < TRACE_COUNTERS; i++) {
		if (counters[i] == line->counters[i])
			continue;
		cli_error("%s, line %lu: %s: expected %" PRIu64 ", got %" PRIu64, replay->path,
			  line->number, trace_counter_name(i), line->counters[i], counters[i]);
		return CLI_FAILED;
	}
	if (replay->allocator.live_bytes != stats.managed_bytes) {
		cli_error("%s, line %lu: managed_bytes is %" PRIu64 ", but the allocator has given "
			  "%" PRIu64,
			  replay->path, line->number, stats.managed_bytes,
			  replay->allocator.live_bytes);
		return CLI_FAILED;
	}
	return CLI_OK;
}

static int replay_trace(struct replay *replay)
{
	struct trace_line line;
	struct trace *trace;
	int status, end, ret = trace_open(&trace, replay->path);

	if (ret)
		return ret;
	if (!replay->quiet)
		printf(TRACE_HEADER_REQUEST TRACE_HEADER_COUNTERS "\n");
	while (!(status = trace_next(trace, &line, &end)) && !end) {
		status = do_operation(replay, &line);
		if (!status)
			status = check_counters(replay, &line);
		if (status)
			break;
	}
	trace_close(trace);
	ret = end_pool(replay);
	return status ? status : ret;
}

int replay_main(int argc, char **argv)
{
	static const struct option options[] = {
		{"classes", required_argument, NULL, 'c'},
		{"quiet", no_argument, NULL, 'q'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	struct replay replay = {.classes = BINPOOL_CLASSES_HYSOP};
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, ":c:qh", options, NULL)) != -1) {
		switch (option) {
		case 'c':
			if (cli_parse_classes(optarg, &replay.classes))
				return cli_usage_error(
					"replay", "--classes '%s' is not hysop or tight", optarg);
			break;
		case 'q':
			replay.quiet = 1;
			break;
		case 'h':
			print_help();
			return CLI_OK;
		default:
			return cli_option_error("replay", option, argv);
		}
	}
	if (argc - optind != 1)
		return cli_usage_error("replay", "one trace is wanted, %d were given",
				       argc - optind);
	replay.path = argv[optind];
	return replay_trace(&replay);
}
