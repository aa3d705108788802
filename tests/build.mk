# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Tests: README.md in this folder says how to run one of them.

include tests/unit/build.mk

.PHONY: check test kselftest

# The programs of tests/kselftest, by the kernel's own rules, out of the tree.
kselftest:
	+$(MAKE) --no-print-directory -C tests/kselftest OUTPUT=$(abspath $(BUILD))/tests/kselftest all

check: ## What can be tested without a guest, in under a minute
	tools/install-deps test
	BUILD='$(BUILD)' tests/run --check

test: ## All tests, in guests with three kernels too
	tools/install-deps test
	BUILD='$(BUILD)' tests/run
