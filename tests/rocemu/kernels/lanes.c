/* Kernels of one wavefront that move values between lanes: every kernel takes in[64] and writes out[64]. */
typedef unsigned int u32;
#define GLOBAL __attribute__((address_space(1)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void
#define LANE ((u32)__builtin_amdgcn_workitem_id_x())

/* update_dpp(old, source, control, row mask, bank mask, bound control) */
#define DPP(name, control, rows, banks, bound) \
    KERNEL name(GLOBAL u32 *out, const GLOBAL u32 *in) { out[LANE] = (u32)__builtin_amdgcn_update_dpp(1000, (int)in[LANE], control, rows, banks, bound); }
DPP(quad_perm, 0x1b, 15, 15, 0)
DPP(row_shl_1, 0x101, 15, 15, 0)
DPP(row_shr_3_zero, 0x113, 15, 15, 1)
DPP(row_ror_5, 0x125, 15, 15, 0)
DPP(row_mirror, 0x140, 15, 15, 0)
DPP(row_half_mirror, 0x141, 15, 15, 0)
DPP(row_bcast_15, 0x142, 10, 15, 0)
DPP(row_bcast_31, 0x143, 12, 15, 0)
DPP(row_newbcast_6, 0x156, 15, 15, 0)
DPP(wave_shr_1, 0x138, 15, 15, 0)
DPP(bank_mask_5, 0x1b, 15, 5, 0)

KERNEL add_dpp(GLOBAL u32 *out, const GLOBAL u32 *in) {
    u32 x = in[LANE], y;
    __asm__ volatile("v_mov_b32 %0, 7\n s_nop 1\n v_add_u32_dpp %0, %1, %2 row_shr:1 row_mask:0xf bank_mask:0xf"
        : "=&v"(y)
        : "v"(x), "v"(x));
    out[LANE] = y;
}
/* Lanes that are switched off give nothing to those that are on. */
KERNEL dpp_from_inactive(GLOBAL u32 *out, const GLOBAL u32 *in) {
    u32 x = in[LANE];
    out[LANE] = x;
    if (LANE % 2) out[LANE] = (u32)__builtin_amdgcn_update_dpp(2000, (int)x, 0xb1, 15, 15, 0);
}
KERNEL bpermute(GLOBAL u32 *out, const GLOBAL u32 *in) {
    out[LANE] = (u32)__builtin_amdgcn_ds_bpermute((int)(4 * (LANE * 5 + 3)), (int)in[LANE]);
}
KERNEL permute(GLOBAL u32 *out, const GLOBAL u32 *in) {
    out[LANE] = (u32)__builtin_amdgcn_ds_permute((int)(4 * (63 - LANE)), (int)in[LANE]);
}
KERNEL swizzle_xor(GLOBAL u32 *out, const GLOBAL u32 *in) { out[LANE] = (u32)__builtin_amdgcn_ds_swizzle((int)in[LANE], 5 << 10 | 31); }
KERNEL swizzle_quad(GLOBAL u32 *out, const GLOBAL u32 *in) { out[LANE] = (u32)__builtin_amdgcn_ds_swizzle((int)in[LANE], 0x8000 | 0x39); }
KERNEL read_lane(GLOBAL u32 *out, const GLOBAL u32 *in) {
    u32 x = in[LANE];
    out[LANE] = x + (u32)__builtin_amdgcn_readlane((int)x, 17);
}
KERNEL read_first_active(GLOBAL u32 *out, const GLOBAL u32 *in) {
    u32 x = in[LANE];
    out[LANE] = 0;
    if (LANE >= 9) out[LANE] = (u32)__builtin_amdgcn_readfirstlane((int)x);
}
KERNEL ballot(GLOBAL u32 *out, const GLOBAL u32 *in) {
    unsigned long mask = __builtin_amdgcn_ballot_w64(in[LANE] % 3 == 0);
    out[LANE] = LANE < 32 ? (u32)mask : (u32)(mask >> 32);
}
KERNEL count_below(GLOBAL u32 *out, const GLOBAL u32 *in) {
    unsigned long mask = __builtin_amdgcn_ballot_w64(in[LANE] % 3 == 0);
    out[LANE] = __builtin_amdgcn_mbcnt_hi((u32)(mask >> 32), __builtin_amdgcn_mbcnt_lo((u32)mask, 0));
}
/* Denormals under a mode register that flushes fp32: sum of two of them. */
KERNEL flushed_sum(GLOBAL u32 *out, const GLOBAL u32 *in) {
    u32 x = in[LANE], y;
    __asm__ volatile(
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0\n v_add_f32 %0, %1, %1\n s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 3"
        : "=v"(y)
        : "v"(x));
    out[LANE] = y;
}
/* Rounding towards zero by the mode register. */
KERNEL truncated_sum(GLOBAL u32 *out, const GLOBAL u32 *in) {
    u32 x = in[LANE], y;
    __asm__ volatile(
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 3\n v_add_f32 %0, 1.0, %1\n s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 0"
        : "=v"(y)
        : "v"(x));
    out[LANE] = y;
}

#if defined __gfx950__
/* Both registers after rows of 16 or 32 lanes were exchanged: the first, or the second. */
KERNEL permlane16_first(GLOBAL u32 *out, const GLOBAL u32 *in) {
    out[LANE] = __builtin_amdgcn_permlane16_swap(in[LANE], in[LANE ^ 63], 0, 0)[0];
}
KERNEL permlane16_second(GLOBAL u32 *out, const GLOBAL u32 *in) {
    out[LANE] = __builtin_amdgcn_permlane16_swap(in[LANE], in[LANE ^ 63], 0, 0)[1];
}
KERNEL permlane32_first(GLOBAL u32 *out, const GLOBAL u32 *in) {
    out[LANE] = __builtin_amdgcn_permlane32_swap(in[LANE], in[LANE ^ 63], 0, 0)[0];
}
KERNEL permlane32_second(GLOBAL u32 *out, const GLOBAL u32 *in) {
    out[LANE] = __builtin_amdgcn_permlane32_swap(in[LANE], in[LANE ^ 63], 0, 0)[1];
}
#endif
