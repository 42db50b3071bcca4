/* Halos on a CPU. */
#include "backend/cpu/kernel.h"
#include "ops/halo/halo.h"

CPU_OP(halo, .rehearse = run_halo) { halo_send(call, sizeof(T)); }

CPU_OP(halo_add) {
    HaloChunks c = halo_chunks(call);
    const T *ends = call->in[HALO_ADD_ENDS];
    T *sum = call->out[HALO_ADD_SUM];
    if (sum != call->in[HALO_ADD_X]) memcpy(sum, call->in[HALO_ADD_X], c.count * c.chunk * sizeof(T));
    sum += c.chunk - c.ends;
    for (int64_t i = 0; i < c.count; i++, sum += c.chunk, ends += c.ends)
        for (int64_t j = 0; j < c.ends; j++) sum[j] = to_compute(to_wide(sum[j]) + to_wide(ends[j]));
}
