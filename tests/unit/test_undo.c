// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Registrars that do not let go of memory: it is kept, counted and told of, and never unmapped
 * under a device that may still write it.
 */
#include "unit.h"

#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"

/* Each letter is a call: A attached, a detached, x refused to, ! released. */
struct holder {
	char letter;
	int attach_fails; /* so many, with something left */
	bool holds;	  /* does not let go */
	bool lost;
	int cookies; /* extents that it knows of */
};

static char events[256];

static void note(char letter)
{
	size_t n = strlen(events);

	if (n + 1 < sizeof(events))
		events[n] = letter;
}

static int holder_attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	struct holder *h = ctx;

	*cookie = extent->ptr;
	h->cookies++;
	if (h->attach_fails) {
		h->attach_fails--;
		note('-');
		binpool_set_last_error("the first half only");
		return -EIO;
	}
	note(h->letter);
	return 0;
}

static int holder_try_detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	struct holder *h = ctx;

	/* All of the memory is there still. */
	if (cookie != extent->ptr)
		abort();
	memset(extent->ptr, h->letter, extent->bytes);
	if (h->holds) {
		note('x');
		binpool_set_last_error("the device has it");
		return -EIO;
	}
	h->cookies--;
	note((char)(h->letter + 'a' - 'A'));
	return 0;
}

static void holder_release(void *ctx)
{
	(void)ctx;
	note('!');
}

static int holder_check(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	const struct holder *h = ctx;

	(void)extent;
	(void)cookie;
	return h->lost ? -ENODEV : 0;
}

static int add(struct binpool *pool, struct holder *h, uint32_t flags, uint64_t *id)
{
	const struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.name = "holder",
		.ctx = h,
		.attach = holder_attach,
		.try_detach = holder_try_detach,
		.release = holder_release,
		.check = holder_check,
		.flags = flags,
	};

	return binpool_add_registrar(pool, &ops, id);
}

static int setup(void **state)
{
	(void)state;
	memset(events, 0, sizeof(events));
	return 0;
}

/* What the library says on stderr meanwhile goes into a file. */
static FILE *said;
static int own_stderr;

static void listen(void)
{
	fflush(stderr);
	said = tmpfile();
	own_stderr = dup(STDERR_FILENO);
	assert_true(said && own_stderr >= 0);
	assert_int_equal(dup2(fileno(said), STDERR_FILENO), STDERR_FILENO);
}

/* How many lines there were; all have the word. */
static int heard(const char *word)
{
	char line[1024];
	int lines = 0;

	fflush(stderr);
	dup2(own_stderr, STDERR_FILENO);
	close(own_stderr);
	rewind(said);
	while (fgets(line, sizeof(line), said)) {
		assert_non_null(strstr(line, word));
		lines++;
	}
	fclose(said);
	return lines;
}

/* ---- Tests -------------------------------------------------------------------- */

/* An extent that is to go: with those before it, which did let go, in reverse order. */
static void kept(void **state)
{
	struct holder a = {.letter = 'A'}, b = {.letter = 'B'}, c = {.letter = 'C'};
	struct binpool *pool = real_pool(64 * MIB);
	struct binpool_ptr_info info = {.size = sizeof(info)};
	uint64_t id;
	char *p, *q;

	(void)state;
	assert_ok(add(pool, &a, 0, &id));
	assert_ok(add(pool, &b, 0, &id));
	assert_ok(add(pool, &c, 0, &id));
	p = binpool_alloc(pool, 16 * MIB);
	assert_non_null(p);
	assert_ok(binpool_free(pool, p));
	b.holds = true;
	listen();
	assert_ok(binpool_free_held(pool));
	assert_string_equal(events, "ABCcxa");
	assert_int_equal(stats_of(pool).stuck_bytes, 16 * MIB);
	assert_int_equal(stats_of(pool).reserved_bytes, 16 * MIB);
	assert_int_equal(stats_of(pool).registrations, 0);
	assert_int_equal(binpool_query(p, &info), -ENOENT);
	check_pool(pool);
	/* It is nobody else's. */
	memset(p, 1, 16 * MIB);
	q = binpool_alloc(pool, 16 * MIB);
	assert_non_null(q);
	assert_true(q >= p + 16 * MIB || q + 16 * MIB <= p);
	/* Nor is the driver asked where somebody waits for memory. */
	assert_string_equal(events, "ABCcxaABC");
	assert_ok(binpool_free(pool, q));
	assert_ok(binpool_free_held(pool));
	assert_string_equal(events, "ABCcxaABCxcxa");
	assert_int_equal(stats_of(pool).stuck_bytes, 32 * MIB);
	assert_int_equal(binpool_destroy(pool), -EBUSY);
	assert_error_names("do not let go of 33554432 bytes");
	assert_int_equal(heard("the device has it"), 1);
	b.holds = false;
	assert_int_equal(binpool_trim(pool, 0, 0), 32 * MIB);
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_int_equal(b.cookies, 0);
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* One that is refused half-way, and then not undone. */
static void half_attached(void **state)
{
	struct holder a = {.letter = 'A'}, b = {.letter = 'B'};
	struct binpool *pool = real_pool(64 * MIB);
	uint64_t id;

	(void)state;
	assert_ok(add(pool, &a, 0, &id));
	assert_ok(add(pool, &b, 0, &id));
	/* Where it can be undone, nothing is left. */
	b.attach_fails = 1;
	assert_null(binpool_alloc(pool, 8 * MIB));
	assert_error_names("the first half only");
	assert_string_equal(events, "A-ba");
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	setup(NULL);
	b.attach_fails = 1;
	b.holds = true;
	listen();
	assert_null(binpool_alloc(pool, 8 * MIB));
	assert_int_equal(errno, EIO);
	assert_error_names("the first half only");
	assert_int_equal(heard("the device has it"), 1);
	assert_string_equal(events, "A-xxa");
	assert_int_equal(stats_of(pool).stuck_bytes, 8 * MIB);
	assert_int_equal(stats_of(pool).registrations, 0);
	check_pool(pool);
	b.holds = false;
	assert_ok(binpool_destroy(pool));
	assert_int_equal(a.cookies + b.cookies, 0);
}

/* The registrar that is to go, and does not let go; and then does. */
static void not_removed(void **state)
{
	struct holder a = {.letter = 'A'};
	struct binpool *pool = real_pool(64 * MIB);
	struct binpool_ptr_info info = {.size = sizeof(info)};
	uint64_t id;
	char *p;

	(void)state;
	assert_ok(add(pool, &a, 0, &id));
	p = binpool_alloc(pool, 8 * MIB);
	a.holds = true;
	assert_int_equal(binpool_remove_registrar(pool, id), -EIO);
	assert_error_names("the device has it");
	assert_string_equal(events, "Ax");
	assert_ok(binpool_query(p, &info));
	assert_string_equal(info.registrars, "");
	assert_int_equal(stats_of(pool).registered_bytes, 0);
	check_pool(pool);
	/* Whoever needs it has it attached anew, which takes to let go of it first. */
	assert_int_equal(binpool_wait_registered(pool, p, 0), -EIO);
	a.holds = false;
	assert_ok(binpool_wait_registered(pool, p, 0));
	assert_int_equal(stats_of(pool).registered_bytes, stats_of(pool).reserved_bytes);
	assert_string_equal(events, "AxxaA");
	assert_ok(binpool_remove_registrar(pool, id));
	assert_string_equal(events, "AxxaAa!");
	assert_ok(binpool_free(pool, p));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
}

/* One that could not be added, and has some of the extents all the same. */
static void half_added(void **state)
{
	struct holder keeps = {.letter = 'K'}, a = {.letter = 'A', .attach_fails = 1};
	struct binpool *pool = real_pool(64 * MIB);
	uint64_t id, none = 77;
	char *p[2];

	(void)state;
	assert_ok(add(pool, &keeps, 0, &id));
	p[0] = binpool_alloc(pool, 4 * MIB);
	p[1] = binpool_alloc(pool, 4 * MIB);
	a.holds = true;
	setup(NULL);
	assert_int_equal(add(pool, &a, 0, &none), -EIO);
	assert_error_names("the first half only");
	assert_int_equal(none, 77);
	assert_string_equal(events, "-xx");
	assert_int_equal(stats_of(pool).registrations, 2);
	/* Of those that the pool has, all have it. */
	assert_int_equal(stats_of(pool).registered_bytes, stats_of(pool).reserved_bytes);
	assert_ok(binpool_free(pool, p[0]));
	listen();
	assert_ok(binpool_free_held(pool));
	assert_int_equal(heard("the device has it"), 1);
	assert_int_equal(stats_of(pool).stuck_bytes, 4 * MIB);
	a.holds = false;
	assert_ok(binpool_free(pool, p[1]));
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	assert_int_equal(a.cookies, 0);
	assert_ok(binpool_destroy(pool));
	/* It was never the pool's, so nobody released it. */
	assert_int_equal(events[strlen(events) - 1], '!');
	assert_int_equal(events[strlen(events) - 2], 'k');
}

/* Optional, and in the background: used meanwhile, and nothing goes round for ever. */
static void used_all_the_same(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	struct holder a = {.letter = 'A', .attach_fails = 1, .holds = true};
	struct holder b = {.letter = 'B'};
	uint64_t id;
	char *p;

	(void)state;
	assert_ok(add(pool, &a, BINPOOL_REGISTRAR_OPTIONAL, &id));
	p = binpool_alloc(pool, 4 * MIB);
	assert_non_null(p);
	assert_string_equal(events, "-x");
	assert_int_equal(stats_of(pool).registrations_refused, 1);
	a.holds = false;
	assert_ok(binpool_wait_registered(pool, NULL, 0));
	assert_string_equal(events, "-xaA");
	/* A device that is reset, but does not say that nothing is left. */
	/* And one among others. */
	assert_ok(add(pool, &b, 0, &id));
	setup(NULL);
	b.lost = true;
	assert_ok(binpool_wait_registered(pool, NULL, 0));
	assert_string_equal(events, "bB");
	b.lost = false;
	assert_int_equal(stats_of(pool).registered_bytes, stats_of(pool).reserved_bytes);
	assert_ok(binpool_remove_registrar(pool, id));
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	a.lost = a.holds = true;
	assert_int_equal(binpool_wait_registered(pool, NULL, 10000), -EIO);
	assert_int_equal(stats_of(pool).registrations_lost, 2);
	assert_int_equal(stats_of(pool).registered_bytes, 0);
	a.lost = a.holds = false;
	assert_ok(binpool_register_in_background(pool, BINPOOL_UNLIMITED));
	assert_ok(binpool_wait_registered(pool, NULL, 10000));
	assert_ok(binpool_free(pool, p));
	check_pool(pool);
	assert_ok(binpool_destroy(pool));
	assert_int_equal(a.cookies, 0);
}

/* A child tells nobody, and is not held up. */
static void forked(void **state)
{
	struct binpool *pool = real_pool(64 * MIB);
	struct holder a = {.letter = 'A'};
	uint64_t id;
	int status;
	pid_t pid;

	(void)state;
	assert_ok(add(pool, &a, 0, &id));
	assert_ok(binpool_free(pool, binpool_alloc(pool, 4 * MIB)));
	a.holds = true;
	listen();
	assert_ok(binpool_free_held(pool));
	assert_int_equal(heard("the device has it"), 1);
	setup(NULL);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(binpool_destroy(pool) || *events ? 1 : 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	a.holds = false;
	assert_ok(binpool_destroy(pool));
	assert_string_equal(events, "a!");
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

/* Takes 2 MiB at most; of more it keeps a part, and says nothing. */
static int mute_attach(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	(void)ctx;
	*cookie = extent->ptr;
	return extent->bytes > 2 * MIB ? -EFBIG : 0;
}

static int mute_try_detach(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	const bool *keeps = ctx;

	(void)cookie;
	return *keeps && extent->bytes > 2 * MIB ? -EBUSY : 0;
}

/* What is kept counts against max_bytes, also where less would do; and no old error is its cause.
 */
static void kept_within_the_limit(void **state)
{
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	bool keeps = true;
	const struct binpool_registrar_ops ops = {
		.size = sizeof(ops),
		.name = "mute",
		.ctx = &keeps,
		.attach = mute_attach,
		.try_detach = mute_try_detach,
	};
	struct binpool *pool;
	uint64_t id;
	void *p;

	(void)state;
	o.provider = BINPOOL_PROVIDER_THP;
	o.max_bytes = 4 * MIB;
	assert_ok(binpool_create(&pool, &o));
	assert_ok(binpool_add_registrar(pool, &ops, &id));
	assert_null(binpool_alloc(pool, 16 * MIB));
	assert_error_names("never fits");
	for (int i = 0; i < 4; i++) {
		assert_null(binpool_alloc(pool, MIB));
		assert_int_equal(stats_of(pool).reserved_bytes, 4 * MIB);
		assert_null(strstr(binpool_last_error(), "never fits"));
	}
	check_pool(pool);
	keeps = false;
	assert_ok(binpool_free_held(pool));
	assert_int_equal(stats_of(pool).reserved_bytes, 0);
	p = binpool_alloc(pool, MIB);
	assert_non_null(p);
	assert_ok(binpool_free(pool, p));
	assert_ok(binpool_destroy(pool));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(kept),
		TEST(half_attached),
		TEST(not_removed),
		TEST(half_added),
		TEST(used_all_the_same),
		TEST(forked),
		TEST(kept_within_the_limit),
	};

	return cmocka_run_group_tests_name("undo", tests, NULL, NULL);
}
