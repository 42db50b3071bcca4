/* The GPU kernels of dequantize: flat, eight elements per thread: four bytes of NF4 values or eight
 * of FP8, and 16 of bf16. Eight threads process a block of 64 NF4 elements. Tables of values are
 * read from memory, which the L1 cache serves. */
#include "backend/gpu/vector.h"
#include "base/quantize.h"

typedef struct DequantizeArguments {
    const uint8_t GLOBAL *quantized, *inner; /* inner: for NF4 */
    const float GLOBAL *scales, *outer;      /* scales: the head of NF4, or the row scales of FP8 */
    bf16 GLOBAL *to;
    int64_t count, columns;
    int32_t uneven; /* `to` is not aligned to 16 bytes: elements are stored one by one */
} DequantizeArguments;

#ifdef GPU_DEVICE

INLINE void dequantize_nf4_one(const DequantizeArguments *a, int64_t at) {
    int64_t block = at / NF4_BLOCK;
    const float GLOBAL *values = a->scales + 1, *map = values + 16;
    uint32_t pair = a->quantized[at / 2];
    a->to[at] = to_bf16(values[at % 2 ? pair & 15 : pair >> 4] * (map[a->inner[block]] * a->outer[block / NF4_OUTER] + a->scales[0]));
}

INLINE void dequantize_nf4_at(const DequantizeArguments *a, int64_t at, int unit) {
    const float GLOBAL *values = a->scales + 1, *map = values + 16;
    int64_t block = at / NF4_BLOCK;
    if (unit == 1 || a->uneven) {
        for (int i = 0; i < unit; i++) dequantize_nf4_one(a, at + i);
        return;
    }
    float scale = map[a->inner[block]] * a->outer[block / NF4_OUTER] + a->scales[0];
    uint32_t eight = *(const uint32_t GLOBAL *)(a->quantized + at / 2);
    f32x8 x;
    UNROLL for (int i = 0; i < 8; i++) x[i] = values[eight >> (i / 2 * 8 + (i % 2 ? 0 : 4)) & 15] * scale;
    store8_bf16(a->to + at, x, 8);
}

/* e4m3: exponent and mantissa, placed at a float's position, give 2^-120 times the value, also for
 * subnormal values. */
INLINE float from_e4m3(uint32_t code) {
    float magnitude = __builtin_bit_cast(float, (code & 0x7f) << 20) * 0x1p120f;
    return code & 0x80 ? -magnitude : magnitude;
}

INLINE void dequantize_fp8_at(const DequantizeArguments *a, int64_t at, int unit) {
    if (unit == 1 || a->uneven || a->columns % 8) {
        for (int i = 0; i < unit; i++) a->to[at + i] = to_bf16(from_e4m3(a->quantized[at + i]) * a->scales[(at + i) / a->columns]);
        return;
    }
    float scale = a->scales[at / a->columns];
    u32x2 quantized = *(const u32x2 GLOBAL *)(a->quantized + at);
    f32x8 x;
    UNROLL for (int i = 0; i < 8; i++) x[i] = from_e4m3((i < 4 ? quantized.x : quantized.y) >> (i % 4 * 8) & 0xff) * scale;
    store8_bf16(a->to + at, x, 8);
}

FLAT_KERNEL(dequantize_nf4, DequantizeArguments, dequantize_nf4_at)
FLAT_KERNEL(dequantize_fp8, DequantizeArguments, dequantize_fp8_at)

#else

#include "ops/dequantize/dequantize.h"

LAUNCHER(dequantize_nf4, DequantizeArguments)
LAUNCHER(dequantize_fp8, DequantizeArguments)

GPU_OP(dequantize) {
    const DequantizeAttributes *attributes = call->attributes;
    const int64_t *shape = call->out_shape[DEQUANTIZE_WEIGHT];
    bf16 *to = call->out[DEQUANTIZE_WEIGHT];
    int64_t columns = shape[2] > 1 ? shape[2] : shape[1];
    for (int i = 0; i < attributes->parts; to += attributes->count[i++]) {
        const Nf4Head *head = call->in[DEQUANTIZE_SCALES + i];
        int64_t count = attributes->count[i];
        DequantizeArguments arguments = {.quantized = call->in[DEQUANTIZE_QUANTIZED + i],
            .scales = (const float *)head,
            .to = to,
            .count = count,
            .columns = columns,
            .uneven = (uintptr_t)to % 16 != 0};
        arguments.outer = (const float *)(head + 1);
        arguments.inner = (const uint8_t *)(arguments.outer + nf4_outers(count));
        if (attributes->quantization == QUANTIZE_NF4) launch_dequantize_nf4(call->device, flat_shape(count), &arguments);
        else launch_dequantize_fp8(call->device, flat_shape(count), &arguments);
    }
}

#endif
