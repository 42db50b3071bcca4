/* The exchange of rows with the ranks of their experts, on a CPU. */
#include "backend/cpu/kernel.h"
#include "ops/moe/moe.h"

CPU_OP(moe_offsets, moe_offsets_workspace, .rehearse = moe_offsets_rehearse) { moe_offsets_run(call); }
CPU_OP(moe_send, .rehearse = run_moe_send) { moe_send_run(call, false, sizeof(T)); }
CPU_OP(moe_send_back, .rehearse = run_moe_send_back) { moe_send_run(call, true, sizeof(T)); }

CPU_OP(moe_arrivals) {
    int64_t ranks = call->in_shape[MOE_ARRIVALS_OFFSETS][0], row = call->in_shape[MOE_ARRIVALS_OFFSETS][1];
    int64_t experts = call->out_shape[MOE_ARRIVALS_OFFSET][0] - 1, arrivals = call->out_shape[MOE_ARRIVALS_SLOT][0];
    const int32_t *offsets = (const int32_t *)call->in[MOE_ARRIVALS_OFFSETS] + ((const MoeArrivalsAttributes *)call->attributes)->first;
    int32_t *slot = call->out[MOE_ARRIVALS_SLOT], *offset = call->out[MOE_ARRIVALS_OFFSET];
    int32_t next = 0;
    for (int64_t e = 0; e < experts; e++) {
        int64_t begin = 0; /* of the rows of each rank for all experts */
        offset[e] = next;
        for (int64_t r = 0; r < ranks; r++) {
            const int32_t *of_rank = offsets + r * row;
            int64_t at = begin + of_rank[e] - of_rank[0];
            for (int32_t i = of_rank[e]; i < of_rank[e + 1]; i++) slot[at++] = next++;
            begin += of_rank[experts] - of_rank[0];
        }
    }
    offset[experts] = next;
    for (int64_t i = next; i < arrivals; i++) slot[i] = -1;
}
