// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Which provider a pool gets: the one asked for, or the first of a ladder that
 * gives memory here. Owns provider->reason, which is fixed after create.
 */
#include <stdio.h>
#include <string.h>

#include "pool.h"

/* What a pool that was not given max_bytes may come to need: this part of memory. */
#define NEED_PART 16

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

/* Whether there is as much as the pool may come to need, @max_bytes if that was given. */
static int enough(const struct provider *p, uint64_t max_bytes)
{
	int err;

	if (!p->ops->enough)
		return 0;
	if (max_bytes)
		return p->ops->enough(p, max_bytes);
	err = p->ops->enough(p, physical_bytes() / NEED_PART);
	return err ? explain(err,
			     "%s; wanted is 1/%d of memory, or max_bytes= if that is given; "
			     "provider=%s takes what there is",
			     binpool_last_error(), NEED_PART, binpool_provider_name(p->ops->id))
		   : 0;
}

/* Best first; but what would run dry before the pool reaches its limit is left alone. */
static int climb(struct provider *p, uint64_t max_bytes)
{
	char why_not[sizeof(p->reason) - 32] = "";
	int err = -ENODEV;
	size_t len = 0;

	for (size_t i = 0; i < ARRAY_SIZE(ladder); i++) {
		err = take(p, ladder[i]);
		if (!err) {
			err = enough(p, max_bytes);
			if (!err)
				err = try_out(p);
			if (!err) {
				p->found = true;
				snprintf(p->reason, sizeof(p->reason), "%s was taken%s",
					 binpool_provider_name(ladder[i]->id), why_not);
				return 0;
			}
			if (p->ops->close)
				p->ops->close(p);
			p->ops = NULL;
		}
		if (p->strict)
			return explain(err, "strict: no provider but the best one will do: %s",
				       binpool_last_error());
		if (len < sizeof(why_not))
			len += (size_t)snprintf(why_not + len, sizeof(why_not) - len, "; %s",
						binpool_last_error());
	}
	return explain(err, "no provider gives memory here%s", why_not);
}

int provider_choose(struct provider *p, uint32_t wanted, uint64_t max_bytes)
{
	int err;

	if (wanted == BINPOOL_PROVIDER_AUTO)
		return climb(p, max_bytes);
	if (wanted == BINPOOL_PROVIDER_ALLOCATOR) {
		err = take(p, &provider_allocator);
	} else {
		err = -EINVAL;
		for (size_t i = 0; i < ARRAY_SIZE(ladder); i++)
			if (ladder[i]->id == wanted)
				err = take(p, ladder[i]);
	}
	if (!err)
		snprintf(p->reason, sizeof(p->reason), "%s was asked for",
			 binpool_provider_name(wanted));
	return err;
}
