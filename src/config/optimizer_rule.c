/* The table of optimizers, from config/optimizer_list.h. Owns nothing. */
#include "config/optimizer_rule.h"

#include <string.h>

#include "config/rule_settings_internal.h"

#define OPTIMIZER(name, kind) extern const OptimizerRule optimizer_##name;
#include "config/optimizer_list.h"
#undef OPTIMIZER

const OptimizerRule *const optimizer_rules[OPTIMIZER_COUNT] = {
#define OPTIMIZER(name, kind) &optimizer_##name,
#include "config/optimizer_list.h"
#undef OPTIMIZER
};

const OptimizerRule *optimizer_named(const char *name) {
    for (int i = 0; i < OPTIMIZER_COUNT; i++)
        if (!strcmp(optimizer_rules[i]->name, name)) return optimizer_rules[i];
    return NULL;
}

bool optimizer_has(const OptimizerRule *optimizer, const char *setting) { return rule_lists(optimizer->settings, "optimizer.", setting); }

/* Returns how much of the model has a variance: nothing; the parameters that an optimizer of
 * matrices leaves to AdamW; everything. */
static int variances(const OptimizerRule *optimizer) { return optimizer->keeps_variance ? 2 : optimizer->takes_matrices; }

bool optimizer_may_follow(const OptimizerRule *next, const OptimizerRule *last) {
    return variances(next) <= variances(last) && next->quantizes_moments == last->quantizes_moments;
}
