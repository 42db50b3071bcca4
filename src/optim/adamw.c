/* AdamW (Loshchilov and Hutter, arXiv 1711.05101), in the order of torch.optim.AdamW: decay, moments, step. One pass
 * that reads and writes every element once, over all parameters in one parallel loop (optim_cpu.c) or one grid
 * (adamw_gpu.c). Owns no memory; called by optimizer_step. */
#include "optim/optim_internal.h"

#include <math.h>

static AdamwRates adamw_rates(double beta1, double beta2, double epsilon, double lr, double decay, double scale, int64_t step) {
    double bias1 = 1 - pow(beta1, (double)step), bias2 = 1 - pow(beta2, (double)step);
    return (AdamwRates){.scale = scale,
        .beta1 = beta1,
        .beta2 = beta2,
        .step_size = lr / bias1,
        .inverse_root_bias2 = 1 / sqrt(bias2),
        .epsilon = epsilon,
        .keep = 1 - lr * decay};
}

void adamw_step(const Optimizer *optimizer, const Segment *segment, const Update *update) {
    const OptimizerConfig *config = &optimizer->config;
    double lr = update->lr, scale = update->scale;
    int64_t step = update->step;
    AdamwRates rates[RATES_COUNT];
    rates[RATES_BALANCE_BIAS] = adamw_rates(0.9, 0.999, 1e-8, config->balance_lr, 0, optimizer->load_unit, step);
    rates[RATES_PLAIN] = adamw_rates(config->beta1, config->beta2, config->epsilon, lr, 0, scale, step);
    rates[RATES_DECAYED] = adamw_rates(config->beta1, config->beta2, config->epsilon, lr, config->weight_decay, scale, step);
    optimizer->backend->adamw(optimizer, segment, update, rates);
}
