/* The configuration of a run: one struct, one table (config.c). The YAML file, `key=value`, --help, the printed
 * configuration and the manual (`smelt train --help`) all come from the table. */
#pragma once

#include "base/options.h"
#include "base/precision.h"
#include "device/device.h"

/* How rope_factor stretches positions (ops/rope/rope.h); a factor of 1: not at all. */
typedef enum RopeScaling { ROPE_LLAMA3, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_YARN, ROPE_LONGROPE } RopeScaling;
/* The tokens over which the load-balancing loss takes its means: of each layer, or of all layers
 * together. */
typedef enum AuxiliaryScope { AUXILIARY_LAYER, AUXILIARY_MODEL } AuxiliaryScope;

/* How a router turns logits into scores: over all experts, or for each expert alone. */
typedef enum RouterScores { SCORES_SOFTMAX, SCORES_SIGMOID } RouterScores;

/* How GEMMs of linear layers are computed in fp8 (ops/fp8/rule.c). */
typedef enum Fp8Recipe { FP8_NONE, FP8_TENSOR, FP8_ROW, FP8_ROW_GW_HP, FP8_BLOCK, FP8_MXFP8 } Fp8Recipe;
typedef enum Fp8Scaling { FP8_DYNAMIC, FP8_DELAYED } Fp8Scaling;
/* How a training step treats the weights of fp8 layers. */
typedef enum Fp8Weights {
    FP8_WEIGHTS_CAST,     /* cast in each pass of each microbatch */
    FP8_WEIGHTS_KEPT,     /* cast once; the quantized values stay until the step ends */
    FP8_WEIGHTS_GATHERED, /* ranks cast their shards and gather the quantized values (layout/exchange.h) */
} Fp8Weights;
typedef struct Fp8Config {
    int recipe;               /* Fp8Recipe */
    int scaling;              /* Fp8Scaling */
    int64_t amax_history_len; /* steps in the amax history of delayed scaling */
    double min_size;          /* of the smallest layer that is computed in fp8 (fp8_layer_size of model/model.h) */
    bool head;                /* the LM head is computed in fp8 too (op_fp8_linear_cross_entropy of ops/loss/loss.h) */
    bool keep_weights;        /* FP8_WEIGHTS_KEPT if it saves casts */
    int weights;              /* Fp8Weights; not a setting: the session chooses it for the program of a step */
    bool uneven_rows;         /* not a setting: training microbatches have uneven rows; programs other than training's must know it too */
} Fp8Config;

/* Training on pairs of answers (ops/preference/rule.c). */
typedef enum PreferenceLoss { PREFERENCE_NONE, PREFERENCE_DPO, PREFERENCE_IPO } PreferenceLoss;
typedef struct PreferenceConfig {
    int loss; /* PreferenceLoss */
    double beta, label_smoothing;
} PreferenceConfig;

/* Reinforcement learning (config/policy_rule.h, ops/policy/rule.c). */
typedef struct PolicyConfig {
    int loss;         /* 1 + index into policy_rules; 0: none */
    double low, high; /* bounds of the ratio; -1: the rule's */
    double dual, kl, entropy, penalty;
    bool values; /* the model has a value head; set by config_check */
    double value_clip, value_coefficient;
} PolicyConfig;

typedef struct ModelConfig {
    int family;                                       /* index into family_rules (config/family.h) */
    int64_t layers, width, heads, kv_heads, head_dim; /* head_dim 0: width / heads */
    int64_t ffn;                                      /* hidden width of an MLP or of one expert */
    int64_t vocabulary;
    int64_t context;                     /* maximum number of positions of the model */
    int64_t window;                      /* sliding attention window, 0: none */
    int64_t window_period, window_first; /* layers i with i % window_period == window_first have the window */
    bool window_skips;                   /* these layers have full attention instead, and the others the window */
    double window_rope_theta;            /* rope_theta of the layers with the window; 0: the same as the others */
    int64_t experts, experts_per_token, router_width;
    int64_t experts_first, experts_period; /* layers experts_first + n * experts_period have experts, the other layers an MLP */
    int64_t dense_ffn;                     /* hidden width of this MLP */
    bool renormalise;                      /* gates of the chosen experts sum to 1 */
    int router_scores;                     /* RouterScores */
    int64_t expert_groups, groups_chosen;  /* deepseek: each token chooses among the experts of `groups_chosen` groups */
    double gate_scale;                     /* factor of the gates */
    int64_t shared_experts;                /* deepseek: experts that process every token, as one MLP of width shared_experts * ffn */
    double auxiliary_loss;
    int auxiliary_scope; /* AuxiliaryScope */
    double rope_theta, rope_fraction;
    int64_t nope_period; /* smollm3: layers N - 1, 2N - 1, ... have no RoPE; 0: all have it */
    int rope_scaling;    /* RopeScaling */
    double rope_factor, rope_low_frequency, rope_high_frequency;
    double rope_attention_factor; /* for yarn and longrope */
    double rope_beta_fast, rope_beta_slow;
    bool rope_truncate;
    RealList rope_short_factors, rope_long_factors; /* for longrope, one per rotated pair of channels */
    int64_t rope_original_context;
    /* deepseek: multi-head latent attention (model/latent.c) if kv_lora_rank > 0. A head has
     * head_dim channels in queries and keys, the last rope_dim of which RoPE rotates. */
    int64_t q_lora_rank, kv_lora_rank; /* q_lora_rank 0: queries have no latents */
    int64_t rope_dim, value_dim;
    bool rope_interleave;    /* RoPE rotates neighboring channels, else those half of rope_dim apart */
    double rope_query_scale; /* QueryScale.beta, with rope_original_context as the period; 0: none */
    /* qwen3_5, qwen3_next: value and key heads of layers with the gated delta rule and their channels, taps of
     * their convolution; every attention_period-th layer has attention instead */
    int64_t delta_heads, delta_key_heads, delta_key_dim, delta_value_dim, delta_taps, attention_period;
    double rope_mscale;                /* scores are multiplied by the square of 0.1 rope_mscale ln(rope_factor) + 1 */
    int64_t padding;                   /* token whose embedding gets no gradient, -1: none */
    bool qkv_bias;                     /* llama: as in Qwen2 */
    bool qk_norm;                      /* llama: RMSNorm of each query and key head (Qwen3); mpt: LayerNorm over all heads (qk_ln) */
    double clip_qkv;                   /* mpt: bound of queries, keys and values; 0: none */
    double alibi_max;                  /* mpt: the largest exponent of ALiBi slopes */
    double softmax_scale;              /* scale of attention scores; 0: 1 / sqrt(head_dim) */
    double embedding_scale;            /* granite: factor of embeddings */
    int64_t mtp;                       /* layers for multi-token prediction (model/decoder.c): 0 or 1 */
    double mtp_weight;                 /* weight of the loss of multi-token prediction; not part of the model */
    double residual_scale;             /* granite: factor of the outputs of attention and MLP */
    double logit_divisor;              /* granite: logits are divided by it */
    double score_cap, logit_cap;       /* gemma: soft-caps of attention scores and of the head's logits; 0: none */
    int activation;                    /* Activation of the MLP (config/activation_rule.h) */
    double swiglu_alpha, swiglu_limit; /* gpt_oss: ActivationTerms of the function */
    double norm_epsilon, init_std;
    bool tied;
    /* flux: number of layers with one stream; channels of an image token, of an embedded text
     * token, and of the pooled text; text tokens of a sample, which data.length includes;
     * channels of a head that RoPE rotates by the first of three coordinates (the other two
     * share the rest) */
    int64_t single_layers, channels, text_width, pooled_width, text_tokens, rope_first;
    bool guidance;               /* flux: has an embedding of the guidance scale, as FLUX.1-dev has */
    Fp8Config fp8;               /* not part of the model: how it is computed */
    PreferenceConfig preference; /* not part of the model: its loss */
    PolicyConfig policy;         /* the same */
    bool given_routing;          /* not a setting: true if a benchmark chooses the experts of each row (Model.routing) */
} ModelConfig;

static inline bool model_layer_has_experts(const ModelConfig *model, int64_t layer) {
    return model->experts && layer >= model->experts_first && (layer - model->experts_first) % model->experts_period == 0;
}
/* Returns the number of layers below `end` that have experts. */
static inline int64_t model_expert_layers(const ModelConfig *model, int64_t end) {
    if (!model->experts || end <= model->experts_first) return 0;
    return (end - model->experts_first - 1) / model->experts_period + 1;
}
/* Returns whether some layers have experts and others an MLP. */
static inline bool model_mixes_layers(const ModelConfig *model) {
    return model->experts && model_expert_layers(model, model->layers) < model->layers;
}

/* Return the channels of a value head, and the channels of a query or key head that RoPE rotates. */
static inline int64_t model_value_dim(const ModelConfig *model) { return model->value_dim ? model->value_dim : model->head_dim; }
static inline double model_rotated(const ModelConfig *model) {
    return model->rope_dim ? (double)model->rope_dim : model->rope_fraction * (double)model->head_dim;
}

/* Adapters in place of full training (model/lora.c). */
typedef enum LoraBase { LORA_BASE_SAME, LORA_BASE_NF4, LORA_BASE_FP8 } LoraBase;
typedef enum LoraExperts { LORA_EACH, LORA_SHARED } LoraExperts;
/* Consecutive ids of lora.tokens; `row` is the index of the first one among all of them. */
typedef struct TokenRun { int64_t first, count, row; } TokenRun;
enum { TOKEN_MOST_RUNS = 16 };
typedef struct TokenRuns {
    int count;
    TokenRun items[TOKEN_MOST_RUNS]; /* in ascending order */
} TokenRuns;
typedef struct LoraConfig {
    int64_t rank; /* 0: none */
    double alpha;
    bool rslora;
    const char *targets;         /* config/lora_targets.h */
    const char *modules_to_save; /* tables that are trained whole (config/lora_targets.h); empty: none */
    const char *tokens;          /* ids of which only the rows are trained (lora_token_runs); empty: none */
    int experts;                 /* LoraExperts */
    int base;                    /* LoraBase */
    const char *start;           /* a PEFT folder, or a run with adapters; empty: none */
} LoraConfig;

/* For families of images: a training time is 1 / (1 + exp(-x)) for a normal x with this mean and
 * deviation, shifted (images/image_inputs.h). `guidance` is the guidance scale that the model reads. */
typedef struct FlowConfig { double mean, deviation, shift, guidance, caption_dropout; } FlowConfig;

typedef struct OptimizerConfig {
    int name; /* index into optimizer_rules (config/optimizer_rule.h) */
    double lr, beta1, beta2, epsilon, weight_decay, clip, momentum, balance_lr, value_lr;
    int64_t newton_schulz_steps;
    bool decay_vectors, in_backward;
} OptimizerConfig;

/* The KL divergence to the reference is a term of each token's loss, or of the reward. */
typedef enum RlKl { RL_KL_LOSS, RL_KL_REWARD } RlKl;
/* What happens if the reward of a sample cannot be had. */
typedef enum RlRewardErrors { RL_ERRORS_STOP, RL_ERRORS_SKIP } RlRewardErrors;
/* Rollouts of reinforcement learning (rl/rollout.h). */
typedef struct RlConfig {
    const char *reward, *reference, *environment;
    int64_t prompts, samples, updates, epochs, tokens, turns, slots, refill, overlong;
    double temperature, reward_seconds, code_seconds;
    double gamma, lambda; /* of generalized advantage estimation */
    int64_t reward_copies, reward_in_flight, reward_attempts, code_memory;
    int kl, reward_errors; /* RlKl, RlRewardErrors */
    bool mask_truncated, record, whiten;
} RlConfig;
/* Returns the optimizer steps that train a rollout. */
static inline int64_t rl_rollout_steps(const RlConfig *rl) { return rl->updates * rl->epochs; }

typedef enum ScheduleKind { SCHEDULE_COSINE, SCHEDULE_WSD, SCHEDULE_LINEAR, SCHEDULE_CONSTANT } ScheduleKind;
typedef struct ScheduleConfig {
    int kind;
    int64_t warmup, decay;
    double minimum;
} ScheduleConfig;

/* How documents become sequences: cut from one stream, or packed by best fit (data/bins.h). */
typedef enum DataPacking { PACKING_CUT, PACKING_BEST_FIT } DataPacking;
typedef struct DataConfig {
    const char *train, *valid, *separator, *tokenizer, *template, *cache;
    double valid_fraction, valid_documents, patience;
    int64_t length, cache_mib;
    int packing; /* DataPacking */
    int bos;     /* TokenizerBos */
    bool special, document_mask;
    bool bos_given; /* no setting: `bos` was not auto before corpus_resolve */
} DataConfig;
typedef struct BatchConfig { int64_t tokens, sequences, ramp_tokens, ramp_steps, last; } BatchConfig;

/* The order in which pipeline stages run the parts of microbatches (layout/pipeline_schedule.h). */
typedef enum PipelineKind { PIPELINE_1F1B, PIPELINE_INTERLEAVED, PIPELINE_ZERO_BUBBLE, PIPELINE_FORWARD } PipelineKind;
typedef enum ReduceType { REDUCE_AUTO, REDUCE_FP32, REDUCE_BF16 } ReduceType;
typedef enum LayoutChoice { LAYOUT_GIVEN, LAYOUT_AUTO } LayoutChoice;
typedef enum CpExchange { CP_GATHER, CP_RING } CpExchange;
typedef struct LayoutConfig {
    int choice; /* LayoutChoice */
    int64_t dp, tp, pp, cp, ep, zero, shard;
    int cp_exchange;   /* CpExchange */
    int64_t pp_chunks; /* chunks of layers per stage; 0: 2 if the schedule is interleaved, else 1 */
    int pp_schedule;   /* PipelineKind, except PIPELINE_FORWARD */
    double bucket_mb;
    int reduce;
} LayoutConfig;

typedef struct LogConfig { int64_t every; } LogConfig;
typedef struct EvalConfig {
    int64_t every, sequences, patience, sample_tokens, pictures;
    const char *prompt, *vae;
} EvalConfig;
typedef struct CheckpointConfig {
    int64_t every, keep, keep_every, whole_every;
    const char *store;
    bool async, keep_best;
    double timeout;
} CheckpointConfig;

/* Differences from the checkpoint that a resumed run accepts (run/identity.h). */
typedef struct ResumeConfig { const char *accept; } ResumeConfig;

/* recompute=auto, before a run's memory is known (session/fit.h). */
enum { MOST_RECOMPUTATION = 3 /* RECOMPUTE_BLOCK */, RECOMPUTE_AUTO };

/* Data that host memory holds between its uses. */
typedef enum OffloadChoice { OFFLOAD_NONE, OFFLOAD_OPTIMIZER, OFFLOAD_ACTIVATIONS, OFFLOAD_BOTH } OffloadChoice;
typedef enum PlanChoice { PLAN_NONE, PLAN_PAGE, PLAN_PROGRAM } PlanChoice;
typedef enum OnNan { ON_NAN_STOP, ON_NAN_SKIP } OnNan;

/* Exports of a training's numbers (run/exporter.h). */
typedef struct MetricsConfig {
    const char *listen, *file, *otlp;
    double every, system, price;
    int64_t layers;
} MetricsConfig;

typedef struct Config {
    const char *run, *init, *dump, *routing_trace;
    const char *on_event;
    const char *fork; /* as given: a new run folder; cmd_train.c moves it to `run` and puts the run to fork from here */
    int64_t from;     /* RunPoint.step of `fork` (run/run.h) */
    int64_t seed, steps, tokens, stop_at, threads;
    double epochs; /* with tokens: 0 once the steps are known (corpus_resolve_steps) */
    int device;    /* DeviceKind */
    int precision; /* Precision */
    int recompute; /* RecomputePolicy of graph/graph.h, or RECOMPUTE_AUTO */
    int offload;   /* OffloadChoice */
    int on_nan;
    bool exact, exact_gemm, tensorboard;
    int plan; /* PlanChoice */
    ModelConfig model;
    LoraConfig lora;
    DataConfig data;
    BatchConfig batch;
    FlowConfig flow;
    RlConfig rl;
    OptimizerConfig optimizer;
    ScheduleConfig schedule;
    LayoutConfig layout;
    LogConfig log;
    MetricsConfig metrics;
    EvalConfig eval;
    CheckpointConfig checkpoint;
    ResumeConfig resume;
    int64_t profile;
    double hang;
} Config;

/* Rows of the embedding for the byte tokenizer's 257 tokens. For other tokenizers, corpus_resolve
 * sets the rows before config_check. */
enum { CONFIG_BYTE_ROWS = 320 };

extern const OptionTable config_table;
/* Returns the row of this name, or NULL. */
const Option *config_find(const char *name);
/* Returns whether a different batch.sequences changes the objective: a load-balancing loss takes
 * its means over one microbatch. */
bool config_needs_microbatch(const Config *config);
/* Return whether offload puts the optimizer's state, or saved activations, into host memory. */
static inline bool config_offloads_state(const Config *config) {
    return config->offload == OFFLOAD_OPTIMIZER || config->offload == OFFLOAD_BOTH;
}
static inline bool config_offloads_saved(const Config *config) { return config->offload >= OFFLOAD_ACTIVATIONS; }
/* Returns the policy of the configuration; none if it is auto. */
static inline int config_recompute(const Config *config) { return config->recompute == RECOMPUTE_AUTO ? 0 : config->recompute; }
/* Returns the weakest policy that recompute=auto may choose. */
static inline int config_least_recompute(const Config *config) { return config_offloads_saved(config) ? MOST_RECOMPUTATION : 0; }
/* Returns whether attention of a layer has the window. */
static inline bool model_has_window(const ModelConfig *model, int64_t layer) {
    if (!model->window || model->window_period <= 1) return model->window;
    return (layer % model->window_period == model->window_first) != model->window_skips;
}
static inline bool model_has_rope(const ModelConfig *model, int64_t layer) {
    return !model->nope_period || (layer + 1) % model->nope_period;
}
static inline bool model_has_attention(const ModelConfig *model, int64_t layer) { return (layer + 1) % model->attention_period == 0; }
/* Returns the RoPE base of layers with the window, or of the others. */
static inline double model_rope_theta(const ModelConfig *model, bool window) {
    return window && model->window_rope_theta > 0 ? model->window_rope_theta : model->rope_theta;
}
/* "tensor" */
void config_recipe_name(const Config *config, char name[16]);
/* Returns whether the rows that a rank has of a training microbatch are not a multiple of 16
 * (fp8_choose). */
bool config_has_uneven_rows(const Config *config);

/* Settles the length of a run, which one of steps, tokens and epochs gives (0: not given).
 * *config has the settings of the command; if it gives none, the length of `base`, to which the
 * command was applied, is used. batch.last belongs to the length. If all three are 0,
 * config_check uses the default. ERROR_USAGE if several are given. */
bool config_settle_length(Config *config, const Config *base, Error *error);

/* Checks that span several settings (divisibility, dependent ranges); fills derived defaults.
 * ERROR_USAGE. */
bool config_check(Config *config, Error *error);
/* Does the same, with layout advice for `started` ranks (layout_check_early); 0: not known. */
bool config_check_started(Config *config, int64_t started, Error *error);
