/* Instruction sets of the CPU. Code that benefits is compiled once for each set (Makefile:
 * VARIANTS), and each object has the instruction set and type in its exported names. A table lists
 * the variants, and these functions choose among them; no other code queries the CPU. All tables of
 * a process use one choice. */
#pragma once

#include <stdbool.h>

#include "base/error.h"

/* From worst to best. AVX512 is F, BW, DQ and VL; AVX512VNNI and AVX512BF16 add one extension
 * each. */
typedef enum CpuIsa { CPU_GENERIC, CPU_AVX2, CPU_AVX512, CPU_AVX512VNNI, CPU_AVX512BF16, CPU_ISA_COUNT } CpuIsa;

/* "avx512": as in the Makefile. */
const char *cpu_isa_name(CpuIsa isa);
/* Returns whether this CPU supports it. */
bool cpu_has(CpuIsa isa);

/* Returns the instruction set for which variants are chosen: the fastest on this CPU, unless one of
 * the next two functions set another. AVX512BF16 is the fastest only on AMD's CPUs. */
CpuIsa cpu_isa(void);
/* Returns whether code for `variant` runs under the chosen instruction set. A table takes the best
 * such variant. */
bool cpu_isa_runs(CpuIsa variant);
/* Sets the choice to an instruction set that the CPU has. Do not call it while kernels run. */
void cpu_isa_use(CpuIsa isa);
/* Sets the choice to the one that SMELT_CPU_ISA names, if it is set and not empty. ERROR_USAGE if
 * the name is unknown, or this CPU lacks it. */
bool cpu_isa_use_environment(Error *error);
