/* Asks the CPU which instruction sets it has. Owns no memory; called wherever a table of variants is. */
#include "base/cpu_isa.h"

const char *cpu_isa_name(CpuIsa isa) {
    static const char *const names[CPU_ISA_COUNT] = {"generic", "avx2", "avx512", "avx512vnni", "avx512bf16"};
    return names[isa];
}

#ifdef __x86_64__
static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

bool cpu_has(CpuIsa isa) {
    switch (isa) {
    case CPU_AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    case CPU_AVX512: return has_avx512();
    case CPU_AVX512VNNI: return has_avx512() && __builtin_cpu_supports("avx512vnni");
    case CPU_AVX512BF16: return has_avx512() && __builtin_cpu_supports("avx512bf16");
    default: return isa == CPU_GENERIC;
    }
}

bool cpu_prefers(CpuIsa isa) { return cpu_has(isa) && (isa != CPU_AVX512BF16 || __builtin_cpu_is("amd")); }
#else
bool cpu_has(CpuIsa isa) { return isa == CPU_GENERIC; }
bool cpu_prefers(CpuIsa isa) { return cpu_has(isa); }
#endif
