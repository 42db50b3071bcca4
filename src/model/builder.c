/* Shared by the families while they build: naming and declaring parameters, attention, experts. Owns
 * nothing; called by decoder.c and the families. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "model/builder.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/dequantize/dequantize.h"
#include "ops/collective/collective.h"
#include "ops/embed/embed.h"
#include "ops/fp8/fp8.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/moe/moe.h"
#include "ops/rope/rope.h"

/* -- Parameters ---------------------------------------------------------------------------------------------------- */

/* `fused`: starts right after the previous parameter, so that graph_fuse can view both as one. */
static TensorId declare_weight(Builder *b, const char *name, const char *suffix, ParameterKind kind, int rank, const int64_t *shape,
    const Cut *cut, double mean, double std, bool fused) {
    char full[160];
    if (b->layer >= 0) snprintf(full, sizeof full, "%s.%d.%s%s", b->layer_names, b->layer, name, suffix);
    else snprintf(full, sizeof full, "%s%s", name, suffix);
    return graph_cut_parameter(b->graph, full, kind, rank, shape, cut ? cut : &(Cut){0}, mean, std, fused);
}

TensorId builder_parameter(Builder *b, const char *name, ParameterKind kind, int rank, const int64_t *shape, const Cut *cut) {
    return declare_weight(b, name, "", kind, rank, shape, cut, 0, b->config->init_std, false);
}

TensorId builder_vector(Builder *b, const char *name, ParameterKind kind, int64_t count, double value, const Cut *cut) {
    return declare_weight(b, name, "", kind, 1, &count, cut, value, 0, false);
}

TensorId builder_matrix(Builder *b, const char *name, int64_t out, int64_t in, double std, const Cut *cut) {
    return declare_weight(b, name, ".weight", PARAMETER_MATRIX, 2, (int64_t[]){out, in}, cut, 0, std, false);
}

TensorId builder_bias(Builder *b, const char *name, int64_t count, const Cut *cut) {
    return declare_weight(b, name, ".bias", PARAMETER_BIAS, 1, &count, cut, 0, 0, false);
}

TensorId builder_read(Builder *b, TensorId weight) { return b->lora ? op_dequantize(b->graph, weight) : weight; }

/* Sets whether the next matrices are quantized beside adapters. */
static void quantize_next(Builder *b, bool quantized) {
    static const Quantization kinds[] = {[LORA_BASE_SAME] = QUANTIZE_NONE, [LORA_BASE_NF4] = QUANTIZE_NF4, [LORA_BASE_FP8] = QUANTIZE_FP8};
    b->graph->quantization = quantized && b->graph->frozen ? kinds[b->lora->base] : QUANTIZE_NONE;
}

double builder_residual_std(const Builder *b) { return b->config->init_std / sqrt(2.0 * b->config->layers); }

static Linear declare_linear(Builder *b, const char *name, int64_t out, int64_t in, double std, bool biased, const Cut *cut) {
    Linear linear = {.split = cut->dimension == 0 ? SPLIT_OUTPUT : SPLIT_INPUT};
    quantize_next(b, true);
    linear.parts[0].w = builder_matrix(b, name, out, in, std, cut);
    quantize_next(b, false);
    if (biased) linear.parts[0].bias = builder_bias(b, name, out, cut->dimension == 0 ? cut : NULL);
    return linear;
}

Linear builder_split_output(Builder *b, const char *name, const int64_t *blocks, int count, int64_t in, double std, bool biased) {
    Cut cut = {.axes = AXES_TENSOR, .dimension = 0, .blocks = count};
    int64_t out = 0;
    assert(count <= CUT_MAX_BLOCKS);
    for (int i = 0; i < count; i++) out += cut.rows[i] = blocks[i];
    return declare_linear(b, name, out, in, std, biased, &cut);
}

Linear builder_split_input(Builder *b, const char *name, int64_t out, int64_t in, double std, bool biased) {
    return declare_linear(b, name, out, in, std, biased, &(Cut){.axes = AXES_TENSOR, .dimension = 1, .blocks = 1, .rows = {in}});
}

enum { MAX_STACKED = 4 };

/* Returns whether the layer is on other ranks than the previous one and so starts a new part. */
static bool begins_part(const Builder *b, const Stacked *layers, int index) {
    const Mesh *mesh = b->graph->mesh;
    return index > 0 && mesh_significant(mesh, layers[index].axes) != mesh_significant(mesh, layers[index - 1].axes);
}

/* Declares matrices or biases of the layers; views[i] is part i of them. */
static void declare_stacked(Builder *b, const Stacked *layers, int count, int64_t in, bool biases, TensorId views[LINEAR_PARTS]) {
    TensorId declared[MAX_STACKED];
    int part = 0, first = 0;
    assert(count <= MAX_STACKED);
    quantize_next(b, !biases);
    for (int i = 0; i < count; i++) {
        Cut cut = {.axes = layers[i].axes, .dimension = 0, .blocks = 1, .rows = {layers[i].out}};
        bool fused = i > 0 && !begins_part(b, layers, i);
        if (biases) declared[i] = declare_weight(b, layers[i].name, ".bias", PARAMETER_BIAS, 1, &layers[i].out, &cut, 0, 0, fused);
        else
            declared[i] = declare_weight(
                b, layers[i].name, ".weight", PARAMETER_MATRIX, 2, (int64_t[]){layers[i].out, in}, &cut, 0, b->config->init_std, fused);
        if (i + 1 < count && !begins_part(b, layers, i + 1)) continue;
        assert(part < LINEAR_PARTS);
        views[part++] = graph_fuse(b->graph, declared + first, i + 1 - first);
        first = i + 1;
    }
    quantize_next(b, false);
}

Linear builder_stacked(Builder *b, const Stacked *layers, int count, int64_t in, bool biased) {
    TensorId weights[LINEAR_PARTS] = {0}, biases[LINEAR_PARTS] = {0};
    Linear linear = {.split = layers[0].axes ? SPLIT_OUTPUT : SPLIT_NONE};
    declare_stacked(b, layers, count, in, false, weights);
    if (biased) declare_stacked(b, layers, count, in, true, biases);
    for (int i = 0; i < LINEAR_PARTS; i++) linear.parts[i] = (LinearPart){weights[i], biases[i]};
    return linear;
}

/* Returns this rank's part of the token table or the head. */
static CutShare table_share(const Builder *b, int64_t entries) {
    const Mesh *mesh = b->graph->mesh;
    return cut_share(entries, mesh_index(mesh, AXES_TENSOR), mesh_size(mesh, AXES_TENSOR));
}

TokenRuns builder_token_runs(const Builder *b) {
    const TokenRuns all = lora_token_runs(b->lora);
    TokenRuns own = {0};
    CutShare share = table_share(b, b->config->vocabulary);
    for (int i = 0; i < all.count; i++) {
        const TokenRun *run = &all.items[i];
        int64_t first = int_max(run->first, share.first), end = int_min(run->first + run->count, share.first + share.count);
        if (first < end) own.items[own.count++] = (TokenRun){first - share.first, end - first, run->row + first - run->first};
    }
    return own;
}

TensorId builder_token_rows(const Builder *b, TensorId table) {
    SCOPED_FREE char *module = parameter_module(graph_get(b->graph, table)->name), *name = memory_format("%s" LORA_ROWS, module);
    int index = graph_find_parameter(b->graph, name);
    return index < 0 ? TENSOR_NONE : b->graph->parameters[index].tensor;
}

/* Declares the rows of a frozen table that lora.tokens trains, and puts them into the table. Every
 * rank has all of them, and computes their gradients for its part of the table. */
static void declare_token_rows(Builder *b, TensorId table, const char *module, bool ends) {
    const TokenRuns all = lora_token_runs(b->lora), own = builder_token_runs(b);
    if (!all.count) return;
    SCOPED_FREE char *name = memory_format("%s" LORA_ROWS, module);
    b->graph->frozen = false;
    TensorId rows = builder_parameter(b, name, PARAMETER_EMBEDDING, 2, (int64_t[]){token_runs_rows(&all), b->config->width}, NULL);
    b->graph->parameters[b->graph->parameter_count - 1].ends = ends;
    b->graph->frozen = true;
    op_put_rows(b->graph, rows, table, &own);
}

/* The token table, or the head. */
static TensorId declare_table(Builder *b, const char *name, bool ends) {
    Cut cut = {.axes = AXES_TENSOR, .dimension = 0, .blocks = 1, .rows = {b->config->vocabulary}};
    SCOPED_FREE char *module = parameter_module(name);
    bool frozen = b->graph->frozen;
    b->graph->frozen = frozen && !lora_saves(b->lora, module, b->config->tied);
    TensorId table = builder_parameter(b, name, PARAMETER_EMBEDDING, 2, (int64_t[]){b->config->vocabulary, b->config->width}, &cut);
    b->graph->parameters[b->graph->parameter_count - 1].ends = ends;
    b->graph->frozen = frozen;
    declare_token_rows(b, table, module, ends);
    return table;
}

TensorId builder_embed(Builder *b, const Lookup *lookup) {
    CutShare share = table_share(b, lookup->entries);
    EmbedSpec spec = {.padding = lookup->padding, .first = share.first, .factor = lookup->factor};
    TensorId rows = builder_token_rows(b, lookup->table);
    if (rows) spec.runs = builder_token_runs(b);
    assert(graph_rows(b->graph, lookup->table) == share.count);
    return op_embed(b->graph, lookup->ids, lookup->table, lookup->bias, lookup->scale, rows, &spec);
}

TensorId builder_embedding(Builder *b, const char *name) {
    return builder_is_first_stage(b) ? declare_table(b, name, b->cut && b->config->tied) : TENSOR_NONE;
}

TensorId builder_head(Builder *b, const char *name, TensorId embedding) {
    if (!builder_is_last_stage(b)) return TENSOR_NONE;
    if (!b->config->tied) return declare_table(b, "lm_head.weight", false);
    return embedding ? embedding : declare_table(b, name, true);
}

/* Values begin at 0, so the first advantages are the returns. */
TensorId builder_value_head(Builder *b, TensorId x) {
    const int64_t shape[] = {1, graph_columns(b->graph, x)};
    bool frozen = b->graph->frozen;
    b->graph->frozen = false;
    TensorId weight = declare_weight(b, "value_head", ".weight", PARAMETER_VALUE_HEAD, 2, shape, NULL, 0, 0, false);
    b->graph->frozen = frozen;
    return builder_gather(b, op_linear(b->graph, x, weight, TENSOR_NONE, true));
}

/* -- Operations ---------------------------------------------------------------------------------------------------- */

/* With a loss, ranks divide the rows of the residual stream. */
bool builder_shares_rows(const Builder *b) { return b->mode == MODEL_TRAIN || b->mode == MODEL_EVALUATE; }

TensorId builder_gather(Builder *b, TensorId x) { return builder_shares_rows(b) ? op_all_gather(b->graph, x, AXES_TENSOR) : x; }

TensorId builder_scatter(Builder *b, TensorId x) {
    return builder_shares_rows(b) ? op_reduce_scatter(b->graph, x, AXES_TENSOR) : op_all_reduce(b->graph, x, AXES_TENSOR);
}

bool builder_is_fp8(const Builder *b, int64_t rows, double expert_rows, int64_t out, int64_t in) {
    return fp8_choose(&b->config->fp8, b->graph->training, rows, expert_rows, out, in) == FP8_CHOSEN;
}

Heads builder_heads(const Builder *b) {
    const ModelConfig *c = b->config;
    const Mesh *mesh = b->graph->mesh;
    return (Heads){c->heads / mesh_size(mesh, AXES_TENSOR), c->kv_heads / mesh_size(mesh, AXES_KEYS), c->head_dim, model_value_dim(c)};
}

Norm builder_norm(Builder *b, const char *name, NormKind kind, bool biased, int64_t columns) {
    Norm norm = {.kind = kind, .epsilon = b->config->norm_epsilon};
    norm.gain = declare_weight(b, name, ".weight", PARAMETER_NORM, 1, &columns, NULL, 1, 0, false);
    if (biased) norm.bias = builder_bias(b, name, columns, NULL);
    return norm;
}

TensorId builder_rope_table(Builder *b, double theta, bool scaled) {
    const ModelConfig *c = b->config;
    RopeTable *at = b->rope_tables;
    while (at->table && (at->theta != theta || at->scaled != scaled) && at < b->rope_tables + ROPE_TABLES - 1) at++;
    assert(!at->table || (at->theta == theta && at->scaled == scaled));
    if (at->table) return at->table;
    RopeSpec spec = {.theta = theta,
        .dimensions = (int64_t)model_rotated(c),
        .positions = c->context,
        .scaling = (RopeScaling)c->rope_scaling,
        .factor = scaled ? c->rope_factor : 1,
        .original_positions = c->rope_original_context,
        .low_frequency = c->rope_low_frequency,
        .high_frequency = c->rope_high_frequency,
        .beta_fast = c->rope_beta_fast,
        .beta_slow = c->rope_beta_slow,
        .truncate = c->rope_truncate,
        .attention_factor = scaled ? c->rope_attention_factor : 1,
        .short_factors = c->rope_short_factors,
        .long_factors = c->rope_long_factors,
        .length = b->mode == MODEL_GENERATE ? 0 : b->length};
    *at = (RopeTable){theta, scaled, op_rope_table(b->graph, &spec)};
    return at->table;
}

TensorId builder_scale_queries(Builder *b, TensorId qkv) {
    QueryScale scale = {.beta = b->config->rope_query_scale, .period = b->config->rope_original_context};
    Heads heads = builder_heads(b);
    return scale.beta > 0 ? op_query_scale(b->graph, qkv, b->positions, &heads, &scale) : qkv;
}

TensorId builder_attention(Builder *b, TensorId qkv, const AttentionScores *scores) {
    const ModelConfig *c = b->config;
    Heads heads = builder_heads(b);
    AttentionSpec spec = {.heads = heads,
        .first_head = mesh_index(b->graph->mesh, AXES_TENSOR) * heads.heads,
        .all_heads = c->heads,
        .length = b->length,
        .scores = *scores};
    if (b->mode != MODEL_GENERATE) return op_attention(b->graph, qkv, b->positions, &spec);
    int64_t positions = b->slots.first_rows ? b->slot_sizes.cache_rows : c->context;
    int64_t shape[] = {attention_cache_rows(b->graph, positions), heads_kv_columns(&heads)};
    TensorId cache = graph_tensor(b->graph, ARENA_STATE, TYPE_COMPUTE, 2, shape, "kv_cache");
    return op_attention_cached(b->graph, qkv, b->positions, cache, b->slots.first_rows, &spec);
}

Routing builder_router(Builder *b, TensorId logits, TensorId bias, bool skip) {
    const ModelConfig *c = b->config;
    Graph *graph = b->graph;
    bool whole = c->auxiliary_scope == AUXILIARY_MODEL && c->auxiliary_loss > 0;
    RouterSpec spec = {.experts = c->experts,
        .k = c->experts_per_token,
        .skip = skip,
        .renormalise = c->renormalise,
        .sigmoid = c->router_scores == SCORES_SIGMOID,
        .groups = c->expert_groups,
        .groups_chosen = c->groups_chosen,
        .scale = c->gate_scale,
        .auxiliary = whole ? 0 : c->auxiliary_loss,
        .loads = whole};
    Routing routing = op_router(graph, logits, bias, b->share, b->loss, &spec);
    if (b->routing) {
        int64_t shape[] = {graph_rows(graph, logits), spec.k};
        routing.index = b->routing[b->layer] = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 2, shape, "given_routing");
    }
    if (!whole || !routing.loads) return routing;
    b->loads = b->loads ? op_add(graph, b->loads, routing.loads) : routing.loads;
    BalanceLossSpec balance = {.experts = c->experts,
        .k = c->experts_per_token,
        .tokens = model_expert_layers(c, c->layers) * graph_rows(graph, logits),
        .weight = c->auxiliary_loss};
    if (b->layer + c->experts_period >= c->layers) op_balance_loss(graph, b->loads, b->share, b->loss, &balance);
    return routing;
}

/* Returns whether ranks divide the channels of every expert instead of whole experts. They do in
 * generation, where every rank has all rows: an exchange of rows would wait until the host knows
 * their counts, and a single row would keep only one rank busy. */
static bool splits_experts(const Builder *b) { return b->mode == MODEL_GENERATE; }

/* Declares PREFIX.SUFFIX [E, out, in]. The ranks of AXES_EXPERTS divide it by whole experts, or as
 * `split` says. */
static TensorId declare_experts(Builder *b, const char *prefix, const char *suffix, int64_t out, int64_t in, const Cut *split) {
    Cut whole = {.axes = AXES_EXPERTS, .blocks = 1, .rows = {b->config->experts}};
    int64_t shape[] = {b->config->experts, out, in};
    quantize_next(b, true);
    TensorId experts =
        declare_weight(b, prefix, suffix, PARAMETER_MATRIX, 3, shape, splits_experts(b) ? split : &whole, 0, b->config->init_std, false);
    quantize_next(b, false);
    return experts;
}

/* Applies the layer [E, out, in] of each row's expert. In generation the few rows do not decide
 * whether the layer is in fp8. */
static TensorId apply_experts(Builder *b, TensorId x, TensorId w, const Dispatch *dispatch) {
    const int64_t *shape = graph_get(b->graph, w)->shape;
    double rows = builder_shares_rows(b) ? (double)dispatch->rows / (double)shape[0] : 0;
    if (!builder_is_fp8(b, 16, rows, shape[1], shape[2])) return op_grouped_linear(b->graph, x, builder_read(b, w), dispatch);
    return op_fp8_grouped_linear(b->graph, x, w, dispatch, &b->config->fp8);
}

/* Declares the biases PREFIX.SUFFIX [E, out] of experts. `split` is the cut of their matrices, which
 * ranks split in generation; NULL: every rank has all biases. */
static TensorId declare_expert_biases(Builder *b, const char *prefix, const char *suffix, int64_t out, const Cut *split) {
    Cut whole = {.axes = AXES_EXPERTS, .blocks = 1, .rows = {b->config->experts}};
    int64_t shape[] = {b->config->experts, out};
    return declare_weight(b, prefix, suffix, PARAMETER_BIAS, 2, shape, splits_experts(b) ? split : &whole, 0, 0, false);
}

/* The layers of experts; a bias is TENSOR_NONE if they have none. */
typedef struct Experts { TensorId gate_up, down, gate_up_bias, down_bias; } Experts;

static void mark_order(Builder *b, bool transposed, bool alternates) {
    Parameter *last = &b->graph->parameters[b->graph->parameter_count - 1];
    last->transposed = transposed;
    last->alternates = alternates;
}

static Experts declare_layers(Builder *b, const ExpertsSpec *spec) {
    const ModelConfig *c = b->config;
    const Cut by_output = {.axes = AXES_TENSOR, .dimension = 1, .blocks = 2, .rows = {c->ffn, c->ffn}},
              by_input = {.axes = AXES_TENSOR, .dimension = 2, .blocks = 1, .rows = {c->ffn}};
    Experts experts = {.gate_up = declare_experts(b, spec->prefix, ".gate_up_proj", 2 * c->ffn, c->width, &by_output)};
    graph_set_projections(b->graph, experts.gate_up, by_output.rows, by_output.blocks);
    mark_order(b, spec->interleaved, spec->interleaved);
    experts.down = declare_experts(b, spec->prefix, ".down_proj", c->width, c->ffn, &by_input);
    mark_order(b, spec->interleaved, false);
    if (!spec->biased) return experts;
    experts.gate_up_bias = declare_expert_biases(b, spec->prefix, ".gate_up_proj_bias", 2 * c->ffn, &by_output);
    mark_order(b, false, spec->interleaved);
    experts.down_bias = declare_expert_biases(b, spec->prefix, ".down_proj_bias", c->width, NULL);
    return experts;
}

/* Applies a layer with its adapters and its bias. The result is a partial sum over the ranks of
 * `sum`. */
static TensorId multiply_experts(Builder *b, TensorId x, TensorId w, TensorId bias, const Dispatch *dispatch, MeshAxes sum) {
    TensorId y = builder_adapt_experts(b, graph_get(b->graph, w)->name, x, apply_experts(b, x, w, dispatch), dispatch);
    return bias ? op_grouped_bias(b->graph, y, bias, dispatch, sum) : y;
}

TensorId builder_experts(Builder *b, const ExpertsSpec *spec, TensorId x, Routing routing) {
    const ModelConfig *c = b->config;
    Graph *graph = b->graph;
    Experts experts = declare_layers(b, spec);
    Dispatch dispatch = op_moe_sort(graph, routing.index, c->experts);
    TensorId slots = op_moe_permute(graph, x, &dispatch);
    ExpertExchange exchange = splits_experts(b) ? (ExpertExchange){.local = dispatch} : op_moe_exchange(graph, &dispatch);
    TensorId hidden = op_moe_dispatch(graph, slots, &exchange);
    hidden = multiply_experts(b, hidden, experts.gate_up, experts.gate_up_bias, &exchange.local, 0);
    hidden = op_activation_with(graph, hidden, model_activation(c), model_activation_terms(c));
    TensorId done = multiply_experts(b, hidden, experts.down, experts.down_bias, &exchange.local, splits_experts(b) ? AXES_TENSOR : 0);
    TensorId y = op_moe_combine(graph, op_moe_return(graph, done, &exchange, &dispatch), routing.gate, &dispatch);
    return splits_experts(b) ? builder_scatter(b, y) : y;
}

/* -- Layers -------------------------------------------------------------------------------------------------------- */

void builder_layer(Builder *b, int layer) {
    char prefix[32] = "";
    if (layer >= 0) snprintf(prefix, sizeof prefix, "layers.%d.", layer);
    b->layer = layer;
    graph_scope(b->graph, layer, prefix);
}
