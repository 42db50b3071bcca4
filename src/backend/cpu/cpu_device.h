/* The CPU as a device. */
#pragma once

#include "device/device.h"

/* Returns the CPU device, which always exists and needs no closing. */
Device *device_cpu(void);
