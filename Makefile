# smelt. `make help` lists the targets.
.DEFAULT_GOAL = $(BUILD)/smelt

BUILD ?= build
SANITIZE ?=
# Tests of smelt are strict, and so is each later build in the same folder; a user whose compiler is newer or older gets the program, and warnings.
export WERROR ?= $(if $(filter check test test-amd test-asan test-tsan,$(MAKECMDGOALS)),-Werror,$(filter -Werror,$(file <$(BUILD)/flags/host)))
WARNINGS := -Wall -Wextra -Wno-missing-field-initializers -Werror=implicit-function-declaration $(WERROR)
CFLAGS ?= -O2 -g
# clang warns of an `omp simd` loop that it cannot vectorize for the baseline instruction set: that is no fault.
BASE_FLAGS := -std=gnu17 -D_GNU_SOURCE -Isrc $(WARNINGS) $(if $(findstring clang,$(CC)),-Wno-pass-failed) -fopenmp -MMD -MP $(SANITIZE)
LIBRARIES := -fopenmp -lyaml -ljansson -lxxhash -lpcre2-8 -lutf8proc -lcrypto -lz -lzstd -llzma -ldl -lm -lpthread

PACKAGES := gcc libc6-dev libssl-dev libcurl4-openssl-dev libyaml-dev libjansson-dev libmicrohttpd-dev libxxhash-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev liblzma-dev python3 python3-venv clang-19? lld-19?
TEST_PACKAGES := libcmocka-dev man-db libdnnl-dev openmpi-bin openssl shellcheck curl libcurl4 libmicrohttpd12 swift-proxy swift-account swift-container swift-object librocm-smi64-1
# The real headers and runtime of ROCm, which smelt's tables are compared with. Not for machines that have ROCm itself.
ROCM_PACKAGES := g++ libamdhip64-dev librocm-smi-dev
TEST_PACKAGES += $(ROCM_PACKAGES)
BROWSER_PACKAGES := chromium-headless-shell
CHECK_PACKAGES := patch clang-19 clang-tidy-19 libomp-19-dev
TSAN_PACKAGES := clang-19 llvm-19 libclang-rt-19-dev libomp-19-dev
FUZZ_PACKAGES := clang-19 llvm-19 libclang-rt-19-dev libomp-19-dev
DEMO_PACKAGES := bible-kjv bible-kjv-text xz-utils
JOBS := $(shell nproc)

# CPU kernels are compiled once per precision and instruction set; the program picks at run time (src/base/cpu_isa.h).
KERNEL_FLAGS := -O3 -fno-math-errno -fno-trapping-math
FLAGS_generic :=
FLAGS_avx2 := -march=x86-64-v3
FLAGS_avx512 := -march=x86-64-v4 -mprefer-vector-width=512
FLAGS_avx512vnni := $(FLAGS_avx512) -mavx512vnni
FLAGS_avx512bf16 := $(FLAGS_avx512) -mavx512bf16
FLAGS_fp32 := -DKERNEL_FP32
FLAGS_bf16 := -DKERNEL_BF16
FLAGS_fp64 := -DKERNEL_FP64
VARIANTS := generic_fp32 generic_bf16 generic_fp64
GEMM_VARIANTS := generic_fp32 generic_fp64
ifneq (,$(filter x86_64-%,$(shell $(CC) -dumpmachine 2>/dev/null)))
VARIANTS += avx2_fp32 avx2_bf16 avx512_fp32 avx512_bf16
GEMM_VARIANTS += avx2_fp32 avx2_fp64 avx512_fp32 avx512_fp64 avx512vnni_bf16 avx512bf16_bf16
endif

# GPU kernels are compiled by clang once per target, and embedded (src/backend/gpu/driver.h), each by the first of these that knows it, else by the clang of
# PyPI's ziglang. GPU_CC is another clang to be asked first. Of the default targets those are left out that nothing here compiles; a list that names one is refused.
GPU_CC ?=
GPU_TARGETS ?= gfx90a gfx942 gfx950 sm_80 sm_90a
ifneq (,$(and $(GPU_TARGETS),$(filter-out help clean packages uninstall,$(or $(MAKECMDGOALS),smelt))))
GPU_COMPILERS := $(shell tools/gpu-compilers.sh "$(GPU_TARGETS)" $(GPU_CC) clang-19 /opt/rocm/llvm/bin/clang clang-22 clang-21 clang-20 clang)
GPU_LEFT_OUT := $(filter-out $(foreach c,$(GPU_COMPILERS),$(firstword $(subst =, ,$c))),$(GPU_TARGETS))
ifneq (,$(GPU_LEFT_OUT))
ifneq (file,$(origin GPU_TARGETS))
$(error GPU_TARGETS has $(GPU_LEFT_OUT), for which there is no compiler here; make GPU_TARGETS= builds for CPUs alone)
endif
GPU_TARGETS := $(filter-out $(GPU_LEFT_OUT),$(GPU_TARGETS))
endif
endif
gpu_cc = $(patsubst $1=%,%,$(filter $1=%,$(GPU_COMPILERS)))
GPU_FLAGS = -std=gnu17 -O3 $(WARNINGS) -DGPU_DEVICE -Isrc -nogpulib -ffreestanding -MMD -MP -MT $@ -MF $@.d
# A code object is named after its file: src/ops/norm/gpu.c is `norm`, src/ops/norm/qk_gpu.c `norm_qk`, src/backend/gpu/cast.c `cast`.
GPU_SOURCES := $(shell grep -lE '^(FLAT_|UNIT_|HOPPER_)?KERNEL|^ +KERNEL[^_A-Z]' src/*/*.c src/*/*/*.c)
gpu_module = $(subst /,_,$(patsubst %/gpu,%,$(patsubst %_gpu,%,$(patsubst src/backend/gpu/%.c,%,$(patsubst src/ops/%.c,%,$(patsubst src/bench/%.c,%,$(patsubst src/optim/%.c,%,$1)))))))
GPU_MODULES := $(foreach s,$(GPU_SOURCES),$(call gpu_module,$s))
GPU_OBJECTS := $(foreach t,$(GPU_TARGETS),$(GPU_MODULES:%=$(BUILD)/gpu/%.$t))
AMD_OBJECTS := $(filter %.gfx90a %.gfx942 %.gfx950,$(GPU_OBJECTS))

# Everything in src/ but main.c is the library that tests link; CPU kernels are one object per variant.
KERNEL_SOURCES := src/backend/cpu/cpu_kernel_table.c $(wildcard src/ops/*/*cpu.c src/optim/*_cpu.c)
GEMM_KERNEL := src/backend/cpu/cpu_gemm_kernel.c
NORMALS_KERNEL := src/base/normals_batch.c
HOST_SOURCES := $(filter-out src/app/main.c $(KERNEL_SOURCES) $(GEMM_KERNEL) $(NORMALS_KERNEL),$(wildcard src/*/*.c src/*/*/*.c))
HOST_OBJECTS := $(HOST_SOURCES:src/%.c=$(BUILD)/%.o)
variants_of = $(foreach v,$2,$(1:src/%.c=$(BUILD)/%.$v.o))
KERNEL_OBJECTS := $(call variants_of,$(KERNEL_SOURCES),$(VARIANTS)) $(call variants_of,$(GEMM_KERNEL),$(GEMM_VARIANTS)) \
                  $(call variants_of,$(NORMALS_KERNEL),$(filter %_fp32,$(VARIANTS)))
LIBRARY := $(BUILD)/libsmelt.a

# A file in flags/ records the command that compiles a kind of objects; the files `library` and `targets` record the members of the library and the GPU objects.
# Make writes such a file when its text changes, so other flags, compilers, targets or sources rebuild what depends on it. TEXT lacks the flags of single objects.
RECORDS := host kernels library targets rocemu $(GPU_TARGETS)
$(BUILD)/flags/host: export TEXT := $(CC) $(BASE_FLAGS) $(CFLAGS)
$(BUILD)/flags/kernels: export TEXT := $(KERNEL_FLAGS) $(foreach v,$(sort $(subst _, ,$(VARIANTS) $(GEMM_VARIANTS))),$v: $(FLAGS_$v))
$(BUILD)/flags/library: export TEXT := $(HOST_OBJECTS) $(KERNEL_OBJECTS)
$(BUILD)/flags/targets: export TEXT := $(GPU_OBJECTS)
$(foreach t,$(GPU_TARGETS),$(eval $(BUILD)/flags/$t: export TEXT := $(call gpu_cc,$t) $(GPU_FLAGS)))
$(RECORDS:%=$(BUILD)/flags/%): FORCE
	@mkdir -p $(@D)
	@printf '%s\n' "$$TEXT" | cmp -s - $@ || printf '%s\n' "$$TEXT" >$@

# `smelt --version` names the commit: that of a tarball (COMMIT, made by `make dist`), else git's, also where another user builds (sudo make install). main.o is compiled anew when it changes.
COMMIT := $(shell cat COMMIT 2>/dev/null || git -c safe.directory='*' describe --always --dirty --abbrev=12 2>/dev/null)
$(BUILD)/app/main.o: OWN_FLAGS := -DSMELT_COMMIT='"$(COMMIT)"' -DSMELT_GPU_TARGETS='"$(strip $(GPU_TARGETS))"'
$(BUILD)/app/main.o: $(BUILD)/built-from
$(BUILD)/built-from: FORCE
	@mkdir -p $(@D)
	@echo '$(COMMIT) $(GPU_TARGETS)' | cmp -s - $@ || { echo '$(COMMIT) $(GPU_TARGETS)' >$@; \
	    echo "  GPU kernels: $(or $(GPU_COMPILERS:=;),none)"; $(if $(GPU_LEFT_OUT),echo "  left out: $(GPU_LEFT_OUT)";) }

# It is replaced at once: a rank or a test that is started while the linker writes finds the program before or the next.
$(BUILD)/smelt: $(BUILD)/app/main.o $(LIBRARY)
	@echo "  LD $@"
	@$(CC) $(SANITIZE) -rdynamic -o $@.new $^ $(LIBRARIES) && mv $@.new $@

$(LIBRARY): $(HOST_OBJECTS) $(KERNEL_OBJECTS) $(BUILD)/gpu/objects.o $(BUILD)/flags/library
	@rm -f $@
	@ar rcs $@ $(filter %.o,$^)

$(BUILD)/%.o: src/%.c $(BUILD)/flags/host
	@mkdir -p $(@D)
	@echo "  CC $@"
	@$(CC) $(BASE_FLAGS) $(if $(filter $<,$(GPU_SOURCES)),-DGPU_MODULE='"$(call gpu_module,$<)"') $(CFLAGS) $(OWN_FLAGS) -c -o $@ $<

# These hold other files.
$(BUILD)/app/example.o: $(wildcard configs/*) tools/encode-images.py
$(BUILD)/rl/reward_program.o: src/rl/reward_shim.py
$(BUILD)/rl/reward_code.o: src/rl/reward_driver.py
$(BUILD)/report/page_files.o: src/report/page.css src/report/page.js src/report/watch.js
# A page in a file runs the script with this hash alone.
$(BUILD)/report/report.o: OWN_FLAGS = -DPAGE_SCRIPT_HASH='"$(shell sha256sum <src/report/page.js | cut -c1-64 | tr a-f A-F | basenc -d --base16 | base64)"'
$(BUILD)/report/report.o: src/report/page.js

# The same random numbers by any instruction set.
$(BUILD)/base/rng.o: OWN_FLAGS := -O3 -ffp-contract=off -fno-math-errno
$(NORMALS_KERNEL:src/%.c=$(BUILD)/%).%.o: KERNEL_FLAGS += -ffp-contract=off

define KERNEL_RULE
$(BUILD)/%.$(1).o: src/%.c $(BUILD)/flags/host $(BUILD)/flags/kernels
	@mkdir -p $$(@D)
	@echo "  CC $$@"
	@$$(CC) $$(BASE_FLAGS) $$(CFLAGS) $$(KERNEL_FLAGS) -DKERNEL_VARIANT=$(1) $$(FLAGS_$(word 1,$(subst _, ,$(1)))) $$(FLAGS_$(word 2,$(subst _, ,$(1)))) -c -o $$@ $$<
endef
$(foreach v,$(sort $(VARIANTS) $(GEMM_VARIANTS)),$(eval $(call KERNEL_RULE,$v)))

# On AMD the sizes of blocks pass through LLVM's text, since C has no attribute for them.
$(BUILD)/gpu/%: AMD_FLAGS = -target amdgcn-amd-amdhsa -mcpu=$(patsubst .%,%,$(suffix $@)) -mcode-object-version=5 -fvisibility=hidden
define GPU_RULE
$(BUILD)/gpu/$(call gpu_module,$(2)).$(1): $(2) $(BUILD)/flags/$(1) $(if $(filter gfx%,$(1)),tools/bound-kernels.awk)
	@mkdir -p $$(@D)
	@echo "  GPU $$@"
ifneq (,$(filter gfx%,$(1)))
	@$$(call gpu_cc,$(1)) $$(GPU_FLAGS) $$(AMD_FLAGS) -Xclang -disable-llvm-passes -emit-llvm -S $$< -o $$@.ll
	@awk -f tools/bound-kernels.awk $$@.ll >$$@.bound.ll
	@$$(call gpu_cc,$(1)) -O3 $$(AMD_FLAGS) -nogpulib $$@.bound.ll -o $$@
else
	@$$(call gpu_cc,$(1)) $$(GPU_FLAGS) -DGPU_SM=$(patsubst sm_%,%,$(1:a=)) -target nvptx64-nvidia-cuda -march=$(1) --cuda-feature=+ptx$(if $(filter sm_9%,$(1)),83,74) -S $$< -o $$@
endif
endef
$(foreach t,$(GPU_TARGETS),$(foreach s,$(GPU_SOURCES),$(eval $(call GPU_RULE,$t,$s))))

$(BUILD)/gpu/objects.c: $(GPU_OBJECTS) $(BUILD)/flags/targets
	@mkdir -p $(@D)
	@tools/embed-objects.sh $(GPU_OBJECTS) > $@

$(BUILD)/gpu/objects.o: $(BUILD)/gpu/objects.c $(GPU_OBJECTS) $(BUILD)/flags/host
	@$(CC) $(BASE_FLAGS) $(CFLAGS) -c -o $@ $<

# Tests mirror src/: each test_*.c is a program, linked with the library and tests/support: without what it does not use, by a quick linker where one is.
TEST_SOURCES := $(sort $(wildcard tests/*/test_*.c tests/*/*/test_*.c))
TESTS := $(TEST_SOURCES:%.c=$(BUILD)/%)
TEST_LINKER := -Wl,--gc-sections,--wrap=_cmocka_run_group_tests $(if $(shell command -v ld.gold),-fuse-ld=gold)
TEST_SUPPORT := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/support/*.c))

$(BUILD)/tests/%.o: tests/%.c $(BUILD)/flags/host
	@mkdir -p $(@D)
	@echo "  CC $@"
	@$(CC) $(BASE_FLAGS) -Itests $(CFLAGS) -c -o $@ $<

FUZZ_ENTRIES := $(filter-out tests/fuzz/test_%,$(wildcard tests/fuzz/*.c))
$(BUILD)/tests/fuzz/test_corpus: $(FUZZ_ENTRIES:%.c=$(BUILD)/%.o)

$(TESTS): %: %.o $(TEST_SUPPORT) $(LIBRARY) $(BUILD)/smelt
	@echo "  LD $@"
	@$(CC) $(SANITIZE) $(TEST_LINKER) -o $@ $(filter %.o,$^) $(LIBRARY) $(LIBRARIES) -lcmocka

# Makes system calls fail, for tests/reliability/io_faults.py.
FAULT_LAYER := $(BUILD)/tests/reliability/fault_calls
$(BUILD)/tests/reliability/test_io_faults: | $(FAULT_LAYER)
$(FAULT_LAYER): %: %.o $(BUILD)/tests/support/system_calls.o $(LIBRARY)
	@echo "  LD $@"
	@$(CC) $(SANITIZE) $(TEST_LINKER) -o $@ $^ $(LIBRARIES)

# The test installs the wheel. A build with sanitizers makes no wheel.
$(BUILD)/tests/packaging/test_python: | $(if $(SANITIZE),,$(BUILD)/wheel/made)

.SECONDARY:
.DELETE_ON_ERROR:
.PHONY: FORCE help check check-amd host-objects test test-quick run-test run-rooms test-asan test-tsan coverage bench-gate test-browser screenshots test-cluster test-ranks run-tests test-faults fuzz run-fuzz demo packages gpu-report clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

packages: ## install the Debian packages that building needs
	@tools/install-packages.sh $(PACKAGES)

demo: packages ## install what is missing, build, train a small ZAYA1 on real text, report, generate (under 6 minutes on 2 cores)
	@tools/install-packages.sh $(DEMO_PACKAGES)
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(BUILD)/smelt
	@tools/demo.sh $(BUILD)/smelt $(BUILD)/demo

check: packages ## what takes no running program: format, structure, documents, clang as host compiler, clang-tidy, waits of AMD kernels
	@tools/install-packages.sh $(CHECK_PACKAGES) $(if $(AMD_OBJECTS),$(ROCEMU_PACKAGES))
	@tools/format.sh --check
	@tools/check-structure
	@tools/check-docs
	@tools/test-faults --check
	@$(MAKE) --no-print-directory -s -j$(JOBS) host-objects BUILD=$(BUILD)/clang CC=clang-19 CFLAGS=-O0 KERNEL_FLAGS=-O0 # warnings do not depend on it
	@echo "clang: every host file compiles without warnings"
	@tools/check-tidy $(BASE_FLAGS) $(FLAGS_fp32) -DKERNEL_VARIANT=generic_fp32 -- $(HOST_SOURCES) src/app/main.c $(KERNEL_SOURCES) $(GEMM_KERNEL) $(NORMALS_KERNEL)
	@$(MAKE) --no-print-directory -s -j$(JOBS) check-amd

check-amd: $(AMD_OBJECTS)
	@$(if $^,tools/check-waits $(ROCEMU_LLVM)/bin/llvm-objdump $^)
	@$(if $^,tools/check-hazards $(ROCEMU_LLVM)/bin/llvm-objdump $^)

host-objects: $(HOST_OBJECTS) $(KERNEL_OBJECTS) $(BUILD)/app/main.o

# T=layout/test_mixed runs one program, T=layout/test_mixed:mixtral its cases with that in their names; no other checks.
test: packages $(if $(T),,check) ## install what is missing, check, build, run every test; T=layout/test_mixed:mixtral for one case
	@tools/install-packages.sh $(TEST_PACKAGES)
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(if $(T),run-test T=$(T),run-tests)

test-quick: packages ## the tests of single rooms, without ranks, launches and emulated GPUs (a minute, once built)
	@tools/install-packages.sh $(TEST_PACKAGES)
	@$(MAKE) --no-print-directory -s -j$(JOBS) run-rooms ROOMS="$(QUICK_ROOMS)"

test-asan: packages ## the same tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/install-packages.sh $(TEST_PACKAGES)
	@$(MAKE) --no-print-directory -s -j$(JOBS) run-tests BUILD=$(BUILD)/asan SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover=all" CFLAGS="-O1 -g"

# By clang and LLVM's OpenMP, whose tool library tells ThreadSanitizer of its barriers: gcc's OpenMP gives false reports.
test-tsan: packages ## tests of rooms with threads under ThreadSanitizer; ROOMS="train layout" for others
	@tools/install-packages.sh $(TEST_PACKAGES) $(TSAN_PACKAGES)
	@tools/test-tsan $(BUILD)/tsan /usr/lib/llvm-19/lib/libarcher.so $(MAKE) --no-print-directory -s -j$(JOBS) run-rooms ROOMS="$(or $(ROOMS),$(TSAN_ROOMS))" \
	    BUILD=$(BUILD)/tsan GPU_TARGETS= CC=clang-19 SANITIZE="-fsanitize=thread -D__SANITIZE_THREAD__" CFLAGS="-O1 -g"

# clang's counters, merged per program while tests run. CPUs alone: kernels of GPUs are not host code.
coverage: packages ## lines of src/ that tests run, by room; ROOMS="train layout" for others than test-quick's, ROOMS=all
	@tools/install-packages.sh $(TEST_PACKAGES) $(TSAN_PACKAGES)
	@rm -rf $(BUILD)/coverage/profiles
	@LLVM_PROFILE_FILE=$(abspath $(BUILD)/coverage/profiles)/%4m.profraw $(MAKE) --no-print-directory -s -j$(JOBS) run-rooms ROOMS="$(or $(ROOMS),$(QUICK_ROOMS))" \
	    BUILD=$(BUILD)/coverage GPU_TARGETS= CC=clang-19 SANITIZE="-fprofile-instr-generate -fcoverage-mapping" CFLAGS="-O1 -g"
	@tools/coverage $(BUILD)/coverage $(BUILD)/coverage/files.txt
	@echo "each file's share, the least first: $(BUILD)/coverage/files.txt"

bench-gate: packages ## CPU time of training, generation and packing over that of the commit in bench/gate-base; BASE=COMMIT for another, BASE=self for the noise
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(BUILD)/smelt
	@tools/bench-gate --smelt $(BUILD)/smelt --build $(BUILD)/gate $(if $(BASE),--base $(BASE))

test-faults: packages ## bring faults of the past back, one by one, and see that tests find each (tests/faults)
	@tools/install-packages.sh $(TEST_PACKAGES) patch
	@tools/test-faults $(BUILD)/faults $(FAULT)

fuzz: packages ## every reader of foreign bytes under libFuzzer and sanitizers, MINUTES=10 for each; FUZZ="manifest shard" for some
	@tools/install-packages.sh $(FUZZ_PACKAGES)
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(LIBRARY)
	@$(MAKE) --no-print-directory -s -j$(JOBS) run-fuzz BUILD=$(BUILD)/fuzz KERNELS=$(LIBRARY) CC=clang-19 \
	    SANITIZE="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all" CFLAGS="-O1 -g"

test-cluster: packages ## real Slurm, and nodes as network namespaces: preemption, requeue, dead nodes, cut links (root, 5 minutes)
	@tools/install-packages.sh slurm-wlm iproute2
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(BUILD)/smelt
	@tests/cluster/slurm.sh $(BUILD)/smelt
	@tests/cluster/network.sh $(BUILD)/smelt

test-ranks: packages ## 64 processes in a mixed layout: they start, train, lose a rank and resume (2 minutes)
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(BUILD)/smelt
	@tests/cluster/mesh.sh $(BUILD)/smelt

test-browser: packages ## the live page, the report and the page of serve in headless Chromium (a minute)
	@tools/install-packages.sh $(BROWSER_PACKAGES)
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(BUILD)/smelt
	@tests/browser/watch.sh $(BUILD)/smelt
	@PYTHONDONTWRITEBYTECODE=1 python3 tests/browser/report.py $(BUILD)/smelt
	@PYTHONDONTWRITEBYTECODE=1 python3 tests/browser/serve.py $(BUILD)/smelt

screenshots: packages ## make the pictures of docs/screenshots anew
	@tools/install-packages.sh $(BROWSER_PACKAGES) tmux aha pngquant fonts-dejavu-core fonts-freefont-ttf
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(BUILD)/smelt
	@tools/screenshots $(BUILD)/smelt docs/screenshots

# Those that wait more than they compute first, beside the suite; then the longest, so that none of them runs alone at the end.
FIRST_TESTS := launch/test_launch_nodes launch/test_launch train/test_train_nodes launch/test_strangers \
	layout/test_mixed layout/test_layout layout/test_expert_runs train/test_train_power_cut layout/test_pipeline_runs infer/test_generate_ranks
FIRST_TESTS := $(filter $(TESTS),$(FIRST_TESTS:%=$(BUILD)/tests/%))

# Programs with cases that run under each instruction set of the CPU (tests/support/each_isa.h).
ISA_TESTS := $(patsubst %.c,$(BUILD)/%,$(shell grep -lw EACH_ISA $(TEST_SOURCES)))

run-tests: $(TESTS)
	@SMELT=$(BUILD)/smelt tests/support/run.sh -j $(JOBS) $(SUITE) -b "$(ISA_TESTS)" $(FIRST_TESTS) $(filter-out $(FIRST_TESTS),$(TESTS))

T_PROGRAM = $(BUILD)/tests/$(firstword $(subst :, ,$T))
run-test: $(if $(T),$(T_PROGRAM))
	@SMELT=$(BUILD)/smelt SMELT_TEST_CASES="$(if $(findstring :,$T),*$(lastword $(subst :, ,$T))*,*)" $(T_PROGRAM)

# The rooms whose tests a target runs; ROOMS chooses others, or all. Code of TSAN_ROOMS starts threads, or has parallel loops that meet them.
QUICK_ROOMS := base chat config data formats fuzz graph infer jinja model ops optim report token
TSAN_ROOMS := base chat ckpt comm data graph infer report run serve token
ROOMS_TESTS := $(if $(filter all,$(ROOMS)),$(TESTS),$(foreach r,$(ROOMS),$(filter $(BUILD)/tests/$r/%,$(TESTS))))
run-rooms: $(ROOMS_TESTS)
	@SMELT=$(BUILD)/smelt tests/support/run.sh -j $(JOBS) $(filter $(ROOMS_TESTS),$(FIRST_TESTS)) $(filter-out $(FIRST_TESTS),$(ROOMS_TESTS))

# Readers are host code: kernels, which nobody fuzzes, are linked from the ordinary library.
FUZZ ?= $(FUZZ_ENTRIES:tests/fuzz/%.c=%)
MINUTES ?= 10

$(BUILD)/libreaders.a: $(HOST_OBJECTS) $(BUILD)/flags/library
	@rm -f $@
	@ar rcs $@ $(HOST_OBJECTS)

$(BUILD)/fuzzers/%: tests/fuzz/%.c tests/fuzz/fuzz.h $(BUILD)/libreaders.a $(KERNELS)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) $(filter-out -MMD -MP,$(BASE_FLAGS)) $(CFLAGS) -fsanitize=fuzzer,address,undefined -o $@ $< $(BUILD)/libreaders.a $(KERNELS) $(LIBRARIES)

run-fuzz: $(FUZZ:%=$(BUILD)/fuzzers/%)
	@tools/fuzz.sh $(BUILD) $(MINUTES) $(FUZZ)

gpu-report: packages ## registers, LDS, spills and instruction mix of every AMD kernel, as a table
	@tools/install-packages.sh $(ROCEMU_PACKAGES)
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(AMD_OBJECTS)
	@tools/gpu-report.sh $(ROCEMU_LLVM) $(AMD_OBJECTS)

clean: ## remove what was built
	rm -rf $(BUILD)

-include $(HOST_OBJECTS:.o=.d) $(KERNEL_OBJECTS:.o=.d) $(GPU_OBJECTS:=.d) $(BUILD)/app/main.d $(TESTS:=.d) $(TEST_SUPPORT:.o=.d) $(FAULT_LAYER).d $(FUZZ_ENTRIES:%.c=$(BUILD)/%.d)

include packaging/packaging.mk
include tools/rocemu/rocemu.mk
