# SPDX-License-Identifier: GPL-2.0
#
# The fuzzer: no harness, so no kernel sources are needed.

FUZZ_SRC := $(wildcard tests/fuzz/*.c)
FUZZ_OBJ := $(FUZZ_SRC:tests/%.c=$(BUILD)/obj/tests/%.o)

$(BUILD)/obj/tests/fuzz/%.o: tests/fuzz/%.c
	@mkdir -p $(@D)
	$(CC) $(USER_CFLAGS) $(CFLAGS) -pthread -c $< -o $@

$(BUILD)/tests/fuzz/fuzz: $(FUZZ_OBJ)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -pthread $^ -o $@ $(LDFLAGS)

-include $(FUZZ_OBJ:.o=.d)
