/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the driver answers, and which of it means that a context is gone. For the library and the
 * preload shim, which call it each by itself.
 */
#ifndef BINPOOL_SRC_CUDA_ERRORS_H
#define BINPOOL_SRC_CUDA_ERRORS_H

#include <stdbool.h>

#define CUDA_SUCCESS			0
#define CUDA_ERROR_INVALID_VALUE	1
#define CUDA_ERROR_OUT_OF_MEMORY	2
#define CUDA_ERROR_NOT_INITIALIZED	3
#define CUDA_ERROR_DEINITIALIZED	4
#define CUDA_ERROR_NO_DEVICE		100
#define CUDA_ERROR_INVALID_DEVICE	101
#define CUDA_ERROR_INVALID_CONTEXT	201
#define CUDA_ERROR_INVALID_HANDLE	400
#define CUDA_ERROR_NOT_READY		600
#define CUDA_ERROR_CONTEXT_IS_DESTROYED 709
#define CUDA_ERROR_REGISTERED		712 /* HOST_MEMORY_ALREADY_REGISTERED */
#define CUDA_ERROR_NOT_REGISTERED	713 /* HOST_MEMORY_NOT_REGISTERED */
#define CUDA_ERROR_NOT_PERMITTED	800
#define CUDA_ERROR_NOT_SUPPORTED	801
#define CUDA_ERROR_CAPTURE_FIRST	900 /* STREAM_CAPTURE_UNSUPPORTED, and */
#define CUDA_ERROR_CAPTURE_LAST		908 /* STREAM_CAPTURE_WRONG_THREAD */

/*
 * Whether the answer to entering a context says that it is gone, with all that was in it. Other
 * errors may be of a call before, as a kernel's failure is.
 */
static inline bool context_gone(int err)
{
	return err == CUDA_ERROR_NOT_INITIALIZED || err == CUDA_ERROR_DEINITIALIZED ||
	       err == CUDA_ERROR_INVALID_CONTEXT || err == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* The same of an answer of cuCtxGetId. */
static inline bool context_id_gone(int err)
{
	return err == CUDA_ERROR_INVALID_VALUE || context_gone(err);
}

#endif /* BINPOOL_SRC_CUDA_ERRORS_H */
