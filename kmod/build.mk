# SPDX-License-Identifier: GPL-2.0 OR LGPL-2.1-or-later OR MIT
#
# The module. `make modules` builds it for the running kernel, in the tree, as
# its headers want it; KDIR names other headers. `make modules-6.12` (6.1, 7.3)
# builds it for a Debian kernel of the cache, in a folder of its own.

KDIR ?= /lib/modules/$(shell uname -r)/build

.PHONY: modules modules-if-headers clean-modules FORCE

modules: ## Build the module for this kernel (or KDIR=headers; modules-6.12: Debian's)
ifeq ($(wildcard $(KDIR)/Makefile),)
	@echo "there are no kernel headers in $(KDIR): install them (for this kernel" \
	      "linux-headers-$(shell uname -r)), give KDIR=, or: make modules-6.12" >&2; exit 1
else
	$(MAKE) -C $(KDIR) M=$(CURDIR) modules
endif

# A plain make builds what can be built here.
ifeq ($(wildcard $(KDIR)/Makefile),)
modules-if-headers:
	@echo "module not built: there are no kernel headers in $(KDIR)"
else
modules-if-headers: modules
endif

# What `tools/binpool-kernel list` prints; of others it says that there are none.
modules-%: FORCE
	tools/binpool-kernel build $* $(BUILD)/kmod/$*

clean-modules:
	rm -f kmod/*.o kmod/*.mod kmod/.*.cmd kmod/*.ko .*.cmd *.o *.ko *.mod *.mod.c \
	      modules.order Module.symvers .module-common.*
	rm -rf .tmp_versions
