// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * io_uring: what all rings of this process registered, which RLIMIT_MEMLOCK is charged. Owns that
 * sum, which is atomic: it foretells what the kernel will say, so that the reason can be exact.
 */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/capability.h>

#include "memlock.h"

static uint64_t registered_bytes;

void uring_charge(uint64_t bytes)
{
	__atomic_add_fetch(&registered_bytes, bytes, __ATOMIC_RELAXED);
}

void uring_uncharge(uint64_t bytes)
{
	__atomic_sub_fetch(&registered_bytes, bytes, __ATOMIC_RELAXED);
}

void uring_charge_nothing(void)
{
	__atomic_store_n(&registered_bytes, 0, __ATOMIC_RELAXED);
}

static bool may_exceed_memlock(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	return !syscall(SYS_capget, &head, data) &&
	       data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK);
}

bool uring_memlock_allows(uint64_t bytes, char *reason, size_t size)
{
	uint64_t others = __atomic_load_n(&registered_bytes, __ATOMIC_RELAXED);
	struct rlimit limit;

	if (may_exceed_memlock() || getrlimit(RLIMIT_MEMLOCK, &limit) ||
	    limit.rlim_cur == RLIM_INFINITY ||
	    (others <= limit.rlim_cur && bytes <= limit.rlim_cur - others))
		return true;
	snprintf(
		reason, size,
		"RLIMIT_MEMLOCK is %llu bytes; registering an extent needs %llu more, and rings of "
		"this process have %llu: raise it (ulimit -l) or run with CAP_IPC_LOCK",
		(unsigned long long)limit.rlim_cur, (unsigned long long)bytes,
		(unsigned long long)others);
	return false;
}
