/* Readings of the GPUs of both vendors, for sensors.c. */
#pragma once

#include <stdbool.h>

#include "launch/sensors.h"

typedef struct GpuSensors GpuSensors;

/* Opens the management libraries of both vendors below `root`; takes almost no time if neither is installed. Never NULL. */
GpuSensors *gpu_sensors_open(const char *root);
/* Fills in the GPUs and the joules; `seconds` have passed since the previous call. */
void gpu_sensors_read(GpuSensors *sensors, double seconds, SensorReading *reading);
void gpu_sensors_close(GpuSensors *sensors);
