// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * neighbour KIND BYTES HOW IDLE_MS: what three other processes feel of the driver, each of which
 * calls it for one thing again and again, while this one has much memory registered, and
 * unregistered again. The memory is there before, but "host" has no such thing. HOW: "whole" in one
 * piece, "parts" in PARTS, "background" in as many, and "background:BYTES" with so many a second at
 * most. IDLE_MS before and between, to compare with. Owns the samples, which the others write, each
 * its own.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <binpool_cuda.h>

#include "bench.h"

#define PARTS	16
#define SMALL	(64 * KIB)
#define REST_US 100 /* of a neighbour between two calls */
#define SAMPLES (1 << 17)

enum phase { IDLE, REGISTER, UNREGISTER, PHASES, SETUP = PHASES, OVER };

static const char *const phase_names[] = {"idle", "register", "unregister"};

struct neighbour {
	pid_t pid;
	int ready;
	size_t n[PHASES];
	double us[PHASES][SAMPLES];
};

static struct shared {
	enum phase phase;
	struct neighbour neighbours[3];
} * shared;

/* ---- The others -------------------------------------------------------------------------------
 */

static CUdeviceptr there;
static CUstream stream;
static void *own;

static void copy_open(void)
{
	CU(StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CU(MemAlloc_v2(&there, SMALL));
	CU(MemHostAlloc(&own, SMALL, 0));
}

static void copy(void)
{
	CU(MemcpyHtoDAsync_v2(there, own, SMALL, stream));
	CU(StreamSynchronize(stream));
}

static void nothing(void)
{
}

static void ask(void)
{
	size_t unused, total;

	CU(MemGetInfo_v2(&unused, &total));
}

static void pin(void)
{
	void *ptr;

	CU(MemHostAlloc(&ptr, SMALL, 0));
	CU(MemFreeHost(ptr));
}

static const struct {
	const char *name;
	void (*open)(void);
	void (*call)(void);
} calls[] = {
	{"copy", copy_open, copy},
	{"ask", nothing, ask},
	{"pin", nothing, pin},
};

#define NEIGHBOURS (sizeof(calls) / sizeof(calls[0]))

static void be_neighbour(struct neighbour *self, size_t which)
{
	double start, took;
	enum phase phase;

	/* Not left behind if the other is stopped. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	cuda_open();
	calls[which].open();
	calls[which].call();
	__atomic_store_n(&self->ready, 1, __ATOMIC_RELEASE);
	while ((phase = __atomic_load_n(&shared->phase, __ATOMIC_ACQUIRE)) != OVER) {
		start = now_ms();
		calls[which].call();
		took = (now_ms() - start) * 1e3;
		/* What was still going on when one began is felt in that one. */
		if (phase == IDLE)
			phase = __atomic_load_n(&shared->phase, __ATOMIC_ACQUIRE);
		if (phase < PHASES && self->n[phase] < SAMPLES)
			self->us[phase][self->n[phase]++] = took;
		usleep(REST_US);
	}
	_exit(0);
}

static void neighbours_start(void)
{
	int status;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (shared == MAP_FAILED)
		end(1, "mmap: %m");
	shared->phase = SETUP;
	for (size_t i = 0; i < NEIGHBOURS; i++) {
		struct neighbour *n = &shared->neighbours[i];

		pid_t pid = fork();

		if (pid < 0)
			end(1, "fork: %m");
		if (!pid)
			be_neighbour(n, i);
		n->pid = pid;
	}
	for (size_t i = 0; i < NEIGHBOURS; i++)
		while (!__atomic_load_n(&shared->neighbours[i].ready, __ATOMIC_ACQUIRE)) {
			usleep(1000);
			if (waitpid(shared->neighbours[i].pid, &status, WNOHANG))
				end(WIFEXITED(status) ? WEXITSTATUS(status) : 1, "no neighbour");
		}
}

static void neighbours_stop(void)
{
	int status;

	__atomic_store_n(&shared->phase, OVER, __ATOMIC_RELEASE);
	for (size_t i = 0; i < NEIGHBOURS; i++) {
		struct neighbour *n = &shared->neighbours[i];

		if (waitpid(n->pid, &status, 0) != n->pid || status)
			end(1, "the neighbour that calls for '%s' failed", calls[i].name);
		for (int p = 0; p < PHASES; p++) {
			sort(n->us[p], n->n[p]);
			if (!n->n[p])
				continue;
			printf("%s_median_us.%s %.3f\n", phase_names[p], calls[i].name,
			       quantile(n->us[p], n->n[p], 0.5));
			printf("%s_p99_us.%s %.3f\n", phase_names[p], calls[i].name,
			       quantile(n->us[p], n->n[p], 0.99));
			printf("%s_worst_us.%s %.3f\n", phase_names[p], calls[i].name,
			       n->us[p][n->n[p] - 1]);
			printf("%s_n.%s %zu\n", phase_names[p], calls[i].name, n->n[p]);
		}
	}
}

/* ---- This one ---------------------------------------------------------------------------------
 */

static struct memory memory;
static size_t parts, bytes;
static void *part[PARTS];
static uint64_t rate;
static bool background;
static uint64_t id;

static void do_register(void)
{
	if (memory.pool && !background)
		POOL(binpool_cuda_attach(memory.pool, 0, &id));
	if (background) {
		POOL(binpool_register_in_background(memory.pool, rate));
		POOL(binpool_wait_registered(memory.pool, NULL, UINT32_MAX));
	}
	for (size_t i = 0; i < parts && !memory.pool; i++)
		memory_register(&memory, &part[i], bytes / parts);
}

static void do_unregister(void)
{
	if (memory.pool)
		POOL(binpool_remove_registrar(memory.pool, id));
	for (size_t i = 0; i < parts && !memory.pool; i++)
		memory_unregister(&memory, part[i], bytes / parts);
}

static void timed(enum phase phase, void (*function)(void))
{
	double start = now_ms();

	__atomic_store_n(&shared->phase, phase, __ATOMIC_RELEASE);
	function();
	__atomic_store_n(&shared->phase, IDLE, __ATOMIC_RELEASE);
	printf("%s_ms %.3f\n", phase_names[phase], now_ms() - start);
}

int neighbour_main(char **args)
{
	unsigned int idle_ms;
	const char *colon;

	if (!args[0] || !args[1] || !args[2] || !args[3])
		end(1, "neighbour KIND BYTES HOW IDLE_MS");
	idle_ms = (unsigned int)bytes_of(args[3]);
	bytes = bytes_of(args[1]);
	parts = strcmp(args[2], "whole") ? PARTS : 1;
	background = !strncmp(args[2], "background", strlen("background"));
	colon = strchr(args[2], ':');
	rate = colon ? bytes_of(colon + 1) : BINPOOL_UNLIMITED;
	neighbours_start();
	cuda_open();
	memory_open_bare(&memory, args[0]);
	if (background) {
		POOL(binpool_register_in_background(memory.pool, 0));
		POOL(binpool_cuda_attach(memory.pool, 0, &id));
	}
	for (size_t i = 0; i < parts; i++)
		part[i] = memory_get(&memory, bytes / parts);
	__atomic_store_n(&shared->phase, IDLE, __ATOMIC_RELEASE);
	usleep(idle_ms * 1000);
	timed(REGISTER, do_register);
	if (!cuda_is_pinned(part[0]))
		end(1, "the driver does not know the memory as pinned");
	usleep(idle_ms * 1000);
	timed(UNREGISTER, do_unregister);
	neighbours_stop();
	return 0;
}
