// SPDX-License-Identifier: GPL-2.0
/*
 * How ioctl structs come in and go out: versioned by their size, which is their
 * first member. No state.
 */
#include <linux/uaccess.h>

#include "internal.h"

/*
 * Reads a struct that is @ksize long here and was @first_size long in its first
 * version. What the caller's lacks is zero; what it has more must be.
 */
int ioctl_read(void *dst, size_t ksize, size_t first_size, const void __user *src)
{
	u32 usize;
	int err;

	if (get_user(usize, (const u32 __user *)src))
		return -EFAULT;
	if (usize < first_size)
		return -EINVAL;
	if (usize > PAGE_SIZE)
		return -E2BIG;
	err = copy_struct_from_user(dst, ksize, src, usize);
	if (err)
		return err;
	*(u32 *)dst = usize; /* it may have changed under us */
	return 0;
}

/* Writes it back, as far as the caller's struct goes; the rest there is zero. */
int ioctl_write(void __user *dst, const void *src, size_t ksize)
{
	u32 usize = *(const u32 *)src;

	return copy_to_user(dst, src, min_t(size_t, usize, ksize)) ? -EFAULT : 0;
}
