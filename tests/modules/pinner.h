/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The ioctls of the pinner, for its module and its callers. No promise is kept about
 * them: both are built from one tree.
 *
 * Each opening of the device is a DMA device that has at most one stretch of memory
 * pinned. The last close lets go of it, that of a process which is killed included.
 */
#ifndef BINPOOL_TEST_PINNER_H
#define BINPOOL_TEST_PINNER_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define PINNER_NAME "binpool-pinner"
#define PINNER_KO   "tests/modules/pinner.ko" /* beside binpool.ko */

#define PINNER_READ (1U << 0) /* the device only reads: without FOLL_WRITE */
#define PINNER_FAST (1U << 1) /* pin_user_pages_fast(), which tries without the mmap lock */

/*
 * Pins memory of the caller's, for long, and maps it for DMA.
 *  EBUSY   something is pinned already
 *  EINVAL  no bytes, more than the machine has, unknown flags, entries below a page
 *  EFAULT  not all of it is memory, or it may not be written
 */
struct pinner_pin {
	__u64 address;
	__u64 bytes;
	__u32 flags;	   /* PINNER_READ, PINNER_FAST */
	__u32 max_seg;	   /* longest entry that the device takes, in bytes; 0: any */
	__u64 pages;	   /* (out) */
	__u64 run_max;	   /* (out) pages of the longest run */
	__u64 dma_bytes;   /* (out) of all entries as they were mapped */
	__u32 runs;	   /* (out) physically contiguous */
	__u32 frames;	   /* (out) compound pages, each counted once in a run */
	__u32 cpu_entries; /* (out) entries of the table */
	__u32 dma_entries; /* (out) as they were mapped */
};

struct pinner_entry {
	__u32 index;
	__u32 reserved;
	__u64 address; /* (out) for the device */
	__u64 bytes;   /* (out) */
};

enum pinner_way { PINNER_BY_PAGES, PINNER_BY_DMA };

/*
 * Reads or writes what is pinned, as a driver does or as the device would.
 *  ENOENT  nothing is pinned
 *  EINVAL  unknown way, or write is neither 0 nor 1
 *  EACCES  it was pinned for reading
 *  ERANGE  beyond what is pinned
 */
struct pinner_copy {
	__u64 offset; /* from the address that was pinned */
	__u64 bytes;
	__u64 buf;   /* pointer */
	__u32 way;   /* enum pinner_way */
	__u32 write; /* 0: into buf */
};

#define PINNER_PIN   _IO(0xBD, 0)
#define PINNER_UNPIN _IO(0xBD, 1) /* ENOENT if nothing is pinned */
#define PINNER_ENTRY _IO(0xBD, 2) /* ERANGE beyond the last one */
#define PINNER_COPY  _IO(0xBD, 3)

#endif /* BINPOOL_TEST_PINNER_H */
