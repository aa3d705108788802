/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What the kernel charges the rings of this process for registered memory. */
#ifndef BINPOOL_URING_MEMLOCK_H
#define BINPOOL_URING_MEMLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void uring_charge(uint64_t bytes);
void uring_uncharge(uint64_t bytes);
/* In a child of fork, whose rings are none yet. */
void uring_charge_nothing(void);

/* Whether RLIMIT_MEMLOCK leaves what an extent of @bytes needs; if not, @reason says so. */
bool uring_memlock_allows(uint64_t bytes, char *reason, size_t size);

#endif /* BINPOOL_URING_MEMLOCK_H */
