/* The table of families, from config/family_list.h, and what their rules share. Owns nothing. */
#include "config/family.h"

#include "config/rule_settings_internal.h"

#define FAMILY(name) extern const FamilyRule family_##name;
#include "config/family_list.h"
#undef FAMILY

const FamilyRule *const family_rules[] = {
#define FAMILY(name) &family_##name,
#include "config/family_list.h"
#undef FAMILY
};
const int family_count = sizeof family_rules / sizeof *family_rules;

bool family_has(const FamilyRule *family, const char *setting) { return rule_lists(family->settings, "model.", setting); }

bool family_check_width(const ModelConfig *model, Error *error) {
    return model->heads * model->head_dim == model->width ||
           error_set(error, ERROR_USAGE,
               "model.heads=%lld x model.head_dim=%lld must equal model.width=%lld in family %s: remove model.head_dim",
               (long long)model->heads, (long long)model->head_dim, (long long)model->width, family_of(model)->name);
}

bool family_check_key_heads(const ModelConfig *model, Error *error) {
    return model->kv_heads == model->heads ||
           error_set(error, ERROR_USAGE,
               "model.kv_heads=%lld differs from model.heads=%lld, but family %s has no grouped-query attention: set model.kv_heads=%lld",
               (long long)model->kv_heads, (long long)model->heads, family_of(model)->name, (long long)model->heads);
}

bool family_check_gates(const ModelConfig *model, const char *name, Error *error) {
    return model->renormalise ||
           error_set(
               error, ERROR_USAGE, "model.renormalise=false does not work for %s, whose gates sum to 1: set model.renormalise=true", name);
}

bool family_norms_all_heads(const ModelConfig *model) {
    const FamilyRule *family = family_of(model);
    return family->norms_all_heads && (model->qk_norm || !family_has(family, "model.qk_norm"));
}

int64_t family_cached_positions(const ModelConfig *model) {
    bool restarts = family_of(model)->restarts_longrope && model->rope_factor > 1 && model->rope_scaling == ROPE_LONGROPE;
    return restarts && model->rope_original_context < model->context ? model->rope_original_context : model->context;
}

bool family_check_delta(const ModelConfig *model, Error *error) {
    if (model->delta_heads % model->delta_key_heads)
        return error_set(error, ERROR_USAGE, "model.delta_key_heads=%lld does not divide model.delta_heads=%lld: change one of them",
            (long long)model->delta_key_heads, (long long)model->delta_heads);
    return !model->window || error_set(error, ERROR_USAGE, "model.window=%lld: attention of family %s has no window: set it to 0",
                                 (long long)model->window, family_of(model)->name);
}

bool family_check_fused_norms(const ModelConfig *model, Error *error) {
    return (model->width % 4 == 0 && model->width <= 8192) ||
           error_set(error, ERROR_USAGE, "model.width=%lld: family %s takes multiples of 4, at most 8192", (long long)model->width,
               family_of(model)->name);
}
