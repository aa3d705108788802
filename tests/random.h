/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Random numbers that a seed repeats, for the programs that do things at random. All
 * state is the caller's.
 */
#ifndef BINPOOL_TEST_RANDOM_H
#define BINPOOL_TEST_RANDOM_H

#include <stdbool.h>
#include <linux/types.h>

static inline __u64 random_next(__u64 *state)
{
	__u64 z = (*state += 0x9e3779b97f4a7c15ULL);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
	return z ^ z >> 31;
}

/* 0 to @n - 1 */
static inline __u64 below(__u64 *state, __u64 n)
{
	return n ? random_next(state) % n : 0;
}

static inline bool one_in(__u64 *state, __u64 n)
{
	return !below(state, n);
}

#endif /* BINPOOL_TEST_RANDOM_H */
