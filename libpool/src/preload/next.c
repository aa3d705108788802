// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What a caller would have reached without us. Owns nothing.
 *
 * RTLD_NEXT alone does not know: PyTorch, for one, is loaded with RTLD_LOCAL, and so is the
 * runtime that it needs. But whoever has it among what he needs, finds it there.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "preload.h"

/* Whether the function is one of these here. */
static bool is_mine(const void *function)
{
	Dl_info theirs, mine;

	return dladdr(function, &theirs) && dladdr((const void *)is_mine, &mine) &&
	       theirs.dli_fbase == mine.dli_fbase;
}

/* Looked for in the object of that path and what it needs, if it is loaded. */
static void *find_in(const char *path, const char *name)
{
	void *handle = dlopen(*path ? path : NULL, RTLD_LAZY | RTLD_NOLOAD);
	void *function;

	if (!handle)
		return NULL;
	function = real_symbol(handle, name);
	dlclose(handle);
	return function && !is_mine(function) ? function : NULL;
}

struct search {
	const char *family;
	char *path;
	size_t room;
};

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
	const struct search *s = arg;
	const char *base = strrchr(info->dlpi_name, '/');

	(void)size;
	base = base ? base + 1 : info->dlpi_name;
	if (strncmp(base, s->family, strlen(s->family)))
		return 0;
	if (s->path)
		snprintf(s->path, s->room, "%s", info->dlpi_name);
	return 1;
}

bool library_loaded(const char *family, char *path, size_t room)
{
	struct search s = {.family = family, .path = path, .room = room};

	return dl_iterate_phdr(look, &s);
}

void *next_function(const char *name, const char *family, const void *caller)
{
	struct link_map *object = NULL;
	void *function = NULL;
	char path[4096];
	Dl_info info;

	if (dladdr1(caller, &info, (void **)&object, RTLD_DL_LINKMAP) && object)
		function = find_in(object->l_name, name);
	/* What the program itself was linked with. */
	if (!function)
		function = real_symbol(RTLD_NEXT, name);
	/* Who jumped here from the end of a function seems to be that one's caller. */
	if (!function && library_loaded(family, path, sizeof(path)))
		function = find_in(path, name);
	return function;
}
