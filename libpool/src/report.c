// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The report, for people and for programs. A snapshot is taken under
 * the pool's lock; the text is made without it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache.h"

struct bin_line {
	uint32_t bin;
	uint64_t capacity, active, held;
};

struct snapshot {
	struct binpool_stats stats;
	struct bin_line *bins;
	size_t n, room;
	uint64_t locked_bytes;
};

/* The bins that have buffers, in order; false: s->room is too small. Locked. */
static bool take_bins(struct binpool *pool, struct snapshot *s)
{
	uint32_t per_level = 1u << pool->mantissa_bits;

	s->n = 0;
	for (uint32_t l = 0; l < ARRAY_SIZE(pool->levels); l++) {
		for (uint32_t i = 0; pool->levels[l] && i < per_level; i++) {
			const struct bin *b = &pool->levels[l]->bins[i];
			uint32_t bin = (l << pool->mantissa_bits) + i;

			if (!b->active && !b->held && !b->cached)
				continue;
			if (s->n < s->room)
				s->bins[s->n] = (struct bin_line){
					.bin = bin,
					.capacity = class_bin_capacity(pool, bin),
					.active = not_negative(b->active),
					.held = not_negative(b->held + b->cached),
				};
			s->n++;
		}
	}
	return s->n <= s->room;
}

static int take_snapshot(struct binpool *pool, struct snapshot *s)
{
	bool done = false;

	*s = (struct snapshot){.room = 64};
	stats_measure(pool);
	while (!done) {
		free(s->bins);
		s->bins = malloc(s->room * sizeof(*s->bins));
		if (!s->bins)
			return explain(-ENOMEM, "no memory for a report");
		pool_lock(pool);
		caches_settle(pool);
		done = take_bins(pool, s);
		stats_collect(pool, &s->stats);
		s->locked_bytes = 0;
		for (struct extent *e = pool->extents; e; e = e->next)
			s->locked_bytes += e->locked_bytes;
		for (struct extent *e = pool->stuck; e; e = e->next)
			s->locked_bytes += e->locked_bytes;
		pool_unlock(pool);
		s->room = 2 * s->n + 64;
	}
	return 0;
}

/* By what the caches of a pool are taken from their threads. */
static const char *revocation(const struct binpool *pool)
{
	if (!pool->cache_bins)
		return "none";
	return caches_fenced() ? "fenced" : "membarrier";
}

static void write_keys(FILE *f, const struct binpool *pool, const struct snapshot *s)
{
	const struct binpool_stats *st = &s->stats;
	const struct {
		const char *key;
		uint64_t value;
	} lines[] = {
		{"active_blocks", st->active_blocks},
		{"held_blocks", st->held_blocks},
		{"active_bytes", st->active_bytes},
		{"held_bytes", st->held_bytes},
		{"managed_bytes", st->managed_bytes},
		{"reserved_bytes", st->reserved_bytes},
		{"reserved_max_bytes", st->reserved_max_bytes},
		{"locked_bytes", s->locked_bytes},
		{"max_bytes", st->max_bytes},
		{"allocs", st->allocs},
		{"reuses", st->reuses},
		{"returns", st->returns},
		{"frees_active", st->frees_active},
		{"frees_held", st->frees_held},
		{"alloc_ns", st->alloc_ns},
		{"free_ns", st->free_ns},
		{"mean_alloc_ns", (uint64_t)binpool_stats_mean_alloc_ns(st)},
		{"mean_free_ns", (uint64_t)binpool_stats_mean_free_ns(st)},
		{"extents", st->extents},
		{"extent_allocs", st->extent_allocs},
		{"extent_frees", st->extent_frees},
		{"extent_extends", st->extent_extends},
		{"extent_shrinks", st->extent_shrinks},
		{"extent_alloc_ns", st->extent_alloc_ns},
		{"extent_free_ns", st->extent_free_ns},
		{"registrations", st->registrations},
		{"registration_allocs", st->registration_allocs},
		{"registration_ns", st->registration_ns},
		{"refused", st->refused},
		{"holding", st->holding},
		{"fallbacks", st->fallbacks},
		{"registrations_refused", st->registrations_refused},
		{"registrations_lost", st->registrations_lost},
		{"stuck_bytes", st->stuck_bytes},
		{"registered_bytes", st->registered_bytes},
		{"page_bytes", st->page_bytes},
		{"runs", st->runs},
		{"pending_blocks", st->pending_blocks},
		{"pending_bytes", st->pending_bytes},
		{"fence_errors", st->fence_errors},
		{"pressure_trims", st->pressure_trims},
	};

	fprintf(f, "name=%s\nprovider=%s\nprovider_reason=%s\nmantissa_bits=%u\nclasses=%s\n",
		pool->name, binpool_provider_name(st->provider), pool->provider.reason,
		pool->mantissa_bits, pool->classes == BINPOOL_CLASSES_HYSOP ? "hysop" : "tight");
	fprintf(f, "node=%d\ngranule=%" PRIu64 "\nrevocation=%s\n", pool->provider.node,
		pool->granule, revocation(pool));
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++)
		fprintf(f, "%s=%" PRIu64 "\n", lines[i].key, lines[i].value);
	fprintf(f, "reuse_factor=%.6f\n", binpool_stats_reuse_factor(st));
	for (size_t i = 0; i < s->n; i++) {
		const struct bin_line *b = &s->bins[i];

		fprintf(f,
			"bin.%u.capacity_bytes=%" PRIu64 "\nbin.%u.active_blocks=%" PRIu64
			"\nbin.%u.held_blocks=%" PRIu64 "\n",
			b->bin, b->capacity, b->bin, b->active, b->bin, b->held);
	}
}

/* Time with a unit that leaves it readable; 0 is none that was measured. */
static const char *human_ns(uint64_t ns, char buf[HUMAN_LEN])
{
	if (!ns)
		snprintf(buf, HUMAN_LEN, "-");
	else if (ns < 10000)
		snprintf(buf, HUMAN_LEN, "%" PRIu64 " ns", ns);
	else if (ns < 10000000)
		snprintf(buf, HUMAN_LEN, "%.1f us", (double)ns / 1e3);
	else
		snprintf(buf, HUMAN_LEN, "%.1f ms", (double)ns / 1e6);
	return buf;
}

/* The mean of @n times that are @ns together. */
static const char *human_mean(uint64_t ns, uint64_t n, char buf[HUMAN_LEN])
{
	if (!ns || !n || ns >= n)
		return human_ns(n ? ns / n : 0, buf);
	snprintf(buf, HUMAN_LEN, "below 1 ns");
	return buf;
}

static void write_bar(FILE *f, uint64_t active, uint64_t held, uint64_t most)
{
	const uint64_t width = 30;
	/* What is there shows, however little; a bar is never longer than the width. */
	uint64_t a = (uint64_t)((double)active / (double)most * (double)width + 0.999);
	uint64_t h = (uint64_t)((double)held / (double)most * (double)width + 0.999);

	a = u64_min(a, width);
	h = u64_min(h, width - a);
	for (uint64_t i = 0; i < a; i++)
		fputc('#', f);
	for (uint64_t i = 0; i < h; i++)
		fputc('.', f);
	fputc('\n', f);
}

static void write_bins(FILE *f, const struct snapshot *s)
{
	uint64_t most = 1;
	char a[HUMAN_LEN];

	if (!s->n)
		return;
	for (size_t i = 0; i < s->n; i++)
		most = u64_max(most, (s->bins[i].active + s->bins[i].held) * s->bins[i].capacity);
	fprintf(f, "  %8s %12s %8s %8s  bytes, # active . held\n", "bin", "capacity", "active",
		"held");
	for (size_t i = 0; i < s->n; i++) {
		const struct bin_line *b = &s->bins[i];

		fprintf(f, "  %8u %12s %8" PRIu64 " %8" PRIu64 "  ", b->bin, human(b->capacity, a),
			b->active, b->held);
		write_bar(f, b->active * b->capacity, b->held * b->capacity, most);
	}
}

static void write_header(FILE *f, const struct binpool *pool, const struct binpool_stats *st)
{
	fprintf(f, "pool %s: provider %s, %s classes, %u mantissa bits%s\n", pool->name,
		binpool_provider_name(st->provider),
		pool->classes == BINPOOL_CLASSES_HYSOP ? "hysop" : "tight", pool->mantissa_bits,
		st->holding ? "" : ", not holding");
}

static void write_table(FILE *f, const struct binpool *pool, const struct snapshot *s)
{
	const struct binpool_stats *st = &s->stats;
	uint64_t frees = st->frees_active + st->frees_held;
	char a[HUMAN_LEN], b[HUMAN_LEN], c[HUMAN_LEN];

	write_header(f, pool, st);
	fprintf(f, "  why            %s\n", pool->provider.reason);
	fprintf(f, "  limit          %s\n", human(st->max_bytes, a));
	fprintf(f, "  reserved       %s in %" PRIu64 " extent%s (highest %s)\n",
		human(st->reserved_bytes, a), st->extents, plural(st->extents),
		human(st->reserved_max_bytes, b));
	fprintf(f, "  managed        %s, free in extents %s\n", human(st->managed_bytes, a),
		human(st->reserved_bytes - u64_min(st->reserved_bytes, st->managed_bytes), b));
	fprintf(f, "  active         %" PRIu64 " buffer%s, %s asked for, %s with rounding\n",
		st->active_blocks, plural(st->active_blocks), human(st->active_bytes, a),
		human(st->managed_bytes - st->held_bytes, b));
	if (st->pending_blocks || st->fence_errors)
		fprintf(f,
			"  pending        %" PRIu64 " of the active, %s, wait for fences; %" PRIu64
			" fence%s ended in an error\n",
			st->pending_blocks, human(st->pending_bytes, a), st->fence_errors,
			plural(st->fence_errors));
	fprintf(f, "  held           %" PRIu64 " buffer%s, %s\n", st->held_blocks,
		plural(st->held_blocks), human(st->held_bytes, a));
	if (st->page_bytes)
		fprintf(f,
			"  pages          %s mapped; contiguous runs: ", human(st->page_bytes, a));
	if (st->page_bytes && st->runs)
		fprintf(f, "%" PRIu64 "; locked %s\n", st->runs, human(s->locked_bytes, a));
	else if (st->page_bytes)
		fprintf(f, "not known; locked %s\n", human(s->locked_bytes, a));
	if (st->fallbacks)
		fprintf(f, "  fallbacks      %" PRIu64 " time%s only small pages\n", st->fallbacks,
			plural(st->fallbacks));
	if (st->registrations_refused)
		fprintf(f, "  unregistered   %" PRIu64 " time%s an optional registrar refused\n",
			st->registrations_refused, plural(st->registrations_refused));
	if (pool->cache_bins && caches_fenced())
		fprintf(f,
			"  caches         slower: the kernel, or a filter, refuses membarrier()\n");
	fprintf(f,
		"  requests       %" PRIu64 " reused, %" PRIu64 " new, %" PRIu64
		" refused; reuse factor %.3f\n",
		st->reuses, st->allocs, st->refused, binpool_stats_reuse_factor(st));
	fprintf(f,
		"  mean times     asking the provider, per new buffer: %s (%" PRIu64
		"); giving back, per dissolved one: %s (%" PRIu64 ")\n",
		human_mean(st->alloc_ns, st->allocs, a), st->allocs,
		human_mean(st->free_ns, frees, b), frees);
	fprintf(f, "  provider       %" PRIu64 " call%s for memory, %s; %" PRIu64 " back, %s\n",
		st->extent_allocs, plural(st->extent_allocs), human_ns(st->extent_alloc_ns, a),
		st->extent_frees, human_ns(st->extent_free_ns, b));
	fprintf(f, "  registrations  %" PRIu64 " now, %" PRIu64 " made, %s; of %s\n",
		st->registrations, st->registration_allocs, human_ns(st->registration_ns, c),
		human(st->registered_bytes, a));
	if (st->registrations_lost)
		fprintf(f, "  lost           %" PRIu64 " registration%s gone when looked at\n",
			st->registrations_lost, plural(st->registrations_lost));
	if (st->stuck_bytes)
		fprintf(f,
			"  stuck          %s that could not be unregistered or unmapped, tried again\n",
			human(st->stuck_bytes, a));
	write_bins(f, s);
}

/* The report, for free(), and its length; NULL, *err explained. */
static char *report_text(struct binpool *pool, uint32_t format, size_t *size, int *err)
{
	char *text = NULL;
	struct snapshot s;
	FILE *f;

	*err = pool_enter(pool);
	if (*err)
		return NULL;
	if (format > BINPOOL_REPORT_HEADER) {
		*err = explain(-EINVAL, "report: format is %u: TABLE (0), KEYS (1) or HEADER (2)",
			       format);
		return NULL;
	}
	*err = take_snapshot(pool, &s);
	if (*err)
		return NULL;
	f = open_memstream(&text, size);
	if (f) {
		if (format == BINPOOL_REPORT_KEYS)
			write_keys(f, pool, &s);
		else if (format == BINPOOL_REPORT_TABLE)
			write_table(f, pool, &s);
		else
			write_header(f, pool, &s.stats);
	}
	free(s.bins);
	if (f && !fclose(f))
		return text;
	free(text);
	*err = explain(-ENOMEM, "no memory for a report");
	return NULL;
}

EXPORT int binpool_report(struct binpool *pool, uint32_t format, char *buf, size_t len)
{
	size_t size = 0;
	char *text;
	int err;

	if (pool && !buf && len)
		return explain(-EINVAL, "report: buf is NULL, but len is %zu", len);
	text = report_text(pool, format, &size, &err);
	if (!text)
		return err;
	if (len)
		snprintf(buf, len, "%s", text);
	free(text);
	return (int)size;
}

EXPORT int binpool_print_report(struct binpool *pool, uint32_t format, int fd)
{
	size_t size = 0, done = 0;
	ssize_t n = 0;
	char *text;
	int err;

	text = report_text(pool, format, &size, &err);
	if (!text)
		return err;
	while (done < size) {
		n = write(fd, text + done, size - done);
		if (n < 0 && errno != EINTR)
			break;
		if (n > 0)
			done += (size_t)n;
	}
	err = done < size ? explain(-errno, "report: write: %s", strerror(errno)) : 0;
	free(text);
	return err;
}
