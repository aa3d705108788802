// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * io_uring: a ring's table of fixed buffers, kept in step with a pool's extents.
 *
 * The pool's threads only note what comes and goes (attach, detach); the ring's
 * thread applies it (sync), since a ring may refuse any other thread. u->lock
 * protects the list of extents and each one's `gone`; the rest belongs to the
 * ring's thread. The lock is not held over system calls: only the ring's thread
 * ends an extent's description, so that it stays while it is being registered.
 *
 * An extent that goes is not found from that moment on, though its slots are
 * cleared at the next sync only. The kernel keeps the pages of a slot pinned
 * until then, and those of a request in flight until its end, so nothing is
 * read into memory that has become somebody else's; and since a slot's old
 * buffer lives until its requests end, a slot can be given another one at once,
 * without a tag whose completion would turn up among the caller's.
 *
 * A pool's second ring takes over the table of the first where the kernel can (Linux 6.12): the
 * pages are pinned, and charged, once. tables_lock protects the list of tables, and comes first;
 * each one's table_lock is held while it changes, so that another can be made like it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <binpool_uring.h>

#include "memlock.h"

#define EXPORT __attribute__((visibility("default")))

/* The kernel's bounds on one registered buffer and on a table. */
#define PIECE_BYTES ((uint64_t)1 << 30)
#define SLOTS_MAX   16384u

struct entry {
	struct entry *next;
	char *ptr;
	uint64_t bytes;
	bool gone;	/* u->lock */
	bool tried;	/* registered, or refused by the kernel */
	bool cloned;	/* from another ring, which is charged for it */
	uint64_t n;	/* pieces */
	int32_t slot[]; /* of each piece; -1: none */
};

struct binpool_uring {
	struct binpool_uring *next;   /* of all tables */
	const struct binpool *origin; /* the pool, for comparison only */
	struct binpool *pool;	      /* NULL: it is gone; u->lock */
	uint64_t registrar;
	pid_t process; /* that attached it; the ring's table is that one's */
	struct io_uring *ring;
	bool has_table;
	uint32_t slots, used;
	bool *taken; /* by slot */
	char reason[512];
	pthread_mutex_t table_lock;

	pthread_mutex_t lock;
	struct entry *entries;
};

static pthread_mutex_t tables_lock = PTHREAD_MUTEX_INITIALIZER;
static struct binpool_uring *tables;

static int uring_explain(int err, const char *sentence)
{
	binpool_set_last_error(sentence);
	return err;
}

static int attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	uint64_t n = (extent->bytes + PIECE_BYTES - 1) / PIECE_BYTES;
	struct binpool_uring *u = ctx;
	struct entry *e = calloc(1, sizeof(*e) + n * sizeof(e->slot[0]));

	if (!e)
		return uring_explain(-ENOMEM, "io_uring: no memory for an extent's description");
	e->ptr = extent->ptr;
	e->bytes = extent->bytes;
	e->n = n;
	for (uint64_t i = 0; i < n; i++)
		e->slot[i] = -1;
	pthread_mutex_lock(&u->lock);
	e->next = u->entries;
	u->entries = e;
	pthread_mutex_unlock(&u->lock);
	*cookie = e;
	return 0;
}

static void detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	struct binpool_uring *u = ctx;
	struct entry *e = cookie;

	(void)extent;
	pthread_mutex_lock(&u->lock);
	e->gone = true;
	pthread_mutex_unlock(&u->lock);
}

static void release(void *ctx)
{
	struct binpool_uring *u = ctx;

	pthread_mutex_lock(&u->lock);
	u->pool = NULL;
	pthread_mutex_unlock(&u->lock);
}

static uint64_t piece_bytes(const struct entry *e, uint64_t i)
{
	uint64_t left = e->bytes - i * PIECE_BYTES;

	return left < PIECE_BYTES ? left : PIECE_BYTES;
}

/* Puts a buffer into a slot, or with NULL takes it out. 0 or -errno. */
static int set_slot(struct binpool_uring *u, uint32_t slot, void *ptr, uint64_t bytes)
{
	struct iovec iov = {.iov_base = ptr, .iov_len = (size_t)bytes};
	__u64 tag = 0;
	int n = io_uring_register_buffers_update_tag(u->ring, slot, &iov, &tag, 1);

	return n == 1 ? 0 : n < 0 ? n : -EIO;
}

static void uncharge(const struct entry *e, uint64_t i)
{
	if (!e->cloned)
		uring_uncharge(piece_bytes(e, i));
}

static void clear_slots(struct binpool_uring *u, struct entry *e)
{
	for (uint64_t i = 0; i < e->n; i++) {
		if (e->slot[i] < 0)
			continue;
		/* If the kernel refuses, the slot stays taken: it still has the old pages. */
		if (!set_slot(u, (uint32_t)e->slot[i], NULL, 0)) {
			u->taken[e->slot[i]] = false;
			uncharge(e, i);
		}
		u->used--;
		e->slot[i] = -1;
	}
}

static void explain_refusal(struct binpool_uring *u, const struct entry *e, int err)
{
	struct utsname name = {0};

	uname(&name);
	if (err == -EOPNOTSUPP)
		snprintf(
			u->reason, sizeof(u->reason),
			"Linux %s does not register memory of this kind (the module's blocks: from "
			"6.12 on)",
			name.release);
	else if (err == -ENOMEM)
		snprintf(u->reason, sizeof(u->reason),
			 "the kernel refused %llu bytes: RLIMIT_MEMLOCK of this user is used up "
			 "(ulimit -l), or it has no memory",
			 (unsigned long long)e->bytes);
	else
		snprintf(u->reason, sizeof(u->reason), "registering %llu bytes: %s",
			 (unsigned long long)e->bytes, strerror(-err));
}

/* A slot that is not taken, or -1. */
static int32_t free_slot(const struct binpool_uring *u)
{
	for (uint32_t i = 0; i < u->slots; i++)
		if (!u->taken[i])
			return (int32_t)i;
	return -1;
}

/* Registers all pieces of an extent, or none. */
static void register_entry(struct binpool_uring *u, struct entry *e)
{
	int err;

	if (!uring_memlock_allows(e->bytes, u->reason, sizeof(u->reason))) {
		e->tried = true;
		return;
	}
	for (uint64_t i = 0; i < e->n; i++) {
		int32_t slot = free_slot(u);

		if (slot < 0) {
			/* Tried again at each sync: an extent may go. */
			if (!u->reason[0])
				snprintf(u->reason, sizeof(u->reason),
					 "all %u slots are taken: attach with more", u->slots);
			clear_slots(u, e);
			return;
		}
		err = set_slot(u, (uint32_t)slot, e->ptr + i * PIECE_BYTES, piece_bytes(e, i));
		if (err) {
			e->tried = true;
			explain_refusal(u, e, err);
			clear_slots(u, e);
			return;
		}
		u->taken[slot] = true;
		u->used++;
		e->slot[i] = slot;
		uring_charge(piece_bytes(e, i));
	}
	e->tried = true;
}

/* Takes the first extent that is gone out of the list. */
static struct entry *take_gone(struct binpool_uring *u)
{
	struct entry **at, *e;

	pthread_mutex_lock(&u->lock);
	for (at = &u->entries; *at && !(*at)->gone; at = &(*at)->next)
		;
	e = *at;
	if (e)
		*at = e->next;
	pthread_mutex_unlock(&u->lock);
	return e;
}

/* The first extent from @e on that is to be registered. */
static struct entry *next_new(struct binpool_uring *u, struct entry *e, bool first)
{
	pthread_mutex_lock(&u->lock);
	e = first ? u->entries : e->next;
	while (e && (e->tried || e->gone))
		e = e->next;
	pthread_mutex_unlock(&u->lock);
	return e;
}

/* Whether the kernel takes the ring from this thread; asked with a change of nothing. */
static bool is_our_thread(const struct binpool_uring *u)
{
	struct io_uring_rsrc_update2 nothing = {0};

	return !u->has_table || !(u->ring->flags & IORING_SETUP_SINGLE_ISSUER) ||
	       !syscall(SYS_io_uring_register, u->ring->ring_fd, IORING_REGISTER_BUFFERS_UPDATE,
			&nothing, sizeof(nothing)) ||
	       errno != EEXIST;
}

static int not_our_thread(void)
{
	return uring_explain(-EEXIST, "io_uring: this ring, with IORING_SETUP_SINGLE_ISSUER, is "
				      "another thread's");
}

/* Whether an extent that is there was refused. */
static bool any_refused(struct binpool_uring *u)
{
	bool any = false;

	pthread_mutex_lock(&u->lock);
	for (const struct entry *e = u->entries; e; e = e->next)
		any = any || (!e->gone && e->tried && e->slot[0] < 0);
	pthread_mutex_unlock(&u->lock);
	return any;
}

static int sync_locked(struct binpool_uring *u)
{
	struct entry *e;

	while ((e = take_gone(u))) {
		clear_slots(u, e);
		free(e);
	}
	if (!u->has_table)
		return 0;
	if (!any_refused(u))
		u->reason[0] = '\0';
	for (e = next_new(u, NULL, true); e; e = next_new(u, e, false))
		register_entry(u, e);
	return (int)u->used;
}

EXPORT int binpool_uring_sync(struct binpool_uring *u)
{
	int used;

	if (!u)
		return uring_explain(-EINVAL, "binpool_uring_sync: u is NULL");
	if (!is_our_thread(u))
		return not_our_thread();
	pthread_mutex_lock(&u->table_lock);
	used = sync_locked(u);
	pthread_mutex_unlock(&u->table_lock);
	return used;
}

EXPORT int binpool_uring_find(struct binpool_uring *u, const void *ptr, size_t len)
{
	const char *at = ptr;
	int slot = -1;

	if (!u || !ptr)
		return uring_explain(-1, "binpool_uring_find: an argument is NULL");
	pthread_mutex_lock(&u->lock);
	for (struct entry *e = u->entries; e; e = e->next) {
		uint64_t offset = (uint64_t)(at - e->ptr);

		/* A buffer of an extent that is gone may be at a new one's addresses. */
		if (e->gone || at < e->ptr || offset >= e->bytes || len > e->bytes - offset)
			continue;
		if (!len || offset / PIECE_BYTES == (offset + len - 1) / PIECE_BYTES)
			slot = e->slot[offset / PIECE_BYTES];
		break;
	}
	pthread_mutex_unlock(&u->lock);
	return slot;
}

EXPORT const char *binpool_uring_reason(const struct binpool_uring *u)
{
	return u ? u->reason : "";
}

/* ---- Tables ------------------------------------------------------------------- */

/* Linux 6.12, and newer than some liburings. */
#define REGISTER_CLONE_BUFFERS 30

struct clone_buffers {
	uint32_t src_fd, flags, src_off, dst_off, nr, pad[3];
};

/* The entry of the same extent, which is registered; u->lock. */
static const struct entry *entry_like(const struct binpool_uring *u, const struct entry *e)
{
	const struct entry *other = u->entries;

	while (other && (other->gone || other->ptr != e->ptr || other->bytes != e->bytes ||
			 other->slot[0] < 0))
		other = other->next;
	return other;
}

/*
 * Takes note of what came with the table, extents that both have, and clears the rest. Both
 * pools' threads may be about to end extents: with both locks none does.
 */
static void adopt(struct binpool_uring *u, struct binpool_uring *from)
{
	pthread_mutex_lock(&u->lock);
	pthread_mutex_lock(&from->lock);
	for (struct entry *e = u->entries; e; e = e->next) {
		const struct entry *other = e->gone ? NULL : entry_like(from, e);

		for (uint64_t i = 0; other && i < e->n; i++) {
			e->slot[i] = other->slot[i];
			u->taken[e->slot[i]] = true;
			u->used++;
		}
		e->tried = e->cloned = other;
	}
	pthread_mutex_unlock(&from->lock);
	pthread_mutex_unlock(&u->lock);
	for (uint32_t i = 0; i < u->slots; i++) {
		if (u->taken[i] || !from->taken[i])
			continue;
		/* One that the kernel does not clear is no use, but no harm. */
		u->taken[i] = set_slot(u, i, NULL, 0);
	}
}

/* Makes the ring's table as that of another ring of the pool's. 0; else it has none. */
static int clone_table(struct binpool_uring *u)
{
	struct clone_buffers clone = {0};
	struct binpool_uring *from;
	int err = -ENOENT;

	pthread_mutex_lock(&tables_lock);
	for (from = tables; from; from = from->next)
		if (from->origin == u->origin && from->has_table && from->slots == u->slots)
			break;
	if (from) {
		pthread_mutex_lock(&from->table_lock);
		clone.src_fd = (uint32_t)from->ring->ring_fd;
		err = syscall(SYS_io_uring_register, u->ring->ring_fd, REGISTER_CLONE_BUFFERS,
			      &clone, 1)
			      ? -errno
			      : 0;
		if (!err)
			adopt(u, from);
		pthread_mutex_unlock(&from->table_lock);
	}
	pthread_mutex_unlock(&tables_lock);
	return err;
}

/* The table. A kernel without one is remembered, not an error. */
static int make_table(struct binpool_uring *u)
{
	int err = clone_table(u);

	if (err)
		err = io_uring_register_buffers_sparse(u->ring, u->slots);

	if (err == -EBUSY)
		return uring_explain(err, "io_uring: the ring has registered buffers already");
	if (err == -EEXIST)
		return not_our_thread();
	if (err == -ENOMEM)
		return uring_explain(err, "io_uring: no memory for the table of buffers");
	u->has_table = !err;
	if (err)
		snprintf(u->reason, sizeof(u->reason),
			 "this kernel has no sparse tables of fixed buffers: %s", strerror(-err));
	return 0;
}

static void before_fork(void)
{
	pthread_mutex_lock(&tables_lock);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&tables_lock);
}

/* The rings of before, and what they are charged, are the parent's. */
static void in_child(void)
{
	tables = NULL;
	uring_charge_nothing();
	pthread_mutex_unlock(&tables_lock);
}

/* 0 or -ENOMEM. */
static int watch_forks(void)
{
	static bool watching; /* tables_lock */
	int err = 0;

	pthread_mutex_lock(&tables_lock);
	if (!watching)
		err = -pthread_atfork(before_fork, in_parent, in_child);
	watching = !err;
	pthread_mutex_unlock(&tables_lock);
	return err ? uring_explain(err, "io_uring: no memory for a fork handler") : 0;
}

static void publish(struct binpool_uring *u)
{
	pthread_mutex_lock(&tables_lock);
	u->next = tables;
	tables = u;
	pthread_mutex_unlock(&tables_lock);
}

static void withdraw(struct binpool_uring *u)
{
	struct binpool_uring **at;

	pthread_mutex_lock(&tables_lock);
	for (at = &tables; *at && *at != u; at = &(*at)->next)
		;
	if (*at)
		*at = u->next;
	pthread_mutex_unlock(&tables_lock);
}

static void table_delete(struct binpool_uring *u)
{
	struct entry *e;

	while ((e = u->entries)) {
		u->entries = e->next;
		free(e);
	}
	pthread_mutex_destroy(&u->table_lock);
	pthread_mutex_destroy(&u->lock);
	free(u->taken);
	free(u);
}

/* The registrar is to go again; keeps the last error. */
static void abandon(struct binpool_uring *u)
{
	char cause[512];

	snprintf(cause, sizeof(cause), "%s", binpool_last_error());
	binpool_remove_registrar(u->pool, u->registrar);
	binpool_set_last_error(cause);
}

EXPORT int binpool_uring_attach(struct binpool *pool, struct io_uring *ring, uint32_t slots,
				struct binpool_uring **out)
{
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.name = "io_uring",
		.attach = attach,
		.detach = detach,
		.release = release,
	};
	struct binpool_uring *u;
	int err;

	if (!pool || !ring || !out)
		return uring_explain(-EINVAL, "binpool_uring_attach: an argument is NULL");
	*out = NULL;
	if (!slots || slots > SLOTS_MAX)
		return uring_explain(-EINVAL, "binpool_uring_attach: slots: 1 to 16384");
	err = watch_forks();
	if (err)
		return err;
	u = calloc(1, sizeof(*u));
	if (u)
		u->taken = calloc(slots, sizeof(*u->taken));
	if (!u || !u->taken) {
		free(u);
		return uring_explain(-ENOMEM, "io_uring: no memory for a table's description");
	}
	u->pool = pool;
	u->origin = pool;
	u->process = getpid();
	u->ring = ring;
	u->slots = slots;
	pthread_mutex_init(&u->lock, NULL);
	pthread_mutex_init(&u->table_lock, NULL);
	ops.ctx = u;
	err = binpool_add_registrar(pool, &ops, &u->registrar);
	if (!err) {
		err = make_table(u);
		if (err)
			abandon(u);
	}
	if (err) {
		/* Extents that were attached before one failed are gone, but noted. */
		u->has_table = false;
		sync_locked(u);
		table_delete(u);
		return err;
	}
	sync_locked(u);
	publish(u);
	*out = u;
	return 0;
}

EXPORT int binpool_uring_detach(struct binpool_uring *u)
{
	struct binpool *pool;
	struct entry *e;
	int err = 0;

	if (!u)
		return uring_explain(-EINVAL, "binpool_uring_detach: u is NULL");
	if (u->process != getpid()) {
		/* A child's copy. Its pool may be gone: a child's tells nobody. */
		withdraw(u);
		table_delete(u);
		return 0;
	}
	if (!is_our_thread(u))
		return not_our_thread();
	pthread_mutex_lock(&u->lock);
	pool = u->pool;
	pthread_mutex_unlock(&u->lock);
	if (pool)
		err = binpool_remove_registrar(pool, u->registrar);
	if (err)
		return err;
	withdraw(u);
	while ((e = take_gone(u))) {
		for (uint64_t i = 0; i < e->n; i++)
			if (e->slot[i] >= 0)
				uncharge(e, i);
		free(e);
	}
	if (u->has_table)
		err = io_uring_unregister_buffers(u->ring);
	table_delete(u);
	return err;
}
