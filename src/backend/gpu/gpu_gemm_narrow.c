/* GEMM whose C has few rows or few columns, such as the products of low-rank adapters (gpu_gemm.h).
 * It reads the operand with many lines once and little else, so it is bound by memory bandwidth:
 * the number of bytes in flight counts. Tiles of C as large as those of gpu_gemm.c would be few and
 * mostly empty.
 *
 * A block computes all of C for LARGE_LINES lines of the large operand. Its waves take tiles along
 * k in turn. Each wave has its own tiles in shared memory and fills them without waiting for other
 * waves; at the end their sums are added in order. The number of waves is limited by shared memory,
 * so bits depend on shapes and the kind of GPU. Owns no memory. */
#include "backend/gpu/gpu_gemm_tile_kernels.h"

enum {
    SMALL_MOST = 64, /* most lines of the small operand */
    LARGE_LINES = 64,
    STEP = 64, /* steps along k per tile */
    MOST_THREADS = 256,
    SUMS_STRIDE = LARGE_LINES + 1, /* floats between lines of the small operand, to avoid bank conflicts in shared memory */
};

/* Returns how many tiles of each operand a wave has: on NVIDIA the current one and one in flight;
 * on AMD, where copies in flight are in registers, only the current one. */
static inline int narrow_tiles(int wave) { return wave == 64 ? 1 : 2; }

/* An operand: lines of k elements, stored by lines or by steps along k, `stride` elements apart. */
typedef struct NarrowSide {
    GLOBAL const bf16 *from;
    int64_t stride;
    int32_t lines;
} NarrowSide;

/* C = A B + bias for one problem or a batch of one size. C has a row for each line of one operand
 * and a column for each line of the other. Strides are between problems. */
typedef struct NarrowArguments {
    NarrowSide small, large;
    GLOBAL void *c;
    GLOBAL const float *bias; /* NULL: none */
    int64_t ldc, small_stride, large_stride, c_stride;
    int32_t k, waves;
    /* Booleans: */
    int32_t small_is_b;       /* its lines are columns of C */
    int32_t wide, accumulate; /* C is fp32; C is added to */
} NarrowArguments;

#ifdef GPU_DEVICE

/* Returns the tile at `line` and `depth`; zeros after the operand's end. */
INLINE Source side_tile(const NarrowSide *side, const TileLayout layout, int32_t line, int32_t depth, int32_t k) {
    int32_t lines = side->lines - line, steps = k - depth;
    if (layout == LAYOUT_DEPTH) return (Source){side->from + line * side->stride + depth, side->stride, steps > 0 ? lines : 0, steps};
    return (Source){side->from + depth * side->stride + line, side->stride, steps, lines};
}
INLINE void side_begin(Stage *stage, LOCAL bf16 *tile, const TileLayout layout, const int lines, const Source *source) {
    if (layout == LAYOUT_DEPTH) stage_begin(stage, tile, STEP, lines, WAVE, source);
    else columns_begin(stage, tile, lines, STEP, WAVE, source);
}
INLINE void side_end(
    const Stage *stage, LOCAL bf16 *tile, const TileLayout layout, const int lines, const Source *source, const int later) {
    if (layout == LAYOUT_DEPTH) stage_end(stage, tile, STEP, lines, WAVE, source, later);
    else columns_end(stage, tile, lines, STEP, WAVE, source, later);
}
INLINE void side_operand(Operand *o, LOCAL const bf16 *tile, const TileLayout layout, const int lines, const int line, const int depth) {
    if (layout == LAYOUT_DEPTH) operand_load(o, tile, STEP, line, depth);
    else operand_load_columns(o, tile, lines, depth, line);
}

/* Two tiles and, on AMD, the copies to them. */
typedef struct NarrowPair {
    Source small, large;
    Stage small_stage, large_stage;
} NarrowPair;

/* The constants of a kernel: layouts, and lines of the small operand's tile. */
typedef struct NarrowForm {
    TileLayout small, large;
    int lines;
} NarrowForm;

INLINE void pair_begin(NarrowPair *pair, const NarrowArguments *a, LOCAL bf16 *tile, int32_t step, const NarrowForm form) {
    int32_t depth = step * STEP;
    pair->small = side_tile(&a->small, form.small, 0, depth, a->k);
    pair->large = side_tile(&a->large, form.large, block_x() * LARGE_LINES, depth, a->k);
    pair->small.from += block_y() * a->small_stride;
    pair->large.from += block_y() * a->large_stride;
    side_begin(&pair->small_stage, tile, form.small, form.lines, &pair->small);
    side_begin(&pair->large_stage, tile + form.lines * STEP, form.large, LARGE_LINES, &pair->large);
}
/* `later`: pairs begun after this one that may stay in flight. */
INLINE void pair_end(const NarrowPair *pair, LOCAL bf16 *tile, const int later, const NarrowForm form) {
    side_end(&pair->small_stage, tile, form.small, form.lines, &pair->small, 2 * later + 1);
    side_end(&pair->large_stage, tile + form.lines * STEP, form.large, LARGE_LINES, &pair->large, 2 * later);
}

enum { SMALL_BLOCKS = SMALL_MOST / MMA, LARGE_BLOCKS = LARGE_LINES / MMA };
typedef struct NarrowSums { Accumulator of[SMALL_BLOCKS][LARGE_BLOCKS]; } NarrowSums;

INLINE void pair_multiply(NarrowSums *sums, LOCAL const bf16 *tile, const NarrowForm form) {
    UNROLL for (int depth = 0; depth < STEP; depth += MMA) {
        Operand large[LARGE_BLOCKS];
        UNROLL for (int l = 0; l < LARGE_BLOCKS; l++)
            side_operand(&large[l], tile + form.lines * STEP, form.large, LARGE_LINES, l * MMA, depth);
        UNROLL for (int s = 0; s < form.lines / MMA; s++) {
            Operand small;
            side_operand(&small, tile, form.small, form.lines, s * MMA, depth);
            UNROLL for (int l = 0; l < LARGE_BLOCKS; l++) mma(&sums->of[s][l], &small, &large[l]);
        }
    }
}

INLINE void write_element(const NarrowArguments *a, int32_t small, int32_t large, float sum) {
    int32_t row = a->small_is_b ? large : small, column = a->small_is_b ? small : large;
    int64_t at = block_y() * a->c_stride + row * a->ldc + column;
    GLOBAL float *wide = (GLOBAL float *)a->c + at;
    GLOBAL bf16 *narrow = (GLOBAL bf16 *)a->c + at;
    if (small >= a->small.lines || large >= a->large.lines) return;
    if (a->bias) sum += a->bias[column];
    if (a->accumulate) sum += a->wide ? *wide : to_float(*narrow);
    if (a->wide) *wide = sum;
    else *narrow = to_bf16(sum);
}

/* Adds the waves' sums, MMA lines of the small operand at a time, through the memory of the tiles.
 * Consecutive threads write consecutive columns. */
INLINE void sums_write(const NarrowArguments *a, const NarrowSums *sums, const NarrowForm form) {
    LOCAL float *shared = (LOCAL float *)stages;
    UNROLL for (int s = 0; s < form.lines / MMA; s++) {
        barrier();
        UNROLL for (int l = 0; l < LARGE_BLOCKS; l++) UNROLL for (int r = 0; r < LANE_ROWS; r++)
            UNROLL for (int c = 0; c < LANE_COLUMNS; c++)
                shared[(wave_id() * MMA + accumulator_row(r)) * SUMS_STRIDE + l * MMA + accumulator_column(c)] =
                    accumulator_get(&sums->of[s][l], r, c);
        barrier();
        for (int i = thread_id(); i < MMA * LARGE_LINES; i += a->waves * WAVE) {
            int small = a->small_is_b ? i % MMA : i / LARGE_LINES, large = a->small_is_b ? i / MMA : i % LARGE_LINES;
            float sum = 0;
            for (int w = 0; w < a->waves; w++) sum += shared[(w * MMA + small) * SUMS_STRIDE + large];
            write_element(a, s * MMA + small, block_x() * LARGE_LINES + large, sum);
        }
    }
}

INLINE void multiply_narrow(const NarrowArguments *a, const NarrowForm form) {
    const int tiles = narrow_tiles(WAVE), ahead = tiles > 1 ? tiles - 1 : 1, size = (form.lines + LARGE_LINES) * STEP;
    LOCAL bf16 *first = stages + wave_id() * tiles * size;
    int32_t step = of_wave(wave_id()), steps = (a->k + STEP - 1) / STEP, used = 0;
    NarrowPair pair;
    NarrowSums sums;
    UNROLL for (int s = 0; s < form.lines / MMA; s++) UNROLL for (int l = 0; l < LARGE_BLOCKS; l++) accumulator_clear(&sums.of[s][l]);
    UNROLL for (int i = 0; i < ahead; i++) pair_begin(&pair, a, first + i * size, step + i * a->waves, form);
    _Pragma("clang loop unroll(disable)") for (; step < steps; step += a->waves) {
        wave_barrier();
        pair_end(&pair, first + used * size, ahead - 1, form);
        wave_barrier();
        pair_begin(&pair, a, first + (used + ahead) % tiles * size, step + ahead * a->waves, form);
        pair_multiply(&sums, first + used * size, form);
        used = (used + 1) % tiles;
    }
    wave_barrier();
    pair_end(&pair, first + used * size, 0, form); /* zeros after the last step: the sums then use their memory */
    sums_write(a, &sums, form);
}

#define NARROW_KERNEL(name, small, large, lines)                                                                  \
    KERNEL(name, NarrowArguments) {                                                                               \
        WAVE_BOUNDS(MOST_THREADS, 1);                                                                                      \
        multiply_narrow(&a, (NarrowForm){small, large, lines});                                                   \
    }
NARROW_KERNEL(gemm_narrow_dd_32, LAYOUT_DEPTH, LAYOUT_DEPTH, 32)
NARROW_KERNEL(gemm_narrow_dl_32, LAYOUT_DEPTH, LAYOUT_LINES, 32)
NARROW_KERNEL(gemm_narrow_ld_32, LAYOUT_LINES, LAYOUT_DEPTH, 32)
NARROW_KERNEL(gemm_narrow_ll_32, LAYOUT_LINES, LAYOUT_LINES, 32)
NARROW_KERNEL(gemm_narrow_dd_64, LAYOUT_DEPTH, LAYOUT_DEPTH, 64)
NARROW_KERNEL(gemm_narrow_dl_64, LAYOUT_DEPTH, LAYOUT_LINES, 64)
NARROW_KERNEL(gemm_narrow_ld_64, LAYOUT_LINES, LAYOUT_DEPTH, 64)
NARROW_KERNEL(gemm_narrow_ll_64, LAYOUT_LINES, LAYOUT_LINES, 64)

#else

#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/kernel_launch.h"

/* Indexed by lines, then by layouts: twice the small operand's (0: along k) plus the large
 * operand's. */
LAUNCHERS(gemm_narrow, NarrowArguments, gemm_narrow_dd_32, gemm_narrow_dl_32, gemm_narrow_ld_32, gemm_narrow_ll_32, gemm_narrow_dd_64,
    gemm_narrow_dl_64, gemm_narrow_ld_64, gemm_narrow_ll_64)

enum { MOST_PROBLEMS = 65535 }; /* most blocks of a launch along y */

/* Returns whether rows of `columns` elements can be read in whole chunks. */
static bool in_whole_chunks(const void *data, int64_t columns, int64_t ld) {
    return (uintptr_t)data % 16 == 0 && (columns | ld) % 8 == 0 && ld < 1 << 23;
}

static bool is_narrow(const Gemm *g) {
    bool types = g->input == GEMM_BF16 && (g->output == GEMM_BF16 || g->output == GEMM_F32);
    int64_t least = int_min(g->m, g->n), most = int_max(int_max(g->m, g->n), g->k);
    bool sizes = least > 0 && least <= SMALL_MOST && most <= INT32_MAX && g->k > 0;
    return types && sizes && in_whole_chunks(g->a, g->transpose_a ? g->m : g->k, g->lda) &&
           in_whole_chunks(g->b, g->transpose_b ? g->k : g->n, g->ldb);
}

bool gpu_gemm_narrow(Device *device, const GemmBatch *batch) {
    const Gemm *gemm = &batch->first;
    bool strides = (batch->stride_a | batch->stride_b) % 8 == 0,
         plain = batch->alpha == 1 && (!batch->d || (batch->d == gemm->c && batch->beta == 1));
    if (!is_narrow(gemm) || !strides || !plain || batch->symmetric || batch->count > MOST_PROBLEMS) return false;
    NarrowSide a = {gemm->a, gemm->lda, (int32_t)gemm->m}, b = {gemm->b, gemm->ldb, (int32_t)gemm->n};
    bool small_is_b = gemm->n <= gemm->m, a_by_lines = gemm->transpose_a, b_by_lines = !gemm->transpose_b;
    NarrowArguments arguments = {.small = small_is_b ? b : a,
        .large = small_is_b ? a : b,
        .c = gemm->c,
        .bias = gemm->bias,
        .ldc = gemm->ldc,
        .small_stride = small_is_b ? batch->stride_b : batch->stride_a,
        .large_stride = small_is_b ? batch->stride_a : batch->stride_b,
        .c_stride = batch->stride_c,
        .k = (int32_t)gemm->k,
        .small_is_b = small_is_b,
        .wide = gemm->output == GEMM_F32,
        .accumulate = batch->d != NULL};
    int lines = arguments.small.lines <= SMALL_MOST / 2 ? SMALL_MOST / 2 : SMALL_MOST, wave = device_info(device)->wave;
    int form = (small_is_b ? b_by_lines : a_by_lines) * 2 + (small_is_b ? a_by_lines : b_by_lines) + (lines == SMALL_MOST) * 4;
    int tiles = narrow_tiles(wave) * (lines + LARGE_LINES) * STEP * (int)sizeof(bf16), sums = 32 * SUMS_STRIDE * (int)sizeof(float),
        bytes = tiles > sums ? tiles : sums; /* per wave */
    arguments.waves = (int32_t)int_min(MOST_THREADS / wave, device_info(device)->shared_bytes / bytes);
    LaunchShape shape = {.x = divide_up(arguments.large.lines, LARGE_LINES),
        .y = batch->count,
        .threads = arguments.waves * wave,
        .shared = arguments.waves * bytes};
    launch_gemm_narrow(device, form, shape, &arguments);
    return true;
}

#endif
