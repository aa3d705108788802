# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# A libcuda.so.1 without a device, for tests of `binpool` and of amounts (soft_cuda.c).

SOFT_CUDA := $(BUILD)/tests/soft_cuda/libcuda.so.1
SOFT_CUDA_OBJ := $(BUILD)/obj/tests/soft_cuda
SOFT_CUDA_OBJS := $(addprefix $(SOFT_CUDA_OBJ)/,soft_cuda.o fill.o streams.o checksum.o)

$(SOFT_CUDA_OBJ)/%.o: tests/soft_cuda/%.c
	@mkdir -p $(@D)
	$(CC) $(USER_CFLAGS) -fPIC -fvisibility=hidden $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

# The kernel that it runs is what `binpool` itself compares with.
$(SOFT_CUDA_OBJ)/checksum.o: tools/binpool/checksum.c
	@mkdir -p $(@D)
	$(CC) $(USER_CFLAGS) -Ilibpool/include -fPIC -fvisibility=hidden $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(SOFT_CUDA): $(SOFT_CUDA_OBJS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(@F) -o $@ $^

-include $(wildcard $(SOFT_CUDA_OBJ)/*.d)

unit: $(SOFT_CUDA)
.PHONY: soft-cuda
soft-cuda: $(SOFT_CUDA)
