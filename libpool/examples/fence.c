// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A device that reads buffers after their user is through with them: they are freed at
 * once, and come back when the device's counter says so. The pool is too small for all
 * that is in flight, so the producer is held up by it, and never refused.
 *
 *	cc fence.c -pthread $(pkg-config --cflags --libs binpool)
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <binpool.h>

#define BYTES	((size_t)1 << 20)
#define POOL	((size_t)8 << 20)
#define BUFFERS 200

/* The device: a thread with a queue. */
struct device {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	const char *queue[BUFFERS];
	uint64_t submitted;
	uint64_t finished; /* so many of them; what the fences look at */
	int wrong;
};

static void *run_device(void *arg)
{
	struct device *d = arg;

	for (int i = 0; i < BUFFERS; i++) {
		pthread_mutex_lock(&d->lock);
		while (d->submitted == d->finished)
			pthread_cond_wait(&d->changed, &d->lock);
		pthread_mutex_unlock(&d->lock);
		for (size_t at = 0; at < BYTES; at++)
			d->wrong += d->queue[i][at] != (char)i;
		__atomic_add_fetch(&d->finished, 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

int main(void)
{
	struct device d = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool_alloc_opts want = {
		.size = sizeof(want),
		.bytes = BYTES,
		.flags = BINPOOL_BUF_WAIT,
		.wait_ms = 60000,
	};
	struct binpool_fence fence = {
		.size = sizeof(fence),
		.kind = BINPOOL_FENCE_COUNTER,
		.counter = &d.finished,
	};
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct binpool *pool;
	pthread_t thread;

	o.max_bytes = POOL;
	if (binpool_create(&pool, &o) || pthread_create(&thread, NULL, run_device, &d)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	for (int i = 0; i < BUFFERS; i++) {
		if (binpool_alloc_ex(pool, &want, &buf)) {
			fprintf(stderr, "%s\n", binpool_last_error());
			return 1;
		}
		memset(buf.ptr, i, BYTES);
		pthread_mutex_lock(&d.lock);
		d.queue[i] = buf.ptr;
		fence.target = ++d.submitted;
		pthread_cond_signal(&d.changed);
		pthread_mutex_unlock(&d.lock);
		binpool_free_after(pool, buf.ptr, &fence, 1);
	}
	printf("%lld of %d buffers are still in flight\n", (long long)binpool_poll(pool), BUFFERS);
	if (binpool_destroy_wait(pool, 60000)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	pthread_join(thread, NULL);
	printf("%d bytes were not what they should be\n", d.wrong);
	return d.wrong != 0;
}
