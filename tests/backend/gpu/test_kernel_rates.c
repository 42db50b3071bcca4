/* The time of each kernel of the hot operations (tests/rocemu/kernel_cases.h) on the GPU of SMELT_TEST_DEVICE, by its own clock, on
 * smelt's own GEMM kernels: one case per test, whose rows "case,kernel,grid,launches,microseconds" of one run are appended to
 * the file KERNEL_RATES. KERNEL_CASES chooses the cases: small, all, or the beginning of a name. tools/test-gpu prints the
 * rows beside those of the model of time, which have the same names.
 *
 * On the emulator the model gives the time (ROCEMU_TIME=sample), so its rows are those of `make amd-cycles`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "rocemu/kernel_cases.h"

static DeviceMethods own_methods; /* those of check_device, without the vendor's GEMMs and without recordings */
static bool (*gemm_own)(Device *device, const Gemm *gemm);

static void gemm_by_own_kernel(Device *device, const Gemm *gemm) { gemm_own(device, gemm); }

static void use_own_kernels(Device *device) {
    if (device->methods == &own_methods) return;
    own_methods = *device->methods;
    gemm_own = own_methods.gemm_own;
    own_methods.gemm = gemm_by_own_kernel;
    own_methods.record_begin = NULL;
    device->methods = &own_methods;
}

static void write_rates(const char *name, const LaunchCount *counts, int count) {
    FILE *file = getenv("KERNEL_RATES") ? fopen(getenv("KERNEL_RATES"), "a") : NULL;
    for (int i = 0; i < count && file; i++)
        fprintf(file, "%s,%s,%lldx%lldx%lld,%.4g,%.6g\n", name, counts[i].kernel, (long long)counts[i].shape.x,
            (long long)(counts[i].shape.y ? counts[i].shape.y : 1), (long long)(counts[i].shape.z ? counts[i].shape.z : 1),
            (double)counts[i].launches / LAUNCH_RUNS, 1e6 * counts[i].seconds / LAUNCH_RUNS);
    if (file) assert_int_equal(fclose(file), 0);
}

static void each_launch_of_the_case_takes_time(void **state) {
    const KernelCase *c = *state;
    Device *device = check_gpu();
    use_own_kernels(device);
    launches_time(device);
    c->run(c);
    const LaunchCount *counts = NULL;
    int count = launches_timed(device, &counts);
    assert_true(count > 0);
    for (int i = 0; i < count; i++)
        if (!(counts[i].seconds > 0))
            fail_msg("%s: %lld launches of %s took no time", c->name, (long long)counts[i].launches, counts[i].kernel);
    write_rates(c->name, counts, count);
}

int main(void) {
    struct CMUnitTest tests[KERNEL_CASES];
    int count = 0;
    setenv("ROCEMU_TIME", "sample", 0);
    for (int i = 0; i < KERNEL_CASES; i++)
        if (kernel_case_is_in(getenv("KERNEL_CASES"), &kernel_cases[i]))
            tests[count++] = (struct CMUnitTest){
                .name = kernel_cases[i].name, .test_func = each_launch_of_the_case_takes_time, .initial_state = (void *)&kernel_cases[i]};
    return _cmocka_run_group_tests("kernel_rates", tests, (size_t)count, NULL, NULL);
}
