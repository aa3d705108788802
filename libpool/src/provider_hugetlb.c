// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Huge pages that the administrator reserved: a memfd of hugetlb pages for each
 * extent, allocated and mapped before anybody sees it, so that a shortage is an
 * errno and never a SIGBUS.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/memfd.h>

#include "pool.h"

#define POOL_DIR "/sys/kernel/mm/hugepages/hugepages-%llukB/"
#define NODE_DIR "/sys/devices/system/node/node%d/hugepages/hugepages-%llukB/"

static int hugetlb_memfd(uint64_t page)
{
	return memfd_make("binpool",
			  MFD_HUGETLB | (unsigned int)(binpool_log2(page) << MFD_HUGE_SHIFT));
}

static int hugetlb_open(struct provider *p)
{
	const uint64_t percent = 80;
	char page[HUMAN_LEN];
	int fd;

	p->unit = pmd_size();
	p->max_bytes = physical_bytes() / 100 * percent;
	p->max_from = "80 % of memory; option max_bytes or BINPOOL_OPTS changes it";
	fd = hugetlb_memfd(p->unit);
	if (fd < 0 && no_descriptor(errno))
		return explain(-errno, "hugetlb: no file descriptor left; raise ulimit -n");
	if (fd < 0)
		return explain(-ENODEV, "hugetlb: this kernel has no huge pages of %s: %s",
			       human(p->unit, page), strerror(errno));
	close(fd);
	return 0;
}

/* -ENOMEM: how many pages are wanted, there and free, and where to add some. */
static int explain_shortage(const struct provider *p, uint64_t bytes)
{
	unsigned long long kib = p->unit / 1024, total, unused, more;
	const char *else_thp = p->found ? ", or set BINPOOL_OPTS=provider=thp" : "";
	char asked[HUMAN_LEN], page[HUMAN_LEN];

	total = sys_number(0, POOL_DIR "nr_hugepages", kib);
	unused = sys_number(0, POOL_DIR "free_hugepages", kib);
	more = sys_number(0, POOL_DIR "nr_overcommit_hugepages", kib);
	human(bytes, asked);
	human(p->unit, page);
	if (p->strict_node)
		return explain(
			-ENOMEM,
			"hugetlb: asked for %s = %llu pages of %s on node %d, where %llu are "
			"free (all nodes: %llu); raise " NODE_DIR "nr_hugepages%s",
			asked, (unsigned long long)(bytes / p->unit), page, p->node,
			(unsigned long long)sys_number(0, NODE_DIR "free_hugepages", p->node, kib),
			unused, p->node, kib, else_thp);
	return explain(-ENOMEM,
		       "hugetlb: asked for %s = %llu pages of %s, %llu are free of nr_hugepages = "
		       "%llu (nr_overcommit_hugepages = %llu); raise " POOL_DIR
		       "nr_hugepages (or hugetlb.*.max of the cgroup)%s",
		       asked, (unsigned long long)(bytes / p->unit), page, unused, total, more, kib,
		       else_thp);
}

/* Also what the kernel may add (nr_overcommit_hugepages), as long as there is memory for it. */
static int hugetlb_enough(const struct provider *p, uint64_t bytes)
{
	unsigned long long kib = p->unit / 1024;
	uint64_t pages, more, added;

	if (p->strict_node)
		pages = sys_number(UINT64_MAX, NODE_DIR "free_hugepages", p->node, kib);
	else
		pages = sys_number(UINT64_MAX, POOL_DIR "free_hugepages", kib);
	/* What cannot be seen, as for want of a descriptor, is tried. */
	if (pages == UINT64_MAX)
		return 0;
	if (!p->strict_node) {
		pages -= u64_min(pages, sys_number(0, POOL_DIR "resv_hugepages", kib));
		more = sys_number(0, POOL_DIR "nr_overcommit_hugepages", kib);
		added = sys_number(0, POOL_DIR "surplus_hugepages", kib);
		pages += more - u64_min(more, added);
	}
	return bytes / p->unit <= pages ? 0 : explain_shortage(p, bytes);
}

/* What an mmap of @bytes of the memfd failed for: addresses and pages are both ENOMEM. */
static int explain_mmap(const struct provider *p, uint64_t bytes, int error)
{
	char asked[HUMAN_LEN];
	char *room;

	if (error != ENOMEM)
		return explain(-error, "hugetlb: mmap: %s", strerror(error));
	room = address_reserve(bytes, p->unit);
	if (!room)
		return explain(-ENOMEM, "hugetlb: no addresses for %s: ulimit -v?",
			       human(bytes, asked));
	munmap(room, bytes);
	return explain_shortage(p, bytes);
}

/* Has all pages mapped, and got if they are not there yet. */
static int populate(const struct provider *p, const struct extent *e)
{
	if (!madvise(e->base, e->bytes, MADV_POPULATE_WRITE))
		return 0;
	if (errno == EINVAL)
		return explain(-EOPNOTSUPP, "hugetlb: this kernel is too old: no "
					    "MADV_POPULATE_WRITE");
	if (errno == EINTR)
		return explain(-EINTR, "hugetlb: interrupted");
	return explain_shortage(p, e->bytes);
}

/*
 * Gets the pages, at whatever address: one of huge pages is aligned to them.
 * Through the mapping, since its policy is what a page's node comes from; file
 * operations know none.
 */
static int map_somewhere(const struct provider *p, struct extent *e)
{
	char asked[HUMAN_LEN];
	void *at;
	int err;

	/* Mapping reserves the pages, so a shortage shows here; a bound node's only below. */
	at = mmap(NULL, e->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, e->fd, 0);
	if (at == MAP_FAILED)
		return explain_mmap(p, e->bytes, errno);
	e->base = at;
	err = memory_bind(p, e->base, e->bytes);
	if (err)
		explain(err, "hugetlb: binding %s to node %d: %s", human(e->bytes, asked), p->node,
			strerror(-err));
	else
		err = populate(p, e);
	if (err)
		munmap(e->base, e->bytes);
	return err;
}

/* Maps them again, where @align wants them; the file keeps them in between. */
static int map_aligned(const struct provider *p, struct extent *e, uint64_t align)
{
	char asked[HUMAN_LEN];
	int err;

	munmap(e->base, e->bytes);
	e->base = address_reserve(e->bytes, align);
	if (!e->base)
		return explain(-ENOMEM, "hugetlb: no addresses for %s: ulimit -v?",
			       human(e->bytes, asked));
	err = address_map(e->base, e->bytes, e->fd);
	if (err)
		return explain(err, "hugetlb: mapping %s: %s", human(e->bytes, asked),
			       strerror(-err));
	err = populate(p, e);
	if (err)
		munmap(e->base, e->bytes);
	return err;
}

static int hugetlb_get(struct provider *p, struct extent *e, uint64_t align)
{
	char asked[HUMAN_LEN];
	int err;

	e->fd = hugetlb_memfd(p->unit);
	if (e->fd < 0)
		return explain(-errno, "hugetlb: memfd_create: %s", strerror(errno));
	/*
	 * Who imports a buffer of it is not to find the file shorter one day, nor to keep the
	 * next from mapping it.
	 */
	if (ftruncate(e->fd, (off_t)e->bytes) ||
	    fcntl(e->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		err = explain(-errno, "hugetlb: making a file of %s: %s", human(e->bytes, asked),
			      strerror(errno));
	else
		err = map_somewhere(p, e);
	if (!err && align > p->unit)
		err = map_aligned(p, e, align);
	if (err) {
		close(e->fd);
		e->fd = -1;
		e->base = NULL;
		return err;
	}
	e->locked_bytes = e->bytes; /* hugetlb pages are never swapped */
	e->node = memory_node(e->base, e->bytes, p->unit);
	return 0;
}

static int hugetlb_put(struct provider *p, struct extent *e)
{
	int err = memory_unmap(e->base, e->bytes);

	(void)p;
	if (!err)
		close(e->fd);
	return err;
}

const struct provider_ops provider_hugetlb = {
	.id = BINPOOL_PROVIDER_HUGETLB,
	.open = hugetlb_open,
	.enough = hugetlb_enough,
	.get = hugetlb_get,
	.put = hugetlb_put,
	.forget = hugetlb_put,
	.zeroed = true,
};
