// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Registrars: who must know about extents. Owns pool->registrars and the
 * extents' attachments; all of it in turn.
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
	pool_unlock(pool);
	if (err && r->ops.flags & BINPOOL_REGISTRAR_OPTIONAL) {
		free(a);
		pool_lock(pool);
		pool->stats.registrations_refused++;
		pool_unlock(pool);
		pool_trace(pool, "registrar %s refused %p: %s", r->name, (void *)e->base,
			   *binpool_last_error() ? binpool_last_error() : strerror(-err));
		return 0;
	}
	if (err) {
		free(a);
		err = callback_errno(err);
		return explain(err, "pool %s: registrar %s refused an extent of %s: %s", pool->name,
			       r->name, human(e->bytes, amount),
			       *binpool_last_error() ? binpool_last_error() : strerror(-err));
	}
	a->next = e->attachments;
	e->attachments = a;
	return 0;
}

/* Detaches the attachment at *at. */
static void detach(struct binpool *pool, struct extent *e, struct attachment **at)
{
	struct binpool_extent extent = describe(e);
	struct attachment *a = *at;
	struct callback c;
	uint64_t start, ns;

	*at = a->next;
	callback_enter(&c, pool);
	start = now_ns();
	a->registrar->ops.detach(a->registrar->ops.ctx, &extent, a->cookie);
	ns = now_ns() - start;
	callback_leave(&c);
	free(a);

	pool_lock(pool);
	pool->stats.registrations--;
	pool->stats.registration_ns += ns;
	pool_unlock(pool);
}

/* Attaches all registrars. On an error those before it stay: see extent_unget(). */
int registrars_attach(struct binpool *pool, struct extent *e)
{
	assert_turn(pool);
	for (struct registrar *r = pool->registrars; r; r = r->next) {
		int err = attach(pool, r, e);

		if (err)
			return err;
	}
	return 0;
}

/* Detaches all, the last attached first. */
void registrars_detach(struct binpool *pool, struct extent *e)
{
	assert_turn(pool);
	while (e->attachments)
		detach(pool, e, &e->attachments);
}

static void registrar_delete(struct registrar *r)
{
	free(r->name);
	free(r);
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

static void detach_everywhere(struct binpool *pool, struct registrar *r)
{
	assert_turn(pool);
	for (struct extent *e = pool->extents; e; e = e->next) {
		struct attachment **at = &e->attachments;

		while (*at && (*at)->registrar != r)
			at = &(*at)->next;
		if (*at)
			detach(pool, e, at);
	}
}

EXPORT int binpool_add_registrar(struct binpool *pool, const struct binpool_registrar_ops *ops,
				 uint64_t *id)
{
	struct registrar *r;
	int err = pool_enter_host(pool);

	if (err)
		return err;
	if (!id)
		return explain(-EINVAL, "id is NULL");
	r = calloc(1, sizeof(*r));
	if (!r)
		return explain(-ENOMEM, "no memory for a registrar's description");
	err = struct_in(&r->ops, sizeof(r->ops), ops, "ops");
	if (!err && (!r->ops.attach || !r->ops.detach))
		err = explain(-EINVAL, "a registrar needs both attach and detach");
	if (!err && (r->ops.flags & ~BINPOOL_REGISTRAR_OPTIONAL || r->ops.reserved))
		err = explain(-EINVAL, "ops: unknown flags 0x%x or reserved members", r->ops.flags);
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
	for (struct extent *e = pool->extents; e && !err; e = e->next)
		err = attach(pool, r, e);
	if (err) {
		char cause[1024];

		snprintf(cause, sizeof(cause), "%s", binpool_last_error());
		detach_everywhere(pool, r);
		registrar_delete(r);
		explain(err, "%s", cause);
	} else {
		r->id = *id = ++pool->registrar_ids;
		LIST_APPEND(pool->registrars, pool->registrars_last, r);
	}
	turn_give(pool);
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
	if (r) {
		detach_everywhere(pool, r);
		LIST_UNLINK(pool->registrars, pool->registrars_last, r);
		registrar_release(pool, r);
	} else {
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
