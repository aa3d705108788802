// SPDX-License-Identifier: GPL-2.0
/*
 * How module parameters, and what is written to sysfs, are read and checked; see
 * param.h. The core's lock on parameters keeps writers apart, readers take what is
 * there. Owns the pace of what is told of refusals, which has a lock of its own.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>
#include <linux/kstrtox.h>
#include <linux/module.h>
#include <linux/ratelimit.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "internal.h"
#include "param.h"

/* As much of a refused text as goes into the log. */
#define SHOWN_MAX 40

static int shown_len(const char *text)
{
	return min_t(size_t, strcspn(text, "\n"), SHOWN_MAX);
}

/* A line in the log for each, but not for a script that tries again and again. */
DEFINE_RATELIMIT_STATE(refusals, DEFAULT_RATELIMIT_INTERVAL, 50);

static bool may_be(u64 value, u64 min, u64 max, bool or_zero)
{
	return (or_zero && !value) || (value >= min && value <= max);
}

static const char *unless_zero(u64 min, bool or_zero)
{
	return or_zero && min ? "0 or " : "";
}

static int number_set(const char *text, const struct kernel_param *kp)
{
	const struct param_number *p = kp->arg;
	u64 value, max = p->max;

	if (max == PARAM_MACHINE_BYTES)
		max = limit_machine_bytes(NUMA_NO_NODE);
	if (kstrtou64(text, 0, &value) || !may_be(value, p->min, max, p->or_zero)) {
		if (__ratelimit(&refusals))
			pr_err("%s=%*pE is not %sa number from %llu to %llu\n", kp->name,
			       shown_len(text), text, unless_zero(p->min, p->or_zero), p->min, max);
		return -EINVAL;
	}
	if (p->size == sizeof(unsigned int))
		WRITE_ONCE(*(unsigned int *)p->value, value);
	else
		WRITE_ONCE(*(unsigned long long *)p->value, value);
	return 0;
}

static int number_get(char *buf, const struct kernel_param *kp)
{
	const struct param_number *p = kp->arg;

	if (p->size == sizeof(unsigned int))
		return sysfs_emit(buf, "%u\n", *(unsigned int *)p->value);
	return sysfs_emit(buf, "%llu\n", *(unsigned long long *)p->value);
}

const struct kernel_param_ops param_number_ops = {
	.set = number_set,
	.get = number_get,
};

/* Stricter than the kernel's own, which looks at the first letter only. */
static int flag_set(const char *text, const struct kernel_param *kp)
{
	bool value;

	if (strcspn(text, "\n") != 1 || (text[1] && text[2]) || !strchr("YyNn10", *text) ||
	    kstrtobool(text, &value)) {
		if (__ratelimit(&refusals))
			pr_err("%s=%*pE is not Y or N\n", kp->name, shown_len(text), text);
		return -EINVAL;
	}
	WRITE_ONCE(*(bool *)kp->arg, value);
	return 0;
}

const struct kernel_param_ops param_flag_ops = {
	.set = flag_set,
	.get = param_get_bool,
};

/*
 * What is written to the file @knob of sysfs, which is @now: a number from @min to @max,
 * or 0 with @or_zero. 0, -EINVAL, or -ERANGE if no u64 has it.
 */
int knob_number(const char *knob, const char *text, u64 min, u64 max, bool or_zero, u64 now,
		u64 *value)
{
	int err = kstrtou64(text, 0, value);

	if (!err && !may_be(*value, min, max, or_zero))
		err = -EINVAL;
	if (err && __ratelimit(&refusals))
		pr_notice("%s=%*pE is not %sa number from %llu to %llu; it stays %llu\n", knob,
			  shown_len(text), text, unless_zero(min, or_zero), min, max, now);
	return err;
}

/* The same for 0 and 1, of which only @yes may be written: a mistyped number is no yes. */
int knob_flag(const char *knob, const char *text, bool only_yes, bool *on)
{
	u8 value;
	int err = kstrtou8(text, 10, &value);

	if (!err && (value > 1 || (only_yes && !value)))
		err = -EINVAL;
	if (err && __ratelimit(&refusals))
		pr_notice("%s=%*pE is not %s1; nothing is done\n", knob, shown_len(text), text,
			  only_yes ? "" : "0 or ");
	*on = !err && value;
	return err;
}
