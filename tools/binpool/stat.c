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
	unsigned long node; /* of a node folder */
	struct attribute *attributes;
	size_t count;
};

static void print_help(void)
{
	printf("Usage: binpool stat [OPTION]...\n"
	       "Print what the kernel module holds, as a whole and per NUMA node.\n\n"
	       "  --root DIR  read DIR instead of " SYSFS_ROOT "\n");
}

static int compare_attributes(const void *a, const void *b)
{
	return strcmp(((const struct attribute *)a)->name, ((const struct attribute *)b)->name);
}

static int compare_folders(const void *a, const void *b)
{
	unsigned long left = ((const struct folder *)a)->node;
	unsigned long right = ((const struct folder *)b)->node;

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

/* "node" and a number, and nothing else. */
static int node_number(const char *name, unsigned long *node)
{
	uint64_t value;

	if (strncmp(name, "node", 4) || cli_parse_u64(name + 4, &value))
		return 0;
	*node = (unsigned long)value;
	return 1;
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
 * Reads the files of folder @path into @out, and the folders of nodes, if
 * @nodes is given, into it. Returns 0 or -errno.
 */
static int read_folder(int parent, const char *path, struct folder *out, struct folder **nodes,
		       size_t *node_count)
{
	int fd = openat(parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct attribute *attribute;
	struct dirent *entry;
	struct folder *node;
	unsigned long number;
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
		if (S_ISDIR(st.st_mode) && nodes && node_number(entry->d_name, &number)) {
			*nodes = grow(*nodes, *node_count, sizeof(**nodes));
			node = &(*nodes)[(*node_count)++];
			memset(node, 0, sizeof(*node));
			node->node = number;
			ret = read_folder(fd, entry->d_name, node, NULL, NULL);
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

/* All names that occur in a node's folder, each once, sorted, into @all. */
static void collect_names(const struct folder *nodes, size_t node_count, struct folder *all)
{
	size_t n, i;

	for (n = 0; n < node_count; n++) {
		for (i = 0; i < nodes[n].count; i++) {
			const char *name = nodes[n].attributes[i].name;

			if (find_value(all, name))
				continue;
			all->attributes =
				grow(all->attributes, all->count, sizeof(*all->attributes));
			all->attributes[all->count++] = nodes[n].attributes[i];
		}
	}
	if (all->count)
		qsort(all->attributes, all->count, sizeof(*all->attributes), compare_attributes);
}

/* A row per node, a column per attribute. */
static void print_nodes(const struct folder *nodes, size_t node_count)
{
	struct folder all = {0};
	char text[CELL_LEN];
	int *widths, length;
	size_t n, i;

	collect_names(nodes, node_count, &all);
	widths = grow(NULL, all.count, sizeof(*widths));
	printf("\n%-8s", "node");
	for (i = 0; i < all.count; i++) {
		const char *name = all.attributes[i].name;

		widths[i] = (int)strlen(name);
		for (n = 0; n < node_count; n++) {
			length = (int)strlen(cell(name, find_value(&nodes[n], name), text));
			if (length > widths[i])
				widths[i] = length;
		}
		printf("  %*s", widths[i], name);
	}
	printf("\n");
	for (n = 0; n < node_count; n++) {
		printf("%-8s", nodes[n].name);
		for (i = 0; i < all.count; i++) {
			const char *name = all.attributes[i].name;

			printf("  %*s", widths[i], cell(name, find_value(&nodes[n], name), text));
		}
		printf("\n");
	}
	free(widths);
	free(all.attributes);
}

int stat_main(int argc, char **argv)
{
	static const struct option options[] = {
		{"root", required_argument, NULL, 'r'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	const char *root = SYSFS_ROOT;
	struct folder total = {0}, *nodes = NULL;
	size_t node_count = 0, n;
	int option, ret;

	opterr = 0;
	while ((option = getopt_long(argc, argv, ":r:h", options, NULL)) != -1) {
		switch (option) {
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

	ret = read_folder(AT_FDCWD, root, &total, &nodes, &node_count);
	if (ret == -ENOENT)
		cli_error("the binpool module is not loaded: there is no %s", root);
	else if (ret)
		cli_error("cannot read %s: %s", root, strerror(-ret));
	else if (!total.count && !node_count)
		cli_error("%s has no attributes: it is not the binpool module's folder", root);
	if (ret || (!total.count && !node_count))
		return CLI_FAILED;

	print_totals(&total);
	if (node_count) {
		qsort(nodes, node_count, sizeof(*nodes), compare_folders);
		print_nodes(nodes, node_count);
	}
	for (n = 0; n < node_count; n++)
		free(nodes[n].attributes);
	free(nodes);
	free(total.attributes);
	return CLI_OK;
}
