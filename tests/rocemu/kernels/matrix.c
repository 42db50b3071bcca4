/* One matrix instruction each: lane l gives the dwords of A and B at a[l * words ...], and writes its results to
 * d[register * 64 + l]. C is read in the same way. */
typedef unsigned int u32;
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x16 __attribute__((ext_vector_type(16)));
typedef float f32x32 __attribute__((ext_vector_type(32)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef int i32x16 __attribute__((ext_vector_type(16)));
typedef short i16x4 __attribute__((ext_vector_type(4)));
typedef int i32x8 __attribute__((ext_vector_type(8)));
typedef __bf16 bf16x8 __attribute__((ext_vector_type(8)));
typedef _Float16 f16x8 __attribute__((ext_vector_type(8)));
typedef _Float16 f16x4 __attribute__((ext_vector_type(4)));
typedef float f32x2 __attribute__((ext_vector_type(2)));
#define GLOBAL __attribute__((address_space(1)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void

#define MATRIX(name, Source, Result, registers, instruction)                                                                     \
    KERNEL name(GLOBAL u32 *d, const GLOBAL Source *a, const GLOBAL Source *b, const GLOBAL u32 *c) {                            \
        u32 lane = __builtin_amdgcn_workitem_id_x();                                                                             \
        Result sum;                                                                                                              \
        for (int r = 0; r < registers; r++) sum[r] = __builtin_bit_cast(__typeof__(sum[0]), c[r * 64 + lane]);                   \
        sum = instruction(a[lane], b[lane], sum, 0, 0, 0);                                                                       \
        for (int r = 0; r < registers; r++) {                                                                                    \
            __typeof__(+sum[0]) x = sum[r]; /* clang 19 takes element 0 for __builtin_bit_cast(u32, sum[r]) */                   \
            d[r * 64 + lane] = __builtin_bit_cast(u32, x);                                                                       \
        }                                                                                                                        \
    }
MATRIX(bf16_32x32x8, i16x4, f32x16, 16, __builtin_amdgcn_mfma_f32_32x32x8bf16_1k)
MATRIX(bf16_16x16x16, i16x4, f32x4, 4, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k)
MATRIX(bf16_32x32x4_2, i16x4, f32x32, 32, __builtin_amdgcn_mfma_f32_32x32x4bf16_1k)
MATRIX(bf16_16x16x4_4, i16x4, f32x16, 16, __builtin_amdgcn_mfma_f32_16x16x4bf16_1k)
MATRIX(bf16_4x4x4_16, i16x4, f32x4, 4, __builtin_amdgcn_mfma_f32_4x4x4bf16_1k)
MATRIX(f16_32x32x8, f16x4, f32x16, 16, __builtin_amdgcn_mfma_f32_32x32x8f16)
MATRIX(f16_16x16x16, f16x4, f32x4, 4, __builtin_amdgcn_mfma_f32_16x16x16f16)
MATRIX(f32_32x32x2, float, f32x16, 16, __builtin_amdgcn_mfma_f32_32x32x2f32)
MATRIX(f32_16x16x4, float, f32x4, 4, __builtin_amdgcn_mfma_f32_16x16x4f32)
MATRIX(i8_32x32x16, long, i32x16, 16, __builtin_amdgcn_mfma_i32_32x32x16_i8)
MATRIX(i8_16x16x32, long, i32x4, 4, __builtin_amdgcn_mfma_i32_16x16x32_i8)
MATRIX(fp8_32x32x16, long, f32x16, 16, __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8)
MATRIX(fp8_16x16x32, long, f32x4, 4, __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8)
MATRIX(fp8_bf8_16x16x32, long, f32x4, 4, __builtin_amdgcn_mfma_f32_16x16x32_fp8_bf8)
#if defined __gfx950__
MATRIX(bf16_32x32x16, bf16x8, f32x16, 16, __builtin_amdgcn_mfma_f32_32x32x16_bf16)
MATRIX(bf16_16x16x32, bf16x8, f32x4, 4, __builtin_amdgcn_mfma_f32_16x16x32_bf16)
MATRIX(f16_32x32x16, f16x8, f32x16, 16, __builtin_amdgcn_mfma_f32_32x32x16_f16)
MATRIX(f16_16x16x32, f16x8, f32x4, 4, __builtin_amdgcn_mfma_f32_16x16x32_f16)

/* Types of A and B: 0 is e4m3, 1 e5m2. Scales are bytes of the dwords of the lanes, `from_a` and `from_b`. */
#define SCALED(name, Result, registers, instruction, type_a, type_b, from_a, scale_a, from_b, scale_b)                                                   \
    KERNEL name(GLOBAL u32 *d, const GLOBAL i32x8 *a, const GLOBAL i32x8 *b, const GLOBAL u32 *c, const GLOBAL int *a_scales, const GLOBAL int *b_scales) { \
        u32 lane = __builtin_amdgcn_workitem_id_x();                                                                                                     \
        Result sum;                                                                                                                                      \
        for (int r = 0; r < registers; r++) sum[r] = __builtin_bit_cast(float, c[r * 64 + lane]);                                                        \
        sum = instruction(a[lane], b[lane], sum, type_a, type_b, from_a, scale_a, from_b, scale_b);                                                      \
        for (int r = 0; r < registers; r++) {                                                                                                            \
            float x = sum[r];                                                                                                                            \
            d[r * 64 + lane] = __builtin_bit_cast(u32, x);                                                                                               \
        }                                                                                                                                                \
    }
SCALED(e4m3_16x16x128, f32x4, 4, __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4, 0, 0, 0, 0, 0, 0)
SCALED(e4m3_e5m2_16x16x128, f32x4, 4, __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4, 0, 1, 0, 0, 0, 0)
SCALED(e5m2_e4m3_32x32x64, f32x16, 16, __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4, 1, 0, 0, 0, 0, 0)
SCALED(scaled_16x16x128, f32x4, 4, __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4, 0, 0, 1, a_scales[lane], 2, b_scales[lane])
SCALED(scaled_32x32x64, f32x16, 16, __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4, 0, 0, 0, a_scales[lane], 3, b_scales[lane])
#endif
