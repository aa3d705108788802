// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The checksum of `binpool run`: in C for what read(2) gives, and in OpenCL C and in
 * CUDA's PTX for what arrived on the device. Pure functions; no locks.
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

/* clang-format off */
#define CONSTANT(x) TEXT(x) "U"

/* word = mix(word, place), as below; %t is lost. */
#define PTX_MIX \
	"	add.u64 %t, %place, 1;\n" \
	"	mul.lo.u64 %t, %t, " CONSTANT(PLACE_STEP) ";\n" \
	"	xor.b64 %word, %word, %t;\n" \
	"	shr.u64 %t, %word, 32;\n" \
	"	xor.b64 %word, %word, %t;\n" \
	"	mul.lo.u64 %word, %word, " CONSTANT(MIX_1) ";\n" \
	"	shr.u64 %t, %word, 29;\n" \
	"	xor.b64 %word, %word, %t;\n" \
	"	mul.lo.u64 %word, %word, " CONSTANT(MIX_2) ";\n" \
	"	shr.u64 %t, %word, 32;\n" \
	"	xor.b64 %word, %word, %t;\n"

/*
 * The same in PTX, with blocks in one dimension. Any driver translates it for its device; it
 * asks for nothing newer than the first devices of 64 bits that drivers still know.
 */
const char checksum_ptx[] =
	".version 6.0\n"
	".target sm_50\n"
	".address_size 64\n"
	"\n"
	".visible .entry checksum(.param .u64 data, .param .u64 bytes, .param .u64 first,\n"
	"			 .param .u64 partials)\n"
	"{\n"
	"	.reg .pred %p;\n"
	"	.reg .u32 %block, %width, %in_block, %blocks;\n"
	"	.reg .u64 %data, %bytes, %first, %partials, %me, %step, %i, %words, %sum;\n"
	"	.reg .u64 %word, %place, %t, %at, %shift, %byte;\n"
	"\n"
	"	ld.param.u64 %data, [data];\n"
	"	ld.param.u64 %bytes, [bytes];\n"
	"	ld.param.u64 %first, [first];\n"
	"	ld.param.u64 %partials, [partials];\n"
	"	cvta.to.global.u64 %data, %data;\n"
	"	cvta.to.global.u64 %partials, %partials;\n"
	"	mov.u32 %block, %ctaid.x;\n"
	"	mov.u32 %width, %ntid.x;\n"
	"	mov.u32 %in_block, %tid.x;\n"
	"	mov.u32 %blocks, %nctaid.x;\n"
	"	mul.wide.u32 %me, %block, %width;\n"
	"	cvt.u64.u32 %t, %in_block;\n"
	"	add.u64 %me, %me, %t;\n"
	"	mul.wide.u32 %step, %blocks, %width;\n"
	"	shr.u64 %words, %bytes, 3;\n"
	"	mov.u64 %sum, 0;\n"
	"	mov.u64 %i, %me;\n"
	"each:\n"
	"	setp.ge.u64 %p, %i, %words;\n"
	"	@%p bra rest;\n"
	"	shl.b64 %at, %i, 3;\n"
	"	add.u64 %at, %data, %at;\n"
	"	ld.global.u64 %word, [%at];\n"
	"	add.u64 %place, %first, %i;\n"
	PTX_MIX
	"	add.u64 %sum, %sum, %word;\n"
	"	add.u64 %i, %i, %step;\n"
	"	bra each;\n"
	"rest:\n"
	"	setp.ne.u64 %p, %me, 0;\n"
	"	@%p bra store;\n"
	"	and.b64 %t, %bytes, 7;\n"
	"	setp.eq.u64 %p, %t, 0;\n"
	"	@%p bra store;\n"
	"	mov.u64 %word, 0;\n"
	"	shl.b64 %i, %words, 3;\n"
	"each_byte:\n"
	"	add.u64 %at, %data, %i;\n"
	"	ld.global.u8 %byte, [%at];\n"
	"	and.b64 %shift, %i, 7;\n"
	"	shl.b64 %shift, %shift, 3;\n"
	"	cvt.u32.u64 %block, %shift;\n"
	"	shl.b64 %byte, %byte, %block;\n"
	"	or.b64 %word, %word, %byte;\n"
	"	add.u64 %i, %i, 1;\n"
	"	setp.lt.u64 %p, %i, %bytes;\n"
	"	@%p bra each_byte;\n"
	"	add.u64 %place, %first, %words;\n"
	PTX_MIX
	"	add.u64 %sum, %sum, %word;\n"
	"store:\n"
	"	shl.b64 %at, %me, 3;\n"
	"	add.u64 %at, %partials, %at;\n"
	"	st.global.u64 [%at], %sum;\n"
	"	ret;\n"
	"}\n";
/* clang-format on */

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
