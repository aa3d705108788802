/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Lets all that a call asks for fail, one after the other, and looks what became of
 * the module. See faults.h. No state.
 */
#ifndef BINPOOL_TEST_SWEEP_H
#define BINPOOL_TEST_SWEEP_H

#include "faults.h"

struct probe {
	const char *name;
	void (*before)(struct subject *s); /* each time, without faults */
	int (*call)(struct subject *s);	   /* 0 or -errno */
	void (*after)(struct subject *s);  /* each time, without faults */
	int errnos[4];
	bool harmless; /* reads only: that the module works is seen at the end */
};

static inline bool documented(const struct probe *probe, int err)
{
	for (size_t i = 0; i < ARRAY_SIZE(probe->errnos); i++) {
		if (err && err == probe->errnos[i])
			return true;
	}
	return false;
}

/* What no failure may change, and what must fit together. */
static const char *const steady[] = {"max_bytes",	"active_bytes",		"limbo_bytes",
				     "retired_bytes",	"pinned_dropped_bytes", "holding",
				     "quarantine_bytes"};

struct amounts {
	long long v[ARRAY_SIZE(steady)];
	long long returns;
	int fds;
};

static inline struct amounts amounts_read(void)
{
	struct amounts a = {.returns = attr_read("returns"), .fds = count_fds()};

	for (size_t i = 0; i < ARRAY_SIZE(steady); i++)
		a.v[i] = attr_read(steady[i]);
	return a;
}

/* NULL, or the name of what is not as it was. */
static inline const char *moved(const struct amounts *was)
{
	struct amounts is;

	/* A descriptor that could not be given out goes on the way back to the program. */
	if (!attr_becomes("active_bytes", (__u64)was->v[1], SOON_MS))
		return "active_bytes";
	if (!attr_becomes("limbo_bytes", (__u64)was->v[2], SOON_MS))
		return "limbo_bytes";
	is = amounts_read();
	for (size_t i = 0; i < ARRAY_SIZE(steady); i++) {
		if (was->v[i] != is.v[i])
			return steady[i];
	}
	if (was->fds != is.fds)
		return "descriptors";
	return NULL;
}

static inline bool adds_up(void)
{
	/* Held memory may go meanwhile, and be counted twice or not at all. */
	for (int i = 0; i < 50; i++) {
		long long managed = attr_read("managed_bytes");

		if (managed == attr_read("active_bytes") + attr_read("held_bytes") +
				       attr_read("limbo_bytes") + attr_read("quarantine_bytes"))
			return true;
		sleep_ms(10);
	}
	return false;
}

/* Fails all that @probe's call asks for, one after the other. How many there were. */
static inline unsigned int sweep(struct __test_metadata *_metadata, struct subject *s,
				 const struct probe *probe)
{
	unsigned int n, failed = 0;

	/* What is set up once, by the kernel or libc, is no longer missing then. */
	probe->before(s);
	ASSERT_EQ(0, probe->call(s))
	{
		TH_LOG("%s, without a fault", probe->name);
	}
	probe->after(s);
	for (n = 1; n < MOST; n++) {
		struct amounts was = amounts_read();
		const char *what;
		bool none;
		int ret;

		probe->before(s);
		arm(s, n);
		ret = probe->call(s);
		none = disarm(s);
		s->ret = ret;
		s->wrong = NULL;
		probe->after(s);
		ASSERT_EQ(NULL, s->wrong)
		{
			TH_LOG("%s, fault %u, %s: %s", probe->name, n, strerror(-ret), s->wrong);
		}
		what = moved(&was);
		ASSERT_EQ(NULL, what)
		{
			TH_LOG("%s, fault %u, %s: moved %s", probe->name, n, strerror(-ret), what);
		}
		ASSERT_TRUE(adds_up());
		if (none) {
			ASSERT_EQ(0, ret)
			{
				TH_LOG("%s, no fault: %s", probe->name, strerror(-ret));
			}
			break;
		}
		ASSERT_TRUE(!ret || documented(probe, -ret))
		{
			TH_LOG("%s, fault %u: %s", probe->name, n, strerror(-ret));
		}
		failed += ret != 0;
		ASSERT_TRUE(probe->harmless || works(s))
		{
			TH_LOG("after %s, fault %u", probe->name, n);
		}
	}
	ASSERT_GT(MOST, n);
	ASSERT_TRUE(works(s));
	TH_LOG("%s: %u faults, %u of them told", probe->name, n - 1, failed);
	return n - 1;
}

#endif /* BINPOOL_TEST_SWEEP_H */
