// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * binpool stat: the module's sysfs attributes as a table. Which attributes
 * there are is the module's business: whatever files are there are shown.
 * Owns the tables it reads; no locks.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

#define SYSFS_ROOT "/sys/class/misc/binpool"
#define VALUE_LEN  256
#define CELL_LEN   (VALUE_LEN + CLI_UNITS_LEN + 4)

/* One folder's attributes, sorted by name. */
struct attribute {
	char name[NAME_MAX + 1];
	char value[VALUE_LEN];
};

struct folder {
	char name[NAME_MAX + 1];
	uint64_t number; /* of a node's folder, or the capacity of a bin's */
	struct attribute *attributes;
	size_t count;
};

static void print_help(void)
{
	printf("Usage: binpool stat [OPTION]...\n"
	       "Print what the kernel module holds, as a whole and per NUMA node.\n\n"
	       "  --bins      of each node, also the size classes that are or were in use\n"
	       "  --root DIR  read DIR instead of " SYSFS_ROOT "\n");
}

static int compare_attributes(const void *a, const void *b)
{
	return strcmp(((const struct attribute *)a)->name, ((const struct attribute *)b)->name);
}

static int compare_folders(const void *a, const void *b)
{
	uint64_t left = ((const struct folder *)a)->number;
	uint64_t right = ((const struct folder *)b)->number;

	return (left > right) - (left < right);
}

/* The first line of a file; what keeps it from being read, in words, if anything does. */
static void read_value(int dir, const char *name, char value[VALUE_LEN])
{
	ssize_t length = -1;
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		length = read(fd, value, VALUE_LEN - 1);
		if (length >= 0)
			value[length] = '\0';
	}
	if (length < 0)
		snprintf(value, VALUE_LEN, "(%s)", strerror(errno));
	value[strcspn(value, "\n")] = '\0';
	if (fd >= 0)
		close(fd);
}

/* What the driver core puts into every device's folder tells nothing about memory. */
static int is_core_file(const char *name)
{
	return !strcmp(name, "dev") || !strcmp(name, "uevent");
}

/* @prefix and a number, and nothing else. */
static int folder_number(const char *name, const char *prefix, uint64_t *number)
{
	size_t length = strlen(prefix);

	return !strncmp(name, prefix, length) && !cli_parse_u64(name + length, number);
}

static void *grow(void *array, size_t count, size_t member)
{
	void *larger = reallocarray(array, count + 1, member);

	if (!larger) {
		cli_error("no memory for the table");
		exit(CLI_FAILED);
	}
	return larger;
}

/*
 * Reads the files of folder @path into @out, and those of the folders in it whose names
 * are @prefix and a number, if @inner is given, into that. Returns 0 or -errno.
 */
static int read_folder(int parent, const char *path, struct folder *out, const char *prefix,
		       struct folder **inner, size_t *inner_count)
{
	int fd = openat(parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct attribute *attribute;
	struct dirent *entry;
	struct folder *one;
	uint64_t number;
	struct stat st;
	DIR *dir;
	int ret = 0;

	if (fd < 0)
		return -errno;
	dir = fdopendir(fd);
	if (!dir) {
		ret = -errno;
		close(fd);
		return ret;
	}
	while (!ret && (entry = readdir(dir))) {
		if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
			continue;
		if (S_ISDIR(st.st_mode) && inner && folder_number(entry->d_name, prefix, &number)) {
			*inner = grow(*inner, *inner_count, sizeof(**inner));
			one = &(*inner)[(*inner_count)++];
			memset(one, 0, sizeof(*one));
			one->number = number;
			ret = read_folder(fd, entry->d_name, one, NULL, NULL, NULL);
		} else if (S_ISREG(st.st_mode) && (st.st_mode & 0444) &&
			   !is_core_file(entry->d_name)) {
			out->attributes = grow(out->attributes, out->count, sizeof(*attribute));
			attribute = &out->attributes[out->count++];
			strcpy(attribute->name, entry->d_name);
			read_value(fd, entry->d_name, attribute->value);
		}
	}
	if (out->count)
		qsort(out->attributes, out->count, sizeof(*out->attributes), compare_attributes);
	strncpy(out->name, path, sizeof(out->name) - 1);
	closedir(dir);
	return ret;
}

/* Bytes get units beside the exact value. @value NULL: the folder has no such file. */
static const char *cell(const char *name, const char *value, char text[CELL_LEN])
{
	static const char suffix[] = "_bytes";
	char units[CLI_UNITS_LEN];
	size_t length = strlen(name);
	uint64_t bytes;

	if (!value)
		value = "-";
	if (length >= sizeof(suffix) - 1 && !strcmp(name + length - (sizeof(suffix) - 1), suffix) &&
	    !cli_parse_u64(value, &bytes) && bytes >= 1024)
		snprintf(text, CELL_LEN, "%s (%s)", value, cli_units(bytes, units));
	else
		snprintf(text, CELL_LEN, "%s", value);
	return text;
}

static void print_totals(const struct folder *folder)
{
	char text[CELL_LEN];
	int width = 0;
	size_t i;

	for (i = 0; i < folder->count; i++) {
		if ((int)strlen(folder->attributes[i].name) > width)
			width = (int)strlen(folder->attributes[i].name);
	}
	for (i = 0; i < folder->count; i++)
		printf("%-*s  %s\n", width, folder->attributes[i].name,
		       cell(folder->attributes[i].name, folder->attributes[i].value, text));
}

static const char *find_value(const struct folder *folder, const char *name)
{
	size_t i;

	for (i = 0; i < folder->count; i++) {
		if (!strcmp(folder->attributes[i].name, name))
			return folder->attributes[i].value;
	}
	return NULL;
}

/* All names that occur in one of the folders, each once, sorted, into @all. */
static void collect_names(const struct folder *rows, size_t row_count, struct folder *all)
{
	size_t n, i;

	for (n = 0; n < row_count; n++) {
		for (i = 0; i < rows[n].count; i++) {
			const char *name = rows[n].attributes[i].name;

			if (find_value(all, name))
				continue;
			all->attributes =
				grow(all->attributes, all->count, sizeof(*all->attributes));
			all->attributes[all->count++] = rows[n].attributes[i];
		}
	}
	if (all->count)
		qsort(all->attributes, all->count, sizeof(*all->attributes), compare_attributes);
}

/*
 * What every version of the module shows, and so what its folder is known by; NULL if @root has
 * all of it, or cannot be looked into, which reading it will tell.
 */
static const char *missing_file(const char *root)
{
	static const char *const files[] = {"frame_bytes", "managed_bytes", "active_bytes"};
	const char *missing = NULL;
	struct stat st;
	size_t i;
	int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	for (i = 0; fd >= 0 && !missing && i < sizeof(files) / sizeof(files[0]); i++) {
		if (fstatat(fd, files[i], &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
			missing = files[i];
	}
	if (fd >= 0)
		close(fd);
	return missing;
}

/* A row per folder, a column per attribute. */
static void print_rows(const char *title, const struct folder *rows, size_t row_count)
{
	int first = (int)strlen(title);
	struct folder all = {0};
	char text[CELL_LEN];
	int *widths, length;
	size_t n, i;

	collect_names(rows, row_count, &all);
	widths = grow(NULL, all.count, sizeof(*widths));
	for (n = 0; n < row_count; n++) {
		length = (int)strlen(rows[n].name);
		if (length > first)
			first = length;
	}
	printf("\n%-*s", first, title);
	for (i = 0; i < all.count; i++) {
		const char *name = all.attributes[i].name;

		widths[i] = (int)strlen(name);
		for (n = 0; n < row_count; n++) {
			length = (int)strlen(cell(name, find_value(&rows[n], name), text));
			if (length > widths[i])
				widths[i] = length;
		}
		printf("  %*s", widths[i], name);
	}
	printf("\n");
	for (n = 0; n < row_count; n++) {
		printf("%-*s", first, rows[n].name);
		for (i = 0; i < all.count; i++) {
			const char *name = all.attributes[i].name;

			printf("  %*s", widths[i], cell(name, find_value(&rows[n], name), text));
		}
		printf("\n");
	}
	free(widths);
	free(all.attributes);
}

static void folders_free(struct folder *folders, size_t count)
{
	size_t i;

	for (i = 0; i < count; i++)
		free(folders[i].attributes);
	free(folders);
}

/* Whether any of the values is not 0. */
static int in_use(const struct folder *folder)
{
	size_t i;

	for (i = 0; i < folder->count; i++) {
		if (strcmp(folder->attributes[i].value, "0"))
			return 1;
	}
	return 0;
}

/* The bins of a node that are or were in use, smallest first. 0 or -errno. */
static int print_bins(const char *root, const char *node)
{
	struct folder all = {0}, *bins = NULL;
	char path[PATH_MAX], units[CLI_UNITS_LEN], title[64];
	size_t count = 0, used = 0, i;
	int ret;

	if (snprintf(path, sizeof(path), "%s/%s/bins", root, node) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	ret = read_folder(AT_FDCWD, path, &all, "", &bins, &count);
	if (!ret && count) {
		qsort(bins, count, sizeof(*bins), compare_folders);
		for (i = 0; i < count; i++) {
			struct folder swap = bins[used];

			if (!in_use(&bins[i]))
				continue;
			snprintf(bins[i].name, sizeof(bins[i].name), "%s",
				 cli_units(bins[i].number, units));
			bins[used++] = bins[i];
			bins[i] = swap;
		}
		snprintf(title, sizeof(title), "%.32s's bins", node);
		if (used)
			print_rows(title, bins, used);
		else
			printf("\n%s: none was in use yet\n", title);
	}
	folders_free(bins, count);
	free(all.attributes);
	return ret;
}

int stat_main(int argc, char **argv)
{
	static const struct option options[] = {
		{"bins", no_argument, NULL, 'b'},
		{"root", required_argument, NULL, 'r'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	const char *root = SYSFS_ROOT, *missing;
	struct folder total = {0}, *nodes = NULL;
	size_t node_count = 0, n;
	int option, ret, with_bins = 0;

	opterr = 0;
	while ((option = getopt_long(argc, argv, ":br:h", options, NULL)) != -1) {
		switch (option) {
		case 'b':
			with_bins = 1;
			break;
		case 'r':
			root = optarg;
			break;
		case 'h':
			print_help();
			return CLI_OK;
		default:
			return cli_option_error("stat", option, argv);
		}
	}
	if (optind < argc)
		return cli_usage_error("stat", "'%s' is one argument too many", argv[optind]);

	missing = missing_file(root);
	if (missing) {
		cli_error("%s is not the binpool module's folder: it has no %s (that of this "
			  "machine's module is " SYSFS_ROOT ")",
			  root, missing);
		return CLI_FAILED;
	}
	ret = read_folder(AT_FDCWD, root, &total, "node", &nodes, &node_count);
	if (ret == -ENOENT && !strcmp(root, SYSFS_ROOT))
		cli_error("the binpool module is not loaded: there is no %s", root);
	else if (ret)
		cli_error("cannot read %s: %s", root, strerror(-ret));
	if (ret)
		return CLI_FAILED;

	print_totals(&total);
	if (node_count) {
		qsort(nodes, node_count, sizeof(*nodes), compare_folders);
		print_rows("node", nodes, node_count);
	}
	for (n = 0; with_bins && !ret && n < node_count; n++) {
		ret = print_bins(root, nodes[n].name);
		if (ret)
			cli_error("cannot read the bins of %s: %s", nodes[n].name, strerror(-ret));
	}
	folders_free(nodes, node_count);
	free(total.attributes);
	return ret ? CLI_FAILED : CLI_OK;
}
