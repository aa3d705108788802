// SPDX-License-Identifier: GPL-2.0
/*
 * What the values in sysfs mean: what is refused changes nothing, and the nodes add
 * up to the totals. That they are there and described: abi_doc.c.
 */
#include "binpool_test.h"

static const char *const per_node[] = {
	"active_bytes", "held_bytes", "held_clean_bytes", "limbo_bytes", "retired_bytes",
};

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

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
