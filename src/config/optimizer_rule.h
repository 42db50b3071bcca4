/* The differences between optimizers: one OptimizerRule each, in src/optim/NAME.c. Settings,
 * layouts, checkpoints, forecasts and the optimizer itself ask the rule; none of them names an
 * optimizer. To add an optimizer, write its files and add its line to config/optimizer_list.h. */
#pragma once

#include "config/config.h"

struct ElementRates;
struct RateTerms;

typedef struct OptimizerRule {
    const char *name; /* "adamw", the value of optimizer.name */
    /* The settings of optimizer.* that this optimizer has and that not all optimizers have, without
     * "optimizer."; NULL ends the list. */
    const char *const *settings;
    bool takes_matrices;    /* updates only hidden projections, each as a whole; AdamW updates all other parameters */
    bool keeps_variance;    /* has a second state per element in addition to the momentum */
    bool quantizes_moments; /* both states of matrices are quantized to 8 bits (optim/adamw_8bit.c); AdamW updates all other parameters */
    /* Elements of the state dtype that an update reads or writes per element of a parameter,
     * including the norm's read of the gradient, excluding 8-bit moments. */
    double moves;
    /* Computes the rates of an element's update (optim/optim_internal.h). NULL if
     * takes_matrices. */
    struct ElementRates (*rates)(const OptimizerConfig *config, const struct RateTerms *terms);
} OptimizerRule;

typedef enum OptimizerName {
#define OPTIMIZER(name, kind) OPTIMIZER_##name,
#include "config/optimizer_list.h"
#undef OPTIMIZER
    OPTIMIZER_COUNT
} OptimizerName;

/* By optimizer.name. */
extern const OptimizerRule *const optimizer_rules[OPTIMIZER_COUNT];
static inline const OptimizerRule *optimizer_of(const OptimizerConfig *config) { return optimizer_rules[config->name]; }
/* Returns the rule of this name, or NULL. */
const OptimizerRule *optimizer_named(const char *name);
/* Returns whether the optimizer lists the setting "optimizer.NAME". */
bool optimizer_has(const OptimizerRule *optimizer, const char *setting);
/* Returns whether a run can continue with `next` from a checkpoint with the state of `last`. */
bool optimizer_may_follow(const OptimizerRule *next, const OptimizerRule *last);
