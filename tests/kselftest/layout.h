/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The ABI as numbers: every member's place and every ioctl's number, the same
 * for 32-bit and 64-bit programs. A difference stops the build.
 */
#ifndef BINPOOL_TEST_LAYOUT_H
#define BINPOOL_TEST_LAYOUT_H

#include <stddef.h>

#include <linux/binpool.h>

#define PLACE(type, member, place)                                                                 \
	_Static_assert(offsetof(struct type, member) == (place), #type "." #member)
#define LENGTH(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)

LENGTH(binpool_info, 104);
PLACE(binpool_info, size, 0);
PLACE(binpool_info, flags, 4);
PLACE(binpool_info, abi_version, 8);
PLACE(binpool_info, mantissa_bits, 12);
PLACE(binpool_info, features, 16);
PLACE(binpool_info, frame_bytes, 24);
PLACE(binpool_info, max_bytes, 32);
PLACE(binpool_info, active_bytes, 40);
PLACE(binpool_info, held_bytes, 48);
PLACE(binpool_info, limbo_bytes, 56);
PLACE(binpool_info, opener_bytes, 64);
PLACE(binpool_info, user_max_bytes, 72);
PLACE(binpool_info, user_bytes, 80);
PLACE(binpool_info, opener_max_bytes, 88);
PLACE(binpool_info, quarantine_bytes, 96);

LENGTH(binpool_alloc, 120);
PLACE(binpool_alloc, size, 0);
PLACE(binpool_alloc, flags, 4);
PLACE(binpool_alloc, bytes, 8);
PLACE(binpool_alloc, align, 16);
PLACE(binpool_alloc, node, 24);
PLACE(binpool_alloc, fd, 28);
PLACE(binpool_alloc, runs, 32);
PLACE(binpool_alloc, reserved, 36);
PLACE(binpool_alloc, capacity, 40);
PLACE(binpool_alloc, run_max_bytes, 48);
PLACE(binpool_alloc, max_bytes, 56);
PLACE(binpool_alloc, managed_bytes, 64);
PLACE(binpool_alloc, user_max_bytes, 72);
PLACE(binpool_alloc, user_bytes, 80);
PLACE(binpool_alloc, opener_max_bytes, 88);
PLACE(binpool_alloc, opener_bytes, 96);
PLACE(binpool_alloc, memlock_bytes, 104);
PLACE(binpool_alloc, exceeded, 112);
PLACE(binpool_alloc, reserved2, 116);

LENGTH(binpool_trim, 32);
PLACE(binpool_trim, size, 0);
PLACE(binpool_trim, flags, 4);
PLACE(binpool_trim, held_bytes, 8);
PLACE(binpool_trim, node, 16);
PLACE(binpool_trim, reserved, 20);
PLACE(binpool_trim, freed_bytes, 24);

LENGTH(binpool_limit, 32);
PLACE(binpool_limit, size, 0);
PLACE(binpool_limit, flags, 4);
PLACE(binpool_limit, max_bytes, 8);
PLACE(binpool_limit, previous_bytes, 16);
PLACE(binpool_limit, opener_bytes, 24);

LENGTH(binpool_query, 72);
PLACE(binpool_query, size, 0);
PLACE(binpool_query, flags, 4);
PLACE(binpool_query, bytes, 8);
PLACE(binpool_query, capacity, 16);
PLACE(binpool_query, frame_bytes, 24);
PLACE(binpool_query, run_max_bytes, 32);
PLACE(binpool_query, runs, 40);
PLACE(binpool_query, node, 44);
PLACE(binpool_query, owner_uid, 48);
PLACE(binpool_query, owner_pid, 52);
PLACE(binpool_query, huge_faults, 56);
PLACE(binpool_query, small_faults, 64);

LENGTH(binpool_export_dmabuf, 16);
PLACE(binpool_export_dmabuf, size, 0);
PLACE(binpool_export_dmabuf, flags, 4);
PLACE(binpool_export_dmabuf, fd, 8);
PLACE(binpool_export_dmabuf, reserved, 12);

LENGTH(binpool_phys, 24);
PLACE(binpool_phys, size, 0);
PLACE(binpool_phys, flags, 4);
PLACE(binpool_phys, runs, 8);
PLACE(binpool_phys, nr_runs, 16);
PLACE(binpool_phys, reserved, 20);

LENGTH(binpool_phys_run, 16);
PLACE(binpool_phys_run, address, 0);
PLACE(binpool_phys_run, bytes, 8);

_Static_assert(BINPOOL_IOC_INFO == 0xbb00, "INFO");
_Static_assert(BINPOOL_IOC_ALLOC == 0xbb01, "ALLOC");
_Static_assert(BINPOOL_IOC_TRIM == 0xbb02, "TRIM");
_Static_assert(BINPOOL_IOC_LIMIT == 0xbb03, "LIMIT");
_Static_assert(BINPOOL_IOC_QUERY == 0xbb40, "QUERY");
_Static_assert(BINPOOL_IOC_EXPORT_DMABUF == 0xbb41, "EXPORT_DMABUF");
_Static_assert(BINPOOL_IOC_PHYS == 0xbb42, "PHYS");
_Static_assert(BINPOOL_EXPORT_READ_ONLY == 1, "flags of EXPORT_DMABUF");
_Static_assert(BINPOOL_ALLOC_CONTIG == 1 && BINPOOL_ALLOC_STRICT_NODE == 2 &&
		       BINPOOL_ALLOC_NOWAIT == 4,
	       "flags of ALLOC");
_Static_assert(BINPOOL_FEATURE_URING_FIXED == 1 && BINPOOL_FEATURE_DMABUF == 2, "features");
_Static_assert(BINPOOL_EXCEEDED_NONE == 0 && BINPOOL_EXCEEDED_OPENER == 1 &&
		       BINPOOL_EXCEEDED_USER == 2 && BINPOOL_EXCEEDED_MEMLOCK == 3 &&
		       BINPOOL_EXCEEDED_MODULE == 4,
	       "what was exceeded");

#endif /* BINPOOL_TEST_LAYOUT_H */
