/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the tests share that give blocks to others: dma-bufs, descriptors through
 * sockets, physical addresses, and blocks of many runs.
 */
#ifndef BINPOOL_TEST_SHARE_H
#define BINPOOL_TEST_SHARE_H

#include <sys/socket.h>

#include "device.h"

/* A dma-buf of the block, or -errno. */
static inline int block_export(int fd, __u32 flags)
{
	struct binpool_export_dmabuf e = {.size = sizeof(e), .flags = flags};
	int ret = request(fd, BINPOOL_IOC_EXPORT_DMABUF, &e);

	return ret ? ret : e.fd;
}

/* Writes at most @room runs of the block; how many there are, or -errno. */
static inline int block_phys(int fd, struct binpool_phys_run *runs, __u32 room)
{
	struct binpool_phys p = {.size = sizeof(p), .runs = (uintptr_t)runs, .nr_runs = room};
	int ret = request(fd, BINPOOL_IOC_PHYS, &p);

	return ret ? ret : (int)p.nr_runs;
}

/* Descriptors through sockets: 0 or the descriptor, or -errno. */

static inline int fd_send(int socket, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
	struct iovec one = {&byte, 1};
	struct msghdr msg = {
		.msg_iov = &one,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	return sendmsg(socket, &msg, 0) == 1 ? 0 : -errno;
}

static inline int fd_receive(int socket)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec one = {&byte, 1};
	struct msghdr msg = {
		.msg_iov = &one,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *c;
	int fd;

	if (recvmsg(socket, &msg, MSG_CMSG_CLOEXEC) != 1)
		return -errno;
	c = CMSG_FIRSTHDR(&msg);
	if (!c)
		return -ENOMSG;
	memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

/*
 * Gives back all that is held; whether nothing is managed then. A frame that is just
 * being cleaned is held again afterwards, so once may not be enough.
 */
static inline bool pool_empties(void)
{
	__u64 end = now_ms() + 5000 * slowness();

	do {
		if (!attr_write("free_held", 1) && attr_becomes("managed_bytes", 0, 100))
			return true;
	} while (now_ms() < end);
	return false;
}

struct spare {
	int fd;
	__u64 address;
};

static inline int spare_cmp(const void *a, const void *b)
{
	const struct spare *x = a, *y = b;

	return x->address < y->address ? -1 : x->address > y->address;
}

/*
 * A block of @nr frames none of which are neighbours, or -errno. All are of one node,
 * wherever this process runs meanwhile.
 */
static inline int block_scattered(int dev, __u64 frame, unsigned int nr)
{
	const unsigned int spares = 4 * nr;
	struct spare *spare = calloc(spares, sizeof(*spare));
	struct binpool_alloc a = alloc_request(frame, 0);
	int ret = pool_empties() ? 0 : -EBUSY;

	for (unsigned int i = 0; !ret && i < spares; i++) {
		struct binpool_query q;
		char *p;

		ret = device_alloc(dev, &a);
		if (ret)
			break;
		spare[i].fd = a.fd;
		block_query(a.fd, &q);
		a.node = q.node;
		p = block_map(a.fd, frame);
		*p = 1;
		spare[i].address = physical(p);
		munmap(p, frame);
	}
	qsort(spare, spares, sizeof(*spare), spare_cmp);
	for (unsigned int i = 0; i < spares; i += 2)
		close(spare[i].fd);
	a.bytes = nr * frame;
	if (!ret)
		ret = device_alloc(dev, &a);
	for (unsigned int i = 1; i < spares; i += 2)
		close(spare[i].fd);
	free(spare);
	return ret ? ret : a.fd;
}

#endif /* BINPOOL_TEST_SHARE_H */
