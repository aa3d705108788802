// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Contexts: whose something is. Its address is not enough to know one by, as another may be at it
 * later; so its id is compared. Owns nothing. Every call is in relaxed capture mode.
 */
#include <errno.h>

#include "cuda.h"

bool owner_alive(const struct cuda *cu, const struct owner *o)
{
	unsigned long long id;
	CUresult err;

	if (!o->ctx || !cu->CtxGetId)
		return o->ctx;
	err = cu->CtxGetId(o->ctx, &id);
	return err ? !context_id_gone(err) : id == o->id;
}

CUresult owner_enter(const struct cuda *cu, const struct owner *o)
{
	return owner_alive(cu, o) ? cu->CtxPushCurrent(o->ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

int owner_of(const struct cuda *cu, CUcontext ctx, struct owner *o)
{
	CUresult err = 0;

	*o = (struct owner){.ctx = ctx};
	if (ctx && cu->CtxGetId)
		err = cu->CtxGetId(ctx, &o->id);
	if (context_id_gone(err))
		return cuda_refuse(-ENODEV,
				   "CUDA: the context that is current to this thread, or the "
				   "stream's, was destroyed, or reset: make one current");
	return err ? cuda_explain(cu, "cuCtxGetId", err) : 0;
}

int owner_current(const struct cuda *cu, struct owner *o)
{
	CUcontext ctx = NULL;
	CUresult err = cu->CtxGetCurrent(&ctx);
	int ret;

	*o = (struct owner){0};
	if (err)
		return cuda_explain(cu, "cuCtxGetCurrent", err);
	ret = owner_of(cu, ctx, o);
	if (ret)
		return ret;
	return ctx ? 0
		   : cuda_refuse(-ENODEV,
				 "CUDA: no context is current to this thread: make one, as "
				 "cudaFree(0) does, or the first array on the device");
}
