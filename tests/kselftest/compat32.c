// SPDX-License-Identifier: GPL-2.0
/*
 * A 32-bit program that uses the device: every ioctl through the compat entry,
 * with layouts checked at compile time. Built without a libc, so that no
 * 32-bit one is needed. Exit status: 0, or the number of the step that failed.
 */
#include <asm/unistd_32.h>
#include <stddef.h>

#include <linux/binpool.h>
#include <linux/fcntl.h>

#include "layout.h"

_Static_assert(sizeof(void *) == 4, "a 32-bit program");

#define PROT_READ_WRITE 3
#define MAP_SHARED	1

static long call6(long nr, long a, long b, long c, long d, long e, long f)
{
	long args[] = {a, f};
	long ret;

	/* The sixth argument goes into the frame pointer, which has to come back. */
	__asm__ volatile("pushl %%ebp\n\t"
			 "movl 4(%%ebx), %%ebp\n\t"
			 "movl (%%ebx), %%ebx\n\t"
			 "int $0x80\n\t"
			 "popl %%ebp"
			 : "=a"(ret), "+b"((long){(long)args})
			 : "0"(nr), "c"(b), "d"(c), "S"(d), "D"(e)
			 : "memory");
	return ret;
}

#define call3(nr, a, b, c) call6(nr, (long)(a), (long)(b), (long)(c), 0, 0, 0)

static void leave(int step)
{
	for (;;)
		call3(__NR_exit, step, 0, 0);
}

static void check(int step, int ok)
{
	if (!ok)
		leave(step);
}

void _start(void);

void _start(void)
{
	struct binpool_info info = {.size = sizeof(info)};
	struct binpool_alloc alloc = {
		.size = sizeof(alloc),
		.bytes = 1,
		.node = BINPOOL_NODE_ANY,
	};
	struct binpool_alloc never = {
		.size = sizeof(never),
		.bytes = 1ULL << 63,
		.node = BINPOOL_NODE_ANY,
	};
	struct binpool_query query = {.size = sizeof(query)};
	struct binpool_trim trim = {
		.size = sizeof(trim),
		.held_bytes = ~0ULL,
		.node = BINPOOL_NODE_ANY,
	};
	struct binpool_export_dmabuf dmabuf = {.size = sizeof(dmabuf), .fd = -1};
	struct binpool_limit limit = {.size = sizeof(limit), .max_bytes = 3ULL << 32};
	struct binpool_phys_run run = {};
	struct binpool_phys phys = {
		.size = sizeof(phys),
		.runs = (unsigned long)&run,
		.nr_runs = 1,
	};
	long dev = call3(__NR_open, "/dev/" BINPOOL_DEVICE_NAME, O_RDWR, 0);
	long map;

	check(1, dev >= 0);
	check(2, call3(__NR_ioctl, dev, BINPOOL_IOC_INFO, &info) == 0);
	check(3, info.abi_version == BINPOOL_ABI_VERSION && info.frame_bytes && info.max_bytes);
	check(4, call3(__NR_ioctl, dev, BINPOOL_IOC_ALLOC, &alloc) == 0);
	check(5, alloc.fd >= 0 && alloc.capacity == info.frame_bytes && alloc.runs == 1);
	check(6, call3(__NR_ioctl, alloc.fd, BINPOOL_IOC_QUERY, &query) == 0);
	check(7, query.bytes == 1 && query.capacity == alloc.capacity);
	map = call6(__NR_mmap2, 0, (long)alloc.capacity, PROT_READ_WRITE, MAP_SHARED, alloc.fd, 0);
	check(8, map > 0 || map < -4095);
	for (unsigned long i = 0; i < (unsigned long)alloc.capacity; i += 1024) {
		volatile unsigned char *byte = (unsigned char *)(map + (long)i);

		check(9, *byte == 0);
		*byte = 1;
	}
	check(10, call3(__NR_ioctl, dev, BINPOOL_IOC_ALLOC, &never) == -27 /* EFBIG */);
	check(11, call3(__NR_ioctl, dev, BINPOOL_IOC_TRIM, &trim) == 0);
	check(12, call3(__NR_ioctl, dev, BINPOOL_IOC_QUERY, &query) == -25 /* ENOTTY */);
	check(13, call3(__NR_munmap, map, (long)alloc.capacity, 0) == 0);
	if (info.features & BINPOOL_FEATURE_DMABUF) {
		check(30, call3(__NR_ioctl, alloc.fd, BINPOOL_IOC_EXPORT_DMABUF, &dmabuf) == 0);
		check(31, dmabuf.fd >= 0 && dmabuf.fd != alloc.fd);
		map = call6(__NR_mmap2, 0, (long)alloc.capacity, PROT_READ_WRITE, MAP_SHARED,
			    dmabuf.fd, 0);
		check(32, map > 0 || map < -4095);
		check(33, *(volatile unsigned char *)map == 1);
		check(34, call3(__NR_munmap, map, (long)alloc.capacity, 0) == 0);
		check(35, call3(__NR_close, dmabuf.fd, 0, 0) == 0);
	}
	check(14, call3(__NR_close, alloc.fd, 0, 0) == 0);
	check(15, info.user_max_bytes && !info.opener_max_bytes);
	check(16, call3(__NR_ioctl, dev, BINPOOL_IOC_LIMIT, &limit) == 0);
	check(17, limit.previous_bytes == 0 && limit.opener_bytes == 0);
	limit.max_bytes = 0;
	check(18, call3(__NR_ioctl, dev, BINPOOL_IOC_LIMIT, &limit) == 0);
	check(19, limit.previous_bytes == 3ULL << 32);
	alloc.size = sizeof(alloc);
	check(40, call3(__NR_ioctl, dev, BINPOOL_IOC_ALLOC, &alloc) == 0);
	check(41, call3(__NR_ioctl, alloc.fd, BINPOOL_IOC_PHYS, &phys) == 0);
	check(42, phys.nr_runs == 1 && run.bytes == alloc.capacity);
	check(43, run.address && (run.address & (info.frame_bytes - 1)) == 0);
	check(44, call3(__NR_close, alloc.fd, 0, 0) == 0);
	check(20, call3(__NR_close, dev, 0, 0) == 0);
	leave(0);
}
