/* fp8_tiles on a CPU: a loop over experts. */
#include "backend/cpu/kernel.h"
#include "ops/fp8/fp8.h"

CPU_OP(fp8_tiles) {
    const int32_t *offset = call->in[FP8_TILES_OFFSET];
    int32_t *tiles = call->out[FP8_TILES_TABLE], *begin = call->out[FP8_TILES_BEGIN], tile = 0;
    int64_t experts = call->in_shape[FP8_TILES_OFFSET][0] - 1, count = call->out_shape[FP8_TILES_TABLE][0];
    for (int64_t e = 0; e < experts; e++) {
        int32_t first = offset[e], end = tile + fp8_expert_tiles(offset[e + 1] - first);
        begin[e] = tile * FP8_TILE_PAIRS;
        for (; tile < end; tile++, first += FP8_TILE_SLOTS) {
            tiles[2 * tile] = first;
            tiles[2 * tile + 1] = (int32_t)int_min(FP8_TILE_SLOTS, offset[e + 1] - first);
        }
    }
    begin[experts] = tile * FP8_TILE_PAIRS;
    for (; tile < count; tile++) tiles[2 * tile] = 0, tiles[2 * tile + 1] = -1;
}
