// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Extents, runs, slabs, bins, caches, references and fences: a sequence of calls on a pool
 * whose provider and registrar fail when the input says so. After each call all structures
 * must be whole, and counters what a model of the live buffers says.
 */
#include "fuzz_lib.h"

#include "cache.h"
#include "faulty.h"

#define BUFFERS	  96
#define LIMIT	  ((uint64_t)96 << 20)
#define PENDING	  32
#define STEPS_MAX 400

struct buffer {
	unsigned char *ptr; /* NULL: not live */
	uint64_t bytes;
	unsigned char mark; /* in its first and last byte */
	unsigned char references;
	bool freed; /* but for the references */
};

/* Freed, and waiting for the clock. */
struct pending {
	unsigned char *ptr;
	uint64_t bytes, until;
};

struct model {
	struct binpool *pool;
	struct faulty_provider provider;
	struct faulty_registrar registrar;
	struct buffer buffer[BUFFERS];
	struct pending pending[PENDING];
	uint64_t clock;
	uint64_t blocks, bytes;
	unsigned char marks;
};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	unsetenv("BINPOOL_OPTS");
	return 0;
}

static void check(struct model *m)
{
	struct binpool_stats s;
	const char *broken;

	/* binpool_get_stats without asking the kernel for the pages of new extents. */
	pool_lock(m->pool);
	caches_settle(m->pool);
	broken = pool_check(m->pool);
	stats_collect(m->pool, &s);
	pool_unlock(m->pool);
	if (broken)
		dprintf(2, "broken: %s\n", broken);
	MUST(!broken);
	/* When a fence that is over was last asked is the pool's affair. */
	MUST(s.active_blocks - s.pending_blocks == m->blocks);
	MUST(s.pending_blocks ? s.active_bytes >= m->bytes : s.active_bytes == m->bytes);
	MUST(s.held_blocks == s.returns - s.reuses - s.frees_held);
	MUST(s.active_blocks == s.allocs + s.reuses - s.returns - s.frees_active);
	MUST(s.managed_bytes <= s.reserved_bytes && s.reserved_bytes <= s.max_bytes);
	MUST(s.reserved_bytes == m->provider.bytes && s.extents == m->provider.extents);
	MUST(m->provider.bytes_max <= s.max_bytes && s.registrations == m->registrar.attached);
}

static void mark(struct buffer *b)
{
	if (b->bytes)
		b->ptr[0] = b->ptr[b->bytes - 1] = b->mark;
}

static void add(struct model *m, struct buffer *b, unsigned char *ptr, uint64_t bytes)
{
	for (size_t i = 0; i < PENDING; i++) {
		const struct pending *p = &m->pending[i];

		MUST(p->until <= m->clock || !bytes || !p->bytes || ptr + bytes <= p->ptr ||
		     p->ptr + p->bytes <= ptr);
	}
	*b = (struct buffer){.ptr = ptr, .bytes = bytes, .mark = ++m->marks};
	m->blocks++;
	m->bytes += bytes;
	mark(b);
}

/* Nobody else wrote there. */
static void drop(struct model *m, struct buffer *b)
{
	if (b->bytes)
		MUST(b->ptr[0] == b->mark && b->ptr[b->bytes - 1] == b->mark);
	m->blocks--;
	m->bytes -= b->bytes;
	b->ptr = NULL;
}

static void take(struct model *m, struct input *in, struct buffer *b)
{
	struct binpool_alloc_opts opts = {.size = sizeof(opts)};
	struct binpool_buf out = {.size = sizeof(out)};
	int err;

	opts.bytes = input_size(in);
	/* Mostly what the pool can have. */
	if (input_u8(in) % 16)
		opts.bytes %= LIMIT / 4;
	opts.alignment = input_u8(in) % 4 ? 0 : (uint64_t)1 << input_u8(in) % 24;
	opts.flags = input_u8(in) % 8 ? 0 : BINPOOL_BUF_ZEROED;
	err = binpool_alloc_ex(m->pool, &opts, &out);
	if (err) {
		MUST(err == -ENOMEM || err == -ENOSPC || err == -EFBIG || err == -E2BIG ||
		     err == -EPERM || err == -ENODEV);
		return;
	}
	MUST(out.ptr && out.bytes == opts.bytes && out.capacity >= out.bytes);
	MUST(!((uintptr_t)out.ptr & (opts.alignment ? opts.alignment - 1 : 63)));
	if (out.flags & BINPOOL_BUF_ZEROED && out.bytes)
		MUST(!((char *)out.ptr)[0] && !((char *)out.ptr)[out.bytes - 1]);
	MUST(!opts.flags || out.flags & BINPOOL_BUF_ZEROED || !out.bytes);
	add(m, b, out.ptr, opts.bytes);
}

/* What was freed: others may have references. */
static void freed(struct model *m, struct buffer *b)
{
	if (b->references)
		b->freed = true;
	else
		drop(m, b);
}

static void free_one(struct model *m, struct buffer *b)
{
	void *ptr = b->ptr;

	if (b->freed) {
		MUST(binpool_free(m->pool, ptr) == -EINVAL);
		return;
	}
	freed(m, b);
	MUST(!binpool_free(m->pool, ptr));
}

static void reference(struct model *m, struct buffer *b, bool get)
{
	struct binpool_buf buf = {.size = sizeof(buf), .ptr = b->ptr};

	if (!b->ptr || (get && b->references == 3))
		return;
	if (get) {
		MUST(!binpool_buffer_get(m->pool, &buf));
		b->references++;
	} else if (b->references) {
		if (!--b->references && b->freed)
			drop(m, b);
		MUST(!binpool_buffer_put(m->pool, &buf));
	}
}

/* Freed, and nobody's before the clock is there. */
static void free_later(struct model *m, struct input *in, struct buffer *b)
{
	struct binpool_fence fence = {.size = sizeof(fence), .kind = BINPOOL_FENCE_COUNTER};
	struct pending *p = &m->pending[input_u8(in) % PENDING];
	void *ptr = b->ptr;

	if (!ptr || b->references || p->until > m->clock)
		return;
	*p = (struct pending){b->ptr, b->bytes, m->clock + input_u8(in) % 8};
	fence.counter = &m->clock;
	fence.target = p->until;
	drop(m, b);
	MUST(!binpool_free_after(m->pool, ptr, &fence, 1));
}

/* Whatever is no live buffer's start is refused. */
static void free_wrongly(struct model *m, struct input *in, struct buffer *b)
{
	int err;

	if (!b->ptr || !b->bytes)
		return;
	err = input_u8(in) % 2 ? binpool_free(m->pool, b->ptr + 1 + input_size(in) % b->bytes)
			       : binpool_free_sized(m->pool, b->ptr, b->bytes + 1);
	/* One byte beyond it may be where another begins. */
	if (!err)
		for (size_t i = 0; i < BUFFERS; i++) {
			struct buffer *other = &m->buffer[i];

			if (other->ptr == b->ptr + b->bytes && other != b)
				freed(m, other);
		}
}

static void set_faults(struct model *m, struct input *in)
{
	static const int errors[] = {-ENOMEM, -EPERM, -ENODEV, -EFBIG};
	struct faults *f = input_u8(in) % 2 ? &m->provider.faults : &m->registrar.faults;
	uint8_t what = input_u8(in);

	f->fail_with = errors[what % 4];
	if (f == &m->provider.faults && f->fail_with == -EFBIG)
		f->fail_with = -ENOMEM;
	f->fail_at = what & 4 ? f->calls + 1 + (what >> 3) % 8 : 0;
	f->largest = what & 128 ? (uint64_t)1 << (20 + (what >> 3) % 8) : 0;
	f->gone = what == 255;
}

static void step(struct model *m, struct input *in)
{
	uint8_t what = input_u8(in);
	struct buffer *b = &m->buffer[input_u8(in) % BUFFERS];

	switch (what % 16) {
	default:
		if (b->ptr)
			free_one(m, b);
		else
			take(m, in, b);
		break;
	case 0:
		free_wrongly(m, in, b);
		break;
	case 1:
		MUST(!binpool_free_held(m->pool));
		break;
	case 2:
		MUST(!(what & 16 ? binpool_stop_holding(m->pool)
				 : binpool_resume_holding(m->pool)));
		break;
	case 3:
		binpool_reserve(m->pool, input_size(in) % (LIMIT + 1));
		break;
	case 4:
		set_faults(m, in);
		break;
	case 5:
		reference(m, b, what & 16);
		break;
	case 6:
		free_later(m, in, b);
		break;
	case 7:
		m->clock += what >> 5;
		MUST(binpool_poll(m->pool) >= 0);
		break;
	case 8:
		MUST(binpool_trim(m->pool, input_size(in) % LIMIT, 0) >= 0);
		break;
	}
}

static void finish(struct model *m)
{
	for (size_t i = 0; i < BUFFERS; i++) {
		struct buffer *b = &m->buffer[i];

		while (b->references)
			reference(m, b, false);
		if (b->ptr)
			free_one(m, b);
	}
	m->clock = INT64_MAX;
	for (int i = 0; i < PENDING && binpool_poll(m->pool); i++)
		;
	MUST(!binpool_poll(m->pool));
	check(m);
	MUST(!binpool_destroy(m->pool));
	MUST(!m->provider.extents && !m->registrar.attached && m->registrar.released == 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint64_t caches[] = {0, 100000, (uint64_t)4 << 20, BINPOOL_CACHE_AUTO};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct input in = {data, size};
	struct model m = {0};
	uint64_t id;

	o.mantissa_bits = input_u8(&in) % 9;
	o.classes = input_u8(&in) % 2;
	o.granule = (uint64_t)64 << input_u8(&in) % 8;
	o.cache_bytes = caches[input_u8(&in) % 4];
	o.max_bytes = (uint64_t)(1 + input_u8(&in) % 48) << 21;
	/* Fills what is free, which takes its time. */
	if (!(input_u8(&in) % 16)) {
		o.flags = BINPOOL_POOL_DEBUG;
		o.max_bytes = (uint64_t)4 << 20;
	}
	m.provider.in_place = input_u8(&in) % 2;
	m.pool = faulty_pool(&o, &m.provider);
	MUST(m.pool);
	/* Extents that are registered do not grow. */
	if (!m.provider.in_place || input_u8(&in) % 2)
		MUST(!faulty_registrar_add(m.pool, &m.registrar, &id));
	else
		m.registrar.released = 1;
	for (int i = 0; i < STEPS_MAX && in.left; i++) {
		step(&m, &in);
		check(&m);
	}
	finish(&m);
	return 0;
}
