// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks in several processes: sent to another worker over a socket, inherited
 * by a child. Whoever sends a block writes to it no more.
 */
#include <sys/socket.h>

#include "stress.h"

/* What goes with a block's message: its descriptor and its shadow's. */
#define FDS 2

union control {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(FDS * sizeof(int))];
};

bool op_send(struct task *task, struct slot *slot)
{
	unsigned int to = (unsigned int)below(&task->rng, shared->options.workers);
	struct live *live = &worker.self->live[slot->number];
	struct iovec part = {live, sizeof(*live)};
	union control control = {0};
	struct msghdr msg = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	int fds[FDS] = {slot->fd, slot->shadow_fd};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	if (slot->fd < 0 || to == worker.number)
		return false;
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(c), fds, sizeof(fds));
	slot->frozen = true;
	return sendmsg(shared->workers[to].inbox[1], &msg, MSG_DONTWAIT) == (ssize_t)sizeof(*live);
}

/* Takes a block out of an inbox; false if there is none. */
static bool take(int inbox, struct live *live, int *fds)
{
	struct iovec part = {live, sizeof(*live)};
	union control control;
	struct msghdr msg = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *c;

	if (recvmsg(inbox, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*live))
		return false;
	c = CMSG_FIRSTHDR(&msg);
	if (!c || c->cmsg_len != CMSG_LEN(FDS * sizeof(int)))
		return false; /* no descriptor was free */
	memcpy(fds, CMSG_DATA(c), FDS * sizeof(int));
	return true;
}

bool op_receive(struct task *task, struct slot *slot)
{
	struct binpool_query q;
	struct view *view;
	struct live live;
	int fds[FDS];

	(void)task;
	if (!take(worker.self->inbox[0], &live, fds))
		return false;
	if (!SUCCEEDED(OP_RECEIVE, block_query(fds[0], &q), 0) || q.capacity != live.capacity) {
		report(CHECK_DATA, "a block of %llu bytes came as one of %llu",
		       (unsigned long long)live.capacity, (unsigned long long)q.capacity);
		close(fds[0]);
		close(fds[1]);
		return false;
	}
	if (!slot_adopt(slot, fds[0], fds[1], &live))
		return false;
	view = slot_map(slot, 0, live.capacity / shared->page, false);
	if (view)
		view_verify(slot, view, 0, view->pages, CHECK_DATA);
	return true;
}

/* What lies in the inboxes of all workers is closed. */
void inboxes_drain(void)
{
	struct live live;
	int fds[FDS];

	for (unsigned int i = 0; i < shared->options.workers; i++) {
		while (take(shared->workers[i].inbox[0], &live, fds)) {
			close(fds[0]);
			close(fds[1]);
		}
	}
}

/* A child looks at what it inherits, maybe writes, maybe is killed; we wait. */
bool op_fork(struct task *task, struct slot *slot)
{
	struct view *view = slot_view(slot, &task->rng, true);
	bool write_too = view && one_in(&task->rng, 2);
	bool killed = one_in(&task->rng, 4);
	pid_t pid;

	if (!view)
		view = slot_view(slot, &task->rng, false);
	if (!view)
		return false;
	pid = fork();
	if (pid < 0)
		return false;
	if (!pid) {
		bool good = view_verify(slot, view, view->from, view->pages, CHECK_DATA);

		if (write_too)
			view_write(slot, view, view->from, view->pages);
		if (killed)
			kill(getpid(), SIGKILL);
		_exit(!good);
	}
	if (write_too)
		slot->fills++; /* the child's */
	if (child_status(pid) > 128 && !killed)
		report(CHECK_PROCESSES, "a child of worker %u crashed", worker.number);
	return view_verify(slot, view, view->from, view->pages, CHECK_DATA);
}
