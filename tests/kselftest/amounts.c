// SPDX-License-Identifier: GPL-2.0
/*
 * What is told of memory while it is in somebody's hands: a thread that cleans it, a
 * request that has not made a block of it yet, whoever gives it back. Active is what is in
 * blocks, at any moment; what is free is held until the system is about to get it.
 *
 * Each test has a watcher, on another CPU, which reads all the time what must not be.
 */
#include <pthread.h>

#include "empty.h"

/* Frames that take a while to clean, or to give back. */
#define LARGE 256

/* What a watcher saw, between watch() and watched(). */
struct watcher {
	pthread_t thread;
	int dev;
	int bin; /* descriptor of a bin's held_bytes, or -1 */
	bool stop;
	unsigned long looks;
	__u64 active_max;
	__u64 held_min;
	__u64 held_max;
	__u64 bin_min;
};

static void pin_to_cpu(size_t cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void *look(void *arg)
{
	struct watcher *w = arg;
	struct binpool_info info;

	/* Tests are on CPU 0, and their threads inherit that. */
	pin_to_cpu((size_t)sysconf(_SC_NPROCESSORS_ONLN) - 1);
	while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
		char text[32] = "";

		if (device_info(w->dev, &info))
			break;
		if (info.active_bytes > w->active_max)
			w->active_max = info.active_bytes;
		if (info.held_bytes > w->held_max)
			w->held_max = info.held_bytes;
		if (info.held_bytes < w->held_min)
			w->held_min = info.held_bytes;
		if (w->bin >= 0 && pread(w->bin, text, sizeof(text) - 1, 0) > 0 &&
		    strtoull(text, NULL, 10) < w->bin_min)
			w->bin_min = strtoull(text, NULL, 10);
		__atomic_fetch_add(&w->looks, 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* Waits until the watcher has looked once more. */
static void seen(struct watcher *w)
{
	unsigned long looks = __atomic_load_n(&w->looks, __ATOMIC_ACQUIRE);

	while (__atomic_load_n(&w->looks, __ATOMIC_ACQUIRE) < looks + 2)
		sched_yield();
}

static int watch(struct watcher *w, int dev, int bin)
{
	*w = (struct watcher){.dev = dev, .bin = bin, .held_min = ~0ULL, .bin_min = ~0ULL};
	if (pthread_create(&w->thread, NULL, look, w))
		return -EAGAIN;
	seen(w);
	return 0;
}

static void watched(struct watcher *w)
{
	seen(w);
	__atomic_store_n(&w->stop, true, __ATOMIC_RELEASE);
	pthread_join(w->thread, NULL);
}

/* A frame that is being cleaned is held all the time, and in the bin of single frames. */
TEST_F_TIMEOUT(empty, while_it_is_cleaned, 60)
{
	char path[128];
	struct watcher w;
	int bin, amid = 0;

	ASSERT_EQ(0, hold_dirty(self->dev, self->frame));
	ASSERT_TRUE(cleaning_ends());
	snprintf(path, sizeof(path), SYSFS "node0/bins/%llu/held_bytes",
		 (unsigned long long)self->frame);
	if (attr_read("node0/held_bytes") != (long long)self->frame)
		SKIP(return, "the tests do not run on node 0");
	bin = open(path, O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, bin);
	/* Without a line in the log for each time. */
	ASSERT_EQ(0, number_write(DROP_CACHES, 4));
	for (int r = 0; r < 20 || (amid <= 5 && r < 200); r++) {
		/* Threads rest for a while after the system wanted memory. */
		ASSERT_EQ(0, number_write(DROP_CACHES, 2));
		ASSERT_EQ(0, hold_dirty(self->dev, self->frame));
		ASSERT_EQ(0, watch(&w, self->dev, bin));
		amid += attr_read("held_clean_bytes") == 0;
		ASSERT_TRUE(cleaning_ends());
		watched(&w);
		ASSERT_EQ(0, w.active_max);
		ASSERT_EQ(self->frame, w.held_min);
		ASSERT_EQ(self->frame, w.held_max);
		ASSERT_EQ(self->frame, w.bin_min)
		{
			TH_LOG("round %d, %lu looks", r, w.looks);
		}
	}
	close(bin);
	/* Else this tested nothing. */
	ASSERT_LT(5, amid);
}

/* What goes back to the system is in no block, whoever gives it back. */
TEST_F_TIMEOUT(empty, while_it_goes_back, 120)
{
	const __u64 len = LARGE * self->frame;

	for (int way = 0; way < 4; way++) {
		struct watcher w;
		int fd = block_alloc(self->dev, len);

		ASSERT_LE(0, fd);
		close(fd);
		ASSERT_LE((long long)len, attr_read("held_bytes"));
		ASSERT_EQ(0, watch(&w, self->dev, -1));
		switch (way) {
		case 0:
			ASSERT_EQ(0, attr_write("free_held", 1));
			break;
		case 1:
			ASSERT_EQ(0, device_trim(self->dev, 0, NULL));
			break;
		case 2:
			ASSERT_EQ(0, attr_write("holding", 0));
			ASSERT_EQ(0, attr_write("holding", 1));
			break;
		case 3:
			ASSERT_EQ(0, attr_write("max_bytes", self->frame));
			ASSERT_EQ(0, attr_write("max_bytes", (__u64)self->max_bytes));
			break;
		}
		watched(&w);
		ASSERT_EQ(0, w.active_max)
		{
			TH_LOG("way %d, %lu looks", way, w.looks);
		}
		ASSERT_EQ(0, attr_write("free_held", 1));
	}
}

/* The reserve is held as soon as it is there. */
TEST_F_TIMEOUT(empty, while_the_reserve_is_filled, 120)
{
	const __u64 len = LARGE * self->frame;
	struct watcher w;

	ASSERT_EQ(0, watch(&w, self->dev, -1));
	ASSERT_EQ(0, attr_write("reserve_bytes", len));
	ASSERT_TRUE(attr_becomes("reserve_filled_bytes", len, SOON_MS));
	watched(&w);
	ASSERT_EQ(0, w.active_max);
	ASSERT_LE(len, w.held_max);
}

/* Nor is there a block while ALLOC cleans what it will be made of. */
TEST_F_TIMEOUT(empty, while_alloc_cleans, 120)
{
	const __u64 len = LARGE * self->frame;
	struct binpool_info info;
	int status, amid = 0;
	pid_t pid;

	RELOAD("clean_threads=0");
	ASSERT_EQ(0, hold_dirty(self->dev, len));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		pin_to_cpu((size_t)sysconf(_SC_NPROCESSORS_ONLN) - 1);
		_exit(block_alloc(self->dev, len) < 0);
	}
	do {
		ASSERT_EQ(0, device_info(self->dev, &info));
		/* Not all of it is clean, so it was in no block when that was read. */
		if (attr_read("cleaned_inline_bytes") >= (long long)len)
			break;
		ASSERT_EQ(0, info.active_bytes);
		ASSERT_EQ(len, info.held_bytes);
		amid += attr_read("cleaned_inline_bytes") > 0;
	} while (!waitpid(pid, &status, WNOHANG));
	child_status(pid);
	ASSERT_LT(1, amid);
	ASSERT_EQ(0, attr_read("active_bytes"));
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
}

/* A search for a run that there is not takes much, and leaves nothing active. */
TEST_F_TIMEOUT(empty, while_a_run_is_looked_for, 120)
{
	/* The machine has so much, but gives only half of it. */
	const __u64 asked = GIB, room = asked / 2;
	struct watcher w;
	struct binpool_alloc a;

	ASSERT_EQ(0, number_write(PARAM("floor_bytes"), meminfo_bytes("MemAvailable") - room));
	ASSERT_EQ(0, attr_write("max_bytes", 2 * asked));
	a = alloc_request(asked, BINPOOL_ALLOC_CONTIG | BINPOOL_ALLOC_NOWAIT);
	ASSERT_EQ(0, watch(&w, self->dev, -1));
	ASSERT_EQ(-ENOMEM, device_alloc(self->dev, &a));
	watched(&w);
	ASSERT_EQ(0, w.active_max);
	ASSERT_LT(0, w.held_max);
}

/* What leaves quarantine is held, not for a moment in a block again. */
TEST_F_TIMEOUT(empty, while_it_leaves_quarantine, 120)
{
	const __u64 len = LARGE * self->frame;

	for (int r = 0; r < 5; r++) {
		struct binpool_phys_run run;
		struct binpool_phys p = {
			.size = sizeof(p), .runs = (__u64)(uintptr_t)&run, .nr_runs = 1};
		int fd = block_alloc(self->dev, len);
		__u64 capacity;
		struct watcher w;

		ASSERT_LE(0, fd);
		ASSERT_EQ(0, request(fd, BINPOOL_IOC_PHYS, &p));
		close(fd);
		capacity = (__u64)attr_read("quarantine_bytes");
		ASSERT_LE(len, capacity);
		ASSERT_EQ(0, watch(&w, self->dev, -1));
		ASSERT_EQ(0, attr_write("phys_release", 1));
		watched(&w);
		ASSERT_EQ(0, w.active_max)
		{
			TH_LOG("round %d, %lu looks", r, w.looks);
		}
		ASSERT_EQ((long long)capacity, attr_read("held_bytes"));
		ASSERT_EQ(0, attr_write("free_held", 1));
	}
}

static void *trim_all(void *dev)
{
	device_trim(*(int *)dev, 0, NULL);
	return NULL;
}

/* Two who give back at once do not both count what goes for the reserve. */
TEST_F_TIMEOUT(empty, reserve_stays_however_many_trim, 120)
{
	const __u64 len = LARGE * self->frame;

	for (int r = 0; r < 5; r++) {
		pthread_t other;
		long long freed, spare;
		int fd;

		ASSERT_EQ(0, attr_write("reserve_bytes", len / 2));
		ASSERT_TRUE(attr_becomes("reserve_filled_bytes", len / 2, SOON_MS));
		fd = block_alloc(self->dev, len);
		ASSERT_LE(0, fd);
		close(fd);
		ASSERT_TRUE(cleaning_ends());
		spare = attr_read("held_bytes") - attr_read("reserve_bytes");
		freed = attr_read("freed_bytes");
		ASSERT_LT(0, spare);
		ASSERT_EQ(0, pthread_create(&other, NULL, trim_all, &self->dev));
		pin_to_cpu((size_t)sysconf(_SC_NPROCESSORS_ONLN) - 1);
		trim_all(&self->dev);
		pin_to_cpu(0);
		pthread_join(other, NULL);
		ASSERT_EQ(freed + spare, attr_read("freed_bytes"))
		{
			TH_LOG("round %d", r);
		}
		ASSERT_EQ(0, attr_write("reserve_bytes", 0));
		ASSERT_EQ(0, attr_write("free_held", 1));
	}
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
