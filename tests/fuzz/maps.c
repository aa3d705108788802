// SPDX-License-Identifier: GPL-2.0
/*
 * Mappings of blocks, made and changed with random arguments. Fixed addresses stay
 * in an arena, so that the program itself is not mapped over; memory is read and
 * written by system calls, so that a missing page is an error and no signal. What
 * can be read is a block's own words, in their places.
 *
 * Nothing is allocated by libc meanwhile: it could come to lie in a hole of the arena.
 */
#include <sys/resource.h>
#include <sys/syscall.h>

#include "fuzz.h"

#define BLOCKS	    3
#define OTHERS	    32 /* mappings outside of the arena */
#define ARENA_PAGES 8192

/* All that is mapped: the reserve grows, too, becomes writable and is locked. */
#define MAPPED_MAX (512 * MIB)

#ifndef MAP_SYNC
#define MAP_SYNC 0x80000
#endif

static struct {
	int fd;
	__u64 capacity;
	char *whole; /* a mapping that is left alone */
} blocks[BLOCKS];

static struct {
	char *addr;
	size_t len;
} others[OTHERS];

static char *arena;
static int ends[2];

static char *random_place(__u64 *rng)
{
	char *p = arena + below(rng, ARENA_PAGES) * fuzz.page;

	if (one_in(rng, 2))
		p -= (uintptr_t)p & (fuzz.frame - 1);
	if (p < arena)
		p = arena;
	return one_in(rng, 32) ? p + below(rng, fuzz.page) : p;
}

static size_t room(const char *p)
{
	return (size_t)(arena + ARENA_PAGES * fuzz.page - p);
}

/* Within the arena from @p on. */
static size_t random_len(const char *p, __u64 *rng)
{
	size_t len = one_in(rng, 2) ? below(rng, 4 * fuzz.frame) : below(rng, 16 * fuzz.page);

	if (one_in(rng, 2))
		len &= ~(fuzz.page - 1);
	if (one_in(rng, 4))
		len &= ~(fuzz.frame - 1);
	return len < room(p) ? len : room(p);
}

/* The reserve again, where a hole may be. */
static void reserve(char *p, size_t len)
{
	char *first = p - ((uintptr_t)p & (fuzz.page - 1));

	len = (len + (size_t)(p - first) + fuzz.page - 1) & ~(fuzz.page - 1);
	if (len)
		mmap(first, len < room(first) ? len : room(first), PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static bool in_arena(const char *p)
{
	return p >= arena && p < arena + ARENA_PAGES * fuzz.page;
}

/* A mapping elsewhere is kept for a while, and goes when its place is wanted. */
static void keep(char *addr, size_t len, __u64 *rng)
{
	unsigned int i = (unsigned int)below(rng, OTHERS);

	if (in_arena(addr))
		return;
	if (others[i].len)
		munmap(others[i].addr, others[i].len);
	others[i].addr = addr;
	others[i].len = len;
}

static void random_mmap(__u64 *rng)
{
	static const int odd_flags[] = {MAP_POPULATE, MAP_NORESERVE, MAP_LOCKED,    MAP_SYNC,
					MAP_NONBLOCK, MAP_STACK,     MAP_GROWSDOWN, MAP_HUGETLB};
	const __u64 lens[] = {0, 1, fuzz.page, fuzz.frame, 1ULL << 40, 1ULL << 47, ~0ULL};
	unsigned int b = (unsigned int)below(rng, BLOCKS);
	__u64 pages = blocks[b].capacity / fuzz.page, from = below(rng, pages + 2), len;
	bool odd = one_in(rng, 4), fixed = one_in(rng, 2), inside;
	int prot = (int)below(rng, 4), flags = MAP_SHARED;
	char *at = random_place(rng), *p;

	len = random_len(at, rng);
	if (one_in(rng, 2) && from < pages)
		len = len % ((pages - from) * fuzz.page + 1);
	if (!fixed && one_in(rng, 16))
		len = lens[below(rng, 7)];
	if (one_in(rng, 16))
		from = random_next(rng) >> (16 + below(rng, 48)); /* times a page: no overflow */
	if (odd) {
		flags = (int)below(rng, 4);
		for (__u64 n = below(rng, 3); n; n--)
			flags |= odd_flags[below(rng, 8)];
		if (one_in(rng, 4))
			prot = (int)below(rng, 8);
	}
	if (fixed)
		flags |= MAP_FIXED;
	else if (one_in(rng, 2))
		at = NULL;

	/* By the number, since libc's wrapper has an opinion on offsets. */
	p = (char *)syscall(SYS_mmap, at, len, prot, flags, blocks[b].fd, from * fuzz.page);
	inside = from < pages && len <= (pages - from) * fuzz.page && len;
	if (p == MAP_FAILED) {
		if (!odd && inside && !(fixed && (uintptr_t)at % fuzz.page) && errno != ENOMEM)
			wrong("mmap of %#llx pages from %#llx of %#llx: %s",
			      (unsigned long long)(len / fuzz.page), (unsigned long long)from,
			      (unsigned long long)pages, strerror(errno));
		return;
	}
	if ((flags & MAP_TYPE) == MAP_PRIVATE || prot & PROT_EXEC || !inside)
		wrong("mmap of %#llx bytes from page %#llx of %#llx, prot %d, flags %#x: done",
		      (unsigned long long)len, (unsigned long long)from, (unsigned long long)pages,
		      prot, flags);
	keep(p, len, rng);
}

static void random_mremap(__u64 *rng)
{
	char *from = random_place(rng), *to = random_place(rng), *p;
	size_t old_len = random_len(from, rng), len = random_len(to, rng);
	int flags = (int)below(rng, 8);

	if (one_in(rng, 2))
		len = old_len < room(to) ? old_len : room(to);
	if (!(flags & MREMAP_FIXED) && one_in(rng, 16))
		len = random_next(rng) >> below(rng, 64);
	p = (char *)syscall(SYS_mremap, from, old_len, len, flags, to);
	if (p == MAP_FAILED)
		return;
	keep(p, len, rng);
	/* What moved away, or was cut off, left a hole; old_len 0 makes a copy. */
	if (p != from && old_len)
		reserve(from, old_len);
	else if (p == from && len < old_len)
		reserve(from + len, old_len - len);
}

static void random_madvise(char *p, size_t len, __u64 *rng)
{
	int advice = one_in(rng, 16) ? (int)random_next(rng) : (int)below(rng, 26);

	/* These two harm the machine: they take its pages out of use. */
	if (advice != MADV_HWPOISON && advice != 101 /* MADV_SOFT_OFFLINE */)
		madvise(p, len, advice);
}

/* Words of blocks name block and offset; zero is the reserve's. */
static __u64 word(unsigned int b, __u64 offset)
{
	return (__u64)(b + 1) << 56 | offset;
}

/* Reads a word somewhere, if one can; writes it back, if that can be. */
static void touch(char *p)
{
	__u64 got;

	p -= (uintptr_t)p & 7;
	if (write(ends[1], p, sizeof(got)) != sizeof(got))
		return;
	if (read(ends[0], &got, sizeof(got)) != sizeof(got)) {
		wrong("a pipe lost a word");
		return;
	}
	if (got) {
		unsigned int b = (unsigned int)(got >> 56) - 1;
		__u64 offset = got & (((__u64)1 << 56) - 1);

		if (b >= BLOCKS || offset >= blocks[b].capacity ||
		    offset % fuzz.page != (uintptr_t)p % fuzz.page)
			wrong("%p has %#llx", (void *)p, (unsigned long long)got);
	}
	if (write(ends[1], &got, sizeof(got)) != sizeof(got) ||
	    (read(ends[0], p, sizeof(got)) != sizeof(got) &&
	     read(ends[0], &got, sizeof(got)) != sizeof(got)))
		wrong("a pipe lost a word");
}

static void random_step(__u64 *rng)
{
	char *p = random_place(rng);
	size_t len = random_len(p, rng);

	if (one_in(rng, 4) && others[0].len) {
		unsigned int i = (unsigned int)below(rng, OTHERS);

		if (others[i].len) {
			p = others[i].addr;
			len = below(rng, others[i].len + 1);
		}
	}
	switch (below(rng, 16)) {
	case 0:
	case 1:
	case 2:
		random_mmap(rng);
		break;
	case 3:
	case 4:
		random_mremap(rng);
		break;
	case 5:
	case 6:
		mprotect(p, len, one_in(rng, 8) ? (int)random_next(rng) : (int)below(rng, 4));
		break;
	case 7:
	case 8:
		random_madvise(p, len, rng);
		break;
	case 9:
		if (in_arena(p))
			reserve(p, len);
		break;
	case 10:
		one_in(rng, 2) ? mlock(p, len) : munlock(p, len);
		break;
	case 11:
		msync(p, len, (int)below(rng, 8));
		break;
	case 12:
		syscall(SYS_remap_file_pages, p, len, 0, below(rng, 4) * fuzz.page / 2, 0);
		break;
	case 13:
		syscall(SYS_mbind, p, len, below(rng, 5), NULL, 0, below(rng, 8));
		break;
	default:
		touch(p + below(rng, len + 1));
	}
}

static int prepare(void)
{
	const struct rlimit limit = {MAPPED_MAX, MAPPED_MAX};
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC);

	arena = mmap(NULL, ARENA_PAGES * fuzz.page, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (arena == MAP_FAILED || pipe2(ends, O_CLOEXEC) || setrlimit(RLIMIT_AS, &limit))
		return -1;
	for (unsigned int b = 0; b < BLOCKS; b++) {
		blocks[b].capacity = (1 + 2 * b) * fuzz.frame;
		blocks[b].fd = block_alloc(dev, blocks[b].capacity);
		blocks[b].whole = block_map(blocks[b].fd, blocks[b].capacity);
		if (blocks[b].whole == MAP_FAILED)
			return -1;
		for (__u64 o = 0; o < blocks[b].capacity; o += 8)
			*(__u64 *)(blocks[b].whole + o) = word(b, o);
	}
	return dev;
}

int fuzz_maps(void)
{
	__u64 rng = fuzz.seed ^ 0x6d617073, n = 0;

	if (prepare() < 0) {
		wrong("blocks can't be mapped: %s", strerror(errno));
		return 1;
	}
	for (; now_ms() < fuzz.end_ms; n++)
		random_step(&rng);
	if (fuzz.planted)
		blocks[0].whole[fuzz.page] ^= 1;
	for (unsigned int b = 0; b < BLOCKS; b++) {
		__u64 o = 0;

		while (o < blocks[b].capacity && *(__u64 *)(blocks[b].whole + o) == word(b, o))
			o += 8;
		if (o < blocks[b].capacity)
			wrong("block %u has %#llx at %#llx", b,
			      *(unsigned long long *)(blocks[b].whole + o), (unsigned long long)o);
	}
	return verdict(n);
}
