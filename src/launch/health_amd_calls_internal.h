/* The parts of librocm_smi64 that health_amd.c and sensors_gpu.c use; numbers and layouts are those of rocm_smi.h of
 * ROCm 5 to 7. tools/check-headers compiles these tables against that header. */
#pragma once

#include <stdint.h>

/* The library's structure; `more` leaves room for newer, longer versions. */
typedef struct ErrorCount { uint64_t corrected, uncorrected, more[14]; } ErrorCount;

/* (our name, symbol, arguments) */
#define AMD_CALLS(CALL)                                                                                      \
    CALL(initialize, rsmi_init, (uint64_t flags))                                                            \
    CALL(shut_down, rsmi_shut_down, (void))                                                                  \
    CALL(count, rsmi_num_monitor_devices, (uint32_t *count))                                                 \
    CALL(errors, rsmi_dev_ecc_count_get, (uint32_t gpu, uint64_t block, ErrorCount *count))                  \
    CALL(temperature, rsmi_dev_temp_metric_get, (uint32_t gpu, uint32_t sensor, int metric, int64_t *value)) \
    CALL(xgmi, rsmi_dev_xgmi_error_status, (uint32_t gpu, int *status))                                      \
    CALL(metrics, rsmi_dev_gpu_metrics_info_get, (uint32_t gpu, void *metrics))

/* Power is in microwatts. The energy is the counter times the microjoules of a unit. */
#define AMD_SENSORS(CALL)                                                                                    \
    CALL(initialize, rsmi_init, (uint64_t flags))                                                            \
    CALL(shut_down, rsmi_shut_down, (void))                                                                  \
    CALL(count, rsmi_num_monitor_devices, (uint32_t *count))                                                 \
    CALL(busy, rsmi_dev_busy_percent_get, (uint32_t gpu, uint32_t *percent))                                 \
    CALL(memory, rsmi_dev_memory_usage_get, (uint32_t gpu, int kind, uint64_t *bytes))                       \
    CALL(power, rsmi_dev_power_ave_get, (uint32_t gpu, uint32_t sensor, uint64_t *microwatts))               \
    CALL(temperature, rsmi_dev_temp_metric_get, (uint32_t gpu, uint32_t sensor, int metric, int64_t *value)) \
    CALL(energy, rsmi_dev_energy_count_get, (uint32_t gpu, uint64_t *counter, float *microjoules, uint64_t *time))

/* Exists since ROCm 6; needed for GPUs that do not report mean power. */
#define AMD_POWER_NOW "rsmi_dev_power_get"
typedef int AmdPowerNow(uint32_t gpu, uint64_t *microwatts, int *kind);

/* Opens the library below `root` ("": the system's own). Returns NULL if it is not installed. In health_amd.c. */
void *rocm_smi_open(const char *root);

/* (our name, number, its name in rocm_smi.h) */
#define AMD_NUMBERS(NUMBER) \
    NUMBER(SENSOR_JUNCTION, 1, RSMI_TEMP_TYPE_JUNCTION) \
    NUMBER(SENSOR_MEMORY, 2, RSMI_TEMP_TYPE_MEMORY) \
    NUMBER(AMD_MEMORY_VRAM, 0, RSMI_MEM_TYPE_VRAM) \
    NUMBER(TEMPERATURE_NOW, 0, RSMI_TEMP_CURRENT) \
    NUMBER(TEMPERATURE_CRITICAL, 5, RSMI_TEMP_CRITICAL)
#define AMD_NUMBER(name, number, symbol) name = number,
enum { AMD_NUMBERS(AMD_NUMBER) };

/* Blocks of a GPU that count errors: (name, bit, its name in rocm_smi.h) */
#define AMD_BLOCKS(BLOCK) \
    BLOCK(UMC, 1 << 0, RSMI_GPU_BLOCK_UMC) \
    BLOCK(SDMA, 1 << 1, RSMI_GPU_BLOCK_SDMA) \
    BLOCK(GFX, 1 << 2, RSMI_GPU_BLOCK_GFX) \
    BLOCK(MMHUB, 1 << 3, RSMI_GPU_BLOCK_MMHUB) \
    BLOCK(ATHUB, 1 << 4, RSMI_GPU_BLOCK_ATHUB) \
    BLOCK(PCIE_BIF, 1 << 5, RSMI_GPU_BLOCK_PCIE_BIF) \
    BLOCK(HDP, 1 << 6, RSMI_GPU_BLOCK_HDP) \
    BLOCK(XGMI_WAFL, 1 << 7, RSMI_GPU_BLOCK_XGMI_WAFL) \
    BLOCK(DF, 1 << 8, RSMI_GPU_BLOCK_DF) \
    BLOCK(SMN, 1 << 9, RSMI_GPU_BLOCK_SMN) \
    BLOCK(SEM, 1 << 10, RSMI_GPU_BLOCK_SEM) \
    BLOCK(MP0, 1 << 11, RSMI_GPU_BLOCK_MP0) \
    BLOCK(MP1, 1 << 12, RSMI_GPU_BLOCK_MP1) \
    BLOCK(FUSE, 1 << 13, RSMI_GPU_BLOCK_FUSE)
