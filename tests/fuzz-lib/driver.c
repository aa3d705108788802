// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Where there is no libFuzzer: runs a target on files, and on inputs made from them and
 * from nothing, by the same options. It sees no coverage, so it finds less.
 *
 *	TARGET [-runs=N] [-seed=S] [-max_total_time=SECONDS] [-max_len=N] [FILE | FOLDER]...
 *
 * An input that ends the process is left in ./crash.
 */
#include "fuzz_lib.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define KEPT 64

static struct {
	unsigned char *data;
	size_t size;
} kept[KEPT];
static size_t n_kept;

static unsigned char *current;
static size_t current_size;
static uint64_t state;

/* splitmix64 */
static uint64_t next(void)
{
	uint64_t z = state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static void leave_input(int sig)
{
	int fd = open("crash", O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (fd >= 0 && write(fd, current, current_size) == (ssize_t)current_size)
		close(fd);
	signal(sig, SIG_DFL);
	raise(sig);
}

static void keep(const unsigned char *data, size_t size)
{
	size_t at = n_kept < KEPT ? n_kept++ : next() % KEPT;

	free(kept[at].data);
	kept[at].data = malloc(size + 1);
	MUST(kept[at].data);
	memcpy(kept[at].data, data, size);
	kept[at].size = size;
}

static void run(void)
{
	LLVMFuzzerTestOneInput(current, current_size);
}

static void run_file(const char *path, size_t max_len)
{
	FILE *f = fopen(path, "rb");

	if (!f) {
		perror(path);
		exit(1);
	}
	current_size = fread(current, 1, max_len, f);
	fclose(f);
	keep(current, current_size);
	run();
}

static void run_path(const char *path, size_t max_len)
{
	struct dirent *entry;
	char file[4096];
	DIR *dir = opendir(path);

	if (!dir) {
		run_file(path, max_len);
		return;
	}
	while ((entry = readdir(dir))) {
		snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
		if (entry->d_name[0] != '.')
			run_file(file, max_len);
	}
	closedir(dir);
}

/* Bytes from nowhere, or from before with some of them changed. */
static void make_input(size_t max_len)
{
	size_t changes;

	if (!n_kept || !(next() % 4)) {
		current_size = next() % (next() % 4 ? 256 : max_len + 1);
		for (size_t i = 0; i < current_size; i++)
			current[i] = (unsigned char)next();
		return;
	}
	changes = next() % n_kept;
	current_size = kept[changes].size;
	memcpy(current, kept[changes].data, current_size);
	changes = 1 + next() % 8;
	while (changes-- && current_size) {
		size_t at = next() % current_size;

		switch (next() % 4) {
		case 0: /* shorter */
			current_size = at;
			break;
		case 1: /* a part again, elsewhere */
			memmove(current + at, current + next() % (at + 1), (current_size - at) / 2);
			break;
		default:
			current[at] = (unsigned char)(next() % 2 ? next() : current[at] + 1u);
		}
	}
}

static void help_and_exit(const char *wrong)
{
	fprintf(stderr, "what is '%s'? -runs=N -seed=S -max_total_time=SECONDS -max_len=N\n",
		wrong);
	exit(2);
}

int main(int argc, char **argv)
{
	unsigned long long runs = 0, seconds = 0, max_len = 4096, seed = 1, done = 0;
	time_t end;

	for (int i = 1; i < argc; i++) {
		if (argv[i][0] != '-')
			continue;
		if (sscanf(argv[i], "-runs=%llu", &runs) != 1 &&
		    sscanf(argv[i], "-seed=%llu", &seed) != 1 &&
		    sscanf(argv[i], "-max_total_time=%llu", &seconds) != 1 &&
		    sscanf(argv[i], "-max_len=%llu", &max_len) != 1)
			help_and_exit(argv[i]);
	}
	if (!max_len)
		help_and_exit("-max_len=0");
	state = seed;
	current = malloc(max_len);
	MUST(current);
	signal(SIGABRT, leave_input);
	signal(SIGSEGV, leave_input);
	LLVMFuzzerInitialize(&argc, &argv);
	for (int i = 1; i < argc; i++)
		if (argv[i][0] != '-')
			run_path(argv[i], max_len);
	end = time(NULL) + (time_t)seconds;
	while (seconds ? time(NULL) < end : done < runs) {
		make_input(max_len);
		run();
		if (!(next() % 64))
			keep(current, current_size);
		done++;
	}
	dprintf(2, "Done %llu runs\n", done);
	return 0;
}
