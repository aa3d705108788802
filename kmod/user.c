// SPDX-License-Identifier: GPL-2.0
/*
 * Who pays for a block: the opener it is asked of, the user who opened that, and,
 * with memlock=Y, his RLIMIT_MEMLOCK. Owns the records of users, protected by the
 * lock of their index; the accounts themselves are atomic.
 *
 * Frames are charged before any is taken and given back when they are held again,
 * or with the system: what is in blocks, in limbo or in quarantine is always paid for.
 * What is held is nobody's. max_bytes, which counts it too, is in limit.c.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>
#include <linux/user_namespace.h>

#include "internal.h"

static DEFINE_XARRAY(users);	      /* struct pool_user by uid */
static unsigned long user_max_frames; /* 0: only max_bytes bounds a user */

/*
 * Whose budget @cred draws on. Ids of a user namespace are its owner's, so that
 * nobody multiplies his budget with the subordinate ids he has; only the outermost
 * one's owner counts, since who is inside may nest more of them, as anybody there.
 */
static kuid_t payer(const struct cred *cred)
{
	const struct user_namespace *ns = cred->user_ns;
	kuid_t uid = cred->uid;

	for (; ns != &init_user_ns; ns = ns->parent)
		uid = ns->owner;
	return uid;
}

/* The record of the user with @cred, with a reference. NULL: no memory. */
struct pool_user *user_get(const struct cred *cred)
{
	struct pool_user *user, *fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT);
	unsigned long key;
	int err;

	if (!fresh)
		return NULL;
	kref_init(&fresh->ref);
	fresh->uid = payer(cred);
	key = __kuid_val(fresh->uid);
	xa_lock(&users);
	do {
		user = xa_load(&users, key);
		if (user) {
			kref_get(&user->ref);
			break;
		}
		/* Lets go of the lock to allocate: another may come first (-EBUSY). */
		err = __xa_insert(&users, key, fresh, GFP_KERNEL_ACCOUNT);
		if (!err) {
			user = fresh;
			fresh = NULL;
		}
	} while (err == -EBUSY);
	xa_unlock(&users);
	kfree(fresh);
	return user;
}

static void user_free(struct kref *ref) __releases(&users.xa_lock)
{
	struct pool_user *user = container_of(ref, struct pool_user, ref);

	__xa_erase(&users, __kuid_val(user->uid));
	xa_unlock(&users);
	WARN_ON(atomic_long_read(&user->account.frames) || atomic_long_read(&user->account.limbo));
	kfree(user);
}

void user_put(struct pool_user *user)
{
	/* Under the lock, so that nobody finds a record that is about to go. */
	kref_put_lock(&user->ref, user_free, &users.xa_lock);
}

void users_exit(void)
{
	WARN_ON(!xa_empty(&users));
}

/* What each user may have, in frames. */
static unsigned long user_max(void)
{
	return READ_ONCE(user_max_frames) ?: ULONG_MAX;
}

/* As it was set; 0: as much as all together. */
u64 user_limit_bytes(void)
{
	return frames_to_bytes(READ_ONCE(user_max_frames));
}

/*
 * Sets what each user may have, at least a frame and rounded down to frames; 0: as much
 * as all together. Who has more keeps it.
 */
void user_limit_set(u64 bytes)
{
	WRITE_ONCE(user_max_frames, bytes >> PMD_SHIFT);
	room_made();
}

/* Adds @nr to @used if that stays within @max. */
static bool take(atomic_long_t *used, unsigned long nr, unsigned long max)
{
	long old = atomic_long_read(used);

	do {
		if (nr > max || (unsigned long)old > max - nr)
			return false;
	} while (!atomic_long_try_cmpxchg(used, &old, old + nr));
	return true;
}

static void give(atomic_long_t *used, unsigned long nr)
{
	WARN_ON_ONCE(atomic_long_sub_return(nr, used) < 0);
}

static unsigned long memlock_pages(void)
{
	return rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
}

/*
 * Charges @req's frames to everybody who pays: the opener, its user, RLIMIT_MEMLOCK.
 * 0, or -EDQUOT with the one who cannot in @req, and nothing charged.
 */
int charge_take(struct request *req)
{
	struct opener *opener = req->opener;

	req->exceeded = BINPOOL_EXCEEDED_OPENER;
	if (!take(&opener->account.frames, req->nr, atomic_long_read(&opener->max_frames)))
		return -EDQUOT;
	req->exceeded = BINPOOL_EXCEEDED_USER;
	if (!take(&opener->user->account.frames, req->nr, user_max()))
		goto opener;
	/* The block remembers whether: parameter, limit and capability may change. */
	req->locked = READ_ONCE(memlock) && !capable(CAP_IPC_LOCK);
	req->exceeded = BINPOOL_EXCEEDED_MEMLOCK;
	if (req->locked &&
	    !take(&opener->memlock->locked_vm, req->nr << FRAME_ORDER, memlock_pages()))
		goto user;
	req->exceeded = BINPOOL_EXCEEDED_NONE;
	return 0;

user:
	give(&opener->user->account.frames, req->nr);
opener:
	give(&opener->account.frames, req->nr);
	return -EDQUOT;
}

/* Gives back what charge_take() took for @nr frames; @locked as it was left there. */
void charge_give(struct opener *opener, unsigned long nr, bool locked)
{
	if (locked)
		give(&opener->memlock->locked_vm, nr << FRAME_ORDER);
	give(&opener->user->account.frames, nr);
	give(&opener->account.frames, nr);
}

/* A frame of @block comes to limbo: it stays charged. */
void charge_to_limbo(struct block *block)
{
	atomic_long_inc(&block->opener->user->account.limbo);
	atomic_long_inc(&block->opener->account.limbo);
}

/* And leaves it. */
void charge_from_limbo(struct block *block)
{
	/* Fully ordered, and first: see would_fit(). */
	charge_give(block->opener, 1, block->locked);
	atomic_long_dec(&block->opener->user->account.limbo);
	atomic_long_dec(&block->opener->account.limbo);
}

/* Whether @nr more were within @max, if @limbo << @shift of what is @used came back. */
static bool would_fit(const atomic_long_t *used, const atomic_long_t *limbo, unsigned int shift,
		      unsigned long nr, unsigned long max)
{
	/* Read first: a frame that leaves meanwhile may count twice, but not as stuck. */
	long back = atomic_long_read_acquire(limbo);
	long stays = atomic_long_read(used) - (back << shift);

	return back > 0 && nr <= max && (stays <= 0 || stays <= max - nr);
}

/* Whether limbo is what @req failed for with -EDQUOT. */
bool charge_awaits_limbo(const struct request *req)
{
	const struct opener *opener = req->opener;
	const struct account *user = &opener->user->account;

	switch (req->exceeded) {
	case BINPOOL_EXCEEDED_OPENER:
		return would_fit(&opener->account.frames, &opener->account.limbo, 0, req->nr,
				 atomic_long_read(&opener->max_frames));
	case BINPOOL_EXCEEDED_USER:
		return would_fit(&user->frames, &user->limbo, 0, req->nr, user_max());
	default:
		return would_fit(&opener->memlock->locked_vm, &user->limbo, FRAME_ORDER,
				 req->nr << FRAME_ORDER, memlock_pages());
	}
}
