/* The table of activation functions, from config/activation_list.h. Owns nothing. */
#include "config/activation_rule.h"

const ActivationRule activation_rules[ACTIVATION_COUNT] = {
    [ACTIVATION_AUTO] = {"auto", "", false},
#define ACTIVATION(name, hf, ...) {#name, hf, false},
#define GATED(name, hf, ...) {#name, hf, true},
#include "config/activation_list.h"
#undef ACTIVATION
#undef GATED
};
