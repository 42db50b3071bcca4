/* Instruction sets of the CPU. Code that gains from them is compiled once for each (Makefile: VARIANTS), and each
 * object has the instruction set and type in the names that it exports. A table lists the variants, and these
 * functions choose among them: nothing else asks the CPU what it has. */
#pragma once

#include <stdbool.h>

/* From worst to best. AVX512 is F, BW, DQ and VL. */
typedef enum CpuIsa { CPU_GENERIC, CPU_AVX2, CPU_AVX512, CPU_AVX512VNNI, CPU_AVX512BF16, CPU_ISA_COUNT } CpuIsa;

/* "avx512": as in the Makefile. */
const char *cpu_isa_name(CpuIsa isa);
/* Whether this CPU runs it. */
bool cpu_has(CpuIsa isa);
/* Whether the variant is also the fastest on this CPU: AVX512BF16 is so only on AMD's. */
bool cpu_prefers(CpuIsa isa);
