/* An update within the backward pass needs a complete gradient and a known scale as soon as the
 * backward pass has read its weights for the last time. A table lists the settings that prevent
 * this; to add one, add a row. Owns nothing. Called when a session is planned. */
#include "config/in_backward.h"

#include <stdio.h>

typedef struct Conflict {
    const char *name;
    bool (*given)(const Config *config, int64_t groups);
    const char *reason;
    int64_t (*cure)(const Config *config, int64_t groups); /* the value to use; NULL: omit the setting */
} Conflict;

static int64_t microbatch(const Config *config) { return config->batch.sequences * config->data.length; }

static bool clips(const Config *config, int64_t groups) {
    (void)groups;
    return config->optimizer.clip > 0;
}
static bool accumulates(const Config *config, int64_t groups) { return config->batch.tokens > groups * microbatch(config); }
static bool dumps(const Config *config, int64_t groups) {
    (void)groups;
    return config->dump[0];
}
static bool has_stages(const Config *config, int64_t groups) {
    (void)groups;
    return config->layout.pp > 1;
}
static bool shares_gradients(const Config *config, int64_t groups) {
    (void)groups;
    return config->layout.zero > 1;
}

static int64_t none(const Config *config, int64_t groups) {
    (void)config, (void)groups;
    return 0;
}
static int64_t one(const Config *config, int64_t groups) {
    (void)config, (void)groups;
    return 1;
}
static int64_t single_round(const Config *config, int64_t groups) { return groups * microbatch(config); }

static const Conflict conflicts[] = {
    {"optimizer.clip", clips, "the norm of all gradients is known after the first updates", none},
    {"batch.tokens", accumulates, "gradients of several microbatches would have to be kept until the last", single_round},
    {"dump", dumps, "the gradients that it writes are never there together", NULL},
    {"layout.pp", has_stages, "stages of a pipeline keep gradients of several microbatches", one},
    {"layout.zero", shares_gradients, "layout.zero=1 has no gradients to share out then", one},
};

bool in_backward_check(const Config *config, int64_t groups, Error *error) {
    if (!config->optimizer.in_backward) return true;
    for (const Conflict *conflict = conflicts; conflict < conflicts + sizeof conflicts / sizeof *conflicts; conflict++) {
        char value[256], cure[64] = "leave it out";
        if (!conflict->given(config, groups)) continue;
        options_format_value(config_find(conflict->name), config, value, sizeof value);
        if (conflict->cure) snprintf(cure, sizeof cure, "give %s=%lld", conflict->name, (long long)conflict->cure(config, groups));
        return error_set(error, ERROR_USAGE, "optimizer.in_backward=true is not for %s=%s: %s; %s, or optimizer.in_backward=false",
            conflict->name, value, conflict->reason, cure);
    }
    return true;
}
