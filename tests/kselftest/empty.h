/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The fixture `empty`, for tests of what the module does by itself: it holds nothing and
 * has no reserve when a test begins, and every knob is back at its place when it ends.
 * The tests run on one CPU (fresh memory of its node comes before what another holds),
 * and may load the module anew with parameters of their own.
 */
#ifndef BINPOOL_TEST_EMPTY_H
#define BINPOOL_TEST_EMPTY_H

#include <sched.h>

#include "binpool_test.h"
#include "module.h"

FIXTURE(empty)
{
	int dev;
	int log;
	int fds;
	__u64 frame;
	long long max_bytes; /* as they were */
	long long keep_ms;
	bool reloaded;
};

/* As the program found it: a test that is stopped leaves another behind. */
static long long found_threads;

static void __attribute__((constructor)) threads_find(void)
{
	found_threads = number_read(PARAM("clean_threads"));
}

static inline void threads_restore(void)
{
	if (number_read(PARAM("clean_threads")) != found_threads && getenv("BINPOOL_KO")) {
		module_unload();
		module_load("");
	}
}

FIXTURE_SETUP(empty)
{
	struct binpool_info info;
	cpu_set_t cpu0;

	CPU_ZERO(&cpu0);
	CPU_SET(0, &cpu0);
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(cpu0), &cpu0));
	self->log = log_open();
	threads_restore();
	knobs_restore();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->frame = info.frame_bytes;
	self->max_bytes = attr_read("max_bytes");
	self->keep_ms = number_read(PARAM("keep_ms"));
	self->fds = count_fds();
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_read("reserve_bytes"));
}

FIXTURE_TEARDOWN(empty)
{
	close(self->dev);
	if (self->reloaded) {
		EXPECT_EQ(0, module_loaded() ? module_unload() : 0);
		EXPECT_EQ(0, module_load(""));
	}
	threads_restore();
	knobs_restore();
	if (_metadata->exit_code == KSFT_FAIL)
		return; /* what leaks after a failed check says nothing */
	EXPECT_EQ(self->fds - 1, count_fds());
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	EXPECT_EQ(0, attr_read("active_bytes"));
	EXPECT_EQ(0, attr_write("free_held", 1));
	EXPECT_EQ(0, attr_read("managed_bytes"));
	EXPECT_EQ(self->max_bytes, attr_read("max_bytes"));
	EXPECT_EQ(0, log_count_bad(self->log));
}

/* The module loaded anew; without a file of it the test is skipped. */
#define RELOAD(parameters)                                                                         \
	do {                                                                                       \
		if (!getenv("BINPOOL_KO"))                                                         \
			SKIP(return, "BINPOOL_KO does not name the module's file");                \
		close(self->dev);                                                                  \
		self->reloaded = true;                                                             \
		ASSERT_EQ(0, module_unload());                                                     \
		ASSERT_EQ(0, module_load(parameters))                                              \
		{                                                                                  \
			TH_LOG("loading with %s", parameters);                                     \
		}                                                                                  \
		self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);                                      \
		ASSERT_LE(0, self->dev);                                                           \
	} while (0)

/* Nodes that have memory. They need not be the first ones. */
static inline int nodes_with_memory(void)
{
	int nr = 0;

	for (int nid = 0; nid < 1024; nid++) {
		char path[64];

		snprintf(path, sizeof(path), SYSFS "node%d", nid);
		nr += !access(path, F_OK);
	}
	return nr;
}

static inline int block_alloc_flags(int dev, __u64 bytes, __u32 flags)
{
	struct binpool_alloc a = alloc_request(bytes, flags);
	int ret = device_alloc(dev, &a);

	return ret ? ret : a.fd;
}

/* A block, every byte of it written, and closed: @bytes of dirty held memory. */
static inline int hold_dirty(int dev, __u64 bytes)
{
	int fd = block_alloc(dev, bytes);
	void *p;

	if (fd < 0)
		return fd;
	p = block_map(fd, bytes);
	if (p == MAP_FAILED) {
		close(fd);
		return -ENOMEM;
	}
	memset(p, 0xff, bytes);
	munmap(p, bytes);
	close(fd);
	return 0;
}

/* Offset of the first byte of a block that is not zero, or @bytes. */
static inline __u64 block_nonzero(int fd, __u64 bytes)
{
	void *p = block_map(fd, bytes);
	__u64 at_byte;

	if (p == MAP_FAILED)
		return 0;
	at_byte = first_nonzero(p, bytes);
	munmap(p, bytes);
	return at_byte;
}

#endif /* BINPOOL_TEST_EMPTY_H */
