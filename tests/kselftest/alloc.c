// SPDX-License-Identifier: GPL-2.0
/*
 * ALLOC and QUERY: which requests are refused with which errno, what the
 * answers say, and that a refused request leaves no trace.
 */
#include <grp.h>
#include <sched.h>
#include <sys/resource.h>

#include "binpool_test.h"

/* A refused request: its errno, no descriptor, and nothing has moved. */
#define ASSERT_REFUSED(err, wanted)                                                                \
	do {                                                                                       \
		struct counters was = counters_read();                                             \
		struct binpool_alloc req = (wanted);                                               \
		int open_fds = count_fds();                                                        \
		ASSERT_EQ(-(err), device_alloc(self->dev, &req));                                  \
		ASSERT_STREQ("nothing", counters_moved(&was));                                     \
		ASSERT_EQ(open_fds, count_fds());                                                  \
	} while (0)

static struct binpool_alloc on_node(__u64 bytes, __u32 flags, int node)
{
	struct binpool_alloc a = alloc_request(bytes, flags);

	a.node = node;
	return a;
}

static struct binpool_alloc aligned(__u64 bytes, __u32 flags, __u64 align)
{
	struct binpool_alloc a = alloc_request(bytes, flags);

	a.align = align;
	return a;
}

TEST_F(pool, info)
{
	struct binpool_info *i = &self->info;

	ASSERT_EQ(BINPOOL_ABI_VERSION, i->abi_version);
	ASSERT_GE(BINPOOL_MANTISSA_BITS_MAX, i->mantissa_bits);
	ASSERT_EQ(0, i->frame_bytes & (i->frame_bytes - 1));
	ASSERT_LT(page_bytes(), i->frame_bytes);
	ASSERT_EQ(0, i->max_bytes % i->frame_bytes);
	ASSERT_EQ(0, i->features & ~(__u64)(BINPOOL_FEATURE_URING_FIXED | BINPOOL_FEATURE_DMABUF));
	ASSERT_EQ(0, i->opener_bytes);
	ASSERT_EQ(attr_read("frame_bytes"), (long long)i->frame_bytes);
	ASSERT_EQ(attr_read("mantissa_bits"), i->mantissa_bits);
	ASSERT_EQ(attr_read("max_bytes"), (long long)i->max_bytes);
	ASSERT_EQ(attr_read("active_bytes"), (long long)i->active_bytes);
	ASSERT_EQ(attr_read("held_bytes"), (long long)i->held_bytes);
	ASSERT_EQ(attr_read("limbo_bytes"), (long long)i->limbo_bytes);
}

/* The frame is what the kernel maps with one page table entry. */
TEST_F(pool, frame_is_a_huge_page)
{
	char text[32];

	/* A real-time kernel has hugetlb's pages only. */
	if (text_read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", text, sizeof(text)) >
	    0) {
		ASSERT_EQ(strtoull(text, NULL, 10), self->frame);
	} else {
		ASSERT_EQ(meminfo_bytes("Hugepagesize"), self->frame);
	}
}

TEST_F(pool, bytes_zero)
{
	ASSERT_REFUSED(EINVAL, alloc_request(0, 0));
	ASSERT_REFUSED(EINVAL, alloc_request(0, BINPOOL_ALLOC_CONTIG));
}

TEST_F(pool, bytes_impossible)
{
	const __u64 machine = meminfo_bytes("MemTotal");
	const __u64 sizes[] = {~0ULL,
			       ~0ULL - 1,
			       ~0ULL - self->frame,
			       (1ULL << 63) + 1,
			       1ULL << 63,
			       (1ULL << 63) - 1,
			       1ULL << 62,
			       1ULL << 52,
			       machine * 2,
			       machine + machine / 8};
	const __u32 flags[] = {0, BINPOOL_ALLOC_CONTIG, BINPOOL_ALLOC_NOWAIT};

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		for (size_t f = 0; f < ARRAY_SIZE(flags); f++) {
			ASSERT_REFUSED(EFBIG, alloc_request(sizes[i], flags[f]));
		}
	}
}

TEST_F(pool, nodes_unknown)
{
	const int nodes[] = {-2, -100, INT32_MIN, 1024, 1 << 20, INT32_MAX, 63};

	for (size_t i = 0; i < ARRAY_SIZE(nodes); i++) {
		ASSERT_REFUSED(EINVAL, on_node(1, 0, nodes[i]));
		ASSERT_REFUSED(EINVAL, on_node(1, BINPOOL_ALLOC_STRICT_NODE, nodes[i]));
	}
}

TEST_F(pool, strict_without_node)
{
	ASSERT_REFUSED(EINVAL, on_node(1, BINPOOL_ALLOC_STRICT_NODE, BINPOOL_NODE_ANY));
}

TEST_F(pool, strict_node)
{
	struct binpool_alloc a = on_node(self->frame, BINPOOL_ALLOC_STRICT_NODE, 0);
	struct binpool_query q;

	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(0, block_query(a.fd, &q));
	ASSERT_EQ(0, q.node);
	close(a.fd);
}

TEST_F(pool, trim_unknown_node)
{
	const int nodes[] = {-2, INT32_MIN, 1 << 20, INT32_MAX, 63};

	for (size_t i = 0; i < ARRAY_SIZE(nodes); i++) {
		struct binpool_trim t = {.size = sizeof(t), .node = nodes[i]};

		ASSERT_EQ(-EINVAL, request(self->dev, BINPOOL_IOC_TRIM, &t));
		ASSERT_STREQ("nothing", counters_moved(&self->before));
	}
}

TEST_F(pool, align_not_a_power_of_two)
{
	const __u64 aligns[] = {3, 5, self->frame + 1, self->frame * 3, ~0ULL, (1ULL << 63) + 1};

	for (size_t i = 0; i < ARRAY_SIZE(aligns); i++) {
		ASSERT_REFUSED(EINVAL, aligned(1, 0, aligns[i]));
		ASSERT_REFUSED(EINVAL, aligned(1, BINPOOL_ALLOC_CONTIG, aligns[i]));
	}
}

TEST_F(pool, align_impossible)
{
	ASSERT_REFUSED(EFBIG, aligned(1, BINPOOL_ALLOC_CONTIG, 1ULL << 63));
	ASSERT_REFUSED(EFBIG, aligned(1, BINPOOL_ALLOC_CONTIG, 1ULL << 50));
}

/* What a frame has anyway is always granted. */
TEST_F(pool, align_to_a_frame)
{
	for (__u64 align = 1; align && align <= self->frame; align <<= 1) {
		struct binpool_alloc a = aligned(1, 0, align);

		ASSERT_EQ(0, device_alloc(self->dev, &a));
		close(a.fd);
	}
}

/* More than a frame's own alignment is the promise of one run. */
TEST_F(pool, align_without_contig)
{
	ASSERT_REFUSED(EINVAL, aligned(1, 0, 2 * self->frame));
}

/* The address that a device sees is aligned as asked. */
TEST_F(pool, align_beyond_a_frame)
{
	for (__u64 align = 2 * self->frame; align <= 16 * self->frame; align <<= 1) {
		struct binpool_alloc a = aligned(2 * self->frame, BINPOOL_ALLOC_CONTIG, align);
		void *p;

		ASSERT_EQ(0, device_alloc(self->dev, &a))
		{
			TH_LOG("align %llu MiB", (unsigned long long)(align / MIB));
		}
		p = block_map(a.fd, a.capacity);
		ASSERT_NE(MAP_FAILED, p);
		*(volatile char *)p = 1;
		ASSERT_NE(0, pfn_of(p));
		ASSERT_EQ(0, pfn_of(p) * page_bytes() % align);
		munmap(p, a.capacity);
		close(a.fd);
	}
}

TEST_F(pool, answer)
{
	struct binpool_alloc a = alloc_request(5 * self->frame, 0);
	struct binpool_query q;
	int used = count_fds();

	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(used + 1, count_fds());
	ASSERT_EQ(5 * self->frame, a.capacity);
	ASSERT_LE(1, a.runs);
	ASSERT_GE(5, a.runs);
	ASSERT_LE(self->frame, a.run_max_bytes);
	ASSERT_GE(a.capacity, a.run_max_bytes);
	ASSERT_EQ(a.runs == 1, a.run_max_bytes == a.capacity);
	ASSERT_EQ(self->info.max_bytes, a.max_bytes);
	ASSERT_EQ(attr_read("managed_bytes"), (long long)a.managed_bytes);

	ASSERT_EQ(0, block_query(a.fd, &q));
	ASSERT_EQ(5 * self->frame, q.bytes);
	ASSERT_EQ(a.capacity, q.capacity);
	ASSERT_EQ(self->frame, q.frame_bytes);
	ASSERT_EQ(a.runs, q.runs);
	ASSERT_EQ(a.run_max_bytes, q.run_max_bytes);
	ASSERT_EQ(geteuid(), q.owner_uid);
	ASSERT_EQ(getpid(), (int)q.owner_pid);
	ASSERT_EQ(0, q.huge_faults + q.small_faults);
	close(a.fd);
}

TEST_F(pool, opener_bytes)
{
	int other = open(DEVICE, O_RDWR | O_CLOEXEC);
	struct binpool_info mine, others;
	int block = block_alloc(self->dev, 3 * self->frame);

	ASSERT_LE(0, block);
	ASSERT_LE(0, other);
	ASSERT_EQ(0, device_info(self->dev, &mine));
	ASSERT_EQ(0, device_info(other, &others));
	ASSERT_EQ(3 * self->frame, mine.opener_bytes);
	ASSERT_EQ(0, others.opener_bytes);
	ASSERT_EQ(self->info.active_bytes + 3 * self->frame, mine.active_bytes);
	close(block);
	ASSERT_EQ(0, device_info(self->dev, &mine));
	ASSERT_EQ(0, mine.opener_bytes);
	close(other);
}

/* Real bytes are at most 2^-m above what was asked, and equal at powers of two. */
TEST_F(pool, capacity)
{
	const __u64 f = self->frame;
	const unsigned int m = self->info.mantissa_bits;
	const __u64 sizes[] = {1,
			       page_bytes() - 1,
			       page_bytes() + 1,
			       f - 1,
			       f,
			       f + 1,
			       2 * f - 1,
			       2 * f,
			       2 * f + 1,
			       3 * f,
			       4 * f + 1,
			       15 * f,
			       16 * f,
			       16 * f + 1,
			       17 * f,
			       31 * f,
			       32 * f,
			       32 * f + 1,
			       33 * f,
			       33 * f + 1,
			       47 * f - 1,
			       129 * MIB + MIB / 2,
			       64 * MIB,
			       65 * MIB,
			       100 * MIB,
			       127 * MIB + 1,
			       128 * MIB,
			       199 * MIB,
			       256 * MIB};

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct binpool_alloc a = alloc_request(sizes[i], 0);
		struct binpool_query q;

		ASSERT_EQ(0, device_alloc(self->dev, &a));
		ASSERT_EQ(binpool_tight_capacity(m, sizes[i], f), a.capacity)
		{
			TH_LOG("for %llu bytes", (unsigned long long)sizes[i]);
		}
		ASSERT_LE(sizes[i], a.capacity);
		if (sizes[i] >= f << m) {
			ASSERT_GE(sizes[i] + (sizes[i] >> m), a.capacity);
		}
		if (sizes[i] >= f && !(sizes[i] & (sizes[i] - 1))) {
			ASSERT_EQ(sizes[i], a.capacity);
		}
		ASSERT_EQ(0, block_query(a.fd, &q));
		ASSERT_EQ(sizes[i], q.bytes);
		ASSERT_EQ(a.capacity, q.capacity);
		ASSERT_EQ(self->before.v[1] + (long long)a.capacity, attr_read("active_bytes"));
		close(a.fd);
	}
}

TEST_F(pool, no_descriptor_left)
{
	struct rlimit was, tight;
	struct binpool_alloc a = alloc_request(1, 0);

	ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &was));
	tight = was;
	tight.rlim_cur = (rlim_t)dup(self->dev);
	close((int)tight.rlim_cur);
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &tight));
	ASSERT_EQ(-EMFILE, device_alloc(self->dev, &a));
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &was));
	ASSERT_STREQ("nothing", counters_moved(&self->before));
}

/* Without this flag each ALLOC might wait; with it none of these fails. */
TEST_F(pool, nowait)
{
	for (int i = 0; i < 50; i++) {
		struct binpool_alloc a = alloc_request(4 * self->frame, BINPOOL_ALLOC_NOWAIT);

		ASSERT_EQ(0, device_alloc(self->dev, &a));
		close(a.fd);
	}
}

/* QUERY tells who has it as far as the asker may know. */
TEST_F(pool, query_from_other_namespaces)
{
	int block = block_alloc(self->dev, 1);
	struct binpool_query q;
	pid_t pid;

	ASSERT_LE(0, block);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		/* The child of this one has another pid namespace and knows no uid. */
		if (unshare(CLONE_NEWUSER | CLONE_NEWPID))
			_exit(1);
		pid = fork();
		if (pid < 0)
			_exit(2);
		if (pid)
			_exit(child_status(pid));
		if (block_query(block, &q))
			_exit(3);
		if (q.owner_pid)
			_exit(4);
		_exit(q.owner_uid == 65534 ? 0 : 5);
	}
	ASSERT_EQ(0, child_status(pid));
	ASSERT_EQ(0, block_query(block, &q));
	ASSERT_EQ(getpid(), (int)q.owner_pid);
	close(block);
}

/* Nobody but root and whom the administrator lets may open the device. */
TEST_F(pool, not_for_everybody)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		if (setgroups(0, NULL) || setgid(65534) || setuid(65534))
			_exit(1);
		_exit(open(DEVICE, O_RDWR) < 0 && errno == EACCES ? 0 : 2);
	}
	ASSERT_EQ(0, child_status(pid));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
