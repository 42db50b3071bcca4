/* Whole models: gradients of the loss against central differences, recomputation that changes memory but no bit,
 * bf16 against fp32, the published parameter count, and plans that are refused with advice. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/memory.h"
#include "base/rng.h"
#include "config/config.h"
#include "config/needs.h"
#include "graph/op.h"
#include "model/model.h"
#include "session/session.h"
#include "support/check.h"
#include "support/each_isa.h"
#include "support/mentions.h"

enum { SEQUENCES = 2, LENGTH = 19, ROWS = SEQUENCES * LENGTH };

typedef struct Variety {
    const char *name;
    const char *settings[28];
} Variety;

static const Variety families[] = {
    {"zaya", {"model.family=zaya", "model.experts=4", "model.heads=4", "model.kv_heads=2", "model.head_dim=8", "model.width=24",
                 "model.ffn=12", "model.router_width=10", "model.rope_fraction=0.5", "model.layers=3", "model.vocabulary=40"}},
    {"zaya with two experts per token, a window and a balancing loss",
        {"model.family=zaya", "model.experts=3", "model.heads=2", "model.kv_heads=2", "model.head_dim=6", "model.width=20", "model.ffn=9",
            "model.router_width=7", "model.layers=2", "model.vocabulary=33", "model.experts_per_token=2", "model.window=5",
            "model.auxiliary_loss=0.02"}},
    {"llama", {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.ffn=20", "model.layers=2",
                  "model.vocabulary=40", "model.tied=false", "model.rope_factor=8", "model.rope_original_context=16"}},
    {"mixtral",
        {"model.family=llama", "model.heads=3", "model.kv_heads=1", "model.width=24", "model.ffn=10", "model.layers=2",
            "model.vocabulary=40", "model.experts=4", "model.experts_per_token=2", "model.renormalise=true", "model.auxiliary_loss=0.01"}},
    {"mistral", {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.ffn=20", "model.layers=2",
                    "model.vocabulary=40", "model.window=4", "model.head_dim=10", "model.tied=false"}},
    {"qwen2", {"model.family=llama", "model.heads=3", "model.kv_heads=1", "model.width=24", "model.ffn=20", "model.layers=2",
                  "model.vocabulary=40", "model.qkv_bias=true", "model.rope_theta=1000000"}},
    {"qwen3", {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.ffn=20", "model.layers=2",
                  "model.vocabulary=40", "model.qk_norm=true", "model.head_dim=10"}},
    {"qwen3_moe with MLPs in every other layer",
        {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10", "model.ffn=10", "model.layers=3",
            "model.vocabulary=40", "model.qk_norm=true", "model.experts=4", "model.experts_per_token=2", "model.experts_period=2",
            "model.dense_ffn=18", "model.auxiliary_loss=0.01", "model.auxiliary_scope=model"}},
    {"mpt", {"model.family=mpt", "model.heads=3", "model.kv_heads=3", "model.width=24", "model.ffn=20", "model.layers=2",
                "model.vocabulary=40"}},
    {"mpt with qk_ln, clip_qkv, grouped queries and a scale",
        {"model.family=mpt", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.ffn=20", "model.layers=2", "model.vocabulary=40",
            "model.qk_norm=true", "model.clip_qkv=1.6", "model.softmax_scale=0.3", "model.alibi_max=4"}},
    {"olmo2", {"model.family=olmo", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.ffn=20", "model.layers=2",
                  "model.vocabulary=40", "model.tied=false"}},
    {"olmo3 with a window in the first layer",
        {"model.family=olmo", "model.heads=4", "model.kv_heads=4", "model.width=24", "model.ffn=20", "model.layers=2", "model.window=5",
            "model.window_period=2", "model.window_first=1", "model.window_skips=true", "model.window_rope_theta=500",
            "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=16", "model.tied=false", "model.vocabulary=40"}},
    {"gemma2", {"model.family=gemma", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10", "model.ffn=20",
                   "model.layers=3", "model.window=5", "model.window_period=2", "model.window_first=1", "model.window_skips=true",
                   "model.score_cap=1.5", "model.logit_cap=2", "model.vocabulary=40"}},
    {"gemma3", {"model.family=gemma", "model.qk_norm=true", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10",
                   "model.ffn=20", "model.layers=3", "model.window=5", "model.window_period=3", "model.window_first=2",
                   "model.window_skips=true", "model.softmax_scale=0.3", "model.window_rope_theta=500", "model.vocabulary=40"}},
    {"smollm3", {"model.family=smollm3", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10", "model.ffn=20",
                    "model.layers=3", "model.nope_period=2", "model.window=5", "model.window_period=2", "model.window_first=1",
                    "model.vocabulary=40"}},
    {"phi3", {"model.family=phi3", "model.heads=3", "model.kv_heads=1", "model.width=24", "model.ffn=20", "model.layers=2",
                 "model.window=5", "model.rope_fraction=0.75", "model.rope_scaling=longrope", "model.rope_factor=2",
                 "model.rope_original_context=12", "model.rope_short_factors=1,1.25,1.5", "model.rope_long_factors=1,3,12",
                 "model.rope_attention_factor=1.1", "model.vocabulary=40"}},
    {"glm4_moe",
        {"model.family=glm", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=12", "model.ffn=10", "model.layers=3",
            "model.dense_ffn=18", "model.experts=6", "model.experts_first=1", "model.experts_per_token=2", "model.shared_experts=1",
            "model.router_scores=sigmoid", "model.expert_groups=3", "model.groups_chosen=2", "model.gate_scale=1.5", "model.qkv_bias=true",
            "model.qk_norm=true", "model.rope_fraction=0.5", "model.vocabulary=40"}},
    {"minimax_m2", {"model.family=minimax", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=12", "model.ffn=10",
                       "model.layers=2", "model.experts=4", "model.experts_per_token=2", "model.router_scores=sigmoid",
                       "model.renormalise=true", "model.rope_fraction=0.5", "model.vocabulary=40"}},
    {"ministral3", {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10", "model.ffn=20",
                       "model.layers=2", "model.window=20", "model.rope_scaling=yarn", "model.rope_factor=4",
                       "model.rope_original_context=8", "model.rope_query_scale=0.5", "model.vocabulary=40"}},
    {"qwen3_5",
        {"model.family=qwen3_5", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=12", "model.ffn=20",
            "model.layers=3", "model.attention_period=2", "model.delta_heads=4", "model.delta_key_heads=2", "model.delta_key_dim=16",
            "model.delta_value_dim=5", "model.rope_fraction=0.5", "model.init_std=0.2", "model.norm_epsilon=0.5", "model.vocabulary=40"}},
    {"qwen3_5_moe",
        {"model.family=qwen3_5", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=12", "model.ffn=10",
            "model.layers=4", "model.attention_period=2", "model.delta_heads=2", "model.delta_key_heads=2", "model.delta_key_dim=16",
            "model.delta_value_dim=8", "model.experts=4", "model.experts_per_token=2", "model.shared_experts=1", "model.renormalise=true",
            "model.init_std=0.2", "model.norm_epsilon=0.5", "model.vocabulary=40"}},
    {"qwen3_next",
        {"model.family=qwen3_next", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=12", "model.ffn=10",
            "model.layers=4", "model.attention_period=2", "model.delta_heads=4", "model.delta_key_heads=2", "model.delta_key_dim=16",
            "model.delta_value_dim=8", "model.experts=4", "model.experts_per_token=2", "model.shared_experts=1", "model.renormalise=true",
            "model.experts_first=1", "model.dense_ffn=20", "model.init_std=0.2", "model.norm_epsilon=0.5", "model.vocabulary=40"}},
    {"granite", {"model.family=granite", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10", "model.ffn=20",
                    "model.layers=2", "model.embedding_scale=3", "model.residual_scale=0.4", "model.softmax_scale=0.2",
                    "model.logit_divisor=1.5", "model.vocabulary=40"}},
    {"granitemoe", {"model.family=granite", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.ffn=10", "model.layers=2",
                       "model.experts=3", "model.experts_per_token=2", "model.renormalise=true", "model.embedding_scale=3",
                       "model.residual_scale=0.4", "model.softmax_scale=0.2", "model.logit_divisor=1.5", "model.auxiliary_loss=0.01",
                       "model.auxiliary_scope=model", "model.vocabulary=40"}},
    {"olmoe", {"model.family=olmo", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.ffn=10", "model.layers=2",
                  "model.vocabulary=40", "model.tied=false", "model.experts=5", "model.experts_per_token=3", "model.clip_qkv=2.5",
                  "model.auxiliary_loss=0.01", "model.auxiliary_scope=model"}},
    {"gpt_oss with a window in every second layer and a balancing loss",
        {"model.family=gpt_oss", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10", "model.ffn=10",
            "model.layers=2", "model.vocabulary=40", "model.tied=false", "model.experts=4", "model.experts_per_token=2",
            "model.renormalise=true", "model.qkv_bias=true", "model.window=5", "model.window_period=2", "model.auxiliary_loss=0.01",
            "model.auxiliary_scope=model"}},
    {"deepseek_v2",
        {"model.family=deepseek", "model.heads=4", "model.kv_heads=4", "model.head_dim=10", "model.rope_dim=4", "model.value_dim=7",
            "model.kv_lora_rank=12", "model.width=24", "model.ffn=10", "model.layers=3", "model.dense_ffn=18", "model.experts=4",
            "model.experts_first=1", "model.experts_per_token=2", "model.shared_experts=2", "model.expert_groups=2",
            "model.groups_chosen=1", "model.gate_scale=1.5", "model.rope_scaling=yarn", "model.rope_factor=4",
            "model.rope_original_context=16", "model.rope_mscale=0.8", "model.auxiliary_loss=0.01", "model.vocabulary=40"}},
    {"deepseek_v3", {"model.family=deepseek", "model.heads=3", "model.kv_heads=3", "model.head_dim=12", "model.rope_dim=6",
                        "model.value_dim=8", "model.q_lora_rank=14", "model.kv_lora_rank=10", "model.width=24", "model.ffn=10",
                        "model.layers=2", "model.experts=8", "model.experts_per_token=3", "model.shared_experts=1",
                        "model.router_scores=sigmoid", "model.expert_groups=4", "model.groups_chosen=2", "model.renormalise=true",
                        "model.gate_scale=2.5", "model.rope_interleave=false", "model.vocabulary=40"}},
    {"deepseek_v3, mtp", {"model.family=deepseek", "model.heads=2", "model.kv_heads=2", "model.head_dim=12", "model.rope_dim=6",
                             "model.value_dim=8", "model.kv_lora_rank=10", "model.width=24", "model.ffn=16", "model.layers=2",
                             "model.experts=4", "model.experts_per_token=4", "model.shared_experts=1", "model.router_scores=sigmoid",
                             "model.renormalise=true", "model.tied=true", "model.mtp=1", "model.mtp_weight=0.7", "model.vocabulary=40"}},
    {"glm4_moe, mtp", {"model.family=glm", "model.heads=4", "model.kv_heads=2", "model.width=24", "model.head_dim=10", "model.ffn=10",
                          "model.layers=2", "model.dense_ffn=18", "model.experts=4", "model.experts_first=1", "model.experts_per_token=4",
                          "model.shared_experts=1", "model.router_scores=sigmoid", "model.renormalise=true", "model.rope_fraction=0.6",
                          "model.tied=false", "model.mtp=1", "model.vocabulary=40"}},
    {"gpt2", {"model.family=gpt2", "model.heads=3", "model.kv_heads=3", "model.width=21", "model.ffn=20", "model.layers=2",
                 "model.vocabulary=40"}},
};
enum { FAMILIES = sizeof families / sizeof *families };

typedef struct Fixture {
    Config config;
    OptionStrings strings;
    Program program;
} Fixture;

static Config configure(const Variety *family, OptionStrings *strings) {
    Config config;
    Error error = {0};
    options_defaults(&config_table, &config, strings);
    if (!options_set(&config_table, &config, strings, "data.length=19", &error) ||
        !options_set(&config_table, &config, strings, "batch.sequences=2", &error) ||
        !options_set(&config_table, &config, strings, "batch.tokens=38", &error) ||
        !options_set(&config_table, &config, strings, "model.init_std=0.15", &error))
        fail_msg("%s", error.message);
    for (int i = 0; family->settings[i]; i++)
        if (!options_set(&config_table, &config, strings, family->settings[i], &error)) fail_msg("%s", error.message);
    if (!config_check(&config, &error)) fail_msg("%s", error.message);
    return config;
}

/* Random tokens; documents of many lengths, one token among them. */
static void fill_inputs(const Fixture *f) {
    int32_t *tokens = executor_tensor(f->program.executor, f->program.model.tokens),
            *targets = executor_tensor(f->program.executor, f->program.model.targets);
    int32_t *positions = executor_tensor(f->program.executor, f->program.model.positions);
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = (int32_t)(rng_uniform(1, 2, i) * f->config.model.vocabulary);
        targets[i] = i % 11 == 3 ? -1 : (int32_t)(rng_uniform(1, 3, i) * f->config.model.vocabulary);
        bool start = i % LENGTH == 0 || i % LENGTH == 6 || i % LENGTH == 7;
        positions[i] = start ? 0 : positions[i - 1] + 1;
    }
    executor_set_scalar(f->program.executor, f->program.model.scale, 1.0 / ROWS);
    executor_set_scalar(f->program.executor, f->program.model.share, 1);
}

static Fixture fixture(const Variety *family, Precision precision, RecomputePolicy recompute) {
    Fixture f = {0};
    f.config = configure(family, &f.strings);
    f.program = check_program(model_build(&f.config.model, precision, MODEL_TRAIN, SEQUENCES, LENGTH, recompute), device_cpu());
    void *master = executor_arena(f.program.executor, ARENA_MASTER), *weights = executor_arena(f.program.executor, ARENA_WEIGHT);
    Error error = {0};
    assert_true(model_initialize(f.program.model.graph, &f.config.model, 5, device_cpu(), master, weights, &error));
    fill_inputs(&f);
    return f;
}

static void release(Fixture *f) {
    program_free(&f->program);
    options_free_strings(&f->strings);
}

/* After the tokens, targets and positions. */
static void put_prediction(const Fixture *f) {
    const Model *model = &f->program.model;
    const Executor *executor = f->program.executor;
    TextRows rows = {
        executor_tensor(executor, model->tokens), executor_tensor(executor, model->targets), executor_tensor(executor, model->positions)};
    program_put_prediction(&f->program, &rows, f->config.model.mtp_weight);
}

static void run(Fixture *f) {
    put_prediction(f);
    memset(executor_arena(f->program.executor, ARENA_ACTIVATION), 0xff, f->program.plan.bytes[ARENA_ACTIVATION]);
    executor_zero(f->program.executor);
    executor_run(f->program.executor);
}

static double total_loss(Fixture *f) {
    run(f);
    const double *loss = executor_tensor(f->program.executor, f->program.model.loss);
    TensorId further = f->program.model.prediction.loss;
    return loss[0] + loss[1] + (further ? *(const double *)executor_tensor(f->program.executor, further) : 0);
}

static void gradients_of_the_loss_match_central_differences(void **state) {
    (void)state;
    enum { PROBES = 4 };
    const double step = 1e-5;
    for (int i = 0; i < FAMILIES; i++) {
        Fixture f = fixture(&families[i], PRECISION_FP64, RECOMPUTE_NONE);
        const Graph *graph = f.program.model.graph;
        run(&f);
        double *gradients = memory_allocate(f.program.plan.bytes[ARENA_GRADIENT]),
               *master = executor_arena(f.program.executor, ARENA_MASTER);
        memcpy(gradients, executor_arena(f.program.executor, ARENA_GRADIENT), f.program.plan.bytes[ARENA_GRADIENT]);
        for (int p = 0; p < graph->parameter_count; p++) {
            const Parameter *parameter = &graph->parameters[p];
            if (parameter->kind == PARAMETER_BALANCE_BIAS) continue; /* steered by the load, not by the loss */
            for (int64_t probe = 0; probe < PROBES && probe < parameter->count; probe++) {
                int64_t at = parameter->offset / (int64_t)sizeof *master + (int64_t)rng_permute(9, p, probe, parameter->count);
                double value = master[at];
                master[at] = value + step;
                double above = total_loss(&f);
                master[at] = value - step;
                double slope = (above - total_loss(&f)) / (2 * step);
                master[at] = value;
                /* Cancellation: eps * loss / step ~ 1e-16 * 5 / 1e-5 = 5e-11; truncation likewise. */
                if (fabs(slope - gradients[at]) > 1e-9 + 1e-6 * fabs(slope))
                    fail_msg(
                        "%s: gradient of %s is %.9g, central difference %.9g", families[i].name, parameter->name, gradients[at], slope);
            }
        }
        free(gradients);
        release(&f);
    }
}

static void recomputation_changes_memory_but_no_bit(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        int64_t last_bytes = INT64_MAX;
        Fixture reference = fixture(&families[i], PRECISION_BF16, RECOMPUTE_NONE);
        run(&reference);
        for (RecomputePolicy policy = RECOMPUTE_NONE; policy <= RECOMPUTE_BLOCK; policy++) {
            Fixture f = fixture(&families[i], PRECISION_BF16, policy);
            run(&f);
            assert_memory_equal(executor_tensor(f.program.executor, f.program.model.loss),
                executor_tensor(reference.program.executor, reference.program.model.loss), 2 * sizeof(float));
            assert_memory_equal(executor_arena(f.program.executor, ARENA_GRADIENT),
                executor_arena(reference.program.executor, ARENA_GRADIENT), f.program.plan.bytes[ARENA_GRADIENT]);
            if (policy != RECOMPUTE_NONE) assert_true(f.program.plan.activation_floor <= last_bytes);
            last_bytes = f.program.plan.activation_floor;
            release(&f);
        }
        assert_true(last_bytes < reference.program.plan.activation_floor);
        release(&reference);
    }
}

/* bf16 keeps 8 bits: a rounding is up to 2^-9 = 0.2% of a value. A dozen roundings a layer, independent of each
 * other, over three layers and back give about 0.002 * sqrt(70) = 1.7% of a gradient's norm: half of the tensors
 * stay under 2%, and so does the root of their mean square. Small ones behind a softmax see differences of large
 * terms: all stay under 8% (a cosine of 0.997). The loss is an average: 1%. Four norms a layer double the roundings of
 * gemma2 and gemma3, whose tensors may be twice as far: on the model gemma3 of tests/golden, smelt's bf16 is off by 2.4%,
 * transformers' by 3.0%. */
static void bf16_stays_near_fp32(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        Fixture wide = fixture(&families[i], PRECISION_FP32, RECOMPUTE_NONE), bf16 = fixture(&families[i], PRECISION_BF16, RECOMPUTE_NONE);
        run(&wide);
        run(&bf16);
        const float *a = executor_arena(bf16.program.executor, ARENA_GRADIENT), *b = executor_arena(wide.program.executor, ARENA_GRADIENT);
        const float *loss_a = executor_tensor(bf16.program.executor, bf16.program.model.loss),
                    *loss_b = executor_tensor(wide.program.executor, wide.program.model.loss);
        assert_true(fabsf(loss_a[0] - loss_b[0]) < 0.01f * fabsf(loss_b[0]));
        int near = 0, all = 0;
        double squares = 0, usual = strncmp(families[i].name, "gemma", 5) ? 0.02 : 0.04;
        for (int p = 0; p < wide.program.model.graph->parameter_count; p++) {
            const Parameter *parameter = &wide.program.model.graph->parameters[p];
            double difference = 0, norm = 0;
            const float *ours = parameter_in(parameter, a), *expected = parameter_in(parameter, b);
            for (int64_t j = 0; j < parameter->count; j++) {
                difference += pow(ours[j] - expected[j], 2);
                norm += pow(expected[j], 2);
            }
            all++;
            near += sqrt(difference) <= usual * sqrt(norm);
            squares += norm > 0 ? difference / norm : 0;
            if (sqrt(difference) > 0.08 * sqrt(norm))
                fail_msg("%s: gradient of %s is off by %.3g", families[i].name, parameter->name, sqrt(difference / norm));
        }
        if (squares > all * usual * usual) fail_msg("%s: gradients are off by %.3g", families[i].name, sqrt(squares / all));
        if (near * 2 < all) fail_msg("%s: only %d of %d gradients are within %g", families[i].name, near, all, usual);
        release(&wide);
        release(&bf16);
    }
}

/* Documents as best-fit packing leaves them: each in one sequence, from row `start` on; the other rows are padding. */
static const struct { int start, count; } documents[] = {{0, 11}, {11, 7}, {18, 1}, {LENGTH, 9}, {LENGTH + 9, 2}, {LENGTH + 11, 4}};
enum { DOCUMENTS = sizeof documents / sizeof *documents };

static void fill_padding(const Fixture *f) {
    memset(executor_tensor(f->program.executor, f->program.model.tokens), 0, ROWS * sizeof(int32_t));
    memset(executor_tensor(f->program.executor, f->program.model.targets), -1, ROWS * sizeof(int32_t));
    memset(executor_tensor(f->program.executor, f->program.model.positions), 0, ROWS * sizeof(int32_t));
}

static void put_document(const Fixture *f, int document, int row, bool targets) {
    int32_t *token = executor_tensor(f->program.executor, f->program.model.tokens),
            *target = executor_tensor(f->program.executor, f->program.model.targets);
    int32_t *position = executor_tensor(f->program.executor, f->program.model.positions);
    for (int i = 0; i < documents[document].count; i++) {
        bool last = i == documents[document].count - 1;
        token[row + i] = (int32_t)(rng_uniform(1, 20 + document, i) * f->config.model.vocabulary);
        target[row + i] = targets && !last ? (int32_t)(rng_uniform(1, 20 + document, i + 1) * f->config.model.vocabulary) : -1;
        position[row + i] = i;
    }
}

/* Attention, CCA's convolution, the value shift, positions and experts see nothing of other documents and of padding. */
static void a_packed_document_has_the_loss_that_it_has_alone(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        Fixture f = fixture(&families[i], PRECISION_FP32, RECOMPUTE_NONE);
        TensorId further = f.program.model.prediction.loss;
        const float none = 0, *loss = executor_tensor(f.program.executor, f.program.model.loss),
                    *prediction = further ? executor_tensor(f.program.executor, further) : &none;
        for (int d = 0; d < DOCUMENTS; d++) {
            fill_padding(&f);
            put_document(&f, d, 0, true);
            run(&f);
            double alone = loss[0], alone_further = *prediction;
            fill_padding(&f);
            for (int other = 0; other < DOCUMENTS; other++) put_document(&f, other, documents[other].start, other == d);
            run(&f);
            assert_true(documents[d].count == 1 ? alone == 0 : alone > 0.01);
            /* At most ten terms near 4, each from sums of 24 products: fp32 gives them to some 1e-6. */
            if (fabs(loss[0] - alone) > 1e-5 * alone)
                fail_msg("%s: document %d has loss %.9g in a batch and %.9g alone", families[i].name, d, loss[0], alone);
            assert_true(!further || (documents[d].count > 2) == (alone_further > 0.01));
            if (fabs(*prediction - alone_further) > 1e-5 * alone_further)
                fail_msg("%s: document %d has mtp loss %.9g in a batch and %.9g alone", families[i].name, d, *prediction, alone_further);
        }
        release(&f);
    }
}

static Config read_config(const char *path, OptionStrings *strings) {
    Config config;
    Error error = {0};
    options_defaults(&config_table, &config, strings);
    if (!options_read_yaml(&config_table, &config, strings, path, &error) || !config_check(&config, &error)) fail_msg("%s", error.message);
    return config;
}

static void published_models_have_their_published_parameter_counts(void **state) {
    (void)state;
    static const struct {
        const char *path;
        int64_t parameters;
    } models[] = {
        {"configs/zaya1-8b.yaml", 8840488784},    /* as transformers counts it */
        {"configs/llama3.2-1b.yaml", 1235814400}, /* model cards and safetensors headers */
        {"configs/llama3.1-8b.yaml", 8030261248},
        {"configs/llama3.1-70b.yaml", 70553706496},
        {"configs/mistral-7b.yaml", 7241732096},
        {"configs/qwen2.5-0.5b.yaml", 494032768},
        {"configs/qwen3-0.6b.yaml", 596049920},
        {"configs/qwen3-30b-a3b.yaml", 30532122624},
        {"configs/olmoe-1b-7b.yaml", 6919161856},
        {"configs/olmo3-7b.yaml", 7298011136},
        {"configs/gpt-oss-20b.yaml", 20914757184},
        {"configs/deepseek-v2-lite.yaml", 15706484224},
        {"configs/deepseek-v3.yaml", 671026419200 - 58 * 256}, /* without the routers' biases */
        {"configs/gemma2-2b.yaml", 2614341888},
        {"configs/gemma3-1b.yaml", 999885952},
        {"configs/gemma3-4b.yaml", 3880263168},
        {"configs/smollm3-3b.yaml", 3075098624},
        {"configs/phi4.yaml", 14659507200},
        {"configs/granite3-2b.yaml", 2533531648},
        {"configs/granite3-1b-a400m.yaml", 1334628352},
        {"configs/gpt2-124m.yaml", 124439808},
        {"configs/gpt2-1.5b.yaml", 1557611200},
        {"configs/mpt-7b.yaml", 6649286656},
        {"configs/mpt-30b.yaml", 29957200896},
        /* Not published as models: vocabulary * width + layers * (12 * width^2 + 2 norms) + 1 norm, and the 2 of
         * qk_ln in mpt-1b. */
        {"configs/mpt-1b.yaml", 50368LL * 2048 + 24 * (12LL * 2048 * 2048 + 4 * 2048) + 2048},
        {"configs/mpt-3b.yaml", 50368LL * 2560 + 32 * (12LL * 2560 * 2560 + 2 * 2560) + 2560},
        {"configs/mpt-13b.yaml", 50368LL * 5120 + 40 * (12LL * 5120 * 5120 + 2 * 5120) + 5120},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        OptionStrings strings = {0};
        Config config = read_config(models[i].path, &strings);
        Model model = model_build(&config.model, PRECISION_BF16, MODEL_EVALUATE, 1, 64, RECOMPUTE_NONE);
        assert_int_equal(model_parameters(model.graph), models[i].parameters);
        model_free(&model);
        options_free_strings(&strings);
    }
}

static void a_plan_that_does_not_fit_is_refused_with_a_change_that_does(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Config config = read_config("configs/llama-tiny.yaml", &strings);
    Session session;
    Error error = {0};
    config.checkpoint.async = false;
    assert_true(session_plan(&session, &config, device_cpu(), &error));
    int64_t total = session_budget(&session).total;
    assert_true(session_check_memory(&session, total, &error));
    assert_false(session_check_memory(&session, total - 1, &error));
    assert_int_equal(error.code, ERROR_MEMORY);
    assert_mentions(error.message, "recompute=");
    assert_false(session_check_memory(&session, 1 << 20, &error));
    assert_mentions(error.message, "recomputation");
    session_free(&session);
    options_free_strings(&strings);
}

static void only_matrices_of_gpt2_and_experts_of_gpt_oss_lie_transposed_in_folders(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        OptionStrings strings = {0};
        Config config = configure(&families[i], &strings);
        Model model = model_build(&config.model, PRECISION_FP32, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
        for (int p = 0; p < model.graph->parameter_count; p++) {
            const Parameter *parameter = &model.graph->parameters[p];
            int rank = config.model.family == FAMILY_gpt2 ? 2 : config.model.family == FAMILY_gpt_oss ? 3 : 0;
            assert_int_equal(parameter->transposed, parameter->kind == PARAMETER_MATRIX && parameter->rank == rank);
        }
        model_free(&model);
        options_free_strings(&strings);
    }
}

static void settings_of_other_families_are_refused(void **state) {
    (void)state;
    static const char *const wrong[][3] = {
        {"model.family=gpt2", "model.kv_heads=2", "model.kv_heads=4"},
        {"model.family=gpt2", "model.kv_heads=4 model.qk_norm=true", "model.qk_norm=true has no effect without "},
        {"model.family=mpt", "model.experts=4", "model.experts=4 has no effect without "},
        {"model.family=mpt", "model.head_dim=24", "model.width=256"},
        {"model.family=llama", "model.clip_qkv=6", "model.clip_qkv=6 has no effect without "},
        {"model.family=llama", "model.softmax_scale=1", "model.softmax_scale=1 has no effect without "},
        {"model.family=zaya", "model.experts=2 model.qkv_bias=true", "model.qkv_bias=true has no effect without "},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        OptionStrings strings = {0};
        Config config;
        Error error = {0};
        char settings[128], *rest = settings;
        options_defaults(&config_table, &config, &strings);
        snprintf(settings, sizeof settings, "%s %s", wrong[i][0], wrong[i][1]);
        for (char *setting; (setting = strsep(&rest, " "));)
            if (!options_set(&config_table, &config, &strings, setting, &error)) fail_msg("%s", error.message);
        assert_false(needs_check(&config, &config, &error) && config_check(&config, &error));
        assert_int_equal(error.code, ERROR_USAGE);
        if (!strstr(error.message, wrong[i][2])) fail_msg("%s does not say: %s", error.message, wrong[i][2]);
        options_free_strings(&strings);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_the_loss_match_central_differences),
        EACH_ISA(cmocka_unit_test(recomputation_changes_memory_but_no_bit)),
        cmocka_unit_test(bf16_stays_near_fp32),
        cmocka_unit_test(a_packed_document_has_the_loss_that_it_has_alone),
        cmocka_unit_test(published_models_have_their_published_parameter_counts),
        cmocka_unit_test(only_matrices_of_gpt2_and_experts_of_gpt_oss_lie_transposed_in_folders),
        cmocka_unit_test(settings_of_other_families_are_refused),
        cmocka_unit_test(a_plan_that_does_not_fit_is_refused_with_a_change_that_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
