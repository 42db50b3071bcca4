/* Rotary position embedding of packed qkv rows on a GPU. A thread takes one place of a row: 8 rotated channels and
 * their partners half the rotated channels further on, or 8 channels to copy (the unrotated ends of heads, and the
 * values; none in place). Launch rope_1 takes one channel where 8 do not divide. The host computes the table once, in
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

#else

#include "base/memory.h"
#include "ops/rope/rope.h"

#include <math.h>
#include <stdlib.h>

TILED_LAUNCHER(rope, RopeArguments, 8)

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
    launch_rope(call->device, &arguments);
}

#endif
