// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks pinned for long by the kernel's own: AF_XDP, whose packets lie in memory of the
 * process, and the camera vivid (V4L2), which writes images to where it is told. Each
 * has the memory still when the block is closed, and nobody else has it before then.
 */
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <sys/socket.h>

#include "binpool_test.h"
#include "driver.h"

#define RING	     16 /* no more packets are sent than it has room for */
#define PACKETS	     4
#define PACKET_BYTES 1024
#define PROTOCOL     0x88b5 /* for experiments */

/* A socket that sends what lies in a block, by the loopback device. */
struct sender {
	int fd;
	__u32 *producer, *consumer; /* of what is to be sent */
	struct xdp_desc *ring;
	void *map;
	size_t map_bytes;
};

/* Registers the mapped bytes. 0 or -errno. */
static int umem_register(int s, void *p, __u64 len)
{
	struct xdp_umem_reg reg = {
		.addr = (uintptr_t)p,
		.len = len,
		.chunk_size = (__u32)page_bytes(),
	};

	return setsockopt(s, SOL_XDP, XDP_UMEM_REG, &reg, sizeof(reg)) ? -errno : 0;
}

/* Makes a socket with a registration send. 0 or -errno. */
static int sender_start(struct sender *s)
{
	struct sockaddr_xdp to = {.sxdp_family = AF_XDP, .sxdp_flags = XDP_COPY};
	struct xdp_mmap_offsets offsets;
	socklen_t bytes = sizeof(offsets);
	__u32 entries = RING;

	to.sxdp_ifindex = if_nametoindex("lo");
	if (setsockopt(s->fd, SOL_XDP, XDP_UMEM_FILL_RING, &entries, sizeof(entries)) ||
	    setsockopt(s->fd, SOL_XDP, XDP_UMEM_COMPLETION_RING, &entries, sizeof(entries)) ||
	    setsockopt(s->fd, SOL_XDP, XDP_TX_RING, &entries, sizeof(entries)) ||
	    getsockopt(s->fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &bytes))
		return -errno;
	s->map_bytes = offsets.tx.desc + RING * sizeof(struct xdp_desc);
	s->map = mmap(NULL, s->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd,
		      XDP_PGOFF_TX_RING);
	if (s->map == MAP_FAILED || bind(s->fd, (struct sockaddr *)&to, sizeof(to)))
		return -errno;
	s->producer = at(s->map, offsets.tx.producer);
	s->consumer = at(s->map, offsets.tx.consumer);
	s->ring = at(s->map, offsets.tx.desc);
	return 0;
}

/* Has the packet at an offset of the registered memory sent. */
static bool send_packet(struct sender *s, __u64 offset)
{
	__u64 end = now_ms() + SOON_MS * (__u64)slowness();
	__u32 n = *s->producer;

	s->ring[n % RING] = (struct xdp_desc){.addr = offset, .len = PACKET_BYTES};
	__atomic_store_n(s->producer, n + 1, __ATOMIC_RELEASE);
	do {
		if (sendto(s->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN &&
		    errno != EBUSY)
			return false;
	} while (__atomic_load_n(s->consumer, __ATOMIC_ACQUIRE) != n + 1 && now_ms() < end);
	return *s->consumer == n + 1;
}

/* Who sees all packets of our kind on the loopback device; or -errno. */
static int receiver_open(void)
{
	struct sockaddr_ll from = {.sll_family = AF_PACKET, .sll_protocol = htons(PROTOCOL)};
	struct timeval soon = {.tv_sec = SOON_MS / 1000 * slowness()};
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(PROTOCOL));

	from.sll_ifindex = (int)if_nametoindex("lo");
	if (fd < 0 || bind(fd, (struct sockaddr *)&from, sizeof(from)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon)))
		return -errno;
	return fd;
}

/* A packet to nobody, whose words name their places. */
static void packet_make(char *p, __u64 seed, __u64 offset)
{
	struct ethhdr *head = (struct ethhdr *)p;

	fill(p, PACKET_BYTES, seed, offset);
	memset(head, 0, sizeof(*head));
	head->h_proto = htons(PROTOCOL);
}

static bool packet_arrives(int receiver, __u64 seed, __u64 offset)
{
	char want[PACKET_BYTES], got[PACKET_BYTES + 1];

	packet_make(want, seed, offset);
	return recv(receiver, got, sizeof(got), 0) == PACKET_BYTES &&
	       !memcmp(want, got, PACKET_BYTES);
}

/* Packets that lie in several frames, at the last ones' ends, too. */
static __u64 packet_place(__u64 frame, int i)
{
	return (__u64)(i + 1) * frame - (i % 2 ? PACKET_BYTES : frame / 2);
}

TEST_F_TIMEOUT(pool, xdp_umem, 60)
{
	const __u64 len = PACKETS * self->frame;
	struct sender s = {.fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0)};
	int fd, receiver, others[2 * PACKETS];
	struct binpool_info info;
	char *p;

	if (s.fd < 0 && errno == EAFNOSUPPORT)
		SKIP(return, "this kernel has no AF_XDP sockets");
	ASSERT_LE(0, s.fd);
	receiver = receiver_open();
	ASSERT_LE(0, receiver);

	/* What may not be written is not registered. */
	fd = block_alloc(self->dev, len);
	p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	ASSERT_EQ(-EFAULT, umem_register(s.fd, p, len));
	munmap(p, len);

	p = block_map(fd, len);
	for (int i = 0; i < PACKETS; i++)
		packet_make(p + packet_place(self->frame, i), 1, packet_place(self->frame, i));
	ASSERT_EQ(0, umem_register(s.fd, p, len));
	ASSERT_EQ(0, sender_start(&s));
	for (int round = 1; round <= 2; round++) {
		for (int i = 0; i < PACKETS; i++) {
			ASSERT_TRUE(send_packet(&s, packet_place(self->frame, i)));
			ASSERT_TRUE(packet_arrives(receiver, (__u64)round,
						   packet_place(self->frame, i)));
			/* For the next round. */
			packet_make(p + packet_place(self->frame, i), (__u64)round + 1,
				    packet_place(self->frame, i));
		}
	}
	munmap(p, len);
	close(fd);
	ASSERT_EQ((long long)len, attr_read("limbo_bytes"));
	ASSERT_EQ(0, device_info(self->dev, &info));
	ASSERT_EQ(len, info.opener_bytes);
	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		others[i] = block_alloc(self->dev, self->frame);
		p = block_map(others[i], self->frame);
		ASSERT_EQ(self->frame, first_nonzero(p, self->frame));
		memset(p, 0xff, self->frame);
		munmap(p, self->frame);
	}
	/* Packets are still there, and as they were. */
	for (int i = 0; i < PACKETS; i++) {
		ASSERT_TRUE(send_packet(&s, packet_place(self->frame, i)));
		ASSERT_TRUE(packet_arrives(receiver, 3, packet_place(self->frame, i)));
	}
	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		close(others[i]);
	ASSERT_EQ((long long)len, attr_read("limbo_bytes"));
	munmap(s.map, s.map_bytes);
	close(s.fd);
	close(receiver);
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
}

/* A process is killed with a block that is registered, and with one that it closed before. */
TEST_F_TIMEOUT(pool, xdp_umem_and_killed, 60)
{
	const __u64 len = PACKETS * self->frame;

	for (int i = 0; i < 2; i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			int s = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0), fd;
			char *p;

			if (s < 0 && errno == EAFNOSUPPORT)
				_exit(KSFT_SKIP);
			fd = block_alloc(self->dev, len);
			p = block_map(fd, len);
			if (umem_register(s, p, len))
				_exit(1);
			if (i) {
				munmap(p, len);
				close(fd);
			}
			kill(getpid(), SIGKILL);
		}
		switch (child_status(pid)) {
		case 128 + SIGKILL:
			break;
		case KSFT_SKIP:
			SKIP(return, "this kernel has no AF_XDP sockets");
		default:
			ASSERT_TRUE(false);
		}
		ASSERT_TRUE(attr_becomes("active_bytes", self->info.active_bytes, SOON_MS));
		ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	}
}

#define IMAGES 3

/* Asks the camera for images to be written to as many blocks of ours. 0 or -errno. */
static int images_start(int camera, char *const map[], __u32 nr, __u64 len)
{
	int type = V4L2_BUF_TYPE_VIDEO_CAPTURE, ret;
	struct v4l2_requestbuffers want = {
		.count = nr,
		.type = V4L2_BUF_TYPE_VIDEO_CAPTURE,
		.memory = V4L2_MEMORY_USERPTR,
	};

	ret = request(camera, VIDIOC_REQBUFS, &want);
	for (__u32 i = 0; !ret && i < nr; i++) {
		struct v4l2_buffer b = {
			.index = i,
			.type = want.type,
			.memory = want.memory,
			.m.userptr = (uintptr_t)map[i],
			.length = (__u32)len,
		};

		ret = request(camera, VIDIOC_QBUF, &b);
	}
	return ret ? ret : request(camera, VIDIOC_STREAMON, &type);
}

/* The next image; the buffer that has it, or -errno. */
static int image_take(int camera)
{
	struct v4l2_buffer b = {
		.type = V4L2_BUF_TYPE_VIDEO_CAPTURE,
		.memory = V4L2_MEMORY_USERPTR,
	};
	int ret = request(camera, VIDIOC_DQBUF, &b);

	return ret ? ret : b.flags & V4L2_BUF_FLAG_ERROR ? -EIO : (int)b.index;
}

/* Stops and lets go of all buffers; closing the camera does, too. */
static int images_stop(int camera)
{
	int type = V4L2_BUF_TYPE_VIDEO_CAPTURE, ret = request(camera, VIDIOC_STREAMOFF, &type);
	struct v4l2_requestbuffers none = {
		.type = V4L2_BUF_TYPE_VIDEO_CAPTURE,
		.memory = V4L2_MEMORY_USERPTR,
	};

	return ret ? ret : request(camera, VIDIOC_REQBUFS, &none);
}

/*
 * The camera pins what it writes to. One block is looked at: it has the image and
 * nothing else. The others are closed before the first image is there.
 */
TEST_F_TIMEOUT(pool, v4l2_userptr, 60)
{
	struct v4l2_format format = {.type = V4L2_BUF_TYPE_VIDEO_CAPTURE};
	__u64 image, len = 0, bytes = 0;
	int camera, fds[IMAGES];
	char *map[IMAGES];
	pid_t pid;

	if (!module_insert("vivid n_devs=1 node_types=1 allocators=0"))
		SKIP(return, "this kernel has no vivid");
	camera = vivid_open();
	ASSERT_LE(0, camera);
	ASSERT_EQ(0, request(camera, VIDIOC_G_FMT, &format));
	image = format.fmt.pix.sizeimage;
	for (int i = 0; i < IMAGES; i++) {
		struct binpool_alloc a = alloc_request(image + 2 * page_bytes(), 0);

		ASSERT_EQ(0, device_alloc(self->dev, &a));
		fds[i] = a.fd;
		len = a.capacity;
		map[i] = block_map(a.fd, len);
	}
	/* Not on a page, as any buffer may be. */
	for (int i = 0; i < IMAGES; i++)
		map[i] += 264;
	ASSERT_EQ(0, images_start(camera, map, IMAGES, image));
	for (int i = 1; i < IMAGES; i++) {
		munmap(map[i] - 264, len);
		close(fds[i]);
	}
	ASSERT_LT(0, attr_read("limbo_bytes"));
	for (int i = 0; i < IMAGES; i++)
		ASSERT_LE(0, image_take(camera));
	for (__u64 o = 0; o < image; o++)
		bytes += map[0][o] != 0;
	ASSERT_LT(image / 2, bytes);
	for (__u64 o = image; o < len - 264; o++)
		ASSERT_EQ(0, map[0][o]);
	for (int o = -264; o < 0; o++)
		ASSERT_EQ(0, map[0][o]);
	ASSERT_LT(0, attr_read("limbo_bytes"));
	ASSERT_EQ(0, images_stop(camera));
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	close(camera);

	munmap(map[0] - 264, len);
	close(fds[0]);

	/* A process is killed while images come, its block mapped or closed. */
	for (int i = 0; i < 2; i++) {
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			fds[0] = block_alloc(self->dev, len);
			map[0] = block_map(fds[0], len);
			camera = vivid_open();
			if (images_start(camera, map, 1, image))
				_exit(1);
			if (i) {
				munmap(map[0], len);
				close(fds[0]);
			}
			kill(getpid(), SIGKILL);
		}
		ASSERT_EQ(128 + SIGKILL, child_status(pid));
		ASSERT_TRUE(attr_becomes("active_bytes", self->info.active_bytes, SOON_MS));
		ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	}
	module_insert("-r vivid");
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
