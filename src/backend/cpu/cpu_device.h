/* The CPU as a device. */
#pragma once

#include "device/device.h"

/* Always there, needs no closing. */
Device *device_cpu(void);
