# SPDX-License-Identifier: GPL-2.0
#
# The stress program: no harness, so no kernel sources are needed.

STRESS_SRC := $(wildcard tests/stress/*.c)
STRESS_OBJ := $(STRESS_SRC:tests/%.c=$(BUILD)/obj/tests/%.o)

$(BUILD)/obj/tests/stress/%.o: tests/stress/%.c
	@mkdir -p $(@D)
	$(CC) $(USER_CFLAGS) $(CFLAGS) -pthread -c $< -o $@

$(BUILD)/tests/stress/stress: $(STRESS_OBJ)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -pthread $^ -o $@ -l:liburing.a $(LDFLAGS)

-include $(STRESS_OBJ:.o=.d)
