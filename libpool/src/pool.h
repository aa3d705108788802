/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Private header of libbinpool: the pool's state, who owns which part, and the
 * locks.
 *
 * Locks, in the order in which they may be taken:
 *
 *  1. pools_lock (fork.c): the list of all pools. Held for list work and
 *     around fork only.
 *  2. pool->turn: the right to call the provider and the registrars of a pool.
 *     So they are called by one thread at a time, and two threads that miss at
 *     once do not both grow the pool. No other pool's turn is needed for it,
 *     unless a callback uses that other pool.
 *  3. The locks of a pool's arenas, in their order; the first is always there. Held for
 *     short, bounded work; never over a callback, a provider call, a system call other
 *     than mmap by malloc and those that wake, or a wait for anything else.
 *
 *  4. threads_lock (cache.c) comes between pools_lock and those: the tables in which
 *     threads find their caches. pagemap_lock (pagemap.c), records_lock (thread.c) and
 *     pool->depot.lock (depot.c) come last, and no other is taken under them.
 *
 * The pool's lock is the locks of all its arenas: whoever holds them (pool_lock) has the pool
 * locked, and with it every member that is not said to be another's, its runs, bins and
 * extents. One of them is enough to cut a free run of that arena, or to make one, and no more
 * (arena.c). A pool that threads do not miss in at the same time has one arena.
 *
 * A thread's cache of a pool has no lock: cache.h says who may touch it when.
 *
 * A function whose comment says "locked" needs the pool locked, one that says
 * "in turn" needs pool->turn and must not have the pool locked. Both assert it.
 *
 * Whoever frees a buffer never waits for the turn: if extents that became empty
 * are to go, it sets pool->give_back, and the thread that has the turn gives
 * them back (extents_settle).
 */
#ifndef BINPOOL_POOL_H
#define BINPOOL_POOL_H

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include <binpool.h>
#include <linux/binpool_bins.h>

/* What other shared objects see; everything else is hidden by the build. */
#define EXPORT		  __attribute__((visibility("default")))
#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define ARRAY_SIZE(a)	  (sizeof(a) / sizeof((a)[0]))

/* Alignment and smallest size of a buffer, unless the user says otherwise: one cache line. */
#define GRANULE_DEFAULT 64u
/* Bounds on what one growth of a pool takes from its provider. */
#define EXTENT_BYTES_MIN ((uint64_t)4 << 20)
#define EXTENT_BYTES_MAX ((uint64_t)1 << 30)
#define EXTENT_IDLE_MS	 10000u
#define ALIGNMENT_MAX	 ((uint64_t)1 << 30)

static inline uint64_t u64_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t u64_max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline bool is_pow2(uint64_t n)
{
	return n && !(n & (n - 1));
}

/* @n to the next multiple of @unit, a power of two; 0 on overflow. */
static inline uint64_t round_up(uint64_t n, uint64_t unit)
{
	return n > UINT64_MAX - (unit - 1) ? 0 : (n + unit - 1) & ~(unit - 1);
}

/* The next power of two; 0 on overflow. */
static inline uint64_t pow2_ceil(uint64_t n)
{
	if (n <= 1)
		return 1;
	return n > (uint64_t)1 << 63 ? 0 : (uint64_t)1 << (binpool_log2(n - 1) + 1);
}

#include "lock.h"
#include "run.h"
#include "slab.h"

/* ---- Extents: extent.c -------------------------------------------------- */

/* That a registrar knows of an extent. In turn. */
struct attachment {
	struct attachment *next; /* the one made before */
	struct registrar *registrar;
	void *cookie;
	bool broken; /* not registered, but it could not be undone */
};

struct extent {
	struct extent *prev, *next;		/* in pool->extents; pool->voids: next only */
	struct arena *arena;			/* whose lock its runs need; changes locked */
	struct extent *arena_next;		/* in its extents */
	struct extent *empty_prev, *empty_next; /* in its empty ones, if without buffers */
	char *base;
	uint64_t bytes;
	uint64_t locked_bytes; /* so many, from base on, cannot be swapped out */
	uint64_t room;	       /* bytes of addresses that are its own, from base on; in turn */
	struct run *first;     /* at base */
	struct run *last;      /* at the end */
	struct frame_index free;
	uint64_t buffers;    /* active and held */
	bool is_void;	     /* addresses only, for buffers of size 0 */
	bool measuring;	     /* extents_measure's */
	bool small;	     /* the provider had to take small pages */
	bool registered;     /* all registrars have it, and there is one; changes in turn, locked */
	bool lost;	     /* one had it; in turn */
	bool refused;	     /* the pool's thread tried in vain */
	uint64_t since;	     /* its end, or all of it, is free; see pool->stamp */
	int fd;		     /* file behind all of it, -1: none or several */
	int32_t node;	     /* -1: unknown or several */
	uint64_t runs;	     /* physically contiguous runs, 0: unknown */
	uint64_t page_bytes; /* really mapped; 0: not looked at yet */
	void *private;	     /* the provider's */
	struct attachment *attachments;
};

#include "provider.h"
#include "versioned.h"

/* ---- Bins: bins.c ------------------------------------------------------- */

struct bin {
	struct run *head; /* held, most recently returned first */
	uint64_t held;	  /* in the list */
	uint64_t cached;  /* held by threads, and in the depot */
	uint64_t active;
	struct parcel *parcels; /* the depot's, the most recent first */
	uint32_t parcels_n;	/* how many; may be read with any arena locked */
	struct slab *slabs;	/* those with a free slot */
	struct slab *spare;	/* without memory, to be used again */
};

/* The bins between two powers of two. */
struct bin_level {
	uint64_t held;
	uint64_t *holding; /* a bit for each bin that holds something */
	struct bin bins[]; /* 2^mantissa_bits */
};

#include "arena.h"
#include "depot.h"
#include "fence.h"
#include "list.h"
#include "note.h"
#include "reaper.h"
#include "registrar.h"
#include "share.h"
#include "thread.h"

/* ---- The pool ----------------------------------------------------------- */

struct binpool {
	/* Fixed at create; first what every call looks at, of cache_levels one. */
	uint32_t fast_number; /* the number if it is small enough for the fast path, else 0 */
	uint32_t cache_tight; /* this, cache_mask and cache_levels: for cache_place() */
	uint64_t cache_mask;
	uint32_t number;    /* of the pool among those that have caches; 0: it is none of them */
	uint32_t cache_bin; /* the first that is cached, and how many are; 0: no caches */
	uint32_t cache_bins;
	uint32_t mantissa_bits;
	struct cache_level {
		uint32_t shift, base;
	} cache_levels[64];
	char *name;
	uint32_t classes;
	uint32_t flags;
	uint64_t granule;
	uint64_t max_bytes;
	const char *max_from; /* what set it, for messages */
	bool exact;	      /* over an allocator: an extent is one buffer */
	bool handles;	      /* and that a handle: what is called ptr and base is a number */
	uint64_t cache_bytes; /* as in the options */
	uint32_t extent_idle_ms;
	struct reaper *reaper; /* NULL: there is none */
	struct provider provider;

	/* pools_lock. */
	struct binpool *pools_prev, *pools_next;
	bool dead; /* this process got the pool by fork; never changes after */

	struct queue_lock turn;
	const void *turn_holder;			/* for assertions; see thread_self() */
	struct registrar *registrars, *registrars_last; /* change in turn and locked */
	uint64_t registrar_ids;				/* in turn */
	struct background *background; /* NULL: there is none; made in turn, read atomically */

	struct arena arena; /* the first, and of most pools the only one */
	const void *lock_holder;
	uint32_t arenas_max;
	uint32_t arenas_used; /* changes locked */
	struct arena *arenas[ARENAS_MAX];
	struct depot depot;
	uint32_t idle;	  /* grows: active_blocks and leaving became 0, or as waiters wants it */
	uint32_t idlers;  /* threads in pool_wait() */
	uint64_t leaving; /* threads in a call that need the pool, though not a buffer */
	uint64_t finders; /* others, that found it by an address of its memory */
	uint64_t waiters; /* threads that wait on idle for any buffer to be freed */
	bool starved;	  /* a request was refused for want of the provider's memory */
	struct fences fences;
	struct shares shares;
	struct extent *extents, *extents_last; /* the oldest first */
	struct extent *voids;
	struct extent *stuck;	  /* that could not be given back; reserved, and tried again */
	bool stuck_told;	  /* somebody was told that a registrar did not let go */
	bool reserved_ahead;	  /* by the user, and so to be used first */
	bool give_back;		  /* the empty extents are to go */
	uint64_t pending;	  /* bytes being got or given back; reserved + pending <= max */
	struct run_chunk *chunks; /* what struct runs come from */
	struct run **lookup;	  /* buffers by address */
	uint64_t lookup_size;	  /* a power of two */
	uint64_t lookup_count;
	struct cache *caches;  /* of all threads */
	uint32_t cache_off;    /* reasons why nothing is to be cached: as long, all are revoked */
	uint64_t cache_credit; /* what all caches and the depot may hold; atomic */
	uint64_t binned_bytes; /* capacity of what is held in bins */
	uint64_t caches_awake; /* caches of threads that are not idle */
	uint64_t idle_looked;  /* when they were looked at: stamp */
	uint64_t largest;      /* capacity of the largest buffer lately missed or freed; atomic */
	uint64_t largest_next; /* the same since that was last looked at; atomic */
	uint64_t stamp;	       /* since when what is held now is not used; coarse_ns(); atomic */
	uint64_t feeds;	       /* pools that have this one as their allocator */
	struct note **notes;   /* by run */
	uint64_t notes_size;   /* a power of two */
	uint64_t notes_count;
	struct bin_level *levels[64];
	uint64_t levels_held; /* bit l: levels[l] holds something */
	uint64_t active_capacity;
	struct binpool_stats stats; /* what is not derived from others */
} __attribute__((aligned(64)));

/* pool.c: checks that come first in every public function: -EINVAL, -EOWNERDEAD, -EDEADLK. */
int pool_enter(const struct binpool *pool);
void turn_take(struct binpool *pool);
bool turn_try(struct binpool *pool);
void turn_give(struct binpool *pool);
/* The same, for functions on host pointers: -EINVAL in a pool of handles. */
int pool_enter_host(const struct binpool *pool);
/* Whether this thread is in a callback of the pool's. */
bool callback_of(const struct binpool *pool);
/* One thread less that needs the pool, of @pins: leaving or finders. No lock is held. */
void pool_unpin(struct binpool *pool, uint64_t *pins);
/* The callbacks that the thread is in. */
extern __thread struct callback *thread_callbacks TLS;

/* Something that is the calling thread's alone. */
static inline const void *thread_self(void)
{
	return &thread_callbacks;
}

static inline void pool_lock(struct binpool *pool)
{
	lock_take(&pool->arena.lock);
	arenas_lock_rest(pool);
}

static inline void pool_unlock(struct binpool *pool)
{
	arenas_unlock_rest(pool);
	lock_give(&pool->arena.lock);
}
uint64_t now_ns(void);
/* Waits for what pool->idle tells, until @end (now_ns()); false: it is past. Locked. */
bool pool_wait(struct binpool *pool, uint64_t end);
/* Wakes those. Locked. */
void pool_wake(struct binpool *pool);
/* The -ERRNO that a callback of the user's returned, made one if it is none. */
int callback_errno(int err);
/* What its name follows in a line on standard error: no second "binpool" if that is its name. */
const char *pool_prefix(const struct binpool *pool);
/* A verbose pool's line. */
void pool_trace(const struct binpool *pool, const char *fmt, ...) PRINTF(2, 3);

/* Another thread may be writing its own name meanwhile, which is not ours either. */
static inline bool holds(const void *const *holder)
{
	return __atomic_load_n(holder, __ATOMIC_RELAXED) == thread_self();
}

static inline void assert_locked(const struct binpool *pool)
{
	assert(holds(&pool->lock_holder));
}

/* The pool is locked, or at least the arena is. */
static inline void assert_arena(const struct binpool *pool, const struct arena *arena)
{
	assert(holds(&arena->holder) || holds(&pool->lock_holder));
}

static inline bool turn_is_mine(const struct binpool *pool)
{
	return holds(&pool->turn_holder);
}

static inline void assert_turn(const struct binpool *pool)
{
	assert(holds(&pool->turn_holder));
	assert(!holds(&pool->lock_holder));
}

/*
 * Marks the calling thread as inside a callback of @pool, so that a callback
 * that uses its own pool gets an error instead of a deadlock.
 */
struct callback {
	const struct binpool *pool;
	struct callback *outer;
	struct cache *cache; /* the thread's, which is hidden meanwhile */
};

void callback_enter(struct callback *c, const struct binpool *pool);
void callback_leave(struct callback *c);

/* fork.c */
int fork_watch(struct binpool *pool);
void fork_unwatch(struct binpool *pool);
/* Calls @fn with every pool, the newest first; none can be destroyed meanwhile. */
void pools_each(void (*fn)(struct binpool *pool, void *arg), void *arg);

/* options.c */
/*
 * Copies a versioned struct of the user's: -EINVAL, or -E2BIG for an unknown
 * tail that is not zero. @to->size is set to sizeof(*to).
 */
int struct_in(void *to, size_t known, const void *from, const char *what);
/* Applies BINPOOL_OPTS, checks every member, fills in what is left to the library. */
int options_complete(struct binpool_options *o);

/* bins.c */
uint64_t class_capacity(const struct binpool *pool, uint64_t size);
uint64_t class_bin_capacity(const struct binpool *pool, uint32_t bin);
uint32_t class_bin(const struct binpool *pool, uint64_t capacity);
uint64_t class_align(const struct binpool *pool, uint64_t capacity);
int bins_prepare(struct binpool *pool, uint32_t bin);
/* NULL: nothing was ever in it. */
static inline struct bin *bins_at(struct binpool *pool, uint32_t bin)
{
	struct bin_level *level = pool->levels[bin >> pool->mantissa_bits];

	return level ? &level->bins[bin & ((1u << pool->mantissa_bits) - 1)] : NULL;
}
/* Whether buffers of @capacity come from slabs. */
static inline bool slab_serves(const struct binpool *pool, uint64_t capacity)
{
	return capacity < MAP_PAGE_BYTES && !pool->exact;
}
void bins_hold(struct binpool *pool, struct run *run);
void bins_unhold(struct binpool *pool, struct run *run);
struct run *bins_take(struct binpool *pool, uint32_t bin, uint64_t align);
struct run *bins_largest(struct binpool *pool);
void bins_trim(struct binpool *pool);
void bins_fini(struct binpool *pool);

/* carve.c; all locked, but those that are said to need the arena's lock only. */
int runs_prepare_more(struct binpool *pool, struct arena *arena);
/* So many struct runs are enough: a carving needs two, a new extent one. */
static inline bool runs_ready(const struct arena *arena)
{
	return __builtin_expect(arena->spares >= 3, 1);
}
/* Makes sure of it, whatever arena the run is in that is found. -ENOMEM. */
static inline int runs_prepare(struct binpool *pool)
{
	for (uint32_t i = 0; i < pool->arenas_used; i++)
		if (!runs_ready(pool->arenas[i]) && runs_prepare_more(pool, pool->arenas[i]))
			return -ENOMEM;
	return 0;
}
/* From those that were prepared; a free one, in no list. */
struct run *run_new(struct arena *arena);
void run_delete(struct arena *arena, struct run *run);
void runs_fini(struct binpool *pool);
int runs_index(struct extent *e);
void runs_unindex(struct extent *e);
void runs_start(struct binpool *pool, struct extent *e);
void runs_extend(struct binpool *pool, struct extent *e, uint64_t bytes);
struct run *runs_cut(struct binpool *pool, struct extent *e, uint64_t bytes);
struct run *run_find(const struct binpool *pool, const struct arena *arena, uint64_t bytes,
		     uint64_t align);
struct run *extent_find(struct extent *e, uint64_t bytes, uint64_t align);
struct run *carve(struct binpool *pool, const struct arena *arena, uint64_t bytes, uint64_t align);
struct run *carve_from(struct binpool *pool, struct run *run, uint64_t bytes, uint64_t align);
bool run_fits(const struct run *run, uint64_t bytes, uint64_t align);
int16_t run_class(uint64_t bytes);
void dissolve(struct binpool *pool, struct run *run);

/* lookup.c; all locked. */
int lookup_prepare(struct binpool *pool);
void lookup_add(struct binpool *pool, struct run *run);
void lookup_remove(struct binpool *pool, struct run *run);
struct run *lookup_find(const struct binpool *pool, const void *ptr);

/* extent.c */
int extent_get(struct binpool *pool, uint64_t bytes, uint64_t align, struct extent **out,
	       bool *shortage);
bool extent_unget(struct binpool *pool, struct extent *e);
uint64_t extents_retry(struct binpool *pool, bool registered);
void pending_end(struct binpool *pool, uint64_t bytes);
void extent_link(struct binpool *pool, struct extent *e);
void extent_set_empty(struct binpool *pool, struct extent *e, bool empty);
struct extent *empty_after(const struct binpool *pool, const struct extent *e);
bool extents_extensible(const struct binpool *pool);
int extent_extend(struct binpool *pool, struct extent *e, uint64_t more, struct extent *piece,
		  bool *shortage);
void extent_link_more(struct binpool *pool, struct extent *e, const struct extent *piece);
void extents_give_back(struct binpool *pool);
uint64_t extents_shrink(struct binpool *pool, uint64_t keep, uint64_t before);
uint64_t extents_give_back_some(struct binpool *pool, uint64_t keep, uint64_t before);
void extents_settle(struct binpool *pool);
struct run *void_take(struct binpool *pool, uint64_t bytes, uint64_t align);
int void_grow(struct binpool *pool, uint64_t align);
void voids_fini(struct binpool *pool);
void extents_forget(struct binpool *pool);

/* alloc.c; no lock is held. */
int allocate(struct binpool *pool, uint64_t bytes, uint64_t align, uint32_t flags,
	     struct binpool_buf *buf);

/* buffer.c: what is known of an active buffer. Locked, unless it is the caller's alone. */
void buf_describe(const struct binpool *pool, const struct run *run, bool clean,
		  struct binpool_buf *buf);

/* Where a described buffer is looked up. */
static inline char *buf_key(const struct binpool *pool, const struct binpool_buf *buf)
{
	return pool->handles && buf->handle ? (char *)(uintptr_t)buf->handle : buf->ptr;
}

/* trim.c: a cheap clock, which goes on with the system's ticks. */
uint64_t coarse_ns(void);
/* pool->stamp for those who hold an arena's lock only; and makes it now. */
static inline uint64_t stamp_of(const struct binpool *pool)
{
	return __atomic_load_n(&pool->stamp, __ATOMIC_RELAXED);
}

static inline void stamp_now(struct binpool *pool)
{
	uint64_t now = coarse_ns();

	/* Not written in vain: other threads read it. */
	if (stamp_of(pool) != now)
		__atomic_store_n(&pool->stamp, now, __ATOMIC_RELAXED);
}
void trim_idle(struct binpool *pool, uint64_t age_ms);

/* leak.c; no lock is held. */
void leaks_tell(struct binpool *pool, void *unused);
int leaks_watch(const struct binpool *pool);

/* free.c */
struct cache;
int release_at(struct binpool *pool, const char *ptr, const size_t *size);
void release_run(struct binpool *pool, struct cache *c, struct run *run);
struct run *buffer_find(struct binpool *pool, const void *ptr, const size_t *size);
void buffer_return(struct binpool *pool, struct run *run);
void wake_idle(struct binpool *pool);
void held_release_one(struct binpool *pool, struct run *run);
void held_dissolve(struct binpool *pool, struct run *run);

/* stats.c */
void stats_measure(struct binpool *pool);
/* A count that is less than nothing for a moment: 0. */
uint64_t not_negative(uint64_t n);
void stats_collect(const struct binpool *pool, struct binpool_stats *out);

/* debug.c: what is free now, and what is to be handed out again. Locked. */
void debug_poison(const struct binpool *pool, const struct run *run);
void debug_check(const struct binpool *pool, const struct run *run);

/* check.c: invariants of everything above; what is broken, or NULL. Locked. */
const char *pool_check(struct binpool *pool);

/* error.c */
/* Makes the sentence that binpool_last_error() answers; returns @err. */
int explain(int err, const char *fmt, ...) PRINTF(2, 3);
#define HUMAN_LEN 32
/* "64 MiB", "129.5 MiB", "17 B". */
const char *human(uint64_t bytes, char buf[HUMAN_LEN]);
/* What a word for @n things ends with. */
const char *plural(uint64_t n);

#endif /* BINPOOL_POOL_H */
