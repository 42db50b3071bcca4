/* Lion (Chen et al., arXiv 2302.06675, algorithm 2): steps of one size along the sign of a momentum. It keeps one state where AdamW
 * keeps two. Steps are larger than AdamW's for the same rate: the paper gives a third to a tenth of AdamW's rate, with as many times
 * its decay.
 *
 *     p = (1 - lr decay) p - lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g */
#include "optim/optim_internal.h"

static ElementRates rates_of_lion(const OptimizerConfig *config, const RateTerms *t) {
    return (ElementRates){
        .scale = t->scale, .beta1 = config->beta1, .beta2 = config->beta2, .step_size = t->lr, .keep = 1 - t->lr * t->decay};
}

static const char *const settings[] = {NULL};

const OptimizerRule optimizer_lion = {.name = "lion", .settings = settings, .moves = 6, .rates = rates_of_lion};
