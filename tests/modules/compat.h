/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between kernels for the modules that only tests load, and not for
 * binpool itself: the only place here that asks for a version. Each names the release,
 * and the change that made it necessary.
 */
#ifndef BINPOOL_TEST_MODULES_COMPAT_H
#define BINPOOL_TEST_MODULES_COMPAT_H

#include <linux/mm.h>
#include <linux/version.h>

/* 6.5: 4c630f307455 ("mm/gup: remove vmas parameter from pin_user_pages()") */
static inline long compat_pin_user_pages(unsigned long start, unsigned long nr, unsigned int flags,
					 struct page **pages)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 5, 0)
	return pin_user_pages(start, nr, flags, pages, NULL);
#else
	return pin_user_pages(start, nr, flags, pages);
#endif
}

#endif /* BINPOOL_TEST_MODULES_COMPAT_H */
