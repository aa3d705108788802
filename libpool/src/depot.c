// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The depot: what one thread frees and another allocates goes through it by parcels, each
 * the older half of a magazine. Owns pool->depot and the parcels of each bin.
 *
 * Who has the pool locked may do all with it. With the lock of one arena, under which
 * several threads may be here at once, depot.lock is taken besides, for some instructions: it
 * is the last of all. Nothing is written to the buffers' runs meanwhile, so it costs the same
 * however many there are.
 *
 * What is in it is cached: held, counted in bin->cached, and taken back with what
 * threads cache. Its bytes are a part of cache_credit that goes from the one thread to the
 * depot and from there to the other, so no budget has to be asked.
 */
#include <stdlib.h>
#include <string.h>

#include "cache.h"

struct parcel {
	struct parcel *prev, *next;   /* of the bin's */
	struct parcel *older, *newer; /* of all */
	uint64_t since;		      /* when it came: pool->stamp */
	uint64_t capacity;	      /* of each buffer */
	uint32_t bin;
	uint32_t n;
	struct cached items[PARCEL_MAX];
};

/* Nobody uses the pool any more. */
void depot_fini(struct binpool *pool)
{
	struct parcel *lists[] = {pool->depot.parcels, pool->depot.spare}, *next;

	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		for (struct parcel *p = lists[i]; p; p = next) {
			next = p->older;
			free(p);
		}
	}
}

static void count(struct binpool *pool, uint64_t bytes)
{
	__atomic_store_n(&pool->depot.bytes, pool->depot.bytes + bytes, __ATOMIC_RELAXED);
}

static void unlink_parcel(struct binpool *pool, struct parcel *p)
{
	struct bin *b = bins_at(pool, p->bin);

	LIST_REMOVE(pool->depot.parcels, p, newer, older);
	LIST_REMOVE(b->parcels, p, prev, next);
	__atomic_store_n(&b->parcels_n, b->parcels_n - 1, __ATOMIC_RELAXED);
}

/*
 * The @n oldest buffers of a magazine, and their part of the thread's credit. False: there is no
 * memory for a parcel.
 */
bool depot_give(struct cache *c, struct magazine *m, uint32_t n)
{
	struct binpool *pool = c->pool;
	struct depot *depot = &pool->depot;
	uint64_t bytes = n * m->capacity;
	struct parcel *p;
	struct bin *b;

	assert(n <= PARCEL_MAX);
	lock_take(&depot->lock);
	p = depot->spare;
	if (p)
		depot->spare = p->older;
	else
		p = malloc(sizeof(*p));
	if (p) {
		p->since = stamp_of(pool);
		p->capacity = m->capacity;
		p->bin = m->bin;
		p->n = n;
		memcpy(p->items, m->items, n * sizeof(*m->items));
		b = m->in_pool;
		LIST_PUSH(b->parcels, p, prev, next);
		__atomic_store_n(&b->parcels_n, b->parcels_n + 1, __ATOMIC_RELAXED);
		LIST_PUSH(depot->parcels, p, newer, older);
		count(pool, bytes);
	}
	lock_give(&depot->lock);
	if (!p)
		return false;
	magazine_drop(c, m, n);
	m->given += n;
	c->granted -= bytes;
	c->credit -= bytes;
	c->left -= (int64_t)bytes;
	return true;
}

/*
 * Buffers for a magazine that has none: of one parcel, as many as the cache then has @most
 * bytes, but one at least. Their credit comes with them. False: there are none of the class.
 */
bool depot_take(struct cache *c, struct magazine *m, uint64_t most)
{
	struct binpool *pool = c->pool;
	struct depot *depot = &pool->depot;
	struct bin *b = m->in_pool;
	uint64_t room = most > cache_bytes(c) ? (most - cache_bytes(c)) / m->capacity : 0;
	uint64_t bytes, unused;
	struct parcel *p;
	uint32_t n = 0;

	assert(!magazine_fill(m->count) && m->room >= PARCEL_MAX);
	lock_take(&depot->lock);
	p = b->parcels;
	if (p) {
		n = (uint32_t)u64_max(u64_min(room, p->n), 1);
		p->n -= n;
		memcpy(m->items, p->items + p->n, n * sizeof(*m->items));
		count(pool, -(n * m->capacity));
		if (!p->n) {
			unlink_parcel(pool, p);
			p->older = depot->spare;
			depot->spare = p;
		}
	}
	lock_give(&depot->lock);
	if (!n)
		return false;
	m->count += n;
	m->given -= n;
	/* The credit that came with them is for what the thread has none left for. */
	bytes = n * m->capacity;
	unused = u64_min((uint64_t)c->left, bytes);
	__atomic_sub_fetch(&pool->cache_credit, unused, __ATOMIC_RELAXED);
	c->granted += bytes - unused;
	c->credit += bytes - unused;
	c->left -= (int64_t)unused;
	return true;
}

/* A parcel's buffers go into their bin, as held since @since. Locked. */
static void empty_parcel(struct binpool *pool, struct parcel *p)
{
	struct bin *b = bins_at(pool, p->bin);
	uint64_t bytes = p->n * p->capacity;

	assert_locked(pool);
	unlink_parcel(pool, p);
	count(pool, -bytes);
	pool->cache_credit -= bytes;
	b->cached -= p->n;
	pool->stats.held_blocks -= p->n;
	pool->stats.held_bytes -= bytes;
	for (uint32_t i = 0; i < p->n; i++)
		bins_hold(pool, p->items[i].run);
	free(p);
}

/* All that is in it goes into the bins. Locked. */
void depot_empty(struct binpool *pool)
{
	while (pool->depot.parcels)
		empty_parcel(pool, pool->depot.parcels);
}

/* The same of one bin; false: there was nothing. Locked. */
bool depot_empty_bin(struct binpool *pool, struct bin *bin)
{
	bool any = bin->parcels;

	while (bin->parcels)
		empty_parcel(pool, bin->parcels);
	return any;
}

/* What came until @before goes into the bins, as held since then. Locked. */
void depot_take_old(struct binpool *pool, uint64_t before)
{
	struct parcel *older;

	for (struct parcel *p = pool->depot.parcels; p; p = older) {
		older = p->older;
		if (p->since > before)
			continue;
		if (before != UINT64_MAX)
			pool->stamp = p->since;
		empty_parcel(pool, p);
	}
}

const char *depot_check(const struct binpool *pool, uint64_t *buffers)
{
	uint64_t bytes = 0;

	assert_locked(pool);
	for (const struct parcel *p = pool->depot.parcels; p; p = p->older) {
		const struct bin *b = bins_at((struct binpool *)pool, p->bin);
		const struct parcel *q = b->parcels;
		uint32_t n = 0;
		bool listed = false;

		for (; q; q = q->next, n++)
			listed = listed || q == p;
		if (!listed || n != b->parcels_n)
			return "each parcel is in its bin's list";
		if (!p->n || p->n > PARCEL_MAX)
			return "no parcel is empty";
		for (uint32_t i = 0; i < p->n; i++) {
			const struct run *run = p->items[i].run;

			if (run_state(run) != RUN_CACHED || run->bin != p->bin ||
			    run->ptr != p->items[i].ptr || run->bytes != p->capacity)
				return "what is in a parcel is cached";
		}
		*buffers += p->n;
		bytes += p->n * p->capacity;
	}
	return bytes == depot_bytes(&pool->depot) ? NULL : "the depot's bytes are counted";
}
