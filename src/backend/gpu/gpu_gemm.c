/* GEMM on a GPU: C = alpha A B + beta D + bias for one problem, a batch of one size, or one problem
 * per expert (gpu_gemm.h). Owns no memory.
 *
 * C is cut into tiles. A block computes whole tiles, so every sum runs over k in one order. Tiles
 * are numbered problem after problem; within a problem, a band of tile rows runs column by column,
 * so that concurrent blocks share operands in the L2 cache. On NVIDIA there are as many blocks as
 * multiprocessors, and each goes from tile to tile and prefetches the next one. On AMD a block
 * computes one small or split tile, or goes from one large tile to the next; the number of rows of
 * large tiles is chosen so that all compute units end soonest. If only the device knows the sizes
 * of problems, blocks count tiles there: the grid may have more blocks than small tiles, and large
 * tiles are cut so that their last round is full.
 *
 * On Hopper these kernels run only if TMA cannot read or write the operands;
 * gpu_gemm_hopper_kernels.h has the kernels for all others. The choice depends only on the
 * arguments, so the same arguments always give the same bits. */
#include "backend/gpu/gpu_gemm_block_kernels.h"
#include "backend/gpu/gpu_gemm_hopper_kernels.h"

#ifdef GPU_DEVICE

/* -- Kernels ------------------------------------------------------------------------------------------------------- */

#if defined __AMDGCN__

/* Multiplies all stages of a tile for a wave with `rows` rows of the tile. Stages after the last
 * are zeros. */
INLINE void multiply_stages(BlockWork *work, Sums *sums, TileSize size, TileLayout a, TileLayout b, const int rows) {
    for (int32_t step = 0; step < work->tile.steps; step += STAGES) UNROLL for (int at = 0; at < STAGES; at++) {
            Operands operands;
            work_begin(work, size, &operands, at, a, b, rows);
            sums_add(sums, &operands, rows);
            work_end(work);
        }
}

INLINE void multiply_tiles(const GemmArguments *g, TileSize size, TileLayout a, TileLayout b) {
    BlockWork work;
    Sums sums;
    Tile tile = block_tile(g, size);
    if (tile.steps == 0) return;
    work_open(&work, g, size, &tile, a, b);
    sums_clear(&sums, size);
    multiply_stages(&work, &sums, size, a, b, wave_rows(size));
    work_close(&work);
    if (size == TILE_SPLIT) {
        work_join(&work, &sums);
        if (work.later) return;
    }
    tile_write(g, size, &tile, &sums, (LOCAL float *)stages);
}

/* The loop over stages exists once per tile height: branches inside it would cost every stage.
 * Arguments are read again, because no registers are left to keep them. */
INLINE void multiply_large(const GemmLarge *l, TileLayout a, TileLayout b) {
    const TileSize size = TILE_LARGE;
    Tile tile;
    Round round = rounds_open(l);
    _Pragma("clang loop unroll(disable)") while (rounds_next(&round, arguments_again(l), &tile)) {
        BlockWork work;
        Sums sums;
        work_open(&work, arguments_again(l), size, &tile, a, b);
        sums_clear(&sums, size);
        UNROLL for (int rows = LARGE_LEAST_ROWS / 2; rows <= wave_rows(size); rows += LARGE_STEP / 2) if (tile.height == 2 * rows)
            multiply_stages(&work, &sums, size, a, b, rows);
        work_close(&work);
        tile_write(arguments_again(l), size, &tile, &sums, (LOCAL float *)stages);
        if (!in_eights(arguments_again(l))) phase_barrier(); /* the tile went through shared memory */
    }
}

#elif defined __NVPTX__

enum { PREFETCH_STAGES = STAGES - 1 };

/* Loads of a block, PREFETCH_STAGES stages before their sums: stage after stage, tile after
 * tile. */
typedef struct Prefetch {
    Walk walk;
    int32_t index, stride, steps; /* the tile, and its remaining stages to load */
    Reader a, b;
} Prefetch;

INLINE void prefetch_open(Prefetch *p, const GemmArguments *g, TileLayout a, TileLayout b) {
    Tile tile = tile_find(g, TILE_SMALL, tile_rows(TILE_SMALL), &p->walk, p->index);
    p->steps = tile.steps;
    if (tile.steps == 0) return;
    p->a = reader_of_a(g, TILE_SMALL, &tile, a);
    p->b = reader_of_b(g, TILE_SMALL, &tile, b);
}

/* Advances after a stage was loaded. */
INLINE void prefetch_step(Prefetch *p, const GemmArguments *g, TileLayout a, TileLayout b) {
    if (--p->steps > 0) return;
    p->index += p->stride;
    prefetch_open(p, g, a, b);
}

INLINE void prefetch_stage(Prefetch *p, const GemmArguments *g, int stage, TileLayout a, TileLayout b) {
    const TileSize size = TILE_SMALL;
    if (p->steps > 0) {
        LOCAL bf16 *to = stages + stage % STAGES * both_elements(size);
        reader_copy(&p->a, to, a, tile_rows(size));
        reader_copy(&p->b, to + a_elements(size), b, tile_columns(size));
        prefetch_step(p, g, a, b);
    }
    copies_commit();
}

/* Prefetches a tile of D into the L2 cache: in weight gradients, D has as many bytes as A and B
 * together. */
INLINE void tile_prefetch(const GemmArguments *g, const Tile *t) {
    const TileSize size = TILE_SMALL;
    int line = g->wide ? 32 : 64, across = tile_columns(size) / line; /* elements in 128 bytes */
    _Pragma("clang loop unroll(disable)") for (int i = g->d ? thread_id() : tile_rows(size) * across; i < tile_rows(size) * across;
        i += tile_threads(size)) {
        int32_t row = t->row + i / across, column = t->column + i % across * line;
        if (row < t->rows && column < g->n)
            prefetch((GLOBAL const char *)g->d + tile_place(g, t->slot, t->problem, row, column) * (128 / line));
    }
}

INLINE void multiply_tiles(const GemmArguments *g, TileSize size, TileLayout a, TileLayout b) {
    Prefetch loads = {.index = block_x(), .stride = __nvvm_read_ptx_sreg_nctaid_x()};
    Walk walk = {0};
    int stage = 0;
    prefetch_open(&loads, g, a, b);
    _Pragma("clang loop unroll(disable)") for (int i = 0; i < PREFETCH_STAGES; i++) prefetch_stage(&loads, g, i, a, b);
    for (int32_t index = block_x();; index += loads.stride) {
        Tile tile = tile_find(g, size, tile_rows(size), &walk, index);
        if (tile.steps == 0) return;
        Sums sums;
        tile_prefetch(g, &tile);
        sums_clear(&sums, size);
        for (int32_t step = 0; step < tile.steps; step++) {
            LOCAL const bf16 *ready = stages + stage * both_elements(size);
            copies_wait(1);
            barrier();
            prefetch_stage(&loads, g, stage + PREFETCH_STAGES, a, b);
            UNROLL for (int depth = 0; depth < TILE_DEPTH; depth += MMA) {
                Operands operands;
                operands_read(&operands, ready, size, a, b, depth);
                sums_add(&sums, &operands, wave_rows(size));
            }
            stage = (stage + 1) % STAGES;
        }
        barrier();
        tile_write(g, size, &tile, &sums, (LOCAL float *)(stages + (stage + PREFETCH_STAGES) % STAGES * both_elements(size)));
    }
}

#endif

#define SMALL(left, right) WAVE_BOUNDS(256, 2); multiply_tiles(&a, TILE_SMALL, left, right)
#define SPLIT(left, right) WAVE_BOUNDS(512, 2); multiply_tiles(&a, TILE_SPLIT, left, right)
#define LARGE(left, right) WAVE_BOUNDS(512, 2); multiply_large(&a, left, right)
KERNEL(gemm_nn, GemmArguments) { SMALL(LAYOUT_DEPTH, LAYOUT_LINES); }
KERNEL(gemm_nt, GemmArguments) { SMALL(LAYOUT_DEPTH, LAYOUT_DEPTH); }
KERNEL(gemm_tn, GemmArguments) { SMALL(LAYOUT_LINES, LAYOUT_LINES); }
KERNEL(gemm_tt, GemmArguments) { SMALL(LAYOUT_LINES, LAYOUT_DEPTH); }
KERNEL(gemm_any, GemmArguments) { SMALL(LAYOUT_ELEMENTS, LAYOUT_ELEMENTS); }
#if defined __AMDGCN__
KERNEL(gemm_split_nn, GemmArguments) { SPLIT(LAYOUT_DEPTH, LAYOUT_LINES); }
KERNEL(gemm_split_nt, GemmArguments) { SPLIT(LAYOUT_DEPTH, LAYOUT_DEPTH); }
KERNEL(gemm_split_tn, GemmArguments) { SPLIT(LAYOUT_LINES, LAYOUT_LINES); }
KERNEL(gemm_split_tt, GemmArguments) { SPLIT(LAYOUT_LINES, LAYOUT_DEPTH); }
KERNEL(gemm_large_nn, GemmLarge) { LARGE(LAYOUT_DEPTH, LAYOUT_LINES); }
KERNEL(gemm_large_nt, GemmLarge) { LARGE(LAYOUT_DEPTH, LAYOUT_DEPTH); }
KERNEL(gemm_large_tn, GemmLarge) { LARGE(LAYOUT_LINES, LAYOUT_LINES); }
KERNEL(gemm_large_tt, GemmLarge) { LARGE(LAYOUT_LINES, LAYOUT_DEPTH); }
#endif

#if defined __CUDA_ARCH_FEAT_SM90_ALL
HOPPER_KERNEL(gemm_hopper_nn, LAYOUT_DEPTH, LAYOUT_LINES)
HOPPER_KERNEL(gemm_hopper_nt, LAYOUT_DEPTH, LAYOUT_DEPTH)
HOPPER_KERNEL(gemm_hopper_tn, LAYOUT_LINES, LAYOUT_LINES)
HOPPER_KERNEL(gemm_hopper_tt, LAYOUT_LINES, LAYOUT_DEPTH)
#endif

#else

#include <assert.h>
#include <string.h>

LAUNCHER(gemm_hopper_nn, GemmHopper)
LAUNCHER(gemm_hopper_nt, GemmHopper)
LAUNCHER(gemm_hopper_tn, GemmHopper)
LAUNCHER(gemm_hopper_tt, GemmHopper)

static bool is_aligned(const void *data) { return (uintptr_t)data % 16 == 0; }

/* Returns whether aligned chunks of eight elements can be read; `side` is the size of the
 * contiguous dimension. */
static bool in_chunks(const void *data, int64_t side, int64_t ld, int64_t stride) {
    return is_aligned(data) && (side | ld | stride) % 8 == 0;
}

/* -- On Hopper ----------------------------------------------------------------------------------------------------- */

bool gpu_gemm_map_operand(
    const Device *device, TensorMap *map, const void *data, int64_t columns, int64_t rows, int64_t ld, int64_t sheets, int64_t stride) {
    return gpu_tensor_map(device, map, data, (int64_t[]){columns, rows, sheets}, (int64_t[]){ld, sheets > 1 ? stride : ld * rows});
}

/* Describes C or D [sheets, m, n]; fp32 elements count as pairs of bf16. */
static bool map_result(const Device *device, TensorMap *map, const GemmArguments *g, const void *data, int64_t sheets) {
    int64_t width = g->wide ? 2 : 1;
    return gpu_gemm_map_operand(device, map, data, width * g->n, g->m, width * g->ldc, sheets, width * g->stride_c);
}

/* The slots of all experts, along m or k, form one sheet. */
bool gpu_gemm_hopper_open(Device *device, const GemmArguments *g, GemmHopper *h, LaunchShape *shape) {
    bool by_rows = g->offset && !g->slots_are_depth;
    int64_t a_sheets = g->offset ? 1 : g->problems, b_sheets = g->slots_are_depth ? 1 : g->problems, c_sheets = by_rows ? 1 : g->problems;
    *h = (GemmHopper){.gemm = *g};
    int32_t whole = g->wide && !device_info(device)->exact ? 4 : 8; /* exact: the same for bf16 and fp32 logits */
    if ((g->n | g->ldc | g->stride_c) % whole || !is_aligned(g->c) || !is_aligned(g->d) || !is_aligned(g->bias)) return false;
    if (!gpu_gemm_map_operand(
            device, &h->a, g->a, g->transpose_a ? g->m : g->k, g->transpose_a ? g->k : g->m, g->lda, a_sheets, g->stride_a) ||
        !gpu_gemm_map_operand(
            device, &h->b, g->b, g->transpose_b ? g->k : g->n, g->transpose_b ? g->n : g->k, g->ldb, b_sheets, g->stride_b) ||
        !map_result(device, &h->c, g, g->c, c_sheets) || (g->d && !map_result(device, &h->d, g, g->d, c_sheets)))
        return false;
    *shape = hopper_launch_shape(device, g);
    return true;
}

static bool is_exact(const Device *device, const GemmArguments *g) {
    return device_info(device)->exact && !g->transpose_a && g->transpose_b;
}

/* Returns the columns of the tiles with which C takes the least time: that of a cluster's units is
 * about the time of loading a block's lines. It assumes equal shares of the rows for experts. */
static int32_t choose_columns(const Device *device, const GemmArguments *g) {
    int64_t rows = g->offset ? divide_up(g->m, g->problems) : g->m, clusters = device_info(device)->processors / HOPPER_CLUSTER,
            least = INT64_MAX;
    int32_t best = 0;
    for (int32_t columns = HOPPER_COLUMNS; columns >= 64; columns /= 2) {
        int64_t across = columns < HOPPER_COLUMNS ? HOPPER_CLUSTER : 1, down = HOPPER_CLUSTER / across;
        int64_t units = g->problems * divide_up(rows, HOPPER_ROWS * down) * divide_up(g->n, columns * across);
        int64_t time = divide_up(units, clusters) * ((rows < HOPPER_ROWS * down ? divide_up(rows, down) : HOPPER_ROWS) + columns);
        if (time < least) best = columns, least = time;
    }
    return best;
}

static bool launch_hopper_bf16(Device *device, const GemmArguments *g) {
    GemmHopper h;
    LaunchShape shape;
    if (!gpu_gemm_hopper_open(device, g, &h, &shape)) return false;
    int32_t columns = is_exact(device, g) && !g->symmetric ? choose_columns(device, g) : HOPPER_COLUMNS;
    if (columns < HOPPER_COLUMNS) (columns == 64 ? gpu_gemm_launch_64 : gpu_gemm_launch_128)(device, &h);
    else if (g->transpose_a) (g->transpose_b ? launch_gemm_hopper_tt : launch_gemm_hopper_tn)(device, shape, &h);
    else (g->transpose_b ? launch_gemm_hopper_nt : launch_gemm_hopper_nn)(device, shape, &h);
    return true;
}

/* -- Tiles --------------------------------------------------------------------------------------------------------- */

/* Returns an upper bound on the tiles of all problems. If only the device knows how many rows
 * experts have, each expert counts one partial tile per column. */
static int64_t most_tiles(const GemmArguments *g, TileSize size, int32_t height) {
    int64_t rows = divide_up(g->m, height), columns = divide_up(g->n, tile_columns(size));
    if (g->symmetric) return g->problems * (rows * (rows + 1) / 2);
    return g->offset && !g->slots_are_depth ? (rows + g->problems) * columns : g->problems * rows * columns;
}

LaunchShape gpu_gemm_count_tiles(GemmArguments *g, TileSize size, int32_t height) {
    int64_t most = most_tiles(g, size, height), lines = tile_rows(size) + tile_columns(size);
    g->tiles = (int32_t)(most / g->problems);
    g->fours = (g->n | g->ldc | g->stride_c) % 4 == 0 && is_aligned(g->c) && is_aligned(g->d) && is_aligned(g->bias);
    return (LaunchShape){.x = divide_up(most, 8) * 8,
        .threads = tile_threads(size),
        .shared = (int)((size == TILE_SPLIT ? 2 : 1) * AMD_STAGES * lines * AMD_DEPTH * (int64_t)sizeof(bf16))};
}

/* Returns the rounds in which all processors have a tile. For experts, it assumes equal shares of
 * the rows. */
static int64_t rounds_of(const GemmArguments *g, TileSize size, int32_t height, int processors) {
    int64_t most = most_tiles(g, size, height), rounds = divide_up(most, processors);
    if (!g->offset || g->slots_are_depth) return rounds;
    int64_t rows = divide_up(divide_up(g->m, g->problems), height) * g->problems;
    return divide_up(rounds * rows * divide_up(g->n, tile_columns(size)), most);
}

/* Modeled time of tiles on an AMD compute unit, in units of one row of a large tile per stage
 * (docs/speed-log.md). */
typedef struct TileTimes {
    double stage, row, ends;    /* large tiles: a stage without its rows, a row of it, and the begin and end of a tile */
    double split, split_ends;   /* split tiles: a row of a stage, and the ends */
    double shared, shared_ends; /* small tiles, several of which share a compute unit */
    double alone, alone_ends;   /* small tiles that have a compute unit to themselves */
} TileTimes;

static TileTimes tile_times(const Device *device) {
    if (!strcmp(device_info(device)->target, "gfx950")) return (TileTimes){164, 0.36, 2200, 0.86, 1550, 0.74, 740, 1.24, 1100};
    return (TileTimes){0, 1, 1000, 0.54, 1340, 0.55, 550, 1.03, 700};
}

/* Returns the cut for experts with equal shares of the rows. */
static RowCut cut_of_equal_shares(const GemmArguments *g, int32_t blocks) {
    int32_t tiles[MOST_UNITS + 1] = {0}, units = (int32_t)divide_up(g->slots_are_depth ? g->m : divide_up(g->m, g->problems), LARGE_STEP);
    for (int32_t most = 1; most <= MOST_UNITS; most++) tiles[most] = g->problems * (int32_t)divide_up(units, most);
    return choose_cut(tiles, (int32_t)divide_up(g->n, tile_columns(TILE_LARGE)), blocks);
}

/* Returns the time of experts: rounds of large tiles, times the time of a tile of mean height. */
static double time_of_experts(const Device *device, const GemmArguments *g, double stages) {
    TileTimes t = tile_times(device);
    int32_t processors = device_info(device)->processors, columns = (int32_t)divide_up(g->n, tile_columns(TILE_LARGE));
    RowCut cut = cut_of_equal_shares(g, processors);
    int64_t rows = g->slots_are_depth ? g->m : divide_up(g->m, g->problems), units = divide_up(rows, LARGE_STEP);
    int64_t tiles = g->problems * (cut.columns * divide_up(units, cut.units) + (columns - cut.columns) * divide_up(units, cut.units - 1));
    double height = (double)(g->problems * columns * units * LARGE_STEP) / (double)tiles;
    return (double)divide_up(tiles, processors) * ((t.stage + t.row * height) * stages + t.ends);
}

/* Returns how long a GEMM takes on AMD, in the unit of TileTimes: all compute units are as late as
 * the last one. */
static double time_gemm(const Device *device, const GemmArguments *g, TileSize size, int32_t height) {
    TileTimes t = tile_times(device);
    int64_t rounds = rounds_of(g, size, height, device_info(device)->processors);
    double stages = (double)(g->slots_are_depth ? divide_up(g->k, g->problems) : g->k) / AMD_DEPTH, tile = 0;
    if (size == TILE_LARGE && g->offset) return time_of_experts(device, g, stages);
    if (size == TILE_LARGE) tile = (t.stage + t.row * height) * stages + t.ends;
    else if (size == TILE_SPLIT) tile = t.split * height * stages + t.split_ends;
    else if (rounds > 1) tile = t.shared * height * stages + t.shared_ends;
    else tile = t.alone * height * stages + t.alone_ends;
    return (double)rounds * tile;
}

/* Returns the least rows of large tiles. Smaller tiles read more per product, which pays off only
 * if operands stay in a large cache. */
static int32_t least_rows(const GemmArguments *g) {
    static const double cache = 128 << 20;
    double bytes = sizeof(bf16) * (double)g->problems * ((double)g->m + g->n) * g->k;
    return g->symmetric || g->offset ? tile_rows(TILE_LARGE) : bytes > cache ? LARGE_LEAST_ROWS + 2 * LARGE_STEP : LARGE_LEAST_ROWS;
}

/* The tiles with which a GEMM takes the least time. */
typedef struct TileChoice {
    TileSize size;
    int32_t rows;
} TileChoice;

/* Offsets in the lines of a large tile fit 31 bits. */
static TileChoice choose_tiles(const Device *device, const GemmArguments *g) {
    int32_t small = tile_rows(TILE_SMALL), first = (g->lda | g->ldb) >= 1 << 22 ? 0 : tile_rows(TILE_LARGE);
    TileChoice best = {TILE_SMALL, small};
    double least = time_gemm(device, g, TILE_SMALL, small), split = time_gemm(device, g, TILE_SPLIT, small);
    if (split < least && !is_exact(device, g)) best = (TileChoice){TILE_SPLIT, small}, least = split;
    for (int32_t rows = first; rows >= least_rows(g); rows -= LARGE_STEP) {
        double time = time_gemm(device, g, TILE_LARGE, rows);
        if (time < least) best = (TileChoice){TILE_LARGE, rows}, least = time;
    }
    return best;
}

/* -- Launches ------------------------------------------------------------------------------------------------------ */

LAUNCHERS(gemm_of, GemmArguments, gemm_nn, gemm_nt, gemm_tn, gemm_tt, gemm_any)
LAUNCHERS(gemm_split, GemmArguments, gemm_split_nn, gemm_split_nt, gemm_split_tn, gemm_split_tt)
LAUNCHERS(gemm_large, GemmLarge, gemm_large_nn, gemm_large_nt, gemm_large_tn, gemm_large_tt)

/* The last form is for operands without aligned chunks. */
enum { FORM_ANY = 4 };

/* Launches as many blocks as processors, which go from tile to tile. Every chiplet, at most eight,
 * has at least one. */
static void launch_large(Device *device, const GemmArguments *g, int32_t rows, int form, LaunchShape shape) {
    int32_t processors = device_info(device)->processors, columns = (int32_t)divide_up(g->n, tile_columns(TILE_LARGE));
    GemmLarge large = {.gemm = *g, .cut = {rows / LARGE_STEP, columns}};
    shape.x = shape.x < processors ? shape.x : processors > 8 ? processors : 8;
    large.blocks = (int32_t)shape.x;
    launch_gemm_large(device, form, shape, &large);
}

static void launch_amd(Device *device, GemmArguments *g, int form) {
    TileChoice tiles = form == FORM_ANY ? (TileChoice){TILE_SMALL, tile_rows(TILE_SMALL)} : choose_tiles(device, g);
    LaunchShape shape = gpu_gemm_count_tiles(g, tiles.size, tiles.rows);
    if (tiles.size == TILE_LARGE) launch_large(device, g, tiles.rows, form, shape);
    else if (tiles.size == TILE_SPLIT) launch_gemm_split(device, form, shape, g);
    else launch_gemm_of(device, form, shape, g);
}

static void launch_cuda(Device *device, GemmArguments *g, int form) {
    const TileSize size = TILE_SMALL;
    LaunchShape shape = gpu_gemm_count_tiles(g, size, tile_rows(size));
    if (form != FORM_ANY && launch_hopper_bf16(device, g)) return;
    int64_t most = most_tiles(g, size, tile_rows(size)), lines = tile_rows(size) + tile_columns(size),
            processors = device_info(device)->processors;
    shape.shared = (int)(NVIDIA_STAGES * lines * NVIDIA_DEPTH * (int64_t)sizeof(bf16));
    shape.x = most < processors ? most : processors;
    launch_gemm_of(device, form, shape, g);
}

static void launch_gemm(Device *device, GemmArguments *g) {
    bool chunks = in_chunks(g->a, g->transpose_a ? g->m : g->k, g->lda, g->stride_a) &&
                  in_chunks(g->b, g->transpose_b ? g->k : g->n, g->ldb, g->stride_b);
    int form = chunks ? g->transpose_a * 2 + g->transpose_b : FORM_ANY;
    (device_info(device)->kind == DEVICE_CUDA ? launch_cuda : launch_amd)(device, g, form);
}

GemmArguments gpu_gemm_arguments(const Gemm *gemm) {
    assert(gemm->input == GEMM_BF16 && gemm->output != GEMM_F64 && (gemm->lda | gemm->ldb | gemm->ldc) < 1 << 23);
    assert(gemm->m <= INT32_MAX && gemm->n <= INT32_MAX && gemm->k <= INT32_MAX);
    GemmArguments g = {.a = gemm->a, .b = gemm->b, .c = gemm->c, .bias = gemm->bias, .problems = 1, .alpha = 1};
    g.lda = gemm->lda, g.ldb = gemm->ldb, g.ldc = gemm->ldc;
    g.m = (int32_t)gemm->m, g.n = (int32_t)gemm->n, g.k = (int32_t)gemm->k;
    g.transpose_a = gemm->transpose_a, g.transpose_b = gemm->transpose_b, g.wide = gemm->output == GEMM_F32;
    g.d = gemm->accumulate ? gemm->c : NULL, g.beta = gemm->accumulate;
    return g;
}

void gpu_gemm_batch(Device *device, const GemmBatch *batch) {
    assert(!batch->symmetric || (batch->first.m == batch->first.n && batch->first.output == GEMM_BF16 && !batch->first.bias));
    GemmArguments g = gpu_gemm_arguments(&batch->first);
    if (g.m == 0 || g.n == 0 || (!gpu_gemm_must_be_exact(device, &batch->first) && gpu_gemm_narrow(device, batch))) return;
    g.stride_a = batch->stride_a, g.stride_b = batch->stride_b, g.stride_c = batch->stride_c;
    g.alpha = (float)batch->alpha, g.beta = (float)batch->beta, g.d = batch->d;
    g.problems = (int32_t)batch->count, g.symmetric = batch->symmetric;
    launch_gemm(device, &g);
}

void gpu_gemm(Device *device, const Gemm *gemm) {
    if (gpu_gemv_serves(gemm) && !gpu_gemm_must_be_exact(device, gemm)) {
        gpu_gemv(device, gemm);
        return;
    }
    const void *d = gemm->accumulate ? gemm->c : NULL;
    gpu_gemm_batch(device, &(GemmBatch){.first = *gemm, .count = 1, .alpha = 1, .beta = gemm->accumulate, .d = d});
}

GemmArguments gpu_gemm_grouped_arguments(const GemmGrouped *grouped) {
    GemmArguments g = gpu_gemm_arguments(&grouped->first);
    g.offset = grouped->offset, g.problems = (int32_t)grouped->experts, g.slots_are_depth = grouped->slots_are_depth;
    if (grouped->slots_are_depth) g.stride_c = (int64_t)g.m * g.n;
    else g.stride_b = (g.transpose_b ? g.n : g.k) * g.ldb;
    return g;
}

void gpu_gemm_grouped(Device *device, const GemmGrouped *grouped) {
    GemmArguments g = gpu_gemm_grouped_arguments(grouped);
    if (g.m == 0 || g.n == 0) return;
    launch_gemm(device, &g);
}

#endif
