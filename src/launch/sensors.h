/* What the machine of a rank is doing: processors, memory, disks, networks and GPUs. GPUs are read by the vendors' management
 * libraries, which are opened at run time: all that CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES leave, those of
 * other runs too; a container shows its own. A reading takes up to some milliseconds per GPU, so a thread of its own reads. */
#pragma once

#include <stdint.h>

enum { SENSOR_GPUS = 64 };

/* NaN: unknown. */
typedef struct GpuReading {
    double percent; /* of the time in which kernels ran */
    double memory_bytes, watts, celsius;
} GpuReading;

/* Rates are since the previous reading, or since sensors_open. NaN: unknown. */
typedef struct SensorReading {
    double cpu_percent;                                           /* of all processors */
    double memory_bytes;                                          /* in use on the machine */
    double read_bytes, written_bytes, received_bytes, sent_bytes; /* per second: of all disks, and of all networks but the loopback */
    double joules;                                                /* of all GPUs since the previous reading */
    int gpu_count;
    GpuReading gpus[SENSOR_GPUS];
} SensorReading;

typedef struct Sensors Sensors;

/* Looks below `root` ("": this machine; tests pass a folder, with libraries in it). Never NULL. */
Sensors *sensors_open(const char *root);
void sensors_read(Sensors *sensors, SensorReading *reading);
void sensors_close(Sensors *sensors); /* NULL is fine */
