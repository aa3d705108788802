// SPDX-License-Identifier: GPL-2.0
/*
 * A driver that pins memory of processes as those of GPUs do, for tests only: for long
 * and for writing, as a table of entries no longer than its device takes, mapped for
 * DMA, and dirty when it lets go. It says what it was given, and reads and writes there.
 *
 * A session's lock protects all of it. It is held while memory of the caller's is pinned
 * or copied, and so is waited for killably.
 */
#include <linux/dma-direct.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/io.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/overflow.h>
#include <linux/platform_device.h>
#include <linux/scatterlist.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "pinner.h"

struct session {
	struct mutex lock;
	struct platform_device *device;
	/* What is pinned; no pages: nothing is. */
	struct page **pages;
	unsigned long nr;
	u64 bytes;
	unsigned int offset; /* in the first page */
	bool write;
	struct sg_table table;
};

static int session_open(struct inode *inode, struct file *file)
{
	struct session *s = kzalloc(sizeof(*s), GFP_KERNEL);
	struct device *dev;
	int err;

	if (!s)
		return -ENOMEM;
	mutex_init(&s->lock);
	s->device = platform_device_register_simple(PINNER_NAME, PLATFORM_DEVID_AUTO, NULL, 0);
	if (IS_ERR(s->device)) {
		err = PTR_ERR(s->device);
		kfree(s);
		return err;
	}
	dev = &s->device->dev;
	err = dma_coerce_mask_and_coherent(dev, DMA_BIT_MASK(64));
	if (err) {
		platform_device_unregister(s->device);
		kfree(s);
		return err;
	}
	/* Entries may be of any length and cross any address, as those of GPUs. */
	dma_set_max_seg_size(dev, UINT_MAX);
	dma_set_seg_boundary(dev, ULONG_MAX);
	file->private_data = s;
	return 0;
}

static enum dma_data_direction direction(const struct session *s)
{
	return s->write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
}

/* All of it in one call, or nothing. */
static int pin_pages(struct session *s, const struct pinner_pin *req)
{
	unsigned int flags = FOLL_LONGTERM | (s->write ? FOLL_WRITE : 0);
	unsigned long start = req->address & PAGE_MASK;
	long nr;

	if (req->flags & PINNER_FAST) {
		nr = pin_user_pages_fast(start, s->nr, flags, s->pages);
	} else {
		if (mmap_read_lock_killable(current->mm))
			return -EINTR;
		nr = compat_pin_user_pages(start, s->nr, flags, s->pages);
		mmap_read_unlock(current->mm);
	}
	if (nr == s->nr)
		return 0;
	if (nr < 0)
		return nr;
	unpin_user_pages(s->pages, nr);
	return -EFAULT;
}

static void count(const struct session *s, struct pinner_pin *req)
{
	unsigned long i, run = 0;
	struct scatterlist *sg;
	unsigned int j;

	req->pages = s->nr;
	req->run_max = 0;
	req->runs = 0;
	req->frames = 0;
	for (i = 0; i < s->nr; i++) {
		if (!i || page_to_pfn(s->pages[i]) != page_to_pfn(s->pages[i - 1]) + 1) {
			req->runs++;
			run = 0;
		}
		if (!run || compound_head(s->pages[i]) != compound_head(s->pages[i - 1]))
			req->frames++;
		run++;
		req->run_max = max_t(u64, req->run_max, run);
	}
	req->cpu_entries = s->table.orig_nents;
	req->dma_entries = s->table.nents;
	req->dma_bytes = 0;
	for_each_sgtable_dma_sg(&s->table, sg, j)
		req->dma_bytes += sg_dma_len(sg);
}

static int pin(struct session *s, struct pinner_pin *req)
{
	u64 max_pages = min_t(u64, totalram_pages(), INT_MAX / sizeof(struct page *));
	unsigned int max_seg = req->max_seg ?: UINT_MAX;
	u64 end;
	int err;

	if (s->pages)
		return -EBUSY;
	if (!req->bytes || req->flags & ~(PINNER_READ | PINNER_FAST) || max_seg < PAGE_SIZE)
		return -EINVAL;
	if (req->bytes > max_pages << PAGE_SHIFT)
		return -EINVAL;
	if (check_add_overflow(req->address, req->bytes, &end) || end > ULONG_MAX ||
	    !access_ok(u64_to_user_ptr(req->address), req->bytes))
		return -EFAULT;
	s->write = !(req->flags & PINNER_READ);
	s->bytes = req->bytes;
	s->offset = offset_in_page(req->address);
	s->nr = PFN_UP(s->offset + s->bytes);
	s->pages = kvmalloc_array(s->nr, sizeof(*s->pages), GFP_KERNEL);
	if (!s->pages)
		return -ENOMEM;
	err = pin_pages(s, req);
	if (err)
		goto free_pages;
	err = sg_alloc_table_from_pages_segment(&s->table, s->pages, s->nr, s->offset, s->bytes,
						max_seg, GFP_KERNEL);
	if (err)
		goto unpin;
	err = dma_map_sgtable(&s->device->dev, &s->table, direction(s), 0);
	if (err)
		goto free_table;
	count(s, req);
	return 0;

free_table:
	sg_free_table(&s->table);
unpin:
	unpin_user_pages(s->pages, s->nr);
free_pages:
	kvfree(s->pages);
	s->pages = NULL;
	return err;
}

static int unpin(struct session *s)
{
	if (!s->pages)
		return -ENOENT;
	dma_unmap_sgtable(&s->device->dev, &s->table, direction(s), 0);
	sg_free_table(&s->table);
	unpin_user_pages_dirty_lock(s->pages, s->nr, s->write);
	kvfree(s->pages);
	s->pages = NULL;
	return 0;
}

static int entry(struct session *s, struct pinner_entry *req)
{
	struct scatterlist *sg;
	unsigned int i;

	if (!s->pages)
		return -ENOENT;
	for_each_sgtable_dma_sg(&s->table, sg, i) {
		if (i == req->index) {
			req->address = sg_dma_address(sg);
			req->bytes = sg_dma_len(sg);
			return 0;
		}
	}
	return -ERANGE;
}

/* At most a page's worth: hardened usercopy would not have more, of direct addresses. */
static int copy_piece(void *addr, const struct pinner_copy *req, u64 done, size_t bytes)
{
	void __user *buf = u64_to_user_ptr(req->buf + done);

	if (fatal_signal_pending(current))
		return -EINTR;
	cond_resched();
	if (req->write ? copy_from_user(addr, buf, bytes) : copy_to_user(buf, addr, bytes))
		return -EFAULT;
	return 0;
}

static int copy_by_pages(struct session *s, const struct pinner_copy *req)
{
	u64 done = 0;

	while (done < req->bytes) {
		u64 at = s->offset + req->offset + done;
		size_t part = min_t(u64, req->bytes - done, PAGE_SIZE - offset_in_page(at));
		void *page = kmap_local_page(s->pages[at >> PAGE_SHIFT]);
		int err = copy_piece(page + offset_in_page(at), req, done, part);

		kunmap_local(page);
		if (err)
			return err;
		done += part;
	}
	return 0;
}

/* What the device's addresses mean is only known where they are direct ones. */
static int copy_by_dma(struct session *s, const struct pinner_copy *req)
{
	u64 start = 0, done = 0;
	struct scatterlist *sg;
	unsigned int i;

	for_each_sgtable_dma_sg(&s->table, sg, i) {
		u64 end = start + sg_dma_len(sg);

		while (done < req->bytes && req->offset + done < end) {
			u64 at = req->offset + done;
			dma_addr_t address = sg_dma_address(sg) + (at - start);
			size_t part = min3(req->bytes - done, end - at,
					   (u64)PAGE_SIZE - offset_in_page(address));
			int err = copy_piece(phys_to_virt(dma_to_phys(&s->device->dev, address)),
					     req, done, part);

			if (err)
				return err;
			done += part;
		}
		start = end;
	}
	return done == req->bytes ? 0 : -ERANGE;
}

static int copy(struct session *s, const struct pinner_copy *req)
{
	if (!s->pages)
		return -ENOENT;
	if (req->way > PINNER_BY_DMA || req->write > 1)
		return -EINVAL;
	if (req->write && !s->write)
		return -EACCES;
	if (req->offset > s->bytes || req->bytes > s->bytes - req->offset)
		return -ERANGE;
	return req->way == PINNER_BY_DMA ? copy_by_dma(s, req) : copy_by_pages(s, req);
}

static int locked_ioctl(struct session *s, unsigned int cmd, void __user *arg)
{
	union {
		struct pinner_pin pin;
		struct pinner_entry entry;
		struct pinner_copy copy;
	} req;
	size_t size;
	int err;

	switch (cmd) {
	case PINNER_UNPIN:
		return unpin(s);
	case PINNER_PIN:
		size = sizeof(req.pin);
		break;
	case PINNER_ENTRY:
		size = sizeof(req.entry);
		break;
	case PINNER_COPY:
		size = sizeof(req.copy);
		break;
	default:
		return -ENOTTY;
	}
	if (copy_from_user(&req, arg, size))
		return -EFAULT;
	switch (cmd) {
	case PINNER_PIN:
		err = pin(s, &req.pin);
		break;
	case PINNER_ENTRY:
		err = entry(s, &req.entry);
		break;
	default:
		err = copy(s, &req.copy);
		break;
	}
	if (err || !copy_to_user(arg, &req, size))
		return err;
	/* Nobody would know that it is pinned. */
	if (cmd == PINNER_PIN)
		unpin(s);
	return -EFAULT;
}

static long session_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct session *s = file->private_data;
	long ret;

	if (mutex_lock_killable(&s->lock))
		return -EINTR;
	ret = locked_ioctl(s, cmd, (void __user *)arg);
	mutex_unlock(&s->lock);
	return ret;
}

static int session_release(struct inode *inode, struct file *file)
{
	struct session *s = file->private_data;

	unpin(s);
	platform_device_unregister(s->device);
	mutex_destroy(&s->lock);
	kfree(s);
	return 0;
}

static const struct file_operations session_fops = {
	.owner = THIS_MODULE,
	.open = session_open,
	.release = session_release,
	.unlocked_ioctl = session_ioctl,
};

static struct miscdevice pinner = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = PINNER_NAME,
	.fops = &session_fops,
	.mode = 0600,
};

module_misc_device(pinner);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Pins memory of processes as GPU drivers do, for binpool's tests");
MODULE_AUTHOR("The binpool authors");
