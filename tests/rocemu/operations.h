/* Instructions with what each must compute, said twice in one row: as assembly for the device and as a C expression
 * for the host. The device file makes a kernel of every row, the test compares its results with the expression's
 * over random and special values.
 *
 * X(name, kind, D, A, B, C, assembly, ulps, expression)   vector: the result is in v2 (and v3), a in v4, b in v6, c in
 * v8; each u32 or u64
 *   X(name, D, A, B, assembly, expression)                  scalar: the result is in s12 (and s13), a in s14, b in s16
 *
 * The expression sees a, b, c; f(x) and g(x) read bits as float and double, fb and gb give them back. Kinds: I bits
 * must be equal; F fp32, G fp64, H fp16, P two fp16, B two bf16, where any two NaNs are equal. `ulps`: how far an approximation
 * may be off. */

#define VECTOR_INTEGER(X)                                                                                                                     \
    X(mov, I, u32, u32, u32, u32, "v_mov_b32 %0, %1", 0, a)                                                                                   \
    X(not, I, u32, u32, u32, u32, "v_not_b32 %0, %1", 0, ~a)                                                                                  \
    X(bfrev, I, u32, u32, u32, u32, "v_bfrev_b32 %0, %1", 0, reversed(a))                                                                     \
    X(ffbh, I, u32, u32, u32, u32, "v_ffbh_u32 %0, %1", 0, a ? (u32)__builtin_clz(a) : ~0u)                                                   \
    X(ffbl, I, u32, u32, u32, u32, "v_ffbl_b32 %0, %1", 0, a ? (u32)__builtin_ctz(a) : ~0u)                                                   \
    X(ffbh_i32, I, u32, u32, u32, u32, "v_ffbh_i32 %0, %1", 0, a == 0 || a == ~0u ? ~0u : (u32)__builtin_clrsb((int)a) + 1)                   \
    X(add_u32, I, u32, u32, u32, u32, "v_add_u32 %0, %1, %2", 0, a + b)                                                                       \
    X(sub_u32, I, u32, u32, u32, u32, "v_sub_u32 %0, %1, %2", 0, a - b)                                                                       \
    X(subrev_u32, I, u32, u32, u32, u32, "v_subrev_u32 %0, %1, %2", 0, b - a)                                                                 \
    X(add_clamp, I, u32, u32, u32, u32, "v_add_u32 %0, %1, %2 clamp", 0, a + b < a ? ~0u : a + b)                                             \
    X(sub_clamp, I, u32, u32, u32, u32, "v_sub_u32 %0, %1, %2 clamp", 0, a < b ? 0 : a - b)                                                   \
    X(and, I, u32, u32, u32, u32, "v_and_b32 %0, %1, %2", 0, a & b)                                                                           \
    X(or, I, u32, u32, u32, u32, "v_or_b32 %0, %1, %2", 0, a | b)                                                                             \
    X(xor, I, u32, u32, u32, u32, "v_xor_b32 %0, %1, %2", 0, a ^ b)                                                                           \
    X(lshlrev, I, u32, u32, u32, u32, "v_lshlrev_b32 %0, %1, %2", 0, b << a % 32)                                                             \
    X(lshrrev, I, u32, u32, u32, u32, "v_lshrrev_b32 %0, %1, %2", 0, b >> a % 32)                                                             \
    X(ashrrev, I, u32, u32, u32, u32, "v_ashrrev_i32 %0, %1, %2", 0, (u32)((int)b >> a % 32))                                                 \
    X(lshlrev64, I, u64, u32, u64, u32, "v_lshlrev_b64 %0, %1, %2", 0, b << a % 64)                                                           \
    X(lshrrev64, I, u64, u32, u64, u32, "v_lshrrev_b64 %0, %1, %2", 0, b >> a % 64)                                                           \
    X(ashrrev64, I, u64, u32, u64, u32, "v_ashrrev_i64 %0, %1, %2", 0, (u64)((long long)b >> a % 64))                                         \
    X(mul_lo, I, u32, u32, u32, u32, "v_mul_lo_u32 %0, %1, %2", 0, a * b)                                                                     \
    X(mul_hi, I, u32, u32, u32, u32, "v_mul_hi_u32 %0, %1, %2", 0, (u32)((u64)a * b >> 32))                                                   \
    X(mul_hi_i32, I, u32, u32, u32, u32, "v_mul_hi_i32 %0, %1, %2", 0, (u32)((long long)(int)a * (int)b >> 32))                               \
    X(mul_u24, I, u32, u32, u32, u32, "v_mul_u32_u24 %0, %1, %2", 0, (a & 0xffffff) * (b & 0xffffff))                                         \
    X(mul_i24, I, u32, u32, u32, u32, "v_mul_i32_i24 %0, %1, %2", 0, (u32)((long long)sign24(a) * sign24(b)))                                 \
    X(mad_u24, I, u32, u32, u32, u32, "v_mad_u32_u24 %0, %1, %2, %3", 0, (a & 0xffffff) * (b & 0xffffff) + c)                                 \
    X(mad_i24, I, u32, u32, u32, u32, "v_mad_i32_i24 %0, %1, %2, %3", 0, (u32)((long long)sign24(a) * sign24(b)) + c)                         \
    X(min_u32, I, u32, u32, u32, u32, "v_min_u32 %0, %1, %2", 0, a < b ? a : b)                                                               \
    X(max_u32, I, u32, u32, u32, u32, "v_max_u32 %0, %1, %2", 0, a > b ? a : b)                                                               \
    X(max3_u32, I, u32, u32, u32, u32, "v_max3_u32 %0, %1, %2, %3", 0, a > b ? (a > c ? a : c) : (b > c ? b : c))                             \
    X(max_i32, I, u32, u32, u32, u32, "v_max_i32 %0, %1, %2", 0, (int)a > (int)b ? a : b)                                                     \
    X(med3_i32, I, u32, u32, u32, u32, "v_med3_i32 %0, %1, %2, %3", 0, (u32)median((int)a, (int)b, (int)c))                                   \
    X(bfe_u32, I, u32, u32, u32, u32, "v_bfe_u32 %0, %1, %2, %3", 0, a >> b % 32 & ((1u << c % 32) - 1))                                      \
    X(bfe_i32, I, u32, u32, u32, u32, "v_bfe_i32 %0, %1, %2, %3", 0, signed_field(a, b % 32, c % 32))                                         \
    X(bfi, I, u32, u32, u32, u32, "v_bfi_b32 %0, %1, %2, %3", 0, (a & b) | (~a & c))                                                          \
    X(alignbit, I, u32, u32, u32, u32, "v_alignbit_b32 %0, %1, %2, %3", 0, (u32)(((u64)a << 32 | b) >> c % 32))                               \
    X(alignbyte, I, u32, u32, u32, u32, "v_alignbyte_b32 %0, %1, %2, %3", 0, (u32)(((u64)a << 32 | b) >> c % 4 * 8))                          \
    X(perm, I, u32, u32, u32, u32, "v_perm_b32 %0, %1, %2, %3", 0, bytes_of(a, b, c))                                                         \
    X(add3, I, u32, u32, u32, u32, "v_add3_u32 %0, %1, %2, %3", 0, a + b + c)                                                                 \
    X(lshl_add, I, u32, u32, u32, u32, "v_lshl_add_u32 %0, %1, %2, %3", 0, (a << b % 32) + c)                                                 \
    X(lshl_or, I, u32, u32, u32, u32, "v_lshl_or_b32 %0, %1, %2, %3", 0, (a << b % 32) | c)                                                   \
    X(and_or, I, u32, u32, u32, u32, "v_and_or_b32 %0, %1, %2, %3", 0, (a & b) | c)                                                           \
    X(or3, I, u32, u32, u32, u32, "v_or3_b32 %0, %1, %2, %3", 0, a | b | c)                                                                   \
    X(xad, I, u32, u32, u32, u32, "v_xad_u32 %0, %1, %2, %3", 0, (a ^ b) + c)                                                                 \
    X(lshl_add_u64, I, u64, u64, u32, u64, "v_and_b32 %2, 3, %2\n v_lshl_add_u64 %0, %1, %2, %3", 0, (a << b % 4) + c)                        \
    X(mad_u64, I, u64, u32, u32, u64, "v_mad_u64_u32 %0, s[8:9], %1, %2, %3", 0, (u64)a * b + c)                                              \
    X(mad_i64, I, u64, u32, u32, u64, "v_mad_i64_i32 %0, s[8:9], %1, %2, %3", 0, (u64)((long long)(int)a * (int)b) + c)                       \
    X(bcnt, I, u32, u32, u32, u32, "v_bcnt_u32_b32 %0, %1, %2", 0, (u32)__builtin_popcount(a) + b)                                            \
    X(carry, I, u64, u64, u64, u32, "v_add_co_u32 v2, vcc, v4, v6\n v_addc_co_u32 v3, vcc, v5, v7, vcc", 0, a + b)                      \
    X(cndmask, I, u32, u32, u32, u32, "v_cmp_gt_i32 vcc, 0, %1\n v_cndmask_b32 %0, %2, %3, vcc", 0, (int)a < 0 ? c : b)                       \
    X(add_literal, I, u32, u32, u32, u32, "v_add_u32 %0, 0x12345678, %1", 0, a + 0x12345678)                                                  \
    X(add_inline, I, u32, u32, u32, u32, "v_add_u32 %0, -16, %1", 0, a - 16)                                                                  \
    X(mov64, I, u64, u64, u32, u32, "v_mov_b64 %0, %1", 0, a)                                                                                 \
    X(min_i32, I, u32, u32, u32, u32, "v_min_i32 %0, %1, %2", 0, (int)a < (int)b ? a : b)                                                     \
    X(add_lshl, I, u32, u32, u32, u32, "v_add_lshl_u32 %0, %1, %2, %3", 0, (a + b) << c % 32)                                                 \
    X(borrow, I, u64, u64, u64, u32, "v_sub_co_u32 v2, vcc, v4, v6\n v_subb_co_u32 v3, vcc, v5, v7, vcc", 0, a - b)                           \
    X(borrow_reversed, I, u64, u64, u64, u32, "v_subrev_co_u32 v2, vcc, v4, v6\n v_subbrev_co_u32 v3, vcc, v5, v7, vcc", 0, b - a)            \
    X(dot4_u8, I, u32, u32, u32, u32, "v_dot4_u32_u8 %0, %1, %2, %3", 0, dot_bytes(a, b) + c)                                                 \
    X(sad_u8, I, u32, u32, u32, u32, "v_sad_u8 %0, %1, %2, %3", 0, sum_differences(a, b) + c)
#define VECTOR_PACKED_INTEGER(X)                                                                                                              \
    X(pk_add_u16, I, u32, u32, u32, u32, "v_pk_add_u16 %0, %1, %2", 0, pair(a + b, (a >> 16) + (b >> 16)))                                    \
    X(pk_mul_u16, I, u32, u32, u32, u32, "v_pk_mul_lo_u16 %0, %1, %2", 0, pair(a * b, (a >> 16) * (b >> 16)))                                 \
    X(pk_add_swapped, I, u32, u32, u32, u32, "v_pk_add_u16 %0, %1, %2 op_sel:[1,0] op_sel_hi:[0,1]", 0, pair((a >> 16) + b, a + (b >> 16)))   \
    X(pk_max_i16, I, u32, u32, u32, u32, "v_pk_max_i16 %0, %1, %2", 0,                                                                        \
      pair((u32)((short)a > (short)b ? a : b), (short)(a >> 16) > (short)(b >> 16) ? a >> 16 : b >> 16))                                      \
    X(pk_lshl, I, u32, u32, u32, u32, "v_pk_lshlrev_b16 %0, %1, %2", 0, pair((b & 0xffff) << a % 16, b >> 16 << (a >> 16) % 16))              \
    X(add_u16, I, u32, u32, u32, u32, "v_add_u16 %0, %1, %2", 0, (a + b) & 0xffff)                                                            \
    X(mad_u16_keeps, I, u32, u32, u32, u32, "v_mov_b32 %0, -1\n v_mad_u16 %0, %1, %2, %3", 0, 0xffff0000 | ((a * b + c) & 0xffff))                    \
    X(max3_u16, I, u32, u32, u32, u32, "v_mov_b32 %0, -1\n v_max3_u16 %0, %1, %2, %3", 0, 0xffff0000 | largest_half(a, b, c))                 \
    X(lshlrev_b16, I, u32, u32, u32, u32, "v_lshlrev_b16 %0, %1, %2", 0, (b << a % 16) & 0xffff)                                              \
    X(sub_u16, I, u32, u32, u32, u32, "v_sub_u16 %0, %1, %2", 0, (a - b) & 0xffff)                                                            \
    X(mul_lo_u16, I, u32, u32, u32, u32, "v_mul_lo_u16 %0, %1, %2", 0, (a * b) & 0xffff)                                                      \
    X(lshrrev_b16, I, u32, u32, u32, u32, "v_lshrrev_b16 %0, %1, %2", 0, (b & 0xffff) >> a % 16)                                              \
    X(ashrrev_i16, I, u32, u32, u32, u32, "v_ashrrev_i16 %0, %1, %2", 0, (u32)((short)b >> a % 16) & 0xffff)                                  \
    X(sdwa_word, I, u32, u32, u32, u32, "v_add_u32_sdwa %0, %1, %2 dst_sel:DWORD src0_sel:WORD_1 src1_sel:BYTE_2", 0, (a >> 16) + (b >> 16 & 255)) \
    X(sdwa_sext, I, u32, u32, u32, u32, "v_add_u32_sdwa %0, sext(%1), %2 dst_sel:DWORD src0_sel:BYTE_3 src1_sel:WORD_0", 0, (u32)((int)a >> 24) + (b & 0xffff)) \
    X(sdwa_pad, I, u32, u32, u32, u32, "v_or_b32_sdwa %0, %1, %2 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD", 0, (a | b) << 16) \
    X(sdwa_keep, I, u32, u32, u32, u32, "v_mov_b32 %0, %3\n v_or_b32_sdwa %0, %1, %2 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD", 0, \
      (c & 0xffff00ff) | ((a | b) & 255) << 8)
#define VECTOR_FLOAT(X)                                                                                                                       \
    X(add_f32, F, u32, u32, u32, u32, "v_add_f32 %0, %1, %2", 0, fb(f(a) + f(b)))                                                             \
    X(sub_f32, F, u32, u32, u32, u32, "v_sub_f32 %0, %1, %2", 0, fb(f(a) - f(b)))                                                             \
    X(mul_f32, F, u32, u32, u32, u32, "v_mul_f32 %0, %1, %2", 0, fb(f(a) * f(b)))                                                             \
    X(fma_f32, F, u32, u32, u32, u32, "v_fma_f32 %0, %1, %2, %3", 0, fb(fmaf(f(a), f(b), f(c))))                                              \
    X(fma_modifiers, F, u32, u32, u32, u32, "v_fma_f32 %0, -%1, |%2|, -|%3|", 0, fb(fmaf(-f(a), fabsf(f(b)), -fabsf(f(c)))))                  \
    X(fmac_f32, F, u32, u32, u32, u32, "v_mov_b32 %0, %3\n v_fmac_f32 %0, %1, %2", 0, fb(fmaf(f(a), f(b), f(c))))                             \
    X(mul_times_four, F, u32, u32, u32, u32, "v_mul_f32_e64 %0, %1, %2 mul:4", 0, fb(f(a) * f(b) * 4))                                        \
    X(add_clamped, F, u32, u32, u32, u32, "v_add_f32_e64 %0, %1, %2 clamp", 0, fb(clamped(f(a) + f(b))))                                      \
    X(mul_inline, F, u32, u32, u32, u32, "v_mul_f32 %0, 0.5, %1", 0, fb(0.5f * f(a)))                                                         \
    X(mul_inverse_tau, F, u32, u32, u32, u32, "v_mul_f32 %0, 0.15915494, %1", 0, fb(f(0x3e22f983) * f(a)))                                    \
    X(max_f32, F, u32, u32, u32, u32, "v_max_f32 %0, %1, %2", 0, fb(larger(f(a), f(b))))                                                      \
    X(min_f32, F, u32, u32, u32, u32, "v_min_f32 %0, %1, %2", 0, fb(-larger(-f(a), -f(b))))                                                   \
    X(subrev_f32, F, u32, u32, u32, u32, "v_subrev_f32 %0, %1, %2", 0, fb(f(b) - f(a)))                                                       \
    X(fmamk_f32, F, u32, u32, u32, u32, "v_fmamk_f32 %0, %1, 0x3fb8aa3b, %2", 0, fb(fmaf(f(a), f(0x3fb8aa3b), f(b))))                         \
    X(fmaak_f32, F, u32, u32, u32, u32, "v_fmaak_f32 %0, %1, %2, 0x3fb8aa3b", 0, fb(fmaf(f(a), f(b), f(0x3fb8aa3b))))                         \
    X(max3_f32, F, u32, u32, u32, u32, "v_max3_f32 %0, %1, %2, %3", 0, fb(larger(larger(f(a), f(b)), f(c))))                                  \
    X(min3_f32, F, u32, u32, u32, u32, "v_min3_f32 %0, %1, %2, %3", 0, fb(smaller(smaller(f(a), f(b)), f(c))))                                \
    X(med3_f32, F, u32, u32, u32, u32, "v_med3_f32 %0, %1, %2, %3", 0, fb(middle(f(a), f(b), f(c))))                                          \
    X(trunc_f32, F, u32, u32, u32, u32, "v_trunc_f32 %0, %1", 0, fb(truncf(f(a))))                                                            \
    X(ceil_f32, F, u32, u32, u32, u32, "v_ceil_f32 %0, %1", 0, fb(ceilf(f(a))))                                                               \
    X(floor_f32, F, u32, u32, u32, u32, "v_floor_f32 %0, %1", 0, fb(floorf(f(a))))                                                            \
    X(rndne_f32, F, u32, u32, u32, u32, "v_rndne_f32 %0, %1", 0, fb(nearbyintf(f(a))))                                                        \
    X(ldexp_f32, F, u32, u32, u32, u32, "v_ldexp_f32 %0, %1, %2", 0, fb(ldexpf(f(a), (int)b)))                                                \
    X(frexp_mant, F, u32, u32, u32, u32, "v_frexp_mant_f32 %0, %1", 0, fb(mantissa(f(a))))                                                    \
    X(exp_f32, F, u32, u32, u32, u32, "v_exp_f32 %0, %1", 1, fb(flushed(exp2f(flushed(f(a))))))                                               \
    X(log_f32, F, u32, u32, u32, u32, "v_log_f32 %0, %1", 1, fb(log2f(flushed(f(a)))))                                                        \
    X(rcp_f32, F, u32, u32, u32, u32, "v_rcp_f32 %0, %1", 1, fb(flushed(1 / flushed(f(a)))))                                                  \
    X(rsq_f32, F, u32, u32, u32, u32, "v_rsq_f32 %0, %1", 1, fb((float)(1 / sqrt((double)flushed(f(a))))))                                    \
    X(rcp_iflag_f32, F, u32, u32, u32, u32, "v_rcp_iflag_f32 %0, %1", 1, fb(flushed(1 / flushed(f(a)))))                                      \
    X(sqrt_f32, F, u32, u32, u32, u32, "v_sqrt_f32 %0, %1", 1, fb(sqrtf(flushed(f(a)))))                                                      \
    X(cvt_f32_i32, F, u32, u32, u32, u32, "v_cvt_f32_i32 %0, %1", 0, fb((float)(int)a))                                                       \
    X(cvt_f32_u32, F, u32, u32, u32, u32, "v_cvt_f32_u32 %0, %1", 0, fb((float)a))                                                            \
    X(cvt_f32_ubyte0, F, u32, u32, u32, u32, "v_cvt_f32_ubyte0 %0, %1", 0, fb((float)(a & 255)))                                              \
    X(cvt_f32_ubyte1, F, u32, u32, u32, u32, "v_cvt_f32_ubyte1 %0, %1", 0, fb((float)(a >> 8 & 255)))                                         \
    X(cvt_f32_ubyte2, F, u32, u32, u32, u32, "v_cvt_f32_ubyte2 %0, %1", 0, fb((float)(a >> 16 & 255)))                                        \
    X(cvt_f32_ubyte3, F, u32, u32, u32, u32, "v_cvt_f32_ubyte3 %0, %1", 0, fb((float)(a >> 24)))                                              \
    X(cvt_i32_f32, I, u32, u32, u32, u32, "v_cvt_i32_f32 %0, %1", 0, (u32)saturated(g64(f(a)), -2147483648.0, 2147483647.0))                  \
    X(cvt_u32_f32, I, u32, u32, u32, u32, "v_cvt_u32_f32 %0, %1", 0, (u32)saturated(g64(f(a)), 0, 4294967295.0))                              \
    X(cvt_pk_fp8, I, u32, u32, u32, u32, "v_mov_b32 %0, %3\n v_cvt_pk_fp8_f32 %0, %1, %2", 0, (c & 0xffff0000) | e4m3_pair(f(a), f(b)))       \
    X(cvt_pk_fp8_high, I, u32, u32, u32, u32, "v_mov_b32 %0, %3\n v_cvt_pk_fp8_f32 %0, -%1, %2 op_sel:[0,0,1]", 0,                            \
      (c & 0xffff) | e4m3_pair(-f(a), f(b)) << 16)                                                                                            \
    X(cvt_pk_bf8_high, I, u32, u32, u32, u32, "v_mov_b32 %0, %3\n v_cvt_pk_bf8_f32 %0, %1, |%2| op_sel:[0,0,1]", 0,                           \
      (c & 0xffff) | e5m2_pair(f(a), fabsf(f(b))) << 16)                                                                                      \
    X(cvt_f32_f64, F, u32, u64, u32, u32, "v_cvt_f32_f64 %0, %1", 0, fb((float)g(a)))                                                         \
    X(cvt_f64_f32, G, u64, u32, u32, u32, "v_cvt_f64_f32 %0, %1", 0, gb((double)f(a)))                                                        \
    X(add_f64, G, u64, u64, u64, u64, "v_add_f64 %0, %1, %2", 0, gb(g(a) + g(b)))                                                             \
    X(fma_f64, G, u64, u64, u64, u64, "v_fma_f64 %0, %1, %2, -%3", 0, gb(fma(g(a), g(b), -g(c))))                                             \
    X(mul_f64_inline, G, u64, u64, u64, u64, "v_mul_f64 %0, %1, 4.0", 0, gb(g(a) * 4))                                                        \
    X(fmac_f64, G, u64, u64, u64, u64, "v_mov_b64 %0, %3\n v_fmac_f64 %0, %1, %2", 0, gb(fma(g(a), g(b), g(c))))                              \
    X(ldexp_f64, G, u64, u64, u32, u32, "v_ldexp_f64 %0, %1, %2", 0, gb(ldexp(g(a), (int)b)))                                                 \
    X(rsq_f64, G, u64, u64, u32, u32, "v_rsq_f64 %0, %1", 0, gb(1 / sqrt(g(a))))                                                              \
    X(pk_add_f32_low, F, u32, u64, u64, u64, "v_pk_add_f32 %1, %1, %2\n v_mov_b32 %0, v4", 0, fb(f((u32)a) + f((u32)b)))                     \
    X(pk_fma_f32_high, F, u32, u64, u64, u64, "v_pk_fma_f32 %1, %1, %2, %3 op_sel_hi:[1,0,1]\n v_mov_b32 %0, v5", 0, fb(fmaf(f((u32)(a >> 32)), f((u32)b), f((u32)(c >> 32))))) \
    X(pk_mul_f32_negated, F, u32, u64, u64, u64, "v_pk_mul_f32 %1, %1, %2 op_sel:[1,0] neg_lo:[0,1]\n v_mov_b32 %0, v4", 0, fb(f((u32)(a >> 32)) * -f((u32)b))) \
    X(pk_mov, I, u64, u64, u64, u64, "v_pk_mov_b32 %0, %1, %2 op_sel:[1,0]", 0, a >> 32 | b << 32)                                            \
    X(division, F, u32, u32, u32, u32,                                                                                                        \
      "v_div_scale_f32 v20, s[8:9], %2, %2, %1\n v_div_scale_f32 v21, vcc, %1, %2, %1\n v_rcp_f32 v22, v20\n v_fma_f32 v23, -v20, v22, 1.0\n v_fmac_f32 v22, v23, v22\n" \
      "v_mul_f32 v23, v21, v22\n v_fma_f32 v24, -v20, v23, v21\n v_fmac_f32 v23, v24, v22\n v_fma_f32 v20, -v20, v23, v21\n v_div_fmas_f32 v20, v20, v22, v23\n" \
      "v_div_fixup_f32 %0, v20, %2, %1", 0, fb(f(a) / f(b)))
#define VECTOR_HALF(X)                                                                                                                        \
    X(cvt_f16_f32, H, u32, u32, u32, u32, "v_cvt_f16_f32 %0, %1", 0, hb(f(a)))                                                                \
    X(cvt_f32_f16, F, u32, u32, u32, u32, "v_cvt_f32_f16 %0, %1", 0, fb(h(a)))                                                                \
    X(add_f16, H, u32, u32, u32, u32, "v_add_f16 %0, %1, %2", 0, hb(h(a) + h(b)))                                                             \
    X(pk_mul_f16, P, u32, u32, u32, u32, "v_pk_mul_f16 %0, %1, %2", 0, pair(hb(h(a) * h(b)), hb(h(a >> 16) * h(b >> 16))))                    \
    X(fma_mix, F, u32, u32, u32, u32, "v_fma_mix_f32 %0, %1, %2, %3 op_sel:[1,0,0] op_sel_hi:[1,1,0]", 0, fb(fmaf(h(a >> 16), h(b), f(c))))
/* Of gfx950 alone. */
#define VECTOR_GFX950(X)                                                                                                                      \
    X(bitop3, I, u32, u32, u32, u32, "v_bitop3_b32 %0, %1, %2, %3 bitop3:0x6c", 0, by_truth_table(a, b, c, 0x6c))                             \
    X(bitop3_swizzle, I, u32, u32, u32, u32, "v_bitop3_b32 %0, %1, %2, 48 bitop3:0x78", 0, a ^ (b & 48))                                      \
    X(bitop3_zero, I, u32, u32, u32, u32, "v_bitop3_b32 %0, %1, %2, %3", 0, 0)                                                                \
    X(bitop3_b16, I, u32, u32, u32, u32, "v_mov_b32 %0, -1\n v_bitop3_b16 %0, %1, %2, %3 bitop3:0x1b", 0,                                     \
      0xffff0000 | (by_truth_table(a, b, c, 0x1b) & 0xffff))                                                                                  \
    X(cvt_pk_bf16, B, u32, u32, u32, u32, "v_cvt_pk_bf16_f32 %0, %1, %2", 0, pair(bf16_from_float(f(a)), bf16_from_float(f(b))))              \
    X(cvt_pk_bf16_modifiers, B, u32, u32, u32, u32, "v_cvt_pk_bf16_f32 %0, -%1, |%2|", 0, pair(bf16_from_float(-f(a)), bf16_from_float(fabsf(f(b)))))
/* Comparisons: a bit per lane, brought into the lane as 0 or 1. */
#define COMPARE(name, text, A, expression) X(name, I, u32, A, A, u32, text " vcc, %1, %2\n v_cndmask_b32_e64 %0, 0, 1, vcc", 0, (u32)(expression))
#define COMPARE_FLOAT(name, expression) COMPARE(name##_f32, "v_cmp_" #name "_f32", u32, expression)
#define COMPARE_INTEGERS(name, operator)                                                                                                      \
    COMPARE(name##_u32, "v_cmp_" #name "_u32", u32, a operator b) COMPARE(name##_i32, "v_cmp_" #name "_i32", u32, (int)a operator (int)b)     \
    COMPARE(name##_u64, "v_cmp_" #name "_u64", u64, a operator b) COMPARE(name##_i64, "v_cmp_" #name "_i64", u64, (long long)a operator (long long)b)
#define VECTOR_COMPARE(X)                                                                                                                     \
    COMPARE_FLOAT(lt, f(a) < f(b)) COMPARE_FLOAT(nlt, !(f(a) < f(b))) COMPARE_FLOAT(le, f(a) <= f(b)) COMPARE_FLOAT(nle, !(f(a) <= f(b)))     \
    COMPARE_FLOAT(gt, f(a) > f(b)) COMPARE_FLOAT(ngt, !(f(a) > f(b))) COMPARE_FLOAT(ge, f(a) >= f(b)) COMPARE_FLOAT(nge, !(f(a) >= f(b)))     \
    COMPARE_FLOAT(eq, f(a) == f(b)) COMPARE_FLOAT(neq, !(f(a) == f(b))) COMPARE_FLOAT(o, f(a) == f(a) && f(b) == f(b))                        \
    COMPARE_FLOAT(u, f(a) != f(a) || f(b) != f(b)) COMPARE_FLOAT(lg, f(a) < f(b) || f(a) > f(b)) COMPARE_FLOAT(nlg, !(f(a) < f(b) || f(a) > f(b))) \
    COMPARE_INTEGERS(lt, <) COMPARE_INTEGERS(le, <=) COMPARE_INTEGERS(gt, >) COMPARE_INTEGERS(ge, >=) COMPARE_INTEGERS(eq, ==) COMPARE_INTEGERS(ne, !=) \
    COMPARE(le_f64, "v_cmp_le_f64", u64, g(a) <= g(b)) COMPARE(gt_f64, "v_cmp_gt_f64", u64, g(a) > g(b))                                      \
    COMPARE(lt_f64, "v_cmp_lt_f64", u64, g(a) < g(b))                                                                                         \
    COMPARE(gt_i16, "v_cmp_gt_i16", u32, (short)a > (short)b)                                                                                 \
    COMPARE(ne_u16, "v_cmp_ne_u16", u32, (a & 0xffff) != (b & 0xffff))                                                                        \
    COMPARE(eq_u16, "v_cmp_eq_u16", u32, (a & 0xffff) == (b & 0xffff))                                                                        \
    COMPARE(lt_u16, "v_cmp_lt_u16", u32, (a & 0xffff) < (b & 0xffff)) COMPARE(class_f32, "v_cmp_class_f32", u32, (class_of(f(a)) & b) != 0)   \
    X(class_f64, I, u32, u64, u32, u32, "v_cmp_class_f64 vcc, %1, %2\n v_cndmask_b32_e64 %0, 0, 1, vcc", 0, (u32)((class_of_double(g(a)) & b) != 0))

#define SCALAR_COMPARE(X, name, operator)                                                                                                      \
    X(s_cmp_##name##_i32, u32, u32, u32, "s_cmp_" #name "_i32 %1, %2\n s_cselect_b32 %0, 1, 0", (u32)((int)a operator (int)b))                \
    X(s_cmp_##name##_u32, u32, u32, u32, "s_cmp_" #name "_u32 %1, %2\n s_cselect_b32 %0, 1, 0", (u32)(a operator b))                          \
    X(s_cmpk_##name##_i32, u32, u32, u32, "s_cmpk_" #name "_i32 %1, 0xfff0\n s_cselect_b32 %0, 1, 0", (u32)((int)a operator -16))
/* The wavefront has one lane; EXEC must come back from where it was saved, or nothing is written. */
#define SAVE_EXEC(X, name, expression) X(s_##name##_saveexec, u64, u64, u64, "s_" #name "_saveexec_b64 vcc, %1\n s_mov_b64 %0, exec\n s_mov_b64 exec, vcc", expression)
#define SCALAR_OPERATIONS(X)                                                                                                                  \
    X(s_add, u64, u64, u64, "s_add_u32 s12, s14, s16\n s_addc_u32 s13, s15, s17", a + b)                                                      \
    X(s_sub, u64, u64, u64, "s_sub_u32 s12, s14, s16\n s_subb_u32 s13, s15, s17", a - b)                                                      \
    X(s_add_overflow, u32, u32, u32, "s_add_i32 %1, %1, %2\n s_cselect_b32 %0, 1, 0", (u32)((long long)(int)a + (int)b != (int)(a + b)))       \
    X(s_mul, u32, u32, u32, "s_mul_i32 %0, %1, %2", a * b)                                                                                    \
    X(s_mul_hi, u32, u32, u32, "s_mul_hi_u32 %0, %1, %2", (u32)((u64)a * b >> 32))                                                            \
    X(s_lshl, u32, u32, u32, "s_lshl_b32 %0, %1, %2", a << b % 32)                                                                            \
    X(s_lshl_64, u64, u64, u32, "s_lshl_b64 %0, %1, %2", a << b % 64)                                                                         \
    X(s_lshr_64, u64, u64, u32, "s_lshr_b64 %0, %1, %2", a >> b % 64)                                                                         \
    X(s_ashr, u32, u32, u32, "s_ashr_i32 %0, %1, %2", (u32)((int)a >> b % 32))                                                                \
    X(s_ashr_64, u64, u64, u32, "s_ashr_i64 %0, %1, %2", (u64)((long long)a >> b % 64))                                                       \
    X(s_bfe, u32, u32, u32, "s_bfe_u32 %0, %1, 0x70005", a >> 5 & 127)                                                                        \
    X(s_bfe_signed, u32, u32, u32, "s_bfe_i32 %0, %1, 0x70005", (u32)((int)(a << 20) >> 25))                                                  \
    X(s_bfe_signed_64, u64, u64, u32, "s_bfe_i64 %0, %1, 0x250005", (u64)((long long)(a << 22) >> 27))                                        \
    X(s_andn2, u64, u64, u64, "s_andn2_b64 %0, %1, %2", a & ~b)                                                                               \
    X(s_andn2_32, u32, u32, u32, "s_andn2_b32 %0, %1, %2", a & ~b)                                                                            \
    X(s_nor, u32, u32, u32, "s_nor_b32 %0, %1, %2", ~(a | b))                                                                                 \
    X(s_bcnt1, u32, u64, u32, "s_bcnt1_i32_b64 %0, %1", (u32)__builtin_popcountll(a))                                                         \
    X(s_ff1, u32, u64, u32, "s_ff1_i32_b64 %0, %1", a ? (u32)__builtin_ctzll(a) : ~0u)                                                        \
    X(s_flbit_i32, u32, u32, u32, "s_flbit_i32 %0, %1", a == 0 || a == ~0u ? ~0u : (u32)__builtin_clrsb((int)a) + 1)                          \
    X(s_min_u32, u32, u32, u32, "s_min_u32 %0, %1, %2", a < b ? a : b)                                                                        \
    X(s_flbit, u32, u32, u32, "s_flbit_i32_b32 %0, %1", a ? (u32)__builtin_clz(a) : ~0u)                                                      \
    X(s_sext, u32, u32, u32, "s_sext_i32_i16 %0, %1", (u32)(short)a)                                                                          \
    X(s_abs, u32, u32, u32, "s_abs_i32 %0, %1", (int)a < 0 ? 0 - a : a)                                                                       \
    X(s_min_i32, u32, u32, u32, "s_min_i32 %0, %1, %2", (int)a < (int)b ? a : b)                                                              \
    X(s_movk, u32, u32, u32, "s_movk_i32 %0, 0x8001", 0xffff8001)                                                                             \
    X(s_addk, u32, u32, u32, "s_mov_b32 %0, %1\n s_addk_i32 %0, 0xfff0", a - 16)                                                              \
    X(s_mulk, u32, u32, u32, "s_mov_b32 %0, %1\n s_mulk_i32 %0, 0x123", a * 0x123)                                                            \
    X(s_cmpk, u32, u32, u32, "s_cmpk_gt_u32 %1, 0xfff0\n s_cselect_b32 %0, 1, 0", (u32)(a > 0xfff0))                                          \
    X(s_cmpk_lt, u32, u32, u32, "s_cmpk_lt_u32 %1, 0xfff0\n s_cselect_b32 %0, 1, 0", (u32)(a < 0xfff0))                                       \
    X(s_and_64, u64, u64, u64, "s_and_b64 %0, %1, %2", a & b)                                                                                 \
    X(s_or_64, u64, u64, u64, "s_or_b64 %0, %1, %2", a | b)                                                                                   \
    X(s_xor_64, u64, u64, u64, "s_xor_b64 %0, %1, %2", a ^ b)                                                                                 \
    X(s_nor_64, u64, u64, u64, "s_nor_b64 %0, %1, %2", ~(a | b))                                                                              \
    X(s_orn2, u64, u64, u64, "s_orn2_b64 %0, %1, %2", a | ~b)                                                                                 \
    X(s_and, u32, u32, u32, "s_and_b32 %0, %1, %2", a & b)                                                                                    \
    X(s_or, u32, u32, u32, "s_or_b32 %0, %1, %2", a | b)                                                                                      \
    X(s_xor, u32, u32, u32, "s_xor_b32 %0, %1, %2", a ^ b)                                                                                    \
    X(s_not, u32, u32, u32, "s_not_b32 %0, %1", ~a)                                                                                           \
    X(s_not_64, u64, u64, u64, "s_not_b64 %0, %1", ~a)                                                                                        \
    X(s_sub_overflow, u32, u32, u32, "s_sub_i32 %1, %1, %2\n s_cselect_b32 %0, 1, 0", (u32)((long long)(int)a - (int)b != (int)(a - b)))       \
    X(s_sub_i32, u32, u32, u32, "s_sub_i32 %0, %1, %2", a - b)                                                                                \
    X(s_cselect_64, u64, u64, u64, "s_cmp_lg_u64 %1, %2\n s_cselect_b64 %0, %1, 5", a != b ? a : 5)                                           \
    X(s_mul_hi_i32, u32, u32, u32, "s_mul_hi_i32 %0, %1, %2", (u32)((long long)(int)a * (int)b >> 32))                                        \
    X(s_lshr, u32, u32, u32, "s_lshr_b32 %0, %1, %2", a >> b % 32)                                                                            \
    X(s_max_i32, u32, u32, u32, "s_max_i32 %0, %1, %2", (int)a > (int)b ? a : b)                                                              \
    X(s_max_u32, u32, u32, u32, "s_max_u32 %0, %1, %2", a > b ? a : b)                                                                        \
    X(s_brev_32, u32, u32, u32, "s_brev_b32 %0, %1", reversed(a))                                                                             \
    X(s_zero, u32, u32, u32, "s_and_b32 %1, %1, %2\n s_cselect_b32 %0, 1, 0", (u32)((a & b) != 0))                                            \
    SCALAR_COMPARE(X, lt, <) SCALAR_COMPARE(X, le, <=) SCALAR_COMPARE(X, gt, >) SCALAR_COMPARE(X, ge, >=) SCALAR_COMPARE(X, eq, ==) SCALAR_COMPARE(X, lg, !=) \
    SAVE_EXEC(X, and, a & 1) SAVE_EXEC(X, or, a | 1) SAVE_EXEC(X, andn2, a & ~1ull) SAVE_EXEC(X, xor, a ^ 1)                                  \
    X(s_cmp_64, u32, u64, u64, "s_cmp_eq_u64 %1, %2\n s_cselect_b32 %0, 1, 0", (u32)(a == b))                                                 \
    X(s_bitcmp, u32, u32, u32, "s_bitcmp1_b32 %1, %2\n s_cselect_b32 %0, 1, 0", a >> b % 32 & 1)                                              \
    X(s_bitset, u32, u32, u32, "s_mov_b32 %0, %1\n s_bitset1_b32 %0, %2", a | 1u << b % 32)                                                   \
    X(s_lshl2_add, u32, u32, u32, "s_lshl2_add_u32 %0, %1, %2", 4 * a + b)                                                                    \
    X(s_lshl3_add, u32, u32, u32, "s_lshl3_add_u32 %0, %1, %2", 8 * a + b)                                                                    \
    X(s_lshl4_add, u32, u32, u32, "s_lshl4_add_u32 %0, %1, %2", 16 * a + b)                                                                   \
    X(s_pack, u32, u32, u32, "s_pack_lh_b32_b16 %0, %1, %2", (a & 0xffff) | (b & 0xffff0000))                                                 \
    X(s_bfm, u64, u32, u32, "s_bfm_b64 %0, %1, %2", ((1ull << a % 64) - 1) << b % 64)                                                         \
    X(s_wqm, u64, u64, u64, "s_wqm_b64 %0, %1", quads(a))                                                                                     \
    X(s_brev, u64, u64, u64, "s_brev_b64 %0, %1", (u64)reversed((u32)a) << 32 | reversed((u32)(a >> 32)))
