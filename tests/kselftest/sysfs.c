// SPDX-License-Identifier: GPL-2.0
/*
 * What the values in sysfs mean: what is refused changes nothing, the nodes add up to
 * the totals and the bins to the nodes, a block is counted in its bin. That all files
 * are there and described: abi_doc.c.
 */
#include "binpool_test.h"

static const char *const per_node[] = {
	"active_bytes", "held_bytes",	 "held_clean_bytes",
	"limbo_bytes",	"retired_bytes", "quarantine_bytes",
};

TEST_F(pool, refused_values)
{
	static const struct {
		const char *name, *text;
	} writes[] = {
		{"holding", "x"},
		{"holding", "-1"},
		{"holding", "2"},
		{"holding", "0x1"},
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
		{"max_bytes", "18446744073709551615"},
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
	ASSERT_TRUE(cleaning_ends());
	for (size_t i = 0; i < ARRAY_SIZE(per_node); i++) {
		ASSERT_EQ(attr_read(per_node[i]), nodes_sum(per_node[i]))
		{
			TH_LOG("%s", per_node[i]);
		}
	}
	ASSERT_LE((long long)(5 * self->frame), nodes_sum("active_bytes"));
	ASSERT_EQ(attr_read("managed_bytes"), attr_read("active_bytes") + attr_read("held_bytes") +
						      attr_read("limbo_bytes") +
						      attr_read("quarantine_bytes"));
	ASSERT_GE(attr_read("held_bytes"), attr_read("held_clean_bytes"));
	close(fd);
}

/* An attribute of all bins of a node together. */
static long long bins_sum(int node, const char *name)
{
	long long sum = 0;
	char path[200];
	DIR *d;

	snprintf(path, sizeof(path), SYSFS "node%d/bins", node);
	d = opendir(path);
	if (!d)
		return -errno;
	for (struct dirent *e = readdir(d); e; e = readdir(d)) {
		long long value;

		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "node%d/bins/%.20s/%s", node, e->d_name, name);
		value = attr_read(path);
		if (value < 0) {
			sum = value;
			break;
		}
		sum += value;
	}
	closedir(d);
	return sum;
}

static long long bin_read(int node, __u64 capacity, const char *name)
{
	char path[200];

	snprintf(path, sizeof(path), "node%d/bins/%llu/%s", node, (unsigned long long)capacity,
		 name);
	return attr_read(path);
}

TEST_F(pool, bins_add_up)
{
	static const char *const names[] = {"active_bytes", "held_bytes", "held_clean_bytes"};
	int fds[20];

	for (unsigned int i = 0; i < ARRAY_SIZE(fds); i++) {
		fds[i] = block_alloc(self->dev, (1 + 3 * i) * self->frame);
		ASSERT_LE(0, fds[i]);
	}
	for (unsigned int i = 0; i < ARRAY_SIZE(fds); i += 2)
		close(fds[i]);
	ASSERT_TRUE(cleaning_ends());
	for (unsigned int i = 0; i < ARRAY_SIZE(names); i++) {
		char path[64];

		snprintf(path, sizeof(path), "node0/%s", names[i]);
		ASSERT_EQ(attr_read(path), bins_sum(0, names[i]))
		{
			TH_LOG("%s", names[i]);
		}
	}
	for (unsigned int i = 1; i < ARRAY_SIZE(fds); i += 2)
		close(fds[i]);
	ASSERT_EQ(attr_read("node0/active_bytes"), bins_sum(0, "active_bytes"));
}

TEST_F(pool, a_block_counts_in_its_bin)
{
	struct binpool_alloc a = alloc_request(19 * self->frame, BINPOOL_ALLOC_CONTIG);
	long long active, allocs, reuses;

	/* Alone, so that what it leaves is joined with nothing. */
	ASSERT_EQ(0, attr_write("free_held", 1));
	a.node = 0;
	a.flags |= BINPOOL_ALLOC_STRICT_NODE;
	a.bytes = binpool_tight_capacity(self->info.mantissa_bits, a.bytes, self->frame);
	active = bin_read(0, a.bytes, "active_bytes");
	allocs = bin_read(0, a.bytes, "allocs");
	reuses = bin_read(0, a.bytes, "reuses");
	ASSERT_LE(0, active);
	ASSERT_LE(0, allocs);
	ASSERT_LE(0, reuses);

	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(active + (long long)a.bytes, bin_read(0, a.bytes, "active_bytes"));
	ASSERT_EQ(allocs + 1, bin_read(0, a.bytes, "allocs"));
	ASSERT_EQ(reuses, bin_read(0, a.bytes, "reuses"));
	close(a.fd);
	ASSERT_EQ(active, bin_read(0, a.bytes, "active_bytes"));
	ASSERT_TRUE(cleaning_ends());
	ASSERT_EQ((long long)a.bytes, bin_read(0, a.bytes, "held_bytes"));

	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(allocs + 1, bin_read(0, a.bytes, "allocs"));
	ASSERT_EQ(reuses + 1, bin_read(0, a.bytes, "reuses"));
	ASSERT_EQ(0, bin_read(0, a.bytes, "held_bytes"));
	close(a.fd);
}

static int compare_u64(const void *a, const void *b)
{
	__u64 x = *(const __u64 *)a, y = *(const __u64 *)b;

	return x < y ? -1 : x > y;
}

/* From one frame to the machine's memory, each capacity that blocks can have. */
TEST_F(pool, a_folder_for_each_capacity)
{
	static __u64 sizes[1 << 16];
	size_t count = 0;
	DIR *d = opendir(SYSFS "node0/bins");

	ASSERT_NE(NULL, d);
	for (struct dirent *e = readdir(d); e; e = readdir(d)) {
		if (e->d_name[0] == '.')
			continue;
		ASSERT_LT(count, ARRAY_SIZE(sizes));
		sizes[count++] = strtoull(e->d_name, NULL, 10);
	}
	closedir(d);
	ASSERT_LT(0, count);
	qsort(sizes, count, sizeof(sizes[0]), compare_u64);
	ASSERT_EQ(self->frame, sizes[0]);
	for (size_t i = 0; i + 1 < count; i++) {
		ASSERT_EQ(sizes[i + 1], binpool_tight_capacity(self->info.mantissa_bits,
							       sizes[i] + 1, self->frame));
	}
	ASSERT_LT(meminfo_bytes("MemTotal"),
		  binpool_tight_capacity(self->info.mantissa_bits, sizes[count - 1] + 1,
					 self->frame));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
