/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What is said where the CUDA driver, which is looked for when it is first called, is not there or
 * lacks something: by the library, the command and the benchmarks.
 */
#ifndef BINPOOL_SRC_CUDA_MISSING_H
#define BINPOOL_SRC_CUDA_MISSING_H

/* With what dlerror() says. */
#define CUDA_NO_DRIVER                                                                             \
	"there is no CUDA driver here: %s; libcuda.so.1 comes with NVIDIA's driver, and a "        \
	"container is given it with its GPUs (docker run --gpus all)"

/* With a symbol. */
#define CUDA_OLD_DRIVER "this CUDA driver is too old: its libcuda.so.1 has no %s"

#endif /* BINPOOL_SRC_CUDA_MISSING_H */
