/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the fuzz targets of the library share: reading decisions from the input, and a
 * check that ends the process, which is what a fuzzer looks for. No state.
 */
#ifndef FUZZ_LIB_H
#define FUZZ_LIB_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The target; libFuzzer's name for it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Called once before; each target has one. */
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Always checked, unlike assert. */
#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			dprintf(2, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);         \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* What is left of the input. At its end everything is 0. */
struct input {
	const uint8_t *data;
	size_t left;
};

static inline uint64_t input_bytes(struct input *in, size_t n)
{
	uint64_t value = 0;

	if (n > in->left)
		n = in->left;
	memcpy(&value, in->data, n);
	in->data += n;
	in->left -= n;
	return value;
}

static inline uint8_t input_u8(struct input *in)
{
	return (uint8_t)input_bytes(in, 1);
}

/* Any number, small ones and those beside powers of two more often than others. */
static inline uint64_t input_size(struct input *in)
{
	uint8_t how = input_u8(in);
	uint64_t any;

	if (how < 64)
		return input_u8(in);
	if (how < 128)
		return ((uint64_t)1 << (how & 63)) + input_u8(in) % 3 - 1;
	any = input_bytes(in, 8);
	return how < 192 ? any >> (how & 63) : any;
}

#endif /* FUZZ_LIB_H */
