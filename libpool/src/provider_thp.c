// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Anonymous memory, advised to be huge, populated and locked. It needs no
 * preparation and no rights, but the kernel may give small pages, and without
 * the right to lock it may swap. Private to this process; a forked child does
 * not get it.
 */
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "pool.h"

static int thp_open(struct provider *p)
{
	const uint64_t percent = 80;

	p->unit = pmd_size();
	p->max_bytes = meminfo_bytes(BINPOOL_NODE_ANY, "MemTotal") / 100 * percent;
	p->max_from = "80 % of memory; option max_bytes or BINPOOL_OPTS changes it";
	return 0;
}

/*
 * Populating more than there is would call the OOM killer, which is no errno.
 * So this asks first. Others may take it in between, that can't be helped.
 */
static int check_room(const struct provider *p, uint64_t bytes)
{
	char asked[HUMAN_LEN], left[HUMAN_LEN];
	uint64_t room = meminfo_bytes(BINPOOL_NODE_ANY, "MemAvailable");

	if (p->strict_node) {
		uint64_t cache = meminfo_bytes(p->node, "Active(file)") +
				 meminfo_bytes(p->node, "Inactive(file)");

		room = meminfo_bytes(p->node, "MemFree") + cache / 2;
		if (bytes > room)
			return explain(-ENOMEM,
				       "thp: asked for %s of node %d, which has %s left "
				       "(/sys/devices/system/node/node%d/meminfo); without "
				       "strict_node other nodes serve too",
				       human(bytes, asked), p->node, human(room, left), p->node);
	}
	if (bytes > room)
		return explain(-ENOMEM,
			       "thp: asked for %s, the system has %s left (MemAvailable in "
			       "/proc/meminfo)",
			       human(bytes, asked), human(room, left));
	return 0;
}

static bool lock_memory(void *base, uint64_t bytes)
{
	struct rlimit limit;

	/* mlock would fail half way, with part of the memory locked. */
	if (!can_lock_memory() && (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur < bytes))
		return false;
	if (!mlock(base, bytes))
		return true;
	munlock(base, bytes);
	return false;
}

static int thp_get(struct provider *p, struct extent *e, uint64_t align)
{
	char asked[HUMAN_LEN];
	int err = check_room(p, e->bytes);

	if (err)
		return err;
	e->base = address_reserve(e->bytes, u64_max(align, p->unit));
	if (!e->base || mprotect(e->base, e->bytes, PROT_READ | PROT_WRITE)) {
		err = explain(-ENOMEM,
			      "thp: no addresses for %s: ulimit -v, or vm.overcommit_memory = 2",
			      human(e->bytes, asked));
		goto unmap;
	}
	madvise(e->base, e->bytes, MADV_HUGEPAGE);
	if (madvise(e->base, e->bytes, MADV_DONTFORK)) {
		err = explain(-errno, "thp: MADV_DONTFORK: %s", strerror(errno));
		goto unmap;
	}
	err = memory_bind(p, e->base, e->bytes);
	if (err) {
		explain(err, "thp: binding %s to node %d: %s", human(e->bytes, asked), p->node,
			strerror(-err));
		goto unmap;
	}
	if (madvise(e->base, e->bytes, MADV_POPULATE_WRITE)) {
		err = errno == EINVAL ? -EOPNOTSUPP : -ENOMEM;
		explain(err, "thp: populating %s: %s", human(e->bytes, asked), strerror(errno));
		goto unmap;
	}
	e->locked = lock_memory(e->base, e->bytes);
	e->node = memory_node(e->base, e->bytes, p->unit);
	return 0;

unmap:
	if (e->base)
		munmap(e->base, e->bytes);
	return err;
}

static void thp_put(struct provider *p, struct extent *e)
{
	(void)p;
	munmap(e->base, e->bytes);
}

const struct provider_ops provider_thp = {
	.id = BINPOOL_PROVIDER_THP,
	.open = thp_open,
	.get = thp_get,
	.put = thp_put,
	.zeroed = true,
};
