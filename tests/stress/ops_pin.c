// SPDX-License-Identifier: GPL-2.0
/*
 * Memory that is pinned when its block is closed: pages in a pipe, a buffer
 * registered with io_uring, direct I/O in flight. What is pinned must stay as it
 * was until the pin is gone. Pins are the thread's own.
 */
#include <liburing.h>
#include <sys/uio.h>

#include "stress.h"

static size_t pin_bytes(const struct pin *pin)
{
	return pin->pages * shared->page;
}

/* Each pin has its own part of the scratch file. */
static off_t scratch_at(const struct task *task, const struct pin *pin)
{
	return (off_t)((__u64)(pin - task->pins) * PIN_PAGES * shared->page);
}

static void ring_exit(struct pin *pin)
{
	io_uring_queue_exit(pin->ring);
	free(pin->ring);
	pin->ring = NULL;
}

static bool ring_init(struct pin *pin)
{
	pin->ring = calloc(1, sizeof(*pin->ring));
	if (pin->ring && !io_uring_queue_init(PIN_PAGES, pin->ring, 0))
		return true;
	free(pin->ring);
	pin->ring = NULL;
	return false;
}

/* The result of one completed request; which one it is in *@number. */
static int ring_wait(struct pin *pin, __u64 *number)
{
	struct io_uring_cqe *cqe;
	int ret;

	do {
		ret = io_uring_wait_cqe(pin->ring, &cqe);
	} while (ret == -EINTR);
	if (ret)
		return ret;
	ret = cqe->res;
	*number = io_uring_cqe_get_data64(cqe);
	io_uring_cqe_seen(pin->ring, cqe);
	return ret;
}

/* The pages, which were read or got otherwise, against what was pinned. */
static void compare(const struct pin *pin, const char *got, const char *how)
{
	for (unsigned int i = 0; i < pin->pages; i++) {
		const char *page = got + i * shared->page;
		size_t wrong = page_wrong_at(page, shared->page, pin->words[i]);
		char found[80], wanted[80];
		__u64 word;

		if (wrong == shared->page)
			continue;
		word = *(const __u64 *)(page + wrong);
		report(CHECK_DATA, "pinned %s: %#llx, %s; wanted %s", how, (unsigned long long)word,
		       canary_text(found, sizeof(found), word),
		       canary_text(wanted, sizeof(wanted),
				   pin->words[i] ? pin->words[i] + wrong / 8 : 0));
	}
}

static bool scratch_read(const struct task *task, const struct pin *pin)
{
	return pread(task->scratch, task->bounce, pin_bytes(pin), scratch_at(task, pin)) ==
	       (ssize_t)pin_bytes(pin);
}

static void pin_release(struct task *task, struct pin *pin)
{
	struct io_uring_sqe *sqe;
	__u64 i;
	int ret;

	switch (pin->kind) {
	case PIN_NONE:
		return;
	case PIN_PIPE:
		if (read(pin->ends[0], task->bounce, pin_bytes(pin)) == (ssize_t)pin_bytes(pin))
			compare(pin, task->bounce, "in a pipe");
		else
			report(CHECK_DATA, "pages are missing in a pipe");
		close(pin->ends[0]);
		close(pin->ends[1]);
		break;
	case PIN_RING:
		sqe = io_uring_get_sqe(pin->ring);
		io_uring_prep_write_fixed(sqe, task->scratch, pin->addr,
					  (unsigned int)pin_bytes(pin),
					  (__u64)scratch_at(task, pin), 0);
		io_uring_submit(pin->ring);
		ret = ring_wait(pin, &i);
		if (ret != (int)pin_bytes(pin))
			report(CHECK_DATA, "write from a registered buffer: %d", ret);
		else if (scratch_read(task, pin))
			compare(pin, task->bounce, "by registration");
		ring_exit(pin);
		break;
	case PIN_FLIGHT_READ:
	case PIN_FLIGHT_WRITE:
		for (; pin->waiting; pin->waiting--) {
			ret = ring_wait(pin, &i);
			/* The kernel may have put it off, and found the mapping gone. */
			if (ret == -EFAULT)
				pin->words[i] = PAGE_UNKNOWN;
			else if (ret != (int)shared->page)
				report(CHECK_DATA, "direct I/O in flight: %d", ret);
		}
		if (pin->kind == PIN_FLIGHT_WRITE && scratch_read(task, pin))
			compare(pin, task->bounce, "by a write in flight");
		ring_exit(pin);
		break;
	}
	pin->kind = PIN_NONE;
}

void pins_release(struct task *task)
{
	for (unsigned int i = 0; i < PINS; i++)
		pin_release(task, &task->pins[i]);
}

/* A free pin for a few known pages of @slot, which one of its mappings has. */
static struct pin *pin_prepare(struct task *task, struct slot *slot, bool to_write)
{
	struct view *view = slot_view(slot, &task->rng, to_write);
	struct pin *pin = &task->pins[below(&task->rng, PINS)];
	__u64 from;

	if (!view || pin->kind != PIN_NONE)
		return NULL;
	pin->pages = (unsigned int)(1 + below(&task->rng, PIN_PAGES));
	if (pin->pages > view->pages)
		pin->pages = (unsigned int)view->pages;
	from = view->from + below(&task->rng, view->pages - pin->pages + 1);
	pin->addr = view->addr + (from - view->from) * shared->page;
	memcpy(pin->words, slot->shadow + from, pin->pages * sizeof(pin->words[0]));
	return pin;
}

bool op_pipe(struct task *task, struct slot *slot)
{
	struct pin *pin = pin_prepare(task, slot, false);
	struct iovec part;

	if (!pin || pipe2(pin->ends, O_CLOEXEC))
		return false;
	part = (struct iovec){pin->addr, pin_bytes(pin)};
	if (vmsplice(pin->ends[1], &part, 1, 0) != (ssize_t)pin_bytes(pin)) {
		report(CHECK_DATA, "vmsplice: %s", strerror(errno));
		close(pin->ends[0]);
		close(pin->ends[1]);
		return false;
	}
	pin->kind = PIN_PIPE;
	slot_drop(slot);
	return true;
}

bool op_register(struct task *task, struct slot *slot)
{
	struct pin *pin = pin_prepare(task, slot, true);
	struct iovec part;
	int ret;

	if (!pin || !(shared->features & BINPOOL_FEATURE_URING_FIXED) || !ring_init(pin))
		return false;
	part = (struct iovec){pin->addr, pin_bytes(pin)};
	ret = io_uring_register_buffers(pin->ring, &part, 1);
	if (!SUCCEEDED(OP_REGISTER, ret, ENOMEM)) {
		ring_exit(pin);
		return false;
	}
	pin->kind = PIN_RING;
	slot_drop(slot);
	return true;
}

/* Submits a request for each page and waits for none. */
static bool fly(struct pin *pin, int file, off_t at, bool into_memory)
{
	struct iovec part = {pin->addr, pin_bytes(pin)};
	int submitted;
	bool fixed;

	if (!ring_init(pin))
		return false;
	/*
	 * A request that is put off pins its pages later, and what is mapped at their
	 * address by then, which may be another block. What is registered is pinned now;
	 * for that it must be writable.
	 */
	fixed = !io_uring_register_buffers(pin->ring, &part, 1);
	if (!fixed && into_memory) {
		ring_exit(pin);
		return false;
	}
	for (unsigned int i = 0; !fixed && i < pin->pages; i++)
		pin->words[i] = PAGE_UNKNOWN;
	for (unsigned int i = 0; i < pin->pages; i++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(pin->ring);
		char *page = pin->addr + i * shared->page;
		unsigned int len = (unsigned int)shared->page;
		__u64 place = (__u64)at + i * shared->page;

		if (into_memory)
			io_uring_prep_read_fixed(sqe, file, page, len, place, 0);
		else if (fixed)
			io_uring_prep_write_fixed(sqe, file, page, len, place, 0);
		else
			io_uring_prep_write(sqe, file, page, len, place);
		io_uring_sqe_set_data64(sqe, i);
	}
	submitted = io_uring_submit(pin->ring);
	if (submitted <= 0) {
		ring_exit(pin);
		return false;
	}
	pin->pages = pin->waiting = (unsigned int)submitted;
	return true;
}

bool op_flight_read(struct task *task, struct slot *slot)
{
	struct pin *pin = pin_prepare(task, slot, true);

	if (!pin || !fly(pin, shared->data, 0, true))
		return false;
	pin->kind = PIN_FLIGHT_READ;
	slot_drop(slot);
	return true;
}

bool op_flight_write(struct task *task, struct slot *slot)
{
	struct pin *pin = pin_prepare(task, slot, true);

	if (!pin || !fly(pin, task->scratch, scratch_at(task, pin), false))
		return false;
	pin->kind = PIN_FLIGHT_WRITE;
	slot_drop(slot);
	return true;
}

bool op_unpin(struct task *task, struct slot *slot)
{
	struct pin *pin = &task->pins[below(&task->rng, PINS)];

	(void)slot;
	if (pin->kind == PIN_NONE)
		return false;
	pin_release(task, pin);
	return true;
}

bool op_direct_read(struct task *task, struct slot *slot)
{
	struct view *view = slot_view(slot, &task->rng, true);
	__u64 pages, from;
	ssize_t n;

	if (!view)
		return false;
	pages = 1 + below(&task->rng, PIN_PAGES);
	if (pages > view->pages)
		pages = view->pages;
	from = view->from + below(&task->rng, view->pages - pages + 1);
	for (__u64 i = from; i < from + pages; i++)
		slot->shadow[i] = PAGE_UNKNOWN;
	n = pread(shared->data, view->addr + (from - view->from) * shared->page,
		  pages * shared->page, 0);
	if (n != (ssize_t)(pages * shared->page)) {
		report(CHECK_DATA, "direct read: %zd %s", n, n < 0 ? strerror(errno) : "bytes");
		return false;
	}
	for (__u64 i = 0; i < pages; i++)
		slot->shadow[from + i] = canary(WRITER_FILE, 0, 0, i * shared->page / 8);
	return view_verify(slot, view, from, pages, CHECK_DATA);
}

bool op_direct_write(struct task *task, struct slot *slot)
{
	struct pin *free_pin = pin_prepare(task, slot, false);
	ssize_t n;

	if (!free_pin)
		return false;
	n = pwrite(task->scratch, free_pin->addr, pin_bytes(free_pin), scratch_at(task, free_pin));
	if (n != (ssize_t)pin_bytes(free_pin)) {
		report(CHECK_DATA, "direct write: %zd %s", n, n < 0 ? strerror(errno) : "bytes");
		return false;
	}
	if (!scratch_read(task, free_pin))
		return false;
	compare(free_pin, task->bounce, "by a direct write");
	return true;
}
