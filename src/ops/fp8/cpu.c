/* fp8 on a CPU: exact emulation of matrix units (backend/cpu/cpu_gemm_fp8.c). Matrices are cast in
 * tiles of 128 x 128, the size of the largest group of elements that share a scale; threads divide
 * rows of tiles. Operands by columns and by rows differ only in how a tile is read. */
#include "backend/cpu/kernel.h"
#include "base/float8.h"
#include "ops/fp8/fp8.h"

enum { SIZE = GEMM_SCALE_GROUP_SIZE };

/* Returns the larger of two absolute values, with NaN above all: their bits have this order. */
static inline W larger_value(W a, W b) { return b > a || b != b ? b : a; }
static inline uint32_t bits_max(uint32_t a, uint32_t b) { return a > b ? a : b; }

CPU_OP(fp8_amax) {
    Fp8Stack s = fp8_call_stack(call->in_shape[FP8_AMAX_X]);
    W *amax = call->out[FP8_AMAX_Y];
    for (int64_t m = 0; m < s.count; m++)
        amax[m] = kernel_amax((const T *)call->in[FP8_AMAX_X] + m * s.rows * s.columns, s.rows * s.columns);
}

/* One operand of a matrix: line i, element k is x[i * line_stride + k * depth_stride]. `tiles`
 * (fp8_tiles) is set for slots of experts by columns: each 128 elements k are the slots that the
 * table gives, then zeros; elements from `end` on are unused. */
typedef struct CpuOperand {
    const T *x;
    const int32_t *tiles; /* or NULL */
    int64_t lines, k, end, line_stride, depth_stride;
    Fp8Format format;
    float largest;
    GemmScaling scaling;
    float amax; /* of the matrix */
    bool looks; /* whether to compute the amax */
    uint8_t *quantized;
    W *scales;
} CpuOperand;

typedef struct CastTile {
    int64_t first, lines, at, depth; /* of the operand */
    float x[SIZE][SIZE];             /* by line */
} CastTile;

/* The rows of x that an operand by columns has from element `at` on. */
typedef struct Rows { int64_t first, count; } Rows;
static inline Rows rows_at(const CpuOperand *o, int64_t at) {
    const int32_t *tile = o->tiles ? o->tiles + 2 * (at / SIZE) : NULL;
    return tile ? (Rows){tile[0], tile[1]} : (Rows){at, int_min(SIZE, o->k - at)};
}

static void read_tile(const CpuOperand *o, CastTile *tile) {
    Rows rows = rows_at(o, tile->at);
    const T *from = o->x + tile->first * o->line_stride + rows.first * o->depth_stride;
    if (o->depth_stride == 1) {
        for (int64_t i = 0; i < tile->lines; i++)
            for (int64_t k = 0; k < tile->depth; k++) tile->x[i][k] = (float)to_wide(from[i * o->line_stride + k]);
    } else {
        for (int64_t k = 0; k < rows.count; k++)
            for (int64_t i = 0; i < tile->lines; i++) tile->x[i][k] = (float)to_wide(from[k * o->depth_stride + i]);
        for (int64_t i = 0; i < tile->lines; i++)
            for (int64_t k = rows.count; k < tile->depth; k++) tile->x[i][k] = 0;
    }
}

/* Returns the amax of a part of a line, without its NaNs: they become NaN with any scale. */
static float part_amax(const CastTile *tile, int64_t line, int64_t at, int64_t count) {
    const float *x = tile->x[line] + at;
    float most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t k = 0; k < count; k++) most = fabsf(x[k]) > most ? fabsf(x[k]) : most;
    return most;
}
static float line_amax(const CastTile *tile, int64_t line) { return part_amax(tile, line, 0, tile->depth); }

static float tile_amax(const CastTile *tile) {
    float most = 0;
    for (int64_t i = 0; i < tile->lines; i++) most = fmaxf(most, line_amax(tile, i));
    return most;
}

/* Returns the bits of the amax; their order is that of the numbers, with NaN above all. */
static uint32_t tile_amax_bits(const CastTile *tile) {
    uint32_t most = 0;
    for (int64_t i = 0; i < tile->lines; i++) {
#pragma omp simd reduction(max : most)
        for (int64_t k = 0; k < tile->depth; k++) {
            uint32_t bits = float_to_bits(tile->x[i][k]) & 0x7fffffff;
            most = bits > most ? bits : most;
        }
    }
    return most;
}

static void write_cast_part(const CpuOperand *o, const CastTile *tile, int64_t line, int64_t at, int64_t count, float m) {
    uint8_t *restrict quantized = o->quantized + (tile->first + line) * o->k + tile->at + at;
    const float *restrict x = tile->x[line] + at;
    Fp8Format format = o->format;
#pragma omp simd
    for (int64_t k = 0; k < count; k++) quantized[k] = fp8_from_float(x[k] * m, format);
}

/* Casts a line of the tile in groups of elements along k, each with its own scale. */
static void write_groups(const CpuOperand *o, const CastTile *tile, int64_t line) {
    int64_t size = gemm_scale_size(o->scaling), groups = (o->k + size - 1) / size;
    for (int64_t at = 0; at < tile->depth; at += size) {
        int64_t count = int_min(size, tile->depth - at);
        float m = fp8_multiplier(part_amax(tile, line, at, count), o->largest, true);
        o->scales[(tile->first + line) * groups + (tile->at + at) / size] = 1 / m;
        write_cast_part(o, tile, line, at, count, m);
    }
}

/* Casts lines [first, first + lines), at most SIZE of them. Returns the bits of their amax if the
 * operand computes it, else 0. */
static uint32_t cast_lines(const CpuOperand *o, int64_t first, int64_t lines) {
    CastTile tile = {.first = first, .lines = lines};
    uint32_t most = 0;
    float line_m[SIZE], m = fp8_multiplier(o->amax, o->largest, false);
    int64_t groups = (o->k + SIZE - 1) / SIZE;
    for (int64_t i = 0; i < lines; i++) line_m[i] = 0;
    for (tile.at = 0; tile.at < o->end && o->scaling == GEMM_SCALE_LINE; tile.at += SIZE) {
        tile.depth = int_min(SIZE, o->k - tile.at);
        read_tile(o, &tile);
        for (int64_t i = 0; i < lines; i++) line_m[i] = fmaxf(line_m[i], line_amax(&tile, i));
    }
    for (int64_t i = 0; i < lines && o->scaling == GEMM_SCALE_LINE; i++) {
        line_m[i] = fp8_multiplier(line_m[i], o->largest, true);
        o->scales[first + i] = 1 / line_m[i];
    }
    for (tile.at = 0; tile.at < o->end; tile.at += SIZE) {
        tile.depth = int_min(SIZE, o->k - tile.at);
        read_tile(o, &tile);
        if (o->looks) most = bits_max(most, tile_amax_bits(&tile));
        if (o->scaling == GEMM_SCALE_BLOCK) {
            m = fp8_multiplier(tile_amax(&tile), o->largest, true);
            o->scales[first / SIZE * groups + tile.at / SIZE] = 1 / m;
        }
        for (int64_t i = 0; i < lines; i++) {
            if (o->scaling == GEMM_SCALE_GROUP || o->scaling == GEMM_SCALE_MX) write_groups(o, &tile, i);
            else write_cast_part(o, &tile, i, 0, tile.depth, o->scaling == GEMM_SCALE_LINE ? line_m[i] : m);
        }
    }
    return most;
}

/* Writes values quantized by rows as an operand whose lines are their rows or, with another
 * `line_stride`, their columns. */
static void transpose_quantized(const CpuOperand *o, const uint8_t *quantized) {
#pragma omp parallel for schedule(static)
    for (int64_t line = 0; line < o->lines; line++)
        for (int64_t at = 0; at < o->end; at += SIZE) {
            const uint8_t *from = quantized + line * o->line_stride + rows_at(o, at).first * o->depth_stride;
            int64_t there = o->tiles ? rows_at(o, at).count : SIZE;
            for (int64_t k = 0; k < int_min(SIZE, o->k - at); k++)
                o->quantized[line * o->k + at + k] = k < there ? from[k * o->depth_stride] : 0;
        }
}

/* Returns the elements along k by columns: those of the tiles that experts have. */
static int64_t end_of_tiles(const int32_t *tiles, int64_t count) {
    while (tiles[2 * count - 1] < 0) count--;
    return count * SIZE;
}

static void cast_operand(const CpuOperand *o, W *seen) {
    uint32_t most = 0;
#pragma omp parallel for schedule(static) reduction(max : most)
    for (int64_t first = 0; first < o->lines; first += SIZE) most = bits_max(most, cast_lines(o, first, int_min(SIZE, o->lines - first)));
    if (o->looks) *seen = larger_value(*seen, (W)float_from_bits(most));
}

/* Casts matrix `index` of x into the operand whose quantized values are output `quantized`, if the call
 * has it. */
static void cast_matrix(const OpCall *call, int64_t index, int quantized) {
    const Fp8CastAttributes *attributes = call->attributes;
    Fp8Stack s = fp8_call_stack(call->in_shape[FP8_CAST_X]);
    bool rows = quantized == FP8_CAST_ROWS, fnuz = device_info(call->device)->fp8_fnuz;
    if (!call->out[quantized]) return;
    const int32_t *tiles = rows ? NULL : call->in[FP8_CAST_TILES];
    int64_t depth = tiles ? call->out_shape[quantized][1] : s.rows;
    CpuOperand o = {.x = (const T *)call->in[FP8_CAST_X] + index * s.rows * s.columns,
        .looks = call->out[FP8_CAST_SEEN] && (rows || !call->out[FP8_CAST_ROWS]), /* once */
        .lines = rows ? s.rows : s.columns,
        .k = rows ? s.columns : depth,
        .end = rows    ? s.columns
               : tiles ? end_of_tiles(tiles, depth / SIZE)
                       : depth,
        .tiles = tiles,
        .line_stride = rows ? s.columns : 1,
        .depth_stride = rows ? 1 : s.columns,
        .format = fp8_format(attributes->kind, fnuz),
        .largest = fp8_largest(attributes->kind, fnuz),
        .scaling = rows ? attributes->rows : attributes->columns,
        .amax = call->in[FP8_CAST_AMAX] ? (float)((const W *)call->in[FP8_CAST_AMAX])[index] : 0,
        .quantized = (uint8_t *)call->out[quantized] + index * s.rows * s.columns};
    o.scales = (W *)call->out[quantized + 1] + index * gemm_scale_count(o.scaling, o.lines, o.k);
    if (o.scaling == GEMM_SCALE_TENSOR) o.scales[0] = 1 / fp8_multiplier(o.amax, o.largest, false);
    W *seen = o.looks ? (W *)call->out[FP8_CAST_SEEN] + index : NULL;
    if (!attributes->coded) cast_operand(&o, seen);
    else transpose_quantized(&o, (const uint8_t *)call->in[FP8_CAST_X] + index * s.rows * s.columns);
    if (attributes->coded && seen) *seen = larger_value(*seen, ((const W *)call->in[FP8_CAST_FOUND])[index]);
}

CPU_OP(fp8_cast) {
    for (int64_t i = 0; i < fp8_call_stack(call->in_shape[FP8_CAST_X]).count; i++) {
        cast_matrix(call, i, FP8_CAST_ROWS);
        cast_matrix(call, i, FP8_CAST_COLUMNS);
    }
}

#if defined KERNEL_FP64
/* Emulated in fp32, because scales are fp32: fp8 is refused in fp64 (config/config.c). */
CPU_OP(fp8_linear) { (void)call, assert(false); }
CPU_OP(fp8_linear_grad_weight) { (void)call, assert(false); }
#else

/* Runs one GEMM per expert: its rows of A, its matrix of B, and the scales of both. */
static void run_fp8_experts(const OpCall *call, const Gemm *all) {
    const int32_t *offset = call->in[FP8_LINEAR_OFFSET];
    int64_t experts = call->in_shape[FP8_LINEAR_B][0], scales = gemm_scale_count(all->scaling_b, all->n, all->k);
    for (int64_t e = 0; e < experts; e++) {
        Gemm g = *all;
        int64_t first = offset[e];
        g.m = offset[e + 1] - first;
        g.a = (const uint8_t *)all->a + first * all->lda;
        g.b = (const uint8_t *)all->b + e * all->n * all->k;
        g.c = (T *)all->c + first * all->ldc;
        g.scale_b = all->scale_b + e * scales;
        if (gemm_scales_lines(all->scaling_a)) g.scale_a = all->scale_a + gemm_scale_count(all->scaling_a, first, all->k);
        if (g.m) device_gemm_fp8(call->device, &g);
    }
    kernel_zero_unused(all->c, offset, experts, all->m, all->n);
}

CPU_OP(fp8_linear) {
    Gemm g = fp8_call_gemm(call, KERNEL_GEMM_COMPUTE);
    if (call->in[FP8_LINEAR_OFFSET]) run_fp8_experts(call, &g);
    else device_gemm_fp8(call->device, &g);
}

static int64_t grad_weight_workspace(const Graph *graph, const Node *node) {
    int64_t scales = graph_elements(graph, node->in[FP8_LINEAR_A_SCALES]) + graph_elements(graph, node->in[FP8_LINEAR_B_SCALES]);
    return node->in[FP8_LINEAR_OFFSET] ? scales * (int64_t)sizeof(W) : 0;
}

/* Returns the scales of elements first .. first + depth - 1 along k of an operand of `lines` lines
 * of k elements. If each line has several scales, it copies them to *to and advances *to past the
 * copy. */
static const float *scales_within(GemmScaling scaling, const W *scales, int64_t lines, int64_t k, int64_t first, int64_t depth, W **to) {
    const int64_t size = gemm_scale_size(scaling), of_line = k / size, wanted = depth / size;
    W *copy = *to;
    if (scaling != GEMM_SCALE_GROUP && scaling != GEMM_SCALE_MX) return scales;
    for (int64_t i = 0; i < lines; i++) memcpy(copy + i * wanted, scales + i * of_line + first / size, wanted * sizeof *copy);
    *to += lines * wanted;
    return copy;
}

/* Runs one GEMM per expert, over its tiles. */
static void run_expert_weights(const OpCall *call, const Gemm *all) {
    const int32_t *offset = call->in[FP8_LINEAR_OFFSET];
    size_t element = all->output == GEMM_F32 ? sizeof(W) : sizeof(T);
    for (int64_t e = 0; e < call->in_shape[FP8_LINEAR_OFFSET][0] - 1; e++) {
        Gemm g = *all;
        W *room = call->workspace;
        int64_t first = 2 * (int64_t)offset[e];
        g.k = 2 * (int64_t)offset[e + 1] - first;
        g.a = (const uint8_t *)all->a + first;
        g.b = (const uint8_t *)all->b + first;
        g.c = (char *)all->c + e * g.m * g.n * (int64_t)element;
        g.scale_a = scales_within(g.scaling_a, all->scale_a, g.m, all->k, first, g.k, &room);
        g.scale_b = scales_within(g.scaling_b, all->scale_b, g.n, all->k, first, g.k, &room);
        device_gemm_fp8(call->device, &g);
    }
}

CPU_OP(fp8_linear_grad_weight, grad_weight_workspace) {
    Gemm g = fp8_call_gemm(call, kernel_gradient_type(call));
    g.accumulate = !call->overwrite;
    if (call->in[FP8_LINEAR_OFFSET]) run_expert_weights(call, &g);
    else device_gemm_fp8(call->device, &g);
}
#endif
