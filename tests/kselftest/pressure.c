// SPDX-License-Identifier: GPL-2.0
/*
 * What becomes of held memory when others want memory. Cached files do not count as
 * want: warm memory stays. Who really needs memory gets it, and nobody is killed before;
 * the reserve and what is in use stay. Wants a machine of little memory that has a disk
 * of twice as much.
 */
#include <sys/resource.h>

#include <linux/fs.h>

/* Putting memory offline that is in use makes the kernel say so. */
#define LOG_EXPECTED                                                                               \
	"loading out-of-tree module", "module verification failed",                                \
		"page dumped because: unmovable page"

#include "empty.h"
#include "tracefs.h"

/* The largest power of two frames in @bytes: blocks of it have that very size. */
static __u64 whole(__u64 bytes, __u64 frame)
{
	while (frame * 2 <= bytes)
		frame *= 2;
	return frame;
}

/* A disk of @bytes at least, opened; -1 if there is none. */
static int disk_open(__u64 bytes)
{
	for (char c = 'a'; c <= 'z'; c++) {
		char path[16];
		__u64 size = 0;
		int fd;

		snprintf(path, sizeof(path), "/dev/vd%c", c);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (!ioctl(fd, BLKGETSIZE64, &size) && size >= bytes)
			return fd;
		close(fd);
	}
	return -1;
}

/* Reads the first @bytes of a file through the page cache. */
static bool read_all(int fd, __u64 bytes)
{
	const size_t piece = 1 << 20;
	char *buf = malloc(piece);
	__u64 done = 0;

	while (buf && done < bytes) {
		ssize_t n = pread(fd, buf, piece, (off_t)done);

		if (n <= 0)
			break;
		done += (__u64)n;
	}
	free(buf);
	return done >= bytes;
}

/* Pages that reclaim has got back so far. */
static long long pages_reclaimed(void)
{
	FILE *f = fopen("/proc/vmstat", "re");
	long long sum = 0, value;
	char name[64];

	if (!f)
		return -1;
	while (fscanf(f, "%63s %lld", name, &value) == 2) {
		if (!strcmp(name, "pgsteal_kswapd") || !strcmp(name, "pgsteal_direct"))
			sum += value;
	}
	fclose(f);
	return sum;
}

/* Clean held memory that nobody has used for @idle_ms. */
static bool hold_warm(int dev, __u64 bytes, unsigned int idle_ms)
{
	if (hold_dirty(dev, bytes) || !attr_becomes("held_clean_bytes", bytes, SOON_MS))
		return false;
	sleep_ms(idle_ms);
	return attr_read("held_bytes") == (long long)bytes;
}

/*
 * A data set of twice the memory is read, and leaves warm memory where it is: with
 * keep_ms as it is by default, and also if all of it has been idle for long.
 */
static void read_data_set(struct __test_metadata *_metadata, FIXTURE_DATA(empty) * self,
			  __u64 keep_ms, unsigned int idle_ms)
{
	const __u64 memory = meminfo_bytes("MemTotal"), len = whole(memory / 4, self->frame);
	long long freed = attr_read("pressure_freed_bytes"), reclaimed;
	int disk = disk_open(2 * memory);

	if (disk < 0)
		SKIP(return, "no disk (vda ... vdz) of twice the memory");
	ASSERT_EQ(0, number_write(PARAM("keep_ms"), keep_ms));
	ASSERT_TRUE(hold_warm(self->dev, len, idle_ms));
	reclaimed = pages_reclaimed();
	ASSERT_TRUE(read_all(disk, 2 * memory));
	close(disk);
	/* What was read did not fit beside the rest, so something had to go. */
	ASSERT_LT(reclaimed + (long long)(memory / 2 / page_bytes()), pages_reclaimed());
	ASSERT_LE((long long)len / 10 * 9, attr_read("held_bytes"))
	{
		TH_LOG("%lld of %llu are still held", attr_read("held_bytes"),
		       (unsigned long long)len);
	}
	ASSERT_EQ((long long)len - attr_read("held_bytes"),
		  attr_read("pressure_freed_bytes") - freed);
	TH_LOG("%lld of %llu stayed", attr_read("held_bytes"), (unsigned long long)len);
}

TEST_F_TIMEOUT(empty, data_set_read, 300)
{
	read_data_set(_metadata, self, (__u64)self->keep_ms, 0);
}

TEST_F_TIMEOUT(empty, data_set_read_while_idle, 300)
{
	read_data_set(_metadata, self, 100, 1000);
}

/* What a process that takes memory saw. */
struct eaten {
	__u64 bytes;
	unsigned int steps; /* in which some of what was held had gone, but not all */
	bool clean_first;   /* clean memory went while there was dirty */
	bool all_gone;
	long long piece; /* the most of ours that went at a time; 0: not known */
};

/*
 * Takes anonymous memory until no more than @floor is held, and @least in any case. It is
 * the one to be killed, if any.
 */
static void eat(volatile struct eaten *eaten, __u64 floor, __u64 least)
{
	const __u64 step = 4 * MIB, most = meminfo_bytes("MemTotal");
	const long long held = attr_read("held_bytes"), clean = attr_read("held_clean_bytes");

	text_write("/proc/self/oom_score_adj", "1000");
	while (eaten->bytes < most) {
		long long clean_now, held_now;
		char *p = mmap(NULL, step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			       0);

		if (p == MAP_FAILED)
			_exit(1);
		for (__u64 o = 0; o < step; o += page_bytes())
			p[o] = 1;
		eaten->bytes += step;
		/* Both fall only, so what is held now is no more than it was then. */
		clean_now = attr_read("held_clean_bytes");
		held_now = attr_read("held_bytes");
		eaten->clean_first |= clean_now < clean && held_now > clean_now;
		eaten->all_gone |= held_now <= (long long)floor;
		eaten->steps += held_now < held && !eaten->all_gone;
		if (eaten->all_gone && eaten->bytes >= least)
			_exit(0);
	}
	_exit(2);
}

/* The status of a process that did eat(). */
static int feed(struct eaten *result, __u64 floor, __u64 least)
{
	volatile struct eaten *eaten =
		mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid = fork();
	int status;

	if (!pid)
		eat(eaten, floor, least);
	status = child_status(pid);
	*result = *eaten;
	munmap((void *)(uintptr_t)eaten, page_bytes());
	return status;
}

#define FREE_EVENT TRACEFS "events/binpool/free/enable"

/* The most that went to the system at a time, of what is in the trace. */
static long long largest_piece(void)
{
	FILE *trace = fopen(TRACEFS "trace", "re");
	long long largest = 0;
	char line[512];

	while (trace && fgets(line, sizeof(line), trace)) {
		const char *bytes = strstr(line, " free: node=") ? strstr(line, "bytes=") : NULL;
		long long piece = bytes ? strtoll(bytes + strlen("bytes="), NULL, 10) : 0;

		largest = piece > largest ? piece : largest;
	}
	if (trace)
		fclose(trace);
	return largest;
}

/*
 * Somebody needs nearly all memory there is, without swap. He gets it, and nobody is
 * killed (which the kernel log would tell).
 */
static void real_shortage(struct __test_metadata *_metadata, FIXTURE_DATA(empty) * self,
			  struct eaten *eaten)
{
	const __u64 used = 8 * self->frame, kept = 8 * self->frame;
	__u64 warm = whole(meminfo_bytes("MemTotal") / 4, self->frame), least;
	const bool traced = tracefs_mount();
	long long freed, by_pressure, spare;
	int fd = block_alloc(self->dev, used);
	char *p = block_map(fd, used);

	ASSERT_EQ(0, meminfo_bytes("SwapTotal"));
	ASSERT_NE(MAP_FAILED, (void *)p);
	stamp(p, used, 1);
	ASSERT_TRUE(hold_warm(self->dev, warm, 500));
	/* The block counts for the reserve. */
	ASSERT_EQ(0, attr_write("reserve_bytes", used + kept));
	spare = (long long)(warm - kept);
	freed = attr_read("freed_bytes");
	by_pressure = attr_read("pressure_freed_bytes");
	/* What is free, but what the kernel keeps for itself, and half of ours. */
	least = meminfo_bytes("MemFree") - 128 * MIB + (__u64)spare / 2;

	if (traced)
		ASSERT_EQ(0, trace_clear() ?: text_write(FREE_EVENT, "1"));
	ASSERT_EQ(0, feed(eaten, kept, least));
	if (traced)
		ASSERT_EQ(0, text_write(FREE_EVENT, "0"));
	eaten->piece = traced ? largest_piece() : 0;
	ASSERT_TRUE(eaten->all_gone);
	ASSERT_EQ((long long)kept, attr_read("held_bytes"));
	ASSERT_EQ((long long)(used + kept), attr_read("managed_bytes"));
	ASSERT_EQ((long long)(used + kept), attr_read("reserve_filled_bytes"));
	ASSERT_EQ(spare, attr_read("freed_bytes") - freed);
	ASSERT_EQ(spare, attr_read("pressure_freed_bytes") - by_pressure);
	ASSERT_TRUE(stamped(p, used, 1));
	munmap(p, used);
	close(fd);
}

/* What is idle goes a few frames at a time, as it is needed. */
TEST_F_TIMEOUT(empty, shortage_gets_what_is_idle, 120)
{
	struct eaten eaten;

	if (!tracefs_mount())
		SKIP(return, "the kernel has no tracefs");
	ASSERT_EQ(0, number_write(PARAM("keep_ms"), 100));
	real_shortage(_metadata, self, &eaten);
	ASSERT_LT(0, eaten.piece);
	ASSERT_GE(4 * (long long)self->frame, eaten.piece);
}

/* What was just used stays as long as anything else is to be had, then it goes at once. */
TEST_F_TIMEOUT(empty, shortage_gets_what_is_young, 120)
{
	struct eaten eaten;

	ASSERT_EQ(0, number_write(PARAM("keep_ms"), 3600 * 1000));
	real_shortage(_metadata, self, &eaten);
	ASSERT_EQ(0, eaten.steps);
}

static pid_t kswapd_find(void)
{
	DIR *proc = opendir("/proc");
	pid_t found = 0;

	for (struct dirent *e = proc ? readdir(proc) : NULL; e && !found; e = readdir(proc)) {
		char path[288], name[32];

		snprintf(path, sizeof(path), "/proc/%s/comm", e->d_name);
		if (text_read(path, name, sizeof(name)) > 0 && !strcmp(name, "kswapd0\n"))
			found = atoi(e->d_name);
	}
	if (proc)
		closedir(proc);
	return found;
}

/* Leaves reclaim to those who need memory: kswapd gets what a busy process leaves of a CPU. */
static pid_t kswapd_starve(pid_t kswapd)
{
	const struct sched_param none = {0};
	cpu_set_t cpu1;
	pid_t pid;

	CPU_ZERO(&cpu1);
	CPU_SET(1, &cpu1);
	if (sched_setaffinity(kswapd, sizeof(cpu1), &cpu1) ||
	    sched_setscheduler(kswapd, SCHED_IDLE, &none))
		return -1;
	pid = fork();
	if (pid)
		return pid;
	if (sched_setaffinity(0, sizeof(cpu1), &cpu1) || setpriority(PRIO_PROCESS, 0, -20))
		_exit(1);
	for (;;)
		;
}

static void kswapd_feed(pid_t kswapd, pid_t hog)
{
	const struct sched_param none = {0};
	cpu_set_t all;

	memset(&all, 0xff, sizeof(all));
	sched_setscheduler(kswapd, SCHED_OTHER, &none);
	sched_setaffinity(kswapd, sizeof(all), &all);
	kill(hog, SIGKILL);
	child_status(hog);
}

/*
 * How often a process that reclaimed got frames of ours; -1 if it was told of less than
 * they have. Another may reclaim meanwhile: whoever needs a page of its own program.
 */
static int reclaims_told(__u64 frame_pages, __u64 frame)
{
	FILE *trace = fopen(TRACEFS "trace", "re");
	unsigned long long freed_by[256] = {0}, told; /* processes, born one after the other */
	char line[512];
	int times = 0;

	while (trace && times >= 0 && fgets(line, sizeof(line), trace)) {
		const char *bytes = strstr(line, " free: node=") ? strstr(line, "bytes=") : NULL;
		const char *end = strstr(line, "mm_vmscan_direct_reclaim_end: nr_reclaimed=");
		unsigned long long *freed = &freed_by[traced_pid(line) % ARRAY_SIZE(freed_by)];

		/* What went before is another matter: when nothing is reclaimed, all of it goes. */
		if (strstr(line, "mm_vmscan_direct_reclaim_begin:"))
			*freed = 0;
		if (bytes)
			*freed += strtoull(bytes + strlen("bytes="), NULL, 10) / frame;
		if (!end)
			continue;
		told = strtoull(strchr(end, '=') + 1, NULL, 10);
		if (*freed && told < *freed * frame_pages) {
			fprintf(stderr, "# %llu frames went, reclaim knows of %llu pages\n", *freed,
				told);
			times = -1;
		} else if (*freed) {
			times++;
		}
		*freed = 0;
	}
	if (trace)
		fclose(trace);
	return times;
}

/* Reclaim knows what it got from us: it does not go on for what it has already. */
TEST_F_TIMEOUT(empty, reclaim_is_told, 120)
{
	static const char *const events[] = {
		FREE_EVENT,
		TRACEFS "events/vmscan/mm_vmscan_direct_reclaim_begin/enable",
		TRACEFS "events/vmscan/mm_vmscan_direct_reclaim_end/enable",
	};
	__u64 warm = whole(meminfo_bytes("MemTotal") / 4, self->frame);
	pid_t kswapd = kswapd_find(), hog;
	struct eaten eaten;
	int status, times;
	char pid[16];

	if (!tracefs_mount())
		SKIP(return, "the kernel has no tracefs");
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP(return, "one CPU only");
	ASSERT_LT(0, kswapd);
	ASSERT_EQ(0, number_write(PARAM("keep_ms"), 0));
	ASSERT_TRUE(hold_warm(self->dev, warm, 100));
	snprintf(pid, sizeof(pid), "%d", getpid());
	ASSERT_EQ(0, text_write(TRACEFS "options/event-fork", "1"));
	ASSERT_EQ(0, text_write(TRACEFS "set_event_pid", pid));
	ASSERT_EQ(0, text_write(TRACEFS "tracing_on", "1"));
	for (size_t i = 0; i < ARRAY_SIZE(events); i++)
		EXPECT_EQ(0, text_write(events[i], "1"));

	hog = kswapd_starve(kswapd);
	status = feed(&eaten, warm / 2, 0);
	kswapd_feed(kswapd, hog);
	for (size_t i = 0; i < ARRAY_SIZE(events); i++)
		EXPECT_EQ(0, text_write(events[i], "0"));
	close(open(TRACEFS "set_event_pid", O_WRONLY | O_TRUNC | O_CLOEXEC));
	text_write(TRACEFS "options/event-fork", "0");
	times = reclaims_told(self->frame / page_bytes(), self->frame);
	ASSERT_LT(0, hog);
	ASSERT_EQ(0, status);
	ASSERT_LT(0, times);
}

/* Dirty memory goes before clean memory. */
TEST_F_TIMEOUT(empty, dirty_before_clean, 120)
{
	const __u64 part = 32 * self->frame;
	struct eaten eaten;
	int fd;

	RELOAD("clean_threads=0 keep_ms=0");
	fd = block_alloc(self->dev, part);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, attr_write("reserve_bytes", 2 * part));
	ASSERT_TRUE(attr_becomes("held_clean_bytes", part, SOON_MS));
	close(fd);
	ASSERT_EQ(0, attr_write("reserve_bytes", 0));
	ASSERT_EQ((long long)part, attr_read("held_clean_bytes"));
	ASSERT_EQ((long long)(2 * part), attr_read("held_bytes"));

	ASSERT_EQ(0, feed(&eaten, part / 2, 0));
	ASSERT_FALSE(eaten.clean_first);
	ASSERT_GT((long long)part, attr_read("held_clean_bytes"));
	ASSERT_EQ(attr_read("held_bytes"), attr_read("held_clean_bytes"));

	/* Trimmed it goes in the same order. */
	ASSERT_EQ(0, attr_write("free_held", 1));
	fd = block_alloc(self->dev, part);
	ASSERT_EQ(0, attr_write("reserve_bytes", 2 * part));
	ASSERT_TRUE(attr_becomes("held_clean_bytes", part, SOON_MS));
	close(fd);
	ASSERT_EQ(0, attr_write("reserve_bytes", 0));
	ASSERT_EQ(0, device_trim(self->dev, part + part / 2, NULL));
	ASSERT_EQ((long long)part, attr_read("held_clean_bytes"));
	ASSERT_EQ(0, device_trim(self->dev, part / 2, NULL));
	ASSERT_EQ((long long)part / 2, attr_read("held_clean_bytes"));
}

/*
 * Age. Dropping caches by hand asks all shrinkers, as hard as they can be asked: it takes
 * from what is idle and above the reserve, and nothing else. What is left of a run is as
 * old as the run was, whoever takes or cleans a part of it.
 */
TEST_F_TIMEOUT(empty, drop_caches, 120)
{
	const __u64 len = 64 * self->frame, kept = 24 * self->frame;
	long long by_pressure = attr_read("pressure_freed_bytes"), held;
	int fd;

	ASSERT_EQ(0, number_write(PARAM("keep_ms"), 3600 * 1000));
	/* Young, and being cleaned. */
	ASSERT_EQ(0, hold_dirty(self->dev, len));
	for (int i = 0; i < 20; i++) {
		ASSERT_EQ(0, number_write(DROP_CACHES, 2));
	}
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	ASSERT_TRUE(attr_becomes("held_clean_bytes", len, SOON_MS));
	ASSERT_EQ(0, number_write(DROP_CACHES, 2));
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	/* The rest of a run. */
	fd = block_alloc(self->dev, 8 * self->frame);
	ASSERT_EQ(0, number_write(DROP_CACHES, 2));
	close(fd);
	ASSERT_EQ(0, number_write(DROP_CACHES, 2));
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	ASSERT_EQ(by_pressure, attr_read("pressure_freed_bytes"));

	ASSERT_EQ(0, attr_write("reserve_bytes", kept));
	ASSERT_TRUE(attr_becomes("held_clean_bytes", len, SOON_MS));
	sleep_ms(300);
	ASSERT_EQ(0, number_write(PARAM("keep_ms"), 100));
	for (int i = 0; i < 20; i++) {
		ASSERT_EQ(0, number_write(DROP_CACHES, 2));
	}
	held = attr_read("held_bytes");
	ASSERT_GT((long long)len, held);
	ASSERT_LE((long long)kept, held);
	ASSERT_EQ((long long)len - held, attr_read("pressure_freed_bytes") - by_pressure);
}

/* Where some is idle, what is young stays, though it would be the first to go. */
TEST_F_TIMEOUT(empty, drop_caches_leaves_the_young, 120)
{
	const __u64 len = 64 * self->frame, young = 8 * self->frame;
	const unsigned int keep_ms = 5000 * slowness();
	char text[64];
	__u64 start;
	int fd;

	snprintf(text, sizeof(text), "clean_threads=0 keep_ms=%u", keep_ms);
	RELOAD(text);
	ASSERT_EQ(0, attr_write("reserve_bytes", len));
	ASSERT_TRUE(attr_becomes("held_clean_bytes", len, SOON_MS));
	ASSERT_EQ(0, attr_write("reserve_bytes", 0));
	sleep_ms(keep_ms + 200);
	fd = block_alloc(self->dev, young);
	ASSERT_LE(0, fd);
	start = now_ms();
	/* Dirty, and a short run. */
	close(fd);
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	for (int i = 0; i < 500 && attr_read("held_clean_bytes"); i++) {
		ASSERT_EQ(0, number_write(DROP_CACHES, 2));
		ASSERT_LE((long long)young, attr_read("held_bytes"));
	}
	/* Else it is idle by now. */
	ASSERT_GT(keep_ms, now_ms() - start);
	ASSERT_EQ(0, attr_read("held_clean_bytes"));
	ASSERT_EQ((long long)young, attr_read("held_bytes"));
}

/*
 * An ALLOC that finds no free memory reclaims some; held memory in other shapes may be
 * what goes then.
 */
TEST_F_TIMEOUT(empty, alloc_reclaims, 300)
{
	const __u64 memory = meminfo_bytes("MemTotal");
	const __u64 shape = whole(memory / 16, self->frame);
	int disk = disk_open(memory), fd;
	struct binpool_alloc a;

	if (disk < 0)
		SKIP(return, "no disk (vda ... vdz) of as much as the memory");
	ASSERT_EQ(0, number_write(PARAM("keep_ms"), 0));
	ASSERT_TRUE(hold_warm(self->dev, shape, 100));
	/* It stays cached until the disk is closed. */
	ASSERT_TRUE(read_all(disk, memory));
	/* More than is free, however much the system keeps so. */
	a = alloc_request(3 * shape, 0);
	while (a.bytes < meminfo_bytes("MemFree"))
		a.bytes += shape;
	ASSERT_GT(memory / 2, a.bytes);
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(a.capacity, block_nonzero(a.fd, a.capacity));
	ASSERT_GE((long long)(a.capacity + shape), attr_read("managed_bytes"));
	fd = block_alloc(self->dev, shape / 2);
	ASSERT_LE(0, fd);
	ASSERT_EQ(shape / 2, block_nonzero(fd, shape / 2));
	close(fd);
	close(a.fd);
	close(disk);
}

/* A part of memory with frames of ours in it cannot be put offline, in use or held. */
TEST_F_TIMEOUT(empty, offline_is_refused, 60)
{
	const __u64 len = 4 * self->frame;
	char path[96], text[32];
	__u64 block_bytes, pfn;
	size_t passed_over;
	int fd, fds[64];
	char *p;

	if (text_read("/sys/devices/system/memory/block_size_bytes", text, sizeof(text)) < 0)
		SKIP(return, "the kernel cannot put memory offline");
	block_bytes = strtoull(text, NULL, 16);
	/* Stretches with a hole or of two zones cannot go anyhow: then one elsewhere. */
	for (passed_over = 0; passed_over < ARRAY_SIZE(fds); passed_over++) {
		fd = block_alloc(self->dev, len);
		ASSERT_LE(0, fd);
		p = block_map(fd, len);
		ASSERT_NE(MAP_FAILED, (void *)p);
		stamp(p, len, 1);
		pfn = pfn_of(p);
		ASSERT_NE(0, pfn);
		snprintf(path, sizeof(path), "/sys/devices/system/memory/memory%llu/valid_zones",
			 (unsigned long long)(pfn * page_bytes() / block_bytes));
		ASSERT_LT(0, text_read(path, text, sizeof(text)));
		snprintf(path, sizeof(path), "/sys/devices/system/memory/memory%llu/state",
			 (unsigned long long)(pfn * page_bytes() / block_bytes));
		if (strncmp(text, "none", 4) && text_write(path, "offline") != -EINVAL)
			break;
		munmap(p, len);
		fds[passed_over] = fd;
	}
	ASSERT_LT(passed_over, ARRAY_SIZE(fds));
	while (passed_over)
		close(fds[--passed_over]);
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(-EBUSY, text_write(path, "offline"));
	ASSERT_TRUE(stamped(p, len, 1));
	munmap(p, len);
	close(fd);
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	ASSERT_EQ(-EBUSY, text_write(path, "offline"));
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	ASSERT_TRUE(attr_becomes("held_clean_bytes", len, SOON_MS));
	fd = block_alloc(self->dev, len);
	ASSERT_EQ(len, block_nonzero(fd, len));
	close(fd);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
