/* Quantized fp8 values in registers, for kernels that write them in addition to, or instead of, the
 * bf16 tensor that they compute. The amax is known beforehand, from delayed scaling. The values
 * equal those of a cast of the tensor, bit for bit: elements are rounded to bf16, the product with
 * the multiplier to fp32, and then to fp8.
 *
 * Such a kernel has two variants. One writes only bf16. The other takes Fp8Output: it writes
 * quantized values if they are wanted, bf16 if it is read, and records the amax
 * (backend/gpu/amax.h). Owns no memory. */
#pragma once

#include "backend/gpu/amax.h"
#include "backend/gpu/vector.h"
#include "base/float8.h"

/* Additional outputs of a kernel; quantized values are stored by rows. */
typedef struct Fp8Output {
    uint8_t GLOBAL *quantized; /* NULL: not wanted; then `scale` and `amax` are not set */
    float GLOBAL *scale;       /* receives the single scale of all values */
    const float GLOBAL *amax;  /* the amax from which the cast computes its scale */
    uint32_t GLOBAL *seen;     /* receives the amax; NULL: not wanted */
    float largest;             /* largest number of the format */
} Fp8Output;

#ifdef GPU_DEVICE

/* 1 if the target's matrix units multiply fp8 (gpu_gemm_has_fp8); other targets do not use the
 * quantized values. */
#if defined __gfx942__ || defined __gfx950__ || defined __CUDA_ARCH_FEAT_SM90_ALL
#define GPU_MULTIPLIES_FP8 1
#else
#define GPU_MULTIPLIES_FP8 0
#endif

/* Return four fp8 values, x.x in the lowest byte. `largest` is the largest number of the format. */
#if defined __gfx942__ || defined __gfx950__
/* The conversion of numbers that are too large depends on a mode of the processor, so they are
 * clamped first. */
INLINE float clamped(float x, float largest) { return x != x ? x : __builtin_amdgcn_fmed3f(x, -largest, largest); }
INLINE uint32_t to_fp8(f32x4 x, float largest, const bool e5m2) {
    UNROLL for (int i = 0; i < 4; i++) x[i] = clamped(x[i], largest);
    if (e5m2) return __builtin_amdgcn_cvt_pk_bf8_f32(x.z, x.w, __builtin_amdgcn_cvt_pk_bf8_f32(x.x, x.y, 0, false), true);
    return __builtin_amdgcn_cvt_pk_fp8_f32(x.z, x.w, __builtin_amdgcn_cvt_pk_fp8_f32(x.x, x.y, 0, false), true);
}
#elif defined __CUDA_ARCH_FEAT_SM90_ALL
#define TO_FP8(type) \
    "{ .reg .b16 low, high; cvt.rn.satfinite." type "x2.f32 low, %2, %1; cvt.rn.satfinite." type "x2.f32 high, %4, %3; mov.b32 %0, {low, high}; }"
INLINE uint32_t to_fp8(f32x4 x, float largest, const bool e5m2) {
    uint32_t quantized;
    (void)largest;
    if (e5m2) __asm__(TO_FP8("e5m2") : "=r"(quantized) : "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w));
    else __asm__(TO_FP8("e4m3") : "=r"(quantized) : "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w));
    return quantized;
}
#else
INLINE uint32_t to_fp8(f32x4 x, float largest, const bool e5m2) {
    Fp8Format format = fp8_format(e5m2 ? FP8_E5M2 : FP8_E4M3, false);
    uint32_t quantized = 0;
    (void)largest;
    UNROLL for (int i = 0; i < 4; i++) quantized |= (uint32_t)fp8_from_float(x[i], format) << (8 * i);
    return quantized;
}
#endif

/* The state of a thread that writes elements. `to` is the constant AS_BF16 in the variant that
 * writes only bf16. */
#define AS_BF16 ((const Fp8Output *)0)
typedef struct Fp8Writer {
    const Fp8Output *to;
    float multiplier;
    uint32_t most; /* the largest absolute-value bits so far */
} Fp8Writer;

INLINE Fp8Writer fp8_writer(const Fp8Output *to) {
    return (Fp8Writer){.to = to, .multiplier = to && to->quantized ? fp8_multiplier(*to->amax, to->largest, false) : 0};
}

/* Quantizes bf16 pairs. */
INLINE uint32_t quantize4(const Fp8Writer *writer, u32x2 pairs, const bool e5m2) {
    return to_fp8(to_float4(pairs) * writer->multiplier, writer->to->largest, e5m2);
}

/* Writes four elements, or one, at `at` of the tensor; `made` is NULL if it is not read as bf16. */
INLINE void fp8_store4(Fp8Writer *writer, bf16 GLOBAL *made, int64_t at, f32x4 y, int unit, const bool e5m2) {
    const Fp8Output *to = writer->to;
    if (!to || made) store4_bf16(made + at, y, unit);
    if (!to) return;
    UNROLL for (int i = 0; i < unit; i++) writer->most = larger_of(writer->most, y[i]);
    if (!to->quantized) return;
    uint32_t quantized = quantize4(writer, (u32x2){to_bf16_pair(y.x, y.y), to_bf16_pair(y.z, y.w)}, e5m2);
    if (unit == 1) to->quantized[at] = (uint8_t)quantized;
    else *(uint32_t GLOBAL *)(to->quantized + at) = quantized;
}

/* The same for eight elements, or one. */
INLINE void fp8_store8(Fp8Writer *writer, bf16 GLOBAL *made, int64_t at, f32x8 y, int unit, const bool e5m2) {
    const Fp8Output *to = writer->to;
    if (unit == 1) {
        fp8_store4(writer, made, at, (f32x4){y[0]}, 1, e5m2);
        return;
    }
    if (!to || made) store8_bf16(made + at, y, unit);
    if (!to) return;
    UNROLL for (int i = 0; i < 8; i++) writer->most = larger_of(writer->most, y[i]);
    if (!to->quantized) return;
    u32x2 low = {to_bf16_pair(y[0], y[1]), to_bf16_pair(y[2], y[3])}, high = {to_bf16_pair(y[4], y[5]), to_bf16_pair(y[6], y[7])};
    *(u32x2 GLOBAL *)(to->quantized + at) = (u32x2){quantize4(writer, low, e5m2), quantize4(writer, high, e5m2)};
}

/* Ends the kernel. All threads of all blocks, of AMAX_THREADS threads each, call it. */
INLINE void fp8_writer_end(const Fp8Writer *writer) {
    const Fp8Output *to = writer->to;
    if (!to) return;
    if (to->quantized && block_x() == 0 && thread_id() == 0) *to->scale = 1 / writer->multiplier;
    if (to->seen) record_rounded(to->seen, writer->most);
}

#else

/* Returns the additional outputs of a call: the quantized values that its absorber wants, or the
 * amax, output `amax`, zeroed. */
static inline Fp8Output fp8_output_of(const OpCall *call, int amax) {
    return call->quantized ? *call->quantized : (Fp8Output){.seen = amax_to_record(call, amax)};
}
static inline bool fp8_is_wanted(const Fp8Output *to) { return to->quantized || to->seen; }

#endif
