// SPDX-License-Identifier: GPL-2.0
/*
 * The attributes in sysfs: each one's mode is what it can do, each has one value,
 * what is refused changes nothing, and the nodes add up to the totals.
 */
#include <ctype.h>

#include "binpool_test.h"

static const char *const known[] = {
	"frame_bytes",
	"mantissa_bits",
	"max_bytes",
	"managed_bytes",
	"active_bytes",
	"held_bytes",
	"held_clean_bytes",
	"limbo_bytes",
	"retired_bytes",
	"freed_bytes",
	"pinned_dropped_bytes",
	"allocs",
	"reuses",
	"returns",
	"holding",
	"free_held",
};

static const char *const per_node[] = {
	"active_bytes", "held_bytes", "held_clean_bytes", "limbo_bytes", "retired_bytes",
};

/* Calls @each with the path of every attribute of ours; how many there are. */
static int walk(const char *dir, int (*each)(const char *path, mode_t mode))
{
	DIR *d = opendir(dir);
	int count = 0;

	if (!d)
		return -1;
	for (struct dirent *e = readdir(d); e; e = readdir(d)) {
		char path[512];
		struct stat st;

		snprintf(path, sizeof(path), "%s%s", dir, e->d_name);
		/* Of the device core: these two files, `power` and the links. */
		if (e->d_name[0] == '.' || !strcmp(e->d_name, "uevent") ||
		    !strcmp(e->d_name, "dev") || lstat(path, &st))
			continue;
		if (S_ISDIR(st.st_mode) && !strncmp(e->d_name, "node", 4)) {
			int inside;

			strcat(path, "/");
			inside = walk(path, each);
			if (inside < 0) {
				count = -1;
				break;
			}
			count += inside;
		} else if (S_ISREG(st.st_mode)) {
			if (each(path, st.st_mode)) {
				fprintf(stderr, "# attribute: %s\n", path);
				count = -1;
				break;
			}
			count++;
		}
	}
	closedir(d);
	return count;
}

TEST_F(pool, all_there)
{
	char path[256];
	struct stat st;

	for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
		snprintf(path, sizeof(path), SYSFS "%s", known[i]);
		ASSERT_EQ(0, stat(path, &st))
		{
			TH_LOG("%s: %s", path, strerror(errno));
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(per_node); i++) {
		snprintf(path, sizeof(path), SYSFS "node0/%s", per_node[i]);
		ASSERT_EQ(0, stat(path, &st));
	}
}

/* Root may open anything, so the attempt is the proof, not the mode. */
static int mode_is_true(const char *path, mode_t mode)
{
	char text[512];
	int got = text_read(path, text, sizeof(text));
	bool readable = mode & 0444, writable = mode & 0222;

	if ((mode & 0777) != 0444 && (mode & 0777) != 0644 && (mode & 0777) != 0200 &&
	    (mode & 0777) != 0440)
		return 1;
	if (readable != (got > 0))
		return 1;
	if (!writable)
		return text_write(path, "1") != -EIO && text_write(path, "1") != -EACCES;
	/* What is written is refused if it is no number, and taken if it is the old one. */
	if (text_write(path, "?") != -EINVAL)
		return 1;
	return readable && text_write(path, text) != 0;
}

TEST_F(pool, modes)
{
	ASSERT_LE((int)(ARRAY_SIZE(known) + ARRAY_SIZE(per_node)), walk(SYSFS, mode_is_true));
	ASSERT_STREQ("nothing", counters_moved(&self->before));
}

/* Digits and a newline. */
static int is_one_value(const char *path, mode_t mode)
{
	char text[512], *c = text;
	int n;

	if (!(mode & 0444))
		return 0;
	n = text_read(path, text, sizeof(text));
	if (n < 2 || text[n - 1] != '\n')
		return 1;
	while (isdigit((unsigned char)*c))
		c++;
	return c != text + n - 1;
}

TEST_F(pool, one_value_each)
{
	ASSERT_LT(0, walk(SYSFS, is_one_value));
}

TEST_F(pool, refused_values)
{
	static const struct {
		const char *name, *text;
	} writes[] = {
		{"holding", "x"},
		{"holding", "-1"},
		{"holding", "2"},
		{"holding", "maybe"},
		{"holding", "\n"},
		{"free_held", "0"},
		{"free_held", "x"},
		{"free_held", "-1"},
		{"free_held", "2"},
		{"max_bytes", "x"},
		{"max_bytes", "-1"},
		{"max_bytes", "2x"},
		{"max_bytes", "0x"},
		{"max_bytes", "1 2"},
		{"max_bytes", "4G"},
		{"max_bytes", "0"},
		{"max_bytes", "1e9"},
		{"max_bytes", "\n"},
		{"max_bytes", "184467440737095516160"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(writes); i++) {
		char path[256];
		int ret;

		snprintf(path, sizeof(path), SYSFS "%s", writes[i].name);
		ret = text_write(path, writes[i].text);
		ASSERT_TRUE(ret == -EINVAL || ret == -ERANGE)
		{
			TH_LOG("'%s' to %s: %d", writes[i].text, writes[i].name, ret);
		}
		ASSERT_STREQ("nothing", counters_moved(&self->before));
	}
}

/* An attribute of all nodes together. */
static long long nodes_sum(const char *name)
{
	DIR *d = opendir(SYSFS);
	long long sum = 0;

	if (!d)
		return -1;
	for (struct dirent *e = readdir(d); e; e = readdir(d)) {
		char path[200];
		long long value;

		if (strncmp(e->d_name, "node", 4))
			continue;
		snprintf(path, sizeof(path), "%.20s/%s", e->d_name, name);
		value = attr_read(path);
		if (value < 0)
			return value;
		sum += value;
	}
	closedir(d);
	return sum;
}

TEST_F(pool, nodes_add_up)
{
	int fd = block_alloc(self->dev, 5 * self->frame);

	close(block_alloc(self->dev, 3 * self->frame));
	for (size_t i = 0; i < ARRAY_SIZE(per_node); i++) {
		ASSERT_EQ(attr_read(per_node[i]), nodes_sum(per_node[i]))
		{
			TH_LOG("%s", per_node[i]);
		}
	}
	ASSERT_LE((long long)(5 * self->frame), nodes_sum("active_bytes"));
	ASSERT_EQ(attr_read("managed_bytes"),
		  attr_read("active_bytes") + attr_read("held_bytes") + attr_read("limbo_bytes"));
	ASSERT_GE(attr_read("held_bytes"), attr_read("held_clean_bytes"));
	close(fd);
}

/* Parameters: readable all, and those that may be written can be. */
TEST(parameters)
{
	static const char *const names[] = {"max_bytes", "mantissa_bits", "floor_bytes",
					    "limbo_wait_ms", "limbo_max_ms"};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		char path[128], text[64];
		struct stat st;

		snprintf(path, sizeof(path), "/sys/module/binpool/parameters/%s", names[i]);
		ASSERT_EQ(0, stat(path, &st));
		ASSERT_LT(0, text_read(path, text, sizeof(text)));
		if (!(st.st_mode & 0222))
			continue;
		ASSERT_EQ(0, text_write(path, text));
		ASSERT_EQ(-EINVAL, text_write(path, "x"));
	}
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
