/* Kernels in which an instruction comes one wait state too early for one rule of tools/check-hazards, and beside each, as
 * NAME_away, the same with that wait state. Nothing runs them. */
typedef unsigned int u32;
#define GLOBAL __attribute__((address_space(1)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void

/* The number of this target; 0: it has no such rule. */
#if defined __gfx90a__
#define STATES(gfx90a, gfx942, gfx950) gfx90a
#define MFMA "v_mfma_f32_16x16x16bf16_1k "
#elif defined __gfx942__
#define STATES(gfx90a, gfx942, gfx950) gfx942
#define MFMA "v_mfma_f32_16x16x16_bf16 "
#else
#define STATES(gfx90a, gfx942, gfx950) gfx950
#define MFMA "v_mfma_f32_16x16x16_bf16 "
#endif

#define CLOBBERS "memory", "vcc", "s20", "s21", "s22", "s23", "scc", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29"
#define KEEP(name, first, states, second)                                                                             \
    KERNEL name(GLOBAL u32 *buffer) {                                                                                 \
        __asm__ volatile(first "\n .rept %c0\n s_nop 0\n .endr\n" second "\n" : : "n"(states), "s"(buffer) : CLOBBERS); \
    }
#define HAZARD(name, first, states, second) KEEP(name, first, (states) - 1, second) KEEP(name##_away, first, states, second)

#define WRITE_SGPR "v_readfirstlane_b32 s20, v0"
#define WRITE_EXEC "v_cmpx_eq_u32 vcc, v0, v0"
#define WRITE_VGPR "v_mov_b32 v20, v0"
#define DPP " quad_perm:[0,1,2,3] row_mask:0xf bank_mask:0xf"
HAZARD(sgpr_to_memory, WRITE_SGPR, 5, "global_load_dword v24, v0, s[20:21]")
HAZARD(sgpr_to_lane, WRITE_SGPR, 4, "v_readlane_b32 s22, v0, s20")
HAZARD(vcc_to_div_fmas, "v_cmp_eq_u32 vcc, v0, v0", 4, "v_div_fmas_f32 v20, v0, v0, v0")
HAZARD(exec_to_dpp, WRITE_EXEC, 5, "v_mov_b32_dpp v20, v0" DPP)
HAZARD(exec_to_mfma, WRITE_EXEC, 4, MFMA "v[20:23], v[24:25], v[26:27], 0")
HAZARD(vgpr_to_dpp, WRITE_VGPR, 2, "v_mov_b32_dpp v21, v20" DPP)
HAZARD(vgpr_to_mfma, WRITE_VGPR, 2, MFMA "v[24:27], v[20:21], v[22:23], 0")
HAZARD(wide_store, "global_store_dwordx4 v0, v[20:23], %1", STATES(1, 2, 2), "v_mov_b32 v21, 0")
HAZARD(m0_to_lds_load, "s_mov_b32 m0, 0", 1, "buffer_load_dword v0, s[20:23], 0 offen lds")
#if STATES(0, 1, 1)
HAZARD(sgpr_to_vector, WRITE_SGPR, 2, "v_mov_b32 v20, s20")
HAZARD(exec_to_lane, WRITE_EXEC, 4, "v_readlane_b32 s20, v0, 0")
HAZARD(vgpr_to_lane, WRITE_VGPR, 1, "v_readlane_b32 s20, v20, 0")
HAZARD(transcendental, "v_exp_f32 v20, v0", 1, "v_add_f32 v21, v20, v20")
HAZARD(part, "v_mov_b32_sdwa v20, v0 dst_sel:WORD_0 dst_unused:UNUSED_PRESERVE src0_sel:DWORD", 1, "v_add_f32 v21, v20, v20")
#endif
#if STATES(0, 0, 1)
HAZARD(vgpr_to_swap, WRITE_VGPR, 2, "v_permlane32_swap_b32 v20, v21")
#endif

#define PRODUCT MFMA "v[20:23], v[24:25], v[26:27], 0"
HAZARD(mfma_to_a, PRODUCT, STATES(11, 7, 8), MFMA "v[24:27], v[22:23], v[28:29], 0")
HAZARD(mfma_to_part_of_c, PRODUCT, STATES(8, 5, 6), MFMA "v[24:27], v[28:29], v[28:29], v[22:25]")
HAZARD(mfma_to_vector, PRODUCT, STATES(11, 7, 8), "v_add_f32 v24, v23, v23")
HAZARD(mfma_to_store, PRODUCT, STATES(11, 7, 8), "global_store_dword v0, v20, %1")
HAZARD(mfma_to_lds, PRODUCT, STATES(11, 7, 8), "ds_write_b32 v0, v21")
HAZARD(mfma_overwritten, PRODUCT, STATES(11, 7, 8), "v_mov_b32 v20, 0")
HAZARD(mfma_c_overwritten, MFMA "v[20:23], v[24:25], v[24:25], v[26:29]", STATES(7, 3, 3), "v_mov_b32 v27, 0")

/* As clang 19 left a wait state out: enough by the path that falls through, not by the branch. */
HAZARD(by_a_branch, PRODUCT "\n s_cbranch_scc1 0f\n .rept 16\n s_nop 0\n .endr\n 0:", STATES(10, 6, 7), "v_add_f32 v24, v23, v23")
HAZARD(at_a_back_edge, "0: v_add_f32 v24, v23, v23\n .rept 16\n s_nop 0\n .endr\n" PRODUCT, STATES(10, 6, 7), "s_cbranch_scc1 0b")
