// SPDX-License-Identifier: GPL-2.0
/*
 * max_bytes and the machine's own limit: what is refused, what the answer says
 * then, and that no race gets past them.
 */
#include <sys/prctl.h>

#include "binpool_test.h"
#include "module.h"
#include "zoneinfo.h"

FIXTURE(limit)
{
	int dev;
	int log;
	__u64 frame;
};

FIXTURE_SETUP(limit)
{
	struct binpool_info info;

	knobs_restore();
	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->frame = info.frame_bytes;
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_read("managed_bytes"));
}

FIXTURE_TEARDOWN(limit)
{
	knobs_restore();
	close(self->dev);
	if (_metadata->exit_code == KSFT_FAIL)
		return;
	EXPECT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
	EXPECT_EQ(0, log_count_bad(self->log));
}

TEST_F(limit, answer_of_enospc)
{
	struct binpool_alloc a = alloc_request(8 * self->frame, 0);
	struct counters was;
	int fds, fd, next;

	ASSERT_EQ(0, attr_write("max_bytes", 4 * self->frame));
	fd = block_alloc(self->dev, self->frame);
	ASSERT_LE(0, fd);
	was = counters_read();
	fds = count_fds();
	next = fd_next(fd);
	memset(&a.fd, 0xa5, sizeof(a.fd));
	a.capacity = a.run_max_bytes = a.max_bytes = a.managed_bytes = ~0ULL;
	ASSERT_EQ(-ENOSPC, device_alloc(self->dev, &a));
	ASSERT_EQ(-1, a.fd);
	ASSERT_EQ(4 * self->frame, a.max_bytes);
	ASSERT_EQ(self->frame, a.managed_bytes);
	ASSERT_EQ(0, a.capacity);
	ASSERT_EQ(0, a.runs);
	ASSERT_GE(4 * self->frame, a.run_max_bytes);
	ASSERT_STREQ("nothing", counters_moved(&was));
	ASSERT_EQ(fds, count_fds());
	ASSERT_EQ(next, fd_next(fd));
	/* The input members are as they were. */
	ASSERT_EQ(8 * self->frame, a.bytes);
	ASSERT_EQ(BINPOOL_NODE_ANY, a.node);

	/* What would fit below the limit alone, but not beside the block. */
	a = alloc_request(4 * self->frame, 0);
	ASSERT_EQ(-ENOSPC, device_alloc(self->dev, &a));
	ASSERT_EQ(-1, a.fd);
	ASSERT_EQ(4 * self->frame, a.max_bytes);
	ASSERT_EQ(self->frame, a.managed_bytes);
	close(fd);
}

/* Up to the limit, and not a frame more. */
TEST_F(limit, exact)
{
	int fds[4];

	ASSERT_EQ(0, attr_write("max_bytes", 4 * self->frame));
	for (int i = 0; i < 4; i++) {
		fds[i] = block_alloc(self->dev, self->frame);
		ASSERT_LE(0, fds[i]);
	}
	ASSERT_EQ(-ENOSPC, block_alloc(self->dev, 1));
	close(fds[0]);
	fds[0] = block_alloc(self->dev, 1);
	ASSERT_LE(0, fds[0]);
	for (int i = 0; i < 4; i++)
		close(fds[i]);
}

TEST_F(limit, rounded_down_to_frames)
{
	ASSERT_EQ(0, attr_write("max_bytes", 5 * self->frame - 1));
	ASSERT_EQ((long long)(4 * self->frame), attr_read("max_bytes"));
}

TEST_F(limit, refused_values)
{
	const char *const texts[] = {"0",  "-1", "", "\n", "x", "1x", "99999999999999999999999",
				     "1 2"};
	const __u64 values[] = {1, self->frame - 1, meminfo_bytes("MemTotal") + 1, ~0ULL};
	const long long was = attr_read("max_bytes");

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		int ret = text_write(SYSFS "max_bytes", texts[i]);

		/* An empty write never reaches the module. */
		if (texts[i][0]) {
			ASSERT_NE(0, ret);
		}
		ASSERT_EQ(was, attr_read("max_bytes"));
	}
	for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
		ASSERT_EQ(-EINVAL, attr_write("max_bytes", values[i]));
		ASSERT_EQ(was, attr_read("max_bytes"));
	}
}

/* Below what is in use: that goes on, new requests are refused. */
TEST_F(limit, lowered_below_use)
{
	const __u64 len = 8 * self->frame;
	int fd = block_alloc(self->dev, len);
	char *p = block_map(fd, len);

	ASSERT_NE(MAP_FAILED, (void *)p);
	stamp(p, len, 1);
	ASSERT_EQ(0, attr_write("max_bytes", 4 * self->frame));
	ASSERT_EQ(-ENOSPC, block_alloc(self->dev, 1));
	ASSERT_TRUE(stamped(p, len, 1));
	munmap(p, len);
	close(fd);
	/* What comes back above the limit is not kept. */
	ASSERT_GE((long long)(4 * self->frame), attr_read("managed_bytes"));
	fd = block_alloc(self->dev, 4 * self->frame);
	ASSERT_LE(0, fd);
	close(fd);
}

TEST_F(limit, lowering_gives_held_back)
{
	close(block_alloc(self->dev, 16 * self->frame));
	ASSERT_EQ((long long)(16 * self->frame), attr_read("held_bytes"));
	ASSERT_EQ(0, attr_write("max_bytes", 4 * self->frame));
	ASSERT_EQ((long long)(4 * self->frame), attr_read("held_bytes"));
	ASSERT_EQ((long long)(4 * self->frame), attr_read("managed_bytes"));
}

/* 64 MiB serve 8 blocks of 8 MiB, and then one of 64, whatever is held. */
TEST_F(limit, held_makes_room)
{
	const __u64 len = 32 * self->frame;
	int fds[8], fd;

	ASSERT_EQ(0, attr_write("max_bytes", len));
	for (int i = 0; i < 8; i++) {
		fds[i] = block_alloc(self->dev, len / 8);
		ASSERT_LE(0, fds[i]);
	}
	for (int i = 0; i < 8; i++)
		close(fds[i]);
	fd = block_alloc(self->dev, len);
	ASSERT_LE(0, fd);
	close(fd);
	/* From one to eight again. */
	for (int i = 0; i < 8; i++) {
		fds[i] = block_alloc(self->dev, len / 8);
		ASSERT_LE(0, fds[i]);
	}
	for (int i = 0; i < 8; i++)
		close(fds[i]);
}

/*
 * Where one run is wanted, and held memory is in pieces, the limit is no reason
 * to refuse: the pieces are given back for it. Whether the system then has such
 * a run is another matter.
 */
TEST_F(limit, held_makes_room_for_a_run)
{
	struct binpool_alloc a = alloc_request(16 * self->frame, BINPOOL_ALLOC_CONTIG);
	int fds[32], ret;

	ASSERT_EQ(0, attr_write("max_bytes", 32 * self->frame));
	for (int i = 0; i < 32; i++) {
		fds[i] = block_alloc(self->dev, self->frame);
		ASSERT_LE(0, fds[i]);
	}
	for (int i = 0; i < 32; i += 2)
		close(fds[i]);
	ret = device_alloc(self->dev, &a);
	if (ret) {
		ASSERT_EQ(-ENOMEM, ret);
		ASSERT_LE(self->frame, a.run_max_bytes);
		ASSERT_GT(16 * self->frame, a.run_max_bytes);
	} else {
		ASSERT_EQ(1, a.runs);
		close(a.fd);
	}
	ASSERT_EQ((long long)(16 * self->frame), attr_read("active_bytes"));
	for (int i = 1; i < 32; i += 2)
		close(fds[i]);
}

/* What the racers have done, in memory that all of them see. */
struct tally {
	int won, lost;
};

/* Takes and gives blocks of 1 to 8 frames, keeps some; 0, or what went wrong. */
static int racer(__u64 frame, __u64 max, unsigned int seed, struct tally *tally)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC), keep[4] = {-1, -1, -1, -1};

	for (int r = 0; r < 150; r++) {
		struct binpool_alloc a =
			alloc_request((1 + (__u64)rand_r(&seed) % 8) * frame,
				      rand_r(&seed) % 2 ? BINPOOL_ALLOC_NOWAIT : 0);
		int slot = rand_r(&seed) % 4, ret;

		if (keep[slot] >= 0)
			close(keep[slot]);
		ret = device_alloc(dev, &a);
		if (ret && ret != -ENOSPC)
			return 2;
		if (a.max_bytes != max || a.managed_bytes > max || (a.fd < 0) != (ret != 0))
			return 3;
		keep[slot] = a.fd;
		__atomic_fetch_add(ret ? &tally->lost : &tally->won, 1, __ATOMIC_RELAXED);
	}
	return 0;
}

/*
 * Eight processes race for a budget that is too small for them. The sum never
 * exceeds it, losers get ENOSPC and nothing else. Nothing is held, so that each
 * request takes from the budget and each end gives back.
 */
TEST_F_TIMEOUT(limit, race, 120)
{
	const __u64 max = 24 * self->frame;
	struct tally *tally = mmap(NULL, 8 * sizeof(*tally), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int running = 8, won = 0, lost = 0;
	pid_t pids[8];

	ASSERT_EQ(0, attr_write("max_bytes", max));
	ASSERT_EQ(0, attr_write("holding", 0));
	for (unsigned int i = 0; i < ARRAY_SIZE(pids); i++) {
		pids[i] = fork();
		ASSERT_LE(0, pids[i]);
		if (!pids[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(racer(self->frame, max, i, &tally[i]));
		}
	}
	while (running) {
		struct binpool_info info;

		ASSERT_EQ(0, device_info(self->dev, &info));
		ASSERT_GE(max, info.active_bytes);
		ASSERT_GE((long long)max, attr_read("managed_bytes"));
		for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
			int status;

			if (pids[i] && waitpid(pids[i], &status, WNOHANG) == pids[i]) {
				ASSERT_EQ(0, status);
				pids[i] = 0;
				running--;
			}
		}
		sleep_ms(2);
	}
	for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
		won += tally[i].won;
		lost += tally[i].lost;
	}
	ASSERT_LT(0, won);
	ASSERT_LT(0, lost); /* or it was no race */
	ASSERT_EQ(0, attr_read("active_bytes"));
	ASSERT_EQ(0, attr_read("managed_bytes"));
}

/*
 * More than the system can spare: ENOMEM with what there is, and nobody killed. What it
 * tried with leaves as much as is left by default.
 */
TEST_F_TIMEOUT(limit, answer_of_enomem, 120)
{
	const __u64 machine = meminfo_bytes("MemTotal") & ~(self->frame - 1);
	struct binpool_alloc a = alloc_request(machine / 16 * 15, 0);
	const __u64 least = machine / 20 > 256 * MIB ? machine / 20 : 256 * MIB;
	struct counters was;
	__u64 available;

	ASSERT_EQ(0, attr_write("max_bytes", machine));
	ASSERT_EQ(0, number_read(PARAM("floor_bytes")));
	/* Of what is cached it is a guess. */
	ASSERT_EQ(0, text_write(DROP_CACHES, "3"));
	available = meminfo_bytes("MemAvailable") + cpus_free_bytes();
	was = counters_read();
	ASSERT_EQ(-ENOMEM, device_alloc(self->dev, &a));
	ASSERT_EQ(-1, a.fd);
	ASSERT_EQ(machine, a.max_bytes);
	ASSERT_EQ(attr_read("managed_bytes"), (long long)a.managed_bytes);
	ASSERT_EQ(was.v[1], attr_read("active_bytes"));
	/* What was got in vain is not kept. */
	ASSERT_EQ(0, attr_read("managed_bytes"));
	ASSERT_GE((long long)(available - least + 192 * MIB), attr_read("freed_bytes") - was.v[6]);
	/* It has gone back, as far as other things going on let one see it. */
	ASSERT_LE(available, meminfo_bytes("MemAvailable") + cpus_free_bytes() + machine / 8);
}

/* Never below what the system must keep, however small the pieces. */
TEST_F_TIMEOUT(limit, floor, 120)
{
	const __u64 machine = meminfo_bytes("MemTotal") & ~(self->frame - 1);
	const __u64 of_cpus = cpus_free_bytes();
	const __u64 floor_bytes = meminfo_bytes("MemAvailable") - 512 * MIB;
	const char *const path = "/sys/module/binpool/parameters/floor_bytes";
	char was[32], text[32];
	int fds[512], n = 0, err = 0;

	ASSERT_LT(0, text_read(path, was, sizeof(was)));
	snprintf(text, sizeof(text), "%llu", (unsigned long long)floor_bytes);
	ASSERT_EQ(0, text_write(path, text));
	ASSERT_EQ(0, attr_write("max_bytes", machine));
	while (n < 512) {
		fds[n] = block_alloc(self->dev, 4 * self->frame);
		if (fds[n] < 0) {
			err = fds[n];
			break;
		}
		n++;
	}
	ASSERT_EQ(0, text_write(path, was));
	ASSERT_EQ(-ENOMEM, err);
	ASSERT_LE(32, n);
	TH_LOG("%d blocks; in the CPUs' lists %llu MiB", n, (unsigned long long)(of_cpus / MIB));
	ASSERT_GE(640 * MIB + of_cpus, (__u64)n * 4 * self->frame);
	while (n)
		close(fds[--n]);
	ASSERT_EQ(0, attr_write("free_held", 1));
}

/* What is held counts as available to others, but is not to be had from the system. */
TEST_F(limit, held_does_not_count_for_the_floor)
{
	const __u64 len = 128 * self->frame;
	int fd;

	close(block_alloc(self->dev, len));
	ASSERT_EQ((long long)len, attr_read("held_bytes"));
	ASSERT_EQ(0, number_write(PARAM("floor_bytes"),
				  meminfo_bytes("MemAvailable") + cpus_free_bytes() - len / 2));
	ASSERT_EQ(-ENOMEM, block_alloc(self->dev, len + len / 4));
	ASSERT_EQ(0, number_write(PARAM("floor_bytes"),
				  meminfo_bytes("MemAvailable") - len - len / 2));
	fd = block_alloc(self->dev, len + len / 4);
	ASSERT_LE(0, fd);
	/* There is not so much without it. */
	ASSERT_EQ((long long)(len + len / 4), attr_read("managed_bytes"));
	close(fd);
}

/* Two who ask at once do not both get the last of what the floor leaves. */
TEST_F_TIMEOUT(limit, floor_together, 120)
{
	/* Room for one, whether what is in the CPUs' lists is seen in time or not. */
	const __u64 floor_bytes = meminfo_bytes("MemAvailable") + cpus_free_bytes() / 2 - 960 * MIB;
	const char *const path = "/sys/module/binpool/parameters/floor_bytes";
	char was[32], text[32], go;
	int start[2], served = 0;
	pid_t pids[4];

	ASSERT_LT(0, text_read(path, was, sizeof(was)));
	snprintf(text, sizeof(text), "%llu", (unsigned long long)floor_bytes);
	ASSERT_EQ(0, text_write(path, text));
	ASSERT_EQ(0, pipe(start));
	for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
		pids[i] = fork();
		if (pids[i])
			continue;
		close(start[1]);
		read(start[0], &go, 1);
		/* Keeps it until the end of the process, after the others have asked. */
		int fd = block_alloc(self->dev, 640 * MIB);

		sleep_ms(3000);
		_exit(fd >= 0);
	}
	close(start[0]);
	close(start[1]);
	for (size_t i = 0; i < ARRAY_SIZE(pids); i++)
		served += child_status(pids[i]);
	ASSERT_EQ(0, text_write(path, was));
	ASSERT_EQ(1, served);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
