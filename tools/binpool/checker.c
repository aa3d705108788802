// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The checker of `binpool run`: a thread that reads each chunk once more with an
 * ordinary read(2) into ordinary memory, sums it on the CPU, and compares sum
 * and bytes with what the device gave back.
 *
 * `lock` protects the queue of slots and `stopping`; a slot itself belongs to
 * the thread from checker_put until it is SLOT_CHECKED (see run.h).
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "run.h"

struct checker {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct slot **queue; /* ring of `room` places */
	uint32_t room, head, count;
	int stopping;
	unsigned char *plain; /* the thread's own */
	size_t partials;
	uint64_t busy_ns;
};

/* The chunk by read(2). 0, or -1 with the slot's problem set. */
static int read_plain(struct slot *slot, unsigned char *plain)
{
	uint64_t done = 0;
	ssize_t got;

	while (done < slot->bytes) {
		got = pread(slot->source->plain_fd, plain + done, slot->bytes - done,
			    (off_t)(slot->offset + done));
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			if (source_changed_size(slot->source, slot->problem))
				return -1;
			snprintf(slot->problem, sizeof(slot->problem),
				 "cannot read %s at %" PRIu64 ": %s", slot->source->path,
				 slot->offset + done, got ? strerror(errno) : "it ends there");
			return -1;
		}
		done += (uint64_t)got;
	}
	return 0;
}

/* Says what differs, once it is known that something does. */
static void describe(struct slot *slot, const unsigned char *plain, uint64_t expected, uint64_t got)
{
	uint64_t i, first = 0, differing = 0;
	int length;

	if (source_changed_size(slot->source, slot->problem))
		return;
	for (i = 0; i < slot->bytes; i++) {
		if (plain[i] != slot->out[i] && !differing++)
			first = i;
	}
	length = snprintf(slot->problem, sizeof(slot->problem),
			  "wrong data: %s, bytes %" PRIu64 " to %" PRIu64
			  ": checksum on the device %016" PRIx64 ", of the file %016" PRIx64,
			  slot->source->path, slot->offset, slot->offset + slot->bytes - 1, got,
			  expected);
	if (differing && length > 0 && (size_t)length < sizeof(slot->problem))
		length += snprintf(slot->problem + length, sizeof(slot->problem) - (size_t)length,
				   "; %" PRIu64 " byte%s came back changed, the first at %" PRIu64
				   ": %02x instead of %02x",
				   differing, differing == 1 ? "" : "s", slot->offset + first,
				   slot->out[first], plain[first]);
	if (source_was_modified(slot->source) && length > 0 &&
	    (size_t)length < sizeof(slot->problem))
		snprintf(slot->problem + length, sizeof(slot->problem) - (size_t)length,
			 "; the file was modified while it was read");
}

static void check(struct checker *checker, struct slot *slot)
{
	uint64_t expected, got = 0;
	size_t i;

	if (read_plain(slot, checker->plain))
		return;
	expected = checksum(checker->plain, slot->bytes, slot->offset);
	for (i = 0; i < checker->partials; i++)
		got += slot->partials[i];
	if (got != expected || memcmp(slot->out, checker->plain, slot->bytes))
		describe(slot, checker->plain, expected, got);
}

static void *checker_main(void *arg)
{
	struct checker *checker = arg;
	struct slot *slot;
	uint64_t start;

	for (;;) {
		pthread_mutex_lock(&checker->lock);
		while (!checker->count && !checker->stopping)
			pthread_cond_wait(&checker->changed, &checker->lock);
		if (!checker->count) {
			pthread_mutex_unlock(&checker->lock);
			return NULL;
		}
		slot = checker->queue[checker->head];
		checker->head = (checker->head + 1) % checker->room;
		checker->count--;
		pthread_mutex_unlock(&checker->lock);

		start = now_ns();
		check(checker, slot);
		checker->busy_ns += now_ns() - start;
		atomic_store(&slot->state, SLOT_CHECKED);
		wake_main(slot->wake_fd);
	}
}

int checker_start(struct checker **out, const struct run_options *options, size_t partials)
{
	struct checker *checker = calloc(1, sizeof(*checker));
	int ret = ENOMEM;

	if (!checker)
		goto fail;
	checker->room = options->depth;
	checker->partials = partials;
	checker->queue = calloc(options->depth, sizeof(struct slot *));
	checker->plain = malloc(options->buffer_bytes);
	if (!checker->queue || !checker->plain)
		goto fail;
	pthread_mutex_init(&checker->lock, NULL);
	pthread_cond_init(&checker->changed, NULL);
	ret = pthread_create(&checker->thread, NULL, checker_main, checker);
	if (ret)
		goto fail;
	*out = checker;
	return CLI_OK;
fail:
	cli_error("cannot start the thread that checks: %s", strerror(ret));
	if (checker) {
		free(checker->queue);
		free(checker->plain);
	}
	free(checker);
	return CLI_FAILED;
}

void checker_put(struct checker *checker, struct slot *slot)
{
	pthread_mutex_lock(&checker->lock);
	checker->queue[(checker->head + checker->count++) % checker->room] = slot;
	pthread_cond_signal(&checker->changed);
	pthread_mutex_unlock(&checker->lock);
}

uint64_t checker_stop(struct checker *checker)
{
	uint64_t busy_ns;

	pthread_mutex_lock(&checker->lock);
	checker->stopping = 1;
	pthread_cond_signal(&checker->changed);
	pthread_mutex_unlock(&checker->lock);
	pthread_join(checker->thread, NULL);
	busy_ns = checker->busy_ns;
	pthread_cond_destroy(&checker->changed);
	pthread_mutex_destroy(&checker->lock);
	free(checker->queue);
	free(checker->plain);
	free(checker);
	return busy_ns;
}
