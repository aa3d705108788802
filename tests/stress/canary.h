/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What is written into memory, so that a wrong word says whose it is: each word
 * names its writer, the block, which fill of the block it was, and its place in
 * it. The words of a page follow from its first one.
 */
#ifndef STRESS_CANARY_H
#define STRESS_CANARY_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <linux/types.h>

/* Bits from the top: writer, block, fill, number of the word. */
#define WRITER_BITS 6
#define BLOCK_BITS  20
#define FILL_BITS   8
#define INDEX_BITS  30

/* Writers that are no worker; worker n is writer n + 1, since a word is never 0. */
#define WRITER_FILE 62
#define WRITER_HOG  63

/* What a page is expected to begin with: one of these, or a word. */
#define PAGE_ZERO    ((__u64)0)
#define PAGE_UNKNOWN (~(__u64)0)

static inline __u64 canary(unsigned int writer, __u64 block, unsigned int fill, __u64 index)
{
	return (__u64)writer << (BLOCK_BITS + FILL_BITS + INDEX_BITS) |
	       (block & ((1U << BLOCK_BITS) - 1)) << (FILL_BITS + INDEX_BITS) |
	       (__u64)(fill & ((1U << FILL_BITS) - 1)) << INDEX_BITS |
	       (index & ((1U << INDEX_BITS) - 1));
}

static inline void page_fill(void *page, size_t len, __u64 first)
{
	__u64 *w = page;

	for (size_t i = 0; i < len / 8; i++)
		w[i] = first + i;
}

/* Where a page differs from what it must be, in bytes from its start; @len: nowhere. */
static inline size_t page_wrong_at(const void *page, size_t len, __u64 first)
{
	const __u64 *w = page, step = first != PAGE_ZERO;

	if (first == PAGE_UNKNOWN)
		return len;
	for (size_t i = 0; i < len / 8; i++) {
		if (w[i] != first + step * i)
			return i * 8;
	}
	return len;
}

static inline const char *canary_text(char *text, size_t len, __u64 word)
{
	unsigned int writer = (unsigned int)(word >> (BLOCK_BITS + FILL_BITS + INDEX_BITS));
	unsigned int block = word >> (FILL_BITS + INDEX_BITS) & ((1U << BLOCK_BITS) - 1);
	unsigned int fill = word >> INDEX_BITS & ((1U << FILL_BITS) - 1);
	unsigned long long at = (word & ((1U << INDEX_BITS) - 1)) * 8;

	if (!word)
		snprintf(text, len, "zero");
	else if (writer == WRITER_FILE)
		snprintf(text, len, "the data file at %#llx", at);
	else if (writer == WRITER_HOG)
		snprintf(text, len, "the hog's memory at %#llx", at);
	else
		snprintf(text, len, "worker %u's block %u, fill %u, at %#llx", writer - 1, block,
			 fill, at);
	return text;
}

#endif /* STRESS_CANARY_H */
