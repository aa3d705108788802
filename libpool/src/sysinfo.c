// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the system says of itself and of our memory: /proc, /sys, move_pages.
 * The two page sizes are asked for once; everything else is read each time.
 * No lock, but for extents_measure.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <linux/capability.h>
#include <linux/mempolicy.h>

#include "pool.h"

/* C libraries and headers may be older than the kernel. */
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif

uint64_t sys_number(uint64_t otherwise, const char *path_fmt, ...)
{
	unsigned long long n;
	char path[256];
	va_list args;
	FILE *f;
	bool ok;

	va_start(args, path_fmt);
	vsnprintf(path, sizeof(path), path_fmt, args);
	va_end(args);
	f = fopen(path, "re");
	if (!f)
		return otherwise;
	ok = fscanf(f, "%llu", &n) == 1;
	fclose(f);
	return ok ? n : otherwise;
}

uint64_t page_size(void)
{
	static uint64_t size;
	uint64_t s = __atomic_load_n(&size, __ATOMIC_RELAXED);

	if (!s) {
		s = (uint64_t)sysconf(_SC_PAGESIZE);
		__atomic_store_n(&size, s, __ATOMIC_RELAXED);
	}
	return s;
}

uint64_t pmd_size(void)
{
	static uint64_t size;
	uint64_t s = __atomic_load_n(&size, __ATOMIC_RELAXED);

	if (!s) {
		/* Without huge pages: what a page full of 8-byte entries maps. */
		s = sys_number(page_size() * (page_size() / 8),
			       "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
		__atomic_store_n(&size, s, __ATOMIC_RELAXED);
	}
	return s;
}

uint64_t physical_bytes(void)
{
	struct sysinfo info;

	return sysinfo(&info) ? 0 : (uint64_t)info.totalram * info.mem_unit;
}

/* A file of /proc or /sys, NULL if there is none. -EMFILE, -ENFILE, explained: who knows. */
static int info_open(const char *path, FILE **f)
{
	*f = fopen(path, "re");
	return !*f && no_descriptor(errno)
		       ? explain(-errno, "no file descriptor left to read %s; raise ulimit -n",
				 path)
		       : 0;
}

/* Adds a field of a file of lines "field: number kB" to *bytes, if it is there. */
static int field_add(const char *path, const char *field, uint64_t *bytes)
{
	size_t len = strlen(field);
	unsigned long long kib = 0;
	char line[256], *at;
	FILE *f;
	int err = info_open(path, &f);

	if (!f)
		return err;
	while (fgets(line, sizeof(line), f)) {
		/* A node's lines begin with "Node N ". */
		at = strstr(line, field);
		if (at && at[len] == ':' && (at == line || at[-1] == ' ') &&
		    sscanf(at + len + 1, "%llu", &kib) == 1)
			break;
	}
	fclose(f);
	*bytes += kib * 1024;
	return 0;
}

int meminfo_add(int32_t node, const char *field, uint64_t *bytes)
{
	char path[64] = "/proc/meminfo";

	if (node >= 0)
		snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
	return field_add(path, field, bytes);
}

uint64_t status_bytes(const char *field)
{
	uint64_t bytes = 0;

	field_add("/proc/thread-self/status", field, &bytes);
	return bytes;
}

bool can_lock_memory(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	if (syscall(SYS_capget, &head, data))
		return false;
	return data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK);
}

int memory_bind(const struct provider *p, void *base, uint64_t bytes)
{
	unsigned long mask[128] = {0};
	const uint32_t word = 8 * sizeof(mask[0]);
	uint32_t node = (uint32_t)p->node;

	if (p->node < 0)
		return 0;
	if (node >= word * ARRAY_SIZE(mask))
		return -EINVAL;
	mask[node / word] = 1ul << (node % word);
	/* The kernel takes one bit less than it is told. */
	if (syscall(SYS_mbind, base, bytes, p->strict_node ? MPOL_BIND : MPOL_PREFERRED, mask,
		    word * ARRAY_SIZE(mask) + 1, 0))
		return -errno;
	return 0;
}

int32_t memory_node(const void *base, uint64_t bytes, uint64_t unit)
{
	enum { BATCH = 64 };
	void *pages[BATCH];
	int status[BATCH];
	int32_t node = -1;

	for (uint64_t at = 0; at < bytes;) {
		unsigned long n = 0;

		for (; n < BATCH && at < bytes; n++, at += unit)
			pages[n] = (char *)(uintptr_t)base + at;
		if (syscall(SYS_move_pages, 0, n, pages, NULL, status, 0))
			return -1;
		for (unsigned long i = 0; i < n; i++) {
			if (status[i] < 0 || (node >= 0 && status[i] != node))
				return -1;
			node = status[i];
		}
	}
	return node;
}

int memfd_make(const char *name, unsigned int flags)
{
	int fd;

	/* Systems may allow nothing else (vm.memfd_noexec); kernels before 6.3 do not know it. */
	flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
	fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
	return fd < 0 && errno == EINVAL ? memfd_create(name, flags) : fd;
}

char *address_reserve(uint64_t bytes, uint64_t align)
{
	uint64_t slack = align > page_size() ? align : 0;
	uint64_t length, head;
	char *base;

	if (__builtin_add_overflow(bytes, slack, &length) || length > SIZE_MAX)
		return NULL;
	base = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return NULL;
	if (!slack)
		return base;
	head = -(uint64_t)(uintptr_t)base & (align - 1);
	if (head)
		munmap(base, head);
	if (slack > head)
		munmap(base + head + bytes, slack - head);
	return base + head;
}

int memory_drop(void *base, uint64_t bytes)
{
	/* Without its mapping being split, for which there may be no room. */
	if (!madvise(base, bytes, MADV_DONTNEED_LOCKED))
		return 0;
	munlock(base, bytes);
	return madvise(base, bytes, MADV_DONTNEED) ? -errno : 0;
}

int memory_unmap(void *base, uint64_t bytes)
{
	char amount[HUMAN_LEN];

	if (!munmap(base, bytes))
		return 0;
	return explain(-errno, "unmapping %s at %p: %s; see vm.max_map_count", human(bytes, amount),
		       base, strerror(errno));
}

int address_map(char *base, uint64_t bytes, int fd)
{
	void *at = mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);

	return at == MAP_FAILED ? -errno : 0;
}

/*
 * A mapping of this process, as smaps tells it: that of the thread, since the process's own
 * is empty when its first thread has ended.
 */
struct mapping {
	uint64_t start, end;
	uint64_t page;	/* its PTEs' page size */
	uint64_t huge;	/* bytes mapped by PMDs */
	uint64_t there; /* bytes mapped */
};

/* The smallest page that it is really mapped by. */
static uint64_t mapping_page(const struct mapping *m)
{
	return m->page < pmd_size() && m->huge && m->huge == m->there ? pmd_size() : m->page;
}

static void measure(struct binpool *pool, const struct mapping *m)
{
	uint64_t page = mapping_page(m);

	for (struct extent *e = pool->extents; e; e = e->next) {
		uint64_t base = (uint64_t)(uintptr_t)e->base;

		if (e->measuring && base < m->end && m->start < base + e->bytes)
			e->page_bytes = e->page_bytes ? u64_min(e->page_bytes, page) : page;
	}
}

static void read_field(struct mapping *m, const char *line)
{
	unsigned long long kib;
	char field[64];

	if (sscanf(line, "%63[^:]: %llu", field, &kib) != 2)
		return;
	if (!strcmp(field, "KernelPageSize"))
		m->page = kib * 1024;
	else if (!strcmp(field, "Rss"))
		m->there = kib * 1024;
	else if (!strcmp(field, "AnonHugePages") || !strcmp(field, "ShmemPmdMapped") ||
		 !strcmp(field, "FilePmdMapped"))
		m->huge += kib * 1024;
}

void extents_measure(struct binpool *pool)
{
	unsigned long long start, end;
	struct mapping m = {0};
	bool wanted = false;
	char *line = NULL;
	size_t size = 0;

	assert_turn(pool);
	FILE *f;

	/* In turn, so that extents stay; whoever reads page_bytes holds the lock. */
	for (struct extent *e = pool->extents; e; e = e->next) {
		e->measuring = !e->page_bytes;
		wanted = wanted || e->measuring;
	}
	if (!wanted)
		return;
	f = fopen("/proc/thread-self/smaps", "re");
	if (!f)
		return;
	pool_lock(pool);
	while (getline(&line, &size, f) > 0) {
		if (sscanf(line, "%llx-%llx ", &start, &end) == 2) {
			measure(pool, &m);
			m = (struct mapping){.start = start, .end = end};
		} else {
			read_field(&m, line);
		}
	}
	measure(pool, &m);
	pool_unlock(pool);
	free(line);
	fclose(f);
}

int mapped_page(const void *ptr, uint64_t *page)
{
	const uint64_t at = (uintptr_t)ptr;
	unsigned long long start, end;
	struct mapping m = {0};
	char *line = NULL;
	size_t size = 0;
	FILE *f;
	int err = info_open("/proc/thread-self/smaps", &f);

	*page = 0;
	if (!f)
		return err;
	while (getline(&line, &size, f) > 0) {
		if (sscanf(line, "%llx-%llx ", &start, &end) != 2)
			read_field(&m, line);
		else if (at >= m.start && at < m.end)
			break;
		else
			m = (struct mapping){.start = start, .end = end};
	}
	free(line);
	fclose(f);
	/* What is resident of hugetlb pages is not told as such. */
	if (at >= m.start && at < m.end && (m.page >= pmd_size() || m.there))
		*page = mapping_page(&m);
	return 0;
}
