// SPDX-License-Identifier: GPL-2.0
/*
 * How much the module may manage: active + held + limbo frames, bounded by
 * max_bytes; and how much it must leave to the system. Frames are taken from the
 * limit before any memory is, and given back when it is not had. Lock-free.
 */
#include <linux/swap.h>

#include "internal.h"

static atomic_long_t managed; /* frames */
static atomic_long_t coming;  /* frames taken, not yet got from the system */
static unsigned long max_frames;

static u64 ram_bytes(void)
{
	return (u64)totalram_pages() << PAGE_SHIFT;
}

static u64 available_bytes(void)
{
	return (u64)max(si_mem_available(), 0L) << PAGE_SHIFT;
}

/* Bytes of memory that the machine, or one node of it, has. */
u64 limit_machine_bytes(int nid)
{
	return nid == NUMA_NO_NODE ? ram_bytes() : (u64)node_present_pages(nid) << PAGE_SHIFT;
}

/* Takes @nr frames, or as many as there are if @some will do. Returns how many. */
static unsigned long limit_take(unsigned long nr, bool some)
{
	long old = atomic_long_read(&managed);
	unsigned long take;

	do {
		unsigned long max = READ_ONCE(max_frames);

		take = min(nr, max > old ? max - old : 0);
		if (take < nr && !some)
			return 0;
	} while (!atomic_long_try_cmpxchg(&managed, &old, old + take));
	return take;
}

void limit_give(unsigned long nr)
{
	WARN_ON_ONCE(atomic_long_sub_return(nr, &managed) < 0);
}

unsigned long limit_left(void)
{
	unsigned long now = atomic_long_read(&managed), max = READ_ONCE(max_frames);

	return max > now ? max - now : 0;
}

/* Frames managed above the limit, after it was lowered. */
unsigned long limit_excess(void)
{
	unsigned long now = atomic_long_read(&managed), max = READ_ONCE(max_frames);

	return now > max ? now - max : 0;
}

u64 limit_max_bytes(void)
{
	return frames_to_bytes(READ_ONCE(max_frames));
}

u64 limit_managed_bytes(void)
{
	return frames_to_bytes(atomic_long_read(&managed));
}

/*
 * Sets the limit, at least a frame and rounded down to frames, and gives held memory
 * back as far as it is above it. -EINTR if a fatal signal came before all of that was
 * found.
 */
int limit_set(u64 bytes)
{
	int nid, err;

	WRITE_ONCE(max_frames, bytes >> PMD_SHIFT);
	err = cleaners_pause(PAUSE_FOR_ALL);
	for_each_node(nid)
		held_to_system(node_of(nid), GIVE_ALL, 0, limit_excess());
	cleaners_resume();
	reserve_fill();
	room_made();
	return err;
}

/*
 * How many frames may be taken from the system so that what is available then,
 * the page cache counted in, stays above floor_bytes. Without it one large
 * request would push everybody else's memory out to swap.
 */
static unsigned long floor_room(void)
{
	u64 floor = floor_bytes ?: max_t(u64, ram_bytes() / 20, SZ_256M);
	u64 available = available_bytes(), spare = 0;
	int nid;

	/* What we hold counts as available, but is not to be had from the system. */
	for_each_node(nid)
		spare += frames_to_bytes(READ_ONCE(node_of(nid)->spare));
	available -= min(available, spare);
	return available > floor ? (available - floor) >> PMD_SHIFT : 0;
}

/*
 * As limit_take(), from what the floor leaves. What is taken counts as coming until
 * floor_arrived(), so that two who ask at once do not both get the last of it.
 */
static unsigned long floor_take(unsigned long nr, bool some)
{
	long old = atomic_long_read(&coming);
	unsigned long take;

	do {
		unsigned long room = floor_room();

		take = min(nr, room > old ? room - old : 0);
		if (take < nr && !some)
			return 0;
	} while (!atomic_long_try_cmpxchg(&coming, &old, old + take));
	return take;
}

/* @nr frames are there. */
void floor_arrived(unsigned long nr)
{
	atomic_long_sub(nr, &coming);
}

static unsigned long floor_left(void)
{
	unsigned long room = floor_room(), now = atomic_long_read(&coming);

	return room > now ? room - now : 0;
}

/*
 * Takes what the system is then asked for: @nr frames of limit and floor, or as many as
 * both leave if @some will do. Returns how many; with fewer than @nr, *@err is what was
 * in the way, -ENOSPC or -ENOMEM. Each ends with floor_arrived(), or room_give().
 */
unsigned long room_take(unsigned long nr, bool some, int *err)
{
	unsigned long take = limit_take(nr, some), room = floor_take(take, some);

	*err = take < nr ? -ENOSPC : 0;
	if (room < take) {
		*err = -ENOMEM;
		limit_give(take - room);
	}
	return room;
}

/* @nr frames that were taken will not come. */
void room_give(unsigned long nr)
{
	floor_arrived(nr);
	limit_give(nr);
}

/* How many frames could be taken now. */
unsigned long room_left(void)
{
	return min(limit_left(), floor_left());
}

/* @bytes: at least a frame, at most what the machine has; 0: the default. */
void __init limit_init(u64 bytes)
{
	/*
	 * Memory that hugetlb has reserved must not count, but a module cannot ask
	 * how much that is; it is not in what is available, in any case.
	 */
	if (!bytes)
		bytes = max_t(u64, min(ram_bytes() / 2, available_bytes()), FRAME_BYTES);
	max_frames = bytes >> PMD_SHIFT;
}
