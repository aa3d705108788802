// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Which buffers are still in use, by tag: on demand, and of pools that ask for it
 * when they cannot be destroyed and when the process ends. A snapshot is taken
 * under the pool's lock; the text is made without it. Owns nothing.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"

/* So many of the largest are listed one by one for people. */
#define LISTED_MAX 20

struct leak {
	const char *ptr;
	uint64_t bytes, refs;
	const char *tag; /* in the snapshot's tags; "": none */
};

struct snapshot {
	struct leak *leaks;
	uint64_t n, bytes;
	char (*tags)[BINPOOL_TAG_LEN];
};

static void add(struct binpool *pool, const struct run *run, struct snapshot *s)
{
	const struct note *note;

	if (!run_in_use(run))
		return;
	note = note_find(pool, run);
	memcpy(s->tags[s->n], note ? note->tag : "", note ? sizeof(note->tag) : 1);
	s->leaks[s->n] = (struct leak){
		.ptr = run->ptr,
		.bytes = run->asked,
		.refs = note ? note->refs + !note->freed : 1,
		.tag = s->tags[s->n],
	};
	s->bytes += run->asked;
	s->n++;
}

static void add_extents(struct binpool *pool, const struct extent *e, struct snapshot *s)
{
	for (; e; e = e->next) {
		for (const struct run *run = e->first; run; run = run->next) {
			if (run_state(run) != RUN_SLAB) {
				add(pool, run, s);
				continue;
			}
			for (uint32_t i = 0; i < run->slab->fresh; i++)
				add(pool, &run->slab->slot[i], s);
		}
	}
}

/* All buffers in use; those that only wait for fences are not. -ENOMEM. */
static int take_snapshot(struct binpool *pool, struct snapshot *s)
{
	uint64_t n;

	*s = (struct snapshot){0};
	pool_lock(pool);
	/* So that nobody takes or frees one without the lock. */
	caches_off(pool, true);
	n = pool->stats.active_blocks;
	if (n) {
		s->leaks = calloc(n, sizeof(*s->leaks));
		s->tags = calloc(n, sizeof(*s->tags));
	}
	if (s->leaks && s->tags) {
		add_extents(pool, pool->extents, s);
		add_extents(pool, pool->voids, s);
	}
	caches_off(pool, false);
	pool_unlock(pool);
	if (!n || (s->leaks && s->tags))
		return 0;
	free(s->leaks);
	free(s->tags);
	return explain(-ENOMEM, "no memory for a report");
}

/* Largest first; of the same size by address. */
static int by_size(const void *a, const void *b)
{
	const struct leak *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return x->ptr < y->ptr ? -1 : x->ptr > y->ptr;
}

static int by_tag(const void *a, const void *b)
{
	const struct leak *x = a, *y = b;
	int order = strcmp(x->tag, y->tag);

	return order ? order : by_size(a, b);
}

/* Those of one tag, which begin at @i; returns where the next begin. */
static uint64_t group(const struct snapshot *s, uint64_t i, uint64_t *bytes)
{
	uint64_t first = i;

	for (*bytes = 0; i < s->n && !strcmp(s->leaks[i].tag, s->leaks[first].tag); i++)
		*bytes += s->leaks[i].bytes;
	return i;
}

static void write_keys(FILE *f, const struct binpool *pool, struct snapshot *s)
{
	uint64_t bytes, next;

	fprintf(f, "name=%s\nactive_blocks=%" PRIu64 "\nactive_bytes=%" PRIu64 "\n", pool->name,
		s->n, s->bytes);
	if (!s->n)
		return;
	qsort(s->leaks, s->n, sizeof(*s->leaks), by_tag);
	for (uint64_t i = 0, k = 0; i < s->n; i = next, k++) {
		next = group(s, i, &bytes);
		fprintf(f,
			"tag.%" PRIu64 ".name=%s\ntag.%" PRIu64 ".active_blocks=%" PRIu64
			"\ntag.%" PRIu64 ".active_bytes=%" PRIu64 "\n",
			k, s->leaks[i].tag, k, next - i, k, bytes);
	}
	for (uint64_t i = 0; i < s->n; i++)
		fprintf(f,
			"buffer.%" PRIu64 ".ptr=%p\nbuffer.%" PRIu64 ".bytes=%" PRIu64
			"\nbuffer.%" PRIu64 ".references=%" PRIu64 "\nbuffer.%" PRIu64 ".tag=%s\n",
			i, (const void *)s->leaks[i].ptr, i, s->leaks[i].bytes, i, s->leaks[i].refs,
			i, s->leaks[i].tag);
}

static const char *tag_name(const struct leak *leak)
{
	return *leak->tag ? leak->tag : "(no tag)";
}

static void write_table(FILE *f, const struct binpool *pool, struct snapshot *s)
{
	char amount[HUMAN_LEN];
	uint64_t bytes, next;

	if (!s->n)
		return;
	fprintf(f, "pool %s: %" PRIu64 " buffer%s in use, %s asked for\n", pool->name, s->n,
		plural(s->n), human(s->bytes, amount));
	qsort(s->leaks, s->n, sizeof(*s->leaks), by_tag);
	for (uint64_t i = 0; i < s->n; i = next) {
		next = group(s, i, &bytes);
		fprintf(f, "  %-24s %8" PRIu64 " buffer%s, %s\n", tag_name(&s->leaks[i]), next - i,
			plural(next - i), human(bytes, amount));
	}
	qsort(s->leaks, s->n, sizeof(*s->leaks), by_size);
	for (uint64_t i = 0; i < u64_min(s->n, LISTED_MAX); i++) {
		const struct leak *leak = &s->leaks[i];

		fprintf(f, "    %p: %" PRIu64 " bytes, %s", (const void *)leak->ptr, leak->bytes,
			tag_name(leak));
		if (leak->refs > 1)
			fprintf(f, ", %" PRIu64 " references", leak->refs);
		fputc('\n', f);
	}
	if (s->n > LISTED_MAX)
		fprintf(f, "    and %" PRIu64 " more\n", s->n - LISTED_MAX);
}

/* The report as a string for free(); NULL, explained: no memory. */
static char *report(struct binpool *pool, uint32_t format, size_t *size)
{
	struct snapshot s;
	char *text = NULL;
	FILE *f;

	if (take_snapshot(pool, &s))
		return NULL;
	f = open_memstream(&text, size);
	if (f && format == BINPOOL_REPORT_KEYS)
		write_keys(f, pool, &s);
	else if (f)
		write_table(f, pool, &s);
	free(s.leaks);
	free(s.tags);
	if (f && !fclose(f))
		return text;
	free(text);
	explain(0, "no memory for a report");
	return NULL;
}

EXPORT int binpool_leaks(struct binpool *pool, uint32_t format, char *buf, size_t len)
{
	size_t size = 0;
	char *text;
	int err = pool_enter(pool);

	if (err)
		return err;
	if (format > BINPOOL_REPORT_KEYS)
		return explain(-EINVAL, "leaks: format is %u: TABLE (0) or KEYS (1)", format);
	if (!buf && len)
		return explain(-EINVAL, "leaks: buf is NULL, but len is %zu", len);
	text = report(pool, format, &size);
	if (!text)
		return -ENOMEM;
	if (len)
		snprintf(buf, len, "%s", text);
	free(text);
	return (int)size;
}

/* Writes what is in use to stderr, if the pool asks for it. */
void leaks_tell(struct binpool *pool, void *unused)
{
	size_t size = 0;
	char *text;

	(void)unused;
	if (!(pool->flags & BINPOOL_POOL_LEAKS) || pool->dead)
		return;
	text = report(pool, BINPOOL_REPORT_TABLE, &size);
	if (text && *text)
		fprintf(stderr, "binpool: %s", text);
	free(text);
}

static void tell_all(void)
{
	pools_each(leaks_tell, NULL);
}

/* Sees to it that the end of the process tells of pools that were not destroyed. -ENOMEM. */
int leaks_watch(const struct binpool *pool)
{
	static bool watching;

	if (!(pool->flags & BINPOOL_POOL_LEAKS) ||
	    __atomic_exchange_n(&watching, true, __ATOMIC_RELAXED) || !atexit(tell_all))
		return 0;
	__atomic_store_n(&watching, false, __ATOMIC_RELAXED);
	return explain(-ENOMEM, "no memory for an exit handler");
}
