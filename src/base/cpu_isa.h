/* Instruction sets of the CPU. Code that gains from them is compiled once for each (Makefile: VARIANTS), and each
 * object has the instruction set and type in the names that it exports. A table lists the variants, and these
 * functions choose among them: nothing else asks the CPU what it has. One choice holds for all tables of a process. */
#pragma once

#include <stdbool.h>

#include "base/error.h"

/* From worst to best. AVX512 is F, BW, DQ and VL; AVX512VNNI and AVX512BF16 are AVX512 and one more each. */
typedef enum CpuIsa { CPU_GENERIC, CPU_AVX2, CPU_AVX512, CPU_AVX512VNNI, CPU_AVX512BF16, CPU_ISA_COUNT } CpuIsa;

/* "avx512": as in the Makefile. */
const char *cpu_isa_name(CpuIsa isa);
/* Whether this CPU runs it. */
bool cpu_has(CpuIsa isa);

/* The instruction set that variants are chosen for: the fastest on this CPU, unless one of the next two set another.
 * AVX512BF16 is the fastest on AMD's CPUs alone. */
CpuIsa cpu_isa(void);
/* Whether the chosen instruction set runs code of another. A table takes the best variant that it does. */
bool cpu_isa_runs(CpuIsa variant);
/* Chooses one that the CPU has, for every later choice. Not to be called while kernels run. */
void cpu_isa_use(CpuIsa isa);
/* Chooses the one that SMELT_CPU_ISA names, if it is set and not empty. ERROR_USAGE when it names none, or one that this
 * CPU lacks. */
bool cpu_isa_use_environment(Error *error);
