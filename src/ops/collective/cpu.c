/* Collectives on a CPU. */
#include "backend/cpu/kernel.h"
#include "ops/collective/collective.h"

CPU_OP(all_gather, .rehearse = run_all_gather) { collective_all_gather(call, sizeof(T), sizeof(W)); }
CPU_OP(reduce_scatter, .rehearse = run_reduce_scatter) { collective_reduce_scatter(call, sizeof(T), sizeof(W)); }
CPU_OP(gather_columns, collective_columns_workspace, .rehearse = run_gather_columns) {
    collective_gather_columns(call, sizeof(T), sizeof(W));
}
CPU_OP(all_reduce, .rehearse = run_all_reduce) { collective_all_reduce(call, sizeof(T), sizeof(W)); }
