// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Registrars: who must know about extents. Owns pool->registrars and the
 * extents' attachments; all of it in turn. The list, and whether an extent is registered, change
 * locked as well.
 */
#include <stdlib.h>
#include <string.h>

#include "pool.h"

static struct binpool_extent describe(const struct extent *e)
{
	return (struct binpool_extent){
		.size = sizeof(struct binpool_extent),
		.ptr = e->base,
		.bytes = e->bytes,
		.fd = e->fd,
		.node = e->node,
	};
}

/* Where the registrar's attachment of the extent is, or NULL. */
static struct attachment **attachment_at(struct extent *e, const struct registrar *r)
{
	struct attachment **at = &e->attachments;

	while (*at && (*at)->registrar != r)
		at = &(*at)->next;
	return at;
}

/* Whether all have it. */
static bool is_registered(const struct binpool *pool, struct extent *e)
{
	const struct registrar *r = pool->registrars;

	for (; r; r = r->next) {
		const struct attachment *a = *attachment_at(e, r);

		if (!a || a->broken)
			return false;
	}
	return pool->registrars;
}

/* Keeps count of the extents that all have; this one is linked. */
static void count_registered(struct binpool *pool, struct extent *e)
{
	bool registered = is_registered(pool, e);

	pool_lock(pool);
	if (registered && !e->registered)
		pool->stats.registered_bytes += e->bytes;
	if (!registered && e->registered)
		pool->stats.registered_bytes -= e->bytes;
	e->registered = registered;
	pool_unlock(pool);
}

static bool is_optional(const struct registrar *r)
{
	return r->ops.flags & BINPOOL_REGISTRAR_OPTIONAL;
}

static bool is_before_use(const struct registrar *r)
{
	return r->ops.flags & BINPOOL_REGISTRAR_BEFORE_USE;
}

static void registrar_delete(struct registrar *r)
{
	free(r->name);
	free(r);
}

/* It is out of its extent's list. */
static void attachment_delete(struct attachment *a)
{
	struct registrar *r = a->registrar;

	if (!--r->attached && r->over)
		registrar_delete(r);
	free(a);
}

/* It is none any more, but there still. */
static void attachment_break(struct binpool *pool, struct attachment *a)
{
	pool_lock(pool);
	pool->stats.registrations -= !a->broken;
	a->broken = true;
	pool_unlock(pool);
}

static int detach(struct binpool *pool, struct extent *e, struct attachment **at);

/* What attach did before it failed with @err is undone, or else the extent has it still. */
static void undo_attach(struct binpool *pool, struct extent *e, struct attachment *a)
{
	char cause[1024];

	snprintf(cause, sizeof(cause), "%s", binpool_last_error());
	a->broken = true;
	a->next = e->attachments;
	e->attachments = a;
	a->registrar->attached++;
	detach(pool, e, &e->attachments);
	binpool_set_last_error(cause);
}

/* An error, explained, even of an optional registrar. */
static int attach(struct binpool *pool, struct registrar *r, struct extent *e)
{
	struct binpool_extent extent = describe(e);
	struct attachment *a = malloc(sizeof(*a));
	char amount[HUMAN_LEN];
	struct callback c;
	uint64_t start, ns;
	int err;

	if (!a)
		return explain(-ENOMEM, "no memory for an attachment's description");
	*a = (struct attachment){.registrar = r};
	binpool_set_last_error("");
	callback_enter(&c, pool);
	start = now_ns();
	err = r->ops.attach(r->ops.ctx, &extent, &a->cookie);
	ns = now_ns() - start;
	callback_leave(&c);

	pool_lock(pool);
	pool->stats.registration_allocs++;
	pool->stats.registration_ns += ns;
	if (!err)
		pool->stats.registrations++;
	else if (is_optional(r) || (background_of(&pool->background) && !is_before_use(r)))
		pool->stats.registrations_refused++;
	pool_unlock(pool);
	if (err) {
		pool_trace(pool, "registrar %s refused %p: %s", r->name, (void *)e->base,
			   *binpool_last_error() ? binpool_last_error() : strerror(-err));
		if (a->cookie && r->ops.try_detach)
			undo_attach(pool, e, a);
		else
			free(a);
		err = callback_errno(err);
		return explain(err, "pool %s: registrar %s refused an extent of %s: %s", pool->name,
			       r->name, human(e->bytes, amount),
			       *binpool_last_error() ? binpool_last_error() : strerror(-err));
	}
	a->next = e->attachments;
	e->attachments = a;
	r->attached++;
	return 0;
}

/* Detaches the attachment at *at; if that fails, explained, it is a broken one there. */
static int detach(struct binpool *pool, struct extent *e, struct attachment **at)
{
	struct binpool_extent extent = describe(e);
	struct attachment *a = *at;
	const struct binpool_registrar_ops *ops = &a->registrar->ops;
	char amount[HUMAN_LEN], before[1024];
	struct callback c;
	uint64_t start, ns;
	int err = 0;

	/* From now on nobody may rely on it. */
	attachment_break(pool, a);
	/* What was said before is not its cause; if it lets go, that is the last error still. */
	snprintf(before, sizeof(before), "%s", binpool_last_error());
	binpool_set_last_error("");
	callback_enter(&c, pool);
	start = now_ns();
	if (ops->try_detach)
		err = ops->try_detach(ops->ctx, &extent, a->cookie);
	else
		ops->detach(ops->ctx, &extent, a->cookie);
	ns = now_ns() - start;
	callback_leave(&c);

	pool_lock(pool);
	pool->stats.registration_ns += ns;
	pool_unlock(pool);
	if (err) {
		err = callback_errno(err);
		return explain(err, "pool %s: registrar %s does not let go of %s at %p: %s",
			       pool->name, a->registrar->name, human(e->bytes, amount),
			       (void *)e->base,
			       *binpool_last_error() ? binpool_last_error() : strerror(-err));
	}
	binpool_set_last_error(before);
	*at = a->next;
	attachment_delete(a);
	return 0;
}

/* Detaches the attachment at *at if it has come to nothing; whether it is gone. */
static bool drop_lost(struct binpool *pool, struct extent *e, struct attachment **at)
{
	const struct attachment *a = *at;
	struct binpool_extent extent = describe(e);
	struct callback c;
	int err;

	if (!a || a->broken || !a->registrar->ops.check)
		return false;
	callback_enter(&c, pool);
	err = a->registrar->ops.check(a->registrar->ops.ctx, &extent, a->cookie);
	callback_leave(&c);
	if (!err)
		return false;
	pool_trace(pool, "registrar %s has lost %p", a->registrar->name, (void *)e->base);
	e->lost = true;
	pool_lock(pool);
	pool->stats.registrations_lost++;
	pool_unlock(pool);
	return !detach(pool, e, at);
}

int registrars_complete(struct binpool *pool, struct extent *e)
{
	char cause[1024];
	int err = 0;

	assert_turn(pool);
	for (struct registrar *r = pool->registrars; r; r = r->next) {
		struct attachment **at;
		int ret = 0;

		drop_lost(pool, e, attachment_at(e, r));
		at = attachment_at(e, r);
		if (*at && (*at)->broken)
			ret = detach(pool, e, at);
		if (!ret && !*attachment_at(e, r))
			ret = background_of(&pool->background) && is_before_use(r)
				      ? explain(-EBUSY,
						"registrar %s has not got memory that is in "
						"use",
						r->name)
				      : attach(pool, r, e);
		if (ret && !err) {
			err = ret;
			snprintf(cause, sizeof(cause), "%s", binpool_last_error());
		}
	}
	if (err)
		explain(err, "%s", cause);
	else
		e->lost = false;
	count_registered(pool, e);
	return err;
}

void registrars_drop_lost(struct binpool *pool, struct extent *e)
{
	assert_turn(pool);
	for (struct attachment **at = &e->attachments; *at;)
		if (!drop_lost(pool, e, at))
			at = &(*at)->next;
	count_registered(pool, e);
}

struct extent *registrars_extent_at(struct binpool *pool, const void *ptr)
{
	struct extent *e = pool->extents;
	const char *at = ptr;

	assert_turn(pool);
	while (e && (at < e->base || (uint64_t)(at - e->base) >= e->bytes))
		e = e->next;
	return e;
}

/*
 * What was lost is lost of all extents at once, as a device is reset: if the oldest was, all are
 * looked at, and what can be is attached again.
 */
static void recover(struct binpool *pool)
{
	struct extent *oldest = pool->extents;

	for (struct registrar *r = pool->registrars; r && oldest; r = r->next)
		drop_lost(pool, oldest, attachment_at(oldest, r));
	if (!oldest || !oldest->lost)
		return;
	for (struct extent *e = oldest; e; e = e->next) {
		if (background_of(&pool->background))
			registrars_drop_lost(pool, e);
		else
			registrars_complete(pool, e);
	}
}

/*
 * Attaches all registrars that are not left to the pool's thread. On an error those before it
 * stay: see extent_unget().
 */
int registrars_attach(struct binpool *pool, struct extent *e)
{
	struct background *b = background_of(&pool->background);

	assert_turn(pool);
	recover(pool);
	for (struct registrar *r = pool->registrars; r; r = r->next) {
		int err = b && !is_before_use(r) ? 0 : attach(pool, r, e);

		if (err && !is_optional(r))
			return err;
	}
	e->registered = is_registered(pool, e);
	/* It has the turn when the extent is linked. */
	if (b && !e->registered)
		background_kick(b);
	return 0;
}

/*
 * Detaches all, the last attached first; the extent is not linked. One that fails is not in the
 * way of those before it.
 */
bool registrars_detach(struct binpool *pool, struct extent *e)
{
	struct background *b = background_of(&pool->background);
	struct attachment **at = &e->attachments;

	assert_turn(pool);
	while (*at)
		if (detach(pool, e, at))
			at = &(*at)->next;
	e->registered = false;
	/* Somebody may wait for it. */
	if (b)
		background_kick(b);
	return !e->attachments;
}

void registrars_forget(struct extent *e)
{
	struct attachment *a;

	while ((a = e->attachments)) {
		e->attachments = a->next;
		attachment_delete(a);
	}
}

static void registrar_release(struct binpool *pool, struct registrar *r)
{
	struct callback c;

	callback_enter(&c, pool);
	if (r->ops.release)
		r->ops.release(r->ops.ctx);
	callback_leave(&c);
	registrar_delete(r);
}

/* From all that can be; the last error, explained. */
static int detach_everywhere(struct binpool *pool, struct registrar *r)
{
	struct extent *const lists[] = {pool->extents, pool->stuck};
	int err = 0;

	assert_turn(pool);
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		for (struct extent *e = lists[i]; e; e = e->next) {
			struct attachment **at = attachment_at(e, r);
			int ret = *at ? detach(pool, e, at) : 0;

			err = ret ? ret : err;
		}
	}
	return err;
}

/* After a registrar came or went. */
static void count_all(struct binpool *pool)
{
	for (struct extent *e = pool->extents; e; e = e->next)
		count_registered(pool, e);
}

EXPORT int binpool_add_registrar(struct binpool *pool, const struct binpool_registrar_ops *ops,
				 uint64_t *id)
{
	const uint32_t known = BINPOOL_REGISTRAR_OPTIONAL | BINPOOL_REGISTRAR_BEFORE_USE;
	struct registrar *r;
	bool later;
	int err = pool_enter_host(pool);

	if (err)
		return err;
	if (!id)
		return explain(-EINVAL, "id is NULL");
	r = calloc(1, sizeof(*r));
	if (!r)
		return explain(-ENOMEM, "no memory for a registrar's description");
	err = struct_in(&r->ops, sizeof(r->ops), ops, "ops");
	if (!err && (!r->ops.attach || (!r->ops.detach && !r->ops.try_detach)))
		err = explain(-EINVAL, "a registrar needs both attach and detach");
	if (!err && (r->ops.flags & ~known || r->ops.reserved))
		err = explain(
			-EINVAL,
			"ops: flags is 0x%x: OPTIONAL (0x%x) and BEFORE_USE (0x%x) are known; "
			"and reserved is %u, not 0",
			r->ops.flags, BINPOOL_REGISTRAR_OPTIONAL, BINPOOL_REGISTRAR_BEFORE_USE,
			r->ops.reserved);
	if (!err) {
		r->name = strdup(r->ops.name ? r->ops.name : "unnamed");
		r->ops.name = r->name;
		if (!r->name)
			err = explain(-ENOMEM, "no memory for a registrar's name");
	}
	if (err) {
		registrar_delete(r);
		return err;
	}

	turn_take(pool);
	later = background_of(&pool->background) && !is_before_use(r);
	for (struct extent *e = later ? NULL : pool->extents; e && !err; e = e->next) {
		err = attach(pool, r, e);
		if (is_optional(r))
			err = 0;
	}
	if (err) {
		char cause[1024];

		snprintf(cause, sizeof(cause), "%s", binpool_last_error());
		detach_everywhere(pool, r);
		r->over = true;
		if (!r->attached)
			registrar_delete(r);
		explain(err, "%s", cause);
	} else {
		r->id = *id = ++pool->registrar_ids;
		pool_lock(pool);
		LIST_APPEND(pool->registrars, pool->registrars_last, r);
		pool_unlock(pool);
		count_all(pool);
	}
	turn_give(pool);
	if (later)
		background_kick(pool->background);
	extents_settle(pool);
	return err;
}

EXPORT int binpool_remove_registrar(struct binpool *pool, uint64_t id)
{
	struct registrar *r;
	int err = pool_enter(pool);

	if (err)
		return err;
	turn_take(pool);
	for (r = pool->registrars; r && r->id != id; r = r->next)
		;
	if (r)
		err = detach_everywhere(pool, r);
	if (err)
		count_all(pool);
	if (r && !err) {
		pool_lock(pool);
		LIST_UNLINK(pool->registrars, pool->registrars_last, r);
		pool_unlock(pool);
		registrar_release(pool, r);
		count_all(pool);
		if (background_of(&pool->background))
			background_kick(pool->background);
	} else if (!r) {
		err = explain(-ENOENT, "pool %s has no registrar %llu", pool->name,
			      (unsigned long long)id);
	}
	turn_give(pool);
	extents_settle(pool);
	return err;
}

/* The end of the pool, whose extents are gone. In a forked child nobody is told. */
void registrars_fini(struct binpool *pool)
{
	struct registrar *next;

	for (struct registrar *r = pool->registrars; r; r = next) {
		next = r->next;
		if (pool->dead)
			registrar_delete(r);
		else
			registrar_release(pool, r);
	}
}
