// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Blocks of the kernel module. An extent is one block; above EXTENT_BYTES_MAX
 * it is several, mapped one after another into one stretch of addresses. All
 * calls are made in turn; the blocks' descriptors belong to the extent.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <linux/binpool.h>

#include "pool.h"

#define DEVICE_PATH "/dev/" BINPOOL_DEVICE_NAME
#define SYSFS_DIR   "/sys/class/misc/" BINPOOL_DEVICE_NAME "/"

struct blocks {
	uint64_t n;
	int fd[];
};

static int device_info(struct provider *p, struct binpool_info *info)
{
	*info = (struct binpool_info){.size = sizeof(*info)};
	if (ioctl(p->fd, BINPOOL_IOC_INFO, info))
		return explain(-errno, "device: INFO on " DEVICE_PATH ": %s", strerror(errno));
	return 0;
}

static int device_open(struct provider *p)
{
	struct binpool_info info;
	int err;

	p->fd = open(DEVICE_PATH, O_RDWR | O_CLOEXEC);
	if (p->fd < 0) {
		err = errno;
		if (err == EACCES || err == EPERM)
			return explain(-err, "device: no right to open " DEVICE_PATH
					     ": be in its group (ls -l " DEVICE_PATH ")");
		if (err == ENOENT || err == ENODEV || err == ENXIO)
			return explain(-ENODEV, "device: there is no " DEVICE_PATH
						": the module binpool is not loaded");
		return explain(-err, "device: open " DEVICE_PATH ": %s", strerror(err));
	}
	err = device_info(p, &info);
	if (!err && (info.abi_version != BINPOOL_ABI_VERSION || !is_pow2(info.frame_bytes) ||
		     info.mantissa_bits > BINPOOL_MANTISSA_BITS_MAX))
		err = explain(-ENODEV, "device: the module speaks version %u, this library %u",
			      info.abi_version, BINPOOL_ABI_VERSION);
	if (err) {
		close(p->fd);
		p->fd = -1;
		return err == -ENOTTY ? -ENODEV : err;
	}
	p->unit = info.frame_bytes;
	p->max_bytes = info.max_bytes;
	p->max_from = SYSFS_DIR "max_bytes as it was when the pool was made";
	/* 0: a module that has none */
	if (info.user_max_bytes && info.user_max_bytes < p->max_bytes) {
		p->max_bytes = info.user_max_bytes;
		p->max_from = SYSFS_DIR "user_max_bytes as it was when the pool was made";
	}
	p->mantissa_bits = info.mantissa_bits;
	return 0;
}

static void device_close(struct provider *p)
{
	close(p->fd);
	p->fd = -1;
}

/* The module has size classes too: what it would take anyway is better used. */
static uint64_t device_round(const struct provider *p, uint64_t bytes)
{
	uint64_t whole = bytes & ~(EXTENT_BYTES_MAX - 1);
	uint64_t rest = bytes - whole;

	if (rest)
		rest = binpool_tight_capacity(p->mantissa_bits, rest, p->unit);
	return whole + rest;
}

static uint64_t left_of(uint64_t limit, uint64_t used)
{
	return limit - u64_min(used, limit);
}

/* Whose budget ALLOC would have exceeded. */
static int explain_quota(const struct binpool_alloc *a)
{
	char asked[HUMAN_LEN], limit[HUMAN_LEN], left[HUMAN_LEN];
	struct rlimit memlock = {0};

	human(a->bytes, asked);
	switch (a->exceeded) {
	case BINPOOL_EXCEEDED_OPENER:
		return explain(-EDQUOT,
			       "device: asked for %s, the limit of this descriptor of " DEVICE_PATH
			       " is %s and leaves %s; free some, or have it raised "
			       "(BINPOOL_IOC_LIMIT, needs CAP_SYS_RESOURCE)",
			       asked, human(a->opener_max_bytes, limit),
			       human(left_of(a->opener_max_bytes, a->opener_bytes), left));
	case BINPOOL_EXCEEDED_MEMLOCK:
		getrlimit(RLIMIT_MEMLOCK, &memlock);
		return explain(-EDQUOT,
			       "device: asked for %s, RLIMIT_MEMLOCK, which the module charges "
			       "(its parameter memlock), is %s and leaves %s; raise ulimit -l",
			       asked, human(memlock.rlim_cur, limit),
			       human(left_of(memlock.rlim_cur, a->memlock_bytes), left));
	default:
		return explain(
			-EDQUOT,
			"device: asked for %s, each user's budget, user_max_bytes, is %s and "
			"leaves this one %s; raise " SYSFS_DIR "user_max_bytes, or free "
			"memory of your other processes",
			asked, human(a->user_max_bytes, limit),
			human(left_of(a->user_max_bytes, a->user_bytes), left));
	}
}

/* Why ALLOC failed with @err, and what to turn. */
static int explain_alloc(const struct provider *p, const struct binpool_alloc *a, int err)
{
	char asked[HUMAN_LEN], limit[HUMAN_LEN], left[HUMAN_LEN], run[HUMAN_LEN];

	human(a->bytes, asked);
	switch (err) {
	case ENOSPC:
		return explain(-err,
			       "device: asked for %s, the module's max_bytes is %s and leaves %s; "
			       "raise " SYSFS_DIR "max_bytes, or free memory of other processes",
			       asked, human(a->max_bytes, limit),
			       human(left_of(a->max_bytes, a->managed_bytes), left));
	case EDQUOT:
		return explain_quota(a);
	case ENOMEM:
		return explain(-err,
			       "device: asked for %s, the system has no such memory now (largest "
			       "run %s), or would fall below floor_bytes in "
			       "/sys/module/binpool/parameters/; ask for less, or free memory",
			       asked, human(a->run_max_bytes, run));
	case EFBIG:
		return explain(-err, "device: asked for %s, more than %s has", asked,
			       p->strict_node ? "the node" : "this machine");
	case EMFILE:
	case ENFILE:
		return explain(-err, "device: no file descriptor left for a block; raise "
				     "ulimit -n");
	case EINVAL:
		return explain(-err,
			       "device: the module refused %s on node %d: is the node "
			       "allowed to this process (cpuset)?",
			       asked, p->node);
	default:
		return explain(-err, "device: ALLOC of %s: %s", asked, strerror(err));
	}
}

/* One block of at least @bytes; its descriptor, or -ERRNO. */
static int block_get(struct provider *p, uint64_t bytes, struct extent *e, bool first)
{
	struct binpool_alloc a = {
		.size = sizeof(a),
		.flags = p->strict_node ? BINPOOL_ALLOC_STRICT_NODE : 0,
		.bytes = bytes,
		.node = p->node,
		.fd = -1,
	};
	struct binpool_query q = {.size = sizeof(q)};

	if (ioctl(p->fd, BINPOOL_IOC_ALLOC, &a))
		return explain_alloc(p, &a, errno);
	if (a.capacity < bytes) {
		close(a.fd);
		return explain(-EIO, "device: the module gave less than it was asked for");
	}
	e->runs += a.runs;
	if (ioctl(a.fd, BINPOOL_IOC_QUERY, &q))
		q.node = -1;
	e->node = first || q.node == e->node ? q.node : -1;
	return a.fd;
}

static void blocks_close(struct blocks *b)
{
	while (b->n)
		close(b->fd[--b->n]);
	free(b);
}

/* Gets all blocks, so that a shortage shows before any address is taken. */
static int blocks_get(struct provider *p, struct extent *e, struct blocks *b)
{
	uint64_t at, piece;
	int fd;

	for (at = 0; at < e->bytes; at += piece) {
		piece = u64_min(e->bytes - at, EXTENT_BYTES_MAX);
		fd = block_get(p, piece, e, !at);
		if (fd < 0)
			return fd;
		b->fd[b->n++] = fd;
	}
	return 0;
}

/* Maps one block where the module likes it. NULL if it can't, or not at a multiple of @align. */
static char *block_map(const struct extent *e, int fd, uint64_t align)
{
	void *at = mmap(NULL, e->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		return NULL;
	if (!((uintptr_t)at & (align - 1)))
		return at;
	munmap(at, e->bytes);
	return NULL;
}

/* Maps the blocks one after another. On an error nothing stays mapped that is surely ours. */
static int blocks_map(struct extent *e, const struct blocks *b, uint64_t align)
{
	uint64_t at, piece, rest;
	char amount[HUMAN_LEN];
	int err;

	e->base = b->n == 1 ? block_map(e, b->fd[0], align) : NULL;
	if (e->base)
		return 0;
	e->base = address_reserve(e->bytes, align);
	if (!e->base)
		return explain(-ENOMEM, "device: no addresses for %s: ulimit -v?",
			       human(e->bytes, amount));
	for (at = 0; at < e->bytes; at += piece) {
		piece = u64_min(e->bytes - at, EXTENT_BYTES_MAX);
		err = address_map(e->base + at, piece, b->fd[at / EXTENT_BYTES_MAX]);
		if (!err)
			continue;
		explain(err, "device: mapping %s of a block: %s", human(piece, amount),
			strerror(-err));
		/* What lies before and behind is ours; the failed piece may be another's. */
		rest = e->bytes - at - piece;
		if (at)
			munmap(e->base, at);
		if (rest)
			munmap(e->base + at + piece, rest);
		return err;
	}
	return 0;
}

static int device_get(struct provider *p, struct extent *e, uint64_t align)
{
	uint64_t n = (e->bytes + EXTENT_BYTES_MAX - 1) / EXTENT_BYTES_MAX;
	struct blocks *b = calloc(1, sizeof(*b) + n * sizeof(b->fd[0]));
	char amount[HUMAN_LEN];
	int err;

	if (!b)
		return explain(-ENOMEM, "device: no memory for a block's description");
	err = blocks_get(p, e, b);
	if (!err)
		err = blocks_map(e, b, u64_max(align, p->unit));
	if (err)
		goto close_blocks;
	/* The memory is there; this only fills the page tables, a frame at a time. */
	if (madvise(e->base, e->bytes, MADV_POPULATE_WRITE) && errno != EINVAL) {
		err = explain(-errno, "device: populating %s: %s", human(e->bytes, amount),
			      strerror(errno));
		munmap(e->base, e->bytes);
		goto close_blocks;
	}
	e->private = b;
	e->fd = b->n == 1 ? b->fd[0] : -1;
	e->locked_bytes = e->bytes; /* the module's memory is never swapped */
	return 0;

close_blocks:
	e->base = NULL;
	blocks_close(b);
	return err;
}

static int device_put(struct provider *p, struct extent *e)
{
	int err = memory_unmap(e->base, e->bytes);

	(void)p;
	if (!err)
		blocks_close(e->private);
	return err;
}

static int device_file_at(const struct extent *e, uint64_t offset, uint64_t len, uint64_t *file_off)
{
	const struct blocks *b = e->private;
	uint64_t first = offset / EXTENT_BYTES_MAX;

	if (len && (offset + len - 1) / EXTENT_BYTES_MAX != first)
		return -1;
	*file_off = offset % EXTENT_BYTES_MAX;
	return b->fd[first];
}

const struct provider_ops provider_device = {
	.id = BINPOOL_PROVIDER_DEVICE,
	.open = device_open,
	.close = device_close,
	.round = device_round,
	.get = device_get,
	.put = device_put,
	.forget = device_put,
	.file_at = device_file_at,
	.zeroed = true,
};
