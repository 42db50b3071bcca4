/* Detects the instruction sets of the CPU, and stores the chosen one. Called by all code with a
 * table of variants. */
#include "base/cpu_isa.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A CpuIsa; CPU_ISA_COUNT until the first choice. */
static _Atomic int chosen = CPU_ISA_COUNT;

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

static bool is_amd(void) { return __builtin_cpu_is("amd"); }
#else
bool cpu_has(CpuIsa isa) { return isa == CPU_GENERIC; }
static bool is_amd(void) { return false; }
#endif

static CpuIsa fastest(void) {
    CpuIsa isa = CPU_ISA_COUNT - 1;
    while (!cpu_has(isa) || (isa == CPU_AVX512BF16 && !is_amd())) isa--;
    return isa;
}

CpuIsa cpu_isa(void) {
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa == CPU_ISA_COUNT) atomic_store_explicit(&chosen, isa = (int)fastest(), memory_order_relaxed);
    return (CpuIsa)isa;
}

bool cpu_isa_runs(CpuIsa variant) {
    CpuIsa isa = cpu_isa();
    return variant == isa || (variant <= CPU_AVX512 && variant < isa);
}

void cpu_isa_use(CpuIsa isa) {
    assert(cpu_has(isa));
    atomic_store(&chosen, (int)isa);
}

/* Fails with the list of names that SMELT_CPU_ISA may have on this CPU. */
static bool refuse_isa(const char *name, bool known, Error *error) {
    char list[128] = "";
    for (CpuIsa isa = 0; isa < CPU_ISA_COUNT; isa++)
        if (cpu_has(isa)) snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", isa ? ", " : "", cpu_isa_name(isa));
    return error_set(error, ERROR_USAGE, "SMELT_CPU_ISA=%s: %s. This CPU has: %s. Unset the variable to use the fastest", name,
        known ? "this CPU lacks the instruction set" : "unknown instruction set", list);
}

bool cpu_isa_use_environment(Error *error) {
    const char *name = getenv("SMELT_CPU_ISA");
    CpuIsa isa = 0;
    if (!name || !*name) return true;
    while (isa < CPU_ISA_COUNT && strcmp(name, cpu_isa_name(isa))) isa++;
    if (isa == CPU_ISA_COUNT || !cpu_has(isa)) return refuse_isa(name, isa < CPU_ISA_COUNT, error);
    cpu_isa_use(isa);
    return true;
}
