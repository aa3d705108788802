/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Structs of the user's whose first member is their size, to be filled. For all libraries
 * here; no state.
 */
#ifndef BINPOOL_VERSIONED_H
#define BINPOOL_VERSIONED_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <binpool.h>

/* No version will be larger: such a size was never set, and there may be nothing behind it. */
#define STRUCT_MAX 4096u

/*
 * Whether a struct's size may be what the user says: 0; -EINVAL NULL, or less than @least;
 * -E2BIG. Explained. What fills a struct asks this before it does anything.
 */
static inline int struct_check(const void *s, size_t least, const char *what)
{
	char text[160];
	size_t size;

	if (!s) {
		snprintf(text, sizeof(text), "%s is NULL", what);
		binpool_set_last_error(text);
		return -EINVAL;
	}
	memcpy(&size, s, sizeof(size));
	if (size >= least && size <= STRUCT_MAX)
		return 0;
	snprintf(text, sizeof(text), "%s: its member size is %zu, set it to sizeof(*%s)", what,
		 size, what);
	binpool_set_last_error(text);
	return size < least ? -EINVAL : -E2BIG;
}

/* Fills one as far as it goes with @known bytes; what the library does not know is zeroed. */
static inline void struct_fill(void *to, const void *from, size_t known)
{
	size_t size;

	memcpy(&size, to, sizeof(size));
	memcpy(to, from, size < known ? size : known);
	memcpy(to, &size, sizeof(size));
	if (size > known)
		memset((char *)to + known, 0, size - known);
}

#endif /* BINPOOL_VERSIONED_H */
