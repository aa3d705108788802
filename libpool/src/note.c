// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What only some buffers have: a tag, references beside the allocation's own,
 * sub-buffers, a slot of share.c's. Owns pool->notes, a hash table with chains; the pool's lock.
 *
 * A buffer with a note is in a state of its own, so that the fast path of a free
 * leaves it to the slow one, and all others cost nothing.
 */
#include <stdlib.h>

#include "pool.h"

#define NOTES_SIZE_MIN 64u

static struct note **slot_of(const struct binpool *pool, const struct run *run)
{
	uint64_t hash = (uint64_t)(uintptr_t)run * 0x9e3779b97f4a7c15ull;

	return &pool->notes[hash >> (64 - binpool_log2(pool->notes_size))];
}

/* Makes room for one more. -ENOMEM. A table that cannot grow only gets slower. */
static int grow(struct binpool *pool)
{
	uint64_t old_size = pool->notes_size;
	struct note **old = pool->notes, **table, **slot, *next;

	if (pool->notes_count < old_size)
		return 0;
	table = calloc(old_size ? 2 * old_size : NOTES_SIZE_MIN, sizeof(struct note *));
	if (!table)
		return old_size ? 0 : -ENOMEM;
	pool->notes = table;
	pool->notes_size = old_size ? 2 * old_size : NOTES_SIZE_MIN;
	for (uint64_t i = 0; i < old_size; i++) {
		for (struct note *note = old[i]; note; note = next) {
			next = note->next;
			slot = slot_of(pool, note->run);
			note->next = *slot;
			*slot = note;
		}
	}
	free(old);
	return 0;
}

/* NULL: it has none. */
struct note *note_find(const struct binpool *pool, const struct run *run)
{
	struct note *note;

	assert_locked(pool);
	if (run_state(run) != RUN_NOTED)
		return NULL;
	for (note = *slot_of(pool, run); note && note->run != run; note = note->next)
		;
	return note;
}

/* The note of an active buffer, made if it has none. NULL: no memory. */
struct note *note_get(struct binpool *pool, struct run *run)
{
	struct note *note = note_find(pool, run), **slot;

	if (note || grow(pool))
		return note;
	note = calloc(1, sizeof(*note));
	if (!note)
		return NULL;
	note->run = run;
	slot = slot_of(pool, run);
	note->next = *slot;
	*slot = note;
	pool->notes_count++;
	run_set_state(run, RUN_NOTED);
	return note;
}

static void delete (struct binpool *pool, struct note *note)
{
	struct note **at = slot_of(pool, note->run);

	while (*at != note)
		at = &(*at)->next;
	*at = note->next;
	pool->notes_count--;
	run_set_state(note->run, RUN_ACTIVE);
	share_end(pool, note->slot);
	free(note);
}

/*
 * Drops a note that says nothing any more. True: nobody has the buffer, which is to be
 * freed; fences that it still waits for see to that themselves.
 */
bool note_tidy(struct binpool *pool, struct note *note)
{
	bool last = note->freed && !note->refs;
	struct pending *fenced = note->fenced;
	struct run *run = note->run;

	/* Other processes have it until those are over. */
	if (last && fenced) {
		pending_share(fenced, note->slot);
		note->slot = 0;
	}
	if (last || (!note->freed && !note->refs && !*note->tag && !note->slot))
		delete (pool, note);
	if (last && fenced)
		run_set_state(run, RUN_PENDING);
	return last && !fenced;
}

/*
 * The allocation's own reference goes. 0: it was the last, and the buffer is to be
 * freed; 1: others keep it; -EINVAL, explained: it had gone before.
 */
int note_release(struct binpool *pool, struct run *run)
{
	struct note *note = note_find(pool, run);

	if (!note)
		return 0;
	if (note->freed)
		return explain(
			-EINVAL,
			"pool %s: free of %p, which is free already: %llu references keep it",
			pool->name, (void *)run->ptr, (unsigned long long)note->refs);
	note->freed = true;
	return note_tidy(pool, note) ? 0 : 1;
}

/* At the end of a pool, and there are notes only in a forked child. */
void notes_fini(struct binpool *pool)
{
	struct note *next;
	struct sub *sub;

	for (uint64_t i = 0; i < pool->notes_size; i++) {
		for (struct note *note = pool->notes[i]; note; note = next) {
			next = note->next;
			while ((sub = note->subs)) {
				note->subs = sub->next;
				free(sub);
			}
			free(note);
		}
	}
	free(pool->notes);
}
