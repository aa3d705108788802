// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The checksum of `binpool run`, twice: in C for what read(2) gives, and in
 * OpenCL C for what arrived on the device. Pure functions; no locks.
 */
#include <endian.h>
#include <string.h>

#include "run.h"

/* Odd constants with bits all over, so that each multiplication spreads a changed bit. */
#define PLACE_STEP 0x9e3779b97f4a7c15
#define MIX_1	   0xd6e8feb86659fd93
#define MIX_2	   0xa3b195354a39b70d

#define TEXT(x)	 #x
#define VALUE(x) TEXT(x) "UL"

/*
 * Works with any number of work items and any local size: each takes every
 * n-th word. Words are put together by the device, which is little-endian.
 */
const char checksum_kernel[] =
	"ulong mix(ulong word, ulong place)\n"
	"{\n"
	"	ulong x = word ^ ((place + 1) * " VALUE(
		PLACE_STEP) ");\n"
			    "	x = (x ^ (x >> 32)) * " VALUE(
				    MIX_1) ";\n"
					   "	x = (x ^ (x >> 29)) * " VALUE(
						   MIX_2) ";\n"
							  "	return x ^ (x >> 32);\n"
							  "}\n"
							  "\n"
							  "__kernel void checksum(__global const ulong *data, ulong bytes, ulong first,\n"
							  "		       __global ulong *partials)\n"
							  "{\n"
							  "	__global const uchar *byte = (__global const uchar *)data;\n"
							  "	ulong words = bytes >> 3;\n"
							  "	ulong last = 0, sum = 0, i;\n"
							  "\n"
							  "	for (i = get_global_id(0); i < words; i += get_global_size(0))\n"
							  "		sum += mix(data[i], first + i);\n"
							  "	if (get_global_id(0) == 0 && (bytes & 7)) {\n"
							  "		for (i = words << 3; i < bytes; i++)\n"
							  "			last |= (ulong)byte[i] << ((i & 7) << 3);\n"
							  "		sum += mix(last, first + words);\n"
							  "	}\n"
							  "	partials[get_global_id(0)] = sum;\n"
							  "}\n";

static uint64_t mix(uint64_t word, uint64_t place)
{
	uint64_t x = word ^ ((place + 1) * PLACE_STEP);

	x = (x ^ (x >> 32)) * MIX_1;
	x = (x ^ (x >> 29)) * MIX_2;
	return x ^ (x >> 32);
}

uint64_t checksum(const unsigned char *data, uint64_t bytes, uint64_t offset)
{
	uint64_t first = offset / sizeof(uint64_t), words = bytes / sizeof(uint64_t);
	uint64_t sum = 0, word, i;

	for (i = 0; i < words; i++) {
		memcpy(&word, data + i * sizeof(word), sizeof(word));
		sum += mix(le64toh(word), first + i);
	}
	if (bytes % sizeof(word)) {
		word = 0;
		memcpy(&word, data + words * sizeof(word), bytes % sizeof(word));
		sum += mix(le64toh(word), first + words);
	}
	return sum;
}
