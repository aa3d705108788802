/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the module's rooms share. From a caller to memory and back:
 *
 *   device.c   /dev/binpool: openers, INFO, ALLOC, TRIM
 *   block.c    a block: its file, its mappings, faults, QUERY
 *   dmabuf.c   a block as a dma-buf, for drivers
 *   phys.c     where a block lies, and memory kept apart since it was told
 *   acquire.c  where a block's frames come from, and in which order
 *   contig.c   the same for a block that must be one run
 *   scan.c     frames of a certain place, whoever's memory is there now
 *   held.c     free frames that are kept: runs by bin, split and joined
 *   giveback.c what of them the system has back, and which go first
 *   frame.c    records of frames; frames from and back to the system; cleaning
 *   clean.c    threads that zero held frames before anybody asks for them
 *   limbo.c    frames that came back while somebody still pins them
 *   limit.c    how much the module may manage
 *   reserve.c  memory that is got ahead, and kept
 *   pressure.c when the system is short of memory, or is about to hibernate
 *   user.c     who pays for it: openers, users, RLIMIT_MEMLOCK
 *   sysfs.c    what all of it counts
 *   bins.c     the same for each bin
 *   holders.c  who holds what: fdinfo, and a list in debugfs
 *   trace.h    tracepoints
 *   param.c    how module parameters are checked
 *
 * Frames and runs. A frame is one compound page of FRAME_ORDER. A run is a
 * stretch of physically adjacent frames of one node, in one state. A frame's
 * record describes the run only if it is the run's first or last frame; the
 * records between are stale.
 *
 * Who is charged, when. ALLOC takes frames from the opener, the user and, with
 * memlock=Y, his RLIMIT_MEMLOCK (charge_take()) before it looks for any; then what
 * is not held comes out of max_bytes (room_take()) before the system is asked.
 * Whatever fails gives all of it back. A block's frames are charged until they are
 * held again or with the system, limbo and quarantine included. max_bytes counts what is held, too,
 * until the system has it back or for ever (frames_to_system(), frame_retire()).
 *
 * Locks, outer before inner:
 *   node->lock (spinlock)   bins, limbo list, quarantine and counters of a node;
 *                           the run fields of its frames while they are held, in
 *                           one of these lists or looked at as somebody's neighbours
 *     frames.xa_lock        the index of all frames. An entry is erased only
 *                           under the node's lock, so that a lookup under that
 *                           lock may be dereferenced.
 *   users.xa_lock         the index of users, alone
 *   blocks_lock           the list of all blocks, alone (holders.c)
 * Beside the locks there is the turn to scan (scan.c), which one task on the machine
 * has at a time, for long, while memory is migrated and reclaimed. No lock is held
 * when it is waited for, and nothing that reclaim may call waits for it.
 * Nothing is allocated and nothing sleeps under the locks, and they are never taken
 * in interrupts. Runs that are in no list but the owner's (private) need none, but for
 * their node's numbers.
 */
#ifndef BINPOOL_INTERNAL_H
#define BINPOOL_INTERNAL_H

#include <linux/atomic.h>
#include <linux/bits.h>
#include <linux/completion.h>
#include <linux/cred.h>
#include <linux/kobject.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include <linux/binpool.h>
#include <linux/binpool_bins.h>

#define FRAME_ORDER (PMD_SHIFT - PAGE_SHIFT)
#define FRAME_BYTES PMD_SIZE
#define FRAME_PAGES BIT(FRAME_ORDER)

static inline u64 frames_to_bytes(u64 nr)
{
	return nr << PMD_SHIFT;
}

/* Where a run is, and with that in which of its node's numbers. */
enum frame_state {
	FRAME_TAKEN,  /* private: of who makes a block, or looks for what it needs */
	FRAME_ACTIVE, /* private: in a block */
	FRAME_HELD,
	FRAME_LIMBO,
	FRAME_QUARANTINE,
	FRAME_LEAVING, /* private, on its way to the system: in no number any more */
};

struct block;

struct frame {
	struct page *page;     /* head; never changes */
	struct list_head link; /* first of run: a bin's, limbo's, quarantine's or a private list */
	struct frame *other;   /* first and last of run: the run's other end */
	unsigned long nr;      /* first of run: frames in it */
	unsigned long since;   /* first of run: jiffies when (most of) it came there */
	struct block *block;   /* in limbo or (first of run) quarantine: whose, with a reference */
	u8 state;	       /* first and last of run: enum frame_state */
	bool clean;	       /* first and last of run: all its bytes are zero */
};

/* Free runs of one kind, by bin_number() of their length in frames. */
struct bins {
	struct list_head *list;
	unsigned long *filled; /* bitmap: which lists have a run */
	unsigned long *frames; /* how many there are in each list */
};

/* Frames by their place in memory: frame_key() of the first, and how many. */
struct stretch {
	unsigned long key;
	unsigned long nr;
};

/* Numbers of frames of a node; protected by its lock. */
struct node_stats {
	unsigned long active; /* in blocks */
	unsigned long held;   /* in bins, with those that are just being cleaned */
	unsigned long held_clean;
	unsigned long taken; /* free, in somebody's hands: told as held, but not to be had */
	unsigned long limbo;
	unsigned long quarantine;
	unsigned long retired;
};

struct node_pool {
	int nid;
	spinlock_t lock;     /* bins, limbo, stats; see above */
	struct bins held[2]; /* [clean] */
	struct node_stats stats;
	struct bin_counts *bin_counts; /* see bins.c */
	struct list_head limbo;
	struct list_head quarantine;
	struct delayed_work limbo_work;
	unsigned int limbo_delay_ms;
	unsigned long scan_key;	  /* where the next scan goes on; of whose turn it is */
	unsigned long reserve;	  /* frames to be managed at least */
	unsigned long spare;	  /* held frames counted as reclaimable by the system */
	unsigned long reclaim_at; /* jiffies when the system last wanted memory back */
	struct delayed_work fill_work;
	unsigned int fill_delay_ms;
	unsigned int batches;	  /* begun and ended: odd while one is under way */
	struct completion filled; /* the reserve, or a first attempt is over */
	struct task_struct **cleaners;
	wait_queue_head_t dirty_wait; /* cleaners, for dirty frames */
};

/* Frames that somebody pays for. */
struct account {
	atomic_long_t frames; /* in blocks, in limbo, and about to be in blocks */
	atomic_long_t limbo;  /* those in limbo */
};

/* Whose budget it is; all subordinate ids of a user are he himself. */
struct pool_user {
	struct kref ref; /* its openers */
	kuid_t uid;
	struct account account;
};

/* One opening of /dev/binpool. */
struct opener {
	struct kref ref;
	kuid_t uid;		     /* of who opened it, for ever */
	struct pool_user *user;	     /* whose budget that is */
	struct user_struct *memlock; /* whose RLIMIT_MEMLOCK */
	struct account account;
	atomic_long_t max_frames; /* LIMIT's; OPENER_UNLIMITED: none */
	u64 cgroup;		  /* id of his control group then; 0: unknown */
};

#define OPENER_UNLIMITED LONG_MAX

/* One stretch of a block, for faults: page frame by offset. */
struct block_run {
	unsigned long start; /* in frames from the block's beginning */
	struct page *page;
};

struct block {
	struct kref ref; /* the file, each frame in limbo, each run in quarantine */
	struct opener *opener;
	struct pid *pid; /* who called ALLOC */
	bool locked;	 /* charged to opener->memlock, too */
	u64 bytes;	 /* as asked for */
	unsigned long nr;
	unsigned long run_max;
	unsigned int nr_runs;
	unsigned int bin; /* of its length */
	int nid;	  /* NUMA_NO_NODE: several */
	bool told;	  /* physical addresses, to somebody */
	struct block_run *runs;
	struct block_run run;	  /* the usual: one */
	struct list_head frames;  /* its runs, sorted by address */
	struct list_head holders; /* in the list of all blocks */
	u64 since;		  /* jiffies when it was made */
	bool returned;		  /* the file is gone */
	atomic_long_t limbo;	  /* frames in limbo */
	atomic_long_t quarantine; /* frames there */
	atomic64_t huge_faults;
	atomic64_t small_faults;
};

/* Frames of the @i-th run of @block. */
static inline unsigned long block_run_frames(const struct block *block, unsigned int i)
{
	unsigned long end = i + 1 < block->nr_runs ? block->runs[i + 1].start : block->nr;

	return end - block->runs[i].start;
}

/* What an ALLOC wants, and what it learns when it fails. */
struct request {
	struct opener *opener;
	unsigned long nr;      /* frames */
	unsigned long align;   /* in frames, of the first one */
	u32 flags;	       /* BINPOOL_ALLOC_* */
	int nid;	       /* NUMA_NO_NODE: any */
	int first;	       /* node to look in first; acquire() sets it once */
	unsigned long run_max; /* out, on -ENOMEM: longest run seen */
	bool fresh;	       /* out: the system gave memory for it */
	bool locked;	       /* out: charged to RLIMIT_MEMLOCK */
	u32 exceeded;	       /* out, on -EDQUOT: BINPOOL_EXCEEDED_* */
	u64 scanned_ns;	       /* out: time spent on scans for it */
};

/* Module-wide counts: of blocks, then frames, then what scans do. */
struct events {
	atomic64_t allocs;
	atomic64_t reuses;
	atomic64_t returns;
	atomic64_t freed;
	atomic64_t pinned_dropped;
	atomic64_t pressure_freed;
	atomic64_t cleaned_inline;
	atomic64_t cleaned_background;
	atomic64_t scan_ns;
	atomic64_t scan_windows; /* stretches in which frames were taken, or tried to */
	atomic64_t scan_refused; /* those found unfit before anything was touched */
};

extern struct events events;
extern unsigned int mantissa_bits;
extern unsigned int limbo_wait_ms;
extern unsigned int limbo_max_ms;
extern unsigned long long floor_bytes;
extern unsigned int keep_ms;
extern unsigned int clean_threads;
extern bool memlock;

/* main.c */
struct node_pool *node_of(int nid);

/* frame.c */
extern struct xarray frame_index;
int frames_init(void);
void frames_exit(void);
unsigned long frame_key(const struct page *page);
struct frame *frame_next(const struct frame *f, long n);
void run_uncount(struct node_pool *node, struct frame *run);
void run_set(struct frame *first, struct frame *last, unsigned long nr, enum frame_state state,
	     bool clean);
unsigned int runs_tidy(struct list_head *runs);
struct frame *run_split(struct frame *f, unsigned long nr, enum frame_state state);
int frame_clean(struct frame *f);
unsigned long run_clean(struct frame *run, int *err);
struct frame *frame_adopt(struct page *page, bool clean);
unsigned long fresh_runs(struct node_pool *node, unsigned long nr, gfp_t gfp,
			 struct list_head *runs);
void frames_to_system(struct list_head *runs);
bool frame_idle(const struct frame *f);
void frame_retire(struct frame *f);

static inline struct node_pool *node_of_frame(const struct frame *f)
{
	return node_of(page_to_nid(f->page));
}

/* held.c */
extern unsigned int nr_bins;

/* The bin that a run of @nr frames rests in, or a block of @nr frames is of. */
static inline unsigned int run_bin(unsigned long nr)
{
	return min(binpool_bin_number(mantissa_bits, nr), nr_bins - 1);
}

int held_init(struct node_pool *node);
void held_exit(struct node_pool *node);
void held_return(struct list_head *runs);
struct frame *held_take(struct node_pool *node, unsigned long nr, unsigned long align);
struct frame *held_take_dirty(struct node_pool *node);
void held_put_cleaned(struct frame *f);
void held_drop_poisoned(struct frame *f);
bool held_join(struct node_pool *node, unsigned long nr, unsigned long align,
	       struct list_head *runs);
unsigned long held_stretches(struct node_pool *node, struct stretch *of, unsigned long max);
void held_take_within(struct node_pool *node, unsigned long from, unsigned long to,
		      struct list_head *runs);
unsigned long held_gather(struct node_pool *node, unsigned long nr, struct list_head *runs);
unsigned long held_in_bin(struct node_pool *node, unsigned int bin, bool clean_only);
struct frame *held_carve(struct node_pool *node, struct frame *run, unsigned long skip,
			 unsigned long nr);

/* giveback.c */
enum give {
	GIVE_ALL,   /* the reserve, too */
	GIVE_SPARE, /* above the reserve */
	GIVE_IDLE,  /* above the reserve, and in nobody's hands for keep_ms */
};

bool held_wanted(const struct node_pool *node);
unsigned long held_idle(struct node_pool *node);
unsigned long held_to_system(struct node_pool *node, enum give what, unsigned long keep,
			     unsigned long nr);
void held_excess_to_system(struct node_pool *node);
unsigned long room_possible(void);
bool make_room(unsigned long nr);
int held_free_all(enum give what);
bool holding(void);
int set_holding(bool on);
void held_suspend(bool on);

/* clean.c */
/*
 * A caller that may do without the frames in work need not wait for long. One that has
 * to find all that is held waits until they are back, however slow the CPUs are.
 */
#define PAUSE_SHORT_MS 200
#define PAUSE_LONG_MS  1000
#define PAUSE_FOR_ALL  UINT_MAX

int cleaners_init(struct node_pool *node);
void cleaners_exit(struct node_pool *node);
void cleaners_wake(struct node_pool *node);
int cleaners_pause(unsigned int ms);
int cleaners_wait(unsigned int ms);
void cleaners_resume(void);
bool cleaners_busy(void);

/* reserve.c */
unsigned long node_managed(const struct node_pool *node);
unsigned long node_spare(const struct node_pool *node);
void node_unlock(struct node_pool *node) __releases(&node->lock);
void reserve_init(struct node_pool *node);
void reserve_exit(struct node_pool *node);
int reserve_set(u64 bytes);
int reserve_set_node(int nid, u64 bytes);
unsigned long reserve_total(void);
unsigned long reserve_filled(int nid);
void reserve_fill(void);
void reserve_fill_node(struct node_pool *node);
void reserve_stop(bool on);
void reserve_wait_filled(void);

/* pressure.c */
int pressure_init(void);
void pressure_exit(void);

/* acquire.c */
/* Without reclaim first: what is free costs nobody anything. */
#define GFP_FREE_ONLY ((GFP_HIGHUSER | __GFP_ZERO) & ~__GFP_DIRECT_RECLAIM)
#define GFP_RECLAIM   (GFP_HIGHUSER | __GFP_ZERO | __GFP_RETRY_MAYFAIL)

bool node_allowed(int nid);
struct node_pool *next_node_of(const struct request *req, const struct node_pool *node);
unsigned long take_fresh(struct request *req, struct node_pool *node, unsigned long nr, bool some,
			 gfp_t gfp, struct list_head *runs, int *err);
void room_made(void);
int acquire(struct request *req, struct list_head *runs);

#define for_each_node_of(node, req)                                                                \
	for (node = next_node_of(req, NULL); node; node = next_node_of(req, node))

static inline void saw_run(struct request *req, unsigned long nr)
{
	req->run_max = max(req->run_max, nr);
}

/* contig.c */
int contig_round(struct request *req, struct list_head *runs);
unsigned int contig_generation(void);
int contig_wait(const struct request *req, unsigned int gen, unsigned long deadline);

/* scan.c */
struct scan {
	struct node_pool *node;
	unsigned long nr;    /* frames of the window that is looked for */
	unsigned long align; /* of its first frame */
	u64 began;
	u64 deadline; /* as ktime_get_ns() */
	bool stop;    /* there is no point in going on */
};

/* Stretches that are the caller's already, or held; by address. */
struct own {
	struct stretch *of;
	unsigned long nr;
};

extern unsigned int contig_ms;
extern unsigned int contig_duty;
extern bool contig_scan_61;
bool scan_possible(void);
int scan_begin(struct scan *scan, struct node_pool *node, unsigned long nr, unsigned long align,
	       u64 *spent_ns);
void scan_end(struct scan *scan, u64 *spent_ns);
bool scan_window(struct scan *scan, const struct own *own, unsigned long *key);
unsigned long scan_take(struct scan *scan, const struct own *own, unsigned long key,
			struct list_head *runs);
bool scan_would_fit(struct node_pool *node, unsigned long nr, unsigned long align,
		    const struct own *own);
unsigned long scan_frames(struct node_pool *node, unsigned long nr, struct list_head *runs);

/* limbo.c */
int limbo_wq_init(void);
void limbo_wq_exit(void);
void limbo_init(struct node_pool *node);
void limbo_exit(struct node_pool *node);
void limbo_put(struct frame *f, struct block *block);
unsigned long limbo_total(void);

/* limit.c */
void limit_init(u64 bytes);
u64 limit_machine_bytes(int nid);
void limit_give(unsigned long nr);
unsigned long limit_left(void);
unsigned long limit_excess(void);
u64 limit_max_bytes(void);
u64 limit_managed_bytes(void);
int limit_set(u64 bytes);
void floor_arrived(unsigned long nr);
unsigned long room_take(unsigned long nr, bool some, int *err);
void room_give(unsigned long nr);
unsigned long room_left(void);

/* user.c */
struct pool_user *user_get(const struct cred *cred);
void user_put(struct pool_user *user);
void users_exit(void);
u64 user_limit_bytes(void);
void user_limit_set(u64 bytes);
int charge_take(struct request *req);
void charge_give(struct opener *opener, unsigned long nr, bool locked);
void charge_to_limbo(struct block *block);
void charge_from_limbo(struct block *block);
bool charge_awaits_limbo(const struct request *req);

/* block.c */
extern const struct file_operations block_fops;
int block_fs_get(void);
void block_fs_put(void);
struct block *block_create(const struct request *req, u64 bytes, struct list_head *runs);
struct file *block_file(struct block *block);
void frames_return(struct block *block, struct list_head *runs);
void block_return(struct block *block);
void block_put(struct block *block);
int block_mmap(struct file *file, struct vm_area_struct *vma);

/* dmabuf.c */
#ifdef CONFIG_DMA_SHARED_BUFFER
long ioctl_export_dmabuf(struct file *file, void __user *arg);
#else
static inline long ioctl_export_dmabuf(struct file *file, void __user *arg)
{
	return -EOPNOTSUPP;
}
#endif

/* phys.c */
long ioctl_phys(struct block *block, void __user *arg);
void quarantine_init(struct node_pool *node);
void quarantine_exit(struct node_pool *node);
void quarantine_put(struct block *block, struct list_head *runs);
void quarantine_release(struct node_pool *node);

/* device.c */
extern const struct file_operations device_fops;
void opener_put(struct opener *opener);

/* holders.c */
u64 holder_cgroup(void);
void holders_add(struct block *block);
void holders_del(struct block *block);
void holders_init(void);
void holders_exit(void);

/* bins.c */
struct bin_dirs {
	struct kobject *root;
	struct bin_dir *first;
};

void bin_count_active(const struct block *block, long sign);
void bin_count_alloc(const struct block *block, bool fresh);
int bin_counts_init(struct node_pool *node);
void bin_counts_exit(struct node_pool *node);
int bin_dirs_init(struct bin_dirs *dirs, struct kobject *parent, struct node_pool *node);
void bin_dirs_exit(struct bin_dirs *dirs);

/* sysfs.c */
extern const struct attribute_group *device_groups[];
int node_dirs_init(struct kobject *parent);
void node_dirs_exit(void);
struct node_stats stats_sum(void);

#endif /* BINPOOL_INTERNAL_H */
