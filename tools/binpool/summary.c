// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What `binpool run` shows: a bar while it works, and a summary at the end.
 * Main thread only; owns when the bar was last drawn.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include <linux/binpool.h>

#include "cli.h"
#include "run.h"

#define BAR_WIDTH	   32
#define BAR_INTERVAL_NS	   100000000u
#define NS_PER_SECOND	   1e9
#define BYTES_PER_GIGABYTE 1e9

static uint64_t last_drawn_ns;

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- The bar ---------------------------------------------------------------- */

void progress_show(const struct run *run)
{
	char bar[BAR_WIDTH + 1];
	uint64_t now;
	double part, seconds;
	int filled;

	if (!run->options.progress)
		return;
	now = now_ns();
	if (now - last_drawn_ns < BAR_INTERVAL_NS)
		return;
	last_drawn_ns = now;
	part = run->total_bytes ? (double)run->verified_bytes / (double)run->total_bytes : 1;
	seconds = (double)(now - run->start_ns) / NS_PER_SECOND;
	filled = (int)(part * BAR_WIDTH);
	memset(bar, ' ', BAR_WIDTH);
	memset(bar, '=', (size_t)filled);
	bar[BAR_WIDTH] = '\0';
	fprintf(stderr, "\r[%s] %3d %%  %.2f GB/s ", bar, (int)(part * 100),
		(double)run->verified_bytes / BYTES_PER_GIGABYTE / seconds);
}

/* Clears the bar's line, so that what follows stands alone. */
void progress_end(const struct run *run)
{
	if (run->options.progress && last_drawn_ns)
		fprintf(stderr, "\r\033[K");
	last_drawn_ns = 0;
}

/* ---- The summary --------------------------------------------------------------- */

static void print_rate(const char *stage, uint64_t bytes, uint64_t ns, const char *how)
{
	printf("  %-16s ", stage);
	if (bytes && ns)
		printf("%8.3f GB/s",
		       (double)bytes / BYTES_PER_GIGABYTE / ((double)ns / NS_PER_SECOND));
	else
		printf("%8s     ", "-");
	printf("%s%s\n", *how ? "  " : "", how);
}

static void print_stages(const struct run *run)
{
	char how[512], device[192];

	snprintf(how, sizeof(how), "%s, %" PRIu64 " reads into fixed buffers, %" PRIu64 " plain",
		 run->direct_files && run->buffered_files ? "O_DIRECT and buffered"
		 : run->buffered_files			  ? "buffered"
							  : "O_DIRECT",
		 run->fixed_reads, run->plain_reads);
	snprintf(device, sizeof(device), "of %s", run->device.name);
	print_rate("disk", run->verified_bytes, run->disk_ns, how);
	print_rate("host to device", run->verified_bytes, run->device.write_ns, "");
	print_rate("checksum kernel", run->verified_bytes, run->device.kernel_ns, device);
	print_rate("device to host", run->verified_bytes, run->device.back_ns, "");
	print_rate("check", run->verified_bytes, run->check_ns,
		   "ordinary read, checksum and comparison on the CPU");
	print_rate("all together", run->verified_bytes, run->end_ns - run->start_ns, "");
	if (run->buffered_files)
		printf("  buffered         %zu of %zu files; %s: %s\n", run->buffered_files,
		       run->direct_files + run->buffered_files, run->buffered_example->path,
		       run->buffered_example->buffered_why);
	if (run->plain_reads && run->plain_why[0])
		printf("  not fixed        %s\n", run->plain_why);
}

/* What the module says of all blocks behind the run's buffers. */
struct blocks {
	uint64_t run_max_bytes, huge_faults, small_faults;
	size_t count;
};

/* Adds the block behind @ptr, unless it is the one in *@last_fd already. */
static void add_block(const struct run *run, const void *ptr, struct blocks *blocks, int *last_fd)
{
	struct binpool_buf info = {.size = sizeof(info)};
	struct binpool_query query = {.size = sizeof(query)};

	if (binpool_buf_info(run->pool, ptr, &info) || info.extent_fd < 0 ||
	    info.extent_fd == *last_fd || ioctl(info.extent_fd, BINPOOL_IOC_QUERY, &query))
		return;
	*last_fd = info.extent_fd;
	blocks->count++;
	blocks->huge_faults += query.huge_faults;
	blocks->small_faults += query.small_faults;
	if (query.run_max_bytes > blocks->run_max_bytes)
		blocks->run_max_bytes = query.run_max_bytes;
}

static void print_contiguity(const struct run *run, const struct binpool_stats *stats)
{
	struct blocks blocks = {0};
	char units[CLI_UNITS_LEN];
	int last_fd = -1;
	uint32_t i;

	if (!stats->runs) {
		printf("  contiguity       unknown: only the kernel module tells it\n");
		return;
	}
	printf("  contiguity       %" PRIu64 " runs in %" PRIu64 " extents", stats->runs,
	       stats->extents);
	for (i = 0; i < run->options.depth; i++) {
		add_block(run, run->slots[i].in, &blocks, &last_fd);
		add_block(run, run->slots[i].out, &blocks, &last_fd);
	}
	if (blocks.count)
		printf(", the largest run %s; page faults: %" PRIu64 " huge, %" PRIu64 " small",
		       cli_units(blocks.run_max_bytes, units), blocks.huge_faults,
		       blocks.small_faults);
	putchar('\n');
}

static void print_memory(const struct run *run, const struct binpool_stats *stats)
{
	char units[CLI_UNITS_LEN];

	/* Why it is this one and no better one is in the pool's report. */
	printf("  provider         %s\n", binpool_provider_name(stats->provider));
	printf("  page size        %s, as mapped\n", cli_units(stats->page_bytes, units));
	print_contiguity(run, stats);
	printf("  registrations    %" PRIu64 " made while it ran, in %.3f ms; %s of extents\n",
	       stats->registration_allocs, (double)stats->registration_ns / 1e6,
	       cli_units(stats->reserved_bytes, units));
}

static int print_report(struct binpool *pool)
{
	int length = binpool_report(pool, BINPOOL_REPORT_TABLE, NULL, 0);
	char *text = length < 0 ? NULL : malloc((size_t)length + 1);

	if (!text || binpool_report(pool, BINPOOL_REPORT_TABLE, text, (size_t)length + 1) < 0) {
		cli_error("cannot print the pool's report: %s",
			  length < 0 ? binpool_last_error() : strerror(ENOMEM));
		free(text);
		return CLI_FAILED;
	}
	printf("\n%s\n", text);
	free(text);
	return CLI_OK;
}

int summary_print(const struct run *run)
{
	struct binpool_stats stats = {.size = sizeof(stats)};
	char units[CLI_UNITS_LEN];
	int ret;

	if (!run->options.quiet) {
		ret = binpool_get_stats(run->pool, &stats);
		if (ret) {
			cli_error("cannot get the pool's statistics: %s", binpool_last_error());
			return CLI_FAILED;
		}
		printf("%zu file%s, %" PRIu64 " bytes (%s), in %.3f s\n", run->source_count,
		       run->source_count == 1 ? "" : "s", run->verified_bytes,
		       cli_units(run->verified_bytes, units),
		       (double)(run->end_ns - run->start_ns) / NS_PER_SECOND);
		print_stages(run);
		print_memory(run, &stats);
		ret = print_report(run->pool);
		if (ret)
			return ret;
	}
	printf("verified: %" PRIu64 " bytes in %zu file%s, checksums and bytes equal\n",
	       run->verified_bytes, run->source_count, run->source_count == 1 ? "" : "s");
	return CLI_OK;
}
