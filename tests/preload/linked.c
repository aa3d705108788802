// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A program that was linked with the runtime, which is in the global scope then, after us. Owns
 * nothing; silent if all is right.
 */
#include <dlfcn.h>

#include "scenario.h"

int cudaHostAlloc(void **out, size_t bytes, unsigned int flags);
int cudaFreeHost(void *ptr);

int main(void)
{
	struct fake *(*get)(void);
	struct fake *state;
	void *ptr;

	*(void **)&get = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake");
	state = get();
	CHECK(!cudaHostAlloc(&ptr, MIB, 0));
	CHECK(state->runtime_allocs[12] == 0 && state->registers == 1);
	CHECK(!cudaFreeHost(ptr));
	CHECK(!cudaHostAlloc(&ptr, MIB, 4));
	CHECK(state->runtime_allocs[12] == 1 && state->host_allocs == 1);
	CHECK(!cudaFreeHost(ptr));
	CHECK(state->runtime_frees[12] == 1 && state->host_frees == 1);
	return 0;
}
