// SPDX-License-Identifier: GPL-2.0
/*
 * The reserve: got ahead in the background, used and refilled, kept whatever is given
 * back; and what the system is told of held memory above it.
 */
#define LOG_EXPECTED                                                                               \
	"loading out-of-tree module", "module verification failed", "is above max_bytes",          \
		"retired the frame", "Memory failure", "Injecting memory failure"

#include "empty.h"
#include "tracefs.h"

/*
 * Sets the reserve and waits for it. All of it is on the node where the tests run, whose
 * fresh memory comes before what another node holds.
 */
static bool reserve(__u64 bytes)
{
	char path[96];
	int nid = 0;

	do
		snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpu0", nid);
	while (access(path, F_OK) && ++nid < 1024);
	snprintf(path, sizeof(path), "node%d/reserve_bytes", nid);
	return !attr_write("reserve_bytes", 0) && !attr_write(path, bytes) &&
	       attr_read("reserve_bytes") == (long long)bytes &&
	       attr_becomes("reserve_filled_bytes", bytes, SOON_MS);
}

/* No reserve, and nothing held: when that is written it is so. */
static bool emptied(void)
{
	return !attr_write("reserve_bytes", 0) && !attr_write("free_held", 1) &&
	       !attr_read("managed_bytes");
}

TEST_F_TIMEOUT(empty, filled_and_kept, 60)
{
	const __u64 len = 32 * self->frame;
	__u64 freed;

	ASSERT_TRUE(reserve(len));
	/* What is filled is cleaned first, on a kernel that does not clean. */
	ASSERT_TRUE(attr_becomes("held_bytes", len, SOON_MS));
	ASSERT_TRUE(attr_becomes("held_clean_bytes", len, SOON_MS));
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	ASSERT_EQ(0, device_trim(self->dev, 0, &freed));
	ASSERT_EQ(0, freed);
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	ASSERT_EQ(0, attr_write("holding", 0));
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	ASSERT_EQ((long long)len, attr_read("reserve_filled_bytes"));
	ASSERT_EQ(0, attr_write("holding", 1));

	/* Of more than that, the rest goes. */
	ASSERT_EQ(0, hold_dirty(self->dev, 40 * self->frame));
	ASSERT_LT((long long)len, attr_read("held_bytes"));
	ASSERT_EQ(0, device_trim(self->dev, 0, NULL));
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));

	/* A lower one lets go, once somebody says so; it takes nothing away by itself. */
	ASSERT_TRUE(reserve(len / 4));
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ((long long)len / 4, attr_read("managed_bytes"));
	ASSERT_TRUE(reserve(0));
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_read("reserve_filled_bytes"));
}

/* Blocks are made of it and count for it: it is not filled a second time. */
TEST_F_TIMEOUT(empty, blocks_use_it, 60)
{
	const __u64 len = 32 * self->frame;
	long long allocs, reuses;
	int fds[2];

	ASSERT_TRUE(reserve(len));
	allocs = attr_read("allocs");
	reuses = attr_read("reuses");
	for (int i = 0; i < 2; i++) {
		fds[i] = block_alloc(self->dev, len / 2);
		ASSERT_LE(0, fds[i]);
		ASSERT_EQ(len / 2, block_nonzero(fds[i], len / 2));
	}
	ASSERT_EQ(allocs, attr_read("allocs"));
	ASSERT_EQ(reuses + 2, attr_read("reuses"));
	ASSERT_EQ(0, attr_read("held_bytes"));
	sleep_ms(300);
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	ASSERT_EQ((long long)len, attr_read("reserve_filled_bytes"));
	ASSERT_EQ(0, attr_write("free_held", 1));
	close(fds[0]);
	close(fds[1]);
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	/* Back in it, dirty, it is cleaned like the rest. */
	ASSERT_TRUE(attr_becomes("held_clean_bytes", len, SOON_MS));
}

/* Without holding, a block that returns fills the reserve up and no more. */
TEST_F_TIMEOUT(empty, without_holding, 60)
{
	const __u64 len = 16 * self->frame;
	int fd;

	ASSERT_EQ(0, attr_write("max_bytes", len));
	ASSERT_TRUE(reserve(len));
	fd = block_alloc(self->dev, len);
	ASSERT_LE(0, fd);
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_write("holding", 0));
	close(fd);
	ASSERT_EQ((long long)len, attr_read("held_bytes"));

	fd = block_alloc(self->dev, len);
	ASSERT_LE(0, fd);
	ASSERT_TRUE(reserve(len / 4));
	close(fd);
	ASSERT_EQ((long long)len / 4, attr_read("held_bytes"));
	ASSERT_EQ((long long)len / 4, attr_read("managed_bytes"));
	ASSERT_EQ((long long)len / 4, attr_read("reserve_filled_bytes"));
}

TEST_F_TIMEOUT(empty, max_bytes_wins, 60)
{
	const __u64 len = 32 * self->frame;
	int fd;

	ASSERT_TRUE(reserve(len));
	ASSERT_EQ(0, attr_write("max_bytes", len / 2));
	ASSERT_EQ((long long)len / 2, attr_read("managed_bytes"));
	ASSERT_EQ((long long)len / 2, attr_read("reserve_filled_bytes"));
	ASSERT_EQ((long long)len, attr_read("reserve_bytes"));
	ASSERT_EQ(0, attr_write("max_bytes", len));
	ASSERT_TRUE(attr_becomes("reserve_filled_bytes", len, SOON_MS));

	/* The same with a block in use: what returns is too much as a whole. */
	fd = block_alloc(self->dev, len);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, attr_write("max_bytes", len / 2));
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	close(fd);
	ASSERT_TRUE(attr_becomes("reserve_filled_bytes", len / 2, SOON_MS));
	ASSERT_EQ((long long)len / 2, attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_write("max_bytes", (__u64)self->max_bytes));
	ASSERT_TRUE(attr_becomes("reserve_filled_bytes", len, SOON_MS));
}

/*
 * Where there was no room it is tried again after a while, and then ever more rarely: once
 * there is, it need not be waited for.
 */
TEST_F_TIMEOUT(empty, filled_when_the_limit_is_raised, 60)
{
	const __u64 len = 16 * self->frame;
	static char text[1 << 16];
	char pid[16];

	if (!tracefs_mount())
		SKIP(return, "the kernel has no tracefs");
	ASSERT_TRUE(reserve(len));
	ASSERT_EQ(0, attr_write("max_bytes", len / 2));
	snprintf(pid, sizeof(pid), "%d", getpid());
	ASSERT_EQ(0, text_write(TRACEFS "set_event_pid", pid));
	ASSERT_EQ(0, trace_clear());
	EXPECT_EQ(0, text_write(TRACEFS "events/workqueue/workqueue_queue_work/enable", "1"));
	EXPECT_EQ(0, attr_write("max_bytes", len));
	EXPECT_EQ(0, text_write(TRACEFS "events/workqueue/workqueue_queue_work/enable", "0"));
	close(open(TRACEFS "set_event_pid", O_WRONLY | O_TRUNC | O_CLOEXEC));
	ASSERT_LT(0, text_read(TRACEFS "trace", text, sizeof(text)));
	/* By whoever wrote it, in the very call. */
	ASSERT_NE(NULL, strstr(text, "[binpool]"));
	ASSERT_TRUE(attr_becomes("reserve_filled_bytes", len, SOON_MS));
}

/* A frame that was lost to a memory failure is replaced. */
TEST_F_TIMEOUT(empty, loss_is_replaced, 60)
{
	const __u64 len = 8 * self->frame;
	long long retired = attr_read("retired_bytes");
	char *p;
	int fd;

	ASSERT_TRUE(reserve(len));
	fd = block_alloc(self->dev, len);
	p = block_map(fd, len);
	ASSERT_NE(MAP_FAILED, (void *)p);
	memset(p, 1, len);
	madvise(p + self->frame, page_bytes(), MADV_HWPOISON);
	munmap(p, len);
	close(fd);
	ASSERT_TRUE(attr_becomes("retired_bytes", (__u64)retired + self->frame, SOON_MS));
	ASSERT_TRUE(attr_becomes("reserve_filled_bytes", len, SOON_MS));
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
}

TEST_F(empty, refused_values)
{
	static const char *const bad[] = {
		"x", "-1", "2x", "0x", "1 2", "4G", "1e9", "\n", "184467440737095516160",
	};
	static const char *const where[] = {"reserve_bytes", "node0/reserve_bytes"};
	struct counters was;

	ASSERT_EQ(0, attr_write("reserve_bytes", 4 * self->frame));
	ASSERT_TRUE(attr_becomes("reserve_filled_bytes", 4 * self->frame, SOON_MS));
	was = counters_read();
	for (size_t w = 0; w < ARRAY_SIZE(where); w++) {
		for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
			char path[256];
			int ret;

			snprintf(path, sizeof(path), SYSFS "%s", where[w]);
			ret = text_write(path, bad[i]);
			ASSERT_TRUE(ret == -EINVAL || ret == -ERANGE)
			{
				TH_LOG("'%s' to %s: %d", bad[i], where[w], ret);
			}
		}
		ASSERT_EQ(-EINVAL, attr_write(where[w], (__u64)self->max_bytes + 1));
		ASSERT_EQ(-EINVAL, attr_write(where[w], ~0ULL));
		ASSERT_EQ(-EINVAL, attr_write(where[w], ~0ULL - self->frame + 1));
	}
	ASSERT_EQ(4 * (long long)self->frame, attr_read("reserve_bytes"));
	ASSERT_STREQ("nothing", counters_moved(&was));
	/* What is no whole frame is rounded down. */
	ASSERT_EQ(0, attr_write("reserve_bytes", 4 * self->frame - 1));
	ASSERT_EQ(3 * (long long)self->frame, attr_read("reserve_bytes"));
}

/* Whoever writes last wins, as a whole; nothing more is got than the most of them asked. */
TEST_F_TIMEOUT(empty, two_writers, 60)
{
	const __u64 most = 24 * self->frame;
	pid_t pid[2];

	for (int i = 0; i < 2; i++) {
		pid[i] = fork();
		ASSERT_LE(0, pid[i]);
		if (!pid[i]) {
			unsigned int seed = (unsigned int)i;

			for (int r = 0; r < 300; r++) {
				__u64 value = (__u64)rand_r(&seed) % 25 * self->frame;

				if (attr_write("reserve_bytes", value))
					_exit(1);
				if (r % 8 == i && attr_write("free_held", 1))
					_exit(2);
			}
			_exit(0);
		}
	}
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(0, child_status(pid[i]));
	}
	ASSERT_GE((long long)most, attr_read("managed_bytes"));
	ASSERT_TRUE(emptied());
	ASSERT_TRUE(reserve(most));
	ASSERT_EQ((long long)most, attr_read("managed_bytes"));
	ASSERT_TRUE(reserve(self->frame));
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ((long long)self->frame, attr_read("managed_bytes"));
}

/* Blocks come and go while it is filled, up to the limit: all of it adds up. */
TEST_F_TIMEOUT(empty, filled_beside_blocks, 120)
{
	const __u64 limit = 48 * self->frame, len = 32 * self->frame;
	unsigned int seed = 5;

	ASSERT_EQ(0, attr_write("max_bytes", limit));
	for (int r = 0; r < 100; r++) {
		int fd;

		ASSERT_EQ(0, attr_write("reserve_bytes", len));
		fd = block_alloc(self->dev, (1 + (__u64)rand_r(&seed) % 16) * self->frame);
		/* There is room for both. */
		ASSERT_LE(0, fd)
		{
			TH_LOG("round %d: %s", r, strerror(-fd));
		}
		ASSERT_GE((long long)limit, attr_read("managed_bytes"));
		close(fd);
		ASSERT_EQ(0, attr_write("reserve_bytes", 0));
		ASSERT_EQ(0, attr_write("free_held", 1));
	}
	ASSERT_TRUE(emptied());
	ASSERT_TRUE(reserve(len));
	ASSERT_EQ((long long)len, attr_read("managed_bytes"));
}

/* Lowered amid its filling, nothing comes for it after that. */
TEST_F_TIMEOUT(empty, lowered_while_filling, 120)
{
	const __u64 len = 512 * self->frame, rest = 2 * self->frame;
	unsigned int seed = 7;
	int amid = 0;

	for (int r = 0; r < 40; r++) {
		const char *name = r % 2 ? "node0/reserve_bytes" : "reserve_bytes";
		__u64 stays = r % 4 < 2 ? 0 : rest;
		struct timespec ts = {0, rand_r(&seed) % 30000000};

		ASSERT_EQ(0, attr_write(name, len));
		nanosleep(&ts, NULL);
		amid += attr_read("reserve_filled_bytes") < (long long)len;
		ASSERT_EQ(0, attr_write(name, stays));
		ASSERT_EQ(0, attr_write("free_held", 1));
		ASSERT_GE((long long)stays, attr_read("managed_bytes"))
		{
			TH_LOG("round %d, held %lld", r, attr_read("held_bytes"));
		}
		if (r % 8 == 0) {
			sleep_ms(100);
			ASSERT_GE((long long)stays, attr_read("managed_bytes"));
		}
		ASSERT_TRUE(emptied());
	}
	ASSERT_LT(10, amid);
}

/* What was on its way when max_bytes was lowered does not stay above it. */
TEST_F_TIMEOUT(empty, limit_lowered_while_filling, 120)
{
	const __u64 len = 256 * self->frame, limit = 4 * self->frame;
	unsigned int seed = 9;

	for (int r = 0; r < 20; r++) {
		struct timespec ts = {0, rand_r(&seed) % 30000000};

		ASSERT_EQ(0, attr_write("reserve_bytes", len));
		nanosleep(&ts, NULL);
		ASSERT_EQ(0, attr_write("max_bytes", limit));
		ASSERT_TRUE(attr_becomes("managed_bytes", limit, SOON_MS));
		ASSERT_EQ(0, attr_write("reserve_bytes", 0));
		ASSERT_EQ(0, attr_write("max_bytes", (__u64)self->max_bytes));
		ASSERT_TRUE(emptied());
	}
}

/* The module's parameters. */

TEST_F_TIMEOUT(empty, at_load, 120)
{
	const __u64 len = 96 * self->frame;
	char text[96];

	snprintf(text, sizeof(text), "reserve_wait=Y reserve_bytes=%llu", (unsigned long long)len);
	RELOAD(text);
	ASSERT_EQ((long long)len, attr_read("reserve_filled_bytes"));
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	snprintf(text, sizeof(text), "reserve_bytes=%llu", (unsigned long long)len);
	RELOAD(text);
	ASSERT_EQ((long long)len, attr_read("reserve_bytes"));
	ASSERT_TRUE(attr_becomes("reserve_filled_bytes", len, SOON_MS));
	ASSERT_EQ((long long)len, number_read(PARAM("reserve_bytes")));

	/* More than there may be. */
	close(self->dev);
	ASSERT_EQ(0, module_unload());
	snprintf(text, sizeof(text), "max_bytes=%llu reserve_bytes=%llu", (unsigned long long)len,
		 (unsigned long long)(len + self->frame));
	ASSERT_EQ(-EINVAL, module_load(text));
	ASSERT_FALSE(module_loaded());
	ASSERT_EQ(0, module_load(""));
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
}

/* The floor is respected; loading does not wait for what will not come. */
TEST_F_TIMEOUT(empty, as_much_as_the_floor_leaves, 120)
{
	__u64 available, floor, start, want;
	char text[128];
	long long filled;

	available = meminfo_bytes("MemAvailable");
	floor = available - 64 * self->frame;
	want = 256 * self->frame;
	snprintf(text, sizeof(text), "reserve_wait=Y reserve_bytes=%llu floor_bytes=%llu",
		 (unsigned long long)want, (unsigned long long)floor);
	start = now_ms();
	RELOAD(text);
	ASSERT_GE(SOON_MS, now_ms() - start);
	filled = attr_read("reserve_filled_bytes");
	ASSERT_LT(0, filled);
	ASSERT_GE(128 * (long long)self->frame, filled);
	ASSERT_EQ((long long)want, attr_read("reserve_bytes"));
	/* It goes on trying. */
	ASSERT_EQ(0, number_write(PARAM("floor_bytes"), 0));
	ASSERT_TRUE(attr_becomes("reserve_filled_bytes", want, SOON_MS));
}

TEST_F_TIMEOUT(empty, unload_while_filling, 120)
{
	const __u64 len = 256 * self->frame;
	const int warm_up = 5, cycles = 20;
	__u64 slab = 0, available = 0;
	char text[96];

	snprintf(text, sizeof(text), "reserve_bytes=%llu", (unsigned long long)len);
	for (int i = 0; i < warm_up + cycles; i++) {
		struct timespec ts = {0, i * 500000};

		RELOAD(text);
		close(self->dev);
		nanosleep(&ts, NULL);
		ASSERT_EQ(0, module_unload());
		if (i == warm_up - 1) {
			slab = meminfo_bytes("SUnreclaim");
			available = meminfo_bytes("MemAvailable");
		}
		ASSERT_EQ(0, module_load(""));
		self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	}
	ASSERT_GE(slab + 4 * MIB, meminfo_bytes("SUnreclaim"));
	/* A frame a cycle would be twice this. */
	ASSERT_LE(available, meminfo_bytes("MemAvailable") + (__u64)cycles / 2 * self->frame);
}

/*
 * What the system is told. Held memory above the reserve is as good as free: KReclaimable
 * has exactly that much more, and MemAvailable is as before, but for the part of what is
 * reclaimable that the kernel never counts in (at most the low watermarks).
 */
TEST_F_TIMEOUT(empty, told_as_reclaimable, 60)
{
	const __u64 len = 192 * self->frame, noise = 8 * MIB;
	__u64 reclaimable = meminfo_bytes("KReclaimable"), available, now;
	int fd;

	available = meminfo_bytes("MemAvailable");
	fd = block_alloc(self->dev, len);
	ASSERT_LE(0, fd);
	/* In use it is neither. */
	ASSERT_GE(reclaimable + noise, meminfo_bytes("KReclaimable"));
	ASSERT_GE(available - len / 4 * 3, meminfo_bytes("MemAvailable"));
	close(fd);
	now = meminfo_bytes("KReclaimable");
	ASSERT_LE(reclaimable + len - noise, now);
	ASSERT_GE(reclaimable + len + noise, now);
	ASSERT_LE(available - len / 3, meminfo_bytes("MemAvailable"));

	/* Half of it becomes the reserve, which the system will not get. */
	ASSERT_TRUE(reserve(len / 2));
	now = meminfo_bytes("KReclaimable");
	ASSERT_LE(reclaimable + len / 2 - noise, now);
	ASSERT_GE(reclaimable + len / 2 + noise, now);
	/* A block of it: the other half still is above the reserve. */
	fd = block_alloc(self->dev, len / 2);
	ASSERT_LE(0, fd);
	now = meminfo_bytes("KReclaimable");
	ASSERT_LE(reclaimable + len / 2 - noise, now);
	ASSERT_GE(reclaimable + len / 2 + noise, now);
	close(fd);
	ASSERT_TRUE(reserve(len));
	ASSERT_GE(reclaimable + noise, meminfo_bytes("KReclaimable"));
	ASSERT_TRUE(reserve(0));
	ASSERT_LE(reclaimable + len - noise, meminfo_bytes("KReclaimable"));
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_GE(reclaimable + noise, meminfo_bytes("KReclaimable"));
	ASSERT_LE(reclaimable, meminfo_bytes("KReclaimable") + noise);
}

/* The count ends with the module. */
TEST_F_TIMEOUT(empty, told_until_unload, 60)
{
	const __u64 len = 192 * self->frame, noise = 8 * MIB;
	__u64 reclaimable = meminfo_bytes("KReclaimable");

	RELOAD("");
	ASSERT_EQ(0, hold_dirty(self->dev, len));
	ASSERT_LE(reclaimable + len - noise, meminfo_bytes("KReclaimable"));
	RELOAD("");
	ASSERT_GE(reclaimable + noise, meminfo_bytes("KReclaimable"));
	ASSERT_LE(reclaimable, meminfo_bytes("KReclaimable") + noise);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
