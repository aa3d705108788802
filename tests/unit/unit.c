// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the unit tests share. A counter's members are protected by its lock.
 */
#include "unit.h"

#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"

struct rng rng_make(void)
{
	const char *seed = getenv("BINPOOL_TEST_SEED");
	struct rng r = {seed ? strtoull(seed, NULL, 0) : 20240229};

	printf("# seed %llu (BINPOOL_TEST_SEED)\n", (unsigned long long)r.state);
	return r;
}

/* splitmix64 */
uint64_t rng_next(struct rng *r)
{
	uint64_t z = r->state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

uint64_t rng_below(struct rng *r, uint64_t bound)
{
	return rng_next(r) % bound;
}

uint64_t rng_size(struct rng *r, uint32_t bits)
{
	return rng_next(r) >> (63 - rng_below(r, bits));
}

uint64_t rounds(uint64_t n)
{
	return getenv("BINPOOL_TEST_QUICK") ? n / 10 : n;
}

int counter_alloc(void *ctx, uint64_t bytes, void **ptr)
{
	struct counter *c = ctx;
	int err = 0;

	pthread_mutex_lock(&c->lock);
	if (c->fail_with) {
		err = c->fail_with;
		if (!c->fail_always)
			c->fail_with = 0;
	} else if (bytes > c->max_bytes - c->bytes) {
		err = -ENOMEM;
	} else {
		c->bytes += bytes;
		c->allocs++;
		*ptr = c->real ? malloc(bytes) : (void *)(uintptr_t)c->next;
		c->next += (bytes + 64) & ~(uint64_t)63;
	}
	pthread_mutex_unlock(&c->lock);
	return err;
}

void counter_free(void *ctx, void *ptr, uint64_t bytes)
{
	struct counter *c = ctx;

	pthread_mutex_lock(&c->lock);
	c->bytes -= bytes;
	c->frees++;
	if (c->real)
		free(ptr);
	pthread_mutex_unlock(&c->lock);
}

struct binpool *counter_pool(struct counter *c, uint32_t classes, uint64_t max_bytes)
{
	struct binpool_allocator_ops ops = {
		.size = sizeof(ops),
		.ctx = c,
		.alloc = counter_alloc,
		.free = counter_free,
	};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.name = "counter";
	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	o.classes = classes;
	o.max_bytes = max_bytes;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

static struct binpool *pool_over(uint32_t provider, uint64_t max_bytes)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.name = "test";
	o.provider = provider;
	o.max_bytes = max_bytes;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

struct binpool *thp_pool(uint64_t max_bytes)
{
	return pool_over(BINPOOL_PROVIDER_THP, max_bytes);
}

struct binpool *real_pool(uint64_t max_bytes)
{
	const char *name = getenv("BINPOOL_TEST_PROVIDER");
	uint32_t provider = BINPOOL_PROVIDER_THP;

	for (uint32_t i = 0; name && binpool_provider_name(i); i++)
		if (!strcmp(name, binpool_provider_name(i)))
			provider = i;
	return pool_over(provider, max_bytes);
}

/* What the user set for programs of his own is not for the tests. */
static void __attribute__((constructor)) forget_options(void)
{
	unsetenv("BINPOOL_OPTS");
}

struct binpool_stats stats_of(struct binpool *pool)
{
	struct binpool_stats s = {.size = sizeof(s)};

	assert_ok(binpool_get_stats(pool, &s));
	return s;
}

void check_pool(struct binpool *pool)
{
	struct binpool_stats s = stats_of(pool);
	const char *broken;

	assert_int_equal(s.active_blocks, s.allocs + s.reuses - s.returns - s.frees_active);
	assert_int_equal(s.held_blocks, s.returns - s.reuses - s.frees_held);
	assert_true(s.managed_bytes <= s.reserved_bytes);
	assert_true(s.reserved_bytes <= s.max_bytes);
	assert_true(s.reserved_bytes <= s.reserved_max_bytes);
	assert_true(s.active_bytes + s.held_bytes <= s.managed_bytes);
	assert_int_equal(s.extents, s.extent_allocs - s.extent_frees);
	pool_lock(pool);
	broken = pool_check(pool);
	pool_unlock(pool);
	if (broken)
		fail_msg("the pool is broken: %s", broken);
}

void assert_ok(int err)
{
	if (err < 0)
		fail_msg("error %d (%s): %s", err, strerror(-err), binpool_last_error());
}

void assert_error_names(const char *word)
{
	if (!strstr(binpool_last_error(), word))
		fail_msg("'%s' is not in: %s", word, binpool_last_error());
}

int child_said(pid_t pid, const int pipe[2], char *said, size_t len)
{
	size_t n = 0;
	ssize_t more;
	int status;

	close(pipe[1]);
	while (n < len - 1 && (more = read(pipe[0], said + n, len - 1 - n)) > 0)
		n += (size_t)more;
	said[n] = '\0';
	close(pipe[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

int run_self(const char *argument, char *said, size_t len)
{
	char path[4096];
	ssize_t more = readlink("/proc/self/exe", path, sizeof(path) - 1);
	int fds[2];
	pid_t pid;

	assert_true(more > 0);
	path[more] = '\0';
	assert_int_equal(pipe(fds), 0);
	fflush(NULL);
	pid = fork();
	if (!pid) {
		dup2(fds[1], STDOUT_FILENO);
		dup2(fds[1], STDERR_FILENO);
		execl(path, path, argument, NULL);
		_exit(127);
	}
	return child_said(pid, fds, said, len);
}
