// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * binpool run: the options, and the making and ending of what the pipeline
 * works with: files, device, pool, slots. Main thread only.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "run.h"

#define BUFFER_BYTES_DEFAULT ((uint64_t)4 << 20)
#define BUFFER_BYTES_MAX     ((uint64_t)1 << 30) /* the most that io_uring takes as one buffer */
#define DEPTH_DEFAULT	     8
#define DEPTH_MAX	     1024
#define FAULT_VARIABLE	     "BINPOOL_TEST_CORRUPT"

static void print_help(void)
{
	printf("Usage: binpool run [OPTION]... FILE...\n"
	       "Read each FILE into pool buffers with io_uring and O_DIRECT, move them to an OpenCL\n"
	       "or CUDA device, sum them there, move them back, and compare sums and bytes with an\n"
	       "ordinary read of FILE.\n\n"
	       "  --provider WHICH    where memory comes from: auto (default), device, hugetlb, thp\n"
	       "  --buffer-size SIZE  of one buffer, a multiple of the page size (default 4M)\n"
	       "  --depth N           buffers on their way at once, 1 to %d (default %d)\n"
	       "  --max-bytes SIZE    bound on what the pool takes (default: with auto twice what "
	       "the\n"
	       "                      buffers need, else what the provider allows)\n"
	       "  --device opencl[:NAME]\n"
	       "                      a device with NAME in its name (default: any, GPUs first)\n"
	       "  --device cuda[:N]   CUDA's device N (0)\n"
	       "  --allow-unregistered\n"
	       "                      go on, slower, with memory that the device does not take as "
	       "pinned\n"
	       "  --no-progress       no bar, also on a terminal\n"
	       "  --quiet             only the last line\n\n"
	       "Exit status: 0 all verified, 1 wrong data or another failure, 2 usage,\n"
	       "128 + signal when interrupted.\n",
	       DEPTH_MAX, DEPTH_DEFAULT);
}

/* ---- Options ------------------------------------------------------------------- */

static int parse_buffer_size(const char *text, uint64_t *bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	int ret = cli_parse_size(text, bytes);

	if (ret)
		return cli_usage_error("run", "--buffer-size '%s' %s", text,
				       cli_parse_problem(ret));
	if (!*bytes || *bytes % page || *bytes > BUFFER_BYTES_MAX)
		return cli_usage_error("run",
				       "--buffer-size '%s' is not a multiple of the page size, "
				       "%" PRIu64 " bytes, up to %" PRIu64,
				       text, page, BUFFER_BYTES_MAX);
	return CLI_OK;
}

static int parse_depth(const char *text, uint32_t *depth)
{
	uint64_t value;

	if (cli_parse_u64(text, &value) || !value || value > DEPTH_MAX)
		return cli_usage_error("run", "--depth '%s' is not 1 to %d", text, DEPTH_MAX);
	*depth = (uint32_t)value;
	return CLI_OK;
}

static int parse_device(const char *text, struct run_options *run)
{
	static const struct device_ops *const kinds[] = {&device_opencl, &device_cuda};
	uint64_t number;
	size_t i, length;

	for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		length = strlen(kinds[i]->kind);
		if (strncmp(text, kinds[i]->kind, length) || (text[length] && text[length] != ':'))
			continue;
		run->device = kinds[i];
		run->device_name = text[length] && text[length + 1] ? text + length + 1 : NULL;
		if (run->device == &device_cuda && run->device_name &&
		    cli_parse_u64(run->device_name, &number))
			break;
		return CLI_OK;
	}
	return cli_usage_error("run", "--device '%s' is not opencl, opencl:NAME, cuda or cuda:N",
			       text);
}

static int parse_max_bytes(const char *text, uint64_t *bytes)
{
	int ret = cli_parse_size(text, bytes);
	char number[24];

	if (!ret && *bytes) {
		/* As a number: a leading 0 means octal there. */
		snprintf(number, sizeof(number), "%" PRIu64, *bytes);
		return cli_pool_option("max_bytes", number);
	}
	return cli_usage_error("run", "--max-bytes '%s' %s", text,
			       ret ? cli_parse_problem(ret) : "leaves nothing");
}

/* *done: there is nothing to do but to end with the status that is returned. */
static int parse_options(int argc, char **argv, struct run_options *run, int *done)
{
	static const struct option options[] = {
		{"provider", required_argument, NULL, 'p'},
		{"buffer-size", required_argument, NULL, 'b'},
		{"depth", required_argument, NULL, 'd'},
		{"device", required_argument, NULL, 'D'},
		{"max-bytes", required_argument, NULL, 'm'},
		{"allow-unregistered", no_argument, NULL, 'u'},
		{"no-progress", no_argument, NULL, 'n'},
		{"quiet", no_argument, NULL, 'q'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	int option, ret = CLI_OK;

	opterr = 0;
	*done = 1;
	while (!ret && (option = getopt_long(argc, argv, ":p:b:d:m:qh", options, NULL)) != -1) {
		switch (option) {
		case 'p':
			ret = cli_parse_provider("run", optarg, &run->provider);
			break;
		case 'b':
			ret = parse_buffer_size(optarg, &run->buffer_bytes);
			break;
		case 'd':
			ret = parse_depth(optarg, &run->depth);
			break;
		case 'D':
			ret = parse_device(optarg, run);
			break;
		case 'm':
			ret = parse_max_bytes(optarg, &run->max_bytes);
			break;
		case 'u':
			run->attach_flags = BINPOOL_REGISTRAR_OPTIONAL;
			break;
		case 'n':
			run->progress = 0;
			break;
		case 'q':
			run->quiet = 1;
			run->progress = 0;
			break;
		case 'h':
			print_help();
			return CLI_OK;
		default:
			ret = cli_option_error("run", option, argv);
			break;
		}
	}
	if (!ret && optind == argc)
		ret = cli_usage_error("run", "no FILE was named");
	*done = ret != CLI_OK;
	return ret;
}

/* Never silent: a run with a fault must not pass for one without. */
static int parse_fault(struct fault *fault)
{
	const char *text = getenv(FAULT_VARIABLE), *offset;

	if (!text)
		return CLI_OK;
	if (!strncmp(text, "device:", 7))
		fault->place = FAULT_DEVICE;
	else if (!strncmp(text, "back:", 5))
		fault->place = FAULT_BACK;
	offset = strchr(text, ':');
	if (fault->place == FAULT_NONE || cli_parse_u64(offset + 1, &fault->offset))
		return cli_usage_error(
			"run", FAULT_VARIABLE " '%s' is not device:OFFSET or back:OFFSET", text);
	fprintf(stderr, "binpool: " FAULT_VARIABLE " is set: a byte will be changed on purpose\n");
	return CLI_OK;
}

/* ---- Making and ending ------------------------------------------------------------ */

static int init_sources(struct run *run, char **paths, int count)
{
	int i, ret = CLI_OK;

	run->sources = calloc((size_t)count, sizeof(*run->sources));
	if (!run->sources) {
		cli_error("no memory for %d files' records", count);
		return CLI_FAILED;
	}
	run->source_count = (size_t)count;
	/* All that cannot be read are named, not only the first. */
	for (i = 0; i < count; i++) {
		if (source_init(&run->sources[i], paths[i]))
			ret = CLI_FAILED;
		run->total_bytes += run->sources[i].bytes;
	}
	return ret;
}

/* What all slots' buffers take. */
static uint64_t slots_bytes(const struct run *run)
{
	uint64_t partials = run->device.items * sizeof(uint64_t);

	return run->options.depth * (2 * run->options.buffer_bytes + partials);
}

static int open_pool(struct run *run, uint64_t *id)
{
	struct binpool_options options = BINPOOL_OPTIONS_INIT;
	int ret;

	options.name = "binpool run";
	options.provider = run->options.provider;
	options.max_bytes = run->options.max_bytes;
	if (!options.max_bytes)
		options.max_bytes = cli_max_bytes(options.provider, slots_bytes(run));
	ret = binpool_create(&run->pool, &options);
	if (ret) {
		cli_error("cannot make a pool with provider %s: %s",
			  binpool_provider_name(run->options.provider), binpool_last_error());
		return CLI_FAILED;
	}
	ret = run->device.ops->attach(&run->device, run->pool, run->options.attach_flags, id);
	if (ret) {
		cli_error("cannot attach %s device '%s' to the pool: %s", run->device.ops->kind,
			  run->device.name, binpool_last_error());
		binpool_destroy(run->pool);
		run->pool = NULL;
		return CLI_FAILED;
	}
	return CLI_OK;
}

static void *get_buffer(struct run *run, uint64_t bytes)
{
	void *buffer = binpool_alloc_aligned(run->pool, bytes, (size_t)sysconf(_SC_PAGESIZE));

	if (!buffer)
		cli_error("cannot get a buffer of %" PRIu64 " bytes; --depth %" PRIu32
			  " and --buffer-size want %" PRIu64 " MiB in all: %s%s",
			  bytes, run->options.depth, (slots_bytes(run) >> 20) + 1,
			  binpool_last_error(), cli_way_out(run->options.provider, errno));
	return buffer;
}

static int init_slots(struct run *run)
{
	uint64_t bytes = run->options.buffer_bytes;
	struct slot *slot;
	uint32_t i;

	run->slots = calloc(run->options.depth, sizeof(*run->slots));
	if (!run->slots) {
		cli_error("no memory for %" PRIu32 " slots", run->options.depth);
		return CLI_FAILED;
	}
	/*
	 * One extent for all is best, since it is registered at once; where
	 * there is none so large, the buffers come from several.
	 */
	(void)binpool_reserve(run->pool, slots_bytes(run));
	for (i = 0; i < run->options.depth; i++) {
		slot = &run->slots[i];
		slot->in = get_buffer(run, bytes);
		slot->out = slot->in ? get_buffer(run, bytes) : NULL;
		slot->partials =
			slot->out ? get_buffer(run, run->device.items * sizeof(uint64_t)) : NULL;
		if (!slot->partials || run->device.ops->init_slot(&run->device, slot, bytes))
			return CLI_FAILED;
	}
	return CLI_OK;
}

static int exit_slots(struct run *run)
{
	struct slot *slot;
	uint32_t i;
	int ret = 0;

	for (i = 0; run->slots && i < run->options.depth; i++) {
		slot = &run->slots[i];
		run->device.ops->exit_slot(slot);
		ret |= binpool_free(run->pool, slot->partials);
		ret |= binpool_free(run->pool, slot->out);
		ret |= binpool_free(run->pool, slot->in);
	}
	free(run->slots);
	return ret;
}

/* Ends the pool; a problem with that is one of the run. */
static int close_pool(struct run *run, uint64_t id)
{
	int ret = exit_slots(run);

	if (!ret)
		ret = binpool_remove_registrar(run->pool, id);
	if (!ret)
		ret = binpool_destroy(run->pool);
	if (!ret)
		return CLI_OK;
	cli_error("cannot end the pool: %s", binpool_last_error());
	return CLI_FAILED;
}

static int run_sources(struct run *run)
{
	uint64_t id;
	int status, ret = open_pool(run, &id);

	if (ret)
		return ret;
	status = init_slots(run);
	if (!status)
		status = pipeline_run(run);
	if (!status)
		status = summary_print(run);
	ret = close_pool(run, id);
	return status ? status : ret;
}

int run_main(int argc, char **argv)
{
	struct run run = {
		.options =
			{
				.provider = BINPOOL_PROVIDER_AUTO,
				.buffer_bytes = BUFFER_BYTES_DEFAULT,
				.depth = DEPTH_DEFAULT,
				.device = &device_opencl,
				.progress = isatty(STDERR_FILENO),
			},
	};
	int done, ret = parse_options(argc, argv, &run.options, &done);

	if (done)
		return ret;
	ret = parse_fault(&run.fault);
	if (!ret)
		ret = init_sources(&run, argv + optind, argc - optind);
	if (!ret && run.fault.place != FAULT_NONE && run.fault.offset >= run.sources[0].bytes)
		ret = cli_usage_error("run", FAULT_VARIABLE " lies beyond the first file's end");
	if (!ret) {
		run.device.ops = run.options.device;
		ret = run.device.ops->open(&run.device, run.options.device_name, &run.options);
		if (!ret)
			ret = run_sources(&run);
		run.device.ops->close(&run.device);
	}
	free(run.sources);
	return ret;
}
