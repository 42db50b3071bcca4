/* fp8_tiles on a GPU: one block per expert, whose waves count the tiles of the preceding experts,
 * and one more for the unused tiles. Owns no memory. */
#include "backend/gpu/gpu.h"
#include "device/gemm.h"

enum { THREADS = 128, TILE = GEMM_SCALE_GROUP_SIZE };

typedef struct Fp8TilesArguments {
    const int32_t GLOBAL *offset;
    int32_t GLOBAL *slots, *begin;
    int32_t experts, tiles; /* block e has expert e; block `experts` has the unused tiles */
} Fp8TilesArguments;

#ifdef GPU_DEVICE

/* Returns the tiles of one expert: at least one. */
INLINE int32_t tiles_of_expert(const Fp8TilesArguments *a, int32_t expert) {
    int32_t slots = a->offset[expert + 1] - a->offset[expert];
    return slots > 0 ? (slots + TILE - 1) / TILE : 1;
}

KERNEL(fp8_tiles, Fp8TilesArguments) {
    int32_t expert = block_x(), first = 0;
    for (int32_t e = lane_id(); e < expert; e += WAVE) first += tiles_of_expert(&a, e);
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) first += (int32_t)shuffle((uint32_t)first, lane_id() ^ mask);
    bool rest = expert == a.experts;
    int32_t end = rest ? a.tiles : first + tiles_of_expert(&a, expert), slot = a.offset[expert],
            slots = rest ? 0 : a.offset[expert + 1] - slot;
    if (thread_id() == 0) a.begin[expert] = first * (TILE / 2);
    for (int32_t tile = first + thread_id(); tile < end; tile += THREADS) {
        int32_t before = (tile - first) * TILE, left = slots - before;
        a.slots[2 * tile] = rest ? 0 : slot + before;
        a.slots[2 * tile + 1] = rest ? -1 : left < TILE ? left : TILE;
    }
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/fp8/fp8.h"

LAUNCHER(fp8_tiles, Fp8TilesArguments)

GPU_OP(fp8_tiles) {
    Fp8TilesArguments arguments = {.offset = call->in[FP8_TILES_OFFSET],
        .slots = call->out[FP8_TILES_TABLE],
        .begin = call->out[FP8_TILES_BEGIN],
        .experts = (int32_t)call->in_shape[FP8_TILES_OFFSET][0] - 1,
        .tiles = (int32_t)call->out_shape[FP8_TILES_TABLE][0]};
    launch_fp8_tiles(call->device, (LaunchShape){.x = arguments.experts + 1, .threads = THREADS}, &arguments);
}

#endif
