// SPDX-License-Identifier: GPL-2.0
/*
 * All that can fail in loading and unloading the module does; see faults.h. Leaves it
 * loaded.
 */
#include <sys/uio.h>

/* A cache of records that cannot be made is told with a stack, which is no complaint. */
#define LOG_EXPECTED_TOO , "Call Trace"

#include "faults.h"
#include "module.h"

/* Few size classes, of which each has a folder with files in sysfs. */
#define PARAMETERS "mantissa_bits=0"

/* Faults of loading that are tried one by one. */
#define OWN 200

/*
 * As module_load(), and the *@n-th that could fail does; *@n: how many more it would
 * have taken. The file is opened and closed without: where it is another machine's
 * (9p), a file that could not be closed for lack of memory stays open over there, and
 * its number serves nobody any more.
 */
static int load_armed(struct subject *s, const char *parameters, unsigned int *n)
{
	int fd = module_open(), ret;

	if (fd < 0)
		return fd;
	arm(s, *n);
	ret = module_load_from(fd, parameters);
	*n = disarm(s);
	close(fd);
	return ret;
}

/* Loading: either the module is there and serves, or there is nothing of it. */
static void load_once(struct __test_metadata *_metadata, struct subject *s, unsigned int n)
{
	unsigned int left = n;
	int ret = load_armed(s, PARAMETERS, &left);

	if (ret) {
		ASSERT_EQ(0, left)
		{
			TH_LOG("fault %u: %s, and none was", n, strerror(-ret));
		}
		ASSERT_TRUE(ret == -ENOMEM || ret == -EFAULT)
		{
			TH_LOG("fault %u: %s", n, strerror(-ret));
		}
		ASSERT_FALSE(module_loaded());
		ASSERT_EQ(-1, access(DEVICE, F_OK));
		ASSERT_EQ(-1, access(SYSFS, F_OK));
		return;
	}
	s->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, s->dev);
	ASSERT_TRUE(works(s));
	close(s->dev);
	ASSERT_EQ(0, module_unload());
	ASSERT_EQ(-1, access(DEVICE, F_OK));
}

/*
 * What fails in the kernel's loader is left out: its tracepoints complain of themselves
 * then (event_define_fields(), event_file_put()). The module begins where it gets to see
 * parameters that it refuses.
 */
TEST_F_TIMEOUT(faults, load, 1200)
{
	unsigned int loader, all, left;
	char refused[128];

	snprintf(refused, sizeof(refused), PARAMETERS " max_bytes=%llu reserve_bytes=%llu",
		 (unsigned long long)(4 * self->s.frame), (unsigned long long)(8 * self->s.frame));
	close(self->s.dev);
	ASSERT_EQ(0, module_unload());
	for (int i = 0; i < 2; i++) { /* the second counts: the kernel has all that stays */
		left = MOST;
		ASSERT_EQ(-EINVAL, load_armed(&self->s, refused, &left));
		loader = MOST - left;
		left = MOST;
		ASSERT_EQ(0, load_armed(&self->s, PARAMETERS, &left));
		all = MOST - left;
		ASSERT_EQ(0, module_unload());
	}
	ASSERT_LT(0, loader);
	ASSERT_LT(loader + 20, all);
	ASSERT_GT(MOST, all);
	TH_LOG("the loader could fail %u times, the module %u times", loader, all - loader);
	/*
	 * A page more or less that is at hand moves where it begins, and ends. The
	 * files of the size classes come last; they are many, and alike.
	 */
	for (unsigned int n = loader - 5; n <= all + 5; n += n < loader + OWN ? 1 : 1 + all / OWN)
		load_once(_metadata, &self->s, n);
	ASSERT_EQ(0, module_load(""));
	self->s.dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->s.dev);
}

/* Unloading with a frame in limbo goes through, or did nothing and goes through then. */
TEST_F_TIMEOUT(faults, unload, 600)
{
	const size_t len = 4 * page_bytes();
	char *got = malloc(len);
	unsigned int n;
	bool none = false;

	for (n = 1; n < MOST && !none; n++) {
		int fd = block_alloc(self->s.dev, 2 * self->s.frame), ends[2], ret;
		char *p = block_map(fd, 2 * self->s.frame);
		struct iovec part = {p + self->s.frame, len};

		ASSERT_NE(MAP_FAILED, (void *)p);
		fill(p, 2 * self->s.frame, n, 0);
		ASSERT_EQ(0, pipe(ends));
		ASSERT_EQ((ssize_t)len, vmsplice(ends[1], &part, 1, 0));
		munmap(p, 2 * self->s.frame);
		close(fd);
		close(self->s.dev);
		ASSERT_EQ((long long)self->s.frame, attr_read("limbo_bytes"));

		arm(&self->s, n);
		ret = module_unload();
		none = disarm(&self->s);
		if (ret) {
			ASSERT_FALSE(none);
			ASSERT_TRUE(ret == -ENOMEM || ret == -EFAULT)
			{
				TH_LOG("fault %u: %s", n, strerror(-ret));
			}
			ASSERT_EQ((long long)self->s.frame, attr_read("limbo_bytes"));
			ASSERT_EQ(0, module_unload());
		}
		ASSERT_FALSE(module_loaded());
		ASSERT_EQ(-1, access(DEVICE, F_OK));
		ASSERT_EQ((ssize_t)len, read(ends[0], got, len));
		ASSERT_TRUE(filled(got, len, n, self->s.frame));
		close(ends[0]);
		close(ends[1]);

		ASSERT_EQ(0, module_load(""));
		self->s.dev = open(DEVICE, O_RDWR | O_CLOEXEC);
		ASSERT_LE(0, self->s.dev);
	}
	ASSERT_TRUE(none);
	TH_LOG("%u faults", n - 2);
}

/*
 * The reserve is filled by a worker, and what fails there is tried again. Every other
 * time the module is unloaded meanwhile.
 */
TEST_F_TIMEOUT(faults, reserve, 900)
{
	const __u64 bytes = FRAMES * self->s.frame;
	struct workers workers = {};
	unsigned int n, failed = 0;
	bool more = true;

	close(self->s.dev);
	ASSERT_EQ(0, module_unload());
	for (n = 2; n < MOST && more; n++) {
		const bool wait = n % 2;
		char parameters[128];

		snprintf(parameters, sizeof(parameters),
			 PARAMETERS " reserve_bytes=%llu reserve_wait=%c",
			 (unsigned long long)bytes, wait ? 'Y' : 'N');
		workers_arm(&workers, n / 2);
		ASSERT_EQ(0, module_load(parameters));
		if (!wait) {
			ASSERT_EQ(0, module_unload());
			failed += workers_disarm(&workers);
			continue;
		}
		/* At the first attempt, or a second later. */
		ASSERT_TRUE(attr_becomes("reserve_filled_bytes", bytes, 10000))
		{
			TH_LOG("fault %u: filled %lld", n / 2, attr_read("reserve_filled_bytes"));
		}
		more = workers_disarm(&workers);
		failed += more;
		ASSERT_EQ((long long)bytes, attr_read("managed_bytes"));
		self->s.dev = open(DEVICE, O_RDWR | O_CLOEXEC);
		ASSERT_LE(0, self->s.dev);
		ASSERT_TRUE(works(&self->s));
		close(self->s.dev);
		ASSERT_EQ(0, module_unload());
	}
	ASSERT_GT(MOST, n);
	/* At least the frames and their records. */
	ASSERT_LT(2 * FRAMES, n / 2);
	TH_LOG("%u faults", failed);
	ASSERT_EQ(0, module_load(""));
	self->s.dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->s.dev);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
