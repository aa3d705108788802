// SPDX-License-Identifier: GPL-2.0
/*
 * Physical addresses: who is told, that they are right, and that memory whose
 * addresses were told reaches nobody before phys_release is written.
 */
#include <linux/capability.h>
#include <sched.h>
#include <sys/uio.h>

#include "binpool_test.h"
#include "share.h"

#define PARAMETERS "/sys/module/binpool/parameters/"
#define FRAMES	   6
#define LIMIT	   32 /* frames, of max_bytes, where all of it is taken */

FIXTURE(phys)
{
	int dev;
	int log;
	int fds;
	__u64 frame;
	__u64 len;
	long long max_bytes;
};

FIXTURE_SETUP(phys)
{
	struct binpool_info info;

	knobs_restore();
	self->log = log_open();
	self->fds = count_fds();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->frame = info.frame_bytes;
	self->len = FRAMES * self->frame;
	self->max_bytes = attr_read("max_bytes");
	/* A test that failed may have left some. */
	ASSERT_EQ(0, attr_write("phys_release", 1));
	ASSERT_TRUE(pool_empties());
}

FIXTURE_TEARDOWN(phys)
{
	knobs_restore();
	close(self->dev);
	if (_metadata->exit_code == KSFT_FAIL)
		return;
	EXPECT_EQ(0, attr_read("quarantine_bytes"));
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	EXPECT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
	EXPECT_EQ(self->fds, count_fds());
	EXPECT_EQ(0, log_count_bad(self->log));
}

/* Two sets of memory that may not meet. */
static bool overlaps(const struct binpool_phys_run *runs, int nr, __u64 address, __u64 bytes)
{
	for (int i = 0; i < nr; i++) {
		if (address < runs[i].address + runs[i].bytes && runs[i].address < address + bytes)
			return true;
	}
	return false;
}

/* A block that was asked where it lies, and is closed: its runs; how many, or -errno. */
static int quarantine(int dev, __u64 len, struct binpool_phys_run *runs, __u32 room)
{
	int fd = block_alloc(dev, len), nr;

	if (fd < 0)
		return fd;
	nr = block_phys(fd, runs, room);
	close(fd);
	return nr;
}

/* What the page tables say, for every page; and QUERY's runs. */
TEST_F(phys, addresses)
{
	for (int scattered = 0; scattered < 2; scattered++) {
		int fd = scattered ? block_scattered(self->dev, self->frame, FRAMES)
				   : block_alloc(self->dev, self->len);
		char *p = block_map(fd, self->len);
		struct binpool_phys_run runs[FRAMES + 1];
		struct binpool_query q;
		__u64 at = 0, longest = 0;

		memset(runs, 0xa5, sizeof(runs));
		ASSERT_EQ(0, block_query(fd, &q));
		if (scattered) {
			ASSERT_EQ(FRAMES, q.runs);
		}
		memset(p, 1, self->len);
		ASSERT_EQ((int)q.runs, block_phys(fd, runs, FRAMES + 1));
		for (__u32 i = 0; i < q.runs; i++) {
			ASSERT_LT(0, runs[i].bytes);
			for (__u64 o = 0; o < runs[i].bytes; o += page_bytes()) {
				ASSERT_EQ(runs[i].address + o, physical(p + at + o));
			}
			if (i) {
				ASSERT_NE(runs[i - 1].address + runs[i - 1].bytes, runs[i].address);
			}
			longest = runs[i].bytes > longest ? runs[i].bytes : longest;
			at += runs[i].bytes;
		}
		ASSERT_EQ(self->len, at);
		ASSERT_EQ(q.run_max_bytes, longest);
		/* And no more was written. */
		ASSERT_EQ(0xa5a5a5a5a5a5a5a5ULL, runs[q.runs].address);
		ASSERT_EQ(0xa5a5a5a5a5a5a5a5ULL, runs[q.runs].bytes);
		munmap(p, self->len);
		close(fd);
		ASSERT_EQ((long long)self->len, attr_read("quarantine_bytes"));
		ASSERT_EQ(0, attr_write("phys_release", 1));
	}
}

/* Less room than runs: as many as fit, and how many there are. */
TEST_F(phys, too_little_room)
{
	int fd = block_scattered(self->dev, self->frame, FRAMES);
	struct binpool_phys_run all[FRAMES], some[FRAMES];

	ASSERT_EQ(FRAMES, block_phys(fd, all, FRAMES));
	for (__u32 room = 0; room < FRAMES; room++) {
		memset(some, 0xa5, sizeof(some));
		ASSERT_EQ(FRAMES, block_phys(fd, some, room));
		ASSERT_EQ(0, memcmp(some, all, room * sizeof(*all)));
		ASSERT_EQ(0xa5a5a5a5a5a5a5a5ULL, some[room].address);
	}
	/* No more is written than there are, however much room is said to be. */
	memset(some, 0, sizeof(some));
	ASSERT_EQ(FRAMES, block_phys(fd, some, ~0U));
	ASSERT_EQ(0, memcmp(some, all, sizeof(all)));
	close(fd);
	ASSERT_EQ(0, attr_write("phys_release", 1));
}

/* Who was told nothing keeps nobody from the memory. */
TEST_F(phys, not_told)
{
	int fd = block_alloc(self->dev, self->len);

	ASSERT_LT(0, block_phys(fd, NULL, 0));
	ASSERT_LT(0, block_phys(fd, (void *)8, 0));
	close(fd);
	ASSERT_EQ(0, attr_read("quarantine_bytes"));
	ASSERT_EQ((long long)self->len, attr_read("held_bytes"));
	ASSERT_EQ(0, attr_write("phys_release", 1));
	ASSERT_EQ((long long)self->len, attr_read("held_bytes"));
}

/* Told in part is told. */
TEST_F(phys, told_before_the_error)
{
	const size_t page = page_bytes();
	int fd = block_scattered(self->dev, self->frame, FRAMES);
	char *guard =
		mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct binpool_phys_run *one = (void *)(guard + page - sizeof(*one));

	munmap(guard + page, page);
	ASSERT_EQ(-EFAULT, block_phys(fd, one, FRAMES));
	ASSERT_LT(0, one->bytes);
	close(fd);
	ASSERT_EQ((long long)self->len, attr_read("quarantine_bytes"));
	munmap(guard, page);
	ASSERT_EQ(0, attr_write("phys_release", 1));
}

TEST_F(phys, bad_array)
{
	const size_t page = page_bytes();
	int fd = block_scattered(self->dev, self->frame, FRAMES);
	char *guard =
		mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct binpool_phys_run *half = (void *)(guard + page - 40), all[FRAMES];

	munmap(guard + page, page);
	ASSERT_EQ(-EFAULT, block_phys(fd, NULL, 1));
	ASSERT_EQ(-EFAULT, block_phys(fd, (void *)(uintptr_t)0xffffffff81000000, 1));
	ASSERT_EQ(-EFAULT, block_phys(fd, (void *)~(uintptr_t)0, 1));
	ASSERT_EQ(-EFAULT, block_phys(fd, half, FRAMES));
	/* What fits is told, wherever it begins. */
	ASSERT_EQ(FRAMES, block_phys(fd, half, 2));
	ASSERT_EQ(FRAMES, block_phys(fd, all, FRAMES));
	ASSERT_EQ(0, memcmp(half, all, 2 * sizeof(*all)));
	close(fd);
	munmap(guard, page);
	ASSERT_EQ(0, attr_write("phys_release", 1));
}

/* Without CAP_SYS_RAWIO, all others left; nothing is told, so nothing is kept apart. */
static int without_capability(int fd)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	struct binpool_phys_run run = {};
	struct binpool_phys bad = {.size = 1};

	if (syscall(SYS_capget, &header, data))
		return 1;
	data[0].effective &= ~(1U << CAP_SYS_RAWIO);
	if (syscall(SYS_capset, &header, data))
		return 2;
	if (block_phys(fd, &run, 1) != -EPERM || block_phys(fd, NULL, 0) != -EPERM)
		return 3;
	/* Whatever else is wrong. */
	if (request(fd, BINPOOL_IOC_PHYS, &bad) != -EPERM ||
	    request(fd, BINPOOL_IOC_PHYS, NULL) != -EPERM)
		return 4;
	return run.address || run.bytes ? 5 : 0;
}

/* Root of a user namespace of its own, with all capabilities there. */
static int root_elsewhere(int fd)
{
	struct binpool_phys_run run = {};

	if (unshare(CLONE_NEWUSER) || text_write("/proc/self/setgroups", "deny") ||
	    text_write("/proc/self/uid_map", "0 0 1") || getuid())
		return 1;
	return block_phys(fd, &run, 1) != -EPERM || run.address ? 2 : 0;
}

static int another_user(int fd)
{
	struct binpool_phys_run run = {};

	if (setresuid(65534, 65534, 65534))
		return 1;
	return block_phys(fd, &run, 1) != -EPERM || run.address ? 2 : 0;
}

TEST_F(phys, capability)
{
	int (*const who[])(int) = {without_capability, root_elsewhere, another_user};
	int fd = block_alloc(self->dev, self->len);

	for (size_t i = 0; i < ARRAY_SIZE(who); i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid)
			_exit(who[i](fd));
		ASSERT_EQ(0, child_status(pid))
		{
			TH_LOG("case %zu", i);
		}
	}
	close(fd);
	ASSERT_EQ(0, attr_read("quarantine_bytes"));
}

/* Counted there, charged to whose block it was, and out of the others' counts. */
TEST_F(phys, accounts)
{
	struct binpool_phys_run runs[FRAMES];
	struct binpool_info info;
	long long sum = 0;
	int other;

	ASSERT_LT(0, quarantine(self->dev, self->len, runs, FRAMES));
	ASSERT_EQ((long long)self->len, attr_read("quarantine_bytes"));
	ASSERT_EQ((long long)self->len, attr_read("managed_bytes"));
	ASSERT_EQ(0, attr_read("active_bytes"));
	ASSERT_EQ(0, attr_read("held_bytes"));
	ASSERT_EQ(0, attr_read("limbo_bytes"));
	for (int nid = 0; nid < 64; nid++) {
		char name[64];
		long long bytes;

		snprintf(name, sizeof(name), "node%d/quarantine_bytes", nid);
		bytes = attr_read(name);
		sum += bytes > 0 ? bytes : 0;
	}
	ASSERT_EQ((long long)self->len, sum);
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(self->len, info.quarantine_bytes);
	ASSERT_EQ(self->len, info.opener_bytes);
	ASSERT_LE(self->len, info.user_bytes);
	/* The opener's account outlives its descriptor. */
	other = open(DEVICE, O_RDWR | O_CLOEXEC);
	close(self->dev);
	self->dev = other;
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(0, info.opener_bytes);
	ASSERT_LE(self->len, info.user_bytes);
	ASSERT_EQ(0, attr_write("phys_release", 1));
	ASSERT_EQ(0, attr_read("quarantine_bytes"));
	ASSERT_EQ((long long)self->len, attr_read("held_bytes"));
	ASSERT_EQ((long long)self->len, attr_read("managed_bytes"));
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(0, info.quarantine_bytes);
	ASSERT_EQ(0, info.user_bytes);
}

/* The administrator sees whose it is. */
TEST_F(phys, listed)
{
	struct binpool_phys_run runs[FRAMES];
	char text[8192], line[64];

	ASSERT_LT(0, quarantine(self->dev, self->len, runs, FRAMES));
	ASSERT_LT(0, text_read("/sys/kernel/debug/binpool/holders", text, sizeof(text)));
	snprintf(line, sizeof(line), "%u %d ", getuid(), getpid());
	ASSERT_NE(NULL, strstr(text, line));
	ASSERT_NE(NULL, strstr(text, " quarantine "));
	ASSERT_EQ(0, attr_write("phys_release", 1));
	ASSERT_LT(0, text_read("/sys/kernel/debug/binpool/holders", text, sizeof(text)));
	ASSERT_EQ(NULL, strstr(text, " quarantine "));
}

/* All that may be had is taken, and none of it is from there; then it is. */
TEST_F_TIMEOUT(phys, reaches_nobody, 60)
{
	struct binpool_phys_run runs[FRAMES];
	int nr, fds[LIMIT], n = 0, again = 0;
	__u64 start;

	ASSERT_EQ(0, attr_write("max_bytes", LIMIT * self->frame));
	ASSERT_EQ(0, text_write(PARAMETERS "limbo_wait_ms", "20000"));
	nr = quarantine(self->dev, self->len, runs, FRAMES);
	ASSERT_LT(0, nr);
	for (int round = 0; round < 2; round++) {
		const int room = round ? LIMIT : LIMIT - FRAMES;

		for (n = 0; n < LIMIT; n++) {
			char *p;

			start = now_ms();
			fds[n] = block_alloc(self->dev, self->frame);
			if (fds[n] < 0)
				break;
			p = block_map(fds[n], self->frame);
			ASSERT_EQ(self->frame, first_nonzero(p, self->frame));
			memset(p, 0xff, self->frame);
			if (overlaps(runs, nr, physical(p), self->frame)) {
				ASSERT_EQ(1, round);
				again++;
			}
			munmap(p, self->frame);
		}
		ASSERT_EQ(room, n);
		if (!round) {
			/* The limit counts it, and nobody waits for it. */
			ASSERT_EQ(-ENOSPC, fds[n]);
			ASSERT_GE(5000, now_ms() - start);
		}
		while (n)
			close(fds[--n]);
		if (!round) {
			ASSERT_EQ(0, attr_write("phys_release", 1));
		}
	}
	ASSERT_EQ(FRAMES, again);
}

/* Whatever takes memory from the pool, it takes none of this. */
TEST_F(phys, stays)
{
	const __u64 len = 256 * MIB;
	struct binpool_phys_run runs[FRAMES];
	struct binpool_alloc big = alloc_request(8 * self->frame, BINPOOL_ALLOC_CONTIG);
	char *p;

	ASSERT_LT(0, quarantine(self->dev, self->len, runs, FRAMES));
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, device_trim(self->dev, 0, NULL));
	ASSERT_EQ(0, attr_write("holding", 0));
	ASSERT_EQ(0, attr_write("holding", 1));
	ASSERT_EQ(0, attr_write("max_bytes", self->frame));
	ASSERT_EQ(0, attr_write("max_bytes", (__u64)self->max_bytes));
	ASSERT_EQ(0, device_alloc(self->dev, &big));
	close(big.fd);
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(p, 0xff, len);
	munmap(p, len);
	ASSERT_EQ(0, text_write(DROP_CACHES, "3"));
	ASSERT_EQ((long long)self->len, attr_read("quarantine_bytes"));
	ASSERT_EQ(0, attr_write("phys_release", 1));
}

/* Nothing but 1 releases, and nobody but root. */
TEST_F(phys, release_is_roots)
{
	struct binpool_phys_run runs[FRAMES];
	static const char *const bad[] = {"0", "2", "y", "", "-1", "11"};
	struct stat st;
	pid_t pid;

	ASSERT_LT(0, quarantine(self->dev, self->len, runs, FRAMES));
	ASSERT_EQ(0, stat(SYSFS "phys_release", &st));
	ASSERT_EQ(0200, st.st_mode & 07777);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		text_write(SYSFS "phys_release", bad[i]);
		ASSERT_EQ((long long)self->len, attr_read("quarantine_bytes"));
	}
	pid = fork();
	if (!pid)
		_exit(setresuid(65534, 65534, 65534) ||
		      text_write(SYSFS "phys_release", "1") != -EACCES);
	ASSERT_EQ(0, child_status(pid));
	ASSERT_EQ((long long)self->len, attr_read("quarantine_bytes"));
	ASSERT_EQ(0, text_write(SYSFS "phys_release", "1\n"));
	ASSERT_EQ(0, attr_read("quarantine_bytes"));
}

/* What is pinned when it is released goes to limbo, the rest is held. */
TEST_F(phys, pinned)
{
	const size_t part_len = 8 * page_bytes();
	int fd = block_alloc(self->dev, self->len), ends[2];
	char *p = block_map(fd, self->len), *got = malloc(part_len);
	struct iovec part = {p + self->frame, part_len};
	struct binpool_phys_run runs[FRAMES];
	struct binpool_info info;
	char text[8192];

	fill(p, self->len, 1, 0);
	ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
	ASSERT_EQ((ssize_t)part_len, vmsplice(ends[1], &part, 1, 0));
	ASSERT_LT(0, block_phys(fd, runs, FRAMES));
	munmap(p, self->len);
	close(fd);
	ASSERT_EQ((long long)self->len, attr_read("quarantine_bytes"));
	ASSERT_EQ(0, attr_read("limbo_bytes"));
	ASSERT_EQ(0, attr_write("phys_release", 1));
	ASSERT_EQ(0, attr_read("quarantine_bytes"));
	ASSERT_EQ((long long)self->frame, attr_read("limbo_bytes"));
	ASSERT_EQ((long long)(self->len - self->frame), attr_read("held_bytes"));
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(self->frame, info.opener_bytes);
	ASSERT_LT(0, text_read("/sys/kernel/debug/binpool/holders", text, sizeof(text)));
	ASSERT_NE(NULL, strstr(text, " limbo "));
	ASSERT_EQ(NULL, strstr(text, " quarantine "));
	ASSERT_EQ((ssize_t)part_len, read(ends[0], got, part_len));
	ASSERT_TRUE(filled(got, part_len, 1, self->frame));
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(0, info.opener_bytes);
	close(ends[0]);
	close(ends[1]);
	free(got);
}

/* It is the block that was told, whoever asked by which descriptor. */
TEST_F(phys, by_duplicate_and_child)
{
	struct binpool_phys_run runs[FRAMES];
	int fd = block_alloc(self->dev, self->len), other = dup(fd);
	pid_t pid;

	ASSERT_LT(0, block_phys(other, runs, FRAMES));
	close(other);
	close(fd);
	ASSERT_EQ((long long)self->len, attr_read("quarantine_bytes"));

	fd = block_alloc(self->dev, self->len);
	pid = fork();
	if (!pid)
		_exit(block_phys(fd, runs, FRAMES) <= 0);
	ASSERT_EQ(0, child_status(pid));
	ASSERT_EQ((long long)self->len, attr_read("active_bytes"));
	close(fd);
	ASSERT_EQ((long long)(2 * self->len), attr_read("quarantine_bytes"));
	ASSERT_EQ(0, attr_write("phys_release", 1));
	ASSERT_EQ((long long)(2 * self->len), attr_read("held_bytes"));
}

/* A mapping or a dma-buf keeps the block out of quarantine as long as it is there. */
TEST_F(phys, kept)
{
	int fd = block_alloc(self->dev, self->len), buf = block_export(fd, 0);
	char *p = block_map(fd, self->len);
	struct binpool_phys_run runs[FRAMES];

	fill(p, self->len, 1, 0);
	ASSERT_LT(0, block_phys(fd, runs, FRAMES));
	close(fd);
	ASSERT_EQ(0, attr_read("quarantine_bytes"));
	ASSERT_EQ(0, attr_write("phys_release", 1));
	ASSERT_EQ((long long)self->len, attr_read("active_bytes"));
	ASSERT_TRUE(filled(p, self->len, 1, 0));
	munmap(p, self->len);
	if (buf >= 0) {
		ASSERT_EQ(0, attr_read("quarantine_bytes"));
		close(buf);
	}
	/* Released before it came is not released. */
	ASSERT_EQ((long long)self->len, attr_read("quarantine_bytes"));
	ASSERT_EQ(0, attr_write("phys_release", 1));
}

/* Killed at any time; and released, by several, while more comes. */
TEST_F_TIMEOUT(phys, sigkill, 60)
{
	unsigned int seed = 1;
	pid_t pids[4];

	for (int round = 0; round < 15; round++) {
		for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
			pids[i] = fork();
			ASSERT_LE(0, pids[i]);
			if (pids[i])
				continue;
			for (;;) {
				struct binpool_phys_run runs[FRAMES];

				if (i < 2)
					attr_write("phys_release", 1);
				else if (quarantine(self->dev, self->len, runs, FRAMES) <= 0)
					_exit(1);
			}
		}
		sleep_ms(30 + (unsigned int)rand_r(&seed) % 30);
		for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
			kill(pids[i], SIGKILL);
			ASSERT_EQ(128 + SIGKILL, child_status(pids[i]));
		}
		ASSERT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
		ASSERT_EQ(attr_read("managed_bytes"),
			  attr_read("held_bytes") + attr_read("quarantine_bytes"));
	}
	ASSERT_EQ(0, attr_write("phys_release", 1));
	ASSERT_EQ(attr_read("managed_bytes"), attr_read("held_bytes"));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
