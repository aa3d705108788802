// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What memory is at an address, of whatever pool. Takes the list of pools, a pool's
 * turn and its lock; owns nothing.
 */
#include <string.h>
#include <unistd.h>

#include "pool.h"

/* The extent that @ptr is in; NULL: none. Locked. */
static struct extent *extent_at(const struct binpool *pool, const char *ptr)
{
	struct extent *lists[] = {pool->extents, pool->voids};

	assert_locked(pool);
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
		for (struct extent *e = lists[i]; e; e = e->next)
			if (ptr >= e->base && (uint64_t)(ptr - e->base) < e->bytes)
				return e;
	return NULL;
}

/* What of the extent @ptr is in: a buffer or what no buffer has. Locked. */
static const struct run *run_at(const struct extent *e, const char *ptr)
{
	const struct run *run = e->first;
	const struct slab *slab;
	uint64_t i;

	while (run->next && ptr >= run->next->base)
		run = run->next;
	if (run_state(run) != RUN_SLAB)
		return run;
	slab = run->slab;
	i = (uint64_t)(ptr - slab->base) / slab->stride;
	return i < slab->fresh ? &slab->slot[i] : run;
}

struct search {
	const char *ptr;
	struct binpool *found; /* pinned */
	uint64_t bytes;	       /* of its extent */
};

/*
 * Of pools over one another all have the address: the outermost, whose user has the
 * buffer, has the smallest extent and is the newest.
 */
static void look(struct binpool *pool, void *arg)
{
	struct binpool *outer = NULL;
	struct search *s = arg;
	struct extent *e;

	if (pool->dead || pool->handles)
		return;
	pool_lock(pool);
	e = extent_at(pool, s->ptr);
	if (e && (!s->found || e->bytes < s->bytes)) {
		outer = s->found;
		s->found = pool;
		s->bytes = e->bytes;
		pool->finders++;
	}
	pool_unlock(pool);
	if (outer)
		pool_unpin(outer, &outer->finders);
}

static void add_name(char *names, size_t room, const char *name)
{
	size_t len = strlen(names);

	snprintf(names + len, room - len, "%s%s", len ? "," : "", name);
}

static void describe_registrars(const struct extent *e, struct binpool_ptr_info *info)
{
	info->registrations = 0;
	for (const struct attachment *a = e->attachments; a; a = a->next) {
		if (a->broken)
			continue;
		info->registrations++;
		add_name(info->registrars, sizeof(info->registrars), a->registrar->name);
	}
}

static void describe_buffer(const struct binpool *pool, const struct run *run, const char *ptr,
			    struct binpool_ptr_info *info)
{
	const struct note *note = note_find(pool, run);

	if (run_state(run) == RUN_FREE || run_state(run) == RUN_SLAB)
		return;
	info->state = run_in_use(run)		      ? BINPOOL_PTR_ACTIVE
		      : run_state(run) == RUN_PENDING ? BINPOOL_PTR_PENDING
						      : BINPOOL_PTR_HELD;
	info->buffer = run->ptr;
	info->capacity = run->extent->is_void ? 0 : run->bytes - (uint64_t)(run->ptr - run->base);
	info->offset = (int64_t)(ptr - run->ptr);
	if (info->state != BINPOOL_PTR_ACTIVE)
		return;
	/* Another thread may be taking or freeing it. */
	info->bytes = __atomic_load_n(&run->asked, __ATOMIC_RELAXED);
	info->references = note ? note->refs + !note->freed : 1;
	if (note)
		memcpy(info->tag, note->tag, sizeof(info->tag));
}

/* Pages are contiguous in themselves, and all of an extent if it is one run. Locked. */
static void describe_pages(const struct extent *e, const char *ptr, struct binpool_ptr_info *info)
{
	if (info->page_bytes) {
		info->run_bytes = u64_min(info->page_bytes, e->bytes);
		info->run = (char *)((uintptr_t)ptr & ~(uintptr_t)(info->page_bytes - 1));
	}
	if (e->runs == 1) {
		info->run = e->base;
		info->run_bytes = e->bytes;
	}
}

static void describe_extent(const struct binpool *pool, const struct extent *e, const char *ptr,
			    struct binpool_ptr_info *info)
{
	uint64_t at = (uint64_t)(ptr - e->base);

	info->extent = e->base;
	info->extent_bytes = e->bytes;
	info->extent_fd = e->fd;
	if (pool->provider.ops->file_at)
		info->extent_fd = pool->provider.ops->file_at(e, at, 1, &at);
	info->extent_offset = info->extent_fd < 0 ? 0 : at;
	info->locked = (uint64_t)(ptr - e->base) < e->locked_bytes;
	if (info->node < 0)
		info->node = e->node;
}

/* Fills in what the pool knows. @in_turn: nobody attaches or detaches meanwhile. */
static int describe(struct binpool *pool, const char *ptr, bool in_turn,
		    struct binpool_ptr_info *info)
{
	const struct extent *e;

	pool_lock(pool);
	e = extent_at(pool, ptr);
	if (e) {
		info->provider = pool->provider.ops->id;
		describe_buffer(pool, run_at(e, ptr), ptr, info);
		if (!e->is_void) {
			describe_extent(pool, e, ptr, info);
			describe_pages(e, ptr, info);
		}
		if (in_turn)
			describe_registrars(e, info);
	}
	pool_unlock(pool);
	return e ? 0 : -ENOENT;
}

EXPORT int binpool_query(const void *ptr, struct binpool_ptr_info *out)
{
	struct binpool_ptr_info info = {
		.extent_fd = -1, .node = -1, .registrations = BINPOOL_UNKNOWN};
	struct search s = {.ptr = ptr};
	struct extent *e;
	const char *page;
	bool ours, taken;
	int err;

	err = struct_check(out, sizeof(out->size), "out");
	if (err)
		return err;
	pools_each(look, &s);
	if (!s.found)
		return explain(-ENOENT, "%p is in no pool's memory", ptr);

	/* From a callback of that pool, which is in turn or knows nothing of registrars. */
	ours = callback_of(s.found);
	taken = !ours;
	if (taken)
		turn_take(s.found);
	info.pool = s.found;
	e = taken ? registrars_extent_at(s.found, ptr) : NULL;
	if (e)
		registrars_drop_lost(s.found, e);
	err = mapped_page(ptr, &info.page_bytes);
	page = (const char *)((uintptr_t)ptr & ~(uintptr_t)(page_size() - 1));
	if (info.page_bytes)
		info.node = memory_node(page, page_size(), page_size());
	if (!err && describe(s.found, ptr, turn_is_mine(s.found), &info))
		err = explain(-ENOENT, "%p is in no pool's memory any more", ptr);
	if (taken) {
		turn_give(s.found);
		extents_settle(s.found);
	}
	pool_unpin(s.found, &s.found->finders);
	if (err)
		return err;
	struct_fill(out, &info, sizeof(info));
	return 0;
}
