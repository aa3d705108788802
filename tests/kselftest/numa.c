// SPDX-License-Identifier: GPL-2.0
/*
 * Placement on a machine of two nodes or more: where blocks land, asked of the
 * kernel page by page; what STRICT_NODE refuses; what each node's folder shows.
 */
#include "empty.h"

FIXTURE(numa)
{
	int dev;
	int log;
	__u64 frame;
};

FIXTURE_SETUP(numa)
{
	struct binpool_info info;

	if (access("/sys/devices/system/node/node1", F_OK))
		SKIP(return, "a machine of one node");
	knobs_restore();
	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->frame = info.frame_bytes;
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_read("managed_bytes"));
}

FIXTURE_TEARDOWN(numa)
{
	knobs_restore();
	close(self->dev);
	if (_metadata->exit_code == KSFT_FAIL)
		return;
	EXPECT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
	EXPECT_EQ(0, log_count_bad(self->log));
}

static struct binpool_alloc request_on(__u64 bytes, int node, __u32 flags)
{
	struct binpool_alloc a = alloc_request(bytes, flags);

	a.node = node;
	return a;
}

/* Frames of a block that are on @node, as the kernel says of mapped pages. */
static __u64 frames_on(int fd, __u64 len, __u64 frame, int node)
{
	char *p = block_map(fd, len);
	__u64 count = 0;

	if (p == MAP_FAILED)
		return ~0ULL;
	for (__u64 o = 0; o < len; o += frame) {
		void *page = p + o;
		int status = -1;

		p[o] = 1;
		syscall(SYS_move_pages, 0, 1UL, &page, NULL, &status, 0);
		count += status == node;
	}
	munmap(p, len);
	return count;
}

static __u64 node_bytes(int node, const char *field)
{
	char path[64], line[256], name[64];
	unsigned long long kib = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
	f = fopen(path, "re");
	if (!f)
		return 0;
	snprintf(name, sizeof(name), "Node %d %s:", node, field);
	while (fgets(line, sizeof(line), f)) {
		if (!strncmp(line, name, strlen(name)))
			kib = strtoull(line + strlen(name), NULL, 10);
	}
	fclose(f);
	return kib * KIB;
}

TEST_F(numa, strict)
{
	for (int node = 0; node < 2; node++) {
		struct binpool_alloc a =
			request_on(64 * self->frame, node, BINPOOL_ALLOC_STRICT_NODE);
		struct binpool_query q;
		char name[64];

		ASSERT_EQ(0, device_alloc(self->dev, &a));
		ASSERT_EQ(0, block_query(a.fd, &q));
		ASSERT_EQ(node, q.node);
		ASSERT_EQ(64, frames_on(a.fd, a.capacity, self->frame, node));
		snprintf(name, sizeof(name), "node%d/active_bytes", node);
		ASSERT_EQ((long long)a.capacity, attr_read(name));
		snprintf(name, sizeof(name), "node%d/active_bytes", 1 - node);
		ASSERT_EQ(0, attr_read(name));
		close(a.fd);
		snprintf(name, sizeof(name), "node%d/held_bytes", node);
		ASSERT_EQ((long long)a.capacity, attr_read(name));
		ASSERT_EQ(0, attr_write("free_held", 1));
	}
}

/* What another node holds is no answer to STRICT_NODE. */
TEST_F(numa, strict_leaves_others_held_memory)
{
	struct binpool_alloc a = request_on(16 * self->frame, 1, BINPOOL_ALLOC_STRICT_NODE);
	struct binpool_alloc b = request_on(16 * self->frame, 0, BINPOOL_ALLOC_STRICT_NODE);

	ASSERT_EQ(0, device_alloc(self->dev, &a));
	close(a.fd);
	ASSERT_EQ(0, device_alloc(self->dev, &b));
	ASSERT_EQ(16, frames_on(b.fd, b.capacity, self->frame, 0));
	ASSERT_EQ((long long)a.capacity, attr_read("node1/held_bytes"));
	close(b.fd);
}

/* With no node named, the one of the caller's CPU comes first. */
TEST_F(numa, any_prefers_own)
{
	cpu_set_t all, one;

	ASSERT_EQ(0, sched_getaffinity(0, sizeof(all), &all));
	for (unsigned int cpu = 0; cpu < 2; cpu++) {
		unsigned int here, node;
		int fd;

		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		ASSERT_EQ(0, sched_setaffinity(0, sizeof(one), &one));
		ASSERT_EQ(0, getcpu(&here, &node));
		ASSERT_EQ(cpu, here);
		fd = block_alloc(self->dev, 8 * self->frame);
		ASSERT_LE(0, fd);
		ASSERT_EQ(8, frames_on(fd, 8 * self->frame, self->frame, (int)node));
		close(fd);
		/* From held memory as well: the other CPU finds its own node's only. */
	}
	ASSERT_EQ((long long)(8 * self->frame), attr_read("node0/held_bytes"));
	ASSERT_EQ((long long)(8 * self->frame), attr_read("node1/held_bytes"));
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(all), &all));
}

/* A block of both nodes' frames counts on each with those that lie there. */
TEST_F(numa, a_block_of_two_nodes)
{
	const __u64 half = 4 * self->frame;
	struct binpool_query q;
	char name[64];
	int fd;

	ASSERT_EQ(0, attr_write("max_bytes", 2 * half));
	for (int node = 0; node < 2; node++) {
		struct binpool_alloc a = request_on(half, node, BINPOOL_ALLOC_STRICT_NODE);

		ASSERT_EQ(0, device_alloc(self->dev, &a));
		close(a.fd);
	}
	fd = block_alloc(self->dev, 2 * half);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, block_query(fd, &q));
	ASSERT_EQ(BINPOOL_NODE_ANY, q.node);
	for (int active = 1; active >= 0; active--) {
		for (int node = 0; node < 2; node++) {
			snprintf(name, sizeof(name), "node%d/bins/%llu/active_bytes", node,
				 (unsigned long long)q.capacity);
			ASSERT_EQ(active * (long long)half, attr_read(name));
			snprintf(name, sizeof(name), "node%d/active_bytes", node);
			ASSERT_EQ(active * (long long)half, attr_read(name));
		}
		if (active)
			close(fd);
	}
}

/* A node named without STRICT_NODE is a wish. */
TEST_F_TIMEOUT(numa, wish_spills_over, 120)
{
	const __u64 size = node_bytes(1, "MemTotal");
	struct binpool_alloc a = request_on(size / 8 * 9, 1, 0);
	struct binpool_query q;
	__u64 there, here;

	ASSERT_EQ(0, attr_write("max_bytes", meminfo_bytes("MemTotal")));
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(0, block_query(a.fd, &q));
	ASSERT_EQ(-1, q.node);
	there = frames_on(a.fd, a.capacity, self->frame, 1);
	here = frames_on(a.fd, a.capacity, self->frame, 0);
	ASSERT_EQ(a.capacity / self->frame, here + there);
	ASSERT_LT(here, there);
	ASSERT_LT(0, here);
	close(a.fd);
	ASSERT_EQ(0, attr_write("free_held", 1));
}

TEST_F_TIMEOUT(numa, strict_shortage, 120)
{
	const __u64 size = node_bytes(1, "MemTotal");
	struct binpool_alloc never = request_on(size / 4 * 5, 1, BINPOOL_ALLOC_STRICT_NODE);
	struct binpool_alloc a = request_on(size / 16 * 15, 1, BINPOOL_ALLOC_STRICT_NODE);
	char *p;
	int ret;

	ASSERT_EQ(0, attr_write("max_bytes", meminfo_bytes("MemTotal")));
	ASSERT_EQ(-EFBIG, device_alloc(self->dev, &never));
	/* Other memory is on that node already: not enough of it is left. */
	p = mmap(NULL, size / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_EQ(0, syscall(SYS_mbind, p, size / 2, 2 /* MPOL_BIND */, &(unsigned long){2}, 8UL,
			     0UL));
	ASSERT_EQ(0, mlock(p, size / 2));
	ret = device_alloc(self->dev, &a);
	ASSERT_EQ(-ENOMEM, ret);
	ASSERT_EQ(-1, a.fd);
	/* Nothing is kept of what was got in vain. */
	ASSERT_EQ(0, attr_read("managed_bytes"));
	munmap(p, size / 2);
}

TEST_F(numa, trim_one_node)
{
	struct binpool_trim t = {.size = sizeof(t), .node = 1};

	for (int node = 0; node < 2; node++) {
		struct binpool_alloc a =
			request_on(8 * self->frame, node, BINPOOL_ALLOC_STRICT_NODE);

		ASSERT_EQ(0, device_alloc(self->dev, &a));
		close(a.fd);
	}
	ASSERT_EQ(0, request(self->dev, BINPOOL_IOC_TRIM, &t));
	ASSERT_EQ(8 * self->frame, t.freed_bytes);
	ASSERT_EQ((long long)(8 * self->frame), attr_read("node0/held_bytes"));
	ASSERT_EQ(0, attr_read("node1/held_bytes"));
	/* All nodes: what may stay is meant for each. */
	t.node = BINPOOL_NODE_ANY;
	t.held_bytes = 4 * self->frame;
	ASSERT_EQ(0, request(self->dev, BINPOOL_IOC_TRIM, &t));
	ASSERT_EQ(4 * self->frame, t.freed_bytes);
}

static long long vmstat(const char *name)
{
	FILE *f = fopen("/proc/vmstat", "re");
	char line[128];
	long long value = -1;
	size_t len = strlen(name);

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (!strncmp(line, name, len) && line[len] == ' ')
			value = strtoll(line + len, NULL, 10);
	}
	fclose(f);
	return value;
}

/*
 * The kernel's NUMA balancing leaves a remote block's mapping alone: it could not
 * move it anyway, and unmapping it again and again costs faults. Pages that were
 * only read, since newer kernels leave written ones alone by themselves.
 */
TEST_F_TIMEOUT(numa, no_balancing, 60)
{
	struct binpool_alloc a = request_on(32 * self->frame, 1, BINPOOL_ALLOC_STRICT_NODE);
	long long before;
	cpu_set_t cpu0;
	char text[8];
	__u64 end;
	char *p;

	if (text_read("/proc/sys/kernel/numa_balancing", text, sizeof(text)) < 1 || text[0] == '0')
		SKIP(return, "NUMA balancing is off in this kernel");
	CPU_ZERO(&cpu0);
	CPU_SET(0, &cpu0);
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(cpu0), &cpu0));
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	p = block_map(a.fd, a.capacity);
	ASSERT_NE(MAP_FAILED, (void *)p);
	before = vmstat("numa_huge_pte_updates");
	ASSERT_LE(0, before);
	end = now_ms() + 12000;
	while (now_ms() < end) {
		for (__u64 o = 0; o < a.capacity; o += page_bytes()) {
			ASSERT_EQ(0, *(volatile char *)(p + o));
		}
	}
	ASSERT_GE(before + 16, vmstat("numa_huge_pte_updates"));
	munmap(p, a.capacity);
	close(a.fd);
}

/* A node outside the caller's cpuset is none for it. */
TEST_F(numa, cpuset)
{
	const char *const dir = "/sys/fs/cgroup/binpool-test";
	char text[32];
	pid_t pid;

	if (text_write("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset"))
		SKIP(return, "no cpuset controller in /sys/fs/cgroup");
	ASSERT_EQ(0, mkdir(dir, 0755));
	ASSERT_EQ(0, text_write("/sys/fs/cgroup/binpool-test/cpuset.mems", "0"));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		struct binpool_alloc a = request_on(self->frame, 1, 0);

		snprintf(text, sizeof(text), "%d", getpid());
		if (text_write("/sys/fs/cgroup/binpool-test/cgroup.procs", text))
			_exit(1);
		if (device_alloc(self->dev, &a) != -EINVAL)
			_exit(2);
		a = request_on(self->frame, 0, BINPOOL_ALLOC_STRICT_NODE);
		if (device_alloc(self->dev, &a))
			_exit(3);
		a = request_on(8 * self->frame, BINPOOL_NODE_ANY, 0);
		if (device_alloc(self->dev, &a) || frames_on(a.fd, a.capacity, self->frame, 0) != 8)
			_exit(4);
		_exit(0);
	}
	ASSERT_EQ(0, child_status(pid));
	ASSERT_EQ(0, rmdir(dir));
}

/* The reserve, node by node. */

static long long node_attr(int nid, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "node%d/%s", nid, name);
	return attr_read(path);
}

static int node_reserve(int nid, __u64 bytes)
{
	char path[64];

	snprintf(path, sizeof(path), "node%d/reserve_bytes", nid);
	return attr_write(path, bytes);
}

TEST_F_TIMEOUT(empty, reserve_of_each_node, 120)
{
	const long long frame = (long long)self->frame;

	if (nodes_with_memory() != 2)
		SKIP(return, "not a machine of two nodes");
	ASSERT_EQ(0, attr_write("reserve_bytes", 17 * self->frame));
	ASSERT_TRUE(attr_becomes("reserve_filled_bytes", 17 * self->frame, SOON_MS));
	ASSERT_EQ(9 * frame, node_attr(0, "reserve_bytes"));
	ASSERT_EQ(8 * frame, node_attr(1, "reserve_bytes"));
	for (int nid = 0; nid < 2; nid++) {
		ASSERT_EQ(node_attr(nid, "reserve_bytes"), node_attr(nid, "held_bytes"));
		ASSERT_EQ(node_attr(nid, "reserve_bytes"), node_attr(nid, "reserve_filled_bytes"));
	}

	/* One node's own, filled there; the other's stays. */
	ASSERT_EQ(0, node_reserve(1, 20 * self->frame));
	ASSERT_EQ(29 * frame, attr_read("reserve_bytes"));
	ASSERT_TRUE(attr_becomes("node1/held_bytes", 20 * self->frame, SOON_MS));
	ASSERT_EQ(9 * frame, node_attr(0, "held_bytes"));
	ASSERT_EQ(29 * frame, attr_read("reserve_filled_bytes"));
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(29 * frame, attr_read("held_bytes"));

	/* Each by itself is below max_bytes, both are not. */
	ASSERT_EQ(0, attr_write("max_bytes", 40 * self->frame));
	ASSERT_EQ(-EINVAL, node_reserve(0, 21 * self->frame));
	ASSERT_EQ(9 * frame, node_attr(0, "reserve_bytes"));
	ASSERT_EQ(0, node_reserve(0, 20 * self->frame));
	ASSERT_TRUE(attr_becomes("reserve_filled_bytes", 40 * self->frame, SOON_MS));

	/* A new total is in equal parts again. */
	ASSERT_EQ(0, attr_write("reserve_bytes", 6 * self->frame));
	ASSERT_EQ(3 * frame, node_attr(0, "reserve_bytes"));
	ASSERT_EQ(3 * frame, node_attr(1, "reserve_bytes"));
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(3 * frame, node_attr(0, "held_bytes"));
	ASSERT_EQ(3 * frame, node_attr(1, "held_bytes"));
}

/* Held memory that a request may not have makes room for it, below max_bytes; a reserve does not.
 */
TEST_F_TIMEOUT(empty, room_is_made_on_another_node, 60)
{
	const __u64 len = 8 * self->frame;
	struct binpool_alloc there = request_on(len, 1, BINPOOL_ALLOC_STRICT_NODE);
	struct binpool_alloc here = request_on(len, 0, BINPOOL_ALLOC_STRICT_NODE);

	if (nodes_with_memory() != 2)
		SKIP(return, "not a machine of two nodes");
	ASSERT_EQ(0, device_alloc(self->dev, &there));
	ASSERT_EQ(0, attr_write("max_bytes", len + len / 2));
	/* In use it stays. */
	ASSERT_EQ(-ENOSPC, device_alloc(self->dev, &here));
	close(there.fd);
	/* No more of it goes than is needed. */
	here.flags |= BINPOOL_ALLOC_NOWAIT;
	ASSERT_EQ(0, device_alloc(self->dev, &here));
	ASSERT_EQ((long long)(len / 2), node_attr(1, "held_bytes"));
	close(here.fd);

	/* And none where all of it were not enough. */
	ASSERT_EQ(0, attr_write("free_held", 1));
	there = request_on(len, 1, BINPOOL_ALLOC_STRICT_NODE);
	ASSERT_EQ(0, device_alloc(self->dev, &there));
	close(there.fd);
	ASSERT_EQ(0, node_reserve(1, len / 2));
	ASSERT_EQ((long long)len, node_attr(1, "held_bytes"));
	here = request_on(len + self->frame, 0, BINPOOL_ALLOC_STRICT_NODE);
	ASSERT_EQ(-ENOSPC, device_alloc(self->dev, &here));
	ASSERT_EQ((long long)len, node_attr(1, "held_bytes"));
	ASSERT_EQ(0, node_reserve(1, 0));
}

/* Held memory makes room for a run, wherever it is; the reserve of another node does not. */
TEST_F_TIMEOUT(empty, room_is_not_made_of_a_reserve, 60)
{
	const long long kept = 8 * (long long)self->frame;
	struct binpool_alloc a =
		request_on(8 * self->frame, 1, BINPOOL_ALLOC_CONTIG | BINPOOL_ALLOC_STRICT_NODE);
	int fds[32], err;

	if (nodes_with_memory() != 2)
		SKIP(return, "not a machine of two nodes");
	ASSERT_EQ(0, node_reserve(0, (__u64)kept));
	ASSERT_TRUE(attr_becomes("node0/held_bytes", (__u64)kept, SOON_MS));
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		struct binpool_alloc one = request_on(self->frame, 1, BINPOOL_ALLOC_STRICT_NODE);

		ASSERT_EQ(0, device_alloc(self->dev, &one));
		fds[i] = one.fd;
	}
	ASSERT_EQ(0, attr_write("max_bytes", (__u64)kept + ARRAY_SIZE(fds) * self->frame));
	for (size_t i = 0; i < ARRAY_SIZE(fds); i += 2)
		close(fds[i]);
	/* Whether there is a run is luck. */
	err = device_alloc(self->dev, &a);
	ASSERT_TRUE(!err || err == -ENOMEM);
	ASSERT_EQ(kept, node_attr(0, "held_bytes"));
	if (!err)
		close(a.fd);
	for (size_t i = 1; i < ARRAY_SIZE(fds); i += 2)
		close(fds[i]);
	ASSERT_EQ(0, node_reserve(0, 0));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
