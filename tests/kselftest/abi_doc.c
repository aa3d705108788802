// SPDX-License-Identifier: GPL-2.0
/*
 * The module's files in sysfs and its parameters against kmod/ABI: what is there is
 * described, with its mode, and what is described is there; reading and writing do
 * what the mode and the description say, and what is refused changes nothing.
 */
#include <ctype.h>
#include <grp.h>
#include <sys/mount.h>

#define LOG_EXPECTED "is not"

#include "binpool_test.h"

#define PARAMETERS "/sys/module/binpool/parameters/"
#define DEBUGFS	   "/sys/kernel/debug/"
#define EVENTS	   "/sys/kernel/tracing/events/binpool/"
#define NOBODY	   65534

/* A "What" of kmod/ABI with what the head of its description says. */
struct entry {
	char what[128];
	char kind[16];
	char names[256]; /* of values or columns, each with a space before it */
	unsigned int mode;
	bool seen;
};

static struct {
	struct entry entries[256];
	unsigned int count;
} docs;

/* The text after a tag ("What:"), or NULL; of a line without a tag, for @tag NULL. */
static const char *tagged(const char *line, const char *tag)
{
	size_t len = tag ? strlen(tag) : 0;

	if (tag ? strncmp(line, tag, len) : line[0] != '\t')
		return NULL;
	return line + len + strspn(line + len, "\t ");
}

/* A line "name:<tab>..." of a description. */
static void name_read(const char *text, struct entry *e)
{
	size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz_"), used = strlen(e->names);

	if (len && text[len] == ':' && text[len + 1] == '\t')
		snprintf(e->names + used, sizeof(e->names) - used, " %.*s", (int)len, text);
}

/* Appends the entries of one file; a message about what is wrong, or NULL. */
static const char *file_read(const char *path)
{
	static const char *const order[] = {
		"What:", "Date:", "KernelVersion:", "Contact:", "Description:"};
	unsigned int first = docs.count, at = ARRAY_SIZE(order) - 1;
	FILE *f = fopen(path, "re");
	const char *wrong = NULL;
	char line[256];

	if (!f)
		return "cannot be opened";
	while (!wrong && fgets(line, sizeof(line), f)) {
		unsigned int next = (at + 1) % ARRAY_SIZE(order);
		const char *text = tagged(line, order[next]);

		line[strcspn(line, "\n")] = '\0';
		if (text) {
			at = next;
			if (at == 0)
				first = docs.count;
			if (!*text)
				wrong = "a tag without a text";
		} else {
			text = tagged(line, NULL);
			if ((!text && *line) || docs.count == first)
				wrong = "a line that is no tag that may follow";
			if (!wrong && text && at != 0)
				name_read(text, &docs.entries[docs.count - 1]);
			if (!text || at != 0)
				continue;
		}
		if (wrong)
			break;
		if (at == 0) {
			struct entry *e = &docs.entries[docs.count];

			if (docs.count == ARRAY_SIZE(docs.entries)) {
				wrong = "more entries than this test has room for";
				break;
			}
			memset(e, 0, sizeof(*e));
			snprintf(e->what, sizeof(e->what), "%s", text);
			docs.count++;
		} else if (at == ARRAY_SIZE(order) - 1) {
			char access[4], kind[16];
			unsigned int mode;

			if (sscanf(text, "(%2[RWO], %o, %15[a-z])", access, &mode, kind) != 3 ||
			    !strcmp(access, "RO") != !(mode & 0222) ||
			    !strcmp(access, "WO") != !(mode & 0444)) {
				wrong = "no (RO|RW|WO, mode, kind) before the description";
				break;
			}
			for (unsigned int i = first; i < docs.count; i++) {
				docs.entries[i].mode = mode;
				strcpy(docs.entries[i].kind, kind);
			}
		}
	}
	if (!wrong && (at != ARRAY_SIZE(order) - 1 || first == docs.count))
		wrong = "ends within an entry";
	if (wrong)
		fprintf(stderr, "# %s: %s: '%s'\n", path, wrong, line);
	fclose(f);
	return wrong;
}

static bool docs_read(void)
{
	DIR *d = opendir(ABI_DIR);
	bool good = d;

	docs.count = 0;
	if (!d)
		fprintf(stderr, "# " ABI_DIR ": %s\n", strerror(errno));
	while (good) {
		struct dirent *e = readdir(d);
		char path[512];

		if (!e)
			break;
		if (e->d_name[0] == '.' || !strcmp(e->d_name, "README"))
			continue;
		snprintf(path, sizeof(path), ABI_DIR "/%s", e->d_name);
		good = !file_read(path);
	}
	if (d)
		closedir(d);
	return good && docs.count;
}

/* Whether a path is of the kind that @what names: <N> stands for a number. */
static bool matches(const char *what, const char *path)
{
	while (*what && *path) {
		if (!strncmp(what, "<N>", 3) && isdigit((unsigned char)*path)) {
			what += 3;
			path += strspn(path, "0123456789");
		} else if (*what++ != *path++) {
			return false;
		}
	}
	return *what == *path;
}

static struct entry *entry_of(const char *path)
{
	for (unsigned int i = 0; i < docs.count; i++) {
		if (matches(docs.entries[i].what, path))
			return &docs.entries[i];
	}
	return NULL;
}

/* Calls @each for every file below @dir until it finds something wrong: 1, else 0. */
static int walk(const char *dir, int (*each)(const char *path, mode_t mode))
{
	DIR *d = opendir(dir);
	int wrong = !d;

	while (!wrong) {
		struct dirent *e = readdir(d);
		char path[512];
		struct stat st;

		if (!e)
			break;
		/* Of the device core: these two files and `power`. Links lead out. */
		if (e->d_name[0] == '.' || !strcmp(e->d_name, "uevent") ||
		    !strcmp(e->d_name, "dev") || !strcmp(e->d_name, "power"))
			continue;
		snprintf(path, sizeof(path), "%s%s", dir, e->d_name);
		if (lstat(path, &st))
			continue; /* went meanwhile */
		if (S_ISDIR(st.st_mode)) {
			strcat(path, "/");
			wrong = walk(path, each);
		} else if (S_ISREG(st.st_mode)) {
			wrong = each(path, st.st_mode & 07777);
			if (wrong)
				fprintf(stderr, "# at %s\n", path);
		}
	}
	if (d)
		closedir(d);
	else
		fprintf(stderr, "# %s: %s\n", dir, strerror(errno));
	return wrong;
}

/* Debugfs, if the kernel has it, mounted if it was not. */
static bool has_debugfs(void)
{
	return !mount("debugfs", DEBUGFS, "debugfs", 0, NULL) || errno == EBUSY;
}

static int walk_all(int (*each)(const char *path, mode_t mode))
{
	return walk(SYSFS, each) || walk(PARAMETERS, each) ||
	       (has_debugfs() && walk(DEBUGFS "binpool/", each));
}

static int is_described(const char *path, mode_t mode)
{
	struct entry *e = entry_of(path);

	if (!e) {
		fprintf(stderr, "# not described in kmod/ABI\n");
		return 1;
	}
	e->seen = true;
	if (e->mode != mode)
		fprintf(stderr, "# mode is %o, described as %o\n", (unsigned int)mode, e->mode);
	return e->mode != mode;
}

/* What of sysfs is described but was not seen in a walk, or NULL. */
static const char *unseen(void)
{
	for (unsigned int i = 0; i < docs.count; i++) {
		const struct entry *e = &docs.entries[i];

		if (!e->seen && (!strncmp(e->what, SYSFS, strlen(SYSFS)) ||
				 !strncmp(e->what, PARAMETERS, strlen(PARAMETERS))))
			return e->what;
	}
	return NULL;
}

TEST_F(pool, described)
{

	ASSERT_TRUE(docs_read());
	ASSERT_EQ(0, walk_all(is_described));
	ASSERT_EQ(NULL, unseen())
	{
		TH_LOG("described, but not there: %s", unseen());
	}
}

/* The check itself: what is wrong in the descriptions is noticed. */
TEST_F(pool, wrong_descriptions_would_be_seen)
{
	static const char *const paths[] = {SYSFS "max_bytes", SYSFS "node<N>/held_bytes",
					    PARAMETERS "floor_bytes"};

	fprintf(stderr, "# the complaints that follow are wanted\n");
	for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
		struct entry *e;

		ASSERT_TRUE(docs_read());
		e = entry_of(i == 1 ? SYSFS "node0/held_bytes" : paths[i]);
		ASSERT_NE(NULL, e);
		ASSERT_STREQ(paths[i], e->what);
		e->mode ^= 0200;
		ASSERT_EQ(1, walk_all(is_described));
		e->mode ^= 0200;
		strcat(e->what, "s");
		ASSERT_EQ(1, walk_all(is_described));
	}
	ASSERT_TRUE(docs_read());
	docs.entries[docs.count] = *entry_of(SYSFS "max_bytes");
	strcat(docs.entries[docs.count].what, "s");
	docs.count++;
	ASSERT_EQ(0, walk_all(is_described));
	ASSERT_NE(NULL, unseen());
}

/* The names of the lines of @text that the kernel does not write for every file. */
static void names_of_lines(const char *text, char *names, size_t size)
{
	static const char *const every[] = {"pos", "flags", "mnt_id", "ino"};
	size_t used = 0;

	names[0] = '\0';
	for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		int len = (int)strcspn(line, ":\n");
		bool ours = true;

		for (size_t i = 0; i < ARRAY_SIZE(every); i++)
			ours = ours && (strncmp(line, every[i], (size_t)len) || every[i][len]);
		if (ours && used < size)
			used += (size_t)snprintf(names + used, size - used, " %.*s", len, line);
	}
}

/* What the entry's kind is: one value and a newline, or what its names say. */
static bool is_value(const char *text, const struct entry *e)
{
	const char *kind = e->kind;
	size_t digits = strspn(text, "0123456789");

	if (!strcmp(kind, "number"))
		return digits && !strcmp(text + digits, "\n");
	if (!strcmp(kind, "flag"))
		return !strcmp(text, "0\n") || !strcmp(text, "1\n");
	if (!strcmp(kind, "bool"))
		return !strcmp(text, "Y\n") || !strcmp(text, "N\n");
	if (!strcmp(kind, "table")) {
		/* The columns' names are the first line, with a space between them. */
		size_t len = strlen(e->names) - 1;

		return !strncmp(text, e->names + 1, len) && text[len] == '\n';
	}
	if (!strcmp(kind, "lines")) {
		char names[512];

		names_of_lines(text, names, sizeof(names));
		if (strcmp(names, e->names))
			fprintf(stderr, "# names:%s\n# described:%s\n", names, e->names);
		return !strcmp(names, e->names);
	}
	fprintf(stderr, "# no kind: %s\n", kind);
	return false;
}

/* Root may open anything, so the attempt is the proof, not the mode. */
static int does_what_mode_says(const char *path, mode_t mode)
{
	const struct entry *e = entry_of(path);
	char text[512], again[512];
	int got = text_read(path, text, sizeof(text));

	if (!e || (mode & 0444 ? got <= 0 : got != -EACCES && got != -EIO)) {
		fprintf(stderr, "# reading it: %d\n", got);
		return 1;
	}
	if (mode & 0444 && !is_value(text, e)) {
		fprintf(stderr, "# no %s: '%s'\n", e->kind, text);
		return 1;
	}
	if (!(mode & 0222)) {
		/* Debugfs lets root open it; then there is no way to write. */
		got = text_write(path, mode & 0444 ? text : "1");
		if (got != -EIO && got != -EACCES && got != -EINVAL)
			fprintf(stderr, "# writing it: %d\n", got);
		return got != -EIO && got != -EACCES && got != -EINVAL;
	}
	/* What it is already may be written, and changes nothing. */
	if (!(mode & 0444))
		return 0;
	got = text_write(path, text);
	if (got || text_read(path, again, sizeof(again)) <= 0 || strcmp(text, again)) {
		fprintf(stderr, "# writing back '%s': %d\n", text, got);
		return 1;
	}
	return 0;
}

TEST_F_TIMEOUT(pool, modes_are_true, 120)
{

	ASSERT_TRUE(docs_read());
	ASSERT_EQ(0, walk_all(does_what_mode_says));
	ASSERT_STREQ("nothing", counters_moved(&self->before));
}

/* The kernel makes these files, so only their contents are ours. */
TEST_F(pool, fdinfo_is_described)
{
	int block = block_alloc(self->dev, self->frame);
	const int fds[] = {self->dev, block};
	static const char *const whats[] = {"/proc/<N>/fdinfo/<N> of /dev/binpool",
					    "/proc/<N>/fdinfo/<N> of a block"};

	ASSERT_TRUE(docs_read());
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		char path[64], text[1024];
		struct entry *e;

		snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fds[i]);
		ASSERT_LT(0, text_read(path, text, sizeof(text)));
		for (e = docs.entries; e < docs.entries + docs.count; e++) {
			if (!strcmp(e->what, whats[i]))
				break;
		}
		ASSERT_NE(docs.entries + docs.count, e);
		ASSERT_TRUE(is_value(text, e));
	}
	close(block);
}

/* The fields of an event that not every event has, in the form of entry.names. */
static bool fields_of(const char *event, char *names, size_t size)
{
	char path[320], line[512];
	size_t used = 0;
	FILE *f;

	snprintf(path, sizeof(path), EVENTS "%.255s/format", event);
	f = fopen(path, "re");
	if (!f)
		return false;
	names[0] = '\0';
	while (fgets(line, sizeof(line), f)) {
		char *end = strchr(line, ';'), *name;

		if (strncmp(line, "\tfield:", 7) || !end)
			continue;
		*end = '\0';
		name = strrchr(line, ' ');
		if (name && strncmp(name, " common_", 8) && used < size)
			used += (size_t)snprintf(names + used, size - used, "%s", name);
	}
	fclose(f);
	return true;
}

TEST_F(pool, events_are_described)
{
	char names[512], path[512];
	int events = 0;
	DIR *d;

	if (mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL) && errno != EBUSY)
		SKIP(return, "the kernel has no tracefs");
	ASSERT_TRUE(docs_read());
	d = opendir(EVENTS);
	ASSERT_NE(NULL, d);
	for (struct dirent *e = readdir(d); e; e = readdir(d)) {
		struct entry *entry;

		if (e->d_name[0] == '.' || e->d_type != DT_DIR)
			continue;
		snprintf(path, sizeof(path), EVENTS "%s", e->d_name);
		entry = entry_of(path);
		ASSERT_NE(NULL, entry)
		{
			TH_LOG("not described: %s", path);
		}
		ASSERT_TRUE(fields_of(e->d_name, names, sizeof(names)));
		ASSERT_STREQ(names, entry->names);
		events++;
	}
	closedir(d);
	for (unsigned int i = 0; i < docs.count; i++)
		events -= !strcmp(docs.entries[i].kind, "event");
	ASSERT_EQ(0, events);
}

static int nobody_may(const char *path, mode_t mode)
{
	char text[512];
	int got = text_read(path, text, sizeof(text));

	if (mode & 0004 ? got <= 0 : got != -EACCES) {
		fprintf(stderr, "# reading it: %d\n", got);
		return 1;
	}
	got = text_write(path, "1");
	if (got != -EACCES)
		fprintf(stderr, "# writing it: %d\n", got);
	return got != -EACCES;
}

/* Without root's powers: nothing can be written, and only what all may read is read. */
TEST_F_TIMEOUT(pool, for_others, 120)
{
	pid_t pid = fork();

	if (!pid) {
		if (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) ||
		    setresuid(NOBODY, NOBODY, NOBODY))
			_exit(2);
		_exit(walk_all(nobody_may));
	}
	ASSERT_EQ(0, child_status(pid));
}

/* Writes @len bytes, in one go; 0 or -errno. */
static int bytes_write(const char *path, const void *bytes, size_t len)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = write(fd, bytes, len);
	n = n < 0 ? -errno : 0;
	close(fd);
	return (int)n;
}

static int refuses_garbage(const char *path, mode_t mode)
{
	static char nines[4096];
#define BYTES(text)                                                                                \
	{                                                                                          \
		text, sizeof(text) - 1                                                             \
	}
	static const struct {
		const char *bytes;
		size_t len;
	} garbage[] = {
		BYTES(""),
		BYTES("\n"),
		BYTES(" "),
		BYTES("\t\n"),
		BYTES("\0"),
		BYTES("\0001"),
		BYTES("\xff\xfe\x80\x01"),
		BYTES("\x7f"
		      "ELF\2\1\1"),
		BYTES("-1"),
		BYTES("-0"),
		BYTES("-9223372036854775808"),
		BYTES("18446744073709551615"),
		BYTES("18446744073709551616"),
		BYTES("0xffffffffffffffff"),
		BYTES("0x10000000000000000"),
		BYTES("0x"),
		BYTES("08"),
		BYTES("1.5"),
		BYTES("1e9"),
		BYTES("4G"),
		BYTES("1 2"),
		BYTES("1\n2"),
		BYTES(" 1"),
		BYTES("one"),
		BYTES("true"),
		BYTES("onward"),
		BYTES("yesterday"),
		BYTES("?"),
		BYTES("%s%n"),
		{nines, sizeof(nines) - 1},
	};
	struct counters before = counters_read();
	char was[512], is[512];

	if (!(mode & 0222))
		return 0;
	memset(nines, '9', sizeof(nines));
	for (size_t i = 0; i < ARRAY_SIZE(garbage); i++) {
		int want_empty = garbage[i].len ? -EINVAL : 0, ret;
		bool readable = text_read(path, was, sizeof(was)) > 0;

		ret = bytes_write(path, garbage[i].bytes, garbage[i].len);
		if (ret != -EINVAL && ret != -ERANGE && ret != want_empty) {
			fprintf(stderr, "# writing '%.40s': %d\n", garbage[i].bytes, ret);
			return 1;
		}
		if (readable && (text_read(path, is, sizeof(is)) <= 0 || strcmp(was, is))) {
			fprintf(stderr, "# writing '%.40s' made %s of it\n", garbage[i].bytes, is);
			return 1;
		}
		if (strcmp(counters_moved(&before), "nothing")) {
			fprintf(stderr, "# writing '%.40s' moved %s\n", garbage[i].bytes,
				counters_moved(&before));
			return 1;
		}
	}
	return 0;
}

TEST_F_TIMEOUT(pool, garbage, 120)
{
	/* Something held, so that it would be noticed if it went. */
	close(block_alloc(self->dev, 4 * self->frame));
	ASSERT_EQ(0, walk_all(refuses_garbage));
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
