// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A pool's own thread, and memory that goes from one process to another that needs it.
 * Whoever waits here waits up to a minute; how long it took is printed.
 */
#include "unit.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 60000

/*
 * ThreadSanitizer wants no threads in a child of a process that had some, unless it is another
 * program by then.
 */
#ifdef __SANITIZE_THREAD__
static const uint32_t child_reaper;
#else
static const uint32_t child_reaper = BINPOOL_POOL_REAPER;
#endif

static struct binpool *reaped_pool(struct binpool_options o)
{
	struct binpool *pool;

	o.flags |= BINPOOL_POOL_REAPER;
	assert_ok(binpool_create(&pool, &o));
	return pool;
}

static struct binpool *reaped_thp_pool(uint32_t extent_idle_ms)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;

	o.provider = BINPOOL_PROVIDER_THP;
	o.max_bytes = 256 * MIB;
	o.extent_idle_ms = extent_idle_ms;
	return reaped_pool(o);
}

#define WAIT_UNTIL(condition)                                                                      \
	do {                                                                                       \
		int ms_ = 0;                                                                       \
                                                                                                   \
		while (!(condition) && ms_++ < PATIENCE_MS)                                        \
			usleep(1000);                                                              \
		assert_true(condition);                                                            \
	} while (0)

/* Nobody calls anything, and what waits for fences comes back. */
static void fences(void **state)
{
	enum { N = 200 };
	struct binpool *pool = reaped_thp_pool(0);
	uint64_t counter = 0, never = 0;

	(void)state;
	for (uint64_t i = 0; i < N; i++) {
		struct binpool_fence f = {
			.size = sizeof(f),
			.kind = BINPOOL_FENCE_COUNTER,
			.counter = i % 2 ? &counter : &never,
			.target = i + 1,
		};

		assert_ok(binpool_free_after(pool, binpool_alloc(pool, 4096), &f, 1));
	}
	assert_int_equal(stats_of(pool).pending_blocks, N);
	__atomic_store_n(&counter, N, __ATOMIC_RELEASE);
	WAIT_UNTIL(stats_of(pool).pending_blocks == N / 2);
	/* Asleep by now, or not: it hears of a new one. */
	__atomic_store_n(&never, N, __ATOMIC_RELEASE);
	WAIT_UNTIL(!stats_of(pool).pending_blocks);
	usleep(30000);
	{
		struct binpool_fence f = {
			.size = sizeof(f),
			.kind = BINPOOL_FENCE_COUNTER,
			.counter = &never,
			.target = N,
		};

		assert_ok(binpool_free_after(pool, binpool_alloc(pool, 4096), &f, 1));
	}
	WAIT_UNTIL(!stats_of(pool).pending_blocks);
	assert_ok(binpool_destroy(pool));
}

static pthread_t detached_by;
static int detached;

static int attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	(void)ctx;
	(void)extent;
	(void)cookie;
	return 0;
}

static void detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	(void)ctx;
	(void)extent;
	(void)cookie;
	detached_by = pthread_self();
	__atomic_add_fetch(&detached, 1, __ATOMIC_RELEASE);
}

/* What a driver makes slow is not done by the thread that frees. */
static void give_back(void **state)
{
	const struct binpool_registrar_ops ops = {
		.size = sizeof(ops), .name = "slow", .attach = attach, .detach = detach};
	struct binpool *pool = reaped_thp_pool(0);
	uint64_t id;
	void *p;

	(void)state;
	detached = 0;
	assert_ok(binpool_add_registrar(pool, &ops, &id));
	assert_ok(binpool_stop_holding(pool));
	p = binpool_alloc(pool, 5 * MIB);
	assert_non_null(p);
	assert_ok(binpool_free(pool, p));
	WAIT_UNTIL(__atomic_load_n(&detached, __ATOMIC_ACQUIRE) == 1);
	assert_false(pthread_equal(detached_by, pthread_self()));
	WAIT_UNTIL(!stats_of(pool).reserved_bytes);
	assert_ok(binpool_destroy(pool));
}

/* Of extents that nobody uses one stays. */
static void idle(void **state)
{
	const struct binpool_registrar_ops ops = {
		.size = sizeof(ops), .name = "any", .attach = attach, .detach = detach};
	struct binpool *pool = reaped_thp_pool(10);
	struct binpool_stats s;
	uint64_t id;

	(void)state;
	/* Registered extents do not grow: each stretch is one of its own. */
	assert_ok(binpool_add_registrar(pool, &ops, &id));
	for (uint64_t i = 1; i <= 3; i++)
		assert_ok(binpool_reserve(pool, i * 40 * MIB));
	assert_int_equal(stats_of(pool).extent_allocs, 3);
	WAIT_UNTIL(stats_of(pool).extents <= 1);
	/* Other processes of this user may have asked for all of it, or do so just now. */
	s = stats_of(pool);
	if (!s.pressure_trims)
		assert_int_equal(s.extents, 1);
	assert_ok(binpool_destroy(pool));
}

static void pressure_fd(void **state)
{
	int fd = binpool_pressure_fd();
	struct pollfd p = {.fd = fd, .events = POLLPRI};

	(void)state;
	if (fd < 0) {
		printf("# no pressure: %s\n", binpool_last_error());
		assert_true(fd == -EOPNOTSUPP || fd == -EACCES || fd == -EPERM);
		assert_error_names("/proc/pressure/memory");
		skip();
	}
	/* A trigger that the kernel took; whether memory is short now is not ours to say. */
	assert_true(poll(&p, 1, 0) >= 0);
	assert_false(p.revents & (POLLERR | POLLNVAL));
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	close(fd);
}

/* A child has no such thread, and ends what it inherited all the same. */
static void forked(void **state)
{
	struct binpool *pool = reaped_thp_pool(0);
	void *p = binpool_alloc(pool, MIB);
	int status;
	pid_t pid;

	(void)state;
	for (int i = 0; i < 8; i++) {
		fflush(NULL);
		pid = fork();
		if (!pid) {
			struct binpool *own;
			struct binpool_options o = BINPOOL_OPTIONS_INIT;

			o.provider = BINPOOL_PROVIDER_THP;
			o.flags = child_reaper;
			if (binpool_destroy(pool) || binpool_create(&own, &o))
				_exit(1);
			_exit(binpool_free(own, binpool_alloc(own, MIB)) || binpool_destroy(own));
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

static void ends(void **state)
{
	uint64_t counter = 0;
	struct binpool_fence f = {
		.size = sizeof(f), .kind = BINPOOL_FENCE_COUNTER, .counter = &counter, .target = 1};

	(void)state;
	for (int i = 0; i < 20; i++) {
		struct binpool *pool = reaped_thp_pool(0);

		counter = 0;
		assert_ok(binpool_free_after(pool, binpool_alloc(pool, MIB), &f, 1));
		/* Refused, it works on. */
		assert_int_equal(binpool_destroy(pool), -EBUSY);
		__atomic_store_n(&counter, 1, __ATOMIC_RELEASE);
		if (i % 2)
			WAIT_UNTIL(!stats_of(pool).pending_blocks);
		assert_ok(binpool_destroy(pool));
	}
}

/* ---- From one process to another --------------------------------------------- */

/* Memory that all processes of the test have together. */
struct budget {
	uint64_t left;
};

static struct budget *budget;

static uint64_t budget_left(void)
{
	return __atomic_load_n(&budget->left, __ATOMIC_ACQUIRE);
}

static int budget_alloc(void *ctx, uint64_t bytes, void **ptr)
{
	uint64_t left = __atomic_load_n(&budget->left, __ATOMIC_RELAXED);

	(void)ctx;
	do {
		if (bytes > left)
			return -ENOMEM;
	} while (!__atomic_compare_exchange_n(&budget->left, &left, left - bytes, false,
					      __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
	*ptr = malloc(bytes);
	return *ptr ? 0 : -ENOMEM;
}

static void budget_free(void *ctx, void *ptr, uint64_t bytes)
{
	(void)ctx;
	free(ptr);
	__atomic_add_fetch(&budget->left, bytes, __ATOMIC_RELEASE);
}

static struct binpool *budget_pool(uint32_t flags)
{
	const struct binpool_allocator_ops ops = {
		.size = sizeof(ops), .alloc = budget_alloc, .free = budget_free};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.provider = BINPOOL_PROVIDER_ALLOCATOR;
	o.allocator = &ops;
	o.flags = flags;
	return binpool_create(&pool, &o) ? NULL : pool;
}

#define PIECES 16

/* The device's, where all programs' memory is within one limit. */
#define DEVICE_LIMIT "/sys/class/misc/binpool/max_bytes"

static struct binpool *device_pool(uint32_t flags)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool *pool;

	o.provider = BINPOOL_PROVIDER_DEVICE;
	o.flags = flags;
	return binpool_create(&pool, &o) ? NULL : pool;
}

/* Holds all there is, free, in its pool. */
static int hoarder(int socket, struct binpool *(*make)(uint32_t flags), uint32_t flags)
{
	struct binpool *pool = make(flags);
	void *p[PIECES];
	char word = 0;

	for (int i = 0; i < PIECES; i++)
		p[i] = binpool_alloc(pool, MIB);
	for (int i = 0; i < PIECES; i++)
		if (!p[i] || binpool_free(pool, p[i]))
			return 1;
	/* With a thread of its own it may be asked for them by others before it is here. */
	if (!flags && stats_of(pool).reserved_bytes != PIECES * MIB)
		return 2;
	/* It has nothing more to do with it until it is told to end. */
	if (write(socket, &word, 1) != 1 || read(socket, &word, 1) != 1)
		return 3;
	return binpool_destroy(pool) ? 4 : 0;
}

/* What of it another process gets that waits for all of it. */
static int need_all(struct binpool *(*make)(uint32_t flags), uint32_t hoarder_flags,
		    uint32_t wait_ms, uint64_t *ms)
{
	struct binpool_alloc_opts want = {.size = sizeof(want),
					  .bytes = PIECES * MIB,
					  .flags = BINPOOL_BUF_WAIT,
					  .wait_ms = wait_ms};
	struct binpool_buf buf = {.size = sizeof(buf)};
	struct timespec before, after;
	struct binpool *pool;
	int socket[2], status, err;
	char word;
	pid_t pid;

	budget->left = PIECES * MIB;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socket), 0);
	fflush(NULL);
	pid = fork();
	if (!pid) {
		close(socket[0]);
		_exit(hoarder(socket[1], make, hoarder_flags));
	}
	close(socket[1]);
	assert_int_equal(read(socket[0], &word, 1), 1);
	if (make == budget_pool && !hoarder_flags)
		assert_int_equal(budget_left(), 0);
	pool = make(0);
	clock_gettime(CLOCK_MONOTONIC, &before);
	err = binpool_alloc_ex(pool, &want, &buf);
	clock_gettime(CLOCK_MONOTONIC, &after);
	*ms = (uint64_t)((after.tv_sec - before.tv_sec) * 1000 +
			 (after.tv_nsec - before.tv_nsec) / 1000000);
	if (!err)
		assert_ok(binpool_free(pool, buf.ptr));
	assert_ok(binpool_destroy(pool));
	assert_int_equal(write(socket[0], &word, 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(socket[0]);
	assert_int_equal(budget_left(), PIECES * MIB);
	return err;
}

static void between_processes(void **state)
{
	uint64_t ms;

	(void)state;
	if (!child_reaper) {
		printf("# ThreadSanitizer wants no threads in a forked child\n");
		skip();
	}
	/* Without the thread it has no reason to give anything back. */
	assert_int_equal(need_all(budget_pool, 0, 200, &ms), -ETIMEDOUT);
	assert_ok(need_all(budget_pool, BINPOOL_POOL_REAPER, PATIENCE_MS, &ms));
	printf("# given back and got after %llu ms\n", (unsigned long long)ms);
}

/* The same where the module's limit is what is short. */
static void over_the_device(void **state)
{
	const int found_max = 32;
	char found[32] = "";
	uint64_t ms;
	int fd, len, err;

	(void)state;
	fd = open(DEVICE_LIMIT, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		printf("# no module here, or it is not ours to set its limit\n");
		skip();
	}
	len = (int)read(fd, found, (size_t)found_max - 1);
	assert_true(len > 0);
	assert_true(pwrite(fd, "16777216", 8, 0) == 8);
	err = need_all(device_pool, 0, 200, &ms);
	if (err == -ETIMEDOUT)
		err = need_all(device_pool, BINPOOL_POOL_REAPER, PATIENCE_MS, &ms);
	assert_true(pwrite(fd, found, (size_t)len, 0) == len);
	close(fd);
	assert_ok(err);
	printf("# given back and got after %llu ms\n", (unsigned long long)ms);
}

/* Within one process it is the same. */
static void between_pools(void **state)
{
	struct binpool *rich, *poor = budget_pool(0);
	struct binpool_alloc_opts want = {.size = sizeof(want),
					  .bytes = 4 * MIB,
					  .flags = BINPOOL_BUF_WAIT,
					  .wait_ms = PATIENCE_MS};
	struct binpool_buf buf = {.size = sizeof(buf)};
	void *p;

	(void)state;
	budget->left = 4 * MIB;
	rich = budget_pool(BINPOOL_POOL_REAPER);
	p = binpool_alloc(rich, 4 * MIB);
	assert_ok(binpool_free(rich, p));
	assert_ok(binpool_alloc_ex(poor, &want, &buf));
	assert_true(stats_of(rich).pressure_trims >= 1);
	assert_int_equal(stats_of(rich).reserved_bytes, 0);
	assert_ok(binpool_free(poor, buf.ptr));
	assert_ok(binpool_destroy(poor));
	assert_ok(binpool_destroy(rich));
}

static void ask_by_hand(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT, 0600);

	futimens(fd, NULL);
	close(fd);
}

static int hears_again(void)
{
	/* A user's of his own, or other pools would have to hear again, and this test's elsewhere.
	 */
	const uid_t user = geteuid() ? geteuid() : (uid_t)(1 << 30) + (uid_t)getpid();
	struct binpool *pool;
	char path[64];

	snprintf(path, sizeof(path), "/dev/shm/binpool-pressure.%u", (unsigned int)user);
	if (user != geteuid() && seteuid(user))
		return 1;
	pool = reaped_thp_pool(0);
	for (uint64_t trims = 0; trims < 40; trims += 10) {
		if (unlink(path))
			return 2;
		/* Its going is heard of twice at most. */
		for (int ms = 0; stats_of(pool).pressure_trims < trims + 10; ms++) {
			if (ms > PATIENCE_MS)
				return 3;
			ask_by_hand(path);
			usleep(1000);
		}
	}
	return binpool_destroy(pool) || unlink(path) ? 4 : 0;
}

/* Who cleans /dev/shm up takes the file away by which they ask. */
static void file_removed(void **state)
{
	char said[4096];
	int status = run_self("hears_again", said, sizeof(said));

	(void)state;
	if (status)
		fail_msg("status 0x%x: %s", status, said);
}

/* ---- The end, while others are about to leave ------------------------------------ */

static atomic_bool freeing, destroyed, late;
static __thread bool slow;

int __real_eventfd_write(int fd, eventfd_t value);

/* Whoever wakes a pool's thread takes long; the pool has to be there all the while. */
int __wrap_eventfd_write(int fd, eventfd_t value)
{
	for (int ms = 0; slow && !destroyed && ms < 100; ms++)
		usleep(1000);
	late = late || (slow && destroyed);
	return __real_eventfd_write(fd, value);
}

struct last {
	struct binpool *pool;
	void *ptr;
};

static void *free_last(void *arg)
{
	static const uint64_t counter = 1;
	const struct binpool_fence over = {
		.size = sizeof(over),
		.kind = BINPOOL_FENCE_COUNTER,
		.counter = &counter,
		.target = 1,
	};
	const struct last *last = arg;

	slow = true;
	freeing = true;
	binpool_free_after(last->pool, last->ptr, &over, 1);
	return NULL;
}

/* The fence of the last buffer is over before its free_after is. */
static void destroyed_meanwhile(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		struct last last = {.pool = reaped_thp_pool(0)};
		pthread_t thread;

		last.ptr = binpool_alloc(last.pool, 1000);
		freeing = destroyed = late = false;
		/* Until the pool's thread sleeps. */
		usleep(20000);
		assert_int_equal(pthread_create(&thread, NULL, free_last, &last), 0);
		while (!freeing)
			sched_yield();
		assert_ok(binpool_destroy_wait(last.pool, PATIENCE_MS));
		destroyed = true;
		pthread_join(thread, NULL);
		assert_false(late);
	}
}

static int share_budget(void **state)
{
	(void)state;
	budget = mmap(NULL, sizeof(*budget), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	return budget == MAP_FAILED;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fences),
		cmocka_unit_test(give_back),
		cmocka_unit_test(idle),
		cmocka_unit_test(pressure_fd),
		cmocka_unit_test(forked),
		cmocka_unit_test(ends),
		cmocka_unit_test(between_processes),
		cmocka_unit_test(over_the_device),
		cmocka_unit_test(between_pools),
		cmocka_unit_test(file_removed),
		cmocka_unit_test(destroyed_meanwhile),
	};

	if (argc > 1 && !strcmp(argv[1], "hears_again"))
		/* LeakSanitizer would look for leaks as a user that it may not be. */
		_exit(hears_again());
	return cmocka_run_group_tests_name("reaper", tests, share_budget, NULL);
}
