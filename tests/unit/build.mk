# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Unit tests of libbinpool: one cmocka program per file test_*.c, linked to the
# static library so that the invariant checker can be called. Each prints TAP.

UNIT_OBJ := $(BUILD)/obj/tests/unit
UNIT_BIN := $(BUILD)/tests/unit
UNIT_ALL := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_*.c))
# Tests of a part that is left out here are left out with it.
UNIT_TESTS := $(filter-out $(if $(filter binpool-opencl,$(LIBPOOL_PARTS)),,test_opencl%) \
	$(if $(filter binpool-uring,$(LIBPOOL_PARTS)),,test_uring%),$(UNIT_ALL))

UNIT_CFLAGS = $(USER_CFLAGS) -Ilibpool/src -pthread
# Whose realloc it lets fail.
UNIT_LIBS_test_cache_odd := -Wl,--wrap=realloc
# Whose malloc it lets fail.
UNIT_LIBS_test_depot := -Wl,--wrap=malloc
# Whose pool gets no thread.
UNIT_LIBS_test_background := -Wl,--wrap=pthread_create
# Whose eventfd_write takes its time.
UNIT_LIBS_test_reaper := -Wl,--wrap=eventfd_write
# Whose memory cannot be unmapped, and whose bookkeeping has none.
UNIT_LIBS_test_stuck := -Wl,--wrap=mmap,--wrap=munmap,--wrap=madvise,--wrap=munlock \
	-Wl,--wrap=aligned_alloc
# Whose clock stands still.
UNIT_LIBS_test_trim := -Wl,--wrap=clock_gettime
UNIT_LINK_test_cuda := $(LIB)/libbinpool-cuda.a
# A driver that fails on demand, which is found beside the program and nowhere else.
UNIT_FAKE := $(UNIT_BIN)/fake/libcuda.so.1
UNIT_LINK_test_cuda_fake := $(LIB)/libbinpool-cuda.a
UNIT_LIBS_test_cuda_fake := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/fake'
UNIT_LINK_test_cuda_pin := $(LIB)/libbinpool-cuda.a
UNIT_LINK_test_cuda_large := $(LIB)/libbinpool-cuda.a
UNIT_LINK_test_cuda_pin_fake := $(LIB)/libbinpool-cuda.a
UNIT_LIBS_test_cuda_pin_fake := $(UNIT_LIBS_test_cuda_fake)
UNIT_LINK_test_opencl := $(LIB)/libbinpool-opencl.a
UNIT_LIBS_test_opencl := -lOpenCL
UNIT_LINK_test_opencl_zerocopy := $(LIB)/libbinpool-opencl.a
# Whose waits fail on demand, and whose events it counts.
UNIT_LIBS_test_opencl_zerocopy := -lOpenCL -Wl,--wrap=clFlush,--wrap=clWaitForEvents \
	-Wl,--wrap=clEnqueueUnmapMemObject,--wrap=clReleaseEvent
UNIT_LINK_test_opencl_queue := $(LIB)/libbinpool-opencl.a
UNIT_LIBS_test_opencl_queue := -lOpenCL
UNIT_LINK_test_opencl_device := $(LIB)/libbinpool-opencl.a
# Whose calls it sees.
UNIT_LIBS_test_opencl_device := -lOpenCL -Wl,--wrap=clReleaseMemObject,--wrap=clReleaseContext
UNIT_LINK_test_cuda_device := $(LIB)/libbinpool-cuda.a
UNIT_LINK_test_uring := $(LIB)/libbinpool-uring.a
UNIT_LIBS_test_uring := -luring
UNIT_LINK_test_uring_fork := $(LIB)/libbinpool-uring.a
UNIT_LIBS_test_uring_fork := -luring

# They open the shared libraries; the CUDA driver is one without a device.
$(UNIT_BIN)/test_cuda_exit: | $(LIB)/libbinpool-cuda.so $(SOFT_CUDA)
$(UNIT_BIN)/test_opencl_exit: | $(LIB)/libbinpool-opencl.so
UNIT_LIBS_test_cuda_exit := -ldl
# Which sees its calls.
UNIT_LIBS_test_opencl_exit := -ldl -lOpenCL -Wl,--export-dynamic-symbol=clReleaseContext

# It opens the shared library.
$(UNIT_BIN)/test_exit: | $(LIB)/libbinpool.so
UNIT_LIBS_test_exit := -ldl

.PHONY: unit check-unit check-asan check-tsan check-valgrind check-san soak
unit: $(UNIT_TESTS:%=$(UNIT_BIN)/%)

$(UNIT_OBJ)/%.o: tests/unit/%.c
	@mkdir -p $(@D)
	$(CC) $(UNIT_CFLAGS) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(UNIT_FAKE): $(UNIT_OBJ)/fake_cuda.o
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ $<

$(UNIT_OBJ)/fake_cuda.o: UNIT_CFLAGS += -fPIC
$(UNIT_BIN)/test_cuda_fake $(UNIT_BIN)/test_cuda_pin_fake: | $(UNIT_FAKE)

.SECONDEXPANSION:
$(UNIT_TESTS:%=$(UNIT_BIN)/%): $(UNIT_BIN)/%: $(UNIT_OBJ)/%.o $(UNIT_OBJ)/unit.o $(UNIT_OBJ)/faulty.o \
		$$(UNIT_LINK_$$*) $(LIB)/libbinpool.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $^ $(UNIT_LIBS_$*) -lcmocka

-include $(wildcard $(UNIT_OBJ)/*.d)

check-unit: unit ## Run the unit tests of the library
	tests/unit/run-unit $(UNIT_TESTS:%=$(UNIT_BIN)/%)

# The same tests, library included, under sanitizers, in build folders of their own.
# Leaks are looked for too; what the OpenCL runtime keeps for itself is left out.
check-asan: ## Run the unit tests under AddressSanitizer and UBSan
	$(MAKE) --no-print-directory unit BUILD=$(BUILD)/asan \
		CFLAGS='-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all'
	LSAN_OPTIONS=suppressions=tests/unit/lsan.supp:print_suppressions=0 BINPOOL_TEST_QUICK=1 \
		tests/unit/run-unit $(UNIT_TESTS:%=$(BUILD)/asan/tests/unit/%)

# Address space randomisation may leave ThreadSanitizer no room for its shadow.
TSAN_TESTS := test_arena test_background test_budget test_depot test_grow test_threads test_cache test_cache_odd \
	test_revocation test_buffer test_fence test_lock \
	test_wait test_reaper test_debug test_trim test_handle test_stray
check-tsan: ## Run the tests with threads under ThreadSanitizer
	$(MAKE) --no-print-directory $(TSAN_TESTS:%=$(BUILD)/tsan/tests/unit/%) BUILD=$(BUILD)/tsan \
		CFLAGS='-O1 -g -fsanitize=thread'
	TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:report_thread_leaks=0 BINPOOL_TEST_QUICK=1 \
		setarch -R tests/unit/run-unit $(TSAN_TESTS:%=$(BUILD)/tsan/tests/unit/%)

# Memcheck, but not on what is about threads, of which it runs one at a time, nor on what would take
# minutes. It sees what the others cannot: bytes that are read before anybody wrote them.
VALGRIND_TESTS := $(filter-out test_arena test_background test_bins test_cache test_cache_odd \
	test_cuda% test_depot test_exit test_faults test_fork test_opencl% test_reaper test_revocation test_soak \
	test_threads test_uring_fork,$(UNIT_TESTS))
VALGRIND := valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite \
	--errors-for-leak-kinds=definite --suppressions=tests/unit/valgrind.supp
check-valgrind: unit ## Run the unit tests under valgrind, but for threads
	BINPOOL_TEST_QUICK=1 BINPOOL_TEST_UNDER='$(VALGRIND)' \
		tests/unit/run-unit $(VALGRIND_TESTS:%=$(UNIT_BIN)/%)

HOURS ?= 24
soak: $(UNIT_BIN)/test_soak ## Random traces of HOURS (24) of a program, with bounds on memory (SEED)
	BINPOOL_SOAK_HOURS='$(HOURS)' $(if $(SEED),BINPOOL_TEST_SEED='$(SEED)') $(UNIT_BIN)/test_soak

check-san: check-asan check-tsan check-valgrind ## All sanitizers and valgrind
