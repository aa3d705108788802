// SPDX-License-Identifier: GPL-2.0
/*
 * A block in a worker's hands: its mappings, and its shadow, which says of each
 * page what it must contain. The shadow is a memfd, so that it goes where the
 * block goes. What a function here gets is protected by the slot's lock, which
 * the caller holds.
 */
#include "stress.h"

/* Claims: which block of which worker has a frame. */
#define CLAIM_WORKER_SHIFT	56
#define CLAIM_INCARNATION_SHIFT 40
#define CLAIM_INCARNATION_MASK	0xffffU

static __u64 claim(__u64 id)
{
	return ((__u64)worker.number + 1) << CLAIM_WORKER_SHIFT |
	       (__u64)(worker.incarnation & CLAIM_INCARNATION_MASK) << CLAIM_INCARNATION_SHIFT | id;
}

/* Whether whoever claimed is gone, or going: then his blocks may be others' already. */
static bool claim_stale(__u64 word)
{
	const struct worker_shared *w = &shared->workers[(word >> CLAIM_WORKER_SHIFT) - 1];

	/* Asked first: who is started anew has his new number before he is not dying. */
	if (atomic_load(&w->dying))
		return true;
	return (w->incarnation & CLAIM_INCARNATION_MASK) !=
	       (word >> CLAIM_INCARNATION_SHIFT & CLAIM_INCARNATION_MASK);
}

static void claim_one(__u64 frame, __u64 mine)
{
	unsigned long long found = 0;

	while (!atomic_compare_exchange_strong(&shared->claims[frame], &found, mine)) {
		if (claim_stale(found))
			continue; /* replaced by the next attempt */
		report(CHECK_FRAMES, "frame %#llx is in blocks %#llx and %#llx",
		       (unsigned long long)frame, found, (unsigned long long)mine);
		return;
	}
}

/*
 * Claims the frames that a mapping of the whole block shows. Nobody else may have
 * them. Done once, when the block is new.
 */
void slot_claim(struct slot *slot, const struct view *view)
{
	__u64 n = slot->capacity / shared->frame, per_frame = shared->frame / shared->page;

	slot->frames = calloc(n + 1, sizeof(*slot->frames));
	if (!slot->frames)
		return;
	for (__u64 i = 0; i < n; i++) {
		__u64 frame = pfn_of(view->addr + i * shared->frame) / per_frame;

		if (!frame || frame >= shared->nr_claims) {
			report(CHECK_FRAMES, "no frame at offset %#llx of a block just read",
			       (unsigned long long)(i * shared->frame));
			continue;
		}
		if (planted(PLANT_FRAME_TWICE))
			atomic_store(&shared->claims[frame], claim(slot->id) + 1);
		claim_one(frame, claim(slot->id));
		quarantine_look(frame, slot->id);
		slot->frames[i] = frame;
	}
}

static void unclaim(struct slot *slot)
{
	if (!slot->frames)
		return;
	for (__u64 i = 0; i < slot->capacity / shared->frame; i++) {
		unsigned long long mine = claim(slot->id);

		if (slot->frames[i])
			atomic_compare_exchange_strong(&shared->claims[slot->frames[i]], &mine, 0);
	}
	free(slot->frames);
	slot->frames = NULL;
}

static size_t shadow_bytes(const struct slot *slot)
{
	return slot->capacity / shared->page * sizeof(*slot->shadow);
}

/*
 * Puts a block into a free slot, with a new shadow (@shadow_fd -1: all zero) or the
 * one that came with it. Takes over both descriptors; false if there is no memory.
 */
bool slot_adopt(struct slot *slot, int fd, int shadow_fd, const struct live *live)
{
	bool fresh = shadow_fd < 0;

	slot->id = live->id;
	slot->capacity = live->capacity;
	if (fresh)
		shadow_fd = memfd_create("shadow", MFD_CLOEXEC);
	if (shadow_fd < 0 || (fresh && ftruncate(shadow_fd, (off_t)shadow_bytes(slot))))
		goto failed;
	slot->shadow =
		mmap(NULL, shadow_bytes(slot), PROT_READ | PROT_WRITE, MAP_SHARED, shadow_fd, 0);
	if (slot->shadow == MAP_FAILED)
		goto failed;
	slot->fd = fd;
	slot->shadow_fd = shadow_fd;
	slot->fills = 0;
	slot->frozen = !fresh;
	slot->used = true;
	worker.self->live[slot->number] = *live;
	return true;

failed:
	close(shadow_fd);
	close(fd);
	return false;
}

void slot_drop(struct slot *slot)
{
	unclaim(slot);
	memset(&worker.self->live[slot->number], 0, sizeof(struct live));
	for (unsigned int i = 0; i < VIEWS; i++)
		view_unmap(&slot->views[i]);
	if (slot->fd >= 0)
		close(slot->fd);
	munmap(slot->shadow, shadow_bytes(slot));
	close(slot->shadow_fd);
	slot->used = false;
}

/* Maps pages of a block; NULL if there is no free view, or the kernel has no memory. */
struct view *slot_map(struct slot *slot, __u64 from, __u64 pages, bool read_only)
{
	struct view *view = NULL;
	void *addr;

	for (unsigned int i = 0; i < VIEWS; i++) {
		if (!slot->views[i].pages)
			view = &slot->views[i];
	}
	if (!view || slot->fd < 0)
		return NULL;
	addr = mmap(NULL, pages * shared->page, read_only ? PROT_READ : PROT_READ | PROT_WRITE,
		    MAP_SHARED, slot->fd, (off_t)(from * shared->page));
	if (addr == MAP_FAILED) {
		SUCCEEDED(OP_MAP, -errno, ENOMEM);
		return NULL;
	}
	*view = (struct view){addr, from, pages, read_only};
	return view;
}

void view_unmap(struct view *view)
{
	if (view->pages)
		munmap(view->addr, view->pages * shared->page);
	view->pages = 0;
}

/*
 * Gives a mapping up, and the slot with it if it was the last of the block: its frames
 * are anybody's from then on, so claims end before.
 */
void slot_unmap(struct slot *slot, struct view *view)
{
	bool last = slot->fd < 0;

	for (unsigned int i = 0; i < VIEWS; i++)
		last &= &slot->views[i] == view || !slot->views[i].pages;
	if (last)
		slot_drop(slot);
	else
		view_unmap(view);
}

/* One of the slot's mappings, at random; NULL if it has none that will do. */
struct view *slot_view(struct slot *slot, __u64 *rng, bool to_write)
{
	unsigned int first = (unsigned int)below(rng, VIEWS);

	for (unsigned int i = 0; i < VIEWS; i++) {
		struct view *view = &slot->views[(first + i) % VIEWS];

		if (view->pages && !(to_write && (view->read_only || slot->frozen)))
			return view;
	}
	return NULL;
}

/* Writes pages of the block through a mapping; @from is counted in the block. */
void view_write(struct slot *slot, const struct view *view, __u64 from, __u64 pages)
{
	unsigned int fill = ++slot->fills;

	for (__u64 i = from; i < from + pages; i++) {
		__u64 first = canary(worker.number + 1, slot->id, fill, i * shared->page / 8);
		char *page = view->addr + (i - view->from) * shared->page;

		slot->shadow[i] = PAGE_UNKNOWN;
		page_fill(page, shared->page, first);
		slot->shadow[i] = first;
		if (planted(PLANT_FOREIGN_WRITE))
			*(__u64 *)(page + 8 * 7) = canary(5, slot->id + 1, 1, 0);
	}
}

bool view_verify(const struct slot *slot, const struct view *view, __u64 from, __u64 pages,
		 enum check check)
{
	for (__u64 i = from; i < from + pages; i++) {
		const char *page = view->addr + (i - view->from) * shared->page;
		__u64 first = slot->shadow[i];
		size_t wrong = page_wrong_at(page, shared->page, first);
		char found[80], wanted[80];
		__u64 word;

		if (wrong == shared->page)
			continue;
		word = *(const __u64 *)(page + wrong);
		report(check, "worker %u's block %llu at %#llx (pfn %#llx): %#llx, %s; wanted %s",
		       worker.number, (unsigned long long)slot->id,
		       (unsigned long long)(i * shared->page + wrong),
		       (unsigned long long)pfn_of(page), (unsigned long long)word,
		       canary_text(found, sizeof(found), word),
		       canary_text(wanted, sizeof(wanted), first ? first + wrong / 8 : 0));
		return false;
	}
	return true;
}

/* All that is mapped of a block. */
void slot_verify(const struct slot *slot)
{
	for (unsigned int i = 0; i < VIEWS; i++) {
		const struct view *view = &slot->views[i];

		if (view->pages)
			view_verify(slot, view, view->from, view->pages, CHECK_DATA);
	}
}
