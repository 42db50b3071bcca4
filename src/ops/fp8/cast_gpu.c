/* fp8_amax and fp8_cast on a GPU, bound by memory bandwidth. A block casts a tile of 128 x 128
 * elements, the largest group that shares a scale. Each thread reads 8 x 8 of them once and writes
 * their quantized values by rows and, transposed through shared memory, by columns. Scales of whole
 * lines need the lines' amax first, from a pass over all tiles. Amax values are compared as bits,
 * which are ordered like the numbers, with NaN above all: atomic maxima of integers do not depend
 * on the order of blocks. Tiles are cast from last to first, because the data that a preceding pass
 * read last may still be in the cache. With delayed scaling the scale is known beforehand, and the
 * cast computes the amax too.
 *
 * Quantized values and scales equal the CPU's, bit for bit: a product is rounded to fp32, and then
 * to fp8. */
#include "backend/gpu/amax.h"
#include "backend/gpu/fp8_output.h"
#include "base/float8.h"
#include "device/gemm.h"

enum {
    THREADS = AMAX_THREADS,
    TILE = GEMM_SCALE_GROUP_SIZE,
    UNIT = 8,            /* rows and columns per thread */
    UNITS = TILE / UNIT, /* along a side of a tile */
    AMAX_LOADS = 8,      /* loads per thread, 16 bytes each */
    BLOCKS = 4,          /* per NVIDIA multiprocessor: 128 KB in flight */
};

/* x: `count` matrices, one after another, of `units` units of 8 elements each. */
typedef struct Fp8AmaxArguments {
    const bf16 GLOBAL *x;
    uint32_t GLOBAL *amax; /* [count], initially zero */
    int64_t units;
} Fp8AmaxArguments;

/* A matrix by rows or by columns: `lines` of `depth` elements along k, in `groups` groups of
 * 128. */
typedef struct CastOperand {
    uint8_t GLOBAL *quantized; /* NULL: not wanted */
    float GLOBAL *scales;
    uint32_t GLOBAL *line_amax; /* GEMM_SCALE_LINE: [matrices, lines], initially zero */
    int32_t lines, depth, groups;
} CastOperand;

/* x: matrices of rows.lines x columns.lines; for fp8_transpose, their quantized values. `scaling`
 * applies to both operands. With slots of experts, `slots` gives the rows of each tile, the first
 * of its 128 elements along k of columns; the other elements are zero. */
typedef struct Fp8CastArguments {
    const bf16 GLOBAL *x;
    const float GLOBAL *amax;    /* GEMM_SCALE_TENSOR: of the matrices */
    uint32_t GLOBAL *seen;       /* [matrices]: bits of the amax so far; NULL: not wanted */
    const float GLOBAL *found;   /* [matrices]: for fp8_transpose, the amax values that `seen` receives */
    const int32_t GLOBAL *slots; /* [columns.groups, 2]: from fp8_tiles; NULL: tiles have 128 rows, except the last */
    CastOperand rows, columns;
    int64_t stride; /* between rows of x */
    int32_t tiles;  /* of all matrices */
    float largest;  /* largest number of the format */
    int32_t scaling;
} Fp8CastArguments;

#ifdef GPU_DEVICE

enum { WAVES = THREADS / WAVE };

/* -- Amax of matrices ---------------------------------------------------------------------------------------------- */

/* The amax of bf16 pairs, as bits, separately for even and odd elements. The bits of odd
 * elements have those of the even elements below them, which are cut off at the end. */
typedef struct PairAmax { uint32_t even, odd; } PairAmax;
INLINE void look_at(PairAmax *most, uint32_t pair) {
    most->even = larger(most->even, pair << 17);
    most->odd = larger(most->odd, pair & 0x7fffffff);
}

INLINE uint32_t amax_of_pairs(PairAmax most) { return larger(most.even >> 1, most.odd & 0xffff0000); }

/* block_y: the matrix. */
KERNEL(fp8_amax, Fp8AmaxArguments) {
    const u32x4 GLOBAL *x = (const u32x4 GLOBAL *)a.x + block_y() * a.units;
    int64_t first = (int64_t)block_x() * (THREADS * AMAX_LOADS) + thread_id();
    u32x4 pairs[AMAX_LOADS];
    PairAmax most = {0};
    UNROLL for (int i = 0; i < AMAX_LOADS; i++) pairs[i] = first + i * THREADS < a.units ? x[first + i * THREADS] : (u32x4)0;
    UNROLL for (int i = 0; i < AMAX_LOADS; i++) UNROLL for (int j = 0; j < 4; j++) look_at(&most, pairs[i][j]);
    record_amax(a.amax + block_y(), amax_of_pairs(most));
}

/* -- Tiles --------------------------------------------------------------------------------------------------------- */

/* Tile (down, across) of a matrix, its first row and the end of its rows; for this thread's unit,
 * the first row and column in the matrix, and the first element along k of columns. */
typedef struct TilePlace {
    int64_t matrix;
    int down, across, first, end, row, column, depth;
} TilePlace;

INLINE TilePlace cast_place(const Fp8CastArguments *a) {
    int across = a->rows.groups, down = a->columns.groups, tile = a->tiles - 1 - block_x(), line = tile / across;
    int unit_row = thread_id() / UNITS * UNIT;
    TilePlace p = {.matrix = line / down, .down = line % down, .across = tile - line * across, .end = a->rows.lines};
    p.first = p.down * TILE;
    p.depth = p.first + unit_row;
    if (a->slots) p.first = a->slots[2 * p.down], p.end = p.first + a->slots[2 * p.down + 1];
    p.row = p.first + unit_row;
    p.column = p.across * TILE + thread_id() % UNITS * UNIT;
    return p;
}

/* Returns whether no expert has the tile. */
INLINE bool is_spare(TilePlace p) { return p.end < p.first; }

typedef struct Unit { u32x4 row[UNIT]; } Unit; /* of 8 bf16 each */

INLINE float element(const Unit *x, int i, int j) { return j % 2 ? to_float_high(x->row[i][j / 2]) : to_float_low(x->row[i][j / 2]); }
INLINE f32x4 four_elements(const Unit *x, int i, int j) {
    return (f32x4){element(x, i, j), element(x, i, j + 1), element(x, i, j + 2), element(x, i, j + 3)};
}

/* Returns the index of the first element that a thread reads of row i of its unit. Elements outside
 * the matrix are replaced by the tile's last row, or by a unit of a row inside. For an empty
 * expert, this clamps to the previous row (or row 0). */
INLINE int64_t unit_at(const Fp8CastArguments *a, TilePlace p, int i) {
    int column = p.column < a->columns.lines ? p.column : a->columns.lines - UNIT, last = p.end > 0 ? p.end - 1 : 0;
    int64_t row = p.row + i < last ? p.row + i : last;
    return p.matrix * a->rows.lines * a->stride + column + row * a->stride;
}

/* Elements that pad the matrix do not change its amax. */
INLINE void load_unit(const Fp8CastArguments *a, TilePlace p, Unit *x) {
    UNROLL for (int i = 0; i < UNIT; i++) x->row[i] = *(const u32x4 GLOBAL *)(a->x + unit_at(a, p, i));
    if (a->slots) UNROLL for (int i = 0; i < UNIT; i++) if (p.row + i >= p.end) x->row[i] = 0;
}

/* Keeps values computed from x from filling registers until they are needed again. */
INLINE void forget_unit(Unit *x) {
    UNROLL for (int i = 0; i < UNIT; i++) UNROLL for (int j = 0; j < 4; j++) x->row[i][j] = (uint32_t)opaque((int)x->row[i][j]);
}

/* NaN is ignored. */
INLINE float amax_of(float most, float x) { return __builtin_fmaxf(most, __builtin_fabsf(x)); }

/* Returns the amax of the tile's row t in thread t < TILE, and of its column t - TILE in the other
 * threads; only for wanted operands. */
INLINE float line_amax(const Fp8CastArguments *a, Unit *x) {
    static SHARED float of_rows[TILE], of_columns[WAVES][TILE];
    int lane = lane_id(), line = thread_id() % TILE;
    if (a->rows.quantized) UNROLL for (int i = 0; i < UNIT; i++) {
            float most = 0;
            UNROLL for (int j = 0; j < UNIT; j++) most = amax_of(most, element(x, i, j));
            UNROLL for (int mask = UNITS / 2; mask > 0; mask /= 2) most = __builtin_fmaxf(most, shuffle_xor(most, mask));
            if (lane % UNITS == 0) of_rows[thread_id() / UNITS * UNIT + i] = most;
        }
    forget_unit(x);
    if (a->columns.quantized) UNROLL for (int j = 0; j < UNIT; j++) {
            float most = 0;
            UNROLL for (int i = 0; i < UNIT; i++) most = amax_of(most, element(x, i, j));
            UNROLL for (int mask = WAVE / 2; mask >= UNITS; mask /= 2) most = __builtin_fmaxf(most, shuffle_xor(most, mask));
            if (lane < UNITS) of_columns[wave_id()][lane * UNIT + j] = most;
        }
    barrier();
    float most = 0;
    if (thread_id() < TILE) return a->rows.quantized ? of_rows[line] : 0;
    if (a->columns.quantized) UNROLL for (int i = 0; i < WAVES; i++) most = __builtin_fmaxf(most, of_columns[i][line]);
    return most;
}

/* Returns the amax of the tile in every thread. */
INLINE float tile_amax(const Unit *x) {
    static SHARED float of_waves[WAVES];
    float most = 0;
    UNROLL for (int i = 0; i < UNIT; i++) UNROLL for (int j = 0; j < UNIT; j++) most = amax_of(most, element(x, i, j));
    most = wave_max(most);
    if (lane_id() == 0) of_waves[wave_id()] = most;
    barrier();
    UNROLL for (int i = 0; i < WAVES; i++) most = __builtin_fmaxf(most, of_waves[i]);
    return most;
}

/* The line of the matrix that this thread has in line_amax, and the tile's group in it. */
typedef struct CastLine {
    float GLOBAL *scales;
    uint32_t GLOBAL *amax;
    int64_t index; /* among the lines of all matrices */
    int group, groups;
    bool inside; /* and wanted */
} CastLine;

INLINE CastLine line_of(const Fp8CastArguments *a, TilePlace p) {
    bool row = thread_id() < TILE;
    int line = (row ? p.first : p.across * TILE) + thread_id() % TILE, lines = row ? a->rows.lines : a->columns.lines;
    return (CastLine){.scales = row ? a->rows.scales : a->columns.scales,
        .amax = row ? a->rows.line_amax : a->columns.line_amax,
        .index = p.matrix * lines + line,
        .group = row ? p.across : p.down,
        .groups = row ? a->rows.groups : a->columns.groups,
        .inside = (row ? a->rows.quantized : a->columns.quantized) && line < (row ? p.end : lines)};
}

/* Computes the amax of each line of all matrices, for GEMM_SCALE_LINE. */
KERNEL(fp8_line_amax, Fp8CastArguments) {
    BLOCK_BOUNDS(THREADS, BLOCKS);
    TilePlace p = cast_place(&a);
    Unit x;
    if (is_spare(p)) return;
    load_unit(&a, p, &x);
    float most = line_amax(&a, &x);
    CastLine line = line_of(&a, p);
    if (line.inside) atomic_max(line.amax + line.index, __builtin_bit_cast(uint32_t, most));
}

/* -- Quantized values --------------------------------------------------------------------------------------------------------- */

/* Returns four bytes of two words, numbered from 0 in `low` and from 4 in `high`. */
#if defined __AMDGCN__
#define BYTES_OF(low, high, first, second, third, fourth) \
    __builtin_amdgcn_perm(high, low, (first) | (second) << 8 | (third) << 16 | (fourth) << 24)
#else
#define BYTES_OF(low, high, first, second, third, fourth) __nvvm_prmt(low, high, (first) | (second) << 4 | (third) << 8 | (fourth) << 12)
#endif

/* Byte i of to[j] is byte j of from[i]. */
INLINE void transpose_bytes(uint32_t to[4], const uint32_t from[4]) {
    uint32_t low01 = BYTES_OF(from[0], from[1], 0, 4, 1, 5), high01 = BYTES_OF(from[0], from[1], 2, 6, 3, 7);
    uint32_t low23 = BYTES_OF(from[2], from[3], 0, 4, 1, 5), high23 = BYTES_OF(from[2], from[3], 2, 6, 3, 7);
    to[0] = BYTES_OF(low01, low23, 0, 1, 4, 5), to[1] = BYTES_OF(low01, low23, 2, 3, 6, 7);
    to[2] = BYTES_OF(high01, high23, 0, 1, 4, 5), to[3] = BYTES_OF(high01, high23, 2, 3, 6, 7);
}

/* Quantized values of a unit: half[h][i] holds row i, columns 4 h .. 4 h + 3. */
typedef struct QuantizedUnit { uint32_t half[2][UNIT]; } QuantizedUnit;

INLINE void store_cast_rows(const Fp8CastArguments *a, TilePlace p, const QuantizedUnit *quantized) {
    uint8_t GLOBAL *to = a->rows.quantized + (p.matrix * a->rows.lines + p.row) * a->columns.lines + p.column;
    UNROLL for (int i = 0; i < UNIT; i++) if (p.row + i < p.end && p.column < a->columns.lines) *
        (u32x2 GLOBAL *)(to + (int64_t)i * a->columns.lines) = (u32x2){quantized->half[0][i], quantized->half[1][i]};
}

/* Transposes through shared memory: column c of the tile is 16 chunks of 8 bytes. Chunk i is stored
 * at i ^ c / 8, so that neither writes nor reads cause bank conflicts. Threads then write 16 bytes
 * each, and 8 threads write a column of the tile. */
INLINE void store_columns(const Fp8CastArguments *a, TilePlace p, const QuantizedUnit *quantized) {
    static SHARED _Alignas(16) u32x2 columns[TILE * UNITS];
    int unit_row = thread_id() / UNITS, unit_column = thread_id() % UNITS, depth = a->columns.depth;
    UNROLL for (int h = 0; h < 2; h++) {
        uint32_t upper[4], lower[4];
        transpose_bytes(upper, quantized->half[h]);
        transpose_bytes(lower, quantized->half[h] + 4);
        UNROLL for (int j = 0; j < 4; j++) columns[(unit_column * UNIT + 4 * h + j) * UNITS + (unit_row ^ unit_column)] =
            (u32x2){upper[j], lower[j]};
    }
    barrier();
    enum { PAIRS = UNITS / 2 };
    int at = p.down * TILE + thread_id() % PAIRS * 2 * UNIT;
    UNROLL for (int i = 0; i < TILE / (THREADS / PAIRS); i++) {
        int line = i * (THREADS / PAIRS) + thread_id() / PAIRS, swizzle = line / UNIT, column = p.across * TILE + line;
        u32x4 bytes = *(LOCAL u32x4 *)(columns + line * UNITS + ((thread_id() % PAIRS * 2) ^ (swizzle & ~1)));
        if (swizzle & 1) bytes = bytes.zwxy;
        if (at < depth && column < a->columns.lines)
            *(u32x4 GLOBAL *)(a->columns.quantized + (p.matrix * a->columns.lines + column) * depth + at) = bytes;
    }
}

INLINE void record_unit(uint32_t GLOBAL *seen, const Unit *x) {
    PairAmax most = {0};
    UNROLL for (int i = 0; i < UNIT; i++) UNROLL for (int j = 0; j < 4; j++) look_at(&most, x->row[i][j]);
    record_amax(seen, amax_of_pairs(most));
}

/* Writes the scale of all elements of a matrix, in the block of its first tile. */
INLINE void store_tensor_scale(const Fp8CastArguments *a, TilePlace p, float m) {
    if (thread_id() > 0 || p.down > 0 || p.across > 0) return;
    if (a->rows.quantized) a->rows.scales[p.matrix] = 1 / m;
    if (a->columns.quantized) a->columns.scales[p.matrix] = 1 / m;
}

/* Casts with one multiplier for the tile: that of the matrix, or of GEMM_SCALE_BLOCK. */
INLINE void cast_tile(const Fp8CastArguments *a, const bool e5m2) {
    TilePlace p = cast_place(a);
    Unit x;
    QuantizedUnit quantized;
    if (is_spare(p)) return;
    load_unit(a, p, &x);
    bool block = a->scaling == GEMM_SCALE_BLOCK;
    float m = block ? fp8_multiplier(tile_amax(&x), a->largest, true) : fp8_multiplier(a->amax[p.matrix], a->largest, false);
    if (a->seen) record_unit(a->seen + p.matrix, &x);
    forget_unit(&x);
    if (!block) store_tensor_scale(a, p, m);
    else if (thread_id() == 0) {
        int across = a->rows.groups, down = a->columns.groups;
        if (a->rows.quantized) a->rows.scales[(p.matrix * down + p.down) * across + p.across] = 1 / m;
        if (a->columns.quantized) a->columns.scales[(p.matrix * across + p.across) * down + p.down] = 1 / m;
    }
    UNROLL for (int i = 0; i < UNIT; i++) UNROLL for (int h = 0; h < 2; h++) quantized.half[h][i] =
        to_fp8(four_elements(&x, i, 4 * h) * m, a->largest, e5m2);
    if (a->rows.quantized) store_cast_rows(a, p, &quantized);
    if (a->columns.quantized) store_columns(a, p, &quantized);
}

/* Casts with one multiplier per line of the tile: that of the line of the matrix, or of
 * GEMM_SCALE_GROUP. */
INLINE void cast_tile_lines(const Fp8CastArguments *a, const bool e5m2) {
    static SHARED float multipliers[2 * TILE]; /* of rows, of columns */
    TilePlace p = cast_place(a);
    Unit x;
    QuantizedUnit quantized;
    if (is_spare(p)) return;
    load_unit(a, p, &x);
    CastLine line = line_of(a, p);
    bool grouped = a->scaling == GEMM_SCALE_GROUP;
    float most = grouped ? line_amax(a, &x) : line.inside ? __builtin_bit_cast(float, line.amax[line.index]) : 0;
    float own = fp8_multiplier(most, a->largest, true);
    multipliers[thread_id()] = own;
    if (line.inside && grouped) line.scales[line.index * line.groups + line.group] = 1 / own;
    if (line.inside && !grouped && line.group == 0) line.scales[line.index] = 1 / own;
    barrier();
    forget_unit(&x);
    if (a->rows.quantized) {
        LOCAL float *m = multipliers + thread_id() / UNITS * UNIT;
        UNROLL for (int i = 0; i < UNIT; i++) UNROLL for (int h = 0; h < 2; h++) quantized.half[h][i] =
            to_fp8(four_elements(&x, i, 4 * h) * m[i], a->largest, e5m2);
        store_cast_rows(a, p, &quantized);
        forget_unit(&x);
    }
    if (a->columns.quantized) {
        LOCAL float *m = multipliers + TILE + thread_id() % UNITS * UNIT;
        UNROLL for (int i = 0; i < UNIT; i++) UNROLL for (int h = 0; h < 2; h++) quantized.half[h][i] =
            to_fp8(four_elements(&x, i, 4 * h) * (f32x4){m[4 * h], m[4 * h + 1], m[4 * h + 2], m[4 * h + 3]}, a->largest, e5m2);
        store_columns(a, p, &quantized);
    }
}

#if defined __gfx950__
/* Writes the scale of 32 elements along k of a line, by the first of the four threads that share
 * them. Lines end at `end`. */
INLINE void store_mx_scale(const CastOperand *o, TilePlace p, int line, int end, int at, float m) {
    enum { MX = GEMM_SCALE_MX_SIZE };
    int groups = (o->depth + MX - 1) / MX;
    if (at % MX == 0 && line < end && at < o->depth) o->scales[(p.matrix * o->lines + line) * groups + at / MX] = 1 / m;
}

/* Casts with one multiplier per 32 elements of a row, and of a column: four units, in adjacent
 * lanes or in the wave's four rows of lanes. */
INLINE void cast_tile_mx(const Fp8CastArguments *a) {
    TilePlace p = cast_place(a);
    Unit x;
    QuantizedUnit quantized;
    if (is_spare(p)) return;
    load_unit(a, p, &x);
    if (a->rows.quantized) {
        UNROLL for (int i = 0; i < UNIT; i++) {
            float most = 0;
            UNROLL for (int j = 0; j < UNIT; j++) most = amax_of(most, element(&x, i, j));
            UNROLL for (int mask = 2; mask > 0; mask /= 2) most = __builtin_fmaxf(most, shuffle_xor(most, mask));
            float m = fp8_multiplier(most, a->largest, true);
            store_mx_scale(&a->rows, p, p.row + i, p.end, p.column, m);
            UNROLL for (int h = 0; h < 2; h++) quantized.half[h][i] = to_fp8(four_elements(&x, i, 4 * h) * m, a->largest, false);
        }
        store_cast_rows(a, p, &quantized);
        forget_unit(&x);
    }
    if (a->columns.quantized) {
        float m[UNIT];
        UNROLL for (int j = 0; j < UNIT; j++) {
            float most = 0;
            UNROLL for (int i = 0; i < UNIT; i++) most = amax_of(most, element(&x, i, j));
            UNROLL for (int mask = WAVE / 2; mask >= UNITS; mask /= 2) most = __builtin_fmaxf(most, shuffle_xor(most, mask));
            m[j] = fp8_multiplier(most, a->largest, true);
            store_mx_scale(&a->columns, p, p.column + j, a->columns.lines, p.depth, m[j]);
        }
        UNROLL for (int i = 0; i < UNIT; i++) UNROLL for (int h = 0; h < 2; h++) quantized.half[h][i] =
            to_fp8(four_elements(&x, i, 4 * h) * (f32x4){m[4 * h], m[4 * h + 1], m[4 * h + 2], m[4 * h + 3]}, a->largest, false);
        store_columns(a, p, &quantized);
    }
}

KERNEL(fp8_cast_mx, Fp8CastArguments) { cast_tile_mx(&a); }
#endif

/* Copies quantized values that arrive by rows into operands with one scale; without an amax, only
 * the values. */
KERNEL(fp8_transpose, Fp8CastArguments) {
    BLOCK_BOUNDS(THREADS, BLOCKS);
    TilePlace p = cast_place(&a);
    QuantizedUnit quantized;
    if (is_spare(p)) return;
    UNROLL for (int i = 0; i < UNIT; i++) {
        u32x2 bytes = *(const u32x2 GLOBAL *)((const uint8_t GLOBAL *)a.x + unit_at(&a, p, i));
        if (a.slots && p.row + i >= p.end) bytes = 0;
        quantized.half[0][i] = bytes.x, quantized.half[1][i] = bytes.y;
    }
    if (a.amax) store_tensor_scale(&a, p, fp8_multiplier(a.amax[p.matrix], a.largest, false));
    if (a.seen && thread_id() == 0 && p.down == 0 && p.across == 0)
        atomic_max(a.seen + p.matrix, __builtin_bit_cast(uint32_t, a.found[p.matrix]));
    if (a.rows.quantized) store_cast_rows(&a, p, &quantized);
    if (a.columns.quantized) store_columns(&a, p, &quantized);
}

KERNEL(fp8_cast_e4m3, Fp8CastArguments) {
    BLOCK_BOUNDS(THREADS, BLOCKS);
    cast_tile(&a, false);
}
KERNEL(fp8_cast_e5m2, Fp8CastArguments) {
    BLOCK_BOUNDS(THREADS, BLOCKS);
    cast_tile(&a, true);
}
KERNEL(fp8_cast_lines_e4m3, Fp8CastArguments) {
    BLOCK_BOUNDS(THREADS, BLOCKS);
    cast_tile_lines(&a, false);
}
KERNEL(fp8_cast_lines_e5m2, Fp8CastArguments) {
    BLOCK_BOUNDS(THREADS, BLOCKS);
    cast_tile_lines(&a, true);
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/fp8/fp8.h"

LAUNCHER(fp8_amax, Fp8AmaxArguments)
LAUNCHER(fp8_line_amax, Fp8CastArguments)
LAUNCHER(fp8_transpose, Fp8CastArguments)
LAUNCHERS(fp8_cast, Fp8CastArguments, fp8_cast_e4m3, fp8_cast_e5m2, fp8_cast_lines_e4m3, fp8_cast_lines_e5m2, fp8_cast_mx)

GPU_OP(fp8_amax) {
    Fp8Stack s = fp8_call_stack(call->in_shape[FP8_AMAX_X]);
    Fp8AmaxArguments arguments = {.x = call->in[FP8_AMAX_X], .amax = call->out[FP8_AMAX_Y], .units = s.rows * s.columns / UNIT};
    device_fill(call->device, arguments.amax, 0, s.count * (int64_t)sizeof *arguments.amax);
    launch_fp8_amax(
        call->device, (LaunchShape){.x = divide_up(arguments.units, THREADS * AMAX_LOADS), .y = s.count, .threads = THREADS}, &arguments);
}

/* Returns room for the amax of lines: rows, then columns. */
static int64_t fp8_cast_workspace(const Graph *graph, const Node *node) {
    const Tensor *x = graph_get(graph, node->in[FP8_CAST_X]);
    const Fp8CastAttributes *attributes = node->attributes;
    Fp8Stack s = fp8_stack(x->shape, x->rank);
    int64_t lines = (attributes->rows == GEMM_SCALE_LINE ? s.rows : 0) + (attributes->columns == GEMM_SCALE_LINE ? s.columns : 0);
    return s.count * lines * (int64_t)sizeof(float);
}

/* Returns the operand whose quantized values are output `quantized`, if the call has it and
 * `wanted`. */
static CastOperand cast_operand(const OpCall *call, int quantized, bool wanted, int64_t lines, int64_t k) {
    return (CastOperand){.quantized = wanted ? call->out[quantized] : NULL,
        .scales = call->out[quantized + 1],
        .lines = (int32_t)lines,
        .depth = (int32_t)k,
        .groups = (int32_t)divide_up(k, TILE)};
}

static float largest_of_format(const OpCall *call) {
    return fp8_largest(((const Fp8CastAttributes *)call->attributes)->kind, device_info(call->device)->fp8_fnuz);
}

/* Casts by rows, by columns, or both if their scaling is the same; moves values that are already
 * quantized by rows. */
static void cast(const OpCall *call, GemmScaling scaling, bool rows, bool columns) {
    const Fp8CastAttributes *attributes = call->attributes;
    Fp8Stack s = fp8_call_stack(call->in_shape[FP8_CAST_X]);
    bool lines = scaling == GEMM_SCALE_LINE || scaling == GEMM_SCALE_GROUP;
    const int32_t *slots = columns ? call->in[FP8_CAST_TILES] : NULL;
    Fp8CastArguments arguments = {.x = call->absorbs ? call->out[FP8_CAST_ROWS] : call->in[FP8_CAST_X],
        .amax = call->in[FP8_CAST_AMAX],
        .seen = call->absorbs ? NULL : call->out[FP8_CAST_SEEN],
        .found = call->in[FP8_CAST_FOUND],
        .slots = slots,
        .rows = cast_operand(call, FP8_CAST_ROWS, rows, s.rows, s.columns),
        .columns = cast_operand(call, FP8_CAST_COLUMNS, columns, s.columns, slots ? call->out_shape[FP8_CAST_COLUMNS][1] : s.rows),
        .stride = s.columns,
        .largest = largest_of_format(call),
        .scaling = scaling};
    arguments.tiles = (int32_t)(s.count * arguments.columns.groups * arguments.rows.groups);
    LaunchShape shape = {.x = arguments.tiles, .threads = THREADS};
    if (scaling == GEMM_SCALE_LINE) {
        int64_t row_lines = rows ? s.count * s.rows : 0, column_lines = columns ? s.count * s.columns : 0;
        arguments.rows.line_amax = call->workspace;
        arguments.columns.line_amax = arguments.rows.line_amax + row_lines;
        device_fill(call->device, call->workspace, 0, (row_lines + column_lines) * (int64_t)sizeof(float));
        launch_fp8_line_amax(call->device, shape, &arguments);
    }
    if (attributes->coded || call->absorbs) launch_fp8_transpose(call->device, shape, &arguments);
    else launch_fp8_cast(call->device, scaling == GEMM_SCALE_MX ? 4 : (lines ? 2 : 0) + (attributes->kind == FP8_E5M2), shape, &arguments);
}

void fp8_transpose_on_gpu(Device *device, const uint8_t *quantized, int64_t rows, int64_t columns, int64_t stride, uint8_t *to) {
    Fp8CastArguments arguments = {.x = (const bf16 *)quantized,
        .rows = {.lines = (int32_t)rows, .depth = (int32_t)columns, .groups = (int32_t)divide_up(columns, TILE)},
        .columns = {.quantized = to, .lines = (int32_t)columns, .depth = (int32_t)rows, .groups = (int32_t)divide_up(rows, TILE)},
        .stride = stride};
    arguments.tiles = arguments.rows.groups * arguments.columns.groups;
    launch_fp8_transpose(device, (LaunchShape){.x = arguments.tiles, .threads = THREADS}, &arguments);
}

/* Absorbs the node that makes x if scaling is delayed and its kernel can write the quantized
 * values. */
static int absorbs_producer(const Backend *backend, const Graph *graph, int index) {
    const Node *node = &graph->nodes[index], *producer = node - 1;
    const Fp8CastAttributes *a = node->attributes;
    bool tensor = a->rows == GEMM_SCALE_TENSOR && (a->columns == GEMM_SCALE_TENSOR || a->columns == GEMM_SCALE_ONE);
    bool given = tensor && !a->coded && graph_get(graph, node->in[FP8_CAST_AMAX])->arena == ARENA_INPUT;
    if (index == 0 || !given || op_measured(producer) != node->in[FP8_CAST_X] || op_amax(producer)) return 0;
    const OpKernel *kernel = backend->kernels[producer->op];
    return kernel && (kernel->quantizes & FP8_KIND(a->kind));
}

/* Runs the node that makes x, which also writes the quantized values by rows. */
static void run_producer(const OpCall *call) {
    Fp8Output to = {.quantized = call->out[FP8_CAST_ROWS],
        .scale = call->out[FP8_CAST_ROW_SCALES],
        .amax = call->in[FP8_CAST_AMAX],
        .seen = call->out[FP8_CAST_SEEN],
        .largest = largest_of_format(call)};
    OpCall producer = call[-1];
    producer.quantized = &to;
    producer.kernel->run(&producer);
}

GPU_OP(fp8_cast, fp8_cast_workspace, absorbs_producer, .elides = true) {
    const Fp8CastAttributes *attributes = call->attributes;
    bool rows = call->out[FP8_CAST_ROWS], columns = call->out[FP8_CAST_COLUMNS];
    if (call->absorbs) {
        run_producer(call);
        if (columns) cast(call, attributes->columns, false, true);
    } else if (rows && columns && attributes->rows == attributes->columns) cast(call, attributes->rows, true, true);
    else {
        if (rows) cast(call, attributes->rows, true, false);
        if (columns) cast(call, attributes->columns, false, true);
    }
}

#endif
