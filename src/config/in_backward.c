/* An update within the backward pass needs a complete gradient and a known scale as soon as the
 * backward pass has read its weights for the last time. A table lists the settings that prevent
 * this; to add one, add a row. Owns nothing. Called when a session is planned. */
#include "config/in_backward.h"

#include <stdio.h>

#include "base/math.h"

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
/* A sample of reinforcement learning fills at most one sequence. */
static int64_t step_sequences(const Config *config, int64_t groups) {
    return divide_up(config->rl.prompts / config->rl.updates * config->rl.samples, groups);
}
static bool accumulates_samples(const Config *config, int64_t groups) {
    return config->model.policy.loss && step_sequences(config, groups) > config->batch.sequences;
}
static bool records_layers(const Config *config, int64_t groups) {
    (void)groups;
    return config->metrics.layers > 0;
}
static bool has_stages(const Config *config, int64_t groups) {
    (void)groups;
    return config->layout.pp > 1;
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
    {"optimizer.clip", clips, "the global norm is known only after the first updates", none},
    {"batch.tokens", accumulates, "gradient accumulation would need a full set of gradients", single_round},
    {"batch.sequences", accumulates_samples, "the samples of a step may fill several microbatches, whose gradients would accumulate",
        step_sequences},
    {"dump", dumps, "the gradients to write never exist at the same time", NULL},
    {"metrics.layers", records_layers, "the gradients to measure never exist at the same time", none},
    {"layout.pp", has_stages, "pipeline stages accumulate gradients of several microbatches", one},
};

bool in_backward_check(const Config *config, int64_t groups, Error *error) {
    if (!config->optimizer.in_backward) return true;
    for (const Conflict *conflict = conflicts; conflict < conflicts + sizeof conflicts / sizeof *conflicts; conflict++) {
        char value[256], cure[64] = "remove it";
        if (!conflict->given(config, groups)) continue;
        options_format_value(config_find(conflict->name), config, value, sizeof value);
        if (conflict->cure) snprintf(cure, sizeof cure, "set %s=%lld", conflict->name, (long long)conflict->cure(config, groups));
        return error_set(error, ERROR_USAGE,
            "optimizer.in_backward=true does not work with %s=%s: %s; %s, or set optimizer.in_backward=false", conflict->name, value,
            conflict->reason, cure);
    }
    return true;
}
