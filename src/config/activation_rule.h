/* Activation functions by name, from config/activation_list.h; model.activation selects one. */
#pragma once

#include <stdbool.h>

typedef enum Activation {
    ACTIVATION_AUTO, /* that of the family (FamilyRule.activation) */
#define ACTIVATION(name, ...) ACTIVATION_##name,
#define GATED ACTIVATION
#include "config/activation_list.h"
#undef ACTIVATION
#undef GATED
    ACTIVATION_COUNT
} Activation;

/* The constants of activation functions that have constants. */
typedef struct ActivationTerms { double alpha, limit; } ActivationTerms;

typedef struct ActivationRule {
    const char *name; /* the value of model.activation */
    const char *hf;   /* spellings in config.json, separated by spaces; the first one is written; "": none */
    bool gated;       /* reads rows [gate | up]: one result for two inputs */
} ActivationRule;

/* By Activation. */
extern const ActivationRule activation_rules[ACTIVATION_COUNT];
