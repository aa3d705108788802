// SPDX-License-Identifier: GPL-2.0
/*
 * Who holds what: fdinfo of the device and of blocks, as seen from here and from
 * other namespaces, and the list of all blocks in debugfs while they come and go.
 */
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include "binpool_test.h"

#define HOLDERS "/sys/kernel/debug/binpool/holders"

/* A value of the fdinfo of descriptor @fd of @pid; -errno, -ENOENT if it has none. */
static long long fdinfo_read(pid_t pid, int fd, const char *name)
{
	char path[64], text[1024], *line;
	size_t len = strlen(name);
	int n;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", (int)pid, fd);
	n = text_read(path, text, sizeof(text));
	if (n < 0)
		return n;
	for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		if (!strncmp(line, name, len) && line[len] == ':')
			return strtoll(line + len + 1, NULL, 10);
	}
	return -ENOENT;
}

TEST_F(pool, fdinfo_of_a_block)
{
	int fd = block_alloc(self->dev, 3 * self->frame - 1);
	struct binpool_query q;
	char *p = block_map(fd, 3 * self->frame);

	ASSERT_NE(MAP_FAILED, (void *)p);
	memset(p, 1, self->frame + 1);
	ASSERT_EQ(0, block_query(fd, &q));
	ASSERT_EQ((long long)(3 * self->frame - 1), fdinfo_read(getpid(), fd, "bytes"));
	ASSERT_EQ((long long)(3 * self->frame), fdinfo_read(getpid(), fd, "capacity"));
	ASSERT_EQ(q.runs, fdinfo_read(getpid(), fd, "runs"));
	ASSERT_EQ((long long)q.run_max_bytes, fdinfo_read(getpid(), fd, "run_max_bytes"));
	ASSERT_EQ(q.node, fdinfo_read(getpid(), fd, "node"));
	ASSERT_EQ(getuid(), fdinfo_read(getpid(), fd, "owner_uid"));
	ASSERT_EQ(getpid(), fdinfo_read(getpid(), fd, "owner_pid"));
	ASSERT_EQ((long long)q.huge_faults, fdinfo_read(getpid(), fd, "huge_faults"));
	ASSERT_EQ((long long)q.small_faults, fdinfo_read(getpid(), fd, "small_faults"));
	ASSERT_LT(0, q.huge_faults + q.small_faults);
	munmap(p, 3 * self->frame);
	close(fd);
}

TEST_F(pool, fdinfo_of_an_opener)
{
	int fd, other = open(DEVICE, O_RDWR | O_CLOEXEC);

	ASSERT_EQ(getuid(), fdinfo_read(getpid(), self->dev, "uid"));
	ASSERT_EQ(0, fdinfo_read(getpid(), self->dev, "opener_bytes"));
	fd = block_alloc(self->dev, 3 * self->frame);
	ASSERT_EQ((long long)(3 * self->frame), fdinfo_read(getpid(), self->dev, "opener_bytes"));
	ASSERT_EQ(0, fdinfo_read(getpid(), other, "opener_bytes"));
	ASSERT_EQ(getuid(), fdinfo_read(getpid(), self->dev, "user_uid"));
	ASSERT_EQ((long long)(3 * self->frame), fdinfo_read(getpid(), other, "user_bytes"));
	ASSERT_EQ(0, fdinfo_read(getpid(), other, "opener_max_bytes"));
	ASSERT_EQ(attr_read("user_max_bytes") ?: attr_read("max_bytes"),
		  fdinfo_read(getpid(), other, "user_max_bytes"));
	close(fd);
	ASSERT_EQ(0, fdinfo_read(getpid(), self->dev, "opener_bytes"));
	close(other);
}

/* An id that means nothing to the reader is not shown to him. */
TEST_F(pool, fdinfo_in_other_namespaces)
{
	int fd = block_alloc(self->dev, self->frame);
	pid_t pid;

	pid = fork();
	if (!pid) {
		if (unshare(CLONE_NEWUSER))
			_exit(77);
		_exit(fdinfo_read(getpid(), fd, "owner_uid") != 65534 ||
		      fdinfo_read(getpid(), self->dev, "uid") != 65534);
	}
	ASSERT_EQ(0, child_status(pid));

	pid = fork();
	if (!pid) {
		if (unshare(CLONE_NEWPID | CLONE_NEWNS) ||
		    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
			_exit(77);
		pid = fork();
		if (pid)
			_exit(child_status(pid));
		if (mount("proc", "/proc", "proc", 0, NULL))
			_exit(77);
		_exit(fdinfo_read(getpid(), fd, "owner_pid") != 0);
	}
	ASSERT_EQ(0, child_status(pid));
	ASSERT_EQ(getpid(), fdinfo_read(getpid(), fd, "owner_pid"));
	close(fd);
}

/* A control group of our own; its folder's inode number is its id. */
TEST_F(pool, fdinfo_names_the_control_group)
{
	char root[] = "/tmp/binpool-cgroup.XXXXXX", group[64], procs[96];
	int ready[2], go[2];
	struct stat st;
	pid_t pid;
	char c;

	ASSERT_NE(NULL, mkdtemp(root));
	if (mount("none", root, "cgroup2", 0, NULL)) {
		rmdir(root);
		SKIP(return, "the kernel has no cgroup2");
	}
	snprintf(group, sizeof(group), "%s/binpool-test", root);
	snprintf(procs, sizeof(procs), "%s/cgroup.procs", group);
	ASSERT_EQ(0, mkdir(group, 0755));
	ASSERT_EQ(0, stat(group, &st));
	ASSERT_EQ(0, pipe(ready));
	ASSERT_EQ(0, pipe(go));
	pid = fork();
	if (!pid) {
		int dev, fd;

		close(go[1]);
		if (text_write(procs, "0"))
			_exit(1);
		dev = open(DEVICE, O_RDWR);
		fd = block_alloc(dev, self->frame);
		if (dup2(dev, 100) != 100 || dup2(fd, 101) != 101)
			_exit(2);
		write(ready[1], "", 1);
		read(go[0], &c, 1);
		_exit(0);
	}
	close(ready[1]);
	ASSERT_EQ(1, read(ready[0], &c, 1));
	EXPECT_EQ((long long)st.st_ino, fdinfo_read(pid, 100, "cgroup_id"));
	EXPECT_EQ((long long)st.st_ino, fdinfo_read(pid, 101, "cgroup_id"));
	EXPECT_NE((long long)st.st_ino, fdinfo_read(getpid(), self->dev, "cgroup_id"));
	close(go[1]);
	EXPECT_EQ(0, child_status(pid));
	close(go[0]);
	close(ready[0]);
	rmdir(group);
	umount(root);
	rmdir(root);
}

/* The list. */

#define HEADER "uid pid cgroup_id node bytes capacity runs state limbo_bytes age_ms comm\n"

struct holder {
	unsigned int uid;
	int pid, node;
	unsigned long long cgroup_id, bytes, capacity, limbo_bytes, age_ms;
	unsigned int runs;
	char state[16], comm[64];
};

static bool line_parse(const char *line, struct holder *h)
{
	memset(h, 0, sizeof(*h));
	return sscanf(line, "%u %d %llu %d %llu %llu %u %15s %llu %llu %63[^\n]", &h->uid, &h->pid,
		      &h->cgroup_id, &h->node, &h->bytes, &h->capacity, &h->runs, h->state,
		      &h->limbo_bytes, &h->age_ms, h->comm) == 11;
}

FIXTURE(holders)
{
	int dev;
	int log;
	__u64 frame;
};

FIXTURE_SETUP(holders)
{
	struct binpool_info info;

	if (mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL) && errno != EBUSY)
		SKIP(return, "the kernel has no debugfs");
	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &info));
	self->frame = info.frame_bytes;
}

FIXTURE_TEARDOWN(holders)
{
	close(self->dev);
	EXPECT_TRUE(attr_becomes("active_bytes", 0, SOON_MS));
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	EXPECT_EQ(0, log_count_bad(self->log));
}

/* How many lines there are of blocks made by @pid with @bytes (0: any), the last in @h. */
static int holders_count(pid_t pid, __u64 bytes, struct holder *h)
{
	FILE *f = fopen(HOLDERS, "re");
	char line[512];
	int count = 0;

	if (!f)
		return -errno;
	if (!fgets(line, sizeof(line), f) || strcmp(line, HEADER))
		count = -EBADMSG;
	while (count >= 0 && fgets(line, sizeof(line), f)) {
		struct holder one;

		if (!line_parse(line, &one))
			count = -EBADMSG;
		else if (one.pid == pid && (!bytes || one.bytes == bytes) && ++count && h)
			*h = one;
	}
	fclose(f);
	return count;
}

TEST_F(holders, a_line_for_each_block)
{
	int small, large;
	struct holder h;

	ASSERT_EQ(0, holders_count(getpid(), 0, NULL));
	prctl(PR_SET_NAME, "odd name\n\\x");
	small = block_alloc(self->dev, 1);
	large = block_alloc(self->dev, 5 * self->frame);
	ASSERT_LE(0, large);
	ASSERT_EQ(2, holders_count(getpid(), 0, NULL));
	ASSERT_EQ(1, holders_count(getpid(), 1, &h));
	ASSERT_EQ(self->frame, h.capacity);
	sleep_ms(30);
	ASSERT_EQ(1, holders_count(getpid(), 5 * self->frame, &h));
	ASSERT_EQ(getuid(), h.uid);
	ASSERT_EQ(5 * self->frame, h.capacity);
	ASSERT_EQ(fdinfo_read(getpid(), large, "runs"), h.runs);
	ASSERT_EQ(fdinfo_read(getpid(), large, "node"), h.node);
	ASSERT_EQ(fdinfo_read(getpid(), large, "cgroup_id"), (long long)h.cgroup_id);
	ASSERT_STREQ("active", h.state);
	ASSERT_EQ(0, h.limbo_bytes);
	ASSERT_LE(20, h.age_ms);
	ASSERT_GE(60000, h.age_ms);
	ASSERT_STREQ("odd name\\n\\x", h.comm);
	close(small);
	ASSERT_EQ(1, holders_count(getpid(), 0, NULL));
	close(large);
	ASSERT_EQ(0, holders_count(getpid(), 0, NULL));
}

TEST_F(holders, limbo_is_shown)
{
	int fd = block_alloc(self->dev, 3 * self->frame), ends[2];
	char *p = block_map(fd, 3 * self->frame);
	struct iovec part = {p + self->frame, page_bytes()};
	struct holder h;
	__u64 end = now_ms() + SOON_MS;

	ASSERT_NE(MAP_FAILED, (void *)p);
	*(p + self->frame) = 1;
	ASSERT_EQ(0, pipe(ends));
	ASSERT_EQ((ssize_t)part.iov_len, vmsplice(ends[1], &part, 1, 0));
	munmap(p, 3 * self->frame);
	close(fd);
	ASSERT_EQ(1, holders_count(getpid(), 0, &h));
	ASSERT_STREQ("limbo", h.state);
	ASSERT_EQ(self->frame, h.limbo_bytes);
	ASSERT_EQ(3 * self->frame, h.capacity);
	close(ends[0]);
	close(ends[1]);
	while (holders_count(getpid(), 0, NULL) && now_ms() < end)
		sleep_ms(5);
	ASSERT_EQ(0, holders_count(getpid(), 0, NULL));
}

/*
 * The block at which a reader stopped, since no more fitted into the buffer, may be closed
 * before he goes on: he keeps it, but it is nobody's and has no line.
 */
TEST_F(holders, closed_where_a_reader_stopped)
{
	ssize_t got, rest;
	char text[65536];
	int fds[100], file;

	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		fds[i] = block_alloc(self->dev, 1);
		ASSERT_LE(0, fds[i]);
	}
	file = open(HOLDERS, O_RDONLY | O_CLOEXEC);
	/* As many lines as fit into a page; then the next is there, but did not. */
	got = read(file, text, page_bytes());
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		close(fds[i]);
	rest = read(file, text, sizeof(text));
	close(file);
	ASSERT_LT((ssize_t)(page_bytes() / 2), got);
	ASSERT_EQ(0, rest)
	{
		TH_LOG("%.*s", (int)rest, text);
	}
}

/* Of several, those that are left. */
TEST_F(holders, limbo_goes_down)
{
	const __u64 len = 4 * self->frame, end = now_ms() + SOON_MS * slowness();
	int fd = block_alloc(self->dev, len), ends[2][2];
	char *p = block_map(fd, len);
	struct holder h;

	ASSERT_NE(MAP_FAILED, (void *)p);
	for (int i = 0; i < 2; i++) {
		struct iovec part = {at(p, (__u64)(2 * i + 1) * self->frame), page_bytes()};

		*(char *)part.iov_base = 1;
		ASSERT_EQ(0, pipe(ends[i]));
		ASSERT_EQ((ssize_t)part.iov_len, vmsplice(ends[i][1], &part, 1, 0));
	}
	munmap(p, len);
	close(fd);
	ASSERT_EQ(1, holders_count(getpid(), 0, &h));
	ASSERT_EQ(2 * self->frame, h.limbo_bytes);
	close(ends[0][0]);
	close(ends[0][1]);
	while (h.limbo_bytes == 2 * self->frame && now_ms() < end) {
		sleep_ms(5);
		ASSERT_EQ(1, holders_count(getpid(), 0, &h));
	}
	ASSERT_EQ(self->frame, h.limbo_bytes);
	ASSERT_EQ((long long)self->frame, attr_read("limbo_bytes"));
	close(ends[1][0]);
	close(ends[1][1]);
}

/* Ids are what they are to the reader; 0 and nobody, if they are nothing to him. */
TEST_F(holders, read_in_other_namespaces)
{
	int fd = block_alloc(self->dev, 3 * self->frame);
	struct holder h;
	pid_t pid;

	ASSERT_LE(0, fd);
	pid = fork();
	if (!pid) {
		if (unshare(CLONE_NEWUSER | CLONE_NEWPID))
			_exit(77);
		pid = fork();
		if (pid)
			_exit(child_status(pid));
		if (holders_count(0, 3 * self->frame, &h) != 1)
			_exit(1);
		_exit(h.uid != 65534 ? 2 : 0);
	}
	ASSERT_EQ(0, child_status(pid));
	ASSERT_EQ(1, holders_count(getpid(), 3 * self->frame, &h));
	ASSERT_EQ(getuid(), h.uid);
	close(fd);
}

#define MANY 300

/* Read a few bytes at a time, and blocks go while somebody is in the middle. */
TEST_F(holders, many_and_in_pieces)
{
	static int fds[MANY];
	static char text[MANY * 200];
	int file, lines = 0, seen = 0;
	struct holder one;
	size_t used = 0;
	ssize_t n;

	for (int i = 0; i < MANY; i++) {
		fds[i] = block_alloc(self->dev, (__u64)i + 1);
		ASSERT_LE(0, fds[i]);
	}
	ASSERT_EQ(MANY, holders_count(getpid(), 0, NULL));
	file = open(HOLDERS, O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, file);
	while ((n = read(file, text + used, 7)) > 0) {
		used += (size_t)n;
		ASSERT_GT(sizeof(text), used + 7);
	}
	ASSERT_EQ(0, n);
	for (size_t i = 0; i < used; i++)
		lines += text[i] == '\n';
	ASSERT_EQ(MANY + 1, lines);

	/*
	 * From the start again, and from the middle of a line. Ages are as long as a time
	 * is, so that what comes after one may come a byte later than before.
	 */
	ASSERT_EQ(100, pread(file, text + used, 100, 0));
	ASSERT_EQ(0, memcmp(text, text + used, strlen(HEADER)));
	ASSERT_EQ(4, pread(file, text + used, 4, 4));
	ASSERT_EQ(0, memcmp("pid ", text + used, 4));
	n = pread(file, text + used, 200, strlen(HEADER));
	ASSERT_LT(0, n);
	text[used + (size_t)n] = '\0';
	ASSERT_TRUE(line_parse(strtok(text + used, "\n"), &one));
	ASSERT_EQ(1, one.bytes);

	/* One block in two goes, also the one that the reader stands at. */
	ASSERT_EQ(0, lseek(file, 0, SEEK_SET));
	ASSERT_LT(0, read(file, text, 1));
	for (int i = 0; i < MANY; i += 2)
		close(fds[i]);
	used = 1;
	while ((n = read(file, text + used, 999)) > 0) {
		used += (size_t)n;
		ASSERT_GT(sizeof(text), used + 999);
	}
	text[used] = '\0';
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		struct holder h;

		seen += line_parse(line, &h) && h.bytes % 2 == 0;
	}
	ASSERT_EQ(MANY / 2, seen);
	close(file);
	for (int i = 1; i < MANY; i += 2)
		close(fds[i]);
	ASSERT_EQ(0, holders_count(getpid(), 0, NULL));
}

/* Readers and users at once; a reader that is killed leaves nothing. */
TEST_F(holders, read_while_blocks_come_and_go)
{
	pid_t users[2], readers[2];
	__u64 end = now_ms() + 2000;

	for (int i = 0; i < 2; i++) {
		users[i] = fork();
		while (!users[i])
			close(block_alloc(self->dev, self->frame));
		readers[i] = fork();
		while (!readers[i])
			holders_count(0, 0, NULL);
	}
	while (now_ms() < end) {
		ASSERT_EQ(0, holders_count(getpid(), 0, NULL));
		sleep_ms(1);
	}
	for (int i = 0; i < 2; i++) {
		kill(readers[i], SIGKILL);
		kill(users[i], SIGKILL);
		ASSERT_EQ(128 + SIGKILL, child_status(readers[i]));
		ASSERT_EQ(128 + SIGKILL, child_status(users[i]));
	}
	ASSERT_EQ(0, holders_count(users[0], 0, NULL));
	ASSERT_EQ(0, holders_count(users[1], 0, NULL));
}

TEST_F(holders, only_for_root)
{
	struct stat st;
	pid_t pid;

	ASSERT_EQ(0, stat(HOLDERS, &st));
	ASSERT_EQ(0400, st.st_mode & 07777);
	ASSERT_GT(0, text_write(HOLDERS, "x"));
	pid = fork();
	if (!pid) {
		char text[64];

		/* The folder above is closed as well; the file itself must be. */
		if (chmod("/sys/kernel/debug", 0755) || setresuid(65534, 65534, 65534))
			_exit(2);
		_exit(text_read(HOLDERS, text, sizeof(text)) != -EACCES);
	}
	ASSERT_EQ(0, child_status(pid));
	chmod("/sys/kernel/debug", 0700);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
