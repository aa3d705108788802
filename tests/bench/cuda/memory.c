// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory of the kinds that are compared. Each does what its users have to do until the driver can
 * copy from it at full speed, and no more.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/memfd.h>

#include <binpool_cuda.h>

#include "bench.h"

struct memory_kind {
	const char *name;
	uint32_t provider; /* of a pool */
	void *(*get)(size_t bytes);
	void (*put)(void *ptr, size_t bytes);
	bool registered; /* by us, after it was got */
	bool pageable;
	bool pinned_by_driver; /* when it is got */
};

/* Of a huge page. */
static size_t huge_bytes(void)
{
	static size_t bytes;
	FILE *file;

	if (bytes)
		return bytes;
	file = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "r");
	if (!file || fscanf(file, "%zu", &bytes) != 1)
		end(IMPOSSIBLE, "this kernel does not say how large its huge pages are");
	fclose(file);
	return bytes;
}

static size_t whole_pages(size_t bytes)
{
	return (bytes + huge_bytes() - 1) & ~(huge_bytes() - 1);
}

static void populate(void *at, size_t bytes)
{
	if (madvise(at, bytes, MADV_POPULATE_WRITE))
		end(IMPOSSIBLE, "%zu MiB of memory could not be had: %m", bytes / MIB);
}

static void *thp_get(size_t bytes)
{
	/* At a huge page's border, as who wants such pages has to see to. */
	size_t room = whole_pages(bytes) + huge_bytes();
	char *at = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *ptr;

	if (at == MAP_FAILED)
		end(IMPOSSIBLE, "mmap of %zu MiB: %m", bytes / MIB);
	ptr = (char *)whole_pages((uintptr_t)at);
	if (ptr > at)
		munmap(at, (size_t)(ptr - at));
	munmap(ptr + whole_pages(bytes), (size_t)(at + huge_bytes() - ptr));
	madvise(ptr, whole_pages(bytes), MADV_HUGEPAGE);
	populate(ptr, bytes);
	return ptr;
}

static void mapped_put(void *ptr, size_t bytes)
{
	munmap(ptr, whole_pages(bytes));
}

static void *map_file(int fd, size_t bytes)
{
	void *ptr = mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (ptr == MAP_FAILED)
		end(IMPOSSIBLE, "%zu huge pages could not be had: %m",
		    whole_pages(bytes) / huge_bytes());
	populate(ptr, whole_pages(bytes));
	return ptr;
}

static void *hugetlb_get(size_t bytes)
{
	int fd = memfd_create("bench", MFD_HUGETLB | (unsigned int)__builtin_ctzl(huge_bytes())
							     << MFD_HUGE_SHIFT);
	void *ptr;

	if (fd < 0 || ftruncate(fd, (off_t)whole_pages(bytes)))
		end(IMPOSSIBLE, "a file of huge pages: %m");
	ptr = map_file(fd, bytes);
	close(fd);
	return ptr;
}

/* What the files that a parent keeps are mapped at, by descriptor; NULL: nobody has it. */
static void *taken[1024];

#define TAKEN (sizeof(taken) / sizeof(taken[0]))

/* Of those files, "FD:BYTES,...", the smallest that is large enough. */
static void *warm_get(size_t bytes)
{
	const char *files = getenv("BINPOOL_TEST_WARM");
	int fd, best = -1, used;
	size_t size, least = SIZE_MAX;

	while (files && sscanf(files, "%d:%zu%n", &fd, &size, &used) == 2) {
		if (size >= bytes && size < least && (size_t)fd < TAKEN && !taken[fd]) {
			best = fd;
			least = size;
		}
		files += used;
		files += *files == ',';
	}
	/* As when a pool grows beyond what was kept ready for it. */
	if (best < 0)
		return hugetlb_get(bytes);
	taken[best] = map_file(best, bytes);
	return taken[best];
}

/* The file keeps its pages for the next. */
static void warm_put(void *ptr, size_t bytes)
{
	for (size_t fd = 0; fd < TAKEN; fd++)
		if (taken[fd] == ptr)
			taken[fd] = NULL;
	mapped_put(ptr, bytes);
}

static void *host_get(size_t bytes)
{
	void *ptr;

	CU(MemHostAlloc(&ptr, bytes, CU_MEMHOSTREGISTER_PORTABLE));
	return ptr;
}

static void host_put(void *ptr, size_t bytes)
{
	(void)bytes;
	CU(MemFreeHost(ptr));
}

static void *pageable_get(size_t bytes)
{
	void *ptr = malloc(bytes);

	if (!ptr)
		end(IMPOSSIBLE, "malloc of %zu MiB failed", bytes / MIB);
	return ptr;
}

static void pageable_put(void *ptr, size_t bytes)
{
	(void)bytes;
	free(ptr);
}

static const struct memory_kind kinds[] = {
	{"pool-hugetlb", .provider = BINPOOL_PROVIDER_HUGETLB},
	{"pool-thp", .provider = BINPOOL_PROVIDER_THP},
	{"hugetlb", .get = hugetlb_get, .put = mapped_put, .registered = true},
	{"warm", .get = warm_get, .put = warm_put, .registered = true},
	{"thp", .get = thp_get, .put = mapped_put, .registered = true},
	{"host", .get = host_get, .put = host_put, .pinned_by_driver = true},
	{"pageable", .get = pageable_get, .put = pageable_put, .pageable = true},
};

void pool_check(int err)
{
	if (err)
		end(err == -ENOMEM ? IMPOSSIBLE : 1, "%s", binpool_last_error());
}

void memory_open_bare(struct memory *m, const char *kind)
{
	struct binpool_options options = BINPOOL_OPTIONS_INIT;
	int err;

	m->kind = NULL;
	m->pool = NULL;
	m->bare = true;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strcmp(kind, kinds[i].name))
			m->kind = &kinds[i];
	if (!m->kind)
		end(1, "there is no memory of kind '%s'", kind);
	if (m->kind->get)
		return;
	options.provider = m->kind->provider;
	err = binpool_create(&m->pool, &options);
	if (err == -ENODEV) /* no such memory here */
		end(IMPOSSIBLE, "%s", binpool_last_error());
	POOL(err);
}

void memory_open(struct memory *m, const char *kind)
{
	uint64_t id;

	memory_open_bare(m, kind);
	m->bare = false;
	if (m->pool)
		POOL(binpool_cuda_attach(m->pool, 0, &id));
}

void memory_register(struct memory *m, void **ptr, size_t bytes)
{
	if (m->kind->pinned_by_driver)
		*ptr = m->kind->get(bytes);
	else
		CU(MemHostRegister_v2(*ptr, bytes, CU_MEMHOSTREGISTER_PORTABLE));
}

void memory_unregister(struct memory *m, void *ptr, size_t bytes)
{
	if (m->kind->pinned_by_driver)
		m->kind->put(ptr, bytes);
	else
		CU(MemHostUnregister(ptr));
}

void *memory_get(struct memory *m, size_t bytes)
{
	void *ptr;

	if (!m->pool && m->kind->pinned_by_driver && m->bare)
		return NULL;
	if (!m->pool) {
		ptr = m->kind->get(bytes);
		if (m->kind->registered && !m->bare)
			memory_register(m, &ptr, bytes);
		return ptr;
	}
	ptr = binpool_alloc(m->pool, bytes);
	if (!ptr)
		POOL(-errno);
	return ptr;
}

void memory_put(struct memory *m, void *ptr, size_t bytes)
{
	if (m->pool) {
		POOL(binpool_free(m->pool, ptr));
		return;
	}
	if (m->kind->registered)
		CU(MemHostUnregister(ptr));
	m->kind->put(ptr, bytes);
}

bool memory_is_pinned(const struct memory *m)
{
	return !m->kind->pageable;
}
