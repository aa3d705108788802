// SPDX-License-Identifier: GPL-2.0
/*
 * A driver that imports dma-bufs, for tests only: each opening of its device is a
 * DMA device of its own, which attaches to a dma-buf, maps it, says what it was
 * given, and reads and writes it by these addresses and by vmap. Closing lets go of
 * everything, in the order that the interface asks for.
 *
 * A session's lock protects all of it; it is taken before a dma-buf's reservation.
 */
#include <linux/dma-buf.h>
#include <linux/dma-direct.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/iosys-map.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/platform_device.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "../../kmod/compat.h"
#include "importer.h"

COMPAT_IMPORT_DMA_BUF;

struct session {
	struct mutex lock;
	struct platform_device *device;
	struct dma_buf_attachment *attach;
	struct {
		struct sg_table *table;
		enum dma_data_direction dir;
	} mapped[IMPORTER_MAPPINGS];
	struct iosys_map vmap;
};

static int session_open(struct inode *inode, struct file *file)
{
	struct session *s = kzalloc(sizeof(*s), GFP_KERNEL);

	if (!s)
		return -ENOMEM;
	mutex_init(&s->lock);
	s->device = platform_device_register_simple(IMPORTER_NAME, PLATFORM_DEVID_AUTO, NULL, 0);
	if (IS_ERR(s->device)) {
		int err = PTR_ERR(s->device);

		kfree(s);
		return err;
	}
	file->private_data = s;
	return 0;
}

static int attach(struct session *s, struct importer_attach *req)
{
	struct device *dev = &s->device->dev;
	struct dma_buf_attachment *attachment;
	struct dma_buf *dmabuf;
	struct list_head *other;
	int err;

	if (s->attach)
		return -EBUSY;
	err = dma_coerce_mask_and_coherent(dev, DMA_BIT_MASK(req->dma_bits));
	if (err)
		return err;
	if (req->max_seg)
		dma_set_max_seg_size(dev, req->max_seg);
	dmabuf = dma_buf_get(req->fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	attachment = dma_buf_attach(dmabuf, dev);
	if (IS_ERR(attachment)) {
		dma_buf_put(dmabuf);
		return PTR_ERR(attachment);
	}
	s->attach = attachment;
	req->nr_others = 0;
	dma_resv_lock(dmabuf->resv, NULL);
	list_for_each(other, &dmabuf->attachments) req->nr_others++;
	dma_resv_unlock(dmabuf->resv);
	req->nr_others--;
	return 0;
}

static int detach(struct session *s)
{
	struct dma_buf *dmabuf;
	int i;

	if (!s->attach)
		return -ENOENT;
	for (i = 0; i < IMPORTER_MAPPINGS; i++)
		if (s->mapped[i].table)
			return -EBUSY;
	if (!iosys_map_is_null(&s->vmap))
		return -EBUSY;
	dmabuf = s->attach->dmabuf;
	dma_buf_detach(dmabuf, s->attach);
	dma_buf_put(dmabuf);
	s->attach = NULL;
	return 0;
}

/* With the reservation held, as it must be since 6.2; before, it does no harm. */
static int map(struct session *s, struct importer_map *req)
{
	struct sg_table *table;

	if (!s->attach)
		return -ENOENT;
	if (req->slot >= IMPORTER_MAPPINGS || req->dir > DMA_FROM_DEVICE)
		return -EINVAL;
	if (s->mapped[req->slot].table)
		return -EBUSY;
	dma_resv_lock(s->attach->dmabuf->resv, NULL);
	table = dma_buf_map_attachment(s->attach, req->dir);
	dma_resv_unlock(s->attach->dmabuf->resv);
	if (IS_ERR(table))
		return PTR_ERR(table);
	s->mapped[req->slot].table = table;
	s->mapped[req->slot].dir = req->dir;
	req->cpu_entries = table->orig_nents;
	req->dma_entries = table->nents;
	return 0;
}

static int unmap(struct session *s, unsigned long slot)
{
	if (slot >= IMPORTER_MAPPINGS || !s->mapped[slot].table)
		return -ENOENT;
	dma_resv_lock(s->attach->dmabuf->resv, NULL);
	dma_buf_unmap_attachment(s->attach, s->mapped[slot].table, s->mapped[slot].dir);
	dma_resv_unlock(s->attach->dmabuf->resv);
	s->mapped[slot].table = NULL;
	return 0;
}

static int entry(struct session *s, struct importer_entry *req)
{
	struct scatterlist *sg;
	unsigned int i;

	if (req->slot >= IMPORTER_MAPPINGS || !s->mapped[req->slot].table)
		return -ENOENT;
	for_each_sgtable_dma_sg(s->mapped[req->slot].table, sg, i) {
		if (i == req->index) {
			req->address = sg_dma_address(sg);
			req->bytes = sg_dma_len(sg);
			return 0;
		}
	}
	return -ERANGE;
}

static int do_vmap(struct session *s)
{
	int err;

	if (!s->attach)
		return -ENOENT;
	if (!iosys_map_is_null(&s->vmap))
		return -EBUSY;
	dma_resv_lock(s->attach->dmabuf->resv, NULL);
	err = dma_buf_vmap(s->attach->dmabuf, &s->vmap);
	dma_resv_unlock(s->attach->dmabuf->resv);
	return err;
}

static int do_vunmap(struct session *s)
{
	if (iosys_map_is_null(&s->vmap))
		return -ENOENT;
	dma_resv_lock(s->attach->dmabuf->resv, NULL);
	dma_buf_vunmap(s->attach->dmabuf, &s->vmap);
	dma_resv_unlock(s->attach->dmabuf->resv);
	iosys_map_clear(&s->vmap);
	return 0;
}

/* In pages: hardened usercopy would not have it in more, of direct addresses. */
static int copy_user(void *addr, const struct importer_copy *req, u64 done, u64 bytes)
{
	while (bytes) {
		void __user *buf = u64_to_user_ptr(req->buf + done);
		u64 part = min_t(u64, bytes, PAGE_SIZE - offset_in_page(addr));

		if (req->write ? copy_from_user(addr, buf, part) : copy_to_user(buf, addr, part))
			return -EFAULT;
		addr += part;
		done += part;
		bytes -= part;
	}
	return 0;
}

/* What the device's addresses mean is only known where they are direct ones. */
static int copy_by_dma(struct session *s, const struct importer_copy *req)
{
	u64 start = 0, done = 0;
	struct scatterlist *sg;
	unsigned int i;
	int err = 0;

	if (req->slot >= IMPORTER_MAPPINGS || !s->mapped[req->slot].table)
		return -ENOENT;
	for_each_sgtable_dma_sg(s->mapped[req->slot].table, sg, i) {
		u64 end = start + sg_dma_len(sg);
		u64 at = req->offset + done;

		if (at >= start && at < end && done < req->bytes && !err) {
			phys_addr_t phys = dma_to_phys(&s->device->dev, sg_dma_address(sg));
			u64 bytes = min(end - at, req->bytes - done);

			err = copy_user(phys_to_virt(phys + (at - start)), req, done, bytes);
			done += bytes;
		}
		start = end;
	}
	return err ?: done == req->bytes ? 0 : -ERANGE;
}

static int copy(struct session *s, const struct importer_copy *req)
{
	if (req->way == IMPORTER_BY_DMA)
		return copy_by_dma(s, req);
	if (iosys_map_is_null(&s->vmap))
		return -ENOENT;
	if (req->offset + req->bytes > s->attach->dmabuf->size)
		return -ERANGE;
	/* All at once, as drivers may do. */
	if (req->write)
		return copy_from_user(s->vmap.vaddr + req->offset, u64_to_user_ptr(req->buf),
				      req->bytes)
			       ? -EFAULT
			       : 0;
	return copy_to_user(u64_to_user_ptr(req->buf), s->vmap.vaddr + req->offset, req->bytes)
		       ? -EFAULT
		       : 0;
}

static long locked_ioctl(struct session *s, unsigned int cmd, unsigned long arg)
{
	union {
		struct importer_attach attach;
		struct importer_map map;
		struct importer_entry entry;
		struct importer_copy copy;
	} req;
	void __user *uarg = (void __user *)arg;
	size_t size;
	int err;

	switch (cmd) {
	case IMPORTER_DETACH:
		return detach(s);
	case IMPORTER_UNMAP:
		return unmap(s, arg);
	case IMPORTER_VMAP:
		return do_vmap(s);
	case IMPORTER_VUNMAP:
		return do_vunmap(s);
	case IMPORTER_ATTACH:
		size = sizeof(req.attach);
		break;
	case IMPORTER_MAP:
		size = sizeof(req.map);
		break;
	case IMPORTER_ENTRY:
		size = sizeof(req.entry);
		break;
	case IMPORTER_COPY:
		size = sizeof(req.copy);
		break;
	default:
		return -ENOTTY;
	}
	if (copy_from_user(&req, uarg, size))
		return -EFAULT;
	switch (cmd) {
	case IMPORTER_ATTACH:
		err = attach(s, &req.attach);
		break;
	case IMPORTER_MAP:
		err = map(s, &req.map);
		break;
	case IMPORTER_ENTRY:
		err = entry(s, &req.entry);
		break;
	default:
		err = copy(s, &req.copy);
		break;
	}
	if (err)
		return err;
	return copy_to_user(uarg, &req, size) ? -EFAULT : 0;
}

static long session_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct session *s = file->private_data;
	long ret;

	mutex_lock(&s->lock);
	ret = locked_ioctl(s, cmd, arg);
	mutex_unlock(&s->lock);
	return ret;
}

static int session_release(struct inode *inode, struct file *file)
{
	struct session *s = file->private_data;
	int i;

	do_vunmap(s);
	for (i = 0; i < IMPORTER_MAPPINGS; i++)
		unmap(s, i);
	detach(s);
	platform_device_unregister(s->device);
	kfree(s);
	return 0;
}

static const struct file_operations session_fops = {
	.owner = THIS_MODULE,
	.open = session_open,
	.release = session_release,
	.unlocked_ioctl = session_ioctl,
};

static struct miscdevice importer = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = IMPORTER_NAME,
	.fops = &session_fops,
	.mode = 0600,
};

module_misc_device(importer);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Imports dma-bufs, for binpool's tests");
MODULE_AUTHOR("The binpool authors");
