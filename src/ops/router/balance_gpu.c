/* The GPU kernels of balance_loss: one block, over a few hundred numbers. */
#include "backend/gpu/gpu.h"

enum { THREADS = 256 };

typedef struct BalanceLossArguments {
    const float GLOBAL *loads, *share; /* loads [2, classes] */
    float GLOBAL *result;              /* the loss, or d_loads */
    float scale;                       /* weight * experts / (tokens * k * tokens) */
    int32_t classes, experts;
} BalanceLossArguments;

#ifdef GPU_DEVICE

KERNEL(balance_loss, BalanceLossArguments) {
    static SHARED float scratch[THREADS / WAVE];
    float dot = 0;
    for (int e = thread_id(); e < a.experts; e += THREADS) dot += a.loads[e] * a.loads[a.classes + e];
    dot = block_sum(dot, scratch, THREADS);
    if (thread_id() == 0) a.result[1] += *a.share * a.scale * dot;
}

KERNEL(balance_loss_grad, BalanceLossArguments) {
    for (int c = thread_id(); c < a.classes; c += THREADS) {
        a.result[c] = 0;
        a.result[a.classes + c] = c < a.experts ? *a.share * a.scale * a.loads[c] : 0;
    }
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/router/router.h"

LAUNCHER(balance_loss, BalanceLossArguments)
LAUNCHER(balance_loss_grad, BalanceLossArguments)

static BalanceLossArguments balance_arguments(
    const BalanceLossSpec *spec, const void *loads, const void *share, void *result, int64_t classes) {
    return (BalanceLossArguments){.loads = loads,
        .share = share,
        .result = result,
        .scale = (float)(spec->weight * (double)spec->experts / ((double)spec->tokens * (double)spec->k * (double)spec->tokens)),
        .classes = (int32_t)classes,
        .experts = (int32_t)spec->experts};
}

GPU_OP(balance_loss) {
    BalanceLossArguments arguments = balance_arguments(call->attributes, call->in[BALANCE_LOSS_LOADS], call->in[BALANCE_LOSS_SHARE],
        call->out[BALANCE_LOSS_LOSS], call->in_shape[BALANCE_LOSS_LOADS][1]);
    launch_balance_loss(call->device, (LaunchShape){.x = 1, .threads = THREADS}, &arguments);
}

GPU_OP(balance_loss_grad) {
    BalanceLossArguments arguments = balance_arguments(call->attributes, call->in[BALANCE_LOSS_GRAD_LOADS],
        call->in[BALANCE_LOSS_GRAD_SHARE], call->out[BALANCE_LOSS_GRAD_D_LOADS], call->in_shape[BALANCE_LOSS_GRAD_LOADS][1]);
    launch_balance_loss_grad(call->device, (LaunchShape){.x = 1, .threads = THREADS}, &arguments);
}

#endif
