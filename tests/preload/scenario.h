/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Scenarios: what a program does under LD_PRELOAD, each in a process of its own. A scenario that
 * fails says where, and ends.
 */
#ifndef SCENARIO_H
#define SCENARIO_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake.h"

#define KIB 1024u
#define MIB (1024u * KIB)

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);                     \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* The plugin of that name, loaded as PyTorch is. */
const struct plugin *plugin_load(const char *name);
/* The driver's state; loads it. */
struct fake *driver_state(void);
/* Its functions by the same name, which the driver has to be loaded for. */
int copy_later(void *to, const void *from, size_t bytes);
unsigned long regions(void);
bool pinned(const void *ptr, size_t bytes);
void *make_context(int device);
void reset_device(int device);
/* Calls of all runtimes' allocating functions. */
unsigned long runtime_allocs(void);
/* Whether an object of that name is mapped. */
bool is_mapped(const char *name);
/* Memory that the pool served, checked to be so. */
void *served(const struct plugin *cuda, size_t bytes, unsigned int flags);

/* basic.c */
void scenario_served(void);
void scenario_passed(void);
void scenario_flags(void);
void scenario_wrong(void);
void scenario_driver(void);
void scenario_no_context(void);
void scenario_two_runtimes(void);
void scenario_bare(void);
void scenario_real_only(void);
void scenario_limit(void);
void scenario_looked_up(void);
void scenario_looked_up_by_name(void);
void scenario_not_looked_up(void);
void scenario_next(void);
void scenario_nested(void);
void scenario_too_much(void);
void scenario_pieces(void);
void scenario_untouched(void);
void scenario_no_driver(void);

/* life.c */
void scenario_reuse(void);
void scenario_reuse_control(void);
void scenario_all_contexts(void);
void scenario_not_told(void);
void scenario_sync_before(void);
void scenario_capture(void);
void scenario_sync_fails(void);
void scenario_refused(void);
void scenario_reset(void);
void scenario_fork(void);
void scenario_threads(void);
void scenario_at_exit(void);
void scenario_many(void);

#endif /* SCENARIO_H */
