// SPDX-License-Identifier: GPL-2.0
/*
 * Memory pressure: a process that fills memory nearly up, its own or the page
 * cache, lets go of it, and has the kernel drop caches and compact. Its memory has
 * canaries, too: a frame that the module gave away too early would spoil them.
 */
#include "stress.h"

#define CHUNK_BYTES (8 * MIB)
#define CHUNKS_MAX  1024
#define FILE_BYTES  (96 * MIB)

/* What the hog leaves available; less, and the kernel looks for somebody to kill. */
#define LEAVE_BYTES (160 * MIB)

static __u64 rng;

static void hold(unsigned int ms)
{
	for (__u64 end = now_ms() + ms; now_ms() < end && !stopping();)
		sleep_ms(10);
}

static void verify_chunk(const char *chunk, __u64 number)
{
	for (__u64 at = 0; at < CHUNK_BYTES; at += shared->page) {
		__u64 first = canary(WRITER_HOG, number, 0, at / 8);
		size_t wrong = page_wrong_at(chunk + at, shared->page, first);
		char found[80];

		if (wrong == shared->page)
			continue;
		report(CHECK_DATA, "the hog's memory has %s",
		       canary_text(found, sizeof(found), *(const __u64 *)(chunk + at + wrong)));
		return;
	}
}

static void fill_memory(void)
{
	const __u64 leave = LEAVE_BYTES + below(&rng, 512 * MIB);
	static char *chunks[CHUNKS_MAX];
	unsigned int n = 0;

	while (n < CHUNKS_MAX && !stopping() && meminfo_bytes("MemAvailable") > leave) {
		char *chunk = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (chunk == MAP_FAILED)
			break;
		if (one_in(&rng, 2))
			madvise(chunk, CHUNK_BYTES, MADV_NOHUGEPAGE);
		for (__u64 at = 0; at < CHUNK_BYTES; at += shared->page)
			page_fill(chunk + at, shared->page, canary(WRITER_HOG, n, 0, at / 8));
		chunks[n++] = chunk;
	}
	hold((unsigned int)below(&rng, 1000));
	for (unsigned int i = 0; i < n; i++) {
		verify_chunk(chunks[i], i);
		munmap(chunks[i], CHUNK_BYTES);
	}
}

static void fill_cache(void)
{
	const char *dir = getenv("BINPOOL_TEST_DIR");
	static char data[MIB];
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/stress.hog", dir ? dir : ".");
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	unlink(path);
	for (__u64 at = 0; fd >= 0 && at < FILE_BYTES && !stopping(); at += MIB) {
		if (write(fd, data, MIB) != (ssize_t)MIB)
			break;
	}
	hold((unsigned int)below(&rng, 300));
	close(fd);
}

void hog_run(void)
{
	rng = shared->options.seed ^ 0x686f67;
	text_write("/proc/self/oom_score_adj", "1000");
	while (!stopping()) {
		switch (below(&rng, 6)) {
		case 0:
		case 1:
		case 2:
			fill_memory();
			break;
		case 3:
			fill_cache();
			break;
		case 4:
			text_write("/proc/sys/vm/drop_caches", one_in(&rng, 2) ? "1" : "3");
			break;
		case 5:
			text_write("/proc/sys/vm/compact_memory", "1");
			break;
		}
		hold((unsigned int)below(&rng, 200));
	}
	_exit(0);
}
