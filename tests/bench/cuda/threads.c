// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * threads KIND THREADS MS: all threads take and give back buffers of 64 KiB to 4 MiB, some of which
 * each has at once; first as long for nothing, until there is memory for all.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

#define LIVE	8
#define SMALL	(64 * KIB)
#define SIZES	7 /* doubled as often */
#define THREADS 256

static struct memory memory;
static pthread_barrier_t begin;
static double duration;

struct worker {
	pthread_t thread;
	uint64_t id;
	size_t pairs;
	double took;
	size_t wrong;
};

struct buffer {
	uint64_t *ptr;
	size_t bytes;
};

static uint64_t random_of(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static size_t last_word(const struct buffer *b)
{
	return b->bytes / sizeof(*b->ptr) - 1;
}

static void take(struct worker *w, struct buffer *b, uint64_t *state)
{
	b->bytes = SMALL << random_of(state) % SIZES;
	b->ptr = memory_get(&memory, b->bytes);
	/* Who else had it at the same time would write his. */
	b->ptr[0] = w->id;
	b->ptr[last_word(b)] = w->id;
}

static void give(struct worker *w, struct buffer *b)
{
	w->wrong += b->ptr[0] != w->id || b->ptr[last_word(b)] != w->id;
	memory_put(&memory, b->ptr, b->bytes);
}

static void run(struct worker *w, struct buffer *live, uint64_t *state)
{
	double start = now_ms();

	w->pairs = 0;
	do {
		for (int i = 0; i < LIVE; i++, w->pairs++) {
			give(w, &live[i]);
			take(w, &live[i], state);
		}
		w->took = now_ms() - start;
	} while (w->took < duration);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	uint64_t state = w->id * 0x9e3779b97f4a7c15u;
	struct buffer live[LIVE];

	CU(CtxSetCurrent(context));
	for (int i = 0; i < LIVE; i++)
		take(w, &live[i], &state);
	if (memory_is_pinned(&memory) && !cuda_is_pinned(live[0].ptr))
		end(1, "the driver does not know the memory as pinned");
	run(w, live, &state);
	pthread_barrier_wait(&begin);
	run(w, live, &state);
	for (int i = 0; i < LIVE; i++)
		give(w, &live[i]);
	return NULL;
}

int threads_main(char **args)
{
	static struct worker workers[THREADS];
	size_t n, pairs = 0, wrong = 0;
	double took = 0;

	if (!args[0] || !args[1] || !args[2])
		end(1, "threads KIND THREADS MS");
	n = bytes_of(args[1]);
	duration = (double)bytes_of(args[2]);
	if (!n || n > THREADS)
		end(1, "1 to %d threads", THREADS);
	cuda_open();
	memory_open(&memory, args[0]);
	pthread_barrier_init(&begin, NULL, (unsigned int)n);
	for (size_t i = 0; i < n; i++) {
		workers[i].id = i + 1;
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			end(1, "no thread");
	}
	for (size_t i = 0; i < n; i++) {
		pthread_join(workers[i].thread, NULL);
		pairs += workers[i].pairs;
		took += workers[i].took;
		wrong += workers[i].wrong;
	}
	if (wrong)
		end(1, "%s: %zu buffers were somebody else's, too", args[0], wrong);
	printf("pair_us %.4f\n", took * 1e3 / (double)pairs);
	return 0;
}
