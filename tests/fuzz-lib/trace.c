// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The command's reader of traces: any file is read to its end or refused with a sentence,
 * and a line that is read has what its operation needs.
 */
#include "fuzz_lib.h"

#include <sys/mman.h>
#include <unistd.h>

#include <linux/binpool_bins.h>

#include "cli.h"
#include "trace.h"

static char *said;
static size_t said_len;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	/* What the command says to people. */
	stderr = open_memstream(&said, &said_len);
	MUST(stderr);
	return 0;
}

static void check_line(const struct trace_line *line, unsigned long before)
{
	int buffer = line->op == TRACE_ALLOC || line->op == TRACE_FREE;

	MUST(line->number > before);
	MUST(line->mantissa_bits <= BINPOOL_MANTISSA_BITS_MAX);
	MUST((unsigned int)line->op <= TRACE_STOP_HOLDING && trace_op_name(line->op));
	MUST(line->has_handle == buffer);
	MUST(line->op != TRACE_ALLOC || line->has_bytes);
	MUST(buffer || !line->has_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("trace", 0), end = 0, ret;
	struct trace_line line = {0};
	struct trace *trace;
	char path[64];

	MUST(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	MUST(!fseek(stderr, 0, SEEK_SET));
	ret = trace_open(&trace, path);
	if (!ret) {
		do {
			unsigned long before = line.number;

			ret = trace_next(trace, &line, &end);
			if (!ret && !end)
				check_line(&line, before);
		} while (!ret && !end);
		trace_close(trace);
	}
	fflush(stderr);
	/* What is refused is explained in one line, what is read is not. */
	MUST(!ret == !ftell(stderr));
	MUST(!ret || said[ftell(stderr) - 1] == '\n');
	MUST(ret == CLI_OK || ret == CLI_USAGE || ret == CLI_FAILED);
	close(fd);
	return 0;
}
