// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * binpool selftest: whether this node does with a pool's memory what it is for, told by
 * what the driver says of it, by copies there and back that are compared, and by how fast
 * they are beside the driver's own pinned memory. Main thread only.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <binpool_cuda.h>

#include "cli.h"
#include "cuda.h"
#include "run.h"

#define BYTES_DEFAULT ((uint64_t)256 << 20)
#define COPIES	      5
/* Memory that is pinned copies at least at so much of the rate of the driver's own. */
#define RATE_LEAST 0.8

struct selftest {
	const char *device_number; /* NULL: 0 */
	int cuda;
	uint32_t provider;
	uint64_t bytes;
};

/* Of COPIES of all bytes, the median. */
struct rates {
	double to_device, to_host; /* bytes per ns, which is GB/s */
};

/* What is being compared. */
struct bench {
	uint64_t bytes;
	CUdeviceptr there;
	unsigned char *plain; /* ordinary memory with the pattern */
	unsigned char *host;  /* the driver's own pinned memory */
};

static void print_help(void)
{
	printf("Usage: binpool selftest --cuda[=N] [OPTION]...\n"
	       "Have a pool's memory registered with CUDA's device N (0), copy it there and back,\n"
	       "compare every byte, and compare the rates with those of cuMemHostAlloc's memory and\n"
	       "of ordinary memory.\n\n"
	       "  --cuda[=N]          the device\n"
	       "  --provider WHICH    where memory comes from: auto (default), device, hugetlb, thp\n"
	       "  --size SIZE         of the buffer (default 256M)\n\n"
	       "Exit status: 0 the memory is pinned, copies are right and as fast as they should "
	       "be,\n"
	       "1 they are not, or something is missing, 2 usage.\n");
}

static int parse_options(int argc, char **argv, struct selftest *test, int *done)
{
	static const struct option options[] = {
		{"cuda", optional_argument, NULL, 'c'},
		{"provider", required_argument, NULL, 'p'},
		{"size", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	int option, err, ret = CLI_OK;
	uint64_t number;

	opterr = 0;
	*done = 1;
	while (!ret && (option = getopt_long(argc, argv, ":p:s:h", options, NULL)) != -1) {
		switch (option) {
		case 'c':
			test->cuda = 1;
			test->device_number = optarg;
			if (optarg && cli_parse_u64(optarg, &number))
				ret = cli_usage_error("selftest", "--cuda=%s: a device is a number",
						      optarg);
			break;
		case 'p':
			ret = cli_parse_provider("selftest", optarg, &test->provider);
			break;
		case 's':
			err = cli_parse_size(optarg, &test->bytes);
			if (err)
				ret = cli_usage_error("selftest", "--size '%s' %s", optarg,
						      cli_parse_problem(err));
			else if (!test->bytes)
				ret = cli_usage_error("selftest", "--size '%s' is nothing", optarg);
			break;
		case 'h':
			print_help();
			return CLI_OK;
		default:
			ret = cli_option_error("selftest", option, argv);
			break;
		}
	}
	if (!ret && optind < argc)
		ret = cli_usage_error("selftest", "'%s' is one argument too many", argv[optind]);
	if (!ret && !test->cuda)
		ret = cli_usage_error("selftest", "say what is to be tested: --cuda");
	*done = ret != CLI_OK;
	return ret;
}

/* ---- Copies ------------------------------------------------------------------------ */

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static double rate(uint64_t bytes, uint64_t *ns)
{
	qsort(ns, COPIES, sizeof(*ns), by_size);
	return (double)bytes / (double)(ns[COPIES / 2] ? ns[COPIES / 2] : 1);
}

/* Copies @memory there and back, compares what came back, and measures. A CLI_* status. */
static int copy(const struct bench *bench, unsigned char *memory, const char *what,
		struct rates *rates)
{
	uint64_t to_device[COPIES], to_host[COPIES], start;
	CUresult err = 0;
	int i;

	memcpy(memory, bench->plain, bench->bytes);
	for (i = 0; i < COPIES && !err; i++) {
		start = now_ns();
		err = cuda.MemcpyHtoD(bench->there, memory, bench->bytes);
		to_device[i] = now_ns() - start;
	}
	if (err) {
		cli_error("copying %s to the device: %s", what, cuda_problem(err));
		return CLI_FAILED;
	}
	memset(memory, 0, bench->bytes);
	for (i = 0; i < COPIES && !err; i++) {
		start = now_ns();
		err = cuda.MemcpyDtoH(memory, bench->there, bench->bytes);
		to_host[i] = now_ns() - start;
	}
	if (err) {
		cli_error("copying %s from the device: %s", what, cuda_problem(err));
		return CLI_FAILED;
	}
	if (memcmp(memory, bench->plain, bench->bytes)) {
		cli_error("wrong data: %s came back from the device changed", what);
		return CLI_FAILED;
	}
	rates->to_device = rate(bench->bytes, to_device);
	rates->to_host = rate(bench->bytes, to_host);
	printf("  %-16s %8.2f GB/s to the device, %8.2f GB/s back\n", what, rates->to_device,
	       rates->to_host);
	return CLI_OK;
}

/* What the driver says of the first and the last byte. */
static int is_pinned(const unsigned char *memory, uint64_t bytes)
{
	const unsigned char *const ends[] = {memory, memory + bytes - 1};
	unsigned int type;
	size_t i;

	for (i = 0; i < 2; i++) {
		type = 0;
		if (cuda.PointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE,
					     (CUdeviceptr)(uintptr_t)ends[i]) ||
		    type != CU_MEMORYTYPE_HOST)
			return 0;
	}
	return 1;
}

/* ---- The test ------------------------------------------------------------------------- */

static int verdict(const struct rates *pool, const struct rates *driver)
{
	double to_device = pool->to_device / driver->to_device;
	double to_host = pool->to_host / driver->to_host;

	if (to_device < RATE_LEAST || to_host < RATE_LEAST) {
		cli_error("the pool's memory copies at %.2f of the rate of cuMemHostAlloc's to the "
			  "device, and at %.2f back: less than %.2f is as if it were not pinned",
			  to_device, to_host, RATE_LEAST);
		return CLI_FAILED;
	}
	printf("pinned: %.2f of cuMemHostAlloc's rate to the device, %.2f back\n", to_device,
	       to_host);
	return CLI_OK;
}

static int compare(const struct bench *bench, unsigned char *buffer)
{
	struct rates pool, driver, ordinary;
	int ret;

	ret = copy(bench, buffer, "pool", &pool);
	if (!ret)
		ret = copy(bench, bench->host, "cuMemHostAlloc", &driver);
	if (!ret)
		ret = copy(bench, bench->plain, "ordinary memory", &ordinary);
	return ret ? ret : verdict(&pool, &driver);
}

static void print_memory(const struct binpool_stats *stats, const struct binpool_ptr_info *info)
{
	char units[CLI_UNITS_LEN], page[CLI_UNITS_LEN];

	printf("  provider         %s, in pages of %s\n", binpool_provider_name(stats->provider),
	       cli_units(info->page_bytes, page));
	printf("  registered       %s in %.3f ms, with %s\n",
	       cli_units(stats->registered_bytes, units), (double)stats->registration_ns / 1e6,
	       info->registrars);
}

/* With the pool attached. */
static int test_pool(struct binpool *pool, const struct bench *bench)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};
	struct binpool_stats stats = {.size = sizeof(stats)};
	unsigned char *buffer = binpool_alloc(pool, bench->bytes);
	unsigned long long device_ptr;
	uint64_t left = 0;
	int ret = CLI_FAILED;

	if (!buffer) {
		cli_error("cannot get a buffer of %" PRIu64 " bytes: %s", bench->bytes,
			  binpool_last_error());
		return CLI_FAILED;
	}
	if (binpool_query(buffer, &info) || binpool_get_stats(pool, &stats) ||
	    binpool_cuda_device_ptr(pool, buffer, &device_ptr, &left)) {
		cli_error("cannot say what the buffer is: %s", binpool_last_error());
	} else if (!is_pinned(buffer, bench->bytes)) {
		cli_error("CUDA registered the pool's memory, but does not call it pinned");
	} else {
		print_memory(&stats, &info);
		printf("  device pointer   %s the host's, good for %" PRIu64 " bytes\n",
		       device_ptr == (uintptr_t)buffer ? "is" : "is not", left);
		ret = compare(bench, buffer);
	}
	if (binpool_free(pool, buffer) && !ret) {
		cli_error("cannot free the buffer: %s", binpool_last_error());
		ret = CLI_FAILED;
	}
	return ret;
}

static int with_pool(const struct selftest *test, const struct bench *bench)
{
	struct binpool_options options = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;
	uint64_t id;
	int ret;

	options.name = "binpool selftest";
	options.provider = test->provider;
	if (binpool_create(&pool, &options)) {
		cli_error("cannot make a pool with provider %s: %s",
			  binpool_provider_name(test->provider), binpool_last_error());
		return CLI_FAILED;
	}
	if (binpool_cuda_attach(pool, 0, &id)) {
		cli_error("cannot have the pool registered with CUDA: %s", binpool_last_error());
		binpool_destroy(pool);
		return CLI_FAILED;
	}
	ret = test_pool(pool, bench);
	if (binpool_destroy(pool) && !ret) {
		cli_error("cannot end the pool: %s", binpool_last_error());
		ret = CLI_FAILED;
	}
	return ret;
}

/* Memory to compare with; all of it is given back by bench_close(). */
static int bench_open(struct bench *bench)
{
	uint64_t i, word;
	CUresult err;
	void *host;

	bench->plain = malloc(bench->bytes);
	if (!bench->plain) {
		cli_error("no memory for %" PRIu64 " bytes to compare with", bench->bytes);
		return CLI_FAILED;
	}
	for (i = 0; i < bench->bytes; i += sizeof(word)) {
		word = (i + 1) * 0x9e3779b97f4a7c15;
		memcpy(bench->plain + i, &word,
		       bench->bytes - i < sizeof(word) ? bench->bytes - i : sizeof(word));
	}
	err = cuda.MemAlloc(&bench->there, bench->bytes);
	if (err)
		return cuda_failed("getting device memory", err);
	err = cuda.MemHostAlloc(&host, bench->bytes, CU_MEMHOSTALLOC_PORTABLE);
	if (err)
		return cuda_failed("cuMemHostAlloc, to compare with", err);
	bench->host = host;
	return CLI_OK;
}

static void bench_close(struct bench *bench)
{
	if (bench->host)
		cuda.MemFreeHost(bench->host);
	if (bench->there)
		cuda.MemFree(bench->there);
	free(bench->plain);
}

int selftest_main(int argc, char **argv)
{
	struct selftest test = {.provider = BINPOOL_PROVIDER_AUTO, .bytes = BYTES_DEFAULT};
	struct bench bench = {0};
	int done, version = 0, ret = parse_options(argc, argv, &test, &done);
	CUdevice device;
	char name[128];

	if (done)
		return ret;
	ret = cuda_load();
	if (!ret)
		ret = cuda_open_device(test.device_number, &device, name, sizeof(name));
	if (ret)
		return ret;
	cuda.DriverGetVersion(&version);
	printf("CUDA %d.%d, device %s: %s\n", version / 1000, version % 1000 / 10,
	       test.device_number ? test.device_number : "0", name);
	bench.bytes = test.bytes;
	ret = bench_open(&bench);
	if (!ret)
		ret = with_pool(&test, &bench);
	bench_close(&bench);
	cuda_close_device(device);
	return ret;
}
