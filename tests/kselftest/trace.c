// SPDX-License-Identifier: GPL-2.0
/*
 * The tracepoints, by what tracefs shows of an ALLOC, a refusal, limbo, cleaning and
 * memory that comes and goes. Fields and names are held against kmod/ABI by abi_doc.c.
 */
#include <stdarg.h>
#include <sys/uio.h>

#include "binpool_test.h"
#include "tracefs.h"

#define EVENTS	     TRACEFS "events/binpool/"
#define LIMBO_MAX_MS "/sys/module/binpool/parameters/limbo_max_ms"

FIXTURE(trace)
{
	int dev;
	int log;
	__u64 frame;
	char *text; /* of the trace, when it was last read */
};

FIXTURE_SETUP(trace)
{
	struct binpool_info info;

	if (!tracefs_mount())
		SKIP(return, "the kernel has no tracefs");
	knobs_restore();
	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->frame = info.frame_bytes;
	self->text = malloc(MIB);
	ASSERT_NE(NULL, self->text);
	ASSERT_EQ(0, text_write(TRACEFS "tracing_on", "1"));
	ASSERT_EQ(0, text_write(EVENTS "enable", "1"));
	ASSERT_EQ(0, trace_clear());
}

FIXTURE_TEARDOWN(trace)
{
	EXPECT_EQ(0, text_write(EVENTS "enable", "0"));
	knobs_restore();
	free(self->text);
	close(self->dev);
	EXPECT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	EXPECT_EQ(0, log_count_bad(self->log));
}

static bool trace_read(char *text)
{
	FILE *f = fopen(TRACEFS "trace", "re");
	size_t n;

	if (!f)
		return false;
	n = fread(text, 1, MIB - 1, f);
	text[n] = '\0';
	fclose(f);
	return n > 0 && n < MIB - 1;
}

/*
 * How many lines of event @name end in, or have, the text that follows; *@last is what
 * the last of them has after the event's name.
 */
static int __attribute__((format(printf, 4, 5)))
count_events(const char *text, const char *name, const char **last, const char *format, ...)
{
	char mark[64], part[256];
	va_list args;
	int count = 0;

	snprintf(mark, sizeof(mark), ": %s: ", name);
	va_start(args, format);
	vsnprintf(part, sizeof(part), format, args);
	va_end(args);
	for (const char *at = strstr(text, mark); at; at = strstr(at, mark)) {
		size_t len;
		const char *found;

		at += strlen(mark);
		len = strcspn(at, "\n");
		found = strstr(at, part);
		if (found && found + strlen(part) <= at + len) {
			count++;
			if (last)
				*last = at;
		}
	}
	return count;
}

/* The sum of a field over all lines of an event. */
static __u64 sum_field(const char *text, const char *name, const char *field)
{
	char mark[64], key[64];
	__u64 sum = 0;

	snprintf(mark, sizeof(mark), ": %s: ", name);
	snprintf(key, sizeof(key), " %s=", field);
	for (const char *at = strstr(text, mark); at; at = strstr(at, mark)) {
		const char *value = strstr(at + strlen(mark) - 1, key);

		at += strlen(mark);
		if (value && value < at + strcspn(at, "\n"))
			sum += strtoull(value + strlen(key), NULL, 10);
	}
	return sum;
}

TEST_F(trace, life_of_a_block)
{
	struct binpool_alloc a = alloc_request(5 * self->frame - 7, 0);
	unsigned long long bytes = a.bytes, capacity = 5 * self->frame;
	struct binpool_query q;
	unsigned int age;
	const char *line;

	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, trace_clear());
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_EQ(0, block_query(a.fd, &q));
	ASSERT_TRUE(trace_read(self->text));
	ASSERT_EQ(1, count_events(self->text, "alloc", NULL,
				  "bytes=%llu capacity=%llu node=%d runs=%u source=fresh", bytes,
				  capacity, q.node, a.runs))
	{
		TH_LOG("%s", self->text);
	}
	ASSERT_LE(capacity, sum_field(self->text, "fresh", "bytes"));
	ASSERT_EQ(0, count_events(self->text, "return", NULL, "%s", ""));
	sleep_ms(30);
	close(a.fd);
	ASSERT_TRUE(trace_read(self->text));
	ASSERT_EQ(1, count_events(self->text, "return", &line,
				  "bytes=%llu capacity=%llu node=%d age_ms=", bytes, capacity,
				  q.node));
	ASSERT_EQ(1, sscanf(strstr(line, "age_ms="), "age_ms=%u", &age));
	ASSERT_LE(20, age);
	ASSERT_GE(60000, age);

	ASSERT_EQ(0, device_alloc(self->dev, &a));
	ASSERT_TRUE(trace_read(self->text));
	ASSERT_EQ(1, count_events(self->text, "alloc", NULL, "source=held"));
	close(a.fd);
}

TEST_F(trace, refusals)
{
	struct binpool_alloc a = alloc_request(64 * self->frame, BINPOOL_ALLOC_NOWAIT);
	long long max = attr_read("max_bytes");

	ASSERT_EQ(0, attr_write("max_bytes", 16 * self->frame));
	EXPECT_EQ(-ENOSPC, device_alloc(self->dev, &a));
	ASSERT_EQ(0, attr_write("max_bytes", (__u64)max));
	ASSERT_TRUE(trace_read(self->text));
	ASSERT_EQ(1, count_events(self->text, "alloc_failed", NULL,
				  "bytes=%llu node=-1 flags=%#x err=%d run_max_bytes=",
				  (unsigned long long)a.bytes, BINPOOL_ALLOC_NOWAIT, -ENOSPC));
	ASSERT_EQ(0, count_events(self->text, "alloc", NULL, "%s", ""));
}

static bool pin_and_close(int dev, __u64 frame, int ends[2])
{
	int fd = block_alloc(dev, 2 * frame);
	char *p = block_map(fd, 2 * frame);
	struct iovec part = {p, page_bytes()};

	if (p == MAP_FAILED || pipe(ends))
		return false;
	*p = 1;
	if (vmsplice(ends[1], &part, 1, 0) != (ssize_t)part.iov_len)
		return false;
	munmap(p, 2 * frame);
	close(fd);
	return true;
}

TEST_F(trace, limbo)
{
	unsigned int waited;
	const char *line;
	int ends[2];

	ASSERT_TRUE(pin_and_close(self->dev, self->frame, ends));
	ASSERT_TRUE(trace_read(self->text));
	ASSERT_EQ(1, count_events(self->text, "limbo_enter", NULL, "node="));
	ASSERT_EQ(0, count_events(self->text, "limbo_leave", NULL, "node="));
	sleep_ms(50);
	close(ends[0]);
	close(ends[1]);
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	ASSERT_TRUE(trace_read(self->text));
	ASSERT_EQ(1, count_events(self->text, "limbo_leave", &line, "dropped=0"));
	ASSERT_EQ(1, sscanf(strstr(line, "waited_ms="), "waited_ms=%u", &waited));
	ASSERT_LE(40, waited);
	ASSERT_GE(60000, waited);
}

TEST_F(trace, limbo_given_up)
{
	char was[32];
	int ends[2];

	ASSERT_LT(0, text_read(LIMBO_MAX_MS, was, sizeof(was)));
	ASSERT_EQ(0, text_write(LIMBO_MAX_MS, "20"));
	EXPECT_TRUE(pin_and_close(self->dev, self->frame, ends));
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	ASSERT_EQ(0, text_write(LIMBO_MAX_MS, was));
	ASSERT_TRUE(trace_read(self->text));
	ASSERT_EQ(1, count_events(self->text, "limbo_leave", NULL, "dropped=1"));
	close(ends[0]);
	close(ends[1]);
}

/* As much as the counters say. */
TEST_F(trace, counters_agree)
{
	long long background, caller, freed, frame = (long long)self->frame;

	ASSERT_EQ(0, attr_write("free_held", 1));
	background = attr_read("cleaned_background_bytes");
	caller = attr_read("cleaned_inline_bytes");
	freed = attr_read("freed_bytes");
	ASSERT_EQ(0, trace_clear());
	/* Sizes that differ, so that some of it is found dirty. */
	for (__u64 i = 1; i < 20; i++)
		close(block_alloc(self->dev, i * self->frame));
	ASSERT_TRUE(cleaning_ends());
	ASSERT_EQ(0, attr_write("free_held", 1));
	ASSERT_EQ(0, attr_read("held_bytes"));
	background = attr_read("cleaned_background_bytes") - background;
	caller = attr_read("cleaned_inline_bytes") - caller;
	freed = attr_read("freed_bytes") - freed;
	ASSERT_LT(0, background + caller);
	ASSERT_LT(0, freed);
	ASSERT_TRUE(trace_read(self->text));
	ASSERT_EQ(background / frame, count_events(self->text, "clean", NULL, "by=background"));
	ASSERT_EQ(caller / frame, count_events(self->text, "clean", NULL, "by=caller"));
	ASSERT_EQ((__u64)freed, sum_field(self->text, "free", "bytes"));
}

/* Fields are fields: the kernel can filter by them. */
TEST_F(trace, filter)
{
	char text[64];

	snprintf(text, sizeof(text), "capacity > %llu", (unsigned long long)self->frame);
	ASSERT_EQ(0, text_write(EVENTS "alloc/filter", text));
	close(block_alloc(self->dev, self->frame));
	close(block_alloc(self->dev, 2 * self->frame));
	EXPECT_EQ(0, text_write(EVENTS "alloc/filter", "0"));
	ASSERT_TRUE(trace_read(self->text));
	ASSERT_EQ(1, count_events(self->text, "alloc", NULL, "%s", ""));
	ASSERT_EQ(2, count_events(self->text, "return", NULL, "%s", ""));
}

TEST_F(trace, silent_when_off)
{
	ASSERT_EQ(0, text_write(EVENTS "enable", "0"));
	close(block_alloc(self->dev, self->frame));
	ASSERT_TRUE(trace_read(self->text));
	ASSERT_EQ(0, count_events(self->text, "alloc", NULL, "%s", ""));
	ASSERT_EQ(0, count_events(self->text, "return", NULL, "%s", ""));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
