// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Messages and numbers of the `binpool` command. Owns nothing; no locks.
 */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <binpool.h>

#include "cli.h"

void cli_error(const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fputs("binpool: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

int cli_usage_error(const char *command, const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fprintf(stderr, "binpool %s: ", command);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, " (see `binpool %s --help`)\n", command);
	return CLI_USAGE;
}

int cli_option_error(const char *command, int option, char **argv)
{
	const char *text = argv[optind - 1];

	if (option == ':')
		return cli_usage_error(command, "option '%s' needs a value", text);
	return cli_usage_error(command, "unknown option '%s'", text);
}

/* Digits from @text on; *end is the first character that is none. */
static int parse_digits(const char *text, const char **end, uint64_t *value)
{
	uint64_t sum = 0;
	const char *p;

	for (p = text; *p >= '0' && *p <= '9'; p++) {
		if (__builtin_mul_overflow(sum, 10u, &sum) ||
		    __builtin_add_overflow(sum, (uint64_t)(*p - '0'), &sum))
			return -ERANGE;
	}
	if (p == text)
		return -EINVAL;
	*end = p;
	*value = sum;
	return 0;
}

int cli_parse_u64(const char *text, uint64_t *value)
{
	const char *end;
	uint64_t parsed;
	int ret = parse_digits(text, &end, &parsed);

	if (ret)
		return ret;
	if (*end)
		return -EINVAL;
	*value = parsed;
	return 0;
}

int cli_parse_size(const char *text, uint64_t *bytes)
{
	static const char suffixes[] = "KMGT";
	const char *end, *suffix;
	uint64_t parsed;
	int ret = parse_digits(text, &end, &parsed);

	if (ret)
		return ret;
	if (*end) {
		suffix = strchr(suffixes, *end);
		if (!suffix || end[1])
			return -EINVAL;
		if (__builtin_mul_overflow(parsed, (uint64_t)1 << (10 * (suffix - suffixes + 1)),
					   &parsed))
			return -ERANGE;
	}
	*bytes = parsed;
	return 0;
}

const char *cli_parse_problem(int error)
{
	return error == -ERANGE ? "is above the largest number of 64 bits" : "is not a number";
}

int cli_parse_classes(const char *text, uint32_t *classes)
{
	if (!strcmp(text, "tight"))
		*classes = BINPOOL_CLASSES_TIGHT;
	else if (!strcmp(text, "hysop"))
		*classes = BINPOOL_CLASSES_HYSOP;
	else
		return -EINVAL;
	return 0;
}

int cli_pool_option(const char *name, const char *value)
{
	const char *before = getenv("BINPOOL_OPTS");
	char *all = NULL;
	int err;

	/* Without it the library does what the program wants. */
	if (!before || !*before)
		return CLI_OK;
	/* The last word on an option holds. */
	err = asprintf(&all, "%s,%s=%s", before, name, value) < 0 || setenv("BINPOOL_OPTS", all, 1);
	free(all);
	if (!err)
		return CLI_OK;
	cli_error("no memory for BINPOOL_OPTS");
	return CLI_FAILED;
}

int cli_parse_provider(const char *command, const char *text, uint32_t *provider)
{
	static const uint32_t providers[] = {BINPOOL_PROVIDER_AUTO, BINPOOL_PROVIDER_DEVICE,
					     BINPOOL_PROVIDER_HUGETLB, BINPOOL_PROVIDER_THP};
	size_t i;

	for (i = 0; i < sizeof(providers) / sizeof(providers[0]); i++) {
		if (strcmp(text, binpool_provider_name(providers[i])))
			continue;
		*provider = providers[i];
		return cli_pool_option("provider", text);
	}
	return cli_usage_error(command, "--provider '%s' is not auto, device, hugetlb or thp",
			       text);
}

uint64_t cli_max_bytes(uint32_t provider, uint64_t bytes)
{
	/* What a page full of page table entries maps: extents are multiples of that. */
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), huge = page * (page / 8);
	const char *options = getenv("BINPOOL_OPTS");

	if (provider != BINPOOL_PROVIDER_AUTO || (options && *options) || bytes > UINT64_MAX / 4)
		return 0;
	return 2 * (bytes + huge);
}

const char *cli_way_out(uint32_t provider, int error)
{
	return provider == BINPOOL_PROVIDER_HUGETLB && error == ENOMEM
		       ? "; --provider thp needs no reserved pages"
		       : "";
}

const char *cli_units(uint64_t bytes, char text[CLI_UNITS_LEN])
{
	static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double amount = (double)bytes;
	size_t unit = 0;

	while (amount >= 1023.95 && unit + 1 < sizeof(names) / sizeof(names[0])) {
		amount /= 1024;
		unit++;
	}
	snprintf(text, CLI_UNITS_LEN, unit ? "%.1f %s" : "%.0f %s", amount, names[unit]);
	return text;
}
