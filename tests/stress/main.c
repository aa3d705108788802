// SPDX-License-Identifier: GPL-2.0
/*
 * stress: several processes with several threads do everything with blocks, at
 * random, and everything is checked all the time. Options; what is compared before
 * the start and after the end; TAP.
 */
#include <getopt.h>
#include <sys/socket.h>

#include "../kselftest/zoneinfo.h"
#include "stress.h"

/* What may be missing afterwards: the machine's own use of memory changes. */
#define MISSING_MAX (64 * MIB)

struct shared *shared;

static void usage(FILE *out)
{
	fputs("usage: stress [OPTION...]\n"
	      "  -t SECONDS   how long, default 60\n"
	      "  -n NUMBER    operations of each thread, then the end (default: by time)\n"
	      "  -s SEED      default: from the clock; printed\n"
	      "  -w WORKERS   processes, default 4\n"
	      "  -T THREADS   of each, default 2\n"
	      "  -m MIB       max_bytes, default a quarter of memory\n"
	      "  -K           kill no worker\n"
	      "  -H           no memory pressure\n"
	      "  -c           control: make violations, see that the checks see them\n"
	      "Needs root, the module, a folder with direct I/O in BINPOOL_TEST_DIR (default:\n"
	      "the current one), and a machine that may be upset. With BINPOOL_KO, the module's\n"
	      "file, the module is unloaded and loaded again in the end.\n",
	      out);
}

/* Pages that begin with the words expected of them, in a file read by direct I/O. */
static int data_file(void)
{
	const char *dir = getenv("BINPOOL_TEST_DIR");
	const size_t len = PIN_PAGES * shared->page;
	char *data = aligned_alloc(shared->page, len);
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/stress.data", dir ? dir : ".");
	page_fill(data, len, canary(WRITER_FILE, 0, 0, 0));
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
	unlink(path);
	if (fd < 0 || write(fd, data, len) != (ssize_t)len || fsync(fd)) {
		fprintf(stderr, "no direct I/O in %s: %s\n", dir ? dir : ".", strerror(errno));
		exit(1);
	}
	free(data);
	return fd;
}

static void find_nodes(void)
{
	for (int nid = 0; nid < 64 && shared->nr_nodes < 16; nid++) {
		char path[128];

		snprintf(path, sizeof(path), SYSFS "node%d", nid);
		if (!access(path, F_OK))
			shared->nodes[shared->nr_nodes++] = nid;
	}
}

/* What all processes share; made anew for each run. */
static void prepare(const struct options *options)
{
	/* Frames have numbers below the end of memory; holes make that more than there is. */
	const __u64 claims = 64 * GIB / MIB;
	struct binpool_info info;
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC);

	if (dev < 0 || device_info(dev, &info)) {
		fprintf(stderr, DEVICE ": %s; is the module loaded?\n", strerror(errno));
		exit(1);
	}
	close(dev);
	shared = mmap(NULL, sizeof(*shared) + claims * sizeof(shared->claims[0]),
		      PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		exit(1);
	shared->told = mmap(NULL, claims * sizeof(shared->told[0]), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared->told == MAP_FAILED)
		exit(1);
	shared->options = *options;
	shared->frame = info.frame_bytes;
	shared->page = page_bytes();
	shared->features = info.features;
	shared->nr_claims = claims;
	shared->next_id = 1;
	shared->data = data_file();
	find_nodes();
	for (unsigned int i = 0; i < options->workers; i++) {
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, shared->workers[i].inbox))
			exit(1);
	}
}

static void forget(void)
{
	close(shared->data);
	for (unsigned int i = 0; i < shared->options.workers; i++) {
		close(shared->workers[i].inbox[0]);
		close(shared->workers[i].inbox[1]);
	}
}

/* Free memory, when all has gone back that can. */
static __u64 memory_now(void)
{
	attr_write("free_held", 1);
	sync();
	text_write("/proc/sys/vm/drop_caches", "3");
	sleep_ms(300);
	return meminfo_bytes("MemFree") + cpus_free_bytes();
}

static unsigned int number, failures;

static void tap(bool good, const char *name)
{
	failures += !good;
	printf("%sok %u - %s\n", good ? "" : "not ", ++number, name);
	fflush(stdout);
}

/* Every operation was done, or else nothing was tested by it. */
static bool all_done(void)
{
	bool good = true;

	for (unsigned int i = 0; i < OPS; i++) {
		printf("# %-16s %6llu of %6llu\n", op_names[i], (unsigned long long)shared->done[i],
		       (unsigned long long)shared->tried[i]);
		good &= op_was_done(i);
	}
	return good;
}

static bool reload(const char *module)
{
	int fd, ret;

	if (syscall(SYS_delete_module, "binpool", O_NONBLOCK))
		return false;
	fd = open(module, O_RDONLY | O_CLOEXEC);
	ret = (int)syscall(SYS_finit_module, fd, "", 0);
	close(fd);
	return !ret;
}

static int stress(const struct options *options)
{
	const char *module = getenv("BINPOOL_KO");
	int log = log_open();
	__u64 before, after;

	printf("# seed %llu\n", (unsigned long long)options->seed);
	fflush(stdout);
	before = memory_now();
	prepare(options);
	supervise();
	for (unsigned int i = 0; i < CHECKS; i++)
		tap(!shared->reports[i], check_names[i]);
	tap(all_done(), "every operation was done");
	forget();
	after = memory_now();
	printf("# free memory: %lld KiB less than before\n", (long long)(before - after) / 1024);
	tap(after + MISSING_MAX > before && !attr_read("managed_bytes"),
	    "the system has its memory");
	if (module)
		tap(reload(module), "the module unloads");
	sleep_ms(50);
	tap(!log_count_bad(log), "kernel log");
	printf("1..%u\n", number);
	return failures ? 1 : 0;
}

/* Which check sees which violation. */
static const struct {
	const char *name;
	enum check check;
} plants[PLANTS] = {
	[PLANT_STALE_WORD] = {"a stale word in a new block", CHECK_ZERO},
	[PLANT_FOREIGN_WRITE] = {"another's word in a block", CHECK_DATA},
	[PLANT_FRAME_TWICE] = {"a frame in two blocks", CHECK_FRAMES},
	[PLANT_RELEASED_EARLY] = {"a frame out of quarantine", CHECK_QUARANTINE},
	[PLANT_ERRNO] = {"an error that is not documented", CHECK_ERRNO},
	[PLANT_HIDDEN_BLOCK] = {"a block that nobody has", CHECK_COUNTERS},
	[PLANT_WRONG_OPENER] = {"a block on another's account", CHECK_OPENERS},
	[PLANT_CRASH] = {"a crash", CHECK_PROCESSES},
	[PLANT_KEPT_PIN] = {"a pin that stays", CHECK_RETURN},
};

/* Short runs, each with one violation, which the check that it is for must see. */
static int control(struct options *options)
{
	options->kills = options->hog = false;
	options->seconds = 4;
	for (options->plant = 1; options->plant < PLANTS; options->plant++) {
		bool seen;
		pid_t pid;

		options->sought = plants[options->plant].check;
		prepare(options);
		pid = fork();
		if (!pid) {
			setpgid(0, 0);
			supervise();
			_exit(0);
		}
		waitpid(pid, NULL, 0);
		kill(-pid, SIGKILL); /* what outlives the run on purpose */
		seen = shared->reports[options->sought];
		tap(seen, plants[options->plant].name);
		forget();
		attr_becomes("managed_bytes", 0, 100);
	}
	printf("1..%u\n", number);
	return failures ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct options options = {
		.seed = now_ms() * 0x9e3779b97f4a7c15ULL >> 32,
		.seconds = 60,
		.workers = 4,
		.threads = 2,
		.max_bytes = (meminfo_bytes("MemTotal") / 4) & ~(64 * MIB - 1),
		.kills = true,
		.hog = true,
	};
	bool controlled = false;
	int c;

	while ((c = getopt(argc, argv, "t:n:s:w:T:m:KHch")) != -1) {
		switch (c) {
		case 't':
			options.seconds = (unsigned int)atoi(optarg);
			break;
		case 'n':
			options.ops = strtoull(optarg, NULL, 0);
			break;
		case 's':
			options.seed = strtoull(optarg, NULL, 0);
			break;
		case 'w':
			options.workers = (unsigned int)atoi(optarg);
			break;
		case 'T':
			options.threads = (unsigned int)atoi(optarg);
			break;
		case 'm':
			options.max_bytes = strtoull(optarg, NULL, 0) * MIB;
			break;
		case 'K':
			options.kills = false;
			break;
		case 'H':
			options.hog = false;
			break;
		case 'c':
			controlled = true;
			break;
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 2;
		}
	}
	if (optind < argc || !options.workers || options.workers > WORKERS_MAX ||
	    !options.threads || options.threads > THREADS_MAX || !options.max_bytes) {
		usage(stderr);
		return 2;
	}
	return controlled ? control(&options) : stress(&options);
}
