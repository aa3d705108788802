// SPDX-License-Identifier: GPL-2.0
/*
 * Module parameters: what is out of range keeps the module from being loaded, or is
 * not taken later, and the kernel log names the parameter, what was given and what may
 * be. What is in range is taken. The module's file is $BINPOOL_KO. Leaves it loaded.
 */
#define LOG_EXPECTED                                                                               \
	"loading out-of-tree module", "module verification failed", "is not", "is above",          \
		"invalid for parameter"

#include "binpool_test.h"
#include "module.h"

#define PARAMETERS "/sys/module/binpool/parameters/"
#define DAY_MS	   "86400000"

/* In what may be given: MEMORY stands for the machine's memory, FRAME for a frame. */
static const struct {
	const char *name, *may_be;
	const char *bad[8];
	const char *good[4];
	bool at_run_time;
} table[] = {
	{
		.name = "max_bytes",
		.may_be = "0 or a number from FRAME to MEMORY",
		.bad = {"1", "FRAME-1", "MEMORY+1", "18446744073709551615", "-1", "1G", "", "0x"},
		.good = {"0", "FRAME"},
	},
	{
		.name = "mantissa_bits",
		.may_be = "a number from 0 to 8",
		.bad = {"9", "-1", "4294967296", "x", "4 4", "", "18446744073709551616"},
		.good = {"0", "8", "0x4"},
	},
	{
		.name = "floor_bytes",
		.may_be = "a number from 0 to MEMORY",
		.bad = {"MEMORY+1", "18446744073709551615", "-1", "256M", ""},
		.good = {"0", "1", "MEMORY"},
		.at_run_time = true,
	},
	{
		.name = "limbo_wait_ms",
		.may_be = "a number from 0 to 600000",
		.bad = {"600001", "4294967296", "-1", "1s", ""},
		.good = {"0", "600000"},
		.at_run_time = true,
	},
	{
		.name = "limbo_max_ms",
		.may_be = "a number from 0 to " DAY_MS,
		.bad = {"86400001", "4294967296", "-1", "never", ""},
		.good = {"0", DAY_MS},
		.at_run_time = true,
	},
	{
		.name = "keep_ms",
		.may_be = "a number from 0 to " DAY_MS,
		.bad = {"86400001", "4294967295", "-1", "10 s", ""},
		.good = {"0", DAY_MS},
		.at_run_time = true,
	},
	{
		.name = "contig_ms",
		.may_be = "a number from 0 to 60000",
		.bad = {"60001", "4294967296", "-1", "1s", ""},
		.good = {"0", "60000"},
		.at_run_time = true,
	},
	{
		.name = "contig_duty",
		.may_be = "a number from 1 to 100",
		.bad = {"0", "101", "-1", "5%", ""},
		.good = {"1", "100"},
		.at_run_time = true,
	},
	{
		.name = "contig_scan_61",
		.may_be = "Y or N",
		.bad = {"2", "-1", "yes", "?", ""},
		.good = {"Y", "n"},
		.at_run_time = true,
	},
	{
		.name = "clean_threads",
		.may_be = "a number from 0 to 16",
		.bad = {"17", "-1", "4294967297", "one", ""},
		.good = {"0", "16"},
	},
	{
		.name = "reserve_bytes",
		.may_be = "a number from 0 to MEMORY",
		.bad = {"MEMORY+1", "18446744073709551615", "-1", "1G", ""},
		.good = {"0", "FRAME"},
	},
	{
		.name = "reserve_wait",
		.may_be = "Y or N",
		.bad = {"2", "10", "-1", "yes", "no", "?", ""},
		.good = {"Y", "n", "0", "1"},
	},
	{
		.name = "user_max_bytes",
		.may_be = "0 or a number from FRAME to MEMORY",
		.bad = {"1", "FRAME-1", "MEMORY+1", "18446744073709551615", "-1", "1G", ""},
		.good = {"0", "FRAME"},
	},
	{
		.name = "memlock",
		.may_be = "Y or N",
		.bad = {"2", "01", "-1", "yes", "off", "?", ""},
		.good = {"y", "N", "0", "1"},
		.at_run_time = true,
	},
};

FIXTURE(params)
{
	__u64 frame;
	__u64 memory;
};

FIXTURE_SETUP(params)
{
	struct binpool_info info;
	int dev;

	if (!getenv("BINPOOL_KO"))
		SKIP(return, "BINPOOL_KO does not name the module's file");
	if (!module_loaded()) {
		ASSERT_EQ(0, module_load(""));
	}
	dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_EQ(0, device_info(dev, &info));
	close(dev);
	self->frame = info.frame_bytes;
	self->memory = meminfo_bytes("MemTotal");
}

FIXTURE_TEARDOWN(params)
{
	if (!module_loaded()) {
		EXPECT_EQ(0, module_load(""));
	}
}

/* @text with numbers for FRAME and MEMORY, +1 and -1 added. */
static void expand(const char *text, __u64 frame, __u64 memory, char *out, size_t size)
{
	size_t used = 0;

	while (*text && used + 1 < size) {
		__u64 value;

		if (!strncmp(text, "FRAME", 5)) {
			value = frame;
			text += 5;
		} else if (!strncmp(text, "MEMORY", 6)) {
			value = memory;
			text += 6;
		} else {
			out[used++] = *text++;
			continue;
		}
		if (!strncmp(text, "+1", 2) || !strncmp(text, "-1", 2)) {
			value = *text == '+' ? value + 1 : value - 1;
			text += 2;
		}
		used += (size_t)snprintf(out + used, size - used, "%llu",
					 (unsigned long long)value);
	}
	out[used] = '\0';
}

/* What the log must say of a refused value. */
static void complaint(size_t i, const char *value, __u64 frame, __u64 memory, char out[256])
{
	char may_be[128];

	expand(table[i].may_be, frame, memory, may_be, sizeof(may_be));
	snprintf(out, 256, "binpool: %s=%s is not %s", table[i].name, value, may_be);
}

TEST_F_TIMEOUT(params, bad_at_load, 300)
{
	ASSERT_EQ(0, module_unload());
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(table[i].bad) && table[i].bad[j]; j++) {
			char value[64], args[256], text[256];
			int log = log_open();

			expand(table[i].bad[j], self->frame, self->memory, value, sizeof(value));
			snprintf(args, sizeof(args), "%s=\"%s\"", table[i].name, value);
			ASSERT_EQ(-EINVAL, module_load(args))
			{
				TH_LOG("%s", args);
			}
			ASSERT_FALSE(module_loaded());
			ASSERT_EQ(-1, access(DEVICE, F_OK));
			complaint(i, value, self->frame, self->memory, text);
			ASSERT_TRUE(log_has(log, text))
			{
				TH_LOG("the log has no '%s'", text);
			}
			close(log);
		}
	}
}

/* Whether the parameter's file shows what was given, or Y and N for it. */
static bool shows(const char *name, const char *given)
{
	char path[128], text[64];
	unsigned long long value = strtoull(given, NULL, 0);

	snprintf(path, sizeof(path), PARAMETERS "%s", name);
	if (text_read(path, text, sizeof(text)) <= 0)
		return false;
	if (*text == 'Y' || *text == 'N')
		return (*text == 'Y') == (value == 1 || *given == 'Y' || *given == 'y');
	return strtoull(text, NULL, 10) == value;
}

TEST_F_TIMEOUT(params, good_at_load, 120)
{
	ASSERT_EQ(0, module_unload());
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(table[i].good) && table[i].good[j]; j++) {
			char value[64], args[256];

			expand(table[i].good[j], self->frame, self->memory, value, sizeof(value));
			snprintf(args, sizeof(args), "%s=%s", table[i].name, value);
			ASSERT_EQ(0, module_load(args))
			{
				TH_LOG("%s", args);
			}
			ASSERT_TRUE(shows(table[i].name, value))
			{
				TH_LOG("%s", args);
			}
			ASSERT_EQ(0, module_unload());
		}
	}
}

TEST_F(params, written_later)
{
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		char path[128], was[64], value[64], text[256];
		struct stat st;

		snprintf(path, sizeof(path), PARAMETERS "%s", table[i].name);
		ASSERT_EQ(0, stat(path, &st));
		ASSERT_EQ(table[i].at_run_time ? 0644 : 0444, st.st_mode & 0777);
		if (!table[i].at_run_time)
			continue;
		ASSERT_LT(0, text_read(path, was, sizeof(was)));
		for (size_t j = 0; j < ARRAY_SIZE(table[i].bad) && table[i].bad[j]; j++) {
			int log = log_open();

			expand(table[i].bad[j], self->frame, self->memory, value, sizeof(value));
			if (!*value)
				continue; /* nothing written */
			ASSERT_EQ(-EINVAL, text_write(path, value))
			{
				TH_LOG("%s=%s", table[i].name, value);
			}
			ASSERT_TRUE(shows(table[i].name, was));
			complaint(i, value, self->frame, self->memory, text);
			ASSERT_TRUE(log_has(log, text))
			{
				TH_LOG("the log has no '%s'", text);
			}
			close(log);
		}
		for (size_t j = 0; j < ARRAY_SIZE(table[i].good) && table[i].good[j]; j++) {
			expand(table[i].good[j], self->frame, self->memory, value, sizeof(value));
			ASSERT_EQ(0, text_write(path, value));
			ASSERT_TRUE(shows(table[i].name, value));
		}
		ASSERT_EQ(0, text_write(path, was));
	}
}

/* The table has a line for each parameter there is. */
TEST_F(params, all_are_tested)
{
	DIR *d = opendir(PARAMETERS);
	size_t count = 0;

	ASSERT_NE(NULL, d);
	for (struct dirent *e = readdir(d); e; e = readdir(d)) {
		bool known = e->d_name[0] == '.';

		for (size_t i = 0; i < ARRAY_SIZE(table) && !known; i++)
			known = !strcmp(table[i].name, e->d_name);
		ASSERT_TRUE(known)
		{
			TH_LOG("not in the table: %s", e->d_name);
		}
		count += e->d_name[0] != '.';
	}
	closedir(d);
	ASSERT_EQ(ARRAY_SIZE(table), count);
}

/* What was given is one line of the log, however it looks, and not a long one. */
TEST_F(params, odd_values)
{
	char many[101], text[128];
	int log = log_open();

	memset(many, '9', sizeof(many) - 1);
	many[sizeof(many) - 1] = '\0';
	ASSERT_EQ(-EINVAL, text_write(PARAM("keep_ms"), many));
	snprintf(text, sizeof(text), "binpool: keep_ms=%.40s is not", many);
	ASSERT_TRUE(log_has(log, text));
	/* The log shows a backslash as \x5c, and would an escape character as \x1b. */
	ASSERT_EQ(-EINVAL, text_write(PARAM("keep_ms"), "1\x1b[1m"));
	ASSERT_TRUE(log_has(log, "binpool: keep_ms=1\\x5ce[1m is not"));
	ASSERT_EQ(-EINVAL, text_write(PARAM("keep_ms"), "1\n2"));
	ASSERT_TRUE(log_has(log, "binpool: keep_ms=1 is not"));
	ASSERT_EQ(-EINVAL, text_write(PARAM("memlock"), "N\nY"));
	ASSERT_TRUE(log_has(log, "binpool: memlock=N is not"));
	close(log);
}

TEST_F(params, more_reserve_than_limit)
{
	char args[128], text[128];
	int log = log_open();

	ASSERT_EQ(0, module_unload());
	snprintf(args, sizeof(args), "max_bytes=%llu reserve_bytes=%llu",
		 (unsigned long long)(4 * self->frame), (unsigned long long)(5 * self->frame));
	snprintf(text, sizeof(text), "binpool: reserve_bytes=%llu is above max_bytes (%llu)",
		 (unsigned long long)(5 * self->frame), (unsigned long long)(4 * self->frame));
	ASSERT_EQ(-EINVAL, module_load(args));
	ASSERT_TRUE(log_has(log, text));
	close(log);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
