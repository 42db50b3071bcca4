/* Readings of a made-up machine: files of /proc, and management libraries of both vendors that the test builds itself. */
#include <math.h>
#include <sys/stat.h>

#include "support/files.h"

#include "launch/sensors.h"

static void write_file(const char *path, const char *text) {
    char *copy = memory_copy_string(path);
    for (char *slash = strchr(copy, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(copy, 0700);
        *slash = '/';
    }
    free(copy);
    write_bytes(path, text, strlen(text));
}

static char *here(void) {
    char *path = realpath(".", NULL);
    assert_non_null(path);
    return path;
}

static void assert_near(double value, double wanted) {
    if (!(fabs(value - wanted) <= 1e-9 * fabs(wanted))) fail_msg("%.17g in place of %.17g", value, wanted);
}

#define DISKS(READ, WRITTEN)                                                       \
    "   7       0 loop0 9 0 900 0 9 0 900 0 0 0 0\n"                                \
    " 259       0 nvme0n1 100 0 " READ " 9 50 0 " WRITTEN " 9 0 9 9\n"              \
    " 259       1 nvme0n1p1 100 0 " READ " 9 50 0 " WRITTEN " 9 0 9 9\n"            \
    " 253       0 dm-0 100 0 " READ " 9 50 0 " WRITTEN " 9 0 9 9\n"
#define NETWORKS(RECEIVED, SENT)                                                   \
    "Inter-|   Receive                |  Transmit\n"                                \
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes\n"     \
    "    lo: 77777 1 0 0 0 0 0 0 77777 1 0 0 0 0 0 0\n"                             \
    "  eth0: " RECEIVED " 1 0 0 0 0 0 0 " SENT " 1 0 0 0 0 0 0\n"

/* Between the readings 60 of 100 ticks are busy: steal counts, waiting for disks does not. */
static void a_machine_without_gpus_has_rates_of_its_parts(void **state) {
    (void)state;
    char *root = here();
    write_file("proc/stat", "cpu  100 0 100 1000 50 0 0 0 0 0\ncpu0 1 1 1 1\n");
    write_file("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\n");
    write_file("proc/diskstats", DISKS("1000", "2000"));
    write_file("proc/net/dev", NETWORKS("5000", "6000"));
    write_file("sys/block/nvme0n1/size", "1\n");
    write_file("sys/block/dm-0/size", "1\n");
    write_file("sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "10\n");
    Sensors *sensors = sensors_open(root);
    write_file("proc/stat", "cpu  130 0 120 1030 60 0 0 10 0 0\n");
    write_file("proc/diskstats", DISKS("3000", "7000"));
    write_file("proc/net/dev", NETWORKS("8000", "7000"));
    write_file("sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "1260\n");
    SensorReading reading;
    sensors_read(sensors, &reading);
    assert_near(reading.cpu_percent, 60);
    assert_near(reading.memory_bytes, 600 * 1024);
    /* The time between the readings is unknown, but the same for all rates. */
    assert_near(reading.written_bytes / reading.read_bytes, 2.5);
    assert_near(reading.received_bytes / reading.read_bytes, (3000 + 4 * 1250) / (2000.0 * 512));
    assert_near(reading.sent_bytes / reading.read_bytes, 1000 / (2000.0 * 512));
    assert_true(reading.read_bytes > 0);
    assert_int_equal(reading.gpu_count, 0);
    assert_true(isnan(reading.joules));
    write_file("proc/stat", "cpu  1 0 0 1 0 0 0 0 0 0\n"); /* set back */
    assert_int_equal(remove("proc/meminfo"), 0);
    sensors_read(sensors, &reading);
    assert_true(isnan(reading.cpu_percent) && isnan(reading.memory_bytes));
    sensors_close(sensors);
    sensors_close(NULL);
    free(root);
}

/* Two GPUs of NVIDIA. The second has neither an energy counter nor a temperature. The file "nvidia" has the energy in millijoules. */
static const char nvml[] =
    "#include <stdint.h>\n#include <stdio.h>\n"
    "int nvmlInit_v2(void) { return 0; }\n"
    "int nvmlShutdown(void) { return 0; }\n"
    "int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }\n"
    "int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(uintptr_t)(index + 1); return 0; }\n"
    "int nvmlDeviceGetUtilizationRates(void *device, unsigned *share) { share[0] = 90 + (uintptr_t)device; share[1] = 5; return 0; }\n"
    "int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) { memory[0] = 80; memory[1] = 50; memory[2] = 30; return 0; }\n"
    "int nvmlDeviceGetPowerUsage(void *device, unsigned *power) { *power = 250500; return 0; }\n"
    "int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *energy) {\n"
    "    FILE *file = fopen(\"nvidia\", \"r\");\n"
    "    int got = file && device == (void *)1 ? fscanf(file, \"%llu\", energy) : 0;\n"
    "    if (file) fclose(file);\n"
    "    return got == 1 ? 0 : 3;\n"
    "}\n"
    "int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) { *celsius = 61; return device == (void *)1 && sensor == 0 "
    "? 0 : 3; }\n";

/* A GPU of AMD. The file "amd" has its energy counter, in units of 15.3 microjoules. */
static const char rocm_smi[] =
    "#include <stdint.h>\n#include <stdio.h>\n"
    "int rsmi_init(uint64_t flags) { return flags ? 1 : 0; }\n"
    "int rsmi_shut_down(void) { return 0; }\n"
    "int rsmi_num_monitor_devices(uint32_t *count) { *count = 1; return 0; }\n"
    "int rsmi_dev_busy_percent_get(uint32_t gpu, uint32_t *percent) { *percent = 80; return 0; }\n"
    "int rsmi_dev_memory_usage_get(uint32_t gpu, int kind, uint64_t *bytes) { *bytes = 1 << 30; return kind; }\n"
    "int rsmi_dev_power_ave_get(uint32_t gpu, uint32_t sensor, uint64_t *power) { *power = 1; return 2; }\n"
    "int rsmi_dev_power_get(uint32_t gpu, uint64_t *power, int *kind) { *power = 700000000; *kind = 1; return 0; }\n"
    "int rsmi_dev_temp_metric_get(uint32_t gpu, uint32_t sensor, int metric, int64_t *value) { *value = 55500; return sensor == 1 && "
    "metric == 0 ? 0 : 2; }\n"
    "int rsmi_dev_energy_count_get(uint32_t gpu, uint64_t *counter, float *unit, uint64_t *time) {\n"
    "    unsigned long long count = 0;\n"
    "    FILE *file = fopen(\"amd\", \"r\");\n"
    "    int got = file ? fscanf(file, \"%llu\", &count) : 0;\n"
    "    if (file) fclose(file);\n"
    "    *counter = count, *unit = 15.3f;\n"
    "    return got == 1 ? 0 : 2;\n"
    "}\n";

static void gpus_of_both_vendors_are_read(void **state) {
    (void)state;
    char *root = here();
    write_file("nvml.c", nvml);
    write_file("amd.c", rocm_smi);
    write_file("nvidia", "1000000\n");
    write_file("amd", "2000000\n");
    write_file("sys/module/amdgpu/version", "6.12\n");
    assert_int_equal(system("cc -w -shared -fPIC -o libnvidia-ml.so.1 nvml.c && cc -w -shared -fPIC -o librocm_smi64.so amd.c"), 0);
    Sensors *sensors = sensors_open(root);
    write_file("nvidia", "1005000\n");
    write_file("amd", "3000000\n");
    SensorReading reading;
    sensors_read(sensors, &reading);
    assert_int_equal(reading.gpu_count, 3);
    for (int i = 0; i < 2; i++) {
        assert_near(reading.gpus[i].percent, 91 + i);
        assert_near(reading.gpus[i].memory_bytes, 30);
        assert_near(reading.gpus[i].watts, 250.5);
    }
    assert_near(reading.gpus[0].celsius, 61);
    assert_true(isnan(reading.gpus[1].celsius));
    assert_near(reading.gpus[2].percent, 80);
    assert_near(reading.gpus[2].memory_bytes, 1 << 30);
    assert_near(reading.gpus[2].watts, 700);
    assert_near(reading.gpus[2].celsius, 55.5);
    /* 5 J and 15.3 J by the counters, and of the GPU without one its power over the time since sensors_open. */
    double counted = 5 + 1e6 * 1e-6 * (double)15.3f;
    assert_true(reading.joules > counted && reading.joules < counted + 250.5 * 600);
    sensors_close(sensors);
    setenv("CUDA_VISIBLE_DEVICES", "7,1", 1);
    setenv("HIP_VISIBLE_DEVICES", "1", 1);
    sensors = sensors_open(root);
    sensors_read(sensors, &reading);
    assert_int_equal(reading.gpu_count, 1);
    assert_near(reading.gpus[0].percent, 92);
    sensors_close(sensors);
    setenv("CUDA_VISIBLE_DEVICES", "GPU-5a1", 1); /* not numbers */
    unsetenv("HIP_VISIBLE_DEVICES");
    sensors = sensors_open(root);
    sensors_read(sensors, &reading);
    assert_int_equal(reading.gpu_count, 3);
    sensors_close(sensors);
    unsetenv("CUDA_VISIBLE_DEVICES");
    free(root);
}

/* A library that lacks a function, or that does not start, is left out. */
static void broken_libraries_are_left_out(void **state) {
    (void)state;
    char *root = here();
    write_file("nvml.c", "int nvmlInit_v2(void) { return 0; }\n");
    assert_int_equal(system("cc -w -shared -fPIC -o libnvidia-ml.so.1 nvml.c"), 0);
    write_file("sys/module/amdgpu/version", "6.12\n");
    write_file("librocm_smi64.so", "no library");
    Sensors *sensors = sensors_open(root);
    SensorReading reading;
    sensors_read(sensors, &reading);
    assert_int_equal(reading.gpu_count, 0);
    sensors_close(sensors);
    free(root);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_folder, leave_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_machine_without_gpus_has_rates_of_its_parts),
        TEST(gpus_of_both_vendors_are_read),
        TEST(broken_libraries_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
