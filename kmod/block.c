// SPDX-License-Identifier: GPL-2.0
/*
 * A block: frames that are somebody's, behind a file of its own. The VFS counts
 * descriptors and mappings; when the last is gone ->release returns the frames.
 * A block does not change after it was made, but for two counters and a flag that
 * is only ever set, so nothing here needs a lock.
 *
 * Each file holds a reference on the module (which the VFS drops after ->release)
 * and, like any file, one on its mount, which holds another on the module: it cannot
 * go while a block is in use.
 */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/fs_context.h>
#include <linux/huge_mm.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pagemap.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/proc_fs.h>
#include <linux/pseudo_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/user_namespace.h>

#include "compat.h"
#include "internal.h"
#include "ioctl.h"
#include "trace.h"

#define BLOCK_FS_MAGIC 0x62706f6c /* "bpol" */

static struct vfsmount *block_mnt;
static int block_mnt_count;

static int block_fs_init(struct fs_context *fc)
{
	if (!init_pseudo(fc, BLOCK_FS_MAGIC))
		return -ENOMEM;
	fc->s_iflags |= SB_I_NOEXEC | SB_I_NODEV;
	return 0;
}

static struct file_system_type block_fs = {
	.name = "binpool",
	.owner = THIS_MODULE,
	.init_fs_context = block_fs_init,
	.kill_sb = kill_anon_super,
};

/*
 * Keeps the file system mounted until block_fs_put(): each open device does, so that
 * blocks can be made. A block's file keeps what it is on by itself.
 */
int block_fs_get(void)
{
	return simple_pin_fs(&block_fs, &block_mnt, &block_mnt_count);
}

void block_fs_put(void)
{
	simple_release_fs(&block_mnt, &block_mnt_count);
}

/*
 * What was taken for a block is in it from here on. Neither what is managed nor what is
 * spare changes by that, so no node_unlock().
 */
static void activate(struct frame *run)
{
	struct node_pool *node = node_of_frame(run);

	spin_lock(&node->lock);
	node->stats.taken -= run->nr;
	node->stats.active += run->nr;
	run->state = FRAME_ACTIVE;
	run->other->state = FRAME_ACTIVE;
	spin_unlock(&node->lock);
}

/*
 * A block over the private, clean frames of @runs, which it takes over with what was
 * charged for them; on failure (NULL) both stay the caller's.
 */
struct block *block_create(const struct request *req, u64 bytes, struct list_head *runs)
{
	struct block *block = kmalloc(sizeof(*block), GFP_KERNEL);
	struct frame *run;
	unsigned int i = 0;

	if (!block)
		return NULL;
	*block = (struct block){.nr_runs = runs_tidy(runs)};
	block->runs = &block->run;
	if (block->nr_runs > 1)
		block->runs = kvmalloc_array(block->nr_runs, sizeof(*block->runs), GFP_KERNEL);
	if (!block->runs) {
		kfree(block);
		return NULL;
	}
	INIT_LIST_HEAD(&block->frames);
	list_splice_init(runs, &block->frames);
	block->nid = page_to_nid(list_first_entry(&block->frames, struct frame, link)->page);
	list_for_each_entry(run, &block->frames, link) {
		block->runs[i].start = block->nr;
		block->runs[i++].page = run->page;
		block->nr += run->nr;
		block->run_max = max(block->run_max, run->nr);
		if (page_to_nid(run->page) != block->nid)
			block->nid = NUMA_NO_NODE;
		activate(run);
	}
	kref_init(&block->ref);
	kref_get(&req->opener->ref);
	block->opener = req->opener;
	block->locked = req->locked;
	block->pid = get_task_pid(current, PIDTYPE_TGID);
	block->bytes = bytes;
	block->bin = run_bin(block->nr);
	bin_count_active(block, 1);
	holders_add(block);
	return block;
}

static void block_free(struct kref *ref)
{
	struct block *block = container_of(ref, struct block, ref);

	holders_del(block);
	opener_put(block->opener);
	put_pid(block->pid);
	if (block->runs != &block->run)
		kvfree(block->runs);
	kfree(block);
}

void block_put(struct block *block)
{
	kref_put(&block->ref, block_free);
}

/* Cuts what is alike, idle or not, off the front of a run. */
static struct frame *cut(struct frame **run, bool *idle)
{
	struct frame *front = *run;
	unsigned long n = 1;

	*idle = frame_idle(front);
	while (n < front->nr && *idle && frame_idle(frame_next(front, n))) {
		if (n++ % 64 == 0)
			cond_resched();
	}
	*run = n < front->nr ? run_split(front, n, front->state) : NULL;
	return front;
}

/*
 * Runs that @block had, or left in quarantine, come back: idle frames are held, or go to the system
 * if nothing is to be held, the others go to limbo. Allocates nothing and zeroes nothing.
 */
void frames_return(struct block *block, struct list_head *runs)
{
	struct frame *run, *tmp;
	unsigned long nr = 0;
	LIST_HEAD(idle_runs);

	list_for_each_entry_safe(run, tmp, runs, link) {
		list_del_init(&run->link);
		run_set(run, run->other, run->nr, run->state, false);
		while (run) {
			bool idle;
			struct frame *front = cut(&run, &idle);

			if (!idle) {
				limbo_put(front, block);
				continue;
			}
			nr += front->nr;
			list_add_tail(&front->link, &idle_runs);
		}
	}
	/* First: who sees that nothing is active any more is not charged for it either. */
	charge_give(block->opener, nr, block->locked);
	held_return(&idle_runs);
	room_made();
}

/* All of the block's frames come back. Ends the caller's reference. */
void block_return(struct block *block)
{
	trace_return(block);
	WRITE_ONCE(block->returned, true);
	bin_count_active(block, -1);
	if (block->told)
		quarantine_put(block, &block->frames);
	else
		frames_return(block, &block->frames);
	block_put(block);
}

static int block_release(struct inode *inode, struct file *file)
{
	block_return(file->private_data);
	atomic64_inc(&events.returns);
	return 0;
}

static struct page *block_page(const struct block *block, unsigned long pgoff)
{
	unsigned long frame = pgoff >> FRAME_ORDER;
	unsigned int lo = 0, hi = block->nr_runs;

	while (hi - lo > 1) {
		unsigned int mid = lo + (hi - lo) / 2;

		if (block->runs[mid].start <= frame)
			lo = mid;
		else
			hi = mid;
	}
	return block->runs[lo].page + (pgoff - (block->runs[lo].start << FRAME_ORDER));
}

/* Whether this fault will map the whole frame: what the core asks, asked before. */
static bool maps_frame(const struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	unsigned long start = vmf->address & PMD_MASK;

	return !compat_small_pages_only(vma) && start >= vma->vm_start &&
	       start + PMD_SIZE <= vma->vm_end &&
	       !(((vma->vm_start >> PAGE_SHIFT) - vma->vm_pgoff) & (FRAME_PAGES - 1)) &&
	       pmd_none(*vmf->pmd);
}

/*
 * Returns the page, with a reference and never locked; the core maps the frame
 * around it huge where it can.
 */
static vm_fault_t block_fault(struct vm_fault *vmf)
{
	struct block *block = vmf->vma->vm_file->private_data;

	if (vmf->pgoff >> FRAME_ORDER >= block->nr)
		return VM_FAULT_SIGBUS;
	atomic64_inc(maps_frame(vmf) ? &block->huge_faults : &block->small_faults);
	vmf->page = block_page(block, vmf->pgoff);
	get_page(vmf->page);
	return 0;
}

static const struct vm_operations_struct block_vm_ops = {
	.fault = block_fault,
};

/* Also for dma-bufs of the block; @vma->vm_file may be another than @file. */
int block_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct block *block = file->private_data;
	unsigned long pages = block->nr << FRAME_ORDER;

	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma->vm_pgoff > pages || vma_pages(vma) > pages - vma->vm_pgoff)
		return -EINVAL;
	compat_vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_ops = &block_vm_ops;
	return 0;
}

static long ioctl_query(struct block *block, void __user *arg)
{
	struct binpool_query query;
	int err = ioctl_read(&query, sizeof(query), offsetofend(struct binpool_query, small_faults),
			     arg);

	if (err)
		return err;
	if (query.flags)
		return -EINVAL;
	query.bytes = block->bytes;
	query.capacity = frames_to_bytes(block->nr);
	query.frame_bytes = FRAME_BYTES;
	query.run_max_bytes = frames_to_bytes(block->run_max);
	query.runs = block->nr_runs;
	query.node = block->nid;
	query.owner_uid = from_kuid_munged(current_user_ns(), block->opener->uid);
	query.owner_pid = pid_vnr(block->pid);
	query.huge_faults = atomic64_read(&block->huge_faults);
	query.small_faults = atomic64_read(&block->small_faults);
	return ioctl_write(arg, &query, sizeof(query));
}

static void block_show_fdinfo(struct seq_file *m, struct file *file)
{
	const struct block *block = file->private_data;
	struct pid_namespace *ns = proc_pid_ns(file_inode(m->file)->i_sb);

	seq_printf(m, "bytes:\t%llu\n", block->bytes);
	seq_printf(m, "capacity:\t%llu\n", frames_to_bytes(block->nr));
	seq_printf(m, "runs:\t%u\n", block->nr_runs);
	seq_printf(m, "run_max_bytes:\t%llu\n", frames_to_bytes(block->run_max));
	seq_printf(m, "node:\t%d\n", block->nid);
	seq_printf(m, "owner_uid:\t%u\n", from_kuid_munged(seq_user_ns(m), block->opener->uid));
	seq_printf(m, "owner_pid:\t%d\n", pid_nr_ns(block->pid, ns));
	seq_printf(m, "cgroup_id:\t%llu\n", block->opener->cgroup);
	seq_printf(m, "huge_faults:\t%lld\n", atomic64_read(&block->huge_faults));
	seq_printf(m, "small_faults:\t%lld\n", atomic64_read(&block->small_faults));
}

static long block_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	switch (cmd) {
	case BINPOOL_IOC_QUERY:
		return ioctl_query(file->private_data, (void __user *)arg);
	case BINPOOL_IOC_EXPORT_DMABUF:
		return ioctl_export_dmabuf(file, (void __user *)arg);
	case BINPOOL_IOC_PHYS:
		return ioctl_phys(file->private_data, (void __user *)arg);
	default:
		return -ENOTTY;
	}
}

const struct file_operations block_fops = {
	.owner = THIS_MODULE,
	.release = block_release,
	.mmap = block_mmap,
	.get_unmapped_area = thp_get_unmapped_area,
	.unlocked_ioctl = block_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.show_fdinfo = block_show_fdinfo,
};

/*
 * A file for @block, which belongs to it from then on. On failure the block stays
 * the caller's.
 */
struct file *block_file(struct block *block)
{
	struct inode *inode;
	struct file *file;

	/* Mounted: the device is open as long as somebody calls ALLOC. */
	inode = alloc_anon_inode(block_mnt->mnt_sb);
	if (IS_ERR(inode))
		return ERR_CAST(inode);
	/*
	 * Offsets are checked against the block. The size must not be less, or the
	 * fault handler maps small pages (since 6.12). No i_fop: opening
	 * /proc/PID/fd/N makes no second file.
	 */
	i_size_write(inode, MAX_LFS_FILESIZE);
	inode->i_flags |= S_NOCMTIME | S_NOATIME;
	/* Not migratable: NUMA balancing leaves these mappings alone. */
	mapping_set_gfp_mask(inode->i_mapping, GFP_USER | __GFP_DMA);

	file = alloc_file_pseudo(inode, block_mnt, "binpool", O_RDWR, &block_fops);
	if (IS_ERR(file)) {
		iput(inode);
		return file;
	}
	file->private_data = block;
	/* The VFS puts it with the file. The caller's open device holds one already. */
	__module_get(THIS_MODULE);
	return file;
}
