/* AdamW (adamw.c) with moments of matrices in 8 bits each (Dettmers et al., arXiv 2110.02861):
 * 2.125 bytes per element in place of 8. An update decodes the moments, computes as AdamW does, and
 * encodes them again (quantized_moments_internal.h). Blocks follow the order of a parameter's elements.
 * Embedding and head keep moments in the state dtype, as in the paper; so do vectors, small
 * matrices, and matrices whose rows are not whole blocks. */
#include "optim/optim_internal.h"

static ElementRates rates(const OptimizerConfig *config, const RateTerms *terms) {
    return adamw_rates(config->beta1, config->beta2, config->epsilon, terms);
}

static const char *const settings[] = {"epsilon", NULL};

const OptimizerRule optimizer_adamw_8bit = {
    .name = "adamw_8bit", .settings = settings, .keeps_variance = true, .quantizes_moments = true, .moves = 4, .rates = rates};
