# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# What a system needs beside the programs: the device's group and rights, a sample of the
# module's options, and the module's source where DKMS looks for it.

UDEV_RULES_DIR ?= /usr/lib/udev/rules.d
SYSUSERS_DIR ?= /usr/lib/sysusers.d
MODPROBE_DIR ?= /usr/lib/modprobe.d
DKMS_SOURCE_DIR ?= /usr/src

MODULE_VERSION := $(shell sed -n 's/^PACKAGE_VERSION="\(.*\)"/\1/p' dkms.conf)
DKMS_DEST = $(DESTDIR)$(DKMS_SOURCE_DIR)/binpool-$(MODULE_VERSION)
DKMS_FILES := dkms.conf Kbuild LICENSE $(wildcard LICENSES/*) $(wildcard kmod/*.[ch]) \
	      $(wildcard uapi/linux/*.h)

.PHONY: install-system
install-system: ## Install udev rule, group, module options and the DKMS source under DESTDIR
	install -d $(DESTDIR)$(UDEV_RULES_DIR) $(DESTDIR)$(SYSUSERS_DIR) $(DESTDIR)$(MODPROBE_DIR)
	install -m 644 tools/packaging/60-binpool.rules $(DESTDIR)$(UDEV_RULES_DIR)/
	install -m 644 tools/packaging/sysusers.conf $(DESTDIR)$(SYSUSERS_DIR)/binpool.conf
	install -m 644 tools/packaging/modprobe.conf $(DESTDIR)$(MODPROBE_DIR)/binpool.conf
	for file in $(DKMS_FILES); do \
		install -D -m 644 $$file $(DKMS_DEST)/$$file || exit 1; \
	done
