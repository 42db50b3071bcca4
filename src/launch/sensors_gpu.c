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

struct GpuSensors {
    void *nvml_library, *amd_library;
    struct { NVML_SENSORS(LIBRARY_FIELD) } nvml;
    struct { AMD_SENSORS(LIBRARY_FIELD) } amd;
    AmdPowerNow *amd_power; /* NULL: a library before ROCm 6 */
    unsigned nvidia_count;
    uint32_t amd_count;
    double energy[SENSOR_GPUS]; /* joules at the previous reading; NaN: unknown */
};

/* -- NVIDIA -------------------------------------------------------------------------------------------------------- */

static void open_nvml(GpuSensors *sensors, const char *root) {
    static const char *const names[] = {NVML_SENSORS(LIBRARY_NAME)};
    SCOPED_FREE char *path = memory_format("%s%slibnvidia-ml.so.1", root, *root ? "/" : "");
    sensors->nvml_library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    bool good = sensors->nvml_library && !library_find(sensors->nvml_library, names, &sensors->nvml) && sensors->nvml.initialize() == 0;
    if (good && sensors->nvml.count(&sensors->nvidia_count) != 0) sensors->nvidia_count = 0;
    if (sensors->nvidia_count > SENSOR_GPUS) sensors->nvidia_count = SENSOR_GPUS;
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

static void open_amd(GpuSensors *sensors, const char *root) {
    static const char *const names[] = {AMD_SENSORS(LIBRARY_NAME)};
    SCOPED_FREE char *driver = memory_format("%s/sys/module/amdgpu/", root);
    if (!file_exists(driver)) return; /* without a driver the library only prints complaints */
    sensors->amd_library = rocm_smi_open(root);
    bool good = sensors->amd_library && !library_find(sensors->amd_library, names, &sensors->amd) && sensors->amd.initialize(0) == 0;
    if (good && sensors->amd.count(&sensors->amd_count) != 0) sensors->amd_count = 0;
    if (sensors->amd_count > SENSOR_GPUS - sensors->nvidia_count) sensors->amd_count = SENSOR_GPUS - sensors->nvidia_count;
    if (good) sensors->amd_power = (AmdPowerNow *)dlsym(sensors->amd_library, AMD_POWER_NOW);
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

/* Adds the joules of a GPU since the previous reading: by its counter, or else by its power now. */
static void add_joules(GpuSensors *sensors, int index, double energy, double seconds, SensorReading *reading) {
    double joules = energy - sensors->energy[index];
    sensors->energy[index] = energy;
    if (!(joules >= 0)) joules = reading->gpus[index].watts * seconds;
    if (isfinite(joules)) reading->joules = isfinite(reading->joules) ? reading->joules + joules : joules;
}

void gpu_sensors_read(GpuSensors *sensors, double seconds, SensorReading *reading) {
    const int nvidia = (int)sensors->nvidia_count;
    reading->gpu_count = nvidia + (int)sensors->amd_count;
    for (int i = 0; i < reading->gpu_count; i++) {
        GpuReading *gpu = &reading->gpus[i];
        *gpu = (GpuReading){NAN, NAN, NAN, NAN};
        double energy = i < nvidia ? read_nvidia(sensors, (unsigned)i, gpu) : read_amd(sensors, (uint32_t)(i - nvidia), gpu);
        add_joules(sensors, i, energy, seconds, reading);
    }
}

GpuSensors *gpu_sensors_open(const char *root) {
    GpuSensors *sensors = memory_allocate(sizeof *sensors);
    *sensors = (GpuSensors){0};
    open_nvml(sensors, root);
    open_amd(sensors, root);
    SensorReading first; /* sets the counters */
    gpu_sensors_read(sensors, 0, &first);
    return sensors;
}

void gpu_sensors_close(GpuSensors *sensors) {
    if (sensors->nvidia_count) sensors->nvml.shut_down();
    if (sensors->amd_count) sensors->amd.shut_down();
    if (sensors->nvml_library) dlclose(sensors->nvml_library);
    if (sensors->amd_library) dlclose(sensors->amd_library);
    free(sensors);
}
