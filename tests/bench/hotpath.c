// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Times of allocating and freeing, of libbinpool or of the malloc that this process has
 * (LD_PRELOAD another): prints a line "key value" for each. Memory is not touched.
 *
 *   hotpath [--peer binpool|malloc] [--cache auto|BYTES] [ROW...]
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <binpool.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

#define ROUNDS	     15
#define MIXED_ROUNDS 101

static struct binpool *pools[2];
static void *(*get)(int pool, size_t bytes);
static void (*put)(int pool, void *ptr);

static void *binpool_get(int pool, size_t bytes)
{
	return binpool_alloc(pools[pool], bytes);
}

static void binpool_put(int pool, void *ptr)
{
	binpool_free(pools[pool], ptr);
}

static void *malloc_get(int pool, size_t bytes)
{
	(void)pool;
	return malloc(bytes);
}

static void malloc_put(int pool, void *ptr)
{
	(void)pool;
	free(ptr);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t rng_next(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void print_row(const char *key, double *ns, int n)
{
	qsort(ns, (size_t)n, sizeof(*ns), compare);
	printf("%s_ns %.2f\n%s_min_ns %.2f\n", key, ns[n / 2], key, ns[0]);
}

static void pair(const char *key, size_t bytes, int n_pools)
{
	const int n = 200000;
	double ns[ROUNDS];

	for (int r = 0; r < ROUNDS; r++) {
		uint64_t start = now_ns();

		for (int i = 0; i < n; i++) {
			int pool = n_pools > 1 ? i & 1 : 0;
			void *p = get(pool, bytes);

			__asm__ volatile("" : "+r"(p) : : "memory");
			put(pool, p);
		}
		ns[r] = (double)(now_ns() - start) / n;
	}
	print_row(key, ns, ROUNDS);
}

/* Sizes of 4 KiB to 16 MiB, their logarithms evenly spread; 64 live. */
#define LIVE  64
#define SIZES 8192

static size_t sizes[SIZES];
static uint8_t slots[SIZES];
static uint64_t live_peak;

static void mixed_prepare(void)
{
	uint64_t state = 1, live = 0;
	size_t in[LIVE] = {0};

	for (int i = 0; i < SIZES; i++) {
		double l = 12 + 12 * ((double)(rng_next(&state) >> 11) / (double)(1ull << 53));
		int whole = (int)l;
		/* 2^l, linear between powers of two is close enough to even. */
		sizes[i] = (size_t)((double)(1ull << whole) * (1 + (l - whole)));
		slots[i] = (uint8_t)(rng_next(&state) % LIVE);
		live += sizes[i] - in[slots[i]];
		in[slots[i]] = sizes[i];
		live_peak = live > live_peak ? live : live_peak;
	}
}

static void mixed_round(void *live[LIVE])
{
	for (int i = 0; i < SIZES; i++) {
		int s = slots[i];

		if (live[s])
			put(0, live[s]);
		live[s] = get(0, sizes[i]);
		if (!live[s])
			abort();
	}
}

/* What the buffers of one round hold, over what was asked for. */
static double usable_over_asked(void)
{
	uint64_t usable = 0, asked = 0;

	for (int i = 0; i < SIZES; i++) {
		struct binpool_buf buf = {.size = sizeof(buf)};
		void *p = get(0, sizes[i]);

		binpool_buf_info(pools[0], p, &buf);
		usable += buf.capacity;
		asked += sizes[i];
		put(0, p);
	}
	return (double)usable / (double)asked;
}

static void mixed(void)
{
	void *live[LIVE] = {0};
	double ns[MIXED_ROUNDS];

	mixed_round(live);
	for (int r = 0; r < MIXED_ROUNDS; r++) {
		uint64_t start = now_ns();

		mixed_round(live);
		ns[r] = (double)(now_ns() - start) / SIZES;
	}
	print_row("mixed", ns, MIXED_ROUNDS);
	for (int s = 0; s < LIVE; s++)
		put(0, live[s]);
	if (pools[0]) {
		struct binpool_stats st = {.size = sizeof(st)};

		binpool_get_stats(pools[0], &st);
		printf("reserved_over_peak %.3f\n",
		       (double)st.reserved_max_bytes / (double)live_peak);
		printf("extents %llu\n", (unsigned long long)st.extents);
		printf("usable_over_asked %.3f\n", usable_over_asked());
		printf("reuse_share %.3f\n", (double)st.reuses / (double)(st.reuses + st.allocs));
	}
}

static pthread_barrier_t warm;

static void *mixed_thread(void *arg)
{
	void *live[LIVE] = {0};
	uint64_t start;

	mixed_round(live);
	pthread_barrier_wait(&warm);
	start = now_ns();
	for (int r = 0; r < MIXED_ROUNDS; r++)
		mixed_round(live);
	*(double *)arg = (double)(now_ns() - start) / SIZES / MIXED_ROUNDS;
	for (int s = 0; s < LIVE; s++)
		put(0, live[s]);
	return NULL;
}

static void mixed_2t(void)
{
	pthread_t t[2];
	double ns[2];

	pthread_barrier_init(&warm, NULL, 2);
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, mixed_thread, &ns[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	printf("mixed_2t_ns %.2f\n", (ns[0] + ns[1]) / 2);
}

/* One thread allocates, another frees: a ring of pointers between them. */
#define RING	 256
#define HANDOFFS 2000000

static struct {
	void *items[RING];
	uint64_t head __attribute__((aligned(64)));
	uint64_t tail __attribute__((aligned(64)));
} ring;

static void *handoff_free(void *arg)
{
	uint64_t head = 0;

	(void)arg;
	for (uint64_t i = 0; i < HANDOFFS; i++) {
		while (i == head)
			head = __atomic_load_n(&ring.head, __ATOMIC_ACQUIRE);
		put(0, ring.items[i % RING]);
		__atomic_store_n(&ring.tail, i + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void handoff(void)
{
	uint64_t start = now_ns(), tail = 0;
	pthread_t t;

	pthread_create(&t, NULL, handoff_free, NULL);
	for (uint64_t i = 0; i < HANDOFFS; i++) {
		void *p = get(0, 64 * KIB);

		while (i - tail == RING)
			tail = __atomic_load_n(&ring.tail, __ATOMIC_ACQUIRE);
		ring.items[i % RING] = p;
		__atomic_store_n(&ring.head, i + 1, __ATOMIC_RELEASE);
	}
	pthread_join(t, NULL);
	printf("handoff_ns %.2f\n", (double)(now_ns() - start) / HANDOFFS);
}

static void *nothing(void *arg)
{
	return arg;
}

int main(int argc, char **argv)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	bool peer_malloc = false;
	const char *only = NULL;
	pthread_t t;

	o.provider = BINPOOL_PROVIDER_THP;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--peer") && i + 1 < argc)
			peer_malloc = !strcmp(argv[++i], "malloc");
		else if (!strcmp(argv[i], "--cache") && i + 1 < argc)
			o.cache_bytes = strtoull(argv[++i], NULL, 0);
		else
			only = argv[i];
	}
	get = peer_malloc ? malloc_get : binpool_get;
	put = peer_malloc ? malloc_put : binpool_put;
	for (int i = 0; !peer_malloc && i < 2; i++) {
		int err = binpool_create(&pools[i], &o);

		if (err) {
			fprintf(stderr, "hotpath: %s\n", binpool_last_error());
			return 1;
		}
	}
	/* A process with threads: libc drops its short cuts for one thread. */
	pthread_create(&t, NULL, nothing, NULL);
	pthread_join(t, NULL);
	mixed_prepare();
#define ROW(name, call)                                                                            \
	do {                                                                                       \
		if (!only || !strcmp(only, name))                                                  \
			call;                                                                      \
	} while (0)
	ROW("pair_64k", pair("pair_64k", 64 * KIB, 1));
	ROW("pair_1m", pair("pair_1m", MIB, 1));
	ROW("pair_16m", pair("pair_16m", 16 * MIB, 1));
	ROW("pair_two_pools", pair("pair_two_pools", 64 * KIB, 2));
	ROW("handoff", handoff());
	ROW("mixed", mixed());
	ROW("mixed_2t", mixed_2t());
	for (int i = 0; !peer_malloc && i < 2; i++)
		binpool_destroy(pools[i]);
	return 0;
}
