// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * One thread takes buffers, another returns them; the end waits for the last.
 *
 *	cc threads.c -pthread $(pkg-config --cflags --libs binpool)
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <binpool.h>

#define DEPTH	8
#define BUFFERS 10000
#define BYTES	((size_t)16 << 10)

struct queue {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	char *buffer[DEPTH];
	size_t first, count;
	struct binpool *pool;
	size_t wrong;
};

static void push(struct queue *q, char *buffer)
{
	pthread_mutex_lock(&q->lock);
	while (q->count == DEPTH)
		pthread_cond_wait(&q->changed, &q->lock);
	q->buffer[(q->first + q->count++) % DEPTH] = buffer;
	pthread_cond_broadcast(&q->changed);
	pthread_mutex_unlock(&q->lock);
}

static char *pop(struct queue *q)
{
	char *buffer;

	pthread_mutex_lock(&q->lock);
	while (!q->count)
		pthread_cond_wait(&q->changed, &q->lock);
	buffer = q->buffer[q->first];
	q->first = (q->first + 1) % DEPTH;
	q->count--;
	pthread_cond_broadcast(&q->changed);
	pthread_mutex_unlock(&q->lock);
	return buffer;
}

static void *consume(void *ctx)
{
	struct queue *q = ctx;

	for (size_t i = 0; i < BUFFERS; i++) {
		char *buffer = pop(q);

		q->wrong += buffer[0] != (char)i || buffer[BYTES - 1] != (char)i;
		q->wrong += binpool_free(q->pool, buffer) != 0;
	}
	return NULL;
}

int main(void)
{
	struct queue q = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
	struct binpool_stats stats = {.size = sizeof(stats)};
	pthread_t consumer;

	if (binpool_create(&q.pool, NULL)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	if (pthread_create(&consumer, NULL, consume, &q))
		return 1;
	for (size_t i = 0; i < BUFFERS; i++) {
		char *buffer = binpool_alloc(q.pool, BYTES);

		if (!buffer) {
			fprintf(stderr, "%s\n", binpool_last_error());
			return 1;
		}
		memset(buffer, (char)i, BYTES);
		push(&q, buffer);
	}
	pthread_join(consumer, NULL);
	binpool_get_stats(q.pool, &stats);
	printf("%d buffers went from one thread to the other, %zu wrong; the pool had %llu bytes\n",
	       BUFFERS, q.wrong, (unsigned long long)stats.reserved_max_bytes);
	/* Where threads may still have buffers this waits for them; here none has. */
	return binpool_destroy_wait(q.pool, 1000) || q.wrong;
}
