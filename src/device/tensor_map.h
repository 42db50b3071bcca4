/* A tensor as the copy engine of NVIDIA's Hopper sees it: opaque to us, made by the driver (device_tensor_map), part of a kernel's arguments. */
#ifndef SMELT_DEVICE_TENSOR_MAP_H
#define SMELT_DEVICE_TENSOR_MAP_H

#include <stdint.h>

typedef struct TensorMap { _Alignas(64) uint64_t words[16]; } TensorMap;

#endif
