// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
//
// A consumer in C++: options from the initialiser, a callback with C linkage, RAII.
#include <binpool.h>
#include <linux/binpool_bins.h>

#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <memory>

namespace
{
int take(void *, uint64_t bytes, void **ptr)
{
	*ptr = std::malloc(bytes);
	return *ptr ? 0 : -ENOMEM;
}

void give(void *, void *ptr, uint64_t)
{
	std::free(ptr);
}
} // namespace

int main()
{
	binpool_allocator_ops ops = {};
	binpool_options options = BINPOOL_OPTIONS_INIT;
	binpool *raw;

	ops.size = sizeof(ops);
	ops.alloc = take;
	ops.free = give;
	options.provider = BINPOOL_PROVIDER_ALLOCATOR;
	options.allocator = &ops;
	if (binpool_create(&raw, &options)) {
		std::cerr << binpool_last_error() << '\n';
		return 1;
	}
	std::unique_ptr<binpool, int (*)(binpool *)> pool(raw, binpool_destroy);
	void *p = binpool_alloc(pool.get(), 5000);

	std::cout << binpool_held_blocks(pool.get()) << ' ' << binpool_bin_number(4, 5000) << '\n';
	return p && !binpool_free(pool.get(), p) ? 0 : 1;
}
