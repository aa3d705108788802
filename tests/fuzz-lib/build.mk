# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Fuzz targets of the library: a program per file that has one, linked to the static library. `run`
# builds them with clang's libFuzzer, or with driver.c, under sanitizers, in a folder of its own.

FUZZ_LIB_TARGETS := bins extents options trace
FUZZ_LIB_OBJ := $(BUILD)/obj/tests/fuzz-lib
FUZZ_LIB_BIN := $(BUILD)/tests/fuzz-lib
FUZZ_LIB_LINK_extents := $(UNIT_OBJ)/faulty.o
FUZZ_LIB_LINK_trace := $(BUILD)/obj/tools/trace.o $(BUILD)/obj/tools/cli.o
# What brings main(): driver.c's object, or an option that brings libFuzzer's.
FUZZ_LIB_MAIN ?= $(FUZZ_LIB_OBJ)/driver.o

.PHONY: fuzz-lib-programs check-fuzz-lib fuzz-lib
fuzz-lib-programs: $(FUZZ_LIB_TARGETS:%=$(FUZZ_LIB_BIN)/%)

$(FUZZ_LIB_OBJ)/%.o: tests/fuzz-lib/%.c
	@mkdir -p $(@D)
	$(CC) $(USER_CFLAGS) -Ilibpool/src -Itests/unit -Itools/binpool $(CFLAGS) -c -o $@ $<

$(FUZZ_LIB_TARGETS:%=$(FUZZ_LIB_BIN)/%): $(FUZZ_LIB_BIN)/%: $(FUZZ_LIB_OBJ)/%.o \
		$$(FUZZ_LIB_LINK_$$*) $(filter %.o,$(FUZZ_LIB_MAIN)) $(LIB)/libbinpool.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $^ $(filter-out %.o,$(FUZZ_LIB_MAIN))

-include $(wildcard $(FUZZ_LIB_OBJ)/*.d)

check-fuzz-lib: ## Run the library's fuzz targets for a moment, always the same way
	BUILD='$(BUILD)' tests/fuzz-lib/run

fuzz-lib: ## Run them at random (DURATION=600 seconds in all, SEED)
	BUILD='$(BUILD)' tests/fuzz-lib/run '$(DURATION)' '$(SEED)'
