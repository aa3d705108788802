// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What programs hand in: structs of any size with anything in them, and BINPOOL_OPTS.
 * Nothing beyond a struct's own size may be read or written, and what is refused must
 * leave the pool as it was.
 */
#include "fuzz_lib.h"

#include <errno.h>

#include <binpool.h>

static struct binpool *plain; /* over malloc, for the calls on a pool */

static int take(void *ctx, uint64_t bytes, void **ptr)
{
	(void)ctx;
	if (bytes > (uint64_t)1 << 20)
		return -ENOMEM;
	*ptr = malloc(bytes);
	return *ptr ? 0 : -ENOMEM;
}

static void give(void *ctx, void *ptr, uint64_t bytes)
{
	(void)ctx;
	(void)bytes;
	free(ptr);
}

static const struct binpool_allocator_ops ops = {.size = sizeof(ops), .alloc = take, .free = give};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;

	(void)argc;
	(void)argv;
	/* Pools that were told to be verbose are. */
	stderr = fopen("/dev/null", "w");
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	MUST(stderr && !binpool_create(&plain, &o));
	return 0;
}

/* A struct of the input's own size in memory of exactly that; its member says so, or lies. */
static void *blob(struct input *in, size_t known)
{
	size_t size = input_u8(in) % (2 * known), room;
	uint8_t lie = input_u8(in);
	unsigned char *p;

	/* Less than the member itself is said, not had. */
	room = size < sizeof(size) ? sizeof(size) : size;
	p = calloc(1, room);
	MUST(p);
	for (size_t i = sizeof(size); i < size; i++)
		p[i] = input_u8(in);
	if (lie < 32 && size > sizeof(size))
		size--;
	memcpy(p, &size, sizeof(size));
	return p;
}

/* Pointers must be ones. */
static void mend(void *p, size_t offset, const void *to)
{
	size_t size;

	memcpy(&size, p, sizeof(size));
	if (size >= offset + sizeof(to))
		memcpy((char *)p + offset, &to, sizeof(to));
	else if (size > offset)
		memset((char *)p + offset, 0, size - offset);
}

/* Zeroes what of a member is there. */
static void clear(void *p, size_t offset, size_t n)
{
	size_t size;

	memcpy(&size, p, sizeof(size));
	if (size > offset)
		memset((char *)p + offset, 0, size - offset < n ? size - offset : n);
}

static void create_with(struct input *in)
{
	struct binpool_options *o = blob(in, sizeof(*o));
	struct binpool *pool = plain;
	uint32_t provider = input_u8(in) % 8;
	int err;

	mend(o, offsetof(struct binpool_options, name), input_u8(in) % 2 ? "name\nof it" : NULL);
	mend(o, offsetof(struct binpool_options, allocator), input_u8(in) % 2 ? &ops : NULL);
	/* AUTO and the device take memory to see whether there is some. */
	if (provider < BINPOOL_PROVIDER_THP)
		provider = BINPOOL_PROVIDER_THP;
	if (o->size >= offsetof(struct binpool_options, provider) + sizeof(provider))
		memcpy(&o->provider, &provider, sizeof(provider));
	else
		o->size = 0;
	err = binpool_create(&pool, o);
	if (err) {
		MUST(err < 0 && !pool && *binpool_last_error());
	} else {
		MUST(pool && !binpool_destroy(pool));
	}
	free(o);
}

static void call_with(struct input *in)
{
	struct binpool_alloc_opts *opts = blob(in, sizeof(*opts));
	struct binpool_stats *stats = blob(in, sizeof(*stats));
	struct binpool_buf *out = blob(in, sizeof(*out));
	struct binpool_stats now = {.size = sizeof(now)};
	const char *tag = input_u8(in) % 2 ? "a tag" : NULL;
	int err;

	mend(opts, offsetof(struct binpool_alloc_opts, tag), tag);
	/* Nobody will free what it would wait for. */
	clear(opts, offsetof(struct binpool_alloc_opts, wait_ms), sizeof(opts->wait_ms));
	/* Who has no room for the pointer could not free it. */
	if (out->size < sizeof(out->size) || out->size >= offsetof(struct binpool_buf, bytes)) {
		err = binpool_alloc_ex(plain, opts, out);
		MUST(err <= 0);
		if (!err) {
			MUST(!binpool_buf_info(plain, out->ptr, out));
			MUST(!binpool_free(plain, out->ptr));
		}
	}
	err = binpool_get_stats(plain, stats);
	MUST(!err || err == -EINVAL);
	MUST(!binpool_get_stats(plain, &now) && !now.active_blocks && !now.active_bytes);
	free(opts);
	free(stats);
	free(out);
}

static void environment(const struct input *in)
{
	char text[512];
	size_t n = in->left < sizeof(text) - 1 ? in->left : sizeof(text) - 1;
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	memcpy(text, in->data, n);
	text[n] = '\0';
	/* Not what takes memory. */
	if (strstr(text, "auto") || strstr(text, "device") || strstr(text, "hugetlb"))
		return;
	o.provider = BINPOOL_PROVIDER_THP;
	setenv("BINPOOL_OPTS", text, 1);
	if (!binpool_create(&pool, &o))
		MUST(!binpool_destroy(pool));
	else
		MUST(*binpool_last_error());
	unsetenv("BINPOOL_OPTS");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};

	switch (input_u8(&in) % 3) {
	case 0:
		create_with(&in);
		break;
	case 1:
		call_with(&in);
		break;
	default:
		environment(&in);
	}
	return 0;
}
