// SPDX-License-Identifier: GPL-2.0
/*
 * A worker: a process whose threads do one random operation after the other, each
 * on one block at a time. What comes next is decided by the thread's own numbers,
 * which follow from the seed; how threads meet is not reproducible.
 */
#include <sys/prctl.h>
#include <sys/uio.h>

#include "stress.h"

struct worker worker;

static const struct operation {
	bool (*run)(struct task *task, struct slot *slot);
	unsigned int weight;
	enum { SLOT_NONE, SLOT_FREE, SLOT_USED } slot;
} operations[OPS] = {
	[OP_ALLOC] = {op_alloc, 16, SLOT_FREE},
	[OP_CLOSE] = {op_close, 4, SLOT_USED},
	[OP_CLOSE_FD] = {op_close_fd, 2, SLOT_USED},
	[OP_MAP] = {op_map, 8, SLOT_USED},
	[OP_UNMAP] = {op_unmap, 5, SLOT_USED},
	[OP_MOVE] = {op_move, 4, SLOT_USED},
	[OP_PROTECT] = {op_protect, 4, SLOT_USED},
	[OP_ADVISE] = {op_advise, 5, SLOT_USED},
	[OP_WRITE] = {op_write, 6, SLOT_USED},
	[OP_VERIFY] = {op_verify, 8, SLOT_USED},
	[OP_PIPE] = {op_pipe, 3, SLOT_USED},
	[OP_REGISTER] = {op_register, 3, SLOT_USED},
	[OP_FLIGHT_READ] = {op_flight_read, 3, SLOT_USED},
	[OP_FLIGHT_WRITE] = {op_flight_write, 3, SLOT_USED},
	[OP_UNPIN] = {op_unpin, 8, SLOT_NONE},
	[OP_DIRECT_READ] = {op_direct_read, 3, SLOT_USED},
	[OP_DIRECT_WRITE] = {op_direct_write, 3, SLOT_USED},
	[OP_SEND] = {op_send, 3, SLOT_USED},
	[OP_RECEIVE] = {op_receive, 4, SLOT_FREE},
	[OP_FORK] = {op_fork, 1, SLOT_USED},
	[OP_EXPORT] = {op_export, 3, SLOT_USED},
	[OP_PHYS] = {op_phys, 2, SLOT_USED},
	[OP_TRIM] = {op_trim, 1, SLOT_NONE},
	[OP_LIMIT] = {op_limit, 1, SLOT_NONE},
	[OP_INFO] = {op_info, 2, SLOT_NONE},
	[OP_QUERY] = {op_query, 2, SLOT_USED},
};

/*
 * Opens the device as another user, whom the module then takes for its owner.
 * Only this thread changes, so not by libc, which would change all.
 */
int device_open_as(uid_t uid)
{
	int fd;

	if (syscall(SYS_setresuid, uid, -1, -1))
		return -errno;
	fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	if (syscall(SYS_setresuid, 0, -1, -1))
		abort();
	return fd < 0 ? -errno : fd;
}

static enum op random_op(__u64 *rng)
{
	unsigned int total = 0;
	__u64 at;

	for (unsigned int i = 0; i < OPS; i++)
		total += operations[i].weight;
	at = below(rng, total);
	for (unsigned int i = 0;; i++) {
		if (at < operations[i].weight)
			return i;
		at -= operations[i].weight;
	}
}

/* Does one operation on a slot that suits it and is nobody's now. */
static void step(struct task *task)
{
	enum op op = random_op(&task->rng);
	unsigned int first = (unsigned int)below(&task->rng, SLOTS);

	atomic_fetch_add(&shared->tried[op], 1);
	if (operations[op].slot == SLOT_NONE) {
		if (operations[op].run(task, NULL))
			atomic_fetch_add(&shared->done[op], 1);
		return;
	}
	for (unsigned int i = 0; i < SLOTS; i++) {
		struct slot *slot = &worker.slots[(first + i) % SLOTS];
		bool fits, done = false;

		if (pthread_mutex_trylock(&slot->lock))
			continue;
		fits = slot->used == (operations[op].slot == SLOT_USED);
		if (fits)
			done = operations[op].run(task, slot);
		pthread_mutex_unlock(&slot->lock);
		if (done)
			atomic_fetch_add(&shared->done[op], 1);
		if (fits)
			return;
	}
}

/* Whether @bytes are what blocks with this key have, and what is in quarantine of such. */
static bool paid_for(__u64 bytes, __u64 blocks, __u64 mask, __u64 key)
{
	__u64 most, least = quarantine_of(mask, key, &most);

	return bytes >= blocks + least && bytes <= blocks + most;
}

static bool opener_is(unsigned int opener, __u64 of_opener, __u64 of_user, __u64 key,
		      struct binpool_info *info)
{
	return !device_info(worker.dev[opener], info) &&
	       paid_for(info->opener_bytes, of_opener, ~0ULL, key) &&
	       (!opener || paid_for(info->user_bytes, of_user, OPENER_USER_MASK, key));
}

/*
 * Whether the openers, and the user who is this worker's own, have what the slots of
 * all workers say. All are parked; what others closed a moment ago may be on its way.
 */
static void audit_openers(void)
{
	for (unsigned int i = 0; i < OPENERS; i++) {
		__u64 key = opener_key(worker.number, worker.incarnation, i);
		__u64 of_opener = live_bytes(~0ULL, key);
		__u64 of_user = live_bytes(OPENER_USER_MASK, key);
		__u64 end = now_ms() + 3000 * slowness();
		struct binpool_info info = {0};

		while (!opener_is(i, of_opener, of_user, key, &info) && now_ms() < end)
			sleep_ms(5);
		if (!opener_is(i, of_opener, of_user, key, &info))
			report(CHECK_OPENERS,
			       "opener %u of worker %u: %llu, blocks have %llu; user %llu, %llu", i,
			       worker.number, (unsigned long long)info.opener_bytes,
			       (unsigned long long)of_opener, (unsigned long long)info.user_bytes,
			       (unsigned long long)of_user);
	}
}

/* Waits, without pins, until the others have paused, too, and all was looked at. */
static void park(struct task *task, unsigned int pause)
{
	pins_release(task);
	atomic_fetch_add(&worker.self->parked, 1);
	while (atomic_load(&shared->pause) == pause) {
		if (!task->number && atomic_load(&shared->audit) &&
		    atomic_load(&worker.self->audited) != pause) {
			audit_openers();
			atomic_store(&worker.self->audited, pause);
		}
		sleep_ms(2);
	}
	atomic_fetch_sub(&worker.self->parked, 1);
}

static int scratch_open(unsigned int number)
{
	const char *dir = getenv("BINPOOL_TEST_DIR");
	size_t len = PINS * PIN_PAGES * shared->page;
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/stress.%d.%u", dir ? dir : ".", getpid(), number);
	fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
	unlink(path);
	if (fd >= 0 && posix_fallocate(fd, 0, (off_t)len)) {
		close(fd);
		return -1;
	}
	return fd;
}

static void *task_run(void *arg)
{
	struct task task = {.number = (unsigned int)(uintptr_t)arg};
	const struct options *options = &shared->options;

	task.rng = options->seed ^ (__u64)worker.number << 40 ^ (__u64)worker.incarnation << 8 ^
		   task.number;
	random_next(&task.rng);
	task.scratch = scratch_open(task.number);
	task.bounce = mmap(NULL, PIN_PAGES * shared->page, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (task.scratch < 0 || task.bounce == MAP_FAILED) {
		report(CHECK_PROCESSES, "no scratch file with direct I/O: %s", strerror(errno));
		return NULL;
	}
	for (__u64 n = 0; !stopping(); n++) {
		unsigned int pause = atomic_load(&shared->pause);

		if (pause & 1)
			park(&task, pause);
		else if (!options->ops || n < options->ops)
			step(&task);
		else
			sleep_ms(10);
	}
	pins_release(&task);
	close(task.scratch);
	return NULL;
}

/* A block that no table knows of, and that outlives us. */
static void hide_block(void)
{
	int fd = block_alloc(worker.dev[0], shared->frame);

	if (fd >= 0 && !fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (!stopping())
			sleep_ms(20);
		_exit(0);
	}
	close(fd);
}

/* A page in a pipe that nobody reads, long after the end. */
static void keep_pin(void)
{
	struct iovec part;
	int fd, ends[2];

	if (fork())
		return;
	fd = block_alloc(worker.dev[0], shared->frame);
	part = (struct iovec){block_map(fd, shared->frame), shared->page};
	if (part.iov_base == MAP_FAILED || pipe(ends) || vmsplice(ends[1], &part, 1, 0) < 0)
		_exit(1);
	munmap(part.iov_base, shared->frame);
	close(fd);
	sleep(60);
	_exit(0);
}

/* The life of a worker, in its own process. */
void worker_run(unsigned int number)
{
	pthread_t threads[THREADS_MAX];

	worker.number = number;
	worker.self = &shared->workers[number];
	worker.incarnation = worker.self->incarnation;
	for (unsigned int i = 0; i < SLOTS; i++) {
		worker.slots[i].number = i;
		pthread_mutex_init(&worker.slots[i].lock, NULL);
	}
	for (unsigned int i = 0; i < OPENERS; i++) {
		worker.dev[i] = device_open_as(i * (1000 + number));
		if (worker.dev[i] < 0) {
			report(CHECK_PROCESSES, "open " DEVICE ": %s", strerror(-worker.dev[i]));
			_exit(1);
		}
	}
	if (planted(PLANT_HIDDEN_BLOCK))
		hide_block();
	if (planted(PLANT_KEPT_PIN))
		keep_pin();
	if (planted(PLANT_CRASH))
		abort();
	for (unsigned int i = 0; i < shared->options.threads; i++) {
		if (pthread_create(&threads[i], NULL, task_run, (void *)(uintptr_t)i))
			abort();
	}
	for (unsigned int i = 0; i < shared->options.threads; i++)
		pthread_join(threads[i], NULL);
	for (unsigned int i = 0; i < SLOTS; i++) {
		if (!worker.slots[i].used)
			continue;
		slot_verify(&worker.slots[i]);
		slot_drop(&worker.slots[i]);
	}
	_exit(0);
}
