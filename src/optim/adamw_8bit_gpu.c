/* AdamW on a GPU with moments in 8 bits (optim/adamw_8bit.c): a thread has four elements, sixteen
 * threads have a block of quantized moments. The pass reads and writes 18.25 bytes per parameter, AdamW's 30.
 * Owns no memory. */
#include "optim/quantized_moments_internal.h"
#include "optim/optim_gpu_kernels.h"

/* The moments of a segment are at Chunk.second_index of these arenas, scales at 1 / MOMENT_BLOCK of
 * it. */
typedef struct CodedArguments {
    ElementArguments elements;
    uint8_t GLOBAL *momentum, *variance;
    float GLOBAL *momentum_scales, *variance_scales;
} CodedArguments;

#ifdef GPU_DEVICE

/* Returns the maximum over the threads of a block of quantized moments. */
INLINE float block_max(float x) {
    UNROLL for (int mask = MOMENT_BLOCK / 8; mask > 0; mask /= 2) x = __builtin_fmaxf(x, shuffle_xor(x, mask));
    return x;
}

INLINE f32x4 decode4(uint32_t quantized, float scale, float (*value)(int32_t code, float scale)) {
    f32x4 x;
    UNROLL for (int j = 0; j < 4; j++) x[j] = value(quantized >> 8 * j & 0xff, scale);
    return x;
}

INLINE uint32_t encode4(f32x4 x, float scale, int32_t (*code)(float x, float inverse)) {
    float inverse = moment_inverse(scale);
    uint32_t quantized = 0;
    UNROLL for (int j = 0; j < 4; j++) quantized |= (uint32_t)code(x[j], inverse) << 8 * j;
    return quantized;
}

/* Updates elements i .. i + 3 of a chunk, if `inside`. All threads of a wave take part in the
 * maxima. */
INLINE void update(const CodedArguments *c, const ChunkUpdate *u, int64_t i, bool inside, bool pure_bf16) {
    const OptimArenas *a = &u->arenas;
    int64_t at = u->index + i, coded = u->second_index + i, block = coded / MOMENT_BLOCK;
    f32x4 p = 0, g = 0, m = 0, v = 0;
    if (inside) {
        p = load_state(a->master, at, pure_bf16, 4), g = load_state(a->gradients, at, pure_bf16, 4) * u->scale;
        m = decode4(*(const uint32_t GLOBAL *)(c->momentum + coded), c->momentum_scales[block], momentum_value);
        v = decode4(*(const uint32_t GLOBAL *)(c->variance + coded), c->variance_scales[block], variance_value);
        p = adamw_step(u, p, g, &m, &v, 4);
    }
    float m_most = 0, v_most = 0;
    UNROLL for (int j = 0; j < 4; j++) m_most = __builtin_fmaxf(m_most, __builtin_fabsf(m[j])), v_most = __builtin_fmaxf(v_most, v[j]);
    m_most = block_max(m_most), v_most = block_max(v_most);
    if (!inside) return;
    *(uint32_t GLOBAL *)(c->momentum + coded) = encode4(m, m_most, momentum_code);
    *(uint32_t GLOBAL *)(c->variance + coded) = encode4(v, v_most, variance_code);
    if (coded % MOMENT_BLOCK == 0) c->momentum_scales[block] = m_most, c->variance_scales[block] = v_most;
    store_parameters(a, at, p, u->seed, u->first + i, pure_bf16, 4);
}

INLINE void update_quantized(const CodedArguments *c, bool pure_bf16) {
    const ElementArguments *a = &c->elements;
    const Chunk GLOBAL *chunk = a->chunks + block_x();
    ChunkUpdate u = update_of(chunk, &a->arenas, &a->rates[chunk->rates]);
    for (int64_t begin = 0; begin < chunk->count; begin += OPTIM_STEP) {
        int64_t i = begin + 4 * thread_id();
        update(c, &u, i, i < chunk->count, pure_bf16);
    }
}

KERNEL(adamw_8bit, CodedArguments) { update_quantized(&a, false); }
KERNEL(adamw_8bit_bf16, CodedArguments) { update_quantized(&a, true); }

#else

LAUNCHERS(adamw_8bit, CodedArguments, adamw_8bit, adamw_8bit_bf16)

void gpu_update_adamw_8bit(const Optimizer *o, const Segment *segment, const Update *update, const ElementRates rates[RATES_COUNT]) {
    CodedArguments arguments = {.elements = optim_element_arguments(o, segment, update, rates),
        .momentum = o->quantized.momentum,
        .variance = o->quantized.variance,
        .momentum_scales = o->quantized.momentum_scales,
        .variance_scales = o->quantized.variance_scales};
    launch_adamw_8bit(o->device, segment->pure_bf16, optim_element_shape(segment), &arguments);
}

#endif
