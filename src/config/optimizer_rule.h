/* What differs between optimizers: one OptimizerRule each, in src/optim/NAME.c. Settings, layouts, checkpoints, forecasts and the
 * optimizer itself ask the rule; none of them names an optimizer.
 * To add an optimizer: write its files, and add its line to config/optimizer_list.h. */
#pragma once

#include "config/config.h"

struct ElementRates;
struct RateTerms;

typedef struct OptimizerRule {
    const char *name; /* "adamw", of optimizer.name */
    /* The settings of optimizer.* that it has and that not every optimizer has, without "optimizer."; NULL ends the list. */
    const char *const *settings;
    bool takes_matrices; /* updates hidden projections alone, each whole; AdamW updates all other parameters */
    bool keeps_variance; /* has a second state for each element beside the momentum */
    double moves;        /* elements of state dtype that an update reads or writes for each of a parameter, the norm's read included */
    /* The numbers of an update of elements (optim/optim_internal.h). NULL where it takes matrices. */
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
/* The rule of this name; NULL: there is none. */
const OptimizerRule *optimizer_named(const char *name);
/* Whether the optimizer has the setting "optimizer.NAME". */
bool optimizer_has(const OptimizerRule *optimizer, const char *setting);
/* Whether a run can go on with `next` where its checkpoint has the state of `last`. */
bool optimizer_may_follow(const OptimizerRule *next, const OptimizerRule *last);
