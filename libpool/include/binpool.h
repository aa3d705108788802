/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * libbinpool: a binned memory pool over huge, pinnable host memory.
 *
 * A pool takes *extents* from a *provider* (the binpool kernel module, hugetlb
 * pages, anonymous huge pages, or an allocator of yours), has each registered
 * once, as a whole, with the *registrars* attached to the pool (OpenCL,
 * io_uring, yours), and carves *buffers* from them. A freed buffer is *held* in
 * the *bin* of its size class and serves the next request of that class.
 *
 * Conventions
 *  - Functions return 0 (or a count) or a negative errno. Only binpool_alloc
 *    and binpool_alloc_aligned return a pointer, NULL on failure with errno
 *    set. binpool_last_error() has the sentence that explains it.
 *  - Every function may be called from any thread, and a buffer be freed by
 *    another thread than the one that took it, unless said otherwise. None may
 *    be called from a signal handler, nor left by pthread_cancel or longjmp: locks stay taken.
 *  - Sizes, capacities and amounts are in bytes; times in nanoseconds unless
 *    said otherwise.
 *  - A struct whose first member is `size` is versioned: set it to
 *    sizeof(struct) (the _INIT macros do). A larger struct than the library
 *    knows is accepted if what is unknown is zero, else -E2BIG; a smaller one
 *    is taken as if the rest were zero, resp. filled as far as it goes; who fills a
 *    binpool_fence or a binpool_allocator_ops needs it whole (-EINVAL). In a
 *    struct that is only filled, what the library does not know is zeroed. Above
 *    4096 bytes a size is -E2BIG in either, and -EINVAL if it does not cover itself: nothing
 *    was done then.
 *  - Errors common to all: -EINVAL for NULL where an object is needed, for
 *    unknown flags or values; -EOWNERDEAD in a forked child for a pool it
 *    inherited, but freeing there is 0 and does nothing, and destroying works, but for the
 *    callback that forked it (-EDEADLK).
 *
 * There is no ABI promise before 1.0.
 */
#ifndef BINPOOL_H
#define BINPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BINPOOL_VERSION_MAJOR 0
#define BINPOOL_VERSION_MINOR 1

/* A pool. */
struct binpool;

/* ---- Options ------------------------------------------------------------ */

/* kind */
#define BINPOOL_KIND_HOST   0 /* buffers are host pointers */
#define BINPOOL_KIND_HANDLE 1 /* buffers are opaque handles of an allocator's */

/* provider */
#define BINPOOL_PROVIDER_AUTO	   0 /* the first of device, hugetlb, thp that will do here */
#define BINPOOL_PROVIDER_DEVICE	   1 /* blocks of /dev/binpool */
#define BINPOOL_PROVIDER_HUGETLB   2 /* memfd of hugetlb pages */
#define BINPOOL_PROVIDER_THP	   3 /* anonymous memory, advised huge, populated; locked if allowed */
#define BINPOOL_PROVIDER_ALLOCATOR 4 /* options.allocator */

/* classes */
#define BINPOOL_CLASSES_TIGHT 0 /* powers of two are served exactly (default) */
#define BINPOOL_CLASSES_HYSOP 1 /* the classes of HySoP's MemoryPool */

/* flags of a pool */
#define BINPOOL_POOL_VERBOSE	 (1u << 0) /* a line on stderr for each operation */
#define BINPOOL_POOL_STRICT_NODE (1u << 1) /* memory of options.node or an error */
/*
 * A thread of the pool's own, which asks fences, gives back extents that are to go (what
 * drivers make slow), and empty ones beyond the first after extent_idle_ms, and all that is
 * held when memory is short: as binpool_pressure_fd tells, or when a pool of this user, in
 * whatever process, is refused memory by its provider. Callbacks may be called by it.
 */
#define BINPOOL_POOL_REAPER (1u << 2)
/*
 * What was asked for, or an error: AUTO takes the best provider, the device, or none; thp no
 * small pages, and no memory that cannot be locked. Without it these show in the report, and
 * the first small pages of a pool in a line on stderr.
 */
#define BINPOOL_POOL_STRICT (1u << 4)
/* binpool_leaks on stderr when destroying is refused, and at exit if it was not destroyed. */
#define BINPOOL_POOL_LEAKS (1u << 3)

/*
 * Finds misuse, and is slow: free buffers are filled with 0xdb, after their fences and
 * references; if one was changed when it is handed out again, stderr says so and the process is
 * aborted. Every double free is refused, of two threads at once as well. No caches.
 */
#define BINPOOL_POOL_DEBUG (1u << 5)

#define BINPOOL_NODE_ANY  (-1)
#define BINPOOL_UNLIMITED UINT64_MAX

/*
 * cache_bytes: a thirty-second of what is reserved, at least 8 MiB; besides, of classes asked
 * for a moment ago, an eighth of it or two of the largest of these, whichever is more.
 */
#define BINPOOL_CACHE_AUTO UINT64_MAX

/*
 * An allocator for BINPOOL_PROVIDER_ALLOCATOR. It is immediate: when alloc
 * returns 0 the memory is there. -ENOMEM makes the pool give held memory back
 * and try again; any other error passes straight through to the caller. Memory that would
 * reach beyond the last address is handed back, -EFAULT. The struct is copied at create. The
 * callbacks are called without a lock held, from any thread that uses the pool, one at a time, and
 * may not use that pool
 * (-EDEADLK) nor wait for a thread that does.
 *
 * A host pool needs alloc and free, a pool of handles alloc_handle and free_handle.
 * A handle is any number but 0, and no two that are out are the same.
 */
struct binpool_allocator_ops {
	size_t size;
	void *ctx;
	int (*alloc)(void *ctx, uint64_t bytes, void **ptr);
	void (*free)(void *ctx, void *ptr, uint64_t bytes);
	int (*alloc_handle)(void *ctx, uint64_t bytes, uint64_t *handle);
	void (*free_handle)(void *ctx, uint64_t handle, uint64_t bytes);
	/*
	 * For binpool_buffer_sub on handles; NULL: there are no parts. Several threads may be
	 * in these two at once. sub_free may be NULL.
	 */
	int (*sub)(void *ctx, uint64_t handle, uint64_t offset, uint64_t bytes, uint64_t *part);
	void (*sub_free)(void *ctx, uint64_t part);
	/* Called once, when the pool is destroyed; not if binpool_create failed. May be NULL. */
	void (*release)(void *ctx);
};

struct binpool_options {
	size_t size;
	const char *name;	/* for reports; copied; NULL: "binpool" */
	uint32_t kind;		/* BINPOOL_KIND_*; HANDLE needs an allocator */
	uint32_t provider;	/* BINPOOL_PROVIDER_* */
	int32_t node;		/* NUMA node or BINPOOL_NODE_ANY */
	uint32_t mantissa_bits; /* 2^this size classes per power of two; 0 to 16 */
	uint32_t classes;	/* BINPOOL_CLASSES_* */
	uint32_t flags;		/* BINPOOL_POOL_* */
	/*
	 * Bound on reserved bytes. 0: what the provider allows (device: the
	 * module's max_bytes or user_max_bytes, the smaller; hugetlb, thp, and an allocator of
	 * host memory: 80 % of physical memory; of handles: BINPOOL_UNLIMITED). AUTO takes
	 * hugetlb only if so much is free there; of 0, a sixteenth of physical memory.
	 */
	uint64_t max_bytes;
	/* Smallest unit, a power of two. 0: 64, and 1 over an allocator. */
	uint64_t granule;
	/*
	 * Bound on the capacity of what is held for the next requests, in all threads' caches
	 * and in bins; more is joined with its free neighbours. 0: threads have no caches,
	 * and everything is held. Nor do they in a VERBOSE or DEBUG pool or over an
	 * allocator.
	 */
	uint64_t cache_bytes;
	const struct binpool_allocator_ops *allocator;
	uint32_t extent_idle_ms; /* with REAPER; 0: 10 s */
	uint32_t reserved;	 /* 0 */
};

/* Defaults of every member; also what a NULL options pointer means. */
#define BINPOOL_OPTIONS_INIT                                                                       \
	{                                                                                          \
		sizeof(struct binpool_options), NULL, BINPOOL_KIND_HOST, BINPOOL_PROVIDER_AUTO,    \
			BINPOOL_NODE_ANY, 4, BINPOOL_CLASSES_TIGHT, 0, 0, 0, BINPOOL_CACHE_AUTO,   \
			NULL, 0, 0                                                                 \
	}

/*
 * Makes @pool the allocator of another pool, of the same kind: fills @ops, whose size the
 * caller has set, for binpool_create. Until that other pool is destroyed, or ops->release
 * is called because it was never made, @pool cannot be destroyed (-EBUSY).
 */
int binpool_pool_allocator(struct binpool *pool, struct binpool_allocator_ops *ops);

/* ---- Life cycle --------------------------------------------------------- */

/*
 * Makes a pool. @opts NULL: defaults. The environment variable BINPOOL_OPTS,
 * "key=value,..." with keys provider, node, mantissa_bits, classes, max_bytes
 * (suffix K, M, G, T), granule, cache_bytes (or "auto"), extent_idle_ms, verbose,
 * strict_node, strict, reaper, leaks, debug, changes the options of every pool not made over an
 * allocator.
 * Errors: -ENODEV the provider is not to be had here; -EACCES, -EPERM no right
 * to /dev/binpool; -ENOMEM; -EMFILE, -ENFILE no descriptor is left to look with; -EAGAIN, -EMFILE
 * no thread or too few descriptors for REAPER.
 */
int binpool_create(struct binpool **pool, const struct binpool_options *opts);

/*
 * Gives everything back and ends the pool. The caller sees to it that no other
 * thread is in a call on it. Errors: -EBUSY while buffers live or wait for fences; -ENOMEM
 * the kernel has no room to unmap its memory (vm.max_map_count): it is there still.
 */
int binpool_destroy(struct binpool *pool);

/* As binpool_destroy, waiting up to @ms milliseconds for buffers to be freed and for fences. */
int binpool_destroy_wait(struct binpool *pool, uint32_t ms);

/* ---- Buffers ------------------------------------------------------------ */

/*
 * A buffer of at least @size bytes, aligned to the smaller of 64 bytes (the
 * granule) and its capacity's largest power-of-two divisor at least. Size 0
 * gives a valid buffer of capacity 0 that costs no memory.
 * errno: ENOMEM the provider has none; ENOSPC max_bytes of the pool or of the
 * module leaves too little now; EDQUOT the module allows this user, or this
 * descriptor of /dev/binpool, no more; EFBIG more than the pool's max_bytes or than
 * the machine has, so never possible; E2BIG no size class is that large; EMFILE, ENFILE no
 * descriptor is left for more memory or to see how much there is.
 */
void *binpool_alloc(struct binpool *pool, size_t size);

/* The same at a multiple of @alignment, a power of two up to 1 GiB, else EINVAL. */
void *binpool_alloc_aligned(struct binpool *pool, size_t size, size_t alignment);

/* flags of an allocation */
#define BINPOOL_BUF_ZEROED (1u << 16) /* all bytes up to size are zero */
#define BINPOOL_BUF_WAIT   (1u << 17) /* wait until there is room: see wait_ms */

/* Room of a tag, with the final NUL. */
#define BINPOOL_TAG_LEN 48

struct binpool_alloc_opts {
	size_t size;
	uint64_t bytes;
	uint64_t alignment; /* 0: none beyond the granule */
	uint32_t flags;	    /* BINPOOL_BUF_ZEROED, BINPOOL_BUF_WAIT */
	uint32_t wait_ms;   /* with WAIT: how long at most; UINT32_MAX: as long as it takes */
	/* What binpool_leaks calls the buffer; copied; NULL or "": nothing. Freeing a tagged
	 * buffer takes the pool's lock. */
	const char *tag;
};

/* All there is to know about a buffer. */
struct binpool_buf {
	size_t size; /* of this struct, set by the caller */
	void *ptr;
	uint64_t bytes;		/* as asked for */
	uint64_t capacity;	/* usable bytes */
	int32_t node;		/* where its extent is, -1: unknown or several */
	int32_t extent_fd;	/* file behind its extent, owned by the pool; -1: none */
	uint64_t extent_offset; /* of ptr in that file */
	uint32_t flags;		/* BINPOOL_BUF_ZEROED if its bytes are known to be zero */
	uint32_t reserved;
	uint64_t parent; /* of a sub-buffer: ptr or handle of what it is part of; else 0 */
	uint64_t handle; /* pools of handles: the allocator's, 0 for a buffer of size 0; else 0 */
};

/*
 * As binpool_alloc, with all options, in pools of either kind; 0 or the negative of its
 * errno. Handles have no alignment (-EINVAL), and are not zeroed (-EOPNOTSUPP). With WAIT
 * what would be ENOMEM, ENOSPC or EDQUOT waits for buffers to be freed, for fences, and for
 * what others give back; -ETIMEDOUT if that takes longer than wait_ms.
 */
int binpool_alloc_ex(struct binpool *pool, const struct binpool_alloc_opts *opts,
		     struct binpool_buf *out);

/* What is known of the live buffer that starts at @ptr (the handle); -EINVAL if none does. */
int binpool_buf_info(struct binpool *pool, const void *ptr, struct binpool_buf *out);

/*
 * Returns a buffer to the pool. NULL is fine. Errors: -EINVAL for a pointer
 * that is not the start of a live buffer of this pool; nothing changes then.
 * Not detected: a second free after the buffer was handed out again.
 */
int binpool_free(struct binpool *pool, void *ptr);

/* As binpool_free; -EINVAL also if @size is not what was asked for. */
int binpool_free_sized(struct binpool *pool, void *ptr, size_t size);

/*
 * As binpool_alloc and binpool_free, if the calling thread's cache will do: no lock, no
 * system call, no callback. For callers who hold a lock of their own that they would rather
 * let go before a longer call, as an interpreter's. NULL with errno EAGAIN, or -EAGAIN:
 * nothing happened, and the other function will do it or says what is wrong.
 */
void *binpool_alloc_cached(struct binpool *pool, size_t size);
int binpool_free_cached(struct binpool *pool, void *ptr);

/* @n buffers of @size into @ptrs: all or none. Errors as binpool_alloc's. */
int binpool_alloc_bulk(struct binpool *pool, size_t size, size_t n, void **ptrs);

/* Frees @n buffers; all are tried, the first error is returned. */
int binpool_free_bulk(struct binpool *pool, size_t n, void *const *ptrs);

/*
 * Gets, maps and registers extents now until @bytes are free for buffers in
 * one stretch. Errors as binpool_alloc's.
 */
int binpool_reserve(struct binpool *pool, uint64_t bytes);

/*
 * The same in a pool of handles; binpool_alloc and binpool_free are for host pointers, and
 * either kind's is -EINVAL in a pool of the other. A handle's ptr is NULL; but a buffer of
 * size 0 has no handle, and is told by a ptr that leads nowhere. binpool_handle_free
 * takes the buffer as binpool_handle_alloc or binpool_alloc_ex filled it, or its handle
 * alone; if bytes is not 0 it has to be what was asked for.
 */
int binpool_handle_alloc(struct binpool *pool, uint64_t size, struct binpool_buf *out);
int binpool_handle_free(struct binpool *pool, const struct binpool_buf *buf);

/* ---- References and parts ------------------------------------------------ */

/*
 * A buffer returns to the pool when its last reference is gone. The allocation is the
 * first; binpool_free gives that one up, and is refused if it is gone already. Until the
 * last is gone the buffer counts as in use, and as nothing else than before: whoever has
 * a reference may use all of it.
 *
 * @buf names a buffer by its ptr or handle (the rest may be 0), or a sub-buffer as
 * binpool_buffer_sub filled it. Freeing a buffer with references takes the pool's lock.
 * Errors: -EINVAL no such buffer is live; -ENOMEM.
 */
int binpool_buffer_get(struct binpool *pool, const struct binpool_buf *buf);

/* Gives up one reference, whichever: the last, as binpool_free. Errors: -EINVAL. */
int binpool_buffer_put(struct binpool *pool, const struct binpool_buf *buf);

/*
 * @bytes at @offset of @parent as a buffer of its own, which keeps the parent until
 * binpool_buffer_put gives it up. Both within the bytes the parent was asked for; parts
 * may overlap, and have parts themselves. Of a handle a part is what the allocator makes
 * of it, with errors of its own; -EOPNOTSUPP if it makes none. Errors: -EINVAL; -ENOMEM.
 */
int binpool_buffer_sub(struct binpool *pool, const struct binpool_buf *parent, uint64_t offset,
		       uint64_t bytes, struct binpool_buf *out);

/* ---- Holding ------------------------------------------------------------ */

/*
 * Gives all held buffers back to the extents, and empty extents to the provider. What the kernel
 * has no room to unmap (vm.max_map_count) stays reserved, and is tried again.
 */
int binpool_free_held(struct binpool *pool);
/* From now on freed buffers are not held; what is held goes. */
int binpool_stop_holding(struct binpool *pool);
int binpool_resume_holding(struct binpool *pool);

/*
 * Gives memory back to the provider that was not used for @age_ms milliseconds or more,
 * what was not used longest first, until at most @bytes are reserved. 0, 0: all that is
 * held. Returns how much that was, in bytes. What is held in an extent with a buffer in
 * use stays, but for what the provider takes back from its end (thp). Of what threads' own caches
 * hold, the age is counted from the last call that found it unused (a free that took the pool's
 * lock, or a trim), so that a trim may find some of it only at the second call, @age_ms later.
 */
int64_t binpool_trim(struct binpool *pool, uint64_t bytes, uint64_t age_ms);

/*
 * A descriptor for those who give memory back themselves: it polls POLLPRI, once each
 * time, when tasks stall for memory (/proc/pressure/memory). The caller closes it.
 * Errors: -EOPNOTSUPP the kernel does not tell; -EPERM, -EACCES only privileged ones (before
 * Linux 6.4).
 */
int binpool_pressure_fd(void);

/* ---- Questions ---------------------------------------------------------- */

/*
 * Size class of @size in this pool. -E2BIG if it has none. This and the next only compute, so
 * callbacks of the pool and forked children may call them, too.
 */
int64_t binpool_pool_bin_number(const struct binpool *pool, uint64_t size);
/* Capacity of bin @bin of this pool. -EINVAL if there is none, -E2BIG above INT64_MAX. */
int64_t binpool_pool_alloc_size(const struct binpool *pool, uint32_t bin);
/* Number of held buffers. */
int64_t binpool_held_blocks(struct binpool *pool);
/* 1 if reserved + the capacity of @size would stay within max_bytes, else 0. */
int binpool_may_alloc(struct binpool *pool, uint64_t size);
/* Bound on reserved bytes; INT64_MAX for no bound. */
int64_t binpool_max_bytes(struct binpool *pool);

/*
 * Counters of a pool since it was made. Counts and bytes. Exact when no thread is inside
 * a call; what threads do meanwhile with their own caches may be seen or not.
 *   active_blocks  = allocs + reuses - returns - frees_active
 *   held_blocks    = returns - reuses - frees_held
 *   managed_bytes  = capacity of active and held buffers <= reserved_bytes
 */
struct binpool_stats {
	size_t size;
	uint64_t active_blocks; /* buffers in use */
	uint64_t held_blocks;	/* free, in bins and caches */
	uint64_t active_bytes;	/* asked for, in use */
	uint64_t held_bytes;	/* capacity of held buffers */
	uint64_t managed_bytes;
	uint64_t reserved_bytes;     /* extents */
	uint64_t reserved_max_bytes; /* highest reserved_bytes so far */
	uint64_t max_bytes;	     /* UINT64_MAX: no bound */
	uint64_t allocs;	     /* buffers carved out of extents */
	uint64_t reuses;	     /* requests served with a held buffer */
	uint64_t returns;	     /* buffers that were held when freed */
	uint64_t frees_active;	     /* buffers dissolved when freed */
	uint64_t frees_held;	     /* held buffers dissolved */
	uint64_t alloc_ns;	     /* time in those allocs that the provider was asked for */
	uint64_t free_ns;	     /* time in giving memory back to the provider */
	uint64_t extents;	     /* now */
	uint64_t extent_allocs;	     /* provider calls */
	uint64_t extent_frees;
	uint64_t extent_alloc_ns;
	uint64_t extent_free_ns;
	uint64_t registrations;	      /* extent and registrar pairs now registered */
	uint64_t registration_allocs; /* calls to registrars so far */
	uint64_t registration_ns;     /* time in them */
	uint64_t refused;	      /* requests that ended in an error */
	uint32_t provider;	      /* BINPOOL_PROVIDER_* really used */
	uint32_t holding;	      /* 1, or 0 after stop_holding */
	/* Page size really mapped, of the smallest extent's; 0: no extent yet, or not to be seen.
	 */
	uint64_t page_bytes;
	uint64_t runs;		 /* physically contiguous runs of all extents; 0: unknown */
	uint64_t extent_extends; /* provider calls that made an extent larger */
	uint64_t extent_shrinks; /* and smaller; their times are in extent_alloc_ns, extent_free_ns
				  */
	uint64_t pending_blocks; /* of active_blocks: freed, but waiting for fences */
	uint64_t pending_bytes;	 /* their capacity */
	uint64_t fence_errors;	 /* fences that ended in an error */
	uint64_t pressure_trims; /* times that all was given back since memory was short */
	uint64_t fallbacks;	 /* times that the provider had only small pages for an extent */
	uint64_t registrations_refused; /* by optional registrars */
	uint64_t registered_bytes;	/* of reserved_bytes: extents that all registrars have */
	uint64_t registrations_lost;	/* that were gone when somebody looked: see check */
	uint64_t stuck_bytes; /* of reserved_bytes: that could not be unregistered, or unmapped */
};

/* Fills @out (its size is set by the caller). */
int binpool_get_stats(struct binpool *pool, struct binpool_stats *out);

/*
 * The same counters for programs that keep statistics of their own, of a pool or of
 * anything like one: memory got for a buffer (in @ns), given back (a held buffer's if any is
 * held, else one's in use), a buffer freed to be held, and taken from what is held.
 * @stats belongs to the caller, is zero but for its size at first, and is not locked.
 */
int binpool_stats_push_alloc(struct binpool_stats *stats, uint64_t size, uint64_t ns);
int binpool_stats_push_free(struct binpool_stats *stats, uint64_t size, uint64_t ns);
int binpool_stats_push_return(struct binpool_stats *stats, uint64_t size);
int binpool_stats_push_reuse(struct binpool_stats *stats, uint64_t size);

/*
 * alloc_ns / allocs and free_ns / (frees_active + frees_held) in ns, 0 of nothing, and
 * reuses / (reuses + allocs), from 0 to 1; -EINVAL. Of a pool the first two are the time of
 * getting memory for requests and of giving it back, spread over all buffers, most of which
 * needed no call of the provider: one new buffer takes less time, or much more.
 */
int64_t binpool_stats_mean_alloc_ns(const struct binpool_stats *stats);
int64_t binpool_stats_mean_free_ns(const struct binpool_stats *stats);
double binpool_stats_reuse_factor(const struct binpool_stats *stats);

/* format of a report */
#define BINPOOL_REPORT_TABLE  0 /* for people: units, a bar per bin */
#define BINPOOL_REPORT_KEYS   1 /* stable key=value lines */
#define BINPOOL_REPORT_HEADER 2 /* the first line of the table */

/*
 * Writes a report into @buf as snprintf would; returns the length it needs
 * without the final NUL. @buf may be NULL if @len is 0.
 */
int binpool_report(struct binpool *pool, uint32_t format, char *buf, size_t len);

/* Writes one to a descriptor: 1 is standard output. Errors: write(2)'s. */
int binpool_print_report(struct binpool *pool, uint32_t format, int fd);

/*
 * Which buffers are in use: their number and bytes by tag, and each with its address,
 * bytes, tag and number of references (as a table, at most the 20 largest). Writes and
 * returns as binpool_report does; a table of none is "". Threads cannot use their caches
 * meanwhile.
 */
int binpool_leaks(struct binpool *pool, uint32_t format, char *buf, size_t len);

/* Which provider AUTO took, and why no better one; a sentence each. Never NULL. */
const char *binpool_provider_reason(const struct binpool *pool);
/* "device", "hugetlb", "thp", "allocator" or "auto". NULL for an unknown number. */
const char *binpool_provider_name(uint32_t provider);

/* The calling thread's last error as a sentence: limit, asked, left, knob. Never NULL. */
const char *binpool_last_error(void);

/*
 * Sets it: for callbacks of yours, which explain an error that they return, and
 * for libraries over this one. Copied; NULL is "".
 */
void binpool_set_last_error(const char *sentence);

/* state of an address */
#define BINPOOL_PTR_FREE    0 /* the pool's, but no buffer's */
#define BINPOOL_PTR_HELD    1 /* in a buffer that is held */
#define BINPOOL_PTR_ACTIVE  2 /* in a buffer in use */
#define BINPOOL_PTR_PENDING 3 /* in one that was freed and waits for fences */

#define BINPOOL_UNKNOWN UINT32_MAX

/* What is known of an address. */
struct binpool_ptr_info {
	size_t size;
	struct binpool *pool;
	void *buffer;	   /* where the buffer starts; NULL: in none */
	int64_t offset;	   /* of the address in it; below 0: in what alignment left before it */
	uint64_t bytes;	   /* as asked for; 0 if held */
	uint64_t capacity; /* usable bytes */
	uint32_t state;	   /* BINPOOL_PTR_* */
	uint32_t provider; /* BINPOOL_PROVIDER_* */
	uint64_t references;
	void *extent; /* what the provider gave; NULL: the buffer is of size 0 */
	uint64_t extent_bytes;
	int32_t extent_fd;	/* file behind it, owned by the pool; -1: none */
	int32_t node;		/* of the page at the address; -1: unknown */
	uint64_t extent_offset; /* of the address in the file */
	/* Smallest page size mapped around the address now; 0: nothing is, or there is no /proc. */
	uint64_t page_bytes;
	void *run; /* a stretch around the address that is physically contiguous for sure */
	uint64_t run_bytes;
	uint32_t locked;	/* 1: the page at the address cannot be swapped out */
	uint32_t registrations; /* of the extent; BINPOOL_UNKNOWN in some callbacks */
	char registrars[128];	/* their names, "opencl,io_uring" */
	char tag[BINPOOL_TAG_LEN];
};

/*
 * All there is to know about any address, in whatever pool of this process; a buffer over
 * several pools is the outermost's. It reads /proc/thread-self/smaps, waits for provider calls
 * of that pool, and may be called in callbacks. Errors: -ENOENT no pool's memory; -EMFILE,
 * -ENFILE no descriptor is left to look with.
 */
int binpool_query(const void *ptr, struct binpool_ptr_info *out);

#ifdef __cplusplus
}
#endif

/* Buffers that something is still at work on when they are freed; who must know of memory; and
 * buffers in other processes. */
#include <binpool_fence.h>
#include <binpool_register.h>
#include <binpool_share.h>

#endif /* BINPOOL_H */
