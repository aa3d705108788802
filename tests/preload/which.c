// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * first.so and second.so, of which the former asks for the latter's function, which comes next.
 * Owns nothing.
 */
#include <dlfcn.h>
#include <stddef.h>

__attribute__((visibility("default"))) int which(void);

int which(void)
{
#ifdef FIRST
	int (*next)(void);

	*(void **)&next = dlsym(RTLD_NEXT, "which");
	return next ? 10 + next() : 1;
#else
	return 2;
#endif
}
