/* join and split on a GPU: a thread copies 16 bytes of the whole, or 2 where parts or addresses do not allow more. No
 * scratch. */
#include "backend/gpu/vector.h"

enum { MOST_PARTS = 8 };

typedef struct JoinArguments {
    char GLOBAL *whole;
    char GLOBAL *parts[MOST_PARTS]; /* NULL: zeros, or not wanted */
    int64_t ends[MOST_PARTS];       /* of the parts in a group, in units */
    int64_t units;                  /* of the whole */
    int32_t count, to_parts;
} JoinArguments;

#ifdef GPU_DEVICE

INLINE void copy_place(char GLOBAL *to, const char GLOBAL *from, bool there, const int bytes) {
    if (bytes == 16) *(u32x4 GLOBAL *)to = there ? *(const u32x4 GLOBAL *)from : (u32x4){0, 0, 0, 0};
    else *(bf16 GLOBAL *)to = there ? *(const bf16 GLOBAL *)from : (bf16)0;
}

INLINE void join_unit(const JoinArguments *a, const int bytes) {
    int64_t i = (int64_t)block_x() * TILE_THREADS + thread_id(), begin = 0;
    if (i >= a->units) return;
    int64_t group = i / a->ends[a->count - 1], at = i % a->ends[a->count - 1];
    char GLOBAL *whole = a->whole + i * bytes, *part = a->parts[0];
    int64_t end = a->ends[0];
    for (int p = 1; p < a->count && at >= end; p++) begin = end, end = a->ends[p], part = a->parts[p];
    char GLOBAL *place = part + (group * (end - begin) + at - begin) * bytes;
    if (!a->to_parts) copy_place(whole, place, part != 0, bytes);
    else if (part) copy_place(place, whole, true, bytes);
}

KERNEL(join_16, JoinArguments) { join_unit(&a, 16); }
KERNEL(join_2, JoinArguments) { join_unit(&a, 2); }

#else

#include "ops/join/join.h"

LAUNCHERS(join, JoinArguments, join_16, join_2)

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
    arguments.units = all * attributes->groups;
    launch_join(call->device, unit == 2, (LaunchShape){.x = divide_up(arguments.units, TILE_THREADS), .threads = TILE_THREADS}, &arguments);
}

GPU_OP(join) { copy_runs(call, call->out[JOIN_WHOLE], call->in + JOIN_PART, false); }
GPU_OP(split) { copy_runs(call, call->in[SPLIT_WHOLE], call->out + SPLIT_PART, true); }

#endif
