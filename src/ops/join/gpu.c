/* join and split on a GPU: blocks process the units of their group, of 16 bytes, or of 2 if parts
 * or addresses do not allow more. A thread has several units in flight, to saturate memory. No
 * scratch. */
#include "backend/gpu/vector.h"

enum { MOST_PARTS = 8, UNITS_EACH = 4, BLOCK_UNITS = UNITS_EACH * TILE_THREADS };

typedef struct JoinArguments {
    char GLOBAL *whole;
    char GLOBAL *parts[MOST_PARTS]; /* NULL: zeros, or not wanted */
    int64_t ends[MOST_PARTS];       /* ends of the parts in a group, in units */
    int64_t units, step;            /* per group; distance of a block to its next units in the group */
    int32_t count, to_parts;
} JoinArguments;

#ifdef GPU_DEVICE

/* Returns the place of unit `at` of the group in its part; 0: the part is absent. Indices of
 * arguments are constants: otherwise NVIDIA's threads would first copy all arguments to local
 * memory. */
INLINE char GLOBAL *part_place(const JoinArguments *a, int64_t group, int64_t at, const int bytes) {
    char GLOBAL *part = a->parts[0];
    int64_t begin = 0, end = a->ends[0];
    UNROLL for (int p = 1; p < MOST_PARTS; p++) if (p < a->count && at >= a->ends[p - 1]) begin = a->ends[p - 1], end = a->ends[p],
                                                                                          part = a->parts[p];
    return part ? part + (group * (end - begin) + at - begin) * bytes : 0;
}

INLINE u32x4 load_join_unit(const char GLOBAL *from, const int bytes) {
    if (!from) return (u32x4){0, 0, 0, 0};
    return bytes == 16 ? *(const u32x4 GLOBAL *)from : (u32x4){*(const uint16_t GLOBAL *)from, 0, 0, 0};
}

INLINE void store_unit(char GLOBAL *to, u32x4 unit, const int bytes) {
    if (bytes == 16) *(u32x4 GLOBAL *)to = unit;
    else *(uint16_t GLOBAL *)to = (uint16_t)unit[0];
}

INLINE void join_group(const JoinArguments *a, const int bytes) {
    int64_t group = block_x();
    char GLOBAL *whole = a->whole + group * a->units * bytes;
    for (int64_t first = (int64_t)block_y() * BLOCK_UNITS + thread_id(); first < a->units; first += a->step) {
        char GLOBAL *to[UNITS_EACH];
        u32x4 units[UNITS_EACH];
        UNROLL for (int e = 0; e < UNITS_EACH; e++) {
            int64_t at = first + e * TILE_THREADS;
            bool inside = at < a->units;
            char GLOBAL *place = inside ? part_place(a, group, at, bytes) : 0;
            char GLOBAL *own = inside ? whole + at * bytes : 0;
            to[e] = a->to_parts ? place : own;
            units[e] = load_join_unit(a->to_parts ? own : place, bytes);
        }
        UNROLL for (int e = 0; e < UNITS_EACH; e++) if (to[e]) store_unit(to[e], units[e], bytes);
    }
}

KERNEL(join_16, JoinArguments) { join_group(&a, 16); }
KERNEL(join_2, JoinArguments) { join_group(&a, 2); }

#else

#include "ops/join/join.h"

LAUNCHERS(join, JoinArguments, join_16, join_2)

enum { MOST_BLOCKS = 32768 }; /* per group: launches have fewer than 65,536 along y */

static void copy_runs(const OpCall *call, void *whole, void *const *parts, bool to_parts) {
    const JoinAttributes *attributes = call->attributes;
    int64_t element = attributes->wide ? sizeof(float) : sizeof(bf16), unit = 16, all = 0;
    static_assert((int)MOST_PARTS == (int)JOIN_MOST_PARTS, "parts");
    for (int i = 0; i < attributes->count; i++)
        if (attributes->elements[i] * element % 16) unit = 2;
    JoinArguments arguments = {.whole = whole, .count = attributes->count, .to_parts = to_parts};
    for (int i = 0; i < attributes->count; i++) {
        arguments.parts[i] = parts[i];
        arguments.ends[i] = all += attributes->elements[i] * element / unit;
    }
    int64_t blocks = int_min(divide_up(all, BLOCK_UNITS), MOST_BLOCKS);
    arguments.units = all;
    arguments.step = blocks * BLOCK_UNITS;
    launch_join(call->device, unit == 2, (LaunchShape){.x = attributes->groups, .y = blocks, .threads = TILE_THREADS}, &arguments);
}

GPU_OP(join) { copy_runs(call, call->out[JOIN_WHOLE], call->in + JOIN_PART, false); }
GPU_OP(split) { copy_runs(call, call->in[SPLIT_WHOLE], call->out + SPLIT_PART, true); }

#endif
