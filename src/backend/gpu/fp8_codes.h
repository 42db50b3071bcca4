/* Codes of fp8 in registers, and kernels that write them in the place of the bf16 tensor that they make, by an amax that is known
 * before: that of delayed scaling. They are those of a cast of the tensor, bit for bit: elements are rounded to bf16, the product
 * to fp32, and that to fp8. Owns no memory. */
#pragma once

#include "backend/gpu/amax.h"
#include "backend/gpu/vector.h"
#include "base/float8.h"

/* Where a kernel writes them, by rows. */
typedef struct Fp8Codes {
    uint8_t GLOBAL *codes;
    float GLOBAL *scale;
    const float GLOBAL *amax;
    uint32_t GLOBAL *seen; /* takes the largest magnitude; NULL: not wanted */
    float largest;         /* number of the format */
} Fp8Codes;

#ifdef GPU_DEVICE

/* Four codes, that of x.x in the lowest byte. `largest` is the largest number of the format. */
#if defined __gfx942__ || defined __gfx950__
/* A mode of the processor decides what becomes of numbers that are too large, so there are none. */
INLINE float clamped(float x, float largest) { return x != x ? x : __builtin_amdgcn_fmed3f(x, -largest, largest); }
INLINE uint32_t to_codes(f32x4 x, float largest, const bool e5m2) {
    UNROLL for (int i = 0; i < 4; i++) x[i] = clamped(x[i], largest);
    if (e5m2) return __builtin_amdgcn_cvt_pk_bf8_f32(x.z, x.w, __builtin_amdgcn_cvt_pk_bf8_f32(x.x, x.y, 0, false), true);
    return __builtin_amdgcn_cvt_pk_fp8_f32(x.z, x.w, __builtin_amdgcn_cvt_pk_fp8_f32(x.x, x.y, 0, false), true);
}
#elif defined __CUDA_ARCH_FEAT_SM90_ALL
#define TO_CODES(type) \
    "{ .reg .b16 low, high; cvt.rn.satfinite." type "x2.f32 low, %2, %1; cvt.rn.satfinite." type "x2.f32 high, %4, %3; mov.b32 %0, {low, high}; }"
INLINE uint32_t to_codes(f32x4 x, float largest, const bool e5m2) {
    uint32_t codes;
    (void)largest;
    if (e5m2) __asm__(TO_CODES("e5m2") : "=r"(codes) : "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w));
    else __asm__(TO_CODES("e4m3") : "=r"(codes) : "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w));
    return codes;
}
#else
INLINE uint32_t to_codes(f32x4 x, float largest, const bool e5m2) {
    Fp8Format format = fp8_format(e5m2 ? FP8_E5M2 : FP8_E4M3, false);
    uint32_t codes = 0;
    (void)largest;
    UNROLL for (int i = 0; i < 4; i++) codes |= (uint32_t)fp8_from_float(x[i], format) << (8 * i);
    return codes;
}
#endif

INLINE float multiplier_of(const Fp8Codes *to) { return fp8_multiplier(*to->amax, to->largest, false); }

/* Writes y as bf16 to made[at]; or where `to` is not AS_BF16 its 8 codes there. */
#define AS_BF16 ((const Fp8Codes *)0)
INLINE void store8_made(bf16 GLOBAL *made, int64_t at, f32x8 y, int unit, const Fp8Codes *to, const bool e5m2) {
    if (!to) {
        store8_bf16(made + at, y, unit);
        return;
    }
    f32x4 low = to_float4((u32x2){to_bf16_pair(y[0], y[1]), to_bf16_pair(y[2], y[3])}),
          high = to_float4((u32x2){to_bf16_pair(y[4], y[5]), to_bf16_pair(y[6], y[7])});
    float m = multiplier_of(to);
    *(u32x2 GLOBAL *)(to->codes + at) = (u32x2){to_codes(low * m, to->largest, e5m2), to_codes(high * m, to->largest, e5m2)};
}

/* Ends a kernel that wrote codes, whose thread has made floats with these largest bits. All threads of all blocks call it. */
INLINE void record_codes(const Fp8Codes *to, uint32_t most) {
    if (block_x() == 0 && thread_id() == 0) *to->scale = 1 / multiplier_of(to);
    if (to->seen) record_rounded(to->seen, most);
}

#endif
