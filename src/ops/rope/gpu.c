/* Rotary position embedding of packed qkv rows on a GPU. A thread takes one place of a row: 8
 * rotated channels and their partners half the rotated channels away, or 8 channels to copy (the
 * unrotated ends of heads, and the values; none in place). The kernel rope_1 takes one channel if 8
 * does not divide the widths. For neighboring pairs a thread takes 8 channels or, in
 * rope_neighbors_2, 2. The host computes the table once, in double precision as on the CPU. No
 * scratch.
 *
 * For fp8 (backend/gpu/fp8_output.h) all channels are read, even in place, but unrotated channels
 * are not written in place. The cast tensor is a gradient, so its quantized values are e5m2. */
#include "backend/gpu/fp8_output.h"
#include "backend/gpu/vector.h"

typedef struct RopeArguments {
    const bf16 GLOBAL *x;
    const int32_t GLOBAL *positions;
    const float GLOBAL *table;
    bf16 GLOBAL *y;
    int32_t columns, rotated, dim, half; /* per row: columns, rotated heads; per head: channels, pairs */
    int32_t places;                      /* per head: its channels without the partners, or only the pairs */
    float sign;
    Fp8Output to;  /* for y */
    Tiling tiling; /* of the places of all heads in a row */
} RopeArguments;

/* `tiling`: of all columns, or of the queries alone in place. */
typedef struct QueryScaleArguments {
    const bf16 GLOBAL *x;
    const int32_t GLOBAL *positions;
    bf16 GLOBAL *y;
    int32_t columns, scaled, period;
    float beta; /* times ln 2 */
    Tiling tiling;
} QueryScaleArguments;

#ifdef GPU_DEVICE

INLINE void query_scale_unit(const QueryScaleArguments *a, int unit) {
    UnitPlace place = place_in(a->tiling, unit);
    if (!place.inside) return;
    int64_t at = place.row * a->columns + place.column;
    f32x8 x = load8_bf16(a->x + at, unit);
    if (place.column < a->scaled) x *= 1 + a->beta * fast_log2((float)(1 + a->positions[place.row] / a->period));
    store8_bf16(a->y + at, x, unit);
}
UNIT_KERNELS(query_scale, QueryScaleArguments, query_scale_unit, 8)

INLINE void rope_write(const RopeArguments *a, int unit, Fp8Writer *writer) {
    UnitPlace place = place_in(a->tiling, unit);
    if (!place.inside) return;
    int head = place.column / a->places, within = place.column - head * a->places;
    bool paired = head < a->rotated && within < a->half;
    bf16 GLOBAL *y = a->y;
    if (!paired && y == a->x) y = 0;
    /* After the pairs of a head, and after all rotated heads, places skip the partners. */
    int column = head < a->rotated ? head * a->dim + within + (paired ? 0 : a->half) : place.column + a->rotated * a->half;
    int64_t at = place.row * a->columns + column;
    f32x8 x = load8_bf16(a->x + at, unit);
    if (paired) {
        const float GLOBAL *angles = a->table + (int64_t)a->positions[place.row] * 2 * a->half + within;
        f32x8 partner = load8_bf16(a->x + at + a->half, unit), cosine = load8_wide(angles, unit),
              sine = load8_wide(angles + a->half, unit) * a->sign;
        fp8_store8(writer, a->y, at + a->half, partner * cosine + x * sine, unit, true);
        x = x * cosine - partner * sine;
    }
    fp8_store8(writer, y, at, x, unit, true);
}

/* Rotates pairs of neighboring channels; the `places` of a head are its channels, or only the
 * rotated ones. */
INLINE void rope_neighbors_write(const RopeArguments *a, const int unit, Fp8Writer *writer) {
    UnitPlace place = place_in(a->tiling, unit);
    if (!place.inside) return;
    int head = place.column / a->places, within = place.column - head * a->places;
    int64_t at = place.row * a->columns + (head < a->rotated ? head * a->dim + within : place.column);
    const float GLOBAL *angles = a->table + (int64_t)a->positions[place.row] * 2 * a->half + within / 2;
    bool paired = head < a->rotated && within < 2 * a->half;
    bf16 GLOBAL *to = a->y;
    if (!paired && to == a->x) to = 0;
    f32x8 pairs = 0;
    if (unit == 8) pairs = load8_bf16(a->x + at, 8);
    else UNROLL for (int i = 0; i < unit; i++) pairs[i] = to_float(a->x[at + i]);
    if (paired) {
        f32x4 cosine = load4_wide(angles, unit == 8 ? 4 : 1), sine = load4_wide(angles + a->half, unit == 8 ? 4 : 1) * a->sign;
        UNROLL for (int i = 0; i < unit / 2; i++) {
            float x = pairs[2 * i], y = pairs[2 * i + 1];
            pairs[2 * i] = x * cosine[i] - y * sine[i], pairs[2 * i + 1] = y * cosine[i] + x * sine[i];
        }
    }
    if (unit == 8) fp8_store8(writer, to, at, pairs, 8, true);
    else UNROLL for (int i = 0; i < unit; i++) fp8_store4(writer, to, at + i, (f32x4){pairs[i]}, 1, true);
}

/* Defines kernels NAME_UNIT and NAME_fp8_UNIT. */
#define ROPE_KERNELS(name, unit) \
    KERNEL(name##_##unit, RopeArguments) { \
        Fp8Writer writer = fp8_writer(AS_BF16); \
        name##_write(&a, unit, &writer); \
    } \
    KERNEL(name##_fp8_##unit, RopeArguments) { \
        Fp8Writer writer = fp8_writer(&a.to); \
        name##_write(&a, unit, &writer); \
        fp8_writer_end(&writer); \
    }
ROPE_KERNELS(rope, 8)
ROPE_KERNELS(rope, 1)
ROPE_KERNELS(rope_neighbors, 8)
ROPE_KERNELS(rope_neighbors, 2)

#else

#include "base/memory.h"
#include "ops/rope/rope.h"

#include <math.h>
#include <stdlib.h>

LAUNCHERS(rope, RopeArguments, rope_8, rope_1, rope_fp8_8, rope_fp8_1)
LAUNCHERS(rope_neighbors, RopeArguments, rope_neighbors_8, rope_neighbors_2, rope_neighbors_fp8_8, rope_neighbors_fp8_2)

TILED_LAUNCHER(query_scale, QueryScaleArguments, 8)

GPU_OP(query_scale) {
    const QueryScaleAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[QUERY_SCALE_X][0], columns = call->in_shape[QUERY_SCALE_X][1], scaled = attributes->columns;
    bool in_place = call->in[QUERY_SCALE_X] == call->out[QUERY_SCALE_Y];
    QueryScaleArguments arguments = {.x = call->in[QUERY_SCALE_X],
        .positions = call->in[QUERY_SCALE_POSITIONS],
        .y = call->out[QUERY_SCALE_Y],
        .columns = columns,
        .scaled = scaled,
        .period = attributes->scale.period,
        .beta = attributes->scale.beta * M_LN2,
        .tiling = tile_units(rows, in_place ? scaled : columns, columns % 8 || scaled % 8 ? 1 : 8)};
    launch_query_scale(call->device, &arguments);
}

GPU_OP(rope_table) {
    const RopeSpec *spec = call->attributes;
    int64_t half = spec->dimensions / 2, bytes = spec->positions * 2 * half * (int64_t)sizeof(float);
    float *table = memory_allocate(bytes);
    double factor = rope_attention_factor(spec);
    for (int64_t i = 0; i < half; i++) {
        double frequency = rope_frequency(spec, i, spec->length);
        for (int64_t position = 0; position < spec->positions; position++) {
            double angle = rope_angle(spec, i, position, frequency);
            table[position * 2 * half + i] = (float)(factor * cos(angle));
            table[position * 2 * half + half + i] = (float)(factor * sin(angle));
        }
    }
    device_upload(call->device, call->out[ROPE_TABLE_OUT], table, bytes);
    free(table);
}

GPU_OP(rope, .quantizes = FP8_KIND(FP8_E5M2)) {
    const RopeAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[ROPE_X][0], columns = call->in_shape[ROPE_X][1], half = call->in_shape[ROPE_TABLE][1] / 2;
    int64_t rotated = attributes->heads.heads + attributes->heads.kv_heads, dim = attributes->heads.qk_dim;
    RopeArguments arguments = {.x = call->in[ROPE_X],
        .positions = call->in[ROPE_POSITIONS],
        .table = call->in[ROPE_TABLE],
        .y = call->out[ROPE_Y],
        .columns = columns,
        .rotated = rotated,
        .dim = dim,
        .half = half,
        .sign = attributes->sign,
        .to = fp8_output_of(call, ROPE_AMAX)};
    bool fp8 = fp8_is_wanted(&arguments.to), pairs_alone = arguments.y == arguments.x && !fp8;
    bool halves = attributes->pairs == ROPE_HALVES, wide = halves ? half % 8 == 0 && dim % 8 == 0 : half % 4 == 0 && dim % 8 == 0;
    int64_t pairs = halves ? half : 2 * half, channels = halves ? dim - half : dim, all = halves ? columns - rotated * half : columns;
    arguments.places = (int32_t)(pairs_alone ? pairs : channels);
    arguments.tiling = tile_units(rows, pairs_alone ? rotated * pairs : all, wide ? 8 : halves ? 1 : 2);
    (halves ? launch_rope : launch_rope_neighbors)(call->device, 2 * fp8 + !wide, tiling_shape(arguments.tiling), &arguments);
}

#endif
