/* AdamW (Loshchilov and Hutter, arXiv 1711.05101), in the order of torch.optim.AdamW: decay, moments, step. One pass that reads and writes
 * every element once, over all parameters in one parallel loop. Chunks are shared out statically, so that pages touched first by a
 * thread stay with it from step to step. Owns no memory; called by optimizer_step. */
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
    rates[RATES_BALANCE_BIAS] = adamw_rates(0.9, 0.999, 1e-8, config->balance_lr, 0, 1, step);
    rates[RATES_PLAIN] = adamw_rates(config->beta1, config->beta2, config->epsilon, lr, 0, scale, step);
    rates[RATES_DECAYED] = adamw_rates(config->beta1, config->beta2, config->epsilon, lr, config->weight_decay, scale, step);
    size_t kept = optim_state_bytes(optimizer, segment);
    if (optimizer->gpu) {
        OptimArenas arenas = optim_arenas(optimizer, segment, update);
        gpu_adamw(optimizer->device, optimizer->device_chunks + segment->first, segment->end - segment->first, &arenas, rates);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = segment->first; i < segment->end; i++) {
        const Chunk *chunk = &optimizer->chunks[i];
        void *master = optim_at(update->master, chunk->index, kept),
             *weights = update->weights ? optim_at(update->weights, chunk->index, optimizer->compute) : master;
        void *momentum = optim_at(optimizer->momentum, chunk->index, kept),
             *variance = optim_at(optimizer->variance, chunk->second_index, kept);
        const void *gradient = optim_at(update->gradients, chunk->index, kept);
        uint32_t seed = optim_noise_seed(chunk->key, step);
        if (segment->pure_bf16)
            bf16_adamw(optimizer->kernels, &rates[chunk->rates], chunk, seed, master, weights, gradient, momentum, variance);
        else optimizer->kernels->adamw(&rates[chunk->rates], chunk->count, master, weights, gradient, momentum, variance);
    }
}
