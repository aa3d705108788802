// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A consumer of the device: what it finds is another test's business.
 */
#include <linux/binpool.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>

int main(void)
{
	struct binpool_info info = {.size = sizeof(info)};
	int fd = open("/dev/" BINPOOL_DEVICE_NAME, O_RDWR | O_CLOEXEC);

	if (fd < 0 || ioctl(fd, BINPOOL_IOC_INFO, &info))
		puts("no device");
	else
		printf("frames of %llu bytes\n", (unsigned long long)info.frame_bytes);
	return 0;
}
