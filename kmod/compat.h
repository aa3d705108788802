/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Differences between kernel versions: the only place that asks for one.
 * Each names the release, and the change that made it necessary.
 */
#ifndef BINPOOL_COMPAT_H
#define BINPOOL_COMPAT_H

#include <linux/highmem.h>
#include <linux/huge_mm.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/swap.h>
#include <linux/version.h>

/* 6.3: bc292ab00f6c ("mm: introduce vma->vm_flags wrapper functions") */
static inline void compat_vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
	vma->vm_flags |= flags;
#else
	vm_flags_set(vma, flags);
#endif
}

/* 6.3: as above */
static inline void compat_vm_flags_clear(struct vm_area_struct *vma, unsigned long flags)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
	vma->vm_flags &= ~flags;
#else
	vm_flags_clear(vma, flags);
#endif
}

/* 6.13: cdd30ebb1b9f ("module: Convert symbol namespace to string literal") */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
#define COMPAT_IMPORT_DMA_BUF MODULE_IMPORT_NS(DMA_BUF)
#else
#define COMPAT_IMPORT_DMA_BUF MODULE_IMPORT_NS("DMA_BUF")
#endif

/*
 * Whether the process or the mapping has opted out of huge pages, and the fault
 * handler minds. 6.12: 2b0f922323cc ("mm: don't install PMD mappings when THPs
 * are disabled by the hw/process/vma"); later one more argument of the helper.
 */
static inline bool compat_small_pages_only(struct vm_area_struct *vma)
{
#if !defined(CONFIG_TRANSPARENT_HUGEPAGE)
	return true; /* a PREEMPT_RT kernel, for one, maps no file huge */
#elif LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
	return false;
#elif LINUX_VERSION_CODE < KERNEL_VERSION(6, 18, 0)
	return vma_thp_disabled(vma, vma->vm_flags);
#else
	return vma_thp_disabled(vma, vma->vm_flags, false);
#endif
}

/* Registered buffers of io_uring: refused for a driver's mapping before 6.12. */
static inline bool compat_uring_fixed(void)
{
	return LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0);
}

/* clear_pages(), which zeroes a stretch in one go, is there in 7.3. */
static inline void compat_clear_pages(struct page *page, unsigned long nr)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 3, 0)
	unsigned long i;

	for (i = 0; i < nr; i++)
		clear_highpage(page + i);
#else
	clear_pages(page_address(page), nr);
#endif
}

/*
 * Whether the kernel may have met a memory failure on @nid: it counts them since
 * 6.3 ("mm: memory-failure: Add memory failure stats to sysfs").
 */
static inline bool compat_memory_failed(int nid)
{
#if !defined(CONFIG_MEMORY_FAILURE)
	return false;
#elif LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
	return true;
#else
	return READ_ONCE(NODE_DATA(nid)->mf_stats.total);
#endif
}

/*
 * Shrinkers are allocated since 6.7: c42d50aefd17 ("mm: shrinker: add
 * infrastructure for dynamically allocating shrinker").
 */
typedef unsigned long (*compat_shrink_fn)(struct shrinker *s, struct shrink_control *sc);

static inline struct shrinker *
compat_shrinker_register(compat_shrink_fn count, compat_shrink_fn scan, long batch, int seeks)
{
	struct shrinker *s;

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
	s = kzalloc(sizeof(*s), GFP_KERNEL);
	if (!s)
		return NULL;
	s->flags = SHRINKER_NUMA_AWARE;
#else
	s = shrinker_alloc(SHRINKER_NUMA_AWARE, KBUILD_MODNAME);
	if (!s)
		return NULL;
#endif
	s->count_objects = count;
	s->scan_objects = scan;
	s->batch = batch;
	s->seeks = seeks;
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
	if (register_shrinker(s, KBUILD_MODNAME)) {
		kfree(s);
		return NULL;
	}
#else
	shrinker_register(s);
#endif
	return s;
}

static inline void compat_shrinker_free(struct shrinker *s)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
	unregister_shrinker(s);
	kfree(s);
#else
	shrinker_free(s);
#endif
}

/*
 * Tells reclaim of memory that a shrinker freed. 6.4: c7b23b68e2aa ("mm: vmscan:
 * refactor updating current->reclaim_state") gave it a function.
 */
static inline void compat_reclaimed_pages(unsigned long pages)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
	if (current->reclaim_state)
		current->reclaim_state->reclaimed_slab += pages;
#else
	mm_account_reclaimed_pages(pages);
#endif
}

#endif /* BINPOOL_COMPAT_H */
