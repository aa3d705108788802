// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Huge pages that the administrator reserved: a memfd of hugetlb pages for each
 * extent, allocated and mapped before anybody sees it, so that a shortage is an
 * errno and never a SIGBUS.
 */
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/memfd.h>

#include "pool.h"

#define POOL_DIR "/sys/kernel/mm/hugepages/hugepages-%llukB/"
#define NODE_DIR "/sys/devices/system/node/node%d/hugepages/hugepages-%llukB/"

static int hugetlb_memfd(uint64_t page)
{
	return memfd_create("binpool",
			    MFD_CLOEXEC | MFD_HUGETLB |
				    (unsigned int)(binpool_log2(page) << MFD_HUGE_SHIFT));
}

static int hugetlb_open(struct provider *p)
{
	const uint64_t percent = 80;
	char page[HUMAN_LEN];
	int fd;

	p->unit = pmd_size();
	p->max_bytes = meminfo_bytes(BINPOOL_NODE_ANY, "MemTotal") / 100 * percent;
	fd = hugetlb_memfd(p->unit);
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
			"free (all nodes: %llu); raise " NODE_DIR "nr_hugepages",
			asked, (unsigned long long)(bytes / p->unit), page, p->node,
			(unsigned long long)sys_number(0, NODE_DIR "free_hugepages", p->node, kib),
			unused, p->node, kib);
	return explain(-ENOMEM,
		       "hugetlb: asked for %s = %llu pages of %s, %llu are free of nr_hugepages = "
		       "%llu (nr_overcommit_hugepages = %llu); raise " POOL_DIR
		       "nr_hugepages, and RLIMIT or cgroup limits on hugetlb if there are any",
		       asked, (unsigned long long)(bytes / p->unit), page, unused, total, more,
		       kib);
}

static int hugetlb_get(struct provider *p, struct extent *e, uint64_t align)
{
	char asked[HUMAN_LEN];
	void *at;
	int err;

	e->fd = hugetlb_memfd(p->unit);
	if (e->fd < 0)
		return explain(-errno, "hugetlb: memfd_create: %s", strerror(errno));
	e->base = address_reserve(e->bytes, u64_max(align, p->unit));
	if (!e->base) {
		err = explain(-ENOMEM, "hugetlb: no addresses for %s: ulimit -v?",
			      human(e->bytes, asked));
		goto close_fd;
	}
	if (ftruncate(e->fd, (off_t)e->bytes)) {
		err = explain(-errno, "hugetlb: ftruncate to %s: %s", human(e->bytes, asked),
			      strerror(errno));
		goto unmap;
	}
	/* Mapping reserves the pages, so a shortage shows here; a bound node's only below. */
	at = mmap(e->base, e->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, e->fd, 0);
	if (at == MAP_FAILED) {
		err = errno == ENOMEM ? explain_shortage(p, e->bytes)
				      : explain(-errno, "hugetlb: mmap: %s", strerror(errno));
		goto unmap;
	}
	err = memory_bind(p, e->base, e->bytes);
	if (err) {
		explain(err, "hugetlb: binding %s to node %d: %s", human(e->bytes, asked), p->node,
			strerror(-err));
		goto unmap;
	}
	if (fallocate(e->fd, 0, 0, (off_t)e->bytes)) {
		err = errno == EINTR ? explain(-EINTR, "hugetlb: interrupted")
				     : explain_shortage(p, e->bytes);
		goto unmap;
	}
	if (madvise(e->base, e->bytes, MADV_POPULATE_WRITE)) {
		err = errno == EINVAL ? explain(-EOPNOTSUPP, "hugetlb: this kernel is too old: no "
							     "MADV_POPULATE_WRITE")
				      : explain_shortage(p, e->bytes);
		goto unmap;
	}
	e->locked = true; /* hugetlb pages are never swapped */
	e->node = memory_node(e->base, e->bytes, p->unit);
	return 0;

unmap:
	munmap(e->base, e->bytes);
close_fd:
	close(e->fd);
	e->fd = -1;
	return err;
}

static void hugetlb_put(struct provider *p, struct extent *e)
{
	(void)p;
	munmap(e->base, e->bytes);
	close(e->fd);
}

const struct provider_ops provider_hugetlb = {
	.id = BINPOOL_PROVIDER_HUGETLB,
	.open = hugetlb_open,
	.get = hugetlb_get,
	.put = hugetlb_put,
	.forget = hugetlb_put,
	.zeroed = true,
};
