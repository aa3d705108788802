/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the rooms of the stress program share.
 *
 *   main.c        options; what is asked before the start and after the end; TAP
 *   supervisor.c  processes: starts, kills and restarts workers, lets all pause
 *   audit.c       whether counters add up, always and while all pause
 *   report.c      what was found wrong
 *   worker.c      a worker's threads: which operation comes next
 *   slot.c        a block in a worker's hands: mappings, what it must contain
 *   ops_*.c       the operations
 *   admin.c       writes to sysfs, while workers work
 *   hog.c         memory pressure
 *
 * Processes share `shared`, made before the first fork. Its members are atomic
 * or written by one process only. In a worker, a slot is protected by its lock;
 * a thread holds one slot at a time (worker_audit() all of them, in order).
 */
#ifndef STRESS_H
#define STRESS_H

#include <pthread.h>
#include <stdatomic.h>

#include "../kselftest/device.h"
#include "../random.h"
#include "canary.h"

#define WORKERS_MAX 16
#define THREADS_MAX 4
#define OPENERS	    2  /* per worker: root's, and another user's */
#define SLOTS	    12 /* blocks in a worker's hands */
#define VIEWS	    4  /* mappings of a block */
#define PINS	    4  /* per thread */
#define PIN_PAGES   8

enum check {
	CHECK_ZERO,
	CHECK_DATA,
	CHECK_FRAMES,
	CHECK_QUARANTINE,
	CHECK_ERRNO,
	CHECK_COUNTERS,
	CHECK_OPENERS,
	CHECK_PROCESSES,
	CHECK_RETURN,
	CHECKS,
};

/* Violations that we make ourselves, to see that the checks see them. */
enum plant {
	PLANT_NOTHING,
	PLANT_STALE_WORD,
	PLANT_FOREIGN_WRITE,
	PLANT_FRAME_TWICE,
	PLANT_RELEASED_EARLY,
	PLANT_ERRNO,
	PLANT_HIDDEN_BLOCK,
	PLANT_WRONG_OPENER,
	PLANT_CRASH,
	PLANT_KEPT_PIN,
	PLANTS,
};

enum op {
	OP_ALLOC,
	OP_CLOSE,
	OP_CLOSE_FD,
	OP_MAP,
	OP_UNMAP,
	OP_MOVE,
	OP_PROTECT,
	OP_ADVISE,
	OP_WRITE,
	OP_VERIFY,
	OP_PIPE,
	OP_REGISTER,
	OP_FLIGHT_READ,
	OP_FLIGHT_WRITE,
	OP_UNPIN,
	OP_DIRECT_READ,
	OP_DIRECT_WRITE,
	OP_SEND,
	OP_RECEIVE,
	OP_FORK,
	OP_EXPORT,
	OP_PHYS,
	OP_TRIM,
	OP_LIMIT,
	OP_INFO,
	OP_QUERY,
	OPS,
};

struct options {
	__u64 seed;
	unsigned int seconds;
	__u64 ops; /* of each thread; 0: until the time is over */
	unsigned int workers;
	unsigned int threads;
	__u64 max_bytes; /* 0: a quarter of memory */
	bool kills;
	bool hog;
	enum plant plant;
	enum check sought; /* with a plant: which check is to see it */
};

/* A block that a worker has, for the sums. */
struct live {
	__u64 id; /* 0: none */
	__u64 capacity;
	__u64 opener; /* opener_key() */
};

struct worker_shared {
	pid_t pid; /* 0: none */
	unsigned int incarnation;
	atomic_bool dying; /* set before it is killed */
	atomic_uint parked;
	atomic_uint audited; /* the pause in which it asked its openers */
	struct live live[SLOTS];
	int inbox[2]; /* blocks come to [0]; everybody writes to [1] */
};

struct shared {
	struct options options;
	__u64 frame;
	__u64 page;
	__u64 features;
	int nodes[16];
	unsigned int nr_nodes;
	int data; /* a file of canaries, opened with O_DIRECT */
	atomic_bool stop;
	atomic_uint pause; /* odd: everybody parks */
	atomic_bool audit; /* parked workers ask their openers */
	atomic_ullong next_id;
	atomic_ullong done[OPS];
	atomic_ullong tried[OPS];
	atomic_uint reports[CHECKS];
	struct worker_shared workers[WORKERS_MAX];
	atomic_ullong *told; /* by number of the frame: see ops_phys.c */
	__u64 nr_claims;
	atomic_ullong claims[]; /* by number of the frame in memory: claim(), 0: nobody's */
};

extern struct shared *shared;

/* A mapping of a part of a block, in pages. */
struct view {
	char *addr;
	__u64 from;
	__u64 pages; /* 0: none */
	bool read_only;
};

struct slot {
	pthread_mutex_t lock;
	bool used;
	int fd;	     /* -1: closed, mappings remain */
	bool frozen; /* others have it: nobody writes any more */
	unsigned int number;
	unsigned int fills;
	__u64 id;
	__u64 capacity;
	__u64 *shadow; /* by page: the word it begins with, PAGE_ZERO or PAGE_UNKNOWN */
	int shadow_fd;
	__u64 *frames; /* those claimed; NULL: came from another worker */
	struct view views[VIEWS];
};

enum pin_kind {
	PIN_NONE,
	PIN_PIPE,
	PIN_RING, /* registered buffer */
	PIN_FLIGHT_READ,
	PIN_FLIGHT_WRITE,
};

struct io_uring;

/* Pages of a block that is closed, pinned. */
struct pin {
	enum pin_kind kind;
	int ends[2];
	struct io_uring *ring;
	char *addr;
	unsigned int pages;
	unsigned int waiting; /* completions to come */
	__u64 words[PIN_PAGES];
};

/* One thread of a worker. */
struct task {
	unsigned int number;
	__u64 rng;
	struct pin pins[PINS];
	int scratch;  /* a file of PIN_PAGES pages, opened with O_DIRECT */
	char *bounce; /* PIN_PAGES pages */
};

/* The worker that this process is. */
struct worker {
	unsigned int number;
	unsigned int incarnation;
	int dev[OPENERS];
	struct slot slots[SLOTS];
	struct worker_shared *self;
};

extern struct worker worker;

/* 1 to @max, every power of two as likely as the others. */
static inline __u64 random_size(__u64 *state, __u64 max)
{
	__u64 top = (__u64)1 << below(state, 64 - (unsigned int)__builtin_clzll(max));
	__u64 size = top + below(state, top);

	return size < max ? size : max;
}

static inline bool stopping(void)
{
	return atomic_load(&shared->stop);
}

/* The lower part of an opener's key: of all incarnations of its worker. */
#define OPENER_USER_MASK ((__u64)0xffff)

static inline __u64 opener_key(unsigned int number, unsigned int incarnation, unsigned int opener)
{
	return (__u64)incarnation << 16 | number << 8 | opener;
}

/* report.c */
extern const char *const check_names[CHECKS];
extern const char *const op_names[OPS];
void report(enum check check, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool planted(enum plant plant);
bool op_was_done(enum op op);
bool errno_allowed(enum op op, int ret, const int *allowed, size_t n);

/*
 * Whether @ret is a success; reports it if it is neither that nor one of the errors
 * that follow (0: none may come).
 */
#define SUCCEEDED(op, ret, ...)                                                                    \
	errno_allowed(op, ret, (const int[]){__VA_ARGS__},                                         \
		      sizeof((const int[]){__VA_ARGS__}) / sizeof(int))

/* supervisor.c */
void supervise(void);
pid_t start(void (*run)(void));

/* audit.c */
void audit_bound_raise(__u64 max_bytes);
void audit_bound_lower(__u64 max_bytes);
void audit_running(int dev);
void audit_paused(int dev);
__u64 live_bytes(__u64 mask, __u64 opener);

/* worker.c */
int device_open_as(uid_t uid);
void worker_run(unsigned int number);

/* slot.c */
bool slot_adopt(struct slot *slot, int fd, int shadow_fd, const struct live *live);
void slot_drop(struct slot *slot);
struct view *slot_map(struct slot *slot, __u64 from, __u64 pages, bool read_only);
void view_unmap(struct view *view);
void slot_unmap(struct slot *slot, struct view *view);
struct view *slot_view(struct slot *slot, __u64 *rng, bool to_write);
void view_write(struct slot *slot, const struct view *view, __u64 from, __u64 pages);
void slot_verify(const struct slot *slot);
bool view_verify(const struct slot *slot, const struct view *view, __u64 from, __u64 pages,
		 enum check check);
void slot_claim(struct slot *slot, const struct view *view);

/* ops_*.c: whether it was done. */
bool op_alloc(struct task *task, struct slot *slot);
bool op_close(struct task *task, struct slot *slot);
bool op_close_fd(struct task *task, struct slot *slot);
bool op_map(struct task *task, struct slot *slot);
bool op_unmap(struct task *task, struct slot *slot);
bool op_move(struct task *task, struct slot *slot);
bool op_protect(struct task *task, struct slot *slot);
bool op_advise(struct task *task, struct slot *slot);
bool op_write(struct task *task, struct slot *slot);
bool op_verify(struct task *task, struct slot *slot);
bool op_pipe(struct task *task, struct slot *slot);
bool op_register(struct task *task, struct slot *slot);
bool op_flight_read(struct task *task, struct slot *slot);
bool op_flight_write(struct task *task, struct slot *slot);
bool op_unpin(struct task *task, struct slot *slot);
bool op_direct_read(struct task *task, struct slot *slot);
bool op_direct_write(struct task *task, struct slot *slot);
bool op_send(struct task *task, struct slot *slot);
bool op_receive(struct task *task, struct slot *slot);
bool op_fork(struct task *task, struct slot *slot);
bool op_export(struct task *task, struct slot *slot);
bool op_phys(struct task *task, struct slot *slot);
bool op_trim(struct task *task, struct slot *slot);
bool op_limit(struct task *task, struct slot *slot);
bool op_info(struct task *task, struct slot *slot);
bool op_query(struct task *task, struct slot *slot);
void pins_release(struct task *task);
void inboxes_drain(void);
__u64 quarantine_of(__u64 mask, __u64 opener, __u64 *most);
void quarantine_look(__u64 frame, __u64 id);
void quarantine_end(void);

/* admin.c */
void admin_start(void);
void admin_step(__u64 *rng);
void admin_end(void);

/* hog.c */
void hog_run(void);

#endif /* STRESS_H */
