// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Hours of a program's requests, as random traces without the pauses: what a pool has
 * reserved stays near what was in use at most, and neither that nor its bookkeeping grows
 * from one hour to the next. BINPOOL_SOAK_HOURS says how many (make soak HOURS=24).
 */
#include "unit.h"

#include <malloc.h>

#include "faulty.h"

/* An hour has so many requests: 300 a second; a tenth of that where everything is slow. */
#define HOUR 1080000u
#define LIVE 256

static uint64_t hour_requests;

struct trace {
	const char *name;
	uint64_t live; /* buffers at a time, at most */
	uint64_t (*size)(struct rng *r, uint64_t at);
	/* Bound on reserved memory's maximum, in hundredths of that of live requested bytes. */
	uint64_t percent;
};

/* Batches of one size, and a little something for each. */
static uint64_t loader(struct rng *r, uint64_t at)
{
	return at % 4 ? 64 * KIB : 4 * MIB + rng_below(r, 2) * MIB;
}

/* Every size from 4 KiB to 16 MiB, small ones as often as large ones. */
static uint64_t any_size(struct rng *r, uint64_t at)
{
	(void)at;
	return (4 * KIB << rng_below(r, 12)) + rng_below(r, 4 * KIB);
}

/* Sizes move up and down by a factor of 256 twice in an hour. */
static uint64_t drift(struct rng *r, uint64_t at)
{
	uint64_t step = at * 32 / hour_requests % 16, k = step < 8 ? step : 15 - step;

	return (4 * KIB << k) + rng_below(r, 4 * KIB << k);
}

/* Small ones, of which slabs are full, and now and then one that is large. */
static uint64_t small_ones(struct rng *r, uint64_t at)
{
	return at % 64 ? 16 + rng_below(r, 3000) : MIB + rng_below(r, MIB);
}

static const struct trace traces[] = {
	{"loader", 64, loader, 140},
	{"any size", 64, any_size, 150},
	{"drift", 128, drift, 150},
	{"small ones", LIVE, small_ones, 250},
};

struct soak {
	const struct trace *trace;
	struct binpool *pool;
	struct rng rng;
	char *ptr[LIVE];
	uint64_t bytes[LIVE];
	uint64_t now, peak;		    /* live requested bytes */
	uint64_t at;			    /* request */
	uint64_t hour_peak, reserved, heap; /* highest of the hour */
};

/* Buffers live for very different times: a few are there for most of an hour. */
static uint64_t choose(struct soak *s)
{
	uint64_t live = s->trace->live;

	return rng_below(&s->rng, rng_below(&s->rng, 64) ? live / 2 : live);
}

static void request(struct soak *s)
{
	uint64_t i = choose(s), size = s->trace->size(&s->rng, s->at++);

	if (s->ptr[i]) {
		assert_int_equal(s->ptr[i][0], (char)i);
		assert_ok(binpool_free_sized(s->pool, s->ptr[i], s->bytes[i]));
		s->now -= s->bytes[i];
	}
	s->ptr[i] = binpool_alloc(s->pool, size);
	assert_non_null(s->ptr[i]);
	s->ptr[i][0] = (char)i;
	s->bytes[i] = size;
	s->now += size;
	if (s->now > s->hour_peak)
		s->hour_peak = s->now;
}

static void hour(struct soak *s)
{
	const uint64_t look = 4096;

	s->reserved = s->heap = 0;
	s->hour_peak = s->now;
	for (uint64_t n = 0; n < hour_requests; n++) {
		request(s);
		if (n % look)
			continue;
		struct binpool_stats st = stats_of(s->pool);
		struct mallinfo2 m = mallinfo2();

		if (st.reserved_bytes > s->reserved)
			s->reserved = st.reserved_bytes;
		if (m.uordblks + m.hblkhd > s->heap)
			s->heap = m.uordblks + m.hblkhd;
	}
	if (s->hour_peak > s->peak)
		s->peak = s->hour_peak;
	check_pool(s->pool);
}

/* A number of hours, at least 1; 0: @text is none. */
static uint64_t parse_hours(const char *text)
{
	unsigned long long n;
	char *end;

	errno = 0;
	n = strtoull(text, &end, 10);
	return errno || *text < '0' || *text > '9' || *end ? 0 : n;
}

static uint64_t hours(void)
{
	const char *text = getenv("BINPOOL_SOAK_HOURS");
	uint64_t n = text ? parse_hours(text) : 3;

	if (!n)
		fail_msg("BINPOOL_SOAK_HOURS is '%s': a number of hours, at least 1", text);
	return n;
}

static void soak(const struct trace *trace)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct faulty_provider p = {.in_place = true};
	struct soak s = {.trace = trace};
	uint64_t first_heap = 0, bound;
	struct binpool_stats st;

	hour_requests = rounds(HOUR);
	o.name = trace->name;
	s.pool = faulty_pool(&o, &p);
	s.rng = rng_make();
	assert_non_null(s.pool);
	for (uint64_t i = 0; i < hours(); i++) {
		hour(&s);
		/* What is reserved may be of the last hour's peak. */
		bound = s.peak / 100 * trace->percent + 8 * MIB;
		if (!i)
			first_heap = s.heap;
		if (s.reserved > bound || s.heap > first_heap + first_heap / 4 + 256 * KIB)
			fail_msg(
				"%s: hour %llu: reserved %llu, bound %llu, bookkeeping %llu, in the "
				"first %llu",
				trace->name, (unsigned long long)i + 1,
				(unsigned long long)s.reserved, (unsigned long long)bound,
				(unsigned long long)s.heap, (unsigned long long)first_heap);
	}
	st = stats_of(s.pool);
	printf("# %s: %llu requests, %.2f of them reused, at most %llu MiB in use, %.2f times that "
	       "reserved; bookkeeping %llu KiB\n",
	       trace->name, (unsigned long long)s.at,
	       (double)st.reuses / (double)(st.reuses + st.allocs),
	       (unsigned long long)(s.peak / MIB), (double)st.reserved_max_bytes / (double)s.peak,
	       (unsigned long long)(s.heap / KIB));
	assert_int_equal(st.active_bytes, s.now);
	for (uint64_t i = 0; i < LIVE; i++)
		assert_ok(binpool_free(s.pool, s.ptr[i]));
	assert_ok(binpool_destroy(s.pool));
	assert_int_equal(p.bytes, 0);
}

/* Who asks for what is no time is not told that all went well. */
static void hours_that_are_none(void **state)
{
	const char *const bad[] = {"", "0", "x", "5x", "-1", " 1", "99999999999999999999"};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(parse_hours(bad[i]), 0);
	assert_int_equal(parse_hours("24"), 24);
}

static void loader_trace(void **state)
{
	(void)state;
	soak(&traces[0]);
}

static void any_size_trace(void **state)
{
	(void)state;
	soak(&traces[1]);
}

static void drift_trace(void **state)
{
	(void)state;
	soak(&traces[2]);
}

static void small_ones_trace(void **state)
{
	(void)state;
	soak(&traces[3]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hours_that_are_none), cmocka_unit_test(loader_trace),
		cmocka_unit_test(any_size_trace),      cmocka_unit_test(drift_trace),
		cmocka_unit_test(small_ones_trace),
	};

	return cmocka_run_group_tests_name("soak", tests, NULL, NULL);
}
