// SPDX-License-Identifier: GPL-2.0
/*
 * All that can fail in a call on the device, on blocks and on the files in sysfs,
 * does; see faults.h.
 */
#include <sys/uio.h>

#include "../modules/importer.h"
#include "faults.h"
#include "module.h"
#include "share.h"
#include "sweep.h"

static void nothing(struct subject *s)
{
	(void)s;
}

/* ALLOC: whatever it asks the system for, from nothing or from held memory. */

static int call_alloc(struct subject *s)
{
	struct binpool_alloc a = s->request;
	int ret = device_alloc(s->dev, &a);

	s->fd = ret ? -1 : a.fd;
	return ret;
}

static void after_fd(struct subject *s)
{
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
}

static void before_fresh(struct subject *s)
{
	(void)s;
	attr_write("free_held", 1);
}

/* As much is held as is asked for, in one run. */
static void before_held(struct subject *s)
{
	int fd = block_alloc(s->dev, FRAMES * s->frame);

	if (fd >= 0)
		close(fd);
}

/* Half of it is held, and that in pieces. */
static void before_pieces(struct subject *s)
{
	int fds[4];

	attr_write("free_held", 1);
	for (int i = 0; i < 4; i++)
		fds[i] = block_alloc(s->dev, s->frame);
	close(fds[0]);
	close(fds[2]);
	attr_write("holding", 0);
	attr_write("holding", 1);
	close(fds[1]);
	close(fds[3]);
}

/* The largest answer is written with the request, so EFAULT is possible, too. */
#define ALLOC_PROBE(title, prepare)                                                                \
	{                                                                                          \
		.name = title, .before = prepare, .call = call_alloc, .after = after_fd,           \
		.errnos = {ENOMEM, EFAULT},                                                        \
	}

TEST_F_TIMEOUT(faults, alloc, 600)
{
	static const struct probe fresh = ALLOC_PROBE("fresh block", before_fresh);
	static const struct probe held = ALLOC_PROBE("held block", before_held);
	static const struct probe pieces = ALLOC_PROBE("block of pieces", before_pieces);
	const struct {
		const struct probe *probe;
		__u64 frames;
		__u32 flags;
		__s32 node;
		__u64 align;
	} variants[] = {
		{&fresh, FRAMES, 0, BINPOOL_NODE_ANY, 0},
		{&fresh, 1, BINPOOL_ALLOC_NOWAIT, BINPOOL_NODE_ANY, 0},
		{&fresh, 2, BINPOOL_ALLOC_CONTIG, BINPOOL_NODE_ANY, 2},
		{&fresh, 1, BINPOOL_ALLOC_STRICT_NODE, 0, 0},
		{&held, FRAMES, 0, BINPOOL_NODE_ANY, 0},
		{&held, 1, BINPOOL_ALLOC_NOWAIT, BINPOOL_NODE_ANY, 0},
		{&pieces, FRAMES, 0, BINPOOL_NODE_ANY, 0},
		{&pieces, FRAMES, BINPOOL_ALLOC_CONTIG, BINPOOL_NODE_ANY, 0},
	};

	/* A run is to be had each time, however long looking takes here. */
	ASSERT_EQ(0, text_write(PARAM("contig_duty"), "100"));
	ASSERT_EQ(0, text_write(PARAM("contig_ms"), "20000"));
	for (size_t i = 0; i < ARRAY_SIZE(variants); i++) {
		self->s.request =
			alloc_request(variants[i].frames * self->s.frame, variants[i].flags);
		self->s.request.node = variants[i].node;
		self->s.request.align = variants[i].align * self->s.frame;
		/* Fresh frames are many; of held ones there are at least the file and the block. */
		ASSERT_LT(variants[i].probe == &fresh ? variants[i].frames : 4,
			  sweep(_metadata, &self->s, variants[i].probe));
	}
}

/* Beside another block, whose file keeps the file system there. */
TEST_F_TIMEOUT(faults, alloc_second, 240)
{
	static const struct probe second = ALLOC_PROBE("second block", before_held);
	int first = block_alloc(self->s.dev, self->s.frame);

	ASSERT_LE(0, first);
	self->s.request = alloc_request(FRAMES * self->s.frame, 0);
	ASSERT_LT(4, sweep(_metadata, &self->s, &second));
	close(first);
}

static int call_open(struct subject *s)
{
	s->fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	return s->fd < 0 ? -errno : 0;
}

TEST_F_TIMEOUT(faults, open, 240)
{
	static const struct probe probe = {
		.name = "open",
		.before = nothing,
		.call = call_open,
		.after = after_fd,
		.errnos = {ENOMEM, EFAULT},
	};

	ASSERT_LT(2, sweep(_metadata, &self->s, &probe));
}

/* Requests that allocate nothing: their argument cannot be read, or not be written. */

static int call_info(struct subject *s)
{
	struct binpool_info info;

	return device_info(s->dev, &info);
}

static int call_trim(struct subject *s)
{
	return device_trim(s->dev, 0, NULL);
}

static int call_limit(struct subject *s)
{
	struct binpool_limit l = {.size = sizeof(l), .max_bytes = 64 * s->frame};

	return request(s->dev, BINPOOL_IOC_LIMIT, &l);
}

static void after_limit(struct subject *s)
{
	struct binpool_limit l = {.size = sizeof(l)};

	/* A limit that could not be told of may be in force or not. */
	if (request(s->dev, BINPOOL_IOC_LIMIT, &l) ||
	    (l.previous_bytes && l.previous_bytes != 64 * s->frame))
		abort();
}

static int call_query(struct subject *s)
{
	struct binpool_query q;

	return block_query(s->fd, &q);
}

TEST_F_TIMEOUT(faults, requests, 240)
{
	static const struct probe probes[] = {
		{"INFO", nothing, call_info, nothing, {EFAULT}, true},
		{"TRIM", before_held, call_trim, nothing, {EFAULT}, false},
		{"LIMIT", nothing, call_limit, after_limit, {EFAULT}, false},
		{"QUERY", nothing, call_query, nothing, {EFAULT}, true},
	};

	self->s.fd = block_alloc(self->s.dev, self->s.frame);
	ASSERT_LE(0, self->s.fd);
	for (size_t i = 0; i < ARRAY_SIZE(probes); i++)
		ASSERT_LE(2, sweep(_metadata, &self->s, &probes[i]));
	close(self->s.fd);
}

/* Mappings and their page faults. */

static int call_map(struct subject *s)
{
	s->p = block_map(s->fd, FRAMES * s->frame);
	if (s->p == MAP_FAILED) {
		s->p = NULL;
		return -errno;
	}
	return madvise(s->p, FRAMES * s->frame, MADV_POPULATE_WRITE) ? -errno : 0;
}

static void after_map(struct subject *s)
{
	if (s->p) {
		/* What could not be mapped then can be now, and is the same memory. */
		memset(s->p, 5, FRAMES * s->frame);
		munmap(s->p, FRAMES * s->frame);
	}
	s->p = NULL;
}

TEST_F_TIMEOUT(faults, map_and_populate, 240)
{
	static const struct probe probe = {
		.name = "mmap",
		.before = nothing,
		.call = call_map,
		.after = after_map,
		.errnos = {ENOMEM, EFAULT},
	};

	self->s.fd = block_alloc(self->s.dev, FRAMES * self->s.frame);
	ASSERT_LE(0, self->s.fd);
	ASSERT_LT(2, sweep(_metadata, &self->s, &probe));
	close(self->s.fd);
}

static void before_touch(struct subject *s)
{
	s->p = block_map(s->fd, FRAMES * s->frame);
}

/* The kernel tries a page fault again, so it never fails. */
static int call_touch(struct subject *s)
{
	for (__u64 o = 0; o < FRAMES * s->frame; o += s->frame / 2)
		*(volatile char *)(s->p + o) = 6;
	return 0;
}

TEST_F_TIMEOUT(faults, touch, 240)
{
	static const struct probe probes[] = {
		{"page fault", before_touch, call_touch, after_map, {0}, false},
	};

	self->s.fd = block_alloc(self->s.dev, FRAMES * self->s.frame);
	ASSERT_LE(0, self->s.fd);
	ASSERT_LT(0, sweep(_metadata, &self->s, &probes[0]));
	close(self->s.fd);
}

/* The block as a dma-buf, and that one's own mapping. */

static int call_export(struct subject *s)
{
	struct binpool_export_dmabuf e = {.size = sizeof(e)};
	int ret = request(s->fd, BINPOOL_IOC_EXPORT_DMABUF, &e);

	s->other = ret ? -1 : e.fd;
	return ret;
}

static void after_export(struct subject *s)
{
	if (s->other >= 0)
		close(s->other);
	s->other = -1;
}

static int call_export_and_map(struct subject *s)
{
	int ret = call_export(s);

	if (ret)
		return ret;
	s->p = block_map(s->other, s->frame);
	if (s->p == MAP_FAILED) {
		s->p = NULL;
		return -errno;
	}
	return madvise(s->p, s->frame, MADV_POPULATE_WRITE) ? -errno : 0;
}

static void after_export_and_map(struct subject *s)
{
	if (s->p)
		munmap(s->p, s->frame);
	s->p = NULL;
	after_export(s);
}

TEST_F_TIMEOUT(faults, dmabuf, 300)
{
	static const struct probe probes[] = {
		{"EXPORT_DMABUF", nothing, call_export, after_export, {ENOMEM, EFAULT}, false},
		{"EXPORT_DMABUF and mmap",
		 nothing,
		 call_export_and_map,
		 after_export_and_map,
		 {ENOMEM, EFAULT},
		 false},
	};

	self->s.fd = block_alloc(self->s.dev, self->s.frame);
	ASSERT_LE(0, self->s.fd);
	for (size_t i = 0; i < ARRAY_SIZE(probes); i++)
		ASSERT_LT(4, sweep(_metadata, &self->s, &probes[i]));
	close(self->s.fd);
}

/* The same, in the hands of a driver. */

static void before_import(struct subject *s)
{
	s->other = block_export(s->fd, 0);
	s->device = open("/dev/" IMPORTER_NAME, O_RDWR | O_CLOEXEC);
}

static int call_import(struct subject *s)
{
	struct importer_attach attach = {.fd = s->other, .dma_bits = 64};
	struct importer_map map = {};
	int ret = request(s->device, IMPORTER_ATTACH, &attach);

	if (!ret)
		ret = request(s->device, IMPORTER_MAP, &map);
	if (!ret)
		ret = request(s->device, IMPORTER_VMAP, NULL);
	return ret;
}

static void after_import(struct subject *s)
{
	close(s->device);
	after_export(s);
}

TEST_F_TIMEOUT(faults, import, 300)
{
	static const struct probe probe = {
		.name = "attach, map and vmap",
		.before = before_import,
		.call = call_import,
		.after = after_import,
		.errnos = {ENOMEM, EFAULT},
	};

	ASSERT_EQ(0, module_load_beside(IMPORTER_KO));
	self->s.fd = block_alloc(self->s.dev, FRAMES * self->s.frame);
	ASSERT_LE(0, self->s.fd);
	/* The attachment, the mapping and its table, the array of pages and their area. */
	ASSERT_LT(5, sweep(_metadata, &self->s, &probe));
	close(self->s.fd);
	ASSERT_EQ(0, syscall(SYS_delete_module, "importer", O_NONBLOCK));
}

static int call_write(struct subject *s)
{
	return text_write(s->path, s->text);
}

/* Physical addresses, and the end of the quarantine of what they were told of. */

static int call_phys(struct subject *s)
{
	struct binpool_phys_run run = {};
	int ret = block_phys(s->fd, &run, 1);

	/* Told is told, whatever became of the call. */
	s->told = run.address;
	return ret < 0 ? ret : 0;
}

static void before_phys(struct subject *s)
{
	s->fd = block_alloc(s->dev, FRAMES * s->frame);
}

static void release(struct subject *s)
{
	if (attr_write("phys_release", 1) || attr_read("quarantine_bytes"))
		s->wrong = "cannot be released";
}

static void after_phys(struct subject *s)
{
	after_fd(s);
	if ((!s->ret || s->told) && attr_read("quarantine_bytes") != (long long)(FRAMES * s->frame))
		s->wrong = "not in quarantine";
	release(s);
}

static void before_release(struct subject *s)
{
	before_phys(s);
	call_phys(s);
	after_fd(s);
}

static void after_release(struct subject *s)
{
	const long long left = s->ret ? (long long)(FRAMES * s->frame) : 0;

	if (attr_read("quarantine_bytes") != left)
		s->wrong = "wrong amount in quarantine";
	release(s);
}

TEST_F_TIMEOUT(faults, phys, 240)
{
	static const struct probe probes[] = {
		{"PHYS", before_phys, call_phys, after_phys, {EFAULT}, false},
		{"phys_release",
		 before_release,
		 call_write,
		 after_release,
		 {ENOMEM, EFAULT},
		 false},
	};

	self->s.path = SYSFS "phys_release";
	self->s.text = "1";
	for (size_t i = 0; i < ARRAY_SIZE(probes); i++)
		ASSERT_LT(2, sweep(_metadata, &self->s, &probes[i]));
}

/* Every file that tells something, and those that can be written. */

static int call_open_and_read(struct subject *s)
{
	char text[4096];
	int ret = text_read(s->path, text, sizeof(text));

	return ret < 0 ? ret : 0;
}

static void before_read(struct subject *s)
{
	s->other = open(s->path, O_RDONLY | O_CLOEXEC);
}

static int call_read(struct subject *s)
{
	char text[4096];

	return read(s->other, text, sizeof(text)) < 0 ? -errno : 0;
}

static void after_read(struct subject *s)
{
	close(s->other);
	s->other = -1;
}

static void sweep_file(struct __test_metadata *_metadata, struct subject *s, const char *path)
{
	struct probe probe = {path, before_read, call_read, after_read, {ENOMEM, EFAULT}, true};

	s->path = path;
	ASSERT_LE(2, sweep(_metadata, s, &probe));
}

/* Of the folders of bins, which are all alike, one. */
static void sweep_folder(struct __test_metadata *_metadata, struct subject *s, const char *folder)
{
	DIR *dir = opendir(folder);
	bool bins = false;

	ASSERT_NE(NULL, dir);
	for (struct dirent *e = readdir(dir); e && !bins; e = readdir(dir)) {
		struct stat st;
		char path[512];

		snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
		if (e->d_name[0] == '.' || lstat(path, &st))
			continue;
		if (S_ISDIR(st.st_mode) && strcmp(e->d_name, "power")) {
			sweep_folder(_metadata, s, path);
			bins = strstr(folder, "/bins") != NULL;
		}
		if (S_ISREG(st.st_mode) && st.st_mode & 0444)
			sweep_file(_metadata, s, path);
	}
	closedir(dir);
}

TEST_F_TIMEOUT(faults, sysfs_read, 600)
{
	static const struct probe open_too = {
		"open and read", nothing, call_open_and_read, nothing, {ENOMEM, EFAULT}, true,
	};

	self->s.path = SYSFS "max_bytes";
	ASSERT_LT(2, sweep(_metadata, &self->s, &open_too));
	sweep_folder(_metadata, &self->s, SYSFS);
	sweep_folder(_metadata, &self->s, "/sys/module/binpool/parameters");
}

TEST_F_TIMEOUT(faults, other_files_read, 240)
{
	char path[64];

	self->s.fd = block_alloc(self->s.dev, self->s.frame);
	ASSERT_LE(0, self->s.fd);
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", self->s.dev);
	sweep_file(_metadata, &self->s, path);
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", self->s.fd);
	sweep_file(_metadata, &self->s, path);
	sweep_folder(_metadata, &self->s, DEBUGFS "binpool");
	close(self->s.fd);
}

TEST_F_TIMEOUT(faults, sysfs_write, 240)
{
	static const struct probe probe = {
		"write", before_held, call_write, nothing, {ENOMEM, EFAULT}, false,
	};
	char max_bytes[32], user_max_bytes[32];
	const char *const writes[][2] = {
		{SYSFS "max_bytes", max_bytes},
		{SYSFS "user_max_bytes", user_max_bytes},
		{SYSFS "reserve_bytes", "0"},
		{SYSFS "holding", "1"},
		{SYSFS "free_held", "1"},
		{"/sys/module/binpool/parameters/limbo_wait_ms", "1000"},
		{"/sys/module/binpool/parameters/limbo_max_ms", "0"},
		{"/sys/module/binpool/parameters/floor_bytes", "0"},
	};

	snprintf(max_bytes, sizeof(max_bytes), "%lld", attr_read("max_bytes"));
	snprintf(user_max_bytes, sizeof(user_max_bytes), "%lld", attr_read("user_max_bytes"));
	for (size_t i = 0; i < ARRAY_SIZE(writes); i++) {
		self->s.path = writes[i][0];
		self->s.text = writes[i][1];
		ASSERT_LT(2, sweep(_metadata, &self->s, &probe));
	}
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
