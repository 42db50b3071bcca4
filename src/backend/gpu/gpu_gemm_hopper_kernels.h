/* GEMM on NVIDIA's Hopper, for operands that TMA can read; gpu_gemm.c launches it if device and
 * alignment allow.
 *
 * A block computes 128 x HOPPER_WIDTH tiles of C, one after another. Two warpgroups hold the sums of
 * 64 rows each in registers. One thread of another warp, the producer, finds the tiles and keeps a
 * ring of stages full across tiles, so that loads continue while sums are written. D, if there is
 * one, comes through the ring after the operands. C leaves through shared memory: TMA stores it
 * while the next tile is computed. Two blocks form a cluster. Their tiles, a unit, are stacked
 * vertically, and their common part of B is loaded once and multicast.
 *
 * Tiles have 256 columns, except in the kernels of gpu_gemm_128.c and gpu_gemm_64.c, for a C of few
 * wide tiles. There the tiles of a cluster are beside each other, and their common part of A is
 * multicast: each block reads its own part of B, which is nearly all that a C of few rows reads. An
 * element of C has the same bits in every tile.
 *
 * Clusters take units round-robin. If experts divide the rows, remainders of at most half a unit
 * are half units. The units of an incomplete last round are halved if the halves fit into one
 * round: each keeps a cluster busy for half the time. Bits do not depend on which cluster computes
 * a unit.
 *
 * Warpgroups do not reallocate registers (setmaxnreg), except in kernels that promote sums: only
 * the driver can compile such kernels (ptx.c), one after another, in 0.8 s each. The main loop fits
 * into 168 registers. The epilogue could use more; this costs 3% of the speed of grouped GEMM and
 * nothing measurable elsewhere.
 *
 * Loads treat A and B in fp8 (gpu_gemm_fp8.c), whose lines are along k, as bf16 operands of half
 * the depth: a stage has TILE_DEPTH pairs of fp8 values, and GemmArguments counts k and leading
 * dimensions in pairs. Only the instruction differs, and sums are multiplied by scales. */
#pragma once

#include "backend/gpu/gpu_gemm_tile_kernels.h"

#ifndef HOPPER_WIDTH
#define HOPPER_WIDTH 256
#endif

enum {
    HOPPER_ROWS = 128,
    HOPPER_COLUMNS = HOPPER_WIDTH,
    HOPPER_CLUSTER = 2,
    HOPPER_BESIDE = HOPPER_COLUMNS < 256, /* a boolean: the tiles of a unit are beside each other */
    UNIT_ROWS = HOPPER_BESIDE ? HOPPER_ROWS : HOPPER_ROWS * HOPPER_CLUSTER,
    UNIT_COLUMNS = HOPPER_BESIDE ? HOPPER_COLUMNS * HOPPER_CLUSTER : HOPPER_COLUMNS,
    HOPPER_STAGE_BYTES = (HOPPER_ROWS + HOPPER_COLUMNS) * TILE_DEPTH * 2,
    HOPPER_STAGES = (192 << 10) / HOPPER_STAGE_BYTES,
    HOPPER_TILES = 2 * HOPPER_STAGES, /* ring of tiles between producer and warpgroups: longer than the ring of stages */
    HOPPER_THREADS = 288,             /* the last 32 form the producer's warp */
    PROMOTED_THREADS = 384,           /* of kernels that promote sums: the producer's warpgroup gives registers to the others */
    BOX_LINES = 64,
    BOX_ELEMENTS = BOX_LINES * TILE_DEPTH,    /* per copy */
    BLOCK_LINES = 128,                        /* lines that share a scale of GEMM_SCALE_BLOCK */
    OUT_BOXES = HOPPER_COLUMNS == 64 ? 1 : 2, /* of each warpgroup, side by side, on their way to C */
};

/* A tile of C for one block. */
typedef struct HopperTile {
    int32_t problem, row, column; /* of C */
    int32_t end;                  /* end of the tile's rows */
    int32_t depth, steps;         /* k, and its stages, at least one; 0: no such tile */
    int32_t slot;                 /* first slot of the problem */
    int32_t half;                 /* it has at most 64 rows */
} HopperTile;

/* A block's shared memory. */
typedef struct HopperShared {
    bf16 stages[HOPPER_STAGES][HOPPER_STAGE_BYTES / 2];
    bf16 out[2][OUT_BOXES][BOX_ELEMENTS];
    HopperTile tiles[HOPPER_TILES];
    uint64_t full[HOPPER_STAGES], empty[HOPPER_STAGES];
    float column_scales[2][HOPPER_COLUMNS]; /* of a stage, for each warpgroup */
} HopperShared;

/* Scales of fp8 operands. */
typedef struct GemmScales {
    GLOBAL const float *a, *b; /* NULL: all are 1 */
    int32_t by_row, by_column; /* booleans: one scale per row of A, or column of B; otherwise one for all */
    int32_t b_stride;          /* distance between the scales of consecutive experts' B; 0 if experts share B */
} GemmScales;

typedef struct GemmHopper {
    TensorMap a, b, c, d; /* fp32 in c and d counts as pairs of bf16 */
    GemmArguments gemm;
    GemmScales scales; /* not used in bf16 */
} GemmHopper;

/* Columns first .. end - 1 of C, starting at line `line` of B2; their k in A2 begins at `depth`.
 * Tiles do not cross parts. */
enum { SECOND_PARTS = 4 };
typedef struct SecondPart { int32_t first, end, line, depth; } SecondPart;

/* A second product C += A2 B2, in the layouts of the first: its stages follow those of A and B. B2
 * ends with the k of a part, so that any excess in a box of A2 meets zeros. */
typedef struct HopperSecond {
    TensorMap a, b;
    int32_t steps, count; /* stages per part; number of parts */
    SecondPart parts[SECOND_PARTS];
} HopperSecond;

typedef struct GemmHopperTwo {
    GemmHopper first;
    HopperSecond second;
} GemmHopperTwo;

#ifndef GPU_DEVICE

#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/kernel_launch.h"

/* Defined in gpu_gemm.c, also for gpu_gemm_fp8.c: the arguments of a bf16 GEMM, of a grouped
 * one, and of a Hopper kernel. gpu_gemm_hopper_open returns false if TMA cannot read the
 * operands or write C. */
GemmArguments gpu_gemm_arguments(const Gemm *gemm);
GemmArguments gpu_gemm_grouped_arguments(const GemmGrouped *grouped);
/* Sets the fields that depend on all others and on the tile size. Returns the launch on AMD of
 * blocks of one tile each. */
LaunchShape gpu_gemm_count_tiles(GemmArguments *g, TileSize size, int32_t height);
bool gpu_gemm_hopper_open(Device *device, const GemmArguments *g, GemmHopper *h, LaunchShape *shape);
/* Launch the kernels of fewer columns, for C = A B^T (gpu_gemm_128.c, gpu_gemm_64.c). */
void gpu_gemm_launch_128(Device *device, const GemmHopper *h);
void gpu_gemm_launch_64(Device *device, const GemmHopper *h);

static inline LaunchShape hopper_launch_shape(const Device *device, const GemmArguments *g) {
    int64_t half_rows = divide_up(g->m, UNIT_ROWS / 2), columns = divide_up(g->n, UNIT_COLUMNS),
            clusters = device_info(device)->processors / HOPPER_CLUSTER;
    int64_t most = (g->offset && !g->slots_are_depth ? half_rows + g->problems : half_rows * g->problems) * columns;
    return (LaunchShape){
        .x = (most < clusters ? most : clusters) * HOPPER_CLUSTER, .threads = HOPPER_THREADS, .shared = sizeof(HopperShared)};
}
/* Describes an operand [sheets, rows, columns] for TMA. */
bool gpu_gemm_map_operand(
    const Device *device, TensorMap *map, const void *data, int64_t columns, int64_t rows, int64_t ld, int64_t sheets, int64_t stride);

#elif defined __CUDA_ARCH_FEAT_SM90_ALL

#include "backend/gpu/hopper.h"

extern LOCAL HopperShared hopper_shared[] __attribute__((aligned(1024)));

/* -- Units --------------------------------------------------------------------------------------------------------- */

enum { HOPPER_BAND = 8 }; /* rows of units: makes the units in flight about square */

/* A problem in units: rows of whole and of half units (at most one), and columns. */
typedef struct Units { int32_t rows, half_rows, columns, slots; } Units;

INLINE Units units_of(const GemmArguments *g, int32_t problem) {
    int32_t rows = g->m, slots = 0;
    if (g->offset) slots = g->offset[problem + 1] - g->offset[problem];
    if (slots_are_rows(g)) rows = slots;
    if (g->slots_are_depth && slots == 0 && g->d) rows = 0;
    Units u = {.rows = g->symmetric ? divide_up(rows, UNIT_ROWS) : (rows + UNIT_ROWS / 2 - 1) / UNIT_ROWS,
        .columns = divide_up(g->n, UNIT_COLUMNS),
        .slots = slots};
    u.half_rows = rows > u.rows * UNIT_ROWS;
    return u;
}
INLINE int32_t whole_units(const GemmArguments *g, const Units *u) {
    return g->symmetric ? u->rows * (u->rows + 1) / 2 : u->rows * u->columns;
}
INLINE int32_t half_units(const Units *u) { return u->half_rows * u->columns; }

/* The list of work: `whole` units, both halves of the next `cut` units, then the half units. */
typedef struct Schedule { int32_t whole, cut, count, clusters; } Schedule;

INLINE Schedule schedule_of(const GemmArguments *g, int32_t clusters) {
    int32_t whole = 0, half = 0;
    if (!g->offset) {
        Units u = units_of(g, 0);
        whole = g->problems * whole_units(g, &u), half = g->problems * half_units(&u);
    } else {
        for (int32_t i = lane_id(); i < g->problems; i += WAVE) {
            Units u = units_of(g, i);
            whole += whole_units(g, &u), half += half_units(&u);
        }
        UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) {
            whole += (int32_t)shuffle((uint32_t)whole, lane_id() ^ mask);
            half += (int32_t)shuffle((uint32_t)half, lane_id() ^ mask);
        }
    }
    int32_t last = whole % clusters, cut = 2 * last + half <= clusters ? last : 0;
    return (Schedule){.whole = whole - cut, .cut = cut, .count = whole + cut + half, .clusters = clusters};
}

/* Returns the list entry that a cluster takes in a round. Rounds of half units run in reverse
 * order, because the last clusters have less work. */
INLINE int32_t schedule_entry(const Schedule *s, int32_t round, int32_t cluster) {
    return round * s->clusters + (round > s->whole / s->clusters ? s->clusters - 1 - cluster : cluster);
}

/* Position in the list: a problem and the index of its first unit. */
typedef struct HopperWalk {
    int32_t problem, first;
    bool halves;
} HopperWalk;

/* Advances to the problem of whole unit, or half unit, `index`, which must not decrease. */
INLINE Units walk_units(const GemmArguments *g, HopperWalk *walk, int32_t index, bool halves) {
    if (halves != walk->halves) *walk = (HopperWalk){.halves = halves};
    for (;;) {
        Units u = units_of(g, walk->problem);
        int32_t count = halves ? half_units(&u) : whole_units(g, &u);
        if (index < walk->first + count) return u;
        if (g->offset) walk->problem++, walk->first += count;
        else walk->problem = index / count, walk->first = walk->problem * count;
    }
}

INLINE HopperTile hopper_tile(const GemmArguments *g, const Schedule *s, HopperWalk *walk, int32_t entry, int32_t rank) {
    HopperTile tile = {.depth = g->k};
    int32_t index = entry, part = 0, rows = g->m, row, column;
    if (entry >= s->count) return tile;
    bool halves = entry >= s->whole + 2 * s->cut;
    tile.half = entry >= s->whole;
    if (halves) index -= s->whole + 2 * s->cut;
    else if (tile.half) part = (entry - s->whole) % 2, index = s->whole + (entry - s->whole) / 2;
    Units u = walk_units(g, walk, index, halves);
    tile.problem = walk->problem;
    if (g->offset) {
        tile.slot = g->offset[tile.problem];
        if (g->slots_are_depth) tile.depth = u.slots;
        else rows = u.slots;
    }
    if (halves) row = u.rows, column = index - walk->first;
    else if (g->symmetric) place_below_diagonal(index - walk->first, &row, &column);
    else place_in_band(index - walk->first, HOPPER_BAND, u.rows, u.columns, &row, &column);
    int32_t mine = tile.half ? HOPPER_ROWS / 2 : HOPPER_ROWS;
    tile.row = row * UNIT_ROWS + part * (UNIT_ROWS / 2) + (HOPPER_BESIDE ? 0 : rank * mine);
    tile.column = column * UNIT_COLUMNS + (HOPPER_BESIDE ? rank * HOPPER_COLUMNS : 0);
    tile.end = least(rows, tile.row + mine);
    tile.steps = tile.depth > TILE_DEPTH ? divide_up(tile.depth, TILE_DEPTH) : 1;
    return tile;
}

/* -- Loads --------------------------------------------------------------------------------------------------------- */

enum {
    HOPPER_A_ELEMENTS = HOPPER_ROWS * TILE_DEPTH,
    B_BOXES = HOPPER_COLUMNS / BOX_LINES,
    D_BOXES = OUT_BOXES, /* side by side in a stage of D, for each warpgroup's rows */
};

/* Returns the stages of D, which follow those of the operands; one has 64 columns of bf16 or 32 of
 * fp32 per box. */
INLINE int32_t d_steps(const GemmArguments *g) { return g->d ? HOPPER_COLUMNS * (g->wide ? 2 : 1) / (D_BOXES * PANEL_COLUMNS) : 0; }

INLINE SharedBarrier stage_full(const Ring *r) { return &hopper_shared->full[r->stage]; }
INLINE SharedBarrier stage_empty(const Ring *r) { return &hopper_shared->empty[r->stage]; }
INLINE LOCAL bf16 *stage_at(const Ring *r) { return hopper_shared->stages[r->stage]; }

/* Loads boxes of 64 lines x 64 steps along k of an operand. The blocks of a cluster take turns if
 * they share the lines. */
INLINE void load_boxes(LOCAL bf16 *to, uint64_t map, TileLayout layout, int32_t line, int32_t depth, int32_t sheet, SharedBarrier full,
    int32_t boxes, int32_t rank, const bool shared) {
    for (int32_t i = shared ? rank : 0; i < boxes; i += shared ? HOPPER_CLUSTER : 1) {
        int32_t at = line + i * BOX_LINES, column = layout == LAYOUT_LINES ? at : depth, row = layout == LAYOUT_LINES ? depth : at;
        if (shared) copy_box_to_cluster(to + i * BOX_ELEMENTS, map, column, row, sheet, full, (1 << HOPPER_CLUSTER) - 1);
        else copy_box(to + i * BOX_ELEMENTS, map, column, row, sheet, full);
    }
}

/* The first row of a tile in the tensor maps of A, C and D, and its sheet in the maps of C and
 * D. */
INLINE int32_t map_row(const GemmArguments *g, const HopperTile *t) { return t->row + (slots_are_rows(g) ? t->slot : 0); }
INLINE int32_t map_sheet(const GemmArguments *g, const HopperTile *t) { return slots_are_rows(g) ? 0 : t->problem; }

/* The part of a second product for the columns from `column` on; its line is that of the first
 * column. Without steps: none. */
typedef struct SecondPlace { int32_t steps, line, depth; } SecondPlace;

INLINE SecondPlace second_place(const HopperSecond *second, int32_t column) {
    SecondPlace place = {0};
    for (int32_t i = 0; i < second->count; i++) {
        const SecondPart *part = &second->parts[i];
        if (column >= part->first && column < part->end)
            place = (SecondPlace){second->steps, part->line + column - part->first, part->depth};
    }
    return place;
}

/* Types of A and B. */
typedef enum HopperTypes { BF16_BF16, E4M3_E4M3, E5M2_E4M3 } HopperTypes;

/* When the matrix unit's sums, which have about 14 bits for fp8, are added to fp32 sums: never, or
 * after each stage. PROMOTE_SUMS adds them unchanged. The others multiply by the stage's scales: of
 * rows of A (GEMM_SCALE_GROUP) and blocks of B (GEMM_SCALE_BLOCK), or of rows of A and columns of B
 * (both GEMM_SCALE_GROUP). */
typedef enum HopperPromotion { PROMOTE_NOTHING, PROMOTE_SUMS, PROMOTE_BLOCKS, PROMOTE_GROUPS } HopperPromotion;

/* The types and layouts of a kernel, as constants. */
typedef struct HopperForm {
    TileLayout a, b;
    HopperTypes types;
    HopperPromotion promotion;
} HopperForm;

/* Loads the operands of a tile, except its last `later` stages. */
INLINE void load_operands(const GemmHopper *h, uint64_t maps, const HopperTile *t, Ring *ring, int32_t rank, int32_t round, int32_t later,
    const HopperForm form) {
    const GemmArguments *g = &h->gemm;
    uint64_t map_a = maps + __builtin_offsetof(GemmHopper, a), map_b = maps + __builtin_offsetof(GemmHopper, b);
    int32_t row = map_row(g, t), depth = g->slots_are_depth ? t->slot : 0, groups = t->half ? 1 : 2;
    int32_t a_sheet = g->offset ? 0 : t->problem, b_sheet = g->slots_are_depth ? 0 : t->problem;
    for (int32_t step = 0; step < t->steps - later; step++, depth += TILE_DEPTH) {
        LOCAL bf16 *stage = stage_at(ring);
        SharedBarrier full = stage_full(ring);
        shared_barrier_wait(stage_empty(ring), ring->phase + 1);
        if (step == 0) hopper_shared->tiles[round % HOPPER_TILES] = *t;
        shared_barrier_expect(full, (groups + B_BOXES) * BOX_ELEMENTS * 2);
        load_boxes(stage, map_a, form.a, row, depth, a_sheet, full, groups, rank, HOPPER_BESIDE);
        load_boxes(stage + HOPPER_A_ELEMENTS, map_b, form.b, t->column, depth, b_sheet, full, B_BOXES, rank, !HOPPER_BESIDE);
        ring_advance(ring, HOPPER_STAGES);
    }
}

/* Loads the last stages of a tile, which belong to a second product, in the same way. */
INLINE void load_second(uint64_t maps, const HopperTile *t, const SecondPlace *place, Ring *ring, int32_t rank, const HopperForm form) {
    uint64_t map_a = maps + __builtin_offsetof(GemmHopperTwo, second.a), map_b = maps + __builtin_offsetof(GemmHopperTwo, second.b);
    int32_t groups = t->half ? 1 : 2;
    for (int32_t depth = 0; depth < place->steps * TILE_DEPTH; depth += TILE_DEPTH) {
        LOCAL bf16 *stage = stage_at(ring);
        SharedBarrier full = stage_full(ring);
        shared_barrier_wait(stage_empty(ring), ring->phase + 1);
        shared_barrier_expect(full, (groups + B_BOXES) * BOX_ELEMENTS * 2);
        load_boxes(stage, map_a, form.a, t->row, place->depth + depth, 0, full, groups, rank, HOPPER_BESIDE);
        load_boxes(stage + HOPPER_A_ELEMENTS, map_b, form.b, place->line, depth, 0, full, B_BOXES, rank, !HOPPER_BESIDE);
        ring_advance(ring, HOPPER_STAGES);
    }
}

INLINE void load_d(const GemmHopper *h, uint64_t maps, const HopperTile *t, Ring *ring) {
    const GemmArguments *g = &h->gemm;
    int32_t boxes = (t->half ? 1 : 2) * D_BOXES, column = t->column * (g->wide ? 2 : 1), row = map_row(g, t);
    for (int32_t left = d_steps(g); left > 0; left--, column += D_BOXES * PANEL_COLUMNS) {
        shared_barrier_wait(stage_empty(ring), ring->phase + 1);
        shared_barrier_expect(stage_full(ring), boxes * BOX_ELEMENTS * 2);
        for (int32_t i = 0; i < boxes; i++)
            copy_box(stage_at(ring) + i * BOX_ELEMENTS, maps + __builtin_offsetof(GemmHopper, d), column + i % D_BOXES * PANEL_COLUMNS,
                row + i / D_BOXES * BOX_LINES, map_sheet(g, t), stage_full(ring));
        ring_advance(ring, HOPPER_STAGES);
    }
}

/* Runs the producer thread: all tiles of its block, then a tile without steps, which ends the
 * warpgroups. `second` may be NULL. */
INLINE void load_tiles(const GemmHopper *h, uint64_t maps, const HopperSecond *second, const Schedule *s, const HopperForm form) {
    HopperWalk walk = {0};
    Ring ring = {0};
    int32_t rank = block_x() % HOPPER_CLUSTER, cluster = block_x() / HOPPER_CLUSTER;
    for (int32_t round = 0;; round++) {
        HopperTile t = hopper_tile(&h->gemm, s, &walk, schedule_entry(s, round, cluster), rank);
        if (t.steps == 0) {
            shared_barrier_wait(stage_empty(&ring), ring.phase + 1);
            hopper_shared->tiles[round % HOPPER_TILES] = t;
            shared_barrier_arrive(stage_full(&ring));
            return;
        }
        SecondPlace place = {0};
        if (second) place = second_place(second, t.column);
        t.steps += place.steps;
        load_operands(h, maps, &t, &ring, rank, round, place.steps, form);
        load_second(maps, &t, &place, &ring, rank, form);
        load_d(h, maps, &t, &ring);
    }
}

/* Releases a stage for this warp, to the producers of both blocks. */
INLINE void stage_release(int stage) {
    if (lane_id() == 0) UNROLL for (int i = 0; i < HOPPER_CLUSTER; i++) shared_barrier_arrive_at(&hopper_shared->empty[stage], i);
}

/* Barrier of the threads of a warpgroup. */
INLINE void group_barrier(int group) { named_barrier_wait(1 + group, WARPGROUP); }

/* -- Sums ---------------------------------------------------------------------------------------------------------- */

enum { SUMS = HOPPER_COLUMNS / 2 };

#define NAMED_128                                                                                                                          \
    NAMED_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, "   \
    "%87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "        \
    "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#if HOPPER_WIDTH == 256
#define TIED_SUMS(x) TIED_32(x, 0), TIED_32(x, 32), TIED_32(x, 64), TIED_32(x, 96)
#define NAMED_SUMS NAMED_128
#define SUMS_SHAPE "m64n256"
#elif HOPPER_WIDTH == 128
#define TIED_SUMS(x) TIED_128_COLUMNS(x)
#define NAMED_SUMS NAMED_64
#define SUMS_SHAPE "m64n128"
#else
#define TIED_SUMS(x) TIED_64_COLUMNS(x)
#define NAMED_SUMS NAMED_32
#define SUMS_SHAPE "m64n64"
#endif

/* Returns the increment of a descriptor per step along k, in units of 16 bytes. A step is 32
 * bytes of each row or, with LAYOUT_LINES, 16 rows of 128 bytes. */
INLINE int descriptor_step(TileLayout layout) { return layout == LAYOUT_LINES ? 16 * 128 / 16 : 2; }

#define WGMMA_STEP(shape, sums, transposes) \
    "wgmma.mma_async.sync.aligned." shape " {" sums "}, a, b, add, 1, 1" transposes ";\n" \
    "add.s32 al, al, %[a_step]; add.s32 bl, bl, %[b_step]; mov.b64 a, {al, " DESCRIPTOR_UPPER "}; mov.b64 b, {bl, " DESCRIPTOR_UPPER "};\n"

/* x += A B for the four steps of a stage; x = A B if `adds` is 0. */
#define WGMMA_STAGE(tied, sums, adds, shape, transposes) \
    __asm__ volatile("{ .reg .pred add; .reg .b64 a, b; .reg .b32 al, bl;\n" \
                     "mov.b32 al, %[a]; mov.b32 bl, %[b]; mov.b64 a, {al, " DESCRIPTOR_UPPER "}; mov.b64 b, {bl, " DESCRIPTOR_UPPER "};\n" \
                     "setp.eq.s32 add, " adds ", 1;\n" \
                     "wgmma.fence.sync.aligned;\n" WGMMA_STEP(shape, sums, transposes) "setp.eq.s32 add, 0, 0;\n" \
                     WGMMA_STEP(shape, sums, transposes) WGMMA_STEP(shape, sums, transposes) WGMMA_STEP(shape, sums, transposes) \
                     "wgmma.commit_group.sync.aligned; }" \
                     : tied \
                     : [a] "r"(descriptor_of(left, BOX_ELEMENTS * 2)), [b] "r"(descriptor_of(right, BOX_ELEMENTS * 2)), \
                     [a_step] "n"(descriptor_step(form.a)), [b_step] "n"(descriptor_step(form.b)), \
                     [a_lines] "n"(form.a == LAYOUT_LINES), [b_lines] "n"(form.b == LAYOUT_LINES) \
                     : "memory")

/* Starts x += A B for a stage. Code must not touch x until sums_wait. */
INLINE void sums_start(float *x, LOCAL const bf16 *left, LOCAL const bf16 *right, const HopperForm form) {
    if (form.types == BF16_BF16) WGMMA_STAGE(TIED_SUMS(x), NAMED_SUMS, "1", SUMS_SHAPE "k16.f32.bf16.bf16", ", %[a_lines], %[b_lines]");
    else if (form.types == E4M3_E4M3) WGMMA_STAGE(TIED_SUMS(x), NAMED_SUMS, "1", SUMS_SHAPE "k32.f32.e4m3.e4m3", "");
    else WGMMA_STAGE(TIED_SUMS(x), NAMED_SUMS, "1", SUMS_SHAPE "k32.f32.e5m2.e4m3", "");
}
/* Starts y = A B for a stage and 128 columns. Code must not touch y until wgmma_wait. */
INLINE void half_start(float *y, LOCAL const bf16 *left, LOCAL const bf16 *right, const HopperForm form) {
    if (form.types == E4M3_E4M3) WGMMA_STAGE(TIED_128_COLUMNS(y), NAMED_64, "0", "m64n128k32.f32.e4m3.e4m3", "");
    else WGMMA_STAGE(TIED_128_COLUMNS(y), NAMED_64, "0", "m64n128k32.f32.e5m2.e4m3", "");
}
/* Waits until all sums_start except the last have read their stages. */
INLINE void sums_wait_for_earlier(void) { __asm__ volatile("wgmma.wait_group.sync.aligned 1;" : : : "memory"); }
INLINE void sums_wait(float *x) { __asm__ volatile("wgmma.wait_group.sync.aligned 0;" : TIED_SUMS(x) : : "memory"); }

/* Zeroes a stage after `depth` steps along k, which are slots of another expert: the lines of A
 * that this warpgroup reads, and all of B, because warpgroups are not synchronized. */
INLINE void stage_cut(LOCAL bf16 *stage, int group, int32_t depth) {
    int first = (depth > 0 ? depth : 0) * 128 + thread_id() % WARPGROUP * 16;
    UNROLL for (int i = 0; i <= B_BOXES; i++) {
        LOCAL bf16 *box = stage + (i < B_BOXES ? HOPPER_A_ELEMENTS + i * BOX_ELEMENTS : group * BOX_ELEMENTS);
        _Pragma("clang loop unroll(disable)") for (int at = first; at < BOX_ELEMENTS * 2; at += WARPGROUP * 16) *
            (LOCAL u32x4 *)(box + at / 2) = (u32x4){0, 0, 0, 0};
    }
    fence_shared_to_async();
    group_barrier(group);
}

/* x *= alpha */
INLINE void sums_scale(const GemmArguments *g, float *x) {
    if (g->alpha != 1) UNROLL for (int i = 0; i < SUMS; i++) x[i] *= g->alpha;
}

/* x *= the scales of rows of A and columns of B; scales outside C are 0. */
INLINE void sums_scale_fp8(const GemmHopper *h, const HopperTile *t, int group, float *x) {
    const GemmScales *s = &h->scales;
    int32_t row = t->row + group * GROUP_ROWS + wave_id() % 4 * 16 + lane_id() / 4, slot = slots_are_rows(&h->gemm) ? t->slot : 0;
    int32_t column = t->column + lane_id() % 4 * 2;
    GLOBAL const float *of_b = s->b + (int64_t)t->problem * s->b_stride;
    float rows[2] = {1, 1}, all = 1;
    if (s->a && !s->by_row) all = s->a[0];
    if (s->b && !s->by_column) all *= of_b[0];
    if (s->by_row) UNROLL for (int r = 0; r < 2; r++) rows[r] = row + 8 * r < t->end ? s->a[slot + row + 8 * r] : 0;
    UNROLL for (int i = 0; i < SUMS; i++) x[i] *= rows[i / 2 % 2] * all;
    if (s->by_column) UNROLL for (int j = 0; j < SUMS / 4; j++) {
            f32x2 pair = 0;
            if (column + j * 8 < h->gemm.n) pair = *(GLOBAL const f32x2 *)(of_b + column + j * 8);
            UNROLL for (int i = 0; i < 4; i++) x[4 * j + i] *= pair[i % 2];
        }
}

/* x += beta D for the columns of stage s of D. */
INLINE void sums_add_stage(const GemmArguments *g, Ring *ring, int group, float *x, const int s, const bool wide) {
    const int of_box = wide ? 4 : 8, blocks = D_BOXES * of_box; /* blocks of eight columns */
    int row = wave_id() % 4 * 16 + lane_id() / 4, lane = lane_id() % 4;
    LOCAL const bf16 *from = stage_at(ring) + group * D_BOXES * BOX_ELEMENTS;
    shared_barrier_wait(stage_full(ring), ring->phase);
    UNROLL for (int i = 0; i < blocks * 2; i++) {
        LOCAL const bf16 *box = from + i / (2 * of_box) * BOX_ELEMENTS;
        float *pair = x + (s * blocks * 2 + i) * 2;
        int at = row + i % 2 * 8, block = i / 2 % of_box;
        if (wide) {
            f32x2 d = *(LOCAL const f32x2 *)(box + tile_at(PANEL_COLUMNS, at, block * 16 + lane / 2 * 8) + lane % 2 * 4);
            pair[0] += g->beta * d.x, pair[1] += g->beta * d.y;
        } else {
            uint32_t d = *(LOCAL const uint32_t *)(box + tile_at(PANEL_COLUMNS, at, block * 8) + lane * 2);
            pair[0] += g->beta * to_float_low(d), pair[1] += g->beta * to_float_high(d);
        }
    }
    warp_barrier();
    stage_release(ring->stage);
    ring_advance(ring, HOPPER_STAGES);
}

INLINE void sums_add_d(const GemmArguments *g, Ring *ring, int group, float *x, const bool wide) {
    UNROLL for (int s = 0; s < HOPPER_COLUMNS / (D_BOXES * (wide ? 32 : 64)); s++) sums_add_stage(g, ring, group, x, s, wide);
}

INLINE void sums_add_bias(const GemmArguments *g, float *x, int32_t column) {
    UNROLL for (int j = 0; j < SUMS / 4; j++) {
        int32_t at = column + j * 8 + lane_id() % 4 * 2;
        f32x2 bias = 0;
        if (at < g->n) bias = *(GLOBAL const f32x2 *)(g->bias + at);
        UNROLL for (int i = 0; i < 4; i++) x[4 * j + i] += bias[i % 2];
    }
}

/* -- Writing ------------------------------------------------------------------------------------------------------- */

/* Writes a warpgroup's rows of a tile, columns before `end`, in passes of OUT_BOXES boxes, which
 * are as wide as a stage of D. With `adds`, each pass adds its stage of D, after earlier passes
 * have freed the registers of their sums. */
INLINE void write_boxes(
    const GemmHopper *h, uint64_t maps, const HopperTile *t, Ring *ring, int group, int32_t end, bool adds, float *x, const bool wide) {
    const int across = wide ? 32 : 64, columns = OUT_BOXES * across; /* of a box, of a pass */
    int row = wave_id() % 4 * 16, lane = lane_id(), first = map_row(&h->gemm, t) + group * GROUP_ROWS;
    bool sends = thread_id() % WARPGROUP == 0;
    UNROLL for (int pass = 0; pass < HOPPER_COLUMNS / columns; pass++) {
        if (adds) sums_add_stage(&h->gemm, ring, group, x, pass, wide);
        if (sends) copies_read();
        group_barrier(group);
        UNROLL for (int j = 0; j < columns / 8; j += 2) {
            LOCAL bf16 *box = hopper_shared->out[group][j / (across / 8)];
            const float *sums = x + pass * columns / 2 + j * 4;
            if (wide) {
                UNROLL for (int i = 0; i < 4; i++) {
                    int at = row + lane / 4 + i % 2 * 8, column = (j % 4 + i / 2) * 16 + lane % 4 / 2 * 8;
                    *(LOCAL f32x2 *)(box + tile_at(PANEL_COLUMNS, at, column) + lane % 2 * 4) = (f32x2){sums[2 * i], sums[2 * i + 1]};
                }
            } else {
                uint32_t w[4];
                UNROLL for (int i = 0; i < 4; i++) w[i] = to_bf16_pair(sums[2 * i], sums[2 * i + 1]);
                store_matrices(box + tile_at(PANEL_COLUMNS, row + lane % 16, (j % 8 + lane / 16) * 8), w);
            }
        }
        fence_shared_to_async();
        group_barrier(group);
        for (int i = 0; i < OUT_BOXES && sends; i++) {
            int32_t column = t->column + pass * columns + i * across;
            if (column < end)
                copy_box_out(maps + __builtin_offsetof(GemmHopper, c), column * (wide ? 2 : 1), first, map_sheet(&h->gemm, t),
                    hopper_shared->out[group][i]);
        }
        if (sends) copy_out_commit();
    }
}

/* Writes pairs of columns without TMA, when rows of the next expert follow in the same box. */
INLINE void write_pairs(const GemmArguments *g, const HopperTile *t, int group, const float *x) {
    int32_t column = t->column + lane_id() % 4 * 2;
    UNROLL for (int r = 0; r < 2; r++) {
        int32_t row = t->row + group * GROUP_ROWS + wave_id() % 4 * 16 + lane_id() / 4 + 8 * r, columns = row < t->end ? g->n - column : 0;
        int64_t at = tile_place(g, t->slot, t->problem, row, column);
        UNROLL for (int j = 0; j < SUMS / 4; j++) {
            const float *pair = x + 4 * j + 2 * r;
            if (j * 8 >= columns) continue;
            if (g->wide) *(GLOBAL f32x2 *)((GLOBAL float *)g->c + at + j * 8) = (f32x2){pair[0], pair[1]};
            else *(GLOBAL uint32_t *)((GLOBAL bf16 *)g->c + at + j * 8) = to_bf16_pair(pair[0], pair[1]);
        }
    }
}

/* Exchanges words among the four lanes of a row. w alternates between words of the upper and the
 * lower eight rows of a block; afterwards a lane holds four adjacent elements of the 16 in each
 * pair of words. All exchanges of one step come before the next step, so that no exchange waits for
 * another. */
INLINE void exchange_rows(uint32_t *w, const int count) {
    UNROLL for (int i = 0; i < count; i += 2) exchange_words(&w[i], &w[i + 1], 2);
    UNROLL for (int i = 0; i < count; i += 2) exchange_words(&w[i], &w[i + 1], 1);
}

/* Writes the 64 x 64 blocks above the diagonal of a symmetric C from those below: a warp's 16 rows
 * from `first` on become columns. A lane stores four adjacent elements. */
INLINE void write_mirror(const GemmArguments *g, const HopperTile *t, int32_t first, const float *x) {
    int32_t row = first + lane_id() % 4 * 4, column = t->column + lane_id() / 4, columns = row < t->end ? first / 64 * 64 - column : 0;
    GLOBAL bf16 *to = (GLOBAL bf16 *)g->c + tile_place(g, t->slot, t->problem, column, row);
    uint32_t w[SUMS / 2];
    UNROLL for (int i = 0; i < SUMS / 2; i++) w[i] = transpose_matrix(to_bf16_pair(x[2 * i], x[2 * i + 1]));
    exchange_rows(w, SUMS / 2);
    UNROLL for (int j = 0; j < SUMS / 4; j++) store_two_if(to + j * 8 * g->ldc, w[2 * j], w[2 * j + 1], j * 8 < columns);
}

/* Writes a tile of C. If C is symmetric, only 64 x 64 blocks on or below the diagonal are written
 * directly. */
INLINE void hopper_write(const GemmHopper *h, uint64_t maps, const HopperTile *t, Ring *ring, int group, float *x) {
    const GemmArguments *g = &h->gemm;
    int32_t first = t->row + group * GROUP_ROWS, end = g->symmetric ? least(first + GROUP_ROWS, g->n) : g->n;
    bool pairs = slots_are_rows(g) && first + GROUP_ROWS > t->end, adds = g->d && !g->symmetric && !pairs;
    if (g->d && !adds && g->wide) sums_add_d(g, ring, group, x, true);
    else if (g->d && !adds) sums_add_d(g, ring, group, x, false);
    if (g->symmetric) write_mirror(g, t, first + wave_id() % 4 * 16, x);
    if (pairs) write_pairs(g, t, group, x);
    else if (g->wide) write_boxes(h, maps, t, ring, group, end, adds, x, true);
    else write_boxes(h, maps, t, ring, group, end, adds, x, false);
}

/* -- Tiles --------------------------------------------------------------------------------------------------------- */

/* Sums a tile, stage after stage. With `cuts`, its last stage may hold slots of the next expert. */
INLINE void tile_sums(const HopperTile *t, Ring *ring, int group, bool cuts, float *x, const HopperForm form) {
    int before = 0;
    for (int32_t step = 0; step < t->steps; step++) {
        LOCAL bf16 *stage = stage_at(ring);
        shared_barrier_wait(stage_full(ring), ring->phase);
        if (cuts && t->depth - step * TILE_DEPTH < TILE_DEPTH) stage_cut(stage, group, t->depth - step * TILE_DEPTH);
        warp_barrier();
        sums_start(x, stage + group * BOX_ELEMENTS, stage + HOPPER_A_ELEMENTS, form);
        sums_wait_for_earlier();
        if (step > 0) stage_release(before);
        before = ring->stage;
        ring_advance(ring, HOPPER_STAGES);
    }
    sums_wait(x);
    stage_release(before);
}

/* A thread's scales of a stage: of its two rows, and of both halves of the columns or, in `next`,
 * of two columns that it shares with its warpgroup through column_scales. */
typedef struct StageScales {
    GLOBAL const float *rows[2], *columns[2]; /* of the next stage */
    float row[2], column[2], next[2];
} StageScales;

/* Consecutive lines are `stages` scales apart. A problem whose slots are steps along k starts at
 * its first stage. Lines outside C use the last line's scales. */
INLINE StageScales scales_of(const GemmHopper *h, const HopperTile *t, int group, const HopperForm form) {
    StageScales s;
    int32_t row = t->row + group * GROUP_ROWS + wave_id() % 4 * 16 + lane_id() / 4, slot = slots_are_rows(&h->gemm) ? t->slot : 0;
    int32_t stages = divide_up(h->gemm.k, TILE_DEPTH), first = h->gemm.slots_are_depth ? t->slot / TILE_DEPTH : 0;
    GLOBAL const float *of_b = h->scales.b + (int64_t)t->problem * h->scales.b_stride;
    UNROLL for (int i = 0; i < 2; i++) {
        int32_t column = t->column + i * HOPPER_COLUMNS / 2 + (form.promotion == PROMOTE_GROUPS ? thread_id() % WARPGROUP : 0);
        int32_t line = form.promotion == PROMOTE_GROUPS ? least(column, h->gemm.n - 1) : least(column, h->gemm.n - 1) / BLOCK_LINES;
        s.rows[i] = h->scales.a + (int64_t)(slot + least(row + 8 * i, t->end - 1)) * stages + first;
        s.columns[i] = of_b + (int64_t)line * stages + first;
        if (form.promotion == PROMOTE_GROUPS) s.next[i] = *s.columns[i];
    }
    return s;
}

/* Reads the scales of a stage while its sums are in progress. */
INLINE void scales_step(StageScales *s, int group, bool last, const HopperForm form) {
    UNROLL for (int i = 0; i < 2; i++) {
        s->row[i] = *s->rows[i]++;
        if (form.promotion == PROMOTE_BLOCKS) s->column[i] = *s->columns[i]++;
    }
    if (form.promotion != PROMOTE_GROUPS) return;
    LOCAL float *scales = hopper_shared->column_scales[group] + thread_id() % WARPGROUP;
    group_barrier(group);
    UNROLL for (int i = 0; i < 2; i++) scales[i * HOPPER_COLUMNS / 2] = s->next[i];
    group_barrier(group);
    UNROLL for (int i = 0; i < 2; i++) if (!last) s->next[i] = *++s->columns[i];
}

/* x += y times the scales, for one half of the columns. */
INLINE void sums_promote(float *x, const float *y, const StageScales *s, int group, const int half, const HopperForm form) {
    LOCAL const float *scales = hopper_shared->column_scales[group] + half * HOPPER_COLUMNS / 2 + lane_id() % 4 * 2;
    float rows[2];
    UNROLL for (int i = 0; i < 2 && form.promotion == PROMOTE_BLOCKS; i++) rows[i] = s->row[i] * s->column[half];
    UNROLL for (int j = 0; j < SUMS / 8; j++) {
        f32x2 columns = 1;
        if (form.promotion == PROMOTE_GROUPS) columns = *(LOCAL const f32x2 *)(scales + j * 8);
        UNROLL for (int i = 4 * j; i < 4 * j + 4; i++) {
            if (form.promotion == PROMOTE_SUMS) x[i] += y[i];
            else if (form.promotion == PROMOTE_BLOCKS) x[i] += y[i] * rows[i / 2 % 2];
            else x[i] += y[i] * (s->row[i / 2 % 2] * columns[i % 2]);
        }
    }
}

/* tile_sums with promotion. The matrix unit computes half of the columns of a stage at a time,
 * while the other warpgroup promotes. */
INLINE void tile_sums_promoted(const GemmHopper *h, const HopperTile *t, Ring *ring, int group, float *x, const HopperForm form) {
    float y[SUMS / 2];
    StageScales scales;
    if (form.promotion != PROMOTE_SUMS) scales = scales_of(h, t, group, form);
    UNROLL for (int i = 0; i < SUMS / 2; i++) y[i] = 0;
    for (int32_t step = 0; step < t->steps; step++) {
        LOCAL bf16 *stage = stage_at(ring);
        shared_barrier_wait(stage_full(ring), ring->phase);
        warp_barrier();
        UNROLL for (int half = 0; half < 2; half++) {
            half_start(y, stage + group * BOX_ELEMENTS, stage + HOPPER_A_ELEMENTS + half * (B_BOXES / 2) * BOX_ELEMENTS, form);
            if (half == 0 && form.promotion != PROMOTE_SUMS) scales_step(&scales, group, step + 1 == t->steps, form);
            wgmma_wait(y, HOPPER_COLUMNS / 2, 0);
            if (half == 1) stage_release(ring->stage);
            sums_promote(x + half * SUMS / 2, y, &scales, group, half, form);
            materialize_sums(x + half * SUMS / 2, HOPPER_COLUMNS / 2);
        }
        ring_advance(ring, HOPPER_STAGES);
    }
}

/* Releases the stages of a tile for a warpgroup that has no rows in it. */
INLINE void tile_pass(const GemmArguments *g, const HopperTile *t, Ring *ring) {
    for (int32_t step = t->steps + d_steps(g); step > 0; step--) {
        shared_barrier_wait(stage_full(ring), ring->phase);
        warp_barrier();
        stage_release(ring->stage);
        ring_advance(ring, HOPPER_STAGES);
    }
}

INLINE void consume_tiles(const GemmHopper *h, uint64_t maps, const HopperForm form) {
    const GemmArguments *g = &h->gemm;
    int group = wave_id() / 4;
    bool cuts = form.a == LAYOUT_LINES && form.b == LAYOUT_LINES && g->slots_are_depth;
    Ring ring = {0};
    for (int32_t round = 0;; round++) {
        float x[SUMS];
        shared_barrier_wait(stage_full(&ring), ring.phase);
        HopperTile t = hopper_shared->tiles[round % HOPPER_TILES];
        if (t.steps == 0) break;
        if (t.row + group * GROUP_ROWS >= t.end) {
            tile_pass(g, &t, &ring);
            continue;
        }
        UNROLL for (int i = 0; i < SUMS; i++) x[i] = 0;
        if (form.promotion == PROMOTE_NOTHING) tile_sums(&t, &ring, group, cuts, x, form);
        else tile_sums_promoted(h, &t, &ring, group, x, form);
        if (form.types == BF16_BF16) sums_scale(g, x);
        else if (form.promotion <= PROMOTE_SUMS) sums_scale_fp8(h, &t, group, x);
        if (g->bias) sums_add_bias(g, x, t.column);
        hopper_write(h, maps, &t, &ring, group, x);
    }
    copies_done();
}

/* `second` is a constant pointer: NULL, or that of a GemmHopperTwo whose `first` is h. Kernels
 * without it have no code for it. */
INLINE void multiply_hopper_two(const GemmHopper *h, uint64_t maps, const HopperSecond *second, const HopperForm form) {
    await_kernel_ahead();
    Schedule schedule = schedule_of(&h->gemm, __nvvm_read_ptx_sreg_nctaid_x() / HOPPER_CLUSTER);
    if (thread_id() == 0) {
        for (int i = 0; i < HOPPER_STAGES; i++) {
            shared_barrier_init(&hopper_shared->full[i], 1);
            shared_barrier_init(&hopper_shared->empty[i], HOPPER_CLUSTER * 2 * 4);
        }
        fence_barriers_to_cluster();
        fence_shared_to_async();
    }
    cluster_barrier();
    if (wave_id() < 2 * 4) {
        if (form.promotion) registers_raise(232);
        consume_tiles(h, maps, form);
    } else {
        if (form.promotion) registers_lower(40);
        bool spare = form.promotion && wave_id() > 2 * 4; /* of a warpgroup that gave up its registers */
        if (lane_id() == 0 && !spare) load_tiles(h, maps, second, &schedule, form);
    }
    cluster_barrier();
}

INLINE void multiply_hopper(const GemmHopper *h, uint64_t maps, const HopperForm form) { multiply_hopper_two(h, maps, 0, form); }

#define HOPPER_KERNEL(name, left, right)                                                                              \
    KERNEL(name, GemmHopper) {                                                                                        \
        CLUSTER_BOUNDS(HOPPER_THREADS, 1, HOPPER_CLUSTER);                                                            \
        multiply_hopper(&a, ARGUMENTS_ADDRESS(name), (HopperForm){left, right}); \
    }

#endif
