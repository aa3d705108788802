/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the rooms of the fuzzer share.
 *
 *   main.c    options, the phases, TAP
 *   table.c   every ioctl and every member of its struct; what the header promises
 *   call.c    one ioctl with random arguments: what may come of it, what came
 *   race.c    the same while another thread writes to the struct
 *   maps.c    mmap, mremap, mprotect, madvise with random arguments
 *   files.c   the other system calls that take a descriptor
 *
 * A phase is a process of its own. `fuzz` is set before the phases start.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include "../kselftest/device.h"
#include "../random.h"

/* A set of outcomes: success and errors, each a bit. */
typedef __u64 outcomes;

#define OUTCOME(e) ((outcomes)1 << ((e) == EDQUOT ? 63 : (e) == EOPNOTSUPP ? 62 : (e)))
#define SUCCESS	   OUTCOME(0)
#define ANY_ERROR  (~SUCCESS)

enum kind {
	KIND_SIZE,
	KIND_FLAGS,
	KIND_BYTES, /* (in) an amount */
	KIND_NODE,
	KIND_OUT,
	KIND_RESERVED,
};

struct field {
	const char *name;
	unsigned int at;
	unsigned int bytes;
	enum kind kind;
	__u64 known; /* KIND_FLAGS */
};

#define FIELDS_MAX 24
#define PAGE_MAX   65536 /* of all architectures */

/* Any struct, as long as one may be: up to a page. */
union args {
	__u32 size;
	struct binpool_info info;
	struct binpool_alloc alloc;
	struct binpool_trim trim;
	struct binpool_limit limit;
	struct binpool_query query;
	struct binpool_export_dmabuf dmabuf;
	struct binpool_phys phys;
	unsigned char bytes[PAGE_MAX];
};

struct command {
	const char *name;
	unsigned long nr;
	bool on_block;
	__u32 size;
	__u32 first_size; /* of the struct's first version */
	__u64 feature;	  /* without which it is not supported; 0: always */
	outcomes refused; /* what comes of any call, since we may not; 0: we may */
	struct field fields[FIELDS_MAX];
	/* What comes of arguments that are well-formed, by their values. */
	outcomes (*judge)(const union args *args);
	/* What is wrong in the answer to @in; NULL: nothing. */
	const char *(*answer)(const union args *in, const union args *out, int err);
	/* Errors at which the answer is written all the same. */
	outcomes written;
	/* All that the header lists, beside what is common. */
	outcomes listed;
};

extern const struct command commands[];
extern const unsigned int nr_commands;

struct fuzz {
	__u64 seed;
	__u64 frame;
	__u64 page;
	__u64 max_bytes;
	__u64 machine_bytes;
	__u64 features;
	unsigned int mantissa_bits;
	bool compat;  /* the 32-bit entry works */
	bool planted; /* expect something wrong, to see that it is seen */
	__u64 end_ms; /* of the phase */
};

extern struct fuzz fuzz;

/* table.c */
bool table_complete(void);
const struct command *command_of(unsigned long nr, bool on_block);

/* call.c */
__u64 random_value(__u64 *rng);
void args_valid(const struct command *command, union args *args);
void args_mutate(const struct command *command, union args *args, __u64 *rng);
int enter(bool compat, int fd, unsigned long nr, void *arg);

/* The phases: exit status 0 if nothing was wrong. */
int fuzz_calls(void);
int fuzz_races(void);
int fuzz_maps(void);
int fuzz_files(void);

/* main.c */
void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
int verdict(__u64 steps);

#endif /* FUZZ_H */
