/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the parts of `binpool selftest` share: consumers of pinned memory, as the test sees
 * them. Main thread only.
 */
#ifndef BINPOOL_CLI_SELFTEST_H
#define BINPOOL_CLI_SELFTEST_H

#include <stdint.h>

#include <binpool.h>

/* Bytes per ns, which is GB/s; medians. */
struct rates {
	double to_device, to_host;
};

struct consumer {
	const char *name;	/* "CUDA" */
	const char *other_name; /* of the driver's own pinned memory */
	char device[128];
	int is_cpu;	      /* its rates say nothing of pinned memory */
	unsigned char *other; /* that memory */
	void *own;
	struct rates other_rates, pool_rates;
};

/*
 * Those that return an int and name no pool return a CLI_* status, said on stderr; copies return
 * NULL or what is wrong.
 */
struct consumer_ops {
	/* Finds a device and gets @bytes of its memory. close follows, whatever it returns. */
	int (*open)(struct consumer *c, const char *which, uint64_t bytes);
	void (*close)(struct consumer *c);
	/* 0 or -errno, explained. */
	int (*attach)(struct consumer *c, struct binpool *pool, uint64_t *id);
	/* What the runtime says of an attached pool's buffer is told, and has to be good. */
	int (*look)(struct consumer *c, struct binpool *pool, const unsigned char *buffer,
		    uint64_t bytes);
	const char *(*write)(struct consumer *c, const unsigned char *from, uint64_t bytes);
	const char *(*read)(struct consumer *c, unsigned char *to, uint64_t bytes);
};

extern const struct consumer_ops consumer_cuda, consumer_opencl;

#endif /* BINPOOL_CLI_SELFTEST_H */
