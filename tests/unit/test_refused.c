// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What libbinpool(7) says of all functions on a pool: what they answer without one, in a forked
 * child, and in a callback of that pool. One table has them all.
 */
#include "unit.h"

#include <sys/wait.h>
#include <unistd.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* ---- All functions ------------------------------------------------------------ */

/* A live buffer of the pool's, and its handle if that is what it has. */
static struct binpool_buf live;

static int pointer(const void *p)
{
	return p ? 0 : -errno;
}

static int alloc(struct binpool *pool)
{
	return pointer(binpool_alloc(pool, 100));
}

static int alloc_aligned(struct binpool *pool)
{
	return pointer(binpool_alloc_aligned(pool, 100, 128));
}

static int alloc_bulk(struct binpool *pool)
{
	void *p[2];

	return binpool_alloc_bulk(pool, 100, 2, p);
}

static int alloc_ex(struct binpool *pool)
{
	struct binpool_alloc_opts o = {.size = sizeof(o), .bytes = 100};
	struct binpool_buf out = {.size = sizeof(out)};

	return binpool_alloc_ex(pool, &o, &out);
}

static int handle_alloc(struct binpool *pool)
{
	struct binpool_buf out = {.size = sizeof(out)};

	return binpool_handle_alloc(pool, 100, &out);
}

static int reserve(struct binpool *pool)
{
	return binpool_reserve(pool, 100);
}

static int buf_info(struct binpool *pool)
{
	struct binpool_buf out = {.size = sizeof(out)};

	return binpool_buf_info(pool, live.ptr, &out);
}

static int buffer_get(struct binpool *pool)
{
	return binpool_buffer_get(pool, &live);
}

static int buffer_sub(struct binpool *pool)
{
	struct binpool_buf out = {.size = sizeof(out)};

	return binpool_buffer_sub(pool, &live, 0, 1, &out);
}

static int trim(struct binpool *pool)
{
	return (int)binpool_trim(pool, 0, 0);
}

static int bin_number(struct binpool *pool)
{
	return (int)binpool_pool_bin_number(pool, 100);
}

static int alloc_size(struct binpool *pool)
{
	return (int)binpool_pool_alloc_size(pool, 1);
}

static int held_blocks(struct binpool *pool)
{
	return (int)binpool_held_blocks(pool);
}

static int may_alloc(struct binpool *pool)
{
	return binpool_may_alloc(pool, 100);
}

static int max_bytes(struct binpool *pool)
{
	return (int)binpool_max_bytes(pool);
}

static int get_stats(struct binpool *pool)
{
	struct binpool_stats out = {.size = sizeof(out)};

	return binpool_get_stats(pool, &out);
}

static int report(struct binpool *pool)
{
	return binpool_report(pool, BINPOOL_REPORT_KEYS, NULL, 0);
}

static int print_report(struct binpool *pool)
{
	return binpool_print_report(pool, BINPOOL_REPORT_KEYS, STDOUT_FILENO);
}

static int leaks(struct binpool *pool)
{
	return binpool_leaks(pool, BINPOOL_REPORT_KEYS, NULL, 0);
}

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
}

static int add_registrar(struct binpool *pool)
{
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops), .attach = attach, .detach = detach};
	uint64_t id;

	return binpool_add_registrar(pool, &ops, &id);
}

static int remove_registrar(struct binpool *pool)
{
	return binpool_remove_registrar(pool, 99);
}

static int wait_registered(struct binpool *pool)
{
	return binpool_wait_registered(pool, live.ptr, 0);
}

static int register_in_background(struct binpool *pool)
{
	return binpool_register_in_background(pool, 0);
}

static int pool_allocator(struct binpool *pool)
{
	struct binpool_allocator_ops out = {.size = sizeof(out)};

	return binpool_pool_allocator(pool, &out);
}

static int poll_fences(struct binpool *pool)
{
	return (int)binpool_poll(pool);
}

static int export(struct binpool *pool)
{
	struct binpool_share out = {.size = sizeof(out)};

	return binpool_export(pool, live.ptr, &out);
}

/* Those that give something back. */

static int free_plain(struct binpool *pool)
{
	return binpool_free(pool, live.ptr);
}

static int free_sized(struct binpool *pool)
{
	return binpool_free_sized(pool, live.ptr, live.bytes);
}

static int free_bulk(struct binpool *pool)
{
	return binpool_free_bulk(pool, 1, &live.ptr);
}

static int free_after(struct binpool *pool)
{
	uint64_t counter = 1;
	struct binpool_fence f = {
		.size = sizeof(f), .kind = BINPOOL_FENCE_COUNTER, .counter = &counter};

	return binpool_free_after(pool, live.ptr, &f, 1);
}

static int handle_free(struct binpool *pool)
{
	return binpool_handle_free(pool, &live);
}

static int buffer_put(struct binpool *pool)
{
	return binpool_buffer_put(pool, &live);
}

/* Those that only look into a cache, which there is none of then. */

static int alloc_cached(struct binpool *pool)
{
	return pointer(binpool_alloc_cached(pool, 100));
}

static int free_cached(struct binpool *pool)
{
	return binpool_free_cached(pool, live.ptr);
}

enum { HOST = 1, HANDLES = 2, BOTH = 3 };
enum { ASKS, COMPUTES, FREES, CACHED, ENDS };

static const struct function {
	const char *name;
	int (*call)(struct binpool *pool);
	int kinds, is;
} functions[] = {
	{"alloc", alloc, HOST, ASKS},
	{"alloc_aligned", alloc_aligned, HOST, ASKS},
	{"alloc_bulk", alloc_bulk, HOST, ASKS},
	{"alloc_ex", alloc_ex, BOTH, ASKS},
	{"handle_alloc", handle_alloc, HANDLES, ASKS},
	{"reserve", reserve, BOTH, ASKS},
	{"buf_info", buf_info, BOTH, ASKS},
	{"buffer_get", buffer_get, BOTH, ASKS},
	{"buffer_sub", buffer_sub, BOTH, ASKS},
	{"free_held", binpool_free_held, BOTH, ASKS},
	{"stop_holding", binpool_stop_holding, BOTH, ASKS},
	{"resume_holding", binpool_resume_holding, BOTH, ASKS},
	{"trim", trim, BOTH, ASKS},
	{"pool_bin_number", bin_number, BOTH, COMPUTES},
	{"pool_alloc_size", alloc_size, BOTH, COMPUTES},
	{"held_blocks", held_blocks, BOTH, ASKS},
	{"may_alloc", may_alloc, BOTH, ASKS},
	{"max_bytes", max_bytes, BOTH, ASKS},
	{"get_stats", get_stats, BOTH, ASKS},
	{"report", report, BOTH, ASKS},
	{"print_report", print_report, BOTH, ASKS},
	{"leaks", leaks, BOTH, ASKS},
	{"add_registrar", add_registrar, HOST, ASKS},
	{"remove_registrar", remove_registrar, HOST, ASKS},
	{"wait_registered", wait_registered, HOST, ASKS},
	{"register_in_background", register_in_background, HOST, ASKS},
	{"pool_allocator", pool_allocator, BOTH, ASKS},
	{"poll", poll_fences, BOTH, ASKS},
	{"export", export, HOST, ASKS},
	{"free", free_plain, HOST, FREES},
	{"free_sized", free_sized, HOST, FREES},
	{"free_bulk", free_bulk, HOST, FREES},
	{"free_after", free_after, HOST, FREES},
	{"handle_free", handle_free, HANDLES, FREES},
	{"buffer_put", buffer_put, BOTH, FREES},
	{"alloc_cached", alloc_cached, HOST, CACHED},
	{"free_cached", free_cached, HOST, CACHED},
	{"destroy", binpool_destroy, BOTH, ENDS},
};

/* Those whose answer is not @wanted, one a line. */
static void answers(struct binpool *pool, int kind, int (*wanted)(const struct function *f),
		    char *wrong, size_t len)
{
	size_t n = 0;

	wrong[0] = '\0';
	for (const struct function *f = functions; f < functions + ARRAY_SIZE(functions); f++) {
		int err, want = wanted(f);

		if (!(f->kinds & kind))
			continue;
		binpool_set_last_error("");
		err = f->call(pool);
		/* Some number. */
		if (want > 0 && err > 0)
			want = err;
		if (err != want || (want < 0 && f->is != CACHED && !*binpool_last_error()))
			n += (size_t)snprintf(wrong + n, n < len ? len - n : 0,
					      "\n%s: %d, not %d (%s)", f->name, err, want,
					      binpool_last_error());
		assert_true(n < len);
	}
}

/* ---- Pools ------------------------------------------------------------------------ */

static char said[8192];
static bool asking;
static struct binpool *asked;
static int asked_kind;

static int of_callback(const struct function *f)
{
	return f->is == CACHED ? -EAGAIN : f->is == COMPUTES ? 1 : -EDEADLK;
}

static void ask(void)
{
	if (asking)
		answers(asked, asked_kind, of_callback, said, sizeof(said));
	asking = false;
}

static uint64_t last_handle;

static int give_handle(void *ctx, uint64_t bytes, uint64_t *handle)
{
	(void)ctx;
	(void)bytes;
	ask();
	*handle = ++last_handle;
	return 0;
}

static void take_handle(void *ctx, uint64_t handle, uint64_t bytes)
{
	(void)ctx;
	(void)handle;
	(void)bytes;
	ask();
}

static int give_memory(void *ctx, uint64_t bytes, void **ptr)
{
	(void)ctx;
	ask();
	*ptr = malloc(bytes);
	return *ptr ? 0 : -ENOMEM;
}

static void take_memory(void *ctx, void *ptr, uint64_t bytes)
{
	(void)ctx;
	(void)bytes;
	ask();
	free(ptr);
}

static int attach_asks(void *ctx, const struct binpool_extent *extent, void **cookie)
{
	ask();
	return attach(ctx, extent, cookie);
}

static void detach_asks(void *ctx, const struct binpool_extent *extent, void *cookie)
{
	ask();
	detach(ctx, extent, cookie);
}

static int done_asks(void *ctx)
{
	ask();
	return *(int *)ctx;
}

static struct binpool *make(int kind, bool over_allocator)
{
	struct binpool_allocator_ops ops = {.size = sizeof(ops),
					    .alloc = give_memory,
					    .free = take_memory,
					    .alloc_handle = give_handle,
					    .free_handle = take_handle};
	struct binpool_options o = BINPOOL_OPTIONS_INIT;
	struct binpool_alloc_opts want = {.size = sizeof(want), .bytes = 5000};
	struct binpool *pool;

	o.provider = over_allocator ? BINPOOL_PROVIDER_ALLOCATOR : BINPOOL_PROVIDER_THP;
	o.allocator = over_allocator ? &ops : NULL;
	o.kind = kind == HANDLES ? BINPOOL_KIND_HANDLE : BINPOOL_KIND_HOST;
	assert_ok(binpool_create(&pool, &o));
	live = (struct binpool_buf){.size = sizeof(live)};
	assert_ok(binpool_alloc_ex(pool, &want, &live));
	asked = pool;
	asked_kind = kind;
	return pool;
}

static void drop(struct binpool *pool, int kind)
{
	assert_ok(kind == HANDLES ? binpool_handle_free(pool, &live)
				  : binpool_free(pool, live.ptr));
	assert_ok(binpool_destroy(pool));
}

/* ---- Tests --------------------------------------------------------------------------- */

static int of_nothing(const struct function *f)
{
	return f->is == CACHED ? -EAGAIN : -EINVAL;
}

static void no_pool(void **state)
{
	struct binpool *pool = make(HOST, false);

	(void)state;
	answers(NULL, BOTH, of_nothing, said, sizeof(said));
	assert_string_equal(said, "");
	assert_int_equal(binpool_destroy_wait(NULL, 1), -EINVAL);
	assert_string_equal(binpool_provider_reason(NULL), "");
	drop(pool, HOST);
}

static int of_child(const struct function *f)
{
	const int answer[] = {
		[ASKS] = -EOWNERDEAD, [COMPUTES] = 1, [FREES] = 0, [CACHED] = -EAGAIN, [ENDS] = 0};

	return answer[f->is];
}

static void child_of(int kind, bool over_allocator)
{
	struct binpool *pool = make(kind, over_allocator);
	struct binpool_ptr_info info = {.size = sizeof(info)};
	int status, pipe_of[2];
	pid_t pid;

	assert_int_equal(pipe(pipe_of), 0);
	fflush(NULL);
	pid = fork();
	if (!pid) {
		if (kind == HOST && binpool_query(live.ptr, &info) != -ENOENT)
			dprintf(pipe_of[1], "query finds it\n");
		/* What is destroyed comes last in the table. */
		answers(pool, kind, of_child, said, sizeof(said));
		dprintf(pipe_of[1], "%s", said);
		_exit(0);
	}
	status = child_said(pid, pipe_of, said, sizeof(said));
	assert_string_equal(said, "");
	assert_int_equal(status, 0);
	drop(pool, kind);
}

static void in_a_child(void **state)
{
	(void)state;
	child_of(HOST, false);
	child_of(HOST, true);
	child_of(HANDLES, true);
}

/* That it was asked, in the callback that @what is, and answered as it has to be. */
static void was_asked(const char *what)
{
	if (asking)
		fail_msg("%s was not called", what);
	if (*said)
		fail_msg("in %s:%s", what, said);
}

static void in_a_callback(void **state)
{
	struct binpool_registrar_ops ops = {
		.size = sizeof(ops), .attach = attach_asks, .detach = detach_asks};
	int kinds[] = {HOST, HANDLES}, over = 0;
	struct binpool_fence f = {
		.size = sizeof(f), .kind = BINPOOL_FENCE_CALLBACK, .done = done_asks, .ctx = &over};
	struct binpool *pool;
	uint64_t id;
	void *p;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		struct binpool_alloc_opts more = {.size = sizeof(more), .bytes = 70000};
		struct binpool_buf buf = {.size = sizeof(buf)};

		pool = make(kinds[i], true);
		asking = true;
		assert_ok(binpool_alloc_ex(pool, &more, &buf));
		was_asked("an allocator's alloc");
		assert_ok(kinds[i] == HANDLES ? binpool_handle_free(pool, &buf)
					      : binpool_free(pool, buf.ptr));
		asking = true;
		assert_ok(binpool_free_held(pool));
		was_asked("an allocator's free");
		drop(pool, kinds[i]);
	}
	pool = make(HOST, false);
	asking = true;
	assert_ok(binpool_add_registrar(pool, &ops, &id));
	was_asked("attach");
	asking = true;
	assert_ok(binpool_remove_registrar(pool, id));
	was_asked("detach");
	p = binpool_alloc(pool, 5000);
	assert_non_null(p);
	assert_ok(binpool_free_after(pool, p, &f, 1));
	asking = true;
	assert_int_equal(binpool_poll(pool), 1);
	was_asked("a fence's done");
	over = 1;
	assert_int_equal(binpool_poll(pool), 0);
	drop(pool, HOST);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_pool),
		cmocka_unit_test(in_a_child),
		cmocka_unit_test(in_a_callback),
	};

	return cmocka_run_group_tests_name("refused", tests, NULL, NULL);
}
