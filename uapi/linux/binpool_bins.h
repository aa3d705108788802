/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Size-class arithmetic of binpool, used by the module and by libbinpool alike.
 *
 * Pure functions: no state, no locks, no floating point; callable from any
 * context. Sizes are in bytes and 64 bits wide on every machine.
 *
 * A bin is numbered like a small floating-point number: the exponent is
 * floor(log2(size)), and the mantissa is the `m` bits below the leading one.
 * So there are 2^m bins between a power of two and the next.
 */
#ifndef _UAPI_LINUX_BINPOOL_BINS_H
#define _UAPI_LINUX_BINPOOL_BINS_H

#include <linux/types.h>

/* Range of mantissa_bits: 0 (powers of two only) to this. */
#define BINPOOL_MANTISSA_BITS_MAX     16
#define BINPOOL_MANTISSA_BITS_DEFAULT 4

/* Number of bins there are with @m mantissa bits: numbers are 0 to this - 1. */
static inline __u32 binpool_bin_count(__u32 m)
{
	return (__u32)64 << m;
}

/* floor(log2(size)), and 0 for size 0. */
static inline __u32 binpool_log2(__u64 size)
{
	return size ? 63u - (__u32)__builtin_clzll(size) : 0;
}

/*
 * The bin of @size in HySoP's classes. @m: 0 to BINPOOL_MANTISSA_BITS_MAX,
 * @size: any. Non-decreasing in @size.
 */
static inline __u32 binpool_bin_number(__u32 m, __u64 size)
{
	__u32 l = binpool_log2(size);
	__u64 shifted = l >= m ? size >> (l - m) : size << (m - l);

	return (l << m) | (__u32)(shifted & (((__u64)1 << m) - 1));
}

/*
 * The largest size, in bytes, whose bin_number is @bin: what a HySoP pool
 * allocates for every size of that bin. 0 if there is no such bin
 * (@bin >= binpool_bin_count(m)).
 */
static inline __u64 binpool_alloc_size(__u32 m, __u32 bin)
{
	__u32 e = bin >> m;
	__u64 head = ((__u64)1 << m) | (bin & (((__u32)1 << m) - 1));

	if (e > 63)
		return 0;
	if (e < m)
		return head >> (m - e);
	return (head << (e - m)) | (((__u64)1 << (e - m)) - 1);
}

/*
 * Tight classes: the same bins, on size - 1, so that a power of two is served
 * exactly and the capacity of any other size is less than size * (1 + 2^-m).
 * The smallest class serves sizes 0 to 2 and has a capacity of 2 bytes.
 */

/* The tight bin of @size. */
static inline __u32 binpool_tight_bin_number(__u32 m, __u64 size)
{
	return binpool_bin_number(m, size ? size - 1 : 0);
}

/*
 * Capacity in bytes of tight bin @bin. 0 if there is no such bin or its
 * capacity, 2^64, is not a number of 64 bits.
 */
static inline __u64 binpool_tight_alloc_size(__u32 m, __u32 bin)
{
	__u64 top = binpool_alloc_size(m, bin);

	return top ? top + 1 : 0;
}

/*
 * Capacity in bytes that a request of @size gets in tight classes when memory
 * comes in units of @granule bytes (a power of two). 0 on overflow. The result
 * is a multiple of @granule and its own capacity.
 */
static inline __u64 binpool_tight_capacity(__u32 m, __u64 size, __u64 granule)
{
	__u64 cap = binpool_tight_alloc_size(m, binpool_tight_bin_number(m, size));

	if (!cap || cap > ~(__u64)0 - (granule - 1))
		return 0;
	return (cap + granule - 1) & ~(granule - 1);
}

#endif /* _UAPI_LINUX_BINPOOL_BINS_H */
