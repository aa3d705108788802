// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A buffer in two processes: one fills it, the other reads it where it is. The memory
 * needs a file behind it: blocks of the module, or huge pages (vm.nr_hugepages).
 *
 *	cc share.c $(pkg-config --cflags --libs binpool)
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <binpool.h>

#define BYTES ((size_t)1 << 20)
/* For those who run examples as tests. */
#define EXIT_SKIPPED 77

/* The struct as data, its descriptors beside it. */
static int send_share(int to, struct binpool_share *share)
{
	int fds[2] = {share->extent_fd, share->generation_fd};
	char room[CMSG_SPACE(sizeof(fds))] = {0};
	struct iovec data = {.iov_base = share, .iov_len = sizeof(*share)};
	struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1};
	struct cmsghdr *c;

	m.msg_control = room;
	m.msg_controllen = sizeof(room);
	c = CMSG_FIRSTHDR(&m);
	c->cmsg_len = CMSG_LEN(sizeof(fds));
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(c), fds, sizeof(fds));
	return sendmsg(to, &m, 0) != sizeof(*share);
}

static int receive_share(int from, struct binpool_share *share)
{
	int fds[2];
	char room[CMSG_SPACE(sizeof(fds))];
	struct iovec data = {.iov_base = share, .iov_len = sizeof(*share)};
	struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1};

	m.msg_control = room;
	m.msg_controllen = sizeof(room);
	if (recvmsg(from, &m, 0) != sizeof(*share) || !CMSG_FIRSTHDR(&m))
		return 1;
	memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fds));
	share->extent_fd = fds[0];
	share->generation_fd = fds[1];
	return 0;
}

/* The other process: it tells whether what it read was good. */
static int reader(int socket)
{
	struct binpool_import *import;
	struct binpool_share share;
	const char *p;
	int good;

	if (receive_share(socket, &share) || binpool_import(&import, &share))
		return 1;
	close(share.extent_fd);
	close(share.generation_fd);
	p = binpool_import_ptr(import);
	good = p[0] == 42 && !memcmp(p, p + 1, BYTES - 1);
	/* Read first, then ask whether it was still that buffer. */
	if (binpool_import_check(import))
		good = 0;
	binpool_import_close(import);
	return !good;
}

int main(void)
{
	struct binpool_share share = {.size = sizeof(share)};
	struct binpool_fence fence = {.size = sizeof(fence), .kind = BINPOOL_FENCE_EVENTFD};
	struct binpool *pool;
	int ends[2], err, status;
	char *buffer;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		return 1;
	pid = fork();
	if (!pid) {
		close(ends[0]);
		_exit(reader(ends[1]));
	}
	close(ends[1]);

	if (binpool_create(&pool, NULL)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	buffer = binpool_alloc(pool, BYTES);
	if (!buffer) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	memset(buffer, 42, BYTES);
	err = binpool_export(pool, buffer, &share);
	if (err == -EOPNOTSUPP) {
		printf("%s\n", binpool_last_error());
		return EXIT_SKIPPED;
	}
	if (err || send_share(ends[0], &share)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	close(share.extent_fd);
	close(share.generation_fd);
	/* It is free when the reader is through, or dead: its end of the socket is closed then. */
	fence.fd = ends[0];
	if (binpool_free_after(pool, buffer, &fence, 1) || waitpid(pid, &status, 0) != pid)
		return 1;
	printf("the other process %s\n", status ? "did not see it" : "has read it in place");
	return binpool_destroy_wait(pool, 60000) || status;
}
