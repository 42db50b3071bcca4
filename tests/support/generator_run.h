/* Small models of every kind for tests of generation, with random weights. */
#pragma once

#include "base/scope.h"
#include "data/byte_tokenizer.h"
#include "infer/generate.h"
#include "process.h"
#include "random_run.h"

enum { SETTINGS = 28, FEED_MOST = 512 };

typedef struct Variety {
    const char *name;
    const char *settings[SETTINGS];
} Variety;

/* With init_std 1 and a head of its own, the choice of a token depends on all earlier ones instead of repeating the
 * last. */
static const Variety families[] = {
    {"zaya", {"model.family=zaya", "model.experts=4", "model.heads=4", "model.kv_heads=2", "model.head_dim=8", "model.width=24",
                 "model.ffn=20", "model.router_width=12", "model.rope_fraction=0.5", "model.layers=3", "model.tied=false"}},
    {"zaya with a window",
        {"model.family=zaya", "model.experts=3", "model.heads=2", "model.kv_heads=1", "model.head_dim=8", "model.width=24", "model.ffn=20",
            "model.router_width=12", "model.layers=2", "model.window=10", "model.tied=false"}},
    {"llama", {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40", "model.layers=3",
                  "model.tied=false", "model.rope_factor=8", "model.rope_original_context=16"}},
    {"llama with a window of some blocks", {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.ffn=40",
                                               "model.layers=2", "model.window=70", "model.tied=false"}},
    {"llama with a window", {"model.family=llama", "model.heads=3", "model.kv_heads=1", "model.width=24", "model.ffn=40", "model.layers=2",
                                "model.window=33", "model.tied=false"}},
    {"llama with one key head", {"model.family=llama", "model.heads=4", "model.kv_heads=1", "model.width=32", "model.ffn=40",
                                    "model.layers=2", "model.tied=false"}},
    {"mixtral", {"model.family=llama", "model.heads=4", "model.kv_heads=4", "model.width=24", "model.ffn=20", "model.layers=2",
                    "model.experts=4", "model.experts_per_token=2", "model.renormalise=true", "model.tied=false"}},
    {"qwen2", {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.ffn=64", "model.layers=2",
                  "model.qkv_bias=true", "model.tied=false"}},
    {"qwen3", {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=36", "model.head_dim=10", "model.ffn=40",
                  "model.layers=2", "model.qk_norm=true", "model.tied=false"}},
    {"qwen3_moe with an MLP in the first layer",
        {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=36", "model.head_dim=10", "model.ffn=20", "model.layers=3",
            "model.qk_norm=true", "model.experts=4", "model.experts_per_token=2", "model.experts_first=1", "model.dense_ffn=40",
            "model.tied=false"}},
    {"mpt",
        {"model.family=mpt", "model.heads=6", "model.kv_heads=6", "model.width=36", "model.ffn=40", "model.layers=2", "model.tied=false"}},
    {"mpt with qk_ln, clip_qkv, grouped queries and a window",
        {"model.family=mpt", "model.heads=6", "model.kv_heads=2", "model.width=24", "model.ffn=40", "model.layers=2", "model.qk_norm=true",
            "model.clip_qkv=6", "model.window=20", "model.tied=false"}},
    {"olmo3", {"model.family=olmo", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.ffn=20", "model.layers=3",
                  "model.window=20", "model.window_period=3", "model.window_first=2", "model.window_skips=true",
                  "model.window_rope_theta=500", "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=16",
                  "model.rope_attention_factor=1.2", "model.tied=false"}},
    {"gemma2", {"model.family=gemma", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10", "model.ffn=20",
                   "model.layers=3", "model.window=20", "model.window_period=2", "model.window_first=1", "model.window_skips=true",
                   "model.score_cap=2", "model.logit_cap=8", "model.tied=false"}},
    {"gemma3",
        {"model.family=gemma", "model.qk_norm=true", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10",
            "model.ffn=20", "model.layers=3", "model.window=20", "model.window_period=3", "model.window_first=2", "model.window_skips=true",
            "model.softmax_scale=0.3", "model.rope_theta=1000000", "model.window_rope_theta=10000", "model.tied=false"}},
    {"smollm3", {"model.family=smollm3", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10", "model.ffn=20",
                    "model.layers=3", "model.nope_period=2", "model.window=20", "model.window_period=2", "model.window_first=1",
                    "model.qkv_bias=true", "model.tied=false"}},
    {"phi3", {"model.family=phi3", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=20", "model.layers=2",
                 "model.window=20", "model.rope_fraction=0.75", "model.tied=false"}},
    {"granitemoe", {"model.family=granite", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.ffn=20", "model.layers=2",
                       "model.experts=4", "model.experts_per_token=2", "model.renormalise=true", "model.embedding_scale=3",
                       "model.residual_scale=0.4", "model.softmax_scale=0.2", "model.logit_divisor=4", "model.tied=false"}},
    {"olmoe", {"model.family=olmo", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.ffn=20", "model.layers=2",
                  "model.experts=4", "model.experts_per_token=2", "model.clip_qkv=1.5", "model.tied=false"}},
    {"gpt_oss", {"model.family=gpt_oss", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10", "model.ffn=20",
                    "model.layers=3", "model.experts=4", "model.experts_per_token=2", "model.renormalise=true", "model.qkv_bias=true",
                    "model.window=20", "model.window_period=2", "model.rope_scaling=yarn", "model.rope_factor=4",
                    "model.rope_original_context=16", "model.swiglu_limit=2", "model.tied=false"}},
    {"deepseek_v2",
        {"model.family=deepseek", "model.heads=4", "model.kv_heads=4", "model.head_dim=10", "model.rope_dim=4", "model.value_dim=7",
            "model.kv_lora_rank=12", "model.width=24", "model.ffn=10", "model.layers=3", "model.dense_ffn=18", "model.experts=6",
            "model.experts_first=1", "model.experts_per_token=2", "model.shared_experts=2", "model.expert_groups=3",
            "model.groups_chosen=2", "model.gate_scale=1.5", "model.rope_scaling=yarn", "model.rope_factor=4",
            "model.rope_original_context=16", "model.rope_mscale=0.8", "model.tied=false"}},
    {"deepseek_v3",
        {"model.family=deepseek", "model.heads=3", "model.kv_heads=3", "model.head_dim=12", "model.rope_dim=6", "model.value_dim=8",
            "model.q_lora_rank=14", "model.kv_lora_rank=10", "model.width=24", "model.ffn=10", "model.layers=2", "model.experts=8",
            "model.experts_per_token=3", "model.shared_experts=1", "model.router_scores=sigmoid", "model.expert_groups=4",
            "model.groups_chosen=2", "model.renormalise=true", "model.gate_scale=2.5", "model.rope_interleave=false", "model.tied=false"}},
    {"glm4_moe", {"model.family=glm", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=12", "model.ffn=10",
                     "model.layers=3", "model.dense_ffn=18", "model.experts=6", "model.experts_first=1", "model.experts_per_token=2",
                     "model.shared_experts=1", "model.router_scores=sigmoid", "model.expert_groups=3", "model.groups_chosen=2",
                     "model.gate_scale=1.5", "model.qkv_bias=true", "model.qk_norm=true", "model.rope_fraction=0.5", "model.tied=false"}},
    {"minimax_m2", {"model.family=minimax", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=12", "model.ffn=10",
                       "model.layers=2", "model.experts=4", "model.experts_per_token=2", "model.router_scores=sigmoid",
                       "model.renormalise=true", "model.rope_fraction=0.5", "model.tied=false"}},
    {"ministral3", {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10", "model.ffn=20",
                       "model.layers=2", "model.window=20", "model.rope_scaling=yarn", "model.rope_factor=4",
                       "model.rope_original_context=8", "model.rope_query_scale=0.5", "model.tied=false"}},
    {"qwen3_5", {"model.family=qwen3_5", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=12", "model.ffn=20",
                    "model.layers=3", "model.attention_period=2", "model.delta_heads=4", "model.delta_key_heads=2", "model.delta_key_dim=6",
                    "model.delta_value_dim=5", "model.rope_fraction=0.5", "model.tied=false"}},
    {"qwen3_5_moe", {"model.family=qwen3_5", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=12", "model.ffn=10",
                        "model.layers=2", "model.attention_period=2", "model.delta_heads=2", "model.delta_key_heads=2",
                        "model.delta_key_dim=8", "model.delta_value_dim=8", "model.experts=4", "model.experts_per_token=2",
                        "model.shared_experts=1", "model.renormalise=true", "model.tied=false"}},
    {"qwen3_next",
        {"model.family=qwen3_next", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=12", "model.ffn=10",
            "model.layers=3", "model.attention_period=2", "model.delta_heads=4", "model.delta_key_heads=2", "model.delta_key_dim=8",
            "model.delta_value_dim=6", "model.experts=4", "model.experts_per_token=2", "model.shared_experts=1", "model.renormalise=true",
            "model.experts_first=1", "model.dense_ffn=20", "model.tied=false"}},
    {"gpt2",
        {"model.family=gpt2", "model.heads=3", "model.kv_heads=3", "model.width=24", "model.ffn=40", "model.layers=3", "model.tied=false"}},
};
enum { FAMILIES = sizeof families / sizeof *families };

static inline Config configure(const Variety *family, int context, OptionStrings *strings) {
    SCOPED_FREE char *positions = memory_format("model.context=%d", context);
    const char *settings[SETTINGS + 4] = {"data.length=32", positions, "model.init_std=1", "precision=fp32"};
    int count = 4;
    for (int i = 0; i < SETTINGS && family->settings[i]; i++) settings[count++] = family->settings[i];
    Config config;
    Error error = {0};
    if (!random_run_configure(&config, strings, settings, count, &error)) fail_msg("%s: %s", family->name, error.message);
    return config;
}

static inline Generator *create(const Mesh *mesh, const Config *config, Precision precision, bool cache) {
    Error error = {0};
    Generator *generator = generator_create(mesh, &config->model, precision, device_cpu(), cache, &error);
    if (!generator) fail_msg("%s", error.message);
    random_run_weights(generator_graph(generator), &config->model, generator_master(generator));
    model_cast_weights(generator_graph(generator), device_cpu(), generator_master(generator), generator_weights(generator));
    return generator;
}

static inline void feed(Generator *generator, int count) {
    int32_t tokens[FEED_MOST];
    assert_in_range(count, 1, FEED_MOST);
    Error error = {0};
    for (int i = 0; i < count; i++) tokens[i] = (int32_t)(rng_uniform(8, 0, i) * BYTE_VOCABULARY);
    assert_true(generator_feed(generator, tokens, count, &error));
}
