# The emulator of AMD's gfx942 (tools/rocemu), its tests, and those of everything that runs on a GPU: `make test-amd` on the emulator, which is part of `make test`,
# and `make test-gpu` on a real card. The Makefile includes this file after its own rules.
ROCEMU_PACKAGES := llvm-19-dev binutils
TEST_PACKAGES += $(ROCEMU_PACKAGES)
ROCEMU_LLVM ?= /usr/lib/llvm-19
ROCEMU_SOURCES := $(wildcard tools/rocemu/*.c)
ROCEMU_OBJECTS := $(ROCEMU_SOURCES:tools/rocemu/%.c=$(BUILD)/rocemu/%.o)
ROCEMU_LIBRARY := $(BUILD)/rocemu/libamdhip64.so
ROCEMU_KERNELS := $(patsubst tests/rocemu/kernels/%.c,$(BUILD)/rocemu/%.co,$(wildcard tests/rocemu/kernels/*.c))
ROCEMU_CFLAGS := -std=gnu17 -D_GNU_SOURCE -O3 -g -fPIC -fopenmp -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off -fno-math-errno -fno-trapping-math \
	-I$(ROCEMU_LLVM)/include $(WARNINGS) -MMD -MP
ROCEMU_DEVICE_FLAGS := -std=gnu17 -O2 -target amdgcn-amd-amdhsa -mcpu=gfx942 -nogpulib -ffreestanding -fvisibility=hidden

# Programs that run on the GPU of SMELT_TEST_DEVICE, the slowest first; on a real card the vendor's GEMM too, which the emulator does not have.
DEVICE_TEST_SOURCES := $(addprefix tests/,train/test_train_gpu.c model/test_model_gpu.c optim/test_optim.c optim/test_muon_ranks.c optim/test_pure_bf16.c graph/test_in_place.c bench/test_stream.c \
	$(addprefix backend/gpu/,test_gpu_gemm.c test_gpu_gemm_fp8.c test_cast.c test_normals.c)) $(sort $(wildcard tests/ops/test_*.c))
DEVICE_TESTS := $(DEVICE_TEST_SOURCES:%.c=$(BUILD)/%)
ROCEMU_TESTS := $(DEVICE_TESTS) $(BUILD)/tests/rocemu/test_rocemu $(BUILD)/tests/rocemu/test_rocemu_hip
CARD_TESTS := $(DEVICE_TESTS) $(BUILD)/tests/backend/gpu/test_vendor_gemm
DEVICE ?= hip

$(BUILD)/rocemu/%.o: tools/rocemu/%.c
	@mkdir -p $(@D)
	@echo "  CC $@"
	@$(CC) $(ROCEMU_CFLAGS) -c -o $@ $<

$(ROCEMU_LIBRARY): $(ROCEMU_OBJECTS)
	@echo "  LD $@"
	@$(CC) -shared -fopenmp -Wl,-soname,libamdhip64.so -Wl,-z,defs -o $@ $^ -L$(ROCEMU_LLVM)/lib -Wl,-rpath,$(ROCEMU_LLVM)/lib -lLLVM-19 -lm -lpthread

$(BUILD)/rocemu/%.co: tests/rocemu/kernels/%.c
	@mkdir -p $(@D)
	@echo "  GPU $@"
	@$(GPU_CC) $(ROCEMU_DEVICE_FLAGS) -MMD -MF $@.d -o $@ $<

.PHONY: test-amd run-test-amd test-gpu run-test-gpu

test-amd: packages ## run every AMD kernel instruction by instruction on an emulated MI300X (part of make test)
	@tools/install-packages.sh $(TEST_PACKAGES)
	@$(MAKE) --no-print-directory -s -j$(JOBS) run-test-amd

ROCEMU_SUITE := tools/rocemu/test.sh $(BUILD)/rocemu $(ROCEMU_LLVM)/bin/llvm-objdump $(filter %.gfx942 %.gfx90a,$(GPU_OBJECTS)) $(ROCEMU_TESTS)
ROCEMU_READY := $(ROCEMU_TESTS) $(ROCEMU_LIBRARY) $(ROCEMU_KERNELS) $(BUILD)/smelt

run-test-amd: $(ROCEMU_READY)
	@SMELT=$(BUILD)/smelt tests/support/run.sh -s "$(ROCEMU_SUITE)"

# Sanitizers are for the host's code; the emulator's memory is a range that theirs would overlap.
ifeq (,$(SANITIZE))
run-tests: $(ROCEMU_READY)
SUITE := -s "$(ROCEMU_SUITE)"
endif

test-gpu: packages ## on a machine with a GPU: run all that is tested there, into build/test-gpu.txt (DEVICE=hip, cuda)
	@tools/install-packages.sh $(filter-out $(ROCEMU_PACKAGES),$(TEST_PACKAGES))
	@$(MAKE) --no-print-directory -s -j$(JOBS) run-test-gpu

run-test-gpu: $(CARD_TESTS) $(BUILD)/smelt
	@SMELT=$(BUILD)/smelt tools/rocemu/test-card.sh $(DEVICE) $(BUILD)/test-gpu.txt $(CARD_TESTS)

-include $(ROCEMU_OBJECTS:.o=.d) $(ROCEMU_KERNELS:=.d)
