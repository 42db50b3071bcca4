# smelt. `make help` lists the targets.
.DEFAULT_GOAL = $(BUILD)/smelt

BUILD ?= build
SANITIZE ?=
WARNINGS := -Wall -Wextra -Wno-missing-field-initializers -Werror
CFLAGS ?= -O2 -g
BASE_FLAGS := -std=gnu17 -D_GNU_SOURCE -Isrc $(WARNINGS) -fopenmp -MMD -MP $(SANITIZE)
LIBRARIES := -fopenmp -lyaml -ljansson -lxxhash -lpcre2-8 -lutf8proc -ldl -lm -lpthread

PACKAGES := gcc libc6-dev libyaml-dev libjansson-dev libxxhash-dev libpcre2-dev libutf8proc-dev
TEST_PACKAGES := libcmocka-dev libdnnl-dev
DEMO_PACKAGES := bible-kjv bible-kjv-text xz-utils
JOBS := $(shell nproc)

# CPU kernels are compiled once per precision and instruction set; the program picks at run time (src/op/op.c).
KERNEL_FLAGS := -O3 -fno-math-errno -fno-trapping-math
FLAGS_generic :=
FLAGS_avx2 := -march=x86-64-v3
FLAGS_avx512 := -march=x86-64-v4 -mprefer-vector-width=512
FLAGS_fp32 := -DKERNEL_FP32
FLAGS_bf16 := -DKERNEL_BF16
FLAGS_fp64 := -DKERNEL_FP64
VARIANTS := generic_fp32 generic_bf16 generic_fp64
ifneq (,$(filter x86_64-%,$(shell $(CC) -dumpmachine)))
VARIANTS += avx2_fp32 avx2_bf16 avx512_fp32 avx512_bf16
endif

# Everything in src/ but main.c is the library that tests link; op files are host half + one object per variant.
KERNEL_SOURCES := $(filter-out src/op/op.c,$(wildcard src/op/*.c))
HOST_SOURCES := $(filter-out src/main.c src/op/kernels.c,$(wildcard src/*.c src/*/*.c))
HOST_OBJECTS := $(HOST_SOURCES:src/%.c=$(BUILD)/%.o)
KERNEL_OBJECTS := $(foreach v,$(VARIANTS),$(KERNEL_SOURCES:src/%.c=$(BUILD)/%.$v.o))
LIBRARY := $(BUILD)/libsmelt.a

$(BUILD)/smelt: $(BUILD)/main.o $(LIBRARY)
	@echo "  LD $@"
	@$(CC) $(SANITIZE) -o $@ $^ $(LIBRARIES)

$(LIBRARY): $(HOST_OBJECTS) $(KERNEL_OBJECTS)
	@rm -f $@
	@ar rcs $@ $^

$(BUILD)/%.o: src/%.c
	@mkdir -p $(@D)
	@echo "  CC $@"
	@$(CC) $(BASE_FLAGS) $(CFLAGS) -c -o $@ $<

define KERNEL_RULE
$(BUILD)/op/%.$(1).o: src/op/%.c
	@mkdir -p $$(@D)
	@echo "  CC $$@"
	@$$(CC) $$(BASE_FLAGS) $$(CFLAGS) $$(KERNEL_FLAGS) -DKERNEL_VARIANT=$(1) $$(FLAGS_$(word 1,$(subst _, ,$(1)))) $$(FLAGS_$(word 2,$(subst _, ,$(1)))) -c -o $$@ $$<
endef
$(foreach v,$(VARIANTS),$(eval $(call KERNEL_RULE,$v)))

# Tests: one program per tests/test_*.c, linked with the library and the shared checks.
TEST_SOURCES := $(sort $(wildcard tests/test_*.c))
TESTS := $(TEST_SOURCES:tests/%.c=$(BUILD)/tests/%)
TEST_SUPPORT := $(BUILD)/tests/check.o

$(BUILD)/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	@echo "  CC $@"
	@$(CC) $(BASE_FLAGS) -Itests $(CFLAGS) -c -o $@ $<

$(TESTS): %: %.o $(TEST_SUPPORT) $(LIBRARY) $(BUILD)/smelt
	@echo "  LD $@"
	@$(CC) $(SANITIZE) -o $@ $< $(TEST_SUPPORT) $(LIBRARY) $(LIBRARIES) -lcmocka

.SECONDARY:
.PHONY: help test test-asan run-tests demo packages clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

packages: ## install the Debian packages that building needs
	@tools/install-packages.sh $(PACKAGES)

demo: packages ## install what is missing, build, train a small ZAYA1 on real text, report, generate (under 6 minutes on 2 cores)
	@tools/install-packages.sh $(DEMO_PACKAGES)
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(BUILD)/smelt
	@tools/demo.sh $(BUILD)/smelt $(BUILD)/demo

test: packages ## install what is missing, build, run every test
	@tools/install-packages.sh $(TEST_PACKAGES)
	@$(MAKE) --no-print-directory -s -j$(JOBS) run-tests

test-asan: packages ## the same tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/install-packages.sh $(TEST_PACKAGES)
	@$(MAKE) --no-print-directory -s -j$(JOBS) run-tests BUILD=$(BUILD)/asan SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover=all" CFLAGS="-O1 -g"

run-tests: $(TESTS)
	@SMELT=$(BUILD)/smelt tests/run.sh $(TESTS)

clean: ## remove what was built
	rm -rf $(BUILD)

-include $(HOST_OBJECTS:.o=.d) $(KERNEL_OBJECTS:.o=.d) $(BUILD)/main.d $(TESTS:=.d) $(BUILD)/tests/check.d
