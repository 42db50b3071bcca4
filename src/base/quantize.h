/* Matrices in few bits, as frozen weights are held beside adapters: codes, and scales to read them by.
 *
 * NF4 (arXiv 2305.14314) with double quantization, in the bits of bitsandbytes 0.50 (functional.quantize_4bit with
 * compress_statistics): 16 values that a normal distribution takes equally often; of every 64 elements the largest magnitude
 * is the scale. From these scales their mean (`offset`) is taken, and what is left is in 8 bits: one of 256 values
 * (`map`, functional.create_dynamic_map), the nearest, times the largest magnitude of 256 of them.
 *     element = values[code] * (map[inner] * outer + offset)
 * Two codes are a byte, the first one its upper half. 0.516 bytes an element.
 *
 * FP8: e4m3 (base/float8.h), each row divided by its largest magnitude / 448. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum Quantization { QUANTIZE_NONE, QUANTIZE_NF4, QUANTIZE_FP8 } Quantization;

enum { NF4_BLOCK = 64, NF4_OUTER = 256 }; /* elements of a scale, scales of a scale of scales */

/* What scales of NF4 begin with; `outer` follows, a float for every 256 blocks, then `inner`, a byte for each block. Tables stand
 * in memory, where kernels look codes up. Scales of FP8 are floats, one for each row. */
typedef struct Nf4Head { float offset, values[16], map[256]; } Nf4Head;

static inline int64_t nf4_blocks(int64_t count) { return (count + NF4_BLOCK - 1) / NF4_BLOCK; }
static inline int64_t nf4_outers(int64_t count) { return (nf4_blocks(count) + NF4_OUTER - 1) / NF4_OUTER; }

/* Bytes of the codes and of the scales of a matrix, or a stack of them, of `count` elements in rows of `columns`. */
int64_t quantized_code_bytes(Quantization kind, int64_t count);
int64_t quantized_scale_bytes(Quantization kind, int64_t count, int64_t columns);
/* Rounds `values` on all threads. False, with codes and scales undefined, where a value is NaN or infinite. */
bool quantize(Quantization kind, const float *values, int64_t count, int64_t columns, uint8_t *codes, void *scales);

/* The scale of a block. */
static inline float nf4_scale(const Nf4Head *head, int64_t count, int64_t block) {
    const float *outer = (const float *)(head + 1);
    const uint8_t *inner = (const uint8_t *)(outer + nf4_outers(count));
    return head->map[inner[block]] * outer[block / NF4_OUTER] + head->offset;
}
