// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory from an allocator of the user's: an extent is one of its allocations,
 * and one buffer; of an allocator of handles the base is the handle. In turn; no
 * lock is held over its callbacks.
 */
#include <string.h>

#include "pool.h"

static int allocator_open(struct provider *p)
{
	const uint64_t percent = 80;

	p->unit = 1;
	p->max_bytes = p->pool->handles ? BINPOOL_UNLIMITED : physical_bytes() / 100 * percent;
	return 0;
}

static void allocator_close(struct provider *p)
{
	struct callback c;

	if (!p->in_use || p->pool->dead || !p->allocator.release)
		return;
	callback_enter(&c, p->pool);
	p->allocator.release(p->allocator.ctx);
	callback_leave(&c);
}

static int allocator_put(struct provider *p, struct extent *e)
{
	struct callback c;

	callback_enter(&c, p->pool);
	if (p->pool->handles)
		p->allocator.free_handle(p->allocator.ctx, (uintptr_t)e->base, e->bytes);
	else
		p->allocator.free(p->allocator.ctx, e->base, e->bytes);
	callback_leave(&c);
	return 0;
}

static int allocator_get(struct provider *p, struct extent *e, uint64_t align)
{
	char asked[HUMAN_LEN];
	uint64_t handle = 0;
	struct callback c;
	void *ptr = NULL;
	int err;

	(void)align; /* the request is large enough to find its place inside */
	binpool_set_last_error("");
	callback_enter(&c, p->pool);
	if (p->pool->handles) {
		err = p->allocator.alloc_handle(p->allocator.ctx, e->bytes, &handle);
		ptr = (void *)(uintptr_t)handle;
	} else {
		err = p->allocator.alloc(p->allocator.ctx, e->bytes, &ptr);
	}
	callback_leave(&c);
	if (!err && !ptr)
		err = -ENOMEM;
	if (err) {
		err = callback_errno(err);
		return explain(err, "pool %s: its allocator refused %s: %s", p->pool->name,
			       human(e->bytes, asked),
			       *binpool_last_error() ? binpool_last_error() : strerror(-err));
	}
	e->base = ptr;
	/* Nor is the last byte of all addresses anybody's: its end would be at 0. */
	if (!p->pool->handles && e->bytes > UINTPTR_MAX - (uintptr_t)ptr) {
		allocator_put(p, e);
		return explain(-EFAULT,
			       "pool %s: its allocator gave %s at %p, which end beyond the last "
			       "address",
			       p->pool->name, human(e->bytes, asked), ptr);
	}
	return 0;
}

const struct provider_ops provider_allocator = {
	.id = BINPOOL_PROVIDER_ALLOCATOR,
	.open = allocator_open,
	.close = allocator_close,
	.get = allocator_get,
	.put = allocator_put,
};
