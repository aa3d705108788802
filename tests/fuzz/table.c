// SPDX-License-Identifier: GPL-2.0
/*
 * Every ioctl of the header: members and their kinds, what their values lead to,
 * what an answer must be. A struct that grew and is not described to its last byte
 * fails at the start.
 */
#include <stddef.h>

#include "fuzz.h"

#define FIELD(type, member, kind_, ...)                                                            \
	{                                                                                          \
		.name = #member, .at = offsetof(struct type, member),                              \
		.bytes = sizeof(((struct type *)0)->member), .kind = (kind_), __VA_ARGS__          \
	}

#define MEMORY_ERRORS (OUTCOME(ENOSPC) | OUTCOME(ENOMEM) | OUTCOME(EDQUOT))

static bool node_exists(int node)
{
	char path[128];

	snprintf(path, sizeof(path), SYSFS "node%d", node);
	return node >= 0 && !access(path, F_OK);
}

/* Not a whole number of frames. */
static bool odd(__u64 bytes)
{
	return bytes % fuzz.frame;
}

/* Whether a caller whose struct is that long gets a member, completely. */
#define HAS(args_, type, member)                                                                   \
	((args_)->size >= offsetof(struct type, member) + sizeof(((struct type *)0)->member))

/* The LIMIT of the phase's opener; 0: none. */
static __u64 opener_max;

static outcomes judge_info(const union args *args)
{
	return args->info.flags ? OUTCOME(EINVAL) : SUCCESS;
}

static const char *answer_info(const union args *in, const union args *out, int err)
{
	const struct binpool_info *i = &out->info;

	(void)in;
	(void)err;
	if (i->abi_version != BINPOOL_ABI_VERSION)
		return "abi_version";
	if (i->mantissa_bits != fuzz.mantissa_bits)
		return "mantissa_bits";
	if (i->features != fuzz.features ||
	    i->features & ~(BINPOOL_FEATURE_URING_FIXED | BINPOOL_FEATURE_DMABUF))
		return "features";
	if (i->frame_bytes != fuzz.frame)
		return "frame_bytes";
	if (i->max_bytes != fuzz.max_bytes)
		return "max_bytes";
	if (odd(i->active_bytes) || i->active_bytes > fuzz.max_bytes)
		return "active_bytes";
	if (odd(i->held_bytes) || i->held_bytes > fuzz.max_bytes)
		return "held_bytes";
	if (odd(i->limbo_bytes) || i->limbo_bytes > fuzz.max_bytes)
		return "limbo_bytes";
	if (odd(i->quarantine_bytes) || i->quarantine_bytes > fuzz.max_bytes)
		return "quarantine_bytes";
	if (odd(i->opener_bytes) || i->opener_bytes > i->active_bytes + i->limbo_bytes)
		return "opener_bytes";
	if (HAS(out, binpool_info, user_max_bytes) && i->user_max_bytes != fuzz.max_bytes)
		return "user_max_bytes";
	if (HAS(out, binpool_info, user_bytes) &&
	    (odd(i->user_bytes) || i->user_bytes < i->opener_bytes))
		return "user_bytes";
	if (HAS(out, binpool_info, opener_max_bytes) && i->opener_max_bytes != opener_max)
		return "opener_max_bytes";
	return NULL;
}

static outcomes judge_alloc(const union args *args)
{
	const struct binpool_alloc *a = &args->alloc;
	const __u32 known = BINPOOL_ALLOC_CONTIG | BINPOOL_ALLOC_STRICT_NODE | BINPOOL_ALLOC_NOWAIT;
	bool strict = a->flags & BINPOOL_ALLOC_STRICT_NODE;
	__u64 capacity = binpool_tight_capacity(fuzz.mantissa_bits, a->bytes, fuzz.frame);

	if (a->flags & ~known || a->reserved || a->reserved2 || !a->bytes ||
	    a->align & (a->align - 1) ||
	    (a->align > fuzz.frame && !(a->flags & BINPOOL_ALLOC_CONTIG)) ||
	    (a->node == BINPOOL_NODE_ANY ? strict : !node_exists(a->node)))
		return OUTCOME(EINVAL);
	/* What a node has is known here only roughly: its share, or some more than all. */
	if (!capacity || capacity > (strict ? 2 : 1) * fuzz.machine_bytes ||
	    a->align > fuzz.machine_bytes)
		return OUTCOME(EFBIG);
	if (opener_max && capacity > opener_max)
		return OUTCOME(EDQUOT) | (strict ? OUTCOME(EFBIG) : 0);
	/* With what the opener has already, max_bytes at most, his LIMIT may be exceeded first. */
	if (capacity > fuzz.max_bytes)
		return OUTCOME(ENOSPC) | (strict ? OUTCOME(EFBIG) : 0) |
		       (opener_max && capacity + fuzz.max_bytes > opener_max ? OUTCOME(EDQUOT) : 0);
	return SUCCESS | MEMORY_ERRORS;
}

static const char *answer_alloc_limits(const struct binpool_alloc *a, int err)
{
	const __u32 exceeded = err == EDQUOT   ? BINPOOL_EXCEEDED_OPENER
			       : err == ENOSPC ? BINPOOL_EXCEEDED_MODULE
					       : BINPOOL_EXCEEDED_NONE;

	if (a->max_bytes != fuzz.max_bytes)
		return "max_bytes";
	if (odd(a->managed_bytes) || a->managed_bytes > fuzz.max_bytes)
		return "managed_bytes";
	if (HAS(a, binpool_alloc, user_max_bytes) && a->user_max_bytes != fuzz.max_bytes)
		return "user_max_bytes";
	if (HAS(a, binpool_alloc, user_bytes) && odd(a->user_bytes))
		return "user_bytes";
	if (HAS(a, binpool_alloc, opener_max_bytes) && a->opener_max_bytes != opener_max)
		return "opener_max_bytes";
	if (HAS(a, binpool_alloc, opener_bytes) && odd(a->opener_bytes))
		return "opener_bytes";
	if (HAS(a, binpool_alloc, memlock_bytes) && a->memlock_bytes % fuzz.page)
		return "memlock_bytes";
	if (HAS(a, binpool_alloc, exceeded) && a->exceeded != exceeded)
		return "exceeded";
	return NULL;
}

static const char *answer_alloc(const union args *in, const union args *out, int err)
{
	const struct binpool_alloc *a = &out->alloc;
	__u64 capacity = binpool_tight_capacity(fuzz.mantissa_bits, in->alloc.bytes, fuzz.frame);
	const char *problem = answer_alloc_limits(a, err);
	struct binpool_query q;

	if (problem)
		return problem;
	if (odd(a->run_max_bytes) || a->run_max_bytes > fuzz.max_bytes)
		return "run_max_bytes";
	if (err)
		return a->fd != -1 ? "fd" : a->runs ? "runs" : a->capacity ? "capacity" : NULL;
	if (a->capacity != capacity)
		return "capacity";
	if (!a->runs || a->runs > capacity / fuzz.frame ||
	    (a->flags & BINPOOL_ALLOC_CONTIG && a->runs != 1))
		return "runs";
	if (!a->run_max_bytes || a->run_max_bytes > capacity)
		return "run_max_bytes";
	if (a->fd < 0 || fcntl(a->fd, F_GETFD) != FD_CLOEXEC)
		return "fd";
	if (block_query(a->fd, &q) || q.capacity != capacity || q.runs != a->runs ||
	    q.bytes != in->alloc.bytes)
		return "what QUERY says of it";
	close(a->fd);
	return NULL;
}

static outcomes judge_trim(const union args *args)
{
	const struct binpool_trim *t = &args->trim;

	if (t->flags || t->reserved || (t->node != BINPOOL_NODE_ANY && !node_exists(t->node)))
		return OUTCOME(EINVAL);
	return SUCCESS;
}

static const char *answer_trim(const union args *in, const union args *out, int err)
{
	(void)in;
	(void)err;
	return odd(out->trim.freed_bytes) || out->trim.freed_bytes > fuzz.max_bytes ? "freed_bytes"
										    : NULL;
}

static outcomes judge_limit(const union args *args)
{
	const struct binpool_limit *l = &args->limit;

	return l->flags || (l->max_bytes && l->max_bytes < fuzz.frame) ? OUTCOME(EINVAL) : SUCCESS;
}

static const char *answer_limit(const union args *in, const union args *out, int err)
{
	__u64 previous = opener_max;

	(void)err;
	opener_max = in->limit.max_bytes - in->limit.max_bytes % fuzz.frame;
	if (out->limit.previous_bytes != previous)
		return "previous_bytes";
	return odd(out->limit.opener_bytes) ? "opener_bytes" : NULL;
}

static outcomes judge_export(const union args *args)
{
	const struct binpool_export_dmabuf *e = &args->dmabuf;

	return e->flags & ~BINPOOL_EXPORT_READ_ONLY || e->reserved ? OUTCOME(EINVAL) : SUCCESS;
}

static const char *answer_export(const union args *in, const union args *out, int err)
{
	const int mode = in->dmabuf.flags & BINPOOL_EXPORT_READ_ONLY ? O_RDONLY : O_RDWR;
	int fd = out->dmabuf.fd;

	(void)err;
	if (fd < 0 || fcntl(fd, F_GETFD) != FD_CLOEXEC)
		return "fd";
	if ((fcntl(fd, F_GETFL) & O_ACCMODE) != mode)
		return "how it may be mapped";
	close(fd);
	return NULL;
}

/* Allowed, it would write to random places, and put all memory into quarantine. */
static outcomes judge_phys(const union args *args)
{
	(void)args;
	return OUTCOME(EPERM);
}

static outcomes judge_query(const union args *args)
{
	return args->query.flags ? OUTCOME(EINVAL) : SUCCESS;
}

static const char *answer_query(const union args *in, const union args *out, int err)
{
	const struct binpool_query *q = &out->query;

	(void)in;
	(void)err;
	if (!q->capacity || odd(q->capacity))
		return "capacity";
	if (!q->bytes || q->bytes > q->capacity)
		return "bytes";
	if (q->frame_bytes != fuzz.frame)
		return "frame_bytes";
	if (!q->run_max_bytes || odd(q->run_max_bytes) || q->run_max_bytes > q->capacity)
		return "run_max_bytes";
	if (!q->runs || q->runs > q->capacity / fuzz.frame)
		return "runs";
	if (q->node != -1 && !node_exists(q->node))
		return "node";
	if (q->owner_uid != getuid())
		return "owner_uid";
	if ((pid_t)q->owner_pid != getpid())
		return "owner_pid";
	if (q->huge_faults > 1 << 20 || q->small_faults > 1 << 20)
		return "faults";
	return NULL;
}

const struct command
	commands[] =
		{
			{
				.name = "INFO",
				.nr = BINPOOL_IOC_INFO,
				.size = sizeof(struct binpool_info),
				.first_size = 72,
				.judge = judge_info,
				.answer = answer_info,
				.fields =
					{
						FIELD(binpool_info, size, KIND_SIZE),
						FIELD(binpool_info, flags, KIND_FLAGS),
						FIELD(binpool_info, abi_version, KIND_OUT),
						FIELD(binpool_info, mantissa_bits, KIND_OUT),
						FIELD(binpool_info, features, KIND_OUT),
						FIELD(binpool_info, frame_bytes, KIND_OUT),
						FIELD(binpool_info, max_bytes, KIND_OUT),
						FIELD(binpool_info, active_bytes, KIND_OUT),
						FIELD(binpool_info, held_bytes, KIND_OUT),
						FIELD(binpool_info, limbo_bytes, KIND_OUT),
						FIELD(binpool_info, opener_bytes, KIND_OUT),
						FIELD(binpool_info, user_max_bytes, KIND_OUT),
						FIELD(binpool_info, user_bytes, KIND_OUT),
						FIELD(binpool_info, opener_max_bytes, KIND_OUT),
						FIELD(binpool_info, quarantine_bytes, KIND_OUT),
					},
			},
			{
				.name = "ALLOC",
				.nr = BINPOOL_IOC_ALLOC,
				.size = sizeof(struct binpool_alloc),
				.first_size = 72,
				.judge = judge_alloc,
				.answer = answer_alloc,
				.written = MEMORY_ERRORS,
				.listed = MEMORY_ERRORS | OUTCOME(EFBIG) | OUTCOME(EMFILE),
				.fields =
					{
						FIELD(binpool_alloc, size, KIND_SIZE),
						FIELD(binpool_alloc, flags, KIND_FLAGS, .known = 7),
						FIELD(binpool_alloc, bytes, KIND_BYTES),
						FIELD(binpool_alloc, align, KIND_BYTES),
						FIELD(binpool_alloc, node, KIND_NODE),
						FIELD(binpool_alloc, fd, KIND_OUT),
						FIELD(binpool_alloc, runs, KIND_OUT),
						FIELD(binpool_alloc, reserved, KIND_RESERVED),
						FIELD(binpool_alloc, capacity, KIND_OUT),
						FIELD(binpool_alloc, run_max_bytes, KIND_OUT),
						FIELD(binpool_alloc, max_bytes, KIND_OUT),
						FIELD(binpool_alloc, managed_bytes, KIND_OUT),
						FIELD(binpool_alloc, user_max_bytes, KIND_OUT),
						FIELD(binpool_alloc, user_bytes, KIND_OUT),
						FIELD(binpool_alloc, opener_max_bytes, KIND_OUT),
						FIELD(binpool_alloc, opener_bytes, KIND_OUT),
						FIELD(binpool_alloc, memlock_bytes, KIND_OUT),
						FIELD(binpool_alloc, exceeded, KIND_OUT),
						FIELD(binpool_alloc, reserved2, KIND_RESERVED),
					},
			},
			{
				.name = "TRIM",
				.nr = BINPOOL_IOC_TRIM,
				.size = sizeof(struct binpool_trim),
				.first_size = 32,
				.judge = judge_trim,
				.answer = answer_trim,
				.fields =
					{
						FIELD(binpool_trim, size, KIND_SIZE),
						FIELD(binpool_trim, flags, KIND_FLAGS),
						FIELD(binpool_trim, held_bytes, KIND_BYTES),
						FIELD(binpool_trim, node, KIND_NODE),
						FIELD(binpool_trim, reserved, KIND_RESERVED),
						FIELD(binpool_trim, freed_bytes, KIND_OUT),
					},
			},
			{
				.name = "LIMIT",
				.nr = BINPOOL_IOC_LIMIT,
				.size = sizeof(struct binpool_limit),
				.first_size = 32,
				.judge = judge_limit,
				.answer = answer_limit,
				.fields =
					{
						FIELD(binpool_limit, size, KIND_SIZE),
						FIELD(binpool_limit, flags, KIND_FLAGS),
						FIELD(binpool_limit, max_bytes, KIND_BYTES),
						FIELD(binpool_limit, previous_bytes, KIND_OUT),
						FIELD(binpool_limit, opener_bytes, KIND_OUT),
					},
			},
			{
				.name = "EXPORT_DMABUF",
				.nr = BINPOOL_IOC_EXPORT_DMABUF,
				.on_block = true,
				.size = sizeof(struct binpool_export_dmabuf),
				.first_size = 16,
				.feature = BINPOOL_FEATURE_DMABUF,
				.judge = judge_export,
				.answer = answer_export,
				.listed = OUTCOME(EOPNOTSUPP) | OUTCOME(ENOMEM) | OUTCOME(EMFILE),
				.fields =
					{
						FIELD(binpool_export_dmabuf, size, KIND_SIZE),
						FIELD(binpool_export_dmabuf, flags, KIND_FLAGS,
						      .known = 1),
						FIELD(binpool_export_dmabuf, fd, KIND_OUT),
						FIELD(binpool_export_dmabuf, reserved,
						      KIND_RESERVED),
					},
			},
			{
				.name = "PHYS",
				.nr = BINPOOL_IOC_PHYS,
				.on_block = true,
				.size = sizeof(struct binpool_phys),
				.first_size = 24,
				.refused = OUTCOME(EPERM),
				.judge = judge_phys,
				.listed = OUTCOME(EPERM),
				.fields =
					{
						FIELD(binpool_phys, size, KIND_SIZE),
						FIELD(binpool_phys, flags, KIND_FLAGS),
						FIELD(binpool_phys, runs, KIND_BYTES),
						FIELD(binpool_phys, nr_runs, KIND_BYTES),
						FIELD(binpool_phys, reserved, KIND_RESERVED),
					},
			},
			{
				.name = "QUERY",
				.nr = BINPOOL_IOC_QUERY,
				.on_block = true,
				.size = sizeof(struct binpool_query),
				.first_size = 72,
				.judge = judge_query,
				.answer = answer_query,
				.fields =
					{
						FIELD(binpool_query, size, KIND_SIZE),
						FIELD(binpool_query, flags, KIND_FLAGS),
						FIELD(binpool_query, bytes, KIND_OUT),
						FIELD(binpool_query, capacity, KIND_OUT),
						FIELD(binpool_query, frame_bytes, KIND_OUT),
						FIELD(binpool_query, run_max_bytes, KIND_OUT),
						FIELD(binpool_query, runs, KIND_OUT),
						FIELD(binpool_query, node, KIND_OUT),
						FIELD(binpool_query, owner_uid, KIND_OUT),
						FIELD(binpool_query, owner_pid, KIND_OUT),
						FIELD(binpool_query, huge_faults, KIND_OUT),
						FIELD(binpool_query, small_faults, KIND_OUT),
					},
			},
};

const unsigned int nr_commands = sizeof(commands) / sizeof(commands[0]);

/* Every byte of every struct is a member of ours, in order. */
bool table_complete(void)
{
	for (unsigned int i = 0; i < nr_commands; i++) {
		unsigned int at = 0;

		for (const struct field *f = commands[i].fields; f->bytes; f++) {
			if (f->at != at)
				return false;
			at += f->bytes;
		}
		if (at != commands[i].size)
			return false;
	}
	return true;
}

/* The ioctl of a number on that kind of file; NULL: there is none. */
const struct command *command_of(unsigned long nr, bool on_block)
{
	for (unsigned int i = 0; i < nr_commands; i++) {
		if (commands[i].nr == nr && commands[i].on_block == on_block)
			return &commands[i];
	}
	return NULL;
}
