// SPDX-License-Identifier: GPL-2.0
/*
 * ioctls whose struct another thread writes to all the time: whatever the module
 * reads twice may differ. Only a listed outcome may come, and nothing may leak.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "fuzz.h"

static unsigned char *page; /* with the struct at its start */
static const struct command *_Atomic writing;
static atomic_bool ended;

static void *write_to_it(void *arg)
{
	static union args args;
	__u64 rng = fuzz.seed ^ 0x7261;

	(void)arg;
	while (!atomic_load(&ended)) {
		const struct command *command = atomic_load(&writing);
		const struct field *f;

		if (!command)
			continue;
		args_valid(command, &args);
		args_mutate(command, &args, &rng);
		for (f = command->fields; f->bytes; f++) {
			if (f->kind == KIND_SIZE) {
				const __u32 sizes[] = {command->size,	  command->size + 8,
						       command->size - 8, (__u32)fuzz.page,
						       command->size,	  0};

				args.size = sizes[below(&rng, 6)];
			}
			if (one_in(&rng, 2))
				memcpy(page + f->at, args.bytes + f->at, f->bytes);
		}
		page[below(&rng, fuzz.page)] = 0;
	}
	return NULL;
}

int fuzz_races(void)
{
	const outcomes common = SUCCESS | OUTCOME(EINVAL) | OUTCOME(E2BIG);
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC), block = block_alloc(dev, 1), first;
	__u64 rng = fuzz.seed, n = 0;
	static union args args;
	pthread_t thread;

	page = mmap(NULL, fuzz.page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	first = dup(dev);
	close(first);
	if (block < 0 || page == MAP_FAILED || pthread_create(&thread, NULL, write_to_it, NULL)) {
		wrong("the race can't be prepared: %s", strerror(errno));
		return 1;
	}
	for (; now_ms() < fuzz.end_ms; n++) {
		const struct command *command = &commands[below(&rng, nr_commands)];
		int ret;

		atomic_store(&writing, command);
		args_valid(command, &args);
		memcpy(page, args.bytes, command->size);
		ret = request(command->on_block ? block : dev, command->nr, page);
		if (fuzz.planted && one_in(&rng, 16))
			ret = -EPERM;
		if (!(OUTCOME(-ret) & (common | command->listed)))
			wrong("%s in a race: %s", command->name, strerror(-ret));
		/* Which descriptor it gave may be overwritten already. */
		if (!ret)
			syscall(SYS_close_range, first, ~0U, 0);
	}
	atomic_store(&ended, true);
	pthread_join(thread, NULL);
	if (dup(dev) != first)
		wrong("a descriptor leaked in a race");
	return verdict(n);
}
