# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The examples: each program is one file, and builds with the installed headers only. Compiled as
# their readers would, from C11 on.

EXAMPLES := $(patsubst libpool/examples/%.c,%,$(wildcard libpool/examples/*.c))
# Those of a part that is left out here are left out with it.
EXAMPLES := $(filter-out $(if $(filter binpool-opencl,$(LIBPOOL_PARTS)),,opencl%) \
	$(if $(filter binpool-uring,$(LIBPOOL_PARTS)),,uring%),$(EXAMPLES))
# Those over packages that may not be here: mimalloc, and UMF where UMF names the prefix it is in.
EXAMPLES := $(filter-out $(if $(call have_header,mimalloc.h),,mimalloc) $(if $(UMF),,umf),$(EXAMPLES))
EXAMPLES_BIN := $(BUILD)/examples
# Beside libbinpool; liburing's own header is no C11. $* is the example.
EXAMPLES_LIBS = $(if $(filter cuda%,$*),-lbinpool-cuda -ldl) \
	$(if $(filter mimalloc,$*),-lbinpool-cuda -lmimalloc -ldl) \
	$(if $(filter umf,$*),-L$(UMF)/lib -Wl$(comma)-rpath$(comma)$(UMF)/lib -lumf) \
	$(if $(filter opencl%,$*),-lbinpool-opencl -lOpenCL) \
	$(if $(filter uring%,$*),-lbinpool-uring -luring) -lbinpool
EXAMPLES_CFLAGS = $(if $(filter uring%,$*),-std=gnu11,-std=c11 -Wpedantic) $(WARNINGS) \
	-Ilibpool/include $(if $(filter umf,$*),-isystem $(UMF)/include)
comma := ,

.PHONY: examples
examples: $(EXAMPLES:%=$(EXAMPLES_BIN)/%) ## Build the examples of libpool/examples

$(EXAMPLES_BIN)/%: libpool/examples/%.c | lib
	@mkdir -p $(@D)
	$(CC) $(EXAMPLES_CFLAGS) -MMD -MP -MF $@.d $(CFLAGS) -o $@ $< -pthread -L$(LIB) \
		-Wl,-rpath,'$$ORIGIN/../lib' $(EXAMPLES_LIBS) $(LDFLAGS)

-include $(wildcard $(EXAMPLES_BIN)/*.d)
