/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Differences between kernel versions: the only place that asks for one.
 * Each names the release, and the change that made it necessary.
 */
#ifndef BINPOOL_COMPAT_H
#define BINPOOL_COMPAT_H

#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/huge_mm.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/page_ref.h>
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

/*
 * Taking one compound page of a given place, whoever uses it now.
 *
 * 6.12: e98337d11bbd ("mm/contig_alloc: support __GFP_COMP"). From "mm: page_alloc:
 * add alloc_contig_frozen_{range,pages}()" on, which is in 7.3, compound pages come
 * from the new function only, without a reference.
 *
 * Before, the pages come one by one. In 6.1 we make a compound page of them as
 * mm/hugetlb.c does there; what that takes was changed release by release until
 * 6.12, so there is nothing for those.
 */
#if defined(CONFIG_CONTIG_ALLOC) && (LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0) ||             \
				     LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0))
#define COMPAT_CONTIG 1
#else
#define COMPAT_CONTIG 0
#endif

/* Whether we make the compound pages ourselves. */
#define COMPAT_CONTIG_BY_HAND (LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0))

#if COMPAT_CONTIG && COMPAT_CONTIG_BY_HAND
/*
 * @page and the ones after it, each with one reference, become one compound page
 * with one. False, and nothing changed, if somebody else has a reference: one who
 * looked the page up just before it was freed, and has yet to notice.
 */
static inline bool compat_make_compound(struct page *page, unsigned int order)
{
	unsigned long i, nr = 1UL << order;

	/* Frozen, none of them can be taken a reference of any more. */
	for (i = 0; i < nr; i++)
		if (!page_ref_freeze(page + i, 1))
			break;
	if (i < nr) {
		while (i--)
			page_ref_unfreeze(page + i, 1);
		return false;
	}
	__set_bit(PG_head, &page->flags);
	for (i = 1; i < nr; i++) {
		page[i].mapping = TAIL_MAPPING;
		set_page_private(page + i, 0);
		set_compound_head(page + i, page);
	}
	set_compound_page_dtor(page, COMPOUND_PAGE_DTOR);
	set_compound_order(page, order);
	atomic_set(compound_mapcount_ptr(page), -1);
	atomic_set(compound_pincount_ptr(page), 0);
	page_ref_unfreeze(page, 1);
	return true;
}
#endif

/*
 * The page of @order that begins at @pfn, with one reference, zeroed if @gfp says so
 * and compat_contig_zeroes(). -EBUSY or another errno if it cannot be had.
 */
static inline int compat_alloc_contig(unsigned long pfn, unsigned int order, gfp_t gfp)
{
#if !COMPAT_CONTIG
	return -EOPNOTSUPP;
#elif COMPAT_CONTIG_BY_HAND
	unsigned long i, nr = 1UL << order;
	int err = alloc_contig_range(pfn, pfn + nr, MIGRATE_MOVABLE, gfp);

	if (err)
		return err;
	if (compat_make_compound(pfn_to_page(pfn), order))
		return 0;
	for (i = 0; i < nr; i++)
		put_page(pfn_to_page(pfn + i));
	return -EBUSY;
#elif defined(alloc_contig_frozen_range)
	int err = alloc_contig_frozen_range(pfn, pfn + (1UL << order), ACR_FLAGS_NONE,
					    gfp | __GFP_COMP);

	if (!err)
		init_page_count(pfn_to_page(pfn));
	return err;
#elif defined(ACR_FLAGS_NONE)
	return alloc_contig_range(pfn, pfn + (1UL << order), ACR_FLAGS_NONE, gfp | __GFP_COMP);
#else
	return alloc_contig_range(pfn, pfn + (1UL << order), MIGRATE_MOVABLE, gfp | __GFP_COMP);
#endif
}

/* Whether it minds __GFP_ZERO; in 6.1 only the kernel's own policy counts. */
static inline bool compat_contig_zeroes(gfp_t gfp)
{
	return want_init_on_alloc(COMPAT_CONTIG_BY_HAND ? 0 : gfp);
}

#endif /* BINPOOL_COMPAT_H */
