/* The arguments of the memory benchmark's GPU kernels (stream_gpu.c). */
#pragma once

#include "backend/gpu/gpu.h"

/* Arrays of `count` floats, a multiple of 4, aligned to 16 bytes; pointers that a kernel does not
 * use may be NULL. Kernels accept a grid of any size:
 *   stream_copy  c = a        stream_scale  b = factor c      stream_add    c = a + b
 *   stream_triad a = b + factor c           stream_write  a = factor
 *   stream_read  a[block] = sum of the block's elements of b; the store keeps the compiler from
 *   removing the reads */
typedef struct StreamArguments {
    float GLOBAL *a;
    float GLOBAL *b;
    float GLOBAL *c;
    float factor;
    int32_t blocks;
    int64_t count;
} StreamArguments;

enum { STREAM_THREADS = 256 };
