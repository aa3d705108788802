// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Reads traces of pool operations and says by line and column what is malformed.
 * A reader owns its file and line buffer; one thread, no locks.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <linux/binpool_bins.h>

#include "cli.h"
#include "trace.h"

/* Columns, in the order of the header. */
enum column {
	MANTISSA_BITS,
	STEP,
	OP,
	HANDLE,
	SIZE,
	COUNTERS,
	COLUMNS = COUNTERS + TRACE_COUNTERS
};

struct trace {
	const char *path;
	FILE *file;
	char *text; /* of the current line; columns point into it */
	size_t text_size;
	unsigned long number; /* of the current line */
	int columns;	      /* that each line has */
};

static const char *const op_names[] = {
	[TRACE_CREATE] = "create",
	[TRACE_ALLOC] = "alloc",
	[TRACE_FREE] = "free",
	[TRACE_FREE_HELD] = "free_held",
	[TRACE_STOP_HOLDING] = "stop_holding",
};

#define OPS (sizeof(op_names) / sizeof(op_names[0]))

static const char *const column_names[COLUMNS] = {
	"mantissa_bits", "step",	"op",		"handle",	 "size",
	"active_blocks", "held_blocks", "active_bytes", "managed_bytes",
};

const char *trace_op_name(enum trace_op op)
{
	return op_names[op];
}

const char *trace_counter_name(int counter)
{
	return column_names[COUNTERS + counter];
}

/* 1: there is a line, without its end; 0: there is none; -CLI_*: it can't be read or is no text. */
static int next_text(struct trace *trace)
{
	ssize_t length = getline(&trace->text, &trace->text_size, trace->file);

	if (length < 0) {
		if (!ferror(trace->file))
			return 0;
		cli_error("cannot read %s: %s", trace->path, strerror(errno));
		return -CLI_FAILED;
	}
	trace->number++;
	/* It would end the string and hide what comes after it. */
	if (memchr(trace->text, '\0', (size_t)length)) {
		cli_error("%s, line %lu: there is a NUL byte: no text", trace->path, trace->number);
		return -CLI_USAGE;
	}
	trace->text[strcspn(trace->text, "\r\n")] = '\0';
	return 1;
}

int trace_open(struct trace **trace_out, const char *path)
{
	struct trace *trace = calloc(1, sizeof(*trace));
	int ret;

	if (!trace) {
		cli_error("no memory to read %s", path);
		return CLI_FAILED;
	}
	trace->path = path;
	trace->file = fopen(path, "re");
	if (!trace->file) {
		cli_error("cannot open %s: %s", path, strerror(errno));
		free(trace);
		return CLI_FAILED;
	}
	ret = next_text(trace);
	if (ret > 0 && !strcmp(trace->text, TRACE_HEADER_REQUEST TRACE_HEADER_COUNTERS))
		trace->columns = COLUMNS;
	else if (ret > 0 && !strcmp(trace->text, TRACE_HEADER_REQUEST))
		trace->columns = COUNTERS;
	if (trace->columns) {
		*trace_out = trace;
		return CLI_OK;
	}
	if (ret >= 0)
		cli_error("%s, line 1: not the header of a trace, which is '%s' with or without "
			  "'%s'",
			  path, TRACE_HEADER_REQUEST, TRACE_HEADER_COUNTERS);
	trace_close(trace);
	return ret < 0 ? -ret : CLI_USAGE;
}

/* Splits the current line at its commas. */
static int split(struct trace *trace, char *fields[COLUMNS])
{
	char *rest = trace->text, *field;
	int count = 0;

	while ((field = strsep(&rest, ","))) {
		if (count < COLUMNS)
			fields[count] = field;
		count++;
	}
	if (count == trace->columns)
		return CLI_OK;
	cli_error("%s, line %lu: %d columns, not %d as in the header", trace->path, trace->number,
		  count, trace->columns);
	return CLI_USAGE;
}

/* The number in @column. With @has, it may be missing. */
static int number(const struct trace *trace, char *const fields[COLUMNS], int column,
		  uint64_t *value, int *has)
{
	int ret;

	if (has) {
		*has = fields[column][0] != '\0';
		if (!*has)
			return CLI_OK;
	}
	ret = cli_parse_u64(fields[column], value);
	if (!ret)
		return CLI_OK;
	cli_error("%s, line %lu: %s: '%s' %s", trace->path, trace->number, column_names[column],
		  fields[column], cli_parse_problem(ret));
	return CLI_USAGE;
}

/* Which columns an operation must have and must not have. */
static int check_operands(const struct trace *trace, const struct trace_line *line)
{
	int buffer = line->op == TRACE_ALLOC || line->op == TRACE_FREE;
	const char *wrong = NULL;

	if (line->has_handle != buffer)
		wrong = buffer ? "needs a handle" : "takes no handle";
	else if (line->op == TRACE_ALLOC && !line->has_bytes)
		wrong = "needs a size";
	else if (!buffer && line->has_bytes)
		wrong = "takes no size";
	if (!wrong)
		return CLI_OK;
	cli_error("%s, line %lu: %s %s", trace->path, trace->number, op_names[line->op], wrong);
	return CLI_USAGE;
}

int trace_next(struct trace *trace, struct trace_line *line, int *end)
{
	char *fields[COLUMNS];
	uint64_t mantissa_bits;
	int i, ret = next_text(trace);

	*end = ret == 0;
	if (ret <= 0)
		return -ret;
	memset(line, 0, sizeof(*line));
	line->number = trace->number;
	ret = split(trace, fields);
	if (!ret)
		ret = number(trace, fields, MANTISSA_BITS, &mantissa_bits, NULL);
	if (!ret)
		ret = number(trace, fields, STEP, &line->step, NULL);
	if (!ret)
		ret = number(trace, fields, HANDLE, &line->handle, &line->has_handle);
	if (!ret)
		ret = number(trace, fields, SIZE, &line->bytes, &line->has_bytes);
	line->has_counters = trace->columns == COLUMNS;
	for (i = 0; !ret && line->has_counters && i < TRACE_COUNTERS; i++)
		ret = number(trace, fields, COUNTERS + i, &line->counters[i], NULL);
	if (ret)
		return ret;
	if (mantissa_bits > BINPOOL_MANTISSA_BITS_MAX) {
		cli_error("%s, line %lu: mantissa_bits: '%s' is not 0 to %d", trace->path,
			  trace->number, fields[MANTISSA_BITS], BINPOOL_MANTISSA_BITS_MAX);
		return CLI_USAGE;
	}
	line->mantissa_bits = (uint32_t)mantissa_bits;
	for (i = 0; i < (int)OPS && strcmp(fields[OP], op_names[i]); i++)
		;
	if (i == (int)OPS) {
		cli_error("%s, line %lu: op: '%s' is no operation", trace->path, trace->number,
			  fields[OP]);
		return CLI_USAGE;
	}
	line->op = (enum trace_op)i;
	return check_operands(trace, line);
}

void trace_close(struct trace *trace)
{
	fclose(trace->file);
	free(trace->text);
	free(trace);
}
