// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Buffers in other processes. Owns pool->shares; the pool's lock. An import is its
 * caller's alone, and needs no pool.
 *
 * An importer maps the file behind the extent, which keeps the memory whatever the
 * exporter does, or is killed by. That a buffer is no longer what was exported is seen by
 * its generation, a number in a file that both map and only the exporter's library writes: a
 * slot of it is the buffer's from the first export until it is free. No process
 * holds anything for another, so none can lose it.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/binpool.h>

#include "pool.h"

/* Nobody else gets to write it, nor to make the page go. */
#define GENERATIONS_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

/* A page of generations. Mapped here to be written, sealed against all others. */
struct generations {
	struct generations *next; /* made before */
	uint64_t *page;
	int fd;
};

struct binpool_import {
	char *base; /* what is mapped, and how much */
	uint64_t mapped;
	char *ptr;
	const uint64_t *page;
	uint64_t generation;
	uint32_t slot;
};

/* Between a buffer's bytes and its generation. */
static void barrier(void)
{
	/* ThreadSanitizer knows of no fences, nor of the other process. */
#ifndef __SANITIZE_THREAD__
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

static uint32_t per_page(void)
{
	return (uint32_t)(page_size() / sizeof(uint64_t));
}

/* ---- Generations ----------------------------------------------------------- */

static void generations_delete(struct generations *g)
{
	if (g->page)
		munmap(g->page, page_size());
	if (g->fd >= 0)
		close(g->fd);
	free(g);
}

/* Makes a page of them. -ERRNO. */
static int generations_init(struct generations *g)
{
	void *at;

	g->fd = memfd_make("binpool-generations", 0);
	if (g->fd < 0 || ftruncate(g->fd, (off_t)page_size()))
		return -errno;
	at = mmap(NULL, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	g->page = at;
	/* A child of ours would write it on behalf of nobody. */
	if (madvise(at, page_size(), MADV_DONTFORK) || fcntl(g->fd, F_ADD_SEALS, GENERATIONS_SEALS))
		return -errno;
	return 0;
}

/* The slots of a new page. No lock is held. */
static int shares_grow(struct binpool *pool)
{
	struct shares *s = &pool->shares;
	struct generations *g = calloc(1, sizeof(*g));
	uint32_t n = per_page(), *unused = NULL;
	int err = g ? generations_init(g) : -ENOMEM;

	if (err) {
		if (g)
			generations_delete(g);
		return explain(err, "export: a file for generations: %s", strerror(-err));
	}
	pool_lock(pool);
	unused = realloc(s->unused, (s->slots + n) * sizeof(*unused));
	if (unused) {
		s->unused = unused;
		/* The first is used first. */
		for (uint32_t i = n; i--;)
			s->unused[s->unused_n++] = s->slots + i + 1;
		s->slots += n;
		g->next = s->files;
		s->files = g;
	}
	pool_unlock(pool);
	if (unused)
		return 0;
	generations_delete(g);
	return explain(-ENOMEM, "pool %s: no memory to export a buffer", pool->name);
}

/* Where a slot's generation is. Locked. */
static struct generations *generations_of(const struct binpool *pool, uint32_t slot)
{
	struct generations *g = pool->shares.files;

	assert_locked(pool);
	for (uint32_t last = pool->shares.slots / per_page() - 1; last > (slot - 1) / per_page();
	     last--)
		g = g->next;
	return g;
}

void share_end(struct binpool *pool, uint32_t slot)
{
	uint64_t *generation;

	if (!slot)
		return;
	generation = &generations_of(pool, slot)->page[(slot - 1) % per_page()];
	__atomic_store_n(generation, *generation + 1, __ATOMIC_RELEASE);
	/* Before anything that the next user writes. */
	barrier();
	pool->shares.unused[pool->shares.unused_n++] = slot;
}

void shares_fini(struct binpool *pool)
{
	struct generations *next;

	for (struct generations *g = pool->shares.files; g; g = next) {
		next = g->next;
		/* A child has no mapping of it. */
		if (pool->dead)
			g->page = NULL;
		generations_delete(g);
	}
	free(pool->shares.unused);
}

/* ---- Exporting --------------------------------------------------------------- */

/* Fills @s but for its size; -EAGAIN: there is no slot unused. Locked. */
static int export_run(struct binpool *pool, struct run *run, struct binpool_share *s)
{
	const struct generations *g;
	struct binpool_buf buf;
	struct note *note;

	buf_describe(pool, run, false, &buf);
	if (buf.extent_fd < 0)
		return explain(-EOPNOTSUPP,
			       "pool %s: the buffer at %p has no file of its own behind it "
			       "(provider %s%s)",
			       pool->name, buf.ptr, binpool_provider_name(pool->provider.ops->id),
			       run->extent->is_void ? "; size 0" : "");
	note = note_get(pool, run);
	if (!note)
		return explain(-ENOMEM, "pool %s: no memory to export a buffer", pool->name);
	if (!note->slot && !pool->shares.unused_n) {
		note_tidy(pool, note);
		return -EAGAIN;
	}
	if (!note->slot)
		note->slot = pool->shares.unused[--pool->shares.unused_n];
	g = generations_of(pool, note->slot);
	s->offset = buf.extent_offset;
	s->bytes = buf.bytes;
	s->unit = pool->provider.unit;
	s->slot = (note->slot - 1) % per_page();
	s->generation = g->page[s->slot];
	/* Both files are there as long as the buffer is, and nobody frees it now. */
	s->extent_fd = fcntl(buf.extent_fd, F_DUPFD_CLOEXEC, 0);
	s->generation_fd = s->extent_fd < 0 ? -1 : fcntl(g->fd, F_DUPFD_CLOEXEC, 0);
	if (s->generation_fd >= 0)
		return 0;
	if (s->extent_fd >= 0)
		close(s->extent_fd);
	return explain(-errno, "export: duplicating a descriptor: %s", strerror(errno));
}

EXPORT int binpool_export(struct binpool *pool, const void *ptr, struct binpool_share *out)
{
	struct binpool_share s = {0};
	struct run *run;
	int err = pool_enter_host(pool);

	if (!err)
		err = struct_check(out, sizeof(out->size), "out");
	if (err)
		return err;
	for (;;) {
		pool_lock(pool);
		run = lookup_find(pool, ptr);
		if (run && run_in_use(run))
			err = export_run(pool, run, &s);
		else
			err = explain(-EINVAL, "pool %s: no live buffer starts at %p", pool->name,
				      ptr);
		pool_unlock(pool);
		if (err != -EAGAIN)
			break;
		err = shares_grow(pool);
		if (err)
			break;
	}
	if (!err)
		struct_fill(out, &s, sizeof(s));
	return err;
}

/* ---- Importing --------------------------------------------------------------- */

/*
 * Whether all up to @end is there as long as the descriptor is: of a block of the module, or a file
 * that nobody makes shorter. What may be made shorter could end in a SIGBUS.
 */
static bool is_whole(int fd, int seals, uint64_t end)
{
	struct binpool_query q = {.size = sizeof(q)};
	struct stat st;

	if (seals < 0)
		return !ioctl(fd, BINPOOL_IOC_QUERY, &q) && q.capacity >= end;
	return seals & F_SEAL_SHRINK && !fstat(fd, &st) && (uint64_t)st.st_size >= end;
}

static int share_check(const struct binpool_share *s)
{
	uint64_t end;
	struct stat st;
	int seals;

	if (!is_pow2(s->unit) || s->unit < page_size() || s->unit > ALIGNMENT_MAX || !s->bytes ||
	    __builtin_add_overflow(s->offset, s->bytes, &end) || end > INT64_MAX - s->unit ||
	    s->slot >= per_page() || s->reserved)
		return explain(-EINVAL, "share: no export has such members");
	seals = fcntl(s->generation_fd, F_GET_SEALS);
	if (seals < 0 && errno == EBADF)
		return explain(-EBADF, "share: generation_fd is no open descriptor");
	/* The system may seal more, as against being executed. */
	if (seals < 0 || (seals & GENERATIONS_SEALS) != GENERATIONS_SEALS ||
	    fstat(s->generation_fd, &st) || (uint64_t)st.st_size < page_size())
		return explain(-EINVAL, "share: generation_fd is not an export's");
	seals = fcntl(s->extent_fd, F_GET_SEALS);
	if (seals < 0 && errno == EBADF)
		return explain(-EBADF, "share: extent_fd is no open descriptor");
	if (!is_whole(s->extent_fd, seals, end))
		return explain(-EINVAL, "share: extent_fd is not an export's");
	return 0;
}

/* Maps whole units, so that huge pages are mapped as such. */
static int import_map(struct binpool_import *i, const struct binpool_share *s)
{
	uint64_t from = s->offset & ~(s->unit - 1);
	void *at;

	i->mapped = round_up(s->offset + s->bytes, s->unit) - from;
	i->base = address_reserve(i->mapped, s->unit);
	if (!i->base)
		return explain(-ENOMEM, "import: no addresses: ulimit -v?");
	at = mmap(i->base, i->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
		  s->extent_fd, (off_t)from);
	if (at == MAP_FAILED) {
		/* The kernel may have let the addresses go before it failed. */
		i->base = NULL;
		return explain(-errno, "import: mapping extent_fd: %s", strerror(errno));
	}
	i->ptr = i->base + (s->offset - from);
	at = mmap(NULL, page_size(), PROT_READ, MAP_SHARED, s->generation_fd, 0);
	if (at == MAP_FAILED)
		return explain(-errno, "import: mapping generation_fd: %s", strerror(errno));
	i->page = at;
	return 0;
}

EXPORT int binpool_import(struct binpool_import **out, const struct binpool_share *share)
{
	struct binpool_import *i;
	struct binpool_share s;
	int err = struct_in(&s, sizeof(s), share, "share");

	if (!err && !out)
		err = explain(-EINVAL, "import is NULL");
	if (!err)
		err = share_check(&s);
	if (err)
		return err;
	i = calloc(1, sizeof(*i));
	if (!i)
		return explain(-ENOMEM, "no memory for an import");
	i->slot = s.slot;
	i->generation = s.generation;
	err = import_map(i, &s);
	if (!err)
		err = binpool_import_check(i);
	if (err) {
		binpool_import_close(i);
		return err;
	}
	*out = i;
	return 0;
}

EXPORT void *binpool_import_ptr(const struct binpool_import *import)
{
	return import ? import->ptr : NULL;
}

EXPORT int binpool_import_check(const struct binpool_import *import)
{
	if (!import)
		return explain(-EINVAL, "import is NULL");
	/* After what the caller read of the buffer. */
	barrier();
	if (__atomic_load_n(&import->page[import->slot], __ATOMIC_ACQUIRE) == import->generation)
		return 0;
	return explain(-ESTALE, "import: the buffer was freed by the process that exported it");
}

EXPORT int binpool_import_close(struct binpool_import *import)
{
	int err = 0;

	if (!import)
		return explain(-EINVAL, "import is NULL");
	if (import->base)
		err = memory_unmap(import->base, import->mapped);
	if (err)
		return err;
	if (import->page)
		munmap((void *)(uintptr_t)import->page, page_size());
	free(import);
	return 0;
}
