// SPDX-License-Identifier: GPL-2.0
/*
 * Memory failures: a frame with a poisoned page goes to nobody again, neither to
 * another block nor to the system, whichever way it would have gone. Each test
 * costs the machine a frame.
 */
#define LOG_EXPECTED "retired the frame", "Memory failure", "Injecting memory failure"

#include "binpool_test.h"

FIXTURE(poison)
{
	int dev;
	__u64 frame;
	long long retired;
};

/* One frame whose block was closed after a page of it went bad. */
FIXTURE_SETUP(poison)
{
	struct binpool_info info;
	char *p;
	int fd;

	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->frame = info.frame_bytes;
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_TRUE(attr_becomes("managed_bytes", 0, SOON_MS));
	self->retired = attr_read("retired_bytes");
	fd = block_alloc(self->dev, self->frame);
	ASSERT_LE(0, fd);
	p = block_map(fd, self->frame);
	ASSERT_NE(MAP_FAILED, (void *)p);
	memset(p, 0x5a, self->frame);
	/* The kernel marks the page and says that it can do no more with it. */
	madvise(p + 3 * page_bytes(), page_bytes(), MADV_HWPOISON);
	munmap(p, self->frame);
	close(fd);
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
}

/* Retired, and in nobody's account any more. */
FIXTURE_TEARDOWN(poison)
{
	EXPECT_EQ(self->retired + (long long)self->frame, attr_read("retired_bytes"));
	EXPECT_EQ(0, attr_write("free_held", 1));
	EXPECT_EQ(0, attr_read("managed_bytes"));
	close(self->dev);
}

TEST_F(poison, not_handed_out)
{
	int fd = block_alloc(self->dev, self->frame);
	char *p;

	ASSERT_LE(0, fd);
	p = block_map(fd, self->frame);
	ASSERT_EQ(self->frame, first_nonzero(p, self->frame));
	munmap(p, self->frame);
	close(fd);
}

/* By then it is held, unless a cleaner has been faster and found it. */
TEST_F(poison, not_freed)
{
	ASSERT_EQ(0, attr_write("free_held", 1));
}

TEST_F(poison, not_trimmed)
{
	ASSERT_EQ(0, device_trim(self->dev, 0, NULL));
}

/* Its neighbours in the same run are as good as before. */
TEST_F(poison, neighbours_stay)
{
	int fd = block_alloc(self->dev, 8 * self->frame);

	ASSERT_LE(0, fd);
	close(fd);
	ASSERT_EQ(0, attr_write("free_held", 1));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
