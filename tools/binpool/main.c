// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * binpool: the command-line tool. Finds the subcommand and sees to it that
 * output which could not be written is an error. Owns nothing; no locks.
 */
#include <errno.h>
#include <string.h>

#include <binpool.h>

#include "cli.h"

static const struct command commands[] = {
	{"run", "read files into pool buffers, move them through a device, verify", run_main},
	{"selftest", "whether a GPU of this node takes a pool's memory as pinned", selftest_main},
	{"stat", "what the kernel module holds, from sysfs, as a table", stat_main},
	{"bins", "size class and capacity of sizes", bins_main},
	{"replay", "repeat a recorded trace of pool operations and compare its counters",
	 replay_main},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void print_help(FILE *out)
{
	size_t i;

	fputs("Usage: binpool COMMAND [OPTION]... [ARGUMENT]...\n"
	      "Binned, huge-page-backed, pinnable host memory.\n\nCommands:\n",
	      out);
	for (i = 0; i < COMMANDS; i++)
		fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].summary);
	fputs("\n`binpool COMMAND --help` tells more; `binpool --version` which version this is.\n"
	      "Exit status: 0 done, 1 failed or wrong data, 2 a request that makes no sense.\n",
	      out);
}

/* A full disk or a closed pipe must not pass for success. */
static int finish(int status)
{
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "binpool: cannot write the output: %s\n", strerror(errno));
		return status ? status : CLI_FAILED;
	}
	return status;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : NULL;
	size_t i;

	if (!name) {
		print_help(stderr);
		return CLI_USAGE;
	}
	if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
		print_help(stdout);
		return finish(CLI_OK);
	}
	if (!strcmp(name, "--version")) {
		printf("binpool %d.%d\n", BINPOOL_VERSION_MAJOR, BINPOOL_VERSION_MINOR);
		return finish(CLI_OK);
	}
	for (i = 0; i < COMMANDS; i++) {
		if (!strcmp(name, commands[i].name))
			return finish(commands[i].main(argc - 1, argv + 1));
	}
	cli_error("there is no command '%s' (see `binpool --help`)", name);
	return CLI_USAGE;
}
