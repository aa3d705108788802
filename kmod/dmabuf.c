// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks as dma-bufs, for drivers that import them: EXPORT_DMABUF. A dma-buf keeps
 * the block's file, and an importer keeps the dma-buf: the memory returns to the
 * pool when descriptors, mappings, dma-bufs and their importers are all gone. The
 * memory never moves, so there is nothing to pin and nobody to notify.
 *
 * Owns each dma-buf's list of mappings for devices, which its `lock` protects. It is
 * taken under the dma-buf's reservation lock or alone, and nothing is allocated
 * under it.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/iosys-map.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "compat.h"
#include "internal.h"
#include "ioctl.h"

struct exported {
	struct file *file; /* the block's */
	struct mutex lock;
	struct list_head mappings;
};

/* The block as one device sees it, from map to unmap. */
struct device_mapping {
	struct sg_table table;
	struct device *dev;
	enum dma_data_direction dir;
	struct list_head link; /* in the export's */
};

static struct block *block_of(const struct exported *exported)
{
	return exported->file->private_data;
}

/* The longest entry the device takes: whole frames, or whole pages, if it takes one. */
static unsigned long entry_max(struct device *dev)
{
	unsigned long max = dma_get_max_seg_size(dev);

	if (max >= FRAME_BYTES)
		return round_down(max, FRAME_BYTES);
	return max >= PAGE_SIZE ? round_down(max, PAGE_SIZE) : max;
}

/* One entry for each run, or as few as entries of at most @max bytes allow. */
static int fill_table(struct sg_table *table, const struct block *block, unsigned long max)
{
	struct scatterlist *sg;
	unsigned int i;
	u64 entries = 0;
	int err;

	for (i = 0; i < block->nr_runs; i++)
		entries += DIV_ROUND_UP_ULL(frames_to_bytes(block_run_frames(block, i)), max);
	if (entries > UINT_MAX)
		return -E2BIG;
	err = sg_alloc_table(table, entries, GFP_KERNEL);
	if (err)
		return err;

	sg = table->sgl;
	for (i = 0; i < block->nr_runs; i++) {
		unsigned long pfn = page_to_pfn(block->runs[i].page);
		u64 at = 0, end = frames_to_bytes(block_run_frames(block, i));

		while (at < end) {
			unsigned int len = min_t(u64, end - at, max);

			sg_set_page(sg, pfn_to_page(pfn + (at >> PAGE_SHIFT)), len,
				    offset_in_page(at));
			sg = sg_next(sg);
			at += len;
			cond_resched();
		}
	}
	return 0;
}

static struct sg_table *map_for_device(struct dma_buf_attachment *attach,
				       enum dma_data_direction dir)
{
	struct exported *exported = attach->dmabuf->priv;
	struct device_mapping *mapping = kzalloc(sizeof(*mapping), GFP_KERNEL);
	int err;

	if (!mapping)
		return ERR_PTR(-ENOMEM);
	mapping->dev = attach->dev;
	mapping->dir = dir;
	err = fill_table(&mapping->table, block_of(exported), entry_max(attach->dev));
	if (err)
		goto free;
	err = dma_map_sgtable(attach->dev, &mapping->table, dir, 0);
	if (err)
		goto free_table;
	mutex_lock(&exported->lock);
	list_add(&mapping->link, &exported->mappings);
	mutex_unlock(&exported->lock);
	return &mapping->table;

free_table:
	sg_free_table(&mapping->table);
free:
	kfree(mapping);
	return ERR_PTR(err);
}

static void unmap_for_device(struct dma_buf_attachment *attach, struct sg_table *table,
			     enum dma_data_direction dir)
{
	struct exported *exported = attach->dmabuf->priv;
	struct device_mapping *mapping = container_of(table, struct device_mapping, table);

	mutex_lock(&exported->lock);
	list_del(&mapping->link);
	mutex_unlock(&exported->lock);
	dma_unmap_sgtable(attach->dev, table, dir, 0);
	sg_free_table(table);
	kfree(mapping);
}

/*
 * The direction in which to sync a mapping around an access of the CPU. What was
 * mapped in one direction may be synced in no other; where it was mapped in both,
 * less than both may do: the CPU that only read overwrites nothing of the device's.
 */
static enum dma_data_direction sync_dir(const struct device_mapping *mapping,
					enum dma_data_direction access)
{
	return mapping->dir == DMA_BIDIRECTIONAL ? access : mapping->dir;
}

static int begin_cpu_access(struct dma_buf *dmabuf, enum dma_data_direction access)
{
	struct exported *exported = dmabuf->priv;
	struct device_mapping *mapping;

	if (mutex_lock_killable(&exported->lock))
		return -EINTR;
	list_for_each_entry(mapping, &exported->mappings, link)
		dma_sync_sgtable_for_cpu(mapping->dev, &mapping->table, sync_dir(mapping, access));
	mutex_unlock(&exported->lock);
	return 0;
}

static int end_cpu_access(struct dma_buf *dmabuf, enum dma_data_direction access)
{
	struct exported *exported = dmabuf->priv;
	struct device_mapping *mapping;

	if (mutex_lock_killable(&exported->lock))
		return -EINTR;
	list_for_each_entry(mapping, &exported->mappings, link)
		dma_sync_sgtable_for_device(mapping->dev, &mapping->table,
					    sync_dir(mapping, access));
	mutex_unlock(&exported->lock);
	return 0;
}

/*
 * The mapping becomes one of the block's file, so that it lives, faults and counts
 * like any other. Only the file system of dma-bufs allows to execute what is in it.
 */
static int map_for_user(struct dma_buf *dmabuf, struct vm_area_struct *vma)
{
	struct exported *exported = dmabuf->priv;
	int err;

	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	err = block_mmap(exported->file, vma);
	if (err)
		return err;
	compat_vm_flags_clear(vma, VM_MAYEXEC);
	vma_set_file(vma, exported->file);
	return 0;
}

/* All frames at adjacent addresses of the kernel's. */
static void *map_frames(const struct block *block)
{
	unsigned long nr = block->nr << FRAME_ORDER, n = 0, i;
	struct page **pages;
	unsigned int run;
	void *addr;

	if (nr > UINT_MAX)
		return NULL;
	pages = kvmalloc_array(nr, sizeof(*pages), GFP_KERNEL | __GFP_NOWARN);
	if (!pages)
		return NULL;
	for (run = 0; run < block->nr_runs; run++) {
		unsigned long pfn = page_to_pfn(block->runs[run].page);
		unsigned long run_pages = block_run_frames(block, run) << FRAME_ORDER;

		for (i = 0; i < run_pages; i++) {
			pages[n++] = pfn_to_page(pfn + i);
			if (n % FRAME_PAGES == 0)
				cond_resched();
		}
	}
	addr = vmap(pages, nr, VM_MAP, PAGE_KERNEL);
	kvfree(pages);
	return addr;
}

/*
 * Called once for all who want it: the dma-buf core counts them. A run of several
 * frames has an address already, but hardened usercopy lets nobody copy from one
 * compound page into the next there, and stops the machine if a driver tries.
 */
static int map_for_kernel(struct dma_buf *dmabuf, struct iosys_map *map)
{
	const struct block *block = block_of(dmabuf->priv);
	struct page *first = block->runs[0].page;
	void *addr;

	if (block->nr == 1 && !PageHighMem(first))
		addr = page_address(first);
	else
		addr = map_frames(block);
	if (!addr)
		return -ENOMEM;
	iosys_map_set_vaddr(map, addr);
	return 0;
}

static void unmap_for_kernel(struct dma_buf *dmabuf, struct iosys_map *map)
{
	if (is_vmalloc_addr(map->vaddr))
		vunmap(map->vaddr);
}

static void release(struct dma_buf *dmabuf)
{
	struct exported *exported = dmabuf->priv;

	WARN_ON(!list_empty(&exported->mappings));
	fput(exported->file);
	kfree(exported);
}

static const struct dma_buf_ops export_ops = {
	.map_dma_buf = map_for_device,
	.unmap_dma_buf = unmap_for_device,
	.begin_cpu_access = begin_cpu_access,
	.end_cpu_access = end_cpu_access,
	.mmap = map_for_user,
	.vmap = map_for_kernel,
	.vunmap = unmap_for_kernel,
	.release = release,
};

static struct dma_buf *export_block(struct file *file, int access)
{
	struct exported *exported = kzalloc(sizeof(*exported), GFP_KERNEL_ACCOUNT);
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct dma_buf *dmabuf;

	if (!exported)
		return ERR_PTR(-ENOMEM);
	exported->file = get_file(file);
	mutex_init(&exported->lock);
	INIT_LIST_HEAD(&exported->mappings);
	info.ops = &export_ops;
	info.size = frames_to_bytes(block_of(exported)->nr);
	info.flags = access;
	info.priv = exported;
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf)) {
		fput(file);
		kfree(exported);
	}
	return dmabuf;
}

long ioctl_export_dmabuf(struct file *file, void __user *arg)
{
	struct binpool_export_dmabuf req;
	struct dma_buf *dmabuf;
	int fd, err;

	err = ioctl_read(&req, sizeof(req), offsetofend(struct binpool_export_dmabuf, reserved),
			 arg);
	if (err)
		return err;
	if (req.flags & ~BINPOOL_EXPORT_READ_ONLY || req.reserved)
		return -EINVAL;
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		return fd;
	dmabuf = export_block(file, req.flags & BINPOOL_EXPORT_READ_ONLY ? O_RDONLY : O_RDWR);
	if (IS_ERR(dmabuf)) {
		err = PTR_ERR(dmabuf);
		goto put_fd;
	}
	req.fd = fd;
	err = ioctl_write(arg, &req, sizeof(req));
	if (err)
		goto put_dmabuf;
	fd_install(fd, dmabuf->file);
	return 0;

put_dmabuf:
	dma_buf_put(dmabuf);
put_fd:
	put_unused_fd(fd);
	return err;
}

COMPAT_IMPORT_DMA_BUF;
