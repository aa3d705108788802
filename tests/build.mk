# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Tests: README.md in this folder says how to run one of them.

include tests/soft_cuda/build.mk
include tests/unit/build.mk
include tests/preload/build.mk
include tests/bench/build.mk
include tests/stress/build.mk
include tests/fuzz/build.mk
include tests/fuzz-lib/build.mk

.PHONY: check check-adapters test test-debug debug-kernel stress kselftest stress-programs

stress-programs: $(BUILD)/tests/stress/stress $(BUILD)/tests/fuzz/fuzz

# The programs of tests/kselftest, by the kernel's own rules, out of the tree.
kselftest:
	+$(MAKE) --no-print-directory -C tests/kselftest OUTPUT=$(abspath $(BUILD))/tests/kselftest all

check: ## What can be tested without a guest, in a minute or two
	tools/install-deps test
	BUILD='$(BUILD)' tests/run --check

test: ## All tests, in guests with three kernels too
	tools/install-deps test
	BUILD='$(BUILD)' tests/run

check-adapters: ## The adapters for PyTorch, CuPy, RMM, ... with the real ones, which it fetches
	tools/install-deps adapters
	BUILD='$(BUILD)' tests/run adapters

DURATION ?= 600
KERNEL ?= 6.12
stress: ## Everything at random, in a guest (DURATION=600 seconds, KERNEL=6.12, SEED)
	tools/install-deps test
	BUILD='$(BUILD)' tests/run --seconds '$(DURATION)' --seed '$(SEED)' '$(KERNEL)-stress'

debug-kernel: ## Build a kernel that checks itself (minutes), or a newer one if there is
	tools/install-deps debug
	tools/binpool-kernel update 6.12-debug

test-debug: ## The device's tests on that kernel, with all that it can check
	tools/install-deps test
	BUILD='$(BUILD)' tests/run 6.12-debug 6.12-debug-lockdown
