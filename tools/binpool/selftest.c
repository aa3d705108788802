// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * binpool selftest: whether this node does with a pool's memory what it is for, told by
 * what the driver says of it, by copies there and back that are compared, and by how fast
 * they are beside the driver's own pinned memory; with CUDA and OpenCL, in both orders, since
 * one may not know as pinned what the other has. Main thread only.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "run.h"
#include "selftest.h"

#define BYTES_DEFAULT ((uint64_t)256 << 20)
/* Of fewer, what is measured is the calls, not the copies. */
#define BYTES_LEAST ((uint64_t)1 << 20)
#define COPIES	    5
/* Memory that is pinned copies at least at so much of the rate of other pinned memory. */
#define RATE_LEAST    0.8
#define CONSUMERS_MAX 2

struct selftest {
	const struct consumer_ops *ops[CONSUMERS_MAX];
	const char *which[CONSUMERS_MAX]; /* the device, NULL: any */
	struct consumer consumers[CONSUMERS_MAX];
	size_t n;
	uint32_t provider;
	uint64_t bytes;
	unsigned char *plain; /* ordinary memory with the pattern */
};

static void print_help(void)
{
	printf("Usage: binpool selftest {--cuda[=N] | --opencl[=NAME] | both} [OPTION]...\n"
	       "Have a pool's memory registered with CUDA's device N (0), with an OpenCL device with\n"
	       "NAME in its name, or with both in both orders; copy it there and back, compare every\n"
	       "byte, and compare the rates with those of the driver's own pinned memory, of ordinary\n"
	       "memory and, on the same device, of each other. A CPU's rates are told, not judged.\n\n"
	       "  --cuda[=N]          the device\n"
	       "  --opencl[=NAME]     the device (any, GPUs first)\n"
	       "  --provider WHICH    where memory comes from: auto (default), device, hugetlb, thp\n"
	       "  --size SIZE         of the buffer, at least 1M (default 256M)\n\n"
	       "Exit status: 0 the memory is pinned, copies are right and as fast as they should "
	       "be,\n"
	       "1 they are not, or something is missing, 2 usage.\n");
}

/* Once each. */
static int add_consumer(struct selftest *test, const struct consumer_ops *ops, const char *which)
{
	uint64_t number;
	size_t i;

	if (ops == &consumer_cuda && which && cli_parse_u64(which, &number))
		return cli_usage_error("selftest", "--cuda=%s: a device is a number", which);
	for (i = 0; i < test->n && test->ops[i] != ops; i++)
		;
	test->ops[i] = ops;
	test->which[i] = which;
	test->n = i < test->n ? test->n : i + 1;
	return CLI_OK;
}

static int parse_options(int argc, char **argv, struct selftest *test, int *done)
{
	static const struct option options[] = {
		{"cuda", optional_argument, NULL, 'c'},
		{"opencl", optional_argument, NULL, 'o'},
		{"provider", required_argument, NULL, 'p'},
		{"size", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	int option, err, ret = CLI_OK;

	opterr = 0;
	*done = 1;
	while (!ret && (option = getopt_long(argc, argv, ":p:s:h", options, NULL)) != -1) {
		switch (option) {
		case 'c':
			ret = add_consumer(test, &consumer_cuda, optarg);
			break;
		case 'o':
			ret = add_consumer(test, &consumer_opencl, optarg);
			break;
		case 'p':
			ret = cli_parse_provider("selftest", optarg, &test->provider);
			break;
		case 's':
			err = cli_parse_size(optarg, &test->bytes);
			if (err)
				ret = cli_usage_error("selftest", "--size '%s' %s", optarg,
						      cli_parse_problem(err));
			else if (test->bytes < BYTES_LEAST)
				ret = cli_usage_error("selftest",
						      "--size '%s' is too little to measure: 1M "
						      "at least",
						      optarg);
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
	if (!ret && !test->n)
		ret = cli_usage_error("selftest",
				      "say what is to be tested: --cuda, --opencl or both");
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
static int copy(struct selftest *test, size_t at, unsigned char *memory, const char *what,
		struct rates *rates)
{
	uint64_t to_device[COPIES], to_host[COPIES], start;
	const struct consumer_ops *ops = test->ops[at];
	struct consumer *c = &test->consumers[at];
	const char *problem = NULL;
	int i;

	memcpy(memory, test->plain, test->bytes);
	for (i = 0; i < COPIES && !problem; i++) {
		start = now_ns();
		problem = ops->write(c, memory, test->bytes);
		to_device[i] = now_ns() - start;
	}
	if (problem) {
		cli_error("%s: copying %s to the device: %s", c->name, what, problem);
		return CLI_FAILED;
	}
	memset(memory, 0, test->bytes);
	for (i = 0; i < COPIES && !problem; i++) {
		start = now_ns();
		problem = ops->read(c, memory, test->bytes);
		to_host[i] = now_ns() - start;
	}
	if (problem) {
		cli_error("%s: copying %s from the device: %s", c->name, what, problem);
		return CLI_FAILED;
	}
	if (memcmp(memory, test->plain, test->bytes)) {
		cli_error("wrong data: %s came back from the %s device changed", what, c->name);
		return CLI_FAILED;
	}
	rates->to_device = rate(test->bytes, to_device);
	rates->to_host = rate(test->bytes, to_host);
	printf("  %-6s %-16s %8.2f GB/s to the device, %8.2f GB/s back\n", c->name, what,
	       rates->to_device, rates->to_host);
	return CLI_OK;
}

/* ---- The test ------------------------------------------------------------------------- */

/* Of the pool's memory, as @c copies it, beside what copies at @rates. A CLI_* status. */
static int verdict(const struct consumer *c, const struct rates *rates, const char *whose)
{
	double to_device = c->pool_rates.to_device / rates->to_device;
	double to_host = c->pool_rates.to_host / rates->to_host;

	if (c->is_cpu) {
		printf("right: %s brings the pool's memory back as it was; no verdict from rates, "
		       "since the device is a CPU\n",
		       c->name);
		return CLI_OK;
	}
	if (to_device < RATE_LEAST || to_host < RATE_LEAST) {
		cli_error("unpinned: %s copies the pool's memory at %.2f of the rate of %s to the "
			  "device, and at %.2f back: less than %.2f is as if it were not pinned",
			  c->name, to_device, whose, to_host, RATE_LEAST);
		return CLI_FAILED;
	}
	printf("pinned: %s at %.2f of the rate of %s to the device, %.2f back\n", c->name,
	       to_device, whose, to_host);
	return CLI_OK;
}

static int verdicts(const struct selftest *test)
{
	const struct consumer *c = test->consumers;
	int ret = CLI_OK;
	size_t i;

	for (i = 0; i < test->n; i++)
		ret |= verdict(&c[i], &c[i].other_rates, c[i].other_name);
	/* What one device does by two ways it does as fast by both. */
	if (test->n == 2 && !strcmp(c[0].device, c[1].device))
		for (i = 0; i < 2; i++)
			if (!c[i].is_cpu)
				ret |= verdict(&c[i], &c[!i].pool_rates, c[!i].name);
	return ret;
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
static int test_pool(struct selftest *test, struct binpool *pool)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};
	struct binpool_stats stats = {.size = sizeof(stats)};
	unsigned char *buffer = binpool_alloc(pool, test->bytes);
	int ret = CLI_OK;
	size_t i;

	if (!buffer) {
		cli_error("cannot get a buffer of %" PRIu64 " bytes: %s%s", test->bytes,
			  binpool_last_error(), cli_way_out(test->provider, errno));
		return CLI_FAILED;
	}
	if (binpool_query(buffer, &info) || binpool_get_stats(pool, &stats)) {
		cli_error("cannot say what the buffer is: %s", binpool_last_error());
		ret = CLI_FAILED;
	} else {
		print_memory(&stats, &info);
	}
	for (i = 0; i < test->n && !ret; i++) {
		ret = test->ops[i]->look(&test->consumers[i], pool, buffer, test->bytes);
		if (!ret)
			ret = copy(test, i, buffer, "pool", &test->consumers[i].pool_rates);
	}
	if (!ret)
		ret = verdicts(test);
	if (binpool_free(pool, buffer) && !ret) {
		cli_error("cannot free the buffer: %s", binpool_last_error());
		ret = CLI_FAILED;
	}
	return ret;
}

/* All of the consumers have the pool, beginning with number @first. */
static int with_pool(struct selftest *test, size_t first)
{
	struct binpool_options options = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;
	uint64_t id;
	int ret = CLI_OK;
	size_t i;

	options.name = "binpool selftest";
	options.provider = test->provider;
	options.max_bytes = cli_max_bytes(test->provider, test->bytes);
	if (binpool_create(&pool, &options)) {
		cli_error("cannot make a pool with provider %s: %s",
			  binpool_provider_name(test->provider), binpool_last_error());
		return CLI_FAILED;
	}
	if (test->n > 1)
		printf("%s first:\n", test->consumers[first].name);
	for (i = 0; i < test->n && !ret; i++) {
		size_t at = (first + i) % test->n;

		if (test->ops[at]->attach(&test->consumers[at], pool, &id)) {
			cli_error("cannot have the pool registered with %s%s: %s",
				  test->consumers[at].name, i ? " too" : "", binpool_last_error());
			ret = CLI_FAILED;
		}
	}
	if (!ret)
		ret = test_pool(test, pool);
	if (binpool_destroy(pool) && !ret) {
		cli_error("cannot end the pool: %s", binpool_last_error());
		ret = CLI_FAILED;
	}
	return ret;
}

/* Ordinary memory with a pattern; NULL, said. */
static unsigned char *make_plain(uint64_t bytes)
{
	unsigned char *plain = malloc(bytes);
	uint64_t i, word;

	if (!plain)
		cli_error("no memory for %" PRIu64 " bytes to compare with", bytes);
	for (i = 0; plain && i < bytes; i += sizeof(word)) {
		word = (i + 1) * 0x9e3779b97f4a7c15;
		memcpy(plain + i, &word, bytes - i < sizeof(word) ? bytes - i : sizeof(word));
	}
	return plain;
}

/* How fast memory is that is not the pool's. */
static int compare_with(struct selftest *test, size_t at)
{
	struct consumer *c = &test->consumers[at];
	struct rates ordinary;
	unsigned char *memory;
	int ret = copy(test, at, c->other, c->other_name, &c->other_rates);

	if (ret)
		return ret;
	memory = malloc(test->bytes);
	if (!memory) {
		cli_error("no memory for %" PRIu64 " bytes to compare with", test->bytes);
		return CLI_FAILED;
	}
	ret = copy(test, at, memory, "ordinary memory", &ordinary);
	free(memory);
	return ret;
}

int selftest_main(int argc, char **argv)
{
	struct selftest test = {.provider = BINPOOL_PROVIDER_AUTO, .bytes = BYTES_DEFAULT};
	int done, ret = parse_options(argc, argv, &test, &done);
	size_t i, opened = 0;

	if (done)
		return ret;
	while (!ret && opened < test.n) {
		ret = test.ops[opened]->open(&test.consumers[opened], test.which[opened],
					     test.bytes);
		opened++;
	}
	if (!ret) {
		test.plain = make_plain(test.bytes);
		ret = test.plain ? CLI_OK : CLI_FAILED;
	}
	for (i = 0; i < test.n && !ret; i++)
		ret = compare_with(&test, i);
	/* A problem with one order is not in the way of the other. */
	done = ret;
	for (i = 0; i < test.n && !done; i++)
		ret |= with_pool(&test, i);
	for (i = 0; i < opened; i++)
		test.ops[i]->close(&test.consumers[i]);
	free(test.plain);
	return ret;
}
