// SPDX-License-Identifier: GPL-2.0
/*
 * How module parameters are read, checked and shown; see param.h. Owns nothing: the
 * core's lock on parameters keeps writers apart, readers take what is there.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>
#include <linux/kstrtox.h>
#include <linux/module.h>
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

static int number_set(const char *text, const struct kernel_param *kp)
{
	const struct param_number *p = kp->arg;
	u64 value, max = p->max;

	if (max == PARAM_MACHINE_BYTES)
		max = limit_machine_bytes(NUMA_NO_NODE);
	if (kstrtou64(text, 0, &value) ||
	    (!(p->or_zero && !value) && (value < p->min || value > max))) {
		pr_err("%s=%*pE is not %sa number from %llu to %llu\n", kp->name, shown_len(text),
		       text, p->or_zero && p->min ? "0 or " : "", p->min, max);
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
