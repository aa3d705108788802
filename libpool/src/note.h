/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What only some buffers have (note.c). Part of pool.h; all locked.
 */
#ifndef BINPOOL_NOTE_H
#define BINPOOL_NOTE_H

#include <stdbool.h>
#include <stdint.h>

#include <binpool.h>

struct binpool;
struct run;

/* A part of a buffer, handed out as a buffer of its own. */
struct sub {
	struct sub *next;
	uint64_t offset, bytes;
	uint64_t handle; /* in a pool of handles */
	uint64_t refs;
};

/* An active buffer's tag, and who else has it. Its run is RUN_NOTED. */
struct note {
	struct note *next; /* in its slot of pool->notes */
	struct run *run;
	uint64_t refs;		/* beside the allocation's own; parts' are among them */
	uint64_t parts;		/* so many: one for each of subs, and for those that come or go */
	bool freed;		/* the allocation's own is gone */
	struct pending *fenced; /* fences that are not over: the buffer was freed after them */
	uint32_t slot;		/* of its generation, if it was exported; else 0 */
	struct sub *subs;
	char tag[BINPOOL_TAG_LEN];
};

struct note *note_get(struct binpool *pool, struct run *run);
struct note *note_find(const struct binpool *pool, const struct run *run);
bool note_tidy(struct binpool *pool, struct note *note);
int note_release(struct binpool *pool, struct run *run);
void notes_fini(struct binpool *pool);

#endif /* BINPOOL_NOTE_H */
