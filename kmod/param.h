/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Module parameters and knobs in sysfs that say what they take: a value outside of the
 * range is refused, when the module is loaded and when it is written later, with a line
 * in the kernel log that names the parameter, what was given and what may be.
 */
#ifndef BINPOOL_PARAM_H
#define BINPOOL_PARAM_H

#include <linux/limits.h>
#include <linux/moduleparam.h>
#include <linux/ratelimit_types.h>
#include <linux/types.h>

/* As `max`: the machine's memory in bytes. */
#define PARAM_MACHINE_BYTES U64_MAX

struct param_number {
	void *value; /* unsigned int or unsigned long long */
	size_t size;
	u64 min;
	u64 max;
	bool or_zero; /* 0 may be given too: the default, or never */
};

/* Of what root has written; refused requests of others have a pace of their own. */
extern struct ratelimit_state refusals;

extern const struct kernel_param_ops param_number_ops;
extern const struct kernel_param_ops param_flag_ops;

/* An unsigned int from @lo to @hi. */
#define PARAM_UINT(name, lo, hi, perm, text)                                                       \
	static struct param_number name##_param = {                                                \
		.value = &(name),                                                                  \
		.size = sizeof(unsigned int),                                                      \
		.min = (lo),                                                                       \
		.max = (hi),                                                                       \
	};                                                                                         \
	param_check_uint(name, &(name));                                                           \
	module_param_cb(name, &param_number_ops, &name##_param, perm);                             \
	__MODULE_PARM_TYPE(name, "uint");                                                          \
	MODULE_PARM_DESC(name, text)

/* An unsigned long long: 0, or bytes from @lo to what the machine has. */
#define PARAM_BYTES(name, lo, perm, text)                                                          \
	static struct param_number name##_param = {                                                \
		.value = &(name),                                                                  \
		.size = sizeof(unsigned long long),                                                \
		.min = (lo),                                                                       \
		.max = PARAM_MACHINE_BYTES,                                                        \
		.or_zero = true,                                                                   \
	};                                                                                         \
	param_check_ullong(name, &(name));                                                         \
	module_param_cb(name, &param_number_ops, &name##_param, perm);                             \
	__MODULE_PARM_TYPE(name, "ullong");                                                        \
	MODULE_PARM_DESC(name, text)

/* A bool: exactly one of Y, y, 1, N, n, 0. */
#define PARAM_FLAG(name, perm, text)                                                               \
	param_check_bool(name, &(name));                                                           \
	module_param_cb(name, &param_flag_ops, &(name), perm);                                     \
	__MODULE_PARM_TYPE(name, "bool");                                                          \
	MODULE_PARM_DESC(name, text)

int knob_number(const char *knob, const char *text, u64 min, u64 max, bool or_zero, u64 now,
		u64 *value);
int knob_flag(const char *knob, const char *text, bool only_yes, bool *on);

#endif /* BINPOOL_PARAM_H */
