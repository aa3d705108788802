// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A memory provider of the Unified Memory Framework (UMF 1.2) over a pool: pools of UMF's, and
 * what is written for them, get their memory here.
 *
 *	cc umf.c $(pkg-config --cflags --libs binpool) -lumf
 *
 * The provider has the locks of the pool: any thread may use it. It does not own the pool,
 * which has to outlive it. Of memory that a device still uses UMF knows nothing: what is freed
 * by it is to be at rest.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <umf/memory_pool.h>
#include <umf/memory_provider.h>
#include <umf/memory_provider_ops.h>
#include <umf/pools/pool_disjoint.h>

#include <binpool.h>

/* Of this thread's last call that failed, for get_last_native_error. */
static _Thread_local int last_errno;

static umf_result_t result(int err)
{
	last_errno = -err;
	switch (err) {
	case 0:
		return UMF_RESULT_SUCCESS;
	case -ENOMEM:
	case -ENOSPC:
	case -EDQUOT:
	case -EFBIG:
	case -E2BIG:
		return UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY;
	case -EINVAL:
		return UMF_RESULT_ERROR_INVALID_ARGUMENT;
	default:
		return UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC;
	}
}

/* The provider is the pool itself. */
static umf_result_t initialize(const void *params, void **provider)
{
	memcpy(provider, params, sizeof(*provider));
	return *provider ? UMF_RESULT_SUCCESS : UMF_RESULT_ERROR_INVALID_ARGUMENT;
}

static umf_result_t finalize(void *provider)
{
	(void)provider;
	return UMF_RESULT_SUCCESS;
}

static umf_result_t provider_alloc(void *provider, size_t size, size_t alignment, void **ptr)
{
	*ptr = alignment ? binpool_alloc_aligned(provider, size, alignment)
			 : binpool_alloc(provider, size);
	return result(*ptr ? 0 : -errno);
}

static umf_result_t provider_free(void *provider, void *ptr, size_t size)
{
	(void)size;
	return result(binpool_free(provider, ptr));
}

static umf_result_t native_error(void *provider, const char **message, int32_t *error)
{
	(void)provider;
	*message = binpool_last_error();
	*error = last_errno;
	return UMF_RESULT_SUCCESS;
}

static umf_result_t recommended_page_size(void *provider, size_t size, size_t *page)
{
	struct binpool_stats stats = {.size = sizeof(stats)};
	int err = binpool_get_stats(provider, &stats);

	(void)size;
	*page = stats.page_bytes ? stats.page_bytes : (size_t)sysconf(_SC_PAGESIZE);
	return result(err);
}

static umf_result_t min_page_size(void *provider, const void *ptr, size_t *page)
{
	(void)provider;
	(void)ptr;
	*page = (size_t)sysconf(_SC_PAGESIZE);
	return UMF_RESULT_SUCCESS;
}

static umf_result_t get_name(void *provider, const char **name)
{
	(void)provider;
	*name = "binpool";
	return UMF_RESULT_SUCCESS;
}

static umf_result_t cache_line_size(void *provider, size_t *size)
{
	(void)provider;
	*size = (size_t)sysconf(_SC_LEVEL1_DCACHE_LINESIZE);
	return UMF_RESULT_SUCCESS;
}

static const umf_memory_provider_ops_t ops = {
	.version = UMF_PROVIDER_OPS_VERSION_CURRENT,
	.initialize = initialize,
	.finalize = finalize,
	.alloc = provider_alloc,
	.free = provider_free,
	.get_last_native_error = native_error,
	.get_recommended_page_size = recommended_page_size,
	.get_min_page_size = min_page_size,
	.get_name = get_name,
	.get_cache_line_size = cache_line_size,
};

/* Small blocks of UMF's own pool, in slabs that the provider gives; 1: something is wrong. */
static int use(umf_memory_provider_handle_t provider)
{
	umf_disjoint_pool_params_handle_t params;
	struct binpool_ptr_info info = {.size = sizeof(info)};
	umf_memory_pool_handle_t pool;
	char *p[1000];

	if (umfDisjointPoolParamsCreate(&params) ||
	    umfDisjointPoolParamsSetSlabMinSize(params, 1 << 20) ||
	    umfDisjointPoolParamsSetMaxPoolableSize(params, 1 << 20) ||
	    umfPoolCreate(umfDisjointPoolOps(), provider, params, 0, &pool) ||
	    umfDisjointPoolParamsDestroy(params))
		return 1;
	for (int i = 0; i < 1000; i++) {
		p[i] = umfPoolMalloc(pool, 100 + (size_t)i * 10);
		if (!p[i] || binpool_query(p[i], &info))
			return 1;
		memset(p[i], i, 100);
	}
	printf("1000 blocks in a pool of UMF's; the last is in a buffer of %llu bytes\n",
	       (unsigned long long)info.bytes);
	for (int i = 0; i < 1000; i++) {
		if (p[i][99] != (char)i || umfPoolFree(pool, p[i]))
			return 1;
	}
	return umfPoolDestroy(pool);
}

int main(void)
{
	struct binpool_options options = {.size = sizeof(options), .max_bytes = 64 << 20};
	umf_memory_provider_handle_t provider;
	const char *message;
	struct binpool *pool;
	int32_t error;
	size_t page;
	void *p;

	if (binpool_create(&pool, &options)) {
		fprintf(stderr, "%s\n", binpool_last_error());
		return 1;
	}
	/* Here one would attach it, as with binpool_cuda_attach: UMF's memory is pinned then. */
	if (umfMemoryProviderCreate(&ops, &pool, &provider) || use(provider))
		return 1;

	if (umfMemoryProviderGetRecommendedPageSize(provider, 0, &page) ||
	    umfMemoryProviderAlloc(provider, 8 << 20, page, &p) || (size_t)p % page ||
	    umfMemoryProviderFree(provider, p, 8 << 20))
		return 1;
	if (umfMemoryProviderAlloc(provider, 128 << 20, 0, &p) !=
	    UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY)
		return 1;
	if (umfMemoryProviderGetLastNativeError(provider, &message, &error))
		return 1;
	printf("%s (%s)\n", message, strerror(error));
	return umfMemoryProviderDestroy(provider) || binpool_destroy(pool);
}
