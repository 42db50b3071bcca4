/* From configuration to graph: inputs, the family's trunk, head and loss; and what concerns all parameters: counting, initial values,
 * casting. Owns nothing but the graph that it hands out. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/element.h"
#include "base/hash.h"
#include "base/rng.h"
#include "backend/gpu/kernel_launch.h"
#include "model/model_internal.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/router/router.h"

/* -- What the families share ---------------------------------------------------------------------------------------- */

TensorId builder_parameter(
    Builder *b, const char *name, ParameterKind kind, int rank, const int64_t *shape, double mean, double std, bool fused) {
    char full[160];
    if (b->layer >= 0) snprintf(full, sizeof full, "%s.%d.%s", b->layer_names, b->layer, name);
    else snprintf(full, sizeof full, "%s", name);
    return graph_parameter(b->graph, full, kind, rank, shape, mean, std, fused);
}

TensorId builder_matrix(Builder *b, const char *name, int64_t out, int64_t in, bool fused) {
    return builder_parameter(b, name, PARAMETER_MATRIX, 2, (int64_t[]){out, in}, 0, b->config->init_std, fused);
}

TensorId builder_vector(Builder *b, const char *name, ParameterKind kind, int64_t count, double value) {
    return builder_parameter(b, name, kind, 1, &count, value, 0, false);
}

void builder_layer(Builder *b, int layer) {
    char prefix[32] = "";
    if (layer >= 0) snprintf(prefix, sizeof prefix, "layers.%d.", layer);
    b->layer = layer;
    graph_scope(b->graph, layer, prefix);
}

Norm builder_norm(Builder *b, const char *name, NormKind kind, bool biased, int64_t columns) {
    char full[128];
    Norm norm = {.kind = kind, .epsilon = b->config->norm_epsilon};
    snprintf(full, sizeof full, "%s.weight", name);
    norm.gain = builder_vector(b, full, PARAMETER_NORM, columns, 1);
    snprintf(full, sizeof full, "%s.bias", name);
    if (biased) norm.bias = builder_vector(b, full, PARAMETER_BIAS, columns, 0);
    return norm;
}

TensorId builder_linear(Builder *b, const char *name, TensorId x, int64_t out, double std, LoraTargets kind) {
    char full[128];
    snprintf(full, sizeof full, "%s.weight", name);
    int64_t shape[] = {out, graph_columns(b->graph, x)};
    return builder_adaptable(b, x, builder_parameter(b, full, PARAMETER_MATRIX, 2, shape, 0, std, false), TENSOR_NONE, kind);
}

double builder_residual_std(const Builder *b) { return b->config->init_std / sqrt(2.0 * b->config->layers); }

TensorId builder_table(Builder *b, const char *name) {
    int64_t shape[] = {b->config->vocabulary, b->config->width};
    return builder_parameter(b, name, PARAMETER_EMBEDDING, 2, shape, 0, b->config->init_std, false);
}

TensorId builder_rope_table(Builder *b) {
    const ModelConfig *c = b->config;
    RopeSpec spec = {.theta = c->rope_theta,
        .dimensions = (int64_t)(c->rope_fraction * c->head_dim),
        .positions = c->context,
        .factor = c->rope_factor,
        .low_frequency = c->rope_low_frequency,
        .high_frequency = c->rope_high_frequency,
        .original_positions = c->rope_original_context};
    return op_rope_table(b->graph, &spec);
}

/* The norm that ends a layer is the first of the next one, and belongs to it by name. */
TensorId builder_layers(Builder *b, TensorId stream, const Layers *layers) {
    int64_t count = b->config->layers, width = b->config->width;
    TensorId normed = TENSOR_NONE;
    for (int layer = 0; layer < count; layer++) {
        builder_layer(b, layer);
        if (layer == 0) {
            Norm first = builder_norm(b, layers->first, layers->norm, layers->biased, width);
            normed = op_norm(b->graph, stream, &first);
        }
        TensorId block = layers->attention(b, normed);
        Norm second = builder_norm(b, layers->second, layers->norm, layers->biased, width);
        ResidualNorm middle = op_residual_norm(b->graph, block, stream, NULL, &second);
        block = layers->mlp(b, middle.normed);
        bool last = layer + 1 == count;
        builder_layer(b, last ? -1 : layer + 1);
        Norm next = builder_norm(b, last ? layers->last : layers->first, layers->norm, layers->biased, width);
        builder_layer(b, layer);
        ResidualNorm end = op_residual_norm(b->graph, block, middle.stream, NULL, &next);
        stream = end.stream;
        normed = end.normed;
    }
    builder_layer(b, -1);
    return normed;
}

TensorId builder_attention(Builder *b, TensorId qkv) {
    const ModelConfig *c = b->config;
    AttentionSpec spec = {.heads = {c->heads, c->kv_heads, c->head_dim},
        .length = b->length,
        .window = c->window,
        .scale = c->softmax_scale,
        .alibi = c->family == FAMILY_MPT ? c->alibi_max : 0};
    if (b->mode != MODEL_GENERATE) return op_attention(b->graph, qkv, b->positions, &spec);
    int64_t shape[] = {c->context, 2 * c->kv_heads * c->head_dim};
    TensorId cache = graph_tensor(b->graph, ARENA_STATE, TYPE_COMPUTE, 2, shape, "kv_cache");
    return op_attention_cached(b->graph, qkv, b->positions, cache, &spec);
}

TensorId builder_experts(Builder *b, const char *prefix, TensorId x, Routing routing) {
    const ModelConfig *c = b->config;
    char name[128];
    snprintf(name, sizeof name, "%s.gate_up_proj", prefix);
    TensorId gate_up =
        builder_parameter(b, name, PARAMETER_MATRIX, 3, (int64_t[]){c->experts, 2 * c->ffn, c->width}, 0, c->init_std, false);
    snprintf(name, sizeof name, "%s.down_proj", prefix);
    TensorId down = builder_parameter(b, name, PARAMETER_MATRIX, 3, (int64_t[]){c->experts, c->width, c->ffn}, 0, c->init_std, false);
    Dispatch dispatch = op_moe_sort(b->graph, routing.index, c->experts);
    TensorId slots = op_moe_permute(b->graph, x, &dispatch);
    TensorId hidden = op_swiglu(b->graph, op_grouped_linear(b->graph, slots, gate_up, dispatch.offset));
    return op_moe_combine(b->graph, op_grouped_linear(b->graph, hidden, down, dispatch.offset), routing.gate, &dispatch);
}

/* -- Building ------------------------------------------------------------------------------------------------------- */

static Trunk (*const families[])(Builder *) = {
    [FAMILY_ZAYA] = zaya_build,
    [FAMILY_LLAMA] = llama_build,
    [FAMILY_MPT] = mpt_build,
    [FAMILY_GPT2] = gpt2_build,
};

static TensorId integers(Graph *graph, int64_t count, const char *name) {
    return graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &count, name);
}

Model model_build_adapted(const ModelConfig *config, const LoraConfig *lora, Precision precision, ModelMode mode, int64_t sequences,
    int64_t length, RecomputePolicy recompute) {
    Graph *graph = graph_create(precision, mode == MODEL_TRAIN);
    graph->frozen = lora && lora->rank;
    int64_t rows = sequences * length, one = 1, two = 2;
    Model model = {.graph = graph, .mode = mode, .sequences = sequences, .length = length};
    bool loss = mode == MODEL_TRAIN || mode == MODEL_EVALUATE;
    model.tokens = integers(graph, rows, "tokens");
    model.positions = integers(graph, rows, "positions");
    if (loss) {
        model.targets = integers(graph, rows, "targets");
        model.scale = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 1, &one, "loss_scale");
        model.share = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 1, &one, "microbatch_share");
        model.loss = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, &two, "loss");
    }
    Builder builder = {.graph = graph,
        .config = config,
        .lora = lora,
        .mode = mode,
        .length = length,
        .tokens = model.tokens,
        .positions = model.positions,
        .share = model.share,
        .loss = model.loss,
        .layer_names = "model.layers",
        .layer = -1};
    Trunk trunk = families[config->family](&builder);
    builder_layer(&builder, -1);
    if (loss) {
        op_linear_cross_entropy(graph, trunk.normed, trunk.head, model.targets, model.scale, model.loss);
    } else {
        TensorId asked = mode == MODEL_LOGITS ? trunk.normed : op_last_row(graph, trunk.normed);
        model.logits = op_linear(graph, asked, trunk.head, TENSOR_NONE, true);
        graph->tensors[model.logits].keep = true;
    }
    if (mode == MODEL_TRAIN) graph_differentiate(graph, recompute, NULL, 0);
    return model;
}

Model model_build(
    const ModelConfig *config, Precision precision, ModelMode mode, int64_t sequences, int64_t length, RecomputePolicy recompute) {
    return model_build_adapted(config, NULL, precision, mode, sequences, length, recompute);
}

void model_free(Model *model) {
    graph_free(model->graph);
    *model = (Model){0};
}

/* -- All parameters ------------------------------------------------------------------------------------------------- */

static int64_t count_parameters(const Graph *graph, bool frozen_too) {
    int64_t count = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->kind != PARAMETER_BALANCE_BIAS && (frozen_too || !p->frozen)) count += p->count;
    }
    return count;
}

int64_t model_parameters(const Graph *graph) { return count_parameters(graph, true); }
int64_t model_trained_parameters(const Graph *graph) { return count_parameters(graph, false); }

int64_t model_active_parameters(const Graph *graph, const ModelConfig *config) {
    int64_t count = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        bool experts = p->rank == 3 && p->kind == PARAMETER_MATRIX;
        if (p->kind != PARAMETER_BALANCE_BIAS) count += experts ? p->count / config->experts * config->experts_per_token : p->count;
    }
    return count;
}

void model_initialize_interval(
    const Graph *graph, const ModelConfig *config, uint64_t seed, const ParameterInterval *interval, Device *device, void *to) {
    const Parameter *p = &graph->parameters[interval->parameter];
    Normals normals = {.seed = seed, .stream = hash_bytes(p->name, strlen(p->name)), .mean = p->init_mean, .deviation = p->init_std};
    bool bf16 = graph_state_type(graph, p) == TYPE_COMPUTE || (graph_is_base(graph, p) && precision_is_bf16(graph->precision));
    int64_t element = bf16 ? (int64_t)sizeof(uint16_t) : p->element_bytes, first = interval->first, count = interval->count;
    device_normals(device, to, (int)element, first, count, &normals);
    /* The skip class starts, and stays, out of reach (reference: the released ZAYA1 weights). */
    if (p->kind == PARAMETER_BALANCE_BIAS && config->family == FAMILY_ZAYA && count && first + count == p->count) {
        float single = -1;
        double twice = -1;
        device_upload(device, (char *)to + (count - 1) * element, graph->precision == PRECISION_FP64 ? (void *)&twice : &single, element);
    }
}

static void initialize_all(const Graph *graph, const ModelConfig *config, uint64_t seed, Device *device, void *master, void *weights) {
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        void *to = graph_is_base(graph, p) ? (char *)weights + graph_get(graph, p->tensor)->offset : parameter_in(p, master);
        model_initialize_interval(graph, config, seed, &(ParameterInterval){.parameter = i, .count = p->count}, device, to);
    }
}

void model_initialize(const Graph *graph, const ModelConfig *config, uint64_t seed, Device *device, void *master) {
    initialize_all(graph, config, seed, device, master, master);
}

void model_cast_weights(const Graph *graph, Device *device, const void *master, void *weights) {
    if (graph->precision == PRECISION_BF16) device_cast_to_bf16(device, weights, master, graph->trained_bytes / (int64_t)sizeof(float));
}

bool model_initialize_on(
    const Graph *graph, const ModelConfig *config, uint64_t seed, Device *device, void *master, void *weights, Error *error) {
    initialize_all(graph, config, seed, device, master, weights);
    model_cast_weights(graph, device, master, weights);
    return device_ok(device, error);
}
