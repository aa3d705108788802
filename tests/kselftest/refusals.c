// SPDX-License-Identifier: GPL-2.0
/*
 * What the kernel log says of what is refused: a line names the knob, what was asked,
 * what may be and what there is, as often as somebody reads it, and no faster.
 */
#include "users.h"

/* printk_ratelimit()'s interval, and how many lines there are in it at most. */
#define INTERVAL_MS 5000
#define ROOTS_BURST 50
#define USERS_BURST 10

/* How many lines of the log since @log was opened begin with @text. */
static unsigned int log_lines(int log, const char *text)
{
	unsigned int lines = 0;
	char record[8192];

	for (;;) {
		ssize_t n = read(log, record, sizeof(record) - 1);
		const char *message;

		if (n < 0 && errno == EPIPE)
			continue;
		if (n <= 0)
			return lines;
		record[n] = '\0';
		message = strchr(record, ';');
		lines += message && !strncmp(message + 1, text, strlen(text));
	}
}

/* Whether the log's one new line of the module is @text. */
static bool told(int log, const char *text)
{
	char record[8192], first[512] = "nothing";
	unsigned int lines = 0;
	bool found = false;

	for (;;) {
		ssize_t n = read(log, record, sizeof(record) - 1);
		char *message;

		if (n < 0 && errno == EPIPE)
			continue;
		if (n <= 0)
			break;
		record[n] = '\0';
		message = strchr(record, ';');
		if (!message || strncmp(message + 1, "binpool: ", 9))
			continue;
		message += 10;
		message[strcspn(message, "\n")] = '\0';
		snprintf(first, sizeof(first), "%s", message);
		found = !strcmp(message, text);
		lines++;
	}
	if (lines != 1 || !found)
		fprintf(stderr, "# %u lines; said '%s' instead of '%s'\n", lines, first, text);
	return lines == 1 && found;
}

TEST_F(pool, knobs)
{
	const unsigned long long frame = self->frame, memory = meminfo_bytes("MemTotal"),
				 max = (unsigned long long)attr_read("max_bytes");
	char machine[32], above[32], line[512];
	const struct {
		const char *knob, *text, *shown;
		enum { RANGE, OR_ZERO, RESERVE, FLAG, YES } may_be;
		unsigned long long now;
	} writes[] = {
		{"max_bytes", "0", "0", RANGE, max},
		{"max_bytes", "4G", "4G", RANGE, max},
		{"max_bytes", "-1", "-1", RANGE, max},
		{"max_bytes", machine, machine, RANGE, max},
		{"max_bytes", "184467440737095516160", "184467440737095516160", RANGE, max},
		{"max_bytes", "\n", "", RANGE, max},
		/* One line, whatever was written. */
		{"max_bytes", "1\n2", "1", RANGE, max},
		{"max_bytes", "\x1b[2J", "\\x5ce[2J", RANGE, max},
		{"user_max_bytes", "1", "1", OR_ZERO, 0},
		{"user_max_bytes", machine, machine, OR_ZERO, 0},
		{"reserve_bytes", "x", "x", RESERVE, 0},
		{"reserve_bytes", machine, machine, RESERVE, 0},
		{"node0/reserve_bytes", "x", "x", RESERVE, 0},
		{"holding", "2", "2", FLAG, 0},
		{"holding", "yes", "yes", FLAG, 0},
		{"holding", "0x1", "0x1", FLAG, 0},
		{"free_held", "0", "0", YES, 0},
		{"free_held", "300", "300", YES, 0},
		{"phys_release", "0", "0", YES, 0},
		{"phys_release", "x", "x", YES, 0},
	};
	int log = log_open();

	/* Others may have been refused a lot just now. */
	sleep_ms(INTERVAL_MS + 500);
	snprintf(machine, sizeof(machine), "%llu", memory + 1);
	for (size_t i = 0; i < ARRAY_SIZE(writes); i++) {
		const char *format = NULL;
		unsigned long long from = 0;
		char path[256];

		snprintf(path, sizeof(path), SYSFS "%s", writes[i].knob);
		ASSERT_GT(0, text_write(path, writes[i].text));
		switch (writes[i].may_be) {
		case RANGE:
			format = "%s=%s is not a number from %llu to %llu; it stays %llu";
			from = frame;
			break;
		case OR_ZERO:
			format = "%s=%s is not 0 or a number from %llu to %llu; it stays %llu";
			from = frame;
			break;
		case RESERVE:
			format = "%s=%s is not a number from %llu to %llu; it stays %llu";
			break;
		case FLAG:
			format = "%s=%s is not 0 or 1; nothing is done";
			break;
		case YES:
			format = "%s=%s is not 1; nothing is done";
			break;
		}
		snprintf(line, sizeof(line), format, writes[i].knob, writes[i].shown, from, memory,
			 writes[i].now);
		ASSERT_TRUE(told(log, line));
	}

	/* The limit that is in the way is another knob. */
	snprintf(above, sizeof(above), "%llu", max + frame);
	ASSERT_EQ(-EINVAL, text_write(SYSFS "reserve_bytes", above));
	snprintf(line, sizeof(line), "reserve_bytes=%s is above max_bytes=%llu; it stays 0", above,
		 max);
	ASSERT_TRUE(told(log, line));
	ASSERT_EQ(-EINVAL, text_write(SYSFS "node0/reserve_bytes", above));
	snprintf(line, sizeof(line),
		 "node0/reserve_bytes=%s beside 0 is above max_bytes=%llu; it stays 0", above, max);
	ASSERT_TRUE(told(log, line));
	close(log);
}

/* What can be done is not talked about. */
TEST_F(pool, silent_success)
{
	int log = log_open();

	ASSERT_EQ(0, attr_write("max_bytes", (__u64)attr_read("max_bytes")));
	ASSERT_EQ(0, attr_write("user_max_bytes", 0));
	ASSERT_EQ(0, attr_write("reserve_bytes", 0));
	ASSERT_EQ(0, attr_write("holding", 1));
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_write("phys_release", 1));
	ASSERT_EQ(0, text_write("/sys/module/binpool/parameters/memlock", "N"));
	ASSERT_EQ(0, device_limit(self->dev, self->frame, NULL));
	ASSERT_EQ(0, device_limit(self->dev, 0, NULL));
	ASSERT_EQ(0, log_lines(log, "binpool: "));
	close(log);
}

TEST_F(pool, limit)
{
	int log = log_open(), dev = open_as(ALICE);
	char line[512];

	ASSERT_EQ(-EINVAL, device_limit(dev, self->frame - 1, NULL));
	snprintf(line, sizeof(line), "LIMIT=%llu of process %d is less than a frame (%llu)",
		 (unsigned long long)self->frame - 1, getpid(), (unsigned long long)self->frame);
	ASSERT_TRUE(told(log, line));
	ASSERT_EQ(0, limit_as(ALICE, dev, 2 * self->frame));
	for (int none = 0; none < 2; none++) {
		const unsigned long long more = none ? 0 : 3 * self->frame;

		ASSERT_EQ(-EPERM, limit_as(ALICE, dev, more));
		snprintf(line, sizeof(line),
			 "LIMIT=%llu of process %d, now %llu, takes CAP_SYS_RESOURCE", more,
			 getpid(), (unsigned long long)(2 * self->frame));
		ASSERT_TRUE(told(log, line));
	}
	close(dev);
	close(log);
}

/* The most lines there can be in the time since @start. */
static unsigned int bound(unsigned int burst, __u64 start)
{
	return burst * (unsigned int)(2 + (now_ms() - start) / INTERVAL_MS);
}

/* Again and again: a few lines, and others after a while. A user is not in root's way. */
TEST_F_TIMEOUT(pool, not_too_often, 60)
{
	const unsigned int often = 2000;
	int log = log_open(), dev = open_as(ALICE);
	unsigned int lines;
	__u64 start = now_ms();

	for (unsigned int i = 0; i < often; i++)
		ASSERT_EQ(-EINVAL, device_limit(dev, 1, NULL));
	lines = log_lines(log, "binpool: LIMIT=1 of process");
	ASSERT_LT(0, lines);
	ASSERT_GE(bound(USERS_BURST, start), lines);
	for (unsigned int i = 0; i < often; i++)
		ASSERT_EQ(-EINVAL, attr_write("max_bytes", 1));
	lines = log_lines(log, "binpool: max_bytes=1 is not");
	ASSERT_LT(0, lines);
	ASSERT_GE(bound(ROOTS_BURST, start), lines);

	/* What was told before in an interval counts in that one only. */
	sleep_ms(INTERVAL_MS + 500);
	start = now_ms();
	for (unsigned int i = 0; i < often; i++)
		ASSERT_EQ(-EINVAL, attr_write("max_bytes", 1));
	lines = log_lines(log, "binpool: max_bytes=1 is not");
	ASSERT_LE(ROOTS_BURST, lines);
	ASSERT_GE(bound(ROOTS_BURST, start), lines);
	ASSERT_EQ(-EINVAL, device_limit(dev, 1, NULL));
	ASSERT_EQ(1, log_lines(log, "binpool: LIMIT=1 of process"));
	close(dev);
	close(log);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
