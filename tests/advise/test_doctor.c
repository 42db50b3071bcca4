/* Tests of the doctor on machines that are folders: with AMD GPUs, with faults, with nothing, with nonsense; and of
 * the command's exit codes on the real one. */
#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "support/process.h"
#include "advise/doctor.h"

static int setup(void **state) {
    char *folder = memory_copy_string("/tmp/smelt-test-doctor-XXXXXX");
    assert_non_null(mkdtemp(folder));
    *state = folder;
    return 0;
}

static int teardown(void **state) {
    Error error = {0};
    bool removed = file_remove(*state, &error);
    free(*state);
    return removed ? 0 : -1;
}

static void put(const char *root, const char *path, const char *text) {
    char *full = memory_format("%s%s", root, path);
    for (char *slash = strchr(full + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(mkdir(full, 0777) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(full, "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    free(full);
}

static void put_link(const char *root, const char *path, const char *target) {
    char *full = memory_format("%s%s", root, path);
    assert_int_equal(symlink(target, full), 0);
    free(full);
}

/* Two MI300X with every link, a network card beside the second, all well. */
static void put_amd_node(const char *root) {
    const char *cards[] = {"0000:05:00.0", "0000:85:00.0"};
    char path[256];
    for (int i = 0; i < 2; i++) {
        const struct {
            const char *file, *text;
        } files[] = {{"vendor", "0x1002\n"}, {"class", "0x120000\n"}, {"numa_node", i ? "1\n" : "0\n"}, {"current_link_width", "16\n"},
            {"max_link_width", "16\n"}, {"current_link_speed", "32.0 GT/s PCIe\n"}, {"max_link_speed", "32.0 GT/s PCIe\n"},
            {"ras/umc_err_count", "ue: 0\nce: 3\n"}, {"power_dpm_force_performance_level", "auto\n"},
            {"hwmon/hwmon4/power1_cap", "750000000\n"}, {"hwmon/hwmon4/power1_cap_default", "750000000\n"}};
        for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
            snprintf(path, sizeof path, "/sys/devices/pci%d/%s/%s", i, cards[i], files[k].file);
            put(root, path, files[k].text);
        }
        snprintf(path, sizeof path, "/sys/class/kfd/kfd/topology/nodes/%d/properties", i + 1);
        put(root, path, "simd_count 1216\n");
        snprintf(path, sizeof path, "/sys/class/kfd/kfd/topology/nodes/%d/io_links/0/properties", i + 1);
        put(root, path, "type 11\nversion_major 0\n");
    }
    put(root, "/sys/bus/pci/devices/.keep", "");
    put_link(root, "/sys/bus/pci/devices/0000:05:00.0", "../../../devices/pci0/0000:05:00.0");
    put_link(root, "/sys/bus/pci/devices/0000:85:00.0", "../../../devices/pci1/0000:85:00.0");
    put(root, "/sys/class/kfd/kfd/topology/nodes/0/properties", "simd_count 0\n");
    put(root, "/sys/devices/pci1/0000:86:00.0/vendor", "0x1dd8\n");
    put(root, "/sys/devices/pci0/0000:06:00.0/vendor", "0x1dd8\n");
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/sys/class/infiniband/ionic_%d/ports/1/state", i);
        put(root, path, "4: ACTIVE\n");
    }
    put_link(root, "/sys/class/infiniband/ionic_0/device", "../../../devices/pci1/0000:86:00.0");
    put_link(root, "/sys/class/infiniband/ionic_1/device", "../../../devices/pci0/0000:06:00.0");
    put(root, "/sys/module/amdgpu/version", "6.12.12\n");
    put(root, "/dev/kfd", "");
    put(root, "/dev/shm/.keep", "");
    put(root, "/proc/cmdline", "BOOT_IMAGE=/vmlinuz iommu=pt\n");
    put(root, "/proc/sys/kernel/numa_balancing", "0\n");
    put(root, "/sys/devices/system/node/node0/cpulist", "0-55\n");
    put(root, "/sys/devices/system/node/node1/cpulist", "56-111\n");
    put(root, "/proc/meminfo", "MemTotal:       2000000000 kB\nMemAvailable:   1900000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n");
    put(root, "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
}

/* The first line of a check that is at least this ill, or NULL. */
static const DoctorLine *find(const Doctor *doctor, const char *check, Severity least) {
    for (int i = 0; i < doctor->count; i++)
        if (!strcmp(doctor->lines[i].check, check) && doctor->lines[i].health >= least) return &doctor->lines[i];
    return NULL;
}

static void examine(Doctor *doctor, const char *root) { doctor_examine(doctor, root, "", false); }

/* One file differs from the good node: the check must tell, with what fixes it. */
static void assert_reported(const char *root, const char *path, const char *text, const char *check, Severity health, const char *fix) {
    Doctor doctor;
    put_amd_node(root);
    if (text) put(root, path, text);
    else {
        char *full = memory_format("%s%s", root, path);
        assert_int_equal(unlink(full), 0);
        free(full);
    }
    examine(&doctor, root);
    const DoctorLine *line = find(&doctor, check, HEALTH_WARNING);
    assert_non_null(line);
    assert_int_equal(line->health, health);
    assert_non_null(strstr(line->fix, fix));
    doctor_free(&doctor);
}

static void a_good_amd_node_is_found_with_everything_on_it(void **state) {
    Doctor doctor;
    put_amd_node(*state);
    examine(&doctor, *state);
    assert_int_equal(doctor.of_vendor[GPU_AMD], 2);
    const char *well[] = {"numa.balancing", "gpu.driver", "gpu.access", "gpu.iommu", "gpu.pci", "gpu.numa", "gpu.ecc", "gpu.clock",
        "gpu.power", "gpu.xgmi", "network.card"};
    for (size_t i = 0; i < sizeof well / sizeof *well; i++) {
        assert_non_null(find(&doctor, well[i], HEALTH_OK));
        assert_null(find(&doctor, well[i], HEALTH_WARNING));
    }
    doctor_free(&doctor);
}

static void each_gpu_is_given_the_card_on_its_own_side(void **state) {
    Doctor doctor;
    put_amd_node(*state);
    examine(&doctor, *state);
    int right = 0;
    for (int i = 0; i < doctor.count; i++)
        right += !strcmp(doctor.lines[i].text, "0000:05:00.0 is nearest to ionic_1") ||
                 !strcmp(doctor.lines[i].text, "0000:85:00.0 is nearest to ionic_0");
    assert_int_equal(right, 2);
    doctor_free(&doctor);
}

static void numa_balancing_is_reported_with_the_command_that_ends_it(void **state) {
    assert_reported(*state, "/proc/sys/kernel/numa_balancing", "1\n", "numa.balancing", HEALTH_WARNING, "sysctl kernel.numa_balancing=0");
}

static void huge_pages_that_are_off_are_reported(void **state) {
    assert_reported(
        *state, "/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n", "memory.huge_pages", HEALTH_WARNING, "madvise");
}

static void uncorrected_memory_errors_are_an_error(void **state) {
    assert_reported(*state, "/sys/devices/pci0/0000:05:00.0/ras/umc_err_count", "ue: 2\nce: 3\n", "gpu.ecc", HEALTH_ERROR, "rocm-smi");
}

static void a_missing_driver_and_device_are_errors(void **state) {
    assert_reported(*state, "/dev/kfd", NULL, "gpu.access", HEALTH_ERROR, "--device=/dev/kfd");
}

static void a_missing_link_between_gpus_is_reported(void **state) {
    assert_reported(
        *state, "/sys/class/kfd/kfd/topology/nodes/2/io_links/0/properties", "type 2\n", "gpu.xgmi", HEALTH_WARNING, "showtopo");
}

static void a_card_with_half_its_lanes_is_reported(void **state) {
    assert_reported(*state, "/sys/devices/pci1/0000:85:00.0/current_link_width", "8\n", "gpu.pci", HEALTH_WARNING, "slot");
}

static void a_port_that_is_down_is_reported(void **state) {
    assert_reported(*state, "/sys/class/infiniband/ionic_1/ports/1/state", "1: DOWN\n", "network.card", HEALTH_WARNING, "ibstat");
}

static void a_power_cap_below_the_usual_is_reported(void **state) {
    assert_reported(
        *state, "/sys/devices/pci1/0000:85:00.0/hwmon/hwmon4/power1_cap", "500000000\n", "gpu.power", HEALTH_WARNING, "rocm-smi");
}

static void a_kernel_without_iommu_passthrough_is_reported(void **state) {
    assert_reported(*state, "/proc/cmdline", "quiet\n", "gpu.iommu", HEALTH_WARNING, "iommu=pt");
}

static void an_empty_machine_is_examined_without_errors(void **state) {
    Doctor doctor;
    int warnings, errors;
    examine(&doctor, *state);
    assert_true(doctor_worst(&doctor, &warnings, &errors) <= HEALTH_WARNING);
    assert_int_equal(errors, 0);
    assert_non_null(find(&doctor, "gpu", HEALTH_OK));
    doctor_free(&doctor);
}

/* Folders in place of files, huge files, control characters: nothing of it may crash or reach a terminal. */
static void nonsense_in_system_files_does_no_harm(void **state) {
    Doctor doctor;
    char *text = NULL, *much = memory_allocate(1 << 20);
    size_t length;
    memset(much, '9', (1 << 20) - 1);
    put_amd_node(*state);
    put(*state, "/proc/meminfo", much);
    put(*state, "/proc/cpuinfo", "model name : \033[31mred\007\n");
    put(*state, "/proc/loadavg/not_a_file", "");
    put(*state, "/sys/devices/pci0/0000:05:00.0/ras/sdma_err_count", much);
    put(*state, "/sys/module/amdgpu/version", "\377\376\033]0;title\007\n");
    put(*state, "/sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 99999999999999999999\n");
    examine(&doctor, *state);
    FILE *file = open_memstream(&text, &length);
    doctor_print(&doctor, file);
    fclose(file);
    for (size_t i = 0; i < length; i++) assert_true(text[i] == '\n' || (unsigned char)text[i] >= ' ');
    free(text);
    free(much);
    doctor_free(&doctor);
}

static void json_has_every_line_with_health_and_fix(void **state) {
    Doctor doctor;
    char *text = NULL;
    size_t length;
    int warnings, errors;
    put_amd_node(*state);
    put(*state, "/proc/sys/kernel/numa_balancing", "1\n");
    put(*state, "/sys/module/amdgpu/version", "\377\376\n");
    examine(&doctor, *state);
    FILE *file = open_memstream(&text, &length);
    doctor_print_json(&doctor, file);
    fclose(file);
    json_t *root = json_loads(text, 0, NULL), *lines = json_object_get(root, "lines");
    doctor_worst(&doctor, &warnings, &errors);
    assert_int_equal(json_array_size(lines), doctor.count);
    assert_int_equal(json_integer_value(json_object_get(root, "warnings")), warnings);
    assert_int_equal(json_integer_value(json_object_get(root, "errors")), errors);
    for (size_t i = 0; i < json_array_size(lines); i++) {
        json_t *line = json_array_get(lines, i);
        assert_non_null(json_string_value(json_object_get(line, "check")));
        assert_non_null(json_string_value(json_object_get(line, "fix")));
        assert_int_equal(!strcmp(json_string_value(json_object_get(line, "health")), "ok"), doctor.lines[i].health == HEALTH_OK);
    }
    json_decref(root);
    free(text);
    doctor_free(&doctor);
}

static void a_disk_is_measured_and_left_as_it_was(void **state) {
    Doctor doctor = {.root = ""};
    doctor_check_disk(&doctor, *state);
    assert_null(find(&doctor, "disk.write", HEALTH_ERROR));
    assert_non_null(find(&doctor, "disk.write", HEALTH_OK));
    assert_int_equal(rmdir(*state), 0); /* empty again */
    doctor_check_disk(&doctor, *state);
    assert_non_null(find(&doctor, "disk.write", HEALTH_WARNING));
    assert_int_equal(mkdir(*state, 0777), 0);
    doctor_free(&doctor);
}

static void two_processes_sum_over_the_loopback(void **state) {
    (void)state;
    Doctor doctor = {.root = ""};
    doctor_check_collective(&doctor);
    assert_int_equal(doctor.count, 1);
    if (doctor.lines[0].health != HEALTH_OK) fail_msg("%s", doctor.lines[0].text);
    doctor_free(&doctor);
}

static void a_product_and_a_copy_are_checked(void **state) {
    (void)state;
    Doctor doctor = {.root = ""};
    doctor_check_work(&doctor);
    assert_non_null(find(&doctor, "self_test.gemm", HEALTH_OK));
    assert_null(find(&doctor, "self_test.gemm", HEALTH_WARNING));
    assert_non_null(find(&doctor, "self_test.copy", HEALTH_OK));
    doctor_free(&doctor);
}

/* -- The command --------------------------------------------------------------------------------------------------- */

static ProcessResult run(char *const *arguments) {
    Process process = process_start(arguments);
    return process_finish(&process);
}

static void variables_that_name_what_is_not_here_give_exit_code_1(void **state) {
    (void)state;
    char *smelt = process_smelt();
    setenv("NCCL_SOCKET_IFNAME", "eth_none", 1);
    ProcessResult bad = run((char *[]){smelt, "doctor", "folder=", NULL});
    unsetenv("NCCL_SOCKET_IFNAME");
    ProcessResult good = run((char *[]){smelt, "doctor", "folder=", NULL}), wrong = run((char *[]){smelt, "doctor", "foldr=", NULL});
    assert_int_equal(bad.code, 1);
    assert_non_null(strstr(bad.output, "NCCL_SOCKET_IFNAME=eth_none"));
    assert_int_equal(good.code, strstr(good.output, "\nerror ") ? 1 : 0);
    assert_int_equal(wrong.code, 2);
    process_free(&bad);
    process_free(&good);
    process_free(&wrong);
    free(smelt);
}

static void a_broken_library_path_is_reported_and_survived(void **state) {
    const char *old = getenv("LD_LIBRARY_PATH"); /* it may be what smelt's own libraries are found by */
    char *kept = old ? memory_copy_string(old) : NULL;
    char *smelt = process_smelt(), *path = memory_format("%s:/nonexistent/lib%s%s", (char *)*state, kept ? ":" : "", kept ? kept : "");
    put(*state, "/libmpi.so.40", "no library");
    put(*state, "/libmpi.so.12", "");
    setenv("LD_LIBRARY_PATH", path, 1);
    ProcessResult result = run((char *[]){smelt, "doctor", "folder=", "--json", NULL});
    if (kept) setenv("LD_LIBRARY_PATH", kept, 1);
    else unsetenv("LD_LIBRARY_PATH");
    assert_int_equal(result.signal, 0);
    assert_non_null(strstr(result.output, "LD_LIBRARY_PATH contains /nonexistent/lib, which does not exist"));
    assert_non_null(strstr(result.output, "exists but is not loadable"));
    process_free(&result);
    free(kept);
    free(path);
    free(smelt);
}

/* As root, gives its rights away first. */
static void a_normal_user_is_examined_too(void **state) {
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        Doctor doctor;
        if (getuid() == 0 && (setgid(65534) || setuid(65534))) _exit(3);
        doctor_examine(&doctor, "", "/", false);
        _exit(find(&doctor, "disk.write", HEALTH_WARNING) && doctor.count > 10 ? 0 : 4);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(two_processes_sum_over_the_loopback, setup, teardown),
        cmocka_unit_test_setup_teardown(a_good_amd_node_is_found_with_everything_on_it, setup, teardown),
        cmocka_unit_test_setup_teardown(each_gpu_is_given_the_card_on_its_own_side, setup, teardown),
        cmocka_unit_test_setup_teardown(numa_balancing_is_reported_with_the_command_that_ends_it, setup, teardown),
        cmocka_unit_test_setup_teardown(huge_pages_that_are_off_are_reported, setup, teardown),
        cmocka_unit_test_setup_teardown(uncorrected_memory_errors_are_an_error, setup, teardown),
        cmocka_unit_test_setup_teardown(a_missing_driver_and_device_are_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(a_missing_link_between_gpus_is_reported, setup, teardown),
        cmocka_unit_test_setup_teardown(a_card_with_half_its_lanes_is_reported, setup, teardown),
        cmocka_unit_test_setup_teardown(a_port_that_is_down_is_reported, setup, teardown),
        cmocka_unit_test_setup_teardown(a_power_cap_below_the_usual_is_reported, setup, teardown),
        cmocka_unit_test_setup_teardown(a_kernel_without_iommu_passthrough_is_reported, setup, teardown),
        cmocka_unit_test_setup_teardown(an_empty_machine_is_examined_without_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(nonsense_in_system_files_does_no_harm, setup, teardown),
        cmocka_unit_test_setup_teardown(json_has_every_line_with_health_and_fix, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_is_measured_and_left_as_it_was, setup, teardown),
        cmocka_unit_test_setup_teardown(a_product_and_a_copy_are_checked, setup, teardown),
        cmocka_unit_test_setup_teardown(variables_that_name_what_is_not_here_give_exit_code_1, setup, teardown),
        cmocka_unit_test_setup_teardown(a_broken_library_path_is_reported_and_survived, setup, teardown),
        cmocka_unit_test_setup_teardown(a_normal_user_is_examined_too, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
