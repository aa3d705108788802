// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The programs of bench-cuda in one: cuda PROGRAM ARGUMENT... What they share that is neither
 * memory nor the driver is here, too.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

static double clock_ms(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

double now_ms(void)
{
	return clock_ms(CLOCK_MONOTONIC);
}

double cpu_ms(void)
{
	return clock_ms(CLOCK_PROCESS_CPUTIME_ID);
}

void end(int status, const char *format, ...)
{
	va_list args;

	fflush(stdout);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	/* Nothing of a driver that failed is torn down. */
	_exit(status);
}

size_t bytes_of(const char *text)
{
	char *rest;
	size_t n = strtoull(text, &rest, 10);
	const char *units = "KMG", *unit = strchr(units, *rest);

	if (rest == text || (*rest && (!unit || rest[1])))
		end(1, "'%s' is no size", text);
	return *rest ? n << 10 * (unit - units + 1) : n;
}

static uint64_t pattern_word(uint64_t seed, size_t i)
{
	return (seed << 40 ^ i) * 0x9e3779b97f4a7c15u;
}

void pattern_fill(void *at, size_t bytes, uint64_t seed)
{
	uint64_t *words = at;

	for (size_t i = 0; i < bytes / sizeof(*words); i++)
		words[i] = pattern_word(seed, i);
}

size_t pattern_check(const void *at, size_t bytes, uint64_t seed)
{
	const uint64_t *words = at;

	for (size_t i = 0; i < bytes / sizeof(*words); i++)
		if (words[i] != pattern_word(seed, i))
			return i * sizeof(*words);
	return bytes;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

void sort(double *values, size_t n)
{
	qsort(values, n, sizeof(*values), compare);
}

double quantile(const double *values, size_t n, double part)
{
	size_t i = (size_t)(part * (double)n);

	return n ? values[i < n ? i : n - 1] : 0;
}

/* ---- Machines whose memory grows as it is used --------------------------------------------- */

/* Bytes of a line in /proc/meminfo; 0: there is none. */
static size_t meminfo(const char *name)
{
	FILE *file = fopen("/proc/meminfo", "r");
	char line[128];
	size_t kib = 0;

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
			kib = strtoull(line + strlen(name) + 1, NULL, 10);
	if (file)
		fclose(file);
	return kib * KIB;
}

/* It is the one that is killed, if the memory does not come in time. */
static void die_first(void)
{
	FILE *file = fopen("/proc/self/oom_score_adj", "w");

	if (file) {
		fputs("1000", file);
		fclose(file);
	}
}

/* The last line of each is what counts. */
static void grow_tell(size_t done, double start)
{
	printf("total_after_GiB %.1f\nused_GiB %.1f\ntook_ms %.0f\n",
	       (double)meminfo("MemTotal") / (double)GIB, (double)done / (double)GIB,
	       now_ms() - start);
}

/*
 * grow BYTES: uses so much memory and gives it back, so that those who are measured do not wait
 * for a host that adds it. No faster than it comes.
 */
static int grow_main(char **args)
{
	const size_t step = 256 * MIB, spare = 512 * MIB;
	const double patience = 5000;
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t bytes = args[0] ? bytes_of(args[0]) : 0, done;
	double start = now_ms();
	char *at;

	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		  -1, 0);
	if (at == MAP_FAILED)
		end(1, "mmap of %s: %m", args[0] ? args[0] : "nothing");
	madvise(at, bytes, MADV_HUGEPAGE);
	die_first();
	printf("total_before_GiB %.1f\n", (double)meminfo("MemTotal") / (double)GIB);
	for (done = 0; done + step <= bytes; done += step) {
		double waits = now_ms();

		while (meminfo("MemAvailable") < spare + step && now_ms() - waits < patience)
			usleep(10000);
		if (meminfo("MemAvailable") < spare + step)
			break;
		for (size_t i = 0; i < step; i += page)
			at[done + i] = 1;
		if ((done + step) % GIB == 0)
			grow_tell(done + step, start);
	}
	grow_tell(done, start);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*main)(char **args);
	} programs[] = {
		{"alloc", alloc_main},	   {"copy", copy_main},	  {"disk", disk_main},
		{"file", file_main},	   {"grow", grow_main},	  {"neighbour", neighbour_main},
		{"probe", probe_main},	   {"ready", ready_main}, {"reuse", reuse_main},
		{"threads", threads_main},
	};

	/* What was measured is not lost with a program that has to be stopped. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; argc > 1 && i < sizeof(programs) / sizeof(programs[0]); i++)
		if (!strcmp(argv[1], programs[i].name))
			return programs[i].main(argv + 2);
	end(1, "cuda PROGRAM ARGUMENT...: see the files in tests/bench/cuda");
}
