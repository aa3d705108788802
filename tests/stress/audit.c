// SPDX-License-Identifier: GPL-2.0
/*
 * Whether the module's counters add up: what can be said while all work, and, while
 * all pause, that they are exactly what workers have. Owns the bound on what is
 * managed, which follows max_bytes.
 */
#include "stress.h"

/* How long something on its way may take to arrive; what was planted never does. */
#define SETTLE_MS	  10000
#define SETTLE_PLANTED_MS 2000

/* A limit that was lowered binds whoever comes then, not who is in the middle. */
#define GRACE_MS 2000

static unsigned int settle_ms(void)
{
	return shared->options.plant ? SETTLE_PLANTED_MS : SETTLE_MS;
}

static __u64 bound;
static __u64 lowered_to, lowered_at;

/* Before max_bytes is raised. */
void audit_bound_raise(__u64 max_bytes)
{
	lowered_to = 0;
	if (max_bytes > bound)
		bound = max_bytes;
}

/* After it was lowered: it holds as soon as it was once reached. */
void audit_bound_lower(__u64 max_bytes)
{
	lowered_to = max_bytes;
	lowered_at = now_ms();
}

void audit_running(int dev)
{
	struct binpool_info info;
	long long managed;
	__u64 sum;

	if (!SUCCEEDED(OP_INFO, device_info(dev, &info), 0))
		return;
	sum = info.active_bytes + info.held_bytes + info.limbo_bytes;
	managed = attr_read("managed_bytes");
	if (sum > bound || managed < 0 || (__u64)managed > bound)
		report(CHECK_COUNTERS,
		       "%llu active + %llu held + %llu limbo, %lld managed, limit %llu",
		       (unsigned long long)info.active_bytes, (unsigned long long)info.held_bytes,
		       (unsigned long long)info.limbo_bytes, managed, (unsigned long long)bound);
	if (lowered_to && now_ms() - lowered_at > GRACE_MS * slowness() &&
	    (__u64)managed <= lowered_to) {
		bound = lowered_to;
		lowered_to = 0;
	}
}

/* Of the blocks that workers have and whose opener's key is @opener where @mask is set. */
__u64 live_bytes(__u64 mask, __u64 opener)
{
	const unsigned int n = shared->options.workers * SLOTS;
	__u64 sum = 0;

	for (unsigned int i = 0; i < n; i++) {
		const struct live *live = &shared->workers[i / SLOTS].live[i % SLOTS];
		bool seen = !live->id || (live->opener & mask) != (opener & mask);

		for (unsigned int j = 0; !seen && j < i; j++)
			seen = shared->workers[j / SLOTS].live[j % SLOTS].id == live->id;
		if (!seen)
			sum += live->capacity;
	}
	return sum;
}

/* The sum over all nodes of an attribute. */
static long long nodes_sum(const char *attr)
{
	long long sum = 0;
	char name[64];

	for (unsigned int i = 0; i < shared->nr_nodes; i++) {
		snprintf(name, sizeof(name), "node%d/%s", shared->nodes[i], attr);
		sum += attr_read(name);
	}
	return sum;
}

/* An attribute of later versions counts as 0 where it is missing. */
static long long attr_or_0(const char *name)
{
	long long value = attr_read(name);

	return value < 0 ? 0 : value;
}

static bool adds_up(long long *managed, long long *parts)
{
	*managed = attr_read("managed_bytes");
	*parts = attr_read("active_bytes") + attr_read("held_bytes") + attr_read("limbo_bytes") +
		 attr_or_0("quarantine_bytes");
	return *managed == *parts;
}

/* The sum over all bins of a node. */
static long long bins_sum(int nid, const char *attr)
{
	char folder[96], name[96];
	long long sum = 0;
	struct dirent *e;
	DIR *dir;

	snprintf(folder, sizeof(folder), SYSFS "node%d/bins", nid);
	dir = opendir(folder);
	while (dir && (e = readdir(dir))) {
		unsigned long long bin = strtoull(e->d_name, NULL, 10);

		snprintf(name, sizeof(name), "node%d/bins/%llu/%s", nid, bin, attr);
		if (bin)
			sum += attr_read(name);
	}
	if (dir)
		closedir(dir);
	return sum;
}

static void audit_bins(void)
{
	static const char *const of_bins[] = {"active_bytes", "held_bytes", "held_clean_bytes"};
	__u64 end = now_ms() + settle_ms() * slowness();

	for (unsigned int i = 0; i < shared->nr_nodes * 3; i++) {
		int nid = shared->nodes[i / 3];
		const char *attr = of_bins[i % 3];
		long long sum, total;
		char name[64];

		snprintf(name, sizeof(name), "node%d/%s", nid, attr);
		do {
			sum = bins_sum(nid, attr);
			total = attr_read(name);
		} while (sum != total && now_ms() < end);
		if (sum != total)
			report(CHECK_COUNTERS, "%s: %lld, of all bins %lld", name, total, sum);
	}
}

static void audit_sums(void)
{
	static const char *const of_nodes[] = {
		"active_bytes", "held_bytes",	 "held_clean_bytes",
		"limbo_bytes",	"retired_bytes", "quarantine_bytes",
	};
	__u64 end = now_ms() + settle_ms() * slowness();
	long long managed, parts;

	while (!adds_up(&managed, &parts) && now_ms() < end)
		sleep_ms(5);
	if (managed != parts)
		report(CHECK_COUNTERS, "managed %lld, the sum of its parts %lld", managed, parts);
	for (size_t i = 0; i < sizeof(of_nodes) / sizeof(of_nodes[0]); i++) {
		long long sum, total;

		do {
			sum = nodes_sum(of_nodes[i]);
			total = attr_read(of_nodes[i]);
		} while (sum != total && now_ms() < end);
		if (sum != total)
			report(CHECK_COUNTERS, "%s: %lld, of all nodes %lld", of_nodes[i], total,
			       sum);
	}
}

/* What closed blocks left of whose memory the addresses were told, and nothing else. */
static void audit_quarantine(void)
{
	__u64 end = now_ms() + settle_ms() * slowness(), most, least;
	long long now;

	do {
		least = quarantine_of(0, 0, &most);
		now = attr_read("quarantine_bytes");
	} while ((now < (long long)least || now > (long long)most) && now_ms() < end);
	if (now < (long long)least || now > (long long)most)
		report(CHECK_QUARANTINE, "%lld bytes in quarantine, %llu to %llu were told", now,
		       (unsigned long long)least, (unsigned long long)most);
}

/* All workers are parked, and without pins. */
void audit_paused(int dev)
{
	__u64 end = now_ms() + settle_ms() * slowness(), live = live_bytes(0, 0);
	long long active;

	inboxes_drain();
	if (!attr_becomes("limbo_bytes", 0, settle_ms()))
		report(CHECK_RETURN, "%lld bytes stay in limbo without pins",
		       attr_read("limbo_bytes"));
	do {
		active = attr_read("active_bytes");
	} while (active != (long long)live && now_ms() < end);
	if (active != (long long)live)
		report(CHECK_COUNTERS, "%lld bytes active, blocks have %llu", active,
		       (unsigned long long)live);
	audit_quarantine();
	audit_sums();
	audit_bins();
	audit_running(dev);
}
