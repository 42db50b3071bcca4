/* Matrix products on the CPU: cutting, packing and threads; the arithmetic is in gemm_kernel.c.
 *
 * The scheme is that of BLIS. A product is cut into tiles of C. One thread computes a tile alone: for each block of K it packs the tile's
 * columns of B, then, a block of rows at a time, A, and runs the kernel over both. Packing again what another tile has packed costs about
 * 1% at these tile sizes and buys the absence of barriers: gemm, gemm_serial and gemm_batch are one loop over tiles. Tiles may be cut
 * freely, because an element's value depends only on the blocks of K, which are cut by k alone: any tile of any thread finds the same bits.
 *
 * Memory: each thread that ever computes keeps one scratch of fixed size until it exits. Pages that were never needed are never touched. */
#include "gemm.h"
#include "gemm_internal.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH = 384,         /* packed depths in a block of K: a panel of B, 48 KiB, comes from the second-level cache once per block of A */
    BLOCK_PANELS = 8,    /* panels of A packed at once, 192 KiB: small enough to stay in the second level beside B */
    TILE = 1024,         /* most rows and columns of C in a tile */
    TASKS_A_THREAD = 4,  /* tiles per thread, so that a late thread costs little */
    MIN_WORK = 1 << 19,  /* multiplications worth a task of their own */
};

typedef struct Scratch {
    char a[BLOCK_PANELS * 16 * DEPTH * sizeof(double)];
    char b[TILE * DEPTH * sizeof(double)];
    float sums[TILE * TILE]; /* of a bf16 result with more than one block of K */
} Scratch;

/* How many tiles C is cut into, and the number of the first of them among all tiles of a batch. */
typedef struct Cut {
    int64_t row_tiles, column_tiles, first_task;
} Cut;

typedef struct Tile {
    int64_t row, rows, column, columns;
} Tile;

/* ---- Choosing the kernel ---- */

static _Atomic(const GemmIsa *) chosen_isa;

static const GemmIsa *choose_isa(void) {
    int i = 0;
    while (!gemm_isas[i].supported() || !gemm_isas[i].preferred()) i++;
    return &gemm_isas[i];
}

static const GemmKernel *kernel_for(GemmType type) {
    const GemmIsa *isa = atomic_load_explicit(&chosen_isa, memory_order_relaxed);
    if (!isa) atomic_store_explicit(&chosen_isa, isa = choose_isa(), memory_order_relaxed);
    return &isa->kernels[type];
}

bool gemm_force(const char *name) {
    if (!name) {
        atomic_store(&chosen_isa, NULL);
        return true;
    }
    for (int i = 0; i < gemm_isa_count; i++)
        if (!strcmp(name, gemm_isas[i].name) && gemm_isas[i].supported()) {
            atomic_store(&chosen_isa, &gemm_isas[i]);
            return true;
        }
    return false;
}

/* ---- A thread's scratch ---- */

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static _Thread_local Scratch *thread_scratch;

static void make_scratch_key(void) {
    if (pthread_key_create(&scratch_key, free)) abort();
}

static Scratch *scratch(void) {
    if (thread_scratch) return thread_scratch;
    pthread_once(&scratch_once, make_scratch_key);
    thread_scratch = aligned_alloc(4096, (sizeof(Scratch) + 4095) / 4096 * 4096);
    if (!thread_scratch || pthread_setspecific(scratch_key, thread_scratch)) {
        fprintf(stderr, "gemm: no memory for %zu bytes of packing scratch\n", sizeof(Scratch));
        abort();
    }
    return thread_scratch;
}

/* ---- One tile ---- */

static int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static size_t size_of(GemmType type) { return type == GEMM_BF16 ? 2 : type == GEMM_F32 ? 4 : 8; }

/* Address of an operand's line (row of A, column of B) `line` at `p`. */
static GemmSource source_at(const void *data, int64_t ld, bool depth_contiguous, GemmType type, int64_t line, int64_t p) {
    int64_t offset = depth_contiguous ? line * ld + p : p * ld + line;
    return (GemmSource){(const char *)data + offset * (int64_t)size_of(type), ld, depth_contiguous, type == GEMM_BF16};
}

/* Packs `lines` lines as panels of `height` lines each, `stride` wide; the last panel only as wide, in half panels, as it needs to be. */
static void pack_panels(const GemmKernel *kernel, char *to, GemmSource source, int64_t lines, int64_t depth, int height, int stride, int half) {
    int64_t packed_depth = kernel->pairs ? ceil_divide(depth, 2) : depth;
    int64_t step = height * (source.depth_contiguous ? source.ld : 1) * (source.bf16 ? 2 : (int64_t)kernel->element);
    for (int64_t line = 0; line < lines; line += height) {
        int64_t here = smaller(height, lines - line);
        kernel->pack(to, here <= half ? half : stride, &source, here, depth);
        to += stride * packed_depth * (int64_t)kernel->element;
        source.data = (const char *)source.data + step;
    }
}

/* The update that follows block `index` of `blocks`: the first takes C and the bias in, the last writes C; between them sums are kept in
 * C itself, or in scratch where C is bf16. */
static GemmUpdate update_for(const Gemm *g, Tile t, float *sums, int64_t index, int64_t blocks) {
    bool first = index == 0, last = index == blocks - 1, narrow = g->output == GEMM_BF16;
    int64_t offset = t.row * g->ldc + t.column;
    size_t sum = g->input == GEMM_F64 ? sizeof(double) : sizeof(float);
    char *c = (char *)g->c + offset * (int64_t)size_of(g->output);
    GemmUpdate u = {.out = c, .ld_out = g->ldc, .out_bf16 = narrow};
    if (first && g->bias) u.bias = (const char *)g->bias + (size_t)t.column * sum;
    if (narrow && !first) u.addend = sums, u.ld_addend = t.columns;
    if (narrow && !last) u.out = sums, u.ld_out = t.columns, u.out_bf16 = false;
    if (!narrow && (g->accumulate || !first)) u.addend = c, u.ld_addend = g->ldc;
    return u;
}

static void multiply_tile(const GemmKernel *kernel, const Gemm *g, Tile t) {
    Scratch *s = scratch();
    int64_t unit = kernel->pairs ? 2 : 1;
    int64_t blocks = larger(1, ceil_divide(g->k, DEPTH * unit)), block_k = ceil_divide(ceil_divide(g->k, blocks), unit) * unit;
    int height = (int)ceil_divide(t.rows, ceil_divide(t.rows, kernel->panel_rows));
    for (int64_t index = 0; index < blocks; index++) {
        int64_t p = index * block_k, depth = smaller(block_k, g->k - p), packed_depth = ceil_divide(depth, unit);
        GemmUpdate update = update_for(g, t, s->sums, index, blocks);
        GemmSource b = source_at(g->b, g->ldb, g->transpose_b, g->input, t.column, p);
        pack_panels(kernel, s->b, b, t.columns, depth, kernel->panel_columns, kernel->panel_columns, kernel->panel_columns / 2);
        for (int64_t row = 0; row < t.rows; row += height * BLOCK_PANELS) {
            int64_t rows = smaller(height * BLOCK_PANELS, t.rows - row);
            GemmSource a = source_at(g->a, g->lda, !g->transpose_a, g->input, t.row + row, p);
            pack_panels(kernel, s->a, a, rows, depth, height, kernel->stride_rows, 0);
            GemmUpdate here = update;
            size_t out_size = update.out_bf16 ? 2 : kernel->element;
            here.out = (char *)update.out + row * update.ld_out * (int64_t)out_size;
            if (update.addend) here.addend = (const char *)update.addend + row * update.ld_addend * (int64_t)kernel->element;
            kernel->block(s->a, s->b, rows, t.columns, packed_depth, height, &here);
        }
    }
}

/* ---- Cutting ---- */

/* Cuts C into at least `wanted` tiles where it is large enough: the longer side of a tile first, as square tiles pack least. */
static Cut cut_product(const GemmKernel *kernel, const Gemm *g, int64_t wanted) {
    if (g->m == 0 || g->n == 0) return (Cut){0};
    int64_t panels = ceil_divide(g->n, kernel->panel_columns), most_rows = ceil_divide(g->m, kernel->panel_rows);
    int64_t rows = ceil_divide(g->m, TILE), columns = ceil_divide(panels, TILE / kernel->panel_columns);
    while (rows * columns < wanted && (rows < most_rows || columns < panels)) {
        bool cut_rows = columns >= panels || (rows < most_rows && g->m * columns >= g->n * rows);
        if (cut_rows) rows++;
        else columns++;
    }
    return (Cut){rows, columns, 0};
}

static Tile tile_of(const GemmKernel *kernel, const Gemm *g, Cut cut, int64_t index) {
    int64_t r = index / cut.column_tiles, c = index % cut.column_tiles, panels = ceil_divide(g->n, kernel->panel_columns);
    int64_t row = g->m * r / cut.row_tiles, row_end = g->m * (r + 1) / cut.row_tiles;
    int64_t column = panels * c / cut.column_tiles * kernel->panel_columns;
    int64_t column_end = smaller(g->n, panels * (c + 1) / cut.column_tiles * kernel->panel_columns);
    return (Tile){row, row_end - row, column, column_end - column};
}

static double work_of(const Gemm *g) { return (double)g->m * (double)g->n * (double)(g->k + 1); }

void gemm_serial(const Gemm *g) {
    const GemmKernel *kernel = kernel_for(g->input);
    Cut cut = cut_product(kernel, g, 1);
    for (int64_t i = 0; i < cut.row_tiles * cut.column_tiles; i++) multiply_tile(kernel, g, tile_of(kernel, g, cut, i));
}

/* Cuts every product in proportion to its share of the work; returns the number of tiles. */
static int64_t cut_batch(const Gemm *products, int64_t count, Cut *cuts, double tasks) {
    double total = 0;
    for (int64_t i = 0; i < count; i++) total += work_of(&products[i]);
    double work_a_task = total / tasks > MIN_WORK ? total / tasks : MIN_WORK;
    int64_t first = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t wanted = (int64_t)(work_of(&products[i]) / work_a_task + 0.999);
        cuts[i] = cut_product(kernel_for(products[i].input), &products[i], wanted);
        cuts[i].first_task = first;
        first += cuts[i].row_tiles * cuts[i].column_tiles;
    }
    return first;
}

/* The last product whose first task is at most `task`: empty products share their first task with the next one. */
static int64_t product_of(const Cut *cuts, int64_t count, int64_t task) {
    int64_t low = 0, high = count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (cuts[middle].first_task <= task) low = middle;
        else high = middle;
    }
    return low;
}

static void run_task(const Gemm *products, const Cut *cuts, int64_t count, int64_t task) {
    int64_t i = product_of(cuts, count, task);
    const GemmKernel *kernel = kernel_for(products[i].input);
    multiply_tile(kernel, &products[i], tile_of(kernel, &products[i], cuts[i], task - cuts[i].first_task));
}

static void run_batch(const Gemm *products, int64_t count, Cut *cuts) {
    int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    int64_t tasks = cut_batch(products, count, cuts, threads > 1 ? threads * TASKS_A_THREAD : 1);
    if (threads == 1 || tasks <= 1) {
        for (int64_t task = 0; task < tasks; task++) run_task(products, cuts, count, task);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t task = 0; task < tasks; task++) run_task(products, cuts, count, task);
}

void gemm(const Gemm *g) {
    Cut cut;
    run_batch(g, 1, &cut);
}

void gemm_batch(const Gemm *products, int64_t count) {
    enum { FEW = 256 };
    Cut few[FEW], *cuts = few;
    if (count > FEW && !(cuts = malloc((size_t)count * sizeof *cuts))) {
        fprintf(stderr, "gemm: no memory to plan a batch of %lld products\n", (long long)count);
        abort();
    }
    if (count > 0) run_batch(products, count, cuts);
    if (cuts != few) free(cuts);
}
