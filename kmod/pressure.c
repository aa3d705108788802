// SPDX-License-Identifier: GPL-2.0
/*
 * What happens to held memory when others need it. A shrinker gives back frames that
 * nobody has wanted for keep_ms, no more than asked for; before the OOM killer kills
 * anybody all that is spare goes back; before the system hibernates everything that
 * is held does. The reserve stays in the first two cases. Owns the registrations.
 *
 * A memory block whose frames we manage cannot be put offline: the kernel refuses it
 * before it asks anybody. Give held memory back first.
 */
#include <linux/notifier.h>
#include <linux/oom.h>
#include <linux/shrinker.h>
#include <linux/suspend.h>

#include "compat.h"
#include "internal.h"

/* Objects are frames, each as large as hundreds of what others have. */
#define SHRINK_FRAMES 4

/* Warm memory costs more to get again than cached pages. */
#define SHRINK_SEEKS (8 * DEFAULT_SEEKS)

static unsigned long shrink_count(struct shrinker *shrinker, struct shrink_control *sc)
{
	struct node_pool *node = node_of(sc->nid);
	unsigned long nr;

	WRITE_ONCE(node->reclaim_at, jiffies);
	nr = held_idle(node);
	return nr ?: SHRINK_EMPTY;
}

static unsigned long shrink_scan(struct shrinker *shrinker, struct shrink_control *sc)
{
	unsigned long gone = held_to_system(node_of(sc->nid), GIVE_IDLE, 0, sc->nr_to_scan);

	sc->nr_scanned = gone;
	atomic64_add(gone, &events.pressure_freed);
	if (gone)
		room_made();
	compat_reclaimed_pages(gone << FRAME_ORDER);
	return gone ?: SHRINK_STOP;
}

static int out_of_memory_soon(struct notifier_block *nb, unsigned long unused, void *freed)
{
	unsigned long gone = 0;
	int nid;

	for_each_node(nid)
		gone += held_to_system(node_of(nid), GIVE_SPARE, 0, ULONG_MAX);
	atomic64_add(gone, &events.pressure_freed);
	if (gone)
		room_made();
	*(unsigned long *)freed += gone << FRAME_ORDER;
	return NOTIFY_OK;
}

static struct notifier_block oom_notifier = {
	.notifier_call = out_of_memory_soon,
};

static int power_changes(struct notifier_block *nb, unsigned long event, void *unused)
{
	switch (event) {
	case PM_HIBERNATION_PREPARE:
		reserve_stop(true);
		held_suspend(true);
		break;
	case PM_POST_HIBERNATION:
		held_suspend(false);
		reserve_stop(false);
		break;
	}
	return NOTIFY_OK;
}

static struct notifier_block power_notifier = {
	.notifier_call = power_changes,
};

static struct shrinker *shrinker;

int __init pressure_init(void)
{
	int err;

	shrinker = compat_shrinker_register(shrink_count, shrink_scan, SHRINK_FRAMES, SHRINK_SEEKS);
	if (!shrinker)
		return -ENOMEM;
	err = register_oom_notifier(&oom_notifier);
	if (err)
		goto shrinker;
	err = register_pm_notifier(&power_notifier);
	if (err)
		goto oom;
	return 0;

oom:
	unregister_oom_notifier(&oom_notifier);
shrinker:
	compat_shrinker_free(shrinker);
	return err;
}

void pressure_exit(void)
{
	unregister_pm_notifier(&power_notifier);
	unregister_oom_notifier(&oom_notifier);
	compat_shrinker_free(shrinker);
}
