/* dequantize on a CPU: threads divide blocks of NF4, and rows of FP8. */
#include "backend/cpu/kernel.h"
#include "base/float8.h"
#include "base/quantize.h"
#include "ops/dequantize/dequantize.h"

static void from_nf4(const uint8_t *quantized, const Nf4Head *head, int64_t count, T *to) {
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < nf4_blocks(count); b++) {
        int64_t first = b * NF4_BLOCK, end = first + NF4_BLOCK < count ? first + NF4_BLOCK : count;
        float scale = nf4_scale(head, count, b);
        for (int64_t i = first; i < end; i++)
            to[i] = to_compute(head->values[i % 2 ? quantized[i / 2] & 15 : quantized[i / 2] >> 4] * scale);
    }
}

static void from_fp8(const uint8_t *quantized, const float *scales, int64_t count, int64_t columns, T *to) {
    const Fp8Format format = fp8_format(FP8_E4M3, false);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < count / columns; r++)
        for (int64_t i = r * columns; i < (r + 1) * columns; i++) to[i] = to_compute(fp8_to_float(quantized[i], format) * scales[r]);
}

CPU_OP(dequantize) {
    const DequantizeAttributes *attributes = call->attributes;
    const int64_t *shape = call->out_shape[DEQUANTIZE_WEIGHT];
    T *to = call->out[DEQUANTIZE_WEIGHT];
    int64_t columns = shape[2] > 1 ? shape[2] : shape[1];
    for (int i = 0; i < attributes->parts; to += attributes->count[i++]) {
        const void *quantized = call->in[DEQUANTIZE_QUANTIZED + i], *scales = call->in[DEQUANTIZE_SCALES + i];
        if (attributes->quantization == QUANTIZE_NF4) from_nf4(quantized, scales, attributes->count[i], to);
        else from_fp8(quantized, scales, attributes->count[i], columns, to);
    }
}
