# The emulator of AMD's GPUs (tools/rocemu), its tests, and those of everything that runs on a GPU: `make test-amd` on the emulator, which is part of `make test`,
# and `make test-gpu` on a real card. The Makefile includes this file after its own rules.
# The disassembler has to know gfx950: LLVM 20 or later, of another folder where a system has another version.
ROCEMU_LLVM_VERSION ?= 22
ROCEMU_PACKAGES := llvm-$(ROCEMU_LLVM_VERSION)-dev binutils
TEST_PACKAGES += $(ROCEMU_PACKAGES)
ROCEMU_LLVM ?= /usr/lib/llvm-$(ROCEMU_LLVM_VERSION)
# The libraries above the runtime are files of their own, in a folder of their own: without them smelt's kernels do all GEMMs.
ROCEMU_ABOVE := hipblaslt rccl
ROCEMU_SOURCES := $(filter-out $(ROCEMU_ABOVE:%=tools/rocemu/%.c),$(wildcard tools/rocemu/*.c))
ROCEMU_OBJECTS := $(ROCEMU_SOURCES:tools/rocemu/%.c=$(BUILD)/rocemu/%.o)
ROCEMU_LIBRARY := $(BUILD)/rocemu/libamdhip64.so
# gfx90a does not have all instructions of the kernels of test_rocemu.
ROCEMU_TARGETS := $(filter gfx942 gfx90a gfx950,$(GPU_TARGETS))
ROCEMU_KERNELS := $(foreach t,$(filter-out gfx90a,$(ROCEMU_TARGETS)),$(patsubst tests/rocemu/kernels/%.c,$(BUILD)/rocemu/$t/%.co,$(wildcard tests/rocemu/kernels/*.c))) \
	$(patsubst %,$(BUILD)/rocemu/gfx90a/%.co,$(if $(filter gfx90a,$(ROCEMU_TARGETS)),arrivals basic faults hazards memory undefined))
ROCEMU_CFLAGS := -std=gnu17 -D_GNU_SOURCE -O3 -g -fPIC -fopenmp -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off -fno-math-errno -fno-trapping-math \
	-I$(ROCEMU_LLVM)/include $(WARNINGS) -MMD -MP
ROCEMU_DEVICE_FLAGS := -std=gnu17 -O2 -target amdgcn-amd-amdhsa -nogpulib -ffreestanding -fvisibility=hidden

# Programs that run on the GPU of SMELT_TEST_DEVICE, the slowest first; on a real card the vendor's GEMM too, which the emulator does not have.
DEVICE_TEST_SOURCES := $(addprefix tests/,train/test_train_gpu.c train/test_offload_runs.c model/test_model_gpu.c model/test_flux.c optim/test_optim.c optim/test_adamw_8bit.c optim/test_muon_ranks.c optim/test_pure_bf16.c graph/test_in_place.c engine/test_exact.c engine/test_adapters.c bench/test_stream.c \
	$(addprefix backend/gpu/,test_gpu_gemm.c test_gpu_gemm_fp8.c test_cast.c test_normals.c)) $(sort $(wildcard tests/ops/test_*.c))
DEVICE_TESTS := $(DEVICE_TEST_SOURCES:%.c=$(BUILD)/%)
ROCEMU_TESTS := $(DEVICE_TESTS) $(BUILD)/tests/rocemu/test_rocemu $(BUILD)/tests/rocemu/test_rocemu_hip $(BUILD)/tests/rocemu/test_rocm_libraries \
	$(BUILD)/tests/rocemu/test_cycles $(BUILD)/tests/rocemu/test_timing $(BUILD)/tests/rocemu/test_card_report
CARD_TESTS := $(DEVICE_TESTS) $(BUILD)/tests/backend/gpu/test_vendor_gemm
CARD_PROGRAMS := $(BUILD)/tests/backend/gpu/test_kernel_rates $(BUILD)/tests/comm/test_capture $(BUILD)/smelt
DEVICE ?= hip

$(BUILD)/flags/rocemu: export TEXT := $(CC) $(ROCEMU_CFLAGS)
$(BUILD)/rocemu/%.o: tools/rocemu/%.c $(BUILD)/flags/rocemu
	@mkdir -p $(@D)
	@echo "  CC $@"
	@$(CC) $(ROCEMU_CFLAGS) -c -o $@ $<

$(ROCEMU_LIBRARY): $(ROCEMU_OBJECTS)
	@echo "  LD $@"
	@$(CC) -shared -fopenmp -Wl,-soname,libamdhip64.so -Wl,-z,defs -o $@ $^ -L$(ROCEMU_LLVM)/lib -Wl,-rpath,$(ROCEMU_LLVM)/lib -lLLVM-$(ROCEMU_LLVM_VERSION) -lm -lpthread

ROCEMU_ABOVE_LIBRARIES := $(BUILD)/rocemu/rocm/libhipblaslt.so $(BUILD)/rocemu/rocm/librccl.so.1
$(BUILD)/rocemu/rocm/libhipblaslt.so: tools/rocemu/hipblaslt.c
$(BUILD)/rocemu/rocm/librccl.so.1: tools/rocemu/rccl.c
$(ROCEMU_ABOVE_LIBRARIES): $(ROCEMU_LIBRARY)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(ROCEMU_CFLAGS) -Isrc -MF $@.d -MT $@ -shared -Wl,-soname,$(@F) -Wl,-z,defs -o $@ $(filter %.c,$^) $(ROCEMU_LIBRARY)

# Looks at the emulator's own structures, so its objects are linked in.
$(BUILD)/tests/rocemu/test_undefined.o: BASE_FLAGS += -Itools/rocemu
$(BUILD)/tests/rocemu/test_undefined: LIBRARIES += -L$(ROCEMU_LLVM)/lib -Wl,-rpath,$(ROCEMU_LLVM)/lib -lLLVM-$(ROCEMU_LLVM_VERSION)
$(BUILD)/tests/rocemu/test_undefined: $(ROCEMU_OBJECTS)
# test_card_report runs these programs.
$(BUILD)/tests/rocemu/test_card_report: | $(BUILD)/tests/ops/test_activation $(BUILD)/tests/backend/gpu/test_kernel_rates $(BUILD)/tests/comm/test_capture

define ROCEMU_KERNEL_RULE
$(BUILD)/rocemu/$(1)/%.co: tests/rocemu/kernels/%.c $(BUILD)/flags/$(1)
	@mkdir -p $$(@D)
	@echo "  GPU $$@"
	@$$(call gpu_cc,$(1)) $$(ROCEMU_DEVICE_FLAGS) -mcpu=$(1) -MMD -MF $$@.d -o $$@ $$<

$(BUILD)/rocemu/$(1)/timing.co: tests/rocemu/kernels/timing.c $(BUILD)/flags/$(1) tools/bound-kernels.awk
	@mkdir -p $$(@D)
	@echo "  GPU $$@"
	@$$(call gpu_cc,$(1)) $$(ROCEMU_DEVICE_FLAGS) -mcpu=$(1) -Xclang -disable-llvm-passes -emit-llvm -S -o $$@.ll $$<
	@awk -f tools/bound-kernels.awk $$@.ll >$$@.bound.ll
	@$$(call gpu_cc,$(1)) -O2 -target amdgcn-amd-amdhsa -mcpu=$(1) -nogpulib -o $$@ $$@.bound.ll
endef
$(foreach t,$(ROCEMU_TARGETS),$(eval $(call ROCEMU_KERNEL_RULE,$t)))

.PHONY: test-amd run-test-amd test-gpu run-test-gpu amd-cycles amd-model

test-amd: packages ## run every AMD kernel instruction by instruction on emulated GPUs (part of make test)
	@tools/install-packages.sh $(TEST_PACKAGES)
	@$(MAKE) --no-print-directory -s -j$(JOBS) run-test-amd

# The table of modeled cycles says which compiler made the kernels.
CYCLES_TARGETS := $(filter gfx942 gfx90a gfx950,$(GPU_TARGETS))
CYCLES_COMPILERS = $(foreach t,$(CYCLES_TARGETS),CYCLES_COMPILER_$t='$(shell $(call gpu_cc,$t) --version | head -n 1)')
CYCLES_READY := $(BUILD)/tests/rocemu/test_cycles $(ROCEMU_LIBRARY) $(BUILD)/smelt
MODEL_CASES ?= all

amd-cycles: $(CYCLES_READY) ## write the table of modeled cycles anew that tests compare with (tests/rocemu/cycles.csv)
	@$(CYCLES_COMPILERS) tools/rocemu/cycles.sh tests/rocemu/cycles.csv small $(BUILD)/rocemu $< $(CYCLES_TARGETS)

amd-model: $(CYCLES_READY) ## model the hot kernels at the shapes of Llama and ZAYA1 on AMD GPUs, into build/amd-model.csv (MODEL_CASES=gemm: some)
	@ROCEMU_TIME_RANGE=1 $(CYCLES_COMPILERS) tools/rocemu/cycles.sh $(BUILD)/amd-model.csv "$(MODEL_CASES)" $(BUILD)/rocemu $< $(CYCLES_TARGETS)
	@column -s , -t $(BUILD)/amd-model.csv

ROCEMU_SUITE = $(CYCLES_COMPILERS) ROCEMU_MCA=$(ROCEMU_LLVM)/bin/llvm-mca tools/rocemu/test.sh $(BUILD)/rocemu $(ROCEMU_LLVM)/bin/llvm-objdump $(AMD_OBJECTS) $(ROCEMU_TESTS)
ROCEMU_READY := $(ROCEMU_TESTS) $(ROCEMU_LIBRARY) $(ROCEMU_ABOVE_LIBRARIES) $(ROCEMU_KERNELS) $(BUILD)/smelt

run-test-amd: $(ROCEMU_READY)
	@SMELT=$(BUILD)/smelt tests/support/run.sh -s "$(ROCEMU_SUITE)"

# Sanitizers are for the host's code; the emulator's memory is a range that theirs would overlap.
ifeq (,$(SANITIZE))
run-tests: $(ROCEMU_READY)
SUITE = -s "$(ROCEMU_SUITE)"
endif

test-gpu: packages ## on a machine with a GPU: test all that runs there, and measure, into build/test-gpu.txt and .json (DEVICE=hip, cuda; MINUTES=30, 5: a first look)
	@tools/install-packages.sh libcmocka-dev # alone: a package that a system lacks would end the command
	@$(MAKE) --no-print-directory -s -j$(JOBS) run-test-gpu

run-test-gpu: $(CARD_TESTS) $(CARD_PROGRAMS)
	@BUILD=$(BUILD) COVERAGE=whole $(CYCLES_COMPILERS) tools/test-gpu $(DEVICE) $(BUILD)/test-gpu $(CARD_TESTS)

-include $(ROCEMU_OBJECTS:.o=.d) $(ROCEMU_KERNELS:=.d)
