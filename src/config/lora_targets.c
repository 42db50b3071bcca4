/* The list of lora.targets: "all", or names of groups and of modules between commas. Owns nothing; called by config_check,
 * the layout's rules and the builders of models. */
#include "config/lora_targets.h"

#include <math.h>
#include <string.h>

static const char *const groups[] = {
    [LORA_ATTENTION] = "attention", [LORA_MLP] = "mlp", [LORA_EXPERTS] = "experts", [LORA_ROUTER] = "router"};

static bool is_word(const char *target, size_t length, const char *word) { return strlen(word) == length && !memcmp(target, word, length); }

bool lora_target_is(const char *target, size_t length, const char *module, LoraGroup group) {
    size_t all = strlen(module);
    if (is_word(target, length, groups[group]) || (group != LORA_ROUTER && is_word(target, length, "all"))) return true;
    return length <= all && !memcmp(module + all - length, target, length) && (length == all || module[all - length - 1] == '.');
}

bool lora_selects(const LoraConfig *lora, const char *module, LoraGroup group) {
    if (!lora || !lora->rank) return false;
    for (const char *at = lora->targets;; at++) {
        size_t length = strcspn(at, ",");
        if (lora_target_is(at, length, module, group)) return true;
        at += length;
        if (!*at) return false;
    }
}

double lora_factor(const LoraConfig *lora) { return lora->alpha / (lora->rslora ? sqrt((double)lora->rank) : (double)lora->rank); }

bool lora_check_list(const LoraConfig *lora, Error *error) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    for (const char *at = lora->targets;; at++) {
        size_t length = strspn(at, letters);
        if (!length || (at[length] && at[length] != ','))
            return error_set(error, ERROR_USAGE,
                "lora.targets=%s is no list: give all, or names between commas of groups (attention, mlp, experts, router) and modules "
                "(q_proj,v_proj)",
                lora->targets);
        at += length;
        if (!*at) return true;
    }
}
