// SPDX-License-Identifier: GPL-2.0
/*
 * A mapped block as the target and source of I/O that pins pages: direct I/O,
 * io_uring with and without registered buffers, pipes, other processes. Files
 * are made in $BINPOOL_TEST_DIR (default: the current folder), which must be on
 * a file system with direct I/O and without nodev.
 */
#include <liburing.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/utsname.h>

#include "binpool_test.h"

#define FRAMES 8
#define SECTOR 512

static const char *test_path(char *buf, size_t len, const char *name)
{
	const char *dir = getenv("BINPOOL_TEST_DIR");

	snprintf(buf, len, "%s/%s.%d", dir ? dir : ".", name, getpid());
	return buf;
}

FIXTURE(pin)
{
	int dev;
	int fd;
	int log;
	int file;   /* the same bytes as `data`, opened with O_DIRECT */
	int target; /* an empty file, opened with O_DIRECT */
	int back;   /* the same, for the page cache */
	bool fixed; /* INFO promises io_uring's registered buffers */
	__u64 len;
	char *p;    /* the mapped block */
	char *data; /* ordinary memory */
};

/* Through which device node: the one of devtmpfs, or one on a disk. */
FIXTURE_VARIANT(pin)
{
	bool own_node;
};

FIXTURE_VARIANT_ADD(pin, devtmpfs){
	.own_node = false,
};

FIXTURE_VARIANT_ADD(pin, node_on_disk){
	.own_node = true,
};

FIXTURE_SETUP(pin)
{
	struct binpool_info info;
	char path[256];
	struct stat st;
	int plain;

	self->log = log_open();
	if (variant->own_node) {
		ASSERT_EQ(0, stat(DEVICE, &st));
		test_path(path, sizeof(path), "node");
		ASSERT_EQ(0, mknod(path, S_IFCHR | 0600, st.st_rdev));
		self->dev = open(path, O_RDWR | O_CLOEXEC);
		unlink(path);
	} else {
		self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	}
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->fixed = info.features & BINPOOL_FEATURE_URING_FIXED;
	self->len = FRAMES * info.frame_bytes;
	self->fd = block_alloc(self->dev, self->len);
	ASSERT_LE(0, self->fd);
	self->p = block_map(self->fd, self->len);
	ASSERT_NE(MAP_FAILED, (void *)self->p);
	self->data =
		mmap(NULL, self->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)self->data);
	fill(self->data, self->len, 1, 0);

	test_path(path, sizeof(path), "source");
	plain = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	ASSERT_LE(0, plain);
	ASSERT_EQ((ssize_t)self->len, write(plain, self->data, self->len));
	ASSERT_EQ(0, fsync(plain));
	close(plain);
	self->file = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	unlink(path);
	ASSERT_LE(0, self->file)
	{
		TH_LOG("no direct I/O in BINPOOL_TEST_DIR");
	}
	test_path(path, sizeof(path), "target");
	self->back = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	ASSERT_LE(0, self->back);
	ASSERT_EQ(0, posix_fallocate(self->back, 0, (off_t)self->len));
	self->target = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
	unlink(path);
	ASSERT_LE(0, self->target);
}

FIXTURE_TEARDOWN(pin)
{
	if (_metadata->exit_code == KSFT_FAIL)
		return;
	if (self->p)
		munmap(self->p, self->len);
	if (self->fd >= 0)
		close(self->fd);
	EXPECT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	close(self->dev);
	EXPECT_EQ(0, log_count_bad(self->log));
}

/* What the target file has, read through the page cache, is @want. */
static bool target_is(int back, const void *want, __u64 len, __u64 offset)
{
	char *got = malloc(len);
	bool same;

	posix_fadvise(back, 0, 0, POSIX_FADV_DONTNEED);
	same = pread(back, got, len, (off_t)offset) == (ssize_t)len && !memcmp(got, want, len);
	free(got);
	return same;
}

TEST_F(pin, direct_read)
{
	ASSERT_EQ((ssize_t)self->len, pread(self->file, self->p, self->len, 0));
	ASSERT_TRUE(filled(self->p, self->len, 1, 0));
}

TEST_F(pin, direct_write)
{
	fill(self->p, self->len, 2, 0);
	ASSERT_EQ((ssize_t)self->len, pwrite(self->target, self->p, self->len, 0));
	ASSERT_TRUE(target_is(self->back, self->p, self->len, 0));
}

/* Sectors at any place of file and block, across pages and frames. */
TEST_F(pin, direct_sectors)
{
	const __u64 frame = self->len / FRAMES;
	const struct {
		__u64 at, len, from;
	} ios[] = {
		{0, SECTOR, SECTOR},
		{SECTOR, SECTOR, 0},
		{3 * SECTOR, 5 * SECTOR, 7 * SECTOR},
		{frame - SECTOR, 2 * SECTOR, 5 * SECTOR},
		{2 * frame - 9 * SECTOR, frame + 11 * SECTOR, 3 * SECTOR},
		{self->len - SECTOR, SECTOR, self->len - SECTOR},
		{SECTOR, self->len - 2 * SECTOR, SECTOR},
	};

	for (size_t i = 0; i < ARRAY_SIZE(ios); i++) {
		memset(self->p, 0x5a, self->len);
		ASSERT_EQ((ssize_t)ios[i].len,
			  pread(self->file, self->p + ios[i].at, ios[i].len, (off_t)ios[i].from));
		ASSERT_EQ(0, memcmp(self->p + ios[i].at, self->data + ios[i].from, ios[i].len));
		/* And not a byte before or behind. */
		if (ios[i].at) {
			ASSERT_EQ(0x5a, self->p[ios[i].at - 1]);
		}
		if (ios[i].at + ios[i].len < self->len) {
			ASSERT_EQ(0x5a, self->p[ios[i].at + ios[i].len]);
		}

		ASSERT_EQ((ssize_t)ios[i].len, pwrite(self->target, self->p + ios[i].at, ios[i].len,
						      (off_t)ios[i].from));
		ASSERT_TRUE(target_is(self->back, self->p + ios[i].at, ios[i].len, ios[i].from));
	}
}

/* Into a mapping of small pages, too. */
TEST_F(pin, direct_small_pages)
{
	ASSERT_EQ(0, munmap(self->p + page_bytes(), page_bytes()));
	ASSERT_EQ((void *)(self->p + page_bytes()),
		  mmap(self->p + page_bytes(), page_bytes(), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_FIXED, self->fd, (off_t)page_bytes()));
	ASSERT_EQ((ssize_t)self->len, pread(self->file, self->p, self->len, 0));
	ASSERT_TRUE(filled(self->p, self->len, 1, 0));
}

/* One completed request; its result. */
static int ring_wait(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	int ret;

	if (io_uring_submit_and_wait(ring, 1) < 0 || io_uring_wait_cqe(ring, &cqe))
		return -EPIPE;
	ret = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return ret;
}

static int ring_read(struct io_uring *ring, int fd, void *p, unsigned int len, __u64 from,
		     bool fixed)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	if (fixed)
		io_uring_prep_read_fixed(sqe, fd, p, len, from, 0);
	else
		io_uring_prep_read(sqe, fd, p, len, from);
	return ring_wait(ring);
}

static int ring_write(struct io_uring *ring, int fd, void *p, unsigned int len, __u64 to,
		      bool fixed)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	if (fixed)
		io_uring_prep_write_fixed(sqe, fd, p, len, to, 0);
	else
		io_uring_prep_write(sqe, fd, p, len, to);
	return ring_wait(ring);
}

TEST_F(pin, uring)
{
	struct io_uring ring;

	ASSERT_EQ(0, io_uring_queue_init(8, &ring, 0));
	for (__u64 o = 0; o < self->len; o += MIB) {
		ASSERT_EQ((int)MIB, ring_read(&ring, self->file, self->p + o, MIB, o, false));
		ASSERT_EQ((int)MIB, ring_write(&ring, self->target, self->p + o, MIB, o, false));
	}
	ASSERT_TRUE(filled(self->p, self->len, 1, 0));
	ASSERT_TRUE(target_is(self->back, self->data, self->len, 0));
	io_uring_queue_exit(&ring);
}

/* Many reads in flight at once. */
TEST_F(pin, uring_in_flight)
{
	struct io_uring ring;
	struct io_uring_cqe *cqe;
	const unsigned int piece = 64 * KIB, pieces = (unsigned int)(self->len / piece);

	ASSERT_EQ(0, io_uring_queue_init(pieces, &ring, 0));
	for (unsigned int i = 0; i < pieces; i++)
		io_uring_prep_read(io_uring_get_sqe(&ring), self->file, self->p + i * piece, piece,
				   i * piece);
	ASSERT_EQ((int)pieces, io_uring_submit(&ring));
	for (unsigned int i = 0; i < pieces; i++) {
		ASSERT_EQ(0, io_uring_wait_cqe(&ring, &cqe));
		ASSERT_EQ((int)piece, cqe->res);
		io_uring_cqe_seen(&ring, cqe);
	}
	ASSERT_TRUE(filled(self->p, self->len, 1, 0));
	io_uring_queue_exit(&ring);
}

/* INFO says whether buffers can be registered here; it must be right. */
TEST_F(pin, uring_feature_is_true)
{
	struct iovec whole = {self->p, self->len};
	unsigned int major = 0, minor = 0;
	struct io_uring ring;
	struct utsname name;

	uname(&name);
	ASSERT_EQ(2, sscanf(name.release, "%u.%u", &major, &minor));
	ASSERT_EQ(0, io_uring_queue_init(8, &ring, 0));
	ASSERT_EQ(self->fixed ? 0 : -EOPNOTSUPP, io_uring_register_buffers(&ring, &whole, 1));
	if (major > 6 || (major == 6 && minor >= 12)) {
		ASSERT_TRUE(self->fixed);
	}
	io_uring_queue_exit(&ring);
}

TEST_F(pin, uring_fixed)
{
	struct iovec whole = {self->p, self->len};
	const size_t page = page_bytes();
	struct io_uring ring;

	ASSERT_EQ(0, io_uring_queue_init(8, &ring, 0));
	ASSERT_EQ(self->fixed ? 0 : -EOPNOTSUPP, io_uring_register_buffers(&ring, &whole, 1));
	if (!self->fixed) {
		/* Not even with that call: the ring has no buffers, and says so. */
		ASSERT_EQ(-EFAULT,
			  ring_read(&ring, self->file, self->p, (unsigned int)page, 0, true));
		ASSERT_EQ((int)page,
			  ring_read(&ring, self->file, self->p, (unsigned int)page, 0, false));
		io_uring_queue_exit(&ring);
		return;
	}
	/* At odd pages, across frames. */
	for (__u64 o = 0; o + MIB + page <= self->len; o += MIB) {
		char *p = self->p + o + page;

		ASSERT_EQ((int)MIB, ring_read(&ring, self->file, p, MIB, o, true));
		ASSERT_EQ(0, memcmp(p, self->data + o, MIB));
		ASSERT_EQ((int)MIB, ring_write(&ring, self->target, p, MIB, o, true));
		ASSERT_TRUE(target_is(self->back, self->data + o, MIB, o));
	}
	ASSERT_EQ(0, io_uring_unregister_buffers(&ring));
	io_uring_queue_exit(&ring);
}

/* The registered pages live on without mapping and descriptor. */
TEST_F(pin, uring_fixed_after_close)
{
	struct iovec whole = {self->p, self->len};
	struct io_uring ring;
	char *p = self->p;

	ASSERT_EQ(0, io_uring_queue_init(8, &ring, 0));
	ASSERT_EQ(self->fixed ? 0 : -EOPNOTSUPP, io_uring_register_buffers(&ring, &whole, 1));
	ASSERT_EQ(0, munmap(self->p, self->len));
	self->p = NULL;
	ASSERT_EQ(0, close(self->fd));
	self->fd = -1;
	/* What was refused pins nothing. */
	ASSERT_EQ(self->fixed ? self->len : 0, (__u64)attr_read("limbo_bytes"));
	if (!self->fixed) {
		io_uring_queue_exit(&ring);
		return;
	}
	for (__u64 o = 0; o < self->len; o += MIB) {
		ASSERT_EQ((int)MIB, ring_read(&ring, self->file, p + o, MIB, o, true));
		ASSERT_EQ((int)MIB, ring_write(&ring, self->target, p + o, MIB, o, true));
	}
	ASSERT_TRUE(target_is(self->back, self->data, self->len, 0));
	io_uring_queue_exit(&ring);
}

TEST_F(pin, vmsplice)
{
	const size_t page = page_bytes(), len = 8 * page;
	struct iovec part = {self->p + 3 * page, len};
	char *got = malloc(len);
	int ends[2];

	fill(self->p, self->len, 3, 0);
	ASSERT_EQ(0, pipe(ends));
	ASSERT_EQ((ssize_t)len, vmsplice(ends[1], &part, 1, 0));
	ASSERT_EQ((ssize_t)len, read(ends[0], got, len));
	ASSERT_TRUE(filled(got, len, 3, 3 * page));
	/* And on into a file without a copy. */
	ASSERT_EQ((ssize_t)len, vmsplice(ends[1], &part, 1, 0));
	ASSERT_EQ((ssize_t)len, splice(ends[0], NULL, self->back, NULL, len, 0));
	ASSERT_TRUE(target_is(self->back, got, len, 0));
	close(ends[0]);
	close(ends[1]);
	free(got);
}

TEST_F(pin, pipe_write)
{
	const size_t len = 8 * page_bytes();
	char *got = malloc(len);
	int ends[2];

	fill(self->p, self->len, 4, 0);
	ASSERT_EQ(0, pipe(ends));
	ASSERT_EQ((ssize_t)len, write(ends[1], self->p, len));
	ASSERT_EQ((ssize_t)len, read(ends[0], got, len));
	ASSERT_EQ(0, memcmp(got, self->p, len));
	/* The other way. */
	ASSERT_EQ((ssize_t)len, write(ends[1], self->data, len));
	ASSERT_EQ((ssize_t)len, read(ends[0], self->p, len));
	ASSERT_EQ(0, memcmp(self->p, self->data, len));
	close(ends[0]);
	close(ends[1]);
	free(got);
}

TEST_F(pin, process_vm)
{
	struct iovec theirs = {self->p, self->len}, mine = {self->data, self->len};
	pid_t pid;

	fill(self->p, self->len, 5, 0);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		pid_t parent = getppid();

		if (process_vm_readv(parent, &mine, 1, &theirs, 1, 0) != (ssize_t)self->len ||
		    !filled(self->data, self->len, 5, 0))
			_exit(1);
		fill(self->data, self->len, 6, 0);
		if (process_vm_writev(parent, &mine, 1, &theirs, 1, 0) != (ssize_t)self->len)
			_exit(2);
		_exit(0);
	}
	ASSERT_EQ(0, child_status(pid));
	ASSERT_TRUE(filled(self->p, self->len, 6, 0));
}

/* A child that writes moves nothing under a parent's pinned buffer. */
TEST_F(pin, child_writes_same_page)
{
	__u64 before;
	pid_t pid;

	self->p[0] = 1;
	before = pfn_of(self->p);
	ASSERT_NE(0, before);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		self->p[0] = 2;
		_exit(pfn_of(self->p) == before ? 0 : 1);
	}
	ASSERT_EQ(0, child_status(pid));
	ASSERT_EQ(2, self->p[0]);
	ASSERT_EQ(before, pfn_of(self->p));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
