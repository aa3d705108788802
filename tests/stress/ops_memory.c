// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks and their mappings: made, written, looked at, changed in parts, dropped.
 */
#include "stress.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Pages of a view that an operation works on: all, or a few. */
static void random_part(const struct view *view, __u64 *rng, __u64 *from, __u64 *pages)
{
	*from = view->from;
	*pages = view->pages;
	if (one_in(rng, 8))
		return;
	*pages = random_size(rng, view->pages);
	*from += below(rng, view->pages - *pages + 1);
}

static int node_of_block(int fd)
{
	struct binpool_query q;

	return block_query(fd, &q) ? -2 : q.node;
}

/* What ALLOC promises of a block, but for its zeros. */
static void check_reply(const struct binpool_alloc *a, const struct slot *slot)
{
	const char *wrong = NULL;

	if (a->capacity < a->bytes || a->capacity % shared->frame)
		wrong = "capacity";
	else if (!a->runs || a->runs > a->capacity / shared->frame)
		wrong = "runs";
	else if (!a->run_max_bytes || a->run_max_bytes > a->capacity ||
		 (a->runs == 1) != (a->run_max_bytes == a->capacity))
		wrong = "run_max_bytes";
	else if (a->flags & BINPOOL_ALLOC_CONTIG && a->runs != 1)
		wrong = "runs of CONTIG";
	else if (a->flags & BINPOOL_ALLOC_STRICT_NODE && node_of_block(a->fd) != a->node)
		wrong = "node of STRICT_NODE";
	else if (a->reserved)
		wrong = "reserved";
	for (__u64 i = 0; !wrong && slot->frames && i < a->capacity / shared->frame; i++) {
		if (a->runs == 1 && slot->frames[i] != slot->frames[0] + i)
			wrong = "runs: it is not contiguous";
		if (a->align > shared->frame && slot->frames[0] % (a->align / shared->frame))
			wrong = "align";
	}
	if (wrong)
		report(CHECK_DATA, "ALLOC of %llu bytes, flags %#x: wrong %s",
		       (unsigned long long)a->bytes, a->flags, wrong);
}

static struct binpool_alloc random_request(struct task *task)
{
	__u64 *rng = &task->rng, max = shared->options.max_bytes;
	struct binpool_alloc a = alloc_request(random_size(rng, max / 32), 0);

	if (one_in(rng, 16))
		a.bytes = random_size(rng, max / 2);
	if (one_in(rng, 128))
		a.bytes = 1 + below(rng, 2 * max);
	if (one_in(rng, 3))
		a.bytes = (a.bytes + shared->frame - 1) & ~(shared->frame - 1);
	if (one_in(rng, 4))
		a.flags |= BINPOOL_ALLOC_NOWAIT;
	if (one_in(rng, 4)) {
		a.flags |= BINPOOL_ALLOC_CONTIG;
		if (one_in(rng, 2))
			a.align = shared->frame << below(rng, 4);
	}
	if (one_in(rng, 4)) {
		a.node = shared->nodes[below(rng, shared->nr_nodes)];
		if (one_in(rng, 2))
			a.flags |= BINPOOL_ALLOC_STRICT_NODE;
	}
	return a;
}

bool op_alloc(struct task *task, struct slot *slot)
{
	unsigned int opener = (unsigned int)below(&task->rng, OPENERS);
	struct binpool_alloc a = random_request(task);
	struct live live = {.id = atomic_fetch_add(&shared->next_id, 1)};
	int ret = device_alloc(worker.dev[opener], &a);
	struct view *view;

	if (planted(PLANT_ERRNO))
		ret = -EXDEV;
	if (!SUCCEEDED(OP_ALLOC, ret, ENOSPC, ENOMEM, EDQUOT, EFBIG, EMFILE))
		return false;
	live.capacity = a.capacity;
	live.opener = opener_key(worker.number, worker.incarnation, opener);
	if (planted(PLANT_WRONG_OPENER))
		live.opener ^= 1;
	if (!slot_adopt(slot, a.fd, -1, &live))
		return false;
	view = slot_map(slot, 0, a.capacity / shared->page, false);
	if (!view)
		return true; /* mapped, and checked in part, later */
	if (planted(PLANT_STALE_WORD))
		*(__u64 *)(view->addr + shared->page + 8) = canary(3, 1, 1, 0);
	view_verify(slot, view, 0, view->pages, CHECK_ZERO);
	slot_claim(slot, view);
	check_reply(&a, slot);
	/* Most are written at once, so that they leave something behind. */
	if (!one_in(&task->rng, 4))
		view_write(slot, view, 0, view->pages);
	return true;
}

bool op_close(struct task *task, struct slot *slot)
{
	(void)task;
	slot_verify(slot);
	slot_drop(slot);
	return true;
}

bool op_close_fd(struct task *task, struct slot *slot)
{
	if (slot->fd < 0 || !slot_view(slot, &task->rng, false))
		return false;
	close(slot->fd);
	slot->fd = -1;
	return true;
}

bool op_map(struct task *task, struct slot *slot)
{
	__u64 all = slot->capacity / shared->page, per_frame = shared->frame / shared->page;
	__u64 pages = all, from = 0;

	if (!one_in(&task->rng, 4)) {
		pages = random_size(&task->rng, all);
		from = below(&task->rng, all - pages + 1);
		if (one_in(&task->rng, 2))
			from -= from % per_frame;
	}
	return slot_map(slot, from, pages, one_in(&task->rng, 4));
}

/* Takes a part out; what is behind it becomes a view of its own, or goes, too. */
bool op_unmap(struct task *task, struct slot *slot)
{
	struct view *view = slot_view(slot, &task->rng, false), *rest = NULL;
	__u64 from, pages, after;

	if (!view)
		return false;
	random_part(view, &task->rng, &from, &pages);
	after = view->from + view->pages - (from + pages);
	for (unsigned int i = 0; after && i < VIEWS; i++) {
		if (!slot->views[i].pages)
			rest = &slot->views[i];
	}
	if (!rest)
		pages += after;
	if (pages == view->pages) {
		slot_unmap(slot, view);
		return true;
	}
	if (munmap(view->addr + (from - view->from) * shared->page, pages * shared->page)) {
		SUCCEEDED(OP_UNMAP, -errno, ENOMEM);
		return false;
	}
	if (rest)
		*rest = (struct view){view->addr + (from + pages - view->from) * shared->page,
				      from + pages, after, view->read_only};
	view->pages = from - view->from;
	return true;
}

bool op_move(struct task *task, struct slot *slot)
{
	struct view *view = slot_view(slot, &task->rng, false);
	size_t len, align = one_in(&task->rng, 2) ? shared->frame : shared->page;
	char *area, *to, *moved;

	if (!view)
		return false;
	len = view->pages * shared->page;
	area = mmap(NULL, len + 2 * shared->frame, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (area == MAP_FAILED)
		return false;
	to = area + (-(uintptr_t)area & (align - 1)) + below(&task->rng, 2) * shared->page;
	/* EFAULT: it is several mappings, since advice differs. */
	moved = mremap(view->addr, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	if (moved == MAP_FAILED)
		SUCCEEDED(OP_MOVE, -errno, ENOMEM, EFAULT);
	else
		view->addr = moved;
	/* Not the middle after a failure: it may be another thread's by now. */
	munmap(area, (size_t)(to - area));
	munmap(to + len, (size_t)(area + len + 2 * shared->frame - (to + len)));
	return moved != MAP_FAILED;
}

/* Some pages inaccessible and back, or the whole view read-only for longer. */
bool op_protect(struct task *task, struct slot *slot)
{
	struct view *view = slot_view(slot, &task->rng, false);
	__u64 from, pages;
	char *addr;

	if (!view)
		return false;
	from = view->from;
	pages = view->pages;
	if (one_in(&task->rng, 3))
		view->read_only = !view->read_only;
	else
		random_part(view, &task->rng, &from, &pages);
	addr = view->addr + (from - view->from) * shared->page;
	if (mprotect(addr, pages * shared->page, one_in(&task->rng, 2) ? PROT_NONE : PROT_READ))
		SUCCEEDED(OP_PROTECT, -errno, ENOMEM);
	if (!mprotect(addr, pages * shared->page,
		      view->read_only ? PROT_READ : PROT_READ | PROT_WRITE))
		return true;
	SUCCEEDED(OP_PROTECT, -errno, ENOMEM);
	slot_unmap(slot, view);
	return false;
}

bool op_advise(struct task *task, struct slot *slot)
{
	static const int advices[] = {
		MADV_DONTNEED,	 MADV_COLD,	   MADV_PAGEOUT,       MADV_HUGEPAGE,
		MADV_NOHUGEPAGE, MADV_WILLNEED,	   MADV_POPULATE_READ, MADV_SEQUENTIAL,
		MADV_RANDOM,	 MADV_NORMAL,	   MADV_COLLAPSE,      MADV_FREE,
		MADV_MERGEABLE,	 MADV_UNMERGEABLE, MADV_DONTNEED,
	};
	struct view *view = slot_view(slot, &task->rng, false);
	__u64 from, pages;

	if (!view)
		return false;
	random_part(view, &task->rng, &from, &pages);
	/* Whether it is granted is the kernel's business; what is in there must stay. */
	madvise(view->addr + (from - view->from) * shared->page, pages * shared->page,
		advices[below(&task->rng, sizeof(advices) / sizeof(advices[0]))]);
	return true;
}

bool op_write(struct task *task, struct slot *slot)
{
	struct view *view = slot_view(slot, &task->rng, true);
	__u64 from, pages;

	if (!view)
		return false;
	random_part(view, &task->rng, &from, &pages);
	view_write(slot, view, from, pages);
	return true;
}

bool op_verify(struct task *task, struct slot *slot)
{
	struct view *view = slot_view(slot, &task->rng, false);
	__u64 from, pages;

	if (!view)
		return false;
	random_part(view, &task->rng, &from, &pages);
	return view_verify(slot, view, from, pages, CHECK_DATA);
}
