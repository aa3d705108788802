// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What users hand in: versioned structs, options, BINPOOL_OPTS. No state, no lock.
 */
#include <stdlib.h>
#include <string.h>

#include "pool.h"

int struct_in(void *to, size_t known, const void *from, const char *what)
{
	int err = struct_check(from, sizeof(size_t), what);
	const unsigned char *bytes = from;
	size_t size;

	if (err)
		return err;
	memcpy(&size, from, sizeof(size));
	for (size_t i = known; i < size; i++) {
		if (bytes[i])
			return explain(-E2BIG,
				       "%s is of a newer version (%zu bytes, this library knows "
				       "%zu) and uses what this library does not have",
				       what, size, known);
	}
	memset(to, 0, known);
	memcpy(to, from, size < known ? size : known);
	memcpy(to, &known, sizeof(known));
	return 0;
}

static int allocator_check(const struct binpool_options *o)
{
	struct binpool_allocator_ops ops;
	int err;

	if (o->provider != BINPOOL_PROVIDER_ALLOCATOR)
		return o->allocator ? explain(-EINVAL, "options.allocator is set, but "
						       "options.provider is not ALLOCATOR")
				    : 0;
	err = struct_in(&ops, sizeof(ops), o->allocator, "options.allocator");
	if (err)
		return err;
	if (o->kind == BINPOOL_KIND_HOST && (!ops.alloc || !ops.free))
		return explain(-EINVAL, "options.allocator needs both alloc and free");
	if (o->kind == BINPOOL_KIND_HANDLE && (!ops.alloc_handle || !ops.free_handle))
		return explain(-EINVAL,
			       "options.allocator needs both alloc_handle and free_handle: "
			       "options.kind is HANDLE");
	if (o->node != BINPOOL_NODE_ANY || o->flags & BINPOOL_POOL_STRICT_NODE)
		return explain(-EINVAL, "a pool over an allocator has no node: the allocator "
					"places its memory");
	return 0;
}

static int node_check(const struct binpool_options *o)
{
	uint64_t bytes = 0;
	int err;

	if (o->node < BINPOOL_NODE_ANY)
		return explain(-EINVAL, "options.node is %d: a node's number or -1", o->node);
	if (o->node == BINPOOL_NODE_ANY)
		return o->flags & BINPOOL_POOL_STRICT_NODE
			       ? explain(-EINVAL, "STRICT_NODE needs options.node")
			       : 0;
	err = meminfo_add(o->node, "MemTotal", &bytes);
	if (err)
		return err;
	if (!bytes)
		return explain(-EINVAL,
			       "options.node is %d: this machine has no such node, or it "
			       "has no memory (see /sys/devices/system/node)",
			       o->node);
	return 0;
}

/* Checks every member, and fills in the granule. */
int options_check(struct binpool_options *o)
{
	bool exact = o->provider == BINPOOL_PROVIDER_ALLOCATOR;
	int err;

	if (o->kind > BINPOOL_KIND_HANDLE)
		return explain(-EINVAL, "options.kind is %u, which there is not", o->kind);
	if (o->provider > BINPOOL_PROVIDER_ALLOCATOR)
		return explain(-EINVAL, "options.provider is %u, which there is not", o->provider);
	if (o->kind == BINPOOL_KIND_HANDLE && !exact)
		return explain(-EINVAL, "options.kind is HANDLE: options.provider has to be "
					"ALLOCATOR, since the others give host memory");
	if (o->classes > BINPOOL_CLASSES_HYSOP)
		return explain(-EINVAL, "options.classes is %u, which there is not", o->classes);
	if (o->flags & ~(BINPOOL_POOL_VERBOSE | BINPOOL_POOL_STRICT_NODE | BINPOOL_POOL_REAPER |
			 BINPOOL_POOL_STRICT | BINPOOL_POOL_LEAKS | BINPOOL_POOL_DEBUG))
		return explain(-EINVAL, "options.flags is 0x%x: unknown bits", o->flags);
	if (o->reserved)
		return explain(-EINVAL, "options.reserved is %u, not 0", o->reserved);
	if (o->mantissa_bits > BINPOOL_MANTISSA_BITS_MAX)
		return explain(-EINVAL, "options.mantissa_bits is %u: 0 to %u", o->mantissa_bits,
			       BINPOOL_MANTISSA_BITS_MAX);
	if (!o->granule)
		o->granule = exact ? 1 : GRANULE_DEFAULT;
	if (!is_pow2(o->granule) || o->granule > ALIGNMENT_MAX)
		return explain(-EINVAL, "options.granule is %llu: a power of two up to 1 GiB",
			       (unsigned long long)o->granule);
	if (!exact && o->granule < GRANULE_DEFAULT)
		return explain(-EINVAL,
			       "options.granule is %llu: at least %u, a cache line, unless the "
			       "pool is over an allocator",
			       (unsigned long long)o->granule, GRANULE_DEFAULT);
	err = allocator_check(o);
	return err ? err : node_check(o);
}

/* "8", "64K", "1G". */
static int parse_number(const char *text, uint64_t *out)
{
	static const char suffixes[] = "KMGT";
	const char *suffix;
	char *end;
	unsigned long long n;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	n = strtoull(text, &end, 0);
	if (errno)
		return -ERANGE;
	if (*end) {
		suffix = strchr(suffixes, *end);
		if (!suffix || end[1])
			return -EINVAL;
		for (const char *s = suffixes; s <= suffix; s++)
			if (__builtin_mul_overflow(n, 1024ull, &n))
				return -ERANGE;
	}
	*out = n;
	return 0;
}

static int parse_u32(const char *text, uint32_t *out)
{
	uint64_t n;
	int err = parse_number(text, &n);

	if (err)
		return err;
	if (n > UINT32_MAX)
		return -ERANGE;
	*out = (uint32_t)n;
	return 0;
}

static int parse_name(const char *text, const char *const *names, uint32_t n, uint32_t *out)
{
	for (uint32_t i = 0; i < n; i++) {
		if (!strcmp(text, names[i])) {
			*out = i;
			return 0;
		}
	}
	return -EINVAL;
}

static int parse_flag(const char *text, uint32_t flag, uint32_t *flags)
{
	if (!strcmp(text, "0"))
		*flags &= ~flag;
	else if (!strcmp(text, "1") || !*text)
		*flags |= flag;
	else
		return -EINVAL;
	return 0;
}

static int parse_option(struct binpool_options *o, const char *key, const char *value)
{
	static const char *const providers[] = {"auto", "device", "hugetlb", "thp"};
	static const char *const classes[] = {"tight", "hysop"};
	uint32_t node;
	int err;

	if (!strcmp(key, "provider"))
		return parse_name(value, providers, ARRAY_SIZE(providers), &o->provider);
	if (!strcmp(key, "classes"))
		return parse_name(value, classes, ARRAY_SIZE(classes), &o->classes);
	if (!strcmp(key, "mantissa_bits"))
		return parse_u32(value, &o->mantissa_bits);
	if (!strcmp(key, "max_bytes"))
		return parse_number(value, &o->max_bytes);
	if (!strcmp(key, "granule"))
		return parse_number(value, &o->granule);
	if (!strcmp(key, "cache_bytes") && !strcmp(value, "auto")) {
		o->cache_bytes = BINPOOL_CACHE_AUTO;
		return 0;
	}
	if (!strcmp(key, "cache_bytes"))
		return parse_number(value, &o->cache_bytes);
	if (!strcmp(key, "verbose"))
		return parse_flag(value, BINPOOL_POOL_VERBOSE, &o->flags);
	if (!strcmp(key, "strict_node"))
		return parse_flag(value, BINPOOL_POOL_STRICT_NODE, &o->flags);
	if (!strcmp(key, "extent_idle_ms"))
		return parse_u32(value, &o->extent_idle_ms);
	if (!strcmp(key, "reaper"))
		return parse_flag(value, BINPOOL_POOL_REAPER, &o->flags);
	if (!strcmp(key, "strict"))
		return parse_flag(value, BINPOOL_POOL_STRICT, &o->flags);
	if (!strcmp(key, "debug"))
		return parse_flag(value, BINPOOL_POOL_DEBUG, &o->flags);
	if (!strcmp(key, "leaks"))
		return parse_flag(value, BINPOOL_POOL_LEAKS, &o->flags);
	if (strcmp(key, "node"))
		return -ENOENT;
	if (!strcmp(value, "-1")) {
		o->node = BINPOOL_NODE_ANY;
		return 0;
	}
	err = parse_u32(value, &node);
	if (!err)
		o->node = node > INT32_MAX ? INT32_MAX : (int32_t)node;
	return err;
}

int options_from_environment(struct binpool_options *o)
{
	const char *env = getenv("BINPOOL_OPTS");
	char *copy, *rest, *item, *value;
	int err = 0;

	if (!env || !*env || o->provider == BINPOOL_PROVIDER_ALLOCATOR)
		return 0;
	copy = strdup(env);
	if (!copy)
		return explain(-ENOMEM, "no memory for BINPOOL_OPTS");
	rest = copy;
	while (!err && (item = strsep(&rest, ","))) {
		if (!*item)
			continue;
		value = strchr(item, '=');
		if (value)
			*value++ = '\0';
		err = parse_option(o, item, value ? value : "");
		if (err == -ENOENT)
			err = explain(
				-EINVAL,
				"BINPOOL_OPTS: no option '%s'; there are provider, "
				"node, mantissa_bits, classes, max_bytes, granule, "
				"cache_bytes, extent_idle_ms, verbose, strict_node, strict, reaper, "
				"leaks, debug",
				item);
		else if (err)
			err = explain(-EINVAL, "BINPOOL_OPTS: '%s' is no value of %s",
				      value ? value : "", item);
	}
	free(copy);
	return err;
}
