// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What befalls caches, slabs and the page map from outside: memory that runs out, threads
 * that end late, forks in odd places.
 */
#include "unit.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache.h"

/* The library's realloc, by the linker: fails when told to. */
void *__real_realloc(void *ptr, size_t size);
void *__wrap_realloc(void *ptr, size_t size);
static bool realloc_fails;

void *__wrap_realloc(void *ptr, size_t size)
{
	return realloc_fails ? NULL : __real_realloc(ptr, size);
}

/* A magazine that there is no memory for: the buffer goes elsewhere. */
static void no_memory_for_a_magazine(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	void *p[200];

	(void)state;
	for (int fails = 1; fails >= 0; fails--) {
		for (uint64_t size = 100; size < 2 * MIB; size *= 3) {
			assert_ok(binpool_alloc_bulk(pool, size, 20, p));
			realloc_fails = fails;
			assert_ok(binpool_free_bulk(pool, 20, p));
			assert_ok(binpool_free(pool, binpool_alloc(pool, size)));
			realloc_fails = false;
			check_pool(pool);
		}
	}
	assert_true(stats_of(pool).reuses > 0);
	assert_ok(binpool_destroy(pool));
}

/* Every alignment for every small size, each of many neighbours. */
static void aligned_below_a_page(void **state)
{
	struct binpool *pool = thp_pool(256 * MIB);
	void *p[70];

	(void)state;
	for (size_t align = 64; align <= 8192; align *= 2) {
		for (size_t size = 1; size < 9000; size += size < 300 ? 13 : 211) {
			for (size_t i = 0; i < ARRAY_SIZE(p); i++) {
				p[i] = binpool_alloc_aligned(pool, size, align);
				assert_non_null(p[i]);
				assert_int_equal((uintptr_t)p[i] % align, 0);
			}
			assert_ok(binpool_free_bulk(pool, ARRAY_SIZE(p), p));
		}
		check_pool(pool);
	}
	assert_ok(binpool_destroy(pool));
}

/* Small buffers that are gone leave little behind. */
static void bookkeeping_goes(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	const size_t n = 200000;
	void **p = calloc(n, sizeof(*p));
	long pages[2], ignored;

	(void)state;
	for (int i = 0; i < 2; i++) {
		FILE *f = fopen("/proc/self/statm", "re");

		for (size_t size = 64; !i && size < 1000; size += 64) {
			size_t some = u64_min(n, 16 * MIB / size);

			assert_ok(binpool_alloc_bulk(pool, size, some, p));
			assert_ok(binpool_free_bulk(pool, some, p));
			assert_ok(binpool_free_held(pool));
		}
		assert_non_null(f);
		assert_int_equal(fscanf(f, "%ld %ld", &ignored, &pages[i]), 2);
		fclose(f);
		/* The second time with one class that the first time has left ready. */
		assert_ok(binpool_alloc_bulk(pool, 64, n, p));
		assert_ok(binpool_free_bulk(pool, n, p));
		assert_ok(binpool_free_held(pool));
	}
	assert_true((uint64_t)(pages[1] - pages[0]) * page_size() < 4 * MIB || pages[1] < pages[0]);
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	free(p);
	assert_ok(binpool_destroy(pool));
}

/* Of the slabs without memory nothing is left in memory either, but for what says where. */
static void slabs_are_trimmed(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	uint64_t looked_at = 0;
	void *p[2000];

	(void)state;
	assert_ok(binpool_alloc_bulk(pool, 64, 2000, p));
	assert_ok(binpool_free_bulk(pool, 2000, p));
	assert_ok(binpool_free_held(pool));
	for (uint32_t bin = 0; bin < binpool_bin_count(pool->mantissa_bits); bin++) {
		struct bin *b = bins_at(pool, bin);

		for (struct slab *slab = b ? b->spare : NULL; slab; slab = slab->next) {
			size_t bytes = slab->room * sizeof(*slab->slot);
			size_t pages = (bytes + page_size() - 1) / page_size();
			unsigned char there[256];

			assert_true(pages <= sizeof(there));
			assert_int_equal(mincore(slab->slot, bytes, there), 0);
			for (size_t i = 0; i < pages; i++, looked_at++)
				assert_int_equal(there[i] & 1, 0);
		}
	}
	assert_true(looked_at > 10);
	assert_ok(binpool_destroy(pool));
}

/* What was seen in part is no huge number. */
static void seen_in_part(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct binpool_stats was, s;
	uint64_t capacity;

	(void)state;
	pool_lock(pool);
	was = pool->stats;
	capacity = pool->active_capacity;
	pool->stats.active_blocks = pool->stats.held_blocks = (uint64_t)-1;
	pool->stats.active_bytes = pool->stats.held_bytes = (uint64_t)-4096;
	pool->active_capacity = (uint64_t)-4096;
	stats_collect(pool, &s);
	pool->stats = was;
	pool->active_capacity = capacity;
	pool_unlock(pool);
	assert_int_equal(s.active_blocks | s.held_blocks, 0);
	assert_int_equal(s.active_bytes | s.held_bytes | s.managed_bytes, 0);
	assert_ok(binpool_destroy(pool));
}

struct last_free {
	struct binpool *pool;
	void *p;
	pthread_barrier_t ready;
	int err;
};

/* Has a cache with room for what it frees, which is the pool's last buffer. */
static void *free_the_last(void *arg)
{
	struct last_free *l = arg;
	const struct timespec moment = {.tv_nsec = 1000000};
	bool waiting = false;

	l->p = binpool_alloc(l->pool, 100000);
	l->err = binpool_free(l->pool, binpool_alloc(l->pool, 100000));
	pthread_barrier_wait(&l->ready);
	for (int i = 0; i < 1000 && !waiting; i++) {
		nanosleep(&moment, NULL);
		pool_lock(l->pool);
		waiting = l->pool->cache_off;
		pool_unlock(l->pool);
	}
	l->err = l->err ? l->err : binpool_free(l->pool, l->p);
	return NULL;
}

/* Who waits for the last buffer sees it come back, though its thread has a cache. */
static void destroy_waits_beside_caches(void **state)
{
	struct last_free l = {.pool = thp_pool(64 * MIB)};
	pthread_t t;

	(void)state;
	pthread_barrier_init(&l.ready, NULL, 2);
	pthread_create(&t, NULL, free_the_last, &l);
	pthread_barrier_wait(&l.ready);
	assert_ok(binpool_destroy_wait(l.pool, 5000));
	pthread_join(t, NULL);
	assert_int_equal(l.err, 0);
	pthread_barrier_destroy(&l.ready);
}

/* ThreadSanitizer itself is at an end by then. */
#ifndef __SANITIZE_THREAD__
static pthread_key_t last_key;
static struct binpool *last_pool;

/* First uses the pool when no destructor will run any more. */
static void use_at_last(void *arg)
{
	static __thread int calls;

	if (++calls < sysconf(_SC_THREAD_DESTRUCTOR_ITERATIONS))
		pthread_setspecific(last_key, arg);
	else
		binpool_free(last_pool, binpool_alloc(last_pool, 100));
}

static void *last_thread(void *arg)
{
	pthread_setspecific(last_key, arg);
	return NULL;
}

static void threads_that_end_late(void **state)
{
	pthread_attr_t attr;
	pthread_t t;

	(void)state;
	last_pool = thp_pool(16 * MIB);
	pthread_attr_init(&attr);
	/* So large that libc does not keep it for the next thread. */
	pthread_attr_setstacksize(&attr, 64 * MIB);
	pthread_key_create(&last_key, use_at_last);
	for (int i = 0; i < 3; i++) {
		pthread_create(&t, &attr, last_thread, &last_key);
		pthread_join(t, NULL);
	}
	pthread_key_delete(last_key);
	pthread_attr_destroy(&attr);
	check_pool(last_pool);
	assert_ok(binpool_destroy(last_pool));
}
#endif

/* A child's status must be 0. */
static void reap(pid_t pid)
{
	int status;

	assert_true(pid >= 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static pid_t forked;
static bool fork_now;

static int attach_forks(void *ctx, const struct binpool_extent *e, void **cookie)
{
	(void)ctx;
	(void)e;
	*cookie = NULL;
	if (fork_now)
		forked = fork();
	return 0;
}

static void detach_nothing(void *ctx, const struct binpool_extent *e, void *cookie)
{
	(void)ctx;
	(void)e;
	(void)cookie;
}

/* The child of a callback goes on out of it, into a pool that is not its own. */
static void fork_in_a_callback(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.attach = attach_forks,
		.detach = detach_nothing,
	};
	uint64_t id;
	void *p;

	(void)state;
	assert_ok(binpool_add_registrar(pool, &ops, &id));
	assert_ok(binpool_free(pool, binpool_alloc(pool, 100)));
	fork_now = true;
	p = binpool_alloc(pool, 8 * MIB);
	if (!forked)
		_exit(!binpool_alloc(pool, 100) && errno == EOWNERDEAD ? 0 : 1);
	fork_now = false;
	reap(forked);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

#define POOLS 40

static struct binpool *many[POOLS];

static int attach_uses_many(void *ctx, const struct binpool_extent *e, void **cookie)
{
	(void)ctx;
	(void)e;
	*cookie = NULL;
	for (int i = 0; i < POOLS; i++)
		if (binpool_free(many[i], binpool_alloc(many[i], 100)))
			return -EIO;
	return 0;
}

/* A callback uses so many pools that its thread's table of caches moves. */
static void table_moves_in_a_callback(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.attach = attach_uses_many,
		.detach = detach_nothing,
	};
	uint64_t id;

	(void)state;
	for (int i = 0; i < POOLS; i++)
		many[i] = thp_pool(4 * MIB);
	assert_ok(binpool_free(pool, binpool_alloc(pool, 100)));
	assert_ok(binpool_add_registrar(pool, &ops, &id));
	assert_ok(binpool_destroy(pool));
	/* In its place, with no cache of this thread's yet. */
	pool = thp_pool(64 * MIB);
	assert_null(cache_of(pool));
	assert_ok(binpool_free(pool, binpool_alloc(pool, 100)));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
	for (int i = 0; i < POOLS; i++)
		assert_ok(binpool_destroy(many[i]));
}

static void *next_address;

static int map_there(void *ctx, uint64_t bytes, void **ptr)
{
	(void)ctx;
	*ptr = mmap(next_address, bytes, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	return *ptr == MAP_FAILED ? -ENOMEM : 0;
}

static void unmap_there(void *ctx, void *ptr, uint64_t bytes)
{
	(void)ctx;
	munmap(ptr, bytes);
}

/* In a child that has destroyed what it inherited the addresses are another pool's. */
static int use_addresses_again(struct binpool *pool, char *small, char *large)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops),
		.alloc = map_there,
		.free = unmap_there,
	};
	struct binpool *own;

	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	if (binpool_destroy(pool))
		return 1;
	for (size_t i = 0; i < 4000; i++)
		memset(malloc(8 + i % 2000 * 40), 0x41, 8 + i % 2000 * 40);
	if (binpool_create(&own, &o))
		return 2;
	for (int i = 0; i < 2; i++) {
		char *p;

		next_address = (char *)((uintptr_t)(i ? large : small) & ~(page_size() - 1));
		p = binpool_alloc(own, 4096);
		if (!p || binpool_free(own, p + 64) != -EINVAL || binpool_free(own, p))
			return 3;
	}
	return binpool_destroy(own) ? 4 : 0;
}

static void pages_of_a_dead_pool(void **state)
{
	struct binpool *pool = thp_pool(64 * MIB);
	char *small = binpool_alloc(pool, 64), *large = binpool_alloc(pool, 100000);
	pid_t pid = fork();

	(void)state;
	if (!pid)
		_exit(use_addresses_again(pool, small, large));
	reap(pid);
	assert_ok(binpool_free(pool, small));
	assert_ok(binpool_free(pool, large));
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_memory_for_a_magazine),
		cmocka_unit_test(aligned_below_a_page),
		cmocka_unit_test(bookkeeping_goes),
		cmocka_unit_test(slabs_are_trimmed),
		cmocka_unit_test(seen_in_part),
		cmocka_unit_test(destroy_waits_beside_caches),
#ifndef __SANITIZE_THREAD__
		cmocka_unit_test(threads_that_end_late),
#endif
		cmocka_unit_test(fork_in_a_callback),
		cmocka_unit_test(table_moves_in_a_callback),
		cmocka_unit_test(pages_of_a_dead_pool),
	};

	return cmocka_run_group_tests_name("cache_odd", tests, NULL, NULL);
}
