/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * binpool: physically contiguous, huge-page-backed host memory from bins.
 *
 * open("/dev/binpool") gives an opener; BINPOOL_IOC_ALLOC on it gives a block,
 * a file of its own. Map a block with mmap(MAP_SHARED) at offsets 0 to its
 * capacity. dup, fork and SCM_RIGHTS share it. When its last descriptor and
 * its last mapping are gone, its memory returns to the pool.
 *
 * Conventions of every ioctl here:
 *  - The number carries no size. The argument points to a struct whose first
 *    member, `size`, is sizeof() it as the caller was compiled. A struct longer
 *    than the module knows is accepted if what is unknown is zero; a shorter
 *    one is filled as far as it goes; the tail the module does not know is
 *    zeroed on return.
 *  - Members marked (in) are read, (out) written and ignored on input,
 *    reserved ones must be zero. Sizes and amounts are in bytes.
 *  - Any thread may call any ioctl at any time.
 *  - Errors common to all: ENOTTY unknown ioctl for this kind of file; EFAULT
 *    bad pointer; EINVAL size below the first version's, unknown flag bits or
 *    non-zero reserved members; E2BIG non-zero bytes beyond what the module
 *    knows, or a size above a page.
 */
#ifndef _UAPI_LINUX_BINPOOL_H
#define _UAPI_LINUX_BINPOOL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define BINPOOL_DEVICE_NAME "binpool"
#define BINPOOL_ABI_VERSION 1
#define BINPOOL_IOC_MAGIC   0xBB

/* On /dev/binpool. */
#define BINPOOL_IOC_INFO  _IO(BINPOOL_IOC_MAGIC, 0)
#define BINPOOL_IOC_ALLOC _IO(BINPOOL_IOC_MAGIC, 1)
#define BINPOOL_IOC_TRIM  _IO(BINPOOL_IOC_MAGIC, 2)
#define BINPOOL_IOC_LIMIT _IO(BINPOOL_IOC_MAGIC, 3)

/* On a block. */
#define BINPOOL_IOC_QUERY	  _IO(BINPOOL_IOC_MAGIC, 0x40)
#define BINPOOL_IOC_EXPORT_DMABUF _IO(BINPOOL_IOC_MAGIC, 0x41)
#define BINPOOL_IOC_PHYS	  _IO(BINPOOL_IOC_MAGIC, 0x42)

/* Any node: the caller's own first, then the others it may use. */
#define BINPOOL_NODE_ANY (-1)

/* Feature bits of struct binpool_info. */
/* A mapped block can be registered as io_uring buffers (Linux >= 6.12). */
#define BINPOOL_FEATURE_URING_FIXED (1ULL << 0)
/* The kernel has dma-bufs (CONFIG_DMA_SHARED_BUFFER): EXPORT_DMABUF works. */
#define BINPOOL_FEATURE_DMABUF (1ULL << 1)

/*
 * BINPOOL_IOC_INFO: what there is and what the caller may use. Memory that the module
 * has is active, held, in limbo or in quarantine; each is counted once.
 * Errors: the common ones.
 */
struct binpool_info {
	__u32 size;		      /* (in) */
	__u32 flags;		      /* (in) none defined: 0 */
	__u32 abi_version;	      /* (out) BINPOOL_ABI_VERSION of the module */
	__u32 mantissa_bits;	      /* (out) of the module's tight size classes */
	__aligned_u64 features;	      /* (out) BINPOOL_FEATURE_* */
	__aligned_u64 frame_bytes;    /* (out) unit of memory: one huge page */
	__aligned_u64 max_bytes;      /* (out) bound on active + held + limbo + quarantine */
	__aligned_u64 active_bytes;   /* (out) in blocks, of all openers */
	__aligned_u64 held_bytes;     /* (out) free, kept for the next block or taken for one */
	__aligned_u64 limbo_bytes;    /* (out) returned, but still pinned */
	__aligned_u64 opener_bytes;   /* (out) this opener's blocks, limbo and quarantine */
	__aligned_u64 user_max_bytes; /* (out) bound on what each user may have */
	__aligned_u64 user_bytes; /* (out) this user's blocks, limbo and quarantine, all openers */
	__aligned_u64 opener_max_bytes; /* (out) LIMIT of this opener, 0: none */
	__aligned_u64 quarantine_bytes; /* (out) returned, kept apart since PHYS told where */
};

/* One physically contiguous run, or ENOMEM with run_max_bytes filled in. */
#define BINPOOL_ALLOC_CONTIG (1U << 0)
/* Only from `node` (which must be given). Without it, others follow. */
#define BINPOOL_ALLOC_STRICT_NODE (1U << 1)
/* Do not wait for pinned memory to come back, nor reclaim others' memory. */
#define BINPOOL_ALLOC_NOWAIT (1U << 2)

/* What a request was too much for: struct binpool_alloc, `exceeded`. */
#define BINPOOL_EXCEEDED_NONE	 0
#define BINPOOL_EXCEEDED_OPENER	 1 /* LIMIT: opener_bytes, opener_max_bytes */
#define BINPOOL_EXCEEDED_USER	 2 /* the user's budget: user_bytes, user_max_bytes */
#define BINPOOL_EXCEEDED_MEMLOCK 3 /* RLIMIT_MEMLOCK of the caller: memlock_bytes */
#define BINPOOL_EXCEEDED_MODULE	 4 /* the module's limit: managed_bytes, max_bytes */

/*
 * BINPOOL_IOC_ALLOC: a block of at least `bytes` bytes, all zero.
 *
 * The block's descriptor is close-on-exec. Its capacity is the size class of
 * `bytes`: a multiple of the frame, at most 1 + 2^-mantissa_bits times `bytes`
 * from 2^mantissa_bits frames up, and equal to `bytes` at a power of two of at
 * least a frame.
 *
 * Whoever uses the descriptor, the block is paid for, by its capacity and until its
 * memory is back and no longer pinned, by whom /dev/binpool was opened by: his user
 * id then, or, if he was in a user namespace, the owner of the outermost one. What
 * limits it is asked in this order: the opener's LIMIT, the user's budget, RLIMIT_MEMLOCK
 * (only with the module's parameter memlock=Y, of the caller, unless he has
 * CAP_IPC_LOCK in the initial user namespace), max_bytes. Registering the block with
 * io_uring is then charged to RLIMIT_MEMLOCK a second time.
 *
 * Errors, beside the common ones:
 *  EINVAL  bytes is 0; align is not 0 or a power of two; node is unknown or not
 *          allowed to the caller; STRICT_NODE without a node; align above a
 *          frame without CONTIG
 *  EFBIG   more than this machine (with STRICT_NODE, this node) has
 *  EDQUOT  the opener's LIMIT, the user's budget or RLIMIT_MEMLOCK would be exceeded
 *  ENOSPC  max_bytes of the module would be exceeded
 *  ENOMEM  the system has no such memory now, or no such run
 *  EINTR   a fatal signal came
 *  EMFILE, ENFILE  no descriptor left
 * On EDQUOT, ENOSPC and ENOMEM the (out) members below `fd` are written. Where memory
 * that is still pinned could help, these three come after a wait, unless NOWAIT is set.
 */
struct binpool_alloc {
	__u32 size;		/* (in) */
	__u32 flags;		/* (in) BINPOOL_ALLOC_* */
	__aligned_u64 bytes;	/* (in) */
	__aligned_u64 align;	/* (in) of the first frame's address for a device; 0: a frame */
	__s32 node;		/* (in) NUMA node or BINPOOL_NODE_ANY */
	__s32 fd;		/* (out) the block, -1 on failure */
	__u32 runs;		/* (out) physically contiguous runs */
	__u32 reserved;		/* 0 */
	__aligned_u64 capacity; /* (out) bytes to map */
	__aligned_u64 run_max_bytes;  /* (out) largest run; on ENOMEM, the largest there is */
	__aligned_u64 max_bytes;      /* (out) the module's limit */
	__aligned_u64 managed_bytes;  /* (out) active + held + limbo + quarantine */
	__aligned_u64 user_max_bytes; /* (out) bound on what each user may have */
	__aligned_u64 user_bytes; /* (out) this user's blocks, limbo and quarantine, all openers */
	__aligned_u64 opener_max_bytes; /* (out) LIMIT of this opener, 0: none */
	__aligned_u64 opener_bytes;	/* (out) this opener's blocks, limbo and quarantine */
	__aligned_u64 memlock_bytes;	/* (out) charged to RLIMIT_MEMLOCK of this user, by all */
	__u32 exceeded;			/* (out) on EDQUOT and ENOSPC: BINPOOL_EXCEEDED_* */
	__u32 reserved2;		/* 0 */
};

/*
 * BINPOOL_IOC_TRIM: give held memory back to the system, dirty before clean,
 * until at most `held_bytes` bytes are held on `node` (all nodes: on each).
 * Errors, beside the common ones: EINVAL for a node that is unknown or not allowed,
 * EINTR if a fatal signal came.
 */
struct binpool_trim {
	__u32 size;		   /* (in) */
	__u32 flags;		   /* (in) none defined: 0 */
	__aligned_u64 held_bytes;  /* (in) what may stay */
	__s32 node;		   /* (in) NUMA node or BINPOOL_NODE_ANY for all */
	__u32 reserved;		   /* 0 */
	__aligned_u64 freed_bytes; /* (out) what went back */
};

/*
 * BINPOOL_IOC_LIMIT: bound what the blocks of this opener may have together, limbo
 * and quarantine included, beside the user's budget. Anybody who has the descriptor may
 * lower it, so it can be set before the descriptor is passed on; only CAP_SYS_RESOURCE in
 * the initial user namespace raises it or takes it away. What is above it already stays.
 * Errors, beside the common ones:
 *  EINVAL  max_bytes is less than a frame, and not 0
 *  EPERM   it would be raised, and the caller may not
 * The kernel log has a line for either, at most ten in five seconds (0: no limit).
 */
struct binpool_limit {
	__u32 size;		      /* (in) */
	__u32 flags;		      /* (in) none defined: 0 */
	__aligned_u64 max_bytes;      /* (in) the limit, rounded down to frames; 0: none */
	__aligned_u64 previous_bytes; /* (out) the limit until now, 0: none */
	__aligned_u64 opener_bytes;   /* (out) this opener's blocks, limbo and quarantine */
};

/*
 * BINPOOL_IOC_QUERY, on a block: what it is made of and how it is mapped.
 * Errors: the common ones.
 */
struct binpool_query {
	__u32 size;		     /* (in) */
	__u32 flags;		     /* (in) none defined: 0 */
	__aligned_u64 bytes;	     /* (out) as asked for in ALLOC */
	__aligned_u64 capacity;	     /* (out) */
	__aligned_u64 frame_bytes;   /* (out) */
	__aligned_u64 run_max_bytes; /* (out) largest physically contiguous run */
	__u32 runs;		     /* (out) physically contiguous runs */
	__s32 node;		     /* (out) node of all its memory, -1 if on several */
	__u32 owner_uid; /* (out) who opened the device, in the caller's user namespace */
	__u32 owner_pid; /* (out) who called ALLOC, in the caller's pid namespace; 0: not visible */
	__aligned_u64 huge_faults;  /* (out) page faults answered with a whole frame */
	__aligned_u64 small_faults; /* (out) with a page: process or mapping allow no more */
};

/* The descriptor can be mapped for reading only. Devices are not bound by it. */
#define BINPOOL_EXPORT_READ_ONLY (1U << 0)

/*
 * BINPOOL_IOC_EXPORT_DMABUF, on a block: the whole block as a dma-buf, which any
 * driver that imports dma-bufs takes (DRM, V4L2, RDMA, VFIO, accelerators).
 *
 * The dma-buf's descriptor is close-on-exec. It keeps the block like a descriptor
 * of the block, and so does whoever imported it: the memory returns to the pool
 * when all are gone. The memory does not move while it is exported. mmap of the
 * dma-buf maps the block (MAP_SHARED, never executable); the kernel does not align
 * that by itself, so the caller chooses an address that is a multiple of
 * frame_bytes to have it mapped huge. Each call makes another dma-buf.
 *
 * Errors, beside the common ones:
 *  EOPNOTSUPP  the kernel has no dma-bufs (no BINPOOL_FEATURE_DMABUF)
 *  ENOMEM  no memory for the dma-buf itself
 *  EMFILE, ENFILE  no descriptor left
 */
struct binpool_export_dmabuf {
	__u32 size;	/* (in) */
	__u32 flags;	/* (in) BINPOOL_EXPORT_* */
	__s32 fd;	/* (out) the dma-buf */
	__u32 reserved; /* 0 */
};

/* One physically contiguous run of a block. */
struct binpool_phys_run {
	__aligned_u64 address; /* (out) physical address, a multiple of the frame */
	__aligned_u64 bytes;   /* (out) */
};

/*
 * BINPOOL_IOC_PHYS, on a block: the physical addresses of its runs, in the order in
 * which they are mapped. They are the CPU's: what a device has to be given is the
 * same only without an IOMMU and where the bus adds no offset. A driver imports a
 * dma-buf instead.
 *
 * Memory whose addresses were told may be written by a device at any time, and nobody
 * can see that. When such a block is returned, whoever had a descriptor of it, all of
 * its memory goes to quarantine: nobody gets it, it counts against max_bytes and stays
 * charged to the opener and his user, until the administrator writes 1 to
 * /sys/class/misc/binpool/phys_release. Unloading the module does the same.
 *
 * At most `nr_runs` runs are written to `runs`; with 0, which tells nothing, `runs` is
 * not looked at. On return `nr_runs` is how many there are, which may be more.
 *
 * Errors, beside the common ones:
 *  EPERM   the caller has no CAP_SYS_RAWIO in the initial user namespace, or the
 *          kernel is locked down for confidentiality; whatever the arguments are
 */
struct binpool_phys {
	__u32 size;	    /* (in) */
	__u32 flags;	    /* (in) none defined: 0 */
	__aligned_u64 runs; /* (in) address of an array of struct binpool_phys_run */
	__u32 nr_runs;	    /* (in) room in it; (out) runs of the block */
	__u32 reserved;	    /* 0 */
};

#endif /* _UAPI_LINUX_BINPOOL_H */
