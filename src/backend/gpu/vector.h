/* Several columns of a row as one vector of floats in registers: loads and stores of bf16 and fp32
 * memory, for kernels that are bound by memory bandwidth. `unit` is the number of columns: all that
 * the vector holds, with vector accesses; or 1, in its first element, if widths or addresses do not
 * allow more. It is a constant at every call, so one body of code serves both cases. Owns no
 * memory. */
#pragma once

#include "backend/gpu/gpu.h"

enum { TILE_THREADS = 256 };

/* How blocks of TILE_THREADS threads divide a matrix. A block has one tile: 2^shift threads
 * along a row, and the other threads in further rows. A thread takes `unit` adjacent columns.
 * `tiles` tiles cover a row. */
typedef struct Tiling {
    int64_t rows;
    int32_t columns, shift, tiles, unit;
} Tiling;

#ifdef GPU_DEVICE

typedef struct UnitPlace {
    int64_t row;
    int column;
    bool inside;
} UnitPlace;

/* Returns the place of this thread's unit. */
INLINE UnitPlace place_in(Tiling tiling, int unit) {
    int line = block_x() / tiling.tiles, tile = block_x() - line * tiling.tiles, lane = thread_id() & ((1 << tiling.shift) - 1);
    UnitPlace place = {.row = (int64_t)line * (TILE_THREADS >> tiling.shift) + (thread_id() >> tiling.shift),
        .column = ((tile << tiling.shift) + lane) * unit};
    place.inside = place.row < tiling.rows && place.column < tiling.columns;
    return place;
}

INLINE f32x4 load4_wide(const float GLOBAL *from, int unit) { return unit == 1 ? (f32x4){*from} : *(const f32x4 GLOBAL *)from; }

INLINE f32x4 to_float4(u32x2 bits) {
    return (f32x4){to_float_low(bits.x), to_float_high(bits.x), to_float_low(bits.y), to_float_high(bits.y)};
}

INLINE f32x4 load4_bf16(const bf16 GLOBAL *from, int unit) {
    return unit == 1 ? (f32x4){to_float(*from)} : to_float4(*(const u32x2 GLOBAL *)from);
}

INLINE void store4_wide(float GLOBAL *to, f32x4 x, int unit) {
    if (unit == 1) *to = x.x;
    else *(f32x4 GLOBAL *)to = x;
}

INLINE void store4_bf16(bf16 GLOBAL *to, f32x4 x, int unit) {
    if (unit == 1) *to = to_bf16(x.x);
    else *(u32x2 GLOBAL *)to = (u32x2){to_bf16_pair(x.x, x.y), to_bf16_pair(x.z, x.w)};
}

INLINE float sum4(f32x4 x) { return (x.x + x.y) + (x.z + x.w); }

INLINE f32x8 join(f32x4 low, f32x4 high) { return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7); }

INLINE f32x8 load8_wide(const float GLOBAL *from, int unit) {
    return unit == 1 ? (f32x8){*from} : join(load4_wide(from, 4), load4_wide(from + 4, 4));
}

INLINE f32x8 load8_bf16(const bf16 GLOBAL *from, int unit) {
    if (unit == 1) return (f32x8){to_float(*from)};
    u32x4 bits = *(const u32x4 GLOBAL *)from;
    return join(to_float4(bits.lo), to_float4(bits.hi));
}

INLINE void store8_wide(float GLOBAL *to, f32x8 x, int unit) {
    if (unit == 1) *to = x[0];
    else {
        store4_wide(to, x.lo, 4);
        store4_wide(to + 4, x.hi, 4);
    }
}

INLINE void store8_bf16(bf16 GLOBAL *to, f32x8 x, int unit) {
    if (unit == 1) *to = to_bf16(x[0]);
    else
        *(u32x4 GLOBAL *)to =
            (u32x4){to_bf16_pair(x[0], x[1]), to_bf16_pair(x[2], x[3]), to_bf16_pair(x[4], x[5]), to_bf16_pair(x[6], x[7])};
}

/* KERNEL `name` over a.count elements: calls body(&a, at, unit) for every 8 elements, and one by
 * one at the end. */
#define FLAT_KERNEL(name, Arguments, body)                                                                                                 \
    KERNEL(name, Arguments) {                                                                                                              \
        int64_t at = ((int64_t)block_x() * TILE_THREADS + thread_id()) * 8;                                                                \
        if (at + 8 <= a.count) body(&a, at, 8);                                                                                            \
        else                                                                                                                               \
            for (; at < a.count; at++) body(&a, at, 1);                                                                                    \
    }

/* Defines the kernels name_UNIT and name_1, which call body(&a, unit) with UNIT columns per
 * thread and with one. */
#define UNIT_KERNELS(name, Arguments, body, unit)                                                                                         \
    KERNEL(name##_##unit, Arguments) { body(&a, unit); }                                                                                   \
    KERNEL(name##_1, Arguments) { body(&a, 1); }

#else

#include "backend/gpu/kernel_launch.h"

/* launch_NAME(device, &arguments): launches the kernel of UNIT_KERNELS for the units of
 * arguments->tiling. */
#define TILED_LAUNCHER(name, Arguments, most) \
    LAUNCHERS(name##_tiled, Arguments, name##_##most, name##_1) \
    static void launch_##name(Device *device, const Arguments *arguments) { \
        launch_##name##_tiled(device, arguments->tiling.unit == 1, tiling_shape(arguments->tiling), arguments); \
    }

static inline LaunchShape flat_shape(int64_t count) {
    return (LaunchShape){.x = divide_up(count, 8 * TILE_THREADS), .threads = TILE_THREADS};
}

/* Returns a tiling in units of `unit` columns, which must divide the columns of the matrix. */
static inline Tiling tile_units(int64_t rows, int64_t columns, int unit) {
    int shift = 0;
    while (1 << shift < TILE_THREADS && (int64_t)unit << shift < columns) shift++;
    return (Tiling){.rows = rows, .columns = columns, .shift = shift, .tiles = divide_up(columns, (int64_t)unit << shift), .unit = unit};
}

/* Returns a tiling in units of `most` columns if they divide the columns of the matrix, otherwise
 * of one. */
static inline Tiling tile_matrix(int64_t rows, int64_t columns, int most) { return tile_units(rows, columns, columns % most ? 1 : most); }

static inline LaunchShape tiling_shape(Tiling tiling) {
    return (LaunchShape){.x = divide_up(tiling.rows, TILE_THREADS >> tiling.shift) * tiling.tiles, .threads = TILE_THREADS};
}

#endif
