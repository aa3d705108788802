// SPDX-License-Identifier: GPL-2.0
/*
 * Measures the module inside one guest, against what the kernel has itself. Prints
 * "name value" lines for bench-vm; one subcommand per kind of measurement:
 *
 *   map         map and touch 1 GiB: blocks of clean held memory against hugetlb
 *   insns       instructions of ALLOC, by the time stamp counter of a guest that counts
 *   throughput  ALLOC and close in a loop, from one process and from two
 *   contig      one physical run in fragmented memory, against nr_hugepages
 *   memory      what the module itself needs per frame
 *
 * Wants root, and a machine of its own.
 */
#include <sched.h>
#include <x86intrin.h>

#include "../kselftest/device.h"

#define HUGEPAGES "/proc/sys/vm/nr_hugepages"
#define RUNS	  5

static void die(const char *what)
{
	fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void check(int ret, const char *what)
{
	if (ret < 0) {
		errno = -ret;
		die(what);
	}
}

static __u64 now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (__u64)ts.tv_sec * 1000000000 + (__u64)ts.tv_nsec;
}

static int u64_cmp(const void *a, const void *b)
{
	__u64 x = *(const __u64 *)a, y = *(const __u64 *)b;

	return x < y ? -1 : x > y;
}

static __u64 median(__u64 *v, unsigned int n)
{
	qsort(v, n, sizeof(*v), u64_cmp);
	return v[n / 2];
}

static int device_open(void)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC);

	if (dev < 0)
		die(DEVICE);
	return dev;
}

static __u64 frame_bytes(int dev)
{
	struct binpool_info info;

	check(device_info(dev, &info), "INFO");
	return info.frame_bytes;
}

/* Waits until all that is held is clean. */
static void wait_clean(void)
{
	for (int i = 0; attr_read("held_bytes") != attr_read("held_clean_bytes"); i++) {
		if (i > 60000)
			check(-ETIMEDOUT, "held memory does not become clean");
		sleep_ms(1);
	}
}

/* The first use of every page, as small as it can be. */
static void touch(char *p, __u64 len)
{
	size_t page = page_bytes();

	for (__u64 o = 0; o < len; o += page)
		p[o] = 1;
}

static void number_write(const char *path, __u64 value)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	check(text_write(path, text), path);
}

static __u64 number_read(const char *path)
{
	char text[64];

	check(text_read(path, text, sizeof(text)), path);
	return strtoull(text, NULL, 10);
}

/* One way to 1 GiB: from nothing to all of it touched, and its end. */
static __u64 map_once(int way, int dev, __u64 len)
{
	__u64 start = now_ns(), end;
	int flags = MAP_SHARED, fd = -1;
	char *p;

	if (way == 0) {
		fd = block_alloc(dev, len);
	} else if (way == 1) {
		fd = memfd_create("bench", MFD_CLOEXEC | MFD_HUGETLB);
		if (fd >= 0 && ftruncate(fd, (off_t)len))
			die("ftruncate");
	} else {
		flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
	}
	if (way < 2)
		check(fd, "no memory to map");
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (p == MAP_FAILED)
		die("mmap");
	touch(p, len);
	end = now_ns();
	munmap(p, len);
	if (fd >= 0)
		close(fd);
	return end - start;
}

static void bench_map(void)
{
	static const char *const names[] = {"binpool", "hugetlb_memfd", "hugetlb_anonymous"};
	int dev = device_open();
	__u64 len = GIB, frame = frame_bytes(dev), ns[3][RUNS];

	number_write(HUGEPAGES, len / frame);
	if (number_read(HUGEPAGES) != len / frame)
		check(-ENOMEM, HUGEPAGES);
	map_once(0, dev, len);
	for (int run = 0; run < RUNS; run++) {
		for (int way = 0; way < 3; way++) {
			wait_clean();
			ns[way][run] = map_once(way, dev, len);
		}
	}
	number_write(HUGEPAGES, 0);
	for (int way = 0; way < 3; way++) {
		__u64 mid = median(ns[way], RUNS);

		printf("map_%s_ns %llu\n", names[way], (unsigned long long)mid);
		printf("map_%s_min_ns %llu\n", names[way], (unsigned long long)ns[way][0]);
	}
	printf("map_inline_cleaned_bytes %lld\n", attr_read("cleaned_inline_bytes"));
}

/* In a guest that counts instructions the time stamp counter is their count. */
static void bench_insns(void)
{
	enum { TIMES = 15 };
	static const unsigned int sizes[] = {1, 8, 64};
	int dev = device_open();
	__u64 frame = frame_bytes(dev), n[TIMES], pair[TIMES];
	struct binpool_alloc run;

	for (unsigned int i = 0; i < TIMES; i++) {
		__u64 start = __rdtsc(), middle;
		int fd = memfd_create("bench", MFD_CLOEXEC);

		middle = __rdtsc();
		check(fd, "memfd_create");
		close(fd);
		pair[i] = __rdtsc() - start;
		n[i] = middle - start;
	}
	printf("memfd_create_insns %llu\n", (unsigned long long)median(n, TIMES));
	printf("memfd_create_close_insns %llu\n", (unsigned long long)median(pair, TIMES));
	/* One run to begin with, of which all are cut. */
	run = alloc_request(sizes[2] * frame, BINPOOL_ALLOC_CONTIG);
	check(device_alloc(dev, &run), "ALLOC of one run");
	close(run.fd);
	for (unsigned int s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		for (unsigned int i = 0; i < TIMES; i++) {
			struct binpool_alloc a = alloc_request(sizes[s] * frame, 0);
			__u64 start, middle;
			int ret;

			wait_clean();
			start = __rdtsc();
			ret = device_alloc(dev, &a);
			middle = __rdtsc();
			check(ret, "ALLOC");
			close(a.fd);
			pair[i] = __rdtsc() - start;
			n[i] = middle - start;
		}
		printf("alloc_%u_insns %llu\n", sizes[s], (unsigned long long)median(n, TIMES));
		printf("alloc_%u_close_insns %llu\n", sizes[s],
		       (unsigned long long)median(pair, TIMES));
	}
}

/* Pairs of ALLOC and close that @workers processes, each on a CPU, do in a while. */
static __u64 pairs(unsigned int workers, bool memfd)
{
	__u64 *counts =
		mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	__u64 begin = now_ms() + 100, end = begin + 2000, sum = 0;
	pid_t pids[2];

	if (counts == MAP_FAILED)
		die("mmap");
	for (unsigned int w = 0; w < workers; w++) {
		cpu_set_t cpu;
		int dev;

		pids[w] = fork();
		if (pids[w] < 0)
			die("fork");
		if (pids[w])
			continue;
		CPU_ZERO(&cpu);
		CPU_SET(w, &cpu);
		if (sched_setaffinity(0, sizeof(cpu), &cpu))
			die("sched_setaffinity");
		dev = device_open();
		while (now_ms() < begin)
			;
		while (now_ms() < end) {
			int fd = memfd ? memfd_create("bench", MFD_CLOEXEC)
				       : block_alloc(dev, frame_bytes(dev));

			check(fd, "no block");
			close(fd);
			counts[w * 8]++;
		}
		_exit(0);
	}
	for (unsigned int w = 0; w < workers; w++) {
		if (child_status(pids[w]))
			check(-EIO, "a worker failed");
		sum += counts[w * 8];
	}
	munmap(counts, page_bytes());
	return sum;
}

/* Blocks are not touched, but count as dirty: the cleaner works beside, as in life. */
static void bench_throughput(void)
{
	static const char *const names[] = {"alloc", "memfd"};
	int dev = device_open();
	int fds[8];

	/* Enough clean frames for both, so that nobody waits for cleaning. */
	for (unsigned int i = 0; i < 8; i++)
		fds[i] = block_alloc(dev, 64 * frame_bytes(dev));
	for (unsigned int i = 0; i < 8; i++)
		close(fds[i]);
	wait_clean();
	for (int what = 0; what < 2; what++) {
		__u64 one[RUNS], two[RUNS];

		for (int run = 0; run < RUNS; run++) {
			one[run] = pairs(1, what);
			two[run] = pairs(2, what);
		}
		printf("%s_1cpu_per_s %llu\n", names[what],
		       (unsigned long long)median(one, RUNS) / 2);
		printf("%s_2cpu_per_s %llu\n", names[what],
		       (unsigned long long)median(two, RUNS) / 2);
	}
}

/*
 * Memory in a state that is common after some uptime: page cache and anonymous pages
 * all over, every second page of the latter given back. What stays is movable.
 */
static void fragment(void)
{
	__u64 len = meminfo_bytes("MemAvailable") / 100 * 55;
	__u64 cache = meminfo_bytes("MemAvailable") / 100 * 30;
	size_t page = page_bytes();
	int fd = memfd_create("cache", MFD_CLOEXEC);
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *c;

	if (fd < 0 || p == MAP_FAILED || ftruncate(fd, (off_t)cache))
		die("memory to fragment");
	madvise(p, len, MADV_NOHUGEPAGE);
	c = mmap(NULL, cache, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (c == MAP_FAILED)
		die("mmap");
	for (__u64 o = 0; o < len; o += page) {
		p[o] = 1;
		if (o < cache)
			c[o] = 1;
	}
	for (__u64 o = 0; o < len; o += 2 * page)
		madvise(p + o, page, MADV_DONTNEED);
	for (__u64 o = page; o < cache; o += 2 * page)
		madvise(c + o, page, MADV_REMOVE);
	/* Both stay, with half of their pages, until this process ends. */
}

static void bench_contig(void)
{
	static const unsigned int sizes[] = {64, 256, 1024};
	int dev = device_open();
	__u64 frame = frame_bytes(dev);

	fragment();
	for (unsigned int s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		struct binpool_alloc a = alloc_request(sizes[s] * MIB, BINPOOL_ALLOC_CONTIG);
		__u64 start = now_ns(), ns, got;
		int ret = device_alloc(dev, &a);

		ns = now_ns() - start;
		printf("contig_%um_errno %d\n", sizes[s], -ret);
		printf("contig_%um_ns %llu\n", sizes[s], (unsigned long long)ns);
		printf("contig_%um_run_max_bytes %llu\n", sizes[s],
		       (unsigned long long)a.run_max_bytes);
		if (!ret)
			close(a.fd);
		check(attr_write("free_held", 1), "free_held");

		/* As much from the kernel's own pool, in whatever places. */
		start = now_ns();
		number_write(HUGEPAGES, sizes[s] * MIB / frame);
		ns = now_ns() - start;
		got = number_read(HUGEPAGES) * frame;
		number_write(HUGEPAGES, 0);
		printf("hugetlb_%um_ns %llu\n", sizes[s], (unsigned long long)ns);
		printf("hugetlb_%um_got_bytes %llu\n", sizes[s], (unsigned long long)got);
	}
}

/* Bytes of a slab cache's objects, those in use. */
static __u64 slab_bytes(const char *name)
{
	FILE *f = fopen("/proc/slabinfo", "re");
	size_t len = strlen(name);
	__u64 bytes = 0;
	char line[512];

	if (!f)
		die("/proc/slabinfo");
	while (fgets(line, sizeof(line), f)) {
		unsigned long active, all, size;

		if (!strncmp(line, name, len) && line[len] == ' ' &&
		    sscanf(line + len, "%lu %lu %lu", &active, &all, &size) == 3)
			bytes = all * size;
	}
	fclose(f);
	return bytes;
}

/* What grows with the pool: records of frames, and their index. */
static void bench_memory(void)
{
	static const char *const caches[] = {"binpool_frame", "radix_tree_node"};
	int dev = device_open(), fd;
	__u64 frame = frame_bytes(dev), before[2], len;

	/* Enough that some more or less objects of a slab do not matter. */
	len = meminfo_bytes("MemTotal") / 100 * 75 / (256 * frame) * 256 * frame;
	check(attr_write("max_bytes", len), "max_bytes");
	for (int i = 0; i < 2; i++)
		before[i] = slab_bytes(caches[i]);
	fd = block_alloc(dev, len);
	check(fd, "ALLOC of max_bytes");
	for (int i = 0; i < 2; i++)
		printf("memory_%s_bytes %llu\n", caches[i],
		       (unsigned long long)(slab_bytes(caches[i]) - before[i]));
	printf("memory_frames %llu\n", (unsigned long long)(len / frame));
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} benches[] = {
		{"map", bench_map},
		{"insns", bench_insns},
		{"throughput", bench_throughput},
		{"contig", bench_contig},
		{"memory", bench_memory},
	};

	for (unsigned int i = 0; argc == 2 && i < sizeof(benches) / sizeof(benches[0]); i++) {
		if (!strcmp(argv[1], benches[i].name)) {
			benches[i].run();
			return 0;
		}
	}
	fprintf(stderr, "usage: %s map|insns|throughput|contig|memory\n", argv[0]);
	return 2;
}
