# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Tests of libbinpool-preload without a device: a driver and runtimes that were made for them, and
# programs that load them as others do. What the driver calls of its own is its own, also where
# others have a function of that name. It is in a folder of its own: it is found by who
# is told of it.

PRELOAD_TEST := $(BUILD)/tests/preload
PRELOAD_TEST_OBJ := $(BUILD)/obj/tests/preload
PRELOAD_TEST_CFLAGS = $(USER_CFLAGS) -fPIC -fvisibility=hidden -pthread
PRELOAD_PLUGINS := plugin plugin11 bare_plugin driver_plugin lookup_plugin by_name_plugin

.PHONY: preload-programs check-preload
preload-programs: $(PRELOAD_TEST)/scenarios $(PRELOAD_TEST)/linked $(PRELOAD_TEST)/warm.so \
	$(PRELOAD_TEST)/first.so $(PRELOAD_TEST)/second.so

check-preload: preload-programs lib ## Tests of libbinpool-preload, without a device
	BUILD='$(BUILD)' tests/preload/run-preload

$(PRELOAD_TEST_OBJ)/%.o: tests/preload/%.c
	@mkdir -p $(@D)
	$(CC) $(PRELOAD_TEST_CFLAGS) $(CFLAGS) -c -o $@ $<

$(PRELOAD_TEST)/driver/libcuda.so.1: $(PRELOAD_TEST_OBJ)/fake_driver.o
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(@F) -Wl,-Bsymbolic -o $@ $< -pthread

RUNTIME_FLAGS_11 := -DBY_SYMBOL

# The version of its symbols is its name, as in the real one.
$(PRELOAD_TEST)/libcudart.so.%: tests/preload/fake_runtime.c tests/preload/fake.h
	@mkdir -p $(@D)
	echo '$(@F) { global: *; };' >$@.map
	$(CC) $(PRELOAD_TEST_CFLAGS) -MF $(PRELOAD_TEST_OBJ)/runtime$*.d -DVERSION=$* $(RUNTIME_FLAGS_$*) $(CFLAGS) $(LDFLAGS) \
		-shared -Wl,-soname,$(@F) -Wl,--version-script=$@.map -o $@ $< -pthread -ldl

PLUGIN_FLAGS_bare_plugin := -DBARE
PLUGIN_FLAGS_driver_plugin := -DDRIVER
PLUGIN_FLAGS_lookup_plugin := -DLOOKUP
PLUGIN_FLAGS_by_name_plugin := -DLOOKUP -DBY_NAME
PLUGIN_NEEDS_plugin := $(PRELOAD_TEST)/libcudart.so.12
PLUGIN_NEEDS_plugin11 := $(PRELOAD_TEST)/libcudart.so.11
PLUGIN_NEEDS_bare_plugin := $(PRELOAD_TEST)/libcudart.so.12
PLUGIN_NEEDS_driver_plugin := $(PRELOAD_TEST)/driver/libcuda.so.1

.SECONDEXPANSION:
$(PRELOAD_PLUGINS:%=$(PRELOAD_TEST)/%.so): $(PRELOAD_TEST)/%.so: tests/preload/plugin.c tests/preload/fake.h \
		$$(PLUGIN_NEEDS_$$*)
	$(CC) $(PRELOAD_TEST_CFLAGS) -MF $(PRELOAD_TEST_OBJ)/$*.d $(PLUGIN_FLAGS_$*) $(CFLAGS) $(LDFLAGS) \
		-shared -o $@ $< $(PLUGIN_NEEDS_$*) -Wl,-rpath,'$$ORIGIN' -ldl

PRELOAD_SCENARIOS := main basic life
$(PRELOAD_TEST)/scenarios: $(PRELOAD_SCENARIOS:%=$(PRELOAD_TEST_OBJ)/%.o) \
		| $(PRELOAD_PLUGINS:%=$(PRELOAD_TEST)/%.so)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -pthread -ldl

# A program that was linked with the runtime itself.
$(PRELOAD_TEST)/linked: tests/preload/linked.c $(PRELOAD_TEST)/libcudart.so.12
	$(CC) $(PRELOAD_TEST_CFLAGS) -MF $(PRELOAD_TEST_OBJ)/linked.d $(CFLAGS) $(LDFLAGS) -o $@ $^ \
		-Wl,-rpath,'$$ORIGIN' -ldl

WHICH_FLAGS_first := -DFIRST
$(PRELOAD_TEST)/first.so $(PRELOAD_TEST)/second.so: $(PRELOAD_TEST)/%.so: tests/preload/which.c
	@mkdir -p $(@D) $(PRELOAD_TEST_OBJ)
	$(CC) $(PRELOAD_TEST_CFLAGS) -MF $(PRELOAD_TEST_OBJ)/$*.d $(WHICH_FLAGS_$*) $(CFLAGS) $(LDFLAGS) \
		-shared -o $@ $< -ldl

# For tests/preload/pytorch, where there is a GPU.
$(PRELOAD_TEST)/warm.so: $(PRELOAD_TEST_OBJ)/warm.o
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ $< -pthread -ldl

-include $(wildcard $(PRELOAD_TEST_OBJ)/*.d)
