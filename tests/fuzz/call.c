// SPDX-License-Identifier: GPL-2.0
/*
 * One ioctl after the other with random arguments. Before each it is worked out,
 * from the header's rules, what may come of it; afterwards the outcome, the answer,
 * each byte around it, descriptors and counters are compared with that.
 */
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "fuzz.h"

#ifndef MAP_32BIT
#define MAP_32BIT 0
#endif

/* Two pages, and nothing behind them; below 4 GiB, for the 32-bit entry. */
static unsigned char *area;

static unsigned char image[2 * PAGE_MAX]; /* of the area, before the call */

enum target {
	TARGET_RIGHT,
	TARGET_OTHER_KIND,
	TARGET_FOREIGN,
	TARGET_CLOSED,
};

#define FOREIGN 7

static int dev, block, foreign[FOREIGN];

struct call {
	const struct command *command; /* NULL: no such number */
	unsigned long nr;
	enum target target;
	bool on_block;
	bool compat;
	int fd;
	union args args;
	__u32 len;     /* bytes of args that are placed, as far as there is room */
	void *pointer; /* what the kernel gets */
	size_t readable;
	size_t writable;
};

__u64 random_value(__u64 *rng)
{
	const __u64 around[] = {
		0,
		fuzz.page,
		fuzz.frame,
		2 * fuzz.frame,
		3 * fuzz.frame,
		fuzz.max_bytes,
		fuzz.machine_bytes,
		(__u64)1 << 31,
		(__u64)1 << 32,
		(__u64)1 << 47,
		(__u64)1 << 63,
	};
	__u64 value = around[below(rng, sizeof(around) / sizeof(around[0]))];

	switch (below(rng, 6)) {
	case 0:
		return random_next(rng) >> below(rng, 64);
	case 1:
		return (__u64)1 << below(rng, 64);
	default:
		return value + below(rng, 3) - 1;
	}
}

void args_valid(const struct command *command, union args *args)
{
	memset(args, 0, fuzz.page);
	args->size = command->size;
	if (command->nr == BINPOOL_IOC_ALLOC) {
		args->alloc.bytes = 1;
		args->alloc.node = BINPOOL_NODE_ANY;
	} else if (command->nr == BINPOOL_IOC_TRIM) {
		args->trim.held_bytes = ~0ULL;
		args->trim.node = BINPOOL_NODE_ANY;
	}
}

static __u64 field_value(const struct field *field, __u64 *rng)
{
	switch (field->kind) {
	case KIND_FLAGS:
		return below(rng, 4) ? random_next(rng) & field->known : random_value(rng);
	case KIND_NODE:
		return below(rng, 3) ? below(rng, 3) - 1 : random_value(rng);
	case KIND_RESERVED:
		return one_in(rng, 8) ? random_value(rng) : 0;
	case KIND_OUT:
		return random_next(rng);
	default:
		return random_value(rng);
	}
}

/* Puts random values into some members; what is only written gets one in any case. */
void args_mutate(const struct command *command, union args *args, __u64 *rng)
{
	for (const struct field *f = command->fields; f->bytes; f++) {
		__u64 value;

		if (f->kind == KIND_SIZE || (f->kind != KIND_OUT && below(rng, 3)))
			continue;
		value = field_value(f, rng);
		memcpy(args->bytes + f->at, &value, f->bytes);
	}
}

static __u32 random_size_of_struct(const struct command *command, __u64 *rng)
{
	switch (below(rng, 8)) {
	case 0:
		return (__u32)below(rng, command->size + 1);
	case 1:
		return command->size + (__u32)below(rng, 64);
	case 2:
		return (__u32)(fuzz.page - 1 + below(rng, 3));
	case 3:
		return (__u32)random_value(rng);
	default:
		return command->size;
	}
}

/* Through the entry of 32-bit programs, which a 64-bit one may use, too. */
int enter(bool compat, int fd, unsigned long nr, void *arg)
{
#ifdef __x86_64__
	if (compat) {
		const long ioctl_32 = 54;
		long ret;

		__asm__ volatile("int $0x80"
				 : "=a"(ret)
				 : "0"(ioctl_32), "b"((long)fd), "c"(nr), "d"(arg)
				 : "memory", "r8", "r9", "r10", "r11");
		return (int)ret;
	}
#endif
	return request(fd, nr, arg);
}

static void place(struct call *call, __u64 *rng)
{
	unsigned char *end = area + 2 * fuzz.page, *p;
	size_t len = call->len;
	int prot_b = PROT_READ | PROT_WRITE, prot_a = prot_b;

	switch (below(rng, 12)) {
	case 0: /* ends where memory ends */
		p = end - len;
		break;
	case 1: /* goes on behind it */
		p = end - below(rng, len + 1);
		break;
	case 2: /* any alignment */
		p = area + below(rng, 2 * fuzz.page - len + 1);
		break;
	case 3: /* can't be answered */
		p = area + below(rng, fuzz.page - 8);
		prot_a = prot_b = PROT_READ;
		break;
	case 4: /* can't be answered completely */
		p = area + fuzz.page - below(rng, len);
		prot_b = PROT_READ;
		break;
	case 5: {
		unsigned char *const bad[] = {NULL,
					      (unsigned char *)8,
					      end,
					      end + 100,
					      (unsigned char *)(uintptr_t)0xffffffff81000000,
					      (unsigned char *)~(uintptr_t)0};

		p = bad[below(rng, call->compat ? 4 : 6)];
		break;
	}
	default:
		p = area + below(rng, fuzz.page / 8) * 8;
	}

	call->pointer = p;
	call->readable = call->writable = 0;
	memset(area, (int)random_next(rng), 2 * fuzz.page);
	if (p >= area && p < end) {
		call->readable = call->writable = (size_t)(end - p);
		memcpy(p, call->args.bytes, len < call->readable ? len : call->readable);
		if (prot_a == PROT_READ)
			call->writable = 0;
		else if (prot_b == PROT_READ)
			call->writable = p < area + fuzz.page ? (size_t)(area + fuzz.page - p) : 0;
	}
	memcpy(image, area, 2 * fuzz.page);
	mprotect(area, fuzz.page, prot_a);
	mprotect(area + fuzz.page, fuzz.page, prot_b);
}

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* What may come of the call. */
static outcomes judge(const struct call *call)
{
	const struct command *command = call->command;
	static union args args;
	__u32 size;
	bool tail;
	outcomes may;

	if (call->target == TARGET_CLOSED)
		return OUTCOME(EBADF);
	if (call->target == TARGET_FOREIGN)
		return ANY_ERROR;
	if (!command || call->target == TARGET_OTHER_KIND)
		return OUTCOME(ENOTTY);
	if ((command->feature & fuzz.features) != command->feature)
		return OUTCOME(EOPNOTSUPP);
	if (command->refused)
		return command->refused;
	if (call->readable < sizeof(size))
		return OUTCOME(EFAULT);
	size = call->args.size;
	if (size < command->first_size)
		return OUTCOME(EINVAL);
	if (size > fuzz.page)
		return OUTCOME(E2BIG);
	tail = false;
	for (size_t i = command->size; i < least(size, call->readable); i++)
		tail |= call->args.bytes[i];
	if (call->readable < size)
		return OUTCOME(EFAULT) | (tail ? OUTCOME(E2BIG) : 0);
	if (tail)
		return OUTCOME(E2BIG);
	/* Of a short struct the rest counts as zero. */
	memset(&args, 0, command->size);
	memcpy(args.bytes, call->args.bytes, least(size, command->size));
	may = command->judge(&args);
	if (may & (SUCCESS | command->written) && call->writable < least(size, command->size)) {
		may &= ~(SUCCESS | command->written);
		may |= OUTCOME(EFAULT);
	}
	return may;
}

/* The bytes around the answer, and those that are only read, are as they were. */
static const char *untouched(const struct call *call, bool answered)
{
	size_t at = (size_t)((unsigned char *)call->pointer - area);
	size_t len = 0;

	if (answered)
		len = least(call->args.size, call->command->size);
	if (!call->readable)
		return memcmp(image, area, 2 * fuzz.page) ? "memory elsewhere" : NULL;
	if (memcmp(image, area, at) ||
	    memcmp(image + at + len, area + at + len, 2 * fuzz.page - at - len))
		return answered ? "bytes around the answer" : "the struct of a refused call";
	if (!answered)
		return NULL;
	for (const struct field *f = call->command->fields; f->bytes; f++) {
		if (f->kind != KIND_OUT && f->at + f->bytes <= len &&
		    memcmp(image + at + f->at, area + at + f->at, f->bytes))
			return f->name;
	}
	return NULL;
}

static void complain(const struct call *call, int ret, const char *what)
{
	char text[600];
	int n = 0;

	for (__u32 i = 0; i < least(call->len, 96); i += 8)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %llx",
			      (unsigned long long)*(__u64 *)(call->args.bytes + i));
	wrong("%s%s (%#lx) on %s, size %u, at +%ld, readable %zu, writable %zu: %d: %s;%s",
	      call->command ? call->command->name : "unknown", call->compat ? " (32 bit)" : "",
	      call->nr, call->on_block ? "block" : "device", call->args.size,
	      (long)((unsigned char *)call->pointer - area), call->readable, call->writable, ret,
	      what, text);
}

static void check(const struct call *call, int ret, const struct counters *before, int next_fd)
{
	bool known = ret == -EDQUOT || ret == -EOPNOTSUPP || (ret > -62 && ret <= 0);
	outcomes may = judge(call), got = known ? OUTCOME(-ret) : 0;
	bool answered = call->command && got & (SUCCESS | call->command->written) && got & may;
	const char *problem = NULL;
	int probe;

	/* How far an answer came that could not be written is not defined. */
	if (ret != -EFAULT || !call->writable)
		problem = untouched(call, answered);
	if (!(got & may))
		complain(call, ret, "the outcome");
	else if (problem)
		complain(call, ret, problem);
	if (answered && !(got & ~may)) {
		union args out;

		memset(&out, 0, fuzz.page);
		memcpy(out.bytes, call->pointer, least(call->args.size, call->command->size));
		problem = call->command->answer(&call->args, &out, -ret);
		if (problem)
			complain(call, ret, problem);
	}
	probe = fcntl(dev, F_DUPFD_CLOEXEC, 0);
	if (probe != next_fd)
		complain(call, ret, "a descriptor leaked");
	close(probe);
	/* What is in limbo comes back by itself, at any time. */
	if (before && !before->v[LIMBO_BYTES] && ret < 0 && !answered &&
	    strcmp(counters_moved(before), "nothing") && !(ret == -EFAULT && call->readable))
		complain(call, ret, counters_moved(before));
}

static int random_fd(struct call *call, __u64 *rng)
{
	int right = call->on_block ? block : dev, closed;

	call->target = TARGET_RIGHT;
	switch (below(rng, 24)) {
	case 0:
		call->target = TARGET_OTHER_KIND;
		return call->on_block ? dev : block;
	case 1:
		call->target = TARGET_FOREIGN;
		return foreign[below(rng, FOREIGN)];
	case 2:
		call->target = TARGET_CLOSED;
		closed = dup(right);
		close(closed);
		return one_in(rng, 2) ? closed : -1 - (int)below(rng, 1000);
	default:
		return right;
	}
}

static void random_call(struct call *call, __u64 *rng)
{
	const struct command *command = &commands[below(rng, nr_commands)];

	call->command = command;
	call->nr = command->nr;
	call->on_block = command->on_block;
	call->compat = fuzz.compat && one_in(rng, 4);
	args_valid(command, &call->args);
	args_mutate(command, &call->args, rng);
	call->args.size = random_size_of_struct(command, rng);
	call->len = command->size;
	if (call->args.size > command->size && call->args.size <= fuzz.page) {
		call->len = call->args.size;
		if (one_in(rng, 2))
			call->args.bytes[command->size + below(rng, call->len - command->size)] =
				(unsigned char)random_next(rng);
	}
	call->fd = random_fd(call, rng);
	if (one_in(rng, 16)) {
		/* Only our magic: the others are somebody's, and may do what they say. */
		call->nr = (random_next(rng) & 0x3fff00ff) | BINPOOL_IOC_MAGIC << 8;
		if (one_in(rng, 2))
			call->nr &= 0xffff;
		call->command = command_of(call->nr, call->on_block);
		if (call->target == TARGET_OTHER_KIND ||
		    (call->command && call->command != command))
			call->nr = _IO(BINPOOL_IOC_MAGIC, 0xff);
		if (call->nr == _IO(BINPOOL_IOC_MAGIC, 0xff))
			call->command = NULL;
	}
	place(call, rng);
}

static int prepare(void)
{
	int ends[2];

	area = mmap(NULL, 3 * fuzz.page, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	if (area == MAP_FAILED || munmap(area + 2 * fuzz.page, fuzz.page))
		return -1;
	dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	block = block_alloc(dev, 3 * fuzz.frame);
	foreign[0] = open("/dev/null", O_RDWR | O_CLOEXEC);
	foreign[1] = memfd_create("fuzz", MFD_CLOEXEC);
	foreign[2] = eventfd(0, EFD_CLOEXEC);
	foreign[3] = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	foreign[4] = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	foreign[5] = pipe2(ends, O_CLOEXEC) ? -1 : ends[0];
	foreign[6] = open("/", O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < FOREIGN; i++) {
		if (foreign[i] < 0)
			return -1;
	}
	return block;
}

/* Something that must be seen. */
static void plant(int *ret)
{
	if (*ret)
		*ret = -EPERM;
	else
		area[2 * fuzz.page - 1] ^= 1;
}

int fuzz_calls(void)
{
	__u64 rng = fuzz.seed, n = 0;
	int next_fd;

	if (prepare() < 0) {
		wrong("the calls can't be prepared: %s", strerror(errno));
		return 1;
	}
	next_fd = dup(dev);
	close(next_fd);
	for (; now_ms() < fuzz.end_ms; n++) {
		static struct call call;
		struct counters before;
		bool counted = one_in(&rng, 16);
		int ret;

		random_call(&call, &rng);
		if (counted)
			before = counters_read();
		ret = enter(call.compat, call.fd, call.nr, call.pointer);
		mprotect(area, 2 * fuzz.page, PROT_READ | PROT_WRITE);
		if (fuzz.planted && one_in(&rng, 16))
			plant(&ret);
		check(&call, ret, counted ? &before : NULL, next_fd);
	}
	return verdict(n);
}
