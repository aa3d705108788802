/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the subcommands of `binpool` share: exit statuses, messages, numbers.
 * No state, no locks.
 */
#ifndef BINPOOL_CLI_H
#define BINPOOL_CLI_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses of every subcommand. An interrupted run ends with 128 + signal. */
#define CLI_OK	   0
#define CLI_FAILED 1 /* the job could not be done, or its result is wrong */
#define CLI_USAGE  2 /* the request makes no sense */

struct command {
	const char *name;
	const char *summary;		    /* one line, for --help */
	int (*main)(int argc, char **argv); /* argv[0] is the command's name */
};

int bins_main(int argc, char **argv);
int replay_main(int argc, char **argv);
int run_main(int argc, char **argv);
int selftest_main(int argc, char **argv);
int stat_main(int argc, char **argv);

/* "binpool: " and the message on stderr, as one line. */
void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* cli_error, and where help is to be had. Returns CLI_USAGE. */
int cli_usage_error(const char *command, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* What getopt_long (with a leading ':') found wrong when it returned @option. */
int cli_option_error(const char *command, int option, char **argv);

/*
 * A decimal number of 64 bits, nothing before or after it. -EINVAL if it is
 * none, -ERANGE if it is too large.
 */
int cli_parse_u64(const char *text, uint64_t *value);

/* The same with an optional binary suffix K, M, G or T. */
int cli_parse_size(const char *text, uint64_t *bytes);

/* What cli_parse_* found wrong, as words to follow the text itself. */
const char *cli_parse_problem(int error);

/* "tight" or "hysop" to BINPOOL_CLASSES_*; -EINVAL for anything else. */
int cli_parse_classes(const char *text, uint32_t *classes);

/*
 * The command line said that the pools' option @name is @value: BINPOOL_OPTS, which the library
 * prefers to what a program wants, says it too from now on. While there is no other thread yet.
 * Returns a CLI_* status, said on stderr.
 */
int cli_pool_option(const char *name, const char *value);

/*
 * The argument of --provider to BINPOOL_PROVIDER_*, with cli_pool_option. Returns a CLI_* status,
 * said on stderr.
 */
int cli_parse_provider(const char *command, const char *text, uint32_t *provider);

/*
 * The max_bytes of a pool over @provider for @bytes of buffers. Over auto that is twice as much,
 * since classes and extents are rounded; auto takes no provider that has less. Over others it is 0,
 * the default; and wherever BINPOOL_OPTS is set, since that may set it or make buffers larger.
 */
uint64_t cli_max_bytes(uint32_t provider, uint64_t bytes);

/* What to try after @error of a pool over @provider, to be put behind the library's sentence. */
const char *cli_way_out(uint32_t provider, int error);

#define CLI_UNITS_LEN 16
/* @bytes in the largest fitting binary unit, "4.0 MiB". Returns @text. */
const char *cli_units(uint64_t bytes, char text[CLI_UNITS_LEN]);

#endif /* BINPOOL_CLI_H */
