# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The `binpool` command, and `make run`. Needs no kernel headers.

TOOLS_SRC := $(wildcard tools/binpool/*.c)
TOOLS_OBJ := $(TOOLS_SRC:tools/binpool/%.c=$(BUILD)/obj/tools/%.o)

.PHONY: tools run

tools: $(BIN)/binpool ## Build the binpool command

$(BUILD)/obj/tools/%.o: tools/binpool/%.c
	@mkdir -p $(@D)
	$(CC) $(USER_CFLAGS) -DCL_TARGET_OPENCL_VERSION=120 $(CFLAGS) -pthread -c $< -o $@

# The run path is relative to the program, so that it runs where it was built and where it is
# installed. Linking waits for the libraries, but a new one does not need a new program.
$(BIN)/binpool: $(TOOLS_OBJ) | lib
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -pthread $(TOOLS_OBJ) -o $@ -L$(LIB) -Wl,-rpath,'$$ORIGIN/../lib' \
		-lbinpool -lbinpool-opencl -lbinpool-cuda -lbinpool-uring -lOpenCL -luring -ldl \
		$(LDFLAGS)

-include $(TOOLS_OBJ:.o=.d)

.PHONY: install-tools
install-tools: tools ## Install the binpool command under DESTDIR and PREFIX
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(BIN)/binpool $(DESTDIR)$(PREFIX)/bin/

run: ## The main job on FILE (default: a large one found here), with PROVIDER (default: device)
	+@tools/run-main-job

# In the environment, so that no shell reads a file's name.
run: export BUILD := $(BUILD)
run: export FILE := $(value FILE)
run: export PROVIDER := $(PROVIDER)
