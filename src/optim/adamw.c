/* AdamW (Loshchilov and Hutter, arXiv 1711.05101), in the order of torch.optim.AdamW: decay, moments, step.
 *
 *     m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2
 *     p = (1 - lr decay) p - lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon) */
#include "optim/optim_internal.h"

#include <math.h>

ElementRates adamw_rates(double beta1, double beta2, double epsilon, const RateTerms *t) {
    double bias1 = 1 - pow(beta1, (double)t->step), bias2 = 1 - pow(beta2, (double)t->step);
    return (ElementRates){.scale = t->scale,
        .beta1 = beta1,
        .beta2 = beta2,
        .step_size = t->lr / bias1,
        .inverse_root_bias2 = 1 / sqrt(bias2),
        .epsilon = epsilon,
        .keep = 1 - t->lr * t->decay};
}

static ElementRates rates_of_adamw(const OptimizerConfig *config, const RateTerms *terms) {
    return adamw_rates(config->beta1, config->beta2, config->epsilon, terms);
}

static const char *const settings[] = {"epsilon", NULL};

const OptimizerRule optimizer_adamw = {.name = "adamw", .settings = settings, .keeps_variance = true, .moves = 8, .rates = rates_of_adamw};
