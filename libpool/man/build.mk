# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The manual. Pages are installed under each name of their NAME section: the others than the
# file's own are one-line pages that point to it.

MAN_PAGES := $(wildcard libpool/man/*.[1-9])
MAN_BUILT := $(BUILD)/man/.built

.PHONY: man install-man
man: $(MAN_BUILT) ## Lay out the manual: man -M build/man binpool_alloc

$(MAN_BUILT): $(MAN_PAGES) libpool/man/build.mk
	@mkdir -p $(@D)
	@rm -rf $(@D)/man?
	@set -e; for page in $(MAN_PAGES); do \
		own=$${page##*/}; section=$${page##*.}; dir=$(@D)/man$$section; \
		install -d $$dir; install -m 644 $$page $$dir/; \
		for name in $$(sed -n '/^\.Sh NAME/,/^\.Nd/s/^\.Nm \([^ ]*\).*/\1/p' $$page); do \
			[ -e $$dir/$$name.$$section ] || \
				echo ".so man$$section/$$own" >$$dir/$$name.$$section; \
		done; \
	done
	@touch $@

install-man: man ## Install the manual under DESTDIR and PREFIX
	set -e; for dir in $(BUILD)/man/man?; do \
		install -d $(DESTDIR)$(PREFIX)/share/man/$${dir##*/}; \
		install -m 644 $$dir/* $(DESTDIR)$(PREFIX)/share/man/$${dir##*/}/; \
	done
