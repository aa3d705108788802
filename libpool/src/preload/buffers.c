// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What is ours: the buffers that the program has, with the flags that it asked for, and the
 * extents that they are in. Owns both tables; the lock ours.
 *
 * A forked child inherits the tables and changes them no more.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "preload.h"

struct buffer {
	struct buffer *next;
	const void *ptr;
	size_t bytes;
	unsigned int flags;
};

struct extent {
	struct extent *next;
	char *ptr;
	uint64_t bytes;
};

static pthread_mutex_t ours = PTHREAD_MUTEX_INITIALIZER;
static struct buffer **heads; /* of chains, by address */
static size_t heads_size;     /* a power of two */
static uint64_t buffers, buffers_bytes;
static struct extent *extents;

static struct buffer **chain_of(struct buffer **table, size_t size, const void *ptr)
{
	const uint64_t golden = 0x9e3779b97f4a7c15u;

	return &table[((uintptr_t)ptr * golden >> 32) & (size - 1)];
}

/* What points to the buffer, or to nothing; NULL: there is no table. ours. */
static struct buffer **find(const void *ptr)
{
	struct buffer **at;

	if (!heads)
		return NULL;
	for (at = chain_of(heads, heads_size, ptr); *at && (*at)->ptr != ptr; at = &(*at)->next)
		;
	return at;
}

/* Room for one more; false: there is no memory for any. ours. */
static bool prepare(void)
{
	size_t size = heads_size ? 2 * heads_size : 64;
	struct buffer **larger, *b, *next;

	if (buffers < heads_size)
		return true;
	larger = calloc(size, sizeof(struct buffer *));
	if (!larger)
		return heads;
	for (size_t i = 0; i < heads_size; i++) {
		for (b = heads[i]; b; b = next) {
			struct buffer **head = chain_of(larger, size, b->ptr);

			next = b->next;
			b->next = *head;
			*head = b;
		}
	}
	free(heads);
	heads = larger;
	heads_size = size;
	return true;
}

bool buffers_add(void *ptr, size_t bytes, unsigned int flags)
{
	struct buffer *b = malloc(sizeof(*b));
	struct buffer **head;

	if (!b)
		return false;
	pthread_mutex_lock(&ours);
	if (!prepare()) {
		pthread_mutex_unlock(&ours);
		free(b);
		return false;
	}
	head = chain_of(heads, heads_size, ptr);
	*b = (struct buffer){.next = *head, .ptr = ptr, .bytes = bytes, .flags = flags};
	*head = b;
	buffers++;
	buffers_bytes += bytes;
	pthread_mutex_unlock(&ours);
	return true;
}

bool buffers_remove(const void *ptr)
{
	struct buffer **at, *b = NULL;

	pthread_mutex_lock(&ours);
	at = find(ptr);
	if (at && *at) {
		b = *at;
		*at = b->next;
		buffers--;
		buffers_bytes -= b->bytes;
	}
	pthread_mutex_unlock(&ours);
	free(b);
	return b;
}

bool buffers_flags(const void *ptr, unsigned int *flags)
{
	struct buffer **at;
	bool found;

	pthread_mutex_lock(&ours);
	at = find(ptr);
	found = at && *at;
	if (found)
		*flags = (*at)->flags;
	pthread_mutex_unlock(&ours);
	return found;
}

void buffers_amount(uint64_t *count, uint64_t *bytes)
{
	pthread_mutex_lock(&ours);
	*count = buffers;
	*bytes = buffers_bytes;
	pthread_mutex_unlock(&ours);
}

int buffers_extent_add(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	struct extent *e = malloc(sizeof(*e));

	(void)ctx;
	if (!e)
		return -ENOMEM;
	*e = (struct extent){.ptr = extent->ptr, .bytes = extent->bytes};
	pthread_mutex_lock(&ours);
	e->next = extents;
	extents = e;
	pthread_mutex_unlock(&ours);
	*cookie = e;
	return 0;
}

void buffers_extent_remove(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	struct extent **at;

	(void)ctx;
	(void)extent;
	pthread_mutex_lock(&ours);
	for (at = &extents; *at != cookie; at = &(*at)->next)
		;
	*at = (*at)->next;
	pthread_mutex_unlock(&ours);
	free(cookie);
}

bool buffers_ours(const void *ptr)
{
	const char *address = ptr;
	bool found = false;

	pthread_mutex_lock(&ours);
	for (const struct extent *e = extents; e && !found; e = e->next)
		found = address >= e->ptr && (uint64_t)(address - e->ptr) < e->bytes;
	pthread_mutex_unlock(&ours);
	return found;
}

void buffers_before_fork(void)
{
	pthread_mutex_lock(&ours);
}

void buffers_after_fork(void)
{
	pthread_mutex_unlock(&ours);
}
