// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks in the hands of drivers of the kernel's own: vgem (DRM) and vivid (V4L2).
 */
#include "binpool_test.h"
#include "driver.h"
#include "share.h"

/* What of <drm/drm.h> is needed here; it comes with no package of the C library. */
struct prime_handle {
	__u32 handle;
	__u32 flags;
	__s32 fd;
};

struct gem_close {
	__u32 handle;
	__u32 pad;
};

#define GEM_CLOSE	   _IOW('d', 0x09, struct gem_close)
#define PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct prime_handle)
#define PRIME_FD_TO_HANDLE _IOWR('d', 0x2e, struct prime_handle)

/* The first render node: in a guest, vgem's. */
static int render_open(void)
{
	char path[64];

	for (int i = 128; i < 136; i++) {
		int fd;

		snprintf(path, sizeof(path), "/dev/dri/renderD%d", i);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd >= 0)
			return fd;
	}
	return -ENODEV;
}

/* Imported as a GEM object, which is then the only one that keeps the block. */
TEST_F(pool, drm_vgem)
{
	const __u64 len = 4 * self->frame;
	struct prime_handle handle = {}, again = {};
	struct gem_close gem = {};
	int fd, buf, card;
	char *p;

	if (!(self->info.features & BINPOOL_FEATURE_DMABUF))
		SKIP(return, "this kernel has no dma-bufs");
	if (!module_insert("vgem"))
		SKIP(return, "this kernel has no vgem");
	card = render_open();
	ASSERT_LE(0, card);
	for (int how = 0; how < 3; how++) {
		fd = block_alloc(self->dev, len);
		buf = block_export(fd, 0);
		p = block_map(fd, len);
		fill(p, len, 1, 0);
		handle.fd = buf;
		ASSERT_EQ(0, request(card, PRIME_FD_TO_HANDLE, &handle));
		ASSERT_EQ(0, request(card, PRIME_FD_TO_HANDLE, &handle));
		munmap(p, len);
		close(buf);
		close(fd);
		ASSERT_EQ(self->before.v[1] + (long long)len, attr_read("active_bytes"));
		if (how) {
			/* Exported by DRM, it is our dma-buf again. */
			again.handle = handle.handle;
			again.flags = O_RDWR | O_CLOEXEC;
			ASSERT_EQ(0, request(card, PRIME_HANDLE_TO_FD, &again));
			p = block_map(again.fd, len);
			ASSERT_NE(MAP_FAILED, (void *)p);
			ASSERT_TRUE(filled(p, len, 1, 0));
			munmap(p, len);
			close(again.fd);
			ASSERT_EQ(self->before.v[1] + (long long)len, attr_read("active_bytes"));
		}
		if (how == 1) {
			/* Without letting go of it. */
			close(card);
			card = render_open();
			ASSERT_LE(0, card);
		} else {
			gem.handle = handle.handle;
			ASSERT_EQ(0, request(card, GEM_CLOSE, &gem));
		}
		ASSERT_TRUE(attr_becomes("active_bytes", (__u64)self->before.v[1], SOON_MS));
	}
	close(card);
	module_insert("-r vgem");
}

#define CAMERA_BUFFERS 4
#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			return __LINE__;                                                           \
	} while (0)

/*
 * Images of a camera, in a block each, which only the camera keeps while it runs. 0, or
 * the line of what went wrong.
 */
static int take_images(int dev, int camera, __u64 active)
{
	struct v4l2_format format = {.type = V4L2_BUF_TYPE_VIDEO_CAPTURE};
	struct v4l2_requestbuffers want = {
		.count = CAMERA_BUFFERS,
		.type = V4L2_BUF_TYPE_VIDEO_CAPTURE,
		.memory = V4L2_MEMORY_DMABUF,
	};
	int type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
	char *map[CAMERA_BUFFERS];
	__u64 len = 0, image;

	CHECK(!request(camera, VIDIOC_G_FMT, &format));
	image = format.fmt.pix.sizeimage;
	CHECK(!request(camera, VIDIOC_REQBUFS, &want) && want.count == CAMERA_BUFFERS);
	for (__u32 i = 0; i < want.count; i++) {
		struct binpool_alloc a = alloc_request(image + page_bytes(), BINPOOL_ALLOC_CONTIG);
		struct v4l2_buffer b = {.index = i, .type = want.type, .memory = want.memory};

		CHECK(!device_alloc(dev, &a));
		len = a.capacity;
		map[i] = block_map(a.fd, len);
		CHECK(map[i] != MAP_FAILED && first_nonzero(map[i], len) == len);
		b.m.fd = block_export(a.fd, 0);
		CHECK(b.m.fd >= 0);
		CHECK(!request(camera, VIDIOC_QBUF, &b));
		close(b.m.fd);
		close(a.fd);
	}
	CHECK(!request(camera, VIDIOC_STREAMON, &type));
	for (__u32 i = 0; i < want.count; i++) {
		struct v4l2_buffer b = {.type = want.type, .memory = want.memory};
		__u64 bytes = 0;

		CHECK(!request(camera, VIDIOC_DQBUF, &b) && !(b.flags & V4L2_BUF_FLAG_ERROR));
		/* The image and nothing else. */
		for (__u64 o = 0; o < image; o++)
			bytes += map[b.index][o] != 0;
		CHECK(bytes > image / 2);
		image = (image + 7) & ~7ULL;
		CHECK(first_nonzero(map[b.index] + image, len - image) == len - image);
		munmap(map[b.index], len);
	}
	CHECK(attr_read("active_bytes") == (long long)(active + want.count * len));
	CHECK(!request(camera, VIDIOC_STREAMOFF, &type));
	want.count = 0;
	CHECK(!request(camera, VIDIOC_REQBUFS, &want));
	CHECK(attr_becomes("active_bytes", active, SOON_MS));
	return 0;
}

FIXTURE(camera)
{
	int dev;
	int log;
};

FIXTURE_SETUP(camera)
{
	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
}

FIXTURE_TEARDOWN(camera)
{
	close(self->dev);
	module_insert("-r vivid");
	EXPECT_EQ(0, log_count_bad(self->log));
}

FIXTURE_VARIANT(camera)
{
	const char *module;
};

/* Writes by way of vmap. */
FIXTURE_VARIANT_ADD(camera, vmalloc){
	.module = "vivid n_devs=1 node_types=1 allocators=0",
};

/* And with a mapping for DMA, which has to be contiguous. */
FIXTURE_VARIANT_ADD(camera, dma_contig){
	.module = "vivid n_devs=1 node_types=1 allocators=1",
};

TEST_F_TIMEOUT(camera, v4l2_vivid, 60)
{
	struct binpool_info info;
	int camera;

	ASSERT_EQ(0, device_info(self->dev, &info));
	if (!(info.features & BINPOOL_FEATURE_DMABUF))
		SKIP(return, "this kernel has no dma-bufs");
	if (!module_insert(variant->module))
		SKIP(return, "this kernel has no vivid");
	camera = vivid_open();
	ASSERT_LE(0, camera);
	ASSERT_EQ(0, take_images(self->dev, camera, info.active_bytes));
	close(camera);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
