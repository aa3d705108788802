// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Much memory registered with CUDA in the background: it is used meanwhile, and what another
 * process feels of it is measured. On a real device, and only if BINPOOL_TEST_LARGE is set,
 * since it takes 16 GiB (or as many as that says) and some seconds. Times are told, not judged,
 * but each step has a limit, and says so.
 */
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <binpool_cuda.h>

#include "cuda_driver.h"

#define BUFFERS	      16
#define BUFFERS_LEAST 4
#define BYTES	      GIB
/* For all of the memory; what is not to be had by then the test does without. */
#define GET_SECONDS 25

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ---- Another process that uses the device ----------------------------------------- */

struct neighbour {
	pid_t pid;
	int to, from;
};

/* The longest of each kind of call. */
struct felt {
	double ask, copy, pin;
	long rounds;
};

static double longer(double worst, double start)
{
	double took = now_ms() - start;

	return took > worst ? took : worst;
}

/* Calls the driver until nobody listens any more, and says what took longest. */
static int neighbour_main(void)
{
	struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
	struct felt felt = {0};
	size_t unused, total;
	CUdeviceptr there;
	char *own, *other;
	double start;

	if (find_device(NULL) || !context || posix_memalign((void **)&own, 4096, 2 * MIB) ||
	    posix_memalign((void **)&other, 4096, 2 * MIB) || cu.MemAlloc_v2(&there, MIB) ||
	    cu.MemHostRegister_v2(own, 2 * MIB, 0) || write(STDOUT_FILENO, "ready\n", 6) != 6)
		return 1;
	while (poll(&in, 1, 0) == 0) {
		start = now_ms();
		cu.MemGetInfo_v2(&unused, &total);
		felt.ask = longer(felt.ask, start);
		start = now_ms();
		cu.MemcpyHtoD_v2(there, own, MIB);
		felt.copy = longer(felt.copy, start);
		start = now_ms();
		cu.MemHostRegister_v2(other, 2 * MIB, 0);
		cu.MemHostUnregister(other);
		felt.pin = longer(felt.pin, start);
		felt.rounds++;
	}
	printf("%f %f %f %ld\n", felt.ask, felt.copy, felt.pin, felt.rounds);
	return 0;
}

static void neighbour_start(struct neighbour *n)
{
	int to[2], from[2];
	char said[6];

	assert_int_equal(pipe(to) | pipe(from), 0);
	n->pid = fork();
	assert_true(n->pid >= 0);
	if (!n->pid) {
		/* Whatever becomes of this process. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(to[0], STDIN_FILENO);
		dup2(from[1], STDOUT_FILENO);
		close(to[1]);
		close(from[0]);
		execl("/proc/self/exe", "neighbour", "--neighbour", (char *)NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	n->to = to[1];
	n->from = from[0];
	assert_int_equal(read(n->from, said, sizeof(said)), sizeof(said));
}

static struct felt neighbour_stop(struct neighbour *n)
{
	struct felt felt = {0};
	char said[256] = "";
	int status;

	close(n->to);
	assert_true(read(n->from, said, sizeof(said) - 1) > 0);
	close(n->from);
	assert_int_equal(waitpid(n->pid, &status, 0), n->pid);
	assert_int_equal(status, 0);
	assert_int_equal(
		sscanf(said, "%lf %lf %lf %ld", &felt.ask, &felt.copy, &felt.pin, &felt.rounds), 4);
	return felt;
}

static void tell(const char *when, struct felt felt)
{
	printf("# another process, %s: longest cuMemGetInfo %.2f ms, copy of 1 MiB %.2f ms, "
	       "registering 2 MiB and back %.2f ms, of %ld\n",
	       when, felt.ask, felt.copy, felt.pin, felt.rounds);
}

/* ---- Time ------------------------------------------------------------------------------ */

/* What is being done, and how long it may take: a driver that does not answer ends it in words. */
static char slow[256];

static void too_slow(int number)
{
	(void)number;
	if (write(STDOUT_FILENO, slow, strlen(slow)) < 0)
		_exit(2);
	_exit(1);
}

static void begin(const char *what, unsigned int seconds)
{
	snprintf(slow, sizeof(slow), "\n# %s was not over after %u s\nnot ok 1 - used_meanwhile\n",
		 what, seconds);
	signal(SIGALRM, too_slow);
	alarm(seconds);
}

/* ---- The test ------------------------------------------------------------------------- */

/*
 * Buffers, as many as @wanted, or as can be had in time: where nobody has touched a machine's
 * memory before, a GiB may take seconds. How many.
 */
static int get_buffers(struct binpool *pool, char **p, int wanted)
{
	double start = now_ms(), took;
	int n = 0;

	while (n < wanted && (n < BUFFERS_LEAST || now_ms() - start < GET_SECONDS * 1e3)) {
		p[n] = binpool_alloc(pool, BYTES);
		if (!p[n])
			fail_msg("GiB %d: %s", n, binpool_last_error());
		n++;
	}
	took = now_ms() - start;
	printf("# %d GiB allocated in %.1f ms%s\n", n, took,
	       n < wanted ? ": as many as there was time for, so it is about these" : "");
	return n;
}

/*
 * Copies the first buffer until all are registered; how many bytes. As programs do that have other
 * things to do: where a thread waits in the driver, in cuMemcpyHtoD or so, that registers hardly
 * anything for others.
 */
static uint64_t copy_meanwhile(struct binpool *pool, CUdeviceptr there, const char *first)
{
	uint64_t copied = 0;
	CUstream stream;
	CUevent event;
	int err;

	assert_int_equal(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
	assert_int_equal(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING), 0);
	do {
		assert_int_equal(cu.MemcpyHtoDAsync_v2(there, first, BYTES, stream), 0);
		assert_int_equal(cu.EventRecord(event, stream), 0);
		while ((err = cu.EventQuery(event)) == CUDA_ERROR_NOT_READY)
			usleep(100);
		assert_int_equal(err, 0);
		copied += BYTES;
		err = binpool_wait_registered(pool, NULL, 0);
	} while (err == -EAGAIN);
	assert_int_equal(cu.EventDestroy_v2(event), 0);
	assert_int_equal(cu.StreamDestroy_v2(stream), 0);
	/* One that was refused ends it, too. */
	if (err)
		fail_msg("%llu of %llu bytes were registered: %s",
			 (unsigned long long)stats_of(pool).registered_bytes,
			 (unsigned long long)stats_of(pool).reserved_bytes, binpool_last_error());
	return copied;
}

static int wanted_buffers(void)
{
	const char *text = getenv("BINPOOL_TEST_LARGE");
	int n = text ? atoi(text) : 0;

	/* 1: as many as it is about. */
	return n <= 1 ? n * BUFFERS : n < BUFFERS_LEAST ? BUFFERS_LEAST : n > BUFFERS ? BUFFERS : n;
}

static void used_meanwhile(void **state)
{
	struct neighbour other;
	struct binpool *pool;
	CUdeviceptr there;
	char *p[BUFFERS];
	double start, first, all;
	uint64_t id, copied;
	int n;

	(void)state;
	if (!wanted_buffers()) {
		printf("# BINPOOL_TEST_LARGE is not set\n");
		skip();
	}
	need_device();
	begin("what another process feels of nothing", 20);
	neighbour_start(&other);
	usleep(500000);
	tell("alone", neighbour_stop(&other));

	begin("getting memory", GET_SECONDS + 15);
	pool = thp_pool((BUFFERS + 1) * BYTES);
	assert_ok(binpool_register_in_background(pool, 0));
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	n = get_buffers(pool, p, wanted_buffers());
	begin("device memory, and another process", 20);
	memset(p[0], 42, BYTES);
	assert_int_equal(cu.MemAlloc_v2(&there, BYTES), 0);
	assert_int_equal(cu.MemcpyHtoD_v2(there, p[0], BYTES), 0);
	neighbour_start(&other);

	begin("registering the first", 10);
	start = now_ms();
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	assert_ok(binpool_wait_registered(pool, p[0], UINT32_MAX));
	first = now_ms() - start;
	begin("registering the rest", 20);
	copied = copy_meanwhile(pool, there, p[0]);
	all = now_ms() - start;
	begin("ending the other process", 10);
	tell("meanwhile", neighbour_stop(&other));
	printf("# %d GiB: the first ready after %.1f ms, all after %.1f ms, %.1f ms for each; "
	       "meanwhile the first was copied at %.1f GB/s\n",
	       n, first, all, (double)stats_of(pool).registration_ns / 1e6 / n,
	       (double)copied / (all - first) / 1e6);
	begin("copying and comparing", 20);
	start = now_ms();
	assert_int_equal(cu.MemcpyHtoD_v2(there, p[0], BYTES), 0);
	printf("# and afterwards at %.1f GB/s\n", (double)BYTES / (now_ms() - start) / 1e6);

	memset(p[1], 0, BYTES);
	assert_int_equal(cu.MemcpyDtoH_v2(p[1], there, BYTES), 0);
	assert_int_equal(memcmp(p[0], p[1], BYTES), 0);
	for (int i = 0; i < n; i++)
		assert_true(is_pinned(p[i] + BYTES - 1));
	assert_int_equal(stats_of(pool).registrations_refused, 0);
	begin("giving all back", 20);
	start = now_ms();
	for (int i = 0; i < n; i++)
		assert_ok(binpool_free(pool, p[i]));
	assert_int_equal(cu.MemFree_v2(there), 0);
	assert_ok(binpool_destroy(pool));
	printf("# given back in %.1f ms\n", now_ms() - start);
	alarm(0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(used_meanwhile)};

	if (argc > 1 && !strcmp(argv[1], "--neighbour"))
		return neighbour_main();
	/* What was told is not lost with a test that has to be stopped. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	return cmocka_run_group_tests_name("cuda_large", tests, find_device, NULL);
}
