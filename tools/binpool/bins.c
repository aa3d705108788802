// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * binpool bins: the size class of sizes. Owns nothing; no locks.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <binpool.h>
#include <linux/binpool_bins.h>

#include "cli.h"

static void print_help(void)
{
	printf("Usage: binpool bins [OPTION]... [SIZE]...\n"
	       "Print `size bin capacity` for each SIZE in bytes (suffixes K, M, G, T: binary).\n"
	       "Without SIZE, sizes are read from standard input, separated by white space.\n\n"
	       "  --mantissa-bits M  2^M classes per power of two, 0 to %d (default %d)\n"
	       "  --classes WHICH    tight: powers of two are served exactly (default)\n"
	       "                     hysop: the classes of HySoP's memory pool\n",
	       BINPOOL_MANTISSA_BITS_MAX, BINPOOL_MANTISSA_BITS_DEFAULT);
}

/* Prints the line of one size. @where: " in line N of standard input", or "". */
static int print_bin(const char *text, const char *where, uint32_t mantissa_bits, uint32_t classes)
{
	uint64_t size, capacity;
	uint32_t bin;
	int ret = cli_parse_size(text, &size);

	if (ret)
		return cli_usage_error("bins", "size '%s'%s %s", text, where,
				       cli_parse_problem(ret));
	if (classes == BINPOOL_CLASSES_HYSOP) {
		bin = binpool_bin_number(mantissa_bits, size);
		capacity = binpool_alloc_size(mantissa_bits, bin);
	} else {
		bin = binpool_tight_bin_number(mantissa_bits, size);
		capacity = binpool_tight_alloc_size(mantissa_bits, bin);
	}
	/* No class is empty, so 0 is a capacity beyond 64 bits. */
	if (!capacity)
		return cli_usage_error("bins",
				       "size '%s'%s belongs to the class of 2^64 bytes, which no "
				       "64-bit number can hold",
				       text, where);
	printf("%" PRIu64 " %" PRIu32 " %" PRIu64 "\n", size, bin, capacity);
	return CLI_OK;
}

static int print_bins_of_input(uint32_t mantissa_bits, uint32_t classes)
{
	unsigned long line_number = 0;
	char *line = NULL, *rest, *word;
	size_t line_size = 0;
	char where[64];
	ssize_t length;
	int status = CLI_OK;

	while (!status && (length = getline(&line, &line_size, stdin)) >= 0) {
		snprintf(where, sizeof(where), " in line %lu of standard input", ++line_number);
		/* It would end the string and hide what comes after it. */
		if (memchr(line, '\0', (size_t)length)) {
			status = cli_usage_error("bins", "there is a NUL byte%s: no text", where);
			break;
		}
		for (word = strtok_r(line, " \t\r\n", &rest); word && !status;
		     word = strtok_r(NULL, " \t\r\n", &rest))
			status = print_bin(word, where, mantissa_bits, classes);
	}
	if (!status && ferror(stdin)) {
		cli_error("cannot read standard input: %s", strerror(errno));
		status = CLI_FAILED;
	}
	free(line);
	return status;
}

int bins_main(int argc, char **argv)
{
	static const struct option options[] = {
		{"mantissa-bits", required_argument, NULL, 'm'},
		{"classes", required_argument, NULL, 'c'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	uint64_t mantissa_bits = BINPOOL_MANTISSA_BITS_DEFAULT;
	uint32_t classes = BINPOOL_CLASSES_TIGHT;
	int option, status = CLI_OK;

	opterr = 0;
	while ((option = getopt_long(argc, argv, ":m:c:h", options, NULL)) != -1) {
		switch (option) {
		case 'm':
			if (cli_parse_u64(optarg, &mantissa_bits) ||
			    mantissa_bits > BINPOOL_MANTISSA_BITS_MAX)
				return cli_usage_error("bins",
						       "--mantissa-bits '%s' is not 0 to %d",
						       optarg, BINPOOL_MANTISSA_BITS_MAX);
			break;
		case 'c':
			if (cli_parse_classes(optarg, &classes))
				return cli_usage_error(
					"bins", "--classes '%s' is not tight or hysop", optarg);
			break;
		case 'h':
			print_help();
			return CLI_OK;
		default:
			return cli_option_error("bins", option, argv);
		}
	}
	if (optind == argc)
		return print_bins_of_input((uint32_t)mantissa_bits, classes);
	while (!status && optind < argc)
		status = print_bin(argv[optind++], "", (uint32_t)mantissa_bits, classes);
	return status;
}
