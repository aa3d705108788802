/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How ioctl structs come in and go out: versioned by their size, which is their
 * first member. No state. Inline, so that the usual length, our own, is a constant:
 * such copies need no checks at run time.
 */
#ifndef BINPOOL_IOCTL_H
#define BINPOOL_IOCTL_H

#include <linux/mm.h>
#include <linux/uaccess.h>

/*
 * Reads a struct that is @ksize long here and was @first_size long in its first
 * version. What the caller's lacks is zero; what it has more must be.
 */
static __always_inline int ioctl_read(void *dst, size_t ksize, size_t first_size,
				      const void __user *src)
{
	u32 usize;
	int err;

	if (get_user(usize, (const u32 __user *)src))
		return -EFAULT;
	if (usize < first_size)
		return -EINVAL;
	if (usize > PAGE_SIZE)
		return -E2BIG;
	if (usize == ksize)
		err = copy_from_user(dst, src, ksize) ? -EFAULT : 0;
	else
		err = copy_struct_from_user(dst, ksize, src, usize);
	if (err)
		return err;
	*(u32 *)dst = usize; /* it may have changed under us */
	return 0;
}

/* Writes it back, as far as the caller's struct goes; the rest there is zero. */
static __always_inline int ioctl_write(void __user *dst, const void *src, size_t ksize)
{
	u32 usize = *(const u32 *)src;

	if (usize >= ksize)
		return copy_to_user(dst, src, ksize) ? -EFAULT : 0;
	return copy_to_user(dst, src, usize) ? -EFAULT : 0;
}

#endif /* BINPOOL_IOCTL_H */
