/* GEMM of fp8 on a GPU: C = A B^T, scaled, for one problem or one per expert (gpu_gemm.h). Owns no
 * memory.
 *
 * Hopper uses the kernels of gpu_gemm_hopper_kernels.h. Its matrix unit keeps about 14 bits of fp8
 * sums. With scales of a tensor or of lines, sums stay in the unit at full speed, unless A is e5m2,
 * as gradients are. Sums with e5m2, and sums of groups and blocks, which have their own scales, are
 * added in fp32 every 128 steps along k (arXiv 2412.19437, 3.3.2).
 *
 * AMD's gfx942 and gfx950 use the kernels of gpu_gemm_fp8_amd_kernels.h. */
#include "backend/gpu/gpu_gemm_fp8_amd_kernels.h"
#include "backend/gpu/gpu_gemm_hopper_kernels.h"

#ifdef GPU_DEVICE

#if defined __CUDA_ARCH_FEAT_SM90_ALL
KERNEL(gemm_fp8_hopper_e4m3, GemmHopper) {
    CLUSTER_BOUNDS(HOPPER_THREADS, 1, HOPPER_CLUSTER);
    multiply_hopper(&a, ARGUMENTS_ADDRESS(gemm_fp8_hopper_e4m3), (HopperForm){LAYOUT_DEPTH, LAYOUT_DEPTH, E4M3_E4M3, PROMOTE_NOTHING});
}
#define PROMOTED_KERNEL(name, types, promotion)                                                                              \
    KERNEL(name, GemmHopper) {                                                                                               \
        CLUSTER_BOUNDS(PROMOTED_THREADS, 1, HOPPER_CLUSTER);                                                                 \
        multiply_hopper(&a, ARGUMENTS_ADDRESS(name), (HopperForm){LAYOUT_DEPTH, LAYOUT_DEPTH, types, promotion}); \
    }
PROMOTED_KERNEL(gemm_fp8_hopper_e5m2, E5M2_E4M3, PROMOTE_SUMS)
PROMOTED_KERNEL(gemm_fp8_hopper_blocks, E4M3_E4M3, PROMOTE_BLOCKS)
PROMOTED_KERNEL(gemm_fp8_hopper_groups, E4M3_E4M3, PROMOTE_GROUPS)
#elif defined __gfx942__ || defined __gfx950__
KERNEL(gemm_fp8_amd_e4m3, GemmFp8Amd) {
    WAVE_BOUNDS(256, 2);
    multiply_fp8(&a, A_E4M3, false);
}
KERNEL(gemm_fp8_amd_e5m2, GemmFp8Amd) {
    WAVE_BOUNDS(256, 2);
    multiply_fp8(&a, A_E5M2, false);
}
KERNEL(gemm_fp8_amd_groups, GemmFp8Amd) {
    WAVE_BOUNDS(256, 2);
    multiply_fp8(&a, A_E4M3, true);
}
#if defined __gfx950__
KERNEL(gemm_fp8_amd_mx, GemmFp8Amd) {
    WAVE_BOUNDS(256, 2);
    multiply_mx(&a);
}
#endif
#endif

#else

#include <assert.h>
#include <string.h>

LAUNCHERS(gemm_fp8_hopper, GemmHopper, gemm_fp8_hopper_e4m3, gemm_fp8_hopper_e5m2, gemm_fp8_hopper_blocks, gemm_fp8_hopper_groups)
LAUNCHERS(gemm_fp8_amd, GemmFp8Amd, gemm_fp8_amd_e4m3, gemm_fp8_amd_e5m2, gemm_fp8_amd_groups, gemm_fp8_amd_groups, gemm_fp8_amd_mx)

/* In launcher order; Hopper has none for MX. */
typedef enum Fp8Kernel { FP8_KERNEL_E4M3, FP8_KERNEL_E5M2, FP8_KERNEL_BLOCKS, FP8_KERNEL_GROUPS, FP8_KERNEL_MX, FP8_KERNEL_NONE } Fp8Kernel;

static Fp8Kernel kernel_for(const Gemm *g) {
    bool once = g->scaling_a <= GEMM_SCALE_LINE && g->scaling_b <= GEMM_SCALE_LINE;
    if (once) return g->input == GEMM_E4M3 ? FP8_KERNEL_E4M3 : FP8_KERNEL_E5M2;
    if (g->input == GEMM_E4M3 && g->scaling_a == GEMM_SCALE_MX && g->scaling_b == GEMM_SCALE_MX) return FP8_KERNEL_MX;
    if (g->input != GEMM_E4M3 || g->scaling_a != GEMM_SCALE_GROUP) return FP8_KERNEL_NONE;
    return g->scaling_b == GEMM_SCALE_BLOCK ? FP8_KERNEL_BLOCKS : g->scaling_b == GEMM_SCALE_GROUP ? FP8_KERNEL_GROUPS : FP8_KERNEL_NONE;
}

/* Returns the GEMM with pairs of fp8 values as bf16 elements. */
static Gemm in_pairs(const Gemm *gemm) {
    Gemm pairs = *gemm;
    pairs.input = GEMM_BF16;
    pairs.k /= 2, pairs.lda /= 2, pairs.ldb /= 2;
    return pairs;
}

static GemmScales shared_scales(const Gemm *g, bool shared) {
    return (GemmScales){.a = g->scale_a,
        .b = g->scale_b,
        .by_row = g->scaling_a == GEMM_SCALE_LINE,
        .by_column = gemm_scales_lines(g->scaling_b),
        .b_stride = shared ? 0 : (int32_t)gemm_scale_count(g->scaling_b, g->n, g->k)};
}

/* `g` counts pairs (in_pairs). */
static bool launch_hopper_fp8(Device *device, const Gemm *gemm, const GemmArguments *g, Fp8Kernel kernel) {
    GemmHopper h;
    LaunchShape shape;
    if (!gpu_gemm_hopper_open(device, g, &h, &shape)) return false;
    h.scales = shared_scales(gemm, g->slots_are_depth);
    if (kernel != FP8_KERNEL_E4M3) shape.threads = PROMOTED_THREADS;
    launch_gemm_fp8_hopper(device, kernel, shape, &h);
    return true;
}

static bool launch_amd_fp8(Device *device, const Gemm *gemm, const GemmArguments *g, Fp8Kernel kernel) {
    GemmFp8Amd a = {.gemm = *g, .scales = shared_scales(gemm, g->slots_are_depth)};
    LaunchShape shape = gpu_gemm_count_tiles(&a.gemm, TILE_SMALL, tile_rows(TILE_SMALL));
    launch_gemm_fp8_amd(device, kernel, shape, &a);
    return true;
}

bool gpu_gemm_has_fp8(const char *target) { return !strcmp(target, "sm_90a") || !strcmp(target, "gfx942") || !strcmp(target, "gfx950"); }

/* -- Launches ------------------------------------------------------------------------------------------------------ */

/* Returns whether kernels can read the operands in 16-byte chunks, and the scales of columns in
 * pairs. */
static bool is_aligned(const Gemm *g) {
    return (g->n | g->k | g->lda | g->ldb) % 16 == 0 && g->k > 0 && ((uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->scale_b) % 16 == 0;
}

static bool launch_gemm_fp8(Device *device, const Gemm *gemm, const GemmArguments *g) {
    assert(gemm_is_fp8(gemm->input) && gemm->transpose_b && !gemm->transpose_a && gemm->output != GEMM_F64);
    if (gemm->m == 0 || gemm->n == 0) return true;
    const DeviceInfo *info = device_info(device);
    Fp8Kernel kernel = kernel_for(gemm);
    if (kernel == FP8_KERNEL_NONE || !is_aligned(gemm) || !gpu_gemm_has_fp8(info->target)) return false;
    if (kernel == FP8_KERNEL_MX && !info->fp8_mx) return false;
    return (info->kind == DEVICE_CUDA ? launch_hopper_fp8 : launch_amd_fp8)(device, gemm, g, kernel);
}

bool gpu_gemm_fp8(Device *device, const Gemm *gemm) {
    Gemm pairs = in_pairs(gemm);
    GemmArguments g = gpu_gemm_arguments(&pairs);
    return launch_gemm_fp8(device, gemm, &g);
}

bool gpu_gemm_grouped_fp8(Device *device, const GemmGrouped *grouped) {
    GemmGrouped pairs = *grouped;
    pairs.first = in_pairs(&grouped->first);
    GemmArguments g = gpu_gemm_grouped_arguments(&pairs);
    return launch_gemm_fp8(device, &grouped->first, &g);
}

#endif
