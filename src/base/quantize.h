/* Matrices in few bits, the form of frozen weights with adapters: quantized values, and their
 * scales.
 *
 * NF4 (arXiv 2305.14314) with double quantization, with the bits of bitsandbytes 0.50
 * (functional.quantize_4bit with compress_statistics). It has 16 values that a normal distribution
 * takes equally often. The scale of every 64 elements is their amax. The mean of these scales
 * (`offset`) is subtracted, and the rest is stored in 8 bits: the nearest of 256 values (`map`,
 * functional.create_dynamic_map) times the amax of 256 scales.
 *
 *     element = values[code] * (map[inner] * outer + offset)
 *
 * A byte holds two 4-bit indices, the first one in its upper half. 0.516 bytes per element.
 *
 * FP8: e4m3 (base/float8.h), each row divided by its amax / 448. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum Quantization { QUANTIZE_NONE, QUANTIZE_NF4, QUANTIZE_FP8 } Quantization;

enum { NF4_BLOCK = 64, NF4_OUTER = 256 }; /* elements per scale, scales per outer scale */

/* The scales of an NF4 matrix begin with this head. `outer` follows, one float for every 256
 * blocks; then `inner`, one byte for every block. Kernels look values up in its tables. The
 * scales of FP8 have no head: they are floats, one per row. */
typedef struct Nf4Head { float offset, values[16], map[256]; } Nf4Head;

static inline int64_t nf4_blocks(int64_t count) { return (count + NF4_BLOCK - 1) / NF4_BLOCK; }
static inline int64_t nf4_outers(int64_t count) { return (nf4_blocks(count) + NF4_OUTER - 1) / NF4_OUTER; }

/* Return the bytes of the quantized values and of the scales of a matrix, or a stack of matrices,
 * of `count` elements in rows of `columns`. */
int64_t quantized_code_bytes(Quantization kind, int64_t count);
int64_t quantized_scale_bytes(Quantization kind, int64_t count, int64_t columns);
/* Quantizes `values` on all threads. Returns false, with undefined outputs, if a value is NaN or
 * infinite. */
bool quantize(Quantization kind, const float *values, int64_t count, int64_t columns, uint8_t *quantized, void *scales);

/* Returns the scale of a block. */
static inline float nf4_scale(const Nf4Head *head, int64_t count, int64_t block) {
    const float *outer = (const float *)(head + 1);
    const uint8_t *inner = (const uint8_t *)(outer + nf4_outers(count));
    return head->map[inner[block]] * outer[block / NF4_OUTER] + head->offset;
}
