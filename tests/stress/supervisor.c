// SPDX-License-Identifier: GPL-2.0
/*
 * The processes of a run: workers and the hog are started, workers are killed at
 * random and started anew, all pause now and then so that everything can be
 * counted. Orphans of killed workers are ours, too.
 */
#include <sys/prctl.h>

#include "stress.h"

#define TICK_MS	       20
#define KILL_EVERY_MS  1500
#define PAUSE_EVERY_MS 7000

/* Longer than any operation takes, on a slow machine with a debugging kernel. */
#define HANG_MS 180000

static pid_t hog;

pid_t start(void (*run)(void))
{
	pid_t pid = fork();

	if (!pid) {
		run();
		_exit(0);
	}
	if (pid < 0)
		report(CHECK_PROCESSES, "fork: %s", strerror(errno));
	return pid;
}

static unsigned int starting;

static void run_worker(void)
{
	worker_run(starting);
}

static void worker_start(unsigned int number)
{
	struct worker_shared *w = &shared->workers[number];

	w->incarnation++;
	atomic_store(&w->dying, false);
	starting = number;
	w->pid = start(run_worker);
}

/* A worker is no more: what it had is nobody's. */
static void worker_ended(struct worker_shared *w)
{
	w->pid = 0;
	memset(w->live, 0, sizeof(w->live));
	atomic_store(&w->parked, 0);
}

static void worker_kill(unsigned int number)
{
	struct worker_shared *w = &shared->workers[number];

	if (!w->pid)
		return;
	atomic_store(&w->dying, true);
	kill(w->pid, SIGKILL);
	waitpid(w->pid, NULL, 0);
	worker_ended(w);
}

static const char *why_ended(char *text, size_t len, int status)
{
	if (WIFSIGNALED(status))
		snprintf(text, len, "by signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		snprintf(text, len, "with status %d", WEXITSTATUS(status));
	return text;
}

/* Takes note of processes that ended by themselves; none should, before the end. */
static void reap(void)
{
	char why[80];
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (unsigned int i = 0; i < shared->options.workers; i++) {
			struct worker_shared *w = &shared->workers[i];

			if (w->pid != pid)
				continue;
			worker_ended(w);
			if (status || !stopping())
				report(CHECK_PROCESSES, "worker %u ended %s", i,
				       why_ended(why, sizeof(why), status));
		}
		if (pid == hog) {
			hog = 0;
			if (status || !stopping())
				report(CHECK_PROCESSES, "the hog ended %s",
				       why_ended(why, sizeof(why), status));
		}
	}
}

/* Where the threads of a process are in the kernel. */
static void show_stacks(pid_t pid)
{
	char path[600], stack[4096];
	struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	while (dir && (e = readdir(dir))) {
		snprintf(path, sizeof(path), "/proc/%d/task/%s/stack", pid, e->d_name);
		if (e->d_name[0] != '.' && text_read(path, stack, sizeof(stack)) > 0)
			fprintf(stderr, "# thread %s of %d:\n%s", e->d_name, pid, stack);
	}
	if (dir)
		closedir(dir);
}

/* Whether all are there yet: parked, or, at the end, gone. */
static bool all_workers(bool (*there)(const struct worker_shared *w), const char *what)
{
	__u64 end = now_ms() + HANG_MS;

	for (unsigned int i = 0; i < shared->options.workers; i++) {
		struct worker_shared *w = &shared->workers[i];

		while (w->pid && !there(w)) {
			reap();
			sleep_ms(2);
			if (now_ms() < end)
				continue;
			report(CHECK_PROCESSES, "worker %u does not %s", i, what);
			show_stacks(w->pid);
			return false;
		}
	}
	return true;
}

static bool parked(const struct worker_shared *w)
{
	return atomic_load(&w->parked) == shared->options.threads;
}

static bool audited(const struct worker_shared *w)
{
	return atomic_load(&w->audited) == atomic_load(&shared->pause);
}

static bool gone(const struct worker_shared *w)
{
	return !w->pid;
}

/* Lets all pause, and counts. */
static void pause_and_audit(int dev)
{
	static unsigned int pauses;

	atomic_fetch_add(&shared->pause, 1);
	if (all_workers(parked, "pause")) {
		reap();
		audit_paused(dev);
		atomic_store(&shared->audit, true);
		all_workers(audited, "ask its openers");
		atomic_store(&shared->audit, false);
		/* In between it piles up, and openers pay for it. */
		if (++pauses % 2)
			quarantine_end();
	}
	atomic_fetch_add(&shared->pause, 1);
}

/*
 * Whether the run is over: after its time, or its number of operations; one with a
 * violation as soon as that was seen. A slow machine gets more time, until each operation
 * was done once.
 */
static bool over(__u64 started)
{
	const struct options *options = &shared->options;
	__u64 n = 0, ms = now_ms() - started;
	bool all = true;

	for (unsigned int i = 0; i < OPS; i++) {
		n += atomic_load(&shared->tried[i]);
		all &= op_was_done(i);
	}
	if (options->ops && n >= options->ops * options->workers * options->threads)
		return true;
	if (options->plant && shared->reports[options->sought])
		return true;
	return ms > options->seconds * 1000 &&
	       (all || options->plant || ms > options->seconds * 3000);
}

static __u64 soon(__u64 *rng, __u64 ms)
{
	return now_ms() + ms / 2 + below(rng, ms);
}

static void work(int dev)
{
	const struct options *options = &shared->options;
	__u64 rng = options->seed ^ 0x7375706572, started = now_ms();
	__u64 next_pause = soon(&rng, PAUSE_EVERY_MS / 3), next_kill = soon(&rng, KILL_EVERY_MS);

	while (!over(started)) {
		sleep_ms(TICK_MS);
		reap();
		audit_running(dev);
		if (!options->plant && one_in(&rng, 8))
			admin_step(&rng);
		if (options->kills && now_ms() > next_kill) {
			unsigned int victim = (unsigned int)below(&rng, options->workers);

			worker_kill(victim);
			worker_start(victim);
			next_kill = soon(&rng, KILL_EVERY_MS);
		}
		if (now_ms() > next_pause) {
			pause_and_audit(dev);
			next_pause = soon(&rng, PAUSE_EVERY_MS);
		}
	}
}

/* One run, from the first worker's start to the last one's end. */
void supervise(void)
{
	const struct options *options = &shared->options;
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC);

	if (dev < 0) {
		report(CHECK_PROCESSES, "open " DEVICE ": %s; is the module loaded?",
		       strerror(errno));
		return;
	}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	admin_start();
	for (unsigned int i = 0; i < options->workers; i++)
		worker_start(i);
	if (options->hog)
		hog = start(hog_run);
	work(dev);
	pause_and_audit(dev);
	atomic_store(&shared->stop, true);
	if (!all_workers(gone, "end"))
		for (unsigned int i = 0; i < options->workers; i++)
			worker_kill(i);
	if (hog > 0)
		waitpid(hog, NULL, 0);
	inboxes_drain();
	quarantine_end();
	admin_end();
	close(dev);
	if (!attr_becomes("active_bytes", 0, 5000))
		report(CHECK_RETURN, "%lld bytes stay active", attr_read("active_bytes"));
	if (!attr_becomes("limbo_bytes", 0, 5000))
		report(CHECK_RETURN, "%lld bytes stay in limbo", attr_read("limbo_bytes"));
}
