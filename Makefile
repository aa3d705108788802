# SPDX-License-Identifier: GPL-2.0 OR LGPL-2.1-or-later OR MIT
#
# binpool: `make help` lists what there is. Each room has its own build.mk.

BUILD ?= build
ifeq ($(origin CC),default)
CC := gcc
endif
CFLAGS ?= -O2 -g
PREFIX ?= /usr/local
PROVIDER ?= device
FILE ?=

BIN := $(BUILD)/bin
LIB := $(BUILD)/lib

# What every userspace object is compiled with.
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wconversion
USER_CFLAGS := -std=gnu11 $(WARNINGS) -Iuapi -Ilibpool/include -D_GNU_SOURCE -MMD -MP

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.PHONY: all help clean

all: lib tools modules-if-headers ## Build library, tools and, if its headers are here, the module for this kernel

include libpool/build.mk
include libpool/man/build.mk
include libpool/examples/build.mk
include tools/build.mk
include tools/packaging/build.mk
include kmod/build.mk
include tests/build.mk

.PHONY: install
install: install-lib install-tools install-man ## Install library, command and manual under DESTDIR and PREFIX

help: ## This list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

clean: clean-modules ## Remove everything that was built
	rm -rf $(BUILD)
