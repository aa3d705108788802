// SPDX-License-Identifier: GPL-2.0
/*
 * The administrator, who changes limits and gives held memory back while workers
 * work. What he found he restores. Runs in the supervisor only.
 */
#include "stress.h"

#define PARAMETERS "/sys/module/binpool/parameters/"

/* What is written at random; attributes that this module has not are left out. */
static struct knob {
	const char *path;
	enum { VALUE_LIMIT, VALUE_PART, VALUE_SWITCH, VALUE_GO, VALUE_MS } value;
	char before[32];
	bool known;
} knobs[] = {
	{.path = SYSFS "max_bytes", .value = VALUE_LIMIT},
	{.path = SYSFS "user_max_bytes", .value = VALUE_PART},
	{.path = SYSFS "reserve_bytes", .value = VALUE_PART},
	{.path = SYSFS "holding", .value = VALUE_SWITCH},
	{.path = SYSFS "free_held", .value = VALUE_GO},
	{.path = PARAMETERS "limbo_wait_ms", .value = VALUE_MS},
	{.path = PARAMETERS "keep_ms", .value = VALUE_MS},
};

#define KNOBS (sizeof(knobs) / sizeof(knobs[0]))

static void set(const struct knob *knob, __u64 value)
{
	char text[32];
	int ret;

	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	ret = text_write(knob->path, text);
	if (ret)
		report(CHECK_ERRNO, "writing %s to %s: %s", text, knob->path, strerror(-ret));
}

static void set_limit(const struct knob *knob, __u64 max_bytes)
{
	bool raises = (long long)max_bytes > attr_read("max_bytes");

	if (raises)
		audit_bound_raise(max_bytes);
	set(knob, max_bytes);
	if (!raises)
		audit_bound_lower(max_bytes);
}

/* Reads to its end what tells who holds what, while blocks come and go. */
static void look_around(__u64 *rng)
{
	const struct worker_shared *w = &shared->workers[below(rng, shared->options.workers)];
	char folder[64], path[400], text[4096];
	struct dirent *e;
	FILE *holders;
	DIR *dir;

	holders = fopen("/sys/kernel/debug/binpool/holders", "re");
	while (holders && fgets(text, sizeof(text), holders))
		;
	if (holders)
		fclose(holders);
	snprintf(folder, sizeof(folder), "/proc/%d/fdinfo", w->pid);
	dir = opendir(folder);
	while (dir && (e = readdir(dir))) {
		snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
		text_read(path, text, sizeof(text));
	}
	if (dir)
		closedir(dir);
}

void admin_start(void)
{
	for (size_t i = 0; i < KNOBS; i++) {
		struct knob *knob = &knobs[i];

		knob->known = knob->value == VALUE_GO ||
			      text_read(knob->path, knob->before, sizeof(knob->before)) > 0;
	}
	audit_bound_raise((__u64)attr_read("max_bytes"));
	set_limit(&knobs[0], shared->options.max_bytes);
}

/* One write. */
void admin_step(__u64 *rng)
{
	const struct knob *knob = &knobs[below(rng, KNOBS)];
	__u64 max = shared->options.max_bytes;

	if (one_in(rng, 4))
		look_around(rng);
	if (!knob->known)
		return;
	switch (knob->value) {
	case VALUE_LIMIT:
		set_limit(knob, one_in(rng, 3) ? max / 4 + below(rng, max - max / 4) : max);
		break;
	case VALUE_PART:
		set(knob, one_in(rng, 3) ? shared->frame + below(rng, max / 4 - shared->frame)
					 : strtoull(knob->before, NULL, 0));
		break;
	case VALUE_SWITCH:
		set(knob, !one_in(rng, 4));
		break;
	case VALUE_GO:
		set(knob, 1);
		break;
	case VALUE_MS:
		set(knob, random_size(rng, 500));
		break;
	}
}

void admin_end(void)
{
	for (size_t i = 0; i < KNOBS; i++) {
		if (knobs[i].known && knobs[i].value != VALUE_GO)
			text_write(knobs[i].path, knobs[i].before);
	}
}
