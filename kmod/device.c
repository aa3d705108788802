// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/binpool: an opener per open(), and the ioctls INFO, ALLOC, TRIM and LIMIT.
 * An opener lives until its descriptor and its last block, limbo included, are gone.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/capability.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/sched/user.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include "compat.h"
#include "internal.h"
#include "ioctl.h"
#include "trace.h"

static int device_open(struct inode *inode, struct file *file)
{
	struct opener *opener = kzalloc(sizeof(*opener), GFP_KERNEL_ACCOUNT);

	int err = -ENOMEM;

	if (!opener)
		return err;
	opener->user = user_get(file->f_cred);
	if (!opener->user)
		goto free;
	err = block_fs_get();
	if (err)
		goto put_user;
	kref_init(&opener->ref);
	opener->uid = file->f_cred->uid;
	opener->memlock = get_uid(file->f_cred->user);
	atomic_long_set(&opener->max_frames, OPENER_UNLIMITED);
	opener->cgroup = holder_cgroup();
	file->private_data = opener;
	return 0;

put_user:
	user_put(opener->user);
free:
	kfree(opener);
	return err;
}

static void opener_free(struct kref *ref)
{
	struct opener *opener = container_of(ref, struct opener, ref);

	user_put(opener->user);
	free_uid(opener->memlock);
	kfree(opener);
}

void opener_put(struct opener *opener)
{
	kref_put(&opener->ref, opener_free);
}

static int device_release(struct inode *inode, struct file *file)
{
	opener_put(file->private_data);
	block_fs_put();
	return 0;
}

/* LIMIT's, as the ABI has it: 0 if there is none. */
static u64 limit_bytes(long max_frames)
{
	return max_frames == OPENER_UNLIMITED ? 0 : frames_to_bytes(max_frames);
}

/* What one user may have. */
static u64 user_bound(void)
{
	return user_limit_bytes() ?: limit_max_bytes();
}

static u64 account_bytes(const struct account *account)
{
	return frames_to_bytes(atomic_long_read(&account->frames));
}

static long ioctl_info(struct opener *opener, void __user *arg)
{
	struct binpool_info info;
	struct node_stats sum;
	int err = ioctl_read(&info, sizeof(info), offsetofend(struct binpool_info, opener_bytes),
			     arg);

	if (err)
		return err;
	if (info.flags)
		return -EINVAL;
	sum = stats_sum();
	info.abi_version = BINPOOL_ABI_VERSION;
	info.mantissa_bits = mantissa_bits;
	info.features = compat_uring_fixed() ? BINPOOL_FEATURE_URING_FIXED : 0;
	if (IS_ENABLED(CONFIG_DMA_SHARED_BUFFER))
		info.features |= BINPOOL_FEATURE_DMABUF;
	info.frame_bytes = FRAME_BYTES;
	info.max_bytes = limit_max_bytes();
	info.active_bytes = frames_to_bytes(sum.active);
	info.held_bytes = frames_to_bytes(sum.held);
	info.limbo_bytes = frames_to_bytes(sum.limbo);
	info.opener_bytes = account_bytes(&opener->account);
	info.opener_max_bytes = limit_bytes(atomic_long_read(&opener->max_frames));
	info.user_bytes = account_bytes(&opener->user->account);
	info.user_max_bytes = user_bound();
	info.quarantine_bytes = frames_to_bytes(sum.quarantine);
	return ioctl_write(arg, &info, sizeof(info));
}

/* Longest size class that fits into @nr frames, in bytes. */
static u64 class_within(unsigned long nr)
{
	u32 l = binpool_log2(nr);

	if (l > mantissa_bits)
		nr &= ~((1UL << (l - mantissa_bits)) - 1);
	return frames_to_bytes(nr);
}

static int check_alloc(const struct binpool_alloc *alloc, struct request *req)
{
	const u32 known = BINPOOL_ALLOC_CONTIG | BINPOOL_ALLOC_STRICT_NODE | BINPOOL_ALLOC_NOWAIT;
	bool strict = alloc->flags & BINPOOL_ALLOC_STRICT_NODE;
	u64 capacity;

	if (alloc->flags & ~known || alloc->reserved || alloc->reserved2 || !alloc->bytes)
		return -EINVAL;
	if (alloc->align && !is_power_of_2(alloc->align))
		return -EINVAL;
	if (alloc->align > FRAME_BYTES && !(alloc->flags & BINPOOL_ALLOC_CONTIG))
		return -EINVAL;
	if (alloc->node == BINPOOL_NODE_ANY ? strict : !node_allowed(alloc->node))
		return -EINVAL;

	req->nid = alloc->node == BINPOOL_NODE_ANY ? NUMA_NO_NODE : alloc->node;
	capacity = binpool_tight_capacity(mantissa_bits, alloc->bytes, FRAME_BYTES);
	if (!capacity || alloc->align > limit_machine_bytes(NUMA_NO_NODE) ||
	    capacity > limit_machine_bytes(strict ? req->nid : NUMA_NO_NODE))
		return -EFBIG;
	req->nr = capacity >> PMD_SHIFT;
	req->align = alloc->align > FRAME_BYTES ? alloc->align >> PMD_SHIFT : 1;
	req->flags = alloc->flags;
	return 0;
}

/* A file over a new block of clean frames. */
static struct file *new_block(struct binpool_alloc *alloc, struct request *req)
{
	struct block *block;
	struct file *file;
	LIST_HEAD(runs);
	int err;

	err = acquire(req, &runs);
	if (err)
		return ERR_PTR(err);
	block = block_create(req, alloc->bytes, &runs);
	if (!block) {
		held_return(&runs);
		charge_give(req->opener, req->nr, req->locked);
		room_made();
		return ERR_PTR(-ENOMEM);
	}
	alloc->runs = block->nr_runs;
	alloc->capacity = frames_to_bytes(block->nr);
	alloc->run_max_bytes = frames_to_bytes(block->run_max);
	file = block_file(block);
	if (IS_ERR(file)) {
		block_return(block);
		return file;
	}
	atomic64_inc(req->fresh ? &events.allocs : &events.reuses);
	bin_count_alloc(block, req->fresh);
	trace_alloc(block, req->fresh);
	return file;
}

static long ioctl_alloc(struct opener *opener, void __user *arg)
{
	struct request req = {.opener = opener};
	struct binpool_alloc alloc;
	struct file *file;
	int fd, err;

	err = ioctl_read(&alloc, sizeof(alloc), offsetofend(struct binpool_alloc, managed_bytes),
			 arg);
	if (err)
		return err;
	err = check_alloc(&alloc, &req);
	if (err)
		return err;
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		return fd;

	alloc.runs = 0;
	alloc.capacity = 0;
	file = new_block(&alloc, &req);
	alloc.fd = IS_ERR(file) ? -1 : fd;
	alloc.max_bytes = limit_max_bytes();
	alloc.managed_bytes = limit_managed_bytes();
	alloc.user_max_bytes = user_bound();
	alloc.user_bytes = account_bytes(&opener->user->account);
	alloc.opener_max_bytes = limit_bytes(atomic_long_read(&opener->max_frames));
	alloc.opener_bytes = account_bytes(&opener->account);
	alloc.memlock_bytes = (u64)atomic_long_read(&opener->memlock->locked_vm) << PAGE_SHIFT;
	alloc.exceeded = BINPOOL_EXCEEDED_NONE;
	if (IS_ERR(file)) {
		put_unused_fd(fd);
		alloc.run_max_bytes = class_within(req.run_max);
		err = PTR_ERR(file);
		trace_alloc_failed(&req, alloc.bytes, err);
		if (err == -EDQUOT)
			alloc.exceeded = req.exceeded;
		else if (err == -ENOSPC)
			alloc.exceeded = BINPOOL_EXCEEDED_MODULE;
		if (err == -ENOMEM || err == -ENOSPC || err == -EDQUOT)
			err = ioctl_write(arg, &alloc, sizeof(alloc)) ?: err;
		return err;
	}
	/* Installed last: nothing may fail once the descriptor can be used. */
	err = ioctl_write(arg, &alloc, sizeof(alloc));
	if (err) {
		put_unused_fd(fd);
		fput(file);
		return err;
	}
	fd_install(fd, file);
	return 0;
}

static long ioctl_trim(void __user *arg)
{
	struct binpool_trim trim;
	unsigned long keep, gone = 0;
	int nid, err;

	err = ioctl_read(&trim, sizeof(trim), offsetofend(struct binpool_trim, freed_bytes), arg);
	if (err)
		return err;
	if (trim.flags || trim.reserved)
		return -EINVAL;
	if (trim.node != BINPOOL_NODE_ANY && !node_allowed(trim.node))
		return -EINVAL;
	keep = trim.held_bytes >> PMD_SHIFT;
	err = cleaners_pause(PAUSE_FOR_ALL);
	for_each_node(nid)
		if (trim.node == BINPOOL_NODE_ANY || trim.node == nid)
			gone += held_to_system(node_of(nid), GIVE_SPARE, keep, ULONG_MAX);
	cleaners_resume();
	room_made();
	if (err)
		return err;
	trim.freed_bytes = frames_to_bytes(gone);
	return ioctl_write(arg, &trim, sizeof(trim));
}

static int refuse_raise(long max, long old)
{
	pr_notice_ratelimited("LIMIT=%llu of process %d, now %llu, takes CAP_SYS_RESOURCE\n",
			      limit_bytes(max), task_tgid_nr(current), limit_bytes(old));
	return -EPERM;
}

/*
 * The opener's own limit. As with a hard resource limit anybody who has the
 * descriptor may lower it, so that it can be set before the descriptor is passed on.
 */
static long ioctl_limit(struct opener *opener, void __user *arg)
{
	struct binpool_limit limit;
	long max = OPENER_UNLIMITED, old;
	int err;

	err = ioctl_read(&limit, sizeof(limit), offsetofend(struct binpool_limit, opener_bytes),
			 arg);
	if (err)
		return err;
	if (limit.flags)
		return -EINVAL;
	if (limit.max_bytes && limit.max_bytes < FRAME_BYTES) {
		pr_notice_ratelimited("LIMIT=%llu of process %d is less than a frame (%lu)\n",
				      limit.max_bytes, task_tgid_nr(current), FRAME_BYTES);
		return -EINVAL;
	}
	if (limit.max_bytes)
		max = limit.max_bytes >> PMD_SHIFT;
	old = atomic_long_read(&opener->max_frames);
	do {
		if (max > old && !capable(CAP_SYS_RESOURCE))
			return refuse_raise(max, old);
		limit.previous_bytes = limit_bytes(old);
		limit.opener_bytes = account_bytes(&opener->account);
		/* Before it is set: what cannot be answered is not done. */
		err = ioctl_write(arg, &limit, sizeof(limit));
		if (err)
			return err;
	} while (!atomic_long_try_cmpxchg(&opener->max_frames, &old, max));
	room_made();
	return 0;
}

static void device_show_fdinfo(struct seq_file *m, struct file *file)
{
	const struct opener *opener = file->private_data;

	seq_printf(m, "uid:\t%u\n", from_kuid_munged(seq_user_ns(m), opener->uid));
	seq_printf(m, "cgroup_id:\t%llu\n", opener->cgroup);
	seq_printf(m, "opener_bytes:\t%llu\n", account_bytes(&opener->account));
	seq_printf(m, "opener_max_bytes:\t%llu\n",
		   limit_bytes(atomic_long_read(&opener->max_frames)));
	seq_printf(m, "user_uid:\t%u\n", from_kuid_munged(seq_user_ns(m), opener->user->uid));
	seq_printf(m, "user_bytes:\t%llu\n", account_bytes(&opener->user->account));
	seq_printf(m, "user_max_bytes:\t%llu\n", user_bound());
}

static long device_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	void __user *uarg = (void __user *)arg;

	switch (cmd) {
	case BINPOOL_IOC_INFO:
		return ioctl_info(file->private_data, uarg);
	case BINPOOL_IOC_ALLOC:
		return ioctl_alloc(file->private_data, uarg);
	case BINPOOL_IOC_TRIM:
		return ioctl_trim(uarg);
	case BINPOOL_IOC_LIMIT:
		return ioctl_limit(file->private_data, uarg);
	default:
		return -ENOTTY;
	}
}

const struct file_operations device_fops = {
	.owner = THIS_MODULE,
	.open = device_open,
	.release = device_release,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.show_fdinfo = device_show_fdinfo,
};
