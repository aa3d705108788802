/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A thread's cache of a pool: buffers that it freed, by size class, to be handed
 * out again without a lock, an atomic read-modify-write or a system call.
 *
 * Who may touch a cache:
 *  - its thread, between cache_enter() and cache_leave(): magazines and asked;
 *  - whoever has the pool locked and has revoked it (caches_revoke): everything;
 *  - its thread outside of these two, if it holds the lock of any arena.
 * A thread that is inside sets busy first and looks at revoked then; a thief sets
 * revoked first and looks at busy then. Each must see the other's: the thief's
 * membarrier() stands for the barrier that the owner saves.
 *
 * A cached buffer is held: what the pool's counters say of it is brought up to
 * date when somebody reads them (caches_settle).
 */
#ifndef BINPOOL_CACHE_H
#define BINPOOL_CACHE_H

#include "pool.h"

/* No magazine is larger; its number of buffers has this many bits in its count. */
#define MAGAZINE_MAX  64u
#define MAGAZINE_BITS 16

/* On the way that nearly every call takes. */
#define FAST __attribute__((always_inline)) inline

struct cached {
	char *ptr;
	struct run *run;
};

/*
 * Buffers of one class, the most recently returned last. The owner counts with
 * one addition: the number of buffers is in the low bits of count, the number of
 * those taken out so far in the high bits.
 */
struct magazine {
	uint64_t count;
	uint32_t room; /* of items; 0: not yet in use */
	uint32_t bin;
	struct cached *items;
	uint64_t capacity;     /* of each buffer */
	uint64_t settled;      /* count, as the pool's counters have it */
	struct magazine *next; /* of those in use, of this cache */
	uint64_t decayed;      /* count when cache_decay() last looked */
	uint64_t since;	       /* when it was looked at: coarse_ns() */
	uint64_t since_count;  /* count then: what was in it is if nothing was taken out */
	/* By arena.c since it was settled: */
	uint64_t evicted;   /* buffers of it that were dissolved */
	uint64_t carved;    /* of its class, and handed out */
	uint64_t dissolved; /* of its class, by their user's freeing them */
} __attribute__((aligned(64)));

/* So many classes of a thread's last misses are remembered. */
#define RECENT_MAX 4u

struct cache {
	uint32_t busy;
	uint32_t revoked;
	uint64_t bytes;		    /* capacity of what is in it */
	uint64_t credit;	    /* bound on bytes */
	uint64_t asked;		    /* bytes asked for since it was made, less those freed */
	struct magazine *magazines; /* pool->cache_bins of them */
	uint32_t top;		    /* no magazine above this one has a buffer */

	struct binpool *pool;
	struct cache *prev, *next; /* pool->caches */
	struct magazine *in_use;
	uint64_t settled_asked;
	uint32_t misses;
	uint32_t recent[RECENT_MAX]; /* bins of the last misses, by their number */
	uint32_t recent_next;
	uint64_t activity; /* sum of counts when last looked at */
	uint64_t granted;  /* bound on credit; part of pool->cache_credit */
	bool idle;	   /* has no share in the budget, and nothing in it */
	struct thread_caches *thread;

	struct arena *arena;	  /* that its thread takes from; changes locked */
	uint32_t entered, waited; /* how often the thread did, for it; arena.c */
	bool crowded;		  /* it would like another */
};

/* A thread's caches, by the number of the pool. */
struct thread_caches {
	uint32_t size;
	struct cache *cache[];
};

extern __thread struct thread_caches *thread_caches TLS;

/* The calling thread's cache of @pool, or NULL. */
static inline struct cache *cache_of(const struct binpool *pool)
{
	const struct thread_caches *t = thread_caches;
	uint32_t number = pool->number;

	return __builtin_expect(number < t->size, 1) ? t->cache[number] : NULL;
}

/* revoked */
#define CACHE_REVOKED 1u /* a thief is at work, or nothing is to be cached */
#define CACHE_FENCED  2u /* membarrier() cannot be had: the owner's barrier is a real one */

/* As cache_enter(), with a barrier of its own. */
static inline bool cache_enter_fenced(struct cache *c)
{
	__atomic_exchange_n(&c->busy, 1, __ATOMIC_SEQ_CST);
	return !(__atomic_load_n(&c->revoked, __ATOMIC_SEQ_CST) & CACHE_REVOKED);
}

/*
 * Whether the cache may be used, until cache_leave(). Either way cache_leave()
 * has to follow.
 */
static FAST bool cache_enter(struct cache *c)
{
#ifdef __SANITIZE_THREAD__
	/* ThreadSanitizer knows nothing of membarrier(). */
	return cache_enter_fenced(c);
#endif
	__atomic_store_n(&c->busy, 1, __ATOMIC_RELAXED);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (__builtin_expect(!__atomic_load_n(&c->revoked, __ATOMIC_ACQUIRE), 1))
		return true;
	return __atomic_load_n(&c->revoked, __ATOMIC_RELAXED) & CACHE_FENCED &&
	       cache_enter_fenced(c);
}

static inline void cache_leave(struct cache *c)
{
	__atomic_store_n(&c->busy, 0, __ATOMIC_RELEASE);
}

static inline uint32_t magazine_fill(uint64_t count)
{
	return (uint32_t)(count & ((1u << MAGAZINE_BITS) - 1));
}

/* For the owner, inside: a value that others only read. */
static inline void owner_add(uint64_t *value, uint64_t n)
{
	__atomic_store_n(value, __atomic_load_n(value, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}

/*
 * Which magazine requests of @size use: whatever is no number of one has none. This is
 * the pool's own arithmetic without its special cases. Tight classes are those of
 * size - 1, and rounding to the granule sets the bits below it; HySoP's are those of
 * size, and what ends within a granule is up to its last byte. So all bits below the granule
 * may be set at once. Size 0 is none of HySoP's: see allocate_cached().
 */
static FAST uint64_t cache_index(const struct binpool *pool, uint64_t size)
{
	uint32_t m = pool->mantissa_bits;
	uint64_t x = (size - pool->cache_tight) | pool->cache_mask;
	uint32_t l = 63 ^ (uint32_t)__builtin_clzll(x);

	/* Where x << m is not all of it, l alone is beyond all magazines. */
	return ((uint64_t)l << m) + (x << m >> l) - pool->cache_base;
}

/*
 * A buffer of magazine @index, which is active then, or NULL: there is none, or
 * the cache is revoked. @asked is what the user wants of it.
 */
static FAST char *cache_pop(struct cache *c, uint64_t index, uint64_t asked)
{
	struct magazine *m = &c->magazines[index];
	struct cached *item;
	struct run *run;
	uint64_t count;
	char *ptr;

	if (__builtin_expect(!cache_enter(c), 0))
		goto none;
	count = __atomic_load_n(&m->count, __ATOMIC_RELAXED);
	if (__builtin_expect(!magazine_fill(count), 0))
		goto none;
	count += (1u << MAGAZINE_BITS) - 1;
	item = &m->items[magazine_fill(count)];
	run = item->run;
	ptr = item->ptr;
	run_set_state(run, RUN_ACTIVE);
	/* Who asks about any address may read it meanwhile. */
	__atomic_store_n(&run->asked, asked, __ATOMIC_RELAXED);
	c->bytes -= m->capacity;
	__atomic_store_n(&m->count, count, __ATOMIC_RELAXED);
	owner_add(&c->asked, asked);
	cache_leave(c);
	return ptr;
none:
	cache_leave(c);
	return NULL;
}

/* Takes an active buffer from the user, if there is room for it and the cache is not revoked. */
static FAST bool cache_push(struct cache *c, struct run *run, char *ptr, uint64_t index)
{
	struct magazine *m = &c->magazines[index];
	uint64_t count, bytes;

	if (__builtin_expect(!cache_enter(c), 0))
		goto full;
	count = __atomic_load_n(&m->count, __ATOMIC_RELAXED);
	bytes = c->bytes + m->capacity;
	if (__builtin_expect(magazine_fill(count) >= m->room || bytes > c->credit || index > c->top,
			     0))
		goto full;
	m->items[magazine_fill(count)] = (struct cached){ptr, run};
	run_set_state(run, RUN_CACHED);
	c->bytes = bytes;
	__atomic_store_n(&m->count, count + 1, __ATOMIC_RELAXED);
	owner_add(&c->asked, -run->asked);
	cache_leave(c);
	return true;
full:
	cache_leave(c);
	return false;
}

/* Starts to count how long what is in a magazine is not used. Locked; its owner is outside. */
static inline void magazine_look(struct magazine *m, uint64_t now)
{
	m->since = now;
	m->since_count = m->count;
}

/* cache.c */
int caches_init(struct binpool *pool, const struct binpool_options *o);
void caches_fini(struct binpool *pool);
struct cache *cache_get(struct binpool *pool);
bool cache_raise(struct cache *c, uint64_t index, uint64_t align);
struct magazine *magazine_at(struct cache *c, uint32_t bin, uint64_t capacity);
void magazine_settle(struct binpool *pool, struct magazine *m);
void magazine_drop(struct cache *c, struct magazine *m, uint32_t n);
void magazine_leave(struct cache *c, struct magazine *m, uint32_t n,
		    void (*to)(struct binpool *pool, struct run *run));
void caches_settle(struct binpool *pool);
void caches_revoke(struct binpool *pool);
void caches_revoke_idle(struct binpool *pool);
void caches_stop(struct binpool *pool);
void caches_go(struct binpool *pool);
void caches_off(struct binpool *pool, bool off);
void caches_end(struct thread *thread);
void caches_before_fork(void);
void caches_after_fork(bool child);

/* budget.c: threads that do nothing lose what they keep, after a while. Locked. */
void caches_look(struct binpool *pool);
bool caches_fenced(void);

/* budget.c; all locked, and cache_make_room() also with the lock of the thread's arena, alone. */
void cache_set_credit(struct cache *c, uint64_t credit);
void cache_missed(struct cache *c, uint32_t bin);
bool bins_have_room(struct binpool *pool, uint64_t capacity);
enum cache_room {
	ROOM_NONE,
	ROOM_MADE,
	ROOM_LOCKED, /* only to be had with the pool locked */
};
enum cache_room cache_make_room(struct cache *c, uint32_t bin, uint64_t capacity, bool alone);
void cache_refill(struct cache *c, uint32_t bin);

/* The arena of a thread, which may have no cache. Locked. */
static inline struct arena *arena_of(struct binpool *pool, const struct cache *c)
{
	return c ? c->arena : &pool->arena;
}

/* arena.c; with the pool locked. */
void arena_join(struct cache *c);
void arena_change(struct cache *c);
void arena_follow(struct cache *c, const struct run *run);
void cache_set_idle(struct cache *c, bool idle);
/* Without. */
char *arena_alloc(struct cache *c, uint32_t bin, uint64_t capacity, uint64_t align, uint64_t bytes);
bool arena_free(struct cache *c, struct run *run, const char *ptr, const size_t *size);
/* With the lock of the thread's arena. */
bool arena_evict(struct cache *c, struct magazine *m, uint32_t n);

#endif /* BINPOOL_CACHE_H */
