// SPDX-License-Identifier: GPL-2.0
/*
 * Loading and unloading: refused while anything is in use, possible at once when
 * nothing is, and nothing is left behind. The module's file is $BINPOOL_KO.
 * Leaves the module loaded. Each test is about a module of its own loading.
 */
#include <glob.h>
#include <sys/mount.h>
#include <sys/uio.h>

#define LOG_EXPECTED                                                                               \
	"loading out-of-tree module", "module verification failed", "is not",                      \
		"invalid for parameter"

#include "binpool_test.h"
#include "module.h"
#include "share.h"
#include "tracefs.h"

FIXTURE(module)
{
	int log;
	__u64 frame;
};

FIXTURE_SETUP(module)
{
	struct binpool_info info;
	int dev;

	if (!getenv("BINPOOL_KO"))
		SKIP(return, "BINPOOL_KO does not name the module's file");
	self->log = log_open();
	if (!module_loaded()) {
		ASSERT_EQ(0, module_load(""));
	}
	dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, dev);
	ASSERT_EQ(0, device_info(dev, &info));
	self->frame = info.frame_bytes;
	close(dev);
}

FIXTURE_TEARDOWN(module)
{
	if (!module_loaded()) {
		EXPECT_EQ(0, module_load(""));
	}
	EXPECT_EQ(0, log_count_bad(self->log));
}

TEST_F(module, refused_while_device_is_open)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC);

	ASSERT_LE(0, dev);
	ASSERT_EQ(-EAGAIN, module_unload());
	close(dev);
	ASSERT_EQ(0, module_unload());
	ASSERT_FALSE(module_loaded());
	ASSERT_EQ(-1, access(DEVICE, F_OK));
	ASSERT_EQ(-1, access(SYSFS, F_OK));
}

TEST_F(module, refused_with_a_block)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC), fd = block_alloc(dev, self->frame);

	ASSERT_LE(0, fd);
	close(dev);
	ASSERT_EQ(-EAGAIN, module_unload());
	close(fd);
	ASSERT_EQ(0, module_unload());
}

/* Whoever reads stands at a block, and leaves nothing of it behind if he ends there. */
TEST_F(module, refused_while_the_holders_are_read)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC), block = block_alloc(dev, self->frame), fd;
	char byte;

	if (mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL) && errno != EBUSY)
		SKIP(return, "the kernel has no debugfs");
	fd = open("/sys/kernel/debug/binpool/holders", O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, fd);
	ASSERT_EQ(1, read(fd, &byte, 1));
	close(block);
	close(dev);
	ASSERT_EQ(-EAGAIN, module_unload());
	close(fd);
	ASSERT_EQ(0, module_unload());
	ASSERT_EQ(-1, access("/sys/kernel/debug/binpool", F_OK));
}

TEST_F(module, refused_with_a_duplicate)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC), fd = block_alloc(dev, self->frame);
	int other = dup(fd);

	close(dev);
	close(fd);
	ASSERT_EQ(-EAGAIN, module_unload());
	close(other);
	ASSERT_EQ(0, module_unload());
}

TEST_F(module, refused_with_a_mapping)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC), fd = block_alloc(dev, 2 * self->frame);
	char *p = block_map(fd, 2 * self->frame);

	ASSERT_NE(MAP_FAILED, (void *)p);
	stamp(p, 2 * self->frame, 1);
	close(dev);
	close(fd);
	ASSERT_EQ(-EAGAIN, module_unload());
	munmap(p + page_bytes(), 2 * self->frame - page_bytes());
	ASSERT_EQ(-EAGAIN, module_unload());
	munmap(p, page_bytes());
	ASSERT_EQ(0, module_unload());
}

TEST_F(module, refused_with_a_childs_mapping)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC), fd = block_alloc(dev, self->frame);
	char *p = block_map(fd, self->frame);
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		close(dev);
		close(fd);
		pause();
		_exit(1);
	}
	munmap(p, self->frame);
	close(dev);
	close(fd);
	ASSERT_EQ(-EAGAIN, module_unload());
	sleep_ms(50); /* the child has closed its descriptors by now */
	ASSERT_EQ(-EAGAIN, module_unload());
	kill(pid, SIGKILL);
	ASSERT_EQ(128 + SIGKILL, child_status(pid));
	ASSERT_EQ(0, module_unload());
}

/* A dma-buf is a use, and so is a mapping of it. */
TEST_F(module, refused_with_a_dmabuf)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC), fd = block_alloc(dev, self->frame), buf;
	struct binpool_info info;
	char *p;

	ASSERT_EQ(0, device_info(dev, &info));
	close(dev);
	buf = block_export(fd, 0);
	close(fd);
	if (!(info.features & BINPOOL_FEATURE_DMABUF))
		SKIP(return, "this kernel has no dma-bufs");
	ASSERT_LE(0, buf);
	ASSERT_EQ(-EAGAIN, module_unload());
	p = block_map(buf, self->frame);
	ASSERT_NE(MAP_FAILED, (void *)p);
	close(buf);
	ASSERT_EQ(-EAGAIN, module_unload());
	munmap(p, self->frame);
	ASSERT_EQ(0, module_unload());
	ASSERT_FALSE(module_loaded());
}

/* Held memory is no use: it goes to the system. */
TEST_F(module, held_memory_goes_back)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	__u64 before = meminfo_bytes("MemFree"), between;

	close(block_alloc(dev, 128 * self->frame));
	close(dev);
	ASSERT_LE((long long)(128 * self->frame), attr_read("held_bytes"));
	between = meminfo_bytes("MemFree");
	ASSERT_LE(between + 64 * self->frame, before);
	ASSERT_EQ(0, module_unload());
	ASSERT_LE(between + 64 * self->frame, meminfo_bytes("MemFree"));
}

/* Neither is a frame in limbo: who pins its pages keeps them, with their data. */
TEST_F(module, limbo_is_given_up)
{
	const size_t len = 8 * page_bytes();
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC), fd = block_alloc(dev, 2 * self->frame);
	char *p = block_map(fd, 2 * self->frame), *got = malloc(len), *other;
	struct iovec part = {p + self->frame, len};
	int ends[2];

	fill(p, 2 * self->frame, 2, 0);
	ASSERT_EQ(0, pipe(ends));
	ASSERT_EQ((ssize_t)len, vmsplice(ends[1], &part, 1, 0));
	munmap(p, 2 * self->frame);
	close(fd);
	close(dev);
	ASSERT_EQ((long long)self->frame, attr_read("limbo_bytes"));
	ASSERT_EQ(0, module_unload());
	other = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(other, 0xff, 64 * MIB);
	ASSERT_EQ((ssize_t)len, read(ends[0], got, len));
	ASSERT_TRUE(filled(got, len, 2, self->frame));
	munmap(other, 64 * MIB);
	close(ends[0]);
	close(ends[1]);
	free(got);
}

/* Nor is memory in quarantine: idle or pinned, it is treated as if released before. */
TEST_F(module, quarantine_ends)
{
	const size_t len = 8 * page_bytes();
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC), fd = block_alloc(dev, 64 * self->frame);
	char *p = block_map(fd, 64 * self->frame), *got = malloc(len);
	__u64 before = meminfo_bytes("MemFree");
	struct binpool_phys_run runs[64];
	struct iovec part = {p, len};
	int log = log_open(), ends[2];

	fill(p, self->frame, 3, 0);
	ASSERT_EQ(0, pipe(ends));
	ASSERT_EQ((ssize_t)len, vmsplice(ends[1], &part, 1, 0));
	ASSERT_LT(0, block_phys(fd, runs, 64));
	munmap(p, 64 * self->frame);
	close(fd);
	close(dev);
	ASSERT_EQ((long long)(64 * self->frame), attr_read("quarantine_bytes"));
	ASSERT_EQ(0, module_unload());
	ASSERT_LE(before + 48 * self->frame, meminfo_bytes("MemFree"));
	/* Who unloads is told that he has said so. */
	ASSERT_TRUE(log_has(log, "leave quarantine, since the module is unloaded"));
	close(log);
	ASSERT_EQ((ssize_t)len, read(ends[0], got, len));
	ASSERT_TRUE(filled(got, len, 3, 0));
	close(ends[0]);
	close(ends[1]);
	free(got);
}

/* Loaded and unloaded often (CYCLES), used each time: what it took it gives back. */
TEST_F_TIMEOUT(module, cycles, 400)
{
	const char *often = getenv("CYCLES");
	const int warm_up = 10, cycles = often ? atoi(often) : 60;
	__u64 slab = 0, available = 0;

	ASSERT_EQ(0, module_unload());
	for (int i = 0; i < warm_up + cycles; i++) {
		int dev, fd;
		char *p;

		ASSERT_EQ(0, module_load(""));
		dev = open(DEVICE, O_RDWR | O_CLOEXEC);
		fd = block_alloc(dev, 8 * self->frame);
		ASSERT_LE(0, fd);
		p = block_map(fd, 8 * self->frame);
		ASSERT_NE(MAP_FAILED, (void *)p);
		stamp(p, 8 * self->frame, 3);
		close(dev);
		ASSERT_EQ(-EAGAIN, module_unload());
		if (i % 2) {
			close(fd);
			munmap(p, 8 * self->frame);
		} else {
			munmap(p, 8 * self->frame);
			close(fd);
		}
		ASSERT_EQ(0, module_unload());
		if (i == warm_up - 1) {
			slab = meminfo_bytes("SUnreclaim");
			available = meminfo_bytes("MemAvailable");
		}
	}
	ASSERT_GE(slab + 4 * MIB, meminfo_bytes("SUnreclaim"));
	/* A frame a cycle would be twice this; what lies on CPUs' lists varies by 20 MiB. */
	ASSERT_LE(available, meminfo_bytes("MemAvailable") + (__u64)cycles / 2 * self->frame);
}

/* Lines of the trace that have @text. */
static int traced(const char *text)
{
	FILE *f = fopen(TRACEFS "trace", "re");
	char line[512];
	int count = 0;

	while (f && fgets(line, sizeof(line), f))
		count += line[0] != '#' && strstr(line, text);
	if (f)
		fclose(f);
	return count;
}

static int folders(const char *pattern)
{
	glob_t found;
	int count = glob(pattern, GLOB_ONLYDIR, NULL, &found) ? 0 : (int)found.gl_pathc;

	globfree(&found);
	return count;
}

/* Each folder in sysfs is given up: one that is not keeps those above it, for ever. */
TEST_F(module, folders_go)
{
	const int nodes = folders(SYSFS "node*"), bins = folders(SYSFS "node*/bins/*");

	if (!tracefs_mount())
		SKIP(return, "the kernel has no tracefs");
	ASSERT_LT(0, nodes);
	ASSERT_LT(nodes, bins);
	if (text_write(TRACEFS "kprobe_events", "p:bpnode binpool:node_dir_release"))
		SKIP(return, "the kernel has no kprobe events");
	ASSERT_EQ(0, text_write(TRACEFS "kprobe_events", "p:bpbin binpool:bin_dir_release"));
	ASSERT_EQ(0, text_write(TRACEFS "events/kprobes/enable", "1"));
	EXPECT_EQ(0, module_unload());
	EXPECT_EQ(bins, traced(" bpbin:"));
	EXPECT_EQ(nodes, traced(" bpnode:"));
	text_write(TRACEFS "events/kprobes/enable", "0");
	ASSERT_EQ(0, text_write(TRACEFS "kprobe_events", "-:bpnode"));
	ASSERT_EQ(0, text_write(TRACEFS "kprobe_events", "-:bpbin"));
}

/* Parameters that make no sense are refused, and nothing stays. */
TEST_F(module, bad_parameters)
{
	static const char *const bad[] = {"mantissa_bits=9",
					  "mantissa_bits=-1",
					  "mantissa_bits=x",
					  "max_bytes=1",
					  "max_bytes=18446744073709551615",
					  "max_bytes=-1",
					  "user_max_bytes=1",
					  "user_max_bytes=18446744073709551615",
					  "memlock=2",
					  "memlock=maybe"};

	ASSERT_EQ(0, module_unload());
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		ASSERT_NE(0, module_load(bad[i]))
		{
			TH_LOG("%s", bad[i]);
		}
		ASSERT_FALSE(module_loaded());
		ASSERT_EQ(-1, access(DEVICE, F_OK));
	}
}

TEST_F(module, parameters_work)
{
	char text[128];
	struct binpool_info info;
	int dev, fd;

	ASSERT_EQ(0, module_unload());
	snprintf(text, sizeof(text), "mantissa_bits=0 memlock=Y max_bytes=%llu user_max_bytes=%llu",
		 (unsigned long long)(40 * self->frame), (unsigned long long)(36 * self->frame));
	ASSERT_EQ(0, module_load(text));
	dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_EQ(0, device_info(dev, &info));
	ASSERT_EQ(0, info.mantissa_bits);
	ASSERT_EQ(40 * self->frame, info.max_bytes);
	ASSERT_EQ(36 * self->frame, info.user_max_bytes);
	ASSERT_EQ((long long)(36 * self->frame), attr_read("user_max_bytes"));
	/* Powers of two only. */
	struct binpool_alloc a = alloc_request(17 * self->frame, 0);

	ASSERT_EQ(0, device_alloc(dev, &a));
	ASSERT_EQ(32 * self->frame, a.capacity);
	fd = block_alloc(dev, 16 * self->frame);
	ASSERT_EQ(-EDQUOT, fd);
	ASSERT_EQ(0, attr_write("user_max_bytes", 0));
	fd = block_alloc(dev, 16 * self->frame);
	ASSERT_EQ(-ENOSPC, fd);
	close(a.fd);
	close(dev);
	ASSERT_EQ(0, module_unload());
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
