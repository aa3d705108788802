// SPDX-License-Identifier: GPL-2.0
/*
 * The envelope of every ioctl: struct sizes shorter and longer than known, bad
 * pointers, unknown bits, unknown numbers. What is refused changes nothing;
 * what is answered is defined to the last byte.
 */
#include "binpool_test.h"
#include "layout.h"

union args {
	__u32 size;
	__u32 words[2]; /* size, flags */
	struct binpool_info info;
	struct binpool_alloc alloc;
	struct binpool_trim trim;
	struct binpool_limit limit;
	struct binpool_query query;
	struct binpool_export_dmabuf dmabuf;
	struct binpool_phys phys;
	unsigned char bytes[256];
};

/* One ioctl, and what a valid call of it looks like. */
FIXTURE(call)
{
	int dev;
	int block; /* a block for QUERY, -1 for the others */
	int fd;	   /* where the ioctl belongs */
	int wrong; /* a file of the other kind */
	int log;
	int fds;
	int next_fd;
	void *guard; /* page before an unmapped one */
	union args valid;
	struct counters before;
};

FIXTURE_VARIANT(call)
{
	unsigned long nr;
	__u32 size;
	__u32 first_size; /* of the first version */
	__u32 known_flags;
	int reserved_at[2]; /* offsets of reserved members, 0 if there is none */
	bool on_block;
};

FIXTURE_VARIANT_ADD(call, info){
	.nr = BINPOOL_IOC_INFO,
	.size = sizeof(struct binpool_info),
	.first_size = 72,
};

FIXTURE_VARIANT_ADD(call, alloc){
	.nr = BINPOOL_IOC_ALLOC,
	.size = sizeof(struct binpool_alloc),
	.first_size = 72,
	.known_flags = BINPOOL_ALLOC_CONTIG | BINPOOL_ALLOC_STRICT_NODE | BINPOOL_ALLOC_NOWAIT,
	.reserved_at = {offsetof(struct binpool_alloc, reserved),
			offsetof(struct binpool_alloc, reserved2)},
};

FIXTURE_VARIANT_ADD(call, trim){
	.nr = BINPOOL_IOC_TRIM,
	.size = sizeof(struct binpool_trim),
	.first_size = 32,
	.reserved_at = {offsetof(struct binpool_trim, reserved)},
};

FIXTURE_VARIANT_ADD(call, limit){
	.nr = BINPOOL_IOC_LIMIT,
	.size = sizeof(struct binpool_limit),
	.first_size = 32,
};

FIXTURE_VARIANT_ADD(call, query){
	.nr = BINPOOL_IOC_QUERY,
	.size = sizeof(struct binpool_query),
	.first_size = 72,
	.on_block = true,
};

FIXTURE_VARIANT_ADD(call, export_dmabuf){
	.nr = BINPOOL_IOC_EXPORT_DMABUF,
	.size = sizeof(struct binpool_export_dmabuf),
	.first_size = 16,
	.known_flags = BINPOOL_EXPORT_READ_ONLY,
	.reserved_at = {offsetof(struct binpool_export_dmabuf, reserved)},
	.on_block = true,
};

/* Without room for runs: nothing is told, so nothing goes to quarantine. */
FIXTURE_VARIANT_ADD(call, phys){
	.nr = BINPOOL_IOC_PHYS,
	.size = sizeof(struct binpool_phys),
	.first_size = 24,
	.reserved_at = {offsetof(struct binpool_phys, reserved)},
	.on_block = true,
};

FIXTURE_SETUP(call)
{
	size_t page = page_bytes();

	self->log = log_open();
	ASSERT_LE(0, self->log);
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	self->block = block_alloc(self->dev, 1);
	ASSERT_LE(0, self->block);
	self->fd = variant->on_block ? self->block : self->dev;
	if (variant->nr == BINPOOL_IOC_EXPORT_DMABUF) {
		struct binpool_info info;

		ASSERT_EQ(0, device_info(self->dev, &info));
		if (!(info.features & BINPOOL_FEATURE_DMABUF))
			SKIP(return, "this kernel has no dma-bufs");
	}
	self->wrong = variant->on_block ? self->dev : self->block;

	self->guard =
		mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->guard);
	ASSERT_EQ(0, munmap(at(self->guard, page), page));

	memset(&self->valid, 0, sizeof(self->valid));
	self->valid.size = variant->size;
	if (variant->nr == BINPOOL_IOC_ALLOC) {
		self->valid.alloc.bytes = 1;
		self->valid.alloc.node = BINPOOL_NODE_ANY;
	} else if (variant->nr == BINPOOL_IOC_TRIM) {
		self->valid.trim.held_bytes = ~0ULL;
		self->valid.trim.node = BINPOOL_NODE_ANY;
	}
	self->before = counters_read();
	self->fds = count_fds();
	self->next_fd = fd_next(self->dev);
}

FIXTURE_TEARDOWN(call)
{
	if (_metadata->exit_code == KSFT_FAIL)
		return;
	EXPECT_EQ(self->fds, count_fds());
	EXPECT_EQ(self->next_fd, fd_next(self->dev));
	close(self->block);
	close(self->dev);
	EXPECT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
	EXPECT_EQ(0, log_count_bad(self->log));
}

/* Closes what a successful ALLOC or EXPORT_DMABUF gave. */
static void put(unsigned long nr, const void *args)
{
	union args a;

	if (nr == BINPOOL_IOC_ALLOC) {
		memcpy(&a, args, sizeof(a.alloc));
		close(a.alloc.fd);
	} else if (nr == BINPOOL_IOC_EXPORT_DMABUF) {
		memcpy(&a, args, sizeof(a.dmabuf));
		close(a.dmabuf.fd);
	}
}

#define ASSERT_REFUSED(err, arg)                                                                   \
	do {                                                                                       \
		ASSERT_EQ(-(err), request(self->fd, variant->nr, arg));                            \
		ASSERT_STREQ("nothing", counters_moved(&self->before));                            \
		ASSERT_EQ(self->fds, count_fds());                                                 \
	} while (0)

TEST_F(call, valid)
{
	union args a = self->valid;

	ASSERT_EQ(0, request(self->fd, variant->nr, &a));
	put(variant->nr, &a);
}

TEST_F(call, too_short)
{
	const __u32 first = variant->first_size;
	const __u32 sizes[] = {0, 1, 4, 8, first - 8, first - 4, first - 1};

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		union args a = self->valid;

		a.size = sizes[i];
		ASSERT_REFUSED(EINVAL, &a);
		/* And nothing was written. */
		a.size = variant->size;
		ASSERT_EQ(0, memcmp(&a, &self->valid, sizeof(a)));
	}
}

/* Programs that know the first version, or any since, get as much of an answer. */
TEST_F(call, older_versions)
{
	for (__u32 size = variant->first_size; size < variant->size; size++) {
		union args a = self->valid;
		unsigned char *bytes = a.bytes;

		memset(bytes + size, 0xa5, sizeof(a) - size);
		a.size = size;
		ASSERT_EQ(0, request(self->fd, variant->nr, &a));
		put(variant->nr, &a);
		for (size_t b = size; b < sizeof(a); b++) {
			ASSERT_EQ(0xa5, bytes[b]);
		}
	}
}

TEST_F(call, longer_with_zeros)
{
	size_t page = page_bytes();
	const __u32 sizes[] = {variant->size + 1, variant->size + 8, variant->size + 64,
			       (__u32)page - 1, (__u32)page};
	unsigned char *buf = self->guard;

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		memset(buf, 0, page);
		memcpy(buf, &self->valid, variant->size);
		memcpy(buf, &sizes[i], sizeof(sizes[i]));
		ASSERT_EQ(0, request(self->fd, variant->nr, buf))
		{
			TH_LOG("size %u", sizes[i]);
		}
		put(variant->nr, buf);
		for (size_t b = variant->size; b < page; b++) {
			ASSERT_EQ(0, buf[b]);
		}
	}
}

TEST_F(call, longer_with_unknown_bytes)
{
	unsigned char *buf = self->guard;
	__u32 size = variant->size + 64;

	for (__u32 b = variant->size; b < size; b++) {
		memset(buf, 0, page_bytes());
		memcpy(buf, &self->valid, variant->size);
		memcpy(buf, &size, sizeof(size));
		buf[b] = 1;
		ASSERT_REFUSED(E2BIG, buf);
		ASSERT_EQ(1, buf[b]);
	}
}

TEST_F(call, longer_than_a_page)
{
	const __u32 sizes[] = {(__u32)page_bytes() + 1, 1 << 20, 0x7fffffff, 0x80000000,
			       0xffffffff};

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		union args a = self->valid;

		a.size = sizes[i];
		ASSERT_REFUSED(E2BIG, &a);
	}
}

TEST_F(call, bad_pointers)
{
	size_t page = page_bytes();
	void *const bad[] = {
		NULL,
		(void *)8,
		at(self->guard, page),			   /* unmapped */
		at(self->guard, page - 2),		   /* half of `size` */
		at(self->guard, page - 4),		   /* `size` and no more */
		at(self->guard, page - variant->size + 1), /* all but the last byte */
		(void *)(uintptr_t)0xffffffff81000000,	   /* the kernel's */
		(void *)~(uintptr_t)0,
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		if (i >= 3 && i <= 5) {
			size_t room = (size_t)((char *)at(self->guard, page) - (char *)bad[i]);

			memcpy(bad[i], &self->valid, room);
		}
		ASSERT_EQ(-EFAULT, request(self->fd, variant->nr, bad[i]))
		{
			TH_LOG("pointer %zu: %p", i, bad[i]);
		}
		ASSERT_STREQ("nothing", counters_moved(&self->before));
		ASSERT_EQ(self->fds, count_fds());
	}
}

/* A struct that ends where its page ends, at any alignment. */
TEST_F(call, misaligned)
{
	for (size_t shift = 0; shift < 8; shift++) {
		void *p = at(self->guard, page_bytes() - variant->size - shift);

		memcpy(p, &self->valid, variant->size);
		ASSERT_EQ(0, request(self->fd, variant->nr, p));
		put(variant->nr, p);
	}
}

/* The answer can't be copied out: an error, and nothing stays allocated. */
TEST_F(call, reply_to_read_only_memory)
{
	size_t page = page_bytes();

	memcpy(self->guard, &self->valid, variant->size);
	ASSERT_EQ(0, mprotect(self->guard, page, PROT_READ));
	for (int i = 0; i < 100; i++) {
		ASSERT_EQ(-EFAULT, request(self->fd, variant->nr, self->guard));
	}
	ASSERT_EQ(self->fds, count_fds());
	ASSERT_EQ(self->before.v[1], attr_read("active_bytes"));
	ASSERT_EQ(0, attr_read("limbo_bytes"));
	ASSERT_EQ(0, memcmp(self->guard, &self->valid, variant->size));
}

/* The same with a reply whose first half can be written and the second can't. */
TEST_F(call, reply_half_writable)
{
	size_t page = page_bytes();
	char *two =
		mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *p = two + page - 8;

	ASSERT_NE(MAP_FAILED, (void *)two);
	memcpy(p, &self->valid, variant->size);
	ASSERT_EQ(0, mprotect(two + page, page, PROT_READ));
	ASSERT_EQ(-EFAULT, request(self->fd, variant->nr, p));
	ASSERT_EQ(self->fds, count_fds());
	ASSERT_EQ(self->before.v[1], attr_read("active_bytes"));
	munmap(two, 2 * page);
}

TEST_F(call, unknown_flags)
{
	for (unsigned int bit = 0; bit < 32; bit++) {
		union args a = self->valid;

		a.words[1] = 1U << bit;
		if (a.words[1] & variant->known_flags)
			continue;
		ASSERT_REFUSED(EINVAL, &a);
	}
}

TEST_F(call, reserved_members)
{
	for (unsigned int bit = 0; bit < 64; bit++) {
		union args a = self->valid;
		__u32 value = 1U << bit % 32;
		int place = variant->reserved_at[bit / 32];

		if (!place)
			continue;
		memcpy(&a.bytes[place], &value, sizeof(value));
		ASSERT_REFUSED(EINVAL, &a);
	}
}

/*
 * Members that are only written are ignored on input, and none keeps a byte of
 * what it was: two calls that differ in nothing else give equal answers.
 */
TEST_F(call, every_byte_defined)
{
	const unsigned char fills[] = {0xa5, 0x5a};
	union args out[2];

	for (int i = 0; i < 2; i++) {
		union args *a = &out[i];

		memset(a, fills[i], sizeof(*a));
		memcpy(a->words, self->valid.words, sizeof(a->words));
		if (variant->nr == BINPOOL_IOC_ALLOC) {
			a->alloc.bytes = self->valid.alloc.bytes;
			a->alloc.align = 0;
			a->alloc.node = BINPOOL_NODE_ANY;
			a->alloc.reserved = 0;
			a->alloc.reserved2 = 0;
		} else if (variant->nr == BINPOOL_IOC_LIMIT) {
			a->limit.max_bytes = self->valid.limit.max_bytes;
		} else if (variant->nr == BINPOOL_IOC_TRIM) {
			a->trim.held_bytes = self->valid.trim.held_bytes;
			a->trim.node = BINPOOL_NODE_ANY;
			a->trim.reserved = 0;
		} else if (variant->nr == BINPOOL_IOC_EXPORT_DMABUF) {
			a->dmabuf.reserved = 0;
		} else if (variant->nr == BINPOOL_IOC_PHYS) {
			a->phys.runs = 0;
			a->phys.nr_runs = 0;
			a->phys.reserved = 0;
		}
		ASSERT_EQ(0, request(self->fd, variant->nr, a));
		put(variant->nr, a);
		/* Beyond the struct nothing is written. */
		for (size_t b = variant->size; b < sizeof(*a); b++) {
			ASSERT_EQ(fills[i], a->bytes[b]);
		}
	}
	for (__u32 b = 0; b < variant->size; b++) {
		ASSERT_EQ(out[0].bytes[b], out[1].bytes[b])
		{
			TH_LOG("byte %u of the answer is not defined", b);
		}
	}
}

TEST_F(call, wrong_kind_of_file)
{
	union args a = self->valid;

	ASSERT_EQ(-ENOTTY, request(self->wrong, variant->nr, &a));
	ASSERT_EQ(0, memcmp(&a, &self->valid, sizeof(a)));
	ASSERT_STREQ("nothing", counters_moved(&self->before));
}

/* A number with a size or a direction in it is another number. */
TEST_F(call, encoded_size)
{
	union args a = self->valid;

	ASSERT_EQ(-ENOTTY, request(self->fd,
				   _IOC(_IOC_READ | _IOC_WRITE, BINPOOL_IOC_MAGIC,
					_IOC_NR(variant->nr), variant->size),
				   &a));
	ASSERT_EQ(-ENOTTY,
		  request(self->fd,
			  _IOC(_IOC_NONE, BINPOOL_IOC_MAGIC, _IOC_NR(variant->nr), variant->size),
			  &a));
	ASSERT_STREQ("nothing", counters_moved(&self->before));
}

TEST_F(pool, unknown_ioctls)
{
	int block = block_alloc(self->dev, 1);
	union args a = {.size = sizeof(a)};
	struct counters before;

	ASSERT_LE(0, block);
	before = counters_read();
	for (unsigned int nr = 0; nr < 256; nr++) {
		unsigned long cmd = _IO(BINPOOL_IOC_MAGIC, nr);

		if (cmd != BINPOOL_IOC_INFO && cmd != BINPOOL_IOC_ALLOC &&
		    cmd != BINPOOL_IOC_TRIM && cmd != BINPOOL_IOC_LIMIT) {
			ASSERT_EQ(-ENOTTY, request(self->dev, cmd, &a));
		}
		if (cmd != BINPOOL_IOC_QUERY && cmd != BINPOOL_IOC_EXPORT_DMABUF &&
		    cmd != BINPOOL_IOC_PHYS) {
			ASSERT_EQ(-ENOTTY, request(block, cmd, &a));
		}
	}
	for (unsigned int magic = 0; magic < 256; magic++) {
		if (magic == BINPOOL_IOC_MAGIC || magic == 'T' || magic == 'f' || magic == 0 ||
		    magic == 'X')
			continue; /* the others are known to every file */
		for (unsigned int nr = 0; nr < 4; nr++) {
			ASSERT_EQ(-ENOTTY, request(self->dev, _IO(magic, nr), &a));
			ASSERT_EQ(-ENOTTY, request(block, _IO(magic, nr), &a));
		}
	}
	ASSERT_STREQ("nothing", counters_moved(&before));
	close(block);
}

/* The same ioctls from a 32-bit program: a program of its own, without libc. */
TEST(compat_program)
{
	char path[512];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 16);
	pid_t pid;

	ASSERT_LT(0, n);
	path[n] = '\0';
	strcpy(strrchr(path, '/') + 1, "compat32");
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		execl(path, path, NULL);
		_exit(127);
	}
	/* Its exit status is the number of the step that failed. */
	ASSERT_EQ(0, child_status(pid));
	/* It was told physical addresses. */
	ASSERT_LT(0, attr_read("quarantine_bytes"));
	ASSERT_EQ(0, attr_write("phys_release", 1));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
