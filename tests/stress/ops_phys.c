// SPDX-License-Identifier: GPL-2.0
/*
 * Physical addresses and quarantine: what is told must be true, and memory whose
 * address was told reaches nobody before it is released, and is paid for as long.
 * Owns the table of what was told, by number of the frame. A worker writes the entries of
 * frames that it has; the supervisor takes them out while all pause.
 */
#include "stress.h"

/*
 * An entry: whose block it is, and whether that is sure. A worker that is killed while
 * it asks leaves one that is not: then the address was told, or not.
 */
#define TOLD_SURE     ((__u64)1 << 63)
#define TOLD_ID_SHIFT 32
#define TOLD_ID_MASK  0xffffffU
#define TOLD_KEY_MASK 0xffffffffU

static __u64 told(__u64 id, __u64 opener)
{
	return (id & TOLD_ID_MASK) << TOLD_ID_SHIFT | (opener & TOLD_KEY_MASK);
}

static bool alive(__u64 entry)
{
	const unsigned int n = shared->options.workers * SLOTS;

	for (unsigned int i = 0; i < n; i++) {
		const struct live *live = &shared->workers[i / SLOTS].live[i % SLOTS];

		if (live->id && told(live->id, live->opener) == (entry & ~TOLD_SURE))
			return true;
	}
	return false;
}

/*
 * What is in quarantine of blocks whose opener's key is @opener where @mask is set: at
 * least what is returned, at most *@most. Call while all are parked.
 */
__u64 quarantine_of(__u64 mask, __u64 opener, __u64 *most)
{
	__u64 sure = 0, all = 0;

	mask &= TOLD_KEY_MASK;
	for (__u64 i = 0; i < shared->nr_claims; i++) {
		__u64 entry = atomic_load(&shared->told[i]);

		if (!entry || (entry & mask) != (opener & mask) || alive(entry))
			continue;
		all++;
		sure += !!(entry & TOLD_SURE);
	}
	*most = all * shared->frame;
	return sure * shared->frame;
}

/* The administrator says that no device uses an address of a closed block any more. */
void quarantine_end(void)
{
	int ret;

	for (__u64 i = 0; i < shared->nr_claims; i++) {
		__u64 entry = atomic_load(&shared->told[i]);

		if (entry && !alive(entry))
			atomic_store(&shared->told[i], 0);
	}
	ret = attr_write("phys_release", 1);
	if (ret)
		report(CHECK_ERRNO, "phys_release: %s", strerror(-ret));
}

/* A frame of a new block: it must not be one that somebody may still have the address of. */
void quarantine_look(__u64 frame, __u64 id)
{
	__u64 entry;

	if (planted(PLANT_RELEASED_EARLY))
		atomic_store(&shared->told[frame], TOLD_SURE | told(id + 1, 0));
	entry = atomic_exchange(&shared->told[frame], 0);
	if (entry & TOLD_SURE)
		report(CHECK_QUARANTINE, "frame %#llx of block %llu is in block %llu",
		       (unsigned long long)frame,
		       (unsigned long long)(entry >> TOLD_ID_SHIFT & TOLD_ID_MASK),
		       (unsigned long long)id);
}

/* Sets the entry of each frame of a block, where there is not a sure one. */
static void tell(const struct slot *slot, __u64 entry)
{
	for (__u64 i = 0; i < slot->capacity / shared->frame; i++) {
		if (!(atomic_load(&shared->told[slot->frames[i]]) & TOLD_SURE))
			atomic_store(&shared->told[slot->frames[i]], entry);
	}
}

static void check_runs(const struct slot *slot, const struct binpool_phys_run *runs, __u32 n)
{
	__u64 at = 0;

	for (__u32 i = 0; i < n; i++) {
		for (__u64 o = 0; o < runs[i].bytes && at < slot->capacity; o += shared->frame) {
			__u64 frame = slot->frames[at / shared->frame];

			if (runs[i].address + o != frame * shared->frame)
				report(CHECK_DATA, "PHYS says %#llx of frame %#llx",
				       (unsigned long long)(runs[i].address + o),
				       (unsigned long long)frame);
			at += shared->frame;
		}
	}
	if (at != slot->capacity)
		report(CHECK_DATA, "PHYS tells of %llu bytes of %llu", (unsigned long long)at,
		       (unsigned long long)slot->capacity);
}

/* Of small blocks, so that there is memory for the others; sometimes only the number of runs. */
bool op_phys(struct task *task, struct slot *slot)
{
	const struct live *live = &worker.self->live[slot->number];
	__u64 nr = slot->capacity / shared->frame;
	struct binpool_phys phys = {.size = sizeof(phys)};
	struct binpool_phys_run *runs;
	bool asked = !one_in(&task->rng, 4);
	bool done;

	if (slot->fd < 0 || !slot->frames || slot->capacity > shared->options.max_bytes / 64)
		return false;
	for (__u64 i = 0; i < nr; i++) {
		if (!slot->frames[i])
			return false;
	}
	runs = calloc(nr, sizeof(*runs));
	if (!runs)
		return false;
	if (asked) {
		phys.runs = (__u64)(uintptr_t)runs;
		phys.nr_runs = (__u32)nr;
		tell(slot, told(live->id, live->opener));
	}
	done = SUCCEEDED(OP_PHYS, request(slot->fd, BINPOOL_IOC_PHYS, &phys), 0);
	if (asked)
		tell(slot, done ? TOLD_SURE | told(live->id, live->opener) : 0);
	if (done && (!phys.nr_runs || phys.nr_runs > nr))
		report(CHECK_DATA, "PHYS says %u runs of %llu frames", phys.nr_runs,
		       (unsigned long long)nr);
	else if (done && asked)
		check_runs(slot, runs, phys.nr_runs);
	free(runs);
	return done;
}
