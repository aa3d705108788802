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

#define POOL_FLAGS                                                                                 \
	(BINPOOL_POOL_VERBOSE | BINPOOL_POOL_STRICT_NODE | BINPOOL_POOL_REAPER |                   \
	 BINPOOL_POOL_LEAKS | BINPOOL_POOL_STRICT | BINPOOL_POOL_DEBUG)

/* Checks every member, and fills in the granule. */
static int options_check(struct binpool_options *o)
{
	bool exact = o->provider == BINPOOL_PROVIDER_ALLOCATOR;
	int err;

	if (o->kind > BINPOOL_KIND_HANDLE)
		return explain(-EINVAL, "options.kind is %u: HOST (0) or HANDLE (1)", o->kind);
	if (o->provider > BINPOOL_PROVIDER_ALLOCATOR)
		return explain(-EINVAL,
			       "options.provider is %u: AUTO (0), DEVICE (1), HUGETLB (2), THP (3) "
			       "or ALLOCATOR (4)",
			       o->provider);
	if (o->kind == BINPOOL_KIND_HANDLE && !exact)
		return explain(-EINVAL, "options.kind is HANDLE: options.provider has to be "
					"ALLOCATOR, since the others give host memory");
	if (o->classes > BINPOOL_CLASSES_HYSOP)
		return explain(-EINVAL, "options.classes is %u: TIGHT (0) or HYSOP (1)",
			       o->classes);
	if (o->flags & ~POOL_FLAGS)
		return explain(
			-EINVAL,
			"options.flags is 0x%x, of which 0x%x means nothing: VERBOSE (0x%x), "
			"STRICT_NODE (0x%x), REAPER (0x%x), LEAKS (0x%x), STRICT (0x%x), "
			"DEBUG (0x%x)",
			o->flags, o->flags & ~POOL_FLAGS, BINPOOL_POOL_VERBOSE,
			BINPOOL_POOL_STRICT_NODE, BINPOOL_POOL_REAPER, BINPOOL_POOL_LEAKS,
			BINPOOL_POOL_STRICT, BINPOOL_POOL_DEBUG);
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

/* ---- BINPOOL_OPTS ------------------------------------------------------- */

/* "8", "64K", "1G". */
static int parse_u64(const char *text, void *member)
{
	static const char suffixes[] = "KMGT";
	uint64_t *out = member;
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

static int parse_u32(const char *text, void *member)
{
	uint32_t *out = member;
	uint64_t n;
	int err = parse_u64(text, &n);

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

static int parse_provider(const char *text, void *member)
{
	static const char *const names[] = {"auto", "device", "hugetlb", "thp"};

	return parse_name(text, names, ARRAY_SIZE(names), member);
}

static int parse_classes(const char *text, void *member)
{
	static const char *const names[] = {"tight", "hysop"};

	return parse_name(text, names, ARRAY_SIZE(names), member);
}

static int parse_cache_bytes(const char *text, void *member)
{
	uint64_t *out = member;

	if (strcmp(text, "auto"))
		return parse_u64(text, member);
	*out = BINPOOL_CACHE_AUTO;
	return 0;
}

static int parse_node(const char *text, void *member)
{
	int32_t *out = member;
	uint32_t node;
	int err;

	if (!strcmp(text, "-1")) {
		*out = BINPOOL_NODE_ANY;
		return 0;
	}
	err = parse_u32(text, &node);
	if (!err)
		*out = node > INT32_MAX ? INT32_MAX : (int32_t)node;
	return err;
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

#define BYTES	  "bytes, or with K, M, G or T behind, below 2^64"
#define MEMBER(m) offsetof(struct binpool_options, m)

/* The options: what they may be, and what they change, a member or a flag. */
static const struct key {
	const char *name, *valid;
	int (*parse)(const char *text, void *member);
	size_t member;
	uint32_t flag;
} keys[] = {
	{"provider", "auto, device, hugetlb or thp", parse_provider, MEMBER(provider), 0},
	{"node", "a node's number, or -1 for any", parse_node, MEMBER(node), 0},
	{"mantissa_bits", "0 to 16", parse_u32, MEMBER(mantissa_bits), 0},
	{"classes", "tight or hysop", parse_classes, MEMBER(classes), 0},
	{"max_bytes", BYTES, parse_u64, MEMBER(max_bytes), 0},
	{"granule", BYTES, parse_u64, MEMBER(granule), 0},
	{"cache_bytes", "auto, or " BYTES, parse_cache_bytes, MEMBER(cache_bytes), 0},
	{"extent_idle_ms", "milliseconds, below 2^32", parse_u32, MEMBER(extent_idle_ms), 0},
	{"verbose", "0 or 1", NULL, 0, BINPOOL_POOL_VERBOSE},
	{"strict_node", "0 or 1", NULL, 0, BINPOOL_POOL_STRICT_NODE},
	{"strict", "0 or 1", NULL, 0, BINPOOL_POOL_STRICT},
	{"reaper", "0 or 1", NULL, 0, BINPOOL_POOL_REAPER},
	{"leaks", "0 or 1", NULL, 0, BINPOOL_POOL_LEAKS},
	{"debug", "0 or 1", NULL, 0, BINPOOL_POOL_DEBUG},
};

static int explain_key(const char *name)
{
	char all[256];
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(keys) && n < sizeof(all); i++)
		n += (size_t)snprintf(all + n, sizeof(all) - n, "%s%s", i ? ", " : "",
				      keys[i].name);
	return explain(-EINVAL, "BINPOOL_OPTS: no option '%s'; there are %s", name, all);
}

static int parse_option(struct binpool_options *o, const char *name, const char *value)
{
	for (const struct key *k = keys; k < keys + ARRAY_SIZE(keys); k++) {
		int err;

		if (strcmp(name, k->name))
			continue;
		err = k->flag ? parse_flag(value, k->flag, &o->flags)
			      : k->parse(value, (char *)o + k->member);
		if (err)
			err = explain(-EINVAL, "BINPOOL_OPTS: '%s' is no value of %s, which is %s",
				      value, name, k->valid);
		return err;
	}
	return explain_key(name);
}

static int parse_options(struct binpool_options *o, const char *text)
{
	char *copy = strdup(text), *rest = copy, *item, *value;
	int err = 0;

	if (!copy)
		return explain(-ENOMEM, "no memory for BINPOOL_OPTS");
	while (!err && (item = strsep(&rest, ","))) {
		if (!*item)
			continue;
		value = strchr(item, '=');
		if (value)
			*value++ = '\0';
		err = parse_option(o, item, value ? value : "");
	}
	free(copy);
	return err;
}

int options_complete(struct binpool_options *o)
{
	const char *env = getenv("BINPOOL_OPTS");
	int err;

	if (!env || !*env || o->provider == BINPOOL_PROVIDER_ALLOCATOR)
		return options_check(o);
	err = parse_options(o, env);
	if (err)
		return err;
	err = options_check(o);
	/* Who reads it may not know whose options these are. */
	return err ? explain(err, "%s; BINPOOL_OPTS is '%.200s'", binpool_last_error(), env) : 0;
}
