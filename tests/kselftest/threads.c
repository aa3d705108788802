// SPDX-License-Identifier: GPL-2.0
/*
 * The module's threads and the machine's CPUs: how many there are and where they may run,
 * and what becomes of a frame in their hands when they may not.
 */
#include <sys/resource.h>

#include "empty.h"

/* Threads: "binpool/N:i", as many as were asked for, of low priority. */

/* A line of /proc/PID/status that begins with @field; "" if there is none. */
static void status_line(const char *pid, const char *field, char *value, size_t len)
{
	char path[288], text[4096], *line;

	value[0] = '\0';
	snprintf(path, sizeof(path), "/proc/%s/status", pid);
	if (text_read(path, text, sizeof(text)) < 0)
		return;
	line = strstr(text, field);
	if (!line)
		return;
	line += strlen(field);
	line += strspn(line, ":\t ");
	snprintf(value, len, "%.*s", (int)strcspn(line, "\n"), line);
}

/* The first thread of a node; 0 if there is none. */
static pid_t thread_of(unsigned int nid)
{
	DIR *proc = opendir("/proc");
	pid_t found = 0;

	if (!proc)
		return 0;
	for (struct dirent *e = readdir(proc); e && !found; e = readdir(proc)) {
		unsigned int node, number;
		char name[64];

		if (e->d_name[0] < '1' || e->d_name[0] > '9')
			continue;
		status_line(e->d_name, "Name", name, sizeof(name));
		if (sscanf(name, "binpool/%u:%u", &node, &number) == 2 && node == nid)
			found = atoi(e->d_name);
	}
	closedir(proc);
	return found;
}

/* The CPUs of a list in a file, "0-2,5"; none if it is empty, or not there. */
static cpu_set_t cpus_read(const char *path)
{
	char text[256], *at = text;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	if (text_read(path, text, sizeof(text)) < 0)
		return cpus;
	while (*at >= '0' && *at <= '9') {
		size_t from = strtoul(at, &at, 10), to = from;

		if (*at == '-')
			to = strtoul(at + 1, &at, 10);
		for (size_t i = from; i <= to; i++)
			CPU_SET(i, &cpus);
		at += *at == ',';
	}
	return cpus;
}

/* Where the threads of a node shall run: its CPUs, without those set apart. */
static cpu_set_t cpus_of(unsigned int node)
{
	static const char *const apart[] = {
		"/sys/devices/system/cpu/isolated",
		"/sys/devices/system/cpu/nohz_full",
	};
	cpu_set_t house = cpus_read("/sys/devices/system/cpu/possible"), own;
	char path[128];

	for (size_t i = 0; i < ARRAY_SIZE(apart); i++) {
		cpu_set_t those = cpus_read(apart[i]);

		CPU_AND(&those, &those, &house);
		CPU_XOR(&house, &house, &those);
	}
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/cpulist", node);
	own = cpus_read(path);
	CPU_AND(&own, &own, &house);
	return CPU_COUNT(&own) ? own : house;
}

/* How many there are; -1 if one is not as it should be. */
static int threads_count(void)
{
	DIR *proc = opendir("/proc");
	int count = 0;

	if (!proc)
		return -1;
	for (struct dirent *e = readdir(proc); e; e = readdir(proc)) {
		unsigned int node, number;
		cpu_set_t cpus, want;
		char name[64];
		int nice;

		if (e->d_name[0] < '1' || e->d_name[0] > '9')
			continue;
		status_line(e->d_name, "Name", name, sizeof(name));
		if (sscanf(name, "binpool/%u:%u", &node, &number) != 2)
			continue;
		count++;
		want = cpus_of(node);
		nice = getpriority(PRIO_PROCESS, (id_t)atoi(e->d_name));
		if (sched_getaffinity(atoi(e->d_name), sizeof(cpus), &cpus) ||
		    !CPU_EQUAL(&cpus, &want) || nice != 19) {
			fprintf(stderr, "# %s: %d CPUs, %d wanted; nice %d\n", name,
				CPU_COUNT(&cpus), CPU_COUNT(&want), nice);
			count = -1;
			break;
		}
	}
	closedir(proc);
	return count;
}

TEST_F_TIMEOUT(empty, threads, 60)
{
	static const int numbers[] = {0, 1, 4, 16};

	ASSERT_EQ(nodes_with_memory() * number_read(PARAM("clean_threads")), threads_count());
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
		char text[32];

		snprintf(text, sizeof(text), "clean_threads=%d", numbers[i]);
		RELOAD(text);
		ASSERT_EQ(nodes_with_memory() * numbers[i], threads_count());
	}
	close(self->dev);
	ASSERT_EQ(0, module_unload());
	ASSERT_EQ(0, threads_count());
	ASSERT_EQ(0, module_load(""));
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
}

/*
 * Whoever wants no frame taken waits for the one in work, and not for long; then the
 * thread goes on, and is of low priority again though it was hurried.
 */
TEST_F_TIMEOUT(empty, goes_on_after_a_pause, 120)
{
	const __u64 len = 256 * self->frame;
	__u64 start, paused = 0;

	ASSERT_EQ(0, hold_dirty(self->dev, len));
	for (int i = 0; i < 20; i++) {
		start = now_ms();
		/* All of it may stay. */
		ASSERT_EQ(0, device_trim(self->dev, len, NULL));
		paused += now_ms() - start;
		sleep_ms(1);
	}
	ASSERT_GE(20000 * slowness(), paused);
	ASSERT_TRUE(attr_becomes("held_clean_bytes", len, SOON_MS));
	ASSERT_EQ(0, hold_dirty(self->dev, self->frame));
	ASSERT_TRUE(attr_becomes("held_clean_bytes", len, SOON_MS));
	/* As soon as it looks again. */
	for (start = now_ms(); threads_count() < 0 && now_ms() - start < SOON_MS;)
		sleep_ms(10);
	ASSERT_LT(0, threads_count());
}

#define PREEMPT "/sys/kernel/debug/sched/preempt"

/* How the kernel's own work may be interrupted; the word in parentheses is in force. */
static char preempt_was[128];

/* A thread may be stopped in the middle of a frame. */
static void preempt_fully(void)
{
	if (text_read(PREEMPT, preempt_was, sizeof(preempt_was)) < 0)
		preempt_was[0] = '\0';
	else
		text_write(PREEMPT, "full");
}

static void preempt_restore(void)
{
	char *word = strchr(preempt_was, '(');

	if (!word)
		return;
	word++;
	word[strcspn(word, ")")] = '\0';
	text_write(PREEMPT, word);
}

static int run_on(pid_t pid, size_t cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	return sched_setaffinity(pid, sizeof(cpus), &cpus);
}

/* A process that ends well as soon as @thread has the nice value @nice, and badly after @ms. */
static pid_t watch_nice(pid_t thread, int nice, unsigned int ms)
{
	__u64 end = now_ms() + (__u64)ms * slowness();
	pid_t pid = fork();

	if (pid)
		return pid;
	while (now_ms() < end) {
		if (getpriority(PRIO_PROCESS, (id_t)thread) == nice)
			_exit(0);
		sleep_ms(2);
	}
	_exit(1);
}

/* For so long from when *@go is closed, CPU 1 has no time for an idle thread. */
static pid_t starve(int *go, unsigned int ms)
{
	int pipes[2];
	pid_t pid;
	__u64 end;
	char c;

	if (pipe(pipes))
		return -1;
	pid = fork();
	if (pid) {
		close(pipes[0]);
		*go = pipes[1];
		return pid;
	}
	close(pipes[1]);
	if (run_on(0, 1) || setpriority(PRIO_PROCESS, 0, -20) || read(pipes[0], &c, 1))
		_exit(1);
	end = now_ms() + ms;
	while (now_ms() < end)
		;
	_exit(0);
}

/* However long a thread with a frame stands still: none comes back behind free_held. */
TEST_F_TIMEOUT(empty, thread_that_stands_still, 120)
{
	const __u64 len = 128 * self->frame, end = now_ms() + 90000;
	const struct sched_param none = {0};
	int waited = 0, hurried = 0;
	long long left = 0;
	pid_t thread;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP(return, "one CPU only");
	RELOAD("clean_threads=1");
	thread = thread_of(0);
	ASSERT_LT(0, thread);
	if (run_on(thread, 1))
		SKIP(return, "CPU 1 is not the thread's");
	ASSERT_EQ(0, sched_setscheduler(thread, SCHED_IDLE, &none));
	preempt_fully();
	while (waited < 2 && !left && now_ms() < end) {
		pid_t pid, watcher;
		__u64 start;
		int go = -1;

		pid = starve(&go, 2000);
		sleep_ms(20);
		if (hold_dirty(self->dev, len))
			break;
		/* The thread has just begun with it. */
		sleep_ms(2);
		close(go);
		watcher = watch_nice(thread, 0, 1000);
		start = now_ms();
		attr_write("free_held", 1);
		left = attr_read("managed_bytes");
		if (now_ms() - start > 1000) {
			waited++;
			child_status(pid);
			/* It is of no low priority while somebody waits. */
			hurried += !child_status(watcher);
			continue;
		}
		/* It had no frame when it was stopped: not yet, or no longer. */
		kill(pid, SIGKILL);
		kill(watcher, SIGKILL);
		child_status(pid);
		child_status(watcher);
	}
	preempt_restore();
	EXPECT_EQ(0, left);
	EXPECT_EQ(2, waited);
	EXPECT_LE(2, hurried);
	EXPECT_EQ(0, hold_dirty(self->dev, len));
	/* Also those of a node that has nothing to do. */
	for (int nid = 0, nodes = nodes_with_memory(); nodes && nid < 1024; nid++) {
		thread = thread_of((unsigned int)nid);
		nodes -= !!thread;
		EXPECT_EQ(0, thread ? child_status(watch_nice(thread, 19, 10000)) : 0);
	}
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
