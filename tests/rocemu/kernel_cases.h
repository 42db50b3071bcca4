/* Launches of smelt's kernels at the shapes of Llama 3.2 1B, Llama 3.1 8B and ZAYA1-8B, for the model of time
 * (tools/rocemu/timing.c): one case is one operation with its gradient, or an update of an optimizer, on zeros. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "support/check.h"
#include "support/launches.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/cca/cca.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/join/join.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "optim/optim.h"

/* What the fields mean is up to the case's function. */
typedef struct KernelCase {
    const char *name;
    void (*run)(const struct KernelCase *c);
    int64_t rows, in, out, experts;
    Heads heads;
    bool small; /* part of the table that `make test` compares */
} KernelCase;

enum { MOST_ROWS = 32768 };
static int32_t case_positions[MOST_ROWS], case_experts[MOST_ROWS];

static inline TensorId case_rows(Check *check, int64_t count, const int32_t *values) { return check_integers(check, 1, &count, values); }
static inline TensorId case_matrix(Check *check, int64_t rows, int64_t columns) {
    return check_parameter(check, PARAMETER_MATRIX, 2, (int64_t[]){rows, columns}, 0, 1);
}

static inline void build_linear_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->in}, 0, 1);
    check_output(check, op_linear(check->graph, x, case_matrix(check, c->out, c->in), TENSOR_NONE, false));
}
static inline void run_linear(const KernelCase *c) { check_launch(build_linear_case, c, true); }

/* Rows shared out evenly over experts, one expert a row. */
static inline void build_experts_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    int64_t chosen[] = {c->rows, 1};
    for (int64_t r = 0; r < c->rows; r++) case_experts[r] = (int32_t)(r * 7 % c->experts);
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->in}, 0, 1),
             gate = check_input(check, TYPE_WIDE, 2, chosen, 1, 0);
    TensorId w = check_parameter(check, PARAMETER_MATRIX, 3, (int64_t[]){c->experts, c->out, c->in}, 0, 1);
    Dispatch dispatch = op_moe_sort(check->graph, check_integers(check, 2, chosen, case_experts), c->experts);
    TensorId y = op_grouped_linear(check->graph, op_moe_permute(check->graph, x, &dispatch), w, &dispatch);
    check_output(check, op_moe_combine(check->graph, y, gate, &dispatch));
}
static inline void run_experts(const KernelCase *c) { check_launch(build_experts_case, c, true); }

/* The biases of these experts on rows of `in` columns, and their gradients. */
static inline void build_biases_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    int64_t chosen[] = {c->rows, 1};
    for (int64_t r = 0; r < c->rows; r++) case_experts[r] = (int32_t)(r * 7 % c->experts);
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->in}, 0, 1);
    TensorId bias = check_parameter(check, PARAMETER_BIAS, 2, (int64_t[]){c->experts, c->in}, 0, 1);
    Dispatch dispatch = op_moe_sort(check->graph, check_integers(check, 2, chosen, case_experts), c->experts);
    check_output(check, op_grouped_bias(check->graph, op_moe_permute(check->graph, x, &dispatch), bias, &dispatch, 0));
}
static inline void run_biases(const KernelCase *c) { check_launch(build_biases_case, c, true); }

/* `rows` of sequences of `in` rows. */
static inline void build_attention_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    for (int64_t r = 0; r < c->rows; r++) case_positions[r] = (int32_t)(r % c->in);
    AttentionSpec spec = {.heads = c->heads, .length = c->in};
    TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, heads_columns(&c->heads)}, 0, 1);
    check_output(check, op_attention(check->graph, qkv, case_rows(check, c->rows, case_positions), &spec));
}
static inline void run_attention(const KernelCase *c) { check_launch(build_attention_case, c, true); }

/* One new row after a cache of `in` rows. */
static inline void build_decode_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    case_positions[0] = (int32_t)(c->in - 1);
    AttentionSpec spec = {.heads = c->heads, .length = 1};
    TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){1, heads_columns(&c->heads)}, 0, 1);
    TensorId cache = graph_tensor(check->graph, ARENA_STATE, TYPE_COMPUTE, 2, (int64_t[]){c->in, heads_kv_columns(&c->heads)}, "cache");
    check_output(check, op_attention_cached(check->graph, qkv, case_rows(check, 1, case_positions), cache, TENSOR_NONE, &spec));
}
static inline void run_decode(const KernelCase *c) { check_launch(build_decode_case, c, false); }

static inline void build_loss_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->in}, 0, 1);
    TensorId w = check_parameter(check, PARAMETER_EMBEDDING, 2, (int64_t[]){c->out, c->in}, 0, 1);
    op_linear_cross_entropy(
        check->graph, x, w, case_rows(check, c->rows, case_positions), check_scalar(check, 1), check_loss(check, 2), c->out);
}
static inline void run_loss(const KernelCase *c) { check_launch(build_loss_case, c, true); }

static inline void build_norm_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    int64_t shape[] = {c->rows, c->in};
    TensorId block = check_input(check, TYPE_COMPUTE, 2, shape, 0, 1), stream = check_input(check, TYPE_WIDE, 2, shape, 0, 1);
    Norm norm = check_norm(check, NORM_RMS, false, c->in);
    ResidualNorm merged = op_residual_norm(check->graph, block, stream, NULL, &norm);
    check_output(check, merged.stream);
    check_output(check, merged.normed);
}
static inline void run_norm(const KernelCase *c) { check_launch(build_norm_case, c, true); }

/* One sample: merged, normalized. */
static inline void build_adaptive_norm_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    int64_t shape[] = {c->rows, c->in}, vector[] = {1, c->in};
    TensorId block = check_input(check, TYPE_COMPUTE, 2, shape, 0, 1), stream = check_input(check, TYPE_WIDE, 2, shape, 0, 1);
    TensorId gate = check_input(check, TYPE_WIDE, 2, vector, 0, 1), shift = check_input(check, TYPE_WIDE, 2, vector, 0, 1);
    Modulation modulation = {.shift = shift, .scale = check_input(check, TYPE_WIDE, 2, vector, 0, 1)};
    ResidualNorm merged = op_adaptive_norm(check->graph, block, gate, stream, modulation, 1e-6);
    check_output(check, merged.stream);
    check_output(check, merged.normed);
}
static inline void run_adaptive_norm(const KernelCase *c) { check_launch(build_adaptive_norm_case, c, true); }

static inline void build_qk_norm_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    const Heads *h = &c->heads;
    TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, heads_columns(h)}, 0, 1);
    Norm query = check_norm(check, NORM_RMS, false, h->qk_dim), key = check_norm(check, NORM_RMS, false, h->qk_dim);
    check_output(check, op_qk_norm(check->graph, qkv, &query, &key, h));
}
static inline void run_qk_norm(const KernelCase *c) { check_launch(build_qk_norm_case, c, true); }

static inline void build_swiglu_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    check_output(
        check, op_activation(check->graph, check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, 2 * c->in}, 0, 1), ACTIVATION_swiglu));
}
static inline void run_swiglu(const KernelCase *c) { check_launch(build_swiglu_case, c, true); }

/* Rows of an image, and an eighth as many of its text, become one sequence; the gradient takes them apart. */
static inline void build_join_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    int64_t image[] = {c->rows, c->in}, text[] = {c->rows / 8, c->in};
    TensorId parts[] = {check_input(check, TYPE_COMPUTE, 2, image, 0, 1), check_input(check, TYPE_COMPUTE, 2, text, 0, 1)};
    check_output(check, op_join_rows(check->graph, parts, 2, 1));
}
static inline void run_join(const KernelCase *c) { check_launch(build_join_case, c, true); }

static inline void build_rope_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    RopeSpec spec = {.theta = 10000, .dimensions = c->heads.qk_dim, .positions = c->in, .factor = 1};
    for (int64_t r = 0; r < c->rows; r++) case_positions[r] = (int32_t)(r % c->in);
    TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, heads_columns(&c->heads)}, 0, 1);
    check_output(check,
        op_rope(check->graph, qkv, case_rows(check, c->rows, case_positions), op_rope_table(check->graph, &spec), &c->heads, ROPE_HALVES));
}
static inline void run_rope(const KernelCase *c) { check_launch(build_rope_case, c, true); }

static inline void build_cca_case(Check *check, const void *argument) {
    const KernelCase *c = argument;
    const Heads *h = &c->heads;
    int64_t convolved = heads_query_columns(h) + heads_key_columns(h), columns = convolved + heads_value_columns(h);
    RopeSpec rope = {.theta = 10000, .dimensions = h->qk_dim / 2, .positions = c->in, .factor = 1};
    for (int64_t r = 0; r < c->rows; r++) case_positions[r] = (int32_t)(r % c->in);
    CcaParameters parameters = {
        .depthwise_weight = check_parameter(check, PARAMETER_CONVOLUTION, 3, (int64_t[]){convolved, 1, 2}, 0, 1),
        .depthwise_bias = check_parameter(check, PARAMETER_BIAS, 1, &convolved, 0, 1),
        .grouped_weight = check_parameter(check, PARAMETER_CONVOLUTION, 3, (int64_t[]){convolved, h->qk_dim, 2}, 0, 1),
        .grouped_bias = check_parameter(check, PARAMETER_BIAS, 1, &convolved, 0, 1),
        .temperature = check_parameter(check, PARAMETER_NORM, 1, &h->kv_heads, 1, 0),
    };
    TensorId u = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, columns}, 0, 1);
    check_output(check, op_cca(check->graph, u, case_rows(check, c->rows, case_positions), op_rope_table(check->graph, &rope), &parameters,
                            TENSOR_NONE, &(CcaSpec){.heads = *h, .delayed = heads_value_columns(h) / 2}));
}
static inline void run_cca(const KernelCase *c) { check_launch(build_cca_case, c, true); }

typedef struct OptimizerCase {
    Optimizer *optimizer;
    Update update;
} OptimizerCase;
static inline void run_update(void *context) {
    OptimizerCase *c = context;
    optimizer_step(c->optimizer, &c->update);
}

/* An update of matrices [rows, in]. */
static inline void run_optimizer(const KernelCase *c, int name) {
    Device *device = check_device();
    Error error = {0};
    Graph *graph = graph_create(PRECISION_BF16, true);
    OptimizerConfig config = {
        .name = name, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .momentum = 0.95, .newton_schulz_steps = 5};
    graph_parameter(graph, "w", PARAMETER_MATRIX, 2, (int64_t[]){c->rows, c->in}, 0, 1, false);
    Optimizer *optimizer = optimizer_create(graph, &config, NULL, device, &error);
    int64_t bytes = 4 * c->rows * c->in;
    void *arena[3];
    for (int i = 0; i < 3; i++) arena[i] = device_allocate(device, bytes, &error);
    if (!optimizer || !arena[0] || !arena[1] || !arena[2]) exit(1);
    launches_repeat(run_update, &(OptimizerCase){optimizer, {arena[0], arena[1], arena[2], 1, 1e-3, 1}});
    if (!device_ok(device, &error)) exit(1);
    for (int i = 0; i < 3; i++) device_free(device, arena[i], bytes);
    optimizer_free(optimizer);
    graph_free(graph);
}
static inline void run_adamw(const KernelCase *c) { run_optimizer(c, OPTIMIZER_adamw); }
static inline void run_lion(const KernelCase *c) { run_optimizer(c, OPTIMIZER_lion); }
static inline void run_muon(const KernelCase *c) { run_optimizer(c, OPTIMIZER_muon); }

#define HEADS_1B {32, 8, 64, 64}
#define HEADS_8B {32, 8, 128, 128}
#define HEADS_ZAYA {8, 2, 128, 128}
static const KernelCase kernel_cases[] = {
    {"gemm 4096 cubed", run_linear, .rows = 4096, .in = 4096, .out = 4096},
    {"gemm 8192 cubed", run_linear, .rows = 8192, .in = 8192, .out = 8192},
    {"gemm 2048 cubed", run_linear, .rows = 2048, .in = 2048, .out = 2048, .small = true},
    {"llama-1b qkv", run_linear, .rows = 8192, .in = 2048, .out = 3072},
    {"llama-1b attention out", run_linear, .rows = 8192, .in = 2048, .out = 2048},
    {"llama-1b gate and up", run_linear, .rows = 8192, .in = 2048, .out = 16384},
    {"llama-1b down", run_linear, .rows = 8192, .in = 8192, .out = 2048},
    {"llama-8b qkv", run_linear, .rows = 8192, .in = 4096, .out = 6144},
    {"llama-8b attention out", run_linear, .rows = 8192, .in = 4096, .out = 4096},
    {"llama-8b gate and up", run_linear, .rows = 8192, .in = 4096, .out = 28672},
    {"llama-8b down", run_linear, .rows = 8192, .in = 14336, .out = 4096},
    {"zaya1 experts gate and up", run_experts, .rows = 16384, .in = 2048, .out = 4096, .experts = 16},
    {"zaya1 experts down", run_experts, .rows = 16384, .in = 2048, .out = 2048, .experts = 16},
    {"experts small", run_experts, .rows = 2048, .in = 512, .out = 1024, .experts = 8, .small = true},
    {"gpt-oss-20b biases", run_biases, .rows = 32768, .in = 5760, .experts = 32},
    {"biases small", run_biases, .rows = 2048, .in = 1024, .experts = 8, .small = true},
    {"attention 64", run_attention, .rows = 4096, .in = 4096, .heads = HEADS_1B},
    {"attention 128", run_attention, .rows = 4096, .in = 4096, .heads = HEADS_8B},
    {"attention 256", run_attention, .rows = 4096, .in = 4096, .heads = {16, 4, 256, 256}},
    {"attention of four 64", run_attention, .rows = 16384, .in = 4096, .heads = HEADS_1B},
    {"attention of four 128", run_attention, .rows = 16384, .in = 4096, .heads = HEADS_8B},
    {"attention of four 256", run_attention, .rows = 16384, .in = 4096, .heads = {16, 4, 256, 256}},
    {"attention of two 8192 128", run_attention, .rows = 16384, .in = 8192, .heads = {64, 8, 128, 128}},
    {"attention zaya1", run_attention, .rows = 16384, .in = 4096, .heads = HEADS_ZAYA},
    {"attention 64 small", run_attention, .rows = 1024, .in = 1024, .heads = HEADS_1B, .small = true},
    {"attention 128 small", run_attention, .rows = 1024, .in = 1024, .heads = HEADS_8B, .small = true},
    {"attention 256 small", run_attention, .rows = 1024, .in = 1024, .heads = {16, 4, 256, 256}, .small = true},
    {"decode llama-1b", run_decode, .in = 32768, .heads = HEADS_1B},
    {"decode llama-8b", run_decode, .in = 32768, .heads = HEADS_8B},
    {"decode zaya1", run_decode, .in = 32768, .heads = HEADS_ZAYA},
    {"decode small", run_decode, .in = 4096, .heads = HEADS_8B, .small = true},
    {"llama-1b head and loss", run_loss, .rows = 4096, .in = 2048, .out = 128256},
    {"zaya1 head and loss", run_loss, .rows = 4096, .in = 2048, .out = 262272},
    {"head and loss small", run_loss, .rows = 1024, .in = 512, .out = 8192, .small = true},
    {"llama-1b norm", run_norm, .rows = 8192, .in = 2048},
    {"llama-8b norm", run_norm, .rows = 8192, .in = 4096},
    {"norm small", run_norm, .rows = 2048, .in = 2048, .small = true},
    {"llama-8b swiglu", run_swiglu, .rows = 8192, .in = 14336},
    {"swiglu small", run_swiglu, .rows = 2048, .in = 2048, .small = true},
    {"llama-8b rope", run_rope, .rows = 8192, .in = 8192, .heads = HEADS_8B},
    {"flux adaptive norm", run_adaptive_norm, .rows = 4608, .in = 3072},
    {"flux qk norm", run_qk_norm, .rows = 4608, .heads = {24, 24, 128, 128}},
    {"flux join", run_join, .rows = 4096, .in = 9216},
    {"join small", run_join, .rows = 1024, .in = 1024, .small = true},
    {"zaya1 cca", run_cca, .rows = 16384, .in = 4096, .heads = HEADS_ZAYA},
    {"cca small", run_cca, .rows = 2048, .in = 2048, .heads = HEADS_ZAYA, .small = true},
    {"adamw 256M", run_adamw, .rows = 16384, .in = 16384},
    {"adamw 4M", run_adamw, .rows = 2048, .in = 2048, .small = true},
    {"lion 4M", run_lion, .rows = 2048, .in = 2048, .small = true},
    {"muon 2048", run_muon, .rows = 2048, .in = 2048},
};

enum { KERNEL_CASES = sizeof kernel_cases / sizeof *kernel_cases };

/* Returns whether `cases` selects this case: small, all, or the beginning of a name; NULL: small. */
static inline bool kernel_case_is_in(const char *cases, const KernelCase *c) {
    if (!cases || !strcmp(cases, "small")) return c->small;
    return !strcmp(cases, "all") || !strncmp(c->name, cases, strlen(cases));
}
