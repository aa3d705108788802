// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The page map: which buffer begins in a page, for all pools of the process.
 * Owns map_root and all under it. Levels are added under pagemap_lock and never
 * go; an entry is changed with the lock of the pool whose extent the page is in,
 * and read by anybody.
 */
#include <sys/mman.h>

#include "pool.h"

struct map_leaf *map_root[1u << (MAP_TOP_SHIFT - MAP_LEAF_SHIFT)];

static pthread_mutex_t pagemap_lock = PTHREAD_MUTEX_INITIALIZER;

/* Frames come in chunks: each alone would be a mapping of its own. */
#define FRAMES_PER_CHUNK 64
static struct map_frame *unused;
static size_t unused_frames;

void *bookkeeping_map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

void bookkeeping_unmap(void *p, size_t bytes)
{
	/* Where the kernel has no room for two mappings in the place of one, at least the pages go.
	 */
	if (munmap(p, bytes))
		madvise(p, bytes, MADV_DONTNEED);
}

static struct map_frame *new_frame(void)
{
	if (!unused_frames) {
		unused = bookkeeping_map(FRAMES_PER_CHUNK * sizeof(*unused));
		if (!unused)
			return NULL;
		unused_frames = FRAMES_PER_CHUNK;
	}
	return &unused[--unused_frames];
}

/* Makes sure that every page of the range has an entry. -ENOMEM. */
int map_prepare(const void *base, uint64_t bytes)
{
	const uintptr_t first = (uintptr_t)base >> MAP_FRAME_SHIFT;
	const uintptr_t last = ((uintptr_t)base + bytes - 1) >> MAP_FRAME_SHIFT;
	const uint32_t leaf_shift = MAP_LEAF_SHIFT - MAP_FRAME_SHIFT;
	int err = 0;

	if (last >> (MAP_TOP_SHIFT - MAP_FRAME_SHIFT))
		return -ENOMEM;
	pthread_mutex_lock(&pagemap_lock);
	for (uintptr_t f = first; f <= last && !err; f++) {
		struct map_leaf **leaf = &map_root[f >> leaf_shift];
		struct map_frame **frame;

		if (!*leaf) {
			struct map_leaf *new = bookkeeping_map(sizeof(*new));

			if (!new) {
				err = -ENOMEM;
				break;
			}
			__atomic_store_n(leaf, new, __ATOMIC_RELEASE);
		}
		frame = &(*leaf)->frame[f & (ARRAY_SIZE((*leaf)->frame) - 1)];
		if (!*frame) {
			struct map_frame *new = new_frame();

			if (new)
				__atomic_store_n(frame, new, __ATOMIC_RELEASE);
			else
				err = -ENOMEM;
		}
	}
	pthread_mutex_unlock(&pagemap_lock);
	return err;
}

void pagemap_before_fork(void)
{
	pthread_mutex_lock(&pagemap_lock);
}

void pagemap_after_fork(void)
{
	pthread_mutex_unlock(&pagemap_lock);
}
