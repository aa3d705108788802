// SPDX-License-Identifier: GPL-2.0
/*
 * fuzz: everything a program can ask of /dev/binpool and of blocks, with random
 * arguments. Options, the phases one after the other, TAP.
 */
#include <linux/capability.h>
#include <getopt.h>
#include <stdarg.h>

#include "fuzz.h"

/* A small limit, so that no single ALLOC takes long. */
#define LIMIT_FRAMES 32

/* Findings of a phase that are printed; the others are counted. */
#define PRINTED 5

struct fuzz fuzz;

static unsigned int findings;

void wrong(const char *format, ...)
{
	va_list args;

	if (findings++ >= PRINTED)
		return;
	fputs(fuzz.planted ? "# (planted) " : "# NOT: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

/* The end of a phase. */
int verdict(__u64 steps)
{
	printf("# %llu steps, %u findings\n", (unsigned long long)steps, findings);
	fflush(stdout);
	return findings || !steps;
}

static const struct phase {
	const char *name;
	int (*run)(void);
	unsigned int share; /* of 16 parts of the time */
} phases[] = {
	{"ioctls with random arguments", fuzz_calls, 7},
	{"ioctls whose arguments change meanwhile", fuzz_races, 3},
	{"mappings with random arguments", fuzz_maps, 5},
	{"other system calls", fuzz_files, 1},
};

#define PHASES (sizeof(phases) / sizeof(phases[0]))

static void usage(FILE *out)
{
	fputs("usage: fuzz [-t SECONDS] [-s SEED] [-c]\n"
	      "  -t SECONDS  how long, default 24\n"
	      "  -s SEED     default: from the clock; printed\n"
	      "  -c          control: things wrong on purpose, see that they are seen\n"
	      "Needs root, the module, and a machine that may be upset.\n",
	      out);
}

static unsigned int number, failures;

static void tap(bool good, const char *name)
{
	failures += !good;
	printf("%sok %u - %s\n", good ? "" : "not ", ++number, name);
	fflush(stdout);
}

static int run(const struct phase *phase, unsigned int seconds)
{
	pid_t pid;

	fuzz.end_ms = now_ms() + seconds * 1000 * phase->share / 16;
	pid = fork();
	if (!pid)
		_exit(phase->run());
	return child_status(pid);
}

/* Caught, it is no line in the kernel log. */
static void no_entry(int signal)
{
	(void)signal;
	_exit(1);
}

/* Whether int $0x80 does something here; without it, it is a fault. */
static bool compat_works(void)
{
	struct binpool_info *info;
	pid_t pid;
	int dev;

#ifndef MAP_32BIT
	return false;
#else
	pid = fork();
	if (pid)
		return child_status(pid) == 0;
	signal(SIGSEGV, no_entry);
	dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	info = mmap(NULL, fuzz.page, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	info->size = sizeof(*info);
	_exit(enter(true, dev, BINPOOL_IOC_INFO, info) ? 1 : 0);
#endif
}

/* Who may not do raw I/O is told no physical addresses, whatever he says. */
static bool drop_raw_io(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	if (syscall(SYS_capget, &header, data))
		return false;
	data[0].effective &= ~(1U << CAP_SYS_RAWIO);
	data[0].permitted &= ~(1U << CAP_SYS_RAWIO);
	data[0].inheritable &= ~(1U << CAP_SYS_RAWIO);
	return !syscall(SYS_capset, &header, data);
}

static bool prepare(void)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	struct binpool_info info;

	if (dev < 0 || device_info(dev, &info)) {
		printf("Bail out! " DEVICE ": %s; is the module loaded?\n", strerror(errno));
		return false;
	}
	close(dev);
	fuzz.frame = info.frame_bytes;
	fuzz.features = info.features;
	fuzz.mantissa_bits = info.mantissa_bits;
	fuzz.page = page_bytes();
	fuzz.machine_bytes = meminfo_bytes("MemTotal");
	fuzz.max_bytes = LIMIT_FRAMES * fuzz.frame;
	fuzz.compat = compat_works();
	printf("# seed %llu%s\n", (unsigned long long)fuzz.seed,
	       fuzz.compat ? "" : "; no entry for 32-bit programs here");
	return drop_raw_io() && !attr_write("max_bytes", fuzz.max_bytes);
}

int main(int argc, char **argv)
{
	long long max_bytes = attr_read("max_bytes");
	unsigned int seconds = 24;
	int log = log_open(), c;

	fuzz.seed = now_ms() * 0x9e3779b97f4a7c15ULL >> 32;
	while ((c = getopt(argc, argv, "t:s:ch")) != -1) {
		switch (c) {
		case 't':
			seconds = (unsigned int)atoi(optarg);
			break;
		case 's':
			fuzz.seed = strtoull(optarg, NULL, 0);
			break;
		case 'c':
			fuzz.planted = true;
			break;
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 2;
		}
	}
	if (optind < argc) {
		usage(stderr);
		return 2;
	}
	if (!prepare())
		return 1;
	tap(table_complete(), "every member of every struct is in the table");
	for (size_t i = 0; i < PHASES; i++) {
		int status = run(&phases[i], seconds);

		if (status > 1)
			printf("# it ended with %d\n", status);
		tap(fuzz.planted ? status == 1 : status == 0, phases[i].name);
	}
	tap(attr_becomes("active_bytes", 0, 3000) && attr_becomes("limbo_bytes", 0, 3000) &&
		    attr_read("managed_bytes") == attr_read("held_bytes"),
	    "everything came back");
	attr_write("max_bytes", (__u64)max_bytes);
	sleep_ms(50);
	tap(!log_count_bad(log), "kernel log");
	printf("1..%u\n", number);
	return failures ? 1 : 0;
}
