// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A heap of mimalloc in a pool's memory, known to CUDA as a whole where there is a device: what
 * mi_heap_malloc gives is pinned then, at the price of mi_heap_malloc.
 *
 *	cc mimalloc.c $(pkg-config --cflags --libs binpool-cuda) -lmimalloc -ldl
 */
#include <dlfcn.h>
#include <errno.h>
#include <mimalloc.h>
#include <stdio.h>
#include <string.h>

#include <binpool_cuda.h>

/* mimalloc 2 cuts an arena into pieces of this size, each at a multiple of it. */
#define ARENA_UNIT  ((size_t)64 << 20)
#define ARENA_BYTES (4 * ARENA_UNIT)

static int failed(void)
{
	fprintf(stderr, "%s\n", binpool_last_error());
	return 1;
}

/* A heap in a buffer of the pool's, *start, which mimalloc has from now on for good. */
static mi_heap_t *heap_over(struct binpool *pool, char **start)
{
	mi_arena_id_t arena;

	*start = binpool_alloc_aligned(pool, ARENA_BYTES, ARENA_UNIT);
	if (!*start)
		return NULL;
	/* Large: no page of it is given to the system. Exclusive: for heaps that ask for it. */
	if (!mi_manage_os_memory_ex(*start, ARENA_BYTES, true, true, false, -1, true, &arena))
		return NULL;
	return mi_heap_new_in_arena(arena);
}

/* The first device's own context becomes this thread's; without one nothing happens. */
static void *begin_cuda(void)
{
	int (*init)(unsigned int), (*retain)(void **, int), (*set)(void *);
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *f[3];

	if (!library)
		return NULL;
	f[0] = dlsym(library, "cuInit");
	f[1] = dlsym(library, "cuDevicePrimaryCtxRetain");
	f[2] = dlsym(library, "cuCtxSetCurrent");
	memcpy(&init, &f[0], sizeof(init));
	memcpy(&retain, &f[1], sizeof(retain));
	memcpy(&set, &f[2], sizeof(set));
	if (!init || !retain || !set || init(0) || retain(&context, 0) || set(context))
		return NULL;
	return library;
}

/* Whether the driver takes an address for pinned host memory. */
static int is_pinned(void *library, const void *p)
{
	int (*ask)(void *, int, unsigned long long);
	void *f = dlsym(library, "cuPointerGetAttribute");
	unsigned int kind = 0;

	memcpy(&ask, &f, sizeof(ask));
	return ask && !ask(&kind, 2, (unsigned long long)p) && kind == 1;
}

int main(void)
{
	struct binpool_ptr_info info = {.size = sizeof(info)};
	void *cuda = begin_cuda();
	struct binpool *pool;
	char *start, *p[1000];
	mi_heap_t *heap;
	uint64_t id;
	int err;

	if (binpool_create(&pool, NULL))
		return failed();
	err = binpool_cuda_attach(pool, 0, &id);
	if (err && err != -ENODEV)
		return failed();
	heap = heap_over(pool, &start);
	if (!heap)
		return failed();

	/* All that the heap gives is within the buffer, and so within one registration. */
	for (int i = 0; i < 1000; i++) {
		p[i] = mi_heap_malloc(heap, 100 + (size_t)i * 100);
		if (!p[i] || p[i] < start || p[i] >= start + ARENA_BYTES)
			return 1;
		memset(p[i], i, 100);
	}
	if (binpool_query(p[999], &info) || info.buffer != start)
		return failed();
	if (!err && !is_pinned(cuda, p[999]))
		return 1;
	for (int i = 0; i < 1000; i++) {
		if (p[i][99] != (char)i)
			return 1;
		mi_free(p[i]);
	}
	/* Where it ends the heap does: no memory of elsewhere gets in. */
	if (mi_heap_malloc(heap, ARENA_BYTES))
		return 1;
	printf("a heap in %zu bytes of %s memory, %s\n", ARENA_BYTES,
	       binpool_provider_name(info.provider),
	       err ? "pinned for nobody, as there is no CUDA device" : "pinned for CUDA");

	/*
	 * mimalloc gives no arena back, and its other heaps may use it, so the buffer is never
	 * freed, and the pool ends with the process: as the library sees to, without a word.
	 */
	mi_heap_destroy(heap);
	return binpool_destroy(pool) != -EBUSY;
}
