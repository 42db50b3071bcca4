# The emulator of AMD's gfx942 (tools/rocemu) and its test kernels; included by the Makefile. Debian packages: ROCEMU_PACKAGES.
ROCEMU_PACKAGES := clang-19 lld-19 llvm-19-dev
ROCEMU_LLVM ?= /usr/lib/llvm-19
ROCEMU_CLANG ?= clang-19
ROCEMU_SOURCES := $(wildcard tools/rocemu/*.c)
ROCEMU_OBJECTS := $(ROCEMU_SOURCES:tools/rocemu/%.c=$(BUILD)/rocemu/%.o)
ROCEMU_LIBRARY := $(BUILD)/rocemu/libamdhip64.so
ROCEMU_KERNELS := $(patsubst tests/rocemu/%.c,$(BUILD)/rocemu/%.co,$(wildcard tests/rocemu/*.c))
ROCEMU_CFLAGS := -std=gnu17 -D_GNU_SOURCE -O3 -g -fPIC -fopenmp -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off -fno-math-errno -fno-trapping-math \
	-I$(ROCEMU_LLVM)/include $(WARNINGS) -MMD -MP
ROCEMU_DEVICE_FLAGS := -std=gnu17 -O2 -target amdgcn-amd-amdhsa -mcpu=gfx942 -nogpulib -ffreestanding -fvisibility=hidden

$(BUILD)/rocemu/%.o: tools/rocemu/%.c
	@mkdir -p $(@D)
	@echo "  CC $@"
	@$(CC) $(ROCEMU_CFLAGS) -c -o $@ $<

$(ROCEMU_LIBRARY): $(ROCEMU_OBJECTS)
	@echo "  LD $@"
	@$(CC) -shared -fopenmp -Wl,-soname,libamdhip64.so -Wl,-z,defs -o $@ $^ -L$(ROCEMU_LLVM)/lib -Wl,-rpath,$(ROCEMU_LLVM)/lib -lLLVM-19 -lm -lpthread

$(BUILD)/rocemu/%.co: tests/rocemu/%.c
	@mkdir -p $(@D)
	@echo "  DEVICE $@"
	@$(ROCEMU_CLANG) $(ROCEMU_DEVICE_FLAGS) -o $@ $<

-include $(ROCEMU_OBJECTS:.o=.d)
