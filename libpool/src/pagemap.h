/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * From a pointer to its buffer, for all pools of the process: which buffer begins in a page. Maps
 * are never freed, so that a stray pointer may be looked up at any time without a lock. A buffer of
 * a page and more is there, if its extent is one of pages; smaller ones are found through the slab
 * that they are in, which has all of its pages. pool.h includes this, after what a run and a slab
 * are.
 */
#ifndef BINPOOL_PAGEMAP_H
#define BINPOOL_PAGEMAP_H

#define MAP_PAGE_SHIFT	12 /* whatever the system's pages are */
#define MAP_FRAME_SHIFT 21
#define MAP_LEAF_SHIFT	34
#define MAP_TOP_SHIFT	48
#define MAP_PAGE_BYTES	((uint64_t)1 << MAP_PAGE_SHIFT)

struct map_frame {
	struct run *page[1u << (MAP_FRAME_SHIFT - MAP_PAGE_SHIFT)];
};

struct map_leaf {
	struct map_frame *frame[1u << (MAP_LEAF_SHIFT - MAP_FRAME_SHIFT)];
};

extern struct map_leaf *map_root[1u << (MAP_TOP_SHIFT - MAP_LEAF_SHIFT)];

/* Addresses that are none are taken for others: who looks something up compares its ptr. */
static inline struct run **map_entry(const void *ptr)
{
	uintptr_t a = (uintptr_t)ptr;
	struct map_frame *frame;
	struct map_leaf *leaf;

	leaf = __atomic_load_n(&map_root[a >> MAP_LEAF_SHIFT & (ARRAY_SIZE(map_root) - 1)],
			       __ATOMIC_ACQUIRE);
	if (__builtin_expect(!leaf, 0))
		return NULL;
	frame = __atomic_load_n(&leaf->frame[a >> MAP_FRAME_SHIFT & (ARRAY_SIZE(leaf->frame) - 1)],
				__ATOMIC_ACQUIRE);
	if (__builtin_expect(!frame, 0))
		return NULL;
	return &frame->page[a >> MAP_PAGE_SHIFT & (ARRAY_SIZE(frame->page) - 1)];
}

/* What begins in the page of @ptr, or has all of it: a buffer, the run that is a slab, or NULL. */
static inline struct run *map_page(const void *ptr)
{
	struct run **entry = map_entry(ptr);

	return entry ? __atomic_load_n(entry, __ATOMIC_ACQUIRE) : NULL;
}

/*
 * The buffer that may begin at @ptr, of whatever pool, in whatever state; or NULL.
 * Whether it does: compare its ptr.
 */
static inline struct run *map_find(const void *ptr)
{
	struct run *run = map_page(ptr);
	struct slab *slab = run ? run_slab(run) : NULL;

	return slab ? slab_slot(slab, ptr) : run;
}

/* Zeroed pages, touched as they are used; NULL: none. */
void *bookkeeping_map(size_t bytes);
void bookkeeping_unmap(void *p, size_t bytes);
int map_prepare(const void *base, uint64_t bytes);
/* Lets the page of @ptr say @to: the buffer that begins in it, or its slab, or NULL. Locked. */
static inline void map_set(const void *ptr, struct run *to)
{
	/* With what is fixed of it. */
	__atomic_store_n(map_entry(ptr), to, __ATOMIC_RELEASE);
}
void pagemap_before_fork(void);
void pagemap_after_fork(void);

#endif /* BINPOOL_PAGEMAP_H */
