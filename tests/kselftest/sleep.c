// SPDX-License-Identifier: GPL-2.0
/*
 * Before the machine sleeps: hibernation gets what is held, other sleep leaves it, and
 * neither is kept waiting. Nothing really sleeps here.
 */

#include "empty.h"
#include "tracefs.h"

#define POWER "/sys/power/"

/* Begins or ends to note when memory is got from the system, and when tasks thaw. */
static int notes(const char *on)
{
	int ret = *on == '1' ? trace_clear() : 0;

	return ret
		       ?: text_write(TRACEFS "events/power/suspend_resume/enable", on)
		       ?: text_write(TRACEFS "events/binpool/fresh/enable", on);
}

/* Whether memory was got, and none of it before tasks thawed. */
static bool got_after_thaw(void)
{
	static char text[1 << 16];
	const char *thaw, *fresh;

	if (text_read(TRACEFS "trace", text, sizeof(text)) < 0)
		return false;
	thaw = strstr(text, "thaw_processes[0] begin");
	fresh = strstr(text, ": fresh: ");
	return thaw && fresh && thaw < fresh;
}

/* The stages of suspend are gone through up to the freezing of tasks, for a second. */
static int sleep_as(const char *state)
{
	int ret = text_write(POWER "pm_test", "freezer");

	if (ret)
		return ret;
	number_write("/sys/module/suspend/parameters/pm_test_delay", 1);
	ret = text_write(POWER "state", state);
	text_write(POWER "pm_test", "none");
	return ret;
}

/* Before hibernation everything that is held goes, so that it is not written out. */
TEST_F_TIMEOUT(empty, hibernation, 180)
{
	const __u64 used = 8 * self->frame, kept = 16 * self->frame, warm = 64 * self->frame;
	long long freed;
	int fd, ret;
	char *p;

	if (access(POWER "pm_test", W_OK) || access(POWER "disk", R_OK))
		SKIP(return, "the kernel cannot hibernate, or not for a test");
	if (!tracefs_mount())
		SKIP(return, "the kernel has no tracefs");
	fd = block_alloc(self->dev, used);
	p = block_map(fd, used);
	ASSERT_NE(MAP_FAILED, (void *)p);
	stamp(p, used, 1);
	ASSERT_EQ(0, hold_dirty(self->dev, warm));
	ASSERT_EQ(0, attr_write("reserve_bytes", used + kept));
	freed = attr_read("freed_bytes");
	ASSERT_EQ(0, notes("1"));
	ret = sleep_as("disk");
	ASSERT_EQ(0, ret)
	{
		TH_LOG("hibernating: %s", strerror(-ret));
	}
	ASSERT_EQ((long long)warm, attr_read("freed_bytes") - freed);
	/* And the reserve comes back by itself, when all is over. */
	ASSERT_TRUE(attr_becomes("reserve_filled_bytes", used + kept, SOON_MS));
	ASSERT_TRUE(got_after_thaw());
	ASSERT_EQ(0, notes("0"));
	ASSERT_EQ((long long)kept, attr_read("held_bytes"));
	ASSERT_TRUE(stamped(p, used, 1));
	munmap(p, used);
	close(fd);
	/* Held as before. */
	ASSERT_EQ((long long)(used + kept), attr_read("held_bytes"));
	ASSERT_EQ(0, hold_dirty(self->dev, warm));
	ASSERT_LE((long long)warm, attr_read("held_bytes"));
}

/*
 * Nor is anything held in the meantime, of what comes back before all tasks are frozen
 * or after they thaw: what somebody returns is gone at once.
 */
TEST_F_TIMEOUT(empty, nothing_is_held_meanwhile, 180)
{
	volatile unsigned int *gone =
		mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const char *dir = getenv("BINPOOL_TEST_DIR");
	int file = open(dir ?: "/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), tries;
	const size_t unwritten = 32 * MIB;
	char *data = calloc(1, unwritten);
	cpu_set_t all;
	pid_t pid;

	if (access(POWER "pm_test", W_OK) || access(POWER "disk", R_OK))
		SKIP(return, "the kernel cannot hibernate, or not for a test");
	/* On another CPU than the one that is busy with going to sleep. */
	memset(&all, 0xff, sizeof(all));
	pid = fork();
	if (!pid)
		sched_setaffinity(0, sizeof(all), &all);
	while (!pid) {
		close(block_alloc(self->dev, self->frame));
		*gone += !attr_read("held_bytes");
	}
	sleep_ms(100);
	EXPECT_EQ(0, *gone);
	/*
	 * A file is to be written before tasks are frozen, which leaves some time; not
	 * always enough. Once or twice a block goes with all that was held.
	 */
	for (tries = 0; tries < 15 && *gone < 5; tries++) {
		*gone = 0;
		EXPECT_EQ((ssize_t)unwritten, pwrite(file, data, unwritten, 0));
		EXPECT_EQ(0, sleep_as("disk"));
	}
	kill(pid, SIGKILL);
	ASSERT_EQ(128 + SIGKILL, child_status(pid));
	TH_LOG("%u times after %d tries", *gone, tries);
	ASSERT_LE(5, *gone);
	close(file);
	free(data);
}

/* Other sleep takes nothing away; threads amid much work freeze all the same. */
TEST_F_TIMEOUT(empty, suspend_amid_cleaning, 180)
{
	struct binpool_alloc a = alloc_request((__u64)self->max_bytes / 2, 0);
	bool amid = false;

	if (access(POWER "pm_test", W_OK))
		SKIP(return, "the kernel cannot suspend for a test");
	/*
	 * Much to clean. Who freezes only after the work is done has no dirty memory left; nor
	 * has who had all the time for it while files were written.
	 */
	for (int tries = 0; tries < 5 && !amid; tries++) {
		int ret;

		sync();
		ASSERT_EQ(0, device_alloc(self->dev, &a));
		close(a.fd);
		ret = sleep_as("freeze");
		amid = attr_read("held_clean_bytes") < (long long)a.capacity;
		ASSERT_EQ(0, ret)
		{
			TH_LOG("suspending: %s", strerror(-ret));
		}
		ASSERT_LE((long long)a.capacity, attr_read("held_bytes"));
	}
	ASSERT_TRUE(amid);
	ASSERT_TRUE(attr_becomes("held_clean_bytes", (__u64)attr_read("held_bytes"), SOON_MS));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
