/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A thread's cache of a pool: buffers that it freed, by size class, to be handed
 * out again without a lock, an atomic read-modify-write or a system call.
 *
 * Who may touch a cache:
 *  - its thread, between cache_enter() and cache_leave(): magazines and asked;
 *  - whoever has the pool locked and has revoked it (caches_revoke): everything;
 *  - its thread outside of these two, if it holds the lock of any arena; what nobody else
 *    changes, as a magazine's capacity, it may read at any time.
 * A thread that is inside sets busy first and looks at limit then, or at revoked off the
 * fast path; a thief sets both first and looks at busy then. Each must see the other's: the
 * thief's membarrier() stands for the barrier that the owner saves.
 *
 * A cached buffer is held: what the pool's counters say of it is brought up to
 * date when somebody reads them (caches_settle).
 */
#ifndef BINPOOL_CACHE_H
#define BINPOOL_CACHE_H

#include "pool.h"

/* No magazine is larger; its number of buffers has this many bits in its count. */
#define MAGAZINE_MAX  (2 * PARCEL_MAX)
#define MAGAZINE_BITS 16

/* So far cache_place() shifts first, so that it need not shift to both sides. */
#define LEVEL_SHIFT 12

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
	uint32_t room; /* of items */
	uint32_t bin;
	struct cached *items;
	uint64_t capacity;     /* of each buffer; 0: not yet in use by its thread */
	uint64_t align;	       /* what each is a multiple of */
	struct bin *in_pool;   /* the pool's bin of the class */
	uint64_t settled;      /* count, as the pool's counters have it */
	struct magazine *next; /* of those in use, of this cache */
	uint64_t decayed;      /* count when cache_decay() last looked */
	uint64_t since;	       /* when it was looked at: coarse_ns() */
	uint64_t since_count;  /* count then: what was in it is if nothing was taken out */
	/* With an arena's lock since it was settled: */
	uint64_t evicted;   /* buffers of it that were dissolved */
	uint64_t carved;    /* of its class, and handed out */
	uint64_t dissolved; /* of its class, by their user's freeing them */
	uint64_t given;	    /* buffers of it to the depot, less those from there */
} __attribute__((aligned(64)));

/* So many classes of a thread's last misses are remembered. */
#define RECENT_MAX 4u

struct cache {
	uint32_t busy;
	uint32_t limit; /* the fast path is for places below it: as far as top; 0 if revoked */
	int64_t left;	/* of the credit */
	uint64_t asked; /* bytes asked for since it was made, less those freed */
	uint32_t revoked;
	uint32_t top;	 /* no magazine above this one has a buffer */
	uint64_t credit; /* bound on the capacity of what is in it */

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

	struct magazine magazines[]; /* pool->cache_bins of them */
};

/* Where there is no cache: its limit is 0. All threads' who have none. */
extern struct cache cache_none;

/* The fast path is for pools with a smaller number; no table has fewer places. */
#define FAST_NUMBERS 32u

/* A thread's caches, by the number of the pool; no pool has number 0. */
struct thread_caches {
	uint32_t size;
	struct cache *cache[];
};

extern __thread struct thread_caches *thread_caches TLS;

/* The calling thread's cache of @pool; cache_none also if that is not for the fast path. */
static FAST struct cache *cache_fast(const struct binpool *pool)
{
	return thread_caches->cache[pool->fast_number];
}

/* The calling thread's cache of @pool, or NULL. */
static inline struct cache *cache_of(const struct binpool *pool)
{
	const struct thread_caches *t = thread_caches;
	struct cache *c = pool->number < t->size ? t->cache[pool->number] : &cache_none;

	return c == &cache_none ? NULL : c;
}

/* revoked */
#define CACHE_REVOKED 1u /* a thief is at work, or nothing is to be cached */
#define CACHE_FENCED  2u /* membarrier() cannot be had: the owner's barrier is a real one */

/* Whether its owner has to go another way than the fast one. */
static inline bool cache_is_slow(const struct cache *c, const struct binpool *pool)
{
	return !pool->fast_number || __atomic_load_n(&c->revoked, __ATOMIC_RELAXED) & CACHE_FENCED;
}

/* Capacity of what is in it. */
static inline uint64_t cache_bytes(const struct cache *c)
{
	return c->credit - (uint64_t)c->left;
}

/* What limit is to be. Locked, or by the owner with the lock of his arena. */
static inline void cache_limit(struct cache *c)
{
	uint32_t limit = c->revoked ? 0 : (c->top + 1) * (uint32_t)sizeof(struct magazine);

	__atomic_store_n(&c->limit, limit, __ATOMIC_RELEASE);
}

static inline void cache_set_top(struct cache *c, uint32_t top)
{
	c->top = top;
	cache_limit(c);
}

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
 * The place of the magazine that requests of @size use, in bytes from the first of a cache;
 * beyond all of them if there is none. This is the pool's own arithmetic without its special
 * cases. Tight classes are those of size - 1, and rounding to the granule sets the bits below it;
 * HySoP's are those of size, and what ends within a granule is up to its last byte. So all bits
 * below the granule may be set at once. Size 0 is none of HySoP's: see allocate_cached().
 */
static FAST uint32_t cache_place(const struct binpool *pool, uint64_t size)
{
	uint64_t x = (size - pool->cache_tight) | pool->cache_mask;
	const struct cache_level *level = &pool->cache_levels[63 ^ __builtin_clzll(x)];

	return ((uint32_t)(x << LEVEL_SHIFT >> level->shift) + level->base) *
	       (uint32_t)sizeof(struct magazine);
}

/* Whether there are magazines for the class. */
static inline bool is_cached(const struct binpool *pool, uint32_t bin)
{
	return bin - pool->cache_bin < pool->cache_bins;
}

static inline uint32_t place_of(const struct binpool *pool, uint32_t bin)
{
	return (bin - pool->cache_bin) * (uint32_t)sizeof(struct magazine);
}

static inline void run_set_bin(const struct binpool *pool, struct run *run, uint32_t bin)
{
	run->bin = bin;
	run->place = place_of(pool, bin);
}

static FAST struct magazine *magazine_of(struct cache *c, uint32_t place)
{
	return (struct magazine *)((char *)c->magazines + place);
}

/* cache.c */
void magazine_start(struct cache *c, struct magazine *m);

/*
 * The thread's magazine of a class that the pool has bins of, from now on in use. Its owner's, who
 * holds an arena's lock.
 */
static inline struct magazine *magazine_at(struct cache *c, uint32_t bin)
{
	struct magazine *m = &c->magazines[bin - c->pool->cache_bin];

	if (__builtin_expect(!m->capacity, 0))
		magazine_start(c, m);
	return m;
}

/* The thread asked for a buffer of the class, and its cache had none. As magazine_at(). */
static inline void cache_missed(struct cache *c, uint32_t bin)
{
	c->recent[c->recent_next++ % RECENT_MAX] = bin;
}

/*
 * A buffer of the magazine at @place, which is active then, or NULL. @asked is what the user
 * wants of it. Inside, or with a lock that keeps others out; so is magazine_push().
 */
static FAST char *magazine_pop(struct cache *c, uint32_t place, uint64_t asked)
{
	struct magazine *m = magazine_of(c, place);
	uint64_t count = __atomic_load_n(&m->count, __ATOMIC_RELAXED);
	const struct cached *item;
	struct run *run;
	char *ptr;

	if (__builtin_expect(!magazine_fill(count), 0))
		return NULL;
	count += (1u << MAGAZINE_BITS) - 1;
	item = &m->items[magazine_fill(count)];
	run = item->run;
	ptr = item->ptr;
	if (!ptr)
		__builtin_unreachable();
	run_set_live(run, ptr);
	/* Who asks about any address may read it meanwhile. */
	__atomic_store_n(&run->asked, asked, __ATOMIC_RELAXED);
	c->left += (int64_t)m->capacity;
	__atomic_store_n(&m->count, count, __ATOMIC_RELAXED);
	owner_add(&c->asked, asked);
	return ptr;
}

/* Takes an active buffer from the user, if there is room for it. */
static FAST bool magazine_push(struct cache *c, uint32_t place, struct run *run, char *ptr)
{
	struct magazine *m = magazine_of(c, place);
	uint64_t count = __atomic_load_n(&m->count, __ATOMIC_RELAXED);
	int64_t left = c->left - (int64_t)m->capacity;

	if (__builtin_expect(magazine_fill(count) >= m->room || left < 0, 0))
		return false;
	m->items[magazine_fill(count)] = (struct cached){ptr, run};
	run_set_live(run, NULL);
	c->left = left;
	__atomic_store_n(&m->count, count + 1, __ATOMIC_RELAXED);
	owner_add(&c->asked, -run->asked);
	return true;
}

/* As cache_enter(), with the limit in the place of revoked: nothing else needs to be asked. */
static FAST bool cache_enter_fast(struct cache *c, uint32_t place)
{
#ifdef __SANITIZE_THREAD__
	__atomic_exchange_n(&c->busy, 1, __ATOMIC_SEQ_CST);
#endif
	__atomic_store_n(&c->busy, 1, __ATOMIC_RELAXED);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	return __builtin_expect(place < __atomic_load_n(&c->limit, __ATOMIC_ACQUIRE), 1);
}

/* The owner's two fast ways; NULL or false: there is nothing, or no room, or it is not for them. */
static FAST char *cache_pop(struct cache *c, uint32_t place, uint64_t asked)
{
	char *ptr = cache_enter_fast(c, place) ? magazine_pop(c, place, asked) : NULL;

	cache_leave(c);
	return ptr;
}

static FAST bool cache_push(struct cache *c, struct run *run, char *ptr)
{
	uint32_t place = run->place;
	bool pushed = cache_enter_fast(c, place) && magazine_push(c, place, run, ptr);

	cache_leave(c);
	return pushed;
}

/* Starts to count how long what is in a magazine is not used. As magazine_at(), or locked. */
static inline void magazine_look(struct magazine *m, uint64_t now)
{
	m->since = now;
	m->since_count = m->count;
}

/* cache.c */
int caches_init(struct binpool *pool, const struct binpool_options *o);
void caches_fini(struct binpool *pool);
struct cache *cache_get(struct binpool *pool);
bool cache_raise(struct cache *c, uint32_t place, uint64_t align);
char *cache_pop_slowly(struct cache *c, uint32_t place, uint64_t asked);
bool cache_push_slowly(struct cache *c, struct run *run, char *ptr);
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
bool bins_have_room(struct binpool *pool, uint64_t capacity);
enum cache_room {
	ROOM_NONE,
	ROOM_MADE,
	ROOM_LOCKED, /* only to be had with the pool locked */
};
enum cache_room cache_make_room(struct cache *c, struct magazine *m, bool alone);
void cache_refill(struct cache *c, struct magazine *m);
bool cache_take_parcel(struct cache *c, struct magazine *m);

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
char *arena_alloc(struct cache *c, uint32_t place, uint64_t bytes);
bool arena_free(struct cache *c, struct run *run, const char *ptr, const size_t *size);
/* With the lock of the thread's arena. */
bool arena_evict(struct cache *c, struct magazine *m, uint32_t n);

#endif /* BINPOOL_CACHE_H */
