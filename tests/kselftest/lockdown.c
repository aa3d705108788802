// SPDX-License-Identifier: GPL-2.0
/*
 * A kernel that is locked down, to each level: what PHYS tells there, and that the
 * rest goes on. Lockdown ends with the next boot only, so this is the last program.
 */
#include <sys/mount.h>

#include "binpool_test.h"
#include "share.h"

#define SECURITY "/sys/kernel/security"

/* What "[none] integrity confidentiality" has in brackets. */
static bool locked_down_to(const char *level)
{
	char text[128], want[32];

	snprintf(want, sizeof(want), "[%s]", level);
	return text_read(SECURITY "/lockdown", text, sizeof(text)) > 0 && strstr(text, want);
}

TEST_F(pool, phys)
{
	struct binpool_phys_run run = {};
	int fd = block_alloc(self->dev, self->frame), other;
	char *p;

	mount("securityfs", SECURITY, "securityfs", 0, NULL);
	if (access(SECURITY "/lockdown", F_OK)) {
		close(fd);
		SKIP(return, "this kernel has no lockdown");
	}
	if (locked_down_to("none")) {
		ASSERT_EQ(1, block_phys(fd, &run, 1));
		ASSERT_EQ(0, text_write(SECURITY "/lockdown", "integrity"));
	}
	/* Integrity is no matter of who knows. */
	if (locked_down_to("integrity")) {
		ASSERT_EQ(1, block_phys(fd, &run, 1));
		ASSERT_EQ(0, text_write(SECURITY "/lockdown", "confidentiality"));
	}
	ASSERT_TRUE(locked_down_to("confidentiality"));
	memset(&run, 0, sizeof(run));
	ASSERT_EQ(-EPERM, block_phys(fd, &run, 1));
	ASSERT_EQ(-EPERM, block_phys(fd, NULL, 0));
	ASSERT_EQ(0, run.address);

	/* A block that nobody is told of is as good as ever. */
	other = block_alloc(self->dev, self->frame);
	ASSERT_EQ(-EPERM, block_phys(other, &run, 1));
	p = block_map(other, self->frame);
	ASSERT_NE(MAP_FAILED, (void *)p);
	stamp(p, self->frame, 1);
	ASSERT_TRUE(stamped(p, self->frame, 1));
	munmap(p, self->frame);
	close(other);
	close(fd);
	ASSERT_EQ(0, attr_write("phys_release", 1));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
