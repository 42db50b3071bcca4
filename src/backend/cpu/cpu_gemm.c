/* GEMM on the CPU: tiling, packing and threads; the arithmetic is in cpu_gemm_kernel.c.
 *
 * The scheme is that of BLIS. C is cut into tiles. One thread computes a tile alone: for each block
 * of K it packs the tile's columns of B, then takes one panel of A at a time, packs it while it is
 * in the L1 cache, and multiplies it by all of B. Meanwhile it prefetches the next operands, up to
 * the first block of the thread's probable next tile. Threads repeat some packing, which costs
 * little at these tile sizes and avoids barriers: gemm, gemm_serial and gemm_batch are one loop
 * over tiles. Tile boundaries are free, because an element's value depends only on the blocks of K:
 * any tile of any thread gives the same bits. If C is small and K long (weight gradients), tiles
 * for all threads would mostly pack. This GEMM is also split along K (split-K), depending only on
 * its shape, and the partial sums are added in order.
 *
 * Memory: each computing thread keeps one scratch of fixed size until it exits; unneeded pages of
 * it are never touched. */
#include "backend/cpu/cpu_gemm_internal.h"
#include "base/math.h"
#include "base/memory.h"

#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    DEPTH = 192,        /* packed depths in a block of K: panels of A and B, 36 KiB, share the L1 cache */
    WHOLE_DEPTH = 512,  /* up to this many depths are one block: keeping sums between two blocks costs more */
    PACK_DEPTH = 32,    /* depths packed at once if the columns of B are adjacent, so that memory is read in order */
    BLOCK_PANELS = 4,   /* panels of A fetched at once: if its rows are adjacent, parts of cache lines would be fetched twice */
    TILE_ROWS = 1024,   /* most rows of C in a tile, except two panels' worth of rounding */
    TILE_COLUMNS = 512, /* most columns: packed B, 1 MiB, stays in the L2 cache */
    TASKS_A_THREAD = 4, /* tiles per thread, so that a late thread costs little */
    MIN_WORK = 1 << 19, /* multiplications worth a task of their own */
    ROWS_READ = 8,
    SPLIT_DEPTH = 1024, /* least k of each part of a split GEMM */
    MOST_SPLITS = 8,
    PARTIALS = 4 << 20, /* most bytes of all partial sums at a time */
    MOST_GEMMS = 256,   /* most GEMMs planned at once */
    HUGE_PAGE = 2 << 20,
    CACHE_LINE = 64,
    CROWDED = 512, /* lines at a multiple of this many bytes map to at most 8 of the 64 sets of the L1 cache */
};

typedef struct Scratch {
    char a[16 * WHOLE_DEPTH * sizeof(double)];
    char b[TILE_COLUMNS * WHOLE_DEPTH * sizeof(double)];
    float sums[(TILE_ROWS + 2 * 16) * TILE_COLUMNS]; /* for a bf16 result with more than one block of K */
    double partials[PARTIALS / sizeof(double)];      /* for split GEMMs; in the caller's scratch, filled by all threads */
} Scratch;

/* The number of tiles of C, and the index of the first one among all tiles of a batch. */
typedef struct CpuTiling { int64_t row_tiles, column_tiles, first_task; } CpuTiling;

typedef struct CpuTile { int64_t row, rows, column, columns; } CpuTile;

/* ---- Choosing the kernel ---- */

extern const GemmKernel kernel_gemm_generic_fp32, kernel_gemm_generic_fp64;
#ifdef __x86_64__
extern const GemmKernel kernel_gemm_avx2_fp32, kernel_gemm_avx2_fp64, kernel_gemm_avx512_fp32, kernel_gemm_avx512_fp64;
extern const GemmKernel kernel_gemm_avx512vnni_bf16, kernel_gemm_avx512bf16_bf16;
#endif

#define KERNELS(f32, bf16, f64) {[GEMM_F32] = &kernel_gemm_##f32, [GEMM_BF16] = &kernel_gemm_##bf16, [GEMM_F64] = &kernel_gemm_##f64}

typedef struct GemmIsa {
    CpuIsa isa;
    const GemmKernel *kernels[3]; /* by GemmType; F32 may use an older instruction set */
} GemmIsa;

/* Best first; the last one runs anywhere. */
static const GemmIsa gemm_isas[] = {
#ifdef __x86_64__
    {CPU_AVX512BF16, KERNELS(avx512_fp32, avx512bf16_bf16, avx512_fp64)},
    {CPU_AVX512VNNI, KERNELS(avx512_fp32, avx512vnni_bf16, avx512_fp64)},
    {CPU_AVX512, KERNELS(avx512_fp32, avx512_fp32, avx512_fp64)},
    {CPU_AVX2, KERNELS(avx2_fp32, avx2_fp32, avx2_fp64)},
#endif
    {CPU_GENERIC, KERNELS(generic_fp32, generic_fp32, generic_fp64)},
};

static bool exact_gemm;

static const GemmIsa *current_isa(void) {
    int i = 0;
    while (!cpu_isa_runs(gemm_isas[i].isa) || (exact_gemm && gemm_isas[i].kernels[GEMM_BF16]->scaled)) i++;
    return &gemm_isas[i];
}

static const GemmKernel *kernel_for(GemmType type) { return current_isa()->kernels[type]; }

const char *gemm_variant(void) { return cpu_isa_name(current_isa()->isa); }

void gemm_exact(bool exact) { exact_gemm = exact; }

/* ---- A thread's scratch ---- */

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static _Thread_local Scratch *thread_scratch;

static void make_scratch_key(void) {
    if (pthread_key_create(&scratch_key, free)) memory_refused(sizeof(void *));
}

static Scratch *scratch(void) {
    if (thread_scratch) return thread_scratch;
    pthread_once(&scratch_once, make_scratch_key);
    size_t bytes = (size_t)round_up(sizeof(Scratch), HUGE_PAGE);
    thread_scratch = aligned_alloc(HUGE_PAGE, bytes);
    if (!thread_scratch || pthread_setspecific(scratch_key, thread_scratch)) memory_refused(bytes);
    madvise(thread_scratch, bytes, MADV_HUGEPAGE); /* a hint: refusal costs only speed */
    return thread_scratch;
}

/* ---- One tile ---- */

static size_t size_of(GemmType type) { return type == GEMM_BF16 ? 2 : type == GEMM_F32 ? 4 : 8; }
static size_t size_of_sum(const Gemm *g) { return g->input == GEMM_F64 ? sizeof(double) : sizeof(float); }

/* Returns the address of an operand's line (row of A, column of B) `line` at `p`. */
static GemmSource source_at(const void *data, int64_t ld, bool depth_contiguous, GemmType type, int64_t line, int64_t p) {
    int64_t offset = depth_contiguous ? line * ld + p : p * ld + line;
    return (GemmSource){(const char *)data + offset * (int64_t)size_of(type), ld, depth_contiguous, type == GEMM_BF16};
}

/* Returns the packed depths of `k`, including those that hold scales. */
static int64_t packed_depths(const GemmKernel *kernel, int64_t k) {
    int64_t depths = divide_up(k, kernel->unit);
    return kernel->scaled ? depths + divide_up(depths, kernel->scaled) : depths;
}

/* Packs columns of B as panels; the last panel is only as wide as needed, in half panels. */
static void pack_columns(const GemmKernel *kernel, char *to, GemmSource source, int64_t columns, int64_t depth) {
    int64_t size = source.bf16 ? 2 : (int64_t)kernel->element, element = (int64_t)kernel->element, most = kernel->panel_columns;
    int64_t chunk = source.depth_contiguous ? int_max(depth, 1) : int_max(PACK_DEPTH, kernel->scaled) * kernel->unit;
    const char *from = source.data;
    for (int64_t p = 0; p < depth; p += chunk)
        for (int64_t column = 0; column < columns; column += most) {
            int64_t here = int_min(most, columns - column), width = here <= most / 2 ? most / 2 : most;
            source.data = from + (source.depth_contiguous ? column * source.ld + p : p * source.ld + column) * size;
            char *panel = to + (column * packed_depths(kernel, depth) + packed_depths(kernel, p) * width) * element;
            kernel->pack(panel, (int)width, &source, here, int_min(chunk, depth - p));
        }
}

/* Returns the epilogue of block `index` of `blocks`, from row `row` of the tile: the first block
 * adds C and the bias, the last one writes C. Between them sums are kept in C, or in scratch if C
 * is bf16. */
static GemmUpdate update_for(const Gemm *g, CpuTile t, float *sums, int64_t index, int64_t blocks, int64_t row) {
    bool first = index == 0, last = index == blocks - 1, to_bf16 = g->output == GEMM_BF16;
    int64_t offset = (t.row + row) * g->ldc + t.column;
    sums += row * t.columns;
    char *c = (char *)g->c + offset * (int64_t)size_of(g->output);
    GemmUpdate u = {.out = c, .ld_out = g->ldc, .out_bf16 = to_bf16};
    if (first && g->bias) u.bias = (const char *)g->bias + (size_t)t.column * size_of_sum(g);
    if (to_bf16 && !first) u.addend = sums, u.ld_addend = t.columns;
    if (to_bf16 && !last) u.out = sums, u.ld_out = t.columns, u.out_bf16 = false;
    if (!to_bf16 && (g->accumulate || !first)) u.addend = c, u.ld_addend = g->ldc;
    if (to_bf16 && g->accumulate && first) u.addend = c, u.ld_addend = g->ldc, u.addend_bf16 = true;
    return u;
}

/* A tile and its blocks: blocks of K, and within each, blocks of rows. */
typedef struct TilePlan {
    const GemmKernel *kernel;
    const Gemm *g;
    CpuTile tile;
    int64_t blocks, block_k;
    int height; /* rows in a panel of A */
} TilePlan;

/* A block of K and some panels of rows of the tile. */
typedef struct GemmBlock {
    int64_t index, p, depth; /* along K: its index, first k and length */
    int64_t row, rows;       /* of the tile */
} GemmBlock;

static TilePlan plan_of(const GemmKernel *kernel, const Gemm *g, CpuTile t) {
    int64_t whole = kernel->scaled ? kernel->scaled : 1, depth = divide_up(g->k, kernel->unit * whole) * whole;
    int64_t blocks = depth <= WHOLE_DEPTH ? 1 : divide_up(depth, DEPTH);
    int height = (int)divide_up(t.rows, divide_up(t.rows, kernel->panel_rows));
    return (TilePlan){kernel, g, t, blocks, divide_up(depth, blocks * whole) * whole * kernel->unit, height};
}

static GemmBlock block_at(const TilePlan *plan, int64_t index, int64_t row) {
    int64_t p = index * plan->block_k;
    return (GemmBlock){index, p, int_min(plan->block_k, plan->g->k - p), row, int_min(plan->height * BLOCK_PANELS, plan->tile.rows - row)};
}

static GemmBlock block_after(const TilePlan *plan, GemmBlock s) {
    bool more_rows = s.row + s.rows < plan->tile.rows;
    return more_rows ? block_at(plan, s.index, s.row + s.rows) : block_at(plan, s.index + 1, 0);
}

static GemmSource a_of(const TilePlan *plan, GemmBlock s) {
    return source_at(plan->g->a, plan->g->lda, !plan->g->transpose_a, plan->g->input, plan->tile.row + s.row, s.p);
}
static GemmSource b_of(const TilePlan *plan, GemmBlock s) {
    return source_at(plan->g->b, plan->g->ldb, plan->g->transpose_b, plan->g->input, plan->tile.column, s.p);
}

/* Returns the memory that packing will read. */
static GemmPrefetch prefetch_of(GemmSource source, int64_t lines, int64_t depth, GemmType type) {
    int64_t size = (int64_t)size_of(type), rows = source.depth_contiguous ? lines : depth,
            elements = source.depth_contiguous ? depth : lines;
    if (depth == 0) return (GemmPrefetch){0};
    int64_t into = (int64_t)((uintptr_t)source.data % CACHE_LINE), width = round_up(into + elements * size, CACHE_LINE);
    const char *at = (const char *)source.data - into;
    return (GemmPrefetch){at, at + width, width, source.ld * size, rows * (width / CACHE_LINE)};
}

/* Returns whether both tiles multiply by the same packed B. */
static bool same_b(const TilePlan *a, const TilePlan *b) {
    return a->g == b->g && a->blocks == 1 && a->tile.column == b->tile.column && a->tile.columns == b->tile.columns;
}

/* Plans the prefetches during a block: A of the next block and, from the first rows of a block of K
 * on, B of the next block of K. Last come the operands of `following` (or NULL), the thread's
 * probable next tile. */
static void plan_prefetch(const TilePlan *plan, GemmBlock block, const TilePlan *following, GemmPrefetch prefetch[2]) {
    GemmBlock next = block_after(plan, block);
    bool last = next.index == plan->blocks, last_block = block.index == plan->blocks - 1;
    const TilePlan *a = last ? following : plan, *b = !last_block ? plan : following && !same_b(plan, following) ? following : NULL;
    prefetch[0] = (GemmPrefetch){0};
    if (a && last) next = block_at(a, 0, 0);
    if (a) prefetch[0] = prefetch_of(a_of(a, next), next.rows, next.depth, a->g->input);
    if (block.row > 0) return;
    prefetch[1] = (GemmPrefetch){0};
    if (!b) return;
    GemmBlock of_b = block_at(b, last_block ? 0 : block.index + 1, 0);
    prefetch[1] = prefetch_of(b_of(b, of_b), b->tile.columns, of_b.depth, b->g->input);
}

/* Returns whether a panel of A needs no packing: its rows are adjacent, as the kernel reads them,
 * and its depths do not evict each other from the L1 cache. Eviction makes multiplying a sixth
 * slower; packing costs a tenth at most. */
static bool in_place(GemmSource a, int64_t element) { return !a.depth_contiguous && !a.bf16 && a.ld * element % CROWDED != 0; }

static void multiply_block(const TilePlan *plan, Scratch *s, GemmBlock block, GemmPrefetch prefetch[2]) {
    const GemmKernel *kernel = plan->kernel;
    int64_t tiles = divide_up(block.rows, plan->height) * divide_up(plan->tile.columns, kernel->panel_columns);
    int64_t share = divide_up(prefetch[0].left + prefetch[1].left * block.rows / (plan->tile.rows - block.row), tiles) + 1;
    for (int64_t row = 0; row < block.rows; row += plan->height) {
        GemmBlock panel = {block.index, block.p, block.depth, block.row + row, int_min(plan->height, block.rows - row)};
        GemmSource source = a_of(plan, panel);
        const void *a = s->a;
        int64_t apart = kernel->stride_rows;
        if (in_place(source, (int64_t)kernel->element)) a = source.data, apart = source.ld;
        else kernel->pack(s->a, kernel->stride_rows, &source, panel.rows, panel.depth);
        GemmUpdate update = update_for(plan->g, plan->tile, s->sums, panel.index, plan->blocks, panel.row);
        kernel->multiply(a, apart, s->b, (int)panel.rows, plan->tile.columns, packed_depths(kernel, panel.depth), &update, prefetch, share);
    }
}

/* Computes a tile. `before` (or NULL) left its B packed; the operands of `following` (or NULL) are
 * prefetched. */
static void run_tile(const TilePlan *plan, const TilePlan *before, const TilePlan *following) {
    Scratch *s = scratch();
    GemmPrefetch prefetch[2];
    for (GemmBlock block = block_at(plan, 0, 0); block.index < plan->blocks; block = block_after(plan, block)) {
        if (block.row == 0 && !same_b(before, plan)) pack_columns(plan->kernel, s->b, b_of(plan, block), plan->tile.columns, block.depth);
        plan_prefetch(plan, block, following, prefetch);
        multiply_block(plan, s, block, prefetch);
    }
}

/* ---- Few rows ---- */

/* Returns whether B is multiplied without packing, which would cost more than multiplying B by few
 * rows of A. */
static bool is_narrow(const GemmKernel *kernel, const Gemm *g) {
    return g->m <= kernel->narrow_rows && g->k > 0 && g->transpose_b && !g->transpose_a &&
           kernel->laid_elements(g->m, g->k) * (int64_t)kernel->element <= (int64_t)sizeof((Scratch *)0)->b;
}

/* Returns whether the thread's last tile (or an empty one) left the rows of `plan` in scratch. */
static bool has_laid_rows(const TilePlan *before, const TilePlan *plan) {
    const Gemm *a = before->g, *b = plan->g;
    if (!a || !is_narrow(before->kernel, a)) return false;
    return a->a == b->a && a->lda == b->lda && a->m == b->m && a->k == b->k && a->input == b->input;
}

/* Computes a tile of all rows; `before` is the thread's last tile. */
static void run_narrow_tile(const TilePlan *plan, const TilePlan *before) {
    const Gemm *g = plan->g;
    const GemmBlock first = block_at(plan, 0, 0);
    GemmNarrow narrow = {.a = scratch()->b,
        .b = b_of(plan, first),
        .rows = (int)plan->tile.rows,
        .columns = plan->tile.columns,
        .depth = g->k,
        .block = plan->block_k,
        .update = update_for(g, plan->tile, NULL, 0, 1, 0)};
    GemmSource a = a_of(plan, first);
    if (!has_laid_rows(before, plan)) plan->kernel->lay_rows(scratch()->b, &a, plan->tile.rows, g->k);
    plan->kernel->multiply_narrow(&narrow);
}

/* ---- Cutting ---- */

/* Cuts C into at least `wanted` tiles if it is large enough, dividing the longer side of a tile
 * first, because square tiles pack least. The tiles of one GEMM are a multiple of the threads, so
 * that no thread computes the last tile while others wait. Few rows are not cut. */
static CpuTiling tiling_of(const GemmKernel *kernel, const Gemm *g, int64_t wanted, int threads) {
    if (g->m == 0 || g->n == 0) return (CpuTiling){0};
    int64_t panels = divide_up(g->n, kernel->panel_columns), most_rows = is_narrow(kernel, g) ? 1 : divide_up(g->m, kernel->panel_rows);
    int64_t rows = divide_up(g->m, TILE_ROWS), columns = divide_up(panels, TILE_COLUMNS / kernel->panel_columns);
    while (rows * columns < wanted && (rows < most_rows || columns < panels)) {
        bool cut_rows = columns >= panels || (rows < most_rows && g->m * columns >= g->n * rows);
        if (cut_rows) rows++;
        else columns++;
    }
    while (rows * columns > threads && rows * columns % threads && rows < most_rows) rows++;
    return (CpuTiling){rows, columns, 0};
}

/* Returns where range `index` of `parts` begins when `lines` are divided by whole panels. */
static int64_t border(int64_t lines, int64_t panel, int64_t index, int64_t parts) {
    return int_min(lines, divide_up(lines, panel) * index / parts * panel);
}

static CpuTile tile_of(const GemmKernel *kernel, const Gemm *g, CpuTiling tiling, int64_t index) {
    int64_t r = index % tiling.row_tiles, c = index / tiling.row_tiles;
    int64_t row = border(g->m, kernel->panel_rows, r, tiling.row_tiles),
            row_end = border(g->m, kernel->panel_rows, r + 1, tiling.row_tiles);
    int64_t column = border(g->n, kernel->panel_columns, c, tiling.column_tiles);
    int64_t column_end = border(g->n, kernel->panel_columns, c + 1, tiling.column_tiles);
    return (CpuTile){row, row_end - row, column, column_end - column};
}

/* Returns the cost of a GEMM in multiplications. Reading an element of B costs as much as ROWS_READ
 * multiplications. */
static double work_of(const Gemm *g) { return (double)int_max(g->m, ROWS_READ) * (double)g->n * (double)(g->k + 1); }

/* Cuts every GEMM in proportion to its share of the work; returns the number of tiles. */
static int64_t tile_batch(const Gemm *gemms, int64_t count, CpuTiling *tilings, int threads) {
    double total = 0, tasks = threads > 1 ? threads * TASKS_A_THREAD : 1;
    for (int64_t i = 0; i < count; i++) total += work_of(&gemms[i]);
    double work_a_task = total / tasks > MIN_WORK ? total / tasks : MIN_WORK;
    int64_t first = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t wanted = (int64_t)(work_of(&gemms[i]) / work_a_task + 0.999);
        tilings[i] = tiling_of(kernel_for(gemms[i].input), &gemms[i], wanted, threads);
        tilings[i].first_task = first;
        first += tilings[i].row_tiles * tilings[i].column_tiles;
    }
    return first;
}

/* Returns the last GEMM whose first task is at most `task`: empty GEMMs share their first task with
 * the next one. */
static int64_t gemm_of_task(const CpuTiling *tilings, int64_t count, int64_t task) {
    int64_t low = 0, high = count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (tilings[middle].first_task <= task) low = middle;
        else high = middle;
    }
    return low;
}

static TilePlan plan_of_task(const Gemm *gemms, const CpuTiling *tilings, int64_t count, int64_t task) {
    int64_t i = gemm_of_task(tilings, count, task);
    const GemmKernel *kernel = kernel_for(gemms[i].input);
    return plan_of(kernel, &gemms[i], tile_of(kernel, &gemms[i], tilings[i], task - tilings[i].first_task));
}

/* Runs a task. `before` is the tile that this thread ran last; on return it is this one. Under
 * round-robin scheduling, task + threads is this thread's next task. */
static void run_task(
    const Gemm *gemms, const CpuTiling *tilings, int64_t count, int64_t task, int64_t tasks, int threads, TilePlan *before) {
    TilePlan plan = plan_of_task(gemms, tilings, count, task), following;
    bool narrow = is_narrow(plan.kernel, plan.g), more = task + threads < tasks && !narrow;
    if (more) following = plan_of_task(gemms, tilings, count, task + threads);
    if (narrow) run_narrow_tile(&plan, before);
    else run_tile(&plan, before, more ? &following : NULL);
    *before = plan;
}

/* ---- Split-K ---- */

/* GEMMs that are computed at once. A GEMM with a long k and a small C is split along K: the first
 * part adds to C; each other part makes a partial sum, which is added to C at the end. This gives
 * all threads work while tiles stay large. */
typedef struct CpuBatch {
    Gemm parts[MOST_GEMMS];
    int splits[MOST_GEMMS];  /* number of parts of the GEMM whose first part this is; 0 for other parts */
    int64_t count, partials; /* parts; bytes of the partial sums */
} CpuBatch;

static int64_t bytes_of_partial(const Gemm *g) { return round_up(g->m * g->n * (int64_t)size_of_sum(g), CACHE_LINE); }

/* Depends only on the shape, because bits depend on it. */
static int64_t splits_of(const Gemm *g) {
    if (!g->transpose_a || g->output == GEMM_BF16 || g->m == 0 || g->n == 0) return 1;
    int64_t room = PARTIALS / bytes_of_partial(g), splits = 1;
    while (splits < MOST_SPLITS && 2 * splits * SPLIT_DEPTH <= g->k && 2 * splits - 1 <= room) splits *= 2;
    return splits;
}

/* Returns false if the batch has no room for the GEMM; an empty batch always has. */
static bool batch_add(CpuBatch *batch, const Gemm *g) {
    int64_t splits = splits_of(g), size = (int64_t)size_of(g->input);
    if (batch->count + splits > MOST_GEMMS || (splits > 1 && batch->partials + (splits - 1) * bytes_of_partial(g) > PARTIALS)) return false;
    for (int64_t i = 0; i < splits; i++) {
        Gemm *part = &batch->parts[batch->count];
        int64_t p = g->k * i / splits;
        *part = *g;
        part->k = g->k * (i + 1) / splits - p;
        batch->splits[batch->count++] = i == 0 ? (int)splits : 0;
        if (i == 0) continue;
        part->a = (const char *)g->a + (g->transpose_a ? p * g->lda : p) * size;
        part->b = (const char *)g->b + (g->transpose_b ? p : p * g->ldb) * size;
        part->c = (char *)scratch()->partials + batch->partials;
        part->ldc = g->n;
        part->bias = NULL;
        part->accumulate = false;
        batch->partials += bytes_of_partial(g);
    }
    return true;
}

/* Adds one row of the partial sums to the same row of C, in order. */
static void add_partials(const Gemm *parts, int splits, int64_t row) {
    for (int i = 1; i < splits; i++) {
        if (parts->output == GEMM_F64) {
            double *restrict c = (double *)parts->c + row * parts->ldc;
            const double *restrict partial = (const double *)parts[i].c + row * parts->n;
#pragma omp simd
            for (int64_t j = 0; j < parts->n; j++) c[j] += partial[j];
        } else {
            float *restrict c = (float *)parts->c + row * parts->ldc;
            const float *restrict partial = (const float *)parts[i].c + row * parts->n;
#pragma omp simd
            for (int64_t j = 0; j < parts->n; j++) c[j] += partial[j];
        }
    }
}

static void run_at_once(const CpuBatch *batch, int threads) {
    CpuTiling tilings[MOST_GEMMS];
    int64_t tasks = tile_batch(batch->parts, batch->count, tilings, threads);
#pragma omp parallel if (threads > 1 && tasks > 1)
    {
        TilePlan before = {0};
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++) run_task(batch->parts, tilings, batch->count, task, tasks, threads, &before);
        for (int64_t i = 0; i < batch->count; i++) {
            if (batch->splits[i] <= 1) continue;
#pragma omp for schedule(static) nowait
            for (int64_t row = 0; row < batch->parts[i].m; row++) add_partials(&batch->parts[i], batch->splits[i], row);
        }
    }
}

static void run_batch(const Gemm *gemms, int64_t count, int threads) {
    CpuBatch batch;
    for (int64_t next = 0; next < count;) {
        batch.count = batch.partials = 0;
        while (next < count && batch_add(&batch, &gemms[next])) next++;
        run_at_once(&batch, threads);
    }
}

static int threads_here(void) { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

double gemm_rounding(GemmType input) { return kernel_for(input)->scaled ? 0x1p-12 * M_SQRT2 : 0; }
void gemm_serial(const Gemm *g) { run_batch(g, 1, 1); }
void gemm(const Gemm *g) { run_batch(g, 1, threads_here()); }
void gemm_batch(const Gemm *gemms, int64_t count) { run_batch(gemms, count, threads_here()); }
