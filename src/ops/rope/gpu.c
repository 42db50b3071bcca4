/* Rotary position embedding of packed qkv rows on a GPU. A thread takes one place of a row: 8 rotated channels and
 * their partners half the rotated channels further on, or 8 channels to copy (the unrotated ends of heads, and the
 * values; none in place). Launch rope_1 takes one channel where 8 do not divide. Where pairs are neighbours, a thread takes 8
 * channels or, in rope_neighbours_2, 2. The host computes the table once, in
 * double precision as on the CPU. No scratch. */
#include "backend/gpu/vector.h"

typedef struct RopeArguments {
    const bf16 GLOBAL *x;
    const int32_t GLOBAL *positions;
    const float GLOBAL *table;
    bf16 GLOBAL *y;
    int32_t columns, rotated, dim, half; /* of a row: columns, rotated heads; of a head: channels, pairs */
    int32_t places;                      /* of a head: its channels less the partners, in place only the pairs */
    float sign;
    Tiling tiling; /* of a row's places */
} RopeArguments;

#ifdef GPU_DEVICE

INLINE void rope_unit(const RopeArguments *a, int unit) {
    Place place = place_in(a->tiling, unit);
    if (!place.inside) return;
    int head = place.column / a->places, within = place.column - head * a->places;
    bool paired = head < a->rotated && within < a->half;
    /* Past the pairs of a head, and past all rotated heads, places skip the partners. */
    int column = head < a->rotated ? head * a->dim + within + (paired ? 0 : a->half) : place.column + a->rotated * a->half;
    int64_t at = place.row * a->columns + column;
    f32x8 x = load8_bf16(a->x + at, unit);
    if (paired) {
        const float GLOBAL *angles = a->table + (int64_t)a->positions[place.row] * 2 * a->half + within;
        f32x8 partner = load8_bf16(a->x + at + a->half, unit), cosine = load8_wide(angles, unit),
              sine = load8_wide(angles + a->half, unit) * a->sign;
        store8_bf16(a->y + at + a->half, partner * cosine + x * sine, unit);
        x = x * cosine - partner * sine;
    }
    store8_bf16(a->y + at, x, unit);
}

UNIT_KERNELS(rope, RopeArguments, rope_unit, 8)

/* Pairs of neighbouring channels; `places` of a head are its channels, in place those that are rotated. */
INLINE void rope_neighbours_unit(const RopeArguments *a, const int unit) {
    Place place = place_in(a->tiling, unit);
    if (!place.inside) return;
    int head = place.column / a->places, within = place.column - head * a->places;
    int64_t at = place.row * a->columns + (head < a->rotated ? head * a->dim + within : place.column);
    const float GLOBAL *angles = a->table + (int64_t)a->positions[place.row] * 2 * a->half + within / 2;
    bool paired = head < a->rotated && within < 2 * a->half;
    u32x4 pairs = unit == 8 ? *(const u32x4 GLOBAL *)(a->x + at) : (u32x4){*(const uint32_t GLOBAL *)(a->x + at)};
    if (paired) {
        f32x4 cosine = load4_wide(angles, unit == 8 ? 4 : 1), sine = load4_wide(angles + a->half, unit == 8 ? 4 : 1) * a->sign;
        UNROLL for (int i = 0; i < unit / 2; i++) {
            float x = to_float_low(pairs[i]), y = to_float_high(pairs[i]);
            pairs[i] = to_bf16_pair(x * cosine[i] - y * sine[i], y * cosine[i] + x * sine[i]);
        }
    }
    if (unit == 8) *(u32x4 GLOBAL *)(a->y + at) = pairs;
    else *(uint32_t GLOBAL *)(a->y + at) = pairs[0];
}

KERNEL(rope_neighbours_8, RopeArguments) { rope_neighbours_unit(&a, 8); }
KERNEL(rope_neighbours_2, RopeArguments) { rope_neighbours_unit(&a, 2); }

#else

#include "base/memory.h"
#include "ops/rope/rope.h"

#include <math.h>
#include <stdlib.h>

TILED_LAUNCHER(rope, RopeArguments, 8)
LAUNCHERS(rope_neighbours, RopeArguments, rope_neighbours_8, rope_neighbours_2)

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

GPU_OP(rope) {
    const RopeAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[ROPE_X][0], columns = call->in_shape[ROPE_X][1], half = call->in_shape[ROPE_TABLE][1] / 2;
    int64_t rotated = attributes->heads.heads + attributes->heads.kv_heads, dim = attributes->heads.head_dim;
    bool in_place = call->out[ROPE_Y] == call->in[ROPE_X];
    RopeArguments arguments = {.x = call->in[ROPE_X],
        .positions = call->in[ROPE_POSITIONS],
        .table = call->in[ROPE_TABLE],
        .y = call->out[ROPE_Y],
        .columns = columns,
        .rotated = rotated,
        .dim = dim,
        .half = half,
        .places = in_place ? half : dim - half,
        .sign = attributes->sign,
        .tiling = tile_matrix(rows, in_place ? rotated * half : columns - rotated * half, half % 8 || dim % 8 ? 1 : 8)};
    if (attributes->pairs == ROPE_HALVES) {
        launch_rope(call->device, &arguments);
        return;
    }
    bool even = half % 4 == 0 && dim % 8 == 0;
    arguments.places = (int32_t)(in_place ? 2 * half : dim);
    arguments.tiling = tile_units(rows, in_place ? rotated * 2 * half : columns, even ? 8 : 2);
    launch_rope_neighbours(call->device, !even, tiling_shape(arguments.tiling), &arguments);
}

#endif
