// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The provider and the registrar that fail on demand. Owns nothing but what they count.
 */
#include "faulty.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "pool.h"

/* Whether this call fails: what with. @above: the errno for more than the bound. */
static int fault(struct faults *f, uint64_t bytes, int above)
{
	int err = 0;

	f->calls++;
	if (f->gone)
		err = -ENODEV;
	else if (f->calls == f->fail_at)
		err = f->fail_with;
	else if (f->largest && bytes > f->largest)
		err = above;
	f->failed += err != 0;
	return err;
}

static struct faulty_provider *mine(const struct provider *p)
{
	return p->allocator.ctx;
}

static int refuse(const struct faulty_provider *f, int err)
{
	return explain(err, "faulty: call %llu fails", (unsigned long long)f->faults.calls);
}

static int fill(struct faulty_provider *f, const struct extent *piece)
{
	if (mprotect(piece->base, piece->bytes, PROT_READ | PROT_WRITE))
		return explain(-ENOMEM, "faulty: no addresses");
	f->bytes += piece->bytes;
	f->bytes_max = u64_max(f->bytes_max, f->bytes);
	return 0;
}

static int faulty_get(struct provider *p, struct extent *e, uint64_t align)
{
	struct faulty_provider *f = mine(p);
	int err = fault(&f->faults, e->bytes, -ENOMEM);

	if (err)
		return refuse(f, err);
	e->base = address_reserve(e->room, u64_max(align, p->unit));
	if (!e->base || fill(f, e))
		return explain(-ENOMEM, "faulty: no addresses");
	f->extents++;
	return 0;
}

static int faulty_extend(struct provider *p, struct extent *e, struct extent *piece)
{
	struct faulty_provider *f = mine(p);
	int err = fault(&f->faults, piece->bytes, -ENOMEM);

	if (err && f->loses) {
		if (munmap(piece->base, e->room - e->bytes))
			abort();
		e->room = e->bytes;
	}
	if (err)
		return refuse(f, err);
	if (piece->base != e->base + e->bytes || piece->bytes > e->room - e->bytes)
		abort();
	return fill(f, piece);
}

/* What is let go of is zero when it is got again. */
static int faulty_shrink(struct provider *p, struct extent *e, uint64_t bytes)
{
	char *at = e->base + e->bytes;

	if (bytes > mine(p)->bytes ||
	    mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		 0) != at)
		abort();
	mine(p)->bytes -= bytes;
	return 0;
}

static int faulty_put(struct provider *p, struct extent *e)
{
	struct faulty_provider *f = mine(p);

	if (!f->extents || e->bytes > f->bytes || munmap(e->base, e->room))
		abort();
	f->extents--;
	f->bytes -= e->bytes;
	return 0;
}

static const struct provider_ops apart = {
	.id = BINPOOL_PROVIDER_THP,
	.get = faulty_get,
	.put = faulty_put,
	.zeroed = true,
};

static const struct provider_ops in_place = {
	.id = BINPOOL_PROVIDER_THP,
	.get = faulty_get,
	.put = faulty_put,
	.extend = faulty_extend,
	.shrink = faulty_shrink,
	.zeroed = true,
};

struct binpool *faulty_pool(const struct binpool_options *opts, struct faulty_provider *p)
{
	struct binpool_options o = *opts;
	struct binpool *pool;

	o.provider = BINPOOL_PROVIDER_THP;
	if (binpool_create(&pool, &o))
		return NULL;
	pool->provider.ops = p->in_place ? &in_place : &apart;
	pool->provider.allocator.ctx = p;
	return pool;
}

static int faulty_attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	struct faulty_registrar *r = ctx;
	struct binpool_extent *copy;
	int err = fault(&r->faults, extent->bytes, -EFBIG);

	if (err) {
		binpool_set_last_error("the faulty registrar fails");
		return err;
	}
	copy = malloc(sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	*copy = *extent;
	*cookie = copy;
	r->attached++;
	return 0;
}

/* Also of a driver that is gone: the pool must not keep what it had. */
static void faulty_detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	struct faulty_registrar *r = ctx;
	struct binpool_extent *copy = cookie;

	if (!r->attached || copy->ptr != extent->ptr || copy->bytes != extent->bytes)
		abort();
	r->attached--;
	free(copy);
}

static void faulty_release(void *ctx)
{
	struct faulty_registrar *r = ctx;

	r->released++;
}

int faulty_registrar_add(struct binpool *pool, struct faulty_registrar *r, uint64_t *id)
{
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.name = "faulty",
		.ctx = r,
		.attach = faulty_attach,
		.detach = faulty_detach,
		.release = faulty_release,
	};

	return binpool_add_registrar(pool, &ops, id);
}
