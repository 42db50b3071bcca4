/* Counters of failing hardware: files of a made-up /sys, and a management library of AMD that the test builds
 * itself. */
#include <sys/stat.h>

#include "support/files.h"

#include "launch/health_internal.h"

/* The interface of rocm_smi.h, over the file "gpu": uncorrected errors of UMC and of XGMI_WAFL, status of xGMI,
 * degrees at the junction, version and status of the metrics. Memory has no sensor, GFX no counter. */
static const char fake_library[] =
    "#include <stdint.h>\n#include <stdio.h>\n#include <string.h>\n"
    "static struct { unsigned long long umc, links, xgmi, junction, version, status; } gpu;\n"
    "static void update(void) {\n"
    "    FILE *file = fopen(\"gpu\", \"r\");\n"
    "    if (!file || fscanf(file, \"%llu %llu %llu %llu %llu %llx\", &gpu.umc, &gpu.links, &gpu.xgmi, &gpu.junction, &gpu.version, "
    "&gpu.status) != 6)\n"
    "        memset(&gpu, 0, sizeof gpu);\n"
    "    if (file) fclose(file);\n"
    "}\n"
    "int rsmi_init(uint64_t flags) { return flags ? 1 : 0; }\n"
    "int rsmi_shut_down(void) { return 0; }\n"
    "int rsmi_num_monitor_devices(uint32_t *count) { update(); *count = gpu.version ? 2 : 0; return 0; }\n"
    "int rsmi_dev_ecc_count_get(uint32_t index, uint64_t block, uint64_t *count) {\n"
    "    update();\n"
    "    if (block == 4) return 2;\n"
    "    count[0] = 7;\n"
    "    count[1] = index == 1 ? block == 1 ? gpu.umc : block == 0x80 ? gpu.links : 0 : 0;\n"
    "    return 0;\n"
    "}\n"
    "int rsmi_dev_temp_metric_get(uint32_t index, uint32_t sensor, int metric, int64_t *value) {\n"
    "    if (sensor != 1) return 2;\n"
    "    *value = metric == 5 ? 100000 : index == 1 ? gpu.junction * 1000 : 40000;\n"
    "    return 0;\n"
    "}\n"
    "int rsmi_dev_xgmi_error_status(uint32_t index, int *status) { *status = index == 1 ? gpu.xgmi : 0; return 0; }\n"
    "int rsmi_dev_gpu_metrics_info_get(uint32_t index, unsigned char *metrics) {\n"
    "    uint64_t status = index == 1 ? gpu.status : UINT64_MAX;\n"
    "    metrics[2] = 1;\n"
    "    metrics[3] = gpu.version;\n"
    "    memcpy(metrics + 112, &status, 8);\n"
    "    return 0;\n"
    "}\n";

static void write_counter(const char *path, const char *text) {
    char *copy = memory_copy_string(path);
    for (char *slash = strchr(copy, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(copy, 0700);
        *slash = '/';
    }
    free(copy);
    write_bytes(path, text, strlen(text));
}

static void collect(void *context, const char *line) {
    char *text = context;
    strcat(text, line);
    strcat(text, "\n");
}

/* A look at the folder's machine, whose lines are to be these. */
static void expect_look(Health *health, const char *lines) {
    char text[2048] = "";
    health_look(health, (HealthListener){collect, text});
    assert_string_equal(text, lines);
}

static char *here(void) {
    char *path = realpath(".", NULL);
    assert_non_null(path);
    return path;
}

static void counters_that_grow_are_reported(void **state) {
    (void)state;
    char *root = here();
    write_counter("sys/class/net/eth0/carrier_down_count", "1\n");
    write_counter("sys/class/drm/card0/device/ras/umc_err_count", "ue: 0\nce: 4\n");
    Health *health = health_open(root);
    expect_look(health, "");
    write_counter("sys/class/net/eth0/carrier_down_count", "3\n");
    write_counter("sys/class/drm/card0/device/ras/umc_err_count", "ue: 1\nce: 9\n");
    expect_look(health, "/sys/class/net/eth0/carrier_down_count: the link went down, 2 more, 3 in total\n"
                        "/sys/class/drm/card0/device/ras/umc_err_count: the GPU memory had uncorrectable errors, 1 more, 1 in total\n");
    expect_look(health, "");
    health_close(health);
    free(root);
}

/* A machine with two GPUs of AMD and the library. */
static char *make_machine(const char *gpu) {
    write_counter("sys/module/amdgpu/version", "6.12\n");
    write_counter("gpu", gpu);
    write_counter("fake.c", fake_library);
    assert_int_equal(system("cc -shared -fPIC -o librocm_smi64.so fake.c"), 0);
    return here();
}

static void errors_of_each_block_and_of_the_links_are_reported(void **state) {
    (void)state;
    char *root = make_machine("1 0 0 50 3 0\n");
    write_counter("sys/class/drm/card0/device/ras/umc_err_count", "ue: 0\nce: 4\n");
    Health *health = health_open(root);
    expect_look(health, "");
    write_counter("gpu", "3 1 2 50 3 0\n");
    write_counter("sys/class/drm/card0/device/ras/umc_err_count", "ue: 3\nce: 4\n"); /* seen before, not reported twice */
    expect_look(health, "AMD GPU 1: block UMC had 2 more uncorrectable errors, 3 in total, and 7 corrected errors\n"
                        "AMD GPU 1: block XGMI_WAFL had 1 more uncorrectable errors, 1 in total, and 7 corrected errors\n"
                        "AMD GPU 1: its xGMI links had several errors\n");
    expect_look(health, "");
    health_close(health);
    free(root);
}

static void heat_is_reported_when_it_begins(void **state) {
    (void)state;
    char *root = make_machine("0 0 0 99 3 0\n");
    Health *health = health_open(root);
    expect_look(health, "");
    write_counter("gpu", "0 0 0 100 3 0\n");
    expect_look(health, "AMD GPU 1 is too hot: 100 C at the junction, 0 C in its memory\n");
    expect_look(health, "");
    write_counter("gpu", "0 0 0 98 3 1000000000\n"); /* bit 36, the hot spot */
    expect_look(health, "AMD GPU 1 is throttled because it is too hot: 98 C at the junction, 0 C in its memory\n");
    write_counter("gpu", "0 0 0 98 3 10000\n"); /* power, no heat */
    expect_look(health, "");
    write_counter("gpu", "0 0 0 98 4 1000000000\n"); /* another version of the metrics, whose layout differs */
    expect_look(health, "");
    health_close(health);
    free(root);
}

static void a_library_without_gpus_is_closed_again(void **state) {
    (void)state;
    char *root = make_machine("0 0 0 0 0 0\n");
    assert_null(health_amd_open(root));
    free(root);
}

/* The real one says so on standard error, and fails to start. */
static void the_real_library_finds_no_gpu_here(void **state) {
    (void)state;
    if (access("/dev/kfd", F_OK) == 0 || access("/usr/lib/librocm_smi64.so.1", F_OK) != 0) skip();
    char *root = here();
    write_counter("sys/module/amdgpu/version", "6.12\n");
    assert_int_equal(symlink("/usr/lib/librocm_smi64.so.1", "librocm_smi64.so"), 0);
    assert_null(health_amd_open(root));
    free(root);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_folder, leave_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(counters_that_grow_are_reported),
        TEST(errors_of_each_block_and_of_the_links_are_reported),
        TEST(heat_is_reported_when_it_begins),
        TEST(a_library_without_gpus_is_closed_again),
        TEST(the_real_library_finds_no_gpu_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
