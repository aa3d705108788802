/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the test programs of the kernel's harness share beside device.h: the fixture
 * `pool`, which ends each test with four questions: are all blocks back where they
 * were, all descriptors closed, all knobs as they were found, is the kernel log clean?
 *
 * No state but the descriptor on the kernel log; each test is a process.
 */
#ifndef BINPOOL_TEST_H
#define BINPOOL_TEST_H

#include "device.h"
#include "knobs.h"
#include "kselftest_harness.h"

/*
 * How long is waited at most for what comes by itself. Generous: emulated machines that
 * share a CPU with others are slow.
 */
#define SOON_MS 30000

FIXTURE(pool)
{
	int dev;
	int log;
	int fds;
	__u64 frame;
	struct binpool_info info;
	struct counters before;
};

FIXTURE_SETUP(pool)
{
	knobs_restore();
	self->log = log_open();
	ASSERT_LE(0, self->log);
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev)
	{
		TH_LOG("open " DEVICE ": %s; is the module loaded?", strerror(errno));
	}
	ASSERT_EQ(0, device_info(self->dev, &self->info));
	self->frame = self->info.frame_bytes;
	ASSERT_LT(0, (long long)self->frame);
	self->before = counters_read();
	self->fds = count_fds();
}

FIXTURE_TEARDOWN(pool)
{
	const char *moved = knobs_moved();

	knobs_restore();
	if (_metadata->exit_code == KSFT_FAIL)
		return; /* what leaks after a failed check says nothing */
	EXPECT_STREQ("nothing", moved);
	EXPECT_EQ(self->fds, count_fds());
	close(self->dev);
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	EXPECT_TRUE(attr_becomes("active_bytes", (__u64)self->info.active_bytes, SOON_MS));
	EXPECT_EQ(0, log_count_bad(self->log));
}

/*
 * The last test of each program: the log since its start, so that a complaint
 * after a test's end (or about one that crashed) is not lost.
 */
static int program_log = -1;

static void __attribute__((constructor)) program_log_open(void)
{
	program_log = log_open();
}

/*
 * Tests have more time where all of it passes slowly. Run when all of a program's
 * tests are known: constructors run in the order in which they are written.
 */
#define SCALE_TIMEOUTS                                                                             \
	static void __attribute__((constructor)) scale_timeouts(void)                              \
	{                                                                                          \
		for (struct __fixture_metadata *f = __fixture_list; f; f = f->next) {              \
			for (struct __test_metadata *t = f->tests; t; t = t->next)                 \
				t->timeout *= (int)slowness();                                     \
		}                                                                                  \
	}

#define KERNEL_LOG_TEST                                                                            \
	FIXTURE(end)                                                                               \
	{                                                                                          \
		int log;                                                                           \
	};                                                                                         \
	FIXTURE_SETUP(end)                                                                         \
	{                                                                                          \
		self->log = program_log;                                                           \
	}                                                                                          \
	FIXTURE_TEARDOWN(end)                                                                      \
	{                                                                                          \
	}                                                                                          \
	TEST_F(end, kernel_log)                                                                    \
	{                                                                                          \
		sleep_ms(50);                                                                      \
		ASSERT_LE(0, self->log);                                                           \
		EXPECT_EQ(0, log_count_bad(self->log));                                            \
	}                                                                                          \
	SCALE_TIMEOUTS

#endif /* BINPOOL_TEST_H */
