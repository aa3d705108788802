// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Times of allocating and freeing, of libbinpool or of a peer: prints a line "key value"
 * for each. Memory is touched only in the row that says so.
 *
 *   hotpath [--peer binpool|malloc|FILE.so] [--cache BYTES] [--threads N] ROW
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <binpool.h>

#include "peer.h"

#define ROUNDS	     15
#define MIXED_ROUNDS 101
#define TOUCH_ROUNDS 3
#define THREADS_MAX  64

static const struct peer *peer = &peer_binpool;
static unsigned int threads = 2;

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

static double sort_for_median(double *ns, int n)
{
	qsort(ns, (size_t)n, sizeof(*ns), compare);
	return ns[n / 2];
}

static void print_row(const char *key, double *ns, int n)
{
	printf("%s_ns %.2f\n", key, sort_for_median(ns, n));
	printf("%s_min_ns %.2f\n", key, ns[0]);
}

static void pairs(size_t bytes, int n_pools, int n)
{
	for (int i = 0; i < n; i++) {
		int pool = n_pools > 1 ? i & 1 : 0;
		void *p = peer->alloc(pool, bytes);

		__asm__ volatile("" : "+r"(p) : : "memory");
		peer->free(pool, p);
	}
}

static void pair(const char *key, size_t bytes, int n_pools)
{
	const int n = 200000;
	double ns[ROUNDS];

	for (int r = 0; r < ROUNDS; r++) {
		uint64_t start = now_ns();

		pairs(bytes, n_pools, n);
		ns[r] = (double)(now_ns() - start) / n;
	}
	print_row(key, ns, ROUNDS);
}

static void pair_64k(void)
{
	pair("pair_64k", 64 * KIB, 1);
}

static void pair_1m(void)
{
	pair("pair_1m", MIB, 1);
}

static void pair_16m(void)
{
	pair("pair_16m", 16 * MIB, 1);
}

static void pair_two_pools(void)
{
	pair("pair_two_pools", 64 * KIB, POOLS);
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

static void mixed_round(void *live[LIVE], bool touch)
{
	for (int i = 0; i < SIZES; i++) {
		int s = slots[i];

		if (live[s])
			peer->free(0, live[s]);
		live[s] = peer->alloc(0, sizes[i]);
		if (!live[s])
			abort();
		for (size_t at = 0; touch && at < sizes[i]; at += 4 * KIB)
			((volatile char *)live[s])[at] = 1;
	}
}

static void mixed_end(void *live[LIVE])
{
	for (int s = 0; s < LIVE; s++)
		peer->free(0, live[s]);
}

/* What the buffers of one round hold, over what was asked for. */
static double usable_over_asked(void)
{
	uint64_t usable = 0, asked = 0;

	for (int i = 0; i < SIZES; i++) {
		void *p = peer->alloc(0, sizes[i]);

		usable += peer->usable(0, p);
		asked += sizes[i];
		peer->free(0, p);
	}
	return (double)usable / (double)asked;
}

/* What a free and an allocation take in each round. */
static void mixed_rounds(void *live[LIVE], double ns[MIXED_ROUNDS])
{
	for (int r = 0; r < MIXED_ROUNDS; r++) {
		uint64_t start = now_ns();

		mixed_round(live, false);
		ns[r] = (double)(now_ns() - start) / SIZES;
	}
}

static void mixed_timed(const char *key)
{
	void *live[LIVE] = {0};
	double ns[MIXED_ROUNDS];

	mixed_round(live, false);
	mixed_rounds(live, ns);
	print_row(key, ns, MIXED_ROUNDS);
	mixed_end(live);
}

static void print_reserved(const char *key)
{
	if (peer->reserved_max)
		printf("%s %.3f\n", key, (double)peer->reserved_max() / (double)live_peak);
}

static void mixed(void)
{
	mixed_timed("mixed");
	print_reserved("reserved_over_peak");
	printf("usable_over_asked %.3f\n", usable_over_asked());
}

static void mixed_cached(void)
{
	mixed_timed("mixed_cached");
	print_reserved("cached_reserved_over_peak");
}

/* A number of /proc/self/status, in bytes. */
static uint64_t status_bytes(const char *name)
{
	FILE *f = fopen("/proc/self/status", "r");
	uint64_t kib = 0;
	char line[128];

	while (f && fgets(line, sizeof(line), f)) {
		if (!strncmp(line, name, strlen(name)))
			kib = strtoull(line + strlen(name) + 1, NULL, 10);
	}
	if (f)
		fclose(f);
	return kib * KIB;
}

/* With a write to each page of each buffer; so the most that was resident counts, too. */
static void mixed_touched(void)
{
	uint64_t before = status_bytes("VmRSS");
	void *live[LIVE] = {0};
	double ns[TOUCH_ROUNDS];

	mixed_round(live, true);
	for (int r = 0; r < TOUCH_ROUNDS; r++) {
		uint64_t start = now_ns();

		mixed_round(live, true);
		ns[r] = (double)(now_ns() - start) / SIZES;
	}
	print_row("mixed_touched", ns, TOUCH_ROUNDS);
	printf("resident_over_peak %.3f\n",
	       (double)(status_bytes("VmHWM") - before) / (double)live_peak);
	mixed_end(live);
}

static pthread_barrier_t warm;

static void *mixed_thread(void *arg)
{
	void *live[LIVE] = {0};
	double ns[MIXED_ROUNDS];

	if (peer->thread_begin && peer->thread_begin())
		abort();
	mixed_round(live, false);
	pthread_barrier_wait(&warm);
	mixed_rounds(live, ns);
	*(double *)arg = sort_for_median(ns, MIXED_ROUNDS);
	mixed_end(live);
	if (peer->thread_end)
		peer->thread_end();
	return NULL;
}

static void mixed_threads(void)
{
	pthread_t t[THREADS_MAX];
	double ns[THREADS_MAX], sum = 0;

	pthread_barrier_init(&warm, NULL, threads);
	for (unsigned int i = 0; i < threads; i++)
		pthread_create(&t[i], NULL, mixed_thread, &ns[i]);
	for (unsigned int i = 0; i < threads; i++) {
		pthread_join(t[i], NULL);
		sum += ns[i];
	}
	printf("mixed_%ut_ns %.2f\n", threads, sum / threads);
	/* Not all threads want the most at once: below 1 it can be. */
	if (peer->reserved_max)
		printf("mixed_%ut_reserved_over_peak %.3f\n", threads,
		       (double)peer->reserved_max() / (double)(live_peak * threads));
}

/* One thread allocates, another frees: a ring of pointers between them. */
#define RING	 256
#define HANDOFFS 2000000
/* So many are timed at a time: where the system stops one of the two, that is one of many. */
#define STRETCH 2000

static struct {
	void *items[RING];
	uint64_t head __attribute__((aligned(64)));
	uint64_t tail __attribute__((aligned(64)));
} ring;

/* The index that the other thread has come to, once it is not @at any more. */
static uint64_t ring_wait(const uint64_t *index, uint64_t at)
{
	for (unsigned int n = 1;; n++) {
		uint64_t now = __atomic_load_n(index, __ATOMIC_ACQUIRE);

		if (now != at)
			return now;
		/* The other may wait for this CPU. */
		if (n % 1024 == 0)
			sched_yield();
	}
}

static void *handoff_free(void *arg)
{
	uint64_t head = 0;

	(void)arg;
	if (peer->thread_begin && peer->thread_begin())
		abort();
	for (uint64_t i = 0; i < HANDOFFS; i++) {
		if (i == head)
			head = ring_wait(&ring.head, head);
		peer->free(0, ring.items[i % RING]);
		__atomic_store_n(&ring.tail, i + 1, __ATOMIC_RELEASE);
	}
	if (peer->thread_end)
		peer->thread_end();
	return NULL;
}

static void handoff(void)
{
	static double ns[HANDOFFS / STRETCH];
	uint64_t start = now_ns(), tail = 0;
	pthread_t t;

	pthread_create(&t, NULL, handoff_free, NULL);
	for (uint64_t i = 0; i < HANDOFFS; i++) {
		void *p = peer->alloc(0, 64 * KIB);

		if (!p)
			abort();
		if (i - tail == RING)
			tail = ring_wait(&ring.tail, tail);
		ring.items[i % RING] = p;
		__atomic_store_n(&ring.head, i + 1, __ATOMIC_RELEASE);
		if ((i + 1) % STRETCH == 0) {
			uint64_t now = now_ns();

			ns[i / STRETCH] = (double)(now - start) / STRETCH;
			start = now;
		}
	}
	pthread_join(t, NULL);
	print_row("handoff", ns, HANDOFFS / STRETCH);
}

/*
 * Instructions of a pair, by single steps: this process does the work and stops where
 * counting begins and ends, its parent steps it.
 */
#define COUNTED 100

static void pair_64k_insns(void)
{
	pairs(64 * KIB, 1, 1000);
	raise(SIGSTOP);
	raise(SIGSTOP);
	pairs(64 * KIB, 1, COUNTED);
	raise(SIGSTOP);
}

/* Steps @pid until it stops by itself; how many steps that took. */
static long steps(pid_t pid)
{
	int status;

	for (long n = 1;; n++) {
		if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) || waitpid(pid, &status, 0) != pid ||
		    !WIFSTOPPED(status))
			return -1;
		if (WSTOPSIG(status) == SIGSTOP)
			return n;
	}
}

static int count_insns(pid_t pid)
{
	long nothing, all;
	int status;

	/* Where it begins to count; all before runs freely. */
	do {
		if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
			return 1;
	} while (WSTOPSIG(status) != SIGSTOP && !ptrace(PTRACE_CONT, pid, NULL, WSTOPSIG(status)));
	nothing = steps(pid);
	all = steps(pid);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	if (nothing < 0 || all < nothing)
		return 1;
	printf("pair_64k_insns %.1f\n", (double)(all - nothing) / COUNTED);
	return 0;
}

static const struct row {
	const char *name;
	void (*run)(void);
} rows[] = {
	{"pair_64k", pair_64k},
	{"pair_1m", pair_1m},
	{"pair_16m", pair_16m},
	{"pair_two_pools", pair_two_pools},
	{"pair_64k_insns", pair_64k_insns},
	{"handoff", handoff},
	{"mixed", mixed},
	{"mixed_cached", mixed_cached},
	{"mixed_touched", mixed_touched},
	{"mixed_threads", mixed_threads},
};

static void *nothing(void *arg)
{
	return arg;
}

static const struct peer *peer_named(const char *name)
{
	const struct peer *found;
	void *lib;

	if (!strcmp(name, "binpool"))
		return &peer_binpool;
	if (!strcmp(name, "malloc"))
		return &peer_malloc;
	lib = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
	found = lib ? dlsym(lib, "peer_dpdk") : NULL;
	if (!found)
		fprintf(stderr, "hotpath: no peer %s: %s\n", name, dlerror());
	return found;
}

int main(int argc, char **argv)
{
	struct bench bench = {.cache_bytes = BINPOOL_CACHE_AUTO};
	const struct row *row = NULL;
	pthread_t t;

	for (int i = 1; i < argc && peer; i++) {
		if (!strcmp(argv[i], "--peer") && i + 1 < argc)
			peer = peer_named(argv[++i]);
		else if (!strcmp(argv[i], "--cache") && i + 1 < argc)
			bench.cache_bytes = strtoull(argv[++i], NULL, 0);
		else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
			threads = (unsigned int)strtoul(argv[++i], NULL, 0);
		for (size_t j = 0; j < sizeof(rows) / sizeof(rows[0]); j++) {
			if (!strcmp(argv[i], rows[j].name))
				row = &rows[j];
		}
	}
	if (!peer || !row || !threads || threads > THREADS_MAX) {
		fprintf(stderr, "usage: hotpath [--peer binpool|malloc|FILE.so] [--cache BYTES] "
				"[--threads N] ROW\nrows:");
		for (size_t j = 0; j < sizeof(rows) / sizeof(rows[0]); j++)
			fprintf(stderr, " %s", rows[j].name);
		fprintf(stderr, "\n");
		return 2;
	}
	if (row->run == mixed_cached && bench.cache_bytes == BINPOOL_CACHE_AUTO)
		bench.cache_bytes = 1ull << 40;
	bench.live = row->run == mixed_threads ? LIVE * threads : LIVE;
	if (row->run == pair_64k_insns) {
		pid_t pid = fork();

		if (pid)
			return count_insns(pid);
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	}
	if (peer->begin(&bench))
		return 1;
	/* A process with threads: libc drops its short cuts for one thread. */
	pthread_create(&t, NULL, nothing, NULL);
	pthread_join(t, NULL);
	mixed_prepare();
	row->run();
	peer->end();
	return 0;
}
