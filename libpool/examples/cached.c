// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A lock that is held for what is quick and let go for what is not, as an
 * interpreter's: the thread's cache is asked first.
 *
 *	cc cached.c -pthread $(pkg-config --cflags --libs binpool)
 */
#include <pthread.h>
#include <stdio.h>

#include <binpool.h>

static pthread_mutex_t interpreter = PTHREAD_MUTEX_INITIALIZER;
static unsigned let_go;

static void *get(struct binpool *pool, size_t size)
{
	void *ptr = binpool_alloc_cached(pool, size);

	if (!ptr) {
		let_go++;
		pthread_mutex_unlock(&interpreter);
		ptr = binpool_alloc(pool, size);
		pthread_mutex_lock(&interpreter);
	}
	return ptr;
}

static int put(struct binpool *pool, void *ptr)
{
	int err = binpool_free_cached(pool, ptr);

	if (err) {
		let_go++;
		pthread_mutex_unlock(&interpreter);
		err = binpool_free(pool, ptr);
		pthread_mutex_lock(&interpreter);
	}
	return err;
}

int main(void)
{
	struct binpool *pool;
	int err = 0;

	if (binpool_create(&pool, NULL)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	pthread_mutex_lock(&interpreter);
	for (size_t i = 0; i < 10000 && !err; i++) {
		void *buffer = get(pool, 64 << 10);

		if (!buffer) {
			fprintf(stderr, "%s\n", binpool_last_error());
			return 1;
		}
		err = put(pool, buffer);
	}
	pthread_mutex_unlock(&interpreter);
	printf("10000 buffers, the lock let go %u times\n", let_go);
	return err || let_go > 100 || binpool_destroy(pool);
}
