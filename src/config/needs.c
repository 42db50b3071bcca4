/* The table of the conditions under which settings have an effect. A setting for another kind of
 * run (family, adapters, fp8, pairs, layout) is refused, because the user meant another run. A
 * setting that waits for another choice only gets a warning, so that one file can serve several
 * choices. Disabling an absent feature is not an error. Owns nothing. Called after a command has
 * read its settings, and when a run starts. */
#include "config/needs.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "config/family.h"
#include "config/optimizer_rule.h"
#include "config/policy_rule.h"
#include "config/rule_settings_internal.h"

/* -- Conditions ---------------------------------------------------------------------------------------------------- */

static bool policy_has(const Config *config, PolicyObjective objective) {
    return config->model.policy.loss && policy_rule(&config->model.policy)->objective == objective;
}

#define CONDITION(name, value) \
    static bool name(const Config *config, const RunFacts *facts) { \
        (void)config, (void)facts; \
        return value; \
    }

CONDITION(is_text, !family_of(&config->model)->makes_images)
CONDITION(makes_images, family_of(&config->model)->makes_images)
/* The configuration that a run of images writes contains the values that it derived. */
CONDITION(has_vocabulary, is_text(config, facts) || config->model.vocabulary == CONFIG_BYTE_ROWS)
CONDITION(has_context, is_text(config, facts) || config->model.context == config->data.length)

CONDITION(has_window, config->model.window > 0)
CONDITION(mixes_windows, config->model.window > 0 && config->model.window_period > 1)
CONDITION(has_experts, config->model.experts > 0)
CONDITION(has_groups, config->model.expert_groups > 1)
CONDITION(mixes_layers, model_mixes_layers(&config->model))
CONDITION(has_prediction_layer, config->model.mtp > 0)
CONDITION(balances_experts, config->model.experts > 0 && config->model.auxiliary_loss > 0)
CONDITION(stretches, config->model.rope_factor > 1)
CONDITION(stretches_by_parts, config->model.rope_factor > 1 && config->model.rope_scaling == ROPE_LLAMA3)
CONDITION(stretches_from_context, config->model.rope_factor > 1 && config->model.rope_scaling != ROPE_LINEAR)
CONDITION(is_yarn, config->model.rope_factor > 1 && config->model.rope_scaling == ROPE_YARN)
CONDITION(is_longrope, config->model.rope_factor > 1 && config->model.rope_scaling == ROPE_LONGROPE)
CONDITION(has_new_weights, !config->init[0])
CONDITION(has_guidance, config->model.guidance)

CONDITION(has_recipe, config->model.fp8.recipe != FP8_NONE)
CONDITION(is_delayed, config->model.fp8.scaling == FP8_DELAYED)
CONDITION(has_adapters, config->lora.rank > 0)
CONDITION(trains_all, config->lora.rank == 0)
CONDITION(has_pairs, config->model.preference.loss != PREFERENCE_NONE)
CONDITION(is_dpo, config->model.preference.loss == PREFERENCE_DPO)

CONDITION(has_policy, config->model.policy.loss)
CONDITION(has_environment, config->model.policy.loss && config->rl.environment[0])
CONDITION(has_reward, has_environment(config, facts) || (config->model.policy.loss && config->rl.reward[0]))
CONDITION(has_batches, !config->model.policy.loss)
CONDITION(has_dual, policy_has(config, POLICY_CLIP))
CONDITION(has_penalty, policy_has(config, POLICY_DIFFERENCE))
CONDITION(follows_rewards, config->model.policy.loss &&policy_rule(&config->model.policy)->advantage != ADVANTAGE_TEACHER)
CONDITION(compares_samples, policy_compares(&config->model.policy))
CONDITION(has_values, policy_has_values(&config->model.policy))
CONDITION(has_rate, config->optimizer.lr > 0)
CONDITION(has_kl, config->model.policy.loss && config->model.policy.kl > 0)
CONDITION(has_reference,
    has_kl(config, facts) || (config->model.policy.loss && policy_rule(&config->model.policy)->advantage == ADVANTAGE_TEACHER))

CONDITION(has_ramp_steps, config->batch.ramp_steps > 0)
CONDITION(has_ramp_tokens, config->batch.ramp_tokens > 0)
CONDITION(decays_weights, config->optimizer.weight_decay > 0)
CONDITION(moves_biases, config->model.experts > 0 || config->optimizer.balance_lr == 0)
CONDITION(is_wsd, config->schedule.kind == SCHEDULE_WSD)
CONDITION(falls, config->schedule.kind != SCHEDULE_CONSTANT && (config->schedule.kind != SCHEDULE_WSD || config->schedule.decay > 0))
CONDITION(evaluates, config->eval.every > 0)
CONDITION(has_sample, config->eval.sample_tokens > 0)
CONDITION(has_pictures, config->eval.pictures > 0)
CONDITION(exports, config->metrics.file[0] || config->metrics.otlp[0] || getenv("KUBEFLOW_TRAINER_SERVER_URL")) /* run/exporter.c */
CONDITION(trains, config->plan == PLAN_NONE)

CONDITION(is_staged, config->layout.pp > 1)
CONDITION(has_chunks, (config->layout.pp > 1 && config->layout.pp_schedule == PIPELINE_INTERLEAVED) || config->layout.pp_chunks <= 1)
CONDITION(is_context, config->layout.cp > 1)
CONDITION(is_sharded, config->layout.zero > 0)
/* One chunk per stage is 1f1b. */
CONDITION(is_interleaved, config->layout.pp_schedule != PIPELINE_INTERLEAVED || config->layout.pp_chunks != 1)
/* pure_bf16 reduces in bf16. */
CONDITION(may_reduce, config->precision == PRECISION_BF16 || config->precision == PRECISION_FP32 ||
                          (config->precision == PRECISION_PURE_BF16 && config->layout.reduce == REDUCE_BF16))

CONDITION(is_exact_in_type, !config->exact || config->model.fp8.recipe == FP8_NONE)
CONDITION(is_exact_in_layout, !config->exact || (config->layout.tp <= 1 && config->layout.cp <= 1))
CONDITION(is_exact_in_head, !config->exact || config->model.logit_cap == 0)

CONDITION(ends_later, config->stop_at <= config->steps)
CONDITION(has_device_memory, !facts->has_cpu)
CONDITION(keeps_whole_state, !config_offloads_state(config))
CONDITION(multiplies_bf16, facts->has_cpu && config->precision != PRECISION_FP32 && config->precision != PRECISION_FP64)
CONDITION(keeps_quantized, facts->has_rounds)
CONDITION(has_bucket, facts->has_bucket)
CONDITION(packs, facts->packs)
CONDITION(packs_by_tokenizer, facts->packs && facts->has_tokenizer)
CONDITION(splits, (facts->splits && !config->data.valid[0] && config->data.valid_documents <= 0) || config->data.valid_fraction <= 0)
CONDITION(has_valid, facts->has_valid)
CONDITION(writes, (facts->has_valid && facts->writes) || config->eval.sample_tokens == 0)
CONDITION(has_ranks, facts->has_ranks)
CONDITION(repeats, facts->repeats)
/* With in_backward the bucket size bounds the memory of gradients, on one rank too. */
CONDITION(fills_buckets, facts->repeats || config->optimizer.in_backward)
CONDITION(shares_weights, facts->shares_weights)
CONDITION(exceeds_window, facts->exceeds_window)
CONDITION(continues, facts->continues)
CONDITION(leaves_theta, facts->leaves_theta)
CONDITION(leaves_ramp, facts->leaves_ramp)

/* -- The table ----------------------------------------------------------------------------------------------------- */

#define REFUSE .answer = NEED_OR_REFUSE
#define WARN .answer = NEED_OR_WARN
#define START .answer = NEED_AT_START
#define TEXT_ONLY "a text model"
#define IMAGES_ONLY "an image model"
/* The families or optimizers whose rules list the setting. */
#define OF_RULE NULL, NULL

static const Need rows[] = {
    {"stop_at", "steps of at least stop_at", ends_later, START},
    {"fp8.scaling", "fp8.recipe", has_recipe, REFUSE},
    {"fp8.amax_history_len", "fp8.scaling=delayed", is_delayed, REFUSE},
    {"fp8.head", "fp8.recipe", has_recipe, REFUSE},
    {"fp8.head", TEXT_ONLY, is_text, REFUSE},
    {"fp8.keep_weights", "fp8.recipe", has_recipe, REFUSE},
    {"fp8.keep_weights", "several microbatches per step and unsharded weights", keeps_quantized, START},
    {"fp8.min_size", "fp8.recipe", has_recipe, REFUSE},
    {"exact", TEXT_ONLY, is_text, REFUSE},
    {"exact", "fp8.recipe=none", is_exact_in_type, REFUSE},
    {"exact", "layout.tp=1 and layout.cp=1", is_exact_in_layout, REFUSE},
    {"exact", "model.logit_cap=0", is_exact_in_head, REFUSE},
    {"exact_gemm", "bf16 on a CPU", multiplies_bf16, START},
    {"profile", "plan=false", trains, WARN},
    {"dump", TEXT_ONLY, is_text, REFUSE},
    {"dump", "plan=false", trains, WARN},
    {"dump", "offload=none or activations", keeps_whole_state, REFUSE},
    {"routing_trace", "model.experts", has_experts, REFUSE},
    {"routing_trace", "plan=false", trains, WARN},
    {"offload", "a device with memory of its own, not a CPU", has_device_memory, START},

    {"metrics.every", "metrics.file, metrics.otlp or the server of a TrainJob", exports, WARN},

    {"data.cache", TEXT_ONLY, is_text, REFUSE},
    {"data.cache", "data of s3://", has_bucket, START},
    {"data.cache_mib", TEXT_ONLY, is_text, REFUSE},
    {"data.cache_mib", "data of s3://", has_bucket, START},
    {"data.patience", TEXT_ONLY, is_text, REFUSE},
    {"data.patience", "data of s3://", has_bucket, START},
    {"data.valid_fraction", TEXT_ONLY, is_text, REFUSE},
    {"data.valid_fraction", "a single text as data.train, no data.valid and no data.valid_documents", splits, START},
    {"data.valid_documents", TEXT_ONLY, is_text, REFUSE},
    {"data.separator", TEXT_ONLY, is_text, REFUSE},
    {"data.separator", "text that the run packs", packs, START},
    {"data.tokenizer", TEXT_ONLY, is_text, REFUSE},
    {"data.template", TEXT_ONLY, is_text, REFUSE},
    {"data.template", "conversations or pairs of answers that the run packs", packs, START},
    {"data.bos", TEXT_ONLY, is_text, REFUSE},
    {"data.special", TEXT_ONLY, is_text, REFUSE},
    {"data.special", "text that the run packs with a tokenizer other than bytes", packs_by_tokenizer, START},
    {"data.packing", TEXT_ONLY, is_text, REFUSE},
    {"data.document_mask", TEXT_ONLY, is_text, REFUSE},

    {"model.vocabulary", TEXT_ONLY, has_vocabulary, REFUSE},
    {"model.context", TEXT_ONLY, has_context, REFUSE},
    {"model.window", TEXT_ONLY, is_text, REFUSE},
    {"model.window", "a larger data.length", exceeds_window, START},
    {"model.window_period", OF_RULE, REFUSE},
    {"model.window_period", "model.window", has_window, REFUSE},
    {"model.window_first", OF_RULE, WARN},
    {"model.window_first", "model.window", has_window, WARN},
    {"model.window_skips", OF_RULE, REFUSE},
    {"model.window_skips", "model.window and model.window_period above 1", mixes_windows, REFUSE},
    {"model.window_rope_theta", OF_RULE, REFUSE},
    {"model.window_rope_theta", "model.window", has_window, REFUSE},
    {"model.experts", OF_RULE, REFUSE},
    {"model.experts_per_token", "model.experts", has_experts, WARN},
    {"model.experts_first", OF_RULE, REFUSE},
    {"model.experts_first", "model.experts", has_experts, REFUSE},
    {"model.experts_period", OF_RULE, REFUSE},
    {"model.experts_period", "model.experts", has_experts, REFUSE},
    {"model.dense_ffn", OF_RULE, REFUSE},
    {"model.dense_ffn", "layers without experts beside others (model.experts_first, model.experts_period)", mixes_layers, REFUSE},
    {"model.router_width", OF_RULE, WARN},
    {"model.renormalise", "model.experts", has_experts, WARN},
    {"model.router_scores", OF_RULE, REFUSE},
    {"model.expert_groups", OF_RULE, REFUSE},
    {"model.groups_chosen", OF_RULE, REFUSE},
    {"model.groups_chosen", "model.expert_groups above 1", has_groups, REFUSE},
    {"model.gate_scale", OF_RULE, REFUSE},
    {"model.shared_experts", OF_RULE, REFUSE},
    {"model.mtp", OF_RULE, REFUSE},
    {"model.mtp_weight", "model.mtp", has_prediction_layer, WARN},
    {"model.auxiliary_loss", "model.experts", has_experts, WARN},
    {"model.auxiliary_scope", "model.experts and model.auxiliary_loss", balances_experts, WARN},
    {"model.rope_theta", OF_RULE, WARN},
    {"model.rope_theta", "a phase of data.train without rope_theta", leaves_theta, START},
    {"model.rope_fraction", TEXT_ONLY, is_text, REFUSE},
    {"model.rope_fraction", OF_RULE, WARN},
    {"model.nope_period", OF_RULE, REFUSE},
    {"model.rope_scaling", "model.rope_factor above 1", stretches, WARN},
    {"model.rope_factor", TEXT_ONLY, is_text, REFUSE},
    {"model.rope_factor", OF_RULE, WARN},
    {"model.rope_low_frequency", "model.rope_scaling=llama3 and model.rope_factor above 1", stretches_by_parts, WARN},
    {"model.rope_high_frequency", "model.rope_scaling=llama3 and model.rope_factor above 1", stretches_by_parts, WARN},
    {"model.rope_original_context", "model.rope_scaling other than linear and model.rope_factor above 1", stretches_from_context, WARN},
    {"model.rope_beta_fast", "model.rope_scaling=yarn and model.rope_factor above 1", is_yarn, WARN},
    {"model.rope_beta_slow", "model.rope_scaling=yarn and model.rope_factor above 1", is_yarn, WARN},
    {"model.rope_truncate", "model.rope_scaling=yarn and model.rope_factor above 1", is_yarn, WARN},
    {"model.rope_short_factors", "model.rope_scaling=longrope and model.rope_factor above 1", is_longrope, WARN},
    {"model.rope_long_factors", "model.rope_scaling=longrope and model.rope_factor above 1", is_longrope, WARN},
    {"model.q_lora_rank", OF_RULE, REFUSE},
    {"model.kv_lora_rank", OF_RULE, REFUSE},
    {"model.rope_dim", OF_RULE, REFUSE},
    {"model.value_dim", OF_RULE, REFUSE},
    {"model.rope_interleave", OF_RULE, REFUSE},
    {"model.rope_query_scale", OF_RULE, REFUSE},
    {"model.rope_query_scale", "model.rope_scaling other than linear and model.rope_factor above 1", stretches_from_context, REFUSE},
    {"model.delta_heads", OF_RULE, REFUSE},
    {"model.delta_key_heads", OF_RULE, REFUSE},
    {"model.delta_key_dim", OF_RULE, REFUSE},
    {"model.delta_value_dim", OF_RULE, REFUSE},
    {"model.delta_taps", OF_RULE, REFUSE},
    {"model.attention_period", OF_RULE, REFUSE},
    {"model.rope_mscale", OF_RULE, REFUSE},
    {"model.rope_mscale", "model.rope_factor above 1", stretches, WARN},
    {"model.qkv_bias", OF_RULE, REFUSE},
    {"model.qk_norm", OF_RULE, REFUSE},
    {"model.activation", OF_RULE, REFUSE},
    {"model.swiglu_alpha", OF_RULE, REFUSE},
    {"model.swiglu_limit", OF_RULE, REFUSE},
    {"model.clip_qkv", OF_RULE, REFUSE},
    {"model.alibi_max", OF_RULE, WARN},
    {"model.softmax_scale", OF_RULE, REFUSE},
    {"model.embedding_scale", OF_RULE, REFUSE},
    {"model.residual_scale", OF_RULE, REFUSE},
    {"model.logit_divisor", OF_RULE, REFUSE},
    {"model.score_cap", OF_RULE, REFUSE},
    {"model.logit_cap", OF_RULE, REFUSE},
    {"model.init_std", "new weights (no init=FOLDER)", has_new_weights, WARN},
    {"model.tied", TEXT_ONLY, is_text, REFUSE},
    {"model.single_layers", OF_RULE, REFUSE},
    {"model.channels", OF_RULE, REFUSE},
    {"model.text_width", OF_RULE, REFUSE},
    {"model.pooled_width", OF_RULE, REFUSE},
    {"model.text_tokens", OF_RULE, REFUSE},
    {"model.rope_first", OF_RULE, REFUSE},
    {"model.guidance", OF_RULE, REFUSE},
    {"model.padding", OF_RULE, REFUSE},

    {"batch.tokens", "data that fill batches; rl.prompts sets the size of a step of rl.loss", has_batches, REFUSE},
    {"batch.ramp_steps", "data that fill batches (no rl.loss)", has_batches, REFUSE},
    {"batch.ramp_tokens", "batch.ramp_steps", has_ramp_steps, WARN},
    {"batch.ramp_tokens", "a first phase of data.train without its own ramp", leaves_ramp, START},
    {"batch.ramp_steps", "batch.ramp_tokens", has_ramp_tokens, WARN},
    {"batch.ramp_steps", "a first phase of data.train without its own ramp", leaves_ramp, START},

    {"flow.mean", IMAGES_ONLY, makes_images, REFUSE},
    {"flow.deviation", IMAGES_ONLY, makes_images, REFUSE},
    {"flow.shift", IMAGES_ONLY, makes_images, REFUSE},
    {"flow.guidance", IMAGES_ONLY, makes_images, REFUSE},
    {"flow.guidance", "model.guidance=true", has_guidance, REFUSE},
    {"flow.caption_dropout", IMAGES_ONLY, makes_images, REFUSE},

    {"optimizer.decay_vectors", "optimizer.weight_decay", decays_weights, WARN},
    {"optimizer.decay_vectors", "training of all weights", trains_all, REFUSE},
    {"optimizer.epsilon", OF_RULE, WARN},
    {"optimizer.momentum", OF_RULE, WARN},
    {"optimizer.newton_schulz_steps", OF_RULE, WARN},
    {"optimizer.balance_lr", TEXT_ONLY, is_text, REFUSE},
    {"optimizer.balance_lr", "training of all weights", trains_all, REFUSE},
    {"optimizer.balance_lr", "model.experts", moves_biases, WARN},
    {"schedule.decay", "schedule.kind=wsd", is_wsd, WARN},
    {"schedule.minimum", "a decaying schedule.kind", falls, WARN},

    {"eval.every", "validation data", has_valid, START},
    {"eval.sequences", "validation data", has_valid, START},
    {"eval.patience", "eval.every", evaluates, REFUSE},
    {"eval.patience", "validation data", has_valid, START},
    {"eval.sample_tokens", TEXT_ONLY, is_text, REFUSE},
    {"eval.sample_tokens", "validation data whose tokenizer is known", writes, START},
    {"eval.pictures", IMAGES_ONLY, makes_images, REFUSE},
    {"eval.pictures", "data.valid", has_valid, START},
    {"eval.vae", IMAGES_ONLY, makes_images, REFUSE},
    {"eval.vae", "eval.pictures", has_pictures, WARN},
    {"eval.prompt", TEXT_ONLY, is_text, REFUSE},
    {"eval.prompt", "eval.sample_tokens", has_sample, WARN},
    {"eval.prompt", "validation data whose tokenizer is known", writes, START},
    {"checkpoint.keep_best", "eval.every", evaluates, REFUSE},
    {"checkpoint.keep_best", "validation data", has_valid, START},
    {"checkpoint.timeout", "several ranks", has_ranks, START},

    {"lora.alpha", "lora.rank", has_adapters, REFUSE},
    {"lora.rslora", "lora.rank", has_adapters, REFUSE},
    {"lora.targets", "lora.rank", has_adapters, REFUSE},
    {"lora.modules_to_save", "lora.rank", has_adapters, REFUSE},
    {"lora.tokens", "lora.rank", has_adapters, REFUSE},
    {"lora.base", "lora.rank", has_adapters, REFUSE},
    {"lora.start", "lora.rank", has_adapters, REFUSE},
    {"lora.experts", "lora.rank", has_adapters, REFUSE},
    {"preference.loss", TEXT_ONLY, is_text, REFUSE},
    {"preference.beta", "preference.loss", has_pairs, REFUSE},
    {"preference.label_smoothing", "preference.loss=dpo", is_dpo, REFUSE},

    {"rl.loss", TEXT_ONLY, is_text, REFUSE},
    {"rl.reward", "rl.loss", has_policy, REFUSE},
    {"rl.reward_copies", "rl.reward or rl.environment", has_reward, REFUSE},
    {"rl.reward_in_flight", "rl.reward or rl.environment", has_reward, REFUSE},
    {"rl.reward_seconds", "rl.reward or rl.environment", has_reward, REFUSE},
    {"rl.reward_attempts", "rl.reward or rl.environment", has_reward, REFUSE},
    {"rl.code_seconds", "rl.reward", has_reward, REFUSE},
    {"rl.code_memory", "rl.reward", has_reward, REFUSE},
    {"rl.reward_errors", "rl.reward or rl.environment", has_reward, REFUSE},
    {"rl.environment", "rl.loss", has_policy, REFUSE},
    {"rl.turns", "rl.environment", has_environment, REFUSE},
    {"rl.record", "rl.loss", has_policy, REFUSE},
    {"rl.prompts", "rl.loss", has_policy, REFUSE},
    {"rl.samples", "rl.loss", has_policy, REFUSE},
    {"rl.updates", "rl.loss", has_policy, REFUSE},
    {"rl.epochs", "rl.loss", has_policy, REFUSE},
    {"rl.tokens", "rl.loss", has_policy, REFUSE},
    {"rl.slots", "rl.loss", has_policy, REFUSE},
    {"rl.temperature", "rl.loss", has_policy, REFUSE},
    {"rl.refill", "a loss of rl.loss that compares the samples of a prompt", compares_samples, REFUSE},
    {"rl.overlong", "a loss of rl.loss that follows rewards", follows_rewards, REFUSE},
    {"rl.mask_truncated", "rl.loss", has_policy, REFUSE},
    {"rl.clip_low", "rl.loss", has_policy, REFUSE},
    {"rl.clip_high", "rl.loss", has_policy, REFUSE},
    {"rl.kl_coef", "rl.loss", has_policy, REFUSE},
    {"rl.entropy", "rl.loss", has_policy, REFUSE},
    {"rl.clip_dual", "a loss of rl.loss that clips ratios", has_dual, REFUSE},
    {"rl.penalty", "rl.loss=dppo", has_penalty, REFUSE},
    {"rl.vf_coef", "rl.loss=ppo", has_values, REFUSE},
    {"rl.cliprange_value", "rl.loss=ppo", has_values, REFUSE},
    {"rl.gamma", "rl.loss=ppo", has_values, REFUSE},
    {"rl.lam", "rl.loss=ppo", has_values, REFUSE},
    {"rl.whiten", "rl.loss=ppo", has_values, REFUSE},
    {"rl.value_lr", "rl.loss=ppo", has_values, REFUSE},
    {"rl.value_lr", "optimizer.lr above 0, whose schedule it follows", has_rate, REFUSE},
    {"rl.kl", "rl.kl_coef", has_kl, REFUSE},
    {"rl.reference", "rl.kl_coef or rl.loss=distill", has_reference, REFUSE},

    {"layout.pp_schedule", "layout.pp=2 or more", is_staged, REFUSE},
    {"layout.pp_schedule", "layout.pp_chunks other than 1 (one chunk is the schedule 1f1b)", is_interleaved, REFUSE},
    {"layout.pp_chunks", "layout.pp_schedule=interleaved and layout.pp=2 or more", has_chunks, REFUSE},
    {"layout.cp_exchange", "layout.cp=2 or more", is_context, REFUSE},
    {"layout.zero", "replicated weights to shard", shares_weights, START},
    {"layout.shard", "layout.zero=1, 2 or 3", is_sharded, REFUSE},
    {"layout.bucket_mb", "other ranks with the same weights", fills_buckets, START},
    {"layout.reduce", "precision=bf16 or fp32 (pure_bf16 always reduces in bf16, fp64 in fp64)", may_reduce, WARN},
    {"layout.reduce", "other ranks with the same weights", repeats, START},
    {"resume.accept", "a run that was started before", continues, START},
};

const NeedTable needs_table = {rows, sizeof rows / sizeof *rows};

/* -- Walking it ---------------------------------------------------------------------------------------------------- */

static bool is_of_layout(const Need *need) { return starts_with(need->name, "layout."); }

/* Returns whether rules of families or of optimizers list the setting. */
static bool is_of_rule(const char *setting, bool of_family, int rule) {
    return of_family ? family_has(family_rules[rule], setting) : optimizer_has(optimizer_rules[rule], setting);
}

static bool is_met(const Need *need, const Config *config, const RunFacts *facts) {
    if (need->met) return need->met(config, facts);
    bool of_family = starts_with(need->name, "model.");
    return is_of_rule(need->name, of_family, of_family ? config->model.family : config->optimizer.name);
}

char *needs_describe(const Need *need) {
    char names[128] = "";
    bool of_family = starts_with(need->name, "model.");
    int left = 0, rules = of_family ? family_count : OPTIMIZER_COUNT;
    if (need->what) return memory_copy_string(need->what);
    for (int i = 0; i < rules; i++) left += is_of_rule(need->name, of_family, i);
    for (int i = 0; i < rules; i++)
        if (is_of_rule(need->name, of_family, i))
            rule_append_name(names, sizeof names, of_family ? family_rules[i]->name : optimizer_rules[i]->name, left--);
    return memory_format("%s=%s", of_family ? "model.family" : "optimizer.name", names);
}

/* Returns the first row from `need` on whose answer is wanted, or the end. */
static const Need *find_met(
    const Need *need, const Config *config, const Config *said, const RunFacts *facts, bool (*wanted)(const Need *)) {
    for (; need < rows + needs_table.count; need++)
        if (wanted(need) && (facts || need->answer != NEED_AT_START) && !options_is_initial(config_find(need->name), said) &&
            !is_met(need, config, facts))
            break;
    return need;
}

static bool is_refused(const Need *need) { return need->answer == NEED_OR_REFUSE && !is_of_layout(need); }
static bool is_refused_of_layout(const Need *need) { return need->answer == NEED_OR_REFUSE && is_of_layout(need); }
static bool names_value(const Need *need) { return need->answer != NEED_OR_REFUSE; }

static bool refuse_need(const Need *need, const Config *said, Error *error) {
    if (need == rows + needs_table.count) return true;
    const Option *option = config_find(need->name);
    char value[128];
    SCOPED_FREE char *what = needs_describe(need);
    options_format_value(option, said, value, sizeof value);
    return error_set(error, ERROR_USAGE, "%s=%s has no effect without %s: set that, or %s%s%s", need->name, value, what,
        *option->initial ? need->name : "remove it", *option->initial ? "=" : "", option->initial);
}

bool needs_check(const Config *config, const Config *said, Error *error) {
    return refuse_need(find_met(rows, config, said, NULL, is_refused), said, error);
}

bool needs_check_layout(const Config *config, const Config *said, Error *error) {
    return refuse_need(find_met(rows, config, said, NULL, is_refused_of_layout), said, error);
}

void needs_drop_layout(Config *config) {
    Error impossible = {0};
    const Need *need = rows;
    while ((need = find_met(rows, config, config, NULL, is_refused_of_layout)) < rows + needs_table.count) {
        SCOPED_FREE char *assignment = memory_format("%s=%s", need->name, config_find(need->name)->initial);
        options_set(&config_table, config, &(OptionStrings){0}, assignment, &impossible); /* none is a string */
    }
}

/* A setting is reported only for its first unmet need. */
char *needs_list_idle(const Config *config, const Config *said, const RunFacts *facts) {
    char *list = NULL;
    const char *before = "";
    for (const Need *need = rows; (need = find_met(need, config, said, facts, names_value)) < rows + needs_table.count; need++) {
        char value[128];
        SCOPED_FREE char *start = list;
        if (!strcmp(before, need->name)) {
            start = NULL;
            continue;
        }
        options_format_value(config_find(need->name), said, value, sizeof value);
        SCOPED_FREE char *what = needs_describe(need);
        list = memory_format("%s%s%s=%s has no effect without %s", list ? list : "", list ? "; " : "", need->name, value, what);
        before = need->name;
    }
    return list;
}

void needs_warn(const Config *config, const Config *said, const RunFacts *facts) {
    SCOPED_FREE char *list = needs_list_idle(config, said, facts);
    if (list) log_warn("%s", list);
}

void needs_explain(const Option *option, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (const Need *need = rows; need < rows + needs_table.count && used < size; need++)
        if (!strcmp(need->name, option->name)) {
            SCOPED_FREE char *what = needs_describe(need);
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? " and " : "needs ", what);
        }
}
