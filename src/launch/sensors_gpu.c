/* GPUs by NVML and by librocm_smi64. A value that a GPU or a library version does not report is NaN. Owns the libraries and
 * the energy counters of the previous reading. */
#include "launch/sensors_internal.h"

#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/library.h"
#include "base/memory.h"
#include "base/scope.h"
#include "launch/health_amd_calls_internal.h"

/* nvmlUtilization_t and nvmlMemory_t. */
typedef struct NvmlShare { unsigned gpu, memory; } NvmlShare;
typedef struct NvmlMemory { unsigned long long total, unused, used; } NvmlMemory;

/* (our name, symbol, arguments). Power in milliwatts, energy in millijoules since the driver was loaded. */
#define NVML_SENSORS(CALL)                                                                     \
    CALL(initialize, nvmlInit_v2, (void))                                                      \
    CALL(shut_down, nvmlShutdown, (void))                                                      \
    CALL(count, nvmlDeviceGetCount_v2, (unsigned *count))                                      \
    CALL(device, nvmlDeviceGetHandleByIndex_v2, (unsigned index, void **device))               \
    CALL(share, nvmlDeviceGetUtilizationRates, (void *device, NvmlShare *share))               \
    CALL(memory, nvmlDeviceGetMemoryInfo, (void *device, NvmlMemory *memory))                  \
    CALL(power, nvmlDeviceGetPowerUsage, (void *device, unsigned *milliwatts))                 \
    CALL(energy, nvmlDeviceGetTotalEnergyConsumption, (void *device, unsigned long long *millijoules)) \
    CALL(temperature, nvmlDeviceGetTemperature, (void *device, int sensor, unsigned *celsius))
enum { NVML_SENSOR_GPU = 0 };

/* A GPU that is read, by its number in the vendor's library. */
typedef struct SensedGpu {
    bool amd;
    unsigned number;
    double energy; /* joules at the previous reading; NaN: unknown */
} SensedGpu;

struct GpuSensors {
    void *nvml_library, *amd_library;
    struct { NVML_SENSORS(LIBRARY_FIELD) } nvml;
    struct { AMD_SENSORS(LIBRARY_FIELD) } amd;
    AmdPowerNow *amd_power; /* NULL: the library is older than ROCm 6 */
    bool nvml_runs, amd_runs;
    int count;
    SensedGpu gpus[SENSOR_GPUS];
};

/* Returns whether a variable such as CUDA_VISIBLE_DEVICES lists the number, or is not a list of numbers. */
static bool variable_allows(const char *variable, unsigned number) {
    const char *list = getenv(variable);
    if (!list || !*list || list[strspn(list, "0123456789,")]) return true;
    for (char *at = (char *)list; *at; at += *at == ',')
        if (strtoul(at, &at, 10) == number) return true;
    return false;
}

static void add_gpu(GpuSensors *sensors, bool amd, unsigned number) {
    if (sensors->count < SENSOR_GPUS) sensors->gpus[sensors->count++] = (SensedGpu){amd, number, NAN};
}

/* -- NVIDIA -------------------------------------------------------------------------------------------------------- */

static void open_nvidia_sensors(GpuSensors *sensors, const char *root) {
    static const char *const names[] = {NVML_SENSORS(LIBRARY_NAME)};
    SCOPED_FREE char *path = memory_format("%s%slibnvidia-ml.so.1", root, *root ? "/" : "");
    sensors->nvml_library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    unsigned count = 0;
    sensors->nvml_runs =
        sensors->nvml_library && !library_find(sensors->nvml_library, names, &sensors->nvml) && sensors->nvml.initialize() == 0;
    if (!sensors->nvml_runs || sensors->nvml.count(&count) != 0) return;
    for (unsigned i = 0; i < count; i++)
        if (variable_allows("CUDA_VISIBLE_DEVICES", i)) add_gpu(sensors, false, i);
}

/* Returns the joules since the driver was loaded, or NaN. */
static double read_nvidia(const GpuSensors *sensors, unsigned index, GpuReading *gpu) {
    void *device;
    NvmlShare share;
    NvmlMemory memory;
    unsigned milliwatts, celsius;
    unsigned long long millijoules;
    if (sensors->nvml.device(index, &device) != 0) return NAN;
    if (sensors->nvml.share(device, &share) == 0) gpu->percent = share.gpu;
    if (sensors->nvml.memory(device, &memory) == 0) gpu->memory_bytes = (double)memory.used;
    if (sensors->nvml.power(device, &milliwatts) == 0) gpu->watts = 1e-3 * milliwatts;
    if (sensors->nvml.temperature(device, NVML_SENSOR_GPU, &celsius) == 0) gpu->celsius = celsius;
    return sensors->nvml.energy(device, &millijoules) == 0 ? 1e-3 * (double)millijoules : NAN;
}

/* -- AMD ----------------------------------------------------------------------------------------------------------- */

static void open_amd_sensors(GpuSensors *sensors, const char *root) {
    static const char *const names[] = {AMD_SENSORS(LIBRARY_NAME)};
    SCOPED_FREE char *driver = memory_format("%s/sys/module/amdgpu/", root);
    if (!file_exists(driver)) return; /* without a driver the library prints errors */
    sensors->amd_library = rocm_smi_open(root);
    uint32_t count = 0;
    sensors->amd_runs =
        sensors->amd_library && !library_find(sensors->amd_library, names, &sensors->amd) && sensors->amd.initialize(0) == 0;
    if (!sensors->amd_runs || sensors->amd.count(&count) != 0) return;
    sensors->amd_power = (AmdPowerNow *)dlsym(sensors->amd_library, AMD_POWER_NOW);
    for (uint32_t i = 0; i < count; i++)
        if (variable_allows("HIP_VISIBLE_DEVICES", i) && variable_allows("ROCR_VISIBLE_DEVICES", i)) add_gpu(sensors, true, i);
}

/* Returns the joules of the GPU's counter, or NaN. */
static double read_amd(const GpuSensors *sensors, uint32_t index, GpuReading *gpu) {
    uint32_t percent;
    uint64_t bytes, microwatts, counter, time;
    int64_t millidegrees;
    int kind;
    float microjoules; /* of a unit of the counter */
    if (sensors->amd.busy(index, &percent) == 0) gpu->percent = percent;
    if (sensors->amd.memory(index, AMD_MEMORY_VRAM, &bytes) == 0) gpu->memory_bytes = (double)bytes;
    if (sensors->amd_power && sensors->amd_power(index, &microwatts, &kind) == 0) gpu->watts = 1e-6 * (double)microwatts;
    else if (sensors->amd.power(index, 0, &microwatts) == 0) gpu->watts = 1e-6 * (double)microwatts;
    if (sensors->amd.temperature(index, SENSOR_JUNCTION, TEMPERATURE_NOW, &millidegrees) == 0) gpu->celsius = 1e-3 * (double)millidegrees;
    return sensors->amd.energy(index, &counter, &microjoules, &time) == 0 ? 1e-6 * microjoules * (double)counter : NAN;
}

/* -- Both ---------------------------------------------------------------------------------------------------------- */

/* Adds the joules of a GPU since the previous reading, from its counter, or else from its present power. */
static void add_joules(SensedGpu *gpu, double watts, double energy, double seconds, SensorReading *reading) {
    double joules = energy - gpu->energy;
    gpu->energy = energy;
    if (!(joules >= 0)) joules = watts * seconds;
    if (isfinite(joules)) reading->joules = isfinite(reading->joules) ? reading->joules + joules : joules;
}

void gpu_sensors_read(GpuSensors *sensors, double seconds, SensorReading *reading) {
    reading->gpu_count = sensors->count;
    for (int i = 0; i < sensors->count; i++) {
        SensedGpu *gpu = &sensors->gpus[i];
        GpuReading *now = &reading->gpus[i];
        *now = (GpuReading){NAN, NAN, NAN, NAN};
        double energy = gpu->amd ? read_amd(sensors, gpu->number, now) : read_nvidia(sensors, gpu->number, now);
        add_joules(gpu, now->watts, energy, seconds, reading);
    }
}

GpuSensors *gpu_sensors_open(const char *root) {
    GpuSensors *sensors = memory_allocate(sizeof *sensors);
    *sensors = (GpuSensors){0};
    open_nvidia_sensors(sensors, root);
    open_amd_sensors(sensors, root);
    SensorReading first = {0}; /* starts the counters */
    gpu_sensors_read(sensors, 0, &first);
    return sensors;
}

void gpu_sensors_close(GpuSensors *sensors) {
    if (sensors->nvml_runs) sensors->nvml.shut_down();
    if (sensors->amd_runs) sensors->amd.shut_down();
    if (sensors->nvml_library) dlclose(sensors->nvml_library);
    if (sensors->amd_library) dlclose(sensors->amd_library);
    free(sensors);
}
