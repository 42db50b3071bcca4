/* The exchange of rows with the ranks of their experts, on a GPU. moe_arrivals uses one block for
 * each expert and each rank that sends it rows, and one for the unused slots; every block reads the
 * offsets, which are in host memory, once. */
#include "backend/gpu/gpu.h"

enum {
    THREADS = 256,
    MOST_OFFSETS = 1024, /* of the experts of one rank and all senders: at most 512 experts on at most as many ranks */
};

/* offsets [ranks, row], starting at the first expert of this rank */
typedef struct MoeArrivalsArguments {
    const int32_t GLOBAL *offsets;
    int32_t GLOBAL *slot, *offset;
    int32_t ranks, row, experts, arrivals;
} MoeArrivalsArguments;

#ifdef GPU_DEVICE

KERNEL(moe_arrivals, MoeArrivalsArguments) {
    static SHARED int32_t offsets[MOST_OFFSETS]; /* [ranks, experts + 1] */
    int32_t width = a.experts + 1, expert = block_x() / a.ranks, rank = block_x() % a.ranks, all = 0, slot = 0, at = 0;
    for (int32_t i = thread_id(); i < a.ranks * width; i += THREADS) offsets[i] = a.offsets[i / width * a.row + i % width];
    barrier();
    for (int32_t r = 0; r < a.ranks; r++) {
        const LOCAL int32_t *of_rank = offsets + r * width;
        int32_t rows = of_rank[a.experts] - of_rank[0];
        all += rows;
        if (expert == a.experts) continue;
        slot += of_rank[expert + (r < rank)] - of_rank[0];
        at += r < rank ? rows : 0;
    }
    if (expert == a.experts) {
        for (int32_t i = all + thread_id(); i < a.arrivals; i += THREADS) a.slot[i] = -1;
        if (thread_id() == 0) a.offset[expert] = all;
        return;
    }
    const LOCAL int32_t *own = offsets + rank * width;
    at += own[expert] - own[0];
    for (int32_t i = thread_id(); i < own[expert + 1] - own[expert]; i += THREADS) a.slot[at + i] = slot + i;
    if (thread_id() == 0 && rank == 0) a.offset[expert] = slot;
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/moe/moe.h"

LAUNCHER(moe_arrivals, MoeArrivalsArguments)

GPU_OP(moe_offsets, moe_offsets_workspace, .rehearse = moe_offsets_rehearse) { moe_offsets_run(call); }
GPU_OP(moe_send, .rehearse = run_moe_send) { moe_send_run(call, false, sizeof(bf16)); }
GPU_OP(moe_send_back, .rehearse = run_moe_send_back) { moe_send_run(call, true, sizeof(bf16)); }

GPU_OP(moe_arrivals) {
    const MoeArrivalsAttributes *attributes = call->attributes;
    int64_t ranks = call->in_shape[MOE_ARRIVALS_OFFSETS][0], experts = call->out_shape[MOE_ARRIVALS_OFFSET][0] - 1;
    assert(ranks * (experts + 1) <= MOST_OFFSETS);
    MoeArrivalsArguments arguments = {.offsets = (const int32_t *)call->in[MOE_ARRIVALS_OFFSETS] + attributes->first,
        .slot = call->out[MOE_ARRIVALS_SLOT],
        .offset = call->out[MOE_ARRIVALS_OFFSET],
        .ranks = (int32_t)ranks,
        .row = (int32_t)call->in_shape[MOE_ARRIVALS_OFFSETS][1],
        .experts = (int32_t)experts,
        .arrivals = (int32_t)call->out_shape[MOE_ARRIVALS_SLOT][0]};
    launch_moe_arrivals(call->device, (LaunchShape){.x = ranks * experts + 1, .threads = THREADS}, &arguments);
}

#endif
