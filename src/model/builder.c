/* What the families share while they build: the naming and declaring of parameters, attention, experts, and layers
 * around a residual stream. Owns nothing; called by the families. */
#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "model/model_internal.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/moe/moe.h"
#include "ops/rope/rope.h"

/* -- Parameters ---------------------------------------------------------------------------------------------------- */

/* `fused`: begins right behind the parameter before, so that graph_fuse can view both as one. */
static TensorId declare_cut(Builder *b, const char *name, const char *suffix, ParameterKind kind, int rank, const int64_t *shape,
    const Cut *cut, double mean, double std, bool fused) {
    char full[160];
    if (b->layer >= 0) snprintf(full, sizeof full, "%s.%d.%s%s", b->layer_names, b->layer, name, suffix);
    else snprintf(full, sizeof full, "%s%s", name, suffix);
    return graph_cut_parameter(b->graph, full, kind, rank, shape, cut, mean, std, fused);
}

static TensorId declare(Builder *b, const char *name, const char *suffix, ParameterKind kind, int rank, const int64_t *shape, double mean,
    double std, bool fused) {
    return declare_cut(b, name, suffix, kind, rank, shape, &(Cut){0}, mean, std, fused);
}

TensorId builder_parameter(Builder *b, const char *name, ParameterKind kind, int rank, const int64_t *shape) {
    return declare(b, name, "", kind, rank, shape, 0, b->config->init_std, false);
}

TensorId builder_vector(Builder *b, const char *name, ParameterKind kind, int64_t count, double value) {
    return declare(b, name, "", kind, 1, &count, value, 0, false);
}

TensorId builder_matrix(Builder *b, const char *name, int64_t out, int64_t in, double std) {
    return declare(b, name, ".weight", PARAMETER_MATRIX, 2, (int64_t[]){out, in}, 0, std, false);
}

TensorId builder_bias(Builder *b, const char *name, int64_t count) {
    return declare(b, name, ".bias", PARAMETER_BIAS, 1, &count, 0, 0, false);
}

double builder_residual_std(const Builder *b) { return b->config->init_std / sqrt(2.0 * b->config->layers); }

enum { MAX_STACKED = 4 };

TensorId builder_stacked_matrices(Builder *b, const Stacked *layers, int count, int64_t in) {
    TensorId parts[MAX_STACKED];
    assert(count <= MAX_STACKED);
    for (int i = 0; i < count; i++)
        parts[i] =
            declare(b, layers[i].name, ".weight", PARAMETER_MATRIX, 2, (int64_t[]){layers[i].out, in}, 0, b->config->init_std, i > 0);
    return graph_fuse(b->graph, parts, count);
}

TensorId builder_stacked_biases(Builder *b, const Stacked *layers, int count) {
    TensorId parts[MAX_STACKED];
    assert(count <= MAX_STACKED);
    for (int i = 0; i < count; i++) parts[i] = declare(b, layers[i].name, ".bias", PARAMETER_BIAS, 1, &layers[i].out, 0, 0, i > 0);
    return graph_fuse(b->graph, parts, count);
}

/* The token table, or the head. */
static TensorId declare_table(Builder *b, const char *name, bool ends) {
    TensorId table = builder_parameter(b, name, PARAMETER_EMBEDDING, 2, (int64_t[]){b->config->vocabulary, b->config->width});
    b->graph->parameters[b->graph->parameter_count - 1].ends = ends;
    return table;
}

TensorId builder_embedding(Builder *b, const char *name) {
    return builder_is_first_stage(b) ? declare_table(b, name, b->cut && b->config->tied) : TENSOR_NONE;
}

TensorId builder_head(Builder *b, const char *name, TensorId embedding) {
    if (!builder_is_last_stage(b)) return TENSOR_NONE;
    if (!b->config->tied) return declare_table(b, "lm_head.weight", false);
    return embedding ? embedding : declare_table(b, name, true);
}

/* -- Operations ---------------------------------------------------------------------------------------------------- */

Norm builder_norm(Builder *b, const char *name, NormKind kind, bool biased, int64_t columns) {
    Norm norm = {.kind = kind, .epsilon = b->config->norm_epsilon};
    norm.gain = declare(b, name, ".weight", PARAMETER_NORM, 1, &columns, 1, 0, false);
    if (biased) norm.bias = builder_bias(b, name, columns);
    return norm;
}

TensorId builder_rope_table(Builder *b) {
    const ModelConfig *c = b->config;
    RopeSpec spec = {.theta = c->rope_theta,
        .dimensions = (int64_t)(c->rope_fraction * c->head_dim),
        .positions = c->context,
        .scaling = (RopeScaling)c->rope_scaling,
        .factor = c->rope_factor,
        .original_positions = c->rope_original_context,
        .low_frequency = c->rope_low_frequency,
        .high_frequency = c->rope_high_frequency,
        .beta_fast = c->rope_beta_fast,
        .beta_slow = c->rope_beta_slow,
        .truncate = c->rope_truncate,
        .attention_factor = c->rope_attention_factor,
        .length = b->mode == MODEL_GENERATE ? 0 : b->length};
    return op_rope_table(b->graph, &spec);
}

TensorId builder_attention(Builder *b, TensorId qkv) {
    const ModelConfig *c = b->config;
    AttentionSpec spec = {.heads = {c->heads, c->kv_heads, c->head_dim},
        .length = b->length,
        .window = c->window,
        .scale = c->softmax_scale,
        .alibi = b->alibi};
    if (b->mode != MODEL_GENERATE) return op_attention(b->graph, qkv, b->positions, &spec);
    int64_t shape[] = {attention_cache_rows(b->graph, c->context), 2 * c->kv_heads * c->head_dim};
    TensorId cache = graph_tensor(b->graph, ARENA_STATE, TYPE_COMPUTE, 2, shape, "kv_cache");
    return op_attention_cached(b->graph, qkv, b->positions, cache, &spec);
}

Routing builder_router(Builder *b, TensorId logits, TensorId bias, bool skip) {
    const ModelConfig *c = b->config;
    Graph *graph = b->graph;
    bool whole = c->auxiliary_scope == AUXILIARY_MODEL && c->auxiliary_loss > 0;
    RouterSpec spec = {.experts = c->experts,
        .k = c->experts_per_token,
        .skip = skip,
        .renormalise = c->renormalise,
        .auxiliary = whole ? 0 : c->auxiliary_loss,
        .loads = whole};
    Routing routing = op_router(graph, logits, bias, b->share, b->loss, &spec);
    if (!whole || !routing.loads) return routing;
    b->loads = b->loads ? op_add(graph, b->loads, routing.loads) : routing.loads;
    BalanceLossSpec balance = {
        .experts = c->experts, .k = c->experts_per_token, .tokens = c->layers * graph_rows(graph, logits), .weight = c->auxiliary_loss};
    if (b->layer + 1 == c->layers) op_balance_loss(graph, b->loads, b->share, b->loss, &balance);
    return routing;
}

/* PREFIX.SUFFIX [E, out, in], shared out over the ranks of AXES_EXPERTS by whole experts. */
static TensorId declare_experts(Builder *b, const char *prefix, const char *suffix, int64_t out, int64_t in) {
    Cut cut = {.axes = AXES_EXPERTS, .blocks = 1, .rows = {b->config->experts}};
    int64_t shape[] = {b->config->experts, out, in};
    return declare_cut(b, prefix, suffix, PARAMETER_MATRIX, 3, shape, &cut, 0, b->config->init_std, false);
}

TensorId builder_experts(Builder *b, const char *prefix, TensorId x, Routing routing) {
    const ModelConfig *c = b->config;
    Graph *graph = b->graph;
    TensorId gate_up = declare_experts(b, prefix, ".gate_up_proj", 2 * c->ffn, c->width);
    TensorId down = declare_experts(b, prefix, ".down_proj", c->width, c->ffn);
    Dispatch dispatch = op_moe_sort(graph, routing.index, c->experts);
    TensorId slots = op_moe_permute(graph, x, &dispatch);
    Exchange exchange = op_moe_exchange(graph, &dispatch);
    TensorId arrived = op_moe_dispatch(graph, slots, &exchange);
    TensorId hidden = op_swiglu(graph, op_grouped_linear(graph, arrived, gate_up, &exchange.local));
    TensorId done = op_grouped_linear(graph, hidden, down, &exchange.local);
    return op_moe_combine(graph, op_moe_return(graph, done, &exchange, &dispatch), routing.gate, &dispatch);
}

/* -- Layers -------------------------------------------------------------------------------------------------------- */

void builder_layer(Builder *b, int layer) {
    char prefix[32] = "";
    if (layer >= 0) snprintf(prefix, sizeof prefix, "layers.%d.", layer);
    b->layer = layer;
    graph_scope(b->graph, layer, prefix);
}

/* Declares the norm that `layer` begins with, or the last norm when there is no such layer. */
static Norm declare_norm(Builder *b, const Layers *layers, int layer) {
    bool exists = layer < b->config->layers;
    builder_layer(b, exists ? layer : -1);
    return builder_norm(b, exists ? layers->first : layers->last, layers->norm, layers->biased, b->config->width);
}

static ResidualNorm merge(Builder *b, const Layers *layers, TensorId block, TensorId stream, bool after_mlp, const Norm *norm) {
    AffineMerge affine = {0};
    if (layers->merge) affine = layers->merge(b, after_mlp);
    return op_residual_norm(b->graph, block, stream, layers->merge ? &affine : NULL, norm);
}

/* Layers [first, end), of which the first has no merge before it to fuse its norm with. The merge that a chunk ends with
 * has none after it: it makes the norm before again, which nothing reads. Returns the last norm. */
static TensorId append_layers(Builder *b, TensorId *stream, const Layers *layers, LayerRange range) {
    Norm norm = declare_norm(b, layers, range.first);
    ResidualNorm h = {.stream = *stream, .normed = op_norm(b->graph, *stream, &norm)};
    for (int layer = range.first; layer < range.end; layer++) {
        bool cut = layer + 1 == range.end && range.end < b->config->layers;
        TensorId block = layers->attention(b, h.normed);
        norm = builder_norm(b, layers->second, layers->norm, layers->biased, b->config->width);
        h = merge(b, layers, block, h.stream, false, &norm);
        block = layers->mlp(b, h.normed);
        if (!cut) norm = declare_norm(b, layers, layer + 1); /* fused with this layer's merge, but the next layer's by name */
        builder_layer(b, layer);
        h = merge(b, layers, block, h.stream, true, &norm);
        builder_layer(b, layer + 1 < b->config->layers ? layer + 1 : -1);
    }
    *stream = h.stream;
    return h.normed;
}

TensorId builder_layers(Builder *b, TensorId stream, const Layers *layers) {
    TensorId normed = TENSOR_NONE;
    for (int chunk = 0; chunk < builder_chunks(b); chunk++) {
        LayerRange range = builder_begin_chunk(b, chunk, &stream);
        normed = append_layers(b, &stream, layers, range);
        builder_end_chunk(b, chunk, stream);
    }
    return builder_is_last_stage(b) ? normed : TENSOR_NONE;
}
