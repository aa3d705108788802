// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A stand-in for the module's warm memory where no module can be loaded: LD_PRELOAD it beside
 * libbinpool-preload, and the files of the provider hugetlb get the pages of those that the
 * parent keeps, clean and ready. Owns the descriptors named by BINPOOL_TEST_WARM,
 * "FD:BYTES,FD:BYTES...", each until it is used; one lock.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define FILES_MAX 64

static struct file {
	int fd;
	long long bytes; /* 0: used */
} files[FILES_MAX];
static int count = -1; /* nobody has looked yet */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* lock. */
static void read_names(void)
{
	const char *names = getenv("BINPOOL_TEST_WARM");
	int used;

	count = 0;
	while (names && count < FILES_MAX &&
	       sscanf(names, "%d:%lld%n", &files[count].fd, &files[count].bytes, &used) == 2) {
		count++;
		names += used;
		names += *names == ',';
	}
}

/* The smallest that is large enough; NULL: none is. lock. */
static struct file *best(long long bytes)
{
	struct file *found = NULL;

	if (count < 0)
		read_names();
	for (struct file *f = files; f < files + count; f++)
		if (f->bytes >= bytes && (!found || f->bytes < found->bytes))
			found = f;
	return found;
}

static int is_pool_file(int fd)
{
	char link[64], name[64];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, name, sizeof(name) - 1);
	if (n < 0)
		return 0;
	name[n] = 0;
	return strstr(name, "memfd:binpool") != NULL;
}

/* What the provider calls once for each file, and before it maps any of it. */
__attribute__((visibility("default"))) int ftruncate(int fd, off_t bytes)
{
	int (*next)(int, off_t);
	struct file *warm;
	int err = -1;

	*(void **)&next = dlsym(RTLD_NEXT, "ftruncate");
	if (!is_pool_file(fd))
		return next(fd, bytes);
	pthread_mutex_lock(&lock);
	warm = best(bytes);
	if (warm) {
		err = next(warm->fd, bytes);
		if (!err && dup3(warm->fd, fd, O_CLOEXEC) < 0)
			err = -1;
		close(warm->fd);
		warm->bytes = 0;
	}
	pthread_mutex_unlock(&lock);
	return warm ? err : next(fd, bytes);
}
