/* GEMM on the CPU: cutting, packing and threads; the arithmetic is in cpu_gemm_kernel.c.
 *
 * The scheme is that of BLIS. A product is cut into tiles of C. One thread computes a tile alone: for each block of K it packs the tile's
 * columns of B, then takes a panel of A at a time, packs it while the first-level cache holds it and multiplies it by all of B. What comes
 * next, up to the first block of the tile that the thread will probably get, is brought closer meanwhile. Packing again what another
 * thread has packed costs little at these tile sizes and buys the absence of barriers: gemm, gemm_serial and gemm_batch are one loop over
 * tiles. Tiles may be cut freely, because an element's value depends only on the blocks of K: any tile of any thread finds the same bits.
 * Where C is small and K long (weight gradients), tiles for all threads would be mostly packing: K is cut as well, into pieces fixed by
 * shape, whose sums are added in order.
 *
 * Memory: each thread that ever computes keeps one scratch of fixed size until it exits. Parts that were never needed are never touched. */
#include "base/memory.h"
#include "device/gemm.h"
#include "backend/cpu/cpu_gemm_internal.h"

#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    DEPTH = 192,        /* packed depths in a block of K: panels of A and B, 36 KiB, share the first-level cache */
    WHOLE_DEPTH = 512,  /* as many are still one block: sums that are kept between two blocks cost more */
    PACK_DEPTH = 32,    /* depths packed at once of a B whose columns lie side by side, so that memory is read in order */
    BLOCK_PANELS = 4,   /* panels of A fetched at once: where its rows lie side by side, parts of lines would be fetched twice */
    TILE_ROWS = 1024,   /* most rows of C in a tile, but for two panels' worth of rounding */
    TILE_COLUMNS = 512, /* most columns: packed B, 1 MiB, stays in the second level */
    TASKS_A_THREAD = 4, /* tiles per thread, so that a late thread costs little */
    MIN_WORK = 1 << 19, /* multiplications worth a task of their own */
    PIECE_DEPTH = 1024, /* least k of a piece of a product */
    MOST_PIECES = 8,
    PARTIALS = 4 << 20, /* most bytes in all partial sums at a time */
    GROUP = 256,        /* most products planned at once */
    HUGE_PAGE = 2 << 20,
    CACHE_LINE = 64,
    CROWDED = 512, /* lines a multiple of this many bytes apart fall into at most 8 of the first-level cache's 64 sets */
};

typedef struct Scratch {
    char a[16 * WHOLE_DEPTH * sizeof(double)];
    char b[TILE_COLUMNS * WHOLE_DEPTH * sizeof(double)];
    float sums[(TILE_ROWS + 2 * 16) * TILE_COLUMNS]; /* of a bf16 result with more than one block of K */
    double partials[PARTIALS / sizeof(double)];      /* of the pieces of products; the caller's, filled by all threads */
} Scratch;

/* How many tiles C is cut into, and the number of the first of them among all tiles of a batch. */
typedef struct Cut { int64_t row_tiles, column_tiles, first_task; } Cut;

typedef struct Tile { int64_t row, rows, column, columns; } Tile;

/* ---- Choosing the kernel ---- */

static _Atomic(const GemmIsa *) chosen_isa;
static bool exact_gemm;

static const GemmIsa *choose_isa(void) {
    int i = 0;
    while (!cpu_prefers(gemm_isas[i].isa) || (exact_gemm && gemm_isas[i].kernels[GEMM_BF16]->scaled)) i++;
    return &gemm_isas[i];
}

static const GemmKernel *kernel_for(GemmType type) {
    const GemmIsa *isa = atomic_load_explicit(&chosen_isa, memory_order_relaxed);
    if (!isa) atomic_store_explicit(&chosen_isa, isa = choose_isa(), memory_order_relaxed);
    return isa->kernels[type];
}

void gemm_exact(bool exact) {
    exact_gemm = exact;
    atomic_store(&chosen_isa, NULL);
}

bool gemm_force(const char *name) {
    if (!name) {
        atomic_store(&chosen_isa, NULL);
        return true;
    }
    for (int i = 0; i < gemm_isa_count; i++)
        if (!strcmp(name, cpu_isa_name(gemm_isas[i].isa)) && cpu_has(gemm_isas[i].isa)) {
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
    if (pthread_key_create(&scratch_key, free)) memory_refused(sizeof(void *));
}

static Scratch *scratch(void) {
    if (thread_scratch) return thread_scratch;
    pthread_once(&scratch_once, make_scratch_key);
    size_t bytes = (sizeof(Scratch) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    thread_scratch = aligned_alloc(HUGE_PAGE, bytes);
    if (!thread_scratch || pthread_setspecific(scratch_key, thread_scratch)) memory_refused(bytes);
    madvise(thread_scratch, bytes, MADV_HUGEPAGE); /* a wish: nothing is lost where it is refused */
    return thread_scratch;
}

/* ---- One tile ---- */

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static size_t size_of(GemmType type) { return type == GEMM_BF16 ? 2 : type == GEMM_F32 ? 4 : 8; }
static size_t size_of_sum(const Gemm *g) { return g->input == GEMM_F64 ? sizeof(double) : sizeof(float); }

/* Address of an operand's line (row of A, column of B) `line` at `p`. */
static GemmSource source_at(const void *data, int64_t ld, bool depth_contiguous, GemmType type, int64_t line, int64_t p) {
    int64_t offset = depth_contiguous ? line * ld + p : p * ld + line;
    return (GemmSource){(const char *)data + offset * (int64_t)size_of(type), ld, depth_contiguous, type == GEMM_BF16};
}

/* Packed depths of `k`, with those that hold scales. */
static int64_t packed_depths(const GemmKernel *kernel, int64_t k) {
    int64_t depths = divide_up(k, kernel->unit);
    return kernel->scaled ? depths + divide_up(depths, kernel->scaled) : depths;
}

/* Packs columns of B as panels; the last panel only as wide, in half panels, as it needs to be. */
static void pack_columns(const GemmKernel *kernel, char *to, GemmSource source, int64_t columns, int64_t depth) {
    int64_t size = source.bf16 ? 2 : (int64_t)kernel->element, element = (int64_t)kernel->element, most = kernel->panel_columns;
    int64_t chunk = source.depth_contiguous ? larger(depth, 1) : larger(PACK_DEPTH, kernel->scaled) * kernel->unit;
    const char *from = source.data;
    for (int64_t p = 0; p < depth; p += chunk)
        for (int64_t column = 0; column < columns; column += most) {
            int64_t here = smaller(most, columns - column), width = here <= most / 2 ? most / 2 : most;
            source.data = from + (source.depth_contiguous ? column * source.ld + p : p * source.ld + column) * size;
            char *panel = to + (column * packed_depths(kernel, depth) + packed_depths(kernel, p) * width) * element;
            kernel->pack(panel, (int)width, &source, here, smaller(chunk, depth - p));
        }
}

/* What becomes of the sums of block `index` of `blocks` from row `row` of the tile: the first takes C and the bias in, the last writes C;
 * between them sums are kept in C itself, or in scratch where C is bf16. */
static GemmUpdate update_for(const Gemm *g, Tile t, float *sums, int64_t index, int64_t blocks, int64_t row) {
    bool first = index == 0, last = index == blocks - 1, narrow = g->output == GEMM_BF16;
    int64_t offset = (t.row + row) * g->ldc + t.column;
    sums += row * t.columns;
    char *c = (char *)g->c + offset * (int64_t)size_of(g->output);
    GemmUpdate u = {.out = c, .ld_out = g->ldc, .out_bf16 = narrow};
    if (first && g->bias) u.bias = (const char *)g->bias + (size_t)t.column * size_of_sum(g);
    if (narrow && !first) u.addend = sums, u.ld_addend = t.columns;
    if (narrow && !last) u.out = sums, u.ld_out = t.columns, u.out_bf16 = false;
    if (!narrow && (g->accumulate || !first)) u.addend = c, u.ld_addend = g->ldc;
    if (narrow && g->accumulate && first) u.addend = c, u.ld_addend = g->ldc, u.addend_bf16 = true;
    return u;
}

/* A tile and how it is walked through: blocks of K, in each blocks of rows. */
typedef struct Walk {
    const GemmKernel *kernel;
    const Gemm *g;
    Tile tile;
    int64_t blocks, block_k;
    int height; /* rows in a panel of A */
} Walk;

typedef struct Step {
    int64_t index, p, depth; /* the block of K */
    int64_t row, rows;       /* of the tile */
} Step;

static Walk walk_of(const GemmKernel *kernel, const Gemm *g, Tile t) {
    int64_t whole = kernel->scaled ? kernel->scaled : 1, depth = divide_up(g->k, kernel->unit * whole) * whole;
    int64_t blocks = depth <= WHOLE_DEPTH ? 1 : divide_up(depth, DEPTH);
    int height = (int)divide_up(t.rows, divide_up(t.rows, kernel->panel_rows));
    return (Walk){kernel, g, t, blocks, divide_up(depth, blocks * whole) * whole * kernel->unit, height};
}

static Step step_at(const Walk *w, int64_t index, int64_t row) {
    int64_t p = index * w->block_k;
    return (Step){index, p, smaller(w->block_k, w->g->k - p), row, smaller(w->height * BLOCK_PANELS, w->tile.rows - row)};
}

static Step step_after(const Walk *w, Step s) {
    bool more_rows = s.row + s.rows < w->tile.rows;
    return more_rows ? step_at(w, s.index, s.row + s.rows) : step_at(w, s.index + 1, 0);
}

static GemmSource a_of(const Walk *w, Step s) {
    return source_at(w->g->a, w->g->lda, !w->g->transpose_a, w->g->input, w->tile.row + s.row, s.p);
}
static GemmSource b_of(const Walk *w, Step s) { return source_at(w->g->b, w->g->ldb, w->g->transpose_b, w->g->input, w->tile.column, s.p); }

/* The memory that packing will read. */
static GemmAhead ahead_of(GemmSource source, int64_t lines, int64_t depth, GemmType type) {
    int64_t size = (int64_t)size_of(type), rows = source.depth_contiguous ? lines : depth,
            elements = source.depth_contiguous ? depth : lines;
    if (depth == 0) return (GemmAhead){0};
    int64_t into = (int64_t)((uintptr_t)source.data % CACHE_LINE), width = divide_up(into + elements * size, CACHE_LINE) * CACHE_LINE;
    const char *at = (const char *)source.data - into;
    return (GemmAhead){at, at + width, width, source.ld * size, rows * (width / CACHE_LINE)};
}

/* Whether both tiles multiply by the same packed B. */
static bool same_b(const Walk *a, const Walk *b) {
    return a->g == b->g && a->blocks == 1 && a->tile.column == b->tile.column && a->tile.columns == b->tile.columns;
}

/* Plans what to fetch during a step: A of the next step, and from the first step of a block on B of the next block. After the last ones
 * come those of the tile that this thread will probably get `then`, if any. */
static void plan_ahead(const Walk *w, Step step, const Walk *then, GemmAhead ahead[2]) {
    Step next = step_after(w, step);
    bool last = next.index == w->blocks, last_block = step.index == w->blocks - 1;
    const Walk *a = last ? then : w, *b = !last_block ? w : then && !same_b(w, then) ? then : NULL;
    ahead[0] = (GemmAhead){0};
    if (a && last) next = step_at(a, 0, 0);
    if (a) ahead[0] = ahead_of(a_of(a, next), next.rows, next.depth, a->g->input);
    if (step.row > 0) return;
    ahead[1] = (GemmAhead){0};
    if (!b) return;
    Step block = step_at(b, last_block ? 0 : step.index + 1, 0);
    ahead[1] = ahead_of(b_of(b, block), b->tile.columns, block.depth, b->g->input);
}

/* A panel of A needs no packing where its rows lie side by side as the kernel reads them, unless its depths drive each other out of the
 * first-level cache: then multiplying takes a sixth longer, and packing a tenth at most. */
static bool in_place(GemmSource a, int64_t element) { return !a.depth_contiguous && !a.bf16 && a.ld * element % CROWDED != 0; }

static void multiply_step(const Walk *w, Scratch *s, Step step, GemmAhead ahead[2]) {
    const GemmKernel *kernel = w->kernel;
    int64_t products = divide_up(step.rows, w->height) * divide_up(w->tile.columns, kernel->panel_columns);
    int64_t share = divide_up(ahead[0].left + ahead[1].left * step.rows / (w->tile.rows - step.row), products) + 1;
    for (int64_t row = 0; row < step.rows; row += w->height) {
        Step panel = {step.index, step.p, step.depth, step.row + row, smaller(w->height, step.rows - row)};
        GemmSource source = a_of(w, panel);
        const void *a = s->a;
        int64_t apart = kernel->stride_rows;
        if (in_place(source, (int64_t)kernel->element)) a = source.data, apart = source.ld;
        else kernel->pack(s->a, kernel->stride_rows, &source, panel.rows, panel.depth);
        GemmUpdate update = update_for(w->g, w->tile, s->sums, panel.index, w->blocks, panel.row);
        kernel->multiply(a, apart, s->b, (int)panel.rows, w->tile.columns, packed_depths(kernel, panel.depth), &update, ahead, share);
    }
}

/* A tile, after one that left its B packed (or none), and before one whose operands may be fetched (or none). */
static void multiply_tile(const Walk *w, const Walk *before, const Walk *then) {
    Scratch *s = scratch();
    GemmAhead ahead[2];
    for (Step step = step_at(w, 0, 0); step.index < w->blocks; step = step_after(w, step)) {
        if (step.row == 0 && !same_b(before, w)) pack_columns(w->kernel, s->b, b_of(w, step), w->tile.columns, step.depth);
        plan_ahead(w, step, then, ahead);
        multiply_step(w, s, step, ahead);
    }
}

/* ---- Cutting ---- */

/* Cuts C into at least `wanted` tiles where it is large enough: the longer side of a tile first, as square tiles pack least. No thread
 * is left to compute the last tile alone while the others wait: the tiles of one product are a multiple of the threads. */
static Cut cut_product(const GemmKernel *kernel, const Gemm *g, int64_t wanted, int threads) {
    if (g->m == 0 || g->n == 0) return (Cut){0};
    int64_t panels = divide_up(g->n, kernel->panel_columns), most_rows = divide_up(g->m, kernel->panel_rows);
    int64_t rows = divide_up(g->m, TILE_ROWS), columns = divide_up(panels, TILE_COLUMNS / kernel->panel_columns);
    while (rows * columns < wanted && (rows < most_rows || columns < panels)) {
        bool cut_rows = columns >= panels || (rows < most_rows && g->m * columns >= g->n * rows);
        if (cut_rows) rows++;
        else columns++;
    }
    while (rows * columns > threads && rows * columns % threads && rows < most_rows) rows++;
    return (Cut){rows, columns, 0};
}

/* Where part `index` of `parts` begins, when `lines` are shared out by whole panels. */
static int64_t border(int64_t lines, int64_t panel, int64_t index, int64_t parts) {
    return smaller(lines, divide_up(lines, panel) * index / parts * panel);
}

static Tile tile_of(const GemmKernel *kernel, const Gemm *g, Cut cut, int64_t index) {
    int64_t r = index % cut.row_tiles, c = index / cut.row_tiles;
    int64_t row = border(g->m, kernel->panel_rows, r, cut.row_tiles), row_end = border(g->m, kernel->panel_rows, r + 1, cut.row_tiles);
    int64_t column = border(g->n, kernel->panel_columns, c, cut.column_tiles);
    int64_t column_end = border(g->n, kernel->panel_columns, c + 1, cut.column_tiles);
    return (Tile){row, row_end - row, column, column_end - column};
}

static double work_of(const Gemm *g) { return (double)g->m * (double)g->n * (double)(g->k + 1); }

/* Cuts every product in proportion to its share of the work; returns the number of tiles. */
static int64_t cut_batch(const Gemm *products, int64_t count, Cut *cuts, int threads) {
    double total = 0, tasks = threads > 1 ? threads * TASKS_A_THREAD : 1;
    for (int64_t i = 0; i < count; i++) total += work_of(&products[i]);
    double work_a_task = total / tasks > MIN_WORK ? total / tasks : MIN_WORK;
    int64_t first = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t wanted = (int64_t)(work_of(&products[i]) / work_a_task + 0.999);
        cuts[i] = cut_product(kernel_for(products[i].input), &products[i], wanted, threads);
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

static Walk walk_of_task(const Gemm *products, const Cut *cuts, int64_t count, int64_t task) {
    int64_t i = product_of(cuts, count, task);
    const GemmKernel *kernel = kernel_for(products[i].input);
    return walk_of(kernel, &products[i], tile_of(kernel, &products[i], cuts[i], task - cuts[i].first_task));
}

/* Runs a task; `before` is the tile that this thread ran last and becomes this one. Threads that take turns leave task + threads for it. */
static void run_task(const Gemm *products, const Cut *cuts, int64_t count, int64_t task, int64_t tasks, int threads, Walk *before) {
    Walk w = walk_of_task(products, cuts, count, task), then;
    bool more = task + threads < tasks;
    if (more) then = walk_of_task(products, cuts, count, task + threads);
    multiply_tile(&w, before, more ? &then : NULL);
    *before = w;
}

/* ---- Pieces ---- */

/* Products that are computed at once. One with a long k and a small C is several parts: the first adds to C, each other one makes a
 * partial sum, which is added to C in the end. So all threads have work, though tiles stay large. */
typedef struct Group {
    Gemm parts[GROUP];
    int pieces[GROUP];       /* of the product whose first part this is; 0 for its other parts */
    int64_t count, partials; /* parts; bytes of the partial sums */
} Group;

static int64_t bytes_of_partial(const Gemm *g) { return divide_up(g->m * g->n * (int64_t)size_of_sum(g), CACHE_LINE) * CACHE_LINE; }

/* By shape alone, as bits depend on it. */
static int64_t pieces_of(const Gemm *g) {
    if (!g->transpose_a || g->output == GEMM_BF16 || g->m == 0 || g->n == 0) return 1;
    int64_t room = PARTIALS / bytes_of_partial(g), pieces = 1;
    while (pieces < MOST_PIECES && 2 * pieces * PIECE_DEPTH <= g->k && 2 * pieces - 1 <= room) pieces *= 2;
    return pieces;
}

/* False where the group has no room for the product; an empty one always has. */
static bool group_add(Group *group, const Gemm *g) {
    int64_t pieces = pieces_of(g), size = (int64_t)size_of(g->input);
    if (group->count + pieces > GROUP || (pieces > 1 && group->partials + (pieces - 1) * bytes_of_partial(g) > PARTIALS)) return false;
    for (int64_t i = 0; i < pieces; i++) {
        Gemm *part = &group->parts[group->count];
        int64_t p = g->k * i / pieces;
        *part = *g;
        part->k = g->k * (i + 1) / pieces - p;
        group->pieces[group->count++] = i == 0 ? (int)pieces : 0;
        if (i == 0) continue;
        part->a = (const char *)g->a + (g->transpose_a ? p * g->lda : p) * size;
        part->b = (const char *)g->b + (g->transpose_b ? p : p * g->ldb) * size;
        part->c = (char *)scratch()->partials + group->partials;
        part->ldc = g->n;
        part->bias = NULL;
        part->accumulate = false;
        group->partials += bytes_of_partial(g);
    }
    return true;
}

/* One row of a product += the same row of its partial sums, in order. */
static void add_partials(const Gemm *parts, int pieces, int64_t row) {
    for (int i = 1; i < pieces; i++) {
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

static void run_group(const Group *group, int threads) {
    Cut cuts[GROUP];
    int64_t tasks = cut_batch(group->parts, group->count, cuts, threads);
#pragma omp parallel if (threads > 1 && tasks > 1)
    {
        Walk before = {0};
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++) run_task(group->parts, cuts, group->count, task, tasks, threads, &before);
        for (int64_t i = 0; i < group->count; i++) {
            if (group->pieces[i] <= 1) continue;
#pragma omp for schedule(static) nowait
            for (int64_t row = 0; row < group->parts[i].m; row++) add_partials(&group->parts[i], group->pieces[i], row);
        }
    }
}

static void run_batch(const Gemm *products, int64_t count, int threads) {
    Group group;
    for (int64_t next = 0; next < count;) {
        group.count = group.partials = 0;
        while (next < count && group_add(&group, &products[next])) next++;
        run_group(&group, threads);
    }
}

static int threads_here(void) { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

double gemm_rounding(GemmType input) { return kernel_for(input)->scaled ? 0x1p-12 * M_SQRT2 : 0; }
void gemm_serial(const Gemm *g) { run_batch(g, 1, 1); }
void gemm(const Gemm *g) { run_batch(g, 1, threads_here()); }
void gemm_batch(const Gemm *products, int64_t count) { run_batch(products, count, threads_here()); }
