/* AdamW's update on the CPU with moments in 8 bits (optim/adamw_8bit.c), a block at a time. */
#include "optim/quantized_moments_internal.h"
#include "optim/pass_cpu_internal.h"

PreciseSum KERNEL(update_adamw_8bit)(const PassRates *rates, const PassMemory *memory);

static void decode(const uint8_t *m_quantized, const uint8_t *v_quantized, float m_scale, float v_scale, W *restrict m, W *restrict v) {
#pragma omp simd
    for (int i = 0; i < MOMENT_BLOCK; i++) {
        m[i] = momentum_value(m_quantized[i], m_scale);
        v[i] = variance_value(v_quantized[i], v_scale);
    }
}

static void encode(const W *restrict m, const W *restrict v, uint8_t *m_quantized, uint8_t *v_quantized, float *m_scale, float *v_scale) {
    float m_most = 0, v_most = 0;
#pragma omp simd reduction(max : m_most, v_most)
    for (int i = 0; i < MOMENT_BLOCK; i++) {
        float magnitude = fabsf((float)m[i]), variance = (float)v[i];
        m_most = magnitude > m_most ? magnitude : m_most;
        v_most = variance > v_most ? variance : v_most;
    }
    float m_inverse = moment_inverse(m_most), v_inverse = moment_inverse(v_most);
#pragma omp simd
    for (int i = 0; i < MOMENT_BLOCK; i++) m_quantized[i] = (uint8_t)momentum_code((float)m[i], m_inverse);
#pragma omp simd
    for (int i = 0; i < MOMENT_BLOCK; i++) v_quantized[i] = (uint8_t)variance_code((float)v[i], v_inverse);
    *m_scale = m_most, *v_scale = v_most;
}

PreciseSum KERNEL(update_adamw_8bit)(const PassRates *rates, const PassMemory *memory) {
    W *p = memory->master;
    const W *g = memory->gradient;
    uint8_t *m_quantized = memory->momentum, *v_quantized = memory->variance;
    for (int64_t at = 0, block = 0; at < memory->count; at += MOMENT_BLOCK, block++) {
        W m[MOMENT_BLOCK], v[MOMENT_BLOCK];
        float *m_scale = memory->momentum_scales + block, *v_scale = memory->variance_scales + block;
        decode(m_quantized + at, v_quantized + at, *m_scale, *v_scale, m, v);
        update_adamw(rates->elements, MOMENT_BLOCK, p + at, g + at, m, v);
        encode(m, v, m_quantized + at, v_quantized + at, m_scale, v_scale);
        cast_weights(MOMENT_BLOCK, p + at, (T *)memory->weights + at);
    }
    return (PreciseSum){0};
}
