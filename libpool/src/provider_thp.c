// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Anonymous memory, advised to be huge, populated and locked. It needs no
 * preparation and no rights, but the kernel may give small pages, and without
 * the right to lock it may swap. Private to this process; a forked child does
 * not get it.
 */
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "pool.h"

/* Linux 6.1, and newer than some libcs. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static int thp_open(struct provider *p)
{
	const uint64_t percent = 80;

	p->unit = pmd_size();
	p->max_bytes = physical_bytes() / 100 * percent;
	p->max_from = "80 % of memory; option max_bytes or BINPOOL_OPTS changes it";
	return 0;
}

/*
 * Populating more than there is would call the OOM killer, which is no errno.
 * So this asks first. Others may take it in between, that can't be helped.
 */
static int check_room(const struct provider *p, uint64_t bytes)
{
	char asked[HUMAN_LEN], left[HUMAN_LEN];
	uint64_t room = 0, cache = 0;
	int err;

	if (p->strict_node) {
		err = meminfo_add(p->node, "Active(file)", &cache);
		if (!err)
			err = meminfo_add(p->node, "Inactive(file)", &cache);
		if (!err)
			err = meminfo_add(p->node, "MemFree", &room);
		if (err)
			return err;
		room += cache / 2;
		if (bytes > room)
			return explain(-ENOMEM,
				       "thp: asked for %s of node %d, which has %s left "
				       "(/sys/devices/system/node/node%d/meminfo); without "
				       "strict_node other nodes serve too",
				       human(bytes, asked), p->node, human(room, left), p->node);
		return 0;
	}
	err = meminfo_add(BINPOOL_NODE_ANY, "MemAvailable", &room);
	if (err)
		return err;
	if (bytes > room)
		return explain(-ENOMEM,
			       "thp: asked for %s, the system has %s left (MemAvailable in "
			       "/proc/meminfo)",
			       human(bytes, asked), human(room, left));
	return 0;
}

static bool lock_memory(void *base, uint64_t bytes)
{
	struct rlimit limit;

	/* mlock would fail half way, with part of the memory locked. */
	if (!can_lock_memory() && (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur < bytes))
		return false;
	if (!mlock(base, bytes))
		return true;
	munlock(base, bytes);
	return false;
}

/* -ENOMEM: the limit, what is needed and what is left of it. */
static int explain_lock(uint64_t bytes)
{
	char asked[HUMAN_LEN], most[HUMAN_LEN], left[HUMAN_LEN];
	uint64_t used = status_bytes("VmLck");
	struct rlimit limit = {0};

	getrlimit(RLIMIT_MEMLOCK, &limit);
	return explain(-ENOMEM,
		       "thp: locking %s is refused: RLIMIT_MEMLOCK is %s and leaves %s; raise "
		       "ulimit -l, or without strict it is used unlocked",
		       human(bytes, asked), human(limit.rlim_cur, most),
		       human(limit.rlim_cur - u64_min(used, limit.rlim_cur), left));
}

/*
 * Whether all of it is in huge pages. Where the kernel had none ready it is asked once
 * more, for each, until it has none.
 */
static bool all_huge(const struct provider *p, const struct extent *piece)
{
	uint64_t page;

	for (uint64_t at = 0; at < piece->bytes; at += p->unit) {
		if (!madvise(piece->base + at, p->unit, MADV_COLLAPSE))
			continue;
		/* Before Linux 6.1 it cannot be asked; nor where huge pages are turned off. */
		return errno == EINVAL && !mapped_page(piece->base + at, &page) && page >= p->unit;
	}
	return true;
}

/*
 * Reserves the addresses again that had memory. That goes first, as long as they are ours for
 * sure: they may not be where the kernel had no room for another mapping, and are left alone
 * then. -ERRNO, explained: all is as it was.
 */
static int let_go(struct extent *e, char *base, uint64_t bytes)
{
	uint64_t rest = e->room - (uint64_t)(base - e->base) - bytes;
	char amount[HUMAN_LEN];
	void *at;
	int err = memory_drop(base, bytes);

	if (err)
		return explain(err, "thp: giving %s back: %s; see vm.max_map_count",
			       human(bytes, amount), strerror(-err));
	at = mmap(base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
		  -1, 0);
	if (at == base)
		return 0;
	if (rest)
		munmap(base + bytes, rest);
	e->room = (uint64_t)(base - e->base);
	return 0;
}

/* Memory for piece->bytes of reserved addresses; so much before it is there, but not locked. */
static int fill(struct provider *p, struct extent *piece, uint64_t unlocked)
{
	char asked[HUMAN_LEN];
	int err;

	human(piece->bytes, asked);
	if (mprotect(piece->base, piece->bytes, PROT_READ | PROT_WRITE))
		return explain(-ENOMEM,
			       "thp: no addresses for %s: ulimit -v, or vm.overcommit_memory = 2",
			       asked);
	/* A forked child gets none of it, as of what was let go of and is had again. */
	if (madvise(piece->base, piece->bytes, MADV_DONTFORK))
		return explain(-errno, "thp: MADV_DONTFORK: %s", strerror(errno));
	madvise(piece->base, piece->bytes, MADV_HUGEPAGE);
	err = memory_bind(p, piece->base, piece->bytes);
	if (err)
		return explain(err, "thp: binding %s to node %d: %s", asked, p->node,
			       strerror(-err));
	if (madvise(piece->base, piece->bytes, MADV_POPULATE_WRITE)) {
		err = errno == EINVAL ? -EOPNOTSUPP : -ENOMEM;
		return explain(err, "thp: populating %s: %s", asked, strerror(errno));
	}
	piece->small = !all_huge(p, piece);
	if (piece->small && p->strict)
		return explain(
			-ENOMEM,
			"thp: asked for %s, the kernel has only small pages for it: see "
			"/sys/kernel/mm/transparent_hugepage/enabled, or have pages reserved "
			"(provider hugetlb)",
			asked);
	/*
	 * With what is before it and is not locked, as the limit may have been raised, else as
	 * much of that: so what is locked is an extent's beginning, whatever is cut off later.
	 */
	if (lock_memory(piece->base - unlocked, unlocked + piece->bytes))
		piece->locked_bytes = unlocked + piece->bytes;
	else if (p->strict)
		return explain_lock(piece->bytes);
	else if (unlocked && lock_memory(piece->base - unlocked, piece->bytes))
		piece->locked_bytes = piece->bytes;
	piece->node = memory_node(piece->base, piece->bytes, p->unit);
	return 0;
}

static int thp_get(struct provider *p, struct extent *e, uint64_t align)
{
	char asked[HUMAN_LEN];
	int err = check_room(p, e->bytes);

	if (err)
		return err;
	e->base = address_reserve(e->room, u64_max(align, p->unit));
	if (!e->base) {
		e->room = e->bytes;
		e->base = address_reserve(e->room, u64_max(align, p->unit));
	}
	if (!e->base)
		return explain(-ENOMEM, "thp: no addresses for %s: ulimit -v",
			       human(e->bytes, asked));
	if (madvise(e->base, e->room, MADV_DONTFORK))
		err = explain(-errno, "thp: MADV_DONTFORK: %s", strerror(errno));
	else
		err = fill(p, e, 0);
	/* If not the addresses, then what memory there is. */
	if (err && munmap(e->base, e->room))
		memory_drop(e->base, e->bytes);
	return err;
}

static int thp_extend(struct provider *p, struct extent *e, struct extent *piece)
{
	int err = check_room(p, piece->bytes);

	if (err)
		return err;
	err = fill(p, piece, e->bytes - e->locked_bytes);
	if (err)
		let_go(e, piece->base, piece->bytes);
	return err;
}

static int thp_shrink(struct provider *p, struct extent *e, uint64_t bytes)
{
	(void)p;
	return let_go(e, e->base + e->bytes, bytes);
}

static int thp_put(struct provider *p, struct extent *e)
{
	(void)p;
	return memory_unmap(e->base, e->room);
}

const struct provider_ops provider_thp = {
	.id = BINPOOL_PROVIDER_THP,
	.open = thp_open,
	.get = thp_get,
	.put = thp_put,
	.extend = thp_extend,
	.shrink = thp_shrink,
	.zeroed = true,
};
