// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pipeline of `binpool run`: one loop that waits on the ring alone. Reads
 * end there; the device's runtime, the checker and signals write to an eventfd
 * that the ring reads. Owns the ring, the slots' states and the order of things;
 * run.h says how slots are handed over. `stop_signal` and `signal_fd` are
 * written by the signal handler resp. before it is installed.
 */
#include <errno.h>
#include <inttypes.h>
#include <liburing.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <binpool_uring.h>

#include "cli.h"
#include "run.h"

#define FIXED_SLOTS_MAX 16384u

struct pipeline {
	struct run *run;
	struct io_uring ring;
	struct binpool_uring *fixed;
	struct checker *checker;
	size_t next_source;  /* whose chunks are being read */
	uint32_t busy_slots; /* not SLOT_FREE */
	uint32_t reads;	     /* in flight */
	uint64_t read_start; /* since when reads > 0 */
	int wake_fd;
	uint64_t wakes; /* where the ring puts the eventfd's count */
	int status;	/* CLI_*, 128 + signal: no new chunks */
};

static volatile sig_atomic_t stop_signal;
static int signal_fd;

void wake_main(int wake_fd)
{
	uint64_t one = 1;
	int error = errno;

	/* It can only fail when the count is full, and then the main thread is awake. */
	if (write(wake_fd, &one, sizeof(one)) < 0)
		errno = error;
}

static void on_signal(int number)
{
	stop_signal = number;
	wake_main(signal_fd);
}

/* The first signal stops the run in order, a second one at once. */
static void catch_signals(int wake_fd)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

	signal_fd = wake_fd;
	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

static void release_signals(void)
{
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
}

/* Keeps the first problem; what is on its way is waited for, nothing new is begun. */
static void fail(struct pipeline *pipeline, const char *problem)
{
	if (pipeline->status)
		return;
	progress_end(pipeline->run);
	cli_error("%s", problem);
	pipeline->status = CLI_FAILED;
}

/* ---- Reading ---------------------------------------------------------------- */

/*
 * io_uring_get_sqe cannot fail here: the ring has a place for each slot and the
 * eventfd, and each has at most one request in flight.
 */
static void listen_to_wakes(struct pipeline *pipeline)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&pipeline->ring);

	io_uring_prep_read(sqe, pipeline->wake_fd, &pipeline->wakes, sizeof(pipeline->wakes), 0);
	io_uring_sqe_set_data(sqe, &pipeline->wakes);
}

/* Asks for what is missing of the slot's chunk. */
static void read_more(struct pipeline *pipeline, struct slot *slot)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&pipeline->ring);
	struct source *source = slot->source;
	unsigned char *at = slot->in + slot->done;
	uint64_t length = slot->bytes - slot->done;
	int fd = source->plain_fd, fixed;

	/* O_DIRECT takes whole units only; the file's end cuts the answer short. */
	if (source->direct_fd >= 0) {
		fd = source->direct_fd;
		length = (length + source->align - 1) / source->align * source->align;
	}
	slot->asked = length;
	fixed = binpool_uring_find(pipeline->fixed, at, length);
	if (fixed >= 0) {
		io_uring_prep_read_fixed(sqe, fd, at, (unsigned int)length,
					 slot->offset + slot->done, fixed);
		pipeline->run->fixed_reads++;
	} else {
		io_uring_prep_read(sqe, fd, at, (unsigned int)length, slot->offset + slot->done);
		pipeline->run->plain_reads++;
	}
	io_uring_sqe_set_data(sqe, slot);
	if (!pipeline->reads++)
		pipeline->read_start = now_ns();
}

/* The source that the next chunk comes from, opened; NULL when all are read. */
static struct source *current_source(struct pipeline *pipeline)
{
	struct run *run = pipeline->run;
	struct source *source;

	while (!pipeline->status && pipeline->next_source < run->source_count) {
		source = &run->sources[pipeline->next_source];
		if (source->plain_fd < 0 && source_open(source, run->options.buffer_bytes)) {
			pipeline->status = CLI_FAILED;
			return NULL;
		}
		if (source->bytes)
			return source;
		source_close(source);
		pipeline->next_source++;
	}
	return NULL;
}

static void start_chunks(struct pipeline *pipeline)
{
	struct run *run = pipeline->run;
	struct source *source;
	struct slot *slot;
	uint32_t i;

	for (i = 0; i < run->options.depth; i++) {
		slot = &run->slots[i];
		if (atomic_load(&slot->state) != SLOT_FREE)
			continue;
		source = current_source(pipeline);
		if (!source)
			return;
		slot->source = source;
		slot->offset = source->next;
		slot->bytes = source->bytes - source->next;
		if (slot->bytes > run->options.buffer_bytes)
			slot->bytes = run->options.buffer_bytes;
		slot->done = 0;
		slot->problem[0] = '\0';
		source->next += slot->bytes;
		source->pending++;
		if (source->next == source->bytes)
			pipeline->next_source++;
		pipeline->busy_slots++;
		atomic_store(&slot->state, SLOT_READING);
		read_more(pipeline, slot);
	}
}

/* The last chunk of a file is through: it must still be the file it was. */
static void end_source(struct pipeline *pipeline, struct source *source)
{
	struct run *run = pipeline->run;
	char text[PROBLEM_LEN];

	if (!pipeline->status && source_changed_size(source, text))
		fail(pipeline, text);
	if (source->buffered_why[0]) {
		run->buffered_files++;
		if (!run->buffered_example)
			run->buffered_example = source;
	} else {
		run->direct_files++;
	}
	source_close(source);
}

static void end_slot(struct pipeline *pipeline, struct slot *slot)
{
	struct source *source = slot->source;

	atomic_store(&slot->state, SLOT_FREE);
	pipeline->busy_slots--;
	if (!--source->pending && source->next == source->bytes)
		end_source(pipeline, source);
}

/* 1 if the chunk @slot holds is the one that a test wants changed. */
static int has_fault(const struct run *run, const struct slot *slot, enum fault_place place)
{
	return run->fault.place == place && slot->source == &run->sources[0] &&
	       run->fault.offset >= slot->offset && run->fault.offset - slot->offset < slot->bytes;
}

/* The file ended before its chunk did, or its read failed. */
static void read_failed(struct pipeline *pipeline, struct slot *slot, int error)
{
	if (!source_changed_size(slot->source, slot->problem))
		snprintf(slot->problem, sizeof(slot->problem), "cannot read %s at %" PRIu64 ": %s",
			 slot->source->path, slot->offset + slot->done,
			 error ? strerror(error) : "it ends there");
	fail(pipeline, slot->problem);
	end_slot(pipeline, slot);
}

static void read_ended(struct pipeline *pipeline, struct slot *slot, int result)
{
	static const struct fault no_fault;
	struct run *run = pipeline->run;
	struct source *source = slot->source;

	if (!--pipeline->reads)
		run->disk_ns += now_ns() - pipeline->read_start;
	if (pipeline->status) {
		end_slot(pipeline, slot);
		return;
	}
	if (result == -EINTR || result == -EAGAIN) {
		read_more(pipeline, slot);
		return;
	}
	/* Some file systems take the flag and refuse only the read. */
	if ((result == -EINVAL || result == -EOPNOTSUPP) && source->direct_fd >= 0) {
		source_refuse_direct(source, -result);
		read_more(pipeline, slot);
		return;
	}
	if (result < 0) {
		read_failed(pipeline, slot, -result);
		return;
	}
	/* A short answer before the end must leave the rest where O_DIRECT can begin. */
	if (slot->done + (uint64_t)result < slot->bytes && source->direct_fd >= 0)
		result -= (int)((uint64_t)result % source->align);
	if (!result) {
		read_failed(pipeline, slot, 0);
		return;
	}
	slot->done += (uint64_t)result;
	if (slot->done < slot->bytes) {
		read_more(pipeline, slot);
		return;
	}
	if (run->device.ops->start(&run->device, slot,
				   has_fault(run, slot, FAULT_DEVICE) ? &run->fault : &no_fault)) {
		fail(pipeline, slot->problem);
		end_slot(pipeline, slot);
	}
}

/* ---- What comes back ------------------------------------------------------------ */

static void slot_back(struct pipeline *pipeline, struct slot *slot)
{
	struct run *run = pipeline->run;

	if (run->device.ops->finish(&run->device, slot))
		fail(pipeline, slot->problem);
	if (pipeline->status) {
		end_slot(pipeline, slot);
		return;
	}
	if (has_fault(run, slot, FAULT_BACK))
		slot->out[run->fault.offset - slot->offset] ^= 1;
	atomic_store(&slot->state, SLOT_CHECKING);
	checker_put(pipeline->checker, slot);
}

static void slot_checked(struct pipeline *pipeline, struct slot *slot)
{
	if (slot->problem[0])
		fail(pipeline, slot->problem);
	else
		pipeline->run->verified_bytes += slot->bytes;
	end_slot(pipeline, slot);
}

static void look_at_slots(struct pipeline *pipeline)
{
	struct run *run = pipeline->run;
	uint32_t i;

	for (i = 0; i < run->options.depth; i++) {
		switch (atomic_load(&run->slots[i].state)) {
		case SLOT_BACK:
			slot_back(pipeline, &run->slots[i]);
			break;
		case SLOT_CHECKED:
			slot_checked(pipeline, &run->slots[i]);
			break;
		default:
			break;
		}
	}
}

/* ---- The loop --------------------------------------------------------------------- */

static void look_at_completions(struct pipeline *pipeline)
{
	struct run *run = pipeline->run;
	struct io_uring_cqe *cqe;
	void *data;
	int result;

	while (!io_uring_peek_cqe(&pipeline->ring, &cqe)) {
		data = io_uring_cqe_get_data(cqe);
		result = cqe->res;
		io_uring_cqe_seen(&pipeline->ring, cqe);
		if (data == &pipeline->wakes) {
			listen_to_wakes(pipeline);
			look_at_slots(pipeline);
		} else if ((struct slot *)data >= run->slots &&
			   (struct slot *)data < run->slots + run->options.depth) {
			read_ended(pipeline, data, result);
		}
	}
}

static void loop(struct pipeline *pipeline)
{
	int ret;

	listen_to_wakes(pipeline);
	for (;;) {
		if (stop_signal && !pipeline->status)
			pipeline->status = 128 + stop_signal;
		if (!pipeline->status)
			start_chunks(pipeline);
		if (!pipeline->busy_slots)
			return;
		ret = io_uring_submit_and_wait(&pipeline->ring, 1);
		if (ret < 0 && ret != -EINTR && ret != -EAGAIN && ret != -EBUSY) {
			/* Reads in flight write into the buffers: nothing can be undone safely. */
			cli_error("io_uring failed: %s", strerror(-ret));
			_exit(CLI_FAILED);
		}
		look_at_completions(pipeline);
		progress_show(pipeline->run);
	}
}

/* One fixed buffer for each extent: no more of them than buffers, cut at every GiB. */
static uint32_t fixed_slots(const struct run *run)
{
	uint64_t buffers = 2 * (uint64_t)run->options.depth;
	uint64_t gibs = (buffers * run->options.buffer_bytes) >> 30;
	uint64_t slots = 2 * (buffers + gibs) + 1;

	return slots < FIXED_SLOTS_MAX ? (uint32_t)slots : FIXED_SLOTS_MAX;
}

static int open_ring(struct pipeline *pipeline)
{
	struct run *run = pipeline->run;
	int ret = io_uring_queue_init(run->options.depth + 1, &pipeline->ring, 0);

	if (ret) {
		cli_error("io_uring is not to be had here: %s%s", strerror(-ret),
			  ret == -ENOSYS || ret == -EPERM
				  ? " (kernel.io_uring_disabled, or a container's seccomp rules, "
				    "may forbid it)"
				  : "");
		return CLI_FAILED;
	}
	ret = binpool_uring_attach(run->pool, &pipeline->ring, fixed_slots(run), &pipeline->fixed);
	if (ret) {
		cli_error("cannot attach io_uring to the pool: %s", binpool_last_error());
		io_uring_queue_exit(&pipeline->ring);
		return CLI_FAILED;
	}
	ret = binpool_uring_sync(pipeline->fixed);
	snprintf(run->plain_why, sizeof(run->plain_why), "%s",
		 ret < 0 ? binpool_last_error() : binpool_uring_reason(pipeline->fixed));
	return CLI_OK;
}

int pipeline_run(struct run *run)
{
	struct pipeline pipeline = {.run = run};
	uint32_t i;
	int ret;

	pipeline.wake_fd = eventfd(0, EFD_CLOEXEC);
	if (pipeline.wake_fd < 0) {
		cli_error("cannot make an eventfd: %s", strerror(errno));
		return CLI_FAILED;
	}
	for (i = 0; i < run->options.depth; i++)
		run->slots[i].wake_fd = pipeline.wake_fd;
	ret = open_ring(&pipeline);
	if (ret)
		return ret;
	ret = checker_start(&pipeline.checker, &run->options, run->device.items);
	if (ret)
		goto close_ring;
	catch_signals(pipeline.wake_fd);
	run->start_ns = now_ns();
	loop(&pipeline);
	run->end_ns = now_ns();
	progress_end(run);
	release_signals();
	run->check_ns = checker_stop(pipeline.checker);
	ret = pipeline.status;
	if (ret > 128)
		cli_error("interrupted: %" PRIu64 " of %" PRIu64 " bytes were verified",
			  run->verified_bytes, run->total_bytes);
	for (i = 0; i < run->source_count; i++)
		source_close(&run->sources[i]);
close_ring:
	binpool_uring_detach(pipeline.fixed);
	io_uring_queue_exit(&pipeline.ring);
	/*
	 * The eventfd stays open: the runtime's callback may still be about to
	 * write to it, for a slot whose state has told everything already.
	 */
	return ret;
}
