// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Which provider a pool gets: the one asked for, or the first of a ladder that
 * gives memory here. Owns provider->reason, which is fixed after create.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"

/* Best first: contiguous and kept warm; huge for sure; huge if the kernel can. */
static const struct provider_ops *const ladder[] = {
	&provider_device,
	&provider_hugetlb,
	&provider_thp,
};

EXPORT const char *binpool_provider_name(uint32_t provider)
{
	static const char *const names[] = {
		[BINPOOL_PROVIDER_AUTO] = "auto",	    [BINPOOL_PROVIDER_DEVICE] = "device",
		[BINPOOL_PROVIDER_HUGETLB] = "hugetlb",	    [BINPOOL_PROVIDER_THP] = "thp",
		[BINPOOL_PROVIDER_ALLOCATOR] = "allocator",
	};

	return provider < ARRAY_SIZE(names) ? names[provider] : NULL;
}

static void PRINTF(2, 3) reason(struct provider *p, const char *fmt, ...)
{
	size_t len = strlen(p->reason);
	va_list args;

	va_start(args, fmt);
	vsnprintf(p->reason + len, sizeof(p->reason) - len, fmt, args);
	va_end(args);
}

/* Whether it gives memory now, by taking as little as a pool begins with. */
static int try_out(struct provider *p)
{
	struct extent e = {
		.bytes = round_up(EXTENT_BYTES_MIN, p->unit),
		.room = round_up(EXTENT_BYTES_MIN, p->unit),
		.fd = -1,
		.node = -1,
	};
	int err = p->ops->get(p, &e, p->unit);

	return err ? err : p->ops->put(p, &e);
}

static int take(struct provider *p, const struct provider_ops *ops)
{
	int err;

	p->ops = ops;
	err = ops->open(p);
	if (err)
		p->ops = NULL;
	return err;
}

/* Best first; but what would run dry before the pool reaches its limit is left alone. */
static int climb(struct provider *p, uint64_t need)
{
	int err = -ENODEV;

	for (size_t i = 0; i < ARRAY_SIZE(ladder); i++) {
		err = take(p, ladder[i]);
		if (!err) {
			if (need && p->ops->enough)
				err = p->ops->enough(p, need);
			if (!err)
				err = try_out(p);
			if (!err) {
				reason(p, "%s%s was taken", *p->reason ? "; " : "",
				       binpool_provider_name(ladder[i]->id));
				return 0;
			}
			if (p->ops->close)
				p->ops->close(p);
			p->ops = NULL;
		}
		reason(p, "%s%s", *p->reason ? "; " : "", binpool_last_error());
		if (p->strict)
			return explain(err, "strict: no provider but the best one will do: %s",
				       p->reason);
	}
	return explain(err, "no provider gives memory here: %s", p->reason);
}

int provider_choose(struct provider *p, uint32_t wanted, uint64_t need)
{
	int err;

	if (wanted == BINPOOL_PROVIDER_AUTO)
		return climb(p, need);
	if (wanted == BINPOOL_PROVIDER_ALLOCATOR) {
		err = take(p, &provider_allocator);
	} else {
		err = -EINVAL;
		for (size_t i = 0; i < ARRAY_SIZE(ladder); i++)
			if (ladder[i]->id == wanted)
				err = take(p, ladder[i]);
	}
	if (!err)
		reason(p, "%s was asked for", binpool_provider_name(wanted));
	return err;
}
