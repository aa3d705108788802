// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A registrar: a driver that must know the memory of buffers before it can use
 * them. It is told of extents, few and large, and never of buffers.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <binpool.h>

/* What stands for the driver here takes so many ranges. */
struct driver {
	unsigned int ranges, ranges_max;
};

static int attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	struct driver *driver = ctx;

	if (driver->ranges == driver->ranges_max) {
		binpool_set_last_error("the driver takes no more ranges");
		return -ENOSPC;
	}
	driver->ranges++;
	printf("registered %" PRIu64 " bytes\n", extent->bytes);
	*cookie = extent->ptr; /* whatever detach needs to know */
	return 0;
}

/* The memory is still there, and goes when this returns. */
static void detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	struct driver *driver = ctx;

	(void)cookie;
	driver->ranges--;
	printf("unregistered %" PRIu64 " bytes\n", extent->bytes);
}

int main(void)
{
	struct driver driver = {.ranges_max = 2};
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.name = "driver",
		.ctx = &driver,
		.attach = attach,
		.detach = detach,
	};
	struct binpool *pool;
	uint64_t id;
	void *p[3];

	if (binpool_create(&pool, NULL) || binpool_add_registrar(pool, &ops, &id)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	/* Each of these needs an extent of its own; the third is refused. */
	for (int i = 0; i < 3; i++)
		p[i] = binpool_alloc(pool, (size_t)8 << 20);
	printf("%s\n", binpool_last_error());
	if (!p[0] || !p[1] || p[2])
		return 1;
	/* What fits into memory that is known costs no call. */
	if (binpool_free(pool, p[1]) || binpool_free(pool, binpool_alloc(pool, 8u << 20)) ||
	    driver.ranges != 2)
		return 1;
	if (binpool_remove_registrar(pool, id) || driver.ranges)
		return 1;
	return binpool_free(pool, p[0]) || binpool_destroy(pool);
}
