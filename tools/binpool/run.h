/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the parts of `binpool run` share. The way of the data, a chunk at a time:
 *
 *   file --io_uring--> slot.in --write--> slot.device --kernel--> slot.partials
 *                                              \--------read-----> slot.out
 *   file --read(2)--> ordinary memory, compared with slot.out and the partials
 *
 * A slot carries one chunk through all of it. The main thread owns the ring,
 * the device's queues and all slots; a slot is lent to the device's runtime between
 * SLOT_ON_DEVICE and SLOT_BACK and to the checker's thread between
 * SLOT_CHECKING and SLOT_CHECKED. The state is atomic and is what hands a slot
 * over; everything else in it is read and written by its holder only.
 */
#ifndef BINPOOL_CLI_RUN_H
#define BINPOOL_CLI_RUN_H

#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include <binpool.h>

#define PROBLEM_LEN (PATH_MAX + 512)

/* ---- Options ------------------------------------------------------------ */

struct run_options {
	uint32_t provider;
	uint64_t buffer_bytes;
	uint32_t depth;	    /* slots */
	uint64_t max_bytes; /* of the pool, 0: its default */
	const struct device_ops *device;
	const char *device_name; /* as the device takes it, or NULL */
	uint32_t attach_flags;	 /* BINPOOL_REGISTRAR_* */
	int progress;
	int quiet;
};

/*
 * Faults that tests ask for, by BINPOOL_TEST_CORRUPT=WHERE:OFFSET in the
 * environment: one byte of the first file, at OFFSET, is changed on its way.
 */
enum fault_place {
	FAULT_NONE,
	FAULT_DEVICE, /* "device": in the device's copy */
	FAULT_BACK,   /* "back": in what came back from it */
};

struct fault {
	enum fault_place place;
	uint64_t offset;
};

/* ---- sources.c: the files ------------------------------------------------ */

struct source {
	const char *path;
	uint64_t bytes;		/* when the run began */
	uint64_t next;		/* offset of the next chunk */
	uint64_t pending;	/* chunks on their way */
	int plain_fd;		/* for ordinary reads, -1: not open */
	int direct_fd;		/* with O_DIRECT, -1: refused */
	uint64_t align;		/* of O_DIRECT lengths, bytes */
	struct timespec mtime;	/* when the run began */
	char buffered_why[128]; /* why O_DIRECT was refused, "": it was not */
};

/* Looks at a file and opens nothing. Returns a CLI_* status, said on stderr. */
int source_init(struct source *source, const char *path);
/* Opens it for a run with buffers of @buffer_bytes. Returns a CLI_* status. */
int source_open(struct source *source, uint64_t buffer_bytes);
/* From now on it is read without O_DIRECT; @error says why. */
void source_refuse_direct(struct source *source, int error);
/* 1 if its size is no longer that of the beginning; then @text says so. */
int source_changed_size(const struct source *source, char text[PROBLEM_LEN]);
/* 1 if it was written since the beginning. */
int source_was_modified(const struct source *source);
void source_close(struct source *source);

/* ---- Slots --------------------------------------------------------------- */

enum slot_state {
	SLOT_FREE,
	SLOT_READING,	/* the ring reads into `in` */
	SLOT_ON_DEVICE, /* the device's runtime has it */
	SLOT_BACK,	/* `out` and the partial sums are there, or `status` is an error */
	SLOT_CHECKING,	/* the checker has it */
	SLOT_CHECKED,	/* `problem` says what the checker found, "": nothing */
};

struct slot {
	_Atomic int state; /* enum slot_state */
	struct source *source;
	uint64_t offset; /* of the chunk in the file */
	uint64_t bytes;	 /* of the chunk */
	uint64_t done;	 /* bytes of it that were read */
	uint64_t asked;	 /* bytes asked for by the read in flight */
	unsigned char *in;
	unsigned char *out;
	uint64_t *partials;
	void *on_device; /* the device's own */
	int status;	 /* what the device's runtime said at the end */
	int wake_fd;	 /* eventfd of the main thread */
	char problem[PROBLEM_LEN];
};

/* Tells the main thread to look at the slots. Safe in signal handlers. */
void wake_main(int wake_fd);

/* ---- device_opencl.c, device_cuda.c: where the data goes ------------------ */

struct device {
	const struct device_ops *ops;
	char name[128];
	void *own;
	size_t items;			       /* work items, and partial sums, of a kernel */
	uint64_t write_ns, kernel_ns, back_ns; /* on the device, so far */
};

/* Those that return an int and have no pool or slot to name return a CLI_* status. */
struct device_ops {
	const char *kind; /* "opencl" */
	/* Finds a device (@name: as in run_options). close follows, whatever it returns. */
	int (*open)(struct device *device, const char *name, const struct run_options *options);
	void (*close)(struct device *device);
	/* Has the pool's memory registered; *id is for binpool_remove_registrar. 0 or -errno. */
	int (*attach)(struct device *device, struct binpool *pool, uint32_t flags, uint64_t *id);
	/* Device memory of a slot. exit_slot follows, whatever it returns. A CLI_* status. */
	int (*init_slot)(struct device *device, struct slot *slot, uint64_t buffer_bytes);
	void (*exit_slot)(struct slot *slot);
	/* Sends the slot's chunk through; it becomes SLOT_BACK. 0, or -1 with `problem` set. */
	int (*start)(struct device *device, struct slot *slot, const struct fault *fault);
	/* Books the times of a slot that is back. 0, or -1 with `problem` set. */
	int (*finish)(struct device *device, struct slot *slot);
};

extern const struct device_ops device_opencl, device_cuda;

/* ---- checksum.c ---------------------------------------------------------- */

/* The same sum in OpenCL C, and in CUDA's PTX: kernel `checksum`. */
extern const char checksum_kernel[], checksum_ptx[];

/*
 * 64-bit sum of @bytes bytes that lie at @offset (a multiple of 8) of a file:
 * of every 8-byte word, mixed with its place, so that data that was changed,
 * swapped or shifted gives another sum. Chunks' sums add up.
 */
uint64_t checksum(const unsigned char *data, uint64_t bytes, uint64_t offset);

/* ---- checker.c: compares with an ordinary read ----------------------------- */

struct checker;

/* Starts its thread. Returns a CLI_* status, said on stderr. */
int checker_start(struct checker **checker, const struct run_options *options, size_t partials);
/* Hands over a slot that is SLOT_BACK; it becomes SLOT_CHECKED. */
void checker_put(struct checker *checker, struct slot *slot);
/* Ends the thread; nothing may be with it. Returns the ns that it worked. */
uint64_t checker_stop(struct checker *checker);

/* ---- pipeline.c ------------------------------------------------------------ */

struct run {
	struct run_options options;
	struct fault fault;
	struct source *sources;
	size_t source_count;
	uint64_t total_bytes;
	struct binpool *pool;
	struct device device;
	struct slot *slots;
	/* Of the run itself, for the summary. */
	uint64_t verified_bytes;
	size_t direct_files, buffered_files;
	const struct source *buffered_example;
	uint64_t fixed_reads, plain_reads;
	char plain_why[256]; /* why a read was not fixed */
	uint64_t disk_ns;    /* with a read in flight */
	uint64_t check_ns;
	uint64_t start_ns, end_ns;
};

/* Reads, moves and checks all sources. Returns a CLI_* status or 128 + signal. */
int pipeline_run(struct run *run);

/* ---- summary.c ------------------------------------------------------------- */

uint64_t now_ns(void);
/* Redraws the bar if it is time to. */
void progress_show(const struct run *run);
void progress_end(const struct run *run);
/* While the buffers are alive. Returns a CLI_* status. */
int summary_print(const struct run *run);

#endif /* BINPOOL_CLI_RUN_H */
