/* Rotary position embedding of packed qkv rows. A thread takes 8 channels and their partners, half the rotated channels away, or, unless it is done in place,
 * copies 8 channels that do not turn: the ends of heads and the values. The table is made by the host once, in double precision as on the CPU. */
#include "backend/gpu/vector.h"

typedef struct RopeArguments {
    const bf16 GLOBAL *x;
    const int32_t GLOBAL *positions;
    const float GLOBAL *table;
    bf16 GLOBAL *y;
    int32_t columns, rotated, dim, half; /* of a row; heads that turn; channels of a head; pairs of a head */
    int32_t places;                      /* of a head: its channels without the partners, in place only those that turn */
    float sign;
    Tiling tiling; /* of a row's places */
} RopeArguments;

#ifdef GPU_DEVICE

INLINE void rope_unit(const RopeArguments *a, int unit) {
    Place place = place_in(a->tiling, unit);
    if (!place.inside) return;
    int head = place.column / a->places, within = place.column - head * a->places;
    bool turns = head < a->rotated && within < a->half;
    /* Behind the pairs of a head, and behind all heads, places skip the partners. */
    int column = head < a->rotated ? head * a->dim + within + (turns ? 0 : a->half) : place.column + a->rotated * a->half;
    int64_t at = place.row * a->columns + column;
    f32x8 x = load8_bf16(a->x + at, unit);
    if (turns) {
        const float GLOBAL *angles = a->table + (int64_t)a->positions[place.row] * 2 * a->half + within;
        f32x8 partner = load8_bf16(a->x + at + a->half, unit), cosine = load8_wide(angles, unit),
              sine = load8_wide(angles + a->half, unit) * a->sign;
        store8_bf16(a->y + at + a->half, partner * cosine + x * sine, unit);
        x = x * cosine - partner * sine;
    }
    store8_bf16(a->y + at, x, unit);
}

KERNEL(rope_8, RopeArguments) { rope_unit(&a, 8); }
KERNEL(rope_1, RopeArguments) { rope_unit(&a, 1); }

#else

#include "base/memory.h"
#include "ops/rope/rope.h"

#include <math.h>
#include <stdlib.h>

LAUNCHER(rope_8, RopeArguments)
LAUNCHER(rope_1, RopeArguments)

GPU_OP(rope_table) {
    const RopeSpec *spec = call->attributes;
    int64_t half = spec->dimensions / 2, bytes = spec->positions * 2 * half * (int64_t)sizeof(float);
    float *table = memory_allocate(bytes);
    for (int64_t i = 0; i < half; i++) {
        double frequency = rope_frequency(spec, i);
        for (int64_t position = 0; position < spec->positions; position++) {
            table[position * 2 * half + i] = (float)cos(position * frequency);
            table[position * 2 * half + half + i] = (float)sin(position * frequency);
        }
    }
    device_upload(call->device, call->out[0], table, bytes);
    free(table);
}

GPU_OP(rope) {
    const RopeAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1], half = call->in_shape[2][1] / 2, dim = attributes->heads.head_dim;
    int64_t rotated = attributes->heads.heads + attributes->heads.kv_heads, unit = half % 8 == 0 && dim % 8 == 0 ? 8 : 1;
    bool in_place = call->out[0] == call->in[0];
    RopeArguments arguments = {.x = call->in[0],
        .positions = call->in[1],
        .table = call->in[2],
        .y = call->out[0],
        .columns = columns,
        .rotated = rotated,
        .dim = dim,
        .half = half,
        .places = in_place ? half : dim - half,
        .sign = attributes->sign,
        .tiling = tile_matrix(rows, in_place ? rotated * half : columns - rotated * half, unit)};
    (unit == 8 ? launch_rope_8 : launch_rope_1)(call->device, tiling_shape(arguments.tiling), &arguments);
}

#endif
