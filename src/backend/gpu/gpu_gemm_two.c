/* The sum of two products on Hopper, C = A B + bias + A2 B2, where the second product has a small k
 * (gpu_gemm.h): a frozen layer and its low-rank adapters. The second product is the last stages of
 * a tile (gpu_gemm_hopper_kernels.h), so C is written once and never read, and its sums are
 * rounded once. Owns no memory. */
#include "backend/gpu/gpu_gemm_hopper_kernels.h"

#ifdef GPU_DEVICE

#if defined __CUDA_ARCH_FEAT_SM90_ALL
#define TWO_KERNEL(name, left, right)                                                                              \
    KERNEL(name, GemmHopperTwo) {                                                                                  \
        CLUSTER_BOUNDS(HOPPER_THREADS, 1, HOPPER_CLUSTER);                                                         \
        multiply_hopper_two(&a.first, ARGUMENTS_ADDRESS(name), &a.second, (HopperForm){left, right}); \
    }
TWO_KERNEL(gemm_two_nn, LAYOUT_DEPTH, LAYOUT_LINES)
TWO_KERNEL(gemm_two_nt, LAYOUT_DEPTH, LAYOUT_DEPTH)
#endif

#else

#include <assert.h>

LAUNCHERS(gemm_two, GemmHopperTwo, gemm_two_nn, gemm_two_nt)
_Static_assert((int)SECOND_PARTS == GEMM_MOST_PARTS, "a kernel has room for all parts");

/* TMA reads at least 16 bytes. */
static bool can_be_read(const void *data, int64_t ld) { return (uintptr_t)data % 16 == 0 && ld % 8 == 0; }

/* Returns whether parts begin and end at tile boundaries. */
static bool parts_are_of_tiles(const GemmSecond *second, int64_t n) {
    for (int i = 0; i < second->count; i++) {
        int64_t first = second->parts[i].first, end = first + second->parts[i].count;
        if (first % HOPPER_COLUMNS || (end % HOPPER_COLUMNS && end != n)) return false;
    }
    return true;
}

static bool open_second(const Device *device, const Gemm *gemm, const GemmSecond *second, HopperSecond *h) {
    int64_t lines = 0;
    h->count = second->count;
    h->steps = (int32_t)divide_up(second->k, TILE_DEPTH);
    for (int i = 0; i < second->count; i++) {
        GemmPart part = second->parts[i];
        h->parts[i] = (SecondPart){(int32_t)part.first, (int32_t)(part.first + part.count), (int32_t)lines, (int32_t)(i * second->k)};
        lines += part.count;
    }
    int64_t depth = second->k * second->count, columns = gemm->transpose_b ? second->k : lines,
            rows = gemm->transpose_b ? lines : second->k;
    return gpu_gemm_map_operand(device, &h->a, second->a, depth, gemm->m, second->lda, 1, 0) &&
           gpu_gemm_map_operand(device, &h->b, second->b, columns, rows, second->ldb, 1, 0);
}

/* Below this k, saving the second pass over C saves most of a GEMM's memory traffic. Above it the
 * library's own kernel gains more (on an H200 with 4608 rows: 3072 x 12288 with k = 3072 takes 0.86
 * of the two calls, 12288 x 3072 takes 1.04). */
static bool is_wide(const Gemm *gemm) { return gemm->k < 3 * gemm->n; }

bool gpu_gemm_two(Device *device, const Gemm *gemm, const GemmSecond *second) {
    assert(second->count > 0 && second->count <= GEMM_MOST_PARTS && second->k > 0 && !gemm->transpose_a && !gemm->accumulate);
    GemmHopperTwo two = {0};
    LaunchShape shape;
    if (gemm->m == 0 || gemm->n == 0) return true;
    if (!is_wide(gemm)) return false;
    bool first = gemm->k > 0 && can_be_read(gemm->a, gemm->lda) && can_be_read(gemm->b, gemm->ldb);
    if (device_info(device)->kind != DEVICE_CUDA || !first || !can_be_read(second->a, second->lda) || !can_be_read(second->b, second->ldb))
        return false;
    GemmArguments g = gpu_gemm_arguments(gemm);
    if (!parts_are_of_tiles(second, gemm->n) || !open_second(device, gemm, second, &two.second) ||
        !gpu_gemm_hopper_open(device, &g, &two.first, &shape))
        return false;
    launch_gemm_two(device, gemm->transpose_b, shape, &two);
    return true;
}

#endif
