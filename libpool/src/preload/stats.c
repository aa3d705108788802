// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What was counted, and its print when the process ends, for who asks for it. Owns the counters,
 * which are atomic.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "preload.h"

#define COUNTER_NAME(name) #name,
static const char *const names[] = {COUNTERS(COUNTER_NAME)};
#define COUNTER_TOTAL (sizeof(names) / sizeof(names[0]))

static uint64_t counters[COUNTER_TOTAL];
static pid_t counting;	  /* the process that they are of */
static char refusal[512]; /* the last, locked by refusing */
static pthread_mutex_t refusing = PTHREAD_MUTEX_INITIALIZER;

uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void count(enum counter counter, uint64_t amount)
{
	if (!amount)
		return;
	if (!__atomic_load_n(&counting, __ATOMIC_RELAXED))
		__atomic_store_n(&counting, getpid(), __ATOMIC_RELAXED);
	__atomic_fetch_add(&counters[counter], amount, __ATOMIC_RELAXED);
}

void count_max(enum counter counter, uint64_t amount)
{
	uint64_t most = __atomic_load_n(&counters[counter], __ATOMIC_RELAXED);

	while (most < amount &&
	       !__atomic_compare_exchange_n(&counters[counter], &most, amount, true,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

void count_refusal(const char *sentence)
{
	count(COUNT_passed_refused, 1);
	pthread_mutex_lock(&refusing);
	snprintf(refusal, sizeof(refusal), "%s", sentence);
	pthread_mutex_unlock(&refusing);
}

/* A text that is written at once: other processes may write to the same file. */
struct text {
	char bytes[8192];
	size_t length;
};

static void __attribute__((format(printf, 2, 3))) add(struct text *t, const char *fmt, ...)
{
	size_t room = sizeof(t->bytes) - t->length;
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(t->bytes + t->length, room, fmt, args);
	va_end(args);
	if (n > 0)
		t->length += (size_t)n < room ? (size_t)n : room - 1;
}

static void add_line(struct text *t)
{
	add(t, "binpool-preload[%d]", (int)getpid());
}

static void add_counters(struct text *t)
{
	for (size_t i = 0; i < COUNTER_TOTAL; i++) {
		uint64_t n = __atomic_load_n(&counters[i], __ATOMIC_RELAXED);

		if (n)
			add(t, " %s=%llu", names[i], (unsigned long long)n);
	}
}

static void add_pool(struct text *t)
{
	struct binpool_stats s = {.size = sizeof(s)};
	const struct library *lib;
	struct binpool *pool = pool_made(&lib);
	uint64_t live, bytes;

	if (!pool) {
		if (*pool_reason()) {
			add_line(t);
			add(t, " no_pool=\"%s\"\n", pool_reason());
		}
		return;
	}
	if (lib->binpool_get_stats(pool, &s))
		return;
	buffers_amount(&live, &bytes);
	add_line(t);
	add(t, " provider=%s live=%llu live_bytes=%llu", lib->binpool_provider_name(s.provider),
	    (unsigned long long)live, (unsigned long long)bytes);
	add(t, " reserved_bytes=%llu reserved_max_bytes=%llu extents=%llu pending_blocks=%llu",
	    (unsigned long long)s.reserved_bytes, (unsigned long long)s.reserved_max_bytes,
	    (unsigned long long)s.extents, (unsigned long long)s.pending_blocks);
	add(t, " extent_allocs=%llu extent_alloc_ns=%llu registration_ns=%llu\n",
	    (unsigned long long)s.extent_allocs, (unsigned long long)s.extent_alloc_ns,
	    (unsigned long long)s.registration_ns);
	if (!*refusal)
		return;
	add_line(t);
	add(t, " refused=\"%s\"\n", refusal);
}

/* A file that cannot be written to is named, and what it should have had is not lost. */
static void put(const struct text *t, const char *where)
{
	int fd = STDERR_FILENO;
	ssize_t n;

	if (strcmp(where, "1"))
		fd = open(where, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (fd < 0) {
		dprintf(STDERR_FILENO, "binpool-preload[%d] BINPOOL_PRELOAD_STATS: %s: %s\n",
			(int)getpid(), where, strerror(errno));
		fd = STDERR_FILENO;
	}
	do
		n = write(fd, t->bytes, t->length);
	while (n < 0 && errno == EINTR);
	if (fd != STDERR_FILENO)
		close(fd);
}

/*
 * A process that no call of has reached says so if it has anything to do with CUDA: its runtime
 * may be linked statically. A forked child has its parent's counters, which the parent prints.
 */
static void __attribute__((destructor)) print(void)
{
	const char *where = settings_stats();
	struct text t = {.length = 0};

	if (!where)
		return;
	if (counting ? counting != getpid()
		     : !library_loaded("libcuda.so", NULL, 0) &&
			       !library_loaded("libcudart.so", NULL, 0))
		return;
	add_line(&t);
	add(&t, " program=%s reached=%s", program_invocation_short_name, counting ? "yes" : "no");
	add_counters(&t);
	add(&t, "\n");
	add_pool(&t);
	put(&t, where);
}
