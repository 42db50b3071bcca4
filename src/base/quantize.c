/* Rounds matrices to NF4 and FP8 (quantize.h) when the weights of a model are loaded. Owns nothing
 * that outlives a call. */
#include "base/quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float8.h"
#include "base/memory.h"
#include "base/scope.h"

int64_t quantized_code_bytes(Quantization kind, int64_t count) { return kind == QUANTIZE_NF4 ? (count + 1) / 2 : count; }

int64_t quantized_scale_bytes(Quantization kind, int64_t count, int64_t columns) {
    if (kind == QUANTIZE_FP8) return count / columns * (int64_t)sizeof(float);
    return (int64_t)sizeof(Nf4Head) + nf4_outers(count) * (int64_t)sizeof(float) + nf4_blocks(count);
}

/* -- Tables -------------------------------------------------------------------------------------------------------- */

/* The values of bitsandbytes (functional.get_4bit_type): quantiles of a normal distribution, scaled
 * to -1 .. 1, with zero. */
static const float nf4_values[16] = {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
    -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f,
    0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};

static int ascending_floats(const void *a, const void *b) {
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

/* Returns boundary k of n + 1 between 0.1 and 1, rounded like torch.linspace: from the nearer
 * end. */
static float boundary(int k, int n) {
    double step = (double)((1 - 0.1f) / (float)n);
    return (float)(k < (n + 1) / 2 ? (double)0.1f + step * k : 1 - step * (n - k));
}

/* Fills values of both signs: for each power of ten from 1e-6 to 1 the midpoints of 1, 2, 4 ... 64
 * intervals; and 0 and 1. */
static void fill_map(float map[256]) {
    int count = 0;
    for (int e = 0; e < 7; e++) {
        int n = 1 << e;
        float power = (float)pow(10, e - 6);
        for (int k = 0; k < n; k++) {
            float middle = (boundary(k, n) + boundary(k + 1, n)) / 2;
            map[count++] = power * middle;
            map[count++] = -(power * middle);
        }
    }
    map[count++] = 0;
    map[count] = 1;
    qsort(map, 256, sizeof *map, ascending_floats);
}

/* -- NF4 ----------------------------------------------------------------------------------------------------------- */

/* Counts the midpoints between neighboring values that are below x. */
static uint8_t nf4_code(float x) {
    uint8_t code = 0;
    for (int i = 0; i < 15; i++) code += x > (nf4_values[i] + nf4_values[i + 1]) / 2;
    return code;
}

static uint8_t nearest(const float map[256], float x) {
    int low = 0, high = 255;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (map[middle] <= x) low = middle;
        else high = middle;
    }
    return (uint8_t)(x - map[low] <= map[high] - x ? low : high);
}

static float block_amax(const float *values, int64_t count) {
    float amax = 0;
    for (int64_t i = 0; i < count; i++) amax = fmaxf(amax, fabsf(values[i]));
    return amax;
}

/* Quantizes the elements of a block, which begins at an even element. */
static void round_block(const float *values, int64_t count, float amax, uint8_t *quantized) {
    float inverse = 1 / fmaxf(amax, 1e-38f);
    for (int64_t i = 0; i < count; i += 2) {
        uint8_t low = i + 1 < count ? nf4_code(fminf(fmaxf(values[i + 1] * inverse, -1), 1)) : nf4_code(0);
        quantized[i / 2] = (uint8_t)(nf4_code(fminf(fmaxf(values[i] * inverse, -1), 1)) << 4 | low);
    }
}

/* Quantizes the scales of `blocks` blocks to 8 bits. */
static void round_scales(const float *amax, int64_t count, Nf4Head *head) {
    int64_t blocks = nf4_blocks(count);
    float *outer = (float *)(head + 1);
    uint8_t *inner = (uint8_t *)(outer + nf4_outers(count));
    double sum = 0;
    for (int64_t b = 0; b < blocks; b++) sum += (double)amax[b];
    head->offset = (float)(sum / (double)blocks);
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < nf4_outers(count); o++) {
        int64_t first = o * NF4_OUTER, end = first + NF4_OUTER < blocks ? first + NF4_OUTER : blocks;
        float most = 0;
        for (int64_t b = first; b < end; b++) most = fmaxf(most, fabsf(amax[b] - head->offset));
        outer[o] = most;
        for (int64_t b = first; b < end; b++) inner[b] = nearest(head->map, (amax[b] - head->offset) * (1 / fmaxf(most, 1e-38f)));
    }
}

static void quantize_nf4(const float *values, int64_t count, uint8_t *quantized, Nf4Head *head) {
    int64_t blocks = nf4_blocks(count);
    SCOPED_FREE float *amax = memory_allocate((size_t)(blocks + 1) * sizeof *amax);
    memcpy(head->values, nf4_values, sizeof nf4_values);
    fill_map(head->map);
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * NF4_BLOCK, here = first + NF4_BLOCK < count ? NF4_BLOCK : count - first;
        amax[b] = block_amax(values + first, here);
        round_block(values + first, here, amax[b], quantized + first / 2);
    }
    round_scales(amax, count, head);
}

/* -- FP8 ----------------------------------------------------------------------------------------------------------- */

static void quantize_fp8(const float *values, int64_t count, int64_t columns, uint8_t *quantized, float *scales) {
    const Fp8Format format = fp8_format(FP8_E4M3, false);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < count / columns; r++) {
        const float *row = values + r * columns;
        float multiplier = fp8_multiplier(block_amax(row, columns), fp8_largest(FP8_E4M3, false), false);
        scales[r] = 1 / multiplier;
        for (int64_t c = 0; c < columns; c++) quantized[r * columns + c] = fp8_from_float(row[c] * multiplier, format);
    }
}

bool quantize(Quantization kind, const float *values, int64_t count, int64_t columns, uint8_t *quantized, void *scales) {
    bool finite = true;
#pragma omp parallel for schedule(static) reduction(&& : finite)
    for (int64_t i = 0; i < count; i++) finite = finite && isfinite(values[i]);
    if (!finite) return false;
    if (kind == QUANTIZE_NF4) quantize_nf4(values, count, quantized, scales);
    else quantize_fp8(values, count, columns, quantized, scales);
    return true;
}
