/* Load of a rank's machine: processors, memory, disks, networks and GPUs. The vendors' management libraries, opened at run time,
 * read all GPUs that CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES allow, also GPUs of other runs. In
 * a container they read its GPUs. A reading takes up to a few milliseconds per GPU, so the sampler has its own thread. */
#pragma once

#include <stdint.h>

enum { SENSOR_GPUS = 64 };

/* NaN: unknown. */
typedef struct GpuReading {
    double percent; /* share of the time with running kernels */
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

/* Reads the files and opens the libraries below `root` ("": this machine; tests pass a folder). Never NULL. */
Sensors *sensors_open(const char *root);
void sensors_read(Sensors *sensors, SensorReading *reading);
void sensors_close(Sensors *sensors); /* NULL is fine */
