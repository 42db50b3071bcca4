/* A tensor as the copy engine of NVIDIA's Hopper sees it: opaque to us, made by the driver (device_tensor_map), part of a kernel's arguments. */
#pragma once

#include <stdint.h>

typedef struct TensorMap { _Alignas(64) uint64_t words[16]; } TensorMap;
