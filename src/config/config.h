/* The configuration of a run: one struct, one table (config.c). The YAML file, `key=value`, --help, the printed
 * configuration and the manual (`smelt train --help`) all come from the table. */
#pragma once

#include "base/options.h"
#include "base/precision.h"
#include "device/device.h"

/* How positions are stretched by rope_factor (ops/rope/rope.h); a factor of 1: not at all. */
typedef enum RopeScaling { ROPE_LLAMA3, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_YARN } RopeScaling;
/* Over what tokens the load-balancing loss takes its means: of each layer, or of all layers together. */
typedef enum AuxiliaryScope { AUXILIARY_LAYER, AUXILIARY_MODEL } AuxiliaryScope;

/* How GEMMs of linear layers are computed in fp8 (ops/fp8/rule.c). */
typedef enum Fp8Recipe { FP8_NONE, FP8_TENSOR, FP8_ROW, FP8_ROW_GW_HP, FP8_BLOCK, FP8_MXFP8 } Fp8Recipe;
typedef enum Fp8Scaling { FP8_DYNAMIC, FP8_DELAYED } Fp8Scaling;
/* What becomes of the weights of layers in fp8 in a step of training. */
typedef enum Fp8Weights {
    FP8_WEIGHTS_CAST,     /* they are cast in each pass of each microbatch */
    FP8_WEIGHTS_KEPT,     /* they are cast once, and their codes stay until the step ends */
    FP8_WEIGHTS_GATHERED, /* ranks cast their shards of them, and gather codes (layout/exchange.h) */
} Fp8Weights;
typedef struct Fp8Config {
    int recipe;               /* Fp8Recipe */
    int scaling;              /* Fp8Scaling */
    int64_t amax_history_len; /* steps whose largest magnitudes delayed scaling looks at */
    double min_size;          /* of the smallest layer that is computed in it (fp8_layer_size of model/model.h) */
    bool head;                /* the LM head too (op_fp8_linear_cross_entropy of ops/loss/loss.h) */
    bool keep_weights;        /* FP8_WEIGHTS_KEPT where that saves casts */
    int weights;              /* Fp8Weights; no setting: the session's choice for the program of a step */
    bool uneven_rows;         /* no setting: microbatches of training have them, which other programs then heed too */
} Fp8Config;

/* Training on pairs of answers (ops/preference/rule.c). */
typedef enum PreferenceLoss { PREFERENCE_NONE, PREFERENCE_DPO, PREFERENCE_IPO } PreferenceLoss;
typedef struct PreferenceConfig {
    int loss; /* PreferenceLoss */
    double beta, label_smoothing;
} PreferenceConfig;

typedef struct ModelConfig {
    int family;                                       /* index into family_rules (config/family.h) */
    int64_t layers, width, heads, kv_heads, head_dim; /* head_dim 0: width / heads */
    int64_t ffn;                                      /* hidden width of an MLP or of one expert */
    int64_t vocabulary;
    int64_t context;                     /* most positions that the model is built for */
    int64_t window;                      /* sliding attention window, 0: none */
    int64_t window_period, window_first; /* zaya: layers i with i % window_period == window_first have it */
    double window_rope_theta;            /* zaya: rope_theta of these; 0: that of the others */
    int64_t experts, experts_per_token, router_width;
    bool renormalise; /* gates of the chosen experts sum to 1 */
    double auxiliary_loss;
    int auxiliary_scope; /* AuxiliaryScope */
    double rope_theta, rope_fraction;
    int rope_scaling; /* RopeScaling */
    double rope_factor, rope_low_frequency, rope_high_frequency;
    double rope_attention_factor, rope_beta_fast, rope_beta_slow; /* of yarn */
    bool rope_truncate;
    int64_t rope_original_context;
    int64_t padding;      /* token whose embedding gets no gradient, -1: none */
    bool qkv_bias;        /* llama: as Qwen2 */
    bool qk_norm;         /* llama: RMSNorm of each query and key head (Qwen3); mpt: LayerNorm over all (qk_ln) */
    double clip_qkv;      /* mpt: bound of queries, keys and values, 0: none */
    double alibi_max;     /* mpt: the largest exponent of ALiBi slopes */
    double softmax_scale; /* mpt: of scores, 0: 1 / sqrt(head_dim) */
    double norm_epsilon, init_std;
    bool tied;
    /* flux: how many of the layers have one stream; channels of an image token; of an embedded text token, and of the pooled
     * text; text tokens of a sample, which data.length counts too; channels of a head that the first of three coordinates
     * turns, of which the others share the rest */
    int64_t single_layers, channels, text_width, pooled_width, text_tokens, rope_first;
    bool guidance;               /* flux: an embedding of the guidance scale, as FLUX.1-dev has it */
    Fp8Config fp8;               /* not of the model, but of how it is computed */
    PreferenceConfig preference; /* nor is this, but of what its loss is */
} ModelConfig;

/* Adapters in place of full training (model/lora.c). */
typedef enum LoraBase { LORA_BASE_SAME, LORA_BASE_NF4, LORA_BASE_FP8 } LoraBase;
typedef enum LoraExperts { LORA_EACH, LORA_SHARED } LoraExperts;
/* Consecutive ids that lora.tokens names; `row` is the place of the first among all of them. */
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
    const char *tokens;          /* ids whose rows alone are trained (lora_token_runs); empty: none */
    int experts;                 /* LoraExperts */
    int base;                    /* LoraBase */
    const char *start;           /* a folder of PEFT; empty: none */
} LoraConfig;

/* Of families of images: in training a time is 1 / (1 + exp(-x)) of a normal x of this mean and deviation, shifted (images/images.h);
 * and the guidance scale that the model is told. */
typedef struct FlowConfig { double mean, deviation, shift, guidance; } FlowConfig;

typedef struct OptimizerConfig {
    int name; /* index into optimizer_rules (config/optimizer_rule.h) */
    double lr, beta1, beta2, epsilon, weight_decay, clip, momentum, balance_lr;
    int64_t newton_schulz_steps;
    bool decay_vectors, in_backward;
} OptimizerConfig;

typedef enum ScheduleKind { SCHEDULE_COSINE, SCHEDULE_WSD, SCHEDULE_LINEAR, SCHEDULE_CONSTANT } ScheduleKind;
typedef struct ScheduleConfig {
    int kind;
    int64_t warmup, decay;
    double minimum;
} ScheduleConfig;

/* How documents become sequences: cut from one stream, or packed by best fit (data.h). */
typedef enum DataPacking { PACKING_CUT, PACKING_BEST_FIT } DataPacking;
typedef struct DataConfig {
    const char *train, *valid, *separator, *tokenizer, *cache;
    double valid_fraction, patience;
    int64_t length, cache_mib;
    int packing; /* DataPacking */
    int bos;     /* TokenizerBos */
    bool special, document_mask;
    bool bos_given; /* no setting: `bos` was not auto before corpus_resolve */
} DataConfig;
typedef struct BatchConfig { int64_t tokens, sequences, ramp_tokens, ramp_steps, last; } BatchConfig;

/* In which order stages of a pipeline run the parts of microbatches (layout/pipeline_schedule.h). */
typedef enum PipelineKind { PIPELINE_1F1B, PIPELINE_INTERLEAVED, PIPELINE_ZERO_BUBBLE, PIPELINE_FORWARD } PipelineKind;
typedef enum ReduceType { REDUCE_AUTO, REDUCE_FP32, REDUCE_BF16 } ReduceType;
typedef enum LayoutChoice { LAYOUT_GIVEN, LAYOUT_AUTO } LayoutChoice;
typedef enum CpExchange { CP_GATHER, CP_RING } CpExchange;
typedef struct LayoutConfig {
    int choice; /* LayoutChoice */
    int64_t dp, tp, pp, cp, ep, zero, shard;
    int cp_exchange;   /* CpExchange */
    int64_t pp_chunks; /* of layers, on each stage; 0: 2 where the schedule is interleaved, else 1 */
    int pp_schedule;   /* PipelineKind, but PIPELINE_FORWARD */
    double bucket_mb;
    int reduce;
} LayoutConfig;

typedef struct LogConfig { int64_t every; } LogConfig;
typedef struct EvalConfig {
    int64_t every, sequences, patience, sample_tokens;
    const char *prompt;
} EvalConfig;
typedef struct CheckpointConfig {
    int64_t every, keep, keep_every, whole_every;
    const char *store;
    bool async, keep_best;
    double timeout;
} CheckpointConfig;

/* What a start may find otherwise than the checkpoint that it continues from (train/identity_internal.h). */
typedef struct ResumeConfig { const char *accept; } ResumeConfig;

/* recompute=auto, until a run's memory is known (train/fit.h). */
enum { RECOMPUTE_AUTO = 4 };

typedef enum PlanChoice { PLAN_NONE, PLAN_PAGE, PLAN_PROGRAM } PlanChoice;
typedef enum OnNan { ON_NAN_STOP, ON_NAN_SKIP } OnNan;

typedef struct Config {
    const char *run, *init, *dump;
    const char *fork; /* as given, a new run folder; cmd_train.c makes that `run`, and this the run that it is forked from */
    int64_t from;     /* RunPoint.step of `fork` (train/run.h) */
    int64_t seed, steps, tokens, stop_at, threads;
    double epochs; /* with tokens: 0 once steps are known (corpus_resolve_steps) */
    int device;    /* DeviceKind */
    int precision; /* Precision */
    int recompute; /* RecomputePolicy of graph/graph.h, or RECOMPUTE_AUTO */
    int on_nan;
    bool exact_gemm, tensorboard;
    int plan; /* PlanChoice */
    ModelConfig model;
    LoraConfig lora;
    DataConfig data;
    BatchConfig batch;
    FlowConfig flow;
    OptimizerConfig optimizer;
    ScheduleConfig schedule;
    LayoutConfig layout;
    LogConfig log;
    EvalConfig eval;
    CheckpointConfig checkpoint;
    ResumeConfig resume;
    int64_t profile;
    double hang;
} Config;

/* Rows of the embedding of the byte tokenizer's 257 tokens; those of others are known before config_check (corpus_resolve). */
enum { CONFIG_BYTE_ROWS = 320 };

extern const OptionTable config_table;
/* The row of this name; NULL: there is none. */
const Option *config_find(const char *name);
/* Whether another batch.sequences is another objective: a load-balancing loss has the means of one microbatch. */
bool config_needs_microbatch(const Config *config);
/* The policy of the configuration; none where it is auto. */
static inline int config_recompute(const Config *config) { return config->recompute == RECOMPUTE_AUTO ? 0 : config->recompute; }
/* Whether attention of a layer has the window. */
static inline bool model_has_window(const ModelConfig *model, int64_t layer) {
    return model->window && (model->window_period <= 1 || layer % model->window_period == model->window_first);
}
/* "tensor" */
void config_recipe_name(const Config *config, char name[16]);
/* Whether the rows of a training microbatch that a rank has are no multiple of 16 (fp8_choose). */
bool config_has_uneven_rows(const Config *config);

/* The length of a run is given by one of steps, tokens and epochs: by the command in *config, or else by `base`, what it
 * was applied to; 0: not given. batch.last belongs to the length and comes with it. Where all three are 0, config_check takes
 * the default. ERROR_USAGE when several are given. */
bool config_settle_length(Config *config, const Config *base, Error *error);

/* Checks what spans several settings (divisibility, dependent ranges) and fills derived defaults. ERROR_USAGE. */
bool config_check(Config *config, Error *error);
/* Likewise; the advice on layouts is for so many ranks that were started (layout_check_early), 0: not known. */
bool config_check_started(Config *config, int64_t started, Error *error);
