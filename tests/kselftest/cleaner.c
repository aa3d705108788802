// SPDX-License-Identifier: GPL-2.0
/*
 * Cleaning ahead: what came back dirty is clean after a while, by the module's own
 * threads; they are in nobody's way, and nobody ever sees a byte of a former owner.
 */
#include <sys/prctl.h>

#define LOG_EXPECTED                                                                               \
	"loading out-of-tree module", "module verification failed", "retired the frame",           \
		"Memory failure", "Injecting memory failure"

#include "empty.h"

/* How far a counter has moved since @since. */
#define MOVED(name, since) (attr_read(name) - (since))

#define INLINE	   "cleaned_inline_bytes"
#define BACKGROUND "cleaned_background_bytes"

TEST_F_TIMEOUT(empty, clean_after_a_while, 60)
{
	const __u64 len = 64 * self->frame;
	long long background = attr_read(BACKGROUND), by_caller = attr_read(INLINE);
	int fd;

	ASSERT_EQ(0, hold_dirty(self->dev, len));
	ASSERT_TRUE(attr_becomes("held_clean_bytes", len, SOON_MS));
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	ASSERT_EQ((long long)len, MOVED(BACKGROUND, background));
	fd = block_alloc(self->dev, len);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, MOVED(INLINE, by_caller));
	ASSERT_EQ(len, block_nonzero(fd, len));
	close(fd);
}

/*
 * Whoever does not wait for it gets zero bytes just as well; and every frame is cleaned
 * once each time, be it by a thread or by the caller.
 */
TEST_F_TIMEOUT(empty, asked_for_at_once, 60)
{
	const __u64 len = 16 * self->frame;
	long long by_caller = attr_read(INLINE);

	/* Where there is more, a caller need not wait long for a frame in work. */
	ASSERT_EQ(0, attr_write("max_bytes", len));
	for (int r = 0; r < 20; r++) {
		long long cleaned = attr_read(BACKGROUND) + attr_read(INLINE);
		int fd;

		ASSERT_EQ(0, hold_dirty(self->dev, len));
		if (r % 2)
			sleep_ms(1);
		fd = block_alloc(self->dev, len);
		ASSERT_LE(0, fd);
		ASSERT_EQ((long long)len, attr_read("managed_bytes"));
		ASSERT_EQ(cleaned + (long long)len, attr_read(BACKGROUND) + attr_read(INLINE));
		ASSERT_EQ(len, block_nonzero(fd, len));
		close(fd);
		ASSERT_EQ(0, attr_write("free_held", 1));
		ASSERT_EQ(0, attr_read("managed_bytes"))
		{
			TH_LOG("held %lld, limbo %lld", attr_read("held_bytes"),
			       attr_read("limbo_bytes"));
		}
	}
	ASSERT_LT(0, MOVED(INLINE, by_caller));
}

/* Processes that want all CPUs for themselves. */
struct hogs {
	pid_t pid[16];
	int nr;
};

static void hogs_start(struct hogs *hogs, int per_cpu)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	hogs->nr = 0;
	for (long i = 0; i < cpus * per_cpu && hogs->nr < 16; i++) {
		pid_t pid = fork();

		if (!pid) {
			cpu_set_t cpu;

			CPU_ZERO(&cpu);
			CPU_SET((size_t)(i % cpus), &cpu);
			sched_setaffinity(0, sizeof(cpu), &cpu);
			for (;;)
				;
		}
		if (pid > 0)
			hogs->pid[hogs->nr++] = pid;
	}
}

static void hogs_end(struct hogs *hogs)
{
	for (int i = 0; i < hogs->nr; i++) {
		kill(hogs->pid[i], SIGKILL);
		child_status(hogs->pid[i]);
	}
}

/* One run of @len is held, nothing else is, and no more may be. */
static bool hold_run(int dev, __u64 len, __u64 most)
{
	int fd;

	if (attr_write("max_bytes", most) || attr_write("free_held", 1))
		return false;
	fd = block_alloc_flags(dev, len, BINPOOL_ALLOC_CONTIG);
	close(fd);
	return fd >= 0 && !attr_write("max_bytes", len);
}

/*
 * All that the limit allows comes back, and is wanted again while a thread has one of its
 * frames in work: it must be waited for, not counted as missing. Returns in how many
 * rounds a thread had been at work, or -1 after a refusal.
 */
static int whole_limit(int dev, __u64 len, __u32 flags, int rounds)
{
	/* So long at most until the next request: about what cleaning takes on this machine. */
	static __u64 most_us = 3000;
	int overlaps = 0, fd = block_alloc_flags(dev, len, flags & ~BINPOOL_ALLOC_NOWAIT);
	unsigned int seed = flags;

	for (int r = 0; r < rounds; r++) {
		long long before = attr_read(BACKGROUND);
		__u64 wait_us = (__u64)rand_r(&seed) % most_us;
		struct timespec ts = {0, (long)wait_us * 1000};

		if (fd < 0 || attr_read("managed_bytes") != (long long)len) {
			fprintf(stderr, "# round %d: %s\n", r, fd < 0 ? strerror(-fd) : "amount");
			return -1;
		}
		close(fd);
		nanosleep(&ts, NULL);
		if (attr_read(BACKGROUND) == before)
			most_us += most_us < 100000 ? most_us / 8 : 0;
		else if (attr_read("held_clean_bytes") < (long long)len)
			overlaps++;
		else
			most_us -= most_us > 100 ? most_us / 16 : 0;
		fd = block_alloc_flags(dev, len, flags);
	}
	if (fd < 0)
		return -1;
	close(fd);
	return overlaps;
}

static const __u32 manners[] = {
	0,
	BINPOOL_ALLOC_NOWAIT,
	BINPOOL_ALLOC_CONTIG,
	BINPOOL_ALLOC_CONTIG | BINPOOL_ALLOC_NOWAIT,
};

TEST_F_TIMEOUT(empty, whole_limit, 120)
{
	const __u64 len = 4 * self->frame;
	int overlaps = 0;

	for (size_t i = 0; i < ARRAY_SIZE(manners) || (overlaps <= 10 && i < 40); i++) {
		const __u32 flags = manners[i % ARRAY_SIZE(manners)];
		int more;

		ASSERT_TRUE(hold_run(self->dev, len, (__u64)self->max_bytes));
		more = whole_limit(self->dev, len, flags, 60);
		ASSERT_LE(0, more)
		{
			TH_LOG("flags %#x", flags);
		}
		overlaps += more;
	}
	TH_LOG("%d requests while memory was being cleaned", overlaps);
	/* Else this tested nothing. */
	ASSERT_LT(10, overlaps);
}

/* Also when others take all of the CPUs' time, so that a thread stops amid a frame. */
TEST_F_TIMEOUT(empty, whole_limit_on_busy_cpus, 120)
{
	const __u64 len = 4 * self->frame;
	struct hogs hogs;
	int overlaps = 0;

	ASSERT_TRUE(hold_run(self->dev, len, (__u64)self->max_bytes));
	hogs_start(&hogs, 2);
	for (size_t i = 0; i < ARRAY_SIZE(manners) && overlaps >= 0; i++)
		overlaps = whole_limit(self->dev, len, manners[i], 40);
	hogs_end(&hogs);
	ASSERT_LE(0, overlaps);
}

/* What is being cleaned is held, and goes with the rest at once. */
TEST_F_TIMEOUT(empty, goes_back_while_cleaned, 120)
{
	const __u64 len = 8 * self->frame;
	unsigned int seed = 3;

	for (int r = 0; r < 80; r++) {
		struct timespec ts = {0, rand_r(&seed) % 2000000};
		__u64 stays = 0;

		ASSERT_EQ(0, attr_write("holding", 1));
		close(block_alloc(self->dev, len));
		ASSERT_EQ((long long)len, attr_read("held_bytes"));
		nanosleep(&ts, NULL);
		switch (r % 4) {
		case 0:
			ASSERT_EQ(0, attr_write("free_held", 1));
			break;
		case 1:
			ASSERT_EQ(0, device_trim(self->dev, 0, NULL));
			break;
		case 2:
			stays = self->frame;
			ASSERT_EQ(0, attr_write("max_bytes", stays));
			break;
		case 3:
			ASSERT_EQ(0, attr_write("holding", 0));
			break;
		}
		ASSERT_EQ((long long)stays, attr_read("held_bytes"))
		{
			TH_LOG("round %d", r);
		}
		ASSERT_EQ((long long)stays, attr_read("managed_bytes"));
		ASSERT_GE((long long)stays, attr_read("held_clean_bytes"));
		ASSERT_EQ(0, attr_write("max_bytes", (__u64)self->max_bytes));
		ASSERT_EQ(0, attr_write("free_held", 1));
	}
}

/* A byte that names its owner: 1 and up. */
static __u64 owner_word(unsigned int owner, unsigned int round)
{
	return (__u64)owner << 56 | round;
}

/*
 * Takes and returns blocks of random sizes, all full of the owner's words. 0, 1: something
 * else went wrong, 2: a byte of a former owner.
 */
static int canary(unsigned int owner, unsigned int rounds, __u64 frame)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC), fds[5] = {-1, -1, -1, -1, -1};
	unsigned int seed = owner;

	for (unsigned int r = 0; r < rounds; r++) {
		size_t slot = (size_t)rand_r(&seed) % ARRAY_SIZE(fds);
		__u64 len = (1 + (__u64)rand_r(&seed) % 12) * frame, bad;
		struct binpool_alloc a =
			alloc_request(len, rand_r(&seed) % 4 ? 0 : BINPOOL_ALLOC_CONTIG);
		int err;
		__u64 *p;

		if (fds[slot] >= 0)
			close(fds[slot]);
		sleep_ms((unsigned int)rand_r(&seed) % 4);
		err = device_alloc(dev, &a);
		if (err == -ENOMEM && a.flags & BINPOOL_ALLOC_CONTIG) {
			/* Where nothing is moved to make one, there may be no such run. */
			a = alloc_request(len, 0);
			err = device_alloc(dev, &a);
		}
		if (err) {
			fprintf(stderr, "# owner %u, round %u: %s\n", owner, r, strerror(-err));
			return 1;
		}
		fds[slot] = a.fd;
		p = block_map(a.fd, a.capacity);
		if (p == MAP_FAILED)
			return 1;
		bad = first_nonzero(p, a.capacity);
		if (bad < a.capacity) {
			fprintf(stderr,
				"# owner %u, round %u, byte %llu of %llu: owner %llu's of round %llu\n",
				owner, r, (unsigned long long)bad, (unsigned long long)a.capacity,
				(unsigned long long)(p[bad / 8] >> 56),
				(unsigned long long)(p[bad / 8] & 0xffffffff));
			return 2;
		}
		for (__u64 i = 0; i < a.capacity / 8; i++)
			p[i] = owner_word(owner, r);
		munmap(p, a.capacity);
	}
	return 0;
}

TEST_F_TIMEOUT(empty, canary, 180)
{
	long long background = attr_read(BACKGROUND), by_caller = attr_read(INLINE);
	pid_t pid[2];

	for (unsigned int i = 0; i < ARRAY_SIZE(pid); i++) {
		pid[i] = fork();
		ASSERT_LE(0, pid[i]);
		if (!pid[i])
			_exit(canary(i + 1, 100, self->frame));
	}
	for (size_t i = 0; i < ARRAY_SIZE(pid); i++) {
		EXPECT_EQ(0, child_status(pid[i]));
	}
	/* Both ways of cleaning were used. */
	ASSERT_LT(0, MOVED(BACKGROUND, background));
	ASSERT_LT(0, MOVED(INLINE, by_caller));
}

/* The control: the words would be seen. */
TEST_F(empty, canary_would_be_seen)
{
	int fd = block_alloc(self->dev, self->frame);
	__u64 *p = block_map(fd, self->frame);

	ASSERT_NE(MAP_FAILED, (void *)p);
	p[77] = owner_word(1, 0);
	munmap(p, self->frame);
	ASSERT_EQ(77 * 8, block_nonzero(fd, self->frame));
	close(fd);
}

/* Memory that cannot be cleaned is retired, its neighbours are cleaned. */
TEST_F_TIMEOUT(empty, poisoned_frame_is_retired, 60)
{
	const __u64 len = 8 * self->frame;
	long long retired = attr_read("retired_bytes");
	int fd = block_alloc(self->dev, len);
	char *p = block_map(fd, len);

	ASSERT_NE(MAP_FAILED, (void *)p);
	memset(p, 0x5a, len);
	/* The kernel marks the page and says that it can do no more with it. */
	madvise(p + 3 * self->frame + 5 * page_bytes(), page_bytes(), MADV_HWPOISON);
	munmap(p, len);
	close(fd);
	ASSERT_TRUE(attr_becomes("retired_bytes", (__u64)retired + self->frame, SOON_MS));
	ASSERT_TRUE(attr_becomes("held_clean_bytes", len - self->frame, SOON_MS));
	ASSERT_EQ((long long)(len - self->frame), attr_read("managed_bytes"));
	fd = block_alloc(self->dev, len - self->frame);
	ASSERT_LE(0, fd);
	ASSERT_EQ(len - self->frame, block_nonzero(fd, len - self->frame));
	close(fd);
}

/* The same where a request meets it amid a run: what it had cleaned before is not lost. */
TEST_F_TIMEOUT(empty, poisoned_frame_amid_a_request, 60)
{
	const __u64 len = 8 * self->frame;
	long long retired, cleaned;
	char *p;
	int fd;

	RELOAD("clean_threads=0");
	retired = attr_read("retired_bytes");
	fd = block_alloc(self->dev, len);
	ASSERT_LE(0, fd);
	p = block_map(fd, len);
	ASSERT_NE(MAP_FAILED, (void *)p);
	memset(p, 0x5a, len);
	madvise(p + 3 * self->frame + 5 * page_bytes(), page_bytes(), MADV_HWPOISON);
	munmap(p, len);
	close(fd);
	ASSERT_TRUE(attr_becomes("held_bytes", len, SOON_MS));
	ASSERT_EQ(0, attr_write("max_bytes", len));
	cleaned = attr_read(INLINE);
	fd = block_alloc(self->dev, len);
	ASSERT_LE(0, fd);
	ASSERT_EQ(retired + (long long)self->frame, attr_read("retired_bytes"));
	/* Seven of its eight frames are the old ones, and each was cleaned once. */
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	ASSERT_EQ((long long)(len - self->frame), MOVED(INLINE, cleaned));
	ASSERT_EQ(len, block_nonzero(fd, len));
	close(fd);
}

/* Of who asks for memory: how often he did, and the longest pause between two times. */
struct asked {
	__u64 times;
	__u64 gap;
};

/* Makes the system ask for memory again and again. */
static void ask_for_memory(volatile struct asked *asked)
{
	__u64 last = now_ms();

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Without a line in the log for each time. */
	number_write(DROP_CACHES, 4);
	for (;;) {
		__u64 now;

		number_write(DROP_CACHES, 2);
		now = now_ms();
		asked->gap = now - last > asked->gap ? now - last : asked->gap;
		last = now;
		asked->times++;
	}
}

/* While the system wants memory back none is cleaned, which then goes all the same. */
TEST_F_TIMEOUT(empty, rests_in_a_shortage, 120)
{
	const __u64 len = 16 * self->frame;
	volatile struct asked *asked =
		mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	bool rested = false;
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid)
		ask_for_memory(asked);
	/* A rest is of 100 ms; if it was not asked for so long, nothing was tested. */
	for (int tries = 0; tries < 20 && !rested; tries++) {
		long long background;

		sleep_ms(200);
		background = attr_read(BACKGROUND);
		asked->gap = 0;
		ASSERT_EQ(0, hold_dirty(self->dev, len));
		sleep_ms(300);
		rested = !MOVED(BACKGROUND, background);
		if (!rested) {
			__u64 times = asked->times;

			/* The pause may still go on. */
			while (asked->times < times + 2)
				sleep_ms(10);
			TH_LOG("cleaned while not asked for %llu ms",
			       (unsigned long long)asked->gap);
			ASSERT_LT(50, asked->gap);
		}
	}
	kill(pid, SIGKILL);
	ASSERT_EQ(128 + SIGKILL, child_status(pid));
	ASSERT_TRUE(rested);
	ASSERT_TRUE(attr_becomes("held_clean_bytes", (__u64)attr_read("held_bytes"), SOON_MS));
}

/* Several at a time clean each frame once, and all is found while they do. */
TEST_F_TIMEOUT(empty, four_threads, 120)
{
	const __u64 len = 32 * self->frame, limit = 4 * self->frame;
	long long background;

	RELOAD("clean_threads=4");
	background = attr_read(BACKGROUND);
	for (int r = 1; r <= 5; r++) {
		ASSERT_EQ(0, hold_dirty(self->dev, len));
		ASSERT_TRUE(attr_becomes("held_clean_bytes", len, SOON_MS));
		ASSERT_EQ(r * (long long)len, MOVED(BACKGROUND, background));
		ASSERT_EQ((long long)len, attr_read("held_bytes"));
	}
	for (size_t i = 0; i < ARRAY_SIZE(manners); i++) {
		ASSERT_TRUE(hold_run(self->dev, limit, (__u64)self->max_bytes));
		ASSERT_LE(0, whole_limit(self->dev, limit, manners[i], 50))
		{
			TH_LOG("flags %#x", manners[i]);
		}
	}
}

/* Without threads the callers clean. */
TEST_F_TIMEOUT(empty, no_threads, 60)
{
	const __u64 len = 32 * self->frame;
	struct binpool_query q;
	char name[96];
	int fd;

	RELOAD("clean_threads=0");
	ASSERT_EQ(0, hold_dirty(self->dev, len));
	sleep_ms(300);
	ASSERT_EQ(0, attr_read("held_clean_bytes"));
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	fd = block_alloc(self->dev, len);
	ASSERT_LE(0, fd);
	ASSERT_EQ((long long)len, attr_read(INLINE));
	ASSERT_EQ(0, attr_read(BACKGROUND));
	ASSERT_EQ(len, block_nonzero(fd, len));
	close(fd);

	/* One dirty run is shown as that by its bin. */
	ASSERT_EQ(0, attr_write("free_held", 1));
	fd = block_alloc_flags(self->dev, len, BINPOOL_ALLOC_CONTIG);
	ASSERT_EQ(0, block_query(fd, &q));
	close(fd);
	snprintf(name, sizeof(name), "node%d/bins/%llu/held_bytes", q.node,
		 (unsigned long long)len);
	ASSERT_EQ((long long)len, attr_read(name));
	snprintf(name, sizeof(name), "node%d/bins/%llu/held_clean_bytes", q.node,
		 (unsigned long long)len);
	ASSERT_EQ(0, attr_read(name));
}

/*
 * A caller that is killed while it cleans ends soon; what it had cleaned is held clean,
 * what it had not stays dirty until somebody cleans it.
 */
TEST_F_TIMEOUT(empty, killed_while_cleaning, 120)
{
	struct binpool_alloc a;
	long long at_kill = 0;
	__u64 len, killed_ms;
	int fd;

	RELOAD("clean_threads=0");
	len = (__u64)attr_read("max_bytes") / 4 & ~(self->frame - 1);
	a = alloc_request(len, 0);
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	close(a.fd);
	len = a.capacity;
	for (int tries = 0; tries < 10 && (!at_kill || at_kill == (long long)len); tries++) {
		long long before;
		pid_t pid;

		ASSERT_EQ(0, hold_dirty(self->dev, len));
		before = attr_read(INLINE);
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid)
			_exit(block_alloc(self->dev, len) < 0);
		while (attr_read(INLINE) == before)
			;
		kill(pid, SIGKILL);
		killed_ms = now_ms();
		child_status(pid);
		ASSERT_GE(10000, now_ms() - killed_ms);
		ASSERT_TRUE(attr_becomes("held_bytes", len, 10000));
		ASSERT_EQ(0, attr_read("active_bytes"));
		ASSERT_EQ((long long)len, attr_read("managed_bytes"));
		at_kill = attr_read(INLINE) - before;
	}
	ASSERT_LT(0, at_kill);
	ASSERT_GT((long long)len, at_kill)
	{
		TH_LOG("never killed in time");
	}
	ASSERT_EQ(at_kill, attr_read("held_clean_bytes"));
	fd = block_alloc(self->dev, len);
	ASSERT_LE(0, fd);
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	ASSERT_EQ(len, block_nonzero(fd, len));
	close(fd);
}

/* Unloading waits for a frame, not for all of them, and gives all back. */
TEST_F_TIMEOUT(empty, unload_while_cleaning, 120)
{
	const __u64 len = 64 * self->frame;

	for (int r = 0; r < 8; r++) {
		__u64 held;

		RELOAD(r % 2 ? "clean_threads=4" : "");
		ASSERT_EQ(0, hold_dirty(self->dev, len));
		sleep_ms((unsigned int)r * 2);
		held = meminfo_bytes("MemFree");
		close(self->dev);
		ASSERT_EQ(0, module_unload());
		ASSERT_LE(held + len / 2, meminfo_bytes("MemFree"));
		ASSERT_EQ(0, module_load(""));
		self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	}
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
