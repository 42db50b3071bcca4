/* The CPU kernels of balance_loss, over a few hundred numbers. */
#include "backend/cpu/kernel.h"
#include "ops/router/router.h"

CPU_OP(balance_loss) {
    const BalanceLossSpec *spec = call->attributes;
    const W *counts = call->in[BALANCE_LOSS_LOADS], *sums = counts + call->in_shape[BALANCE_LOSS_LOADS][1];
    const W *share = call->in[BALANCE_LOSS_SHARE];
    W *loss = call->out[BALANCE_LOSS_LOSS], dot = 0;
    for (int64_t e = 0; e < spec->experts; e++) dot += counts[e] * sums[e];
    loss[1] += share[0] * ((W)spec->weight * spec->experts * dot / ((W)spec->tokens * spec->k * spec->tokens));
}

CPU_OP(balance_loss_grad) {
    const BalanceLossSpec *spec = call->attributes;
    const W *counts = call->in[BALANCE_LOSS_GRAD_LOADS], *share = call->in[BALANCE_LOSS_GRAD_SHARE];
    int64_t classes = call->in_shape[BALANCE_LOSS_GRAD_LOADS][1];
    W *d_loads = call->out[BALANCE_LOSS_GRAD_D_LOADS];
    W scale = share[0] * (W)spec->weight * spec->experts / ((W)spec->tokens * spec->k * spec->tokens);
    memset(d_loads, 0, 2 * classes * sizeof *d_loads);
    for (int64_t e = 0; e < spec->experts; e++) d_loads[classes + e] = scale * counts[e];
}
