// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks beyond what 32 bits count: 4 GiB, a page more, 5 GiB, and a gigabyte in
 * one run. Wants a machine with 7 GiB of memory.
 */
#include "binpool_test.h"

FIXTURE(big)
{
	int dev;
	int log;
	__u64 frame;
};

FIXTURE_SETUP(big)
{
	const __u64 machine = meminfo_bytes("MemTotal");
	struct binpool_info info;

	if (machine < 6 * GIB + GIB / 2)
		SKIP(return, "a machine of %llu MiB, 7 GiB are wanted",
			   (unsigned long long)(machine / MIB));
	knobs_restore();
	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->frame = info.frame_bytes;
	ASSERT_EQ(0, attr_write("max_bytes", machine));
	ASSERT_EQ(0, attr_write("free_held", 1));
}

FIXTURE_TEARDOWN(big)
{
	knobs_restore();
	attr_write("free_held", 1);
	close(self->dev);
	if (_metadata->exit_code == KSFT_FAIL)
		return;
	EXPECT_TRUE(attr_becomes("managed_bytes", 0, SOON_MS));
	EXPECT_EQ(0, log_count_bad(self->log));
}

/* Word of each frame's first and last page; none stands for another. */
static void mark(char *p, __u64 len, __u64 frame)
{
	for (__u64 o = 0; o < len; o += frame) {
		*(__u64 *)(p + o) = word_at(1, o);
		*(__u64 *)(p + o + frame - 8) = word_at(2, o);
	}
}

static __u64 marked(const char *p, __u64 len, __u64 frame)
{
	__u64 good = 0;

	for (__u64 o = 0; o < len; o += frame)
		good += *(const __u64 *)(p + o) == word_at(1, o) &&
			*(const __u64 *)(p + o + frame - 8) == word_at(2, o);
	return good * frame;
}

static void check_size(struct __test_metadata *_metadata, FIXTURE_DATA(big) * self, __u64 bytes)
{
	struct binpool_alloc a = alloc_request(bytes, 0);
	struct binpool_info info;
	struct binpool_query q;
	char *p, *end;

	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(binpool_tight_capacity(info.mantissa_bits, bytes, self->frame), a.capacity);
	ASSERT_EQ(a.capacity, info.active_bytes);
	ASSERT_EQ(a.capacity, info.opener_bytes);
	ASSERT_EQ((long long)a.capacity, attr_read("active_bytes"));
	p = block_map(a.fd, a.capacity);
	ASSERT_NE(MAP_FAILED, (void *)p);
	mark(p, a.capacity, self->frame);
	ASSERT_EQ(a.capacity, marked(p, a.capacity, self->frame));
	ASSERT_EQ((long long)a.capacity, smaps_bytes(p, "FilePmdMapped"));
	ASSERT_EQ(0, block_query(a.fd, &q));
	ASSERT_EQ(bytes, q.bytes);
	ASSERT_EQ(a.capacity, q.capacity);
	ASSERT_EQ(a.capacity / self->frame, q.huge_faults);
	/* The last frame by itself, at an offset of more than 32 bits. */
	end = mmap(NULL, self->frame, PROT_READ, MAP_SHARED, a.fd,
		   (off_t)(a.capacity - self->frame));
	ASSERT_NE(MAP_FAILED, (void *)end);
	ASSERT_EQ(word_at(1, a.capacity - self->frame), *(__u64 *)end);
	munmap(end, self->frame);
	ASSERT_EQ(MAP_FAILED,
		  mmap(NULL, self->frame, PROT_READ, MAP_SHARED, a.fd, (off_t)a.capacity));
	munmap(p, a.capacity);
	close(a.fd);
	ASSERT_EQ((long long)a.capacity, attr_read("held_bytes"));
}

TEST_F_TIMEOUT(big, four_gib, 240)
{
	check_size(_metadata, self, 4 * GIB);
}

TEST_F_TIMEOUT(big, four_gib_and_a_page, 240)
{
	check_size(_metadata, self, 4 * GIB + page_bytes());
}

TEST_F_TIMEOUT(big, five_gib, 240)
{
	check_size(_metadata, self, 5 * GIB);
}

/* Runs of half a gigabyte and of one, in fresh memory. */
TEST_F_TIMEOUT(big, one_run, 240)
{
	for (__u64 len = 512 * MIB; len <= GIB; len *= 2) {
		struct binpool_alloc a = alloc_request(len, BINPOOL_ALLOC_CONTIG);
		__u64 first;
		char *p;

		ASSERT_EQ(0, device_alloc(self->dev, &a))
		{
			TH_LOG("%llu MiB; the largest run is %llu MiB",
			       (unsigned long long)(len / MIB),
			       (unsigned long long)(a.run_max_bytes / MIB));
		}
		ASSERT_EQ(1, a.runs);
		p = block_map(a.fd, len);
		p[0] = 1;
		first = pfn_of(p);
		for (__u64 o = 0; o < len; o += self->frame) {
			p[o] = 1;
			ASSERT_EQ(first + o / page_bytes(), pfn_of(p + o));
		}
		munmap(p, len);
		close(a.fd);
		ASSERT_EQ(0, attr_write("free_held", 1));
	}
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
