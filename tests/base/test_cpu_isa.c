/* The instruction set that is chosen for all CPU kernels, and SMELT_CPU_ISA, which sets it. */
#include "support/mentions.h"
#include "support/train_run.h"

#include "backend/backend.h"
#include "base/rng.h"
#include "base/scope.h"
#include "device/gemm.h"
#include "support/check.h"

static void an_instruction_set_runs_the_ones_that_it_contains(void **state) {
    (void)state;
    FOR_EACH_ISA (isa) {
        assert_int_equal(cpu_isa(), isa);
        for (CpuIsa variant = 0; variant < CPU_ISA_COUNT; variant++) {
            bool contained = variant == isa || (variant < isa && !(isa == CPU_AVX512BF16 && variant == CPU_AVX512VNNI));
            assert_int_equal(cpu_isa_runs(variant), contained);
        }
    }
}

/* Operations have no variants of their own for the extensions of AVX-512. */
static void one_choice_holds_for_operations_and_gemms(void **state) {
    (void)state;
    FOR_EACH_ISA (isa) {
        Backend backend = op_cpu_backend(PRECISION_BF16);
        SCOPED_FREE char *device = op_describe(&backend);
        SCOPED_FREE char *expected =
            memory_format("CPU, kernels for %s, GEMM for %s", cpu_isa_name(isa < CPU_AVX512 ? isa : CPU_AVX512), cpu_isa_name(isa));
        assert_string_equal(device, expected);
    }
}

static void normal_numbers_have_the_same_bits_under_each(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    float expected[COUNT], values[COUNT];
    rng_normals(7, 1, 3, COUNT, expected);
    FOR_EACH_ISA (isa) {
        rng_normals(7, 1, 3, COUNT, values);
        assert_memory_equal(values, expected, sizeof values);
    }
}

/* The instruction sets that this CPU has, as the refusal lists them. */
static char *list_of(void) {
    char *list = memory_format("%s", cpu_isa_name(CPU_GENERIC));
    for (CpuIsa isa = CPU_GENERIC + 1; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_has(isa)) continue;
        char *longer = memory_format("%s, %s", list, cpu_isa_name(isa));
        free(list);
        list = longer;
    }
    return list;
}

static void expect_choice(const char *name, bool good) {
    Error error = {0};
    CpuIsa before = cpu_isa();
    SCOPED_FREE char *list = list_of();
    setenv("SMELT_CPU_ISA", name, 1);
    assert_int_equal(cpu_isa_use_environment(&error), good);
    unsetenv("SMELT_CPU_ISA");
    assert_string_equal(cpu_isa_name(cpu_isa()), good && *name ? name : cpu_isa_name(before));
    if (!good && !(error.code == ERROR_USAGE && mentions(error.message, name) && mentions(error.message, list)))
        fail_msg("%d: %s", error.code, error.message);
    cpu_isa_use(before);
}

static void a_name_that_is_unknown_or_that_the_cpu_lacks_is_refused(void **state) {
    (void)state;
    const char *given = getenv("SMELT_CPU_ISA");
    SCOPED_FREE char *kept = given ? memory_format("%s", given) : NULL;
    static const char *const unknown[] = {"altivec", "AVX2", "avx", "avx2 ", "avx512f", "0"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) expect_choice(unknown[i], false);
    for (CpuIsa isa = 0; isa < CPU_ISA_COUNT; isa++) expect_choice(cpu_isa_name(isa), cpu_has(isa));
    expect_choice("", true);
    if (kept) setenv("SMELT_CPU_ISA", kept, 1);
}

static void the_program_keeps_to_it_and_says_so(void **state) {
    (void)state;
    FOR_EACH_ISA (isa) {
        SCOPED_FREE char *expected = memory_format("GEMM for %s", cpu_isa_name(isa));
        SCOPED_FREE char *path = memory_format("%s/log.txt", cpu_isa_name(isa));
        setenv("SMELT_CPU_ISA", cpu_isa_name(isa), 1);
        train_good("steps=1 schedule.warmup=0 run=%s", cpu_isa_name(isa));
        SCOPED_FREE char *used = memory_format(" %s (used here)", cpu_isa_name(isa));
        smelt_says(ERROR_NONE, used, "--version");
        SCOPED_FREE char *log = read_text(path);
        if (!strstr(log, expected)) fail_msg("not \"%s\" in\n%s", expected, log);
    }
    unsetenv("SMELT_CPU_ISA");
}

static void the_program_refuses_an_unknown_one(void **state) {
    (void)state;
    setenv("SMELT_CPU_ISA", "altivec", 1);
    train_says(ERROR_USAGE, "SMELT_CPU_ISA=altivec: generic", "steps=1 run=run");
    unsetenv("SMELT_CPU_ISA");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_instruction_set_runs_the_ones_that_it_contains),
        cmocka_unit_test(one_choice_holds_for_operations_and_gemms),
        cmocka_unit_test(normal_numbers_have_the_same_bits_under_each),
        cmocka_unit_test(a_name_that_is_unknown_or_that_the_cpu_lacks_is_refused),
        TRAIN_TEST(the_program_keeps_to_it_and_says_so),
        TRAIN_TEST(the_program_refuses_an_unknown_one),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
