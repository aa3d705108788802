// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A program that gives back what it holds when memory is short: by itself, or by the
 * pool's own thread.
 *
 *	cc pressure.c $(pkg-config --cflags --libs binpool)
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <binpool.h>

#define BYTES ((size_t)8 << 20)

int main(void)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct pollfd pressure = {.events = POLLPRI};
	struct binpool *pool;
	char *buffer;

	/* With this it would need nothing of what follows. */
	o.flags |= BINPOOL_POOL_REAPER;
	o.extent_idle_ms = 60000;
	if (binpool_create(&pool, &o)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	buffer = binpool_alloc(pool, BYTES);
	if (!buffer) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	memset(buffer, 1, BYTES);
	binpool_free(pool, buffer);

	pressure.fd = binpool_pressure_fd();
	if (pressure.fd < 0)
		printf("%s\n", binpool_last_error());
	/* A program of its own has it among the descriptors of its main loop. */
	if (pressure.fd >= 0 && poll(&pressure, 1, 0) > 0 && pressure.revents & POLLPRI)
		printf("memory is short: %lld bytes went back\n",
		       (long long)binpool_trim(pool, 0, 0));
	else
		printf("memory is not short\n");
	if (pressure.fd >= 0)
		close(pressure.fd);
	return binpool_destroy(pool) != 0;
}
