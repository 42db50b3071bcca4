/* What settings need, over the whole table of options: each either acts in every run, or has rows in the table of needs; and
 * each row names its option in a run that lacks what it needs, and does not in one that has it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/scope.h"
#include "config/family.h"
#include "config/needs.h"
#include "config/optimizer_rule.h"
#include "support/mentions.h"

/* Options that act in every run, or that say so themselves where they cannot: fork and from,
 * model.rope_attention_factor and checkpoint.keep_every are refused by a rule about their value. */
static const char *const always[] = {"run", "init", "seed", "steps", "tokens", "epochs", "fork", "from", "device", "threads", "precision",
    "fp8.recipe", "recompute", "on_nan", "plan", "layout", "hang", "on_event", "metrics.listen", "metrics.file", "metrics.otlp",
    "metrics.layers", "metrics.system", "metrics.price", "tensorboard", "data.train", "data.valid", "data.length", "model.family",
    "model.layers", "model.width", "model.heads", "model.kv_heads", "model.head_dim", "model.ffn", "model.rope_attention_factor",
    "model.norm_epsilon", "batch.last", "batch.sequences", "optimizer.name", "optimizer.lr", "optimizer.beta1", "optimizer.beta2",
    "optimizer.weight_decay", "optimizer.clip", "optimizer.in_backward", "schedule.kind", "schedule.warmup", "log.every",
    "checkpoint.every", "checkpoint.keep", "checkpoint.keep_every", "checkpoint.store", "checkpoint.async", "checkpoint.whole_every",
    "lora.rank", "layout.dp", "layout.tp", "layout.pp", "layout.cp", "layout.ep"};

/* Settings of runs, between which every condition holds in one and fails in another. */
static const char *const runs[] = {"", "model.family=flux", "model.family=flux model.guidance=true", "model.family=flux fp8.recipe=tensor",
    "model.family=flux eval.pictures=2", "model.family=mpt", "model.family=zaya model.experts=4",
    "model.family=zaya model.experts=4 model.window=8", "model.experts=4 model.auxiliary_loss=0.1",
    "model.experts=4 model.experts_period=2", "model.rope_factor=2", "model.rope_factor=2 model.rope_scaling=linear",
    "model.rope_factor=2 model.rope_scaling=yarn", "model.rope_factor=2 model.rope_scaling=longrope", "model.family=olmo model.window=8",
    "model.family=gpt_oss model.experts=4 model.renormalise=true", "model.family=olmo model.window=8 model.window_period=4",
    "model.family=deepseek model.kv_heads=4 model.experts=4", "model.family=gemma", "model.family=gemma model.logit_cap=30",
    "model.family=smollm3", "model.family=qwen3_5", "model.family=qwen3_next model.experts=4 model.shared_experts=1",
    "model.family=granite", "model.family=glm model.experts=4 model.shared_experts=1 model.router_scores=sigmoid",
    "model.family=glm model.experts=4 model.shared_experts=1 model.router_scores=sigmoid model.mtp=1",
    "model.family=deepseek model.kv_heads=4 model.experts=4 model.expert_groups=2 model.rope_factor=2", "init=model",
    "fp8.recipe=tensor fp8.scaling=delayed", "lora.rank=4", "lora.rank=4 model.experts=4", "preference.loss=dpo", "batch.ramp_tokens=16",
    "batch.ramp_steps=16", "optimizer.name=muon", "optimizer.name=lion", "optimizer.weight_decay=0", "schedule.kind=wsd",
    "schedule.kind=wsd schedule.decay=9", "schedule.kind=constant", "eval.every=5", "eval.sample_tokens=0", "plan=true", "layout.pp=2",
    "layout.pp=2 layout.pp_schedule=interleaved", "layout.pp=2 layout.pp_chunks=1", "precision=pure_bf16", "layout.cp=2", "layout.zero=0",
    "precision=fp64", "metrics.file=x", "data.valid=x", "rl.loss=grpo", "rl.loss=dppo", "rl.loss=grpo rl.reward=length",
    "rl.loss=grpo rl.environment=x", "rl.loss=grpo rl.kl_coef=0.1", "rl.loss=ppo", "rl.loss=ppo optimizer.lr=0", "offload=optimizer"};
enum { RUNS = sizeof runs / sizeof *runs };

/* Values, of which every option takes one that is not its default. */
static const char *const values[] = {"true", "delayed", "false", "x", "2", "3", "0.5", "100", "1e6", "0", "fp8", "shared", "best_fit",
    "model", "linear", "dpo", "wsd", "interleaved", "ring", "bf16", "silu", "sigmoid", "grpo", "reward", "skip", "1Gi", "optimizer", "1"};
enum { VALUES = sizeof values / sizeof *values };

static const RunFacts none, all = {true, true, true, true, true, true, true, true, true, true, true, true, true, true, true};

typedef struct Case {
    OptionStrings strings;
    Config config, said;
} Case;

static void case_free(Case *c) { options_free_strings(&c->strings); }

static bool set(Config *config, OptionStrings *strings, const char *name, const char *value) {
    Error error = {0};
    SCOPED_FREE char *assignment = memory_format("%s=%s", name, value);
    return options_set(&config_table, config, strings, assignment, &error);
}

/* A run of these settings; nothing is said yet. */
static void make(Case *c, const char *settings) {
    SCOPED_FREE char *words = memory_copy_string(settings);
    *c = (Case){0};
    options_defaults(&config_table, &c->config, &c->strings);
    options_defaults(&config_table, &c->said, &c->strings);
    char *rest = words;
    for (char *word; (word = strsep(&rest, " "));) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = '\0';
        assert_true(set(&c->config, &c->strings, word, value));
    }
}

static Case made_runs[RUNS];

static int make_runs(void **state) {
    (void)state;
    for (int run = 0; run < RUNS; run++) make(&made_runs[run], runs[run]);
    return 0;
}
static int free_runs(void **state) {
    (void)state;
    for (int run = 0; run < RUNS; run++) case_free(&made_runs[run]);
    return 0;
}

/* Sets the option in the run and says so; false where that is no value, or the default. */
static bool say(Case *c, const Option *option, const char *value) {
    return set(&c->said, &c->strings, option->name, value) && set(&c->config, &c->strings, option->name, value) &&
           !options_is_initial(option, &c->said);
}

/* All that is said against the settings, for the caller to free. */
static char *complaints(const Case *c, const RunFacts *facts) {
    Error refused = {0}, of_layout = {0};
    bool good = needs_check(&c->config, &c->said, &refused), fits = needs_check_layout(&c->config, &c->said, &of_layout);
    SCOPED_FREE char *list = needs_list_idle(&c->config, &c->said, facts);
    return memory_format("%s; %s; %s", good ? "" : refused.message, fits ? "" : of_layout.message, list ? list : "");
}

static bool has_need(const char *name) {
    bool found = false;
    for (size_t i = 0; i < needs_table.count; i++) found = found || !strcmp(needs_table.rows[i].name, name);
    return found;
}

static bool acts_always(const char *name) {
    bool found = false;
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) found = found || !strcmp(always[i], name);
    return found;
}

static void each_option_acts_always_or_has_a_need(void **state) {
    (void)state;
    for (size_t i = 0; i < config_table.count; i++) {
        const char *name = config_table.rows[i].name;
        if (has_need(name) == acts_always(name))
            fail_msg("%s %s", name,
                has_need(name) ? "has a need, and the test says that it acts always" : "is in neither list: add it to needs.c");
    }
    for (size_t i = 0; i < needs_table.count; i++)
        if (!config_find(needs_table.rows[i].name)) fail_msg("%s is no option", needs_table.rows[i].name);
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (!config_find(always[i])) fail_msg("%s is no option", always[i]);
}

/* In some run with some value the row's need is named. */
static bool is_named(const Need *need, bool *acts) {
    const Option *option = config_find(need->name);
    const RunFacts *const facts[] = {NULL, &none, &all};
    bool named = false;
    *acts = false;
    for (int i = 0; i < RUNS * VALUES * 3 && !(named && *acts); i++) {
        const Case *run = &made_runs[i / 3 / VALUES];
        SCOPED(case_free) Case c = {.config = run->config, .said = run->said};
        if (!say(&c, option, values[i / 3 % VALUES])) continue;
        SCOPED_FREE char *said = complaints(&c, facts[i % 3]), *name = memory_format("%s=", need->name), *what = needs_describe(need),
                         *reason = memory_format("has no effect without %s", what);
        const char *at = strstr(said, name), *why = at ? strstr(at, reason) : NULL;
        named = named || why;
        *acts = *acts || (!at && facts[i % 3]);
    }
    return named;
}

static void each_need_names_its_option_where_it_is_not_met_and_there_alone(void **state) {
    (void)state;
    for (size_t i = 0; i < needs_table.count; i++) {
        bool acts;
        SCOPED_FREE char *what = needs_describe(&needs_table.rows[i]);
        if (!is_named(&needs_table.rows[i], &acts)) fail_msg("%s is never said to need %s", needs_table.rows[i].name, what);
        if (!acts) fail_msg("%s=, which needs %s, never acts", needs_table.rows[i].name, what);
    }
}

/* A setting that a rule of families or optimizers lists has a row without a condition of its own. */
static void find_row(const char *group, const char *setting, const char *rule) {
    bool found = false;
    SCOPED_FREE char *name = memory_format("%s.%s", group, setting);
    for (size_t i = 0; i < needs_table.count; i++) found |= !needs_table.rows[i].what && !strcmp(needs_table.rows[i].name, name);
    if (!found) fail_msg("%s has %s, which is no row of rules", rule, name);
}

static void settings_of_rules_are_rows_of_the_table(void **state) {
    (void)state;
    for (size_t i = 0; i < needs_table.count; i++) {
        SCOPED_FREE char *what = needs_describe(&needs_table.rows[i]);
        if (what[strlen(what) - 1] == '=') fail_msg("no rule has %s", needs_table.rows[i].name);
    }
    for (int f = 0; f < family_count; f++)
        for (const char *const *setting = family_rules[f]->settings; *setting; setting++)
            find_row("model", *setting, family_rules[f]->name);
    for (int o = 0; o < OPTIMIZER_COUNT; o++)
        for (const char *const *setting = optimizer_rules[o]->settings; *setting; setting++)
            find_row("optimizer", *setting, optimizer_rules[o]->name);
}

static void what_a_start_did_not_say_is_not_held_against_it(void **state) {
    (void)state;
    for (int run = 0; run < RUNS; run++) {
        for (size_t i = 0; i < config_table.count * VALUES; i++) {
            SCOPED(case_free) Case c = {.config = made_runs[run].config, .said = made_runs[run].said};
            if (!set(&c.config, &c.strings, config_table.rows[i / VALUES].name, values[i % VALUES])) continue;
            SCOPED_FREE char *said = complaints(&c, &none);
            assert_string_equal(said, "; ; ");
        }
    }
}

static void a_warning_names_all_and_a_refusal_the_cure(void **state) {
    (void)state;
    SCOPED(case_free) Case c;
    make(&c, "");
    assert_true(say(&c, config_find("optimizer.momentum"), "0.5") && say(&c, config_find("schedule.decay"), "3") &&
                say(&c, config_find("eval.prompt"), "x") && say(&c, config_find("data.separator"), "x"));
    SCOPED_FREE char *settings = needs_list_idle(&c.config, &c.said, NULL), *start = needs_list_idle(&c.config, &c.said, &none);
    assert_string_equal(settings,
        "optimizer.momentum=0.5 has no effect without optimizer.name=muon; schedule.decay=3 has no effect without schedule.kind=wsd");
    assert_string_equal(start,
        "data.separator=x has no effect without text that the run packs; optimizer.momentum=0.5 has no effect without optimizer.name=muon; "
        "schedule.decay=3 has no effect without schedule.kind=wsd; eval.prompt=x has no effect without validation data whose tokenizer is "
        "known");
    Error error = {0};
    assert_true(say(&c, config_find("lora.start"), "x"));
    assert_false(needs_check(&c.config, &c.said, &error));
    assert_mentions(error.message, "lora.start=x lora.rank");
    assert_true(say(&c, config_find("lora.rank"), "2") && say(&c, config_find("model.clip_qkv"), "3"));
    assert_false(needs_check(&c.config, &c.said, &error));
    assert_mentions(error.message, "model.clip_qkv=3 model.family=mpt model.clip_qkv=0");
}

/* Without a decay wsd stays at its rate, where cosine would fall. */
static void a_schedule_has_an_effect_without_a_decay(void **state) {
    (void)state;
    SCOPED(case_free) Case c;
    make(&c, "");
    assert_true(say(&c, config_find("schedule.kind"), "wsd"));
    SCOPED_FREE char *said = complaints(&c, &none);
    assert_string_equal(said, "; ; ");
}

/* The config.yaml of such a run may be given as a file. */
static void what_is_derived_for_a_model_of_images_may_be_said(void **state) {
    (void)state;
    SCOPED(case_free) Case c;
    Error error = {0};
    make(&c, "model.family=flux");
    assert_true(say(&c, config_find("data.length"), "300") && say(&c, config_find("model.context"), "300") &&
                say(&c, config_find("model.vocabulary"), "320"));
    if (!needs_check(&c.config, &c.said, &error)) fail_msg("%s", error.message);
    assert_true(say(&c, config_find("model.context"), "400"));
    assert_false(needs_check(&c.config, &c.said, &error));
    assert_mentions(error.message, "model.context=400 model.context=0");
}

static void the_help_says_what_an_option_needs(void **state) {
    (void)state;
    char text[OPTIONS_EXPLANATION];
    options_explain(&config_table, config_find("schedule.decay"), text);
    assert_string_equal(text, "length of the linear decay at the end (steps, at least 0; needs schedule.kind=wsd; changes)");
    options_explain(&config_table, config_find("eval.prompt"), text);
    assert_non_null(strstr(text, "needs a text model and eval.sample_tokens and validation data whose tokenizer is known; free)"));
    options_explain(&config_table, config_find("seed"), text);
    assert_null(strstr(text, "needs"));
}

/* Fields that are not settings do not keep what the memory held before. */
static void defaults_zero_fields_that_are_not_settings(void **state) {
    (void)state;
    Config config;
    OptionStrings strings = {0};
    memset(&config, 1, sizeof config);
    options_defaults(&config_table, &config, &strings);
    assert_false(config.model.given_routing);
    assert_false(config.model.fp8.uneven_rows);
    assert_int_equal(config.model.fp8.weights, 0);
    options_free_strings(&strings);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_zero_fields_that_are_not_settings),
        cmocka_unit_test(each_option_acts_always_or_has_a_need),
        cmocka_unit_test(each_need_names_its_option_where_it_is_not_met_and_there_alone),
        cmocka_unit_test(settings_of_rules_are_rows_of_the_table),
        cmocka_unit_test(what_a_start_did_not_say_is_not_held_against_it),
        cmocka_unit_test(a_warning_names_all_and_a_refusal_the_cure),
        cmocka_unit_test(a_schedule_has_an_effect_without_a_decay),
        cmocka_unit_test(what_is_derived_for_a_model_of_images_may_be_said),
        cmocka_unit_test(the_help_says_what_an_option_needs),
    };
    return cmocka_run_group_tests(tests, make_runs, free_runs);
}
