# SPDX-License-Identifier: GPL-2.0 OR LGPL-2.1-or-later OR MIT
#
# Benchmarks: what they print is in RESULTS.md, with where and how it was measured.

.PHONY: bench bench-vm

$(BUILD)/bench/vm: tests/bench/vm.c tests/kselftest/device.h $(wildcard uapi/linux/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(USER_CFLAGS) $< -o $@

bench-vm: $(BUILD)/bench/vm ## Measure the module in guests against hugetlb and memfd (KERNEL=6.12)
	tools/install-deps test
	tools/binpool-kernel build $(or $(KERNEL),6.12) $(BUILD)/kmod/$(or $(KERNEL),6.12)
	BUILD='$(BUILD)' KERNEL='$(or $(KERNEL),6.12)' tests/bench/bench-vm

$(BUILD)/bench/hotpath: tests/bench/hotpath.c $(LIB)/libbinpool.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(USER_CFLAGS) -pthread $< -o $@ -L$(LIB) -lbinpool -Wl,-rpath,'$$ORIGIN/../lib'

bench: $(BUILD)/bench/hotpath ## Measure allocating and freeing, beside other allocators
	tools/install-deps bench
	BUILD='$(BUILD)' tests/bench/bench-hotpath
