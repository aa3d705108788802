/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The ioctls of the importer, for its module and its callers. No promise is kept
 * about them: both are built from one tree.
 */
#ifndef BINPOOL_TEST_IMPORTER_H
#define BINPOOL_TEST_IMPORTER_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define IMPORTER_NAME	  "binpool-importer"
#define IMPORTER_KO	  "tests/modules/importer.ko" /* beside binpool.ko */
#define IMPORTER_MAPPINGS 2			      /* of one attachment, at once */

/* A device of one's own, attached to a dma-buf. EBUSY if there is one already. */
struct importer_attach {
	__s32 fd;
	__u32 max_seg;	 /* longest entry that the device takes, in bytes; 0: as by default */
	__u32 dma_bits;	 /* width of the device's addresses */
	__u32 nr_others; /* (out) other attachments of the dma-buf */
};

/* Maps for DMA, in a slot that is free. */
struct importer_map {
	__u32 slot;
	__u32 dir;	   /* enum dma_data_direction: 0 both, 1 to the device, 2 from it */
	__u32 cpu_entries; /* (out) entries of the table as the exporter made it */
	__u32 dma_entries; /* (out) as they were mapped */
};

struct importer_entry {
	__u32 slot;
	__u32 index;
	__u64 address; /* (out) for the device */
	__u64 bytes;   /* (out) */
};

enum importer_way { IMPORTER_BY_DMA, IMPORTER_BY_VMAP };

/* Reads or writes as the device would, or as a driver does. */
struct importer_copy {
	__u64 offset;
	__u64 bytes;
	__u64 buf;   /* pointer */
	__u32 way;   /* enum importer_way */
	__u32 slot;  /* for DMA */
	__u32 write; /* 0: into buf */
	__u32 reserved;
};

#define IMPORTER_ATTACH _IO(0xBC, 0)
#define IMPORTER_DETACH _IO(0xBC, 1) /* EBUSY while it is mapped */
#define IMPORTER_MAP	_IO(0xBC, 2)
#define IMPORTER_UNMAP	_IO(0xBC, 3) /* the argument is the slot */
#define IMPORTER_ENTRY	_IO(0xBC, 4)
#define IMPORTER_VMAP	_IO(0xBC, 5)
#define IMPORTER_VUNMAP _IO(0xBC, 6)
#define IMPORTER_COPY	_IO(0xBC, 7)

#endif /* BINPOOL_TEST_IMPORTER_H */
