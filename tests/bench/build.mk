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

HOTPATH_SOURCES := $(addprefix tests/bench/,hotpath.c peer_binpool.c peer_malloc.c)

$(BUILD)/bench/hotpath: $(HOTPATH_SOURCES) tests/bench/peer.h $(LIB)/libbinpool.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(USER_CFLAGS) -pthread $(HOTPATH_SOURCES) -o $@ -L$(LIB) -lbinpool \
		-Wl,-rpath,'$$ORIGIN/../lib'

# Its headers have extensions, and want the CPU that it was built for.
$(BUILD)/bench/peer_dpdk.so: tests/bench/peer_dpdk.c tests/bench/peer.h
	@mkdir -p $(@D)
	$(CC) -O2 -std=gnu11 -fPIC -shared $$(pkg-config --cflags libdpdk) $< -o $@ \
		-Wl,--no-as-needed -lrte_eal -lrte_mempool -lrte_mempool_ring -lrte_ring

bench: ## Measure allocating and freeing, beside other allocators
	tools/install-deps bench python
	+$(MAKE) --no-print-directory lib
	BUILD='$(BUILD)' tests/python/install
	BUILD='$(BUILD)' tests/bench/bench-python
	+$(MAKE) --no-print-directory $(BUILD)/bench/hotpath $(BUILD)/bench/peer_dpdk.so
	BUILD='$(BUILD)' tests/bench/bench-hotpath

# What bench-cuda runs. It needs nothing of CUDA to be built.
CUDA_BENCH_OBJ := $(patsubst tests/bench/cuda/%.c,$(BUILD)/obj/bench-cuda/%.o,\
	$(filter-out %/late_driver.c,$(wildcard tests/bench/cuda/*.c)))

CUDA_BENCH_URING := $(filter binpool-uring,$(LIBPOOL_PARTS))

$(BUILD)/obj/bench-cuda/%.o: tests/bench/cuda/%.c
	@mkdir -p $(@D)
	$(CC) $(USER_CFLAGS) $(if $(CUDA_BENCH_URING),-DHAVE_URING) $(CFLAGS) -pthread -c $< -o $@

$(BUILD)/bench/cuda: $(CUDA_BENCH_OBJ) | lib
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -pthread $(CUDA_BENCH_OBJ) -o $@ -L$(LIB) -Wl,-rpath,'$$ORIGIN/../lib' \
		-lbinpool -lbinpool-cuda $(if $(CUDA_BENCH_URING),-lbinpool-uring -luring) -ldl \
		$(LDFLAGS)

-include $(CUDA_BENCH_OBJ:.o=.d)

.PHONY: bench-cuda bench-cuda-programs bench-cuda-test-programs
bench-cuda-programs: $(BUILD)/bench/cuda $(PRELOAD_TEST)/warm.so

bench-cuda: bench-cuda-programs ## Measure on an NVIDIA GPU, beside cuMemHostAlloc, PyTorch, CuPy (QUICK=1)
	BUILD='$(BUILD)' tests/bench/bench-cuda $(if $(QUICK),--quick)

# A driver for tests of it, which is found by who is told of it: one beneath, and what is its own.
LATE_CUDA := $(BUILD)/tests/bench/late/libcuda.so.1
$(BUILD)/obj/tests/bench/beneath.o: $(SOFT_CUDA_OBJS)
	@mkdir -p $(@D)
	$(LD) -r -o $@ $^
	objcopy -w --redefine-sym cuMemHostAlloc=soft_cuMemHostAlloc --weaken-symbol='cu*' $@

$(LATE_CUDA): tests/bench/cuda/late_driver.c $(BUILD)/obj/tests/bench/beneath.o
	@mkdir -p $(@D)
	$(CC) $(filter-out -MMD -MP,$(USER_CFLAGS)) $(CFLAGS) $(LDFLAGS) -fPIC -shared \
		-Wl,-soname,$(@F) -o $@ $^ -pthread

bench-cuda-test-programs: bench-cuda-programs $(LATE_CUDA)
