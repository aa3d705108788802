/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Providers: where extents come from. pool.h includes this, after what an extent is.
 */
#ifndef BINPOOL_PROVIDER_H
#define BINPOOL_PROVIDER_H

struct provider;

struct provider_ops {
	uint32_t id; /* BINPOOL_PROVIDER_* */
	/* Finds out whether it works here; fills unit, max_bytes. Explains errors. */
	int (*open)(struct provider *p);
	void (*close)(struct provider *p);
	/* Whether @bytes are there now, of memory that was set apart; NULL: none is. -ENOMEM. */
	int (*enough)(const struct provider *p, uint64_t bytes);
	/* What get would really take for @bytes; NULL: a multiple of the unit. */
	uint64_t (*round)(const struct provider *p, uint64_t bytes);
	/*
	 * Gets e->bytes at a multiple of @align. All of it is there and mapped
	 * when it returns 0. put gives it back; where the kernel does not let it, as at
	 * vm.max_map_count, all of it is there still. Both explain errors. In turn.
	 */
	int (*get)(struct provider *p, struct extent *e, uint64_t align);
	int (*put)(struct provider *p, struct extent *e);
	/*
	 * For an extent that grows in place, both or neither: get reserves addresses
	 * up to e->room, or makes that e->bytes. extend gets piece->bytes of them, from
	 * e->base + e->bytes on, as get does, and tells of the piece what get tells of
	 * an extent, its locked_bytes including what it locked before it; shrink lets go of @bytes
	 * there, which stay reserved, or fails as put does. In turn.
	 */
	int (*extend)(struct provider *p, struct extent *e, struct extent *piece);
	int (*shrink)(struct provider *p, struct extent *e, uint64_t bytes);
	/* In a forked child: lets go of what the child inherited. */
	int (*forget)(struct provider *p, struct extent *e);
	/* buf_info: file and offset behind @offset of the extent; NULL: e->fd. */
	int (*file_at)(const struct extent *e, uint64_t offset, uint64_t len, uint64_t *file_off);
	bool zeroed; /* memory is zero when got */
};

struct provider {
	const struct provider_ops *ops;
	struct binpool_allocator_ops allocator;
	bool in_use; /* the pool was made: the allocator is to be released */
	const struct binpool *pool;
	int32_t node;
	bool strict_node;
	bool found;	      /* auto took it: another one may do better */
	bool strict;	      /* no small pages, no memory that is not locked */
	int fd;		      /* of the device */
	uint64_t unit;	      /* what memory comes in, a power of two */
	uint64_t max_bytes;   /* what a pool may take if the user says nothing */
	const char *max_from; /* what says so, and how to change it */
	uint32_t mantissa_bits;
	char reason[1024];
};

extern const struct provider_ops provider_device, provider_hugetlb, provider_thp,
	provider_allocator;

/* @max_bytes: what the pool may come to need, 0 if nobody said. */
int provider_choose(struct provider *p, uint32_t wanted, uint64_t max_bytes);

/* Helpers of providers: provider.c, sysinfo.c. */
/* A file in memory that can be sealed, with more MFD_* flags. -1, errno. */
int memfd_make(const char *name, unsigned int flags);
/* Reserves addresses, @bytes at a multiple of @align. NULL: none left. */
char *address_reserve(uint64_t bytes, uint64_t align);
/*
 * Gives all memory of a private mapping back, which stays. 0 or -errno: before Linux 5.18
 * memory that is locked goes only if it can be unlocked.
 */
int memory_drop(void *base, uint64_t bytes);
/* Unmaps memory of a provider's. -ERRNO, explained: nothing has changed. */
int memory_unmap(void *base, uint64_t bytes);
/*
 * Maps @fd over reserved addresses. 0 or -errno, and then they are not the
 * caller's any more, nor to be unmapped: the kernel may have let them go before
 * it failed, and another thread may have them. So a shortage of memory is to
 * show before this is called.
 */
int address_map(char *base, uint64_t bytes, int fd);
/* Binds [base, base + bytes) to the provider's node, if it has one. 0 or -errno. */
int memory_bind(const struct provider *p, void *base, uint64_t bytes);
/* Node of every unit of the range, -1 if several or unknown. */
int32_t memory_node(const void *base, uint64_t bytes, uint64_t unit);
/* A number from a file of /sys or /proc; @otherwise if it cannot be read. */
uint64_t sys_number(uint64_t otherwise, const char *path_fmt, ...) PRINTF(2, 3);
/* Whether it is for want of a descriptor that a file cannot be opened. */
static inline bool no_descriptor(int error)
{
	return error == EMFILE || error == ENFILE;
}
/* All memory that the machine has; needs no file. */
uint64_t physical_bytes(void);
/*
 * Adds to *bytes a field of /proc/meminfo or, for a node, of its meminfo, if it is there.
 * -ERRNO, explained: it cannot be known, for want of a descriptor.
 */
int meminfo_add(int32_t node, const char *field, uint64_t *bytes);
/* A field, in bytes, of /proc/self/status; 0 if it cannot be read. */
uint64_t status_bytes(const char *field);
uint64_t page_size(void);
uint64_t pmd_size(void);
bool can_lock_memory(void);
/* *page: the page size really mapped at @ptr; 0: nothing is. -ERRNO as meminfo_add(). */
int mapped_page(const void *ptr, uint64_t *page);
/* Page size really mapped, of each extent of the pool that is not known yet. In turn. */
void extents_measure(struct binpool *pool);

#include "pagemap.h"

#endif /* BINPOOL_PROVIDER_H */
