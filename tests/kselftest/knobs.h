/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The module's knobs as this program found them. A test that fails leaves them anywhere,
 * and one that runs out of time does not even get to its teardown: so each fixture whose
 * tests turn any restores all of them before and after, and so does the program's end.
 * Owns the values, which do not change after the program's start.
 */
#ifndef BINPOOL_TEST_KNOBS_H
#define BINPOOL_TEST_KNOBS_H

#include "device.h"

/* In the order in which they are restored: the reserve has to fit into max_bytes. */
static struct knob {
	const char *path;
	char found[32]; /* "" if it could not be read */
} knob_list[] = {
	{.path = SYSFS "max_bytes"},
	{.path = SYSFS "user_max_bytes"},
	{.path = SYSFS "reserve_bytes"},
	{.path = SYSFS "holding"},
	{.path = "/sys/module/binpool/parameters/floor_bytes"},
	{.path = "/sys/module/binpool/parameters/keep_ms"},
	{.path = "/sys/module/binpool/parameters/limbo_wait_ms"},
	{.path = "/sys/module/binpool/parameters/limbo_max_ms"},
	{.path = "/sys/module/binpool/parameters/memlock"},
	{.path = "/sys/module/binpool/parameters/contig_ms"},
	{.path = "/sys/module/binpool/parameters/contig_duty"},
	{.path = "/sys/module/binpool/parameters/contig_scan_61"},
};

static pid_t knobs_finder;

static inline bool knob_moved(const struct knob *k)
{
	char now[sizeof(k->found)];

	return k->found[0] && text_read(k->path, now, sizeof(now)) > 0 && strcmp(now, k->found);
}

/* The path of the first knob that is not as it was found, or "nothing". */
static inline const char *knobs_moved(void)
{
	for (size_t i = 0; i < sizeof(knob_list) / sizeof(knob_list[0]); i++) {
		if (knob_moved(&knob_list[i]))
			return knob_list[i].path;
	}
	return "nothing";
}

static inline void knobs_restore(void)
{
	for (size_t i = 0; i < sizeof(knob_list) / sizeof(knob_list[0]); i++) {
		if (knob_moved(&knob_list[i]))
			text_write(knob_list[i].path, knob_list[i].found);
	}
}

static void __attribute__((constructor)) knobs_find(void)
{
	knobs_finder = getpid();
	for (size_t i = 0; i < sizeof(knob_list) / sizeof(knob_list[0]); i++) {
		struct knob *k = &knob_list[i];

		if (text_read(k->path, k->found, sizeof(k->found)) < 0)
			k->found[0] = '\0';
	}
}

static void __attribute__((destructor)) knobs_leave(void)
{
	/* A child of a test may end in the middle of it. */
	if (getpid() == knobs_finder)
		knobs_restore();
}

#endif /* BINPOOL_TEST_KNOBS_H */
