// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A consumer that links libbinpool-opencl and calls no OpenCL function itself.
 */
#include <binpool_cl.h>
#include <errno.h>
#include <stdio.h>

int main(void)
{
	int err = binpool_cl_attach(NULL, NULL, NULL, NULL);

	puts(binpool_last_error());
	return err != -EINVAL;
}
