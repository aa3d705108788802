// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Much memory registered with CUDA in the background: it is used meanwhile, and what another
 * process feels of it is measured. On a real device, and only if BINPOOL_TEST_LARGE is set,
 * since it takes 16 GiB and some seconds. The times are told, not judged.
 */
#include <poll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <binpool_cuda.h>

#include "cuda_driver.h"

#define BUFFERS 16
#define BYTES	GIB

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

/* ---- The test ------------------------------------------------------------------------- */

static void used_meanwhile(void **state)
{
	struct neighbour other;
	struct binpool *pool;
	CUdeviceptr there;
	char *p[BUFFERS];
	double start, first, all, rate;
	uint64_t id, copied = 0;
	int err;

	(void)state;
	if (!getenv("BINPOOL_TEST_LARGE")) {
		printf("# BINPOOL_TEST_LARGE is not set\n");
		skip();
	}
	need_device();
	neighbour_start(&other);
	usleep(500000);
	tell("alone", neighbour_stop(&other));

	start = now_ms();
	pool = thp_pool((BUFFERS + 1) * BYTES);
	assert_ok(binpool_register_in_background(pool, 0));
	assert_ok(binpool_cuda_attach(pool, 0, &id));
	for (int i = 0; i < BUFFERS; i++) {
		p[i] = binpool_alloc(pool, BYTES);
		if (!p[i])
			fail_msg("%s", binpool_last_error());
	}
	printf("# %d GiB allocated in %.1f ms\n", BUFFERS, now_ms() - start);
	memset(p[0], 42, BYTES);
	assert_int_equal(cu.MemAlloc_v2(&there, BYTES), 0);
	neighbour_start(&other);

	start = now_ms();
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	assert_ok(binpool_wait_registered(pool, p[0], UINT32_MAX));
	first = now_ms() - start;
	while ((err = binpool_wait_registered(pool, NULL, 0)) == -EAGAIN) {
		assert_int_equal(cu.MemcpyHtoD_v2(there, p[0], BYTES), 0);
		copied += BYTES;
	}
	if (err)
		fail_msg("%s", binpool_last_error());
	all = now_ms() - start;
	tell("meanwhile", neighbour_stop(&other));
	rate = (double)copied / (all - first) / 1e6;
	printf("# %d GiB: the first ready after %.1f ms, all after %.1f ms; meanwhile the first was "
	       "copied at %.1f GB/s\n",
	       BUFFERS, first, all, rate);
	start = now_ms();
	assert_int_equal(cu.MemcpyHtoD_v2(there, p[0], BYTES), 0);
	printf("# and afterwards at %.1f GB/s\n", (double)BYTES / (now_ms() - start) / 1e6);

	assert_true(copied > 0);
	memset(p[1], 0, BYTES);
	assert_int_equal(cu.MemcpyDtoH_v2(p[1], there, BYTES), 0);
	assert_memory_equal(p[0], p[1], BYTES);
	for (int i = 0; i < BUFFERS; i++) {
		assert_true(is_pinned(p[i] + BYTES - 1));
		assert_ok(binpool_free(pool, p[i]));
	}
	assert_int_equal(cu.MemFree_v2(there), 0);
	start = now_ms();
	assert_ok(binpool_destroy(pool));
	printf("# destroyed in %.1f ms\n", now_ms() - start);
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
