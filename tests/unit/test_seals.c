// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Files in memory as systems have them that allow none to be executed (vm.memfd_noexec): such a
 * system seals more than it was asked for, or wants to be asked for it.
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool.h"

/* From Linux 6.3 on. */
#define NOEXEC_SEAL 8u
#define SEAL_EXEC   0x20

static int file(int seals)
{
	int fd = memfd_make("test", 0);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)page_size()), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void imported(void **state)
{
	const int some = F_SEAL_SHRINK | F_SEAL_GROW,
		  all = some | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
	struct binpool_share s = {.size = sizeof(s), .bytes = 10, .unit = page_size()};
	struct binpool_import *i;

	(void)state;
	s.extent_fd = file(some);
	s.generation_fd = file(some);
	assert_int_equal(binpool_import(&i, &s), -EINVAL);
	close(s.generation_fd);
	s.generation_fd = file(all);
	assert_ok(binpool_import(&i, &s));
	assert_ok(binpool_import_close(i));
	close(s.generation_fd);
	close(s.extent_fd);
}

static void asked_for(void **state)
{
	int fd = memfd_create("probe", NOEXEC_SEAL), made = file(0);

	(void)state;
	if (fd >= 0)
		assert_true(fcntl(made, F_GET_SEALS) & SEAL_EXEC);
	close(fd);
	close(made);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(imported),
		cmocka_unit_test(asked_for),
	};

	return cmocka_run_group_tests_name("seals", tests, NULL, NULL);
}
