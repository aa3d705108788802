# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# libbinpool, and its parts for CUDA, OpenCL and io_uring. The latter two are left out
# where their headers are not installed; that for CUDA needs nothing to be built.

LIBPOOL_VERSION := 0.1.0
LIBPOOL_SONAME := 0
LIBPOOL_OBJ := $(BUILD)/obj/libpool

# libbinpool links libc only. It stays loaded once loaded: threads and fork
# handlers may still refer to it.
LIBPOOL_SRC := $(wildcard libpool/src/*.c)
LIBPOOL_PARTS := binpool binpool-cuda

have_header = $(shell $(CC) -E -include $(1) -x c /dev/null >/dev/null 2>&1 && echo yes)

ifeq ($(call have_header,CL/cl.h),yes)
LIBPOOL_PARTS += binpool-opencl
else
$(info binpool: no OpenCL headers (CL/cl.h): libbinpool-opencl is left out)
endif
ifeq ($(call have_header,liburing.h),yes)
LIBPOOL_PARTS += binpool-uring
else
$(info binpool: no liburing headers (liburing.h): libbinpool-uring is left out)
endif

# Of each part: sources, what else it links, its pkg-config line and header.
SRC_binpool := $(LIBPOOL_SRC)
# For programs linked statically with a libc whose threads are apart.
LINK_binpool := -pthread
DESC_binpool := Binned memory pool over huge, pinnable host memory
HEADERS_binpool := libpool/include/binpool.h libpool/include/binpool_fence.h \
	libpool/include/binpool_register.h libpool/include/binpool_share.h \
	uapi/linux/binpool.h uapi/linux/binpool_bins.h
SRC_binpool-cuda := $(wildcard libpool/src/cuda/*.c)
# dlopen is apart in older libcs.
LINK_binpool-cuda := -ldl
DESC_binpool-cuda := binpool buffers for CUDA
HEADERS_binpool-cuda := libpool/include/binpool_cuda.h
SRC_binpool-opencl := $(wildcard libpool/src/opencl/*.c)
LINK_binpool-opencl := -lOpenCL
DESC_binpool-opencl := binpool buffers for OpenCL
HEADERS_binpool-opencl := libpool/include/binpool_cl.h
SRC_binpool-uring := $(wildcard libpool/src/uring/*.c)
LINK_binpool-uring := -luring
DESC_binpool-uring := binpool buffers for io_uring
HEADERS_binpool-uring := libpool/include/binpool_uring.h

# global-dynamic: for a libc that has no room for initial-exec in what is loaded late (musl); some
# nanoseconds dearer, least so with descriptors (on x86-64 CFLAGS='-O2 -g -mtls-dialect=gnu2').
TLS_MODEL ?= initial-exec
LIBPOOL_CFLAGS = $(USER_CFLAGS) -Ilibpool/src -fPIC -fvisibility=hidden \
	-ftls-model=$(TLS_MODEL) -DTLS_MODEL='"$(TLS_MODEL)"'

LIBPOOL_SHARED := $(LIBPOOL_PARTS:%=$(LIB)/lib%.so)
LIBPOOL_STATIC := $(LIBPOOL_PARTS:%=$(LIB)/lib%.a)
LIBPOOL_PC := $(LIBPOOL_PARTS:%=$(LIB)/pkgconfig/%.pc)

.PHONY: lib install-lib check-lib
lib: $(LIBPOOL_SHARED) $(LIBPOOL_STATIC) $(LIBPOOL_PC) ## Build libbinpool

$(LIBPOOL_OBJ)/%.o: libpool/src/%.c
	@mkdir -p $(@D)
	$(CC) $(LIBPOOL_CFLAGS) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

# $(1): part
define libpool_part
OBJ_$(1) := $$(SRC_$(1):libpool/src/%.c=$$(LIBPOOL_OBJ)/%.o)
-include $$(OBJ_$(1):.o=.d)

$$(LIB)/lib$(1).so.$$(LIBPOOL_SONAME): $$(OBJ_$(1)) libpool/lib$(1).map $(if $(filter-out binpool,$(1)),$$(LIB)/libbinpool.so)
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $$(LDFLAGS) -shared -Wl,-soname,lib$(1).so.$$(LIBPOOL_SONAME) \
		-Wl,--version-script=libpool/lib$(1).map -Wl,-z,nodelete,-z,defs,-z,relro,-z,now \
		-o $$@ $$(OBJ_$(1)) $(if $(filter-out binpool,$(1)),-L$$(LIB) -lbinpool) $$(LINK_$(1))

$$(LIB)/lib$(1).so: $$(LIB)/lib$(1).so.$$(LIBPOOL_SONAME)
	ln -sf $$(<F) $$@

$$(LIB)/lib$(1).a: $$(OBJ_$(1))
	@mkdir -p $$(@D)
	rm -f $$@
	$$(AR) rcs $$@ $$^

$$(LIB)/pkgconfig/$(1).pc: libpool/build.mk
	@mkdir -p $$(@D)
	printf '%s\n' 'prefix=$$(PREFIX)' 'libdir=$$$${prefix}/lib' \
		'includedir=$$$${prefix}/include' '' 'Name: $(1)' 'Description: $$(DESC_$(1))' \
		'Version: $$(LIBPOOL_VERSION)' 'Cflags: -I$$$${includedir}' \
		'Libs: -L$$$${libdir} -l$(1)' \
		$(if $(filter-out binpool,$(1)),'Requires: binpool' )'Libs.private: $$(LINK_$(1))' >$$@
endef
$(foreach part,$(LIBPOOL_PARTS),$(eval $(call libpool_part,$(part))))

# libbinpool-preload is for LD_PRELOAD, and nobody links it: it has neither header nor version, and
# links libc only, as each child of a program has it too. It loads what it needs from beside it.
PRELOAD_SO := $(LIB)/libbinpool-preload.so
PRELOAD_MAP := libpool/src/preload/preload.map
PRELOAD_OBJ := $(patsubst libpool/src/%.c,$(LIBPOOL_OBJ)/%.o,$(wildcard libpool/src/preload/*.c))
-include $(PRELOAD_OBJ:.o=.d)

lib: $(PRELOAD_SO)
$(PRELOAD_SO): $(PRELOAD_OBJ) $(PRELOAD_MAP)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(@F) -Wl,--version-script=$(PRELOAD_MAP) \
		-Wl,-z,nodelete,-z,defs,-z,relro -Wl,--enable-new-dtags,-rpath,'$$ORIGIN' \
		-o $@ $(PRELOAD_OBJ) -pthread -ldl

LIBPOOL_DEST = $(DESTDIR)$(PREFIX)

install-lib: lib ## Install libbinpool under DESTDIR and PREFIX
	install -d $(LIBPOOL_DEST)/lib/pkgconfig $(LIBPOOL_DEST)/include/linux
	set -e; for part in $(LIBPOOL_PARTS); do \
		install -m 755 $(LIB)/lib$$part.so.$(LIBPOOL_SONAME) $(LIBPOOL_DEST)/lib/; \
		ln -sf lib$$part.so.$(LIBPOOL_SONAME) $(LIBPOOL_DEST)/lib/lib$$part.so; \
		install -m 644 $(LIB)/lib$$part.a $(LIBPOOL_DEST)/lib/; \
		sed 's|^prefix=.*|prefix=$(PREFIX)|' $(LIB)/pkgconfig/$$part.pc \
			>$(LIBPOOL_DEST)/lib/pkgconfig/$$part.pc; \
	done
	install -m 755 $(PRELOAD_SO) $(LIBPOOL_DEST)/lib/
	install -m 644 $(filter libpool/%,$(foreach part,$(LIBPOOL_PARTS),$(HEADERS_$(part)))) \
		$(LIBPOOL_DEST)/include/
	install -m 644 $(filter uapi/%,$(HEADERS_binpool)) $(LIBPOOL_DEST)/include/linux/

check-lib: lib ## Check that headers, symbol maps and what is exported agree
	set -e; $(foreach part,$(LIBPOOL_PARTS),libpool/check-symbols $(LIB)/lib$(part).so \
		libpool/lib$(part).map $(filter libpool/%,$(HEADERS_$(part)));)

.PHONY: check-abi renew-abi
check-abi: lib ## Check that programs built before run with these libraries
	libpool/abi/check $(BUILD) $(LIBPOOL_PARTS)

renew-abi: lib ## Write what check-abi compares with anew
	libpool/abi/check --renew $(BUILD) $(LIBPOOL_PARTS)
